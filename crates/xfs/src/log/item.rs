//! Log items: whatever has changes in the journal and is written back later.
//!
//! The journal knows items through [`LogItem`] alone. Each item keeps an [`ItemState`] for the journal's own
//! words: the vector that waits in the CIL, a spare one, and its place in the AIL.
//!
//! Who may do what:
//! - only one transaction at a time changes an item (the item's own lock sees to that), so that two commits never
//!   bring vectors of one item at once;
//! - a checkpoint that is being closed and the next one may both hold a vector of an item: `Slots` has room for
//!   these two, and a third checkpoint is not begun before the first has been collected;
//! - place and LSN in the AIL change under the AIL's lock only.

use super::Journal;
use super::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, lock_by};
use super::vector::LogVector;
use blockdev::{AlignedBuf, DeviceError};
use lockstat::{Counted, LockClass, Users};
use std::fmt;
use std::sync::Arc;
use xfs_format::types::{DiskAddr, Lsn};

static VECTORS: LockClass = LockClass::new("log item");

/// How a checkpoint ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is in the log for good.
    Committed,
    /// It never will be: the journal was shut down.
    Aborted,
}

/// What becomes of an item whose checkpoint is in the log.
#[derive(Debug)]
pub enum Landing {
    /// It is to be written back: the AIL holds it, at this checkpoint's LSN.
    Ail,
    /// Nothing is left to be written back (a creation of inodes, a buffer that was freed). It leaves the AIL if
    /// it is there.
    Drop,
    /// As `Drop`, and the other item leaves the AIL too: an intent that is done.
    Retire(Arc<dyn LogItem>),
}

/// What to do once a [`WriteJob`] was carried out, or failed.
pub type WriteDone = Box<dyn FnOnce(&Journal, Result<(), DeviceError>) + Send>;

/// A write that puts one or more items into their places.
pub struct WriteJob {
    /// Where the bytes go.
    pub daddr: DiskAddr,
    /// What to write: a copy, with checksum and LSN.
    pub bytes: AlignedBuf,
    /// Called once the device is done. After a success it takes the items that were written out of the AIL
    /// ([`Journal::ail_remove`]) with the LSN that they had *before* the copy was made. After a failure the journal
    /// shuts itself down.
    pub done: WriteDone,
}

impl fmt::Debug for WriteJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { daddr, bytes, done: _ } = self;
        f.debug_struct("WriteJob").field("daddr", daddr).field("len", &bytes.len()).finish_non_exhaustive()
    }
}

/// What an item answers when it is asked to be written back.
#[derive(Debug)]
pub enum Push {
    /// This write does it.
    Write(WriteJob),
    /// These do it together.
    WriteAll(Vec<WriteJob>),
    /// Not before a checkpoint that has changes of it is in the log.
    Pinned,
    /// Somebody is at it; ask again.
    Busy,
    /// It is being written, by itself or with others.
    Flushing,
    /// It is never written: an intent. Another item takes it out of the AIL; until then it can be logged again.
    Owed,
    /// It need not be in the AIL at all.
    Gone,
}

/// Something whose changes go through the journal.
///
/// An item must not hold an `Arc` of its journal: the journal holds items.
pub trait LogItem: Send + Sync + fmt::Debug + 'static {
    /// The journal's own words about this item.
    fn state(&self) -> &ItemState;
    /// One more checkpoint holds changes that are not in the log: until [`unpin`](Self::unpin), what was committed
    /// must not be written back. Called by a commit, once for each checkpoint that the item is in, before the
    /// transaction's changes are published. A lock of the journal is held: be short, and call nothing of it.
    fn pin(&self);
    /// A checkpoint that held changes of this item is in the log for good. What is in one that never will be stays pinned:
    /// whoever writes items may be in the middle of many when the journal is shut down. No lock is held.
    fn unpin(&self);
    /// The checkpoint that begins at `lsn` is in the log: where does the item go? Called before `unpin`, with no
    /// lock held.
    fn landed(&self, lsn: Lsn) -> Landing;
    /// The tail of the log waits for this item: how is it written? No lock is held.
    ///
    /// Whoever makes the copy takes [`ItemState::lsn`] *first*, and stamps the copy with it: a copy that has more
    /// than its LSN says is replayed once more, which does no harm; one that has less would lose changes.
    fn push(self: Arc<Self>) -> Push;

    /// Whether it is an intent: nothing is ever written back of it, so that it would hold the log's tail for as long as
    /// its transaction is at work. That may wait for log space; hence the journal logs it again at the log's head.
    fn is_intent(&self) -> bool {
        false
    }

    /// Begins to log an intent again: ends it in the log, and says the same anew. `None`: its end is being logged. Until
    /// [`relogged`](Self::relogged), nobody may log its end. No lock is held.
    fn relog(&self) -> Option<LogVector> {
        None
    }

    /// The vector is in a checkpoint, or never will be. A lock of the journal is held, as in [`pin`](Self::pin).
    fn relogged(&self, logged: bool) {
        let _ = logged;
    }
}

