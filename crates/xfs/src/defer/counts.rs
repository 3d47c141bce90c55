//! Reference counts that change: an intent first, the change of the tree in a transaction of its own.
//!
//! A mapping changes with its inode; the counts lie in the group of the blocks, whose header must not be waited for with
//! others held. The intent (CUI) makes it certain that the counts will say the same in the end; the done item (CUD) that
//! they do. Blocks that lose their last owner are freed behind that, by an intent of their own.
//!
//! Invariant: a step counts no more than [`PIECES`] pieces of a run; what is left of it is owed anew, before anything else.

use super::{carry_out, rmaps};
use crate::agf;
use crate::alloc::Run;
use crate::error::{Error, Result};
use crate::owner::RmapOwner;
use crate::refcount::{self, Adjust, Adjusted};
use crate::trans::reservation::PIECES;
use crate::trans::{FreeWork, Trans, Work};
use xfs_format::bmbt::Extent as Mapping;
use xfs_format::error::FormatError;
use xfs_format::log::{Extent, RefcountOp, RefcountUpdate, Update};
use xfs_format::types::{AgNumber, FsBlock};

/// Owes an owner more for the blocks of a mapping, which lie within one group.
pub(crate) fn share_later(trans: &mut Trans<'_>, start: FsBlock, len: u32) {
    trans.owe(Work::Count(RefcountUpdate { op: RefcountOp::Increase, start, len }), carry_out);
}

/// Owes an owner less for the blocks of a mapping that a file with the flag for shared blocks gave up. Whoever was
/// the last frees them. The reverse map was told before.
pub(crate) fn unshare_later(trans: &mut Trans<'_>, given_up: &Mapping) {
    let (start, len) = (given_up.startblock, given_up.blockcount);
    trans.owe(Work::Count(RefcountUpdate { op: RefcountOp::Decrease, start, len }), carry_out);
}

/// Owes it to say that blocks which were just allocated, as nobody's, are staged for a copy. They are freed behind a
/// crash until [`unstage_later`] is in the log.
pub(crate) fn stage_later(trans: &mut Trans<'_>, start: FsBlock, len: u32) {
    trans.owe(Work::Count(RefcountUpdate { op: RefcountOp::AllocCow, start, len }), carry_out);
    owe_staging_owner(trans, true, start, len);
}

/// Owes it to say that blocks are staged no more: a file gets them, or they are freed, behind this.
pub(crate) fn unstage_later(trans: &mut Trans<'_>, start: FsBlock, len: u32) {
    owe_staging_owner(trans, false, start, len);
    trans.owe(Work::Count(RefcountUpdate { op: RefcountOp::FreeCow, start, len }), carry_out);
}

/// Owes it to free blocks that are staged, and that no write is to use any more.
pub(crate) fn free_staged_later(trans: &mut Trans<'_>, start: FsBlock, len: u32) {
    unstage_later(trans, start, len);
    trans.owe(Work::Free(FreeWork { extent: Extent { start, len }, owner: None }), carry_out);
}

fn owe_staging_owner(trans: &mut Trans<'_>, staged: bool, start: FsBlock, len: u32) {
    if trans.geometry().rmapbt {
        trans.owe(Work::Rmap(rmaps::owned(staged, RmapOwner::COW_STAGING, start, len)), carry_out);
    }
}

/// Changes the counts; gives what is left to be done.
pub(super) fn count(trans: &mut Trans<'_>, update: RefcountUpdate) -> Result<Option<RefcountUpdate>> {
    let damaged = |problem| Error::Corrupt { daddr: None, inode: None, problem };
    update.check(trans.geometry()).map_err(damaged)?;
    let RefcountUpdate { op, start, len } = update;
    let (ag, block) = trans
        .geometry()
        .split_block(start)
        .ok_or_else(|| damaged(FormatError::value(RefcountUpdate::NAME, "first block", start.0)))?;
    let run = Run { start: block, len };
    let how = match op {
        RefcountOp::Increase => Adjust::Increase,
        RefcountOp::Decrease => Adjust::Decrease,
        RefcountOp::AllocCow => {
            return agf::change_counts(trans, ag, |tree| refcount::add_cow(tree, run)).map(|()| None);
        }
        RefcountOp::FreeCow => {
            return agf::change_counts(trans, ag, |tree| refcount::remove_cow(tree, run)).map(|()| None);
        }
    };
    let Adjusted { done, freed, single, .. } =
        agf::change_counts(trans, ag, |tree| refcount::adjust(tree, run, how, PIECES))?;
    single.into_iter().for_each(|run| trans.note_unshared(ag, run));
    freed.into_iter().for_each(|run| free_unowned(trans, ag, run));
    let left = len.saturating_sub(done);
    Ok((left > 0).then(|| RefcountUpdate { op, start: FsBlock(start.0 + u64::from(done)), len: left }))
}

/// Owes the freeing of blocks that have lost their last owner, in the reverse map as well.
fn free_unowned(trans: &mut Trans<'_>, ag: AgNumber, run: Run) {
    let extent = Extent { start: trans.geometry().join_block(ag, run.start), len: run.len };
    trans.owe(Work::Free(FreeWork { extent, owner: None }), carry_out);
}
