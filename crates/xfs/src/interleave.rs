//! Places between two steps of the engine where tests let another thread's work happen.
//!
//! Invariant: outside of tests there is nothing here. A place is one where no lock is held that the other work may need,
//! so that a test does that work in the same thread, and the interleaving is the same each time.

#[cfg(not(all(test, not(shuttle))))]
#[inline(always)]
pub(crate) fn point(_: &'static str) {}

#[cfg(all(test, not(shuttle)))]
pub(crate) use tests::{at, point};

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::cell::RefCell;

    struct Waiting {
        place: &'static str,
        work: Box<dyn FnOnce()>,
    }

    thread_local! {
        static WAITING: RefCell<Vec<Waiting>> = const { RefCell::new(Vec::new()) };
    }

    /// Has `work` happen when this thread comes to `place` next. Of several at one place, each has its turn, in order.
    pub(crate) fn at(place: &'static str, work: impl FnOnce() + 'static) {
        WAITING.with_borrow_mut(|waiting| waiting.push(Waiting { place, work: Box::new(work) }));
    }

    /// A place that a thread comes to.
    pub(crate) fn point(place: &'static str) {
        let next = WAITING.with_borrow_mut(|waiting| {
            let index = waiting.iter().position(|one| one.place == place)?;
            Some(waiting.remove(index))
        });
        if let Some(next) = next {
            (next.work)();
        }
    }
}
