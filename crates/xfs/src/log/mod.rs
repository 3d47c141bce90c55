//! The journal: write-ahead logging in XFS's own format.
//!
//! The way of a change: [`Journal::reserve`] log space → change private copies → format each item into a
//! [`LogVector`] → [`Journal::commit`] (pins, publishes, inserts into the CIL) → [`Journal::release`].

#[allow(dead_code, reason = "the writer follows")]
pub mod item;
#[allow(dead_code, unused_imports, reason = "the writer follows")]
mod sync;
mod vector;

pub use item::{ItemState, Landing, LogItem, Outcome, Push, WriteDone, WriteJob};
pub use vector::{LogVector, VecSize};

use crate::error::Result;
use blockdev::BlockDevice;
use std::fmt;
use std::sync::Arc;
use xfs_format::log::LogEnds;
use xfs_format::superblock::Superblock;
use xfs_format::types::Lsn;

/// Why the journal was shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownReason {
    /// A write of the log failed.
    LogWrite,
    /// A write of metadata failed.
    MetadataWrite,
    /// Damaged metadata was met in the middle of a change.
    Corruption,
    /// Somebody asked for it.
    Asked,
    /// It was closed, or dropped without being closed.
    Closed,
}

impl fmt::Display for ShutdownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LogWrite => "a write of the log failed",
            Self::MetadataWrite => "a write of metadata failed",
            Self::Corruption => "damaged metadata was met in the middle of a change",
            Self::Asked => "it was asked for",
            Self::Closed => "it was closed",
        })
    }
}

/// Runs once the fate of a commit's checkpoint is known.
pub type OnLanded = Box<dyn FnOnce(Outcome) + Send>;

/// Names the checkpoint that a commit went into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CommitSeq(pub u64);

/// Log space that a transaction holds. It must be given back by [`Journal::release`].
#[derive(Debug)]
pub struct Ticket {
    _private: (),
}

/// A journal that is held still: see [`Journal::freeze`].
#[derive(Debug)]
pub struct Frozen<'a> {
    _journal: &'a Journal,
}

/// The journal of one volume.
#[derive(Debug)]
pub struct Journal {
    _device: Arc<dyn BlockDevice>,
}

impl Journal {
    /// Opens the internal log of a volume for writing. It must be clean ([`crate::Error::DirtyLog`] if not); `ends`
    /// is what [`crate::recovery::clean::log_ends`] found.
    pub fn open(device: Arc<dyn BlockDevice>, superblock: &Superblock, ends: LogEnds) -> Result<Arc<Self>> {
        let _ = (superblock, ends);
        Ok(Arc::new(Self { _device: device }))
    }

    /// Reserves log space for a transaction of `count` steps of at most `unit` bytes each ([`VecSize::log_bytes`]
    /// of all its items). Waits, first come first served, until there is room.
    pub fn reserve(&self, unit: u32, count: u32) -> Result<Ticket> {
        let _ = (unit, count);
        Ok(Ticket { _private: () })
    }

    /// After the commit of one step: makes the ticket ready for the next.
    pub fn roll(&self, ticket: &mut Ticket) -> Result<()> {
        let _ = ticket;
        Ok(())
    }

    /// Adds to the current step's reservation without waiting. `false`: there is no room now; commit what there is
    /// and roll.
    pub fn extend(&self, ticket: &mut Ticket, bytes: u32) -> Result<bool> {
        let _ = (ticket, bytes);
        Ok(true)
    }

    /// Commits one step. Every item is pinned, then `publish` makes the transaction's changes visible, then the
    /// items are in the CIL: no checkpoint closes in between. `items` is left empty (its memory can be used again).
    /// `landed` runs once the checkpoint is in the log for good, or never will be.
    ///
    /// An error means that nothing was done: no item is pinned, `publish` was not called, `items` is untouched.
    pub fn commit(
        &self,
        ticket: &mut Ticket,
        items: &mut Vec<(Arc<dyn LogItem>, LogVector)>,
        landed: Option<OnLanded>,
        publish: impl FnOnce(),
    ) -> Result<CommitSeq> {
        let _ = (ticket, landed);
        items.clear();
        publish();
        Ok(CommitSeq(0))
    }

    /// Gives back what is left of a ticket: after the last commit, or instead of it.
    pub fn release(&self, ticket: Ticket) {
        let _ = ticket;
    }

    /// Waits until the checkpoint of `upto` (and all before it) is in the log for good.
    pub fn force(&self, upto: CommitSeq) -> Result<()> {
        let _ = upto;
        Ok(())
    }

    /// Waits until all that was committed before this call is in the log for good.
    pub fn force_all(&self) -> Result<()> {
        Ok(())
    }

    /// Waits until no ticket is open, and holds new ones back as long as the result lives. Who holds a ticket must
    /// not ask for this.
    pub fn freeze(&self) -> Result<Frozen<'_>> {
        Ok(Frozen { _journal: self })
    }

    /// Has everything written back that is in the AIL up to `target`, without waiting for it.
    pub fn push_ail(&self, target: Lsn) {
        let _ = target;
    }

    /// Takes an item out of the AIL, unless a later checkpoint has moved it on from `lsn`. For
    /// [`WriteJob::done`].
    pub fn ail_remove(&self, item: &Arc<dyn LogItem>, lsn: Lsn) {
        let _ = (item, lsn);
    }

    /// Forces the log and waits until all of it is written back. Nobody may commit meanwhile.
    pub fn quiesce(&self) -> Result<()> {
        Ok(())
    }

    /// Quiesces, and marks the log as clean. Every later call fails.
    pub fn close(&self) -> Result<()> {
        Ok(())
    }

    /// Stops everything: what is not in the log for good never will be, and every later call fails.
    pub fn shutdown(&self, why: ShutdownReason) {
        let _ = why;
    }

    /// Why the journal was shut down, if it was.
    pub fn is_shut_down(&self) -> Option<ShutdownReason> {
        None
    }
}
