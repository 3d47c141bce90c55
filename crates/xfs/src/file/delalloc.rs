//! Delayed allocation: blocks are reserved for dirty pages, and allocated at write-back.
//!
//! Invariants:
//! - everything that could refuse the allocation is checked when blocks are promised: space, the log's size, and the
//!   file's number of extents, even if each promised block became an extent;
//! - blocks are allocated like all others, and stay unwritten until their data are there.

use super::FileBlocks;
use super::allocate::{self, ChangedAt, reservation_for_extent, reservation_to_convert};
use super::limits;
use crate::error::{Error, Result};
use crate::inode::{ForkKind, InodeEntry};
use crate::mount::Mount;
use std::sync::Arc;

/// Reserves blocks for `blocks`, all of which are holes without a reservation. [`Error::NoSpace`] and other refusals
/// reserve nothing.
pub fn reserve_delalloc(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, blocks: FileBlocks) -> Result<()> {
    let write = mount.write_side()?;
    limits::check_log_for_blocks(mount)?;
    let delalloc = entry.delalloc();
    let count = blocks.end.0 - blocks.start.0;
    limits::check_extents_left_for(mount, entry, delalloc.blocks() + count)?;
    let change = map_change(mount);
    let promise =
        || delalloc.reserve(blocks.start, count, change, |wanted| write.counters.reserve_blocks(wanted));
    match promise() {
        Err(Error::NoSpace) if mount.block_gc()? => promise(),
        other => other,
    }
}

/// Cancels reservations of this many blocks.
pub fn cancel_delalloc(mount: &Arc<Mount>, entry: &InodeEntry, count: u64) {
    if let (Some(delalloc), Ok(write)) = (entry.delalloc_if_any(), mount.write_side()) {
        delalloc.cancel(count, map_change(mount), |free| write.counters.return_blocks(free));
    }
}

/// Ends all delayed allocation because the volume is being closed. Nothing is allocated any more, and what was promised
/// to files whose pages are still being discarded counts as free.
pub(crate) fn end_delalloc(mount: &Mount) {
    let Ok(write) = mount.write_side() else { return };
    for entry in mount.inodes_in_memory(|entry| entry.delalloc_if_any().is_some()) {
        if let Some(delalloc) = entry.delalloc_if_any() {
            delalloc.end(|free| write.counters.return_blocks(free));
        }
    }
}

/// Allocates the reserved blocks of `blocks`, unwritten. Holes that remain after a failure keep their reservation.
pub fn convert_delalloc(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, blocks: FileBlocks) -> Result<()> {
    let write = mount.write_side()?;
    let delalloc = entry.delalloc();
    let alone = delalloc.begin_change();
    let count = blocks.end.0 - blocks.start.0;
    let mut kept = delalloc.take(count, &alone);
    let filled = allocate::fill_holes_with(mount, entry, blocks.clone(), &mut kept);
    let missing = match &filled {
        Ok(()) => 0,
        // If this cannot be counted, all blocks stay promised, which is at worst a little too much.
        Err(_) => allocate::missing_blocks(mount, entry, blocks.clone()).unwrap_or(count),
    };
    // The map used some of what was promised for data.
    kept += write.counters.reserve_some(missing.saturating_sub(kept));
    let free = delalloc.give_back(kept, blocks, missing, map_change(mount));
    write.counters.return_blocks(free);
    filled
}

/// Like [`convert_unwritten`](super::convert_unwritten), for data that were written earlier: the inode gets the times
/// that were noted then.
pub fn convert_written_back(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: FileBlocks,
    size: Option<u64>,
) -> Result<()> {
    let delalloc = entry.delalloc();
    let alone = delalloc.begin_change();
    let mut kept = delalloc.take(0, &alone);
    let told = allocate::convert_in_parts(mount, entry, blocks.clone(), (size, ChangedAt::Noted), &mut kept);
    // A failed conversion is repeated later.
    let done = if told.is_ok() { blocks } else { blocks.start..blocks.start };
    let counters = &mount.write_side()?.counters;
    delalloc.told(&done, kept, map_change(mount), |free| counters.return_blocks(free));
    told
}

/// Like [`prepare_blocks`](super::prepare_blocks), for data that [are written back](convert_written_back) in any parts
/// and any order.
pub(crate) fn owe_blocks(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, blocks: &FileBlocks) -> Result<()> {
    limits::check_block_change(mount, entry)?;
    limits::check_room_to_cut(mount, entry, blocks)?;
    let extents = mount.extents(&entry.current(), ForkKind::Data)?;
    let counters = &mount.write_side()?.counters;
    for run in extents.unwritten_runs(blocks) {
        entry.delalloc().owe(&run, map_change(mount), |wanted| counters.reserve_blocks(wanted))?;
    }
    Ok(())
}

/// Gives up converting the data in `blocks`, which are allocated.
pub(crate) fn abandon_delalloc(mount: &Mount, entry: &InodeEntry, blocks: &FileBlocks) {
    if let (Some(delalloc), Ok(write)) = (entry.delalloc_if_any(), mount.write_side()) {
        delalloc.told(blocks, 0, map_change(mount), |free| write.counters.return_blocks(free));
    }
}

/// Blocks that a map may need for one more extent and for converting it.
fn map_change(mount: &Mount) -> u64 {
    *mount
        .map_change
        .get_or_init(|| reservation_for_extent(mount, 0).blocks + reservation_to_convert(mount).blocks)
}
