//! Blocks that move within a file: ranges cut out of it or put into it.

use super::limits;
use super::remove;
use super::resize;
use super::{BLOCKS_END, Blocks, join_file};
use crate::bmap;
use crate::error::Result;
use crate::inode::InodeEntry;
use crate::mount::Mount;
use crate::trans::Trans;
use crate::trans::reservation::Need;
use std::sync::Arc;
use xfs_format::log::InodeFields;
use xfs_format::timestamp::Timestamp;

/// Extents that one transaction moves.
const MOVED_AT_ONCE: usize = 2;

/// Cuts `blocks` out of a file: what lies behind moves to the front, and the file ends at `size`. What refuses it
/// comes before anything has changed. The caller keeps others off `blocks` and all behind them.
pub fn collapse_blocks(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: Blocks,
    size: u64,
    now: Timestamp,
) -> Result<()> {
    limits::check_block_change(mount, entry)?;
    remove::remove_blocks(mount, entry, blocks.clone(), now)?;
    let by = (blocks.end.0 - blocks.start.0).cast_signed();
    shift_blocks(mount, entry, blocks.end..BLOCKS_END, -by)?;
    resize::set_size(mount, entry, size, now)
}

/// Puts a hole into a file: what lies at and behind `blocks.start` moves back, and the file ends at `size`. What
/// refuses it comes before anything has changed. The caller keeps others off all from the block before `blocks` on:
/// an extent there, were it changed meanwhile, would become one with what is to move.
pub fn insert_blocks(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: Blocks,
    size: u64,
    now: Timestamp,
) -> Result<()> {
    limits::check_block_change(mount, entry)?;
    limits::check_room_to_cut(mount, entry, &blocks)?;
    // All that can need space comes first, in one step.
    let mut trans = Trans::start(mount, need_to_shift(mount).reservation())?;
    join_file(&mut trans, entry)?;
    bmap::split_map(&mut trans, entry.ino(), blocks.start)?;
    let core = trans.inode_mut(entry.ino(), InodeFields::CORE).core_mut();
    core.size = size;
    (core.mtime, core.ctime) = (now, now);
    trans.commit()?;
    let by = (blocks.end.0 - blocks.start.0).cast_signed();
    shift_blocks(mount, entry, blocks.start..BLOCKS_END, by)
}

fn shift_blocks(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, blocks: Blocks, by: i64) -> Result<()> {
    let mut todo = Some(blocks);
    while let Some(blocks) = todo {
        // Records change in their places, or go.
        let mut trans = Trans::start(mount, need_to_shift(mount).reservation().or_no_blocks())?;
        join_file(&mut trans, entry)?;
        todo = bmap::shift_map(&mut trans, entry.ino(), blocks, by, MOVED_AT_ONCE)?;
        trans.commit()?;
    }
    Ok(())
}

pub(super) fn need_to_shift(volume: &Mount) -> Need<'_> {
    Need::new(volume.geometry()).inodes(1).map_changes(3 * MOVED_AT_ONCE as u64).steps(2)
}
