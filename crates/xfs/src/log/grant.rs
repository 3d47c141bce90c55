//! Log space: a count of bytes, and a queue for those who have to wait.
//!
//! `used` counts what open tickets still hold, what waits in the CIL, and what lies in the log between tail and
//! head. Invariants:
//! - `used` never exceeds the capacity by a reservation (only by an error in somebody's sizing);
//! - whoever has to wait is served first come, first served; those that go on with a transaction that others may
//!   be waiting for (`Turn::Rolling`) before those that begin one;
//! - nobody waits while there is room: who gives space back looks for waiters after, who waits looks for space
//!   after it can be seen.

use super::sync::{AtomicU32, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, Padded, lock, lock_by, wait};
use fileio::lockstat::{Counted, LockClass, Mode, Users};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

static QUEUE: LockClass = LockClass::new("log space queue");
/// No lock: one atomic addition.
static SPACE: LockClass = LockClass::new("log space");

/// Which queue to wait in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Begins a transaction.
    Fresh,
    /// Goes on with one.
    Rolling,
}

/// There will never be space: the journal was shut down.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Dead;

/// The space of one log.
#[derive(Debug)]
pub(super) struct Grant {
    used: Padded<AtomicU64>,
    /// Written when somebody has to wait, which is rare.
    waiting: Padded<Waiting>,
    capacity: u64,
    queue: Mutex<Queue>,
    queue_users: Users,
}

#[derive(Debug, Default)]
struct Waiting {
    rolling: AtomicU32,
    fresh: AtomicU32,
}

#[derive(Debug, Default)]
struct Queue {
    rolling: VecDeque<Arc<Waiter>>,
    fresh: VecDeque<Arc<Waiter>>,
    dead: bool,
}

#[derive(Debug)]
struct Waiter {
    bytes: u64,
    /// Changed under the queue's lock.
    served: AtomicU32,
    wake: Condvar,
}

