//! The AIL push thread: it writes items back so that the log's tail moves.
//!
//! It keeps a quarter of the log free, and does more if somebody waits for space or asks for it. For a pinned item it
//! pushes the open checkpoint, whose commit wakes this thread again. An intent that holds the tail while space is short
//! is relogged. Invariants: as long as somebody waits for log space that an item or a checkpoint holds, this thread is
//! at work or something is under way that wakes it; and it never waits for the holder of a ticket.
//!
//! For a journal that works in step ([`Pace::InStep`]) it only writes back what it is asked to, so that the caller can
//! wait until it rests.

use super::cil::Joining;
use super::core::Core;
use super::grant::LogSpace;
use super::item::{LogItem, Push, WriteDone, WriteJob};
use super::layout::Pos;
use super::sync::{AtomicU64, Condvar, Mutex, Ordering, lock, wait, wait_for};
use super::{Journal, Pace, ShutdownReason};
use blockdev::{DeviceError, Durability, IoQueue};
use std::sync::Arc;
use std::time::Duration;
use xfs_format::log::BLOCK_SIZE;
use xfs_format::types::{DiskAddr, Lsn};

/// Items that are fetched from the AIL at once.
const BATCH: usize = 256;
/// Writes in flight.
pub(super) const QUEUE_DEPTH: u32 = 32;
/// Time without activity after which the log is emptied and covered.
const IDLE: Duration = Duration::from_secs(30);
/// Time to wait for an item that is in use.
const RETRY: Duration = Duration::from_millis(2);

#[derive(Debug, Default)]
struct PushTarget {
    pushes: u64,
    /// Everything up to this LSN is to be written back.
    target: Lsn,
    /// How many wait until everything is written back, including what is committed meanwhile.
    wait_for_all: u32,
    /// How many idle intervals to treat as elapsed.
    elapsed: u32,
    /// The thread has handled all pushes and waits for the next.
    resting: bool,
    dead: bool,
}

/// How others tell the push thread that there may be work.
#[derive(Debug, Default)]
pub(super) struct AilPush {
    target_state: Mutex<PushTarget>,
    changed: Condvar,
    /// The LSN up to which write-back was last requested to reclaim memory.
    reclaimed_to: AtomicU64,
}

impl AilPush {
    /// Something has changed: an item was committed, or somebody waits for space.
    pub(super) fn push(&self) {
        lock(&self.target_state).push();
        self.changed.notify_all();
    }

    /// Requests write-back of everything up to `target`.
    pub(super) fn push_to(&self, target: Lsn) {
        let mut wanted = lock(&self.target_state);
        wanted.target = wanted.target.max(target);
        wanted.push();
        self.changed.notify_all();
    }

