//! Which buckets a range touches.
//!
//! A range covers segments of 2^`segment_bits` bytes. Segments are laid out in rows of as many segments as
//! there are buckets; within a row, consecutive segments have consecutive buckets, and each row is turned
//! by an offset of its own, so that threads that walk in step through regions a power of two apart (which
//! is how files are commonly divided among threads) do not meet in one bucket all the time.
//!
//! Invariants:
//! - ranges that overlap share a segment, hence a bucket;
//! - [`BucketSet`] lists each bucket once and in ascending order, the order in which they are entered;
//! - a range that covers as many segments as there are buckets, or more, touches all of them.

use crate::claim::Claim;

#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    segment_bits: u32,
    bucket_bits: u32,
}

impl Geometry {
    pub(super) fn new(buckets: usize, segment_size: u64) -> Self {
        assert!(
            buckets.is_power_of_two() && buckets <= 1 << 16,
            "the number of buckets is a power of two up to 65536"
        );
        assert!(segment_size.is_power_of_two(), "the segment size is a power of two");
        Geometry { segment_bits: segment_size.trailing_zeros(), bucket_bits: buckets.trailing_zeros() }
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

    /// The bucket of a range that lies within one segment.
    #[inline(always)]
    pub(super) fn only_bucket(self, claim: &Claim) -> Option<usize> {
        let first = claim.start >> self.segment_bits;
        let last = (claim.end - 1) >> self.segment_bits;
        (first == last).then(|| self.bucket_of(first) as usize)
    }

    /// All buckets of a range.
    pub(super) fn buckets_of(self, claim: &Claim) -> BucketSet {
        let first = claim.start >> self.segment_bits;
        let last = (claim.end - 1) >> self.segment_bits;
        let mut set = BucketSet::default();
        if last - first >= self.mask() {
            set.add(0, self.buckets() as u64);
        } else if first >> self.bucket_bits == last >> self.bucket_bits {
            self.add_run(&mut set, first, last);
        } else {
            // Fewer segments than a row has: two rows at most.
            let second_row = last & !self.mask();
            self.add_run(&mut set, first, second_row - 1);
            self.add_run(&mut set, second_row, last);
        }
        set.normalize();
        set
    }

    /// Adds the segments `first..=last` of one row, which may wrap round the end of the table.
    fn add_run(self, set: &mut BucketSet, first: u64, last: u64) {
        let (start, count, buckets) = (self.bucket_of(first), last - first + 1, self.buckets() as u64);
        if start + count <= buckets {
            set.add(start, start + count);
        } else {
            set.add(start, buckets);
            set.add(0, start + count - buckets);
        }
    }
}

/// Buckets as up to four intervals, ascending.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BucketSet {
    spans: [(u32, u32); 4],
    len: usize,
}

impl BucketSet {
    fn add(&mut self, start: u64, end: u64) {
        // At most 65536 buckets: the casts cannot cut.
        self.spans[self.len] = (start as u32, end as u32);
        self.len += 1;
    }

    /// Sorts the spans and joins those that touch or overlap.
    fn normalize(&mut self) {
        self.spans[..self.len].sort_unstable();
        let mut kept = 0;
        for at in 1..self.len {
            let (start, end) = self.spans[at];
            if start <= self.spans[kept].1 {
                self.spans[kept].1 = self.spans[kept].1.max(end);
            } else {
                kept += 1;
                self.spans[kept] = (start, end);
            }
        }
        self.len = self.len.min(kept + 1);
    }

    /// The first bucket at or after `from`.
    #[inline]
    pub(super) fn next_at(&self, from: usize) -> Option<usize> {
        self.spans[..self.len]
            .iter()
            .find(|span| from < span.1 as usize)
            .map(|span| from.max(span.0 as usize))
    }

    #[inline]
    pub(super) fn contains(&self, bucket: usize) -> bool {
        self.next_at(bucket) == Some(bucket)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Mode;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn listed(set: &BucketSet) -> Vec<usize> {
        let mut all = Vec::new();
        let mut from = 0;
        while let Some(bucket) = set.next_at(from) {
            all.push(bucket);
            from = bucket + 1;
        }
        all
    }

    proptest! {
        #[test]
        fn the_set_is_that_of_the_segments(start in 0u64..5000, len in 1u64..700, bits in 0u32..6) {
            let geometry = Geometry::new(1 << bits, 8);
            let claim = Claim::new(start..start + len, Mode::Shared);
            let segments = start / 8..=(start + len - 1) / 8;
            let all = segments.end() - segments.start() >= (1 << bits) - 1;
            let expected: BTreeSet<usize> = match all {
                true => (0..geometry.buckets()).collect(),
                false => segments.map(|segment| geometry.bucket_of(segment) as usize).collect(),
            };
            let set = geometry.buckets_of(&claim);
            prop_assert_eq!(listed(&set), expected.iter().copied().collect::<Vec<_>>());
            for bucket in 0..geometry.buckets() {
                prop_assert_eq!(set.contains(bucket), expected.contains(&bucket));
            }
            if let Some(only) = geometry.only_bucket(&claim) {
                prop_assert_eq!(listed(&set), vec![only]);
            }
        }
    }

    #[test]
    fn the_whole_file_touches_every_bucket() {
        let geometry = Geometry::new(256, 16384);
        assert_eq!(listed(&geometry.buckets_of(&Claim::new(0..u64::MAX, Mode::Exclusive))).len(), 256);
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
