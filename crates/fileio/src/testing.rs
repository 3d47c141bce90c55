//! Places where a test can step in: between a look at a file's size and the hold that was decided by it, before a hold
//! of a whole file, and behind each transaction, when all locks of it are gone.
//!
//! Without the feature `testing` nothing is here, and nothing is called.

#[cfg(feature = "testing")]
mod hooks {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    thread_local! {
        static HOLD: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
        static COMMIT: RefCell<Option<Rc<dyn Fn()>>> = const { RefCell::new(None) };
        static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    }

    /// Does `step` when this thread is next about to wait for a range that it chose by the size of a file, or
    /// for all of one.
    pub fn before_next_hold(step: impl FnOnce() + 'static) {
        HOLD.set(Some(Box::new(step)));
    }

    /// Does `step` behind each transaction that this thread commits during `work`; not for those that `step`
    /// commits itself.
    pub fn behind_commits<R>(step: impl Fn() + 'static, work: impl FnOnce() -> R) -> R {
        COMMIT.set(Some(Rc::new(step)));
        let done = work();
        COMMIT.set(None);
        done
    }

    /// The moment before a hold.
    pub fn before_hold() {
        if let Some(step) = HOLD.take() {
            step();
        }
    }

    /// The moment behind a commit.
    pub fn committed() {
        let step = COMMIT.with_borrow(Clone::clone);
        if let Some(step) = step
            && !IS_INSIDE.replace(true)
        {
            step();
            IS_INSIDE.set(false);
        }
    }
}

#[cfg(feature = "testing")]
pub use hooks::{before_hold, before_next_hold, behind_commits, committed};

/// Nobody steps in.
#[cfg(not(feature = "testing"))]
#[inline]
pub fn before_hold() {}

/// Nobody steps in.
#[cfg(not(feature = "testing"))]
#[inline]
pub fn committed() {}
