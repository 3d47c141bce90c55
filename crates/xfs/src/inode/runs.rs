//! Runs of a file's blocks, and their total length.
//!
//! Invariant: they do not overlap.

use std::collections::BTreeMap;
use std::ops::Range;
use xfs_format::types::FileBlock;

/// A set of runs of blocks.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    /// The end of each run, by its first block.
    runs: BTreeMap<FileBlock, FileBlock>,
    blocks: u64,
}

impl Runs {
    /// The total number of blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// How many of `blocks` are not in the set.
    pub(crate) fn missing(&self, blocks: &Range<FileBlock>) -> u64 {
        let before = self
            .runs
            .range(..blocks.start)
            .next_back()
            .map_or(0, |(_, end)| end.min(&blocks.end).0.saturating_sub(blocks.start.0));
        let inside = self.runs.range(blocks.clone());
        let there = before + inside.map(|(start, end)| end.min(&blocks.end).0 - start.0).sum::<u64>();
        (blocks.end.0 - blocks.start.0) - there
    }

    /// Adds blocks. Returns how many of them were not in the set.
    pub(crate) fn add(&mut self, blocks: &Range<FileBlock>) -> u64 {
        let before = self.blocks;
        self.cut(blocks);
        if blocks.start < blocks.end {
            self.blocks += blocks.end.0 - blocks.start.0;
            self.runs.insert(blocks.start, blocks.end);
        }
        self.blocks - before
    }

    /// Removes blocks. Returns how many of them were in the set.
    pub(crate) fn cut(&mut self, blocks: &Range<FileBlock>) -> u64 {
        if blocks.start >= blocks.end {
            return 0;
        }
        let before = self.runs.range_mut(..blocks.start).next_back();
        if let Some((_, run)) = before.filter(|(_, end)| **end > blocks.start) {
            let end = std::mem::replace(run, blocks.start);
            self.runs.insert(blocks.start, end);
        }
        let mut cut = 0;
        while let Some((&start, &end)) = self.runs.range(blocks.clone()).next() {
            self.runs.remove(&start);
            cut += end.min(blocks.end).0 - start.0;
            if end > blocks.end {
                self.runs.insert(blocks.end, end);
            }
        }
        self.blocks -= cut;
        cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn runs_hold_what_was_added_and_not_cut(
            steps in prop::collection::vec((any::<bool>(), 0..60_u64, 0..30_u64), 1..40),
        ) {
            let (mut runs, mut model) = (Runs::default(), [false; 100]);
            for (adds, start, len) in steps {
                let blocks = FileBlock(start)..FileBlock(start + len);
                let part = &mut model[start as usize..(start + len) as usize];
                let there = part.iter().filter(|&&is| is).count() as u64;
                prop_assert_eq!(runs.missing(&blocks), len - there);
                match adds {
                    true => prop_assert_eq!(runs.add(&blocks), len - there),
                    false => prop_assert_eq!(runs.cut(&blocks), there),
                }
                part.fill(adds);
                prop_assert_eq!(runs.blocks(), model.iter().filter(|&&is| is).count() as u64);
            }
            let all = model.iter().filter(|&&is| is).count() as u64;
            prop_assert_eq!((runs.cut(&(FileBlock(0)..FileBlock(100))), runs.blocks()), (all, 0));
        }
    }
}
