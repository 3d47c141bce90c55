//! When a file's content was last overwritten without a transaction, until the inode is updated.
//!
//! Invariants:
//! - noting a time costs two loads. It stores only if the system's coarse clock has ticked since the last note, so
//!   threads that overwrite one file do not pass a cache line to and fro;
//! - a time belongs to one life of the inode's number. A later file never gets it, however late somebody puts it back.

use super::Life;
use std::cmp::Ordering::{Equal, Greater, Less};
use std::sync::atomic::{AtomicU64, Ordering};
use xfs_format::timestamp::Timestamp;

const NANOS: u64 = 1_000_000_000;

/// Times of modification and change of a file that was overwritten at `time`. `known` are those in the inode.
///
/// A modification time ahead of the change time was set by hand before the overwrite, so it is replaced.
pub(crate) fn after_overwrite(known: (Timestamp, Timestamp), time: Timestamp) -> (Timestamp, Timestamp) {
    let (mtime, ctime) = known;
    (if mtime > ctime { time } else { mtime.max(time) }, ctime.max(time))
}

/// A time that the inode does not know yet.
#[derive(Debug, Default)]
pub struct LazyTime {
    /// Nanoseconds since 1970; 0 for none.
    nanos: AtomicU64,
    /// The file that it belongs to.
    life: AtomicU64,
}

impl LazyTime {
    /// Notes that the content of this life's file is being overwritten now.
    #[inline]
    pub fn note(&self, life: Life) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        // A clock that was never set must still give a time other than 0.
        let now = u64::try_from(now.tv_sec).unwrap_or(0) * NANOS + u64::try_from(now.tv_nsec).unwrap_or(0);
        let now = now.max(1);
        match self.life.load(Ordering::Relaxed).cmp(&life.to_bits()) {
            // The file is gone.
            Greater => return,
            Equal => {}
            // Whoever sees this before the new time runs beside an overwrite, and takes an earlier time for its time.
            Less => self.life.store(life.to_bits(), Ordering::Release),
        }
        if self.nanos.load(Ordering::Relaxed) != now {
            self.nanos.store(now, Ordering::Relaxed);
        }
    }

    /// Whether there is a time, of whatever life.
    #[inline]
    pub fn is_noted(&self) -> bool {
        self.nanos.load(Ordering::Relaxed) != 0
    }

    /// The time, if the inode does not know it yet.
    pub fn get(&self, life: Life) -> Option<Timestamp> {
        if self.is_of(life) { Self::time(self.nanos.load(Ordering::Relaxed)) } else { None }
    }

    /// Like [`get`](Self::get), for a caller that updates the inode with this time or a later one and has it locked.
    pub fn take(&self, life: Life) -> Option<Taken<'_>> {
        if !self.is_of(life) {
            return None;
        }
        let nanos = self.nanos.swap(0, Ordering::Relaxed);
        Some(Taken { of: self, nanos, life, time: Self::time(nanos)? })
    }

    fn is_of(&self, life: Life) -> bool {
        self.life.load(Ordering::Acquire) == life.to_bits()
    }

    fn time(nanos: u64) -> Option<Timestamp> {
        let (seconds, nanoseconds) = ((nanos / NANOS).cast_signed(), (nanos % NANOS) as u32);
        (nanos != 0).then_some(Timestamp { seconds, nanoseconds })
    }
}

/// A time with which somebody is about to update the inode. Dropping it puts it back.
#[must_use = "it is put back at once if it is not kept"]
#[derive(Debug)]
pub struct Taken<'a> {
    of: &'a LazyTime,
    nanos: u64,
    life: Life,
    time: Timestamp,
}

impl Taken<'_> {
    /// The time.
    pub fn time(&self) -> Timestamp {
        self.time
    }

    /// The inode has this time or a later one.
    pub fn told(mut self) {
        self.nanos = 0;
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.of.is_of(self.life) {
            // A time that was noted meanwhile is later.
            self.of.nanos.fetch_max(self.nanos, Ordering::Relaxed);
        }
    }
}