    /// Requests write-back of everything, and of what is committed as long as the result lives.
    pub(super) fn push_all(&self) -> PushAll<'_> {
        let mut wanted = lock(&self.target_state);
        wanted.wait_for_all += 1;
        wanted.push();
        self.changed.notify_all();
        PushAll(self)
    }

    /// Treats an idle interval as elapsed, and waits until its work is done. Returns `false` if it never will be.
    pub(super) fn elapse(&self) -> bool {
        let mut wanted = lock(&self.target_state);
        wanted.elapsed += 1;
        wanted.resting = false;
        drop(wanted);
        self.changed.notify_all();
        self.wait_until_resting()
    }

    /// Like [`push_to`](Self::push_to), but once for each `landed`. Returns whether this was the first time.
    pub(super) fn push_to_reclaim(&self, landed: Lsn) -> bool {
        let first = self.reclaimed_to.fetch_max(landed.0, Ordering::SeqCst) < landed.0;
        if first {
            self.push_to(landed);
        }
        first
    }

    /// Waits until all earlier requests have been handled. Returns `false` if they never will be.
    pub(super) fn wait_until_resting(&self) -> bool {
        let mut wanted = lock(&self.target_state);
        while !wanted.resting {
            if wanted.dead {
                return false;
            }
            wanted = wait(&self.changed, wanted);
        }
        !wanted.dead
    }

    pub(super) fn kill(&self) {
        lock(&self.target_state).dead = true;
        self.changed.notify_all();
    }

    /// The requested target. If nothing is left to write back, all requests are done. That is checked with the lock
    /// held: otherwise a request for an item that has just been committed could be dropped because the list was empty
    /// before.
    fn target(&self, nothing_left: impl FnOnce() -> bool) -> Lsn {
        let mut wanted = lock(&self.target_state);
        if nothing_left() {
            wanted.target = Lsn(0);
        }
        if wanted.wait_for_all > 0 { Lsn(u64::MAX) } else { wanted.target }
    }

    /// Waits for a push after the last one that was seen. Returns why it woke up.
    fn wait(&self, seen: &mut u64, time: Duration) -> Woken {
        let mut wanted = lock(&self.target_state);
        loop {
            if wanted.dead {
                return Woken::Dead;
            }
            if wanted.pushes != *seen {
                *seen = wanted.pushes;
                return Woken::Pushed;
            }
            if wanted.elapsed != 0 {
                wanted.elapsed -= 1;
                return Woken::Elapsed;
            }
            if !std::mem::replace(&mut wanted.resting, true) {
                self.changed.notify_all();
            }
            let (guard, timed_out) = wait_for(&self.changed, wanted, time);
            wanted = guard;
            if timed_out && wanted.pushes == *seen && !wanted.dead {
                wanted.resting = false;
                return Woken::Idle;
            }
        }
    }
}

/// Everything is to be written back: see [`AilPush::push_all`].
#[derive(Debug)]
pub(super) struct PushAll<'a>(&'a AilPush);

impl Drop for PushAll<'_> {
    fn drop(&mut self) {
        lock(&self.0.target_state).wait_for_all -= 1;
    }
}

impl PushTarget {
    fn push(&mut self) {
        self.pushes += 1;
        self.resting = false;
    }
}

/// The error of a write that was given up because an earlier one failed.
fn not_tried(daddr: DiskAddr, bytes: &[u8]) -> DeviceError {
    let source = std::io::Error::other("the journal was shut down");
    let offset = daddr.0.saturating_mul(BLOCK_SIZE as u64);
    DeviceError::Io { op: "write", offset, len: bytes.len() as u64, source }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    Pushed,
    /// Nothing happened during the whole time.
    Idle,
    /// An idle interval is to be treated as elapsed.
    Elapsed,
    Dead,
}

/// The result of a round through the items.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    removed: bool,
    pinned: bool,
    busy: bool,
}

pub(super) struct AilPusher {
    core: Arc<Core>,
    queue: Box<dyn IoQueue>,
    /// The argument for [`WriteDone`].
    journal: Journal,
    relogged: Relogged,
}

/// The last relogging of intents.
#[derive(Clone, Copy, Debug, Default)]
struct Relogged {
    /// Its checkpoint.
    seq: u64,
    intents: usize,
    /// Log bytes that it took.
    bytes: u64,
}

impl AilPusher {
    pub(super) fn new(core: Arc<Core>, queue: Box<dyn IoQueue>) -> Self {
        let journal = Journal::view(Arc::clone(&core));
        Self { core, queue, journal, relogged: Relogged::default() }
    }

    /// Writes items back until the journal is shut down.
    pub(super) fn run(mut self) {
        let mut seen = 0;
        let mut patience = IDLE;
        loop {
            match self.core.ail_push.wait(&mut seen, patience) {
                Woken::Dead => return,
                Woken::Elapsed => self.core.idle(),
                Woken::Idle if patience == IDLE => self.core.idle(),
                Woken::Idle | Woken::Pushed => {}
            }
            patience = if self.work() { RETRY } else { IDLE };
        }
    }

