//! The primitives that waiting for others is built from: those of `std`, or shuttle's where a model is checked.
//!
//! Invariant: nothing that a model runs through takes a synchronizing primitive from elsewhere.

use std::sync::PoisonError;
use std::time::Duration;

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};

#[cfg(not(shuttle))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

/// Takes a lock. A panic elsewhere does not make what it protects less true: nothing is left half-done under it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a condition to be announced.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a condition to be announced, or for some time to pass; says whether it passed. A model knows no time: it may
/// pass at once, or not before others have done much.
#[cfg(not(shuttle))]
pub(crate) fn wait_for<'a, T>(
    _mutex: &'a Mutex<T>,
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    time: Duration,
) -> (MutexGuard<'a, T>, bool) {
    let (guard, result) = condvar.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner);
    (guard, result.timed_out())
}

/// As without a model, in no time.
#[cfg(shuttle)]
pub(crate) fn wait_for<'a, T>(
    mutex: &'a Mutex<T>,
    _condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    _time: Duration,
) -> (MutexGuard<'a, T>, bool) {
    drop(guard);
    shuttle::thread::yield_now();
    (lock(mutex), true)
}
