//! Log items: whatever has changes in the journal and is written back later.
//!
//! The journal knows items only through [`LogItem`]. Each item has an [`ItemState`] for the journal's data: its
//! position in the AIL, and vectors that wait in the CIL. Buffers and inodes have no vectors there. They keep what was
//! committed (`Pending`) and format it when their checkpoint is closed. So many commits may change an item, and only
//! the last version is formatted.
//!
//! Rules:
//! - only one transaction at a time changes an item (the item's own lock ensures this), so two commits never bring
//!   vectors of one item at once;
//! - a checkpoint that is being closed and the next one may both have changes of an item. `Pending` has room for these
//!   two, and a third checkpoint does not begin before the first has been collected;
//! - position and LSN in the AIL only change under the AIL's lock.

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
pub enum CheckpointOutcome {
    /// It is permanently in the log.
    Committed,
    /// It never will be: the journal was shut down.
    Aborted,
}

/// What happens to an item once its checkpoint is committed.
#[derive(Debug)]
pub enum AfterCommit {
    /// It is to be written back. The AIL holds it at this checkpoint's LSN.
    Ail,
    /// Nothing is left to be written back (an inode create item, a freed buffer). It leaves the AIL if it is there.
    Drop,
    /// Like `Drop`, and the other item, a finished intent, leaves the AIL too.
    Retire(Arc<dyn LogItem>),
}

/// Called when a [`WriteJob`] has succeeded or failed.
pub type WriteDone = Box<dyn FnOnce(&Journal, Result<(), DeviceError>) + Send>;

/// A write that writes back one or more items.
pub struct WriteJob {
    /// Where the bytes are written.
    pub daddr: DiskAddr,
    /// The bytes: a copy with checksum and LSN.
    pub bytes: AlignedBuf,
    /// Called when the device is done. After a success it removes the items from the AIL ([`Journal::ail_remove`]),
    /// with the LSN that they had *before* the copy was made. After a failure the journal shuts itself down.
    pub done: WriteDone,
}

impl fmt::Debug for WriteJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { daddr, bytes, done: _ } = self;
        f.debug_struct("WriteJob").field("daddr", daddr).field("len", &bytes.len()).finish_non_exhaustive()
    }
}

/// An item's answer to a push.
#[derive(Debug)]
pub enum Push {
    /// This write.
    Write(WriteJob),
    /// These writes together.
    WriteAll(Vec<WriteJob>),
    /// Not before a checkpoint with changes of it is in the log.
    Pinned,
    /// It is in use: ask again.
    Busy,
    /// It is already being written, alone or with others.
    Flushing,
    /// It is never written: an intent. Its done item removes it from the AIL; until then it can be relogged.
    Owed,
    /// It need not be in the AIL.
    Gone,
}

/// Something whose changes go through the journal.
///
/// An item must not hold an `Arc` of its journal, because the journal holds items.
pub trait LogItem: Send + Sync + fmt::Debug + 'static {
    /// The journal's data about this item.
    fn state(&self) -> &ItemState;
    /// One more checkpoint has changes that are not in the log. Until the matching [`unpin`](Self::unpin), the item
    /// must not be written back. Called by a commit, once for each checkpoint that the item is in, before the
    /// transaction's changes are published. A lock of the journal is held, so be short and do not call the journal.
    fn pin(&self);
    /// A checkpoint with changes of this item is permanently in the log. If a checkpoint never gets there, its items
    /// stay pinned, because a write-back may be in progress when the journal is shut down. No lock is held.
    fn unpin(&self);
    /// The checkpoint that begins at `lsn` is in the log: what happens to the item? Called before `unpin`, with no lock
    /// held.
    fn committed(&self, lsn: Lsn) -> AfterCommit;
    /// The log's tail waits for this item: how is it written back? No lock is held.
    ///
    /// Read [`ItemState::lsn`] *before* making the copy, and stamp the copy with it. A copy that is newer than its LSN
    /// is replayed once more, which does no harm. A copy that is older would lose changes.
    fn push(self: Arc<Self>) -> Push;

    /// Takes what checkpoint `seq` has of the item, and appends its regions to `vector`. Returns `false` if it has
    /// nothing. A commit into the next checkpoint may run at the same time.
    fn collect(&self, seq: u64, vector: &mut LogVector) -> bool {
        self.state().collect(seq, vector)
    }

    /// Whether it is an intent. An intent is never written back, so it would hold the log's tail until its transaction
    /// is done. As that may wait for log space, the journal relogs the intent at the head.
    fn is_intent(&self) -> bool {
        false
    }

    /// Begins to relog an intent: logs its done item and the intent anew. `None` if its own done item is being logged.
    /// Until [`relogged`](Self::relogged), nobody may log its done item. No lock is held.
    fn relog(&self) -> Option<LogVector> {
        None
    }

    /// The vector is in a checkpoint (`logged`), or never will be. A lock of the journal is held, as in
    /// [`pin`](Self::pin).
    fn relogged(&self, logged: bool) {
        let _ = logged;
    }
}

