//! Deferred work of a transaction: first an intent, then the work itself in rolled transactions.
//!
//! Invariants:
//! - deferred work has its intent in the commit that defers it, not later;
//! - the done item of an intent is in the same commit as the work, and as the intents of all work that this defers in
//!   turn. Wherever the log is cut, it says of each piece of work that it was done or is still to be done;
//! - the order is that of [`queue`];
//! - the layer that deferred an item finishes it ([`FinishItem`]), so the layers above are not known here;
//! - deferred work never exceeds what the reservation set aside to log it again.

mod attr_work;
mod capture;
mod capture_list;
mod intent;
mod queue;
mod sizes;
mod work;

pub(crate) use attr_work::AttrWork;
pub(crate) use capture_list::CaptureList;
pub(crate) use intent::{Intent, ids_behind};
pub(super) use sizes::{count_bytes, exchange_bytes, free_bytes, map_bytes, rmap_bytes};
pub(super) use work::IntentBytes;
use work::Works;
pub(crate) use work::{FreeWork, IntentWork, Work};

use super::Trans;
use crate::error::{Error, Result};
use queue::DeferQueue;
use smallvec::smallvec;
use std::sync::Arc;

/// Carries out a piece of work. Returns what is left of it, which takes another transaction. The rest comes before all
/// that was deferred earlier, but after what this piece itself deferred.
pub(crate) type FinishItem = fn(&mut Trans<'_>, Work) -> Result<Option<Work>>;

/// An item of deferred work with its intent.
#[derive(Debug)]
struct DeferPending {
    /// One piece, or several of one kind if recovery gathered them ([`CaptureList`]). They are done one after the
    /// other.
    works: Works,
    finish_item: FinishItem,
    /// The intent, once it is logged.
    intent: Option<Arc<Intent>>,
}

impl DeferPending {
    /// An item that is not logged yet.
    fn new(works: Works, carry_out: FinishItem) -> Self {
        Self { works, finish_item: carry_out, intent: None }
    }

    fn intent_work(&self) -> IntentWork {
        IntentWork::of(&self.works)
    }
}

/// The deferred work of a transaction.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    queue: DeferQueue<DeferPending>,
    /// Log bytes that are set aside to log all its intents again.
    reserved: u32,
}

impl Deferred {
    /// No deferred work yet. Its intents may need this many log bytes.
    pub(super) fn within(reserved: u32) -> Self {
        Self { reserved, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Log bytes to log all its intents again.
    fn relog_bytes(&self) -> u64 {
        self.queue.iter().map(|owed| owed.intent_work().relog_bytes()).sum()
    }
}

impl Trans<'_> {
    /// Defers an item. `carry_out` finishes it.
    pub(crate) fn defer(&mut self, work: Work, carry_out: FinishItem) {
        self.deferred.queue.add(DeferPending::new(smallvec![work], carry_out));
    }

    /// Does the work of an older intent within this transaction, which also logs its done item. A new intent would lie
    /// after those that are to be carried out later, and the next recovery would use that order. The caller has
    /// checked, before anything of the log was carried out, that nobody shares what is to be freed.
    ///
    /// `pieces`: how many are done; the rest is deferred anew. As in a kernel, only refcount updates are split like
    /// this.
    pub(crate) fn finish_intent(
        &mut self,
        old: &Arc<Intent>,
        pieces: usize,
        carry_out: FinishItem,
    ) -> Result<()> {
        let mut works = old.work().works();
        // Group headers must be locked in group order. The sort is stable, so updates of one block keep their order.
        works.sort_by_key(|work| work.group(self.geometry()));
        let behind = works.drain(pieces.min(works.len())..).collect::<Works>();
        for work in works {
            if let Some(rest) = carry_out(self, work)? {
                self.defer(rest, carry_out);
            }
        }
        behind.into_iter().for_each(|work| self.defer(work, carry_out));
        self.extra.push(old.end());
        Ok(())
    }

    /// Defers the work of an older intent anew. The commit ends the old intent and logs new ones after all others. For
    /// frees that are too many for one transaction: those can be done in any order.
    pub(crate) fn adopt_intent(&mut self, old: &Arc<Intent>, carry_out: FinishItem) {
        self.extra.push(old.end());
        old.work().works().into_iter().for_each(|work| self.defer(work, carry_out));
    }

    /// Logs intents for deferred work that has none yet.
    pub(super) fn log_intents(&mut self) {
        let deferred = &mut self.deferred;
        debug_assert!(
            deferred.relog_bytes() <= deferred.reserved.into(),
            "{} bytes of intents are owed, {} were announced",
            deferred.relog_bytes(),
            deferred.reserved
        );
        for owed in deferred.queue.iter_mut().filter(|owed| owed.intent.is_none()) {
            let intent = Intent::new(owed.intent_work());
            self.extra.push(intent.begin());
            owed.intent = Some(intent);
        }
    }

    /// Carries out what was deferred, in rolled transactions. Further work in the same transaction sees the inodes as
    /// they then are, still locked.
    pub fn finish(&mut self) -> Result<()> {
        while !self.deferred.is_empty() {
            self.roll()?;
            self.finish_one()?;
        }
        Ok(())
    }

    /// Carries out the first deferred item within this transaction.
    fn finish_one(&mut self) -> Result<()> {
        let Some(DeferPending { mut works, finish_item: carry_out, intent: Some(intent) }) =
            self.deferred.queue.begin()
        else {
            return Err(Error::Internal("what is owed has no intent"));
        };
        if !works.is_empty()
            && let Some(rest) = carry_out(self, works.remove(0))?
        {
            self.defer(rest, carry_out);
        }
        self.extra.push(intent.end());
        self.deferred.queue.end((!works.is_empty()).then(|| DeferPending::new(works, carry_out)));
        Ok(())
    }
}

#[cfg(all(test, not(shuttle)))]
impl Trans<'_> {
    /// Sets aside this many log bytes of the reservation for its intents.
    pub(crate) fn set_aside_for_intents(&mut self, bytes: u32) {
        self.deferred = Deferred::within(bytes);
    }

    /// Keeps the intents of this transaction where they are in the log, as kernels that do not relog do.
    pub(crate) fn keep_intents_in_place(&self) {
        self.intents().for_each(Intent::keep_in_place);
    }

    /// The current numbers of its intents. Relogging changes them.
    pub(crate) fn intent_ids(&self) -> Vec<u64> {
        self.intents().map(Intent::id).collect()
    }

    fn intents(&self) -> impl Iterator<Item = &Intent> {
        self.deferred.queue.iter().filter_map(|owed| owed.intent.as_deref())
    }
}
