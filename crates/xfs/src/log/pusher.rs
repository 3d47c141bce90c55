//! The thread that writes items back, so that the tail of the log moves.
//!
//! It keeps a quarter of the log free, and does more when somebody waits for space or asks for it. An item that is
//! pinned has the open checkpoint pushed; the landing of that wakes this thread again. An intent that holds the tail
//! while space is short is logged again. Invariants: as long as somebody waits for log space that an item or a
//! checkpoint holds, this thread is at work or something is under way that wakes it; and nothing that it does waits for
//! who has a ticket.
//!
//! Of a journal that works in step ([`Pace::InStep`]) it writes back what it is asked to and nothing else, so that
//! who asked can wait until it rests.

use super::core::Core;
use super::grant::Space;
use super::item::{LogItem, Push, WriteDone, WriteJob};
use super::layout::Pos;
use super::sync::{AtomicU64, Condvar, Mutex, Ordering, lock, wait, wait_for};
use super::{Journal, Pace, ShutdownReason};
use blockdev::{DeviceError, Durability, IoQueue};
use std::sync::Arc;
use std::time::Duration;
use xfs_format::log::BLOCK_SIZE;
use xfs_format::types::{DiskAddr, Lsn};

/// Items that are asked at once.
const BATCH: usize = 256;
/// Writes in flight.
pub(super) const QUEUE_DEPTH: u32 = 32;
/// How long nothing happens before the log is emptied and covered.
const IDLE: Duration = Duration::from_secs(30);
/// How long to wait for an item that somebody is at.
const RETRY: Duration = Duration::from_millis(2);

#[derive(Debug, Default)]
struct Wanted {
    kicks: u64,
    /// Everything up to here is to be written back.
    target: Lsn,
    /// So many idle intervals are to pass at once.
    elapsed: u32,
    /// The thread has seen all kicks and waits for the next.
    resting: bool,
    dead: bool,
}

/// How the pushing thread is told that there may be something to do.
#[derive(Debug, Default)]
pub(super) struct Pushing {
    wanted: Mutex<Wanted>,
    changed: Condvar,
    /// Up to where memory was to be relieved last.
    relieved: AtomicU64,
}

impl Pushing {
    /// Something has changed: an item landed, somebody waits for space.
    pub(super) fn kick(&self) {
        lock(&self.wanted).kick();
        self.changed.notify_all();
    }

    /// Asks for everything up to `target` to be written back.
    pub(super) fn push_to(&self, target: Lsn) {
        let mut wanted = lock(&self.wanted);
        wanted.target = wanted.target.max(target);
        wanted.kick();
        self.changed.notify_all();
    }

    /// Lets an idle interval pass, and waits until what comes of it was seen to. `false`: it never will be.
    pub(super) fn elapse(&self) -> bool {
        let mut wanted = lock(&self.wanted);
        wanted.elapsed += 1;
        wanted.resting = false;
        drop(wanted);
        self.changed.notify_all();
        self.wait_until_resting()
    }

    /// As [`push_to`](Self::push_to), once for each `landed`. Whether this is the first time.
    pub(super) fn relieve(&self, landed: Lsn) -> bool {
        let first = self.relieved.fetch_max(landed.0, Ordering::SeqCst) < landed.0;
        if first {
            self.push_to(landed);
        }
        first
    }

    /// Waits until everything was seen to that was asked for before. `false`: it never will be.
    pub(super) fn wait_until_resting(&self) -> bool {
        let mut wanted = lock(&self.wanted);
        while !wanted.resting {
            if wanted.dead {
                return false;
            }
            wanted = wait(&self.changed, wanted);
        }
        !wanted.dead
    }

    pub(super) fn kill(&self) {
        lock(&self.wanted).dead = true;
        self.changed.notify_all();
    }

