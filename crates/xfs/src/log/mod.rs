//! The journal: write-ahead logging in XFS's own format.
//!
//! The course of a change: [`Journal::reserve`] log space → change private copies → format each item into a
//! [`LogVector`] → [`Journal::commit`] (pins, publishes, inserts into the CIL) → [`Journal::release`].
//!
//! ```text
//! commits ──> CIL, a shard a thread ──> writer: records ──> committer: flush, commit record ──> lander: AIL ──> AIL push
//!             (cil)                     (writer, record)    (writer, pipe)                      (core, ail)     (ail_push)
//! tickets <────────────────────────────── space (grant) <───────────────── the tail moves ──────────────────────┘
//! ```
//!
//! Several checkpoints are under way at a time: one gathers commits, one is cut into records, one is flushed and
//! committed, one lands, and others wait in between, all in order. The journal knows no structure of the volume. It
//! writes what it is given, and knows of its clients only [`LogItem`].
//!
//! The journal's [`Pace`] decides when checkpoints are written and items are written back. By default its threads do
//! both in the background. Then the order of commits does not determine which checkpoint has a commit, nor what an
//! item's next vector contains. Where the same changes must give the same bytes, the journal works in step: a
//! transaction that begins or rolls, and finds the open checkpoint full or no room in the log, has everything written
//! to the log and written back, and waits for that. Nothing is written at any other time. [`Pace`] only affects
//! `Journal::make_room`, [`Journal::commit`], [`Journal::push_to_reclaim`] and what the AIL push does on its own.

mod ail;
mod ail_push;
mod cil;
mod core;
mod covering;
mod designs;
mod gate;
mod grant;
mod handles;
pub mod item;
mod layout;
mod lsn_check;
#[cfg(all(test, shuttle))]
mod models;
mod open;
mod pipe;
mod record;
mod sync;
pub(crate) mod thread_slot;
mod vector;
mod worker;
mod writer;

pub use cil::Joining;
pub use designs::{CilLocks, Designs, HandleCounts, Reservations, UnknownDesign, Vectors};
pub use item::{AfterCommit, CheckpointOutcome, ItemState, LogItem, Push, WriteDone, WriteJob};
pub(crate) use item::{Entered, Pending};
pub(crate) use lsn_check::check_headers;
pub(crate) use open::{check_record_size, check_shape};
pub(crate) use vector::op_bytes;
pub use vector::{LogVector, VecSize};

use self::ail_push::{AilPusher, QUEUE_DEPTH};
use self::core::Core;
use self::grant::{Dead, GrantHead, LogSpace};
use self::sync::{JoinHandle, Mutex, lock, thread};
use self::writer::{Committer, Lander, Writer};
pub use crate::error::ShutdownReason;
use crate::error::{Error, Result};
use blockdev::{BlockDevice, DeviceError};
use lockstat::{LockClass, Mode};
use std::sync::Arc;
use std::time::Duration;
use xfs_format::log::LogEnds;
use xfs_format::superblock::Superblock;
use xfs_format::types::Lsn;

/// Called once a commit's checkpoint is committed or aborted.
pub type CommitCallback = Box<dyn FnOnce(CheckpointOutcome) + Send>;

static COMMITS: LockClass = LockClass::new(lockstat::COMMIT_CLASS);

/// Starts a thread of the journal. If it panics, nobody does its work, so the journal is shut down: others would wait
/// for it and rely on it.
fn background(core: &Arc<Core>, run: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    let end = End(Arc::clone(core));
    thread::spawn(move || {
        lockstat::this_thread_is_background();
        let _end = end;
        run();
    })
}

/// A checkpoint that the forcing thread is writing. If that panics, nobody goes on with the rest.
struct Halves<'a> {
    core: &'a Core,
    is_at_work: bool,
}

impl Drop for Halves<'_> {
    fn drop(&mut self) {
        if self.is_at_work && !cfg!(shuttle) {
            self.core.shutdown(ShutdownReason::Panicked);
        }
    }
}

