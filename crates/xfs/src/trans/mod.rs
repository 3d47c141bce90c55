//! Transactions: changes that become visible and durable together, or not at all.
//!
//! A [`Trans`] reserves log space and blocks before it locks anything, locks the buffers and inodes that it changes,
//! and works on private copies. [`Trans::commit`] formats, pins, publishes and hands the vectors to the journal;
//! dropping a transaction leaves everything as it was. Work that must not be done in the same transaction (freeing of
//! blocks) is deferred: an intent goes into this one, and [`Trans::finish`] carries it out in further, rolled ones.
//!
//! Invariants:
//! - nothing outside the transaction sees a change before the commit;
//! - buffers and inodes stay locked from the first look to the commit (inodes over rolls, too);
//! - blocks taken never exceed the blocks reserved, so that space cannot run out half-way;
//! - inodes are joined in ascending order of their numbers; group headers are waited for in ascending order of their
//!   groups, and in a group the AGI first, then the AGF, which guards the AGFL.

mod buffers;
mod deferred;

mod inodes;
pub mod reservation;
mod space;
pub(crate) mod superblock;

pub use buffers::BufIndex;
pub(crate) use deferred::{Arisen, AttrWork, FreeWork, Intent, Promise, Work, ids_behind};

use crate::alloc::{OwnerClaim, Run};
use crate::counters::Delta;
use crate::error::{Error, Result};
use crate::log::{CommitSeq, Journal, LogItem, LogVector, OnLanded, Outcome, ShutdownReason, Ticket};
use crate::mount::{Mount, WriteSide};
use buffers::{Joined, Peeked};
use deferred::Deferred;
use inodes::JoinedInode;
use reservation::Reservation;
use std::sync::Arc;
use superblock::Tells;
use xfs_format::geometry::Geometry;
use xfs_format::types::AgNumber;

/// What most transactions lock.
const USUAL_BUFS: usize = 8;
const USUAL_INODES: usize = 2;

/// A transaction that is open.
pub struct Trans<'v> {
    volume: &'v Arc<Mount>,
    journal: &'v Arc<Journal>,
    ticket: Option<Ticket>,
    bufs: Vec<Joined>,
    peeked: Peeked,
    inodes: Vec<JoinedInode>,
    extra: Vec<(Arc<dyn LogItem>, LogVector)>,
    on_landing: Vec<OnLanded>,
    deferred: Deferred,
    /// What this part freed: busy from the commit on.
    freed: Vec<(AgNumber, Run)>,
    /// What this part left with a single owner.
    unshared: Vec<(AgNumber, Run)>,
    /// Whether this part changes reference counts.
    changes_counts: bool,
    delta: Delta,
    /// Blocks that are reserved and not taken.
    blocks: u64,
    /// Whether blocks that it frees stay reserved for it.
    keeps_freed: bool,
    /// Whether a part of the work is committed already: the rest has to follow.
    rolled: bool,
    /// Whether this part gives an inode its first attribute.
    pub(crate) makes_attributes: bool,
    /// What this part tells the superblock.
    tells: Tells,
    /// Room in groups for their reverse maps to grow.
    pub(crate) claim: Option<Box<OwnerClaim<'v>>>,
}

impl<'v> Trans<'v> {
    /// Reserves what `reservation` asks for, waiting for log space, and opens a transaction. No lock may be held that
    /// a transaction takes. [`Error::NoSpace`] comes before anything has changed, and once nothing is staged any more for
    /// copies that nobody makes.
    pub fn start(volume: &'v Arc<Mount>, reservation: Reservation) -> Result<Self> {
        match Self::reserve(volume, reservation) {
            Err(Error::NoSpace) if volume.gives_room()? => Self::reserve(volume, reservation),
            other => other,
        }
    }

    /// Does `work` in a transaction that has all of the `kept` blocks, which the caller reserved before, and more if these are
    /// fewer than it asks for and there are some. What is left, with what is freed, is `kept` again, whatever comes of it.
    pub(crate) fn with_kept<R>(
        volume: &'v Arc<Mount>,
        reservation: Reservation,
        kept: &mut u64,
        work: impl FnOnce(&mut Self) -> Result<R>,
    ) -> Result<R> {
        let mut trans = Self::start(volume, Reservation { blocks: 0, ..reservation })?;
        let more = reservation.blocks.saturating_sub(*kept);
        trans.blocks = std::mem::take(kept) + volume.write_side()?.counters.reserve_some(more);
        trans.keep_what_is_freed();
        let done = work(&mut trans).and_then(|done| trans.commit_all().map(|_| done));
        // What was not committed was not taken.
        *kept = std::mem::take(&mut trans.blocks) + std::mem::take(&mut trans.delta.taken);
        drop(trans);
        if done.is_ok() {
            fileio::testing::point(fileio::testing::COMMITTED);
        }
        done
    }

