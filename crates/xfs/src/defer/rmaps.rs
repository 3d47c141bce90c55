//! What the reverse map is told of the mappings of files: an intent first, the change of the map in a transaction of its own.
//!
//! A mapping changes with its inode; the map lies in the group of the blocks, whose header must not be waited for with
//! others held. The intent (RUI) makes it certain that the map will say the same in the end; the done item (RUD) that it
//! does. What one mapping gives up is told before another one can have it: the queue keeps the order, and blocks are freed
//! behind that.

use super::carry_out;
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

/// What became of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remapped {
    /// It is there no more.
    Gone(Extent),
    /// It is there, and was not.
    Come(Extent),
    /// It was as it is here, and now it is in the other state.
    Converted(Extent),
}

/// As the log has it.
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

/// Owes it to the reverse map to say what became of a mapping of a joined inode.
pub(crate) fn rmap_later(trans: &mut Trans<'_>, ino: InodeNumber, kind: ForkKind, change: Remapped) {
    let (Remapped::Gone(extent) | Remapped::Come(extent) | Remapped::Converted(extent)) = change;
    let reflinked = trans.inode(ino).core().flags2.contains(InodeFlags2::REFLINK);
    let op = match (change, reflinked && kind == ForkKind::Data) {
        (Remapped::Gone(_), false) => RmapOp::Unmap,
        (Remapped::Gone(_), true) => RmapOp::UnmapShared,
        (Remapped::Come(_), false) => RmapOp::Map,
        (Remapped::Come(_), true) => RmapOp::MapShared,
        (Remapped::Converted(_), false) => RmapOp::Convert,
        (Remapped::Converted(_), true) => RmapOp::ConvertShared,
    };
    let Extent { startoff, startblock, blockcount, unwritten } = extent;
    let owner = match kind {
        ForkKind::Data => RmapOwner::data(ino, startoff),
        ForkKind::Attr => RmapOwner::attr(ino, startoff),
    };
    // Of a conversion, the log has the state that comes of it.
    let unwritten = unwritten != matches!(change, Remapped::Converted(_));
    trans.owe(Work::Rmap(update(op, owner, startblock, blockcount, unwritten)), carry_out);
}

/// Blocks that belong to no file get an owner, or lose it.
pub(super) fn owned(gets: bool, owner: RmapOwner, start: FsBlock, len: u32) -> RmapUpdate {
    update(if gets { RmapOp::Alloc } else { RmapOp::Free }, owner, start, len, false)
}

/// Changes the reverse map.
pub(super) fn tell(trans: &mut Trans<'_>, update: RmapUpdate) -> Result<()> {
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
