//! Times single operations, some of each thread's, so that to look at the clock costs next to nothing of what is measured.
//!
//! To look at the clock twice takes some 50 ns. An operation of some microseconds can be timed [one in eight](SHORT) times,
//! one that takes less [one in 64](TINY) times, and what waits for a device [each time](EACH): then that is less than one
//! part in a hundred.

use crate::work::{Latency, latency};
use std::time::Instant;

/// Every operation is timed.
pub(crate) const EACH: u32 = 1;
/// One operation in so many is timed, where one takes microseconds.
pub(crate) const SHORT: u32 = 8;
/// The same where one takes less.
pub(crate) const TINY: u32 = 64;

/// Of a thread's operations times one in so many, from the first on.
#[derive(Debug)]
pub(crate) struct Timer {
    latency: Latency,
    every: u32,
    /// Operations until the next one that is timed.
    left: u32,
    /// When the one that is under way began, if it is timed.
    since: Option<Instant>,
}

impl Timer {
    pub(crate) fn new(every: u32) -> Self {
        debug_assert!(every > 0);
        Self { latency: latency(), every, left: 0, since: None }
    }

    /// Does an operation.
    #[inline]
    pub(crate) fn of<R>(&mut self, operation: impl FnOnce() -> R) -> R {
        self.begin();
        let done = operation();
        self.end();
        done
    }

    /// An operation begins.
    #[inline]
    pub(crate) fn begin(&mut self) {
        if self.left > 0 {
            self.left -= 1;
            return;
        }
        self.left = self.every - 1;
        self.since = Some(Instant::now());
    }

    /// It is over.
    #[inline]
    pub(crate) fn end(&mut self) {
        if let Some(since) = self.since.take() {
            self.latency.saturating_record(since.elapsed().as_nanos() as u64);
        }
    }

    /// What began last turned out to be no operation: there was no more to do.
    pub(crate) fn abandon(&mut self) {
        // The next one is in its place.
        self.left = if self.since.take().is_some() { 0 } else { self.left + 1 };
    }

    /// What the operations took.
    pub(crate) fn finish(self) -> Latency {
        self.latency
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn one_operation_in_so_many_is_timed_from_the_first_on() {
        for (every, operations, timed) in [(1, 5, 5), (8, 1, 1), (8, 8, 1), (8, 9, 2), (64, 640, 10)] {
            let mut timer = Timer::new(every);
            let sum: u64 = (0..operations).map(|nth| timer.of(|| nth)).sum();
            assert_eq!(sum, operations * (operations - 1) / 2, "each is done");
            assert_eq!(timer.finish().len(), timed, "{operations} operations, one in {every}");
        }
        assert!(Timer::new(TINY).finish().is_empty());
    }

    #[test]
    fn an_operation_takes_what_it_takes() {
        let mut timer = Timer::new(2);
        for millis in [3, 50, 3] {
            timer.of(|| std::thread::sleep(Duration::from_millis(millis)));
        }
        let latency = timer.finish();
        // The long one is not looked at.
        assert_eq!(latency.len(), 2);
        assert!(latency.min() >= 2_900_000, "{}", latency.min());
    }

    #[test]
    fn what_begins_and_is_no_operation_is_not_timed() {
        for every in [1, 3, 4] {
            let mut timer = Timer::new(every);
            // Twenty listings of five entries.
            for _ in 0..20 {
                timer.begin();
                for _ in 0..5 {
                    timer.end();
                    timer.begin();
                }
                timer.abandon();
                timer.end();
            }
            assert_eq!(timer.finish().len(), 100_u64.div_ceil(every.into()), "one in {every}");
        }
    }
}
