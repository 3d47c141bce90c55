//! One flush for all callers that wait: one is in flight, the next one gathers.
//!
//! A flush makes durable what was written before it began. Flushes are numbered, and there is one at a time. A caller
//! is served by the next one to begin, never by one that began before the call. If nobody leads the next one, the
//! caller does; all others that ask before it begins wait for its end. Invariants:
//!
//! - Nobody is told of success before a flush that began after the call has succeeded.
//! - No lock is held during a flush, so a call meanwhile is counted immediately for the next.
//! - A failed flush is reported to all callers that it served, and to all later ones, without asking the device: what
//!   was to become durable is lost, and the system says so only once
//!   ([`BlockDevice::flush`](blockdev::BlockDevice::flush)).
//! - A flush whose thread panicked has failed, so nobody waits for it for ever.
//!
//! **When a flush begins.** If it began with its first caller, threads that write and flush over and over would split
//! into two groups that take turns, and each would wait for two flushes per round. So the leader waits for those that
//! asked for the last flush (it served them, or they asked while it was in flight), if these were as many as for the
//! one before. It waits no longer than a flush takes, and gives up after a quarter of that without any arrival: a wrong
//! guess then costs less than the flush that a right one saves. A single thread never waits.

use crate::sync::{Condvar, Mutex, MutexGuard, lock, wait, wait_for};
use blockdev::DeviceError;
use lockstat::{LockClass, Mode};
use std::sync::{PoisonError, TryLockError};
use std::time::{Duration, Instant};

static STATE: LockClass = LockClass::new("flush state");

/// Below this, a flush costs about as much as waiting for another thread, so nobody is waited for.
const FLUSH_TIME_MIN: Duration = Duration::from_micros(50);

/// Flushes of one device that are shared by all who ask for one.
///
/// ```
/// use fileio::SharedFlush;
/// # fn main() -> Result<(), blockdev::DeviceError> {
/// let flushes = SharedFlush::default();
/// // From any thread, after its own writes:
/// flushes.flush(|| Ok(()))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct SharedFlush {
    state: Mutex<State>,
    /// Signalled at the end of a flush, by whether its number is odd. So threads that wait for the gathering flush do
    /// not wake for the one in flight, except for one of them, which leads next.
    ended: [Condvar; 2],
    /// Signalled when as many have come as the leader waits for.
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The last flush that began. The next one gathers.
    begun: u64,
    /// The last flush that ended.
    ended: u64,
    /// Whether there is a leader, which waits for others to come or has a flush in flight.
    is_led: bool,
    /// How many callers the next flush will serve.
    gathered: u32,
    /// How many callers the leader waits for.
    awaited: u32,
    expected: ExpectedWaiters,
    /// The first failed flush, and its error.
    failed: Option<(u64, DeviceError)>,
}

/// How many callers to expect, and how long flushes take.
#[derive(Clone, Copy, Debug, Default)]
struct ExpectedWaiters {
    /// How many callers the last flush served, plus those that asked while it was in flight.
    about: u32,
    /// Whether these were as many as for the flush before.
    comes_back: bool,
    /// The duration of the last two flushes, the last one second.
    took: [Duration; 2],
}

impl ExpectedWaiters {
    /// A flush has ended that served this many, and `gathered` already ask for the next.
    fn note(&mut self, served: u32, gathered: u32, took: Duration) {
        let about = served + gathered;
        self.comes_back = about >= self.about;
        self.about = about;
        self.took = [self.took[1], took];
    }

    /// How many callers the next flush should serve, and how long to wait for them.
    fn expected(&self) -> (u32, Duration) {
        let patience = self.took[0].min(self.took[1]);
        let known = cfg!(shuttle) || patience >= FLUSH_TIME_MIN;
        (if self.comes_back && known { self.about } else { 0 }, patience)
    }
}

impl SharedFlush {
    /// Makes everything durable that was written before this call, by calling `flush` or by waiting until another
    /// thread has. `flush` is called without a lock, by one thread at a time.
    pub fn flush(&self, flush: impl FnOnce() -> Result<(), DeviceError>) -> Result<(), DeviceError> {
        let Some(lead) = self.join()? else { return Ok(()) };
        let outcome = flush();
        lead.end(outcome)
    }

