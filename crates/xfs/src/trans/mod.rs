//! Transactions: changes that become visible and durable together, or not at all.
//!
//! A [`Trans`] reserves log space and blocks before it locks anything. It locks the buffers and inodes that it changes,
//! and works on private copies. [`Trans::commit`] formats, pins, publishes and hands the log vectors to the journal.
//! Dropping a transaction leaves everything as it was. Work that must not be done in the same transaction, such as
//! freeing blocks, is deferred: the transaction logs an intent, and [`Trans::finish`] does the work in further, rolled
//! transactions.
//!
//! Invariants:
//! - nothing outside of the transaction sees a change before the commit;
//! - buffers and inodes stay locked from the first look to the commit, and inodes over rolls, too;
//! - blocks taken never exceed the blocks reserved, so that space cannot run out half-way;
//! - inodes are joined in ascending order of their numbers;
//! - group headers are waited for in ascending order of their groups, and within a group the AGI before the AGF, which
//!   guards the AGFL.

mod buffers;
mod deferred;

mod inodes;
pub mod reservation;
mod space;
pub(crate) mod superblock;
#[cfg(all(test, not(shuttle)))]
mod tests;

pub use buffers::BufIndex;
pub(crate) use deferred::{AttrWork, CaptureList, FreeWork, Intent, IntentWork, Work, ids_behind};

use crate::alloc::{AgExtent, OwnerClaim};
use crate::counters::{Counters, Delta};
use crate::error::{Error, Result};
use crate::log::{
    CheckpointOutcome, CommitCallback, CommitSeq, Joining, Journal, LogItem, LogVector, ShutdownReason,
    Ticket,
};
use crate::mount::{Mount, WriteSide};
use buffers::{JoinedBuf, Snapshots};
use deferred::Deferred;
use inodes::JoinedInode;
use reservation::{LogNeed, Reservation, WhenFull};
use std::sync::Arc;
use superblock::SuperblockChanges;
use xfs_format::geometry::Geometry;
use xfs_format::types::AgNumber;

/// The number of buffers that most transactions lock.
const USUAL_BUFS: usize = 8;
const USUAL_INODES: usize = 2;

/// Blocks that a removal gets of the reserve pool, if there are not as many as it may need: one for each of the maps that
/// it changes, and one more.
const LEAST_FROM_POOL: u64 = 4;

/// For a transaction that has given its ticket back. Only dropping it does that.
const NO_TICKET: Error = Error::Internal("a transaction went on without a ticket");

/// An open transaction.
pub struct Trans<'v> {
    mount: &'v Arc<Mount>,
    journal: &'v Arc<Journal>,
    ticket: Option<Ticket>,
    bufs: Vec<JoinedBuf>,
    snapshots: Snapshots,
    inodes: Vec<JoinedInode>,
    extra: Vec<(Arc<dyn LogItem>, LogVector)>,
    on_commit: Vec<CommitCallback>,
    deferred: Deferred,
    /// What this part freed. It is busy from the commit on.
    freed: Vec<(AgNumber, AgExtent)>,
    /// Blocks that this part left with a single owner.
    unshared: Vec<(AgNumber, AgExtent)>,
    /// Whether this part changes reference counts.
    changes_counts: bool,
    delta: Delta,
    /// Blocks that are reserved and not yet taken.
    blocks: u64,
    /// Whether blocks that it frees stay reserved for it.
    keeps_freed: bool,
    /// Whether part of the work is committed already, so that the rest must follow.
    rolled: bool,
    /// If it has less log space than it may need, and can begin again with more: log bytes of a unit that suffices for
    /// deferred work.
    begins_small: Option<u32>,
    /// Whether this part gives an inode its first attribute.
    pub(crate) makes_attributes: bool,
    /// What this part changes in the superblock.
    superblock_changes: SuperblockChanges,
    /// Room in groups for their rmap trees to grow.
    pub(crate) claim: Option<Box<OwnerClaim<'v>>>,
}

/// Runs an operation that begins with the log space that it usually needs: see [`Reservation::beginning_with`]. If that
/// turns out not to be enough, the operation runs once more, with all that it may need.
pub(crate) fn begin_small<R>(mut operation: impl FnMut(LogNeed) -> Result<R>) -> Result<R> {
    match operation(LogNeed::Usual) {
        Err(Error::ReservationShort) => {
            fileio::testing::point("an operation begins again");
            operation(LogNeed::Most)
        }
        done => done,
    }
}

impl<'v> Trans<'v> {
    /// Reserves what `reservation` asks for, waiting for log space, and opens a transaction. The caller must hold no
    /// lock that a transaction takes. [`Error::NoSpace`] comes before anything has changed, and only after unused
    /// blocks of CoW forks have been freed.
    pub fn start(mount: &'v Arc<Mount>, reservation: Reservation) -> Result<Self> {
        match Self::reserve(mount, reservation) {
            Err(Error::NoSpace) if mount.block_gc()? => Self::reserve(mount, reservation),
            other => other,
        }
    }

