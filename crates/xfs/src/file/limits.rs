//! Limits of changes that take several transactions, checked before the first of them.
//!
//! Invariants:
//! - a later transaction of a change never finds that the log is too small or that the file has too many extents: both
//!   were checked for the largest of them before anything changed;
//! - [`SPARE`] of the extents that a file may have are for changes in progress; a new change finds them taken. So
//!   several changes of different parts of a file do not take them from each other.

use super::{FileBlocks, allocate, remove, shift};
use crate::alloc::Owners;
use crate::bmap::edit::extent_limit;
use crate::error::{Error, Result};
use crate::inode::{ForkKind, InodeEntry};
use crate::mount::Mount;
use crate::trans::Trans;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use xfs_format::inode::InodeFlags2;
use xfs_format::types::{AgNumber, FsBlock};

/// Maximum number of extents that a change adds: it splits one at each of its ends.
const MORE: u64 = 2;
/// Changes of one file that may be in progress at a time.
#[cfg(not(test))]
const AT_ONCE: u64 = 4096;
#[cfg(test)]
const AT_ONCE: u64 = 2;
/// Rmap records that result from splitting extents at both ends of a range.
const ENDS: u64 = 2;
/// Extents that are left to changes in progress.
pub(super) const SPARE: u64 = AT_ONCE * MORE;

/// Fails with any error that would end a change of a file's blocks half-way: [`Error::LogTooSmall`],
/// [`Error::TooManyExtents`]. An operation that changes them several times calls this first.
pub fn check_block_change(mount: &Arc<Mount>, entry: &InodeEntry) -> Result<()> {
    check_log_for_blocks(mount)?;
    check_extents_left(mount, entry)
}

/// [`Error::NoSpace`] if the rmap or refcount tree may not have room for one more owner of a block. Sharing takes no
/// blocks, but owners are recorded.
pub(super) fn check_room_to_share(mount: &Mount, start: FsBlock) -> Result<()> {
    let Some((ag, _)) = mount.geometry().split_block(start) else { return Ok(()) };
    let has_room = mount.write_side()?.space.has_room_to_share(mount.bufs(), mount.geometry(), ag)?;
    if has_room { Ok(()) } else { Err(Error::NoSpace) }
}

/// [`Error::NoSpace`] if the rmap tree may not have room for splitting what a file has in `blocks` into more pieces.
/// For shared blocks the split frees no block, so the tree may need more than is kept for it.
pub(super) fn check_room_to_cut(mount: &Arc<Mount>, entry: &InodeEntry, blocks: &FileBlocks) -> Result<()> {
    let geometry = mount.geometry();
    if !geometry.rmapbt || !geometry.reflink {
        return Ok(());
    }
    let extents = mount.extents(&entry.current(), ForkKind::Data)?;
    let (mut at, mut asked) = (blocks.start, None);
    while let Some(extent) = extents.ending_behind(at).filter(|extent| extent.startoff < blocks.end) {
        at = extent.end();
        let group = geometry.split_block(extent.startblock).map(|(ag, _)| ag);
        let Some(ag) = group.filter(|_| group != asked) else { continue };
        check_room_in(mount, ag, Owners::InPieces(ENDS))?;
        asked = group;
    }
    Ok(())
}

/// [`Error::NoSpace`] if the rmap tree of this group may not have room for what `owners` says.
pub(super) fn check_room_in(mount: &Mount, ag: AgNumber, owners: Owners) -> Result<()> {
    let space = &mount.write_side()?.space;
    let has_room = space.has_room_for_owners(mount.bufs(), mount.geometry(), ag, owners)?;
    if has_room { Ok(()) } else { Err(Error::NoSpace) }
}

/// [`Error::LogTooSmall`] if the log is too small for any of the transactions that change a file's blocks.
pub(crate) fn check_log_for_blocks(mount: &Arc<Mount>) -> Result<()> {
    let suffices = &mount.write_side()?.log_suffices;
    // The log's size never changes, and the requirement changes only with the volume's size.
    let size = mount.geometry().data_blocks();
    if suffices.load(Ordering::Relaxed) == size {
        return Ok(());
    }
    for need in [
        remove::reservation_to_unmap(mount),
        allocate::reservation_to_convert(mount),
        shift::reservation_to_shift(mount).build(),
    ] {
        Trans::check_log(mount, need)?;
    }
    suffices.store(size, Ordering::Relaxed);
    Ok(())
}

/// [`Error::TooManyExtents`] if a file may have no more extents.
pub(crate) fn check_extents_left(mount: &Arc<Mount>, entry: &InodeEntry) -> Result<()> {
    check_extents_left_for(mount, entry, 0)
}

/// The same if it gets `more` extents.
pub(super) fn check_extents_left_for(mount: &Arc<Mount>, entry: &InodeEntry, more: u64) -> Result<()> {
    let inode = entry.current();
    let count = mount.extents(&inode, ForkKind::Data)?.len();
    let limit = extent_limit(ForkKind::Data, inode.core().flags2.contains(InodeFlags2::NREXT64));
    match count as u64 + more + SPARE > limit {
        true => Err(Error::TooManyExtents { inode: entry.ino(), limit: limit - SPARE.min(limit) }),
        false => Ok(()),
    }
}
