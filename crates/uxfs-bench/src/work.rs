//! One measured run on a file, and what it gave.

use crate::content::PAGE;
use hdrhistogram::Histogram;
use std::time::Duration;

/// What a run does to the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Reads each.
    Read,
    /// Overwrites each.
    Write,
    /// Reads half of them and overwrites the others, in random order.
    Mixed,
}

impl Op {
    /// The name in reports; a mixed run is reported each way.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Mixed => "mixed",
        }
    }
}

/// One measured run: which pages, in which order, by how many threads.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// The pages, in the order of access, each at most once: thread *t* of *n* takes the *t*-th *n*-th of them,
    /// so that no two threads, and no two requests of one thread's queue, ever meet on a page.
    pub pages: &'a [u32],
    /// What is done to them.
    pub op: Op,
    /// The generation that pages are written in (see [`crate::content`]).
    pub generation: u32,
    /// Threads that share the pages.
    pub threads: usize,
    /// Requests that each thread keeps in flight; 1 is the blocking calls.
    pub depth: u32,
    /// How often each thread goes over its share.
    pub passes: u32,
    /// Pages of a request; the pages above are the first ones of theirs, and each a multiple of it. Queues have requests of
    /// one page.
    pub span: u32,
}

impl<'a> Work<'a> {
    /// The pages of one thread.
    pub(crate) fn share(&self, thread: usize) -> &'a [u32] {
        let edge = |nth: usize| self.pages.len() * nth / self.threads;
        &self.pages[edge(thread)..edge(thread + 1)]
    }

    /// Bytes of a request.
    pub(crate) fn request_bytes(&self) -> usize {
        self.span as usize * PAGE
    }
}

/// The pages of a file in random order, each once; `count` of them (at most all).
pub fn random_pages(file_pages: u64, count: u64, seed: u64) -> Vec<u32> {
    let mut pages: Vec<u32> = (0..u32::try_from(file_pages).unwrap_or(u32::MAX)).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut pages);
    pages.truncate(usize::try_from(count).unwrap_or(usize::MAX));
    pages
}

/// The first pages of requests of `span` pages, in the order of the file; `count` pages in all (at most all that make whole
/// requests).
pub fn pages_in_order(file_pages: u64, count: u64, span: u32) -> Vec<u32> {
    let pages = u32::try_from(file_pages.min(count)).unwrap_or(u32::MAX);
    (0..pages / span).map(|request| request * span).collect()
}

/// Times of single requests in nanoseconds, from samples.
pub(crate) type Latency = Histogram<u64>;

/// A histogram for requests of up to a minute, right to two digits.
pub(crate) fn latency() -> Latency {
    Histogram::new_with_bounds(1, 60_000_000_000, 2)
        .unwrap_or_else(|_| unreachable!("the bounds are constant"))
}

/// The result of one direction of a run (its reads, or its writes).
#[derive(Clone, Debug)]
pub struct Tally {
    /// Requests that were done.
    pub ops: u64,
    /// Times of some of them.
    pub latency: Latency,
}

impl Default for Tally {
    fn default() -> Self {
        Self { ops: 0, latency: latency() }
    }
}

impl Tally {
    /// Adds another thread's requests.
    pub(crate) fn add(&mut self, other: &Self) {
        self.ops += other.ops;
        // Both have the same bounds, so that nothing can fall outside.
        let _ = self.latency.add(&other.latency);
    }
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct WorkOutcome {
    /// From the first thread's first request to the last thread's last.
    pub wall: Duration,
    /// The reads.
    pub reads: Tally,
    /// The writes.
    pub writes: Tally,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_order_holds_each_page_once_and_follows_from_its_seed() {
        let pages = random_pages(1000, 5000, 7);
        assert_eq!(pages, random_pages(1000, 1000, 7));
        assert_ne!(pages, random_pages(1000, 1000, 8));
        let mut sorted = pages.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..1000));
        assert_ne!(sorted, pages);
        assert_eq!(random_pages(1000, 10, 7), pages[..10]);
    }

    #[test]
    fn an_order_holds_the_whole_requests_of_a_file() {
        assert_eq!(pages_in_order(10, 100, 1), (0..10).collect::<Vec<u32>>());
        assert_eq!(pages_in_order(1000, 1000, 256), [0, 256, 512]);
        assert_eq!(pages_in_order(1000, 600, 256), [0, 256]);
        assert!(pages_in_order(255, 255, 256).is_empty());
    }

    #[test]
    fn shares_cover_all_pages_without_overlap() {
        let pages: Vec<u32> = (0..103).collect();
        for threads in [1, 2, 3, 16, 103, 150] {
            let work =
                Work { pages: &pages, op: Op::Read, generation: 1, threads, depth: 1, passes: 1, span: 1 };
            let all: Vec<u32> = (0..threads).flat_map(|t| work.share(t).to_vec()).collect();
            assert_eq!(all, pages, "{threads} threads");
        }
    }
}
