//! Connects the threads that write the log: checkpoints whose commit record is still to be written, checkpoints that
//! are still to land, and how far the log may be written ahead of the last flush.
//!
//! One thread writes a checkpoint's records up to the run with the commit record, and hands that over. A second flushes
//! the device and writes that run durably, while the first works on the next checkpoint. A third completes the
//! checkpoint while the second flushes for the next one. A few may wait to land; beyond that, the committing thread
//! waits.
//!
//! A checkpoint that fits into one run of records, which are written together, is not written before its turn. So it
//! stays open while the device is flushed for the one before it, and whoever commits meanwhile shares it and its
//! flushes. It is closed while the last records of the one before are being written. If the device makes those durable
//! by a flush after them, that same flush comes before the next run: then a checkpoint costs one flush.
//!
//! If a flush costs nothing, there is nothing to wait for: the thread that closed a small checkpoint commits it as
//! well, if the other threads are idle ([`Pipe::begin_here`]). Checkpoints still complete in order.
//!
//! Rules that recovery relies on:
//! - no more records are written without a flush than recovery checks for holes and wrong checksums;
//! - a record only overwrites what lies before the tail that some *durable* record names, and before the tails of the
//!   records behind that one, which may be older. Otherwise a crash in the middle of it would leave a log whose last
//!   whole record names a tail that is gone;
//! - a record only names a tail whose write-backs have been flushed.

use super::cil::ClosedCheckpoint;
use super::layout::{LogLayout, Pos};
use super::record::{RecordPlace, RecordRun};
use super::sync::{AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, lock, wait};
use std::collections::VecDeque;
use xfs_format::log::BLOCK_SIZE;
use xfs_format::types::Lsn;

/// A checkpoint of which all but the last records are written.
#[derive(Debug)]
pub(super) struct SealedCheckpoint {
    pub(super) closed: ClosedCheckpoint,
    /// LSN of its first record.
    pub(super) start: Lsn,
    /// The end of its last record.
    pub(super) end: Pos,
    /// Log bytes that it takes.
    pub(super) bytes: u64,
    /// Its last records and their position.
    pub(super) run: RecordRun,
    pub(super) place: RecordPlace,
    /// The flush that must come before them, if it has begun. It is over when the checkpoint's turn comes.
    pub(super) behind: Option<FlushPoint>,
}

/// A checkpoint whose outcome is known.
#[derive(Debug)]
pub(super) enum Ended {
    /// It is permanently in the log and names this tail.
    Committed(SealedCheckpoint, Pos),
    /// It never will be.
    Aborted(ClosedCheckpoint),
}

/// How many checkpoints may wait to land, including the one that is landing.
const LANDING_MAX: usize = 4;

/// The state when a flush began. A record that is written behind that flush may rely on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlushPoint {
    /// The tail at that time: what had been written back is stable.
    pub(super) tail: Pos,
    /// How many volatile records are stable.
    pub(super) flushed: u64,
}

/// How records are to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Without a flush, naming this tail. To be reported by [`Pipe::completed`].
    Volatile(Pos),
    /// Durably behind a flush, naming the tail at that time. To be reported by [`Pipe::durable`].
    Durable,
}

/// What the committing thread is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommitterState {
    /// Nothing: it takes the next checkpoint at once.
    Rest,
    /// A flush, before or after a checkpoint's last records.
    Flush,
    /// Writing a checkpoint's last records.
    Records,
    /// What follows after the records of a committed checkpoint. No other thread may begin the next one meanwhile.
    Callbacks,
}

#[derive(Debug)]
struct State {
    queue: VecDeque<SealedCheckpoint>,
    committer: CommitterState,
    /// How many last records it is committing.
    committing: u64,
    /// Checkpoints that have ended and are still to land, in order.
    to_land: VecDeque<Ended>,
    /// Whether one of them is landing.
    is_landing: bool,
    /// No more checkpoints come (`finished`); no more checkpoints end (`ended`).
    finished: bool,
    ended: bool,
    dead: bool,
    /// Volatile records that were admitted, that are written, and that have been flushed.
    admitted: u64,
    completed: u64,
    flushed: u64,
    /// Where recovery has to begin: the tail that volatile records name.
    tail: Pos,
    /// The tail that the last durable record names, which may be one from before.
    named: Pos,
    /// Volatile records behind that one: any of them may be the last whole one.
    behind_durable: VecDeque<Volatile>,
}

