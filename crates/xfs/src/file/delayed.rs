//! Blocks that are promised to what is in memory alone so far, and get their place when it is written back.
//!
//! Invariants:
//! - what could be refused is refused when they are promised: there is too little space, the log is too small, the file may
//!   have no more extents, if each promised block became one;
//! - blocks get a place as any others do, unwritten until their data are there.

use super::Blocks;
use super::allocate::{self, ChangedAt, need_for_extent, need_to_mark};
use super::limits;
use crate::error::{Error, Result};
use crate::inode::{ForkKind, InodeEntry};
use crate::mount::Mount;
use std::sync::Arc;

/// Promises blocks to `blocks`, all of which are holes that nothing is promised to. [`Error::NoSpace`] and the other
/// refusals promise nothing.
pub fn promise_blocks(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, blocks: Blocks) -> Result<()> {
    let write = mount.write_side()?;
    limits::check_log_for_blocks(mount)?;
    let delayed = entry.delayed();
    let count = blocks.end.0 - blocks.start.0;
    limits::check_extents_left_for(mount, entry, delayed.blocks() + count)?;
    let change = map_change(mount);
    let promise =
        || delayed.promise(blocks.start, count, change, |wanted| write.counters.reserve_blocks(wanted));
    match promise() {
        Err(Error::NoSpace) if mount.gives_room()? => promise(),
        other => other,
    }
}

/// Takes promises of so many blocks back.
pub fn withdraw_blocks(mount: &Arc<Mount>, entry: &InodeEntry, count: u64) {
    if let (Some(delayed), Ok(write)) = (entry.delayed_if_any(), mount.write_side()) {
        delayed.withdraw(count, map_change(mount), |free| write.counters.return_blocks(free));
    }
}

/// Ends all promises, as the volume is closed: nobody allocates any more, and what was promised to files whose pages
/// somebody is still giving up counts as free.
pub(crate) fn end_promises(mount: &Mount) {
    let Ok(write) = mount.write_side() else { return };
    for entry in mount.inodes_in_memory(|entry| entry.delayed_if_any().is_some()) {
        if let Some(delayed) = entry.delayed_if_any() {
            delayed.end(|free| write.counters.return_blocks(free));
        }
    }
}

/// Gives `blocks` the place that was promised to them, unwritten. Those that are holes still when this fails have their
/// promise still.
pub fn allocate_promised(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, blocks: Blocks) -> Result<()> {
    let write = mount.write_side()?;
    let delayed = entry.delayed();
    let alone = delayed.begin_change();
    let count = blocks.end.0 - blocks.start.0;
    let mut kept = delayed.redeem(count, &alone);
    let filled = allocate::fill_holes_with(mount, entry, blocks.clone(), &mut kept);
    let missing = match &filled {
        Ok(()) => 0,
        // What cannot be looked at is still promised whole: a little too much at worst.
        Err(_) => allocate::missing_blocks(mount, entry, blocks.clone()).unwrap_or(count),
    };
    // What the map took of what data were promised.
    kept += write.counters.reserve_some(missing.saturating_sub(kept));
    let free = delayed.give_back(kept, blocks, missing, map_change(mount));
    write.counters.return_blocks(free);
    filled
}

/// As [`data_written`](super::data_written), of data that came long before: the inode's times are those that were noted
/// then.
pub fn data_written_back(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: Blocks,
    size: Option<u64>,
) -> Result<()> {
    let delayed = entry.delayed();
    let alone = delayed.begin_change();
    let mut kept = delayed.redeem(0, &alone);
    let told = allocate::tell_written(mount, entry, blocks.clone(), (size, ChangedAt::Noted), &mut kept);
    // What could not be told is told later.
    let done = if told.is_ok() { blocks } else { blocks.start..blocks.start };
    let counters = &mount.write_side()?.counters;
    delayed.told(&done, kept, map_change(mount), |free| counters.return_blocks(free));
    told
}

/// As [`prepare_blocks`](super::prepare_blocks), for data that [are written back](data_written_back) in any parts and in
/// any order.
pub(crate) fn owe_blocks(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, blocks: &Blocks) -> Result<()> {
    limits::check_block_change(mount, entry)?;
    limits::check_room_to_cut(mount, entry, blocks)?;
    let extents = mount.extents(&entry.current(), ForkKind::Data)?;
    let counters = &mount.write_side()?.counters;
    for run in extents.unwritten_runs(blocks) {
        entry.delayed().owe(&run, map_change(mount), |wanted| counters.reserve_blocks(wanted))?;
    }
    Ok(())
}

/// Of data in `blocks`, which have a place, the map will not be told.
pub(crate) fn give_up_promised(mount: &Mount, entry: &InodeEntry, blocks: &Blocks) {
    if let (Some(delayed), Ok(write)) = (entry.delayed_if_any(), mount.write_side()) {
        delayed.told(blocks, 0, map_change(mount), |free| write.counters.return_blocks(free));
    }
}

/// Blocks that a map may need for an extent more, and to tell of its data.
fn map_change(mount: &Mount) -> u64 {
    *mount.map_change.get_or_init(|| {
        need_for_extent(mount, 0).reservation().blocks + need_to_mark(mount).reservation().blocks
    })
}