    /// Writes back what is wanted. Returns whether to come back soon.
    fn work(&mut self) -> bool {
        loop {
            if self.core.down().is_some() {
                return false;
            }
            let target = self.target();
            let round = self.round(target);
            if self.short() != 0 {
                self.relog();
            }
            if round.pinned || self.core.lacks_space() {
                // What is pinned, or holds the space, may be in the open checkpoint.
                self.core.worker.push(self.core.cil.opened());
            }
            if round.removed {
                continue;
            }
            if round.busy && cfg!(shuttle) {
                super::sync::thread::yield_now();
                continue;
            }
            return round.busy;
        }
    }

    /// The LSN up to which items are to be written back.
    fn target(&self) -> Lsn {
        let core = &self.core;
        let requests = core.ail_push.target(|| core.ail.is_written());
        let short = self.short();
        if short == 0 {
            return requests;
        }
        let upto = Pos(core.ail.tail().0 + short.div_ceil(BLOCK_SIZE as u64));
        requests.max(core.layout.lsn(upto))
    }

    /// Bytes by which the tail should move.
    fn short(&self) -> u64 {
        let core = &self.core;
        let capacity = core.grant.capacity();
        let keep_free = match core.pace {
            Pace::Background => capacity / 4,
            Pace::InStep => 0,
        };
        let want = keep_free.max(core.grant.wanted());
        want.saturating_sub(capacity.saturating_sub(core.grant.used()))
    }

