//! The journal: write-ahead logging in XFS's own format.
//!
//! The way of a change: [`Journal::reserve`] log space → change private copies → format each item into a
//! [`LogVector`] → [`Journal::commit`] (pins, publishes, inserts into the CIL) → [`Journal::release`].
//!
//! ```text
//! commits ──> CIL, a shard a thread ──> writer: records ──> committer: flush, commit record ──> AIL ──> pusher
//!             (cil)                     (writer, record)    (writer, pipe, core)                (ail)   (pusher)
//! tickets <────────────────────────────── space (grant) <───────────────── the tail moves ──────────────┘
//! ```
//! Several checkpoints are under way at a time: one gathers commits, one is cut into records, those behind it wait
//! for their flush, commit and landing, all in order. The journal knows no structure of the volume: what it is
//! given it writes, and [`LogItem`] is all it knows of who gave it.
//!
//! When checkpoints are written, and items written back, is the journal's [`Pace`]. Its threads do both in the
//! background, so that the order of commits alone does not tell which checkpoint holds one, nor what an item's next
//! vector holds. Where the same changes must give the same bytes it works in step: whoever begins a transaction, or
//! goes on with one, and finds the open checkpoint full (or no room in the log) has all of it written, and written
//! back, and waits for that. Nothing happens otherwise. All that [`Pace`] changes is in `Journal::make_room`,
//! [`Journal::commit`], [`Journal::relieve`] and what the pusher does unasked.

mod ail;
mod behind;
mod cil;
mod core;
mod covering;
mod designs;
mod gate;
mod grant;
mod handles;
pub mod item;
mod layout;
#[cfg(all(test, shuttle))]
mod models;
mod open;
mod orders;
mod pipe;
mod pusher;
mod record;
mod sync;
mod thread_slot;
mod vector;
mod writer;

pub(crate) use behind::check_headers;
pub use designs::{CilLocks, Designs, HandleCounts, Reservations, UnknownDesign, Vectors};
pub use item::{ItemState, Landing, LogItem, Outcome, Push, WriteDone, WriteJob};
pub(crate) use open::{check_record_size, check_shape};
pub use vector::{LogVector, VecSize};

use self::core::Core;
use self::grant::{Dead, Space, Turn};
use self::pusher::{Pusher, QUEUE_DEPTH};
use self::sync::{JoinHandle, Mutex, lock, thread};
use self::writer::{Committer, Writer};
pub use crate::error::ShutdownReason;
use crate::error::{Error, Result};
use blockdev::{BlockDevice, DeviceError};
use lockstat::{LockClass, Mode};
use std::sync::Arc;
use std::time::Duration;
use xfs_format::log::LogEnds;
use xfs_format::superblock::Superblock;
use xfs_format::types::Lsn;

/// Runs once the fate of a commit's checkpoint is known.
pub type OnLanded = Box<dyn FnOnce(Outcome) + Send>;

static COMMITS: LockClass = LockClass::new(lockstat::COMMIT_CLASS);

/// A thread of the journal's own. If it panics, what it did is done by nobody: the journal is shut down, as others would
/// wait for it, and rely on it.
fn background(core: &Arc<Core>, run: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    let end = End(Arc::clone(core));
    thread::spawn(move || {
        lockstat::this_thread_is_background();
        let _end = end;
        run();
    })
}

/// A checkpoint that is being written by whoever forces the log: of one that is left in a panic, nobody goes on.
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

/// The end of a thread of the journal, however it comes.
struct End(Arc<Core>);

impl Drop for End {
    fn drop(&mut self) {
        // A model that panics is over.
        if std::thread::panicking() && !cfg!(shuttle) {
            self.0.shutdown(ShutdownReason::Panicked);
        }
    }
}

/// Who says when checkpoints are written and items written back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// The journal's threads, beside the commits.
    #[default]
    Background,
    /// The order of the changes alone: what one thread does always gives the same bytes, in the log and in the
    /// places of the items. Made for one thread; several are in nobody's way but wait for each other's checkpoints.
    InStep,
}

/// Names the checkpoint that a commit went into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CommitSeq(pub u64);

