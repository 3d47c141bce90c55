//! What is promised to the part of a file that is in memory alone so far: how many blocks, what the map may need to tell of
//! them, and where the file ends.
//!
//! Invariants:
//! - for each block that is promised, one of the volume is reserved, and for all of them, and for those that have their place
//!   and of whose data the map does not know yet, what the map may need: some for the change that is on its way, two for each
//!   run that was promised by itself (an extent that comes between others may split a leaf, and so may the end of what is
//!   unwritten), and one for every few more;
//! - of the reserve for the map, whoever changes it takes all, one at a time, and gives back what is left; more than may be
//!   needed is anybody's again.

use super::runs::Runs;
use super::{Inode, InodeEntry};
use parking_lot::{Mutex, MutexGuard};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use xfs_format::types::FileBlock;

/// Records or children that a block of a map's tree has at the least, when it came of splits; the smallest block has more.
const RECORDS_MIN: u64 = 16;

/// See above.
#[derive(Debug, Default)]
pub(crate) struct Delayed {
    promised: Mutex<Promised>,
    /// Held by who gives promised blocks their place, or tells the map of their data.
    changing: Mutex<()>,
    /// Where the file ends in memory; 0: nowhere else than on the device.
    size: AtomicU64,
}

#[derive(Debug, Default)]
struct Promised {
    blocks: u64,
    runs: u64,
    /// Blocks that have their place, and of whose data the map does not know: a few too many at worst.
    untold: Runs,
    /// Blocks that are reserved for the map.
    map: u64,
    /// Behind the run that was promised last.
    end: Option<FileBlock>,
    /// Whether the volume was closed, and nothing is promised any more.
    has_ended: bool,
    /// Who said where the file ends in memory.
    size_by: usize,
}

impl Promised {
    /// What the map may need for all that is promised, when one change takes `change` at the most.
    fn wanted(&self, change: u64) -> u64 {
        match self.blocks + self.untold.blocks() {
            0 => 0,
            all => {
                let runs = self.runs.min(all);
                change + 2 * runs + (runs + all).div_ceil(RECORDS_MIN)
            }
        }
    }

    /// What is kept for the map beyond what is wanted: not kept any more.
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

impl Delayed {
    /// How many blocks are promised.
    pub(crate) fn blocks(&self) -> u64 {
        self.promised.lock().blocks
    }

    /// Promises so many blocks from `start` on, if `reserve` gets what that takes.
    pub(crate) fn promise<E>(
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
        Ok(())
    }

    /// Owes it to the map to be told of data in `blocks`, which have a place, if `reserve` gets what that takes.
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

    /// Takes promises of so many blocks back, and has `give` give back how many are anybody's again.
    pub(crate) fn withdraw(&self, blocks: u64, change: u64, give: impl FnOnce(u64)) {
        let mut promised = self.promised.lock();
        debug_assert!(promised.has_ended || promised.blocks >= blocks, "what is withdrawn was promised");
        let blocks = blocks.min(promised.blocks);
        promised.blocks -= blocks;
        // Under the lock: who ends all promises finds this one there, or given back.
        give(blocks + promised.surplus(change));
    }

    /// Takes all promises back, and has `give` do so: nobody relies on any, but who made them may not know yet.
    pub(crate) fn end(&self, give: impl FnOnce(u64)) {
        let mut promised = self.promised.lock();
        let Promised { blocks, map, size_by, .. } = std::mem::take(&mut *promised);
        (promised.has_ended, promised.size_by) = (true, size_by);
        give(blocks + map);
    }

    /// Keeps others from changing the map for what was promised.
    pub(crate) fn begin_change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock()
    }

    /// Takes what is reserved for so many blocks, and for the map.
    pub(crate) fn redeem(&self, blocks: u64, _alone: &MutexGuard<'_, ()>) -> u64 {
        let mut promised = self.promised.lock();
        debug_assert!(promised.blocks >= blocks, "nothing is redeemed that was not promised");
        let blocks = blocks.min(promised.blocks);
        promised.blocks -= blocks;
        blocks + std::mem::take(&mut promised.map)
    }

    /// Gives back what is left of it, when so many of `blocks` are promised still, and the others have a place. Gives how many
    /// are anybody's again.
    pub(crate) fn give_back(&self, left: u64, blocks: Range<FileBlock>, missing: u64, change: u64) -> u64 {
        let mut promised = self.promised.lock();
        let kept = missing.min(left);
        promised.blocks += kept;
        promised.map += left - kept;
        if missing < blocks.end.0 - blocks.start.0 {
            promised.untold.add(&blocks);
        }
        promised.surplus(change)
    }

    /// The map knows of the data in `blocks`, or never will, and so much is left of the reserve for it. Has `give` give back how
    /// many blocks are anybody's again.
    pub(crate) fn told(&self, blocks: &Range<FileBlock>, left: u64, change: u64, give: impl FnOnce(u64)) {
        let mut promised = self.promised.lock();
        promised.untold.cut(blocks);
        promised.map += left;
        give(promised.surplus(change));
    }

