//! Caches that keep each line in one of four states (MESI): modified or exclusive in one cache, shared by several, or
//! not there.
//!
//! A cache holds all that it was ever given: lines go only because another thread writes them. So whatever has to come
//! from another cache, except for a thread's first touch, is what the threads cost each other.
//!
//! Invariant: a line that is modified or exclusive is in one cache alone.

use super::trace::Mark;

/// The result of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The line is there, and good for what is done to it.
    Hit,
    /// No cache had the line yet.
    Memory,
    /// The line is brought from a cache that may have changed it, or taken away from others: it moves, alone.
    Moved,
    /// A copy of a line that nobody has changed: several caches can be given one at once.
    Copied,
}

/// Who has one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Line {
    /// A bit for each cache.
    holders: [u64; Mark::MAX_THREADS / 64],
    /// Whether the one that holds it may have changed it.
    dirty: bool,
}

impl Line {
    fn has(&self, cache: usize) -> bool {
        self.holders[cache / 64] & 1 << (cache % 64) != 0
    }

    fn add(&mut self, cache: usize) {
        self.holders[cache / 64] |= 1 << (cache % 64);
    }

    fn count(&self) -> u32 {
        self.holders.iter().map(|word| word.count_ones()).sum()
    }
}

/// The caches of all threads, each thread on a processor of its own.
#[derive(Clone, Debug)]
pub(crate) struct Caches {
    lines: Vec<Line>,
}

impl Caches {
    /// Empty caches, for lines of these numbers.
    pub(crate) fn new(lines: usize) -> Self {
        Self { lines: vec![Line::default(); lines] }
    }

    /// One thread's access.
    pub(crate) fn access(&mut self, cache: usize, line: usize, write: bool) -> Found {
        let line = &mut self.lines[line];
        let (has, count) = (line.has(cache), line.count());
        let alone = has && count == 1;
        let found = match (write, has) {
            (true, _) if alone => Found::Hit,
            (false, true) => Found::Hit,
            _ if count == 0 => Found::Memory,
            (true, _) => Found::Moved,
            (false, false) if line.dirty => Found::Moved,
            (false, false) => Found::Copied,
        };
        if write {
            *line = Line { dirty: true, ..Line::default() };
        } else if !has {
            line.dirty = false;
        }
        line.add(cache);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_follow_from_who_reads_and_who_writes() {
        let mut caches = Caches::new(2);
        assert_eq!(caches.access(0, 0, false), Found::Memory);
        assert_eq!(caches.access(0, 0, true), Found::Hit, "exclusive becomes modified by itself");
        assert_eq!(caches.access(255, 0, false), Found::Moved, "it was modified");
        assert_eq!(caches.access(2, 0, false), Found::Copied, "it is clean by now");
        assert_eq!(caches.access(0, 0, false), Found::Hit, "still shared");
        assert_eq!(caches.access(0, 0, true), Found::Moved, "the others' copies have to go");
        assert_eq!(caches.access(0, 0, true), Found::Hit);
        assert_eq!(caches.access(2, 0, true), Found::Moved);
        assert_eq!(caches.access(0, 1, true), Found::Memory, "another line");
    }
}
