//! Detects sequential reads of a file, and how far to read ahead for each.
//!
//! Invariants: several sequential readers of a file have a stream each, up to [`STREAMS`]. A read that continues no
//! stream gets no more than it wants. The state is a hint: of several concurrent updates, some may be lost.

use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Maximum readahead beyond what is wanted.
pub(super) const WINDOW_MAX: u64 = 1 << 20;

/// Streams that are remembered per file.
const STREAMS: usize = if cfg!(shuttle) { 1 } else { 16 };

/// The readers of one file.
#[derive(Debug)]
pub(super) struct Streams {
    /// Where the last read for a stream ended, in whole sectors. The bits below have the log2 of how much was read
    /// ahead.
    ends: [AtomicU64; STREAMS],
    /// The stream that a new reader replaces next.
    oldest: AtomicUsize,
}

const WINDOW_BITS: u64 = 0x1f;

/// A stream that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stream {
    index: usize,
    window: u64,
}

impl Stream {
    /// How much to read beyond what is wanted.
    pub(super) fn ahead(self) -> u64 {
        self.window
    }
}

impl Default for Streams {
    fn default() -> Self {
        Self { ends: std::array::from_fn(|_| AtomicU64::new(0)), oldest: AtomicUsize::new(0) }
    }
}

impl Streams {
    /// The stream for `len` bytes from byte `offset` on. If a stream ended within `near` bytes of there, it reads ahead
    /// twice as much as the last time, otherwise nothing.
    pub(super) fn of(&self, offset: u64, len: u64, near: u64) -> Stream {
        let ends = self.ends.iter().map(|end| end.load(Ordering::Relaxed));
        let found = ends.enumerate().find(|(_, end)| (end & !WINDOW_BITS).abs_diff(offset) <= near);
        match found {
            Some((index, end)) => {
                let twice = 2 << (end & WINDOW_BITS);
                Stream { index, window: twice.clamp(len.min(WINDOW_MAX), WINDOW_MAX) }
            }
            None => {
                let index = self.oldest.fetch_add(1, Ordering::Relaxed) % STREAMS;
                Stream { index, window: 0 }
            }
        }
    }

    /// The read for a stream ended at byte `end`; `len` bytes of it were wanted.
    pub(super) fn read_to(&self, stream: Stream, end: u64, len: u64) {
        let window = stream.window.max(len).clamp(1, WINDOW_MAX);
        let end = end & !WINDOW_BITS | u64::from(window.ilog2());
        self.ends[stream.index].store(end, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    /// Reads a page. Returns how much was read ahead.
    fn read(streams: &Streams, at: u64) -> u64 {
        let stream = streams.of(at, PAGE, PAGE);
        streams.read_to(stream, at + PAGE + stream.ahead(), PAGE);
        stream.ahead()
    }

    #[test]
    fn each_of_many_readers_has_a_window_of_its_own() {
        let streams = Streams::default();
        let mut at: Vec<u64> = (0..STREAMS as u64).map(|nth| (nth + 1) << 30).collect();
        let mut expected = 0;
        for _ in 0..20 {
            for at in &mut at {
                let ahead = read(&streams, *at);
                assert_eq!(ahead, expected);
                *at += PAGE + ahead;
            }
            expected = (2 * expected).clamp(2 * PAGE, WINDOW_MAX);
        }
        assert_eq!(expected, WINDOW_MAX);
    }

    #[test]
    fn who_reads_here_and_there_gets_what_is_wanted() {
        let streams = Streams::default();
        assert!((1..1000).all(|nth| read(&streams, nth * 7919 * PAGE) == 0));
    }

    #[test]
    fn who_begins_at_the_start_goes_on() {
        assert!(read(&Streams::default(), 0) >= PAGE);
    }
}
