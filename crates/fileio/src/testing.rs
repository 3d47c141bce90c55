//! Points between two steps where a test can run something else: in the data path, and in the layers above.
//!
//! Invariants: without the feature `testing` a point is no code. What is run at a point runs in the thread that reaches
//! it, so the interleaving is the same each time. So no lock may be held at a point that the other work may need. What
//! one thread has asked for does not run in another.

/// A range is about to be waited for that depends on the size of a file, or all of a file.
pub const HOLD: &str = "a range is about to be held";

/// Bytes are about to be held for a change of any kind, and all checks before that were made. For an overwrite this
/// includes the lookup of its place.
pub const CHANGE: &str = "bytes are about to be held for a change";

/// Bytes were overwritten in place, and are let go of.
pub const OVERWRITTEN: &str = "an overwrite has let its bytes go";

/// Space for a write to possibly shared blocks has been allocated, and the write is about to begin.
pub const STAGED: &str = "space for a write is there";

/// A transaction has ended, and all its locks are released.
pub const COMMITTED: &str = "a transaction is committed";

/// Nothing is run.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn point(_: &'static str) {}

/// Whether each part of a transaction must be permanently in the log before the next one begins.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub const fn parts_land() -> bool {
    false
}

/// Whether each operation that can begin again with more log space has to.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub const fn begins_again() -> bool {
    false
}

#[cfg(feature = "testing")]
pub use hooks::{
    at, at_each, before_next_hold, beginning_again, begins_again, behind_commits, part_by_part, parts_land,
    point,
};

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
        static BEGINS_AGAIN: Cell<bool> = const { Cell::new(false) };
    }

    /// Runs `work` when this thread reaches `place` next. Several for one place take turns in order.
    pub fn at(place: &'static str, work: impl FnOnce() + 'static) {
        WAITING.with_borrow_mut(|waiting| waiting.push(Waiting { place, work: Box::new(work) }));
    }

    /// Runs `step` each time that this thread reaches `place` during `work`, except within `step` itself.
    pub fn at_each<R>(place: &'static str, step: impl Fn() + 'static, work: impl FnOnce() -> R) -> R {
        let before = EACH.replace(Some(Each { place, step: Rc::new(step) }));
        let done = work();
        EACH.set(before);
        done
    }

    /// [`at`] for the next hold.
    pub fn before_next_hold(work: impl FnOnce() + 'static) {
        at(HOLD, work);
    }

    /// [`at_each`] for commits.
    pub fn behind_commits<R>(step: impl Fn() + 'static, work: impl FnOnce() -> R) -> R {
        at_each(COMMITTED, step, work)
    }

    /// Makes each part of each transaction of this thread permanent in the log before the next one begins, during
    /// `work`, so that a crash can come between any two.
    pub fn part_by_part<R>(work: impl FnOnce() -> R) -> R {
        let before = PARTS_LAND.replace(true);
        let done = work();
        PARTS_LAND.set(before);
        done
    }

    /// Whether [`part_by_part`] is in effect.
    pub fn parts_land() -> bool {
        PARTS_LAND.get()
    }

    /// Has each operation of this thread that began with the log space that it usually needs begin again with all that it
    /// may need, during `work`: as if its first transaction had needed more, and the log had had no more.
    pub fn beginning_again<R>(work: impl FnOnce() -> R) -> R {
        let before = BEGINS_AGAIN.replace(true);
        let done = work();
        BEGINS_AGAIN.set(before);
        done
    }

    /// Whether [`beginning_again`] is in effect.
    pub fn begins_again() -> bool {
        BEGINS_AGAIN.get()
    }

    /// A point that a thread reaches.
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
