//! The volume's counters: free blocks, inodes, free inodes.
//!
//! The superblock on disk has them only after a clean close. While a volume is open they are here, as atomics.
//!
//! Invariant: `unreserved` excludes what transactions have reserved and what is set aside, so that a successful reservation
//! cannot fail later. It is one number: of two that are looked at one after the other, the first may have changed and
//! changed back meanwhile. Whoever looks at several numbers sees all of a change or nothing ([`Counters::look`]).
//!
//! A removal may need a block: where a hole is made in an extent, the map has one more. So that it succeeds on a full
//! volume, some blocks are kept for that, the reserve pool. They count as set aside. While some of them are in use,
//! `unreserved` is below zero, and what is freed fills the pool first. Recovery has no pool: all that was free at the
//! crash may be promised to what it finishes.

use crate::error::{Error, Result};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering, fence};

/// The counters.
#[derive(Debug)]
pub struct Counters {
    /// Blocks that can be reserved.
    unreserved: AtomicI64,
    inodes: AtomicI64,
    free_inodes: AtomicI64,
    /// Blocks that count as free but cannot be reserved: those of the free space trees, what these may need, and what
    /// groups keep for their other trees.
    set_aside: AtomicI64,
    /// How many of these are the reserve pool.
    reserve_pool: AtomicU32,
    /// Changes of several numbers that have begun, and that have ended.
    begun: AtomicU64,
    ended: AtomicU64,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Blocks that are free and not reserved.
    pub free_blocks: u64,
    /// Allocated inodes.
    pub inodes: u64,
    /// Allocated inodes that are free.
    pub free_inodes: u64,
}

/// A change of several numbers, which ends when this is dropped.
pub(crate) struct CountsChanging<'c>(&'c Counters);

