//! When a file's content was last written over without a transaction, until its inode is told.
//!
//! Invariants:
//! - noting a time costs two loads, and stores only where the system's coarse clock has ticked since the last note:
//!   threads that overwrite one file do not pass a cache line to and fro;
//! - a time is of one life of the inode's number: a later file does not get it, however late somebody gives it back.

use super::Life;
use std::cmp::Ordering::{Equal, Greater, Less};
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

/// A time that the inode does not know yet.
#[derive(Debug, Default)]
pub struct LazyTime {
    /// Nanoseconds since 1970; 0: none.
    nanos: AtomicU64,
    /// Of which file.
    life: AtomicU64,
}

impl LazyTime {
    /// Remembers that the content of the file of this life is written over now.
    #[inline]
    pub fn note(&self, life: Life) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        // A clock that was never set still gives a time that is not "none".
        let now = u64::try_from(now.tv_sec).unwrap_or(0) * NANOS + u64::try_from(now.tv_nsec).unwrap_or(0);
        let now = now.max(1);
        match self.life.load(Ordering::Relaxed).cmp(&life.to_bits()) {
            // The file is gone.
            Greater => return,
            Equal => {}
            // Who sees this before the time is beside an overwrite, and takes an earlier time for that of it.
            Less => self.life.store(life.to_bits(), Ordering::Release),
        }
        if self.nanos.load(Ordering::Relaxed) != now {
            self.nanos.store(now, Ordering::Relaxed);
        }
    }

    /// The time, if the inode does not know it yet.
    pub fn get(&self, life: Life) -> Option<Timestamp> {
        if self.is_of(life) { Self::time(self.nanos.load(Ordering::Relaxed)) } else { None }
    }

    /// As [`get`](Self::get), for whoever tells the inode, or the inode something later, and has it locked.
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
    life: Life,
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
        if self.of.is_of(self.life) {
            // What was noted meanwhile is later.
            self.of.nanos.fetch_max(self.nanos, Ordering::Relaxed);
        }
    }
}
