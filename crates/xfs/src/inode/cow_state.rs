//! What copy-on-write needs to know of a file, only in memory: which of its blocks are shared, and what the CoW fork
//! has staged for copies of them.
//!
//! Invariants:
//! - once the set of shared blocks is known, it has every block of the file that others have as well. It may also have
//!   blocks that others have given up since, until a write to them checks the refcount tree again. Only cloning the
//!   file's own blocks makes more of them shared, and the set is updated before the counts change;
//! - the state of blocks that come to the file is set at that time, whatever was known of these blocks before. Blocks
//!   that were free are the file's own. Blocks of another file are shared if the refcount tree says so. Otherwise an
//!   in-place write would stage nothing, and would find them shared when a clone of other blocks sets the flag, or when
//!   the map is told that they hold data;
//! - blocks are identified by their place on the volume, so moving them within the file changes nothing;
//! - a write's claim comes with blocks of the volume that the map may need to record it, and so does marking unwritten
//!   blocks as written. They stay reserved until they are taken or given up;
//! - the CoW fork's lock is taken after the file's range lock and before anything that a transaction locks. Staging and
//!   remapping hold it from the first look at the fork until the fork says what was committed.

use super::claim_reserves::ClaimReserves;
use super::runs::Runs;
use crate::cow::CowFork;
use crate::ifork::{ExtentList, Mapped};
use crate::published::{Snapshot, VersionNumber};
use crate::refcount::SharedRun;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use xfs_format::bmbt::Extent;
use xfs_format::types::{AgNumber, FileBlock, FsBlock};

/// What copies cut into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CutExtents {
    /// The extents that are copied.
    Copied,
    /// The staged extents.
    Staged,
}

/// The copy-on-write state of a file.
#[derive(Debug, Default)]
pub(crate) struct CowState {
    /// The shared blocks, once they are known, and the version number of this set.
    shared: Mutex<Arc<Option<BlockSet>>>,
    version: VersionNumber,
    fork: Mutex<CowFork>,
    /// Blocks reserved for the map, for claims of writes.
    kept: ClaimReserves,
    /// The same for writes that will mark unwritten blocks as written.
    to_mark: ClaimReserves,
    /// Blocks whose copies may begin a new extent and for which a group promised room in its rmap tree, by group.
    owners: Mutex<BTreeMap<(AgNumber, CutExtents), Runs>>,
}

impl CowState {
    /// Whether the set of shared blocks is known.
    #[inline]
    pub(crate) fn is_known(&self) -> bool {
        self.known().is_some()
    }

    /// Whether any blocks are known as shared.
    pub(crate) fn knows_any(&self) -> bool {
        self.known().as_ref().is_some_and(|set| !set.0.is_empty())
    }

    /// What is known of the `blocks` blocks from `start` on. `None` if the set is not known.
    #[inline]
    pub(crate) fn run(&self, start: FsBlock, blocks: u64) -> Option<SharedRun> {
        self.known().as_ref().map(|set| set.run(start, blocks))
    }

    /// The set as it is now.
    #[inline]
    fn known(&self) -> Snapshot<Option<BlockSet>> {
        self.version.remembered().unwrap_or_else(|| {
            let shared = self.shared.lock();
            let (number, known) = (self.version.get(), Arc::clone(&shared));
            drop(shared);
            let weight = Self::weight_of(&known);
            self.version.remember(number, known, weight)
        })
    }

