//! What a change in many transactions may be refused for, asked before the first of them.
//!
//! Invariants:
//! - a transaction that follows others of the same change does not find that the log is too small for it, nor that the
//!   file has too many extents: both were looked at, for the largest of them, while nothing had changed;
//! - of the extents that a file may have, [`SPARE`] are for changes that are on their way: whoever would begin one finds
//!   them spoken for. Several at once, of different parts of a file, thus do not take them from each other.

use super::{Blocks, allocate, remove, shift};
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

/// Extents that a change makes at most more than there were: it cuts one at each of its ends.
const MORE: u64 = 2;
/// Changes of one file that may be on their way at a time.
#[cfg(not(test))]
const AT_ONCE: u64 = 4096;
#[cfg(test)]
const AT_ONCE: u64 = 2;
/// Records of the reverse map that come of cutting extents at both ends of a range.
const ENDS: u64 = 2;
/// Extents that are left to changes on their way.
pub(super) const SPARE: u64 = AT_ONCE * MORE;

/// Fails with what would end a change of a file's blocks half-way: [`Error::LogTooSmall`],
/// [`Error::TooManyExtents`]. Whoever does several things to them asks before the first.
pub fn check_block_change(mount: &Arc<Mount>, entry: &InodeEntry) -> Result<()> {
    check_log_for_blocks(mount)?;
    check_extents_left(mount, entry)
}

/// [`Error::NoSpace`] if what tells of owners may not have room for one more of a block: who shares blocks takes none, but
/// their owners are written down.
pub(super) fn check_room_to_share(mount: &Mount, start: FsBlock) -> Result<()> {
    let Some((ag, _)) = mount.geometry().split_block(start) else { return Ok(()) };
    let has_room = mount.write_side()?.space.has_room_to_share(mount.bufs(), mount.geometry(), ag)?;
    if has_room { Ok(()) } else { Err(Error::NoSpace) }
}

/// [`Error::NoSpace`] if the reverse map may not have room for it that what a file has in `blocks` is cut into more
/// pieces: of what is shared no block becomes free with that, and so the map may need more than is kept for it.
pub(super) fn check_room_to_cut(mount: &Arc<Mount>, entry: &InodeEntry, blocks: &Blocks) -> Result<()> {
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

/// [`Error::NoSpace`] if the reverse map of this group may not have room for what `owners` says.
pub(super) fn check_room_in(mount: &Mount, ag: AgNumber, owners: Owners) -> Result<()> {
    let space = &mount.write_side()?.space;
    let has_room = space.has_room_for_owners(mount.bufs(), mount.geometry(), ag, owners)?;
    if has_room { Ok(()) } else { Err(Error::NoSpace) }
}

/// [`Error::LogTooSmall`] if it is for any of the transactions that change a file's blocks.
pub(crate) fn check_log_for_blocks(mount: &Arc<Mount>) -> Result<()> {
    let suffices = &mount.write_side()?.log_suffices;
    // The log's size never changes, and what is needed with the volume's alone.
    let size = mount.geometry().data_blocks();
    if suffices.load(Ordering::Relaxed) == size {
        return Ok(());
    }
    for need in [remove::need_to_remove(mount), allocate::need_to_mark(mount), shift::need_to_shift(mount)] {
        Trans::check_log(mount, need.reservation())?;
    }
    suffices.store(size, Ordering::Relaxed);
    Ok(())
}

/// [`Error::TooManyExtents`] if a file may have no more of them.
pub(crate) fn check_extents_left(mount: &Arc<Mount>, entry: &InodeEntry) -> Result<()> {
    check_extents_left_for(mount, entry, 0)
}

/// The same, if it has so many more already.
pub(super) fn check_extents_left_for(mount: &Arc<Mount>, entry: &InodeEntry, more: u64) -> Result<()> {
    let inode = entry.current();
    let count = mount.extents(&inode, ForkKind::Data)?.len();
    let limit = extent_limit(ForkKind::Data, inode.core().flags2.contains(InodeFlags2::NREXT64));
    match count as u64 + more + SPARE > limit {
        true => Err(Error::TooManyExtents { inode: entry.ino(), limit: limit - SPARE.min(limit) }),
        false => Ok(()),
    }
}
