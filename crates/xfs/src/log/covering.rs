//! Covering an idle log: afterwards recovery replays nothing but the superblock.
//!
//! An idle journal first writes the open checkpoint to the log, then writes everything back. Then the tail could be at
//! the head, but no record says so. One more transaction that logs only the superblock makes a record whose tail is its
//! own checkpoint. The journal does not know the superblock, so whoever opened it provides a function that logs one
//! ([`Journal::set_cover`]).
//!
//! Invariants: the log counts as covered only when a checkpoint is committed that has nothing but the covering
//! transaction, and whose durable record names it as the tail. If anything else was committed or under way meanwhile,
//! it is a checkpoint like any other, and the next idle interval tries again. The thread that covers is the one that
//! frees log space, so it waits neither for space nor for the gate.

use super::core::Core;
use super::grant::GrantHead;
use super::sync::Ordering;
use super::{Journal, Pace, Ticket};
use crate::error::Result;
use std::fmt;

/// Logs the superblock in a transaction of its own, with a ticket from [`Journal::reserve_to_cover`].
pub(super) type CoverFn = Box<dyn Fn() + Send + Sync>;

/// The function that covers the log, if any. Locked while it runs.
#[derive(Default)]
pub(super) struct Cover(super::sync::Mutex<Option<CoverFn>>);

impl fmt::Debug for Cover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cover")
    }
}

impl Core {
    /// Whether the log can be covered now and is not.
    fn needs_cover(&self) -> bool {
        self.down().is_none()
            && self.pace == Pace::Background
            && self.uncovered.load(Ordering::SeqCst)
            && !self.cil.is_open()
            && self.worker.is_done(self.cil.opened())
            && self.ail.is_empty()
    }

    /// An idle interval has passed: takes the next step towards a covered log.
    pub(super) fn idle(&self) {
        if self.pace == Pace::InStep {
            return;
        }
        if self.cil.is_open() {
            self.worker.push(self.cil.opened());
        } else if !self.ail.is_empty() {
            self.ail_push.push_to(xfs_format::types::Lsn(u64::MAX));
        } else if self.needs_cover()
            && let Some(cover) = &*super::sync::lock(&self.cover.0)
        {
            cover();
            self.worker.push(self.cil.opened());
        }
    }
}

impl Journal {
    /// Sets the function that covers the log when the journal is idle. A thread of the journal calls it with no lock
    /// held. `cover` must commit one transaction that logs the superblock, with a ticket from
    /// [`reserve_to_cover`](Self::reserve_to_cover), and must not wait for another transaction.
    pub fn set_cover(&self, cover: impl Fn() + Send + Sync + 'static) {
        *super::sync::lock(&self.core.cover.0) = Some(Box::new(cover));
    }

    /// Removes the function that covers the log. It is not running any more when this returns.
    pub fn stop_covering(&self) {
        *super::sync::lock(&self.core.cover.0) = None;
    }

    /// Like [`reserve`](Self::reserve), for a step that logs only the superblock, without waiting. `None` if the log
    /// need not be covered, or cannot be now.
    pub fn reserve_to_cover(&self, unit: u32) -> Option<Ticket> {
        let core = &*self.core;
        if !core.needs_cover() {
            return None;
        }
        let slot = core.gate.try_enter()?;
        let step = core.layout.unit_reservation(unit);
        let ticket = Ticket { unit: step, count: 1, left: step, intents: 0, kept: 0, slot, covering: true };
        if core.grant.try_take(ticket.space(), GrantHead::Reserve) {
            return Some(ticket);
        }
        core.gate.leave(slot);
        None
    }

    /// Makes the journal do now what it otherwise does after half a minute without activity, and waits for it. The
    /// first time, the open checkpoint goes to the log. The second time, it is written back. Then the log is covered.
    pub fn pass_idle_time(&self) -> Result<()> {
        let core = &*self.core;
        core.check()?;
        let passed =
            core.ail_push.elapse() && core.worker.wait_pushed() && core.ail_push.wait_until_resting();
        if passed { Ok(()) } else { Err(core.not_written()) }
    }

    /// Whether recovery after a crash now would replay nothing, or only the superblock.
    pub fn is_covered(&self) -> bool {
        !self.core.uncovered.load(Ordering::SeqCst)
    }
}
