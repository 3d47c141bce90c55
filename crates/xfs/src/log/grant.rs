//! Log space: a count of what is used, a count of what is promised, and queues for those who have to wait.
//!
//! `used` is what lies in the log between tail and head, what waits in the CIL, and what open tickets hold: the
//! kernel's write head. `promised` is what would be used if the log were empty and nobody had to wait: of each open
//! ticket the steps that it has left, and the next one whole from the first to the last ([`Ticket`](super::Ticket)
//! has at least one), and what is set aside for intents: the kernel's reserve head. Both lie in one word, so that a
//! claim is one step and never half done.
//!
//! Invariants:
//! - a fresh claim adds to both counts, and is granted only within `capacity` and `promisable`; who goes on with a
//!   transaction adds to `used` alone, as its step was promised all the time. So to go on is to wait for room in the
//!   log, and never for somebody who holds a reservation and may in turn wait for what the transaction has locked;
//! - room in the log comes without the help of anybody who waits here: items are written back as they were
//!   committed, and intents that hold the tail are logged again (see [`pusher`](super::pusher)), for which as much as
//!   it takes is set aside twice. Once that is done, what lies in the log is no more than the third part that was
//!   promised for intents and one checkpoint's [`base`](super::layout::Layout::base), and all who want to go on fit in,
//!   as `capacity - promisable` is two of these;
//! - whoever has to wait is served first come, first served; those who go on (`Turn::Rolling`) before those who
//!   begin. What is left of a step becomes a part of the next one: it serves nobody in between;
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

/// Bytes of the log: logs have less than 4 GiB, so that both counts go into one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Space {
    pub(super) used: u64,
    pub(super) promised: u64,
}

const HALF: u32 = 32;

impl Space {
    /// Of a claim that was promised before, or that promises nothing.
    pub(super) fn used(used: u64) -> Self {
        Self { used, promised: 0 }
    }

    fn word(self) -> u64 {
        debug_assert!(self.used >> HALF == 0 && self.promised >> HALF == 0, "{self:?} of a log");
        self.promised << HALF | self.used & u64::from(u32::MAX)
    }

    fn of_word(word: u64) -> Self {
        Self { used: word & u64::from(u32::MAX), promised: word >> HALF }
    }

    fn plus(self, other: Self) -> Self {
        Self { used: self.used + other.used, promised: self.promised + other.promised }
    }
}

/// The space of one log.
#[derive(Debug)]
pub(super) struct Grant {
    /// A [`Space`].
    taken: Padded<AtomicU64>,
    /// Written when somebody has to wait, which is rare.
    waiting: Padded<Waiting>,
    capacity: u64,
    promisable: u64,
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
    claim: Space,
    /// Changed under the queue's lock.
    served: AtomicU32,
    wake: Condvar,
}

impl Grant {
    /// Of a log of which `capacity` bytes can be used, and `promisable` be promised.
    pub(super) fn new(capacity: u64, promisable: u64) -> Self {
        let queue_users = Users::new();
        Self {
            taken: Padded::default(),
            waiting: Padded::default(),
            capacity,
            promisable,
            queue: Mutex::default(),
            queue_users,
        }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(super) fn promisable(&self) -> u64 {
        self.promisable
    }

    pub(super) fn used(&self) -> u64 {
        self.taken().used
    }

    pub(super) fn promised(&self) -> u64 {
        self.taken().promised
    }

    fn taken(&self) -> Space {
        Space::of_word(self.taken.0.load(Ordering::SeqCst))
    }

    /// Takes what is claimed, and waits for it if need be: before it waits, it calls `short` with no lock held.
    pub(super) fn take(&self, claim: Space, turn: Turn, short: impl FnOnce()) -> Result<(), Dead> {
        debug_assert!(turn == Turn::Fresh || claim.promised == 0, "who goes on was promised it: {claim:?}");
        if self.try_take(claim, turn) {
            SPACE.count(Mode::Shared, None);
            return Ok(());
        }
        let since = Instant::now();
        let waiter = Arc::new(Waiter { claim, served: AtomicU32::new(0), wake: Condvar::new() });
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

    /// Takes what is claimed if nobody has to wait for that.
    pub(super) fn try_take(&self, claim: Space, turn: Turn) -> bool {
        let behind = self.waiting.0.rolling.load(Ordering::SeqCst)
            + if turn == Turn::Fresh { self.waiting.0.fresh.load(Ordering::SeqCst) } else { 0 };
        behind == 0 && self.add_within(claim)
    }

    fn add_within(&self, claim: Space) -> bool {
        let fits = |word: u64| {
            let sum = Space::of_word(word).plus(claim);
            let promised = claim.promised == 0 || sum.promised <= self.promisable;
            (sum.used <= self.capacity && promised).then(|| sum.word())
        };
        self.taken.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).is_ok()
    }

    /// Takes what is needed whether it is there or not.
    pub(super) fn take_regardless(&self, space: Space) {
        self.taken.0.fetch_add(space.word(), Ordering::SeqCst);
    }

    /// Gives space back.
    pub(super) fn give(&self, space: Space) {
        if space == Space::default() {
            return;
        }
        let before = Space::of_word(self.taken.0.fetch_sub(space.word(), Ordering::SeqCst));
        debug_assert!(
            before.used >= space.used && before.promised >= space.promised,
            "more log space given back than taken: {space:?} of {before:?}"
        );
        if self.is_short() {
            self.serve(&mut self.queue());
        }
    }

    /// Whether somebody waits.
    fn is_short(&self) -> bool {
        let Waiting { rolling, fresh } = &self.waiting.0;
        rolling.load(Ordering::SeqCst) != 0 || fresh.load(Ordering::SeqCst) != 0
    }

    /// Bytes that are waited for and that the log alone could give: who begins and is promised nothing, as others
    /// were promised all there is, waits for those.
    pub(super) fn wanted(&self) -> u64 {
        if !self.is_short() {
            return 0;
        }
        let queue = self.queue();
        let mut promised = self.taken().promised;
        let promisable = |waiter: &&Arc<Waiter>| {
            promised += waiter.claim.promised;
            promised <= self.promisable
        };
        let fresh: u64 = queue.fresh.iter().take_while(promisable).map(|waiter| waiter.claim.used).sum();
        fresh + queue.rolling.iter().map(|waiter| waiter.claim.used).sum::<u64>()
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
                if !self.add_within(first.claim) {
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

    fn fresh(bytes: u64) -> Space {
        Space { used: bytes, promised: bytes }
    }

    fn claim(bytes: u64, turn: Turn) -> Space {
        if turn == Turn::Fresh { fresh(bytes) } else { Space::used(bytes) }
    }

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
        let grant = Grant::new(100, 100);
        assert!(grant.try_take(Space::used(90), Turn::Fresh));
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            for (nth, (bytes, turn)) in
                [(50, Turn::Fresh), (5, Turn::Fresh), (30, Turn::Rolling)].into_iter().enumerate()
            {
                let (grant, tell) = (&grant, tell.clone());
                scope.spawn(move || {
                    grant.take(claim(bytes, turn), turn, || ()).unwrap();
                    tell.send(bytes).unwrap();
                });
                wait_for_waiters(grant, nth + 1);
            }
            assert_eq!(grant.wanted(), 85);
            // Five bytes would fit, and have to wait for those before them.
            assert!(!grant.try_take(fresh(5), Turn::Fresh));
            grant.give(Space::used(20));
            assert_eq!(told.recv(), Ok(30));
            grant.give(Space::used(60));
            let mut both = [told.recv().unwrap(), told.recv().unwrap()];
            both.sort_unstable();
            assert_eq!(both, [5, 50]);
        });
        assert_eq!(grant.used(), 90 - 20 + 30 - 60 + 55);
    }

