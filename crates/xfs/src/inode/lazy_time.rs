//! When a file's content was last overwritten without a transaction, until the inode is updated.
//!
//! Invariants:
//! - noting a time costs two loads. It stores only if the system's coarse clock has ticked since the last note, or if
//!   that one is being told or told, so threads that overwrite one file do not pass a cache line to and fro;
//! - a noted time never goes back, whoever notes it: who was interrupted has an earlier one;
//! - a time stays noted until a version of the inode with it is committed. Every change of the inode puts it there
//!   first. So whoever reads this first, and the committed version afterwards, misses no time;
//! - each version says up to which note it knows. What it knows counts no more: another time may have been set by hand
//!   behind it. From before a version is published, an overwrite makes a note that this version does not know;
//! - a time belongs to one life of the inode's number. A later file never gets it.

use super::{Inode, Life};
use std::cmp::Ordering::{Equal, Greater, Less};
use std::sync::atomic::{AtomicU64, Ordering};
use xfs_format::timestamp::Timestamp;

const NANOS: u64 = 1_000_000_000;

/// The bits of a note that are its time. A coarse clock, which has some milliseconds, loses four microseconds.
const TIME: u64 = !0xfff;
/// The bits that say what has become of it. Those between tell notes of one time apart.
const STATE: u64 = 3;
/// A version with this time is about to be published.
const BEING_TOLD: u64 = 1;
/// It is published.
const TOLD: u64 = 2;

/// Times of modification and change of a file that was overwritten at `time`. `known` are those in the inode.
///
/// A modification time ahead of the change time was set by hand before the overwrite, so it is replaced. That holds only
/// for a time that was noted behind the last change of the inode: an earlier one is in it already.
pub(crate) fn after_overwrite(known: (Timestamp, Timestamp), time: Timestamp) -> (Timestamp, Timestamp) {
    let (mtime, ctime) = known;
    (if mtime > ctime { time.max(ctime) } else { mtime.max(time) }, ctime.max(time))
}

/// A time that the inode does not know yet.
#[derive(Debug, Default)]
pub struct LazyTime {
    /// The last note: nanoseconds since 1970, a number, and what has become of it. 0 for none.
    note: AtomicU64,
    /// The file that it belongs to.
    life: AtomicU64,
}

impl LazyTime {
    /// Notes that the content of this life's file is being overwritten now.
    #[inline]
    pub fn note(&self, life: Life) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        let now = u64::try_from(now.tv_sec).unwrap_or(0) * NANOS + u64::try_from(now.tv_nsec).unwrap_or(0);
        // A clock that was never set must still give a time other than 0.
        let now = (now & TIME).max(!TIME + 1);
        let known = self.note.load(Ordering::Acquire);
        let next = match self.life.load(Ordering::Relaxed).cmp(&life.to_bits()) {
            // The file is gone.
            Greater => return,
            Equal if known & STATE == 0 && known & TIME >= now => return,
            // What is told counts no more, whatever the clock says.
            Equal if known & STATE != 0 => now.max((known | STATE) + 1),
            Equal => now,
            Less => {
                // What was known is of an earlier file, unless somebody has noted a time of this one meanwhile.
                let _ = self.note.compare_exchange(known, 0, Ordering::Relaxed, Ordering::Relaxed);
                // Whoever sees this before the new time runs beside an overwrite.
                self.life.store(life.to_bits(), Ordering::Release);
                now
            }
        };
        // Release: whoever sees the time sees whose it is.
        self.note.fetch_max(next, Ordering::Release);
    }

    /// Whether there is a time, of whatever life, that is in no version.
    #[inline]
    pub fn is_noted(&self) -> bool {
        // Acquire: what is no longer noted is in a version.
        let note = self.note.load(Ordering::Acquire);
        note != 0 && note & STATE != TOLD
    }

    /// The time, if this version of the inode does not know it yet.
    pub fn get(&self, inode: &Inode) -> Option<Timestamp> {
        self.read().since(inode)
    }

    /// What is noted, of whatever life. Read it before the version that is to be looked at with it.
    #[inline]
    pub(crate) fn read(&self) -> NotedTime {
        // First the life: who begins a new one has let the earlier time go before.
        let life = self.life.load(Ordering::Acquire);
        NotedTime { note: self.note.load(Ordering::Acquire), life }
    }

    /// A version that knows this note is about to be published. Overwrites from now on make another one.
    pub(crate) fn tell(&self, noted: NotedTime) {
        // AcqRel: whoever made a later note has overwritten before.
        let _ = self.note.compare_exchange(
            noted.note,
            noted.note | BEING_TOLD,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }

    /// The version is published. To be called before the inode is unlocked: whoever locks it next would log the time
    /// again.
    pub(crate) fn told(&self, noted: NotedTime) {
        let (before, after) = (noted.note | BEING_TOLD, noted.note | TOLD);
        // Another time that was noted meanwhile stays. Release: whoever misses the time sees the version.
        let _ = self.note.compare_exchange(before, after, Ordering::Release, Ordering::Relaxed);
    }
}

/// What was noted at some moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotedTime {
    note: u64,
    life: u64,
}

impl NotedTime {
    /// The time, if it is of the file of this version, which does not know it.
    #[inline]
    pub(crate) fn since(self, inode: &Inode) -> Option<Timestamp> {
        let is_known = self.life != inode.life().to_bits() || self.note <= inode.known_note();
        let nanos = self.note & TIME;
        let (seconds, nanoseconds) = ((nanos / NANOS).cast_signed(), (nanos % NANOS) as u32);
        (!is_known).then_some(Timestamp { seconds, nanoseconds })
    }

    /// What a version says that knows this.
    pub(super) fn as_known(self) -> u64 {
        self.note | STATE
    }
}