/// The journal's data about one item.
#[derive(Debug, Default)]
pub struct ItemState {
    /// For an item that comes with vectors: those that wait in the CIL. Most items have none.
    vectors: Mutex<Option<Box<Pending<()>>>>,
    users: Users,
    /// The LSN at which the AIL holds it; 0 if it is not in the AIL.
    lsn: AtomicU64,
    /// Its index among the items of that LSN.
    place: AtomicU32,
}

/// How an item entered a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entered {
    /// Log bytes that it takes there, including operation headers.
    pub(crate) bytes: u32,
    /// Log bytes that it took before. `None` if it is new in this checkpoint.
    pub(crate) before: Option<u32>,
}

/// What checkpoints have of an item. If items are formatted when their checkpoint is closed, the youngest version is
/// the item's own and is not stored here. `V` is an older version.
#[derive(Debug)]
pub(crate) struct Pending<V> {
    /// The checkpoint that has the youngest version, and its log bytes there.
    current: Option<(u64, u32)>,
    /// The youngest version as formatted by the commit: for items that come with vectors, and in the older design.
    vector: Option<LogVector>,
    /// The previous version, until its checkpoint is collected.
    previous: Option<(u64, Taken<V>)>,
}

/// What was taken from a checkpoint.
#[derive(Debug)]
pub(crate) enum Taken<V> {
    /// A version that still has to be formatted.
    Version(V),
    /// A formatted one.
    Vector(LogVector),
}

impl<V> Taken<V> {
    /// Appends it to a vector. A version is formatted into it.
    pub(crate) fn add_to(self, vector: &mut LogVector, format: impl FnOnce(V, &mut LogVector)) {
        match self {
            Self::Version(version) => format(version, vector),
            Self::Vector(formatted) => vector.append(&formatted),
        }
    }
}

impl<V> Default for Pending<V> {
    fn default() -> Self {
        Self { current: None, vector: None, previous: None }
    }
}

impl<V> Pending<V> {
    /// Begins a change in checkpoint `seq`. `version` returns the version before the change. The previous checkpoint
    /// keeps that if it is not collected yet.
    pub(crate) fn before_change(&mut self, seq: u64, version: impl FnOnce() -> V) {
        if let Some((older, _)) = self.current.take_if(|(of, _)| *of != seq) {
            debug_assert!(self.previous.is_none(), "three checkpoints hold versions of one item");
            let taken = self.vector.take().map_or_else(|| Taken::Version(version()), Taken::Vector);
            self.previous = Some((older, taken));
        }
    }

    /// Log bytes of the youngest version in checkpoint `seq`, if it is there.
    pub(crate) fn bytes_in(&self, seq: u64) -> Option<u32> {
        self.current.filter(|(of, _)| *of == seq).map(|(_, bytes)| bytes)
    }

    /// Ends a change. The version takes `bytes` in checkpoint `seq`.
    pub(crate) fn changed(&mut self, seq: u64, bytes: u32) -> Entered {
        let before = self.current.replace((seq, bytes)).map(|(_, bytes)| bytes);
        Entered { bytes, before }
    }

    /// Stores the vector of the changed version. The memory of the vector that it replaces is kept for the thread's
    /// next one.
    pub(crate) fn keep_vector(&mut self, vector: LogVector) {
        if let Some(old) = self.vector.replace(vector) {
            old.keep();
        }
    }

    /// Takes what checkpoint `seq` has, `None` if nothing. `version` returns the youngest version.
    pub(crate) fn collect(&mut self, seq: u64, version: impl FnOnce() -> V) -> Option<Taken<V>> {
        if let Some((_, taken)) = self.previous.take_if(|(of, _)| *of == seq) {
            return Some(taken);
        }
        self.current.take_if(|(of, _)| *of == seq)?;
        Some(self.vector.take().map_or_else(|| Taken::Version(version()), Taken::Vector))
    }