/// Log space that a transaction holds. It must be given back by [`Journal::release`].
///
/// Used is what it holds: what is left of the step, the steps behind it, and twice what it takes to log its intents
/// again. Promised, from the first step to the last, are all steps that it has left, and the present one whole even
/// when there is none behind it; and what its intents take three times. See the module `grant` for what that is good for.
///
/// Intents that recovery keeps for later take less, as nobody else uses the log then (`Journal::keep_for_intents`): used
/// is what it takes to log them again once, promised that and what the log has of them.
#[derive(Debug)]
#[must_use = "a ticket that is not released keeps its log space"]
pub struct Ticket {
    /// Bytes of one step, overhead included.
    step: u64,
    /// Steps that are paid for, with the current one.
    steps: u32,
    /// What is left of the current step.
    left: u64,
    /// What it takes to log all intents again, once.
    intents: u64,
    /// The same, of intents that are kept for later.
    kept: u64,
    /// Through which slot of the gate it came.
    slot: usize,
    /// It is for what covers the log.
    covering: bool,
}

impl Ticket {
    /// Bytes of log space that the current step may still use.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Steps that are reserved, the current one included. Rolling beyond them waits for space.
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// What it holds, and is promised.
    fn space(&self) -> Space {
        let steps = u64::from(self.steps);
        Space {
            used: self.left + self.step * (steps - 1) + 2 * self.intents + self.kept,
            promised: self.step * steps + 3 * self.intents + 2 * self.kept,
        }
    }
}

/// A journal that is held still: see [`Journal::freeze`].
#[derive(Debug)]
pub struct Frozen<'a> {
    journal: &'a Journal,
    _only: sync::MutexGuard<'a, ()>,
}

impl Frozen<'_> {
    /// Whether nothing was ever committed.
    pub fn is_untouched(&self) -> bool {
        self.journal.core.cil.opened() == 0
    }

    /// Stops the journal as [`close`](Self::close) does, and leaves the log as it is. Every later call fails.
    pub fn leave(self) {
        self.journal.stop(ShutdownReason::Closed);
    }

    /// Quiesces, and marks the log as clean. Every later call fails.
    pub fn close(self) -> Result<()> {
        let Self { journal, .. } = self;
        let quiet = journal.quiesce();
        // An intent that nobody ended is for recovery to carry out.
        let marked = quiet.is_ok() && journal.core.ail.is_empty() && journal.core.orders.unmount();
        journal.stop(if marked { ShutdownReason::Closed } else { ShutdownReason::NotClosed });
        quiet?;
        if marked { Ok(()) } else { Err(journal.core.not_written()) }
    }

    /// Stops the journal without a mark, for what cannot be closed: what was committed is in the log, if that still works,
    /// and the next to open it recovers that. Every later call fails.
    pub fn give_up(self) {
        // Where it does not work, the log ends before.
        let _forced = self.journal.force_all();
        self.journal.stop(ShutdownReason::NotClosed);
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        self.journal.core.gate.open();
    }
}

/// The journal of one volume. Dropping it without [`close`](Self::close) is a crash: what is not in the log is
/// lost, and the log is left to be recovered.
#[derive(Debug)]
pub struct Journal {
    core: Arc<Core>,
    /// What closes checkpoints and writes them, in a thread of its own or in one that forces the log. `None`, as of the threads:
    /// what the journal's own threads see it through.
    writer: Option<Arc<Mutex<Writer>>>,
    threads: Option<Mutex<Vec<JoinHandle<()>>>>,
}

