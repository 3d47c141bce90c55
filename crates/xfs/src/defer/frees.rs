//! Frees: first an intent, then the free in a transaction of its own.
//!
//! Freeing changes the free space trees, which may lock group headers in any order, and for an unknown number of
//! extents it needs more log space than one transaction has. The intent (EFI) guarantees that it will be done, by
//! recovery if necessary; the done item (EFD) says that it was.

use super::{defer_unshare, finish_item};
use crate::agf;
use crate::alloc::Purpose;
use crate::error::{Error, Result};
use crate::inode::ForkKind;
use crate::owner::RmapOwner;
use crate::trans::{FreeWork, Trans, Work};
use xfs_format::bmbt::Extent as Mapping;
use xfs_format::log::Extent;
use xfs_format::types::{FsBlock, InodeNumber};

/// Defers freeing a run of blocks of an inode. It is done before the commit returns. [`Error::Shared`] if others have
/// any of the blocks: a caller that did not check this before must drop the transaction. `owner` is their owner in the
/// rmap tree, unless that was updated before.
pub fn defer_free(
    trans: &mut Trans<'_>,
    ino: InodeNumber,
    start: FsBlock,
    len: u32,
    owner: Option<RmapOwner>,
) -> Result<()> {
    let sharing = trans.mount().sharing();
    if trans.geometry().reflink
        && sharing.is_counted(start, len.into()).map_err(|error| error.of_inode(ino))?
    {
        return Err(Error::Shared(ino));
    }
    trans.defer(Work::Free(FreeWork { extent: Extent { start, len }, owner }), finish_item);
    Ok(())
}

/// Defers giving up the blocks of a mapping that a fork of a joined inode has lost. They are freed if nobody else has
/// them. The rmap tree is updated first.
pub(crate) fn defer_give_up(
    trans: &mut Trans<'_>,
    ino: InodeNumber,
    kind: ForkKind,
    extent: &Mapping,
) -> Result<()> {
    if kind == ForkKind::Data && trans.inode(ino).is_reflinked() {
        defer_unshare(trans, extent);
        return Ok(());
    }
    defer_free(trans, ino, extent.startblock, extent.blockcount, None)
}

/// Adds a run of blocks to the free space trees.
pub(super) fn finish_free(trans: &mut Trans<'_>, work: FreeWork) -> Result<()> {
    let FreeWork { extent, owner } = work;
    agf::free_blocks(trans, extent.start, extent.len, Purpose::Data, owner)
}
