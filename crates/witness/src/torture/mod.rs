//! Tortures one file and its clones: threads write to them, directly and through queues, and clone, dedupe, exchange,
//! cut and move parts of them, all at once, on a volume with power cuts.
//!
//! Invariants: a run succeeds only if
//! - each thread always read in its part of the files what it had put there, and at the end so did the kernel;
//! - files that all threads changed at once contained zeroes or what somebody had written there;
//! - after a power cut, at flushes and at other times, with any part of what was in doubt, each sector had what was
//!   certainly in it when the last sync began, or something newer, after uxfs's recovery and after the kernel's;
//! - `uxfs check` and `xfs_repair -n` found nothing in any of these.

mod cuts;
mod field;
mod site;
mod work;

use crate::chains::Tally;
use crate::history::campaign::{Task, Which};
use crate::history::geometry::Geometry;
use crate::history::{is_sound, leave_free, means};
use crate::record_sizes::RecordSizes;
use crate::sandbox::{Mounted, copy_sparse, mkfs, scratch};
use anyhow::{Context, Result, ensure};
use blockdev::{FileOptions, Recorder, Recording};
use clap::Args as ClapArgs;
use fastrand::Rng;
use site::{Expected, Site};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use uxfs::{OpenOptions, Volume};
use work::Worker;

/// Tortures one file and its clones by several threads, and has the power fail.
#[derive(ClapArgs, Debug)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// How many runs on each geometry, with one seed after the other.
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// Calls of a run, all threads together.
    #[arg(long, default_value_t = 3_000)]
    ops: u64,
    /// Power cuts of a run.
    #[arg(long, default_value_t = 30)]
    cuts: u64,
    /// How many of them the kernel recovers too.
    #[arg(long, default_value_t = 3)]
    kernel: u64,
}

/// Sizes of the caches that a run may have.
const CACHES: [u64; 3] = [64 << 20, 1 << 20, 128 << 10];

/// Blocks that are left free on a volume that is to be full.
const LEFT_FREE: u64 = 2 << 20;

/// Runs the command. `Ok(true)`: every run was right.
pub fn run(args: &Args) -> Result<bool> {
    let all: Vec<Geometry> =
        crate::history::geometry::ALL.into_iter().filter(|geometry| geometry.shares()).collect();
    let rest = format!("--ops {} --cuts {} --kernel {}", args.ops, args.cuts, args.kernel);
    let tasks = args.which.tasks_on(&all, args.runs, "torture", &rest)?;
    let unfinished = Mutex::new(Tally::default());
    let outcome = args.which.all("", tasks, |task| {
        let start = Instant::now();
        let (found, said) = one(task, args)?;
        *unfinished.lock().expect("no panic") += found;
        Ok((args.ops, format!("{said}, {:.0} s", start.elapsed().as_secs_f64())))
    })?;
    print!("torture: what was unfinished:\n{}", unfinished.into_inner().expect("no panic"));
    Ok(outcome.conclude("torture", "runs right", "calls"))
}

/// What was done, and what must be there.
struct Done {
    recording: Recording,
    begun: u64,
    expected: Expected,
    full: u64,
}

fn one(task: &Task, args: &Args) -> Result<(Tally, String)> {
    let folder = scratch()?;
    let (image, base, mnt) =
        (folder.path().join("image"), folder.path().join("base"), folder.path().join("mnt"));
    mkfs(&image, &task.geometry.volume)?;
    copy_sparse(&image, &base)?;
    let result = (|| {
        let done = torture(task, args, &image)?;
        if task.seed.is_multiple_of(2) {
            in_the_end(&image, &mnt, &done.expected)?;
        }
        std::fs::remove_file(&image)?;
        let tally = cuts::all(task, args, &base, &mnt, &done).inspect_err(|_| {
            if let Some(keep) = &args.which.keep {
                let path = keep.join(format!("torture-{}-{}.trace", task.geometry.volume.name, task.seed));
                // The failure itself is what has to be reported.
                let _ =
                    std::fs::create_dir_all(keep).and_then(|()| std::fs::write(path, done.expected.trace()));
            }
        })?;
        Ok((tally, format!("{} calls, {} without space, {} cuts", args.ops, done.full, args.cuts)))
    })();
    if let (Err(_), Some(keep)) = (&result, &args.which.keep) {
        std::fs::create_dir_all(keep)?;
        let kept = keep.join(format!("torture-{}-{}.img", task.geometry.volume.name, task.seed));
        copy_sparse(if image.exists() { &image } else { &base }, &kept)?;
        println!("torture: kept {}", kept.display());
    }
    result
}

