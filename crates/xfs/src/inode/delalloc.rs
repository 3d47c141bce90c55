//! Delayed allocation: what is promised to the part of a file that exists only in memory. That is a number of blocks,
//! the blocks that the map may need to record them, and the end of the file.
//!
//! Invariants:
//! - for each promised block, one block of the volume is reserved. In addition, blocks are reserved that the map may
//!   need for all promised blocks, and for blocks that are allocated but whose data the map does not know yet: some for
//!   the change in progress, two for each run that was promised separately (an extent between others may split a leaf,
//!   and so may the end of an unwritten extent), and one for every few more;
//! - whoever changes the map takes all of the map's reserve, one thread at a time, and gives back what is left. A
//!   surplus returns to the volume.

#[cfg(all(test, not(shuttle)))]
use super::InodeEntry;
use super::runs::Runs;
use parking_lot::{Mutex, MutexGuard};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use xfs_format::types::FileBlock;

/// Minimum number of records or children in a block of a map tree that resulted from splits. Even the smallest block
/// has more.
const RECORDS_MIN: u64 = 16;

/// The delayed allocation of a file.
#[derive(Debug, Default)]
pub(crate) struct Delalloc {
    promised: Mutex<DelallocState>,
    /// Held while promised blocks are allocated, or the map is told of their data.
    changing: Mutex<()>,
    /// The file's size in memory; 0 if it is the same as on disk.
    size: AtomicU64,
    /// Blocks that are promised or being allocated.
    unmapped: AtomicU64,
}

#[derive(Debug, Default)]
struct DelallocState {
    blocks: u64,
    /// Blocks that were promised and are being allocated.
    allocating: u64,
    runs: u64,
    /// Blocks that are allocated and whose data the map does not know. It may have a few too many.
    untold: Runs,
    /// Blocks that are reserved for the map.
    map: u64,
    /// The end of the run that was promised last.
    end: Option<FileBlock>,
    /// Whether the volume was closed, so that nothing is promised any more.
    has_ended: bool,
    /// Who set the file's size in memory.
    size_by: usize,
}

impl DelallocState {
    /// What the map may need for all promises, if one change takes at most `change`.
    fn wanted(&self, change: u64) -> u64 {
        match self.blocks + self.untold.blocks() {
            0 => 0,
            all => {
                let runs = self.runs.min(all);
                change + 2 * runs + (runs + all).div_ceil(RECORDS_MIN)
            }
        }
    }

    /// Removes what is kept for the map beyond what is wanted, and returns it.
    fn surplus(&mut self, change: u64) -> u64 {
        let wanted = self.wanted(change);
        if wanted == 0 {
            self.runs = 0;
        }
        let surplus = self.map.saturating_sub(wanted);
        self.map -= surplus;
        surplus
    }
}

impl Delalloc {
    /// How many blocks are promised.
    pub(crate) fn blocks(&self) -> u64 {
        self.promised.lock().blocks
    }

    /// Blocks of the file that its inode may not count yet: those that are promised, and those that are being allocated.
    /// These are counted twice for a moment, between the commit and the end of the allocation.
    #[inline]
    pub(crate) fn unmapped(&self) -> u64 {
        self.unmapped.load(Ordering::Acquire)
    }

    /// Shows others what is promised.
    fn show(&self, promised: &DelallocState) {
        self.unmapped.store(promised.blocks + promised.allocating, Ordering::Release);
    }

    /// Promises this many blocks from `start` on, if `reserve` succeeds for what that takes.
    pub(crate) fn reserve<E>(
        &self,
        start: FileBlock,
        blocks: u64,
        change: u64,
        reserve: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut promised = self.promised.lock();
        let before = (promised.blocks, promised.runs);
        let goes_on = promised.blocks > 0 && promised.end == Some(start);
        promised.blocks += blocks;
        promised.runs += u64::from(!goes_on);
        let more = promised.wanted(change).saturating_sub(promised.map);
        reserve(blocks + more).inspect_err(|_| (promised.blocks, promised.runs) = before)?;
        promised.map += more;
        promised.end = Some(FileBlock(start.0 + blocks));
        self.show(&promised);
        Ok(())
    }

