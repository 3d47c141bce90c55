//! What locks cost: classes of locks, counted from when somebody asks for it.
//!
//! A class is a static [`LockClass`] that its locks count into: a lock of any kind is taken through
//! [`LockClass::lock`]. Range locks count by themselves; those made after [`enable`] appear here as class `range`.
//! What is not a lock but happens as rarely, such as a transaction, may be counted as a class too.
//!
//! A lock that remembers its [`Users`] also counts who takes turns at it: exclusive acquisitions of a lock that
//! more than one thread has used since [`forget_users`]. A lock that each thread has for itself, such as a shard or
//! the lock of its own directory, never is; threads that work behind the callers' backs are not asked
//! ([`this_thread_is_background`]).
//!
//! Invariant: as long as nobody has called [`enable`], counting costs one load of a flag that nobody writes.

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rangelock::LockStats;

pub use rangelock::{Mode, StatsSnapshot};

static ENABLED: AtomicBool = AtomicBool::new(false);
static CLASSES: Mutex<Vec<&'static LockClass>> = Mutex::new(Vec::new());
static RANGES: OnceLock<Arc<LockStats>> = OnceLock::new();

/// Name of the class that all range locks count into.
pub const RANGE_CLASS: &str = "range";
/// Name of the class, which is no lock, that commits of transactions count into.
pub const COMMIT_CLASS: &str = "commits";

/// What was counted of one class of locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassCounts {
    /// Acquisitions in shared mode.
    pub shared: u64,
    /// Acquisitions in exclusive mode.
    pub exclusive: u64,
    /// Of these, acquisitions of a lock that several threads use, as far as locks know their users.
    pub between: u64,
    /// Acquisitions that had to wait.
    pub contended: u64,
    /// Time spent waiting, in nanoseconds.
    pub wait_ns: u64,
    /// Time that locks were held, in nanoseconds.
    pub hold_ns: u64,
}

impl From<StatsSnapshot> for ClassCounts {
    fn from(stats: StatsSnapshot) -> Self {
        let StatsSnapshot { shared, exclusive, contended, wait_ns, hold_ns } = stats;
        Self { shared, exclusive, between: 0, contended, wait_ns, hold_ns }
    }
}

/// Which threads use one lock. Costs nothing but its eight bytes while locks do not count.
#[derive(Debug, Default)]
pub struct Users(AtomicU64);

/// Users that were noted in an earlier epoch count no more.
static EPOCH: AtomicU32 = AtomicU32::new(1);

/// Every lock's users are forgotten: what begins now is judged by itself.
pub fn forget_users() {
    EPOCH.fetch_add(1, Relaxed);
}

thread_local! {
    /// This thread's number; 0: it is no user of any lock.
    static NUMBER: Cell<u32> = {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Cell::new(NEXT.fetch_add(1, Relaxed))
    };
}

/// Says that this thread serves all others, and is no user of the locks that it takes.
pub fn this_thread_is_background() {
    NUMBER.set(0);
}

impl Users {
    /// Of a lock that nobody has used.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Takes note of this thread; whether there are others. Of two that hold the lock shared at once one may be missed.
    fn are_several(&self) -> bool {
        const MANY: u32 = u32::MAX;
        let me = NUMBER.try_with(Cell::get).unwrap_or(0);
        if me == 0 {
            return false;
        }
        let word = |number: u32| u64::from(EPOCH.load(Relaxed)) << 32 | u64::from(number);
        let (mine, many, found) = (word(me), word(MANY), self.0.load(Relaxed));
        if found == mine || found == many {
            return found == many;
        }
        let first = found >> 32 != mine >> 32;
        self.0.store(if first { mine } else { many }, Relaxed);
        !first
    }
}

/// Counts from now on, for as long as the process lives.
pub fn enable() {
    ENABLED.store(true, Relaxed);
}

/// Whether locks count.
#[inline]
pub fn is_enabled() -> bool {
    ENABLED.load(Relaxed)
}

/// The counters of all range locks, if locks count.
pub fn range_stats() -> Option<Arc<LockStats>> {
    is_enabled().then(|| Arc::clone(RANGES.get_or_init(LockStats::new)))
}

/// What was counted so far, by class, those first that were waited for longest.
pub fn report() -> Vec<(&'static str, ClassCounts)> {
    let mut classes: Vec<_> = {
        let registered = CLASSES.lock().unwrap_or_else(PoisonError::into_inner);
        registered.iter().map(|class| (class.name, class.snapshot())).collect()
    };
    classes.extend(RANGES.get().map(|stats| (RANGE_CLASS, stats.snapshot().into())));
    classes.sort_by_key(|(name, s)| {
        (std::cmp::Reverse((s.wait_ns, s.contended, s.shared + s.exclusive)), *name)
    });
    classes
}

/// One class of locks, as a static.
///
/// ```
/// use lockstat::{LockClass, Mode};
/// use std::sync::Mutex;
///
/// static MAP: LockClass = LockClass::new("map");
/// let lock = Mutex::new(5);
/// lockstat::enable();
/// let mut guard = MAP.lock(Mode::Exclusive, || lock.try_lock().ok(), || lock.lock().unwrap());
/// **guard += 1;
/// drop(guard);
/// let report = lockstat::report();
/// assert!(report.iter().any(|(name, counts)| *name == "map" && counts.exclusive == 1));
/// ```
#[derive(Debug)]
#[repr(align(128))]
pub struct LockClass {
    name: &'static str,
    registered: AtomicBool,
    shared: AtomicU64,
    exclusive: AtomicU64,
    between: AtomicU64,
    contended: AtomicU64,
    wait_ns: AtomicU64,
    hold_ns: AtomicU64,
}

