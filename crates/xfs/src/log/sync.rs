//! The synchronization primitives of the journal: those of `std`, or shuttle's for models.
//!
//! Invariant: code that a model runs takes primitives only from here.

#[cfg(shuttle)]
pub(crate) use shuttle::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard},
    thread::{self, JoinHandle, ThreadId},
};

#[cfg(not(shuttle))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard},
    thread::{self, JoinHandle, ThreadId},
};

use lockstat::{Counted, LockClass, Mode, Users};
use std::sync::PoisonError;

/// Takes an uncounted lock. Poisoning is ignored, because a panic leaves nothing half-done under these locks.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a lock, counts it into `class`, and remembers its user.
pub(crate) fn lock_by<'a, T>(
    mutex: &'a Mutex<T>,
    class: &'static LockClass,
    users: &Users,
) -> Counted<MutexGuard<'a, T>> {
    class.lock_by(users, Mode::Exclusive, || mutex.try_lock().ok(), || lock(mutex))
}

/// Takes a reader-writer lock shared, like [`lock_by`].
pub(crate) fn read_by<'a, T>(
    lock: &'a RwLock<T>,
    class: &'static LockClass,
    users: &Users,
) -> Counted<RwLockReadGuard<'a, T>> {
    let block = || lock.read().unwrap_or_else(PoisonError::into_inner);
    class.lock_by(users, Mode::Shared, || lock.try_read().ok(), block)
}

/// Takes a reader-writer lock exclusively, uncounted.
pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Waits on a condition variable.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// A value with cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

/// Waits on a condition variable or for some time. Returns whether the time ran out. A model has no time.
pub(crate) fn wait_for<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    time: std::time::Duration,
) -> (MutexGuard<'a, T>, bool) {
    if cfg!(shuttle) {
        return (wait(condvar, guard), false);
    }
    let (guard, result) = condvar.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner);
    (guard, result.timed_out())
}
