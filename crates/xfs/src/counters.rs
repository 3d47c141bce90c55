//! The volume's counters: free blocks, inodes, free inodes.
//!
//! The superblock on disk has them only after a clean close. While a volume is open they are here, as atomics.
//!
//! Invariant: `free_blocks` excludes what transactions have reserved, so that a successful reservation cannot fail
//! later.

use crate::error::{Error, Result};
use std::sync::atomic::{AtomicI64, Ordering};

/// The counters.
#[derive(Debug)]
pub struct Counters {
    free_blocks: AtomicI64,
    inodes: AtomicI64,
    free_inodes: AtomicI64,
    /// Blocks that count as free but cannot be reserved: those of the free space trees, what these may need, and what
    /// groups keep for their other trees.
    set_aside: AtomicI64,
}

/// A transaction's changes of the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delta {
    /// Reserved blocks that are used now.
    pub(crate) taken: u64,
    /// Blocks that are free now.
    pub(crate) freed: u64,
    pub(crate) inodes: i64,
    pub(crate) free_inodes: i64,
    /// Blocks taken from the groups' own reservations.
    pub(crate) from_ag_reservation: i64,
    /// Blocks by which the free space trees grew.
    pub(crate) space_trees: i64,
}

impl Counters {
    /// Counters of a volume as in the superblock.
    pub fn new(free_blocks: u64, inodes: u64, free_inodes: u64, set_aside: u64) -> Self {
        Self {
            free_blocks: AtomicI64::new(free_blocks.cast_signed()),
            inodes: AtomicI64::new(inodes.cast_signed()),
            free_inodes: AtomicI64::new(free_inodes.cast_signed()),
            set_aside: AtomicI64::new(set_aside.cast_signed()),
        }
    }

    /// Blocks that are free and not reserved.
    pub fn free_blocks(&self) -> u64 {
        self.free_blocks.load(Ordering::Relaxed).max(0).cast_unsigned()
    }

    /// Blocks that can still be reserved.
    pub fn available_blocks(&self) -> u64 {
        (self.free_blocks.load(Ordering::Relaxed) - self.set_aside.load(Ordering::Relaxed))
            .max(0)
            .cast_unsigned()
    }

    /// Allocated inodes.
    pub fn inodes(&self) -> u64 {
        self.inodes.load(Ordering::Relaxed).max(0).cast_unsigned()
    }

    /// Allocated inodes that are free.
    pub fn free_inodes(&self) -> u64 {
        self.free_inodes.load(Ordering::Relaxed).max(0).cast_unsigned()
    }

    /// Reserves blocks, all or none.
    pub(crate) fn reserve_blocks(&self, count: u64) -> Result<()> {
        let count = count.cast_signed();
        if count == 0 {
            return Ok(());
        }
        self.free_blocks
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |free| {
                (self.unreserved(free) >= count).then_some(free - count)
            })
            .map(drop)
            .map_err(|_| Error::NoSpace)
    }

    /// Reserves up to this many blocks, as many as there are.
    pub(crate) fn reserve_some(&self, most: u64) -> u64 {
        let mut some = 0;
        let _always = self.free_blocks.fetch_update(Ordering::AcqRel, Ordering::Acquire, |free| {
            some = most.cast_signed().min(self.unreserved(free)).max(0);
            Some(free - some)
        });
        some.cast_unsigned()
    }

    /// Of this many free blocks, those that can be reserved. [`apply`](Self::apply) says why the order is enough.
    fn unreserved(&self, free: i64) -> i64 {
        free - self.set_aside.load(Ordering::Acquire)
    }

    /// Gives back what was reserved and not used.
    pub(crate) fn return_blocks(&self, count: u64) {
        if count > 0 {
            self.free_blocks.fetch_add(count.cast_signed(), Ordering::AcqRel);
        }
    }

    /// Changes the set-aside by this many blocks, for a volume that has grown.
    pub(crate) fn keep_back(&self, more: i64) {
        self.set_aside.fetch_add(more, Ordering::Relaxed);
    }

    /// Applies what a transaction committed. Blocks that it took left the counter when they were reserved.
    pub(crate) fn apply(&self, delta: &Delta) {
        // More is set aside before there is more, and less after there is less: whoever sees one of the two sees too
        // few blocks, never too many.
        let set_aside = delta.space_trees - delta.from_ag_reservation;
        if set_aside > 0 {
            self.set_aside.fetch_add(set_aside, Ordering::AcqRel);
        }
        let free = delta.freed.cast_signed() - delta.from_ag_reservation;
        if free != 0 {
            self.free_blocks.fetch_add(free, Ordering::AcqRel);
        }
        if set_aside < 0 {
            self.set_aside.fetch_add(set_aside, Ordering::AcqRel);
        }
        if delta.inodes != 0 {
            self.inodes.fetch_add(delta.inodes, Ordering::Relaxed);
        }
        if delta.free_inodes != 0 {
            self.free_inodes.fetch_add(delta.free_inodes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_takes_all_or_nothing_and_leaves_what_is_set_aside() {
        let counters = Counters::new(100, 64, 10, 20);
        assert!(matches!(counters.reserve_blocks(81), Err(Error::NoSpace)));
        assert_eq!(counters.available_blocks(), 80);
        counters.reserve_blocks(80).expect("there are 80");
        assert!(matches!(counters.reserve_blocks(1), Err(Error::NoSpace)));
        assert_eq!((counters.reserve_some(5), counters.available_blocks()), (0, 0));
        counters.return_blocks(30);
        assert_eq!((counters.reserve_some(10), counters.reserve_some(100)), (10, 20));
        counters.return_blocks(30);
        counters.apply(&Delta { taken: 50, inodes: 64, free_inodes: 63, ..Delta::default() });
        counters.apply(&Delta { freed: 5, ..Delta::default() });
        assert_eq!((counters.free_blocks(), counters.inodes(), counters.free_inodes()), (55, 128, 73));
    }

    /// What a commit frees for the free space trees themselves is nobody's, not even for a moment.
    #[cfg(not(shuttle))]
    #[test]
    fn nobody_reserves_what_a_commit_sets_aside() {
        use std::sync::atomic::AtomicBool;
        let counters = Counters::new(100, 0, 0, 100);
        let ends = AtomicBool::new(false);
        let taken = std::thread::scope(|scope| {
            let taker = scope.spawn(|| {
                let mut taken = 0;
                while !ends.load(Ordering::Relaxed) {
                    taken += u64::from(counters.reserve_blocks(1).is_ok());
                }
                taken
            });
            for _ in 0..3_000_000 {
                counters.apply(&Delta { freed: 1, space_trees: 1, ..Delta::default() });
            }
            ends.store(true, Ordering::Relaxed);
            taker.join().expect("no panic")
        });
        assert_eq!(taken, 0, "there was never a block to reserve");
    }
}