    /// Where the file ends in memory, if that is elsewhere than on the device.
    pub(crate) fn size(&self) -> Option<u64> {
        Some(self.size.load(Ordering::Acquire)).filter(|&size| size > 0)
    }

    /// Says where the file ends in memory, or, if it was `by` who said so last, that it ends there where it does on the device.
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

impl InodeEntry {
    /// Blocks that are promised to the file and have no place yet.
    pub fn delayed_blocks(&self) -> u64 {
        self.delayed_if_any().map_or(0, Delayed::blocks)
    }

    /// Size in bytes of the file that `seen` is a version of, and how many blocks it has, with what is in memory alone.
    pub fn size_and_blocks(&self, seen: &Inode) -> (u64, u64) {
        let Some(delayed) = self.delayed_if_any() else { return (seen.size(), seen.blocks()) };
        // First this, then the version: what is written back is in a version before it is forgotten here. That of `seen` may be
        // one of before.
        let size = delayed.size();
        let promised = if size.is_some() { delayed.blocks() } else { 0 };
        let now = self.peek();
        let has_grown = now.life() == seen.life() && now.size() > seen.size();
        let inode = if has_grown { &**now } else { seen };
        (inode.size().max(size.unwrap_or(0)), inode.blocks() + promised)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const CHANGE: u64 = 10;

    #[test]
    fn what_is_reserved_is_given_back_to_the_last_block() {
        let (delayed, reserved) = (Delayed::default(), Cell::new(0));
        let reserve = |count| {
            reserved.set(reserved.get() + count);
            Ok::<_, ()>(())
        };
        delayed.promise(FileBlock(5), 3, CHANGE, reserve).unwrap();
        assert_eq!(reserved.get(), 3 + CHANGE + 2 + 1);
        // What goes on needs next to nothing for the map.
        delayed.promise(FileBlock(8), 4, CHANGE, reserve).unwrap();
        assert_eq!(reserved.get(), 7 + CHANGE + 2 + 1);
        delayed.promise(FileBlock(100), 1, CHANGE, reserve).unwrap();
        assert_eq!(reserved.get(), 8 + CHANGE + 4 + 1);
        let alone = delayed.begin_change();
        let mut taken = delayed.redeem(7, &alone);
        assert_eq!(taken, 7 + CHANGE + 4 + 1, "all that the map may need");
        // Of the seven, five get a place, and the map grows by two.
        taken -= 7;
        let mut free = delayed.give_back(taken, FileBlock(5)..FileBlock(12), 2, CHANGE);
        drop(alone);
        assert_eq!((delayed.blocks(), free), (3, 0));
        delayed.withdraw(3, CHANGE, |given| free += given);
        assert!(free < reserved.get() - 7, "something is kept until the map was told");
        let left = delayed.redeem(0, &delayed.begin_change());
        delayed.told(&(FileBlock(0)..FileBlock(50)), left, CHANGE, |given| free += given);
        assert_eq!(free + 5 + 2, reserved.get());
        assert_eq!(delayed.blocks(), 0);
    }

    #[test]
    fn a_promise_that_cannot_be_kept_is_none() {
        let delayed = Delayed::default();
        assert_eq!(delayed.promise(FileBlock(0), 3, CHANGE, |_| Err(())), Err(()));
        assert_eq!(delayed.blocks(), 0);
        delayed.withdraw(0, CHANGE, |given| assert_eq!(given, 0));
    }

    /// Who gives up a file while the volume is closed finds nothing left of what was promised to it.
    #[test]
    fn what_has_ended_is_given_back_once() {
        let (delayed, reserved) = (Delayed::default(), Cell::new(0));
        let reserve = |count| {
            reserved.set(reserved.get() + count);
            Ok::<_, ()>(())
        };
        delayed.promise(FileBlock(5), 3, CHANGE, reserve).unwrap();
        delayed.owe(&(FileBlock(20)..FileBlock(22)), CHANGE, reserve).unwrap();
        let mut free = 0;
        delayed.end(|given| free += given);
        assert_eq!(free, reserved.get());
        delayed.withdraw(3, CHANGE, |given| assert_eq!(given, 0));
        delayed.told(&(FileBlock(0)..FileBlock(50)), 0, CHANGE, |given| assert_eq!(given, 0));
    }

    /// A file that was closed took away what was known of it as it had been opened anew meanwhile, or left what was lost.
    #[test]
    fn the_size_in_memory_is_taken_back_by_who_said_it() {
        let delayed = Delayed::default();
        delayed.set_size(1, Some(100));
        delayed.set_size(2, None);
        assert_eq!(delayed.size(), Some(100));
        delayed.set_size(2, Some(200));
        delayed.set_size(1, None);
        assert_eq!(delayed.size(), Some(200));
        delayed.set_size(2, None);
        assert_eq!(delayed.size(), None);
    }
}
