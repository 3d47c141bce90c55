//! Blocks that a transaction frees: an intent first, the freeing in a transaction of its own.
//!
//! Freeing changes the trees of free space, which may lock group headers in any order and needs more log space than
//! one transaction has for an unknown number of extents. The intent (EFI) makes it certain that it will be done, by
//! recovery if need be; the done item (EFD) that it was.

use super::{carry_out, unshare_later};
use crate::agf;
use crate::alloc::Purpose;
use crate::error::{Error, Result};
use crate::inode::ForkKind;
use crate::owner::RmapOwner;
use crate::trans::{FreeWork, Trans, Work};
use xfs_format::bmbt::Extent as Mapping;
use xfs_format::log::Extent;
use xfs_format::types::{FsBlock, InodeNumber};

/// Owes the freeing of a run of blocks of an inode: it is carried out before the commit is over. [`Error::Shared`] if
/// others have any of them as well: whoever did not ask before lets the transaction go. `owner`: whose the reverse map
/// says they are, unless it was told before that they are nobody's.
pub fn free_later(
    trans: &mut Trans<'_>,
    ino: InodeNumber,
    start: FsBlock,
    len: u32,
    owner: Option<RmapOwner>,
) -> Result<()> {
    let sharing = trans.volume().sharing();
    if trans.geometry().reflink
        && sharing.is_counted(start, len.into()).map_err(|error| error.of_inode(ino))?
    {
        return Err(Error::Shared(ino));
    }
    trans.owe(Work::Free(FreeWork { extent: Extent { start, len }, owner }), carry_out);
    Ok(())
}

/// Owes it to take a mapping that a fork of a joined inode has lost from its blocks: they are freed if nobody else has
/// them. The reverse map is told before.
pub(crate) fn give_up_later(
    trans: &mut Trans<'_>,
    ino: InodeNumber,
    kind: ForkKind,
    extent: &Mapping,
) -> Result<()> {
    if kind == ForkKind::Data && trans.inode(ino).is_reflinked() {
        unshare_later(trans, extent);
        return Ok(());
    }
    free_later(trans, ino, extent.startblock, extent.blockcount, None)
}

/// Puts a run of blocks into the trees of free space.
pub(super) fn free_now(trans: &mut Trans<'_>, work: FreeWork) -> Result<()> {
    let FreeWork { extent, owner } = work;
    agf::free_blocks(trans, extent.start, extent.len, Purpose::Data, owner)
}
