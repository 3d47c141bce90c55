//! Volumes that are filled until nothing more fits, emptied, and filled again.
//!
//! Invariants: a run succeeds only if
//! - every call that found no space had changed nothing, and nothing but space was ever missing;
//! - what needs no space succeeded on the full volume, and everything could be removed from it;
//! - after each round as many blocks and inodes were free as at first, whether the volume was kept open, closed, or
//!   left as by a crash, when it was full and when it was empty;
//! - `uxfs check` found nothing at any close, `xfs_repair -n` nothing at the end, and the kernel mounts and writes what
//!   was left.

mod clear;
mod filler;
mod seen;

use crate::history::campaign::{Task, Which};
use crate::history::geometry::Geometry;
use crate::history::judge::{checker_finds_nothing, is_sound};
use crate::sandbox::{Mounted, copy_sparse, mkfs, scratch};
use crate::volumes::VolumeKind;
use anyhow::{Context, Result, ensure};
use blockdev::FileDevice;
use clap::Args as ClapArgs;
use fastrand::Rng;
use filler::{Filler, Tally};
use oracles::xfsprogs::Release;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use uxfs::{NewNode, OpenOptions, Volume};

/// Fills volumes from several threads until nothing more fits, and empties them, over and over.
#[derive(ClapArgs, Debug)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// How many runs of each geometry, with one seed after the other.
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// How often each volume is filled and emptied.
    #[arg(long, default_value_t = 20)]
    rounds: u64,
}

