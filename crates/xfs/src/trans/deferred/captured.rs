//! What recovery owes anew: work that arose while it kept a promise of the log, to be done when all promises that it found
//! are kept.
//!
//! Invariants:
//! - its intents are in the log, with the end of the promise that it arose from, and so behind all that recovery found:
//!   who recovers this log next, should it be cut, does things in the same order;
//! - as long as they are in the AIL, the log has room to log each again, once, beside whatever is begun: recovery alone uses
//!   it, and begins nothing ([`Trans::start_alone`]) before that is so.

use super::Deferred;
use super::work::{Promise, Works};
use super::{Owed, Work};
use crate::error::Result;
use crate::log::{Journal, Ticket};
use crate::mount::Mount;
use crate::trans::Trans;
use crate::trans::reservation::{Need, Reservation};
use std::sync::Arc;

/// Pieces that one intent promises at most where several are gathered: as many as a kernel has in one.
const PROMISED_AT_ONCE: usize = 16;

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
    pub(crate) fn step(mut self, volume: &Arc<Mount>) -> Result<Option<Self>> {
        let mut trans = Trans::start_alone(volume, self.reservation(volume), 0)?;
        self.hand_over(&mut trans);
        let reserved = trans.deferred.reserved + self.deferred.reserved;
        trans.deferred = Deferred { reserved, ..std::mem::take(&mut self.deferred) };
        trans.finish_one()?;
        trans.capture()
    }

    /// How many pieces of work it is.
    pub(super) fn pieces(&self) -> usize {
        self.deferred.queue.iter().map(|owed| owed.works.len()).sum()
    }

    /// Whether all its pieces are of a kind.
    pub(super) fn is_of(&self, kind: fn(&Work) -> bool) -> bool {
        self.deferred.queue.iter().all(|owed| owed.works.iter().all(kind))
    }

    /// Promises anew, with few intents, what several did with many: counts, and freeings. Their order stays.
    pub(super) fn gather(volume: &Arc<Mount>, several: Vec<Self>, owed: u64) -> Result<Option<Self>> {
        let (mut counts, mut frees, mut carry_out) = (Vec::new(), Vec::new(), None);
        for owed in several.iter().flat_map(|one| one.deferred.queue.iter()) {
            // Whoever owes such work can carry out all of it.
            carry_out = Some(owed.carry_out);
            for work in &owed.works {
                if let Work::Count(_) = work { &mut counts } else { &mut frees }.push(work.clone());
            }
        }
        let Some(carry_out) = carry_out else { return Ok(None) };
        let promised = counts.chunks(PROMISED_AT_ONCE).chain(frees.chunks(PROMISED_AT_ONCE));
        let mut deferred = Deferred::default();
        promised.for_each(|works| deferred.queue.add(Owed::new(Works::from(works), carry_out)));
        let (bytes, before) = (deferred.relog_bytes(), several.iter().map(|one| one.deferred.relog_bytes()));
        let log_bytes = |bytes| u32::try_from(bytes).unwrap_or(u32::MAX);
        deferred.reserved = log_bytes(bytes);
        let reservation = Reservation {
            blocks: 0,
            log_bytes: log_bytes(bytes + before.sum::<u64>()),
            log_count: 1,
            intent_bytes: log_bytes(bytes),
            blocks_optional: true,
        };
        let mut trans = Trans::start_alone(volume, reservation, owed)?;
        for mut one in several {
            one.hand_over(&mut trans);
            trans
                .extra
                .extend(one.deferred.queue.iter().filter_map(|owed| Some(owed.intent.as_ref()?.end())));
        }
        trans.deferred = deferred;
        trans.capture()
    }

    /// What the first piece takes, and what arises from it; and to promise anew what it was promised with.
    fn reservation(&self, volume: &Mount) -> Reservation {
        let need = Need::new(volume.geometry());
        let first = self.deferred.queue.iter().next();
        let of_first = |owed: &Owed| {
            let (promise, first) = (owed.promise(), owed.works.first().map(Promise::from));
            let behind = if promise.pieces() > 1 { promise.relog_bytes() } else { 0 };
            first.map_or(need, |first| first.need_at_once(need, 1)).bytes(behind)
        };
        first.map_or(need, of_first).reservation().or_no_blocks()
    }

    /// A transaction gets what it kept of the log.
    fn hand_over(&mut self, trans: &mut Trans<'_>) {
        if let (Some(mine), Some(kept)) = (trans.ticket.as_mut(), self.ticket.take()) {
            trans.journal.take_in(mine, kept);
        }
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
