//! Volumes that were left with a dirty log, by the kernel or by uxfs: one copy is recovered by the kernel, the other
//! by uxfs, and both must hold the same tree.
//!
//! Invariant: a run succeeds only if
//! - uxfs, open for reading, saw what the kernel's recovery made, and had not changed a byte of the image; nor did
//!   `uxfs check`, which found nothing in what it will be;
//! - uxfs, open for writing, left a volume where `xfs_repair -n` and `uxfs check` find nothing (but for attributes that
//!   a kernel had set in part, of which `xfs_repair` must say the same in the kernel's copy), and where the kernel sees the
//!   tree that its own recovery made;
//! - the kernel's recovery left nothing else either, except for inodes without a name that it could not free, of a log
//!   that a kernel left (see `not_freed`); what uxfs recovered holds none of them;
//! - every file of it grows then, and what comes behind its old end is zeroes;
//! - every thread's part of the tree is one that its history passed through, no earlier than the last sync;
//! - the power failed at some write of uxfs's recovery of another copy, or in the first checkpoints behind it, and the
//!   next recovery, by uxfs and of one more copy by the kernel, came to the same tree, with every block free or
//!   somebody's;
//! - uxfs, which recovered a third copy and went straight on, could remove all of it and do a new history there, that the
//!   kernel, `xfs_repair -n` and the model agree about.

use super::drive::{self, Blind, Source};
use super::model::{Model, Rules};
use super::promised::Promised;
use super::replay::{by_kernel, by_uxfs, is_sound_after, places, recover};
use super::target::{EngineTarget, Target};
use super::{History, Which, Who, growth, half_set, judge};
use crate::chains::Tally;
use crate::compare::compare;
use crate::record::Record;
use crate::record_sizes::RecordSizes;
use crate::sandbox::copy_sparse;
use anyhow::{Context, Result, ensure};
use blockdev::{Fault, FaultDevice, FileDevice, Op, Repeat};
use clap::Args as ClapArgs;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime};
use uxfs::{OpenOptions, Volume};

/// How many differences are shown.
const SHOWN: usize = 20;

/// Operations that uxfs does to a volume that it recovered, all threads together.
const AFTERWARDS: u64 = 600;

/// Leaves volumes with a dirty log, and has both kernel and uxfs recover a copy.
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
    /// The side that leaves the log.
    #[arg(long, value_enum, default_value_t = Who::Kernel)]
    target: Who,
}

/// Runs the command. `Ok(true)`: every volume was recovered as it must be.
pub fn run(args: &Args) -> Result<bool> {
    let who = format!("recover {}", args.target.name());
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
    print!("recover: what was unfinished:\n{}", unfinished.into_inner().expect("no panic"));
    Ok(outcome.conclude("recover", "runs right", "operations"))
}

/// Does one run: how many operations, and what was there.
fn one(history: &mut History, args: &Args, unfinished: &Mutex<Tally>) -> Result<(u64, String)> {
    let mut rng = fastrand::Rng::with_seed(history.seed ^ history.geometry.salt());
    let threads = history.threads as u64;
    let ops = rng.u64(1..(args.ops / threads).max(2));
    let durable = match args.target {
        Who::Kernel => by_kernel(history, ops, rng.bool())?,
        Who::Uxfs => by_uxfs(history, ops)?,
    };
    *unfinished.lock().expect("no panic") +=
        Tally::of(&FileDevice::open(history.image())?).context("the log")?;
    let image = history.image();
    let (theirs, ours, on) = (beside(&image, "kernel"), beside(&image, "uxfs"), beside(&image, "on"));
    for to in [&theirs, &ours, &on] {
        copy_sparse(&image, to)?;
    }
    let left = recover(&theirs, &history.mnt(), args.target).context("the kernel's recovery")?;
    let expected = judge::by_kernel(&theirs, &history.mnt())?;

    let seen = judge::by_uxfs(&image).context("uxfs, reading")?;
    let promised = Promised::of(&image, &seen)?;
    // An inode without a name that recovery frees may share blocks until then: that is a mark, and no content.
    let by_place = |records: &[Record]| records.iter().map(Record::by_place).collect::<Vec<_>>();
    let what = "what uxfs reads without recovery on the device";
    promised.same(what, &by_place(&expected), by_place(&seen))?;
    let clean = half_set::nothing_else_is_found(&image).context("before the recovery")?;
    ensure!(!clean, "uxfs check: the log is clean");
    ensure!(equal(&image, &ours)?, "uxfs, open for reading, changed the image");

    let target = EngineTarget::open(&ours).context("uxfs, recovering")?;
    let report = target.recovery().context("uxfs says that there was nothing to recover")?;
    target.close()?;
    let left_too = is_sound_after(&ours, args.target).context("after the recovery by uxfs")?;
    ensure!(
        left.half_set.concat() == left_too,
        "xfs_repair -n of the kernel's recovery: {left:?}; of that by uxfs: {left_too:?}"
    );
    promised.same("what uxfs recovered", &expected, judge::by_kernel(&ours, &history.mnt())?)?;
    let again = beside(&image, "again");
    crash_again(&image, &again, &mut rng).context("the power fails while uxfs recovers")?;
    let cut = beside(&image, "cut");
    copy_sparse(&again, &cut)?;
    let left_by_cut = recover(&cut, &history.mnt(), args.target)
        .context("the kernel's recovery behind one by uxfs that was cut")?;
    left.has_all_of(&left_by_cut)?;
    let found = judge::by_kernel(&cut, &history.mnt())?;
    promised.same("what the kernel recovered behind a recovery by uxfs that was cut", &expected, found)?;
    std::fs::remove_file(&cut)?;
    EngineTarget::open(&again).context("the second recovery by uxfs")?.close()?;
    is_sound_after(&again, args.target).context("after the second recovery by uxfs")?;
    let found = judge::by_kernel(&again, &history.mnt())?;
    promised.same("what uxfs recovered the second time", &expected, found)?;
    let places = places(&durable, &expected)?;
    let volume = Volume::open(&ours, &OpenOptions::new().writable(true))?;
    growth::of_all(&volume).context("growing what uxfs recovered")?;
    volume.close().context("closing what grew")?;
    drop(volume);
    go_on(history, &on).context("going on after the recovery")?;
    let ops = ops * threads;
    Ok((ops, format!("{ops} operations; {report}; recovered behind the last sync: {places}{}", left.said())))
}