    /// If an intent holds the tail, relogs all intents, so that the tail can move although their transactions wait. All
    /// of them go into one checkpoint, and the next such checkpoint is not begun before this one is committed. When the
    /// tail reaches the second, the space of the first is free again. So twice the size of the intents is enough for
    /// ever, and their transactions have set that aside.
    ///
    /// If nothing else lies in the log, relogging is pointless: the tail would only move as far as the head does. Then
    /// nothing is done. Otherwise the commit of each such checkpoint would trigger the next for as long as the
    /// transactions wait.
    fn relog(&mut self) {
        let core = &self.core;
        if !core.worker.is_done(self.relogged.seq) {
            return;
        }
        let Some(intents) = core.ail.intents_at_the_tail() else { return };
        let in_use = Pos(core.head.load(Ordering::SeqCst)).bytes_since(core.ail.tail());
        if in_use <= self.relogged.bytes && intents.len() >= self.relogged.intents {
            return;
        }
        let logged: Vec<_> =
            intents.into_iter().filter_map(|item| item.relog().map(|vector| (item, vector))).collect();
        if logged.is_empty() {
            return;
        }
        let items: Vec<_> = logged.iter().map(|(item, _)| Arc::clone(item)).collect();
        let done = |done: bool| items.iter().for_each(|item| item.relogged(done));
        let enter = |joining: &mut Joining<'_>| {
            logged.into_iter().for_each(|(item, vector)| joining.vector(item, vector));
            done(true);
        };
        match core.cil.insert(false, None, enter) {
            None => done(false),
            Some(joined) => {
                let bytes = joined.cost.unsigned_abs();
                self.relogged = Relogged { seq: joined.seq, intents: items.len(), bytes };
                core.grant.take_regardless(LogSpace::used(bytes));
                core.worker.push(joined.seq);
            }
        }
    }

    /// Goes through the items up to `target` once.
    fn round(&mut self, target: Lsn) -> Round {
        let mut round = Round::default();
        let mut cursor = Some((Lsn(0), 0));
        let mut batch: Vec<Arc<dyn LogItem>> = Vec::new();
        let mut jobs = Vec::new();
        while let Some(from) = cursor {
            cursor = self.core.ail.batch(from, target, BATCH, &mut batch);
            for item in batch.drain(..) {
                let lsn = item.state().lsn();
                match Arc::clone(&item).push() {
                    Push::Write(job) => jobs.push(job),
                    Push::WriteAll(several) => jobs.extend(several),
                    Push::Pinned => round.pinned = true,
                    Push::Owed => {}
                    Push::Busy | Push::Flushing => round.busy = true,
                    Push::Gone => {
                        self.journal.ail_remove(&item, lsn);
                        round.removed = true;
                    }
                }
            }
            round.removed |= !jobs.is_empty();
            if !self.write(&mut jobs) {
                return Round::default();
            }
        }
        round
    }

    /// Carries out the writes in the order of their disk addresses. Returns `false` if one failed and the journal is
    /// shut down.
    fn write(&mut self, jobs: &mut Vec<WriteJob>) -> bool {
        jobs.sort_unstable_by_key(|job| job.daddr);
        let mut flying: Vec<Option<WriteDone>> = Vec::new();
        flying.resize_with(QUEUE_DEPTH as usize, || None);
        let mut well = true;
        for job in jobs.drain(..) {
            let WriteJob { daddr, bytes, done } = job;
            if !well {
                // Nobody relies on this write any more. Waiters for the item get the error.
                done(&self.journal, Err(not_tried(daddr, &bytes)));
                continue;
            }
            let Some(tag) = self.free_tag(&mut flying, &mut well) else { continue };
            let offset = daddr.0.saturating_mul(BLOCK_SIZE as u64);
            match self.queue.push_write(offset, bytes, Durability::Volatile, tag as u64) {
                Ok(()) => {
                    if let Some(place) = flying.get_mut(tag) {
                        *place = Some(done);
                    }
                }
                Err(error) => {
                    let again = error.again();
                    done(&self.journal, Err(error));
                    well = self.failed(&again);
                }
            }
        }
        while self.queue.in_flight() > 0 {
            if !self.wait(&mut flying, &mut well) {
                break;
            }
        }
        well
    }

    /// A tag that no write uses, as soon as there is one.
    fn free_tag(&mut self, flying: &mut [Option<WriteDone>], well: &mut bool) -> Option<usize> {
        loop {
            if let Some(free) = flying.iter().position(Option::is_none) {
                return Some(free);
            }
            if !self.wait(flying, well) {
                return None;
            }
        }
    }

    /// Waits for at least one write. Returns `false` if the queue itself failed.
    fn wait(&mut self, flying: &mut [Option<WriteDone>], well: &mut bool) -> bool {
        let (journal, core) = (&self.journal, &self.core);
        let waited = self.queue.wait(1, &mut |completion| {
            let failed = completion.result.as_ref().err().map(DeviceError::again);
            if let Some(done) = flying.get_mut(completion.tag as usize).and_then(Option::take) {
                done(journal, completion.result);
            }
            if let Some(error) = failed {
                core.shutdown_for(ShutdownReason::MetadataWrite, &error);
                *well = false;
            }
        });
        if let Err(error) = &waited {
            *well = self.failed(error);
        }
        waited.is_ok()
    }

    fn failed(&self, error: &DeviceError) -> bool {
        self.core.shutdown_for(ShutdownReason::MetadataWrite, error);
        false
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::super::Designs;
    use super::super::item::{AfterCommit, ItemState};
    use super::super::layout::LogLayout;
    use super::super::open::LogStart;
    use super::super::vector::{LogVector, VecSize};
    use super::*;
    use blockdev::{BlockDevice, MemoryDevice};

    const LOG_BLOCKS: u32 = 4096;

    /// An item of which nothing is left to write once it is in the log, or one that is written back in no time, or an
    /// intent, which is never written back.
    #[derive(Debug, Default)]
    struct Item {
        state: ItemState,
        is_intent: bool,
        is_logged_again: bool,
        is_written_back: bool,
    }

    impl LogItem for Item {
        fn state(&self) -> &ItemState {
            &self.state
        }
        fn pin(&self) {}
        fn unpin(&self) {}
        fn committed(&self, _lsn: Lsn) -> AfterCommit {
            if self.is_intent || self.is_written_back { AfterCommit::Ail } else { AfterCommit::Drop }
        }
        fn push(self: Arc<Self>) -> Push {
            if self.is_written_back { Push::Gone } else { Push::Owed }
        }
        fn is_intent(&self) -> bool {
            self.is_intent
        }
        fn relog(&self) -> Option<LogVector> {
            self.is_logged_again.then(|| {
                let mut vector = LogVector::begin(None, VecSize::default().region(100));
                vector.region(&[1; 100]);
                vector
            })
        }
    }

    fn journal() -> Arc<Journal> {
        journal_at(Pace::Background)
    }

    fn journal_at(pace: Pace) -> Arc<Journal> {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(4 << 20).unwrap());
        let layout = LogLayout::for_tests(LOG_BLOCKS, 512, 32 << 10);
        let head = Pos(LOG_BLOCKS.into());
        let start = LogStart { head, tail: head, previous: u32::MAX, had_traces: false };
        Journal::start(device, layout, start, pace, Designs::default()).unwrap()
    }

    fn commit(journal: &Journal, bytes: usize, is_intent: bool) {
        commit_item(journal, bytes, Item { is_intent, ..Item::default() });
    }

    fn commit_item(journal: &Journal, bytes: usize, item: Item) {
        let size = VecSize::default().region(bytes);
        let mut ticket = journal.reserve(size.log_bytes(), 1, 0).unwrap();
        let mut vector = LogVector::begin(None, size);
        vector.region(&vec![1; bytes]);
        let item: Arc<dyn LogItem> = Arc::new(item);
        journal.commit(&mut ticket, &mut vec![(item, vector)], None, || ()).unwrap();
        journal.release(ticket);
    }

    /// Regression: as long as an intent held the tail of a log that is short of space, each round wrote the open
    /// checkpoint, however small it was.
    #[test]
    fn a_promise_that_holds_the_tail_has_no_checkpoint_written() {
        let journal = journal();
        commit(&journal, 100, true);
        while journal.space().0 < journal.space().1 / 5 * 4 {
            commit(&journal, 60_000, false);
            journal.force_all().unwrap();
        }
        let before = journal.newest().0;
        for _ in 0..20 {
            commit(&journal, 40, false);
            // As every commit and every wait for space does.
            journal.core.ail_push.push();
            assert!(journal.core.ail_push.wait_until_resting());
        }
        assert!(journal.core.worker.wait_pushed());
        let checkpoints = journal.newest().0 - before;
        assert!(checkpoints <= 1, "{checkpoints} checkpoints for 20 commits");
    }

    /// Regression: in step, a request for everything was done when nothing was left. What another thread committed then,
    /// before whoever had asked looked, was waited for and never written back.
    #[test]
    fn what_is_committed_while_somebody_waits_for_all_is_written_back() {
        let journal = journal_at(Pace::InStep);
        let core = Arc::clone(&journal.core);
        let all = core.ail_push.push_all();
        assert!(core.ail_push.wait_until_resting());
        commit_item(&journal, 100, Item { is_written_back: true, ..Item::default() });
        journal.force_all().unwrap();
        let (told, is_told) = std::sync::mpsc::channel();
        let waits = std::thread::spawn({
            let core = Arc::clone(&core);
            move || told.send(core.ail.wait_until_written())
        });
        assert_eq!(is_told.recv_timeout(Duration::from_secs(60)), Ok(true), "it waits for ever");
        waits.join().unwrap().unwrap();
        drop(all);
        // Nobody waits for all any more.
        assert!(core.ail_push.wait_until_resting());
        assert_eq!(core.ail_push.target(|| true), Lsn(0));
    }

    /// Regression: while tickets held most of a log that contained only an intent, the intent was relogged again and
    /// again, each time behind a flush.
    #[test]
    fn an_intent_is_not_logged_again_where_that_frees_nothing() {
        let journal = journal();
        let ticket = journal.reserve((journal.space().1 / 12) as u32, 10, 0).unwrap();
        let is_logged_again = true;
        commit_item(&journal, 100, Item { is_intent: true, is_logged_again, ..Item::default() });
        journal.force_all().unwrap();
        let before = journal.newest().0;
        for _ in 0..20 {
            journal.core.ail_push.push();
            std::thread::sleep(Duration::from_millis(2));
        }
        let checkpoints = journal.newest().0 - before;
        assert!(checkpoints <= 2, "{checkpoints} checkpoints of one intent");
        journal.release(ticket);
    }
}