    /// Whether no uncollected checkpoint has the item.
    pub(crate) fn is_empty(&self) -> bool {
        self.current.is_none() && self.previous.is_none()
    }
}

impl ItemState {
    /// The state of an item that the journal has not seen.
    pub fn new() -> Self {
        Self::default()
    }

    /// The LSN at which the AIL holds the item: that of the youngest checkpoint in the log with changes of it. [`Lsn`]
    /// 0 if it is not in the AIL.
    pub fn lsn(&self) -> Lsn {
        Lsn(self.lsn.load(Ordering::Acquire))
    }

    /// Whether the AIL holds the item.
    pub fn in_ail(&self) -> bool {
        self.lsn().0 != 0
    }

    /// Whether no vector of the item waits for a checkpoint.
    #[cfg(test)]
    fn is_collected(&self) -> bool {
        self.vectors().as_ref().is_none_or(|pending| pending.is_empty())
    }

    /// Puts the vector of a commit into checkpoint `seq`.
    pub(crate) fn enter(&self, seq: u64, vector: LogVector) -> Entered {
        let bytes = vector.log_bytes();
        let mut vectors = self.vectors();
        let pending = vectors.get_or_insert_default();
        pending.before_change(seq, || ());
        pending.keep_vector(vector);
        pending.changed(seq, bytes)
    }

    fn collect(&self, seq: u64, vector: &mut LogVector) -> bool {
        let taken = self.vectors().as_deref_mut().and_then(|pending| pending.collect(seq, || ()));
        let Some(taken) = taken else { return false };
        taken.add_to(vector, |(), _| debug_assert!(false, "an item that comes with vectors has none"));
        true
    }

    fn vectors(&self) -> Counted<MutexGuard<'_, Option<Box<Pending<()>>>>> {
        lock_by(&self.vectors, &VECTORS, &self.users)
    }

    /// Its position in the AIL. The AIL's lock is held.
    pub(crate) fn place(&self) -> (Lsn, u32) {
        (self.lsn(), self.place.load(Ordering::Relaxed))
    }

    /// Sets its position in the AIL. The AIL's lock is held.
    pub(crate) fn set_place(&self, lsn: Lsn, place: u32) {
        self.place.store(place, Ordering::Relaxed);
        self.lsn.store(lsn.0, Ordering::Release);
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

    fn entered(bytes: u32, before: Option<u32>) -> Entered {
        Entered { bytes, before }
    }

    #[test]
    fn two_checkpoints_each_have_their_vector() {
        let state = ItemState::new();
        let collect = |seq| {
            let mut vector = LogVector::default();
            state.collect(seq, &mut vector).then(|| vector.log_bytes())
        };
        assert_eq!(state.enter(1, vector(8)), entered(20, None));
        assert_eq!(state.enter(1, vector(16)), entered(28, Some(20)));
        assert_eq!(state.enter(2, vector(24)), entered(36, None));
        assert_eq!(collect(1), Some(28));
        assert_eq!(collect(1), None);
        assert_eq!(state.enter(2, vector(4)), entered(16, Some(36)));
        assert_eq!(collect(2), Some(16));
        assert!(state.is_collected());
    }

    #[test]
    fn two_checkpoints_each_have_their_version() {
        let mut pending = Pending::default();
        let commit = |pending: &mut Pending<u32>, seq, now: u32, bytes| {
            pending.before_change(seq, || now);
            pending.changed(seq, bytes)
        };
        assert_eq!(commit(&mut pending, 1, 0, 8), entered(8, None));
        assert_eq!(commit(&mut pending, 1, 1, 6), entered(6, Some(8)));
        assert_eq!(commit(&mut pending, 2, 2, 9), entered(9, None));
        assert!(matches!(pending.collect(1, || 3), Some(Taken::Version(2))));
        assert!(pending.collect(1, || 3).is_none());
        assert!(matches!(pending.collect(2, || 3), Some(Taken::Version(3))));
        assert!(pending.is_empty());
    }

    #[test]
    fn a_vector_goes_with_its_version() {
        let mut pending = Pending::<u32>::default();
        pending.changed(1, 28);
        pending.keep_vector(vector(16));
        pending.before_change(2, || 0);
        pending.changed(2, 8);
        assert!(matches!(pending.collect(2, || 7), Some(Taken::Version(7))));
        assert!(matches!(pending.collect(1, || 7), Some(Taken::Vector(vector)) if vector.log_bytes() == 28));
    }
}