/// Shuts the journal down if a thread of it panics.
struct End(Arc<Core>);

impl Drop for End {
    fn drop(&mut self) {
        // A model that panics is over.
        if std::thread::panicking() && !cfg!(shuttle) {
            self.0.shutdown(ShutdownReason::Panicked);
        }
    }
}

/// Decides when checkpoints are written and items are written back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// The journal's threads decide, in parallel with commits.
    #[default]
    Background,
    /// Only the order of the changes decides: the same calls by one thread always give the same bytes, in the log and
    /// in place. Made for one thread. Several threads work too, but wait for each other's checkpoints.
    InStep,
}

/// The checkpoint that a commit went into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CommitSeq(pub u64);

/// Log space that a transaction holds. It must be given back by [`Journal::release`].
///
/// Counted as used: the rest of the unit, the further units, and twice the bytes to log its intents again. Counted as
/// promised, from the first unit to the last: all units that are left, the present one in full even if it is the last,
/// and the bytes of its intents three times. The module `grant` says why.
///
/// Intents that recovery keeps for later take less, because nobody else uses the log then
/// (`Journal::keep_for_intents`). Used are the bytes to log them again once; promised are those and what the log has of
/// them.
#[derive(Debug)]
#[must_use = "a ticket that is not released keeps its log space"]
pub struct Ticket {
    /// Bytes of one unit, including overhead.
    unit: u64,
    /// Units that are paid for, including the current one.
    count: u32,
    /// What is left of the current unit.
    left: u64,
    /// Bytes to log all intents again once.
    intents: u64,
    /// The same for intents that are kept for later.
    kept: u64,
    /// The slot of the gate through which it came.
    slot: usize,
    /// It covers the log.
    covering: bool,
}

impl Ticket {
    /// Log bytes that the current unit may still use.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Reserved units, including the current one. Rolling beyond them waits for space.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// What it holds and is promised.
    fn space(&self) -> LogSpace {
        let count = u64::from(self.count);
        LogSpace {
            used: self.left + self.unit * (count - 1) + 2 * self.intents + self.kept,
            promised: self.unit * count + 3 * self.intents + 2 * self.kept,
        }
    }
}

/// A frozen journal: see [`Journal::freeze`].
#[derive(Debug)]
pub struct FrozenJournal<'a> {
    journal: &'a Journal,
    _only: sync::MutexGuard<'a, ()>,
}

impl FrozenJournal<'_> {
    /// Whether nothing was ever committed.
    pub fn is_untouched(&self) -> bool {
        self.journal.core.cil.opened() == 0
    }

    /// Stops the journal like [`close`](Self::close), but leaves the log as it is. Every later call fails.
    pub fn leave(self) {
        self.journal.stop(ShutdownReason::Closed);
    }

    /// Quiesces and marks the log as clean. Every later call fails.
    pub fn close(self) -> Result<()> {
        let Self { journal, .. } = self;
        let quiet = journal.quiesce();
        // An intent without a done item is left for recovery to carry out.
        let marked = quiet.is_ok() && journal.core.ail.is_empty() && journal.core.worker.unmount();
        journal.stop(if marked { ShutdownReason::Closed } else { ShutdownReason::NotClosed });
        quiet?;
        if marked { Ok(()) } else { Err(journal.core.not_written()) }
    }

    /// Stops the journal without marking the log as clean, if that is impossible. What was committed is in the log, if
    /// that still works, and whoever opens it next recovers that. Every later call fails.
    pub fn give_up(self) {
        // If it does not work, the log ends earlier.
        let _forced = self.journal.force_all();
        self.journal.stop(ShutdownReason::NotClosed);
    }
}

impl Drop for FrozenJournal<'_> {
    fn drop(&mut self) {
        self.journal.core.gate.open();
    }
}

