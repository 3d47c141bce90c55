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
//!   after it can be seen;
//! - as long as nobody waits, a handle gives back to its slot ([`Handles`]) up to [`Grant::keeps`], and takes from there.
//!   Both counts still have that. It is collected by whoever finds no space without it, before they wait and again when
//!   they can be seen to; who has given back while somebody waits passes it on, and looks for that after.
//!
//! The older design has both counts under one lock, and keeps nothing: [`Reservations::Locked`].

use super::designs::Reservations;
use super::handles::Handles;
use super::sync::{AtomicU32, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, Padded, lock, lock_by, wait};
use lockstat::{Counted, LockClass, Mode, Users};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

static QUEUE: LockClass = LockClass::new("log space queue");
/// No lock: one atomic addition.
static SPACE: LockClass = LockClass::new("log space");
/// Where the counts are under one.
static LOCKED: LockClass = LockClass::new("log space lock");

/// As many slots may keep as much as is promised altogether, before somebody needs it.
const KEEPERS: u64 = 64;

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

    pub(super) fn word(self) -> u64 {
        debug_assert!(self.used >> HALF == 0 && self.promised >> HALF == 0, "{self:?} of a log");
        self.promised << HALF | self.used & u64::from(u32::MAX)
    }

    pub(super) fn of_word(word: u64) -> Self {
        Self { used: word & u64::from(u32::MAX), promised: word >> HALF }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { used: self.used + other.used, promised: self.promised + other.promised }
    }

    /// What is left without `other`, if that is in it.
    pub(super) fn less(self, other: Self) -> Option<Self> {
        let used = self.used.checked_sub(other.used)?;
        Some(Self { used, promised: self.promised.checked_sub(other.promised)? })
    }

    /// Of each count, what `other` has as well.
    fn within(self, other: Self) -> Self {
        Self { used: self.used.min(other.used), promised: self.promised.min(other.promised) }
    }

    /// Of each count, what is not beyond `most`.
    pub(super) fn at_most(self, most: u64) -> Self {
        Self { used: self.used.min(most), promised: self.promised.min(most) }
    }
}

/// The space of one log.
#[derive(Debug)]
pub(super) struct Grant {
    taken: Taken,
    /// What of it lies ready for handles.
    handles: Arc<Handles>,
    /// What each slot may keep, of either count.
    keeps: u64,
    /// Written when somebody has to wait, which is rare.
    waiting: Padded<Waiting>,
    capacity: u64,
    promisable: u64,
    queue: Mutex<Queue>,
    queue_users: Users,
}

/// What is used and promised.
#[derive(Debug)]
enum Taken {
    /// A [`Space`].
    Atomic(Padded<AtomicU64>),
    Locked(Box<Padded<(Mutex<Space>, Users)>>),
}

impl Taken {
    fn new(design: Reservations) -> Self {
        match design {
            Reservations::Atomic => Self::Atomic(Padded::default()),
            Reservations::Locked => Self::Locked(Box::default()),
        }
    }

    fn get(&self) -> Space {
        match self {
            Self::Atomic(taken) => Space::of_word(taken.0.load(Ordering::SeqCst)),
            Self::Locked(locked) => *lock(&locked.0.0),
        }
    }

