//! Shared holds that lie outside of their bucket, each in a cache line of its own.
//!
//! Readers of the same bytes who enter one bucket take its word from each other. In a bucket that is *biased*
//! to readers they write their claims here instead: into one table for the whole process, each thread into an
//! entry that it has to itself most of the time. Whoever wants to exclude them *revokes* the bias and takes
//! what it finds here over into the bucket. (The scheme is that of BRAVO, by Dice and Kogan; there the revoker
//! waits for the readers, here it enters them as if they had come the ordinary way, so that there is one line
//! of waiters and one way to wake them.)
//!
//! ```text
//! state of an entry:  FREE ──▶ FILLING ──▶ bucket ──▶ FREE        the reader leaves
//!                                             └────▶ bucket|TAKEN ──▶ FREE
//!                                                    the revoker    the reader, after it left the bucket
//! ```
//!
//! Invariants:
//! - an entry's range belongs to its reader from FILLING until it is FREE again, and does not change while the
//!   state names a bucket;
//! - what a revoker has TAKEN is held in the bucket; the entry then stays as it is until the reader has left
//!   the bucket, whose lock the revoker held while it read the entry's range;
//! - an entry that a thread may use is below [`VisibleReaders::used`] before its state names a bucket;
//! - the table has a fixed size, and memory behind it only where entries have been used.

use std::cell::Cell;
use std::ops::RangeInclusive;

use crate::sync::{AtomicU64, Ordering};

/// Entries of the table: more than threads read at once, and few enough to be looked through.
#[cfg(not(any(loom, shuttle)))]
const ENTRIES: usize = 128;
#[cfg(any(loom, shuttle))]
const ENTRIES: usize = 2;

const _: () = assert!(ENTRIES <= 1 << 8, "a token keeps eight bits for it");

const FREE: u64 = 0;
const FILLING: u64 = 1;
/// Beside the bucket, whose lowest bits are zero.
const TAKEN: u64 = 2;

/// Which entry of the table.
pub(super) type EntryIndex = u32;

/// A bucket's name: the address of its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BucketId(u64);

impl BucketId {
    #[inline(always)]
    pub(super) fn of(word: &AtomicU64) -> Self {
        BucketId(std::ptr::from_ref(word).addr() as u64)
    }
}

#[derive(Debug)]
#[cfg_attr(any(loom, shuttle), derive(Default))]
pub(super) struct VisibleReaders {
    /// The entry that the next thread gets that asks for one, not yet cut to the table's size.
    next: AtomicU64,
    entries: [Entry; ENTRIES],
}

#[derive(Debug)]
#[cfg_attr(any(loom, shuttle), derive(Default))]
#[repr(align(128))]
struct Entry {
    state: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
}

#[cfg(not(any(loom, shuttle)))]
impl Entry {
    const fn new() -> Self {
        Entry { state: AtomicU64::new(FREE), start: AtomicU64::new(0), end: AtomicU64::new(0) }
    }
}

/// What [`MINE`] is before the thread has an entry.
const NO_ENTRY: EntryIndex = EntryIndex::MAX;

#[cfg(not(any(loom, shuttle)))]
static TABLE: VisibleReaders = VisibleReaders::new();
#[cfg(not(any(loom, shuttle)))]
thread_local! {
    /// The entry that this thread tries first.
    static MINE: Cell<EntryIndex> = const { Cell::new(NO_ENTRY) };
}

#[cfg(any(loom, shuttle))]
crate::sync::lazy_static! {
    static ref TABLE: VisibleReaders = VisibleReaders::default();
}
#[cfg(any(loom, shuttle))]
crate::sync::thread_local! {
    static MINE: Cell<EntryIndex> = Cell::new(NO_ENTRY);
}

impl Entry {
    /// Writes a claim into an entry that is free.
    #[inline(always)]
    fn fill(&self, bucket: BucketId, start: u64, end: u64) -> bool {
        // Acquire: what the last reader of this entry did with it comes before what follows.
        let mine = self.state.load(Ordering::Relaxed) == FREE
            && self.state.compare_exchange(FREE, FILLING, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if mine {
            self.start.store(start, Ordering::Relaxed);
            self.end.store(end, Ordering::Relaxed);
            // Release: whoever sees the bucket sees the range, and the end of the hold before.
            self.state.store(bucket.0, Ordering::Release);
        }
        mine
    }
}

impl VisibleReaders {
    /// The table of the process.
    #[inline(always)]
    pub(super) fn of_process() -> &'static Self {
        &TABLE
    }

    #[cfg(not(any(loom, shuttle)))]
    const fn new() -> Self {
        VisibleReaders { next: AtomicU64::new(0), entries: [const { Entry::new() }; ENTRIES] }
    }

    /// Writes a shared claim down, which counts only if the bucket is found biased after a full fence.
    #[inline]
    pub(super) fn publish(&self, bucket: BucketId, start: u64, end: u64) -> Option<EntryIndex> {
        let mut mine = MINE.with(Cell::get);
        if mine == NO_ENTRY {
            mine = self.move_on();
        }
        // A thread that is not alone with its entry gets another one, but does not search the table: it may be full.
        if !self.entry(mine).fill(bucket, start, end) {
            mine = self.move_on();
            if !self.entry(mine).fill(bucket, start, end) {
                return None;
            }
        }
        Some(mine)
    }