impl Drop for CountsChanging<'_> {
    fn drop(&mut self) {
        // Release: whoever sees the end sees the change.
        self.0.ended.fetch_add(1, Ordering::Release);
    }
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
            unreserved: AtomicI64::new(free_blocks.cast_signed() - set_aside.cast_signed()),
            inodes: AtomicI64::new(inodes.cast_signed()),
            free_inodes: AtomicI64::new(free_inodes.cast_signed()),
            set_aside: AtomicI64::new(set_aside.cast_signed()),
            reserve_pool: AtomicU32::new(0),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        }
    }

    /// Sets these blocks aside as the reserve pool. Once, before several threads use the volume.
    pub(crate) fn keep_reserve_pool(&self, blocks: u32) {
        debug_assert_eq!(self.reserve_pool(), 0, "there is one pool");
        self.unreserved.fetch_sub(blocks.into(), Ordering::Relaxed);
        self.set_aside.fetch_add(blocks.into(), Ordering::Relaxed);
        self.reserve_pool.store(blocks, Ordering::Relaxed);
    }

    /// The reserve pool has this many blocks now. Those that it got were set aside before.
    pub(crate) fn reserve_pool_grew(&self, blocks: u32) {
        debug_assert!(blocks >= self.reserve_pool(), "a volume does not shrink");
        self.reserve_pool.store(blocks, Ordering::Relaxed);
    }

    /// Blocks that the reserve pool has when it is full.
    pub(crate) fn reserve_pool(&self) -> u32 {
        self.reserve_pool.load(Ordering::Relaxed)
    }

    /// Begins a change of several numbers, or of a number and of something else that `look` reads with it.
    pub(crate) fn changing(&self) -> CountsChanging<'_> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        // Whoever sees a part of the change sees that it has begun.
        fence(Ordering::Release);
        CountsChanging(self)
    }

    /// The counters at one moment, and what `beside` reads at that moment. It may be called several times.
    pub fn look<T>(&self, beside: impl Fn() -> T) -> (Counts, T) {
        loop {
            let ended = self.ended.load(Ordering::Acquire);
            let (counts, beside) = (self.counts(), beside());
            fence(Ordering::Acquire);
            if self.begun.load(Ordering::Relaxed) == ended {
                return (counts, beside);
            }
            std::thread::yield_now();
        }
    }

    fn counts(&self) -> Counts {
        let counted = |count: i64| count.max(0).cast_unsigned();
        let free = self.unreserved.load(Ordering::Relaxed) + self.set_aside.load(Ordering::Relaxed);
        Counts {
            free_blocks: counted(free),
            inodes: counted(self.inodes.load(Ordering::Relaxed)),
            free_inodes: counted(self.free_inodes.load(Ordering::Relaxed)),
        }
    }

    /// Blocks that are free and not reserved.
    #[cfg(test)]
    pub(crate) fn free_blocks(&self) -> u64 {
        self.look(|| ()).0.free_blocks
    }

    /// Blocks that can still be reserved.
    pub fn available_blocks(&self) -> u64 {
        self.unreserved.load(Ordering::Relaxed).max(0).cast_unsigned()
    }

    /// Allocated inodes.
    pub fn inodes(&self) -> u64 {
        self.inodes.load(Ordering::Relaxed).max(0).cast_unsigned()
    }

    /// Reserves blocks, all or none.
    pub(crate) fn reserve_blocks(&self, count: u64) -> Result<()> {
        let count = count.cast_signed();
        if count == 0 {
            return Ok(());
        }
        let left = |unreserved: i64| (unreserved >= count).then_some(unreserved - count);
        let reserved = self.unreserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
        reserved.map(drop).map_err(|_| Error::NoSpace)
    }

    /// Reserves up to this many blocks, as many as there are.
    pub(crate) fn reserve_some(&self, most: u64) -> u64 {
        self.reserve_by(|unreserved| most.cast_signed().min(unreserved))
    }

    /// Reserves `count` blocks. If there are too few, up to `least` of them, also from the reserve pool, of which `left`
    /// stay. Returns how many.
    pub(crate) fn reserve_from_pool(&self, count: u64, least: u64, left: u32) -> u64 {
        if count == 0 {
            return 0;
        }
        let (count, least) = (count.cast_signed(), least.min(count).cast_signed());
        let pool = i64::from(self.reserve_pool()) - i64::from(left);
        self.reserve_by(|unreserved| if unreserved >= count { count } else { least.min(unreserved + pool) })
    }

    /// Reserves as many blocks as `wanted` says for those that are unreserved, none if that is below zero.
    fn reserve_by(&self, wanted: impl Fn(i64) -> i64) -> u64 {
        let given = |unreserved: i64| wanted(unreserved).max(0);
        let left = |unreserved: i64| Some(unreserved - given(unreserved));
        let before = self.unreserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
        before.map_or(0, |unreserved| given(unreserved).cast_unsigned())
    }

    /// Gives back what was reserved and not used.
    pub(crate) fn return_blocks(&self, count: u64) {
        if count > 0 {
            self.unreserved.fetch_add(count.cast_signed(), Ordering::Relaxed);
        }
    }

    /// Applies what a transaction committed. Blocks that it took left the counter when they were reserved.
    pub(crate) fn apply(&self, delta: &Delta) {
        let set_aside = delta.space_trees - delta.from_ag_reservation;
        let unreserved = delta.freed.cast_signed() - delta.space_trees;
        let changes = [unreserved, set_aside, delta.inodes, delta.free_inodes];
        let are_several = changes.into_iter().filter(|&change| change != 0).count() > 1;
        let _together = are_several.then(|| self.changing());
        if unreserved != 0 {
            self.unreserved.fetch_add(unreserved, Ordering::Relaxed);
        }
        if set_aside != 0 {
            self.set_aside.fetch_add(set_aside, Ordering::Relaxed);
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
        let counts = Counts { free_blocks: 55, inodes: 128, free_inodes: 73 };
        assert_eq!(counters.look(|| ()), (counts, ()));
    }

    #[test]
    fn removals_have_some_blocks_when_all_others_are_taken() {
        let counters = Counters::new(100, 0, 0, 20);
        counters.keep_reserve_pool(10);
        assert_eq!((counters.available_blocks(), counters.free_blocks()), (70, 100));
        assert_eq!((counters.reserve_from_pool(30, 4, 0), counters.available_blocks()), (30, 40));
        counters.reserve_blocks(38).expect("there are 40");
        let given = [(30, 0), (30, 5), (30, 5), (3, 0), (1, 0), (30, 0)];
        let given = given.map(|(usual, left)| counters.reserve_from_pool(usual, 4, left));
        assert_eq!((given, counters.available_blocks()), ([4, 3, 0, 3, 1, 1], 0));
        // What comes back is theirs first.
        counters.return_blocks(5);
        assert!(matches!(counters.reserve_blocks(1), Err(Error::NoSpace)));
        counters.apply(&Delta { freed: 6, ..Delta::default() });
        assert_eq!((counters.reserve_some(9), counters.reserve_from_pool(30, 4, 0)), (1, 4));
        assert_eq!(counters.reserve_from_pool(0, 4, 0), 0);
    }

    /// Chunks of inodes come and go, and blocks are set aside.
    #[cfg(not(shuttle))]
    #[test]
    fn who_looks_sees_all_of_a_change_or_nothing() {
        use std::sync::atomic::AtomicBool;
        let counters = Counters::new(1000, 64, 60, 0);
        let beside = AtomicU64::new(0);
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    let (counts, beside) = counters.look(|| beside.load(Ordering::Relaxed));
                    let chunks = counts.inodes / 64 - 1;
                    assert_eq!((counts.inodes, counts.free_inodes), (64 + 64 * chunks, 60 + 64 * chunks));
                    assert_eq!(counts.free_blocks, 1000 + beside);
                }
            });
            for nth in 0..300_000 {
                let sign = if nth % 2 == 0 { 1 } else { -1 };
                let chunk = 64 * sign;
                counters.apply(&Delta { inodes: chunk, free_inodes: chunk, ..Delta::default() });
                counters.apply(&Delta { space_trees: 5 * sign, ..Delta::default() });
                let _together = counters.changing();
                beside.store((nth + 1) % 2, Ordering::Relaxed);
                counters.return_blocks((nth + 1) % 2);
                if sign < 0 {
                    counters.reserve_blocks(1).expect("there are some");
                }
            }
            ends.store(true, Ordering::Relaxed);
        });
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

    /// Somebody looks at what is free and what is set aside. Then a commit frees a block and sets it aside, and the one
    /// block that can be had is taken: as many are free as before.
    #[cfg(not(shuttle))]
    #[test]
    fn two_do_not_reserve_the_same_block() {
        use std::sync::atomic::{AtomicBool, AtomicU64};
        use std::time::{Duration, Instant};
        let counters = Counters::new(101, 0, 0, 100);
        let (turn, done, ends) = (AtomicU64::new(1), AtomicU64::new(0), AtomicBool::new(false));
        let taken = AtomicU64::new(0);
        // Begins a little earlier or later.
        let begin = |nth: u64| {
            let some = nth.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
            (0..some % (1 << (some >> 8 & 7) << 1)).for_each(|_| std::hint::spin_loop());
        };
        let take = || {
            taken.fetch_add(counters.reserve_blocks(1).is_ok().into(), Ordering::AcqRel);
            done.fetch_add(1, Ordering::AcqRel);
        };
        let twice = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut last = 0;
                while !ends.load(Ordering::Relaxed) {
                    let now = turn.load(Ordering::Acquire);
                    if now != last {
                        last = now;
                        begin(now);
                        take();
                    }
                }
            });
            let until = Instant::now() + Duration::from_secs(3);
            let twice = (1..).find_map(|nth| {
                turn.store(nth, Ordering::Release);
                begin(nth.wrapping_mul(31) ^ 0x5555);
                counters.apply(&Delta { freed: 1, space_trees: 1, ..Delta::default() });
                take();
                while done.load(Ordering::Acquire) < 2 * nth {
                    std::hint::spin_loop();
                }
                let both = taken.swap(0, Ordering::AcqRel);
                counters.return_blocks(both);
                counters.apply(&Delta { space_trees: -1, ..Delta::default() });
                counters.reserve_blocks(1).expect("the block of the trees");
                (both != 1 || Instant::now() > until).then_some((nth, both))
            });
            ends.store(true, Ordering::Relaxed);
            twice
        });
        assert_eq!(twice.map(|(_, both)| both), Some(1), "reservations of one block in round {twice:?}");
    }
}
