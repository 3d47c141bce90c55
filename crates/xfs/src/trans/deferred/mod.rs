//! Work that a transaction owes, to be done in transactions of their own: promised by an intent first, carried out in
//! rolled transactions.
//!
//! Invariants:
//! - what is owed has its intent in the log with the commit that owes it, and not later;
//! - the done item of an intent is in the same commit as what was promised, and as the intents of all that this owes in
//!   turn: wherever the log is cut, it says of each piece of work that it was done or is still to be done;
//! - the order is that of [`queue`];
//! - a piece of work is carried out by the layer that owes it ([`CarryOut`]): what is above transactions is not known here;
//! - what is owed at a time never exceeds what the reservation set aside to log it again.

mod arisen;
mod attr_work;
mod captured;
mod intent;
mod queue;
mod sizes;
mod work;

pub(crate) use arisen::Arisen;
pub(crate) use attr_work::AttrWork;
pub(crate) use intent::{Intent, ids_behind};
pub(super) use sizes::{count_bytes, exchange_bytes, free_bytes, map_bytes, rmap_bytes};
pub(super) use work::IntentBytes;
use work::Works;
pub(crate) use work::{FreeWork, Promise, Work};

use super::Trans;
use crate::error::{Error, Result};
use queue::Queue;
use smallvec::smallvec;
use std::sync::Arc;

/// Carries out a piece of work. What is left of it is for a transaction of its own, and done before anything that was owed
/// already, but behind what this was the first to owe.
pub(crate) type CarryOut = fn(&mut Trans<'_>, Work) -> Result<Option<Work>>;

/// Work that is owed.
#[derive(Debug)]
struct Owed {
    /// One piece, or several of one kind where recovery gathered them ([`Arisen`]); they go one after the other.
    works: Works,
    carry_out: CarryOut,
    /// The intent, once it is in the log.
    intent: Option<Arc<Intent>>,
}

impl Owed {
    /// Not in the log yet.
    fn new(works: Works, carry_out: CarryOut) -> Self {
        Self { works, carry_out, intent: None }
    }

    fn promise(&self) -> Promise {
        Promise::of(&self.works)
    }
}

/// What a transaction owes.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    queue: Queue<Owed>,
    /// Bytes of the log that are set aside to log all its intents again.
    reserved: u32,
}

impl Deferred {
    /// Nothing yet; its intents may need so many bytes of the log.
    pub(super) fn within(reserved: u32) -> Self {
        Self { reserved, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Bytes of the log that it takes to log all its intents again.
    fn relog_bytes(&self) -> u64 {
        self.queue.iter().map(|owed| owed.promise().relog_bytes()).sum()
    }
}

impl Trans<'_> {
    /// Owes a piece of work, which `carry_out` does.
    pub(crate) fn owe(&mut self, work: Work, carry_out: CarryOut) {
        self.deferred.queue.add(Owed::new(smallvec![work], carry_out));
    }

    /// Does what an older intent promised, all of it in this very transaction, which ends it. An intent of its own would
    /// lie behind those that are to be carried out after it, and so would the work of whoever recovers the log next. That
    /// nobody shares what is to be freed was asked before anything of the log was carried out.
    ///
    /// `pieces`: as many are done; what is behind them is owed anew. Less than all of them only of counts, as in a kernel.
    pub(crate) fn keep_promise(
        &mut self,
        old: &Arc<Intent>,
        pieces: usize,
        carry_out: CarryOut,
    ) -> Result<()> {
        let mut works = old.promise().works();
        // Headers are waited for group by group. What is said of one block is said of it in its order.
        works.sort_by_key(|work| work.group(self.geometry()));
        let behind = works.drain(pieces.min(works.len())..).collect::<Works>();
        for work in works {
            if let Some(rest) = carry_out(self, work)? {
                self.owe(rest, carry_out);
            }
        }
        behind.into_iter().for_each(|work| self.owe(work, carry_out));
        self.extra.push(old.end());
        Ok(())
    }

    /// Owes what an older intent promised, in its place: the commit ends the old one, and has intents of its own, which
    /// come behind all others. For freeings that are too many for one transaction: those can be done in any order.
    pub(crate) fn take_over(&mut self, old: &Arc<Intent>, carry_out: CarryOut) {
        self.extra.push(old.end());
        old.promise().works().into_iter().for_each(|work| self.owe(work, carry_out));
    }

    /// Logs intents for what is owed and not in the log yet.
    pub(super) fn log_intents(&mut self) {
        let deferred = &mut self.deferred;
        debug_assert!(
            deferred.relog_bytes() <= deferred.reserved.into(),
            "{} bytes of intents are owed, {} were announced",
            deferred.relog_bytes(),
            deferred.reserved
        );
        for owed in deferred.queue.iter_mut().filter(|owed| owed.intent.is_none()) {
            let intent = Intent::new(owed.promise());
            self.extra.push(intent.begin());
            owed.intent = Some(intent);
        }
    }

    /// Carries out what was deferred, in rolled transactions. Further work in the same transaction sees the inodes
    /// as they are, locked.
    pub fn finish(&mut self) -> Result<()> {
        while !self.deferred.is_empty() {
            self.roll()?;
            self.finish_one()?;
        }
        Ok(())
    }

    /// Carries out the first of what was deferred, in this very transaction.
    fn finish_one(&mut self) -> Result<()> {
        let Some(Owed { mut works, carry_out, intent: Some(intent) }) = self.deferred.queue.begin() else {
            return Err(Error::ShutDown);
        };
        if !works.is_empty()
            && let Some(rest) = carry_out(self, works.remove(0))?
        {
            self.owe(rest, carry_out);
        }
        self.extra.push(intent.end());
        self.deferred.queue.end((!works.is_empty()).then(|| Owed::new(works, carry_out)));
        Ok(())
    }
}

#[cfg(all(test, not(shuttle)))]
impl Trans<'_> {
    /// Sets so many bytes of what it reserved aside for its intents.
    pub(crate) fn set_aside_for_intents(&mut self, bytes: u32) {
        self.deferred = Deferred::within(bytes);
    }

    /// Has the intents of this transaction stay where they are in the log, as those of other kernels do.
    pub(crate) fn keep_intents_where_they_are(&self) {
        self.intents().for_each(Intent::keep_where_it_is);
    }

    /// Their numbers, of which each has another one when it was logged again.
    pub(crate) fn intent_ids(&self) -> Vec<u64> {
        self.intents().map(Intent::id).collect()
    }

    fn intents(&self) -> impl Iterator<Item = &Intent> {
        self.deferred.queue.iter().filter_map(|owed| owed.intent.as_deref())
    }
}
