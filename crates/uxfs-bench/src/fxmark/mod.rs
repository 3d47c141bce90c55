//! The workloads of FxMark: 19 small loops, each of which exercises one part of a file system from many threads.
//!
//! What they do is that of C. Min, S. Kashyap, S. Maass, W. Kang and T. Kim, *Understanding Manycore Scalability of
//! File Systems*, USENIX ATC 2016, and of the program that came with it; where the two differ, of the program (`MRP*`
//! looks at files and does not open them, `MWCM` writes a block to each file that it makes). [`FxMark::about`] says
//! what one operation is. Blocks are of 4 KiB; a thread's part of a shared file is 8 MiB; paths to be looked up have
//! five parts, and where any of them is, there are eight names in each directory. Data are in memory before the clock
//! starts, and nothing is made durable but by `DWSL`.
//!
//! Two things differ from the program. What uses something up (`DWAL`, `DWTL`, `MWC*`, `MWU*`, `MWRM`) goes over as
//! many blocks or files a thread as are asked for and not over all that fit into half a minute or onto the disk, so
//! that all targets do the same work; all else goes on until the time is over. And a thread at the end of a
//! directory (`MRD*`) opens it again, where the program asks for more entries.
//!
//! Invariants: all targets run the same loops, generic over [`FileSystem`]; while the clock runs, these allocate and
//! lock nothing themselves; after each measurement the target's content is checked.

mod data;
mod kinds;
mod lookups;
mod names;
#[cfg(test)]
mod tests;

pub use kinds::FxMark;

use crate::config::{Config, Workload};
use crate::error::{Error, Result};
use crate::fs::{Directory, FileSystem, Scene, Site, Target, clear, count, names as names_of};
use crate::fsmark::together;
use crate::lockstat::{Tracker, shared_first};
use crate::measure::{Collector, Sample, Series};
use crate::suite::{Observer, Report};
use crate::target::Label;
use crate::timer::Timer;
use crate::work::Tally;
use std::time::{Duration, Instant};

/// The name of the workload in reports.
pub(crate) const NAME: &str = "fxmark";

/// What a measurement does.
#[derive(Clone, Copy, Debug)]
struct Plan {
    threads: usize,
    /// Files, or blocks, of each thread, where the workload uses them up.
    files: u64,
    /// How long it runs otherwise.
    limit: Duration,
    /// A number that no other measurement of the run has.
    serial: u64,
}

/// One thread's part of a workload.
trait Hand: Send {
    /// Does it, each operation past `timer`; gives the number of operations.
    fn work(&mut self, plan: Plan, timer: &mut Timer) -> Result<u64>;
    /// Checks that everything it did is there.
    fn check(&self) -> Result<()>;
}

/// A workload that can begin.
struct Stage<'a, D> {
    /// A part for each thread.
    hands: Vec<Box<dyn Hand + 'a>>,
    /// How many names directories have afterwards.
    left: Vec<(D, u64)>,
}

/// The directory that all threads use.
const SHARED: &[u8] = b"shared";

/// A new directory of one thread's own.
fn own_dir<F: FileSystem>(fs: &F, thread: usize) -> Result<F::Dir> {
    fs.root()?.make_dir(format!("thread-{thread}").as_bytes())
}

/// The error of a target that does not hold what it should.
fn wrong(what: impl Into<String>) -> Error {
    Error::Result(what.into())
}

/// Repeats until the time is over; gives how often. Reads the clock rarely if an operation is short.
fn repeat(limit: Duration, timer: &mut Timer, mut op: impl FnMut() -> Result<()>) -> Result<u64> {
    repeat_untimed(limit, || timer.of(&mut op))
}

/// The same for several operations at a time, which are timed one by one.
fn repeat_untimed(limit: Duration, mut op: impl FnMut() -> Result<()>) -> Result<u64> {
    const BATCH_MAX: u64 = 1024;
    let start = Instant::now();
    let (mut ops, mut batch) = (0, 1);
    loop {
        for _ in 0..batch {
            op()?;
        }
        ops += batch;
        let elapsed = start.elapsed();
        let Some(left) = limit.checked_sub(elapsed) else { return Ok(ops) };
        let fit = left.as_secs_f64() / elapsed.as_secs_f64().max(1e-9) * ops as f64;
        batch = (2 * batch).min(fit as u64).clamp(1, BATCH_MAX);
    }
}