/// A record that is written without a flush.
#[derive(Clone, Copy, Debug)]
struct Volatile {
    end: Pos,
    /// The tail that it names.
    tail: Pos,
}

impl State {
    /// The oldest tail that recovery may begin at, whichever record it finds to be the last. Everything from there on
    /// is still needed.
    fn oldest_named(&self) -> Pos {
        self.behind_durable.iter().map(|record| record.tail).fold(self.named, Pos::min)
    }
}

#[derive(Debug)]
pub(super) struct Pipe {
    state: Mutex<State>,
    /// `changed` is for the threads that close and commit checkpoints, `lands` for the one that lands them.
    changed: Condvar,
    lands: Condvar,
    /// The last checkpoint whose flush has begun.
    flushing: AtomicU64,
    /// Whether a thread waits for a better time to close a checkpoint.
    is_turn_awaited: AtomicBool,
    unflushed_max: u64,
    log_blocks: u64,
    record_blocks: u64,
}

impl Pipe {
    /// The pipe of a log whose recovery begins at `tail` in any case, and whose last record, from before, names
    /// `named`.
    pub(super) fn new(layout: &LogLayout, tail: Pos, named: Pos) -> Self {
        let state = State {
            queue: VecDeque::new(),
            committer: CommitterState::Rest,
            committing: 0,
            to_land: VecDeque::new(),
            is_landing: false,
            finished: false,
            ended: false,
            dead: false,
            admitted: 0,
            completed: 0,
            flushed: 0,
            tail,
            named,
            behind_durable: VecDeque::new(),
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            lands: Condvar::new(),
            flushing: AtomicU64::new(0),
            is_turn_awaited: AtomicBool::new(false),
            unflushed_max: layout.unflushed_max().into(),
            log_blocks: layout.blocks.into(),
            record_blocks: u64::from(layout.record_max()) / BLOCK_SIZE as u64,
        }
    }

    /// Items kept from before this log was opened need recovery to begin at `tail`. Must be called before anything is
    /// written.
    pub(super) fn keep(&self, tail: Pos) {
        let mut state = lock(&self.state);
        state.tail = state.tail.min(tail);
    }

    /// Whether records that end at `end` may be written together. If not, they overwrite or come close to a tail that
    /// records name. Then each record is written alone, because a newer tail may have to be named before the next one.
    pub(super) fn has_room(&self, end: Pos) -> bool {
        !self.is_near(&lock(&self.state), end)
    }

    /// Waits until `records` records that end at `end` may be written; several only if it [has room](Self::has_room).
    /// `None` if that will never be.
    pub(super) fn admit(&self, end: Pos, records: usize) -> Option<Admission> {
        let records = records as u64;
        let mut state = self.wait_for_room(end, records)?;
        if self.is_near(&state, end) || self.is_full(&state, records) {
            debug_assert!(records == 1 || !self.is_near(&state, end), "{records} records close to the tail");
            return Some(Admission::Durable);
        }
        state.admitted += records;
        let tail = state.tail;
        state.behind_durable.push_back(Volatile { end, tail });
        Some(Admission::Volatile(tail))
    }

    /// Hands a checkpoint over as soon as its last records may be written. Gives it back if that will never be.
    pub(super) fn hand_over(&self, sealed: SealedCheckpoint) -> Result<(), Box<SealedCheckpoint>> {
        match self.wait_for_room(sealed.end, sealed.run.len() as u64) {
            Some(mut state) => {
                state.queue.push_back(sealed);
                self.changed.notify_all();
                Ok(())
            }
            None => Err(Box::new(sealed)),
        }
    }

    /// No records are about to be written.
    fn is_done(state: &State) -> bool {
        matches!(state.committer, CommitterState::Rest | CommitterState::Callbacks)
    }

    /// Lets the caller commit its checkpoint and land it, if the threads that do so are idle. To be reported by
    /// [`committed`](Self::committed) and [`landed_here`](Self::landed_here).
    pub(super) fn begin_here(&self, sealed: &SealedCheckpoint) -> bool {
        let mut state = lock(&self.state);
        let is_idle = !state.dead && Self::is_idle(&state);
        if is_idle {
            state.committer = CommitterState::Flush;
            state.committing = sealed.run.len() as u64;
        }
        is_idle
    }

    /// A checkpoint that was [begun here](Self::begin_here) is over.
    pub(super) fn landed_here(&self) {
        lock(&self.state).committer = CommitterState::Rest;
    }