/// The journal of one volume. Dropping it without [`close`](Self::close) is like a crash: what is not in the log is
/// lost, and the log is left for recovery.
#[derive(Debug)]
pub struct Journal {
    core: Arc<Core>,
    /// Closes and writes checkpoints, in a thread of its own or in one that forces the log. `None`, like the threads,
    /// in the handles that the journal's own threads use.
    writer: Option<Arc<Mutex<Writer>>>,
    threads: Option<Mutex<Vec<JoinHandle<()>>>>,
    /// Whether something had been left behind the end of the log, and was cleared.
    had_traces: bool,
}

impl Journal {
    /// Opens the internal log of a volume for writing. It must be clean, otherwise [`crate::Error::DirtyLog`]. `ends`
    /// is what [`crate::recovery::log_ends::log_ends`] found. If something will be [adopted](Self::adopt), their
    /// `record_size` is that of the oldest record that has some of it.
    pub fn open(
        device: Arc<dyn BlockDevice>,
        superblock: &Superblock,
        ends: LogEnds,
        pace: Pace,
        designs: Designs,
    ) -> Result<Arc<Self>> {
        let (layout, start) = open::prepare(&*device, superblock, &ends)?;
        Self::start(device, layout, start, pace, designs)
    }

    fn start(
        device: Arc<dyn BlockDevice>,
        layout: layout::LogLayout,
        start: open::LogStart,
        pace: Pace,
        designs: Designs,
    ) -> Result<Arc<Self>> {
        let queue = Arc::clone(&device).queue(QUEUE_DEPTH)?;
        let core = Arc::new(Core::new(device, layout, start, pace, designs));
        let writer = Arc::new(Mutex::new(Writer::new(Arc::clone(&core), start.head, start.previous)));
        let runs = Arc::clone(&writer);
        let (committer, lander) = (Committer::new(Arc::clone(&core)), Lander::new(Arc::clone(&core)));
        let pusher = AilPusher::new(Arc::clone(&core), queue);
        let threads = vec![
            background(&core, move || Writer::run(&runs)),
            background(&core, move || committer.run()),
            background(&core, move || lander.run()),
            background(&core, move || pusher.run()),
        ];
        let (threads, had_traces) = (Some(Mutex::new(threads)), start.had_traces);
        Ok(Arc::new(Self { core, writer: Some(writer), threads, had_traces }))
    }

    /// The journal as its own threads see it.
    fn view(core: Arc<Core>) -> Self {
        Self { core, writer: None, threads: None, had_traces: false }
    }

    /// Whether a crash or a repair had left something behind the end of the log, which was cleared.
    pub fn had_traces(&self) -> bool {
        self.had_traces
    }

    /// Reserves log space for a transaction of `count` units of at most `unit` bytes each: [`VecSize::log_bytes`] of
    /// all its items, without the overhead of records and checkpoints. Waits, in order of arrival, until there is room.
    ///
    /// `intents` is the bytes to log again all intents that the transaction has open at any one time
    /// ([`LogItem::relog`]). The caller must hold no lock that the holder of a ticket may wait for.
    ///
    /// If the log has room for one unit but not for all at once, the ticket gets as many as there is room for. A
    /// transaction that rolls beyond those may have to wait, because only the next unit is promised.
    pub fn reserve(&self, unit: u32, count: u32, intents: u32) -> Result<Ticket> {
        let core = &*self.core;
        core.check()?;
        let mut ticket = self.ticket(unit, count, intents)?;
        let claim = ticket.space();
        self.make_room(claim.used)?;
        let entered = core.gate.enter(core.grant.claim_of_kept(claim));
        let (slot, paid) = entered.ok_or_else(|| core.stopped())?;
        ticket.slot = slot;
        if paid {
            core.grant.count_kept();
            return Ok(ticket);
        }
        match core.grant.take(claim, GrantHead::Reserve, || core.ail_push.push()) {
            Ok(()) => Ok(ticket),
            Err(Dead) => {
                core.gate.leave(ticket.slot);
                Err(core.stopped())
            }
        }
    }

    /// [`Error::LogTooSmall`] if [`reserve`](Self::reserve) would fail with it, however empty the log is.
    pub fn check_size(&self, unit: u32, count: u32, intents: u32) -> Result<()> {
        self.ticket(unit, count, intents).map(|_| ())
    }