/// Runs the threads. Every other run ends with the volume closed.
fn torture(task: &Task, args: &Args, image: &Path) -> Result<Done> {
    let mut rng = Rng::with_seed(task.seed ^ task.geometry.salt());
    let device = FileOptions::in_memory().write(true).sector_size(task.geometry.sector()).open(image)?;
    let sizes = Arc::new(RecordSizes::over(Arc::new(device))?);
    let recorder = Arc::new(Recorder::new(sizes.clone()));
    let device = means::of(task.seed ^ task.geometry.salt()).of(recorder.clone());
    let cache = CACHES[rng.usize(..CACHES.len())];
    let gathers = task.io.gathers(task.seed);
    let options = OpenOptions::new().writable(true).cache_size(cache).gather_writes(gathers);
    let volume = Volume::open_device(device, &options)?;
    let exchanges = task.geometry.exchanges();
    let site = Site::new(&volume, Arc::clone(&recorder), task.threads, exchanges, args.kernel > 0, task.io)?;
    if task.geometry.tight {
        leave_free(&volume, LEFT_FREE)?;
    }
    site.sync(&volume)?;
    let begun = recorder.moment();
    let stop = AtomicBool::new(false);
    let seeds: Vec<u64> = (0..task.threads).map(|_| rng.u64(..)).collect();
    let full = std::thread::scope(|scope| {
        let threads: Vec<_> = seeds
            .into_iter()
            .enumerate()
            .map(|(thread, seed)| {
                let (site, volume, stop) = (&site, &volume, &stop);
                let steps = args.ops / task.threads as u64;
                let mut worker = Worker {
                    site,
                    volume,
                    thread,
                    rng: Rng::with_seed(seed),
                    tight: task.geometry.tight,
                    full: 0,
                };
                scope.spawn(move || -> Result<u64> {
                    for nth in 0..steps {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        worker.step().with_context(|| format!("call {nth}")).inspect_err(|_| {
                            stop.store(true, Ordering::Relaxed);
                        })?;
                    }
                    Ok(worker.full)
                })
            })
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<u64>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        what_all_say(threads.into_iter().map(join).collect())
    })?;
    let expected = site.into_expected();
    expected
        .check(None, |name| {
            let file = volume.open_file(name)?;
            let mut bytes = vec![0; file.size() as usize];
            file.read_at(&mut bytes, 0)?;
            Ok(bytes)
        })
        .context("before the end")?;
    if task.seed.is_multiple_of(2) {
        volume.close()?;
    }
    drop(volume);
    sizes.verdict()?;
    Ok(Done { recording: recorder.recording(), begun, expected, full })
}

/// How many calls found no space. If threads failed, all give their reasons: most of them met what the first left
/// behind.
fn what_all_say(threads: Vec<Result<u64>>) -> Result<u64> {
    let (mut full, mut failed) = (0, Vec::new());
    for (nth, thread) in threads.into_iter().enumerate() {
        match thread {
            Ok(calls) => full += calls,
            Err(error) => failed.push(format!("thread {nth}: {error:#}")),
        }
    }
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(full)
}

/// The verdict of all judges on a volume that was closed.
fn in_the_end(image: &Path, mnt: &Path, expected: &Expected) -> Result<()> {
    is_sound(image)?;
    let mounted = Mounted::new(image, mnt, true).context("the kernel's mount")?;
    let by_kernel = expected.check(None, |name| Ok(std::fs::read(mounted.dir().join(name))?));
    mounted.unmount()?;
    by_kernel.context("what the kernel sees in the end")
}
