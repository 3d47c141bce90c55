//! Values that are published version by version: anybody may read them, and one thread at a time changes them.
//!
//! Each version has a number that is unique in the process, and a published value has the number of its latest version.
//! A thread remembers the versions that it read last. If it remembers the latest number, it has the version, without a
//! locked instruction and without writing to shared memory. If not, it takes the version under the publisher's lock. So
//! publishing only costs one store in addition to that lock, however many threads read.
//!
//! Invariants:
//! - whoever publishes holds the version's lock, and sets its number before anybody can take it there. So if a thread
//!   remembers a version under the latest number, it has the latest version;
//! - whoever has seen something that happened after a publication sees that version or a later one;
//! - a thread remembers [`PLACES`] versions and one large one, so that outdated versions take little memory.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many versions a thread remembers, in addition to a large one.
const PLACES: usize = 1 << PLACES_LOG;
const PLACES_LOG: u32 = 6;
/// From this many bytes on, a version is large.
const LARGE: u64 = 16 << 10;

/// Numbers that a thread takes at once, because the counter is shared.
const NUMBERS: u64 = 1 << 16;
static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// This thread's next number, and the end of its numbers.
    static MINE: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    static REMEMBERED: RefCell<[Option<Remembered>; PLACES + 1]> =
        const { RefCell::new([const { None }; PLACES + 1]) };
}

/// A version that this thread has read.
struct Remembered {
    number: u64,
    version: Rc<dyn Any>,
}

/// The number of the latest version of something.
#[derive(Debug)]
pub(crate) struct VersionNumber(AtomicU64);

/// A version for reading. It touches no reference count that other threads use.
#[derive(Debug)]
pub struct Snapshot<T>(Rc<Version<T>>);

/// A shared version, with a reference count of this thread around it.
#[derive(Debug)]
struct Version<T>(Arc<T>);

impl<T> Snapshot<T> {
    /// The version as an owned reference.
    pub(crate) fn keep(&self) -> Arc<T> {
        Arc::clone(&self.0.0)
    }
}

impl<T> Deref for Snapshot<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0.0
    }
}

impl Default for VersionNumber {
    /// The number of a first version.
    fn default() -> Self {
        Self(AtomicU64::new(next()))
    }
}

impl VersionNumber {
    /// The number, for a caller that has the version locked.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// There is a new version of this many bytes. The caller has it locked. A thread that remembers the previous one
    /// will read this one as well.
    pub(crate) fn renew<T: 'static>(&self, version: &Arc<T>, bytes: impl FnOnce() -> u64) {
        let (before, number) = (self.get(), next());
        self.0.store(number, Ordering::Release);
        if self.is_remembered(before) {
            self.remember(number, Arc::clone(version), bytes());
        }
    }

    fn is_remembered(&self, number: u64) -> bool {
        let is_known =
            |known: &Option<Remembered>| known.as_ref().is_some_and(|known| known.number == number);
        let find = |places: &RefCell<[Option<Remembered>; PLACES + 1]>| {
            let places = places.borrow();
            is_known(&places[self.place()]) || is_known(&places[PLACES])
        };
        REMEMBERED.try_with(find).unwrap_or(false)
    }

    /// The latest version, if this thread remembers it.
    #[inline]
    pub(crate) fn remembered<T: 'static>(&self) -> Option<Snapshot<T>> {
        let number = self.0.load(Ordering::Acquire);
        let find = |places: &RefCell<[Option<Remembered>; PLACES + 1]>| {
            let places = places.borrow();
            let at = |place: usize| places[place].as_ref().filter(|known| known.number == number);
            let known = at(self.place()).or_else(|| at(PLACES))?;
            Rc::clone(&known.version).downcast().ok().map(Snapshot)
        };
        // During thread teardown, nothing is remembered.
        REMEMBERED.try_with(find).ok().flatten()
    }

    /// Remembers a version of this many bytes, which was taken with its number under the lock.
    pub(crate) fn remember<T: 'static>(&self, number: u64, version: Arc<T>, bytes: u64) -> Snapshot<T> {
        let snapshot = Snapshot(Rc::new(Version(version)));
        let known: Rc<dyn Any> = Rc::clone(&snapshot.0) as Rc<dyn Any>;
        let place = if bytes > LARGE { PLACES } else { self.place() };
        let known = Remembered { number, version: known };
        // Drop the forgotten version while nothing is borrowed.
        let forgotten = REMEMBERED.try_with(|places| places.borrow_mut()[place].replace(known));
        drop(forgotten);
        snapshot
    }

    #[inline]
    fn place(&self) -> usize {
        let address = std::ptr::from_ref(self).addr() as u64;
        (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - PLACES_LOG)) as usize
    }
}