    /// [`Error::LogTooSmall`] if [`reserve`](Self::reserve) could wait for ever, because what tickets hold now is not
    /// given back before. For the only user of the journal. `owed`: bytes to log again the intents that hold the tail
    /// and for which no ticket has space.
    pub(crate) fn check_beside(&self, unit: u32, count: u32, intents: u32, owed: u64) -> Result<()> {
        let core = &*self.core;
        let ticket = self.ticket(unit, count, intents)?;
        let held = core.grant.promised() + 2 * core.layout.charge(owed);
        let (needed, room) = (held + ticket.space().promised, core.grant.promisable());
        if needed > room { Err(Error::LogTooSmall { needed, room }) } else { Ok(()) }
    }

    /// An unused ticket. In a small log it has fewer units at once.
    fn ticket(&self, unit: u32, count: u32, intents: u32) -> Result<Ticket> {
        let core = &*self.core;
        let step = core.layout.unit_reservation(unit);
        let intents = core.layout.charge(intents.into());
        let of = |steps| Ticket {
            unit: step,
            count: steps,
            left: step,
            intents,
            kept: 0,
            slot: 0,
            covering: false,
        };
        let room = core.grant.promisable();
        let fitting = (1..=count.max(1)).rev().map(of).find(|ticket| ticket.space().promised <= room);
        fitting.ok_or_else(|| Error::LogTooSmall { needed: of(1).space().promised, room })
    }

    /// Comes before a transaction takes `bytes` of log space to begin or to roll: writes checkpoints that are due.
    fn make_room(&self, bytes: u64) -> Result<()> {
        let core = &*self.core;
        match core.pace {
            Pace::Background => self.throttle(),
            Pace::InStep => {
                let short = core.grant.used().saturating_add(bytes) > core.grant.capacity();
                if short || core.cil.paid() >= core.cil.limit() { self.settle() } else { Ok(()) }
            }
        }
    }

    /// Writes everything that is committed to the log, writes it back except for intents, and waits until the journal's
    /// threads rest.
    fn settle(&self) -> Result<()> {
        let core = &*self.core;
        let _turn = lock(&core.settling);
        self.force_all()?;
        let all = core.ail_push.push_all();
        let is_written = core.ail.wait_until_written();
        drop(all);
        let is_settled = is_written && core.ail_push.wait_until_resting();
        if is_settled { Ok(()) } else { Err(core.not_written()) }
    }

    /// Holds back new transactions while the open checkpoint is twice as large as it should be.
    fn throttle(&self) -> Result<()> {
        let core = &*self.core;
        let swollen = || core.cil.paid() >= 2 * core.cil.limit();
        if !swollen() {
            return Ok(());
        }
        core.worker.push(core.cil.opened());
        if core.worker.wait_until(|| !swollen()) { Ok(()) } else { Err(core.stopped()) }
    }

    /// After the commit of one unit: prepares the ticket for the next. Waits for space only beyond the reserved units.
    /// Then it comes before all new transactions and waits only for the log. The rest of the unit is kept, because
    /// others may wait for what this transaction has locked.
    pub fn roll(&self, ticket: &mut Ticket) -> Result<()> {
        let core = &*self.core;
        core.check()?;
        if ticket.count > 1 {
            let had = ticket.space();
            (ticket.count, ticket.left) = (ticket.count - 1, ticket.unit);
            let has = ticket.space();
            core.give_back(
                ticket,
                LogSpace { used: had.used - has.used, promised: had.promised - has.promised },
            );
            return if core.pace == Pace::InStep { self.make_room(0) } else { Ok(()) };
        }
        // If vectors shrank, the ticket may have more than a unit.
        core.give_back(ticket, LogSpace::used(ticket.left.saturating_sub(ticket.unit)));
        ticket.left = ticket.left.min(ticket.unit);
        let short = ticket.unit - ticket.left;
        if core.pace == Pace::InStep {
            self.make_room(short)?;
        }
        if short > 0 {
            let taken = core.grant.take(LogSpace::used(short), GrantHead::Write, || core.ail_push.push());
            taken.map_err(|Dead| core.stopped())?;
            ticket.left = ticket.unit;
        }
        Ok(())
    }