    /// How many callers wait for the next flush to begin.
    #[cfg(all(test, not(shuttle)))]
    pub(super) fn gathered(&self) -> u32 {
        lock(&self.state).gathered
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Waits for the lock are counted. Holds are not, because a wait for a condition releases it.
        let attempt = || match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(PoisonError::into_inner(poisoned)),
            Err(TryLockError::WouldBlock) => None,
        };
        STATE.lock(Mode::Exclusive, attempt, || lock(&self.state)).into_uncounted()
    }

    /// Waits for a flush that began after this call, or returns in order to carry it out.
    fn join(&self) -> Result<Option<Lead<'_>>, DeviceError> {
        let mut state = self.lock();
        let number = state.begun + 1;
        state.gathered += 1;
        if state.gathered == state.awaited {
            self.arrived.notify_one();
        }
        loop {
            if let Some((_, error)) = state.failed.as_ref().filter(|(failed, _)| *failed <= number) {
                return Err(error.again());
            }
            if state.ended >= number {
                return Ok(None);
            }
            if !state.is_led {
                break;
            }
            state = wait(&self.ended[odd(number)], state);
        }
        state.is_led = true;
        let mut state = self.gather(state);
        state.begun = number;
        let served = std::mem::take(&mut state.gathered);
        Ok(Some(Lead { shared: self, number, served, since: Instant::now() }))
    }

    /// Waits for those who will probably come.
    fn gather<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let (expected, patience) = state.expected.expected();
        let since = Instant::now();
        state.awaited = expected;
        while state.gathered < expected {
            let seen = state.gathered;
            let (again, is_over) = wait_for(&self.state, &self.arrived, state, patience / 4);
            state = again;
            let is_late = since.elapsed() >= patience && !cfg!(shuttle);
            if is_over && (state.gathered == seen || is_late) {
                break;
            }
        }
        state.awaited = 0;
        state
    }

    fn end(&self, number: u64, served: u32, outcome: &Result<(), DeviceError>, took: Duration) {
        let mut state = self.lock();
        (state.ended, state.is_led) = (number, false);
        let gathered = state.gathered;
        state.expected.note(served, gathered, took);
        if let Err(error) = outcome {
            state.failed.get_or_insert_with(|| (number, error.again()));
        }
        drop(state);
        self.ended[odd(number)].notify_all();
        if outcome.is_ok() {
            self.ended[odd(number + 1)].notify_one();
        } else {
            self.ended[odd(number + 1)].notify_all();
        }
    }
}

fn odd(number: u64) -> usize {
    (number % 2) as usize
}

/// A flush that its holder carries out.
struct Lead<'a> {
    shared: &'a SharedFlush,
    number: u64,
    served: u32,
    since: Instant,
}