    #[test]
    fn a_thousand_who_wait_are_served_in_the_order_in_which_they_came() {
        const WAITERS: usize = 1000;
        let grant = Grant::new(100, 100);
        assert!(grant.try_take(fresh(100), Turn::Fresh));
        let served = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for nth in 0..WAITERS {
                let (grant, served) = (&grant, &served);
                scope.spawn(move || {
                    // Now small, now large: who wants little does not overtake, and only one fits at a time.
                    let bytes = if nth % 2 == 0 { 100 } else { 51 };
                    grant.take(fresh(bytes), Turn::Fresh, || ()).unwrap();
                    lock(served).push(nth);
                    grant.give(fresh(bytes));
                });
                wait_for_waiters(grant, nth + 1);
            }
            grant.give(fresh(100));
        });
        assert_eq!(*lock(&served), (0..WAITERS).collect::<Vec<_>>());
        assert_eq!((grant.used(), grant.wanted()), (0, 0));
    }

    #[test]
    fn a_dead_log_wakes_all() {
        let grant = Grant::new(10, 10);
        assert!(grant.try_take(fresh(10), Turn::Fresh));
        std::thread::scope(|scope| {
            let waiters: Vec<_> =
                (0..4).map(|_| scope.spawn(|| grant.take(fresh(1), Turn::Fresh, || ()))).collect();
            wait_for_waiters(&grant, 4);
            grant.kill();
            assert!(waiters.into_iter().all(|waiter| waiter.join().unwrap() == Err(Dead)));
        });
        assert_eq!(grant.take(Space::used(1), Turn::Rolling, || ()), Err(Dead));
    }

    /// Others were promised all there is, and wait for the one who goes on: room in the log is all that it needs.
    #[test]
    fn who_goes_on_waits_for_the_log_alone() {
        let grant = Grant::new(120, 100);
        // A step of 30 bytes is in the log, and its next one promised.
        assert!(grant.try_take(fresh(30), Turn::Fresh));
        assert!(grant.try_take(fresh(70), Turn::Fresh));
        assert!(!grant.try_take(fresh(1), Turn::Fresh), "all is promised");
        std::thread::scope(|scope| {
            let begins = scope.spawn(|| grant.take(fresh(1), Turn::Fresh, || ()));
            wait_for_waiters(&grant, 1);
            assert_eq!(grant.wanted(), 0, "no log space helps who begins");
            let goes_on = scope.spawn(|| grant.take(Space::used(30), Turn::Rolling, || ()));
            wait_for_waiters(&grant, 2);
            assert_eq!(grant.wanted(), 30);
            // The log's tail moves.
            grant.give(Space::used(30));
            assert_eq!(goes_on.join().unwrap(), Ok(()));
            wait_for_waiters(&grant, 1);
            grant.give(fresh(30));
            assert_eq!(begins.join().unwrap(), Ok(()));
        });
        assert_eq!(grant.taken(), Space { used: 71, promised: 71 });
    }
}