    /// Nothing is to be committed or landed.
    fn is_idle(state: &State) -> bool {
        state.queue.is_empty() && state.committer == CommitterState::Rest && !Self::is_landing(state)
    }

    fn is_landing(state: &State) -> bool {
        state.is_landing || !state.to_land.is_empty()
    }

    /// Queues a checkpoint to land after those that ended before it. Waits while too many are queued.
    pub(super) fn have_landed(&self, ended: Ended) {
        let mut state = lock(&self.state);
        while !state.dead && state.to_land.len() + usize::from(state.is_landing) >= LANDING_MAX {
            state = wait(&self.changed, state);
        }
        state.committer = CommitterState::Rest;
        state.to_land.push_back(ended);
        self.lands.notify_one();
    }

    /// Waits until all that ended before have landed, or the pipe is dead.
    pub(super) fn wait_until_landed(&self) {
        let mut state = lock(&self.state);
        while !state.dead && Self::is_landing(&state) {
            state = wait(&self.changed, state);
        }
    }

    /// Like [`wait_until_landed`](Self::wait_until_landed), for the thread that hands checkpoints over: also waits for
    /// those that are still to be committed.
    pub(super) fn wait_until_idle(&self) {
        let mut state = lock(&self.state);
        while !(state.dead || state.ended || Self::is_idle(&state)) {
            state = wait(&self.changed, state);
        }
    }

    /// Waits for the next checkpoint to land, `None` if there will be none. To be reported by
    /// [`callbacks_done`](Self::callbacks_done).
    pub(super) fn next_to_land(&self) -> Option<Ended> {
        let mut state = lock(&self.state);
        loop {
            if let Some(ended) = state.to_land.pop_front() {
                state.is_landing = true;
                return Some(ended);
            }
            if state.ended {
                return None;
            }
            state = wait(&self.lands, state);
        }
    }

    /// The checkpoint that was landing is over.
    pub(super) fn callbacks_done(&self) {
        lock(&self.state).is_landing = false;
        self.changed.notify_all();
    }

    fn is_near(&self, state: &State, end: Pos) -> bool {
        end.0.saturating_sub(state.oldest_named().0) + self.record_blocks > self.log_blocks
    }

    fn is_full(&self, state: &State, records: u64) -> bool {
        let waiting: u64 = state.queue.iter().map(|sealed| sealed.run.len() as u64).sum();
        let under_way = if Self::is_done(state) { 0 } else { state.committing };
        state.admitted - state.flushed + waiting + under_way + records > self.unflushed_max
    }