impl LockClass {
    /// A class of this name.
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            registered: AtomicBool::new(false),
            shared: AtomicU64::new(0),
            exclusive: AtomicU64::new(0),
            between: AtomicU64::new(0),
            contended: AtomicU64::new(0),
            wait_ns: AtomicU64::new(0),
            hold_ns: AtomicU64::new(0),
        }
    }

    /// Takes a lock of this class by `attempt`, or if that gives nothing, by `block`.
    #[inline]
    pub fn lock<G>(
        &'static self,
        mode: Mode,
        attempt: impl FnOnce() -> Option<G>,
        block: impl FnOnce() -> G,
    ) -> Counted<G> {
        if !is_enabled() {
            return Counted { guard: block(), hold: None };
        }
        let guard = match attempt() {
            Some(guard) => {
                self.count(mode, None);
                guard
            }
            None => {
                let since = Instant::now();
                let guard = block();
                self.count(mode, Some(since.elapsed()));
                guard
            }
        };
        Counted { guard, hold: Some(Hold { class: self, since: Instant::now() }) }
    }

    /// As [`lock`](Self::lock), of a lock that remembers its users.
    #[inline]
    pub fn lock_by<G>(
        &'static self,
        users: &Users,
        mode: Mode,
        attempt: impl FnOnce() -> Option<G>,
        block: impl FnOnce() -> G,
    ) -> Counted<G> {
        let guard = self.lock(mode, attempt, block);
        if guard.is_counted() {
            self.used(users, mode);
        }
        guard
    }

    /// As [`lock_by`](Self::lock_by), but does not wait: `None` is not counted.
    #[inline]
    pub fn try_lock_by<G>(
        &'static self,
        users: &Users,
        mode: Mode,
        attempt: impl FnOnce() -> Option<G>,
    ) -> Option<Counted<G>> {
        let guard = attempt()?;
        if !is_enabled() {
            return Some(Counted { guard, hold: None });
        }
        self.count(mode, None);
        self.used(users, mode);
        Some(Counted { guard, hold: Some(Hold { class: self, since: Instant::now() }) })
    }

    #[cold]
    fn used(&'static self, users: &Users, mode: Mode) {
        if users.are_several() && mode == Mode::Exclusive {
            self.between.fetch_add(1, Relaxed);
        }
    }

    /// Counts one acquisition (or whatever the class stands for) that is not taken through [`lock`](Self::lock);
    /// `waited` if it was contended.
    #[inline]
    pub fn count(&'static self, mode: Mode, waited: Option<Duration>) {
        if is_enabled() {
            self.count_now(mode, waited);
        }
    }

    #[cold]
    fn count_now(&'static self, mode: Mode, waited: Option<Duration>) {
        if !self.registered.swap(true, Relaxed) {
            CLASSES.lock().unwrap_or_else(PoisonError::into_inner).push(self);
        }
        match mode {
            Mode::Shared => self.shared.fetch_add(1, Relaxed),
            Mode::Exclusive => self.exclusive.fetch_add(1, Relaxed),
        };
        if let Some(waited) = waited {
            self.contended.fetch_add(1, Relaxed);
            self.wait_ns.fetch_add(nanoseconds(waited), Relaxed);
        }
    }

    /// What this class has counted.
    pub fn snapshot(&self) -> ClassCounts {
        ClassCounts {
            shared: self.shared.load(Relaxed),
            exclusive: self.exclusive.load(Relaxed),
            between: self.between.load(Relaxed),
            contended: self.contended.load(Relaxed),
            wait_ns: self.wait_ns.load(Relaxed),
            hold_ns: self.hold_ns.load(Relaxed),
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[derive(Debug)]
struct Hold {
    class: &'static LockClass,
    since: Instant,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.class.hold_ns.fetch_add(nanoseconds(self.since.elapsed()), Relaxed);
    }
}

/// A guard whose hold is counted; it derefs to the guard.
#[derive(Debug)]
#[must_use = "the lock is released at once if the guard is not kept"]
pub struct Counted<G> {
    guard: G,
    // Dropped after the guard: counting is not part of what it counts.
    hold: Option<Hold>,
}

impl<G> Counted<G> {
    /// The guard alone: what is held from here on is not counted, for one that is let go of to wait for a condition.
    pub fn into_uncounted(self) -> G {
        self.guard
    }

    /// Whether the hold is being counted.
    pub fn is_counted(&self) -> bool {
        self.hold.is_some()
    }
}

impl<G> Deref for Counted<G> {
    type Target = G;
    fn deref(&self) -> &G {
        &self.guard
    }
}

impl<G> DerefMut for Counted<G> {
    fn deref_mut(&mut self) -> &mut G {
        &mut self.guard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static TURNS: LockClass = LockClass::new("lock under test");

    #[test]
    fn a_lock_that_threads_take_turns_at_is_told_from_one_of_a_thread_s_own() {
        enable();
        let (lock, users) = (Mutex::new(()), Users::new());
        let take =
            || drop(TURNS.lock_by(&users, Mode::Exclusive, || lock.try_lock().ok(), || lock.lock().unwrap()));
        let elsewhere = |take: &(dyn Fn() + Sync)| std::thread::scope(|scope| drop(scope.spawn(take).join()));
        let between = || TURNS.snapshot().between;
        take();
        take();
        assert_eq!(between(), 0, "one thread's");
        elsewhere(&|| {
            this_thread_is_background();
            take();
        });
        take();
        assert_eq!(between(), 0, "a background thread is nobody");
        elsewhere(&take);
        take();
        assert_eq!(between(), 2, "it is two threads' from now on");
        forget_users();
        take();
        assert_eq!(between(), 2, "and nobody remembers");
        assert_eq!(TURNS.snapshot().exclusive, 7);
    }
}
