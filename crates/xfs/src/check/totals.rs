//! The counters of the superblock, compared with all groups. They are right on disk only after a clean unmount.

use super::Check;
use super::report::FindingPlace;

const NAME: &str = "superblock";

/// The sums over all groups.
pub(super) struct Totals {
    pub(super) inodes: u64,
    pub(super) free_inodes: u64,
    /// Free blocks, including those kept for trees and those in free space trees.
    pub(super) free_blocks: u64,
    /// Whether every group's free space trees were read.
    pub(super) space_known: bool,
    /// Whether every group's inode trees were read.
    pub(super) inodes_known: bool,
}

impl Default for Totals {
    fn default() -> Self {
        Self { inodes: 0, free_inodes: 0, free_blocks: 0, space_known: true, inodes_known: true }
    }
}

/// Compares.
pub(super) fn check(check: &mut Check<'_>) {
    if !check.report.log_clean {
        return;
    }
    let (raw, totals, report) = (check.superblock.raw(), &check.totals, &mut check.report);
    if totals.inodes_known {
        report.same(FindingPlace::VOLUME, NAME, "inode count", raw.icount.get(), totals.inodes);
        report.same(FindingPlace::VOLUME, NAME, "free inode count", raw.ifree.get(), totals.free_inodes);
    }
    if totals.space_known {
        report.same(FindingPlace::VOLUME, NAME, "free block count", raw.fdblocks.get(), totals.free_blocks);
    }
}
