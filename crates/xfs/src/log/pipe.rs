//! Between the two threads that write the log: checkpoints whose commit record is still to be written, and how far
//! the log may be written ahead of what is known to be stable.
//!
//! One thread writes a checkpoint's records up to the run with the commit, which it hands over; the other flushes
//! the device, writes that run durably, and lands the checkpoint, while the first is at the next one's records.
//!
//! Of a checkpoint that fits into one run of records, which are written together, nothing is written before its turn comes.
//! So it stays open while the device is flushed for the one before it: whoever commits meanwhile shares it, and its flushes.
//! It is closed while the last records of the one before it are being written. Where those become durable by a flush behind
//! them, the same flush is the one that comes before the next run: then a checkpoint costs one flush.
//!
//! Where a flush costs nothing, there is nothing to wait for: a small checkpoint is committed by the thread that closed it, as
//! long as the other has nothing to do ([`Pipe::begin_here`]). Checkpoints land in their order all the same.
//!
//! Rules that recovery relies on:
//! - no more records lie in the log without a flush behind them than recovery looks through for holes and wrong
//!   checksums;
//! - what a record overwrites lies before the tail that some *durable* record names, and before those that records behind
//!   that one name, which may be older: otherwise a crash in the middle of it would leave a log whose last whole record names a
//!   tail that is gone;
//! - a record names only a tail whose write-backs have been flushed.

use super::cil::Closed;
use super::layout::{Layout, Pos};
use super::record::{Place, Run};
use super::sync::{AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, lock, wait};
use std::collections::VecDeque;
use xfs_format::log::BLOCK_SIZE;
use xfs_format::types::Lsn;

/// A checkpoint of which everything but the last records is written.
#[derive(Debug)]
pub(super) struct Sealed {
    pub(super) closed: Closed,
    /// LSN of its first record.
    pub(super) start: Lsn,
    /// Behind its last record.
    pub(super) end: Pos,
    /// Bytes of the log that it takes.
    pub(super) bytes: u64,
    /// Its last records, and where they go.
    pub(super) run: Run,
    pub(super) place: Place,
    /// The flush that they need before them, if that has begun: it is over when the checkpoint's turn comes.
    pub(super) behind: Option<Behind>,
}

/// What held when a flush began: a record that is written behind that flush may rely on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Behind {
    /// The tail: what had been written back is stable.
    pub(super) tail: Pos,
    /// How many records that were admitted as they come are stable.
    pub(super) flushed: u64,
}

/// How records are to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// As it comes, naming this tail. To be reported by [`Pipe::completed`].
    Volatile(Pos),
    /// Behind a flush and for good, naming the tail of now. To be reported by [`Pipe::durable`].
    Durable,
}

/// What the thread that commits is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// It takes the next checkpoint at once.
    Rest,
    /// A flush, before a checkpoint's last records or behind them.
    Flush,
    /// A checkpoint's last records.
    Records,
    /// The landing of one that is committed. The next may be begun, but by no other thread.
    Landing,
}

#[derive(Debug)]
struct State {
    queue: VecDeque<Sealed>,
    committer: At,
    /// Last records that it is at.
    committing: u64,
    /// No checkpoint comes any more.
    finished: bool,
    dead: bool,
    /// Records that were admitted as they come, that are written, and that have been flushed.
    admitted: u64,
    completed: u64,
    flushed: u64,
    /// Where recovery has to begin: the tail that records name which are not durable themselves.
    tail: Pos,
    /// The tail that the last durable record names, be it one of before.
    named: Pos,
    /// Records behind that one which were admitted as they come: any may be the last whole one.
    behind_durable: VecDeque<Volatile>,
}

/// A record that was admitted as it comes.
#[derive(Clone, Copy, Debug)]
struct Volatile {
    end: Pos,
    /// What it names.
    tail: Pos,
}

impl State {
    /// The oldest tail that recovery may begin at, whatever record it finds to be the last: what is behind is still wanted.
    fn oldest_named(&self) -> Pos {
        self.behind_durable.iter().map(|record| record.tail).fold(self.named, Pos::min)
    }
}

