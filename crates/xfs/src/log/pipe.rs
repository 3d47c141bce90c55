//! Between the two threads that write the log: checkpoints whose commit record is still to be written, and how far
//! the log may be written ahead of what is known to be stable.
//!
//! One thread writes a checkpoint's records up to the one with the commit, which it hands over; the other flushes
//! the device, writes that one durably, and lands the checkpoint, while the first is at the next one's records.
//!
//! Rules that recovery relies on:
//! - no more records lie in the log without a flush behind them than recovery looks through for holes and wrong
//!   checksums;
//! - what a record overwrites lies before the tail that some *durable* record names: otherwise a crash in the
//!   middle of it would leave a log whose last whole record names a tail that is gone;
//! - a record names only a tail whose write-backs have been flushed.

use super::cil::Closed;
use super::layout::{Layout, Pos};
use super::record::Record;
use super::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, lock, wait};
use std::collections::VecDeque;
use xfs_format::log::BLOCK_SIZE;
use xfs_format::types::Lsn;

/// A checkpoint of which everything but the last record is written.
#[derive(Debug)]
pub(super) struct Sealed {
    pub(super) closed: Closed,
    /// LSN of its first record.
    pub(super) start: Lsn,
    /// Behind its last record.
    pub(super) end: Pos,
    /// Bytes of the log that it takes.
    pub(super) bytes: u64,
    /// Its last record, and where that goes.
    pub(super) record: Record,
    pub(super) at: Pos,
    /// Block of the record before.
    pub(super) previous: u32,
}

/// How a record is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// As it comes, naming this tail. To be reported by [`Pipe::completed`].
    Volatile(Pos),
    /// Behind a flush and for good, naming the tail of now. To be reported by [`Pipe::durable`].
    Durable,
}

#[derive(Debug)]
struct State {
    queue: VecDeque<Sealed>,
    /// The last record of a checkpoint is being written.
    committing: bool,
    /// No checkpoint comes any more.
    finished: bool,
    dead: bool,
    /// Records that were admitted as they come, that are written, and that have been flushed.
    admitted: u64,
    completed: u64,
    flushed: u64,
    /// The tail that a durable record names.
    tail: Pos,
}

#[derive(Debug)]
pub(super) struct Pipe {
    state: Mutex<State>,
    changed: Condvar,
    /// The last checkpoint whose flush has begun.
    flushing: AtomicU64,
    unflushed_max: u64,
    log_blocks: u64,
    record_blocks: u64,
}

impl Pipe {
    /// The pipe of a log whose last record, from before, names `tail`.
    pub(super) fn new(layout: &Layout, tail: Pos) -> Self {
        let state = State {
            queue: VecDeque::new(),
            committing: false,
            finished: false,
            dead: false,
            admitted: 0,
            completed: 0,
            flushed: 0,
            tail,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            flushing: AtomicU64::new(0),
            unflushed_max: layout.unflushed_max().into(),
            log_blocks: layout.blocks.into(),
            record_blocks: u64::from(layout.record_max()) / BLOCK_SIZE as u64,
        }
    }

    /// Waits until a record that ends at `end` may be written. `None`: never.
    pub(super) fn admit(&self, end: Pos) -> Option<Admission> {
        let mut state = self.wait_for_room(end)?;
        if self.is_near(&state, end) || self.is_full(&state) {
            return Some(Admission::Durable);
        }
        state.admitted += 1;
        Some(Admission::Volatile(state.tail))
    }

    /// Hands a checkpoint over, as soon as its last record may be written; gives it back if that is never.
    pub(super) fn hand_over(&self, sealed: Sealed) -> Result<(), Box<Sealed>> {
        match self.wait_for_room(sealed.end) {
            Some(mut state) => {
                state.queue.push_back(sealed);
                self.changed.notify_all();
                Ok(())
            }
            None => Err(Box::new(sealed)),
        }
    }

    fn is_near(&self, state: &State, end: Pos) -> bool {
        end.0.saturating_sub(state.tail.0) + self.record_blocks > self.log_blocks
    }

    fn is_full(&self, state: &State) -> bool {
        let commits = state.queue.len() as u64 + u64::from(state.committing);
        state.admitted - state.flushed + commits >= self.unflushed_max
    }

    /// There is room, or nobody else is at work who could make some.
    fn wait_for_room(&self, end: Pos) -> Option<MutexGuard<'_, State>> {
        let mut state = lock(&self.state);
        loop {
            if state.dead {
                return None;
            }
            let idle = state.queue.is_empty() && !state.committing;
            if idle || !(self.is_near(&state, end) || self.is_full(&state)) {
                return Some(state);
            }
            state = wait(&self.changed, state);
        }
    }

    /// A record that was admitted as it comes is written.
    pub(super) fn completed(&self) {
        lock(&self.state).completed += 1;
    }

    /// How many records that were admitted as they come are written: a flush that begins now makes them stable.
    pub(super) fn completed_so_far(&self) -> u64 {
        lock(&self.state).completed
    }

    /// A durable record that names `tail` is written, behind a flush that made `flushed` records stable.
    pub(super) fn durable(&self, tail: Pos, flushed: u64) {
        let mut state = lock(&self.state);
        state.tail = state.tail.max(tail);
        state.flushed = state.flushed.max(flushed);
        state.committing = false;
        self.changed.notify_all();
    }

    /// The flush that makes a checkpoint's commit record safe to write begins behind this.
    pub(super) fn flushes_for(&self, seq: u64) {
        self.flushing.fetch_max(seq, Ordering::SeqCst);
    }

    /// The last checkpoint whose flush may have begun. A flush for another begins behind what this thread did before.
    pub(super) fn last_flushed_for(&self) -> u64 {
        // Not a load, which may be done before stores that come before it.
        self.flushing.fetch_max(0, Ordering::SeqCst)
    }

    /// Waits for the next checkpoint to commit; `None`: there is none any more. To be reported by
    /// [`durable`](Self::durable), if it is committed.
    pub(super) fn next(&self) -> Option<Sealed> {
        let mut state = lock(&self.state);
        loop {
            if let Some(sealed) = state.queue.pop_front() {
                state.committing = true;
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

    #[test]
    fn only_so_much_is_written_without_a_flush() {
        let layout = Layout::for_tests(100_000, 512, 32 << 10);
        let pipe = Pipe::new(&layout, Pos(100_000));
        for _ in 0..layout.unflushed_max() {
            assert_eq!(pipe.admit(Pos(100_064)), Some(Admission::Volatile(Pos(100_000))));
            pipe.completed();
        }
        assert_eq!(pipe.admit(Pos(100_064)), Some(Admission::Durable));
        pipe.durable(Pos(100_007), pipe.completed_so_far());
        assert_eq!(pipe.admit(Pos(100_064)), Some(Admission::Volatile(Pos(100_007))));
    }

    #[test]
    fn nothing_comes_near_a_tail_that_is_not_durably_named() {
        let layout = Layout::for_tests(4096, 512, 32 << 10);
        let pipe = Pipe::new(&layout, Pos(4096));
        assert!(matches!(pipe.admit(Pos(8192 - 64)), Some(Admission::Volatile(_))));
        assert_eq!(pipe.admit(Pos(8192 - 63)), Some(Admission::Durable));
        pipe.durable(Pos(4097), 1);
        assert!(matches!(pipe.admit(Pos(8192 - 63)), Some(Admission::Volatile(_))));
        pipe.kill();
        assert_eq!(pipe.admit(Pos(4100)), None);
    }
}