    /// Records that the map is still to be told of data in `blocks`, which are allocated, if `reserve` succeeds for
    /// what that takes.
    pub(crate) fn owe<E>(
        &self,
        blocks: &Range<FileBlock>,
        change: u64,
        reserve: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut promised = self.promised.lock();
        promised.untold.add(blocks);
        promised.runs += 1;
        let more = promised.wanted(change).saturating_sub(promised.map);
        reserve(more).inspect_err(|_| {
            promised.untold.cut(blocks);
            promised.runs -= 1;
        })?;
        promised.map += more;
        Ok(())
    }

    /// Withdraws promises of this many blocks. `give` returns to the volume what is no longer needed.
    pub(crate) fn cancel(&self, blocks: u64, change: u64, give: impl FnOnce(u64)) {
        let mut promised = self.promised.lock();
        debug_assert!(promised.has_ended || promised.blocks >= blocks, "what is withdrawn was promised");
        let blocks = blocks.min(promised.blocks);
        promised.blocks -= blocks;
        self.show(&promised);
        // Under the lock, so that `end` finds these promises either here or given back.
        give(blocks + promised.surplus(change));
    }

    /// Withdraws all promises, and calls `give` with their blocks. Nobody relies on them, but those who made them may
    /// not know yet.
    pub(crate) fn end(&self, give: impl FnOnce(u64)) {
        let mut promised = self.promised.lock();
        let DelallocState { blocks, map, size_by, .. } = std::mem::take(&mut *promised);
        (promised.has_ended, promised.size_by) = (true, size_by);
        self.show(&promised);
        give(blocks + map);
    }