    /// Waits until there is room, or until nobody else is at work who could make some.
    fn wait_for_room(&self, end: Pos, records: u64) -> Option<MutexGuard<'_, State>> {
        let mut state = lock(&self.state);
        loop {
            if state.dead {
                return None;
            }
            let idle = state.queue.is_empty() && Self::is_done(&state);
            if idle || !(self.is_near(&state, end) || self.is_full(&state, records)) {
                return Some(state);
            }
            state = wait(&self.changed, state);
        }
    }

    /// Waits until it is time to close a checkpoint that fits into one run, or until it no longer fits.
    pub(super) fn wait_for_turn(&self, fits: impl Fn() -> bool) {
        let mut state = lock(&self.state);
        self.is_turn_awaited.store(true, Ordering::SeqCst);
        while !state.dead && !Self::is_turn(&state) && fits() {
            state = wait(&self.changed, state);
        }
        self.is_turn_awaited.store(false, Ordering::SeqCst);
    }

    /// No other checkpoint waits to be committed, and no flush is under way that this one would miss.
    fn is_turn(state: &State) -> bool {
        state.queue.is_empty() && state.committer != CommitterState::Flush
    }

    /// The open checkpoint may have become too large for one run.
    pub(super) fn grown(&self) {
        if self.is_turn_awaited.load(Ordering::SeqCst) {
            let _state = lock(&self.state);
            self.changed.notify_all();
        }
    }

    /// Reports that this many volatile records are written.
    pub(super) fn completed(&self, records: usize) {
        lock(&self.state).completed += records as u64;
    }

    /// How many volatile records are written. A flush that begins now makes them stable.
    pub(super) fn completed_so_far(&self) -> u64 {
        lock(&self.state).completed
    }

    /// Durable records up to `end` that name `tail` are written, behind a flush that made `flushed` volatile records
    /// stable.
    pub(super) fn durable(&self, end: Pos, tail: Pos, flushed: u64) {
        self.note_durable(lock(&self.state), end, tail, flushed);
    }

    /// The same for the last records of a checkpoint, which is thereby committed and completes.
    pub(super) fn committed(&self, end: Pos, tail: Pos, flushed: u64) {
        let mut state = lock(&self.state);
        state.committer = CommitterState::Callbacks;
        self.note_durable(state, end, tail, flushed);
    }

    fn note_durable(&self, mut state: MutexGuard<'_, State>, end: Pos, tail: Pos, flushed: u64) {
        state.behind_durable.retain(|record| record.end > end);
        state.tail = state.tail.max(tail);
        state.named = state.named.max(tail);
        state.flushed = state.flushed.max(flushed);
        self.changed.notify_all();
    }

    /// A device flush is about to begin. No checkpoint handed over before this needs another flush before its last
    /// records, and no other flush at all if `is_only`. `tail` is called immediately.
    pub(super) fn flush_begins(&self, is_only: bool, tail: impl FnOnce() -> Pos) -> FlushPoint {
        let mut state = lock(&self.state);
        state.committer = CommitterState::Flush;
        if let Some(last) = state.queue.back().filter(|_| is_only) {
            self.flushes_for(last.closed.seq);
        }
        let behind = FlushPoint { tail: tail(), flushed: state.completed };
        state.queue.iter_mut().for_each(|sealed| sealed.behind = Some(behind));
        behind
    }

    /// The last records of a checkpoint are about to be written, behind their flush.
    pub(super) fn records_begin(&self) {
        lock(&self.state).committer = CommitterState::Records;
        self.changed.notify_all();
    }

    /// The last flush that a checkpoint needs begins after this.
    pub(super) fn flushes_for(&self, seq: u64) {
        self.flushing.fetch_max(seq, Ordering::SeqCst);
    }

    /// The last checkpoint whose flush may have begun. The flush for any later one begins after what this thread did
    /// before.
    pub(super) fn last_flushed_for(&self) -> u64 {
        // A plain load could be reordered before earlier stores.
        self.flushing.fetch_max(0, Ordering::SeqCst)
    }

    /// Waits for the next checkpoint to commit, `None` if there will be none. To be reported by
    /// [`committed`](Self::committed), if it succeeds, and by [`have_landed`](Self::have_landed).
    pub(super) fn next(&self) -> Option<SealedCheckpoint> {
        let mut state = lock(&self.state);
        loop {
            if let Some(sealed) = state.queue.pop_front() {
                state.committer = CommitterState::Flush;
                state.committing = sealed.run.len() as u64;
                return Some(sealed);
            }
            // When it is dead, nothing is handed over any more. The thread that does so may be waiting for this one.
            if state.finished || state.dead {
                return None;
            }
            state = wait(&self.changed, state);
        }
    }

    /// No more checkpoints come.
    pub(super) fn finish(&self) {
        lock(&self.state).finished = true;
        self.changed.notify_all();
    }

    /// No more checkpoints end: only those that are queued still land.
    pub(super) fn end(&self) {
        lock(&self.state).ended = true;
        self.lands.notify_all();
    }

    /// Nothing is admitted any more.
    pub(super) fn kill(&self) {
        lock(&self.state).dead = true;
        self.changed.notify_all();
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use blockdev::AlignedBuf;

    #[test]
    fn only_so_much_is_written_without_a_flush() {
        let layout = LogLayout::for_tests(100_000, 512, 32 << 10);
        let pipe = Pipe::new(&layout, Pos(100_000), Pos(100_000));
        for _ in 0..layout.unflushed_max() {
            assert_eq!(pipe.admit(Pos(100_064), 1), Some(Admission::Volatile(Pos(100_000))));
            pipe.completed(1);
        }
        assert_eq!(pipe.admit(Pos(100_064), 1), Some(Admission::Durable));
        pipe.durable(Pos(200_000), Pos(100_007), pipe.completed_so_far());
        assert_eq!(pipe.admit(Pos(100_064), 1), Some(Admission::Volatile(Pos(100_007))));
    }

    /// Two runs may be under way at once: the second is there before the flush after the first begins.
    #[test]
    fn records_that_go_together_are_counted_each() {
        let pipe = pipe();
        let mut first = sealed(1);
        while first.run.begin_record() {}
        assert_eq!(first.run.len(), 3);
        assert!(pipe.hand_over(first).is_ok());
        assert!(pipe.next().is_some());
        assert_eq!(pipe.admit(Pos(100_064), 3), Some(Admission::Volatile(Pos(100_000))));
        let state = lock(&pipe.state);
        assert!(
            !pipe.is_full(&state, 1) && pipe.is_full(&state, 2),
            "three of a commit, three admitted, and one more"
        );
        drop(state);
        pipe.completed(3);
        let flushed = pipe.completed_so_far();
        pipe.committed(Pos(100_000), Pos(100_000), flushed);
        assert!(!pipe.is_full(&lock(&pipe.state), 7));
    }

    fn pipe() -> Pipe {
        Pipe::new(&LogLayout::for_tests(100_000, 512, 32 << 10), Pos(100_000), Pos(100_000))
    }

    fn sealed(seq: u64) -> SealedCheckpoint {
        let layout = LogLayout::for_tests(100_000, 512, 32 << 10);
        let run = RecordRun::new(&layout, AlignedBuf::zeroed(layout.run_bytes()));
        let (at, end) = (Pos(100_000 + seq), Pos(100_001 + seq));
        let closed = ClosedCheckpoint::empty(seq);
        SealedCheckpoint {
            closed,
            start: Lsn(seq),
            end,
            bytes: 512,
            run,
            place: RecordPlace { at, previous: 0 },
            behind: None,
        }
    }

    /// What is handed over after a flush has begun is not covered by it.
    #[test]
    fn a_flush_serves_what_was_there_before() {
        let pipe = pipe();
        assert!(pipe.hand_over(sealed(1)).is_ok());
        assert!(pipe.next().is_some_and(|first| first.behind.is_none()));
        pipe.records_begin();
        assert!(pipe.hand_over(sealed(2)).is_ok());
        pipe.completed(1);
        pipe.flush_begins(false, || Pos(100_001));
        assert!(pipe.hand_over(sealed(3)).is_ok());
        pipe.completed(1);
        pipe.committed(Pos(100_000), Pos(100_000), 0);
        let behind = pipe.next().and_then(|second| second.behind).expect("the flush behind the first");
        assert_eq!((behind.tail, behind.flushed), (Pos(100_001), 1), "as it was when the flush began");
        pipe.records_begin();
        pipe.committed(Pos(100_000), behind.tail, behind.flushed);
        assert!(pipe.next().is_some_and(|third| third.behind.is_none()), "too late for that flush");
    }

    /// If data are written after that flush has begun, their writer would rely on another flush before the second
    /// record, which never comes.
    #[test]
    fn a_flush_for_several_is_the_last_of_each() {
        for is_only in [true, false] {
            let pipe = pipe();
            (1..=3).for_each(|seq| assert!(pipe.hand_over(sealed(seq)).is_ok()));
            assert!(pipe.next().is_some());
            pipe.flush_begins(is_only, || Pos(100_000));
            assert_eq!(pipe.last_flushed_for(), if is_only { 3 } else { 0 });
            assert!(pipe.next().is_some_and(|second| second.behind.is_some()));
        }
    }

    /// A checkpoint stays open while others can still join it at no cost.
    #[test]
    fn a_checkpoint_is_closed_while_the_record_before_it_is_written() {
        let pipe = pipe();
        let is_turn = || Pipe::is_turn(&lock(&pipe.state));
        assert!(is_turn(), "nothing is under way");
        assert!(pipe.hand_over(sealed(1)).is_ok());
        assert!(!is_turn(), "one waits already");
        assert!(pipe.next().is_some());
        assert!(!is_turn(), "the flush before its record");
        pipe.records_begin();
        assert!(is_turn());
        pipe.flush_begins(false, || Pos(100_000));
        assert!(!is_turn(), "the flush behind it");
        pipe.committed(Pos(100_000), Pos(100_000), 0);
        assert!(is_turn());
    }

    /// Two threads that complete checkpoints could do so in any order.
    #[test]
    fn a_checkpoint_is_committed_where_it_was_closed_only_while_the_other_threads_are_at_rest() {
        let pipe = pipe();
        assert!(pipe.begin_here(&sealed(9)));
        assert!(!pipe.begin_here(&sealed(9)), "one is under way");
        pipe.committed(Pos(100_000), Pos(100_000), 0);
        assert!(!pipe.begin_here(&sealed(9)), "it lands");
        pipe.landed_here();
        assert!(pipe.hand_over(sealed(1)).is_ok());
        assert!(!pipe.begin_here(&sealed(9)), "one waits");
        assert!(pipe.next().is_some());
        pipe.records_begin();
        assert!(!pipe.begin_here(&sealed(9)));
        pipe.committed(Pos(100_000), Pos(100_000), 0);
        // Others may write records meanwhile, as if all threads were idle.
        assert!(matches!(pipe.admit(Pos(100_064), 1), Some(Admission::Volatile(_))));
        assert!(!pipe.begin_here(&sealed(9)));
        pipe.have_landed(Ended::Aborted(ClosedCheckpoint::empty(1)));
        assert!(!pipe.begin_here(&sealed(9)), "one is to land");
        assert!(pipe.next_to_land().is_some());
        assert!(!pipe.begin_here(&sealed(9)), "it lands");
        pipe.callbacks_done();
        assert!(pipe.begin_here(&sealed(9)));
        pipe.landed_here();
        pipe.kill();
        assert!(!pipe.begin_here(&sealed(9)));
    }

    #[test]
    fn one_that_has_grown_is_closed_at_once() {
        let (pipe, is_large) = (pipe(), AtomicBool::new(false));
        pipe.flush_begins(false, || Pos(100_000));
        std::thread::scope(|scope| {
            let closes = scope.spawn(|| pipe.wait_for_turn(|| !is_large.load(Ordering::SeqCst)));
            while !pipe.is_turn_awaited.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            is_large.store(true, Ordering::SeqCst);
            pipe.grown();
            closes.join().unwrap();
        });
    }

    /// Records written while the flush for a commit was under way name the tail from before it, and lie behind it.
    #[test]
    fn nothing_comes_near_a_tail_that_a_record_behind_the_durable_one_names() {
        let layout = LogLayout::for_tests(4096, 512, 32 << 10);
        let pipe = Pipe::new(&layout, Pos(4096), Pos(4096));
        assert_eq!(
            pipe.admit(Pos(6000), 1),
            Some(Admission::Volatile(Pos(4096))),
            "of the checkpoint before"
        );
        assert_eq!(pipe.admit(Pos(6100), 1), Some(Admission::Volatile(Pos(4096))), "of the next one");
        pipe.completed(2);
        pipe.committed(Pos(6050), Pos(5000), 2);
        pipe.landed_here();
        assert!(!pipe.has_room(Pos(8192 - 63)), "the last record there still names 4096");
        assert_eq!(pipe.admit(Pos(8192 - 63), 1), Some(Admission::Durable));
        pipe.durable(Pos(8192 - 63), Pos(5000), 2);
        assert!(pipe.has_room(Pos(8192 + 500)));
    }

    #[test]
    fn nothing_comes_near_a_tail_that_is_not_durably_named() {
        let layout = LogLayout::for_tests(4096, 512, 32 << 10);
        let pipe = Pipe::new(&layout, Pos(4096), Pos(4096));
        assert!(matches!(pipe.admit(Pos(8192 - 64), 1), Some(Admission::Volatile(_))));
        assert!(pipe.has_room(Pos(8192 - 64)) && !pipe.has_room(Pos(8192 - 63)), "several at once");
        assert_eq!(pipe.admit(Pos(8192 - 63), 1), Some(Admission::Durable));
        pipe.durable(Pos(200_000), Pos(4097), 1);
        assert!(matches!(pipe.admit(Pos(8192 - 63), 1), Some(Admission::Volatile(_))));
        pipe.kill();
        assert_eq!(pipe.admit(Pos(4100), 1), None);
    }

    /// Recovery begins at the head. But until a record says so, the last record from before may be the last that a
    /// crash leaves, and a kernel then needs everything behind the tail that it names.
    #[test]
    fn nothing_comes_near_the_tail_of_the_last_record_from_before() {
        let layout = LogLayout::for_tests(4096, 512, 32 << 10);
        let pipe = Pipe::new(&layout, Pos(8000), Pos(4096));
        assert_eq!(pipe.admit(Pos(8192 - 64), 1), Some(Admission::Volatile(Pos(8000))));
        assert_eq!(pipe.admit(Pos(8192 - 63), 1), Some(Admission::Durable));
        pipe.durable(Pos(200_000), Pos(8000), 1);
        assert_eq!(pipe.admit(Pos(8192 - 63), 1), Some(Admission::Volatile(Pos(8000))));
    }
}