impl Lead<'_> {
    fn end(self, outcome: Result<(), DeviceError>) -> Result<(), DeviceError> {
        self.shared.end(self.number, self.served, &outcome, self.since.elapsed());
        std::mem::forget(self);
        outcome
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let panicked = Err(DeviceError::Failed("a thread panicked while it flushed".to_owned()));
        self.shared.end(self.number, self.served, &panicked, self.since.elapsed());
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::io;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::{self, Receiver, Sender};
    use std::thread;

    const EIO: i32 = 5;

    fn lost() -> DeviceError {
        let source = io::Error::from_raw_os_error(EIO);
        DeviceError::Io { op: "flush", offset: 0, len: 0, source }
    }

    fn is_lost(outcome: &Result<(), DeviceError>) -> bool {
        matches!(outcome, Err(DeviceError::Io { source, .. }) if source.raw_os_error() == Some(EIO))
    }

    /// A device that counts its flushes as they begin. The first one lasts until it is told its result.
    struct Held {
        begun: AtomicU64,
        tell: Sender<Result<(), DeviceError>>,
        first: Mutex<Option<Receiver<Result<(), DeviceError>>>>,
    }

    impl Held {
        fn new() -> Self {
            let (tell, told) = mpsc::channel();
            Self { begun: AtomicU64::new(0), tell, first: Mutex::new(Some(told)) }
        }

        fn flush(&self) -> Result<(), DeviceError> {
            self.begun.fetch_add(1, Ordering::SeqCst);
            let first = lock(&self.first).take();
            first.map_or(Ok(()), |told| told.recv().unwrap())
        }

        fn begun(&self) -> u64 {
            self.begun.load(Ordering::SeqCst)
        }
    }

    fn until(condition: impl Fn() -> bool) {
        while !condition() {
            thread::yield_now();
        }
    }

    /// Lets `others` more callers ask while one flush is in flight. Returns what each was told: the first, and the
    /// others.
    fn beside_one_in_flight(
        shared: &SharedFlush,
        device: &Held,
        others: u32,
        outcome: Result<(), DeviceError>,
    ) -> (Result<(), DeviceError>, Vec<Result<(), DeviceError>>) {
        thread::scope(|scope| {
            let ask = || shared.flush(|| device.flush());
            let first = scope.spawn(ask);
            until(|| device.begun() == 1);
            let others: Vec<_> = (0..others).map(|_| scope.spawn(ask)).collect();
            // If the flush were carried out under the lock, they could not be counted.
            until(|| shared.gathered() as usize == others.len());
            assert_eq!(device.begun(), 1, "one at a time");
            assert!(others.iter().all(|other| !other.is_finished()), "served by a flush that began before");
            device.tell.send(outcome).unwrap();
            let first = first.join().unwrap();
            (first, others.into_iter().map(|other| other.join().unwrap()).collect())
        })
    }

    #[test]
    fn all_who_ask_while_one_is_in_flight_share_the_next() {
        let (shared, device) = (SharedFlush::default(), Held::new());
        let (first, others) = beside_one_in_flight(&shared, &device, 63, Ok(()));
        assert!(first.is_ok() && others.iter().all(Result::is_ok));
        assert_eq!(device.begun(), 2);
    }

    #[test]
    fn who_is_alone_has_each_flush_carried_out() {
        let (shared, count) = (SharedFlush::default(), AtomicU64::new(0));
        for expected in 1..=10 {
            shared
                .flush(|| {
                    count.fetch_add(1, Ordering::SeqCst);
                    Ok(())
                })
                .unwrap();
            assert_eq!(count.load(Ordering::SeqCst), expected);
        }
    }

    #[test]
    fn a_failure_is_told_to_all_and_to_everyone_later_without_asking() {
        let (shared, device) = (SharedFlush::default(), Held::new());
        let (first, others) = beside_one_in_flight(&shared, &device, 7, Err(lost()));
        assert!(is_lost(&first), "{first:?}");
        // Their writes may be lost as well: the device has reported that to the first caller, and would tell them that
        // all is well.
        assert!(others.iter().all(is_lost), "{others:?}");
        assert!(is_lost(&shared.flush(|| device.flush())));
        assert_eq!(device.begun(), 1);
    }

    #[test]
    fn a_failure_is_told_to_all_that_the_flush_served() {
        let (shared, device) = (SharedFlush::default(), Held::new());
        let failing = AtomicU64::new(0);
        thread::scope(|scope| {
            let first = scope.spawn(|| shared.flush(|| device.flush()));
            until(|| device.begun() == 1);
            let others: Vec<_> = (0..7)
                .map(|_| {
                    scope.spawn(|| {
                        shared.flush(|| {
                            failing.fetch_add(1, Ordering::SeqCst);
                            Err(lost())
                        })
                    })
                })
                .collect();
            until(|| shared.gathered() == 7);
            device.tell.send(Ok(())).unwrap();
            assert!(first.join().unwrap().is_ok(), "its own flush succeeded");
            assert!(others.into_iter().all(|other| is_lost(&other.join().unwrap())));
        });
        assert_eq!(failing.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_panic_is_a_failure_and_nobody_hangs() {
        let shared = SharedFlush::default();
        let panicked = thread::scope(|scope| scope.spawn(|| shared.flush(|| panic!("as planned"))).join());
        assert!(panicked.is_err());
        assert!(matches!(shared.flush(|| Ok(())), Err(DeviceError::Io { .. } | DeviceError::Failed(_))));
    }

    /// A leader waits for the callers of the last flush, and for nobody else.
    #[test]
    fn a_crowd_is_expected_back_and_strangers_are_not() {
        let (long, mut crowd) = (Duration::from_millis(10), ExpectedWaiters::default());
        assert_eq!(crowd.expected().0, 0);
        crowd.note(1, 63, long);
        crowd.note(60, 4, long);
        assert_eq!(crowd.expected(), (64, long));
        // One flush was slow; others need not be.
        crowd.note(64, 0, 50 * long);
        assert_eq!(crowd.expected(), (64, long));
        // Half of them did not come back.
        crowd.note(32, 0, long);
        assert_eq!(crowd.expected().0, 0);
        crowd.note(32, 0, long);
        assert_eq!(crowd.expected().0, 32);
        // The device has nothing to flush.
        crowd.note(32, 0, Duration::ZERO);
        assert_eq!(crowd.expected().0, 0);
    }

    /// Threads that come back over and over are served together, and each one's writes are durable when it is told so.
    #[test]
    fn many_threads_share_few_flushes_and_each_finds_its_own_write_flushed() {
        const THREADS: usize = 16;
        const ROUNDS: u64 = 25;
        let shared = SharedFlush::default();
        let flushes = AtomicU64::new(0);
        let volatile: [AtomicU64; THREADS] = Default::default();
        let durable: [AtomicU64; THREADS] = Default::default();
        let flush = || {
            flushes.fetch_add(1, Ordering::SeqCst);
            let written: Vec<u64> = volatile.iter().map(|word| word.load(Ordering::SeqCst)).collect();
            thread::sleep(Duration::from_millis(1));
            for (word, written) in durable.iter().zip(written) {
                word.store(written, Ordering::SeqCst);
            }
            Ok(())
        };
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (shared, volatile, durable, flush) = (&shared, &volatile, &durable, &flush);
                scope.spawn(move || {
                    for round in 1..=ROUNDS {
                        volatile[thread].store(round, Ordering::SeqCst);
                        shared.flush(flush).unwrap();
                        assert_eq!(durable[thread].load(Ordering::SeqCst), round);
                    }
                });
            }
        });
        let flushes = flushes.load(Ordering::SeqCst);
        assert!(flushes < ROUNDS * THREADS as u64 / 2, "{flushes} flushes");
    }
}