    /// Enlarges the present unit of a ticket and the further ones by `more` bytes, counted like the unit of
    /// [`reserve`](Self::reserve). Does not wait, because others may wait for what the transaction has locked. If there
    /// is no space right now, returns `false` and changes nothing.
    pub fn extend(&self, ticket: &mut Ticket, more: u32) -> Result<bool> {
        let core = &*self.core;
        core.check()?;
        let longer = core.layout.charge(more.into());
        let claim = longer * u64::from(ticket.count);
        let extended = core.grant.try_take_at(
            ticket.slot,
            LogSpace { used: claim, promised: claim },
            GrantHead::Reserve,
        );
        if extended {
            (ticket.unit, ticket.left) = (ticket.unit + longer, ticket.left + longer);
        }
        Ok(extended)
    }

    /// Whether the present unit of a ticket has room for a commit of `bytes`, counted like the unit of
    /// [`reserve`](Self::reserve).
    pub(crate) fn has_room_for(&self, ticket: &Ticket, bytes: u64) -> bool {
        let layout = &self.core.layout;
        layout.charge(bytes) + layout.base() <= ticket.left.min(ticket.unit)
    }

    /// [Enlarges](Self::extend) the present unit of a ticket so that it has room for a commit of `bytes`. Returns whether
    /// it has.
    pub(crate) fn extend_for(&self, ticket: &mut Ticket, bytes: u64) -> Result<bool> {
        let layout = &self.core.layout;
        let missing = (layout.charge(bytes) + layout.base()).saturating_sub(ticket.left.min(ticket.unit));
        Ok(missing == 0 || self.extend(ticket, u32::try_from(missing).unwrap_or(u32::MAX))?)
    }

    /// Commits one unit. First every item is pinned, then `publish` makes the transaction's changes visible, then the
    /// items enter the CIL. No checkpoint is closed in between. `items` is left empty so that its memory can be reused.
    /// `callback` is called once the checkpoint is permanently in the log, or never will be.
    ///
    /// An item may come with a vector without regions. It is pinned and committed like the others but logs nothing. At
    /// least one item must have a region, otherwise [`Error::Internal`]: recovery, in the kernel too, takes an empty
    /// checkpoint for damage.
    ///
    /// An error means that nothing was done: no item is pinned, `publish` was not called, `items` is unchanged.
    pub fn commit(
        &self,
        ticket: &mut Ticket,
        items: &mut Vec<(Arc<dyn LogItem>, LogVector)>,
        landed: Option<CommitCallback>,
        publish: impl FnOnce(),
    ) -> Result<CommitSeq> {
        if items.iter().all(|(_, vector)| vector.regions() == 0) {
            self.core.check()?;
            return Err(Error::Internal("a transaction that logs nothing was committed"));
        }
        self.commit_with(ticket, landed, |joining| {
            items.drain(..).for_each(|(item, vector)| joining.vector(item, vector));
            publish();
        })
    }