    /// What was asked for; whatever was is done if nothing is left. That is asked with the lock held: who asks for
    /// what has just landed is not to find it forgotten because there was nothing before.
    fn target(&self, nothing_left: impl FnOnce() -> bool) -> Lsn {
        let mut wanted = lock(&self.wanted);
        if nothing_left() {
            wanted.target = Lsn(0);
        }
        wanted.target
    }

    /// Waits for a kick after the last that was seen; says why it came back.
    fn wait(&self, seen: &mut u64, time: Duration) -> Woken {
        let mut wanted = lock(&self.wanted);
        loop {
            if wanted.dead {
                return Woken::Dead;
            }
            if wanted.kicks != *seen {
                *seen = wanted.kicks;
                return Woken::Kicked;
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
            if timed_out && wanted.kicks == *seen && !wanted.dead {
                wanted.resting = false;
                return Woken::Idle;
            }
        }
    }
}

impl Wanted {
    fn kick(&mut self) {
        self.kicks += 1;
        self.resting = false;
    }
}

/// The error of a write that was given up because one before it failed.
fn not_tried(daddr: DiskAddr, bytes: &[u8]) -> DeviceError {
    let source = std::io::Error::other("the journal was shut down");
    let offset = daddr.0.saturating_mul(BLOCK_SIZE as u64);
    DeviceError::Io { op: "write", offset, len: bytes.len() as u64, source }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    Kicked,
    /// Nothing happened for as long as was to be waited.
    Idle,
    /// An idle interval is to be taken for over.
    Elapsed,
    Dead,
}

/// What a round through the items came to.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    removed: bool,
    pinned: bool,
    busy: bool,
}

pub(super) struct Pusher {
    core: Arc<Core>,
    queue: Box<dyn IoQueue>,
    /// What [`WriteDone`] is called with.
    journal: Journal,
    relogged: Relogged,
}

/// When intents were logged again last.
#[derive(Clone, Copy, Debug, Default)]
struct Relogged {
    /// The checkpoint.
    seq: u64,
    intents: usize,
    /// What that took of the log, in bytes.
    bytes: u64,
}

impl Pusher {
    pub(super) fn new(core: Arc<Core>, queue: Box<dyn IoQueue>) -> Self {
        let journal = Journal::view(Arc::clone(&core));
        Self { core, queue, journal, relogged: Relogged::default() }
    }

    /// Writes items back until the journal is shut down.
    pub(super) fn run(mut self) {
        let mut seen = 0;
        let mut patience = IDLE;
        loop {
            match self.core.pushing.wait(&mut seen, patience) {
                Woken::Dead => return,
                Woken::Elapsed => self.core.idle(),
                Woken::Idle if patience == IDLE => self.core.idle(),
                Woken::Idle | Woken::Kicked => {}
            }
            patience = if self.work() { RETRY } else { IDLE };
        }
    }

    /// Writes back what is wanted. Says whether to come back soon.
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
                // What is pinned, or holds the space, may be in the checkpoint that is open.
                self.core.orders.push(self.core.cil.opened());
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

    /// Up to where items are to be written back.
    fn target(&self) -> Lsn {
        let core = &self.core;
        let asked = core.pushing.target(|| core.ail.is_written());
        let short = self.short();
        if short == 0 {
            return asked;
        }
        let upto = Pos(core.ail.tail().0 + short.div_ceil(BLOCK_SIZE as u64));
        asked.max(core.layout.lsn(upto))
    }

    /// Bytes that the tail should move on by.
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

