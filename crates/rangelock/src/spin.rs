//! A value behind a word-sized lock: one compare-and-swap to take, one store to give back.
//!
//! Invariants:
//! - the critical section runs no caller's code and never waits for anything, so it is short;
//! - whoever finds it taken spins a little and then yields, so that a holder who was preempted gets
//!   its CPU back instead of being waited for by busy threads.

#[cfg(loom)]
pub(crate) use model::Spin;
#[cfg(not(loom))]
pub(crate) use word::Spin;

/// In a model, whoever finds it taken sleeps: spinning would only add to what is tried.
#[cfg(loom)]
mod model {
    use crate::sync::Mutex;

    #[derive(Debug)]
    pub(crate) struct Spin<T>(Mutex<T>);

    impl<T> Spin<T> {
        pub(crate) fn new(value: T) -> Self {
            Spin(Mutex::new(value))
        }

        pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
            f(&mut self.0.lock().expect("no panic under this lock"))
        }
    }
}

#[cfg(not(loom))]
mod word {
    use crate::sync::{AtomicU32, Ordering, SPINS, UnsafeCell, yield_now};

    const FREE: u32 = 0;
    const TAKEN: u32 = 1;

    #[derive(Debug)]
    #[repr(C)]
    pub(crate) struct Spin<T> {
        word: AtomicU32,
        value: UnsafeCell<T>,
    }

    // SAFETY: the value is only reached in `with`, which excludes all others by `word`; sending the
    // reference to another thread therefore at most moves the use of `T` there, which `T: Send` allows.
    unsafe impl<T: Send> Sync for Spin<T> {}

    /// Frees the word even when the critical section panics.
    struct Unlock<'a>(&'a AtomicU32);

    impl Drop for Unlock<'_> {
        #[inline(always)]
        fn drop(&mut self) {
            self.0.store(FREE, Ordering::Release);
        }
    }

    impl<T> Spin<T> {
        pub(crate) fn new(value: T) -> Self {
            Spin { word: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
        }

        /// Runs `f` on the value, alone.
        #[inline(always)]
        pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
            if self.word.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_err() {
                self.take_contended();
            }
            let _unlock = Unlock(&self.word);
            // SAFETY: `word` went from FREE to TAKEN by our hand and stays so until `_unlock` is dropped,
            // after `f`; nobody else reaches the value in between, and the reference does not leave `f`.
            self.value.with_mut(|value| f(unsafe { &mut *value }))
        }

        #[cold]
        fn take_contended(&self) {
            let mut looks = 0;
            loop {
                if self.word.load(Ordering::Relaxed) == FREE
                    && self.word.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
                {
                    return;
                }
                if looks < SPINS {
                    looks += 1;
                    std::hint::spin_loop();
                } else {
                    yield_now();
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_panic_inside_frees_the_word() {
        let spin = Spin::new(1);
        let outcome =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| spin.with(|_| panic!("inside"))));
        assert!(outcome.is_err());
        assert_eq!(spin.with(|value| *value), 1);
    }
}