impl Grant {
    pub(super) fn new(capacity: u64) -> Self {
        let queue_users = Users::new();
        Self {
            used: Padded::default(),
            waiting: Padded::default(),
            capacity,
            queue: Mutex::default(),
            queue_users,
        }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(super) fn used(&self) -> u64 {
        self.used.0.load(Ordering::SeqCst)
    }

    /// Takes `bytes`, and waits for them if need be: before it waits, it calls `short` with no lock held.
    pub(super) fn take(&self, bytes: u64, turn: Turn, short: impl FnOnce()) -> Result<(), Dead> {
        if self.try_take(bytes, turn) {
            SPACE.count(Mode::Shared, None);
            return Ok(());
        }
        let since = Instant::now();
        let waiter = Arc::new(Waiter { bytes, served: AtomicU32::new(0), wake: Condvar::new() });
        {
            let mut queue = self.queue();
            if queue.dead {
                return Err(Dead);
            }
            queue.of(turn).push_back(Arc::clone(&waiter));
            self.count(turn).fetch_add(1, Ordering::SeqCst);
            // Space that came back before the count could be seen.
            self.serve(&mut queue);
        }
        short();
        let mut queue = lock(&self.queue);
        while waiter.served.load(Ordering::Relaxed) == 0 {
            if queue.dead {
                return Err(Dead);
            }
            queue = wait(&waiter.wake, queue);
        }
        SPACE.count(Mode::Shared, Some(since.elapsed()));
        Ok(())
    }

    /// Takes `bytes` if nobody has to wait for that.
    pub(super) fn try_take(&self, bytes: u64, turn: Turn) -> bool {
        let behind = self.waiting.0.rolling.load(Ordering::SeqCst)
            + if turn == Turn::Fresh { self.waiting.0.fresh.load(Ordering::SeqCst) } else { 0 };
        behind == 0 && self.add_within(bytes)
    }

    fn add_within(&self, bytes: u64) -> bool {
        let fits = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= self.capacity);
        self.used.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).is_ok()
    }

    /// Takes `bytes` that are needed whether they are there or not.
    pub(super) fn take_regardless(&self, bytes: u64) {
        self.used.0.fetch_add(bytes, Ordering::SeqCst);
    }

    /// Gives `bytes` back.
    pub(super) fn give(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let before = self.used.0.fetch_sub(bytes, Ordering::SeqCst);
        debug_assert!(before >= bytes, "more log space given back than taken: {bytes} of {before}");
        if self.is_short() {
            self.serve(&mut self.queue());
        }
    }

    /// Whether somebody waits.
    pub(super) fn is_short(&self) -> bool {
        let Waiting { rolling, fresh } = &self.waiting.0;
        rolling.load(Ordering::SeqCst) != 0 || fresh.load(Ordering::SeqCst) != 0
    }

    /// Bytes that are waited for.
    pub(super) fn wanted(&self) -> u64 {
        if !self.is_short() {
            return 0;
        }
        let queue = self.queue();
        queue.rolling.iter().chain(&queue.fresh).map(|waiter| waiter.bytes).sum()
    }

    /// Wakes everybody; nobody is served any more.
    pub(super) fn kill(&self) {
        let mut queue = self.queue();
        queue.dead = true;
        for waiter in queue.rolling.drain(..) {
            self.waiting.0.rolling.fetch_sub(1, Ordering::SeqCst);
            waiter.wake.notify_one();
        }
        for waiter in queue.fresh.drain(..) {
            self.waiting.0.fresh.fetch_sub(1, Ordering::SeqCst);
            waiter.wake.notify_one();
        }
    }

    fn serve(&self, queue: &mut Queue) {
        for turn in [Turn::Rolling, Turn::Fresh] {
            while let Some(first) = queue.of(turn).front() {
                if !self.add_within(first.bytes) {
                    return;
                }
                first.served.store(1, Ordering::Relaxed);
                first.wake.notify_one();
                queue.of(turn).pop_front();
                self.count(turn).fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    fn queue(&self) -> Counted<MutexGuard<'_, Queue>> {
        lock_by(&self.queue, &QUEUE, &self.queue_users)
    }

    fn count(&self, turn: Turn) -> &AtomicU32 {
        match turn {
            Turn::Rolling => &self.waiting.0.rolling,
            Turn::Fresh => &self.waiting.0.fresh,
        }
    }
}

impl Queue {
    fn of(&mut self, turn: Turn) -> &mut VecDeque<Arc<Waiter>> {
        match turn {
            Turn::Rolling => &mut self.rolling,
            Turn::Fresh => &mut self.fresh,
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Waits until so many are in the queues.
    fn wait_for_waiters(grant: &Grant, count: usize) {
        loop {
            let queue = grant.queue();
            if queue.fresh.len() + queue.rolling.len() == count {
                return;
            }
            drop(queue);
            std::thread::yield_now();
        }
    }

    #[test]
    fn served_in_turn_and_rolling_ones_first() {
        let grant = Grant::new(100);
        assert!(grant.try_take(90, Turn::Fresh));
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            for (nth, (bytes, turn)) in
                [(50, Turn::Fresh), (5, Turn::Fresh), (30, Turn::Rolling)].into_iter().enumerate()
            {
                let (grant, tell) = (&grant, tell.clone());
                scope.spawn(move || {
                    grant.take(bytes, turn, || ()).unwrap();
                    tell.send(bytes).unwrap();
                });
                wait_for_waiters(grant, nth + 1);
            }
            assert_eq!(grant.wanted(), 85);
            // Five bytes would fit, and have to wait for those before them.
            assert!(!grant.try_take(5, Turn::Fresh));
            grant.give(20);
            assert_eq!(told.recv(), Ok(30));
            grant.give(60);
            let mut both = [told.recv().unwrap(), told.recv().unwrap()];
            both.sort_unstable();
            assert_eq!(both, [5, 50]);
        });
        assert_eq!(grant.used(), 90 - 20 + 30 - 60 + 55);
    }

    #[test]
    fn a_thousand_who_wait_are_served_in_the_order_in_which_they_came() {
        const WAITERS: usize = 1000;
        let grant = Grant::new(100);
        assert!(grant.try_take(100, Turn::Fresh));
        let served = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for nth in 0..WAITERS {
                let (grant, served) = (&grant, &served);
                scope.spawn(move || {
                    // Now small, now large: who wants little does not overtake, and only one fits at a time.
                    let bytes = if nth % 2 == 0 { 100 } else { 51 };
                    grant.take(bytes, Turn::Fresh, || ()).unwrap();
                    lock(served).push(nth);
                    grant.give(bytes);
                });
                wait_for_waiters(grant, nth + 1);
            }
            grant.give(100);
        });
        assert_eq!(*lock(&served), (0..WAITERS).collect::<Vec<_>>());
        assert_eq!((grant.used(), grant.wanted()), (0, 0));
    }

    #[test]
    fn a_dead_log_wakes_all() {
        let grant = Grant::new(10);
        assert!(grant.try_take(10, Turn::Fresh));
        std::thread::scope(|scope| {
            let waiters: Vec<_> = (0..4).map(|_| scope.spawn(|| grant.take(1, Turn::Fresh, || ()))).collect();
            wait_for_waiters(&grant, 4);
            grant.kill();
            assert!(waiters.into_iter().all(|waiter| waiter.join().unwrap() == Err(Dead)));
        });
        assert_eq!(grant.take(1, Turn::Rolling, || ()), Err(Dead));
    }
}