const fn small(name: &'static str, options: &'static [&'static str], mib: u64) -> Geometry {
    let volume = VolumeKind {
        name,
        options,
        v4: false,
        size: mib << 20,
        beyond_repair: false,
        newer: 0,
        defaults_of: Release::System,
    };
    Geometry { volume, tight: true }
}

/// The defaults of the newest `mkfs.xfs`, except for these options.
const fn today(name: &'static str, options: &'static [&'static str], mib: u64) -> Geometry {
    let small = small(name, options, mib);
    Geometry { volume: VolumeKind { defaults_of: Release::Unstable, ..small.volume }, ..small }
}

/// The volumes that are filled. `--unsupported` lets `mkfs.xfs` make small volumes and small logs.
const ALL: [Geometry; 11] = [
    small("full-4k", &["-b", "size=4096", "-d", "agcount=2", "--unsupported"], 32),
    small("full-1k", &["-b", "size=1024", "-d", "agcount=2", "--unsupported"], 32),
    small("full-log", &["-b", "size=4096", "-l", "size=1368b", "-d", "agcount=4", "--unsupported"], 64),
    small("full-log-1k", &["-b", "size=1024", "-l", "size=3527b", "-d", "agcount=4", "--unsupported"], 64),
    small(
        "full-whole",
        &["-b", "size=4096", "-i", "sparse=0,size=2048", "-d", "agcount=2", "--unsupported"],
        48,
    ),
    small("full-n64k", &["-n", "size=65536", "-i", "nrext64=1", "-d", "agcount=2", "--unsupported"], 48),
    small(
        "full-plain",
        &["-m", "reflink=0,finobt=0,bigtime=0,inobtcount=0", "-d", "agcount=3", "--unsupported"],
        48,
    ),
    small("full-rmapbt", &["-m", "rmapbt=1", "-d", "agcount=3", "--unsupported"], 48),
    today("full-today", &["-b", "size=4096", "-l", "size=10m", "-d", "agcount=2", "--unsupported"], 64),
    today("full-today-1k", &["-b", "size=1024", "-l", "size=10m", "-d", "agcount=3", "--unsupported"], 64),
    // Inodes may take a hundredth of it, so that they run out before the blocks do.
    small("full-inodes", &["-b", "size=1024", "-i", "maxpct=1", "-d", "agcount=2", "--unsupported"], 64),
];

/// Runs the command. `Ok(true)`: every volume was as it must be.
pub fn run(args: &Args) -> Result<bool> {
    let tasks = args.which.tasks_on(&ALL, args.runs, "full", &format!("--rounds {}", args.rounds))?;
    let outcome = args.which.all("", tasks, |task| one(task, args))?;
    Ok(outcome.conclude("full", "runs right", "rounds"))
}

fn one(task: &Task, args: &Args) -> Result<(u64, String)> {
    let start = Instant::now();
    let folder = scratch()?;
    let image = folder.path().join("image");
    mkfs(&image, &task.geometry.volume)?;
    let result = rounds(task, args.rounds, &image, &folder.path().join("mnt"));
    if let (Err(_), Some(keep)) = (&result, &args.which.keep) {
        std::fs::create_dir_all(keep)?;
        let kept = keep.join(format!("{}-{}.img", task.geometry.volume.name, task.seed));
        copy_sparse(&image, &kept)?;
    }
    let tally = result?;
    Ok((args.rounds, format!("{} rounds, {tally}, {:.0} s", args.rounds, start.elapsed().as_secs_f64())))
}

/// What is free of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Free {
    blocks: u64,
    inodes: u64,
    free_inodes: u64,
}

impl Free {
    fn of(volume: &Volume) -> Result<Self> {
        let info = volume.info()?;
        Ok(Self { blocks: info.free_blocks, inodes: info.inodes, free_inodes: info.free_inodes })
    }
}

fn open(image: &Path) -> Result<Volume> {
    // The caches are small compared with the volume, so that changes are written and read again.
    let options = OpenOptions::new().writable(true).cache_size(4 << 20);
    Ok(Volume::open(image, &options)?)
}

fn rounds(task: &Task, rounds: u64, image: &Path, mnt: &Path) -> Result<Tally> {
    let mut rng = Rng::with_seed(task.seed ^ task.geometry.salt());
    let mut volume = open(image)?;
    let at_first = Free::of(&volume)?;
    let mut tally = Tally::default();
    for round in 0..rounds {
        let seed = rng.u64(..);
        tally += fill(&volume, task, seed).with_context(|| format!("round {round}, filling"))?;
        tally.least_free = tally.least_free.min(Free::of(&volume)?.blocks);
        volume = pause(volume, image, &mut rng).with_context(|| format!("round {round}, full"))?;
        clear::all(&volume, task.threads, seed).with_context(|| format!("round {round}, emptying"))?;
        volume.sync()?;
        for turn in ["emptied", "opened again"] {
            let free = Free::of(&volume)?;
            ensure!(free == at_first, "round {round}, {turn}: {free:?} instead of {at_first:?}");
            volume = pause(volume, image, &mut rng).with_context(|| format!("round {round}, empty"))?;
        }
    }
    volume.close()?;
    drop(volume);
    is_sound(image)?;
    let mounted = Mounted::new(image, mnt, false).context("the kernel's mount")?;
    let left = std::fs::read_dir(mounted.dir())?.count();
    std::fs::write(mounted.dir().join("file"), vec![7; 100_000]).context("the kernel's write")?;
    mounted.unmount()?;
    ensure!(left == 0, "the kernel sees {left} names on the emptied volume");
    is_sound(image).context("after the kernel wrote")?;
    Ok(tally)
}

/// Keeps the volume open, or closes and checks it, or leaves it as a crash would.
fn pause(volume: Volume, image: &Path, rng: &mut Rng) -> Result<Volume> {
    match rng.u32(..3) {
        0 => return Ok(volume),
        1 => {
            volume.close()?;
            drop(volume);
            checker_finds_nothing(Arc::new(FileDevice::open(image)?))?;
        }
        _ => {
            let before = Free::of(&volume)?;
            volume.sync()?;
            drop(volume);
            let recovered = open(image).context("recovery")?;
            let after = Free::of(&recovered)?;
            ensure!(after == before, "{after:?} after recovery instead of {before:?}");
            return Ok(recovered);
        }
    }
    open(image)
}

/// Has every thread fill the volume until nothing of what it tries fits.
fn fill(volume: &Volume, task: &Task, seed: u64) -> Result<Tally> {
    let root = volume.root()?.as_dir()?;
    root.create_dir(clear::SHARED, &NewNode::default())?;
    for thread in 0..task.threads {
        root.create_dir(&clear::folder(thread), &NewNode::default())?;
    }
    let mut fillers = (0..task.threads)
        .map(|thread| Filler::new(volume, thread, seed, task.io))
        .collect::<Result<Vec<_>>>()?;
    if let Some(first) = fillers.first_mut() {
        first.take_most()?;
    }
    std::thread::scope(|scope| {
        let handles: Vec<_> = fillers.iter_mut().map(|filler| scope.spawn(|| filler.fill())).collect();
        let join = |handle: std::thread::ScopedJoinHandle<'_, _>| {
            handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        handles.into_iter().map(join).collect::<Vec<_>>().into_iter().collect::<Result<()>>()
    })?;
    // Space that others had reserved meanwhile may be available now.
    for filler in &mut fillers {
        filler.fill()?;
    }
    for filler in &mut fillers {
        filler.works_when_full()?;
    }
    Ok(fillers.into_iter().map(|filler| filler.tally).sum())
}