    /// Like [`commit`](Self::commit), for items that pin and publish themselves. `enter` makes each join the
    /// checkpoint. At least one of them has a region.
    pub(crate) fn commit_with(
        &self,
        ticket: &mut Ticket,
        landed: Option<CommitCallback>,
        enter: impl FnOnce(&mut Joining<'_>),
    ) -> Result<CommitSeq> {
        let core = &*self.core;
        core.check()?;
        let joined = core.cil.insert(ticket.covering, landed, enter).ok_or_else(|| core.stopped())?;
        if cfg!(debug_assertions) {
            // An item that an earlier commit brought into the same checkpoint costs nothing now. In a new checkpoint it
            // would.
            let (bytes, unit) = (joined.logged, ticket.unit);
            let needed = core.layout.charge(bytes) + core.layout.base();
            assert!(
                needed <= unit,
                "a step logs {bytes} bytes, for which it needs {needed} and reserved {unit}"
            );
        }
        COMMITS.count(Mode::Shared, None);
        if joined.cost >= 0 {
            let cost = joined.cost.unsigned_abs();
            debug_assert!(cost <= ticket.left, "a step took {cost} bytes of {} that were left", ticket.left);
            let short = cost.saturating_sub(ticket.left);
            if short > 0 {
                core.grant.take_regardless(LogSpace::used(short));
            }
            ticket.left = ticket.left.saturating_sub(cost);
        } else {
            ticket.left += joined.cost.unsigned_abs();
        }
        let due = joined.full && core.pace == Pace::Background;
        if due || core.lacks_space() {
            core.worker.push(joined.seq);
            core.pipe.grown();
        }
        Ok(CommitSeq(joined.seq))
    }

    /// Gives back what is left of a ticket, after the last commit or instead of it.
    pub fn release(&self, ticket: Ticket) {
        self.core.give_back(&ticket, ticket.space());
        self.core.gate.leave(ticket.slot);
    }

    /// Gives back a ticket, except for the space to log its `intents` bytes of intents again once, which it had, and
    /// its entry through the gate. The result has no units. For the only user of the log, which begins nothing before
    /// there is room for all of that as well: then nothing comes between an intent and its next place in the log.
    pub(crate) fn keep_for_intents(&self, ticket: Ticket, intents: u32) -> Ticket {
        let core = &*self.core;
        let kept = core.layout.charge(intents.into()).min(ticket.intents + ticket.kept);
        let kept = Ticket { unit: 0, count: 1, left: 0, intents: 0, kept, ..ticket };
        let (had, has) = (ticket.space(), kept.space());
        core.grant.give(LogSpace { used: had.used - has.used, promised: had.promised - has.promised });
        kept
    }

    /// Moves the space that `kept` holds for intents to another ticket.
    pub(crate) fn take_in(&self, ticket: &mut Ticket, kept: Ticket) {
        debug_assert!(kept.unit == 0 && kept.intents == 0, "only what is kept for intents");
        ticket.kept += kept.kept;
        self.core.gate.leave(kept.slot);
    }

    /// Waits until the checkpoint `upto`, and all before it, are permanently in the log and their items unpinned. If a
    /// device error prevents that, this fails with that error; later calls fail with [`Error::Shutdown`].
    pub fn force(&self, upto: CommitSeq) -> Result<()> {
        let core = &*self.core;
        // Check in this order: what is in the log lands before a failure of a later checkpoint shuts the journal down.
        let checked = core.check();
        if core.worker.is_done(upto.0) {
            return Ok(());
        }
        checked?;
        let upto = upto.min(self.newest());
        if !self.push_here(upto.0) {
            core.worker.push(upto.0);
        }
        if core.worker.wait_done(upto.0) { Ok(()) } else { Err(core.not_written()) }
    }

    /// Writes checkpoint `seq` in this thread if it is still open, instead of the writer thread, provided that the
    /// writer is idle and a flush costs nothing. If a flush costs something, others should rather commit meanwhile and
    /// share it. Returns whether the checkpoint is closed.
    fn push_here(&self, seq: u64) -> bool {
        let core = &*self.core;
        if core.device.has_write_cache() || core.cil.seq() > seq {
            return core.cil.seq() > seq;
        }
        // Dropped after the writer's lock: a panic leaves half a checkpoint. Before the writer is at work, a panic is
        // the caller's own.
        let mut halves = Halves { core, is_at_work: false };
        let Some(mut writer) = self.writer.as_ref().and_then(|writer| writer.lock().ok()) else {
            return false;
        };
        if core.cil.seq() <= seq && core.cil.is_open() {
            halves.is_at_work = true;
            core.worker.pushes_here(core.cil.seq());
            writer.push();
            halves.is_at_work = false;
        }
        core.cil.seq() > seq
    }

    /// Whether checkpoint `upto` is permanently in the log.
    pub fn is_forced(&self, upto: CommitSeq) -> bool {
        self.core.worker.is_done(upto.0)
    }

    /// Whether the device will be flushed between now and the end of checkpoint `upto`. If so, what was written to it
    /// before this call is durable once the checkpoint is [forced](Self::force).
    pub fn will_flush(&self, upto: CommitSeq) -> bool {
        self.core.pipe.last_flushed_for() < upto.0
    }

    /// Waits until all that was committed before this call is permanently in the log.
    pub fn force_all(&self) -> Result<()> {
        self.force(self.newest())
    }

    /// The youngest checkpoint that has items.
    pub fn newest(&self) -> CommitSeq {
        CommitSeq(self.core.cil.opened())
    }

    /// Asks for the open checkpoint to be written, if it has items, without waiting for it.
    pub fn push_cil(&self) {
        self.core.worker.push(self.newest().0);
    }

    /// Waits until no ticket is open, and holds new ones back as long as the result lives; only this thread can still
    /// get some. The caller must not hold a ticket.
    pub fn freeze(&self) -> Result<FrozenJournal<'_>> {
        let _only = lock(&self.core.freezing);
        self.core.check()?;
        let still = self.core.gate.close();
        let frozen = FrozenJournal { journal: self, _only };
        if still { Ok(frozen) } else { Err(self.core.stopped()) }
    }