/// Measures a workload once on one file system: how many operations it did, and in what time. `begin` is called just
/// before the first, `end` after the last.
fn measure<F: FileSystem>(
    site: &Site<F>,
    which: FxMark,
    plan: Plan,
    begin: impl FnOnce(),
    end: impl FnOnce(),
) -> Result<(Tally, Duration)> {
    let fs = &site.fs;
    let mut stage = set(fs, which, plan)?;
    fs.sync()?;
    begin();
    let timed = together(stage.hands.iter_mut(), which.timed(), |hand, timer| hand.work(plan, timer))?;
    end();
    check(&stage).map_err(|error| match error {
        Error::Result(what) => Error::Result(format!("{}: {}: {what}", site.label, which.name())),
        other => other,
    })?;
    drop(stage);
    clean(fs)?;
    Ok(timed)
}

/// Makes all that a workload needs.
fn set<F: FileSystem>(fs: &F, which: FxMark, plan: Plan) -> Result<Stage<'_, F::Dir>> {
    use FxMark as X;
    match which {
        X::DRBL | X::DRBM | X::DRBH | X::DWOL | X::DWOM | X::DWAL | X::DWTL | X::DWSL => {
            data::set(fs, which, plan)
        }
        X::MRPL | X::MRPM | X::MRPH | X::MRDL | X::MRDM => lookups::set(fs, which, plan),
        X::MWCL | X::MWCM | X::MWUL | X::MWUM | X::MWRL | X::MWRM => names::set(fs, which, plan),
    }
}

/// Checks what a workload left.
fn check<D: Directory>(stage: &Stage<'_, D>) -> Result<()> {
    stage.hands.iter().try_for_each(|hand| hand.check())?;
    for (dir, expected) in &stage.left {
        let found = count(dir)?;
        if found != *expected {
            return Err(wrong(format!("a directory has {found} names, not {expected}")));
        }
    }
    Ok(())
}

/// Removes what a workload made, except for the tree of paths, which others look at, too.
fn clean<F: FileSystem>(fs: &F) -> Result<()> {
    let root = fs.root()?;
    for name in names_of(&root)?.iter().filter(|name| !lookups::is_tree(name)) {
        clear(&root.open_dir(name)?)?;
        root.remove_dir(name)?;
    }
    fs.sync()
}

/// Bytes that the volumes need: for files of a block each, or as many blocks of one file, and what a thread has of a
/// shared one.
fn volume_bytes(config: &Config, threads: usize) -> u64 {
    const BYTES_A_FILE: u64 = 3 * 4096;
    threads as u64 * (config.files * BYTES_A_FILE + 2 * data::REGION)
}

/// Measures all requested workloads on all targets, round by round.
pub(crate) fn run(config: &Config, observer: &mut dyn Observer, report: &mut Report) -> Result<()> {
    let kinds = if config.fxmark.is_empty() { FxMark::ALL.to_vec() } else { config.fxmark.clone() };
    let most = config.threads.iter().copied().max().unwrap_or(1);
    let scene = Scene::set(config, Workload::FxMark, volume_bytes(config, most), most, observer)?;
    let steps = config.rounds * kinds.len() * config.threads.len() * scene.targets.len();
    observer.start(NAME, steps as u64);
    let mut collector = Collector::default();
    let mut locks = config.lockstat.then(Tracker::start);
    let mut serial = 0;
    for _ in 0..config.rounds {
        for &which in &kinds {
            for &threads in &config.threads {
                serial += 1;
                let plan = Plan { threads, files: config.files, limit: config.min_time, serial };
                for target in &scene.targets {
                    let name = format!("{} {} × {threads}", target.label(), which.name());
                    observer.step(&name);
                    let (tally, wall) = one(target, which, plan, locks.as_mut(), &name)?;
                    collector.add(line(target.label(), which, threads), Sample::of(&tally, wall));
                }
            }
        }
    }
    report.measurements.extend(collector.finish());
    report.locks.extend(locks.map(|locks| shared_first(locks.finish(NAME))).unwrap_or_default());
    scene.finish(observer)
}

/// One measurement, on whatever kind of target.
fn one(
    target: &Target,
    which: FxMark,
    plan: Plan,
    locks: Option<&mut Tracker>,
    name: &str,
) -> Result<(Tally, Duration)> {
    let locks = std::cell::RefCell::new(locks);
    let begin = || {
        if let Some(locks) = locks.borrow_mut().as_mut() {
            locks.skip();
        }
    };
    let end = || {
        if let Some(locks) = locks.borrow_mut().as_mut() {
            locks.attribute(name);
        }
    };
    match target {
        Target::Uxfs(site) => measure(site, which, plan, begin, end),
        Target::Sys(site) => measure(site, which, plan, begin, end),
    }
}

fn line(label: &Label, which: FxMark, threads: usize) -> Series {
    Series {
        workload: NAME,
        label: label.clone(),
        op: which.name(),
        threads,
        depth: 1,
        bytes: which.bytes(),
        samples: Vec::new(),
    }
}