    /// Adds a claim if its sum with what is taken `fits`.
    fn add_if(&self, claim: Space, fits: impl Fn(Space) -> bool) -> bool {
        match self {
            Self::Atomic(taken) => {
                let add = |word| {
                    let sum = Space::of_word(word).plus(claim);
                    fits(sum).then(|| sum.word())
                };
                taken.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).is_ok()
            }
            Self::Locked(locked) => {
                let mut taken = Self::locked(locked);
                let sum = taken.plus(claim);
                let fitting = fits(sum);
                if fitting {
                    **taken = sum;
                }
                fitting
            }
        }
    }

    fn add(&self, space: Space) {
        match self {
            Self::Atomic(taken) => {
                taken.0.fetch_add(space.word(), Ordering::SeqCst);
            }
            Self::Locked(locked) => {
                let mut taken = Self::locked(locked);
                **taken = taken.plus(space);
            }
        }
    }

    fn subtract(&self, space: Space) {
        let before = match self {
            Self::Atomic(taken) => Space::of_word(taken.0.fetch_sub(space.word(), Ordering::SeqCst)),
            Self::Locked(locked) => {
                let mut taken = Self::locked(locked);
                let before = **taken;
                **taken = before.less(space).unwrap_or_default();
                before
            }
        };
        debug_assert!(
            before.less(space).is_some(),
            "more log space given back than taken: {space:?} of {before:?}"
        );
    }

    fn locked(locked: &Padded<(Mutex<Space>, Users)>) -> Counted<MutexGuard<'_, Space>> {
        let (taken, users) = &locked.0;
        lock_by(taken, &LOCKED, users)
    }
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
    pub(super) fn new(capacity: u64, promisable: u64, handles: Arc<Handles>, design: Reservations) -> Self {
        let keeps = match design {
            Reservations::Atomic => promisable / KEEPERS,
            Reservations::Locked => 0,
        };
        let (taken, queue_users) = (Taken::new(design), Users::new());
        let (waiting, queue) = (Padded::default(), Mutex::default());
        Self { taken, handles, keeps, waiting, capacity, promisable, queue, queue_users }
    }

    /// The same, with another bound for what slots keep.
    pub(super) fn keeping(self, keeps: u64) -> Self {
        Self { keeps, ..self }
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

    /// What is taken by somebody. Of what is given back just now it may have a part still.
    fn taken(&self) -> Space {
        // First what is taken: what is kept was taken before.
        let taken = self.taken.get();
        if self.keeps == 0 {
            taken
        } else {
            taken.less(self.handles.kept().within(taken)).unwrap_or_default()
        }
    }

    /// What a handle that begins may take of what its slot keeps: nothing while somebody waits.
    pub(super) fn claim_of_kept(&self, claim: Space) -> Option<Space> {
        (self.keeps != 0 && !self.is_short()).then_some(claim)
    }

    /// Counts a claim that was granted out of what a slot keeps.
    pub(super) fn count_kept(&self) {
        SPACE.count(Mode::Shared, None);
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
            self.collect();
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
        behind == 0 && (self.add_within(claim) || self.collect() && self.add_within(claim))
    }

    /// As [`try_take`](Self::try_take), out of what the slot of a handle keeps before all else.
    pub(super) fn try_take_at(&self, slot: usize, claim: Space, turn: Turn) -> bool {
        let kept = self.claim_of_kept(claim).is_some_and(|claim| self.handles.take(slot, claim));
        kept || self.try_take(claim, turn)
    }

    fn add_within(&self, claim: Space) -> bool {
        self.taken.add_if(claim, |sum| {
            let promised = claim.promised == 0 || sum.promised <= self.promisable;
            sum.used <= self.capacity && promised
        })
    }

    /// Takes back what slots keep. Whether there was anything.
    fn collect(&self) -> bool {
        let kept = if self.keeps == 0 { Space::default() } else { self.handles.collect() };
        if kept != Space::default() {
            self.taken.subtract(kept);
        }
        kept != Space::default()
    }

    /// Takes what is needed whether it is there or not.
    pub(super) fn take_regardless(&self, space: Space) {
        self.taken.add(space);
    }

    /// Gives space back that a handle had: to its slot, unless somebody waits. `short` is called if somebody still does.
    pub(super) fn give_at(&self, slot: usize, space: Space, short: impl FnOnce()) {
        if self.keeps == 0 || self.is_short() {
            return self.give(space);
        }
        self.give(self.handles.keep(slot, space, self.keeps));
        // Whoever began to wait meanwhile may not have found it.
        if self.is_short() && self.collect() {
            self.serve(&mut self.queue());
            if self.is_short() {
                short();
            }
        }
    }

    /// Gives space back.
    pub(super) fn give(&self, space: Space) {
        if space == Space::default() {
            return;
        }
        self.taken.subtract(space);
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
    use super::super::designs::HandleCounts;
    use super::*;
    use std::sync::mpsc;

    /// Of a log of which slots may keep all.
    fn grant(capacity: u64, promisable: u64) -> Grant {
        let handles = Arc::new(Handles::new(HandleCounts::Atomic));
        Grant::new(capacity, promisable, handles, Reservations::Atomic).keeping(capacity)
    }

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
        let grant = grant(100, 100);
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
        let grant = grant(100, 100);
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
        let grant = grant(10, 10);
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
        let grant = grant(120, 100);
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
