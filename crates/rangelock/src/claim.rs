//! One range with the mode in which it is wanted or held.
//!
//! Invariant: a claim is never empty.

use std::ops::Range;

use crate::Mode;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) mode: Mode,
}

impl Claim {
    #[inline]
    pub(crate) fn new(range: Range<u64>, mode: Mode) -> Self {
        assert!(range.start < range.end, "an empty range cannot be locked");
        Claim { start: range.start, end: range.end, mode }
    }

    /// Whether the two may not be held at once by different holders.
    #[inline(always)]
    pub(crate) fn conflicts(&self, other: &Claim) -> bool {
        self.start < other.end
            && other.start < self.end
            && (self.mode == Mode::Exclusive || other.mode == Mode::Exclusive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_ranges_do_not_conflict() {
        let a = Claim::new(0..10, Mode::Exclusive);
        assert!(!a.conflicts(&Claim::new(10..20, Mode::Exclusive)));
        assert!(a.conflicts(&Claim::new(9..20, Mode::Shared)));
        let s = Claim::new(0..10, Mode::Shared);
        assert!(!s.conflicts(&Claim::new(0..u64::MAX, Mode::Shared)));
    }

    #[test]
    #[should_panic(expected = "empty range")]
    fn an_empty_range_is_refused() {
        Claim::new(5..5, Mode::Shared);
    }
}
