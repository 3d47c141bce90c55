//! Covering: once nothing happens any more, the log says that nothing of it need be replayed but the superblock.
//!
//! An idle journal writes out what waits, then writes everything back; then the tail could be at the head, but no
//! record says so. One more transaction that logs the superblock, and nothing else, makes a record whose tail is its
//! own checkpoint. The journal knows no superblock: whoever opened it gives it what logs one
//! ([`Journal::set_cover`]).
//!
//! Invariants: only the landing of a checkpoint says that the log is covered, and only if nothing but the covering
//! transaction was in it and its durable record names it as the tail: whatever was committed, or was on its way,
//! beside the covering makes it one like any other, and the next idle interval tries again. The thread that covers is
//! the one that makes room in the log, so it waits neither for space nor for the gate.

use super::core::Core;
use super::grant::Turn;
use super::sync::Ordering;
use super::{Journal, Pace, Ticket};
use crate::error::Result;
use std::fmt;

/// Logs the superblock in a transaction of its own, with a ticket from [`Journal::reserve_to_cover`].
pub(super) type CoverFn = Box<dyn Fn() + Send + Sync>;

/// What the covering is done by, if anything; locked while it is.
#[derive(Default)]
pub(super) struct Cover(super::sync::Mutex<Option<CoverFn>>);

impl fmt::Debug for Cover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cover")
    }
}

impl Core {
    /// Whether the log could be covered now, and is not.
    fn needs_cover(&self) -> bool {
        self.down().is_none()
            && self.pace == Pace::Background
            && self.uncovered.load(Ordering::SeqCst)
            && !self.cil.is_open()
            && self.orders.is_done(self.cil.opened())
            && self.ail.is_empty()
    }

    /// Nothing has happened for a while: what waits goes on, in the end the log is covered.
    pub(super) fn idle(&self) {
        if self.pace == Pace::InStep {
            return;
        }
        if self.cil.is_open() {
            self.orders.push(self.cil.opened());
        } else if !self.ail.is_empty() {
            self.pushing.push_to(xfs_format::types::Lsn(u64::MAX));
        } else if self.needs_cover()
            && let Some(cover) = &*super::sync::lock(&self.cover.0)
        {
            cover();
            self.orders.push(self.cil.opened());
        }
    }
}

impl Journal {
    /// Has the log covered by `cover` when the journal is idle. Called by a thread of the journal, with no lock held:
    /// `cover` is to commit one transaction that logs the superblock, with a ticket from
    /// [`reserve_to_cover`](Self::reserve_to_cover), and must not wait for another transaction.
    pub fn set_cover(&self, cover: impl Fn() + Send + Sync + 'static) {
        *super::sync::lock(&self.core.cover.0) = Some(Box::new(cover));
    }

    /// Takes back what the log is covered by, which is not at it any more when this returns.
    pub fn stop_covering(&self) {
        *super::sync::lock(&self.core.cover.0) = None;
    }

    /// As [`reserve`](Self::reserve), for a step that logs the superblock alone, without waiting for anything. `None`:
    /// the log need not be covered, or cannot be now.
    pub fn reserve_to_cover(&self, unit: u32) -> Option<Ticket> {
        let core = &*self.core;
        if !core.needs_cover() {
            return None;
        }
        let slot = core.gate.try_enter()?;
        let step = core.layout.step(unit);
        let ticket = Ticket { step, steps: 1, left: step, intents: 0, kept: 0, slot, covering: true };
        if core.grant.try_take(ticket.space(), Turn::Fresh) {
            return Some(ticket);
        }
        core.gate.leave(slot);
        None
    }

    /// Has the journal do at once, and waits for it, what it does by itself when nothing has happened for half a
    /// minute: the first time what is committed goes to the log, then it is written back, then the log is covered.
    pub fn pass_idle_time(&self) -> Result<()> {
        let core = &*self.core;
        core.check()?;
        let passed = core.pushing.elapse() && core.orders.wait_pushed() && core.pushing.wait_until_resting();
        if passed { Ok(()) } else { Err(core.not_written()) }
    }

    /// Whether a crash now would have nothing replayed but the superblock, or nothing at all.
    pub fn is_covered(&self) -> bool {
        !self.core.uncovered.load(Ordering::SeqCst)
    }
}
