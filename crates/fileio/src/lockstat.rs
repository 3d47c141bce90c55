//! What locks cost: classes of locks, counted from when somebody asks for it.
//!
//! A class is a static [`LockClass`] that its locks count into: a lock of any kind is taken through
//! [`LockClass::lock`]. Range locks count by themselves; those made after [`enable`] appear here as class `range`.
//! What is not a lock but happens as rarely, such as a transaction, may be counted as a class too.
//!
//! Invariant: as long as nobody has called [`enable`], counting costs one load of a flag that nobody writes.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rangelock::LockStats;

pub use rangelock::{Mode, StatsSnapshot};

static ENABLED: AtomicBool = AtomicBool::new(false);
static CLASSES: Mutex<Vec<&'static LockClass>> = Mutex::new(Vec::new());
static RANGES: OnceLock<Arc<LockStats>> = OnceLock::new();

/// Name of the class that all range locks count into.
pub const RANGE_CLASS: &str = "range";

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
pub(crate) fn range_stats() -> Option<Arc<LockStats>> {
    is_enabled().then(|| Arc::clone(RANGES.get_or_init(LockStats::new)))
}

/// What was counted so far, by class, those first that were waited for longest.
pub fn report() -> Vec<(&'static str, StatsSnapshot)> {
    let mut classes: Vec<_> = {
        let registered = CLASSES.lock().unwrap_or_else(PoisonError::into_inner);
        registered.iter().map(|class| (class.name, class.snapshot())).collect()
    };
    classes.extend(RANGES.get().map(|stats| (RANGE_CLASS, stats.snapshot())));
    classes.sort_by_key(|(name, s)| {
        (std::cmp::Reverse((s.wait_ns, s.contended, s.shared + s.exclusive)), *name)
    });
    classes
}

/// One class of locks, as a static.
///
/// ```
/// use fileio::lockstat::{self, LockClass, Mode};
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
    pub fn snapshot(&self) -> StatsSnapshot {
        StatsSnapshot {
            shared: self.shared.load(Relaxed),
            exclusive: self.exclusive.load(Relaxed),
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