#[derive(Debug)]
pub(super) struct Pipe {
    state: Mutex<State>,
    changed: Condvar,
    /// The last checkpoint whose flush has begun.
    flushing: AtomicU64,
    /// Whether somebody waits until it is better to close a checkpoint.
    is_turn_awaited: AtomicBool,
    unflushed_max: u64,
    log_blocks: u64,
    record_blocks: u64,
}

impl Pipe {
    /// The pipe of a log whose recovery has to begin at `tail`, whatever comes, and whose last record, from before, names
    /// `named`.
    pub(super) fn new(layout: &Layout, tail: Pos, named: Pos) -> Self {
        let state = State {
            queue: VecDeque::new(),
            committer: At::Rest,
            committing: 0,
            finished: false,
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
            flushing: AtomicU64::new(0),
            is_turn_awaited: AtomicBool::new(false),
            unflushed_max: layout.unflushed_max().into(),
            log_blocks: layout.blocks.into(),
            record_blocks: u64::from(layout.record_max()) / BLOCK_SIZE as u64,
        }
    }

    /// What is kept from before this log was opened has recovery begin at `tail`. To be called before anything is written.
    pub(super) fn keep(&self, tail: Pos) {
        let mut state = lock(&self.state);
        state.tail = state.tail.min(tail);
    }

    /// Whether records that end at `end` may be written together. If not, they overwrite, or come close to, what records name
    /// as the tail: then each has to come by itself, as another tail may have to be named before the next.
    pub(super) fn has_room(&self, end: Pos) -> bool {
        !self.is_near(&lock(&self.state), end)
    }

    /// Waits until so many records that end at `end` may be written; of several, it [has room](Self::has_room). `None`: never.
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

    /// Hands a checkpoint over, as soon as its last records may be written; gives it back if that is never.
    pub(super) fn hand_over(&self, sealed: Sealed) -> Result<(), Box<Sealed>> {
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
        matches!(state.committer, At::Rest | At::Landing)
    }

    /// Has the caller commit its checkpoint at once, if the thread that commits has nothing to do. To be reported by
    /// [`committed`](Self::committed) and [`landed`](Self::landed), as by that thread.
    pub(super) fn begin_here(&self, sealed: &Sealed) -> bool {
        let mut state = lock(&self.state);
        let is_idle = !state.dead && state.queue.is_empty() && state.committer == At::Rest;
        if is_idle {
            state.committer = At::Flush;
            state.committing = sealed.run.len() as u64;
        }
        is_idle
    }

    /// A checkpoint that was committed is over.
    pub(super) fn landed(&self) {
        lock(&self.state).committer = At::Rest;
    }

    fn is_near(&self, state: &State, end: Pos) -> bool {
        end.0.saturating_sub(state.oldest_named().0) + self.record_blocks > self.log_blocks
    }

    fn is_full(&self, state: &State, records: u64) -> bool {
        let waiting: u64 = state.queue.iter().map(|sealed| sealed.run.len() as u64).sum();
        let under_way = if Self::is_done(state) { 0 } else { state.committing };
        state.admitted - state.flushed + waiting + under_way + records > self.unflushed_max
    }

    /// There is room, or nobody else is at work who could make some.
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

    /// Waits until a checkpoint that fits into one run had better be closed, or until it does not fit any more.
    pub(super) fn wait_for_turn(&self, fits: impl Fn() -> bool) {
        let mut state = lock(&self.state);
        self.is_turn_awaited.store(true, Ordering::SeqCst);
        while !state.dead && !Self::is_turn(&state) && fits() {
            state = wait(&self.changed, state);
        }
        self.is_turn_awaited.store(false, Ordering::SeqCst);
    }

    /// No other checkpoint waits to be committed, nor is it too late for the flush that is under way.
    fn is_turn(state: &State) -> bool {
        state.queue.is_empty() && state.committer != At::Flush
    }

    /// The open checkpoint may have become too large for one run.
    pub(super) fn grown(&self) {
        if self.is_turn_awaited.load(Ordering::SeqCst) {
            let _state = lock(&self.state);
            self.changed.notify_all();
        }
    }

    /// So many records that were admitted as they come are written.
    pub(super) fn completed(&self, records: usize) {
        lock(&self.state).completed += records as u64;
    }

    /// How many records that were admitted as they come are written: a flush that begins now makes them stable.
    pub(super) fn completed_so_far(&self) -> u64 {
        lock(&self.state).completed
    }