    /// Where an intent holds the tail, logs all of them again, so that the tail can move on though their transactions
    /// wait. One checkpoint has all of them, and no other is begun before it has landed: when the tail comes to the
    /// second, what the first had is free again. So twice what this takes, which their transactions have set aside, is
    /// enough for ever.
    ///
    /// Where nothing else lies in the log, the tail would move on by what the head does. Then it is left alone: the
    /// landing of one checkpoint would ask for the next, for as long as the intents' transactions wait.
    fn relog(&mut self) {
        let core = &self.core;
        if !core.orders.is_done(self.relogged.seq) {
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
        let mut logged = logged;
        let done = |done: bool| items.iter().for_each(|item| item.relogged(done));
        match core.cil.join(false, &mut logged, None, || done(true)) {
            None => done(false),
            Some(joined) => {
                let bytes = joined.cost.unsigned_abs();
                self.relogged = Relogged { seq: joined.seq, intents: items.len(), bytes };
                core.grant.take_regardless(Space::used(bytes));
                core.orders.push(joined.seq);
            }
        }
    }

    /// Goes once through the items up to `target`.
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

    /// Carries the writes out, in the order of their places. `false`: one failed, and the journal is down.
    fn write(&mut self, jobs: &mut Vec<WriteJob>) -> bool {
        jobs.sort_unstable_by_key(|job| job.daddr);
        let mut flying: Vec<Option<WriteDone>> = Vec::new();
        flying.resize_with(QUEUE_DEPTH as usize, || None);
        let mut well = true;
        for job in jobs.drain(..) {
            let WriteJob { daddr, bytes, done } = job;
            if !well {
                // Nobody relies on it any more; who waits for the item is told.
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

    /// A tag that no write has, once there is one.
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

    /// Waits for at least one write. `false`: the queue itself failed.
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
    use super::super::item::{ItemState, Landing};
    use super::super::layout::Layout;
    use super::super::open::Start;
    use super::super::vector::{LogVector, VecSize};
    use super::*;
    use blockdev::{BlockDevice, MemoryDevice};

    const LOG_BLOCKS: u32 = 4096;

    /// An item that nothing is left of once it is in the log; or a promise, of which nothing is ever written.
    #[derive(Debug)]
    struct Item {
        state: ItemState,
        is_intent: bool,
        is_logged_again: bool,
    }

    impl LogItem for Item {
        fn state(&self) -> &ItemState {
            &self.state
        }
        fn pin(&self) {}
        fn unpin(&self) {}
        fn landed(&self, _lsn: Lsn) -> Landing {
            if self.is_intent { Landing::Ail } else { Landing::Drop }
        }
        fn push(self: Arc<Self>) -> Push {
            Push::Owed
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
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(4 << 20).unwrap());
        let layout = Layout::for_tests(LOG_BLOCKS, 512, 32 << 10);
        let head = Pos(LOG_BLOCKS.into());
        let start = Start { head, tail: head, previous: u32::MAX };
        Journal::start(device, layout, start, Pace::Background, Designs::default()).unwrap()
    }

    fn commit(journal: &Journal, bytes: usize, is_intent: bool) {
        commit_item(journal, bytes, Item { state: ItemState::new(), is_intent, is_logged_again: false });
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

    /// As long as a promise held the tail of a log that is short of space, each look at the items had the open checkpoint
    /// written, however little was in it.
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
            // As whatever lands, or waits for space, has it look.
            journal.core.pushing.kick();
            assert!(journal.core.pushing.wait_until_resting());
        }
        assert!(journal.core.orders.wait_pushed());
        let checkpoints = journal.newest().0 - before;
        assert!(checkpoints <= 1, "{checkpoints} checkpoints for 20 commits");
    }

    /// While tickets hold most of a log in which nothing but an intent lies, the intent was logged again and again, each
    /// time behind a flush.
    #[test]
    fn an_intent_is_not_logged_again_where_that_frees_nothing() {
        let journal = journal();
        let ticket = journal.reserve((journal.space().1 / 12) as u32, 10, 0).unwrap();
        let is_logged_again = true;
        commit_item(&journal, 100, Item { state: ItemState::new(), is_intent: true, is_logged_again });
        journal.force_all().unwrap();
        let before = journal.newest().0;
        for _ in 0..20 {
            journal.core.pushing.kick();
            std::thread::sleep(Duration::from_millis(2));
        }
        let checkpoints = journal.newest().0 - before;
        assert!(checkpoints <= 2, "{checkpoints} checkpoints of one intent");
        journal.release(ticket);
    }
}
