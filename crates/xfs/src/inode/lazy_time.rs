//! When a file's content was last written over without a transaction, until its inode is told.
//!
//! Invariant: noting a time costs a load, and a store only where the system's coarse clock has ticked since the last
//! note: threads that overwrite one file do not pass a cache line to and fro.

use std::sync::atomic::{AtomicU64, Ordering};
use xfs_format::timestamp::Timestamp;

const NANOS: u64 = 1_000_000_000;

/// Times of modification and of change, `known` to the inode, of what was written over at `time`.
///
/// A modification ahead of the last change of all was set by hand, and before: it says no more.
pub(crate) fn after_overwrite(known: (Timestamp, Timestamp), time: Timestamp) -> (Timestamp, Timestamp) {
    let (mtime, ctime) = known;
    (if mtime > ctime { time } else { mtime.max(time) }, ctime.max(time))
}

/// A time that the inode does not know yet, in nanoseconds since 1970; 0: none.
#[derive(Debug, Default)]
pub struct LazyTime(AtomicU64);

impl LazyTime {
    /// Remembers that content is written over now.
    #[inline]
    pub fn note(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        // A clock that was never set still gives a time that is not "none".
        let now = u64::try_from(now.tv_sec).unwrap_or(0) * NANOS + u64::try_from(now.tv_nsec).unwrap_or(0);
        let now = now.max(1);
        if self.0.load(Ordering::Relaxed) != now {
            self.0.store(now, Ordering::Relaxed);
        }
    }

    /// The time, if the inode does not know it yet.
    pub fn get(&self) -> Option<Timestamp> {
        Self::time(self.0.load(Ordering::Relaxed))
    }

    /// As [`get`](Self::get), for whoever tells the inode, or the inode something later, and has it locked.
    pub fn take(&self) -> Option<Taken<'_>> {
        let nanos = self.0.swap(0, Ordering::Relaxed);
        Some(Taken { of: self, nanos, time: Self::time(nanos)? })
    }

    fn time(nanos: u64) -> Option<Timestamp> {
        let secs = (nanos / NANOS).cast_signed();
        (nanos != 0).then_some(Timestamp { secs, nanos: (nanos % NANOS) as u32 })
    }
}

/// A time that somebody is about to tell the inode. Dropping it puts it back.
#[must_use = "it is put back at once if it is not kept"]
#[derive(Debug)]
pub struct Taken<'a> {
    of: &'a LazyTime,
    nanos: u64,
    time: Timestamp,
}

impl Taken<'_> {
    /// The time.
    pub fn time(&self) -> Timestamp {
        self.time
    }

    /// The inode knows it, or something later.
    pub fn told(mut self) {
        self.nanos = 0;
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // What was noted meanwhile is later.
        self.of.0.fetch_max(self.nanos, Ordering::Relaxed);
    }
}