impl Journal {
    /// Opens the internal log of a volume for writing. It must be clean ([`crate::Error::DirtyLog`] if not); `ends`
    /// is what [`crate::recovery::clean::log_ends`] found. If something will be [adopted](Self::adopt), their
    /// `record_size` is that of the record which tells of the oldest.
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
        layout: layout::Layout,
        start: open::Start,
        pace: Pace,
        designs: Designs,
    ) -> Result<Arc<Self>> {
        let queue = Arc::clone(&device).queue(QUEUE_DEPTH)?;
        let core = Arc::new(Core::new(device, layout, start, pace, designs));
        let writer = Arc::new(Mutex::new(Writer::new(Arc::clone(&core), start.head, start.previous)));
        let runs = Arc::clone(&writer);
        let committer = Committer::new(Arc::clone(&core));
        let pusher = Pusher::new(Arc::clone(&core), queue);
        let threads = vec![
            background(&core, move || Writer::run(&runs)),
            background(&core, move || committer.run()),
            background(&core, move || pusher.run()),
        ];
        Ok(Arc::new(Self { core, writer: Some(writer), threads: Some(Mutex::new(threads)) }))
    }

    /// The journal as its own threads see it.
    fn view(core: Arc<Core>) -> Self {
        Self { core, writer: None, threads: None }
    }

    /// Reserves log space for a transaction of `count` steps of at most `unit` bytes each ([`VecSize::log_bytes`]
    /// of all its items; what records and checkpoints add is not for the caller to count). Waits, first come first
    /// served, until there is room.
    ///
    /// `intents` is what it takes to log again all intents at once that the transaction has open at any time
    /// ([`LogItem::relog`]). No lock may be held that somebody with a ticket may wait for.
    ///
    /// A log that has no room for all steps at once, but for one, gives as many as it has room for: who goes on behind
    /// those may have to wait, as the next step is promised alone.
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
        match core.grant.take(claim, Turn::Fresh, || core.pushing.kick()) {
            Ok(()) => Ok(ticket),
            Err(Dead) => {
                core.gate.leave(ticket.slot);
                Err(core.stopped())
            }
        }
    }

    /// [`Error::LogTooSmall`] if [`reserve`](Self::reserve) would say so, however empty the log is.
    pub fn check_size(&self, unit: u32, count: u32, intents: u32) -> Result<()> {
        self.ticket(unit, count, intents).map(|_| ())
    }

    /// [`Error::LogTooSmall`] if [`reserve`](Self::reserve) could wait for ever, as what tickets hold now is not given
    /// back before: for whoever alone uses the journal. `owed`: what it takes to log intents again that hold the tail, and
    /// for which no ticket has anything.
    pub(crate) fn check_beside(&self, unit: u32, count: u32, intents: u32, owed: u64) -> Result<()> {
        let core = &*self.core;
        let ticket = self.ticket(unit, count, intents)?;
        let held = core.grant.promised() + 2 * core.layout.charge(owed);
        let (needed, room) = (held + ticket.space().promised, core.grant.promisable());
        if needed > room { Err(Error::LogTooSmall { needed, room }) } else { Ok(()) }
    }

    /// A ticket of which nothing was taken yet. Of a small log it has fewer steps at once.
    fn ticket(&self, unit: u32, count: u32, intents: u32) -> Result<Ticket> {
        let core = &*self.core;
        let step = core.layout.step(unit);
        let intents = core.layout.charge(intents.into());
        let of = |steps| Ticket { step, steps, left: step, intents, kept: 0, slot: 0, covering: false };
        let room = core.grant.promisable();
        let fitting = (1..=count.max(1)).rev().map(of).find(|ticket| ticket.space().promised <= room);
        fitting.ok_or_else(|| Error::LogTooSmall { needed: of(1).space().promised, room })
    }

    /// Comes before a transaction takes `bytes` of log space, to begin or to go on: sees to checkpoints that are due.
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

    /// Has all that is committed written, and written back, but for intents, and waits until the journal's threads
    /// rest.
    fn settle(&self) -> Result<()> {
        let core = &*self.core;
        let _turn = lock(&core.settling);
        self.force_all()?;
        core.pushing.push_to(Lsn(u64::MAX));
        if core.ail.wait_until_written() && core.pushing.wait_until_resting() {
            Ok(())
        } else {
            Err(core.not_written())
        }
    }

    /// Holds back who would begin a transaction while the open checkpoint has twice what it should.
    fn throttle(&self) -> Result<()> {
        let core = &*self.core;
        let swollen = || core.cil.paid() >= 2 * core.cil.limit();
        if !swollen() {
            return Ok(());
        }
        core.orders.push(core.cil.opened());
        if core.orders.wait_until(|| !swollen()) { Ok(()) } else { Err(core.stopped()) }
    }

    /// After the commit of one step: makes the ticket ready for the next. Waits for space only beyond the steps
    /// that were reserved, and then before all those who begin, and for the log alone: what is left of the step is
    /// kept, as others who are served would wait for what this transaction has locked.
    pub fn roll(&self, ticket: &mut Ticket) -> Result<()> {
        let core = &*self.core;
        core.check()?;
        if ticket.steps > 1 {
            let had = ticket.space();
            (ticket.steps, ticket.left) = (ticket.steps - 1, ticket.step);
            let has = ticket.space();
            core.give_back(
                ticket,
                Space { used: had.used - has.used, promised: had.promised - has.promised },
            );
            return if core.pace == Pace::InStep { self.make_room(0) } else { Ok(()) };
        }
        // Vectors that became smaller may have given it more than a step.
        core.give_back(ticket, Space::used(ticket.left.saturating_sub(ticket.step)));
        ticket.left = ticket.left.min(ticket.step);
        let short = ticket.step - ticket.left;
        if core.pace == Pace::InStep {
            self.make_room(short)?;
        }
        if short > 0 {
            let taken = core.grant.take(Space::used(short), Turn::Rolling, || core.pushing.kick());
            taken.map_err(|Dead| core.stopped())?;
            ticket.left = ticket.step;
        }
        Ok(())
    }

    /// Makes the present step of a ticket, and those behind it, longer by `more` bytes, which are counted as the unit of
    /// [`reserve`](Self::reserve) is. Does not wait, as others may wait for what the transaction has locked: `false`, and
    /// nothing has changed, where there is no space at once.
    pub fn extend(&self, ticket: &mut Ticket, more: u32) -> Result<bool> {
        let core = &*self.core;
        core.check()?;
        let longer = core.layout.charge(more.into());
        let claim = longer * u64::from(ticket.steps);
        let extended =
            core.grant.try_take_at(ticket.slot, Space { used: claim, promised: claim }, Turn::Fresh);
        if extended {
            (ticket.step, ticket.left) = (ticket.step + longer, ticket.left + longer);
        }
        Ok(extended)
    }

    /// Commits one step. Every item is pinned, then `publish` makes the transaction's changes visible, then the
    /// items are in the CIL: no checkpoint closes in between. `items` is left empty (its memory can be used again).
    /// `landed` runs once the checkpoint is in the log for good, or never will be.
    ///
    /// An item may come with a vector without regions: it is pinned and lands like the others, and the log says
    /// nothing of it. At least one of them has a region, [`Error::EmptyCommit`] if not: a checkpoint of nothing is
    /// what recovery, the kernel's too, takes for damage.
    ///
    /// An error means that nothing was done: no item is pinned, `publish` was not called, `items` is untouched.
    pub fn commit(
        &self,
        ticket: &mut Ticket,
        items: &mut Vec<(Arc<dyn LogItem>, LogVector)>,
        landed: Option<OnLanded>,
        publish: impl FnOnce(),
    ) -> Result<CommitSeq> {
        let core = &*self.core;
        core.check()?;
        if items.iter().all(|(_, vector)| vector.regions() == 0) {
            return Err(Error::EmptyCommit);
        }
        if cfg!(debug_assertions) {
            // What an earlier commit of the same checkpoint had of an item costs nothing now; another time it would.
            let bytes: u64 = items.iter().map(|(_, vector)| u64::from(vector.log_bytes())).sum();
            let (needed, step) = (core.layout.charge(bytes) + core.layout.base(), ticket.step);
            assert!(
                needed <= step,
                "a step logs {bytes} bytes, for which it needs {needed} and reserved {step}"
            );
        }
        let joined = core.cil.join(ticket.covering, items, landed, publish).ok_or_else(|| core.stopped())?;
        COMMITS.count(Mode::Shared, None);
        if joined.cost >= 0 {
            let cost = joined.cost.unsigned_abs();
            debug_assert!(cost <= ticket.left, "a step took {cost} bytes of {} that were left", ticket.left);
            core.grant.take_regardless(Space::used(cost.saturating_sub(ticket.left)));
            ticket.left = ticket.left.saturating_sub(cost);
        } else {
            ticket.left += joined.cost.unsigned_abs();
        }
        let due = joined.full && core.pace == Pace::Background;
        if due || core.lacks_space() {
            core.orders.push(joined.seq);
            core.pipe.grown();
        }
        Ok(CommitSeq(joined.seq))
    }

    /// Gives back what is left of a ticket: after the last commit, or instead of it.
    pub fn release(&self, ticket: Ticket) {
        self.core.give_back(&ticket, ticket.space());
        self.core.gate.leave(ticket.slot);
    }

    /// Gives back all of a ticket but what it takes to log `intents` bytes of intents again once, which it had, and the way
    /// through the gate. No step can be taken with it. For who alone uses the log, and begins nothing before there is room
    /// for all of that besides: nothing comes between an intent and the next place that it is logged at.
    pub(crate) fn keep_for_intents(&self, ticket: Ticket, intents: u32) -> Ticket {
        let core = &*self.core;
        let kept = core.layout.charge(intents.into()).min(ticket.intents + ticket.kept);
        let kept = Ticket { step: 0, steps: 1, left: 0, intents: 0, kept, ..ticket };
        let (had, has) = (ticket.space(), kept.space());
        core.grant.give(Space { used: had.used - has.used, promised: had.promised - has.promised });
        kept
    }

    /// Has a ticket hold what another holds for intents.
    pub(crate) fn take_in(&self, ticket: &mut Ticket, kept: Ticket) {
        debug_assert!(kept.step == 0 && kept.intents == 0, "only what is kept for intents");
        ticket.kept += kept.kept;
        self.core.gate.leave(kept.slot);
    }

    /// Waits until the checkpoint of `upto` (and all before it) is in the log for good, and its items unpinned. Fails with the
    /// device's error if it is that for which this is not so, and with [`Error::Shutdown`] whoever asks later.
    pub fn force(&self, upto: CommitSeq) -> Result<()> {
        let core = &*self.core;
        if core.orders.is_done(upto.0) {
            return Ok(());
        }
        core.check()?;
        let upto = upto.min(self.newest());
        if !self.push_here(upto.0) {
            core.orders.push(upto.0);
        }
        if core.orders.wait_done(upto.0) { Ok(()) } else { Err(core.not_written()) }
    }

    /// Has this thread write checkpoint `seq` if it is still open, in place of the thread that does, if that has nothing to do
    /// and a flush costs nothing: whoever shares one had better commit meanwhile. Whether that checkpoint is closed.
    fn push_here(&self, seq: u64) -> bool {
        let core = &*self.core;
        if core.device.has_write_cache() || core.cil.seq() > seq {
            return core.cil.seq() > seq;
        }
        // Dropped behind the writer, of which a panic leaves half. That of whoever forces the log, before this, is their own.
        let mut halves = Halves { core, is_at_work: false };
        let Some(mut writer) = self.writer.as_ref().and_then(|writer| writer.lock().ok()) else {
            return false;
        };
        if core.cil.seq() <= seq && core.cil.is_open() {
            halves.is_at_work = true;
            core.orders.pushes_here(core.cil.seq());
            writer.push();
            halves.is_at_work = false;
        }
        core.cil.seq() > seq
    }

    /// Whether the checkpoint of `upto` is in the log for good.
    pub fn is_forced(&self, upto: CommitSeq) -> bool {
        self.core.orders.is_done(upto.0)
    }

    /// Whether the device is flushed between now and the end of the checkpoint of `upto`: what was written to it before this
    /// call is stable once that is [forced](Self::force).
    pub fn will_flush(&self, upto: CommitSeq) -> bool {
        self.core.pipe.last_flushed_for() < upto.0
    }

    /// Waits until all that was committed before this call is in the log for good.
    pub fn force_all(&self) -> Result<()> {
        self.force(self.newest())
    }

    /// The youngest checkpoint that has something in it.
    pub fn newest(&self) -> CommitSeq {
        CommitSeq(self.core.cil.opened())
    }

    /// Has the open checkpoint written, if there is anything in it, without waiting for it.
    pub fn push_cil(&self) {
        self.core.orders.push(self.newest().0);
    }

    /// Waits until no ticket is open, and holds new ones back as long as the result lives; this thread alone still gets
    /// some. Who holds a ticket must not ask for this.
    pub fn freeze(&self) -> Result<Frozen<'_>> {
        let _only = lock(&self.core.freezing);
        self.core.check()?;
        let still = self.core.gate.close();
        let frozen = Frozen { journal: self, _only };
        if still { Ok(frozen) } else { Err(self.core.stopped()) }
    }

    /// Whether somebody freezes it, and how many wait for the end of that.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn at_gate(&self) -> (bool, u32) {
        self.core.gate.look()
    }

    /// Takes an item into the AIL that the log holds from before this journal was opened: the tail does not move
    /// beyond `lsn` as long as it is there. To be called before anything is reserved; items come in the order of the
    /// log.
    pub fn adopt(&self, lsn: Lsn, item: Arc<dyn LogItem>) {
        let core = &*self.core;
        core.grant.take_regardless(Space::used(core.ail.adopt(lsn, item)));
        core.pipe.keep(core.ail.tail());
    }

    /// Whether this log can have given an LSN: whether it is before the head, which is the error. One that is the head
    /// would be that of the next checkpoint as well.
    #[inline]
    pub fn check_lsn(&self, lsn: Lsn) -> Result<(), Lsn> {
        let Core { layout, head, .. } = &*self.core;
        let head = layout::Pos(head.load(sync::Ordering::Acquire));
        if layout.pos(lsn) >= head { Err(layout.lsn(head)) } else { Ok(()) }
    }

    /// [`Error::LogTooSmall`]: what was adopted leaves no room for a transaction of `count` steps of `unit` bytes, which
    /// would wait for ever for what only it can settle.
    pub fn check_room(&self, unit: u32, count: u32) -> Result<()> {
        let (used, capacity) = self.space();
        let step = self.core.layout.step(unit);
        let needed = used.saturating_add(step.saturating_mul(count.max(1).into()));
        if needed > capacity { Err(Error::LogTooSmall { needed, room: capacity }) } else { Ok(()) }
    }

    /// Has everything written back that is in the AIL up to `target`, without waiting for it.
    pub fn push_ail(&self, target: Lsn) {
        self.core.pushing.push_to(target);
    }

    /// Has everything written back that is in the log, and the open checkpoint put there, without waiting for it: items
    /// take too much memory. Asked again, does nothing before a checkpoint has landed.
    pub fn relieve(&self) {
        let core = &*self.core;
        let landed = core.ail.landed();
        // In step, every full checkpoint is written back; what else the caches hold is not for the order of changes to tell.
        if core.pace == Pace::Background && core.pushing.relieve(landed) {
            core.orders.push(core.cil.opened());
        }
    }

    /// As [`relieve`](Self::relieve), and waits for it: changes come faster than they can be written back. Not for ever,
    /// as there may be items that only the caller's next transaction can settle. No ticket may be held.
    pub fn wait_for_relief(&self) -> Result<()> {
        const PATIENCE: Duration = Duration::from_millis(100);
        if self.core.pace == Pace::Background {
            self.force_all()?;
            let landed = self.core.ail.landed();
            self.push_ail(landed);
            self.core.ail.wait_until_behind(landed, PATIENCE);
        }
        Ok(())
    }

    /// Takes an item out of the AIL, unless a later checkpoint has moved it on from `lsn`. For
    /// [`WriteJob::done`].
    pub fn ail_remove(&self, item: &Arc<dyn LogItem>, lsn: Lsn) {
        self.core.grant.give(Space::used(self.core.ail.remove([(item, lsn)].into_iter())));
    }

    /// As [`ail_remove`](Self::ail_remove), for several items that one write wrote.
    pub fn ail_remove_all<'a>(&self, items: impl Iterator<Item = (&'a Arc<dyn LogItem>, Lsn)>) {
        self.core.grant.give(Space::used(self.core.ail.remove(items)));
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

    /// Stops everything: what is not in the log never will be, but for a record that is being written, and every later call
    /// fails.
    pub fn shutdown(&self, why: ShutdownReason) {
        self.core.shutdown(why);
    }

    /// As [`shutdown`](Self::shutdown), as the device failed: who waits for the log is told its error.
    pub fn shutdown_for(&self, why: ShutdownReason, error: &DeviceError) {
        self.core.shutdown_for(why, error);
    }

    /// As [`shutdown`](Self::shutdown), and waits until nothing is under way to the device: of the journal, nor of anybody in the
    /// middle of a transaction. Who holds a ticket must not ask for this.
    pub fn halt(&self, why: ShutdownReason) {
        self.stop(why);
        self.core.gate.empty();
    }

    /// Why the journal was shut down, if it was.
    pub fn is_shut_down(&self) -> Option<ShutdownReason> {
        self.core.down()
    }

    /// From here on nobody finds where a file's bytes are to be written.
    pub(crate) fn stop_writes(&self) {
        self.core.stop_writes();
    }

    /// Whether it is so, or the journal was shut down: a load.
    #[inline]
    pub(crate) fn has_stopped_writes(&self) -> bool {
        self.core.has_stopped_writes()
    }

    /// Bytes of log space in use, and how many can be.
    pub fn space(&self) -> (u64, u64) {
        (self.core.grant.used(), self.core.grant.capacity())
    }

    /// Waits until nothing more is written as long as nobody commits anything.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn wait_until_still(&self) {
        assert!(self.core.pushing.wait_until_resting() && self.core.orders.wait_pushed());
    }

    /// Ends it, if nobody has: its threads are over, and it has let go of all items.
    pub(crate) fn end(&self) {
        self.stop(ShutdownReason::Closed);
    }

    /// Stops the threads and lets go of all items.
    fn stop(&self, why: ShutdownReason) {
        self.core.shutdown(why);
        let Some(threads) = &self.threads else { return };
        let mine = thread::current().id();
        // Whoever comes second waits as well.
        let mut threads = lock(threads);
        for handle in threads.drain(..) {
            // An item's callback may be what lets go of the journal last.
            if handle.thread().id() != mine {
                // One that panicked has said so, and shut the journal down.
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
