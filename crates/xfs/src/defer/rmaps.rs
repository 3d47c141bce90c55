//! Rmap updates for mappings of files: first an intent, then the change of the tree in a transaction of its own.
//!
//! A mapping changes with its inode. The rmap tree lies in the group of the blocks, whose header must not be waited for
//! while others are held. The intent (RUI) guarantees that the tree will follow; the done item (RUD) says that it did.
//! That a mapping loses blocks is recorded before another one gets them: the queue keeps the order, and blocks are
//! freed after that.

use super::finish_item;
use crate::agf;
use crate::error::{Error, Result};
use crate::inode::ForkKind;
use crate::owner::{Mapping, RmapOwner};
use crate::rmap;
use crate::trans::{Trans, Work};
use xfs_format::bmbt::Extent;
use xfs_format::error::FormatError;
use xfs_format::inode::InodeFlags2;
use xfs_format::log::{RmapOp, RmapUpdate, Update};
use xfs_format::types::{FsBlock, InodeNumber};

/// The kind of an rmap update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RmapUpdateKind {
    /// The mapping is gone.
    Unmap(Extent),
    /// The mapping is new.
    Map(Extent),
    /// The mapping had the state given here, and now has the other one.
    Convert(Extent),
}

/// The log's form.
fn update(op: RmapOp, owner: RmapOwner, start: FsBlock, len: u32, unwritten: bool) -> RmapUpdate {
    RmapUpdate {
        op,
        owner: owner.number(),
        start,
        offset: owner.offset(),
        len,
        attr_fork: owner.attr_fork(),
        bmbt_block: owner.bmbt_block(),
        unwritten,
    }
}

/// Defers an rmap update for a mapping of a joined inode.
pub(crate) fn defer_rmap(trans: &mut Trans<'_>, ino: InodeNumber, kind: ForkKind, change: RmapUpdateKind) {
    let (RmapUpdateKind::Unmap(extent) | RmapUpdateKind::Map(extent) | RmapUpdateKind::Convert(extent)) =
        change;
    let reflinked = trans.inode(ino).core().flags2.contains(InodeFlags2::REFLINK);
    let op = match (change, reflinked && kind == ForkKind::Data) {
        (RmapUpdateKind::Unmap(_), false) => RmapOp::Unmap,
        (RmapUpdateKind::Unmap(_), true) => RmapOp::UnmapShared,
        (RmapUpdateKind::Map(_), false) => RmapOp::Map,
        (RmapUpdateKind::Map(_), true) => RmapOp::MapShared,
        (RmapUpdateKind::Convert(_), false) => RmapOp::Convert,
        (RmapUpdateKind::Convert(_), true) => RmapOp::ConvertShared,
    };
    let Extent { startoff, startblock, blockcount, unwritten } = extent;
    let owner = match kind {
        ForkKind::Data => RmapOwner::data(ino, startoff),
        ForkKind::Attr => RmapOwner::attr(ino, startoff),
    };
    // For a conversion, the log has the new state.
    let unwritten = unwritten != matches!(change, RmapUpdateKind::Convert(_));
    trans.defer(Work::Rmap(update(op, owner, startblock, blockcount, unwritten)), finish_item);
}

/// Blocks that belong to no file get an owner, or lose it.
pub(super) fn owned(gets: bool, owner: RmapOwner, start: FsBlock, len: u32) -> RmapUpdate {
    update(if gets { RmapOp::Alloc } else { RmapOp::Free }, owner, start, len, false)
}

/// Changes the rmap tree.
pub(super) fn finish_rmap(trans: &mut Trans<'_>, update: RmapUpdate) -> Result<()> {
    let damaged = |problem| Error::Corrupt { daddr: None, inode: None, problem };
    update.check(trans.geometry()).map_err(damaged)?;
    let RmapUpdate { op, owner, start, offset, len, attr_fork, bmbt_block, unwritten } = update;
    let (ag, start) = trans
        .geometry()
        .split_block(start)
        .ok_or_else(|| damaged(FormatError::value(RmapUpdate::NAME, "first block", start.0)))?;
    let owner = RmapOwner::numbered(owner, offset, attr_fork, bmbt_block);
    let mapping = Mapping { start, len, owner, unwritten };
    let before = Mapping { unwritten: !unwritten, ..mapping };
    agf::change_rmap(trans, ag, |map| match op {
        RmapOp::Map | RmapOp::Alloc => rmap::map(map, &mapping),
        RmapOp::MapShared => rmap::map_shared(map, &mapping),
        RmapOp::Unmap | RmapOp::Free => rmap::unmap(map, &mapping),
        RmapOp::UnmapShared => rmap::unmap_shared(map, &mapping),
        RmapOp::Convert => rmap::convert(map, &before),
        RmapOp::ConvertShared => rmap::convert_shared(map, &before),
    })
}