    /// Does `work` in a transaction that has all of the `kept` blocks, which the caller reserved before. If these are
    /// fewer than `reservation` asks for, it takes more where there are some. Afterwards `kept` has what is left and
    /// what was freed, whether the work succeeded or not.
    pub(crate) fn with_kept<R>(
        mount: &'v Arc<Mount>,
        reservation: Reservation,
        kept: &mut u64,
        work: impl FnOnce(&mut Self) -> Result<R>,
    ) -> Result<R> {
        let mut trans = Self::start(mount, Reservation { blocks: 0, ..reservation })?;
        let more = reservation.blocks.saturating_sub(*kept);
        trans.blocks = std::mem::take(kept) + mount.write_side()?.counters.reserve_some(more);
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

    fn reserve(mount: &'v Arc<Mount>, reservation: Reservation) -> Result<Self> {
        let write = mount.write_side()?;
        mount.reclaim_caches(&write.journal)?;
        let more = if Self::is_quota_counted(mount)? { superblock::log_bytes(mount) } else { 0 };
        let (log_bytes, log_count) = reservation.first_log_space();
        if reservation.usual_log_bytes.is_some() {
            // Whether the log is large enough must not depend on what turns out to be needed.
            let Reservation { log_bytes, log_count, intent_bytes, .. } = reservation;
            write.journal.check_size(log_bytes + more, log_count, intent_bytes)?;
        }
        let ticket = write.journal.reserve(log_bytes + more, log_count, reservation.intent_bytes)?;
        // Reserve only behind the gate: whoever freezes the journal must find counters without open reservations.
        let blocks = match Self::reserve_blocks(&write.counters, &reservation) {
            Ok(blocks) => blocks,
            Err(error) => {
                write.journal.release(ticket);
                return Err(error);
            }
        };
        let mut trans = Self::with(mount, write, ticket, blocks);
        trans.deferred = Deferred::within(reservation.intent_bytes);
        trans.begins_small = reservation.usual_log_bytes.map(|_| reservation.deferred_log_bytes);
        Ok(trans)
    }

    /// Reserves blocks. Returns how many.
    fn reserve_blocks(counters: &Counters, reservation: &Reservation) -> Result<u64> {
        let wanted = reservation.blocks;
        match reservation.when_full {
            WhenFull::ReservePool => Ok(counters.reserve_from_pool(wanted, LEAST_FROM_POOL, 0)),
            WhenFull::HalfOfReservePool => {
                Ok(counters.reserve_from_pool(wanted, LEAST_FROM_POOL, counters.reserve_pool() / 2))
            }
            WhenFull::GoOn => Ok(counters.reserve_blocks(wanted).map_or(0, |()| wanted)),
            WhenFull::Refuse => counters.reserve_blocks(wanted).map(|()| wanted),
        }
    }

    /// Fails if the log is too small for a transaction with this reservation.
    pub(crate) fn check_log(mount: &'v Arc<Mount>, reservation: Reservation) -> Result<()> {
        let more = if Self::is_quota_counted(mount)? { superblock::log_bytes(mount) } else { 0 };
        let Reservation { log_bytes, log_count, .. } = reservation;
        let journal = &mount.write_side()?.journal;
        journal.check_size(log_bytes + more, log_count, reservation.intent_bytes)
    }

    /// Like [`start`](Self::start), for the only user of the volume, which holds log space that it does not give back
    /// before. Fails with [`Error::LogTooSmall`] where it would wait for itself. `owed`: log bytes to log again the
    /// intents that hold no reservation.
    pub(crate) fn start_alone(mount: &'v Arc<Mount>, reservation: Reservation, owed: u64) -> Result<Self> {
        Self::check_alone(mount, reservation, owed)?;
        Self::start(mount, reservation)
    }

    /// Whether [`start_alone`](Self::start_alone) has log space.
    pub(crate) fn check_alone(mount: &'v Arc<Mount>, reservation: Reservation, owed: u64) -> Result<()> {
        let more = if Self::is_quota_counted(mount)? { superblock::log_bytes(mount) } else { 0 };
        let Reservation { log_bytes, log_count, intent_bytes, .. } = reservation;
        mount.write_side()?.journal.check_beside(log_bytes + more, log_count, intent_bytes, owed)
    }

    /// Opens a transaction that covers the log (see [`Journal::reserve_to_cover`]), if the log needs it. Does not wait.
    pub(crate) fn start_covering(mount: &'v Arc<Mount>, reservation: Reservation) -> Result<Option<Self>> {
        let write = mount.write_side()?;
        let ticket = write.journal.reserve_to_cover(reservation.log_bytes);
        Ok(ticket.map(|ticket| Self::with(mount, write, ticket, 0)))
    }

    fn with(mount: &'v Arc<Mount>, write: &'v WriteSide, ticket: Ticket, blocks: u64) -> Self {
        Self {
            mount,
            journal: &write.journal,
            ticket: Some(ticket),
            bufs: Vec::with_capacity(USUAL_BUFS),
            snapshots: Snapshots::default(),
            inodes: Vec::with_capacity(USUAL_INODES),
            extra: Vec::new(),
            on_commit: Vec::new(),
            deferred: Deferred::default(),
            freed: Vec::new(),
            unshared: Vec::new(),
            changes_counts: false,
            delta: Delta::default(),
            blocks,
            keeps_freed: false,
            rolled: false,
            begins_small: None,
            makes_attributes: false,
            superblock_changes: SuperblockChanges::default(),
            claim: None,
        }
    }

    /// The volume.
    pub fn mount(&self) -> &'v Arc<Mount> {
        self.mount
    }

