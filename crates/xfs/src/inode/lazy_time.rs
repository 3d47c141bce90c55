//! When a file's content was last overwritten without a transaction, until the inode is updated.
//!
//! Invariants:
//! - noting a time costs two loads. It stores only if the system's coarse clock has ticked since the last note, so
//!   threads that overwrite one file do not pass a cache line to and fro;
//! - a noted time never goes back, whoever notes it: who was interrupted has an earlier one;
//! - a time stays noted until a version of the inode with it is committed. Every change of the inode puts it there
//!   first. So whoever reads this first, and the committed version afterwards, misses no time;
//! - a time belongs to one life of the inode's number. A later file never gets it.

use super::Life;
use std::cmp::Ordering::{Equal, Greater, Less};
use std::sync::atomic::{AtomicU64, Ordering};
use xfs_format::timestamp::Timestamp;

const NANOS: u64 = 1_000_000_000;

/// Times of modification and change of a file that was overwritten at `time`. `known` are those in the inode.
///
/// A modification time ahead of the change time was set by hand before the overwrite, so it is replaced. That holds only
/// for a time that was noted behind the last change of the inode: an earlier one is in it already.
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
        let known = self.nanos.load(Ordering::Acquire);
        match self.life.load(Ordering::Relaxed).cmp(&life.to_bits()) {
            // The file is gone.
            Greater => return,
            Equal if known >= now => return,
            Equal => {}
            Less => {
                // What was known is of an earlier file, unless somebody has noted a time of this one meanwhile.
                let _ = self.nanos.compare_exchange(known, 0, Ordering::Relaxed, Ordering::Relaxed);
                // Whoever sees this before the new time runs beside an overwrite.
                self.life.store(life.to_bits(), Ordering::Release);
            }
        }
        // Release: whoever sees the time sees whose it is.
        self.nanos.fetch_max(now, Ordering::Release);
    }

    /// Whether there is a time, of whatever life.
    #[inline]
    pub fn is_noted(&self) -> bool {
        // Acquire: what is no longer noted is in a version.
        self.nanos.load(Ordering::Acquire) != 0
    }

    /// The time, if the inode does not know it yet.
    pub fn get(&self, life: Life) -> Option<Timestamp> {
        self.read().of(life)
    }

    /// What is noted, of whatever life. Read it before the version that is to be looked at with it.
    #[inline]
    pub(crate) fn read(&self) -> NotedTime {
        // First the life: who begins a new one has let the earlier time go before.
        let life = self.life.load(Ordering::Acquire);
        NotedTime { nanos: self.nanos.load(Ordering::Acquire), life }
    }

    /// What was noted is in the committed inode, or a later time, or one that was set by hand behind it. To be called
    /// before the inode is unlocked: whoever locks it next would log the time again.
    pub(crate) fn told(&self, noted: NotedTime) {
        // Another time that was noted meanwhile stays. Release: whoever misses the time sees the version.
        let _ = self.nanos.compare_exchange(noted.nanos, 0, Ordering::Release, Ordering::Relaxed);
    }
}

fn time(nanos: u64) -> Option<Timestamp> {
    let (seconds, nanoseconds) = ((nanos / NANOS).cast_signed(), (nanos % NANOS) as u32);
    (nanos != 0).then_some(Timestamp { seconds, nanoseconds })
}

/// What was noted at some moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotedTime {
    nanos: u64,
    life: u64,
}

impl NotedTime {
    /// The time, if it is of this life.
    #[inline]
    pub(crate) fn of(self, life: Life) -> Option<Timestamp> {
        if self.life == life.to_bits() { time(self.nanos) } else { None }
    }
}
