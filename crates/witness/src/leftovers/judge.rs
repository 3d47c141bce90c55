//! Both recoveries of a log, and what follows.

use super::{Stage, load};
use crate::history::half_set::{self, nothing_else_is_found};
use crate::history::judge::{by_kernel, by_uxfs};
use crate::history::not_freed::{self, Left};
use crate::history::promised::Promised;
use crate::history::recover::{beside, crash_again, equal};
use crate::record::Record;
use crate::sandbox::{Mounted, copy_sparse};
use anyhow::{Context, Error, Result, ensure};
use fastrand::Rng;
use oracles::xfsprogs::Release;
use std::path::Path;
use std::time::Duration;
use uxfs::{OpenOptions, Volume};

/// How long the kernel goes on with what uxfs recovered.
const GOES_ON: Duration = Duration::from_millis(150);

/// The results of both recoveries.
pub(super) enum Judged {
    /// The same. Has the report of uxfs's recovery.
    Same(String),
    /// The kernel's recovery left damage, given here, which `xfs_repair` finds as well. The recovery by uxfs is sound.
    KernelFailed(String),
}

/// Recovers the image of a run in both ways and compares.
pub(super) fn judge(stage: &Stage<'_>) -> Result<Judged> {
    let (image, mnt, mut rng) = (stage.image(), stage.mnt(), stage.rng());
    let (kept, theirs, ours) = (beside(&image, "kept"), beside(&image, "kernel"), beside(&image, "uxfs"));
    for to in [&kept, &theirs, &ours] {
        copy_sparse(&image, to)?;
    }
    Mounted::new(&theirs, &mnt, false).context("recovery by the kernel")?.unmount()?;
    let left = match left_by_kernel(stage, &theirs).context("after the kernel's recovery") {
        Ok(left) => left,
        Err(damage) => return kernel_failed(stage, &theirs, damage),
    };
    let expected = by_kernel(&theirs, &mnt)?;

    let clean = nothing_else_is_found(&image).context("before the recovery")?;
    ensure!(!clean, "uxfs check: the log is clean");
    let seen = by_uxfs(&image).context("uxfs, reading")?;
    let promised = Promised::of(&image, &seen)?;
    // An inode without a name that recovery frees may share blocks until then. That is a mark and not content.
    let by_place = |records: &[Record]| records.iter().map(Record::by_place).collect::<Vec<_>>();
    let what = "what uxfs reads without recovery on the device";
    promised.same(what, &by_place(&expected), by_place(&seen))?;
    ensure!(equal(&image, &kept)?, "uxfs, open for reading, changed the image");
    std::fs::remove_file(&kept)?;

    let report = recover(&ours).context("uxfs, recovering")?;
    let as_left = |found: Vec<Vec<String>>| -> Result<()> {
        ensure!(
            found == left.half_set,
            "xfs_repair -n of the kernel's recovery: {left:?}; of that by uxfs: {found:?}"
        );
        Ok(())
    };
    as_left(sound(stage, &ours).context("after the recovery by uxfs")?)?;
    promised.same("what uxfs recovered", &expected, by_kernel(&ours, &mnt)?)?;

    let again = beside(&image, "again");
    crash_again(&image, &again, &mut rng).context("the power fails while uxfs recovers")?;
    let cut = beside(&image, "cut");
    copy_sparse(&again, &cut)?;
    Mounted::new(&cut, &mnt, false).context("recovery by the kernel behind one by uxfs")?.unmount()?;
    let left_by_cut =
        left_by_kernel(stage, &cut).context("after the kernel's recovery behind one by uxfs that was cut")?;
    left.has_all_of(&left_by_cut)?;
    as_left(left_by_cut.half_set)?;
    let found = by_kernel(&cut, &mnt)?;
    promised.same("what the kernel recovered behind a recovery by uxfs that was cut", &expected, found)?;
    recover(&again).context("the second recovery by uxfs")?;
    as_left(sound(stage, &again).context("after the second recovery by uxfs")?)?;
    promised.same("what uxfs recovered the second time", &expected, by_kernel(&again, &mnt)?)?;

    goes_on(stage, &ours, &mut rng)?;
    Ok(Judged::Same(report + &left.said()))
}

/// The kernel changes what uxfs recovered.
fn goes_on(stage: &Stage<'_>, ours: &Path, rng: &mut Rng) -> Result<()> {
    let mounted =
        Mounted::new(ours, &stage.mnt(), false).context("the kernel's mount of what uxfs recovered")?;
    load::run(mounted.dir(), rng, stage.task.threads, GOES_ON, || Ok(()))?;
    mounted.unmount()?;
    sound(stage, ours).context("after the kernel went on with what uxfs recovered")?;
    Ok(())
}

/// The kernel's recovery of its own log left `damage`. This is accepted only if the newest `xfs_repair` finds damage
/// there as well. Then there is nothing to compare with, but what uxfs recovers of that log must be sound for all
/// judges, however often it is interrupted.
fn kernel_failed(stage: &Stage<'_>, theirs: &Path, damage: Error) -> Result<Judged> {
    let Err(findings) = not_freed::by_repair(Release::Unstable, theirs) else { return Err(damage) };
    let (image, mut rng) = (stage.image(), stage.rng());
    let (ours, again) = (beside(&image, "uxfs"), beside(&image, "again"));
    recover(&ours).context("uxfs, recovering")?;
    sound(stage, &ours).context("after the recovery by uxfs, beside damage by that of the kernel")?;
    crash_again(&image, &again, &mut rng).context("the power fails while uxfs recovers")?;
    recover(&again).context("the second recovery by uxfs")?;
    sound(stage, &again).context("after the second recovery by uxfs")?;
    goes_on(stage, &ours, &mut rng)?;
    Ok(Judged::KernelFailed(format!("{findings:#}")))
}

fn recover(image: &Path) -> Result<String> {
    let volume = Volume::open(image, &OpenOptions::new().writable(true))?;
    let report = volume.recovery().context("uxfs says that there was nothing to recover")?.to_string();
    volume.close()?;
    Ok(report)
}

/// A volume that the kernel recovered may have nothing wrong but half-set attributes and inodes that it could not free.
fn left_by_kernel(stage: &Stage<'_>, image: &Path) -> Result<Left> {
    not_freed::nothing_else_is_wrong(image, stage.shape.repairs())
}

/// A volume that uxfs recovered may have nothing wrong but half-set attributes. Returns what each `xfs_repair` says of
/// them.
fn sound(stage: &Stage<'_>, image: &Path) -> Result<Vec<Vec<String>>> {
    let clean = nothing_else_is_found(image)?;
    ensure!(clean, "uxfs check: the log is not clean");
    stage.shape.repairs().iter().map(|&release| half_set::by_repair(release, image)).collect()
}
