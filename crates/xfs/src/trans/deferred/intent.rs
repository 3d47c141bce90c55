//! Intents: log items that announce work, each ended by a done item.
//!
//! The kinds of work differ in content ([`IntentWork`]); the life of an intent does not. It is logged with the commit
//! that defers the work, is relogged when it would hold the log's tail, and leaves the AIL when its done item is
//! committed.

use super::work::IntentWork;
use crate::log::{AfterCommit, ItemState, LogItem, LogVector, Push};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use xfs_format::types::Lsn;

/// A promise in the log to do something: one of ours, or one that recovery found unfinished.
///
/// Invariant: the log has exactly one unfinished intent with the current number. Before its done item is logged,
/// [`end`](Self::end) is called, and from then on it gets no new number.
#[derive(Debug)]
pub(crate) struct Intent {
    work: IntentWork,
    words: Mutex<Words>,
    /// Signalled when a relog has ended.
    settled: Condvar,
    state: ItemState,
}

#[derive(Debug)]
struct Words {
    id: u64,
    stage: RelogStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RelogStage {
    Owed,
    /// It is being relogged with this number.
    Moving(u64),
    /// Its done item is being logged, or is in the log.
    Ending,
}

#[derive(Debug)]
struct Done {
    intent: Arc<dyn LogItem>,
    state: ItemState,
}

/// Numbers for intents, unique among the intents in the log. The kernel uses addresses.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

fn next_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// Makes all further intents have numbers above `highest`.
pub(crate) fn ids_behind(highest: u64) {
    NEXT_ID.fetch_max(highest + 1, Ordering::Relaxed);
}

impl Intent {
    pub(super) fn new(promise: IntentWork) -> Arc<Self> {
        Self::with_id(next_id(), promise)
    }

    /// An intent that recovery found.
    pub(crate) fn found(id: u64, promise: IntentWork) -> Arc<Self> {
        Self::with_id(id, promise)
    }

    fn with_id(id: u64, promise: IntentWork) -> Arc<Self> {
        let words = Mutex::new(Words { id, stage: RelogStage::Owed });
        Arc::new(Self { work: promise, words, settled: Condvar::new(), state: ItemState::default() })
    }

    pub(crate) fn work(&self) -> &IntentWork {
        &self.work
    }

    fn format(&self, done: bool, id: u64) -> LogVector {
        let mut vector = LogVector::begin(None, self.work.log_size(done));
        self.work.encode(done, id, &mut vector);
        vector
    }

    /// The intent item.
    pub(super) fn begin(self: &Arc<Self>) -> (Arc<dyn LogItem>, LogVector) {
        let id = self.words.lock().id;
        (Arc::clone(self) as Arc<dyn LogItem>, self.format(false, id))
    }

    /// The done item. The transaction already has all log space that it needs to commit it.
    pub(super) fn end(self: &Arc<Self>) -> (Arc<dyn LogItem>, LogVector) {
        let mut words = self.words.lock();
        while let RelogStage::Moving(_) = words.stage {
            self.settled.wait(&mut words);
        }
        words.stage = RelogStage::Ending;
        let intent = Arc::clone(self) as Arc<dyn LogItem>;
        (Arc::new(Done { intent, state: ItemState::default() }), self.format(true, words.id))
    }
}

impl LogItem for Intent {
    fn state(&self) -> &ItemState {
        &self.state
    }
    fn pin(&self) {}
    fn unpin(&self) {}
    fn committed(&self, _lsn: Lsn) -> AfterCommit {
        AfterCommit::Ail
    }
    /// An intent leaves the AIL only when its done item is committed.
    fn push(self: Arc<Self>) -> Push {
        if self.words.lock().stage == RelogStage::Ending { Push::Pinned } else { Push::Owed }
    }
    fn is_intent(&self) -> bool {
        true
    }
    fn relog(&self) -> Option<LogVector> {
        let mut words = self.words.lock();
        if words.stage != RelogStage::Owed {
            return None;
        }
        let id = next_id();
        words.stage = RelogStage::Moving(id);
        let mut vector = LogVector::begin(None, self.work.log_size(true) + self.work.log_size(false));
        self.work.encode(true, words.id, &mut vector);
        self.work.encode(false, id, &mut vector);
        Some(vector)
    }
    fn relogged(&self, logged: bool) {
        let mut words = self.words.lock();
        if let RelogStage::Moving(id) = words.stage {
            let id = if logged { id } else { words.id };
            *words = Words { id, stage: RelogStage::Owed };
        }
        self.settled.notify_all();
    }
}

impl LogItem for Done {
    fn state(&self) -> &ItemState {
        &self.state
    }
    fn pin(&self) {}
    fn unpin(&self) {}
    fn committed(&self, _lsn: Lsn) -> AfterCommit {
        AfterCommit::Retire(Arc::clone(&self.intent))
    }
    fn push(self: Arc<Self>) -> Push {
        Push::Gone
    }
}

#[cfg(all(test, not(shuttle)))]
impl Intent {
    /// Disables relogging, so that it stays where it is in the log, as in kernels that do not relog.
    pub(super) fn keep_in_place(&self) {
        self.words.lock().stage = RelogStage::Ending;
    }

    /// Its current number, which changes when it is relogged.
    pub(super) fn id(&self) -> u64 {
        self.words.lock().id
    }
}
