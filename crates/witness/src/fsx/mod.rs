//! Random calls to one file, and to a second one that it shares with, compared with a model in memory: through the page
//! cache, without it, or both at once.
//!
//! Invariants: a run succeeds only if
//! - each call had the model's result, and what found no space changed nothing;
//! - all of both files was as in the model, by every kind of handle, now and then, before each close of the volume, and
//!   after it was opened again;
//! - at the end `xfs_repair -n` and `uxfs check` find nothing, and the kernel's mount has the same bytes.

mod actor;
mod call;
mod choice;
mod files;
mod kept;
mod model;

use crate::handles::Io;
use crate::history::campaign::{Task, Which};
use crate::history::{is_sound, leave_free};
use crate::sandbox::{Mounted, copy_sparse, mkfs, scratch};
use actor::Actor;
use anyhow::{Context, Result, bail, ensure};
use blockdev::{BlockDevice, FileOptions};
use call::{End, Step};
use choice::{Chooser, Rules};
use clap::Args as ClapArgs;
use fastrand::Rng;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use uxfs::{NewNode, OpenOptions, Timestamp, Volume};

/// Does random calls to one file, and compares it with a model.
#[derive(ClapArgs, Debug)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// How many runs on each geometry, with one seed after the other.
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// Calls of a run, all threads together. Each thread has two files of its own.
    #[arg(long, default_value_t = 200_000)]
    ops: u64,
    /// Do the calls in this file again, as a run that failed has kept them (with --keep).
    #[arg(long)]
    redo: Option<PathBuf>,
    /// With --redo: look for fewer calls that fail too, for so many seconds.
    #[arg(long, default_value_t = 0)]
    shrink: u64,
}

/// Sizes of the caches that a run may have.
const CACHES: [u64; 4] = [64 << 20, 1 << 20, 256 << 10, 64 << 10];
/// Bytes that a file may have at most.
const MOST: [u64; 4] = [128 << 10, 512 << 10, 1 << 20, 4 << 20];
/// Bytes that are left free on a volume that is to be full.
const LEFT_FREE: u64 = 2 << 20;

/// Runs the command. `Ok(true)`: every run was right.
pub fn run(args: &Args) -> Result<bool> {
    if let Some(path) = &args.redo {
        return kept::redo(path, args.shrink);
    }
    let io = args.which.io.unwrap_or(Io::Mixed);
    if io == Io::Syncing {
        Io::refuse(Some(io), "fsx")?;
    }
    let rest = format!("--io {} --ops {}", io.name(), args.ops);
    let tasks = Which { io: None, ..args.which.clone() }.tasks(args.runs, "fsx", &rest)?;
    let tasks = tasks.into_iter().map(|task| Task { io, ..task }).collect();
    let outcome = args.which.all("", tasks, |task| one(task, args))?;
    Ok(outcome.conclude("fsx", "runs right", "calls"))
}

fn one(task: &Task, args: &Args) -> Result<(u64, String)> {
    let mut run = FsxRun::new(task)?;
    let source = Source::Chance { ops: args.ops, keep: args.which.keep.is_some() };
    let result = run.all(source);
    if let (Err(_), Some(keep)) = (&result, &args.which.keep) {
        kept::keep(keep, &run)?;
    }
    result?;
    let calls: u64 = run.actors.iter().map(|actor| actor.calls).sum();
    let full: u64 = run.actors.iter().map(|actor| actor.full).sum();
    let seconds = run.took;
    let speed = calls as f64 / seconds / 1000.0;
    let Setting { cache, most, .. } = run.setting;
    let said = format!(
        "{calls} calls, {full} without space, opened {} times, files of {} KiB, caches of {} KiB, {seconds:.1} s ({speed:.0} thousand a second)",
        run.ends.len(),
        most >> 10,
        cache >> 10,
    );
    Ok((calls, said))
}

