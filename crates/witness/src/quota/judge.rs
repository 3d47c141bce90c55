//! One volume that was left with quota in its log: two copies, and what each recovery made of them.

use super::dquots::{self, Dquot, Dquots};
use super::guest::{COUNTED, KEPT};
use super::plan::{Kind, Plan};
use crate::history::judge::is_sound;
use crate::sandbox::copy_sparse;
use anyhow::{Context, Result, ensure};
use blockdev::{FileDevice, FileOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xfs::check::{CheckOptions, check};
use xfs::recovery::Report;
use xfs::volume::{OpenOptions, Volume};
use xfs_format::features::QuotaFlags;

/// A volume, dirty as a crash left it, and its copies.
pub(super) struct CrashedVolume {
    pub(super) plan: Plan,
    /// The copy that the kernel recovers.
    pub(super) theirs: PathBuf,
    /// The copy that uxfs recovers.
    pub(super) ours: PathBuf,
    loaded: String,
}

/// The result of a recovery by uxfs.
pub(super) struct Recovered {
    report: Report,
    dquots: Vec<Dquots>,
}

impl CrashedVolume {
    /// Copies an image that `loaded` describes.
    pub(super) fn new(plan: Plan, image: &Path, loaded: String) -> Result<Self> {
        let (theirs, ours) = (image.with_extension("kernel"), image.with_extension("uxfs"));
        copy_sparse(image, &theirs)?;
        copy_sparse(image, &ours)?;
        Ok(Self { plan, theirs, ours, loaded })
    }

    /// Makes uxfs recover its copy.
    pub(super) fn recover(&self) -> Result<Recovered> {
        let dirty = check(Arc::new(FileDevice::open(&self.ours)?), &CheckOptions::default())?;
        ensure!(dirty.is_clean(), "uxfs check of the dirty volume: {:?}", dirty.findings());
        let device = Arc::new(FileOptions::new().direct(false).write(true).open(&self.ours)?);
        let volume = Volume::open(device, &OpenOptions { writable: true, ..OpenOptions::default() })
            .context("uxfs, recovering")?;
        let report = volume.recovery().context("uxfs says that there was nothing to recover")?.clone();
        volume.close()?;
        is_sound(&self.ours).context("after the recovery by uxfs")?;
        let flags = dquots::flags(&self.ours)?;
        let counted = u64::from(QuotaFlags::COUNTED.bits());
        ensure!(flags & counted == 0, "after the recovery by uxfs, quota flags are {flags:#x}: counted");
        let kept = self.plan.kept_afterwards().count();
        ensure!(report.counts.dquots > 0 || kept == 0, "uxfs replayed no dquot");
        Ok(Recovered { report, dquots: every_kind(&self.ours)? })
    }

    /// Judges after the kernel has mounted both copies and reported that in `mounted`.
    pub(super) fn judge(&self, recovered: &Recovered, mounted: &[String]) -> Result<(u64, String)> {
        let [theirs, ours] = mounted else { anyhow::bail!("not two copies") };
        ensure!(theirs == KEPT, "the kernel's recovery of its copy: {theirs}");
        let kept: Vec<Kind> = self.plan.kept_afterwards().collect();
        let expected_of_ours = if kept.is_empty() { KEPT } else { COUNTED };
        ensure!(ours == expected_of_ours, "the kernel's mount of what uxfs recovered: {ours}");
        is_sound(&self.theirs).context("after the kernel's recovery")?;
        is_sound(&self.ours).context("after the kernel mounted what uxfs recovered")?;

        let (expected, counted) = (every_kind(&self.theirs)?, every_kind(&self.ours)?);
        let report = &recovered.report;
        let mut same = 0;
        for (nth, kind) in Kind::ALL.into_iter().enumerate() {
            let freed = if kept.contains(&kind) { report.inodes_freed } else { 0 };
            same += compare(&expected[nth], &recovered.dquots[nth], freed)
                .with_context(|| format!("{kind:?}: the kernel's recovery and that of uxfs"))?;
            compare_counts(&expected[nth], &counted[nth]).with_context(|| {
                format!("{kind:?}: the kernel's recovery, and its counts after that of uxfs")
            })?;
        }
        let counts = &report.counts;
        let what = format!(
            "{}; {}; {} dquots replayed, {} items left as they were newer, {} cancelled, {} inodes freed; {same} dquots the same",
            self.plan, self.loaded, counts.dquots, counts.newer, counts.cancelled, report.inodes_freed
        );
        Ok((counts.dquots, what))
    }
}

fn every_kind(image: &Path) -> Result<Vec<Dquots>> {
    Kind::ALL.iter().map(|&kind| dquots::read(image, kind)).collect()
}

/// Compares the results of two recoveries, the first of which also updated the counts as it freed `freed` inodes.
/// Returns the number of dquots.
fn compare(theirs: &Dquots, ours: &Dquots, freed: u64) -> Result<u64> {
    let (mut seen, mut missing) = (0, 0);
    for (id, left, right) in pairs(theirs, ours)? {
        let differ = || format!("dquot {id}: {}", left.differences(right));
        let inodes = right.get("icount")?.checked_sub(left.get("icount")?).with_context(differ)?;
        let blocks = right.get("bcount")?.checked_sub(left.get("bcount")?).with_context(differ)?;
        let same = match (freed, inodes) {
            (0, _) | (_, 0) if blocks == 0 => left == right,
            (0, _) | (_, 0) => false,
            _ => left.without_use() == right.without_use(),
        };
        ensure!(same, differ());
        seen += 1;
        missing += inodes;
    }
    ensure!(missing == freed, "{freed} inodes were freed, and dquots differ by {missing}");
    Ok(seen)
}

/// Compares the recovered counts with counted ones. While counting, the kernel frees blocks that files have past their
/// ends. Whether the rest is right is for `xfs_repair` to say.
fn compare_counts(theirs: &Dquots, counted: &Dquots) -> Result<()> {
    for (id, left, right) in pairs(theirs, counted)? {
        let same = left.without_use() == right.without_use()
            && left.get("icount")? == right.get("icount")?
            && left.get("bcount")? >= right.get("bcount")?;
        ensure!(same, "dquot {id}: {}", left.differences(right));
    }
    Ok(())
}

/// The dquots of both. None may be missing on one side.
fn pairs<'d>(left: &'d Dquots, right: &'d Dquots) -> Result<Vec<(u32, &'d Dquot, &'d Dquot)>> {
    let mut pairs = Vec::new();
    for (&id, one) in left {
        match (one, right.get(&id).and_then(Option::as_ref)) {
            (Some(one), Some(other)) => pairs.push((id, one, other)),
            (None, None) => {}
            (one, _) => anyhow::bail!("dquot {id} is only {}", if one.is_some() { "here" } else { "there" }),
        }
    }
    Ok(pairs)
}