/// Has uxfs recover a copy on a device that takes some writes and then none, half of the time in the last of them, which
/// are the first checkpoints behind the recovery.
pub(crate) fn crash_again(image: &Path, copy: &Path, rng: &mut fastrand::Rng) -> Result<()> {
    const LAST: u64 = 16;
    let writes = |faults: Vec<Fault>| -> Result<u64> {
        copy_sparse(image, copy)?;
        let sizes = Arc::new(RecordSizes::over(Arc::new(FileDevice::open_writable(copy)?))?);
        let device = Arc::new(FaultDevice::new(sizes.clone(), faults));
        drop(Volume::open_device(device.clone(), &OpenOptions::new().writable(true)));
        sizes.verdict()?;
        Ok(device.seen(Op::Write))
    };
    let all = writes(Vec::new())?;
    let from = if rng.bool() { all.saturating_sub(LAST) } else { 0 };
    writes(vec![Fault::fail(Op::Write, rng.u64(from..all.max(1))).then(Repeat::ReadOnlyAfter)])?;
    Ok(())
}

/// Has uxfs recover a volume and, in the same breath, remove all that is in it and do another history there.
fn go_on(history: &History, image: &Path) -> Result<()> {
    let since = SystemTime::now();
    let target = EngineTarget::open_with(image, &history.options())?.by(history.io);
    remove_all(&target, b"").context("removing what was recovered")?;
    let seed = history.seed.wrapping_add(1 << 32);
    let mut actors = drive::actors(&target, seed, history.threads, &history.geometry)?;
    let rules = Rules { tight: history.geometry.tight, strict: EngineTarget::STRICT };
    let mut observers = vec![Blind; history.threads];
    let source = Source::Generated(AFTERWARDS / history.threads as u64);
    drive::run(&target, &mut actors, &mut observers, source, rules, false)?;
    target.close()?;
    let models: Vec<&Model> = actors.iter().map(|actor| &actor.model).collect();
    judge::judge(image, &history.mnt(), &models, since)
}

/// Removes everything in a directory.
fn remove_all(target: &EngineTarget, dir: &[u8]) -> Result<()> {
    for (name, kind) in target.read_dir(dir)? {
        let path = if dir.is_empty() { name } else { [dir, b"/", &name].concat() };
        let removed = match kind {
            'd' => {
                remove_all(target, &path)?;
                target.rmdir(&path)
            }
            _ => target.unlink(&path),
        };
        removed.with_context(|| path.escape_ascii().to_string())?;
    }
    Ok(())
}

pub(crate) fn beside(image: &Path, who: &str) -> PathBuf {
    image.with_extension(who)
}

pub(crate) fn same(what: &str, expected: &[Record], found: &[Record]) -> Result<()> {
    let outcome = compare(expected, found)?;
    let differences = &outcome.differences;
    let shown: Vec<&str> = differences.iter().take(SHOWN).map(String::as_str).collect();
    ensure!(
        differences.is_empty(),
        "{what} differs from what the kernel recovered ({} differences):\n{}",
        differences.len(),
        shown.join("\n")
    );
    Ok(())
}

/// Whether two files hold the same bytes.
pub(crate) fn equal(a: &Path, b: &Path) -> Result<bool> {
    let (mut a, mut b) = (File::open(a)?, File::open(b)?);
    if a.metadata()?.len() != b.metadata()?.len() {
        return Ok(false);
    }
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        let len = a.read(&mut left)?;
        b.read_exact(&mut right[..len])?;
        if left[..len] != right[..len] {
            return Ok(false);
        }
        if len == 0 {
            return Ok(true);
        }
    }
}