/// A number that no version has had.
fn next() -> u64 {
    MINE.with(|mine| {
        let (next, end) = mine.get();
        let (next, end) = if next < end {
            (next, end)
        } else {
            let first = NEXT.fetch_add(NUMBERS, Ordering::Relaxed);
            (first, first + NUMBERS)
        };
        mine.set((next + 1, end));
        next
    })
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicBool;

    struct Published {
        number: VersionNumber,
        /// A version, and how often it was taken from here.
        latest: Mutex<(Arc<u64>, u64)>,
    }

    impl Published {
        fn new(value: u64) -> Self {
            Self { number: VersionNumber::default(), latest: Mutex::new((Arc::new(value), 0)) }
        }

        fn publish(&self, value: u64) {
            let mut latest = self.latest.lock().unwrap();
            latest.0 = Arc::new(value);
            self.number.renew(&latest.0, || 8);
        }

        fn look(&self, bytes: u64) -> u64 {
            let known = self.number.remembered::<u64>();
            *known.unwrap_or_else(|| {
                let mut latest = self.latest.lock().unwrap();
                latest.1 += 1;
                let (number, version) = (self.number.get(), Arc::clone(&latest.0));
                drop(latest);
                self.number.remember(number, version, bytes)
            })
        }

        fn taken(&self) -> u64 {
            self.latest.lock().unwrap().1
        }
    }

    #[test]
    fn a_version_is_taken_once_by_a_thread_that_looks_at_it_again() {
        for bytes in [1, LARGE + 1] {
            let published = Published::new(1);
            for _ in 0..10 {
                assert_eq!(published.look(bytes), 1);
            }
            assert_eq!(published.taken(), 1);
            std::thread::scope(|scope| scope.spawn(|| published.publish(2)).join()).unwrap();
            assert_eq!((published.look(bytes), published.look(bytes)), (2, 2));
            assert_eq!(published.taken(), 2, "it was published by another thread");
            published.publish(3);
            assert_eq!(published.look(bytes), 3);
            assert_eq!(published.taken(), 2, "who looks at what it publishes remembers it");
            std::thread::scope(|scope| scope.spawn(|| assert_eq!(published.look(bytes), 3)).join()).unwrap();
            assert_eq!(published.taken(), 3, "each thread has its own memory");
        }
    }

    /// Of the many versions that a thread has read, it keeps as few as promised, and one large one.
    #[test]
    fn what_is_remembered_is_bounded() {
        for (bytes, most) in [(1, PLACES), (LARGE + 1, 1)] {
            let all: Vec<_> = (0..1000).map(|_| Published::new(7)).collect();
            all.iter().for_each(|one| assert_eq!(one.look(bytes), 7));
            let kept = all.iter().filter(|one| Arc::strong_count(&one.latest.lock().unwrap().0) > 1).count();
            assert!(kept <= most && kept >= most / 2, "{kept} versions");
        }
    }

    /// Reused memory is not taken for what was there before.
    #[test]
    fn no_version_is_taken_for_that_of_another_thing() {
        for value in 0..1000 {
            let published = Box::new(Published::new(value));
            assert_eq!(published.look(1), value);
        }
    }

    #[test]
    fn who_has_seen_what_came_behind_a_version_sees_it() {
        let (published, done) = (Published::new(0), AtomicU64::new(0));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        let least = done.load(Ordering::Acquire);
                        let seen = published.look(1);
                        assert!(seen >= least, "{seen} behind {least}");
                    }
                });
            }
            for value in 1..20_000 {
                published.publish(value);
                done.store(value, Ordering::Release);
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}