    fn reserve(volume: &'v Arc<Mount>, reservation: Reservation) -> Result<Self> {
        let write = volume.write_side()?;
        volume.relieve_caches(&write.journal)?;
        let more = if Self::is_quota_counted(volume)? { superblock::log_bytes(volume) } else { 0 };
        let Reservation { log_bytes, log_count, .. } = reservation;
        let ticket = write.journal.reserve(log_bytes + more, log_count, reservation.intent_bytes)?;
        // Behind the gate: who holds the journal still finds counters that nobody has reserved of.
        let blocks = match write.counters.reserve_blocks(reservation.blocks) {
            Ok(()) => reservation.blocks,
            Err(Error::NoSpace) if reservation.blocks_optional => 0,
            Err(error) => {
                write.journal.release(ticket);
                return Err(error);
            }
        };
        let mut trans = Self::with(volume, write, ticket, blocks);
        trans.deferred = Deferred::within(reservation.intent_bytes);
        Ok(trans)
    }

    /// Fails if the log is too small for such a transaction.
    pub(crate) fn check_log(volume: &'v Arc<Mount>, reservation: Reservation) -> Result<()> {
        let more = if Self::is_quota_counted(volume)? { superblock::log_bytes(volume) } else { 0 };
        let Reservation { log_bytes, log_count, .. } = reservation;
        let journal = &volume.write_side()?.journal;
        journal.check_size(log_bytes + more, log_count, reservation.intent_bytes)
    }

    /// As [`start`](Self::start), for whoever alone uses the volume, and holds log space that is not given back before:
    /// [`Error::LogTooSmall`] where it would wait for itself. `owed`: bytes that it takes to log intents again which hold
    /// nothing.
    pub(crate) fn start_alone(volume: &'v Arc<Mount>, reservation: Reservation, owed: u64) -> Result<Self> {
        Self::check_alone(volume, reservation, owed)?;
        Self::start(volume, reservation)
    }

    /// Whether [`start_alone`](Self::start_alone) has log space.
    pub(crate) fn check_alone(volume: &'v Arc<Mount>, reservation: Reservation, owed: u64) -> Result<()> {
        let more = if Self::is_quota_counted(volume)? { superblock::log_bytes(volume) } else { 0 };
        let Reservation { log_bytes, log_count, intent_bytes, .. } = reservation;
        volume.write_side()?.journal.check_beside(log_bytes + more, log_count, intent_bytes, owed)
    }

    /// Opens a transaction that covers the log (see [`Journal::reserve_to_cover`]), if there is need, without waiting.
    pub(crate) fn to_cover(volume: &'v Arc<Mount>, reservation: Reservation) -> Result<Option<Self>> {
        let write = volume.write_side()?;
        let ticket = write.journal.reserve_to_cover(reservation.log_bytes);
        Ok(ticket.map(|ticket| Self::with(volume, write, ticket, 0)))
    }

    fn with(volume: &'v Arc<Mount>, write: &'v WriteSide, ticket: Ticket, blocks: u64) -> Self {
        Self {
            volume,
            journal: &write.journal,
            ticket: Some(ticket),
            bufs: Vec::with_capacity(USUAL_BUFS),
            peeked: Peeked::default(),
            inodes: Vec::with_capacity(USUAL_INODES),
            extra: Vec::new(),
            on_landing: Vec::new(),
            deferred: Deferred::default(),
            freed: Vec::new(),
            unshared: Vec::new(),
            changes_counts: false,
            delta: Delta::default(),
            blocks,
            keeps_freed: false,
            rolled: false,
            makes_attributes: false,
            tells: Tells::default(),
            claim: None,
        }
    }