    /// Durable records up to `end` that name `tail` are written, behind a flush that made `flushed` records stable.
    pub(super) fn durable(&self, end: Pos, tail: Pos, flushed: u64) {
        self.note_durable(lock(&self.state), end, tail, flushed);
    }

    /// The same of a checkpoint's last records: that is committed, and lands.
    pub(super) fn committed(&self, end: Pos, tail: Pos, flushed: u64) {
        let mut state = lock(&self.state);
        state.committer = At::Landing;
        self.note_durable(state, end, tail, flushed);
    }

    fn note_durable(&self, mut state: MutexGuard<'_, State>, end: Pos, tail: Pos, flushed: u64) {
        state.behind_durable.retain(|record| record.end > end);
        state.tail = state.tail.max(tail);
        state.named = state.named.max(tail);
        state.flushed = state.flushed.max(flushed);
        self.changed.notify_all();
    }

    /// The device is about to be flushed; nothing that was handed over before needs another flush before its last records, and
    /// none at all if `is_only`. `tail` is asked at once.
    pub(super) fn flush_begins(&self, is_only: bool, tail: impl FnOnce() -> Pos) -> Behind {
        let mut state = lock(&self.state);
        state.committer = At::Flush;
        if let Some(last) = state.queue.back().filter(|_| is_only) {
            self.flushes_for(last.closed.seq);
        }
        let behind = Behind { tail: tail(), flushed: state.completed };
        state.queue.iter_mut().for_each(|sealed| sealed.behind = Some(behind));
        behind
    }

    /// The last records of a checkpoint are about to be written, behind their flush.
    pub(super) fn records_begin(&self) {
        lock(&self.state).committer = At::Records;
        self.changed.notify_all();
    }

    /// The last flush of those that a checkpoint needs begins behind this.
    pub(super) fn flushes_for(&self, seq: u64) {
        self.flushing.fetch_max(seq, Ordering::SeqCst);
    }

    /// The last checkpoint whose flush may have begun. A flush for another begins behind what this thread did before.
    pub(super) fn last_flushed_for(&self) -> u64 {
        // Not a load, which may be done before stores that come before it.
        self.flushing.fetch_max(0, Ordering::SeqCst)
    }

    /// Waits for the next checkpoint to commit; `None`: there is none any more. To be reported by
    /// [`committed`](Self::committed), if it is, and by [`landed`](Self::landed).
    pub(super) fn next(&self) -> Option<Sealed> {
        let mut state = lock(&self.state);
        loop {
            if let Some(sealed) = state.queue.pop_front() {
                state.committer = At::Flush;
                state.committing = sealed.run.len() as u64;
                return Some(sealed);
            }
            if state.finished {
                return None;
            }
            state = wait(&self.changed, state);
        }
    }

    /// No checkpoint comes any more.
    pub(super) fn finish(&self) {
        lock(&self.state).finished = true;
        self.changed.notify_all();
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
        let layout = Layout::for_tests(100_000, 512, 32 << 10);
        let pipe = Pipe::new(&layout, Pos(100_000), Pos(100_000));
        for _ in 0..layout.unflushed_max() {
            assert_eq!(pipe.admit(Pos(100_064), 1), Some(Admission::Volatile(Pos(100_000))));
            pipe.completed(1);
        }
        assert_eq!(pipe.admit(Pos(100_064), 1), Some(Admission::Durable));
        pipe.durable(Pos(200_000), Pos(100_007), pipe.completed_so_far());
        assert_eq!(pipe.admit(Pos(100_064), 1), Some(Admission::Volatile(Pos(100_007))));
    }

