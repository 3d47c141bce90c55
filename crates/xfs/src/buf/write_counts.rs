//! Counts write-backs by region, so that a reader of the device knows whether what it read is the newest.
//!
//! A buffer that is not in memory is still the newest version if the count of its region has not changed since before
//! it was read: a changed buffer stays in memory until its write-back is counted. Freeing blocks counts as well,
//! because readers of freed blocks must not keep the result.
//!
//! Invariant: buffers that overlap share a counter. Others mostly do not, so that a slow read ends however much is
//! written back elsewhere.

use super::BufMap;
use std::sync::atomic::{AtomicU64, Ordering};

const COUNTERS_LOG: u32 = 8;
/// log2 of the size of a region that has one counter, in 512-byte units. A region is at least as large as a buffer.
const REGION_LOG: u32 = 11;

/// Counts of write-backs and of freed blocks.
#[derive(Debug)]
pub(crate) struct WriteCounts {
    of_regions: [AtomicU64; 1 << COUNTERS_LOG],
    freed: AtomicU64,
}

impl Default for WriteCounts {
    fn default() -> Self {
        Self { of_regions: [const { AtomicU64::new(0) }; 1 << COUNTERS_LOG], freed: AtomicU64::new(0) }
    }
}

impl WriteCounts {
    /// The count of these maps.
    pub(crate) fn of(&self, maps: &[BufMap]) -> u64 {
        self.counters(maps).fold(0, |sum, counter| sum.wrapping_add(counter.load(Ordering::Acquire)))
    }

    /// Counts a write. It must be called before the buffer can leave memory.
    pub(crate) fn written(&self, maps: &[BufMap]) {
        for counter in self.counters(maps) {
            counter.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Counts the freeing of these maps.
    pub(crate) fn freed(&self, maps: &[BufMap]) {
        self.freed.fetch_add(1, Ordering::AcqRel);
        self.written(maps);
    }

    /// How often blocks were freed anywhere. As long as this stays the same, every address still belongs to what it was
    /// looked up for.
    pub(crate) fn frees(&self) -> u64 {
        self.freed.load(Ordering::Acquire)
    }

    fn counters(&self, maps: &[BufMap]) -> impl Iterator<Item = &AtomicU64> {
        let regions = maps.iter().flat_map(|map| {
            let last = map.daddr.0.saturating_add((map.len / 512).saturating_sub(1));
            map.daddr.0 >> REGION_LOG..=last >> REGION_LOG
        });
        regions.map(|region| {
            let hash = region.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - COUNTERS_LOG);
            #[allow(clippy::cast_possible_truncation, reason = "as many bits as there are counters")]
            &self.of_regions[hash as usize]
        })
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use xfs_format::types::DiskAddr;

    fn map(daddr: u64, len: u64) -> BufMap {
        BufMap { daddr: DiskAddr(daddr), len }
    }

    /// A buffer may lie at the end of one region and the start of another, and may have another size than what is read
    /// there.
    #[test]
    fn places_that_overlap_are_counted_together() {
        let region = 1 << REGION_LOG;
        for (written, read) in [
            (map(8, 4096), map(8, 4096)),
            (map(8, 65536), map(64, 512)),
            (map(region - 8, 8192), map(region, 4096)),
            (map(region - 8, 8192), map(region - 8, 4096)),
            (map(region, 4096), map(region - 8, 8192)),
        ] {
            let counts = WriteCounts::default();
            let before = counts.of(&[map(0, 512), read]);
            counts.written(&[written]);
            assert_ne!(counts.of(&[map(0, 512), read]), before, "{written:?} {read:?}");
            let (before, frees) = (counts.of(&[read]), counts.frees());
            counts.freed(&[map(1 << 30, 512), written]);
            assert!(counts.of(&[read]) != before && counts.frees() != frees);
        }
    }

    #[test]
    fn few_other_places_count() {
        let counts = WriteCounts::default();
        let read = map(8, 4096);
        let before = counts.of(&[read]);
        let others = 1..2000;
        let disturbed = others.clone().filter(|nth| {
            let before = counts.of(&[read]);
            counts.written(&[map(nth << REGION_LOG, 65536)]);
            counts.of(&[read]) != before
        });
        assert!(disturbed.count() < 40);
        assert!(counts.of(&[read]) >= before);
    }

    /// An address outside of any device overflows nothing.
    #[test]
    fn any_place_is_counted() {
        let counts = WriteCounts::default();
        for daddr in [0, u64::MAX - 1, u64::MAX] {
            for len in [0, 512, 65536] {
                counts.written(&[map(daddr, len)]);
                counts.of(&[map(daddr, len)]);
            }
        }
    }
}
