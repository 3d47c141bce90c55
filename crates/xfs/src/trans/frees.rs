//! Blocks that a transaction frees: an intent first, the freeing in a transaction of its own.
//!
//! Freeing changes the trees of free space, which may lock group headers in any order and needs more log space than
//! one transaction has for an unknown number of extents. The intent (EFI) makes it certain that it will be done, by
//! recovery if need be; the done item (EFD) that it was.

use super::Trans;
use crate::alloc::Purpose;
use crate::error::{Error, Result};
use crate::log::{ItemState, Landing, LogItem, LogVector, Outcome, Push, VecSize};
use parking_lot::{Condvar, Mutex};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use xfs_format::log::{Extent, encode_free_intent, free_intent_bytes};
use xfs_format::types::{FsBlock, InodeNumber, Lsn};

/// A freeing that the transaction owes. The run lies within one group.
pub(super) struct DeferredFree {
    extent: Extent,
    /// The intent, once it is in the log.
    intent: Option<Arc<Intent>>,
}

/// A promise in the log to free extents: one of ours, or one that recovery found there and that nobody has carried out.
///
/// Invariant: the log has one intent without its end under the promise's number of now. Whoever logs the end has said so
/// before ([`end`](Self::end)), and no new number is given to it from then on.
#[derive(Debug)]
pub(crate) struct Intent {
    extents: SmallVec<[Extent; 1]>,
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

/// Bytes of the log for an intent, or its end.
fn log_size(extents: usize) -> VecSize {
    VecSize::default().region(free_intent_bytes(extents))
}

/// Bytes of the log that it takes to log an intent of so many extents again.
pub(super) fn relog_bytes(extents: usize) -> u64 {
    2 * u64::from(log_size(extents).log_bytes())
}

impl Intent {
    fn new(extent: Extent) -> Arc<Self> {
        Self::with_id(next_id(), smallvec![extent])
    }

    /// An intent that recovery found.
    pub(crate) fn found(id: u64, extents: Vec<Extent>) -> Arc<Self> {
        Self::with_id(id, extents.into())
    }

    fn with_id(id: u64, extents: SmallVec<[Extent; 1]>) -> Arc<Self> {
        let words = Mutex::new(Words { id, stage: Stage::Owed });
        Arc::new(Self { extents, words, settled: Condvar::new(), state: ItemState::default() })
    }

    pub(crate) fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Bytes of the log that [`Trans::take_over`] needs besides those for as many freeings.
    pub(crate) fn take_over_bytes(&self) -> u64 {
        log_size(self.extents.len()).log_bytes().into()
    }

    fn encode(&self, done: bool, id: u64, vector: &mut LogVector) {
        let bytes = free_intent_bytes(self.extents.len());
        vector.region_with(bytes, |to| encode_free_intent(done, id, &self.extents, to));
    }

    fn format(&self, done: bool, id: u64) -> LogVector {
        let mut vector = LogVector::begin(None, log_size(self.extents.len()));
        self.encode(done, id, &mut vector);
        vector
    }

    /// The item that ends it. The transaction has all log space that it needs to commit this.
    fn end(self: &Arc<Self>) -> (Arc<dyn LogItem>, LogVector) {
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
    fn unpin(&self, _outcome: Outcome) {}
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
        let size = log_size(self.extents.len()).region(free_intent_bytes(self.extents.len()));
        let mut vector = LogVector::begin(None, size);
        self.encode(true, words.id, &mut vector);
        self.encode(false, id, &mut vector);
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
    fn unpin(&self, _outcome: Outcome) {}
    fn landed(&self, _lsn: Lsn) -> Landing {
        Landing::Retire(Arc::clone(&self.intent))
    }
    fn push(self: Arc<Self>) -> Push {
        Push::Gone
    }
}

impl Trans<'_> {
    /// Owes the freeing of a run of blocks of an inode: it is carried out before the commit is over. [`Error::Shared`] if
    /// others have any of them as well: whoever did not ask before lets the transaction go.
    pub fn free_later(&mut self, owner: InodeNumber, start: FsBlock, len: u32) -> Result<()> {
        let sharing = self.volume.sharing();
        if self.geometry().reflink
            && sharing.is_counted(start, len.into()).map_err(|error| error.of_inode(owner))?
        {
            return Err(Error::Shared(owner));
        }
        self.owe(Extent { start, len });
        Ok(())
    }

    fn owe(&mut self, extent: Extent) {
        self.deferred.push(DeferredFree { extent, intent: None });
    }

    /// Owes what an older intent promised, in its place: the commit ends the old one, and has intents of its own. Gives
    /// the number of extents. That nobody shares them was asked before anything of the log was carried out.
    pub(crate) fn take_over(&mut self, old: &Arc<Intent>) -> u64 {
        self.extra.push(old.end());
        old.extents.iter().for_each(|extent| self.owe(*extent));
        old.extents.len() as u64
    }

    /// Logs intents for what is owed and not in the log yet.
    pub(super) fn log_intents(&mut self) {
        debug_assert!(
            self.deferred.len() <= self.frees as usize,
            "{} freeings are owed, {} were announced",
            self.deferred.len(),
            self.frees
        );
        for free in self.deferred.iter_mut().filter(|free| free.intent.is_none()) {
            let intent = Intent::new(free.extent);
            let id = intent.words.lock().id;
            self.extra.push((Arc::clone(&intent) as Arc<dyn LogItem>, intent.format(false, id)));
            free.intent = Some(intent);
        }
    }

    /// Carries out what was deferred, in rolled transactions. Further work in the same transaction sees the inodes
    /// as they are, locked.
    pub fn finish(&mut self) -> Result<()> {
        while !self.deferred.is_empty() {
            self.roll()?;
            let free = self.deferred.remove(0);
            let intent = free.intent.ok_or(Error::ShutDown)?;
            free_now(self, free.extent)?;
            self.extra.push(intent.end());
        }
        Ok(())
    }
}

#[cfg(all(test, not(shuttle)))]
impl Trans<'_> {
    /// Has the intents of this transaction stay where they are in the log, as those of other kernels do.
    pub(crate) fn keep_intents_where_they_are(&self) {
        let intents = self.deferred.iter().filter_map(|free| free.intent.as_ref());
        intents.for_each(|intent| intent.words.lock().stage = Stage::Ending);
    }

    /// Their numbers, of which each has another one when it was logged again.
    pub(crate) fn intent_ids(&self) -> Vec<u64> {
        let intents = self.deferred.iter().filter_map(|free| free.intent.as_ref());
        intents.map(|intent| intent.words.lock().id).collect()
    }
}

/// Puts a run of blocks into the trees of free space.
fn free_now(trans: &mut Trans<'_>, extent: Extent) -> Result<()> {
    trans.free_blocks(extent.start, extent.len, Purpose::Data)
}
