//! What recovery owes anew: work that arose while it kept a promise of the log, to be done when all promises that it found
//! are kept.
//!
//! Invariants:
//! - its intents are in the log, with the end of the promise that it arose from, and so behind all that recovery found:
//!   who recovers this log next, should it be cut, does things in the same order;
//! - as long as they are in the AIL, the log has room to log each again.

use super::Deferred;
use super::work::Promise;
use crate::error::Result;
use crate::log::{Journal, Ticket};
use crate::trans::Trans;
use crate::trans::reservation::{Need, Reservation};
use crate::volume::Volume;
use std::sync::Arc;

/// Work that is in the log and not in a transaction.
#[derive(Debug)]
pub(crate) struct Captured {
    deferred: Deferred,
    journal: Arc<Journal>,
    ticket: Option<Ticket>,
}

impl Trans<'_> {
    /// Commits, and carries out nothing of what is owed: gives that. Inodes are let go of.
    pub(crate) fn capture(mut self) -> Result<Option<Captured>> {
        self.commit_part()?;
        let deferred = std::mem::take(&mut self.deferred);
        if deferred.is_empty() {
            return Ok(None);
        }
        let bytes = u32::try_from(deferred.relog_bytes()).unwrap_or(u32::MAX);
        let ticket = self.ticket.take().map(|ticket| self.journal.keep_for_intents(ticket, bytes));
        let deferred = Deferred { reserved: bytes, ..deferred };
        Ok(Some(Captured { deferred, journal: Arc::clone(self.journal), ticket }))
    }
}

impl Captured {
    /// Carries out the first piece of it, in a transaction of its own; gives what is owed then.
    pub(crate) fn step(mut self, volume: &Arc<Volume>) -> Result<Option<Self>> {
        let mut trans = Trans::start(volume, self.reservation(volume))?;
        if let (Some(mine), Some(kept)) = (trans.ticket.as_mut(), self.ticket.take()) {
            trans.journal.take_in(mine, kept);
        }
        let reserved = trans.deferred.reserved + self.deferred.reserved;
        trans.deferred = Deferred { reserved, ..std::mem::take(&mut self.deferred) };
        trans.finish_one()?;
        trans.capture()
    }

    /// What the first piece takes, and what arises from it.
    fn reservation(&self, volume: &Volume) -> Reservation {
        let need = Need::new(volume.geometry());
        let first = self.deferred.queue.iter().next();
        first.map_or(need, |owed| Promise::from(&owed.work).need_at_once(need)).reservation().or_no_blocks()
    }
}

impl Drop for Captured {
    /// What is not done is in the log.
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.journal.release(ticket);
        }
    }
}