    /// Locks the CoW fork.
    pub(crate) fn fork(&self) -> MutexGuard<'_, CowFork> {
        self.fork.lock()
    }

    /// The same, if nobody has it locked.
    pub(crate) fn try_fork(&self) -> Option<MutexGuard<'_, CowFork>> {
        self.fork.try_lock()
    }

    /// What is reserved for the map, for claims of writes.
    pub(crate) fn kept(&self) -> &ClaimReserves {
        &self.kept
    }

    /// What is reserved for the map, for writes to unwritten blocks.
    pub(crate) fn to_mark(&self) -> &ClaimReserves {
        &self.to_mark
    }

    /// Blocks for whose copies a group promised room in its rmap tree, by group and by what they cut.
    pub(crate) fn owners(&self) -> MutexGuard<'_, BTreeMap<(AgNumber, CutExtents), Runs>> {
        self.owners.lock()
    }

    /// Sets the set of shared blocks, with the fork locked.
    pub(crate) fn know(&self, shared: BlockSet, _fork: &CowFork) {
        self.publish(|known| *known = Some(shared));
    }

    /// Changes the set of shared blocks, with the fork locked.
    pub(crate) fn change(&self, _fork: &CowFork, change: impl FnOnce(&mut BlockSet)) {
        self.change_known(change);
    }

    /// The file gets blocks that were free, so nobody else has them.
    pub(crate) fn got_free_blocks(&self, start: FsBlock, blocks: u64) {
        if self.known().as_ref().is_some_and(|set| set.has_any(start, blocks)) {
            self.change_known(|set| set.remove(start, blocks));
        }
    }

    fn change_known(&self, change: impl FnOnce(&mut BlockSet)) {
        self.publish(|known| known.as_mut().map_or((), change));
    }

    fn publish(&self, change: impl FnOnce(&mut Option<BlockSet>)) {
        let mut shared = self.shared.lock();
        change(Arc::make_mut(&mut shared));
        self.version.renew(&*shared, || Self::weight_of(&shared));
    }

    /// Bytes of memory.
    pub(crate) fn weight(&self) -> u64 {
        size_of::<Self>() as u64 + Self::weight_of(&self.shared.lock())
    }

    fn weight_of(known: &Option<BlockSet>) -> u64 {
        known.as_ref().map_or(0, |set| set.0.weight())
    }
}

/// Blocks of a volume. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockSet(ExtentList);

impl BlockSet {
    /// What the set says of the `blocks` blocks from `start` on.
    pub(crate) fn run(&self, start: FsBlock, blocks: u64) -> SharedRun {
        let end = match self.0.lookup(FileBlock(start.0)) {
            Mapped::Extent(run) => {
                return SharedRun { blocks: blocks.min(run.end().0 - start.0), shared: true };
            }
            Mapped::Hole(_, end) => end,
        };
        let until = end.map_or(blocks, |end| end.0 - start.0);
        SharedRun { blocks: blocks.min(until), shared: false }
    }

    /// Whether any of these blocks are in the set.
    fn has_any(&self, start: FsBlock, blocks: u64) -> bool {
        let next = self.0.ending_behind(FileBlock(start.0));
        next.is_some_and(|run| run.startoff.0 < start.0 + blocks)
    }

    /// Adds blocks. Some of them may be in the set already.
    pub(crate) fn add(&mut self, start: FsBlock, blocks: u64) {
        let end = start.0 + blocks;
        let mut at = start.0;
        while at < end {
            let known = self.run(FsBlock(at), end - at);
            if !known.shared {
                self.insert(at, known.blocks);
            }
            at += known.blocks.max(1);
        }
    }

    /// Removes blocks. Some of them may not be in the set.
    pub(crate) fn remove(&mut self, start: FsBlock, blocks: u64) {
        let end = start.0 + blocks;
        while let Some(run) = self.0.ending_behind(FileBlock(start.0)).filter(|run| run.startoff.0 < end) {
            self.0.remove(run.startoff);
            self.insert(run.startoff.0, start.0.saturating_sub(run.startoff.0));
            self.insert(end, run.end().0.saturating_sub(end));
        }
    }

    fn insert(&mut self, start: u64, blocks: u64) {
        if let Some(blockcount) = u32::try_from(blocks).ok().filter(|&blocks| blocks > 0) {
            let (startoff, startblock) = (FileBlock(start), FsBlock(start));
            self.0.insert(&Extent { startoff, startblock, blockcount, unwritten: false });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_set_holds_what_was_added_and_not_taken_out(
            steps in prop::collection::vec((any::<bool>(), 0..100_u64, 1..30_u64), 1..40),
        ) {
            let (mut set, mut model) = (BlockSet::default(), [false; 130]);
            for (adds, start, blocks) in steps {
                match adds {
                    true => set.add(FsBlock(start), blocks),
                    false => set.remove(FsBlock(start), blocks),
                }
                model[start as usize..(start + blocks) as usize].fill(adds);
                let any = model[start as usize..(start + blocks) as usize].contains(&true);
                prop_assert_eq!(set.has_any(FsBlock(start), blocks), any);
                let (from, len) = (start / 2, blocks.min(7));
                let any = model[from as usize..(from + len) as usize].contains(&true);
                prop_assert_eq!(set.has_any(FsBlock(from), len), any);
                let mut at = 0;
                while at < 130 {
                    let run = set.run(FsBlock(at), 130 - at);
                    let part = &model[at as usize..(at + run.blocks) as usize];
                    prop_assert!(run.blocks > 0 && part.iter().all(|&is| is == run.shared));
                    at += run.blocks;
                }
            }
        }
    }
}