    /// Whether it is being frozen, and how many threads wait for the end of that.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn at_gate(&self) -> (bool, u32) {
        self.core.gate.look()
    }

    /// Adds an item to the AIL that the log has from before this journal was opened. The tail does not move beyond
    /// `lsn` as long as it is there. Must be called before anything is reserved, with items in log order.
    pub fn adopt(&self, lsn: Lsn, item: Arc<dyn LogItem>) {
        let core = &*self.core;
        core.grant.take_regardless(LogSpace::used(core.ail.adopt(lsn, item)));
        core.pipe.keep(core.ail.tail());
    }

    /// Whether this log can have issued an LSN: it must be before the head. The error is the head. An LSN equal to the
    /// head would also be that of the next checkpoint.
    #[inline]
    pub fn check_lsn(&self, lsn: Lsn) -> Result<(), Lsn> {
        let Core { layout, head, .. } = &*self.core;
        let head = layout::Pos(head.load(sync::Ordering::Acquire));
        if layout.pos(lsn) >= head { Err(layout.lsn(head)) } else { Ok(()) }
    }

    /// [`Error::LogTooSmall`] if adopted items leave no room for a transaction of `count` steps of `unit` bytes. It
    /// would wait for ever, because only such a transaction can settle them.
    pub fn check_room(&self, unit: u32, count: u32) -> Result<()> {
        let (used, capacity) = self.space();
        let step = self.core.layout.unit_reservation(unit);
        let needed = used.saturating_add(step.saturating_mul(count.max(1).into()));
        if needed > capacity { Err(Error::LogTooSmall { needed, room: capacity }) } else { Ok(()) }
    }

    /// Asks for everything in the AIL up to `target` to be written back, without waiting for it.
    pub fn push_ail(&self, target: Lsn) {
        self.core.ail_push.push_to(target);
    }

    /// Asks for the open checkpoint to go to the log and for everything in the log to be written back, without waiting:
    /// items take too much memory. Further calls do nothing until a checkpoint has been committed.
    pub fn push_to_reclaim(&self) {
        let core = &*self.core;
        let landed = core.ail.committed_to();
        // In step, every full checkpoint is written back anyway. What the caches hold does not depend on the order of
        // changes alone, so it must have no influence.
        if core.pace == Pace::Background && core.ail_push.push_to_reclaim(landed) {
            core.worker.push(core.cil.opened());
        }
    }

    /// Like [`push_to_reclaim`](Self::push_to_reclaim), and waits, because changes come faster than they can be written
    /// back. The wait is bounded, because some items may only be settled by the caller's next transaction. The caller
    /// must hold no ticket.
    pub fn push_to_reclaim_and_wait(&self) -> Result<()> {
        const PATIENCE: Duration = Duration::from_millis(100);
        if self.core.pace == Pace::Background {
            self.force_all()?;
            let landed = self.core.ail.committed_to();
            self.push_ail(landed);
            self.core.ail.wait_until_behind(landed, PATIENCE);
        }
        Ok(())
    }

    /// Removes an item from the AIL, unless a later checkpoint has moved it on from `lsn`. For [`WriteJob::done`].
    pub fn ail_remove(&self, item: &Arc<dyn LogItem>, lsn: Lsn) {
        self.core.grant.give(LogSpace::used(self.core.ail.remove([(item, lsn)].into_iter())));
    }

    /// Forces the log and waits until all of it is written back. Nobody may commit meanwhile.
    pub fn quiesce(&self) -> Result<()> {
        let core = &*self.core;
        loop {
            self.settle()?;
            if !core.cil.is_open() {
                return Ok(());
            }
        }
    }

    /// Waits for open tickets, quiesces, and marks the log as clean. Every later call fails.
    pub fn close(&self) -> Result<()> {
        self.freeze()?.close()
    }

    /// Stops everything. What is not in the log never will be, except for a record that is being written. Every later
    /// call fails.
    pub fn shutdown(&self, why: ShutdownReason) {
        self.core.shutdown(why);
    }

    /// Like [`shutdown`](Self::shutdown), after a device failure: waiters for the log get its error.
    pub fn shutdown_for(&self, why: ShutdownReason, error: &DeviceError) {
        self.core.shutdown_for(why, error);
    }

    /// Like [`shutdown`](Self::shutdown), and waits until no write is under way, neither by the journal nor by anybody
    /// in the middle of a transaction. The caller must not hold a ticket.
    pub fn halt(&self, why: ShutdownReason) {
        self.stop(why);
        self.core.gate.empty();
    }

    /// Why the journal was shut down, if it was.
    pub fn is_shut_down(&self) -> Option<ShutdownReason> {
        self.core.down()
    }

    /// From here on, lookups no longer say where a file's bytes are to be written.
    pub(crate) fn stop_writes(&self) {
        self.core.stop_writes();
    }

    /// Whether writes were stopped, or the journal was shut down. Costs one load.
    #[inline]
    pub(crate) fn has_stopped_writes(&self) -> bool {
        self.core.has_stopped_writes()
    }

    /// Bytes of log space in use, and the maximum.
    pub fn space(&self) -> (u64, u64) {
        (self.core.grant.used(), self.core.grant.capacity())
    }

    /// Takes all log space that can be promised, for a test that is alone. Returns how much.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn take_all(&self) -> u64 {
        let grant = &self.core.grant;
        let rest = (grant.promisable() - grant.promised()).min(grant.capacity() - grant.used());
        let all = LogSpace { used: rest, promised: rest };
        assert!(grant.try_take(all, GrantHead::Reserve), "somebody else takes log space");
        rest
    }

    /// Gives back what [`take_all`](Self::take_all) took.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn give_all(&self, all: u64) {
        self.core.grant.give(LogSpace { used: all, promised: all });
    }

    /// Waits until nothing more is written as long as nobody commits.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn wait_until_still(&self) {
        assert!(self.core.ail_push.wait_until_resting() && self.core.worker.wait_pushed());
    }

    /// Ends the journal, if that has not happened yet: its threads end, and it drops all items.
    pub(crate) fn end(&self) {
        self.stop(ShutdownReason::Closed);
    }

    /// Stops the threads and drops all items.
    fn stop(&self, why: ShutdownReason) {
        self.core.shutdown(why);
        let Some(threads) = &self.threads else { return };
        let mine = thread::current().id();
        // A second caller waits as well.
        let mut threads = lock(threads);
        for handle in threads.drain(..) {
            // A callback of an item may drop the last handle of the journal.
            if handle.thread().id() != mine {
                // A thread that panicked has reported that and shut the journal down.
                let _ = handle.join();
            }
        }
        self.core.ail.clear();
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if self.threads.is_some() {
            self.end();
        }
    }
}
