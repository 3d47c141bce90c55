//! Points between two steps where a test lets something else happen: the data path's, and those of who builds on it.
//!
//! Invariants: without the feature `testing` nothing is here, and a point is no code. What happens at a point happens in
//! the thread that comes to it, so that the interleaving is the same each time; so no lock is held at a point that the
//! other work may need. What was asked for by one thread does not happen in another.

/// Where a range is about to be waited for that was chosen by the size of a file, or all of one.
pub const HOLD: &str = "a range is about to be held";

/// Where bytes are about to be held that are to be changed, whatever that is, and all was asked that is asked before: of an
/// overwrite, also to what place it goes.
pub const CHANGE: &str = "bytes are about to be held for a change";

/// Where space is there for a write to what may be shared, which is about to begin.
pub const STAGED: &str = "space for a write is there";

/// Behind a transaction, when all its locks are gone.
pub const COMMITTED: &str = "a transaction is committed";

/// Nobody steps in.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn point(_: &'static str) {}

/// Whether each part of a transaction is to be in the log for good before the next one begins.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub const fn parts_land() -> bool {
    false
}

#[cfg(feature = "testing")]
pub use hooks::{at, at_each, before_next_hold, behind_commits, part_by_part, parts_land, point};

#[cfg(feature = "testing")]
mod hooks {
    use super::{COMMITTED, HOLD};
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    struct Waiting {
        place: &'static str,
        work: Box<dyn FnOnce()>,
    }

    #[derive(Clone)]
    struct Each {
        place: &'static str,
        step: Rc<dyn Fn()>,
    }

    thread_local! {
        static WAITING: RefCell<Vec<Waiting>> = const { RefCell::new(Vec::new()) };
        static EACH: RefCell<Option<Each>> = const { RefCell::new(None) };
        static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
        static PARTS_LAND: Cell<bool> = const { Cell::new(false) };
    }

    /// Has `work` happen when this thread comes to `place` next. Of several at one place, each has its turn, in order.
    pub fn at(place: &'static str, work: impl FnOnce() + 'static) {
        WAITING.with_borrow_mut(|waiting| waiting.push(Waiting { place, work: Box::new(work) }));
    }

    /// Has `step` happen each time that this thread comes to `place` during `work`; not when `step` itself does.
    pub fn at_each<R>(place: &'static str, step: impl Fn() + 'static, work: impl FnOnce() -> R) -> R {
        let before = EACH.replace(Some(Each { place, step: Rc::new(step) }));
        let done = work();
        EACH.set(before);
        done
    }

    /// [`at`] the next hold.
    pub fn before_next_hold(work: impl FnOnce() + 'static) {
        at(HOLD, work);
    }

    /// [`at_each`] commit.
    pub fn behind_commits<R>(step: impl Fn() + 'static, work: impl FnOnce() -> R) -> R {
        at_each(COMMITTED, step, work)
    }

    /// Has each part of each transaction of this thread be in the log for good before the next one begins, during `work`:
    /// so that a crash can come between any two.
    pub fn part_by_part<R>(work: impl FnOnce() -> R) -> R {
        let before = PARTS_LAND.replace(true);
        let done = work();
        PARTS_LAND.set(before);
        done
    }

    /// Whether [`part_by_part`] asks for it.
    pub fn parts_land() -> bool {
        PARTS_LAND.get()
    }

    /// A point that a thread comes to.
    pub fn point(place: &'static str) {
        let next = WAITING.with_borrow_mut(|waiting| {
            let index = waiting.iter().position(|one| one.place == place)?;
            Some(waiting.remove(index))
        });
        if let Some(next) = next {
            (next.work)();
        }
        let each = EACH.with_borrow(|each| each.clone().filter(|each| each.place == place));
        if let Some(each) = each
            && !IS_INSIDE.replace(true)
        {
            (each.step)();
            IS_INSIDE.set(false);
        }
    }
}
