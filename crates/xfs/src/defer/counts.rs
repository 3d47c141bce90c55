//! Refcount updates: first an intent, then the change of the tree in a transaction of its own.
//!
//! A mapping changes with its inode. The counts lie in the group of the blocks, whose header must not be waited for
//! while others are held. The intent (CUI) guarantees that the counts will follow; the done item (CUD) says that they
//! did. Blocks that lose their last owner are freed after that, through an intent of their own.
//!
//! Invariant: a step changes the counts of at most [`PIECES`] pieces of a run. The rest is deferred again, before
//! anything else.

use super::{finish_item, rmaps};
use crate::agf;
use crate::alloc::AgExtent;
use crate::error::{Error, Result};
use crate::owner::RmapOwner;
use crate::refcount::{self, Adjust, Adjusted};
use crate::trans::reservation::PIECES;
use crate::trans::{FreeWork, Trans, Work};
use xfs_format::bmbt::Extent as Mapping;
use xfs_format::error::FormatError;
use xfs_format::log::{Extent, RefcountOp, RefcountUpdate, Update};
use xfs_format::types::{AgNumber, FsBlock};

/// Defers one more owner for the blocks of a mapping, which lie within one group.
pub(crate) fn defer_share(trans: &mut Trans<'_>, start: FsBlock, len: u32) {
    trans.defer(Work::Count(RefcountUpdate { op: RefcountOp::Increase, start, len }), finish_item);
}

/// Defers one owner less for the blocks of a mapping that a reflinked file gave up. If it was the last owner, they are
/// freed. The rmap tree was updated before.
pub(crate) fn defer_unshare(trans: &mut Trans<'_>, given_up: &Mapping) {
    let (start, len) = (given_up.startblock, given_up.blockcount);
    trans.defer(Work::Count(RefcountUpdate { op: RefcountOp::Decrease, start, len }), finish_item);
}

/// Defers the staging record for blocks that were just allocated without an owner. After a crash they are freed, until
/// [`defer_unstage`] is in the log.
pub(crate) fn defer_stage(trans: &mut Trans<'_>, start: FsBlock, len: u32) {
    trans.defer(Work::Count(RefcountUpdate { op: RefcountOp::AllocCow, start, len }), finish_item);
    owe_staging_owner(trans, true, start, len);
}

/// Defers the removal of a staging record. After it, a file gets the blocks, or they are freed.
pub(crate) fn defer_unstage(trans: &mut Trans<'_>, start: FsBlock, len: u32) {
    owe_staging_owner(trans, false, start, len);
    trans.defer(Work::Count(RefcountUpdate { op: RefcountOp::FreeCow, start, len }), finish_item);
}

/// Defers freeing staged blocks that no write will use.
pub(crate) fn defer_free_staged(trans: &mut Trans<'_>, start: FsBlock, len: u32) {
    defer_unstage(trans, start, len);
    trans.defer(Work::Free(FreeWork { extent: Extent { start, len }, owner: None }), finish_item);
}

fn owe_staging_owner(trans: &mut Trans<'_>, staged: bool, start: FsBlock, len: u32) {
    if trans.geometry().rmapbt {
        trans.defer(Work::Rmap(rmaps::owned(staged, RmapOwner::COW_STAGING, start, len)), finish_item);
    }
}

/// Changes the counts. Returns the remaining work.
pub(super) fn finish_refcount(
    trans: &mut Trans<'_>,
    update: RefcountUpdate,
) -> Result<Option<RefcountUpdate>> {
    let damaged = |problem| Error::Corrupt { daddr: None, inode: None, problem };
    update.check(trans.geometry()).map_err(damaged)?;
    let RefcountUpdate { op, start, len } = update;
    let (ag, block) = trans
        .geometry()
        .split_block(start)
        .ok_or_else(|| damaged(FormatError::value(RefcountUpdate::NAME, "first block", start.0)))?;
    let run = AgExtent { start: block, len };
    let how = match op {
        RefcountOp::Increase => Adjust::Increase,
        RefcountOp::Decrease => Adjust::Decrease,
        RefcountOp::AllocCow => {
            return agf::change_refcounts(trans, ag, |tree| refcount::add_cow(tree, run)).map(|()| None);
        }
        RefcountOp::FreeCow => {
            return agf::change_refcounts(trans, ag, |tree| refcount::remove_cow(tree, run)).map(|()| None);
        }
    };
    let Adjusted { done, freed, single, .. } =
        agf::change_refcounts(trans, ag, |tree| refcount::adjust(tree, run, how, PIECES))?;
    single.into_iter().for_each(|run| trans.note_unshared(ag, run));
    freed.into_iter().for_each(|run| free_unowned(trans, ag, run));
    let left = len.saturating_sub(done);
    Ok((left > 0).then(|| RefcountUpdate { op, start: FsBlock(start.0 + u64::from(done)), len: left }))
}

/// Defers freeing blocks that have lost their last owner, including their rmap record.
fn free_unowned(trans: &mut Trans<'_>, ag: AgNumber, run: AgExtent) {
    let extent = Extent { start: trans.geometry().join_block(ag, run.start), len: run.len };
    trans.defer(Work::Free(FreeWork { extent, owner: None }), finish_item);
}
