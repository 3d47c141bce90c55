//! The waker of a queue: wakes the thread that then owns the queue, because a range may have been granted.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::Wake;

/// Invariant: a wake after the last [`reset`](Self::reset) is never lost.
#[derive(Debug, Default)]
pub(super) struct Wakeup {
    called: Mutex<bool>,
    changed: Condvar,
}

impl Wakeup {
    /// Forgets earlier wakes. Must be called before checking whether a range was granted.
    pub(super) fn reset(&self) {
        *self.called.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// Blocks until woken.
    pub(super) fn wait(&self) {
        let mut called = self.called.lock().unwrap_or_else(PoisonError::into_inner);
        while !*called {
            called = self.changed.wait(called).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *self.called.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }
}