/// The properties of a run that are the same for all of its calls. They follow from the seed.
#[derive(Clone, Copy, Debug)]
struct Setting {
    cache: u64,
    most: u64,
    /// There are no background threads.
    alone: bool,
}

/// One run on one volume.
struct FsxRun {
    task: Task,
    setting: Setting,
    folder: tempfile::TempDir,
    rng: Rng,
    actors: Vec<Actor>,
    /// How the volume was left, and after how many calls of each thread.
    ends: Vec<(End, Vec<u64>)>,
    /// Seconds of calls, without the judging.
    took: f64,
}

/// Where calls come from.
enum Source<'a> {
    Chance {
        ops: u64,
        keep: bool,
    },
    /// For each time that the volume is open, each thread's calls.
    Listed(&'a [(End, Vec<Vec<Step>>)]),
}

impl FsxRun {
    fn new(task: &Task) -> Result<Self> {
        let mut rng = Rng::with_seed(task.seed ^ task.geometry.salt());
        let cache = CACHES[rng.usize(..CACHES.len())].max(task.geometry.block() * 4);
        let most = MOST[rng.usize(..MOST.len())].max(task.geometry.block() * 8);
        let setting = Setting { cache, most, alone: task.seed.is_multiple_of(4) };
        let folder = scratch()?;
        mkfs(&folder.path().join("image"), &task.geometry.volume)?;
        let (task, actors, ends) = (task.clone(), Vec::new(), Vec::new());
        Ok(Self { task, setting, folder, rng, actors, ends, took: 0.0 })
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    fn open(&self) -> Result<Volume> {
        let sector = self.task.geometry.sector();
        let device: Arc<dyn BlockDevice> =
            Arc::new(FileOptions::in_memory().write(true).sector_size(sector).open(self.image())?);
        let time = self.setting.alone.then_some(Timestamp { seconds: 1_700_000_000, nanoseconds: 0 });
        let options = OpenOptions::new().writable(true).cache_size(self.setting.cache).repeatable(time);
        Ok(Volume::open_device(device, &options)?)
    }

    /// Does all calls, and lets all judges look at the result.
    fn all(&mut self, source: Source<'_>) -> Result<()> {
        let start = Instant::now();
        let done = match source {
            Source::Chance { ops, keep } => self.by_chance(ops, keep),
            Source::Listed(legs) => self.listed(legs),
        };
        self.took = start.elapsed().as_secs_f64();
        done?;
        self.in_the_end()
    }

    fn by_chance(&mut self, ops: u64, keep: bool) -> Result<()> {
        let volume = self.open()?;
        self.set_out(&volume, keep)?;
        let rules = self.rules(&volume)?;
        let seeds: Vec<u64> = self.actors.iter().map(|_| self.rng.u64(..)).collect();
        let mut choosers: Vec<Chooser> = seeds.into_iter().map(|seed| Chooser::new(seed, rules)).collect();
        let mut left = (ops / self.actors.len() as u64).max(1);
        let mut volume = Some(volume);
        while left > 0 {
            let leg = choosers[0].leg().min(left);
            left -= leg;
            let open = volume.take().map_or_else(|| self.open(), Ok)?;
            let by: Vec<_> = choosers.iter_mut().map(|chooser| Calls::Chosen(leg, chooser)).collect();
            let end = if left > 0 && self.rng.u32(..3) == 0 { End::Dropped } else { End::Closed };
            self.leg(open, by, end)?;
        }
        Ok(())
    }

    fn listed(&mut self, legs: &[(End, Vec<Vec<Step>>)]) -> Result<()> {
        let volume = self.open()?;
        self.set_out(&volume, false)?;
        let mut volume = Some(volume);
        for (end, lists) in legs {
            let open = volume.take().map_or_else(|| self.open(), Ok)?;
            self.leg(open, lists.iter().map(|list| Calls::Listed(list)).collect(), *end)?;
        }
        match volume {
            Some(open) => Ok(open.close()?),
            None => Ok(()),
        }
    }

    fn rules(&self, volume: &Volume) -> Result<Rules> {
        Ok(Rules {
            io: self.task.io,
            block: u64::from(volume.root()?.metadata()?.block_size),
            most: self.setting.most,
            shares: self.task.geometry.shares(),
            exchanges: self.task.geometry.exchanges(),
        })
    }

    /// Makes each thread's files, and leaves little space where it is to run out.
    fn set_out(&mut self, volume: &Volume, keep: bool) -> Result<()> {
        let root = volume.root()?.as_dir()?;
        for thread in 0..self.task.threads {
            let names = ["file", "other"].map(|name| format!("{name}-{thread}"));
            for name in &names {
                root.create_file(name.as_bytes(), &NewNode::default())?;
            }
            let buffers = self.task.io.is_cached();
            self.actors.push(Actor::new(names, self.task.geometry.tight, buffers, keep));
        }
        if self.task.geometry.tight {
            leave_free(volume, LEFT_FREE.min(self.setting.most))?;
        }
        Ok(())
    }

    /// Does calls as long as the volume is open, and leaves it.
    fn leg(&mut self, volume: Volume, by: Vec<Calls<'_>>, end: End) -> Result<()> {
        let stop = AtomicBool::new(false);
        let done: Vec<Result<()>> = std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .actors
                .iter_mut()
                .zip(by)
                .map(|(actor, calls)| {
                    let (volume, stop) = (&volume, &stop);
                    scope.spawn(move || {
                        calls.all(actor, volume, stop).inspect_err(|_| stop.store(true, Ordering::Relaxed))
                    })
                })
                .collect();
            // A run that panics fails like any other.
            let join = |thread: std::thread::ScopedJoinHandle<'_, Result<()>>| {
                thread.join().unwrap_or_else(|_| bail!("it panicked"))
            };
            threads.into_iter().map(join).collect()
        });
        self.ends.push((end, self.actors.iter().map(|actor| actor.calls).collect()));
        let failed: Vec<String> =
            done.into_iter().filter_map(|done| Some(format!("{:#}", done.err()?))).collect();
        ensure!(failed.is_empty(), "{}", failed.join("; "));
        match end {
            End::Closed => volume.close().context("the close")?,
            End::Dropped => volume.sync().context("the sync before the end")?,
        }
        Ok(())
    }

    /// What all judges say of the volume, which was closed.
    fn in_the_end(&self) -> Result<()> {
        is_sound(&self.image()).context("in the end")?;
        let mounted = Mounted::new(&self.image(), &self.folder.path().join("mnt"), true)?;
        let seen = self.actors.iter().try_for_each(|actor| by_kernel(actor, mounted.dir()));
        mounted.unmount()?;
        seen.context("what the kernel sees in the end")
    }

    fn keep(&self, image: &Path) -> Result<()> {
        copy_sparse(&self.image(), image)
    }
}

/// What the kernel has in an actor's files.
fn by_kernel(actor: &Actor, dir: &Path) -> Result<()> {
    for (name, model) in actor.names.iter().zip(&actor.models) {
        let bytes = std::fs::read(dir.join(name))?;
        model::compare(&bytes, model.bytes(), 0).with_context(|| name.clone())?;
    }
    Ok(())
}

/// Runs a thread as long as the volume is open.
enum Calls<'a> {
    Chosen(u64, &'a mut Chooser),
    Listed(&'a [Step]),
}

impl Calls<'_> {
    fn all(self, actor: &mut Actor, volume: &Volume, stop: &AtomicBool) -> Result<()> {
        let mut at = actor.at(volume)?;
        at.verify_all().context("when the volume was open")?;
        match self {
            Self::Chosen(count, chooser) => {
                chooser.change_mood();
                for _ in 0..count {
                    if stop.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                    let step = chooser.next(at.actor.sizes());
                    at.step(&step)?;
                }
            }
            Self::Listed(steps) => steps.iter().try_for_each(|step| at.step(step))?,
        }
        at.verify_all().context("before the volume is closed")
    }
}