    /// The volume.
    pub fn volume(&self) -> &'v Arc<Mount> {
        self.volume
    }

    /// The volume's shape.
    pub fn geometry(&self) -> &'v Geometry {
        self.volume.geometry()
    }

    /// Blocks that may still be taken.
    pub fn blocks_left(&self) -> u64 {
        self.blocks
    }

    /// Takes blocks from the reservation, for an allocation that is about to change the trees of free space.
    pub fn take_blocks(&mut self, count: u64) -> Result<()> {
        self.blocks = self.blocks.checked_sub(count).ok_or(Error::NoSpace)?;
        self.delta.taken += count;
        Ok(())
    }

    /// Counts blocks that this transaction put into the trees of free space.
    pub fn give_blocks(&mut self, count: u64) {
        match self.keeps_freed {
            true => self.blocks += count,
            false => self.delta.freed += count,
        }
    }

    /// Keeps what the work frees for what it may need further on.
    pub(crate) fn keep_what_is_freed(&mut self) {
        self.keeps_freed = true;
    }

    /// Counts inodes that got a place on disk (or lost it), and those of them that are free.
    pub fn count_inodes(&mut self, places: i64, free: i64) {
        self.delta.inodes += places;
        self.delta.free_inodes += free;
    }

    /// Adds an item that has no locked buffer or inode behind it, such as the making of an inode chunk.
    pub fn log_item(&mut self, item: Arc<dyn LogItem>, vector: LogVector) {
        self.extra.push((item, vector));
    }

    /// Runs `f` once this part of the transaction is on disk.
    pub fn on_landing(&mut self, f: impl FnOnce(Outcome) + Send + 'static) {
        self.on_landing.push(Box::new(f));
    }

    /// Commits, and carries out what was deferred. On an error before the first commit nothing has changed; after it
    /// the volume is shut down, as half of the work is in the log.
    pub fn commit(self) -> Result<CommitSeq> {
        self.commit_and(|| ())
    }

    /// As [`commit`](Self::commit). If that comes to its end, does something more before the inodes are let go of.
    pub(crate) fn commit_and(mut self, more: impl FnOnce()) -> Result<CommitSeq> {
        let done = self.commit_all();
        if done.is_ok() {
            more();
        }
        drop(self);
        fileio::testing::point(fileio::testing::COMMITTED);
        done
    }

    fn commit_all(&mut self) -> Result<CommitSeq> {
        let done = self.finish().and_then(|()| self.commit_part());
        if let Err(error) = &done
            && self.rolled
        {
            self.volume.shut_down(error);
        }
        // Nothing has to follow, one way or the other.
        self.rolled = false;
        done
    }

    /// Commits what there is and goes on with the same inodes locked and the rest of the reservation. Buffers are let
    /// go of. Only for work that can be taken up again from what is committed.
    pub fn roll(&mut self) -> Result<()> {
        self.commit_part()?;
        self.rolled = true;
        let ticket = self.ticket.as_mut().ok_or(Error::ShutDown)?;
        self.journal.roll(ticket)
    }

    /// Whether nothing has been changed so far.
    pub fn is_clean(&self) -> bool {
        self.extra.is_empty()
            && self.deferred.is_empty()
            && self.bufs.iter().all(Joined::is_clean)
            && self.inodes.iter().all(JoinedInode::is_clean)
    }

    /// Formats, pins, publishes, inserts; lets go of buffers. Inodes stay locked.
    fn commit_part(&mut self) -> Result<CommitSeq> {
        self.log_intents();
        self.forget_peeked();
        self.doubt_quota_counts()?;
        self.say_attributes()?;
        let mut items = std::mem::take(&mut self.extra);
        items.reserve(self.inodes.len() + self.bufs.len());
        for inode in self.inodes.iter_mut().filter(|inode| !inode.is_clean()) {
            items.push(inode.format());
        }
        for buf in self.bufs.iter().filter_map(Joined::format) {
            items.push(buf);
        }
        self.mark_busy()?;
        let landing = self.landing();
        let Some(ticket) = self.ticket.as_mut() else { return Err(Error::ShutDown) };
        if items.is_empty() {
            self.bufs.clear();
            return Ok(CommitSeq::default());
        }
        let write = self.volume.write_side()?;
        let (counters, tells) = (&write.counters, std::mem::take(&mut self.tells));
        let (bufs, inodes, delta) = (&mut self.bufs, &mut self.inodes, &mut self.delta);
        let counts_change = std::mem::take(&mut self.changes_counts);
        let volume = self.volume;
        let publish = || {
            let _nobody_looks = counts_change.then(|| volume.counts_changing());
            bufs.iter_mut().for_each(Joined::publish);
            inodes.iter_mut().for_each(JoinedInode::publish);
            counters.apply(&std::mem::take(delta));
            tells.told(write);
        };
        let seq = self.journal.commit(ticket, &mut items, landing, publish)?;
        self.bufs.clear();
        self.inodes.iter_mut().for_each(|inode| inode.committed_in(seq));
        self.inodes.iter().for_each(|inode| self.volume.weigh_anew(inode.entry()));
        if fileio::testing::parts_land() {
            self.journal.force(seq)?;
        }
        Ok(seq)
    }

    /// One call for all that wait for this part to land.
    fn landing(&mut self) -> Option<OnLanded> {
        let all = std::mem::take(&mut self.on_landing);
        (!all.is_empty())
            .then(|| Box::new(move |outcome: Outcome| all.into_iter().for_each(|f| f(outcome))) as OnLanded)
    }
}

impl Drop for Trans<'_> {
    /// Gives back log space and blocks that were not used. What was changed and not committed never happened. Whoever panics
    /// with a part committed leaves the rest to recovery: nobody may go on with what is half done.
    fn drop(&mut self) {
        if self.rolled && std::thread::panicking() {
            self.journal.shutdown(ShutdownReason::Panicked);
        }
        if let Ok(write) = self.volume.write_side() {
            write.counters.return_blocks(self.blocks + self.delta.taken);
        }
        if let Some(ticket) = self.ticket.take() {
            self.journal.release(ticket);
        }
    }
}

impl std::fmt::Debug for Trans<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trans")
            .field("bufs", &self.bufs.len())
            .field("inodes", &self.inodes.iter().map(JoinedInode::ino).collect::<Vec<_>>())
            .field("blocks", &self.blocks)
            .finish_non_exhaustive()
    }
}
