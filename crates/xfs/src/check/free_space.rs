//! The two free space trees of a group, one by block and one by size. Both must list the same extents, and no two of
//! these may touch.

use super::Check;
use super::owners::Owner;
use super::report::FindingPlace;
use super::tree::walk_group;
use crate::error::Result;
use xfs_format::ag::Agf;
use xfs_format::btree::{Bnobt, Cntbt, Tree};
use xfs_format::error::FormatError;
use xfs_format::types::{AgBlock, AgNumber};

/// The free space of a group.
pub(super) struct FreeSpace {
    /// Blocks in free extents.
    pub(super) blocks: u64,
    /// Blocks of the longest extent.
    pub(super) longest: u32,
    /// Blocks of the two trees without their roots.
    pub(super) tree_blocks: u64,
}

/// A free extent: first block and count.
type Free = (u32, u32);

/// Checks both trees. `None` if not all of them could be read.
pub(super) fn check(check: &mut Check<'_>, ag: AgNumber, agf: &Agf) -> Result<Option<FreeSpace>> {
    let mut by_place: Vec<Free> = Vec::new();
    let root = (agf.bno_root.get(), agf.bno_level.get());
    let bnobt = walk_group::<Bnobt>(check, ag, root, Owner::SpaceTree, &mut |record| {
        by_place.push((record.startblock.get(), record.blockcount.get()));
    })?;
    let mut by_size: Vec<Free> = Vec::new();
    let root = (agf.cnt_root.get(), agf.cnt_level.get());
    let cntbt = walk_group::<Cntbt>(check, ag, root, Owner::SpaceTree, &mut |record| {
        by_size.push((record.startblock.get(), record.blockcount.get()));
    })?;
    claim(check, ag, &by_place);
    if !bnobt.whole || !cntbt.whole {
        check.lose_group_space();
        return Ok(None);
    }
    by_size.sort_unstable();
    compare(check, ag, &by_place, &by_size);
    Ok(Some(FreeSpace {
        blocks: by_place.iter().map(|free| u64::from(free.1)).sum(),
        longest: by_place.iter().map(|free| free.1).max().unwrap_or(0),
        tree_blocks: u64::from(bnobt.blocks.saturating_sub(1)) + u64::from(cntbt.blocks.saturating_sub(1)),
    }))
}

fn claim(check: &mut Check<'_>, ag: AgNumber, by_place: &[Free]) {
    let mut end_before = None;
    for &(start, len) in by_place {
        if check.report.stopped() {
            return;
        }
        if end_before == Some(start) {
            let place = FindingPlace::block(ag, AgBlock(start));
            check.report.add(place, FormatError::new(Bnobt::NAME, "free extents that are one"));
        }
        end_before = start.checked_add(len);
        check.owners.claim(ag, (start, len), Owner::Free, &mut check.report);
    }
}

/// Goes through both lists by block. Each extent must be in both.
fn compare(check: &mut Check<'_>, ag: AgNumber, by_place: &[Free], by_size: &[Free]) {
    let (mut ours, mut theirs) = (by_place.iter().peekable(), by_size.iter().peekable());
    loop {
        let (name, what, free) = match (ours.peek(), theirs.peek()) {
            (None, None) => return,
            (Some(a), Some(b)) if a == b => {
                ours.next();
                theirs.next();
                continue;
            }
            (Some(a), b) if b.is_none_or(|b| a < b) => {
                let free = **a;
                ours.next();
                (Cntbt::NAME, "free extent that only the bnobt has", free)
            }
            (_, Some(b)) => {
                let free = **b;
                theirs.next();
                (Bnobt::NAME, "free extent that only the cntbt has", free)
            }
            (Some(_), None) => return,
        };
        if check.report.stopped() {
            return;
        }
        check
            .report
            .add(FindingPlace::block(ag, AgBlock(free.0)), FormatError::value(name, what, free.1.into()));
    }
}
