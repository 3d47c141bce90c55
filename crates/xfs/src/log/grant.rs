//! Log space: a count of used bytes, a count of promised bytes, and queues of waiters. These are the two grant heads.
//!
//! `used` is the log between tail and head, plus the CIL, plus what open tickets hold: the kernel's write head.
//! `promised` is what would be used if the log were empty and nobody had to wait: the kernel's reserve head. It has the
//! remaining units of each open ticket, with the next one in full until the last is done ([`Ticket`](super::Ticket)
//! always has at least one), and what is set aside for intents. Both counts share one word, so that a claim is one
//! atomic operation.
//!
//! Invariants:
//! - a new claim adds to both counts, and is granted only within `capacity` and `promisable`. Whoever rolls a
//!   transaction adds only to `used`, because the unit was promised all the time. So a roll only waits for room in the
//!   log, and never for the holder of a reservation, who may wait for what this transaction has locked;
//! - room in the log becomes free without the help of those who wait here: items are written back as committed, and
//!   intents that hold the tail are relogged (see [`ail_push`](super::ail_push)). Twice the space for that is set
//!   aside. After that, the log holds at most the third part that was promised for intents, plus one checkpoint's
//!   [`base`](super::layout::LogLayout::base). All rolls then fit in, because `capacity - promisable` is two of these;
//! - waiters are served in order of arrival, rolls (`GrantHead::Write`) before new transactions. What is left of a unit
//!   becomes part of the next one, and nobody else gets it in between;
//! - nobody waits while there is room: after space is given back, its releaser looks for waiters, and a waiter looks
//!   for space after it has become visible;
//! - as long as nobody waits, a handle gives space back to its slot ([`Handles`]), up to [`Grant::keeps`], and takes it
//!   from there. Both counts still include that space. Whoever finds no other space collects it, before waiting and
//!   again after becoming visible. Whoever gives space back while somebody waits passes it on, and looks for waiters
//!   afterwards.
//!
//! The older design has both counts under one lock and keeps nothing in slots: [`Reservations::Locked`].

use super::designs::Reservations;
use super::handles::Handles;
use super::sync::{AtomicU32, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, Padded, lock, lock_by, wait};
use lockstat::{Counted, LockClass, Mode, Users};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

static QUEUE: LockClass = LockClass::new("log space queue");
/// Not a lock: one atomic addition.
static SPACE: LockClass = LockClass::new("log space");
/// Used if the counts are under a lock.
static LOCKED: LockClass = LockClass::new("log space lock");

/// How many full slots together keep as much as can be promised.
const KEEPERS: u64 = 64;

/// The grant head to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrantHead {
    /// For beginning a transaction.
    Reserve,
    /// For rolling one.
    Write,
}

/// There will never be space, because the journal was shut down.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Dead;

/// Log bytes. Logs are smaller than 4 GiB, so both counts fit into one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogSpace {
    pub(super) used: u64,
    pub(super) promised: u64,
}

const HALF: u32 = 32;

impl LogSpace {
    /// A claim that was promised before or promises nothing.
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

    /// `self - other`, if `other` fits into it.
    pub(super) fn less(self, other: Self) -> Option<Self> {
        let used = self.used.checked_sub(other.used)?;
        Some(Self { used, promised: self.promised.checked_sub(other.promised)? })
    }

    /// The minimum of each count.
    fn within(self, other: Self) -> Self {
        Self { used: self.used.min(other.used), promised: self.promised.min(other.promised) }
    }

    /// Limits each count to `most`.
    pub(super) fn at_most(self, most: u64) -> Self {
        Self { used: self.used.min(most), promised: self.promised.min(most) }
    }
}

/// The space of one log.
#[derive(Debug)]
pub(super) struct Grant {
    taken: Taken,
    /// The part of it that is kept ready for handles.
    handles: Arc<Handles>,
    /// What each slot may keep, of either count.
    keeps: u64,
    /// Written when somebody has to wait, which is rare.
    waiting: Padded<Waiting>,
    capacity: u64,
    promisable: u64,
    queue: Mutex<GrantQueues>,
    queue_users: Users,
}

/// What is used and promised.
#[derive(Debug)]
enum Taken {
    /// A [`LogSpace`].
    Atomic(Padded<AtomicU64>),
    Locked(Box<Padded<(Mutex<LogSpace>, Users)>>),
}

