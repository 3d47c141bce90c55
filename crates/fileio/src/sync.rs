//! The synchronization primitives for waiting: those of `std`, or shuttle's for models.
//!
//! Invariant: code that a model runs takes primitives only from here.

use std::sync::PoisonError;
use std::time::Duration;

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard, atomic};

#[cfg(not(shuttle))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, atomic};

/// Locks without poisoning.
#[cfg(not(shuttle))]
pub(crate) use parking_lot as parking;

/// Takes a lock. Poisoning is ignored, because a panic leaves nothing half-done under it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits on a condition variable.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Waits on a condition variable or for some time. Returns whether the time ran out. A model has no time: it may run
/// out at once, or only after others have done much.
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

/// The same without a model, with no time.
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

/// The part of `parking_lot` that the modelled code uses.
#[cfg(shuttle)]
pub(crate) mod parking {
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(super::Mutex<T>);

    #[derive(Debug)]
    pub(crate) struct MutexGuard<'a, T> {
        mutex: &'a Mutex<T>,
        /// Always set, except while it waits.
        guard: Option<super::MutexGuard<'a, T>>,
    }

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(super::Mutex::new(value))
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            let guard = self.0.try_lock().ok()?;
            Some(MutexGuard { mutex: self, guard: Some(guard) })
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard { mutex: self, guard: Some(super::lock(&self.0)) }
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.guard.as_ref().expect("it is held")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.guard.as_mut().expect("it is held")
        }
    }

    /// A model has no time: a timed wait ends when others have had their turn.
    #[derive(Debug)]
    pub(crate) struct Condvar;

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self
        }

        pub(crate) fn notify_all(&self) {}

        pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) {
            guard.guard = None;
            shuttle::thread::yield_now();
            guard.guard = Some(super::lock(&guard.mutex.0));
        }
    }
}
