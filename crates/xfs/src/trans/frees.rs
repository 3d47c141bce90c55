//! Blocks that a transaction frees: an intent first, the freeing in a transaction of its own.
//!
//! Freeing changes the trees of free space, which may lock group headers in any order and needs more log space than
//! one transaction has for an unknown number of extents. The intent (EFI) makes it certain that it will be done, by
//! recovery if need be; the done item (EFD) that it was.

use super::Trans;
use crate::alloc::Purpose;
use crate::error::{Error, Result};
use crate::log::{ItemState, Landing, LogItem, LogVector, Outcome, Push, VecSize};
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

#[derive(Debug)]
struct Intent {
    id: u64,
    extent: Extent,
    state: ItemState,
}

#[derive(Debug)]
struct Done {
    intent: Arc<dyn LogItem>,
    state: ItemState,
}

/// An intent that recovery found in the log, and that nobody has carried out.
#[derive(Debug)]
pub(crate) struct OldIntent {
    id: u64,
    extents: Vec<Extent>,
    state: ItemState,
}

impl OldIntent {
    pub(crate) fn new(id: u64, extents: Vec<Extent>) -> Arc<Self> {
        Arc::new(Self { id, extents, state: ItemState::default() })
    }

    /// Bytes of the log that [`Trans::take_over`] needs.
    pub(crate) fn log_bytes(&self) -> u64 {
        const REGION_BYTES: u64 = 12 + 3;
        let each = free_intent_bytes(1) as u64 + REGION_BYTES;
        free_intent_bytes(self.extents.len()) as u64 + REGION_BYTES + each * self.extents.len() as u64
    }
}

impl LogItem for OldIntent {
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
        Push::Pinned
    }
}

/// Numbers for intents: unlike those of any other intent in the log. The kernel takes addresses.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Has all further intents numbered behind `highest`.
pub(crate) fn ids_behind(highest: u64) {
    NEXT_ID.fetch_max(highest + 1, Ordering::Relaxed);
}

impl Intent {
    fn new(extent: Extent) -> Arc<Self> {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { id, extent, state: ItemState::default() })
    }

    fn format(&self, done: bool) -> LogVector {
        let bytes = free_intent_bytes(1);
        let mut vector = LogVector::begin(None, VecSize::default().region(bytes));
        vector.region_with(bytes, |to| encode_free_intent(done, self.id, &[self.extent], to));
        vector
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
        Push::Pinned
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
        if self.geometry().reflink && self.volume.sharing().is_counted(start, len.into())? {
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
    pub(crate) fn take_over(&mut self, old: &Arc<OldIntent>) -> u64 {
        let bytes = free_intent_bytes(old.extents.len());
        let mut vector = LogVector::begin(None, VecSize::default().region(bytes));
        vector.region_with(bytes, |to| encode_free_intent(true, old.id, &old.extents, to));
        let intent = Arc::clone(old) as Arc<dyn LogItem>;
        self.extra.push((Arc::new(Done { intent, state: ItemState::default() }), vector));
        old.extents.iter().for_each(|extent| self.owe(*extent));
        old.extents.len() as u64
    }

    /// Logs intents for what is owed and not in the log yet.
    pub(super) fn log_intents(&mut self) {
        for free in self.deferred.iter_mut().filter(|free| free.intent.is_none()) {
            let intent = Intent::new(free.extent);
            let vector = intent.format(false);
            self.extra.push((Arc::clone(&intent) as Arc<dyn LogItem>, vector));
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
            let vector = intent.format(true);
            self.extra.push((Arc::new(Done { intent, state: ItemState::default() }), vector));
        }
        Ok(())
    }
}

/// Puts a run of blocks into the trees of free space.
fn free_now(trans: &mut Trans<'_>, extent: Extent) -> Result<()> {
    trans.free_blocks(extent.start, extent.len, Purpose::Data)
}
