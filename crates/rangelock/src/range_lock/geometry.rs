//! Which buckets a range touches.
//!
//! A file is cut into segments of 2^`segment_bits` bytes. Segments are laid out in rows of as many segments as
//! there are buckets. Within a row, consecutive segments have consecutive buckets. Each row is turned by an
//! offset of its own, so that threads that walk in step through regions a power of two apart (which is how files
//! are commonly divided among threads) do not meet in one bucket all the time.
//!
//! Invariants:
//! - a range is *narrow* if it covers one segment or two, and *wide* otherwise;
//! - narrow ranges that overlap share a segment, hence a bucket;
//! - the two buckets of a narrow range are listed in ascending order, the order in which they are locked.

use crate::claim::Claim;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    segment_bits: u32,
    bucket_bits: u32,
}

/// The one or two buckets of a narrow range: `low` is at most `high`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Buckets {
    pub(super) low: u32,
    pub(super) high: u32,
}

impl Buckets {
    #[inline(always)]
    pub(super) fn contains(self, at: u32) -> bool {
        self.low == at || self.high == at
    }
}

impl Geometry {
    pub(super) const MOST_BUCKETS: usize = 1 << 16;

    pub(super) fn new(buckets: usize, segment_size: u64) -> Self {
        assert!(
            buckets.is_power_of_two() && buckets <= Self::MOST_BUCKETS,
            "the number of buckets is a power of two up to 65536"
        );
        assert!(segment_size.is_power_of_two(), "the segment size is a power of two");
        Geometry { segment_bits: segment_size.trailing_zeros(), bucket_bits: buckets.trailing_zeros() }
    }

    /// Of the numbers that [`bits`](Self::bits) returned.
    #[inline(always)]
    pub(super) fn of_bits(segment_bits: u32, bucket_bits: u32) -> Self {
        Geometry { segment_bits, bucket_bits }
    }

    /// What it is made of: six bits, and five.
    pub(super) fn bits(self) -> (u32, u32) {
        (self.segment_bits, self.bucket_bits)
    }

    pub(super) fn buckets(self) -> usize {
        1 << self.bucket_bits
    }

    pub(super) fn segment_size(self) -> u64 {
        1 << self.segment_bits
    }

    #[inline(always)]
    fn mask(self) -> u64 {
        (1 << self.bucket_bits) - 1
    }

    #[inline(always)]
    fn bucket_of(self, segment: u64) -> u64 {
        let row = segment >> self.bucket_bits;
        // Fibonacci hashing: the upper half of the product is well spread for consecutive rows.
        let turn = row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        segment.wrapping_add(turn) & self.mask()
    }

    /// The first and the last segment.
    #[inline(always)]
    fn segments_of(self, claim: &Claim) -> (u64, u64) {
        (claim.start >> self.segment_bits, (claim.end - 1) >> self.segment_bits)
    }

    /// The bucket of a range that lies within one segment.
    #[inline(always)]
    pub(super) fn only_bucket(self, claim: &Claim) -> Option<usize> {
        let (first, last) = self.segments_of(claim);
        (first == last).then(|| self.bucket_of(first) as usize)
    }

    /// The buckets of a narrow range; none for a wide one.
    #[inline(always)]
    pub(super) fn narrow(self, claim: &Claim) -> Option<Buckets> {
        let (first, last) = self.segments_of(claim);
        if last - first > 1 {
            return None;
        }
        // At most 65536 buckets: the casts cannot cut.
        let (one, other) = (self.bucket_of(first) as u32, self.bucket_of(last) as u32);
        Some(Buckets { low: one.min(other), high: one.max(other) })
    }

    #[inline]
    pub(super) fn is_wide(self, claim: &Claim) -> bool {
        let (first, last) = self.segments_of(claim);
        last - first > 1
    }

    /// Whether the claim is kept in this bucket.
    #[inline]
    pub(super) fn is_kept_at(self, claim: &Claim, at: u32) -> bool {
        self.narrow(claim).is_some_and(|buckets| buckets.contains(at))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Mode;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn the_buckets_are_those_of_the_segments(start in 0u64..5000, len in 1u64..40, bits in 0u32..6) {
            let geometry = Geometry::new(1 << bits, 8);
            let claim = Claim::new(start..start + len, Mode::Shared);
            let segments = start / 8..=(start + len - 1) / 8;
            let expected: BTreeSet<u32> =
                segments.clone().map(|segment| geometry.bucket_of(segment) as u32).collect();
            let narrow = geometry.narrow(&claim);
            prop_assert_eq!(narrow.is_none(), segments.count() > 2);
            prop_assert_eq!(geometry.is_wide(&claim), narrow.is_none());
            if let Some(buckets) = narrow {
                prop_assert!(buckets.low <= buckets.high);
                prop_assert_eq!(BTreeSet::from([buckets.low, buckets.high]), expected.clone());
            }
            for at in 0..geometry.buckets() as u32 {
                prop_assert_eq!(geometry.is_kept_at(&claim, at), narrow.is_some() && expected.contains(&at));
            }
            if let Some(only) = geometry.only_bucket(&claim) {
                prop_assert_eq!(expected, BTreeSet::from([only as u32]));
            }
        }
    }

    #[test]
    fn regions_a_power_of_two_apart_do_not_meet_in_one_bucket() {
        let geometry = Geometry::new(256, 16384);
        for shift in 20..40 {
            let buckets: BTreeSet<_> =
                (0..16u64).map(|region| geometry.bucket_of((region << shift) / 16384)).collect();
            assert!(buckets.len() >= 8, "regions of 2^{shift} bytes share {} buckets", buckets.len());
        }
    }
}