/// The journal's words about one item.
#[derive(Debug, Default)]
pub struct ItemState {
    slots: Mutex<Slots>,
    users: Users,
    /// LSN at which the AIL holds it; 0: not in the AIL.
    lsn: AtomicU64,
    /// Its place among the items of that LSN.
    place: AtomicU32,
}

/// The vectors of one item.
#[derive(Debug, Default)]
struct Slots {
    /// The youngest vector, and the checkpoint that it is for.
    current: Option<(u64, LogVector)>,
    /// The one before it, as long as its checkpoint was not collected.
    previous: Option<(u64, LogVector)>,
    /// Memory that goes to the next thread that brings one.
    shadow: Option<LogVector>,
}

/// How a vector came into a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// The item was not in this checkpoint yet.
    New,
    /// It replaces one of so many bytes.
    Replaced { bytes: u32 },
}

impl ItemState {
    /// The state of an item that the journal has not seen.
    pub fn new() -> Self {
        Self::default()
    }

    /// The LSN at which the AIL holds the item: that of the youngest checkpoint with changes of it that is in the
    /// log. [`Lsn`] 0 if it is not in the AIL.
    pub fn lsn(&self) -> Lsn {
        Lsn(self.lsn.load(Ordering::Acquire))
    }

    /// Whether the AIL holds the item.
    pub fn in_ail(&self) -> bool {
        self.lsn().0 != 0
    }

    /// Whether a vector of the item waits for a checkpoint that was not written yet. Only its own transaction can
    /// rely on the answer, and only as long as that holds the item.
    pub fn in_checkpoint(&self) -> bool {
        let slots = self.slots();
        slots.current.is_some() || slots.previous.is_some()
    }

    /// Hands memory back for the next vector.
    pub fn keep_shadow(&self, vector: LogVector) {
        self.slots().keep(vector);
    }

    /// Puts the vector of a commit into checkpoint `seq`. The memory of one that it replaces may be kept for the thread's
    /// next vector, or is freed.
    pub(crate) fn enter(&self, seq: u64, vector: LogVector, keep: bool) -> Entered {
        let mut slots = self.slots();
        let (entered, spare) = match slots.current.replace((seq, vector)) {
            None => (Entered::New, slots.shadow.take()),
            Some((was, old)) if was == seq => {
                (Entered::Replaced { bytes: old.log_bytes() }, keep.then_some(old))
            }
            Some(older) => {
                debug_assert!(slots.previous.is_none(), "three checkpoints hold vectors of one item");
                slots.previous = Some(older);
                (Entered::New, slots.shadow.take())
            }
        };
        drop(slots);
        if let Some(spare) = spare {
            spare.keep();
        }
        entered
    }

    /// Takes the vector out that checkpoint `seq` has.
    pub(crate) fn collect(&self, seq: u64) -> Option<LogVector> {
        let mut slots = self.slots();
        let slots = &mut **slots;
        for slot in [&mut slots.previous, &mut slots.current] {
            if let Some((_, vector)) = slot.take_if(|(of, _)| *of == seq) {
                return Some(vector);
            }
        }
        None
    }

    fn slots(&self) -> Counted<MutexGuard<'_, Slots>> {
        lock_by(&self.slots, &VECTORS, &self.users)
    }

    /// Its place in the AIL. The AIL's lock is held.
    pub(crate) fn place(&self) -> (Lsn, u32) {
        (self.lsn(), self.place.load(Ordering::Relaxed))
    }

    /// Sets its place in the AIL. The AIL's lock is held.
    pub(crate) fn set_place(&self, lsn: Lsn, place: u32) {
        self.place.store(place, Ordering::Relaxed);
        self.lsn.store(lsn.0, Ordering::Release);
    }
}

impl Slots {
    /// Keeps the larger one of two pieces of memory.
    fn keep(&mut self, vector: LogVector) {
        if self.shadow.as_ref().is_none_or(|kept| kept.capacity() < vector.capacity()) {
            self.shadow = Some(vector);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::vector::VecSize;
    use super::*;

    fn vector(bytes: usize) -> LogVector {
        let mut vector = LogVector::begin(None, VecSize::default().region(bytes));
        vector.region(&vec![0; bytes]);
        vector
    }

    #[test]
    fn two_checkpoints_each_have_their_vector() {
        let state = ItemState::new();
        assert_eq!(state.enter(1, vector(8), true), Entered::New);
        assert_eq!(state.enter(1, vector(16), true), Entered::Replaced { bytes: 20 });
        assert_eq!(state.enter(2, vector(24), true), Entered::New);
        assert_eq!(state.collect(1).map(|v| v.log_bytes()), Some(28));
        assert!(state.collect(1).is_none());
        assert_eq!(state.enter(2, vector(4), true), Entered::Replaced { bytes: 36 });
        assert_eq!(state.collect(2).map(|v| v.log_bytes()), Some(16));
        assert!(!state.in_checkpoint());
    }

    #[test]
    fn the_larger_shadow_stays() {
        let state = ItemState::new();
        state.keep_shadow(vector(800));
        state.keep_shadow(vector(8));
        let shadow = || state.slots().shadow.take();
        assert!(shadow().is_some_and(|shadow| shadow.capacity() >= 800));
        assert!(shadow().is_none());
    }
}
