//! Reports the failure of a flush to everyone concerned.
//!
//! The system reports a lost write once, to whoever flushes the descriptor first. Others that flush at the same time or
//! later are told that all is well. A durable write counts as a flush here. Invariants: if one fails, those in progress
//! at the same time fail too, and so do all later ones, without asking again; no lock is held during a flush, so they
//! run side by side and wait for each other only at the end. Requests of a queue are not waited for, since only the
//! thread that owns the queue can complete them. They fail once another has failed, and the other way round.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::DeviceError;

/// The flushes of one descriptor, and its durable writes.
#[derive(Debug, Default)]
pub(crate) struct Flushes {
    state: Mutex<State>,
    ended: Condvar,
    /// Whether there is a failure: spares the lock.
    has_failed: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the next flush.
    next: u64,
    under_way: Vec<u64>,
    /// The first failure, kept for good.
    failure: Option<DeviceError>,
}

/// A flush in progress.
struct UnderWay<'a> {
    flushes: &'a Flushes,
    number: u64,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.flushes.lock().under_way.retain(|number| *number != self.number);
        self.flushes.ended.notify_all();
    }
}

impl Flushes {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out a flush or a durable write, unless one has failed before. It succeeds if none that was in progress
    /// at the same time fails.
    pub(crate) fn carry_out(
        &self,
        flush: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let under_way = self.begin()?;
        self.note(flush());
        drop(under_way);
        let mut state = self.lock();
        let behind = state.next;
        while state.under_way.iter().any(|number| *number < behind) {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.check()
    }

    fn begin(&self) -> Result<UnderWay<'_>, DeviceError> {
        let mut state = self.lock();
        state.check()?;
        let number = state.next;
        state.next += 1;
        state.under_way.push(number);
        Ok(UnderWay { flushes: self, number })
    }

    fn note(&self, outcome: Result<(), DeviceError>) {
        if let Err(error) = outcome {
            self.lock().failure.get_or_insert(error);
            self.has_failed.store(true, Ordering::Release);
        }
    }

    /// The result of a durable write of a queue.
    pub(crate) fn of_queue(&self, outcome: Result<(), DeviceError>) -> Result<(), DeviceError> {
        if outcome.is_ok() && !self.has_failed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.note(outcome);
        self.lock().check()
    }

    /// How many are in progress.
    #[cfg(test)]
    pub(crate) fn under_way(&self) -> usize {
        self.lock().under_way.len()
    }
}

impl State {
    fn check(&self) -> Result<(), DeviceError> {
        self.failure.as_ref().map_or(Ok(()), |failure| Err(failure.again()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::mpsc;
    use std::thread;

    const EIO: i32 = 5;

    fn lost() -> DeviceError {
        DeviceError::io("flush", 0, 0, io::Error::from_raw_os_error(EIO))
    }

    fn is_lost(outcome: &Result<(), DeviceError>) -> bool {
        matches!(outcome, Err(DeviceError::Io { source, .. }) if source.raw_os_error() == Some(EIO))
    }

    /// The system reported the loss to the first, late, and told the second that all was well, though its
    /// data was lost.
    #[test]
    fn whoever_flushes_beside_a_failure_is_told() {
        let flushes = Flushes::default();
        let (begun, has_begun) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let flushes = &flushes;
            let first = scope.spawn(move || {
                flushes.carry_out(|| {
                    begun.send(()).unwrap();
                    goes_on.recv().unwrap();
                    Err(lost())
                })
            });
            has_begun.recv().unwrap();
            let (asked, was_asked) = mpsc::channel();
            let second = scope.spawn(move || {
                flushes.carry_out(|| {
                    asked.send(()).unwrap();
                    Ok(())
                })
            });
            was_asked.recv().unwrap();
            // The second gets its answer before the first.
            while flushes.under_way() > 1 && !second.is_finished() {
                thread::yield_now();
            }
            go_on.send(()).unwrap();
            assert!(is_lost(&first.join().unwrap()));
            assert!(is_lost(&second.join().unwrap()), "it was told that all is well");
        });
        let mut asked = false;
        let later = flushes.carry_out(|| {
            asked = true;
            Ok(())
        });
        assert!(is_lost(&later) && !asked);
        assert!(is_lost(&flushes.of_queue(Ok(()))));
    }

    #[test]
    fn whoever_is_done_before_another_begins_is_not_kept() {
        let flushes = Flushes::default();
        flushes.carry_out(|| Ok(())).unwrap();
        flushes.carry_out(|| Ok(())).unwrap();
        flushes.of_queue(Ok(())).unwrap();
        assert_eq!(flushes.under_way(), 0);
    }

    #[test]
    fn what_a_queue_was_told_counts_too() {
        let flushes = Flushes::default();
        assert!(is_lost(&flushes.of_queue(Err(lost()))));
        assert!(is_lost(&flushes.carry_out(|| Ok(()))));
    }
}
