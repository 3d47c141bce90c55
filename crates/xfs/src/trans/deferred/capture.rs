//! Captured work: deferred while recovery finished an intent, and done after all intents that recovery found.
//!
//! Invariants:
//! - its intents are logged together with the done item of the intent that it arose from, so they lie behind all that
//!   recovery found. If this recovery is interrupted, the next one does things in the same order;
//! - as long as they are in the AIL, the log has room to log each again once, beside any transaction that is begun.
//!   Only recovery uses that room, and it begins nothing ([`Trans::start_alone`]) before the room is there.

use super::Deferred;
use super::work::{IntentWork, Works};
use super::{DeferPending, Work};
use crate::error::Result;
use crate::log::{Journal, Ticket};
use crate::mount::Mount;
use crate::trans::Trans;
use crate::trans::reservation::{Reservation, ReservationBuilder, WhenFull};
use std::sync::Arc;

/// Maximum number of pieces in one intent when several are gathered: as many as a kernel puts into one.
const PROMISED_AT_ONCE: usize = 16;

/// Work whose intents are in the log and that no transaction holds.
#[derive(Debug)]
pub(crate) struct DeferCapture {
    deferred: Deferred,
    journal: Arc<Journal>,
    ticket: Option<Ticket>,
}

impl Trans<'_> {
    /// Commits without finishing deferred work, and returns that work. Inodes are released.
    pub(crate) fn capture(mut self) -> Result<Option<DeferCapture>> {
        self.commit_part()?;
        let deferred = std::mem::take(&mut self.deferred);
        if deferred.is_empty() {
            return Ok(None);
        }
        let bytes = u32::try_from(deferred.relog_bytes()).unwrap_or(u32::MAX);
        let ticket = self.ticket.take().map(|ticket| self.journal.keep_for_intents(ticket, bytes));
        let deferred = Deferred { reserved: bytes, ..deferred };
        Ok(Some(DeferCapture { deferred, journal: Arc::clone(self.journal), ticket }))
    }
}

impl DeferCapture {
    /// Finishes the first item in a transaction of its own. Returns the remaining work, including what that item deferred.
    pub(crate) fn step(mut self, mount: &Arc<Mount>) -> Result<Option<Self>> {
        let mut trans = Trans::start_alone(mount, self.reservation(mount), 0)?;
        self.hand_over(&mut trans);
        let reserved = trans.deferred.reserved + self.deferred.reserved;
        trans.deferred = Deferred { reserved, ..std::mem::take(&mut self.deferred) };
        trans.finish_one()?;
        trans.capture()
    }

    /// The number of pieces of work.
    pub(super) fn pieces(&self) -> usize {
        self.deferred.queue.iter().map(|owed| owed.works.len()).sum()
    }

    /// Whether all its pieces are of this kind.
    pub(super) fn is_of(&self, kind: fn(&Work) -> bool) -> bool {
        self.deferred.queue.iter().all(|owed| owed.works.iter().all(kind))
    }

    /// Replaces the many intents of several captures by a few: first refcount updates, then frees, each in their order.
    pub(super) fn gather(mount: &Arc<Mount>, several: Vec<Self>, owed: u64) -> Result<Option<Self>> {
        let (mut counts, mut frees, mut carry_out) = (Vec::new(), Vec::new(), None);
        for owed in several.iter().flat_map(|one| one.deferred.queue.iter()) {
            // Any of them can carry out such work.
            carry_out = Some(owed.finish_item);
            for work in &owed.works {
                if let Work::Count(_) = work { &mut counts } else { &mut frees }.push(work.clone());
            }
        }
        let Some(carry_out) = carry_out else { return Ok(None) };
        let promised = counts.chunks(PROMISED_AT_ONCE).chain(frees.chunks(PROMISED_AT_ONCE));
        let mut deferred = Deferred::default();
        promised.for_each(|works| deferred.queue.add(DeferPending::new(Works::from(works), carry_out)));
        let (bytes, before) = (deferred.relog_bytes(), several.iter().map(|one| one.deferred.relog_bytes()));
        let log_bytes = |bytes| u32::try_from(bytes).unwrap_or(u32::MAX);
        deferred.reserved = log_bytes(bytes);
        let reservation = Reservation {
            blocks: 0,
            log_bytes: log_bytes(bytes + before.sum::<u64>()),
            usual_log_bytes: None,
            deferred_log_bytes: 0,
            log_count: 1,
            intent_bytes: log_bytes(bytes),
            when_full: WhenFull::GoOn,
        };
        let mut trans = Trans::start_alone(mount, reservation, owed)?;
        for mut one in several {
            one.hand_over(&mut trans);
            trans
                .extra
                .extend(one.deferred.queue.iter().filter_map(|owed| Some(owed.intent.as_ref()?.end())));
        }
        trans.deferred = deferred;
        trans.capture()
    }

    /// Reserves for the first piece and what arises from it, and for logging its intents again.
    fn reservation(&self, mount: &Mount) -> Reservation {
        let need = ReservationBuilder::new(mount.geometry());
        let first = self.deferred.queue.iter().next();
        let of_first = |owed: &DeferPending| {
            let (promise, first) = (owed.intent_work(), owed.works.first().map(IntentWork::from));
            let behind = if promise.pieces() > 1 { promise.relog_bytes() } else { 0 };
            first.map_or(need, |first| first.reservation_at_once(need, 1)).bytes(behind)
        };
        first.map_or(need, of_first).build().or_no_blocks()
    }

    /// Gives a transaction the log space that was kept.
    fn hand_over(&mut self, trans: &mut Trans<'_>) {
        if let (Some(mine), Some(kept)) = (trans.ticket.as_mut(), self.ticket.take()) {
            trans.journal.take_in(mine, kept);
        }
    }
}

impl Drop for DeferCapture {
    /// Unfinished work stays in the log.
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.journal.release(ticket);
        }
    }
}