impl Taken {
    fn new(design: Reservations) -> Self {
        match design {
            Reservations::Atomic => Self::Atomic(Padded::default()),
            Reservations::Locked => Self::Locked(Box::default()),
        }
    }

    fn get(&self) -> LogSpace {
        match self {
            Self::Atomic(taken) => LogSpace::of_word(taken.0.load(Ordering::SeqCst)),
            Self::Locked(locked) => *lock(&locked.0.0),
        }
    }

    /// Adds a claim if the sum `fits`.
    fn add_if(&self, claim: LogSpace, fits: impl Fn(LogSpace) -> bool) -> bool {
        match self {
            Self::Atomic(taken) => {
                let add = |word| {
                    let sum = LogSpace::of_word(word).plus(claim);
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

    fn add(&self, space: LogSpace) {
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

    fn subtract(&self, space: LogSpace) {
        let before = match self {
            Self::Atomic(taken) => LogSpace::of_word(taken.0.fetch_sub(space.word(), Ordering::SeqCst)),
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

    fn locked(locked: &Padded<(Mutex<LogSpace>, Users)>) -> Counted<MutexGuard<'_, LogSpace>> {
        let (taken, users) = &locked.0;
        lock_by(taken, &LOCKED, users)
    }
}

#[derive(Debug, Default)]
struct Waiting {
    write: AtomicU32,
    reserve: AtomicU32,
}

#[derive(Debug, Default)]
struct GrantQueues {
    write: VecDeque<Arc<Waiter>>,
    reserve: VecDeque<Arc<Waiter>>,
    dead: bool,
}

#[derive(Debug)]
struct Waiter {
    claim: LogSpace,
    /// Changed under the queue's lock.
    served: AtomicU32,
    wake: Condvar,
}

impl Grant {
    /// For a log with `capacity` usable bytes, of which `promisable` can be promised.
    pub(super) fn new(capacity: u64, promisable: u64, handles: Arc<Handles>, design: Reservations) -> Self {
        let keeps = match design {
            Reservations::Atomic => promisable / KEEPERS,
            Reservations::Locked => 0,
        };
        let (taken, queue_users) = (Taken::new(design), Users::new());
        let (waiting, queue) = (Padded::default(), Mutex::default());
        Self { taken, handles, keeps, waiting, capacity, promisable, queue, queue_users }
    }

    /// The same with another limit for what slots keep.
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

    /// What is taken. It may still include space that is being given back right now.
    fn taken(&self) -> LogSpace {
        // Read `taken` first: what slots keep was taken before.
        let taken = self.taken.get();
        if self.keeps == 0 {
            taken
        } else {
            taken.less(self.handles.kept().within(taken)).unwrap_or_default()
        }
    }

    /// What a new handle may claim from its slot: nothing while somebody waits.
    pub(super) fn claim_of_kept(&self, claim: LogSpace) -> Option<LogSpace> {
        (self.keeps != 0 && !self.is_short()).then_some(claim)
    }

    /// Counts a claim that was granted from what a slot keeps.
    pub(super) fn count_kept(&self) {
        SPACE.count(Mode::Shared, None);
    }

    /// Takes what is claimed, waiting if necessary. Before it waits, it calls `short` with no lock held.
    pub(super) fn take(&self, claim: LogSpace, head: GrantHead, short: impl FnOnce()) -> Result<(), Dead> {
        debug_assert!(
            head == GrantHead::Reserve || claim.promised == 0,
            "who goes on was promised it: {claim:?}"
        );
        if self.try_take(claim, head) {
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
            queue.of(head).push_back(Arc::clone(&waiter));
            self.count(head).fetch_add(1, Ordering::SeqCst);
            // Space may have come back before the count was visible.
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

    /// Takes what is claimed if that needs no wait.
    pub(super) fn try_take(&self, claim: LogSpace, head: GrantHead) -> bool {
        let behind = self.waiting.0.write.load(Ordering::SeqCst)
            + if head == GrantHead::Reserve { self.waiting.0.reserve.load(Ordering::SeqCst) } else { 0 };
        behind == 0 && (self.add_within(claim) || self.collect_and_take(claim))
    }

    /// The same from what slots keep. Somebody may have begun to wait before it was back, and not have found it: then it
    /// is theirs first.
    fn collect_and_take(&self, claim: LogSpace) -> bool {
        if !self.collect() {
            return false;
        }
        if self.is_short() {
            self.serve(&mut self.queue());
            return false;
        }
        self.add_within(claim)
    }

    /// Like [`try_take`](Self::try_take), but first from what the handle's slot keeps.
    pub(super) fn try_take_at(&self, slot: usize, claim: LogSpace, head: GrantHead) -> bool {
        let kept = self.claim_of_kept(claim).is_some_and(|claim| self.handles.take(slot, claim));
        kept || self.try_take(claim, head)
    }

    fn add_within(&self, claim: LogSpace) -> bool {
        self.taken.add_if(claim, |sum| {
            let promised = claim.promised == 0 || sum.promised <= self.promisable;
            sum.used <= self.capacity && promised
        })
    }

    /// Takes back what slots keep. Returns whether there was anything.
    fn collect(&self) -> bool {
        let kept = if self.keeps == 0 { LogSpace::default() } else { self.handles.collect() };
        if kept != LogSpace::default() {
            self.taken.subtract(kept);
        }
        kept != LogSpace::default()
    }

    /// Takes space even if there is none.
    pub(super) fn take_regardless(&self, space: LogSpace) {
        self.taken.add(space);
    }

    /// Gives back the space of a handle: to its slot, unless somebody waits. Calls `short` if somebody still waits
    /// afterwards.
    pub(super) fn give_at(&self, slot: usize, space: LogSpace, short: impl FnOnce()) {
        if self.keeps == 0 || self.is_short() {
            return self.give(space);
        }
        self.give(self.handles.keep(slot, space, self.keeps));
        // A thread that began to wait meanwhile may not have found it.
        if self.is_short() && self.collect() {
            self.serve(&mut self.queue());
            if self.is_short() {
                short();
            }
        }
    }

    /// Gives space back.
    pub(super) fn give(&self, space: LogSpace) {
        if space == LogSpace::default() {
            return;
        }
        self.taken.subtract(space);
        if self.is_short() {
            self.serve(&mut self.queue());
        }
    }

    /// Whether somebody waits.
    fn is_short(&self) -> bool {
        let Waiting { write: rolling, reserve: fresh } = &self.waiting.0;
        rolling.load(Ordering::SeqCst) != 0 || fresh.load(Ordering::SeqCst) != 0
    }

    /// Bytes that waiters need and that only the log can free. A waiter that begins and cannot be promised anything
    /// waits for other transactions instead.
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
        let fresh: u64 = queue.reserve.iter().take_while(promisable).map(|waiter| waiter.claim.used).sum();
        fresh + queue.write.iter().map(|waiter| waiter.claim.used).sum::<u64>()
    }

    /// Wakes everybody. Nobody is served any more.
    pub(super) fn kill(&self) {
        let mut queue = self.queue();
        queue.dead = true;
        for waiter in queue.write.drain(..) {
            self.waiting.0.write.fetch_sub(1, Ordering::SeqCst);
            waiter.wake.notify_one();
        }
        for waiter in queue.reserve.drain(..) {
            self.waiting.0.reserve.fetch_sub(1, Ordering::SeqCst);
            waiter.wake.notify_one();
        }
    }

    fn serve(&self, queue: &mut GrantQueues) {
        for head in [GrantHead::Write, GrantHead::Reserve] {
            while let Some(first) = queue.of(head).front() {
                if !self.add_within(first.claim) {
                    return;
                }
                first.served.store(1, Ordering::Relaxed);
                first.wake.notify_one();
                queue.of(head).pop_front();
                self.count(head).fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    fn queue(&self) -> Counted<MutexGuard<'_, GrantQueues>> {
        lock_by(&self.queue, &QUEUE, &self.queue_users)
    }

    fn count(&self, head: GrantHead) -> &AtomicU32 {
        match head {
            GrantHead::Write => &self.waiting.0.write,
            GrantHead::Reserve => &self.waiting.0.reserve,
        }
    }
}

impl GrantQueues {
    fn of(&mut self, head: GrantHead) -> &mut VecDeque<Arc<Waiter>> {
        match head {
            GrantHead::Write => &mut self.write,
            GrantHead::Reserve => &mut self.reserve,
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::super::designs::HandleCounts;
    use super::*;
    use std::sync::mpsc;

    /// For a log whose slots may keep everything.
    fn grant(capacity: u64, promisable: u64) -> Grant {
        let handles = Arc::new(Handles::new(HandleCounts::Atomic));
        Grant::new(capacity, promisable, handles, Reservations::Atomic).keeping(capacity)
    }

    fn fresh(bytes: u64) -> LogSpace {
        LogSpace { used: bytes, promised: bytes }
    }

    fn claim(bytes: u64, head: GrantHead) -> LogSpace {
        if head == GrantHead::Reserve { fresh(bytes) } else { LogSpace::used(bytes) }
    }

    /// Waits until `count` waiters are in the queues.
    fn wait_for_waiters(grant: &Grant, count: usize) {
        loop {
            let queue = grant.queue();
            if queue.reserve.len() + queue.write.len() == count {
                return;
            }
            drop(queue);
            std::thread::yield_now();
        }
    }

    #[test]
    fn served_in_turn_and_rolling_ones_first() {
        let grant = grant(100, 100);
        assert!(grant.try_take(LogSpace::used(90), GrantHead::Reserve));
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            for (nth, (bytes, head)) in
                [(50, GrantHead::Reserve), (5, GrantHead::Reserve), (30, GrantHead::Write)]
                    .into_iter()
                    .enumerate()
            {
                let (grant, tell) = (&grant, tell.clone());
                scope.spawn(move || {
                    grant.take(claim(bytes, head), head, || ()).unwrap();
                    tell.send(bytes).unwrap();
                });
                wait_for_waiters(grant, nth + 1);
            }
            assert_eq!(grant.wanted(), 85);
            // Five bytes would fit, but must wait for the earlier waiters.
            assert!(!grant.try_take(fresh(5), GrantHead::Reserve));
            grant.give(LogSpace::used(20));
            assert_eq!(told.recv(), Ok(30));
            grant.give(LogSpace::used(60));
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
        assert!(grant.try_take(fresh(100), GrantHead::Reserve));
        let served = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for nth in 0..WAITERS {
                let (grant, served) = (&grant, &served);
                scope.spawn(move || {
                    // Alternately small and large: small claims do not overtake, and only one fits at a time.
                    let bytes = if nth % 2 == 0 { 100 } else { 51 };
                    grant.take(fresh(bytes), GrantHead::Reserve, || ()).unwrap();
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
        assert!(grant.try_take(fresh(10), GrantHead::Reserve));
        std::thread::scope(|scope| {
            let waiters: Vec<_> =
                (0..4).map(|_| scope.spawn(|| grant.take(fresh(1), GrantHead::Reserve, || ()))).collect();
            wait_for_waiters(&grant, 4);
            grant.kill();
            assert!(waiters.into_iter().all(|waiter| waiter.join().unwrap() == Err(Dead)));
        });
        assert_eq!(grant.take(LogSpace::used(1), GrantHead::Write, || ()), Err(Dead));
    }

    /// Everything is promised, and the others wait for the transaction that rolls. It only needs room in the log.
    #[test]
    fn who_goes_on_waits_for_the_log_alone() {
        let grant = grant(120, 100);
        // A unit of 30 bytes is in the log, and the next one is promised.
        assert!(grant.try_take(fresh(30), GrantHead::Reserve));
        assert!(grant.try_take(fresh(70), GrantHead::Reserve));
        assert!(!grant.try_take(fresh(1), GrantHead::Reserve), "all is promised");
        std::thread::scope(|scope| {
            let begins = scope.spawn(|| grant.take(fresh(1), GrantHead::Reserve, || ()));
            wait_for_waiters(&grant, 1);
            assert_eq!(grant.wanted(), 0, "no log space helps who begins");
            let goes_on = scope.spawn(|| grant.take(LogSpace::used(30), GrantHead::Write, || ()));
            wait_for_waiters(&grant, 2);
            assert_eq!(grant.wanted(), 30);
            // The log's tail moves.
            grant.give(LogSpace::used(30));
            assert_eq!(goes_on.join().unwrap(), Ok(()));
            wait_for_waiters(&grant, 1);
            grant.give(fresh(30));
            assert_eq!(begins.join().unwrap(), Ok(()));
        });
        assert_eq!(grant.taken(), LogSpace { used: 71, promised: 71 });
    }
}
