//! Intents: promises in the log to do some work, each ended there by a done item.
//!
//! The kinds of work differ in what they say ([`Promise`]); how a promise lives does not. It is in the log with the
//! commit that owes the work, is logged again while it would hold the log's tail, and leaves the AIL when its done item
//! lands.

use super::work::Promise;
use crate::log::{ItemState, Landing, LogItem, LogVector, Push};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use xfs_format::types::Lsn;

/// A promise in the log to do something: one of ours, or one that recovery found there and that nobody has carried out.
///
/// Invariant: the log has one intent without its end under the promise's number of now. Whoever logs the end has said so
/// before ([`end`](Self::end)), and no new number is given to it from then on.
#[derive(Debug)]
pub(crate) struct Intent {
    promise: Promise,
    words: Mutex<Words>,
    /// It is not being logged again any more.
    settled: Condvar,
    state: ItemState,
}

#[derive(Debug)]
struct Words {
    id: u64,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Owed,
    /// It is being logged again, with this number.
    Moving(u64),
    /// Its end is being logged, or is in the log.
    Ending,
}

#[derive(Debug)]
struct Done {
    intent: Arc<dyn LogItem>,
    state: ItemState,
}

/// Numbers for intents: unlike those of any other intent in the log. The kernel takes addresses.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

fn next_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// Has all further intents numbered behind `highest`.
pub(crate) fn ids_behind(highest: u64) {
    NEXT_ID.fetch_max(highest + 1, Ordering::Relaxed);
}

impl Intent {
    pub(super) fn new(promise: Promise) -> Arc<Self> {
        Self::with_id(next_id(), promise)
    }

    /// An intent that recovery found.
    pub(crate) fn found(id: u64, promise: Promise) -> Arc<Self> {
        Self::with_id(id, promise)
    }

    fn with_id(id: u64, promise: Promise) -> Arc<Self> {
        let words = Mutex::new(Words { id, stage: Stage::Owed });
        Arc::new(Self { promise, words, settled: Condvar::new(), state: ItemState::default() })
    }

    pub(crate) fn promise(&self) -> &Promise {
        &self.promise
    }

    fn format(&self, done: bool, id: u64) -> LogVector {
        let mut vector = LogVector::begin(None, self.promise.log_size(done));
        self.promise.encode(done, id, &mut vector);
        vector
    }

    /// The item that begins it.
    pub(super) fn begin(self: &Arc<Self>) -> (Arc<dyn LogItem>, LogVector) {
        let id = self.words.lock().id;
        (Arc::clone(self) as Arc<dyn LogItem>, self.format(false, id))
    }

    /// The item that ends it. The transaction has all log space that it needs to commit this.
    pub(super) fn end(self: &Arc<Self>) -> (Arc<dyn LogItem>, LogVector) {
        let mut words = self.words.lock();
        while let Stage::Moving(_) = words.stage {
            self.settled.wait(&mut words);
        }
        words.stage = Stage::Ending;
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
    fn landed(&self, _lsn: Lsn) -> Landing {
        Landing::Ail
    }
    /// It leaves the AIL when its done item lands, and not before.
    fn push(self: Arc<Self>) -> Push {
        if self.words.lock().stage == Stage::Ending { Push::Pinned } else { Push::Owed }
    }
    fn is_intent(&self) -> bool {
        true
    }
    fn relog(&self) -> Option<LogVector> {
        let mut words = self.words.lock();
        if words.stage != Stage::Owed {
            return None;
        }
        let id = next_id();
        words.stage = Stage::Moving(id);
        let mut vector = LogVector::begin(None, self.promise.log_size(true) + self.promise.log_size(false));
        self.promise.encode(true, words.id, &mut vector);
        self.promise.encode(false, id, &mut vector);
        Some(vector)
    }
    fn relogged(&self, logged: bool) {
        let mut words = self.words.lock();
        if let Stage::Moving(id) = words.stage {
            let id = if logged { id } else { words.id };
            *words = Words { id, stage: Stage::Owed };
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
    fn landed(&self, _lsn: Lsn) -> Landing {
        Landing::Retire(Arc::clone(&self.intent))
    }
    fn push(self: Arc<Self>) -> Push {
        Push::Gone
    }
}

#[cfg(all(test, not(shuttle)))]
impl Intent {
    /// Has it stay where it is in the log, as those of other kernels do.
    pub(super) fn keep_where_it_is(&self) {
        self.words.lock().stage = Stage::Ending;
    }

    /// Its number, which is another one when it was logged again.
    pub(super) fn id(&self) -> u64 {
        self.words.lock().id
    }
}
