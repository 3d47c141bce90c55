//! Blocks that a transaction frees: an intent first, the freeing in a transaction of its own.
//!
//! Freeing changes the trees of free space, which may lock group headers in any order and needs more log space than
//! one transaction has for an unknown number of extents. The intent (EFI) makes it certain that it will be done, by
//! recovery if need be; the done item (EFD) that it was.

use super::work::{Promise, Work};
use crate::alloc::Purpose;
use crate::error::{Error, Result};
use crate::trans::Trans;
use smallvec::smallvec;
use xfs_format::log::Extent;
use xfs_format::types::{FsBlock, InodeNumber};

/// Bytes of the log that it takes to log an intent for one extent again.
pub(in crate::trans) fn relog_bytes() -> u64 {
    Promise::Free(smallvec![Extent { start: FsBlock(0), len: 0 }]).relog_bytes()
}

impl Trans<'_> {
    /// Owes the freeing of a run of blocks of an inode: it is carried out before the commit is over. [`Error::Shared`] if
    /// others have any of them as well: whoever did not ask before lets the transaction go.
    pub fn free_later(&mut self, owner: InodeNumber, start: FsBlock, len: u32) -> Result<()> {
        let sharing = self.volume.sharing();
        if self.geometry().reflink
            && sharing.is_counted(start, len.into()).map_err(|error| error.of_inode(owner))?
        {
            return Err(Error::Shared(owner));
        }
        self.owe(Work::Free(Extent { start, len }));
        Ok(())
    }
}

/// Puts a run of blocks into the trees of free space.
pub(super) fn free_now(trans: &mut Trans<'_>, extent: Extent) -> Result<()> {
    trans.free_blocks(extent.start, extent.len, Purpose::Data)
}