    /// Gives this thread another entry: its first, or one instead of one that is often taken.
    #[cold]
    #[inline(never)]
    fn move_on(&self) -> EntryIndex {
        // Relaxed: `used` is looked at behind a fence that orders this before it.
        let next = (self.next.fetch_add(1, Ordering::Relaxed) % ENTRIES as u64) as EntryIndex;
        MINE.with(|mine| mine.set(next));
        next
    }

    /// Takes a claim back; false if a revoker has taken it over or it is not there.
    #[inline(always)]
    pub(super) fn withdraw(&self, at: EntryIndex, bucket: BucketId) -> bool {
        // Release: a revoker who finds the entry free, or somebody else's by now, comes after what this reader
        // read. Acquire: a reader whose claim was taken over comes after those that the revoker came after.
        self.entry(at).state.compare_exchange(bucket.0, FREE, Ordering::Release, Ordering::Acquire).is_ok()
    }

    /// Whether a claim on `bucket` has been taken over from this entry, and not been let go of since.
    pub(super) fn is_taken(&self, at: EntryIndex, bucket: BucketId) -> bool {
        self.entry(at).state.load(Ordering::Relaxed) == bucket.0 | TAKEN
    }

    /// Frees an entry whose claim was taken over; its reader has left the bucket.
    pub(super) fn free_taken(&self, at: EntryIndex) {
        self.entry(at).state.store(FREE, Ordering::Release);
    }

    /// Takes over all claims on a bucket, whose lock the caller holds and whose bias it has revoked, with a full
    /// fence in between; returns how many entries had to be looked at.
    pub(super) fn take_over(&self, bucket: BucketId, mut enter: impl FnMut(u64, u64)) -> usize {
        let used = self.used();
        for entry in &self.entries[..used] {
            // Acquire: the range is that of the claim that is taken over. Also where it fails: see `withdraw`. That a
            // reader who finds its claim taken over comes after the caller is by the caller's fence.
            let taken = entry.state.load(Ordering::Acquire) == bucket.0
                && entry
                    .state
                    .compare_exchange(bucket.0, bucket.0 | TAKEN, Ordering::Acquire, Ordering::Acquire)
                    .is_ok();
            if taken {
                enter(entry.start.load(Ordering::Relaxed), entry.end.load(Ordering::Relaxed));
            }
        }
        used
    }

    /// Frees what lost tokens left of buckets at these addresses, which are about to be no more.
    pub(super) fn forget(&self, buckets: RangeInclusive<BucketId>) {
        for entry in &self.entries {
            // Relaxed: nobody else has to do with these claims any more.
            let state = entry.state.load(Ordering::Relaxed);
            if buckets.contains(&BucketId(state & !TAKEN)) {
                entry.state.store(FREE, Ordering::Release);
            }
        }
    }

    /// Entries that have ever been given to a thread.
    fn used(&self) -> usize {
        (self.next.load(Ordering::Relaxed) as usize).min(ENTRIES)
    }

    #[inline(always)]
    fn entry(&self, at: EntryIndex) -> &Entry {
        &self.entries[at as usize % ENTRIES]
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
impl VisibleReaders {
    /// Whether a claim on a bucket at these addresses is there, taken over or not.
    pub(super) fn names_any(&self, buckets: &RangeInclusive<BucketId>) -> bool {
        let state = |entry: &Entry| BucketId(entry.state.load(Ordering::Acquire) & !TAKEN);
        self.entries.iter().any(|entry| buckets.contains(&state(entry)))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_found_and_a_full_table_says_no() {
        let table = Box::new(VisibleReaders::new());
        let (one, other) = (BucketId(128), BucketId(256));
        for nth in 0..ENTRIES as u64 {
            let bucket = if nth % 2 == 0 { one } else { other };
            assert!(table.publish(bucket, nth, nth + 1).is_some(), "{nth}");
        }
        assert_eq!(table.publish(one, 0, 1), None);
        let mut found = Vec::new();
        assert_eq!(table.take_over(one, |start, end| found.push((start, end))), ENTRIES);
        found.sort_unstable();
        assert!(found.into_iter().eq((0..ENTRIES as u64).step_by(2).map(|nth| (nth, nth + 1))));
        assert_eq!(table.take_over(one, |_, _| panic!("twice")), ENTRIES);
        let taken = (0..ENTRIES as EntryIndex).filter(|at| table.is_taken(*at, one));
        assert_eq!(taken.clone().count(), ENTRIES / 2);
        taken.for_each(|at| table.free_taken(at));
        let left = (0..ENTRIES as EntryIndex).filter(|at| table.withdraw(*at, other)).count();
        assert_eq!(left, ENTRIES / 2);
        assert!(table.entries.iter().all(|entry| entry.state.load(Ordering::Relaxed) == FREE));
    }

    #[test]
    fn what_was_never_given_to_a_thread_is_not_looked_at() {
        let table = VisibleReaders::new();
        assert_eq!(table.take_over(BucketId(128), |_, _| ()), 0);
    }
}
