//! Moving blocks within a file: collapsing and inserting ranges.

use super::limits;
use super::remove;
use super::resize;
use super::{BLOCKS_END, FileBlocks, join_file};
use crate::bmap;
use crate::error::Result;
use crate::inode::InodeEntry;
use crate::mount::Mount;
use crate::trans::Trans;
use crate::trans::reservation::ReservationBuilder;
use std::sync::Arc;
use xfs_format::log::InodeFields;
use xfs_format::timestamp::Timestamp;

/// Extents that one transaction moves.
const MOVED_AT_ONCE: usize = 2;

/// Cuts `blocks` out of a file: everything behind them moves forward, and the file's size becomes `size`. Refusals come
/// before anything has changed. The caller keeps others off `blocks` and everything behind them.
pub fn collapse_blocks(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: FileBlocks,
    size: u64,
    now: Timestamp,
) -> Result<()> {
    limits::check_block_change(mount, entry)?;
    remove::remove_blocks(mount, entry, blocks.clone(), now)?;
    let by = (blocks.end.0 - blocks.start.0).cast_signed();
    shift_blocks(mount, entry, blocks.end..BLOCKS_END, -by)?;
    resize::set_size(mount, entry, size, now)
}

/// Inserts a hole into a file: everything from `blocks.start` on moves back, and the file's size becomes `size`.
/// Refusals come before anything has changed. The caller keeps others off everything from the block before `blocks` on:
/// an extent that changed there meanwhile could be merged with what is to move.
pub fn insert_blocks(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: FileBlocks,
    size: u64,
    now: Timestamp,
) -> Result<()> {
    limits::check_block_change(mount, entry)?;
    limits::check_room_to_cut(mount, entry, &blocks)?;
    // Everything that can need space comes first, in one step.
    let mut trans = Trans::start(mount, reservation_to_shift(mount).build())?;
    join_file(&mut trans, entry)?;
    bmap::split_map(&mut trans, entry.ino(), blocks.start)?;
    let core = trans.inode_mut(entry.ino(), InodeFields::CORE).core_mut();
    core.size = size;
    mount.touch(core, true, now);
    trans.commit()?;
    let by = (blocks.end.0 - blocks.start.0).cast_signed();
    shift_blocks(mount, entry, blocks.start..BLOCKS_END, by)
}

fn shift_blocks(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, blocks: FileBlocks, by: i64) -> Result<()> {
    let mut todo = Some(blocks);
    while let Some(blocks) = todo {
        // From here on, records only change in place or go.
        let mut trans = Trans::start(mount, reservation_to_shift(mount).build().or_no_blocks())?;
        join_file(&mut trans, entry)?;
        todo = bmap::shift_map(&mut trans, entry.ino(), blocks, by, MOVED_AT_ONCE)?;
        trans.commit()?;
    }
    Ok(())
}

pub(super) fn reservation_to_shift(mount: &Mount) -> ReservationBuilder<'_> {
    ReservationBuilder::new(mount.geometry()).inodes(1).map_changes(3 * MOVED_AT_ONCE as u64).log_count(2)
}