    /// Keeps others from changing the map for promised blocks.
    pub(crate) fn begin_change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock()
    }

    /// Takes what is reserved for this many blocks and for the map.
    pub(crate) fn take(&self, blocks: u64, _alone: &MutexGuard<'_, ()>) -> u64 {
        let mut promised = self.promised.lock();
        debug_assert!(promised.blocks >= blocks, "nothing is redeemed that was not promised");
        let blocks = blocks.min(promised.blocks);
        promised.blocks -= blocks;
        promised.allocating += blocks;
        blocks + std::mem::take(&mut promised.map)
    }

    /// Gives back what is left of it, if `missing` of `blocks` are still promised and the others are allocated. Returns
    /// how many blocks return to the volume.
    pub(crate) fn give_back(&self, left: u64, blocks: Range<FileBlock>, missing: u64, change: u64) -> u64 {
        let mut promised = self.promised.lock();
        let kept = missing.min(left);
        promised.blocks += kept;
        // All that was taken, as one thread allocates at a time.
        promised.allocating = 0;
        self.show(&promised);
        promised.map += left - kept;
        if missing < blocks.end.0 - blocks.start.0 {
            promised.untold.add(&blocks);
        }
        promised.surplus(change)
    }

    /// The map knows of the data in `blocks`, or never will, and `left` is the rest of the reserve. Calls `give` with
    /// the number of blocks that return to the volume.
    pub(crate) fn told(&self, blocks: &Range<FileBlock>, left: u64, change: u64, give: impl FnOnce(u64)) {
        let mut promised = self.promised.lock();
        promised.untold.cut(blocks);
        promised.map += left;
        give(promised.surplus(change));
    }

    /// The file's size in memory, if it differs from that on disk.
    pub(crate) fn size(&self) -> Option<u64> {
        Some(self.size.load(Ordering::Acquire)).filter(|&size| size > 0)
    }

    /// Sets the file's size in memory. `None` says that the size on disk holds again; it is ignored unless `by` was the
    /// last to set a size.
    pub(crate) fn set_size(&self, by: usize, size: Option<u64>) {
        let mut promised = self.promised.lock();
        if size.is_some() {
            promised.size_by = by;
        }
        if promised.size_by == by {
            self.size.store(size.unwrap_or(0), Ordering::Release);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
impl InodeEntry {
    /// Blocks that are promised to the file and not allocated yet.
    pub(crate) fn delalloc_blocks(&self) -> u64 {
        self.delalloc_if_any().map_or(0, Delalloc::blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const CHANGE: u64 = 10;

    #[test]
    fn what_is_reserved_is_given_back_to_the_last_block() {
        let (delalloc, reserved) = (Delalloc::default(), Cell::new(0));
        let reserve = |count| {
            reserved.set(reserved.get() + count);
            Ok::<_, ()>(())
        };
        delalloc.reserve(FileBlock(5), 3, CHANGE, reserve).unwrap();
        assert_eq!(reserved.get(), 3 + CHANGE + 2 + 1);
        // Contiguous promises need almost nothing for the map.
        delalloc.reserve(FileBlock(8), 4, CHANGE, reserve).unwrap();
        assert_eq!(reserved.get(), 7 + CHANGE + 2 + 1);
        delalloc.reserve(FileBlock(100), 1, CHANGE, reserve).unwrap();
        assert_eq!(reserved.get(), 8 + CHANGE + 4 + 1);
        let alone = delalloc.begin_change();
        let mut taken = delalloc.take(7, &alone);
        assert_eq!(taken, 7 + CHANGE + 4 + 1, "all that the map may need");
        // Five of the seven are allocated, and the map grows by two.
        taken -= 7;
        let mut free = delalloc.give_back(taken, FileBlock(5)..FileBlock(12), 2, CHANGE);
        drop(alone);
        assert_eq!((delalloc.blocks(), free), (3, 0));
        delalloc.cancel(3, CHANGE, |given| free += given);
        assert!(free < reserved.get() - 7, "something is kept until the map was told");
        let left = delalloc.take(0, &delalloc.begin_change());
        delalloc.told(&(FileBlock(0)..FileBlock(50)), left, CHANGE, |given| free += given);
        assert_eq!(free + 5 + 2, reserved.get());
        assert_eq!(delalloc.blocks(), 0);
    }

    #[test]
    fn a_promise_that_cannot_be_kept_is_none() {
        let delalloc = Delalloc::default();
        assert_eq!(delalloc.reserve(FileBlock(0), 3, CHANGE, |_| Err(())), Err(()));
        assert_eq!(delalloc.blocks(), 0);
        delalloc.cancel(0, CHANGE, |given| assert_eq!(given, 0));
    }

    /// A file that is given up while the volume is being closed finds none of its promises left.
    #[test]
    fn what_has_ended_is_given_back_once() {
        let (delalloc, reserved) = (Delalloc::default(), Cell::new(0));
        let reserve = |count| {
            reserved.set(reserved.get() + count);
            Ok::<_, ()>(())
        };
        delalloc.reserve(FileBlock(5), 3, CHANGE, reserve).unwrap();
        delalloc.owe(&(FileBlock(20)..FileBlock(22)), CHANGE, reserve).unwrap();
        let mut free = 0;
        delalloc.end(|given| free += given);
        assert_eq!(free, reserved.get());
        delalloc.cancel(3, CHANGE, |given| assert_eq!(given, 0));
        delalloc.told(&(FileBlock(0)..FileBlock(50)), 0, CHANGE, |given| assert_eq!(given, 0));
    }

    /// Regression: closing a file removed the size that had been set after it was opened anew, or left a size that was
    /// lost.
    #[test]
    fn the_size_in_memory_is_taken_back_by_who_said_it() {
        let delalloc = Delalloc::default();
        delalloc.set_size(1, Some(100));
        delalloc.set_size(2, None);
        assert_eq!(delalloc.size(), Some(100));
        delalloc.set_size(2, Some(200));
        delalloc.set_size(1, None);
        assert_eq!(delalloc.size(), Some(200));
        delalloc.set_size(2, None);
        assert_eq!(delalloc.size(), None);
    }
}