    /// Two runs may be on their way at once: the second is there before the flush behind the first begins.
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
        Pipe::new(&Layout::for_tests(100_000, 512, 32 << 10), Pos(100_000), Pos(100_000))
    }

    fn sealed(seq: u64) -> Sealed {
        let layout = Layout::for_tests(100_000, 512, 32 << 10);
        let run = Run::new(&layout, AlignedBuf::zeroed(layout.run_bytes()));
        let (at, end) = (Pos(100_000 + seq), Pos(100_001 + seq));
        let closed = Closed::empty(seq);
        Sealed {
            closed,
            start: Lsn(seq),
            end,
            bytes: 512,
            run,
            place: Place { at, previous: 0 },
            behind: None,
        }
    }

    /// What is handed over when a flush has begun is not behind it.
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

    /// Whoever wrote data when that flush had begun would count on another one before the second record, which never comes.
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

    /// A checkpoint stays open while others may still join it at no cost.
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

    /// Two threads that land checkpoints would do so in any order.
    #[test]
    fn a_checkpoint_is_committed_where_it_was_closed_only_while_the_other_thread_is_at_rest() {
        let pipe = pipe();
        assert!(pipe.begin_here(&sealed(9)));
        assert!(!pipe.begin_here(&sealed(9)), "one is under way");
        pipe.committed(Pos(100_000), Pos(100_000), 0);
        assert!(!pipe.begin_here(&sealed(9)), "it lands");
        pipe.landed();
        assert!(pipe.hand_over(sealed(1)).is_ok());
        assert!(!pipe.begin_here(&sealed(9)), "one waits");
        assert!(pipe.next().is_some());
        pipe.records_begin();
        assert!(!pipe.begin_here(&sealed(9)));
        pipe.committed(Pos(100_000), Pos(100_000), 0);
        // Meanwhile others may write records, as if all were at rest.
        assert!(matches!(pipe.admit(Pos(100_064), 1), Some(Admission::Volatile(_))));
        assert!(!pipe.begin_here(&sealed(9)));
        pipe.landed();
        assert!(pipe.begin_here(&sealed(9)));
        pipe.landed();
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

    /// Records that came while the flush for a commit was under way name the tail from before it, and lie behind it.
    #[test]
    fn nothing_comes_near_a_tail_that_a_record_behind_the_durable_one_names() {
        let layout = Layout::for_tests(4096, 512, 32 << 10);
        let pipe = Pipe::new(&layout, Pos(4096), Pos(4096));
        assert_eq!(
            pipe.admit(Pos(6000), 1),
            Some(Admission::Volatile(Pos(4096))),
            "of the checkpoint before"
        );
        assert_eq!(pipe.admit(Pos(6100), 1), Some(Admission::Volatile(Pos(4096))), "of the next one");
        pipe.completed(2);
        pipe.committed(Pos(6050), Pos(5000), 2);
        pipe.landed();
        assert!(!pipe.has_room(Pos(8192 - 63)), "the last record there still names 4096");
        assert_eq!(pipe.admit(Pos(8192 - 63), 1), Some(Admission::Durable));
        pipe.durable(Pos(8192 - 63), Pos(5000), 2);
        assert!(pipe.has_room(Pos(8192 + 500)));
    }

    #[test]
    fn nothing_comes_near_a_tail_that_is_not_durably_named() {
        let layout = Layout::for_tests(4096, 512, 32 << 10);
        let pipe = Pipe::new(&layout, Pos(4096), Pos(4096));
        assert!(matches!(pipe.admit(Pos(8192 - 64), 1), Some(Admission::Volatile(_))));
        assert!(pipe.has_room(Pos(8192 - 64)) && !pipe.has_room(Pos(8192 - 63)), "several at once");
        assert_eq!(pipe.admit(Pos(8192 - 63), 1), Some(Admission::Durable));
        pipe.durable(Pos(200_000), Pos(4097), 1);
        assert!(matches!(pipe.admit(Pos(8192 - 63), 1), Some(Admission::Volatile(_))));
        pipe.kill();
        assert_eq!(pipe.admit(Pos(4100), 1), None);
    }

    /// Recovery begins at the head, but as long as no record says so, the one before it may be the last that a crash leaves,
    /// and a kernel wants all that is behind its tail.
    #[test]
    fn nothing_comes_near_the_tail_of_the_last_record_from_before() {
        let layout = Layout::for_tests(4096, 512, 32 << 10);
        let pipe = Pipe::new(&layout, Pos(8000), Pos(4096));
        assert_eq!(pipe.admit(Pos(8192 - 64), 1), Some(Admission::Volatile(Pos(8000))));
        assert_eq!(pipe.admit(Pos(8192 - 63), 1), Some(Admission::Durable));
        pipe.durable(Pos(200_000), Pos(8000), 1);
        assert_eq!(pipe.admit(Pos(8192 - 63), 1), Some(Admission::Volatile(Pos(8000))));
    }
}
