//! Mappings that enter or leave a map in transactions of their own: first an intent (BUI), then the change of the map,
//! with what it defers in turn for the rmap tree, and the done item (BUD).
//!
//! A change of one map alone needs no intent. An operation that moves mappings between two files has an intent for each
//! of them, so that each file changes in a small transaction.

use super::finish_item;
use crate::error::{Error, Result};
use crate::inode::ForkKind;
use crate::trans::{Trans, Work};
use xfs_format::bmbt::Extent;
use xfs_format::error::FormatError;
use xfs_format::log::{BmapOp, BmapUpdate, Update};
use xfs_format::types::{FileBlock, InodeNumber};

/// The log's form.
fn update(op: BmapOp, ino: InodeNumber, kind: ForkKind, extent: &Extent) -> BmapUpdate {
    let Extent { startoff, startblock, blockcount, unwritten } = *extent;
    BmapUpdate {
        op,
        ino,
        start: startblock,
        offset: startoff,
        len: blockcount,
        attr_fork: kind == ForkKind::Attr,
        unwritten,
        realtime: false,
    }
}

/// Defers that a fork of an inode gets or loses a mapping.
pub(crate) fn defer_remap(
    trans: &mut Trans<'_>,
    op: BmapOp,
    ino: InodeNumber,
    kind: ForkKind,
    extent: &Extent,
) {
    trans.defer(Work::Map(update(op, ino, kind, extent)), finish_item);
}

/// Changes the map. Returns what is left to do, which lies in front of what was done.
pub(super) fn finish_bmap(trans: &mut Trans<'_>, update: BmapUpdate) -> Result<Option<BmapUpdate>> {
    let BmapUpdate { op, ino, start, offset, len, attr_fork, unwritten, .. } = update;
    let damaged = |problem| Error::corrupt_inode(ino, problem);
    update.check(trans.geometry()).map_err(damaged)?;
    trans.join_owner(ino)?;
    let kind = if attr_fork { ForkKind::Attr } else { ForkKind::Data };
    if op == BmapOp::Map {
        let extent = Extent { startoff: offset, startblock: start, blockcount: len, unwritten };
        return super::map(trans, ino, kind, extent).map(|()| None);
    }
    let end = FileBlock(offset.0 + u64::from(len));
    let unmapped = super::unmap(trans, ino, kind, offset..end, 1)?;
    for gone in &unmapped.freed {
        let expected = start.0 + (gone.startoff.0 - offset.0);
        if gone.startblock.0 != expected {
            let problem = FormatError::mismatch(BmapUpdate::NAME, "first block", gone.startblock.0, expected);
            return Err(damaged(problem));
        }
    }
    Ok(unmapped.rest.map(|rest| BmapUpdate { len: (rest.end.0 - rest.start.0) as u32, ..update }))
}