    /// The volume's shape.
    pub fn geometry(&self) -> &'v Geometry {
        self.mount.geometry()
    }

    /// Reserved blocks that are left.
    pub fn blocks_left(&self) -> u64 {
        self.blocks
    }

    /// Takes blocks from the reservation, for an allocation that is about to change the free space trees.
    pub fn take_blocks(&mut self, count: u64) -> Result<()> {
        self.blocks = self.blocks.checked_sub(count).ok_or(Error::NoSpace)?;
        self.delta.taken += count;
        Ok(())
    }

    /// Counts blocks that this transaction added to the free space trees.
    pub fn give_blocks(&mut self, count: u64) {
        match self.keeps_freed {
            true => self.blocks += count,
            false => self.delta.freed += count,
        }
    }

    /// Sets this many blocks aside that count as free, for a volume that grows.
    pub(crate) fn keep_back(&mut self, more: i64) {
        self.delta.space_trees += more;
    }

    /// Keeps the blocks that the work frees reserved for its later parts.
    pub(crate) fn keep_what_is_freed(&mut self) {
        self.keeps_freed = true;
    }

    /// Counts inodes that were allocated on disk (or given back), and how many of them are free.
    pub fn count_inodes(&mut self, places: i64, free: i64) {
        self.delta.inodes += places;
        self.delta.free_inodes += free;
    }

    /// Adds a log item that has no locked buffer or inode, such as an inode create item.
    pub fn log_item(&mut self, item: Arc<dyn LogItem>, vector: LogVector) {
        self.extra.push((item, vector));
    }

    /// Runs `f` once this part of the transaction is on disk.
    pub fn on_commit(&mut self, f: impl FnOnce(CheckpointOutcome) + Send + 'static) {
        self.on_commit.push(Box::new(f));
    }

    /// Commits and carries out what was deferred. An error before the first commit has changed nothing. After it the
    /// volume is shut down, because half of the work is in the log.
    pub fn commit(self) -> Result<CommitSeq> {
        self.commit_and(|| ())
    }

    /// Like [`commit`](Self::commit). If it succeeds, calls `more` before the inodes are unlocked.
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
            self.mount.shut_down(error);
        }
        // Either way, nothing has to follow.
        self.rolled = false;
        done
    }

    /// Commits what there is and goes on with the same inodes locked and the rest of the reservation. Buffers are
    /// released. Only for work that can be resumed from what is committed.
    pub fn roll(&mut self) -> Result<()> {
        self.commit_part()?;
        self.rolled = true;
        let ticket = self.ticket.as_mut().ok_or(NO_TICKET)?;
        self.journal.roll(ticket)
    }

    /// Whether nothing has been changed so far.
    pub fn is_clean(&self) -> bool {
        self.extra.is_empty()
            && self.deferred.is_empty()
            && self.bufs.iter().all(JoinedBuf::is_clean)
            && self.inodes.iter().all(JoinedInode::is_clean)
    }

    /// Formats, pins, publishes, inserts into the CIL, and releases buffers. Inodes stay locked.
    fn commit_part(&mut self) -> Result<CommitSeq> {
        self.log_intents();
        self.forget_snapshots();
        self.clear_quota_counted()?;
        self.log_attr_feature()?;
        self.take_log_space()?;
        self.mark_busy()?;
        let landing = self.commit_callback();
        if !self.is_logged() {
            self.bufs.clear();
            return Ok(CommitSeq::default());
        }
        let counted = self.counted_log_bytes();
        let Some(ticket) = self.ticket.as_mut() else { return Err(NO_TICKET) };
        let changed = self.inodes.iter_mut().filter(|inode| !inode.is_clean());
        changed.for_each(JoinedInode::count_change);
        let write = self.mount.write_side()?;
        let (counters, tells) = (&write.counters, std::mem::take(&mut self.superblock_changes));
        let (bufs, inodes, delta) = (&mut self.bufs, &mut self.inodes, &mut self.delta);
        let extra = std::mem::take(&mut self.extra);
        let counts_change = std::mem::take(&mut self.changes_counts);
        let mount = self.mount;
        let enter = |joining: &mut Joining<'_>| {
            extra.into_iter().for_each(|(item, vector)| joining.vector(item, vector));
            let _nobody_looks = counts_change.then(|| mount.counts_changing());
            // Buffers are published first, so that what an inode points to is visible before the inode.
            bufs.iter_mut().for_each(|buf| buf.commit(joining));
            inodes.iter_mut().for_each(|inode| inode.commit(joining));
            debug_assert!(counted.is_none_or(|bytes| joining.logged() <= bytes), "{counted:?}: {joining:?}");
            counters.apply(&std::mem::take(delta));
            tells.told(write);
        };
        let seq = self.journal.commit_with(ticket, landing, enter)?;
        self.bufs.clear();
        self.inodes.iter_mut().for_each(|inode| inode.committed_in(seq));
        self.inodes.iter().for_each(|inode| self.mount.weigh_anew(inode.entry(), inode.inode()));
        if fileio::testing::parts_land() {
            self.journal.force(seq)?;
        }
        Ok(seq)
    }

    /// Makes sure that there is log space for the first part, if the transaction began with less than it may need, and for
    /// each further part, if this one defers work. [`Error::ReservationShort`] if there is none.
    fn take_log_space(&mut self) -> Result<()> {
        let Some(of_deferred) = self.begins_small.filter(|_| !self.rolled) else { return Ok(()) };
        if fileio::testing::begins_again() {
            return Err(Error::ReservationShort);
        }
        let least = if self.deferred.is_empty() { 0 } else { of_deferred.into() };
        let most = self.log_bytes(JoinedBuf::log_bytes_most).max(least);
        let Some(ticket) = &self.ticket else { return Err(NO_TICKET) };
        if self.journal.has_room_for(ticket, most) {
            return Ok(());
        }
        let needed = self.log_bytes(JoinedBuf::log_bytes).max(least);
        let Some(ticket) = &mut self.ticket else { return Err(NO_TICKET) };
        if self.journal.extend_for(ticket, needed)? { Ok(()) } else { Err(Error::ReservationShort) }
    }

    /// Debug builds check that as many bytes are logged as were counted before, at most. Skipped where locks are counted:
    /// the check would add to those of a release build.
    fn counted_log_bytes(&self) -> Option<u64> {
        let is_checked = cfg!(debug_assertions) && !lockstat::is_enabled();
        let counted = is_checked.then(|| self.log_bytes(JoinedBuf::log_bytes));
        debug_assert!(counted.is_none_or(|bytes| bytes <= self.log_bytes(JoinedBuf::log_bytes_most)));
        counted
    }

    /// Log bytes of this part, where a buffer takes what `of_buf` says.
    fn log_bytes(&self, of_buf: impl Fn(&JoinedBuf) -> u64) -> u64 {
        let of_inode = reservation::inode_bytes(self.geometry().inode_size);
        let bufs = self.bufs.iter().filter(|buf| buf.is_logged()).map(of_buf);
        let inodes = self.inodes.iter().filter(|inode| !inode.is_clean()).map(|_| of_inode);
        let extra = self.extra.iter().map(|(_, vector)| u64::from(vector.log_bytes()));
        bufs.chain(inodes).chain(extra).sum()
    }

    /// Whether this part has anything to log.
    fn is_logged(&self) -> bool {
        !self.extra.is_empty()
            || self.bufs.iter().any(JoinedBuf::is_logged)
            || self.inodes.iter().any(|inode| !inode.is_clean())
    }

    /// One callback for all that wait for the commit of this part.
    fn commit_callback(&mut self) -> Option<CommitCallback> {
        let all = std::mem::take(&mut self.on_commit);
        (!all.is_empty()).then(|| {
            Box::new(move |outcome: CheckpointOutcome| all.into_iter().for_each(|f| f(outcome)))
                as CommitCallback
        })
    }
}

impl Drop for Trans<'_> {
    /// Gives back log space and blocks that were not used. Uncommitted changes never happened. If a thread panics after
    /// a part was committed, the rest is left to recovery: nobody may go on from a half-done change.
    fn drop(&mut self) {
        if self.rolled && std::thread::panicking() {
            self.journal.shutdown(ShutdownReason::Panicked);
        }
        if let Ok(write) = self.mount.write_side() {
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
