//! Histories that end without a clean close: the kernel recovers the volume, and what was made durable must be there.
//!
//! Invariants:
//! - nothing is closed before the end, so that files without names are open in it;
//! - a run succeeds only if the kernel mounted the volume, `xfs_repair -n` and `uxfs check` found nothing (but for what a
//!   kernel that crashed has done in part: see `half_set` and `not_freed`), uxfs sees what the kernel sees, and every
//!   thread's part of the tree is one that its history passed through.

use super::durable::{self, Clock, CrashPoint, Durable};
use super::model::Rules;
use super::not_freed::{self, Left};
use super::target::{MountedTarget, Target};
use super::{Failure, History, Source, Which, Who, drive, half_set, judge};
use crate::chains::Tally;
use crate::command;
use crate::handles::Io;
use crate::record::Record;
use crate::sandbox::{Mounted, judging};
use anyhow::{Context, Error, Result};
use blockdev::FileDevice;
use clap::Args as ClapArgs;
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

/// Ends histories without closing the volume, and has the kernel recover it.
#[derive(ClapArgs, Debug)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// How many runs of each geometry, with one seed after the other.
    #[arg(long, default_value_t = 20)]
    runs: u64,
    /// Most operations of a run, all threads together; how many there are follows from the seed.
    #[arg(long, default_value_t = 4_000)]
    ops: u64,
    /// What the histories are done to.
    #[arg(long, value_enum, default_value_t = Who::Uxfs)]
    target: Who,
}

/// Runs the command. `Ok(true)`: every volume was recovered as it must be.
pub fn run(args: &Args) -> Result<bool> {
    let who = format!("replay {}", args.target.name());
    let tasks = args.which.tasks(args.runs, &who, &format!("--ops {}", args.ops))?;
    let unfinished = Mutex::new(Tally::default());
    let outcome = args.which.all("", tasks, |task| {
        let start = Instant::now();
        let mut history = History::new(task)?;
        match one(&mut history, args, &unfinished) {
            Ok((ops, what)) => Ok((ops, format!("{what}, {:.0} s", start.elapsed().as_secs_f64()))),
            Err(error) => {
                args.which.keep.as_ref().map_or(Ok(()), |keep| history.keep(keep))?;
                Err(error)
            }
        }
    })?;
    print!("replay: what was unfinished:\n{}", unfinished.into_inner().expect("no panic"));
    Ok(outcome.conclude("replay", "runs right", "operations"))
}

/// Does one run: how many operations, and what was there in the end.
fn one(history: &mut History, args: &Args, unfinished: &Mutex<Tally>) -> Result<(u64, String)> {
    let mut rng = fastrand::Rng::with_seed(history.seed ^ history.geometry.salt());
    let per_thread = (args.ops / history.threads as u64).max(2);
    let ops = rng.u64(1..per_thread);
    let durable = match args.target {
        Who::Kernel => by_kernel(history, ops, rng.bool())?,
        Who::Uxfs => by_uxfs(history, ops)?,
    };
    *unfinished.lock().expect("no panic") +=
        Tally::of(&FileDevice::open(history.image())?).context("the log")?;
    let left = recover(&history.image(), &history.mnt(), args.target)?;
    let records = history.views_agree()?;
    let places = places(&durable, &records)?;
    let ops = ops * history.threads as u64;
    Ok((ops, format!("{ops} operations; recovered behind the last sync: {places}{}", left.said())))
}

/// Where every thread is at the end of its history, in words.
pub(super) fn places(threads: &[Durable], records: &[Record]) -> Result<String> {
    let places = durable::judge(threads, durable::END, records).map_err(Error::msg)?;
    Ok(places.iter().map(CrashPoint::to_string).collect::<Vec<_>>().join(", "))
}

pub(super) fn by_kernel(history: &mut History, ops: u64, flush: bool) -> Result<Vec<Durable>> {
    let (image, volume) = (history.image(), &history.geometry.volume);
    // Some are made larger first, and the log tells of places past the end that the superblock on disk knows.
    let grows = !history.geometry.tight && history.seed.is_multiple_of(3);
    if grows {
        File::options().write(true).open(&image)?.set_len(volume.size * 2)?;
    }
    let mounted = Mounted::new(&image, &history.mnt(), false)?;
    if grows {
        command::run(Command::new("xfs_growfs").arg("-d").arg(mounted.dir()))?;
    }
    let target = MountedTarget::new(mounted.dir())?;
    let durable = until(history, &target, ops, || shut_down(mounted.dir(), flush));
    drop(target);
    mounted.unmount()?;
    durable
}

pub(super) fn by_uxfs(history: &mut History, ops: u64) -> Result<Vec<Durable>> {
    let target = history.open()?;
    let durable = until(history, &target, ops, || Ok(()));
    target.abandon();
    durable
}

/// Does operations, and crashes while files are open.
fn until<T: Target>(
    history: &mut History,
    target: &T,
    ops: u64,
    crash: impl FnOnce() -> Result<()>,
) -> Result<Vec<Durable>> {
    history.set_out(target)?;
    target.sync()?;
    history.actors.iter_mut().for_each(|actor| actor.generator.a_kernel_recovers());
    let mut durable = watchers(history, target, &Clock::counting())?;
    let rules = Rules { tight: history.geometry.tight, strict: T::STRICT };
    let source = Source::Generated(ops);
    let open = drive::run(target, &mut history.actors, &mut durable, source, rules, true)
        .map_err(|failure: Failure| Error::new(failure))?;
    crash()?;
    drop(open);
    Ok(durable)
}

/// Those who watch what the threads of a history do. What there is must have been synced.
pub(super) fn watchers<T: Target>(history: &History, target: &T, clock: &Clock) -> Result<Vec<Durable>> {
    let actors = history.actors.iter().enumerate();
    let syncing = history.io == Io::Syncing;
    let watcher = |(thread, actor)| Ok(Durable::new(target, actor, thread, clock.clone())?.syncing(syncing));
    actors.map(watcher).collect()
}

/// Has the kernel give up a mounted volume at once, as a crash does: with its log written, or without.
fn shut_down(mnt: &Path, flush: bool) -> Result<()> {
    let what = if flush { "shutdown -f" } else { "shutdown" };
    command::run(Command::new("xfs_io").args(["-x", "-c", what]).arg(mnt))
}

/// Has the kernel replay the log. Gives what it left of attributes that the kernel had set in part and of inodes that it
/// could not free, if it was the kernel that crashed; nothing else may be wrong.
pub(super) fn recover(image: &Path, mnt: &Path, who: Who) -> Result<Left> {
    let mounted = Mounted::new(image, mnt, false).context("recovery by the kernel")?;
    mounted.unmount()?;
    match who {
        Who::Kernel => not_freed::nothing_else_is_wrong(image, &[judging(image)?]),
        Who::Uxfs => judge::is_sound(image).map(|()| Left::default()),
    }
}

/// Nothing is wrong with a volume that uxfs recovered. Gives what `xfs_repair -n` says of attributes that the kernel had
/// set in part, if it was the kernel that crashed.
pub(super) fn is_sound_after(image: &Path, who: Who) -> Result<Vec<String>> {
    match who {
        Who::Kernel => half_set::nothing_else_is_wrong(image),
        Who::Uxfs => judge::is_sound(image).map(|()| Vec::new()),
    }
}
