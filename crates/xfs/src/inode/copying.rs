//! What copying on write needs to know of a file, in memory alone: which of its blocks are shared, and what is staged for
//! copies of them.
//!
//! Invariants:
//! - once it is known which blocks are shared, whatever block of the file others have as well is among them; so may be such
//!   as others have given up since, until somebody who would write there asks the tree of reference counts again. Only who
//!   clones the file's own blocks makes more of them shared: they are told before the counts change;
//! - what comes to the file is known as it is then, whatever was known of such blocks from before: what was free is its own,
//!   what was another's is shared if the tree says so. Who writes to such blocks in place stages nothing, and would find them
//!   shared when a clone of others sets the flag, or when the map is told that they hold data;
//! - blocks are named by their place on the volume: whatever moves within the file stays known;
//! - what a write has claimed comes with blocks of the volume that the map may need to tell of it, and so does what it will
//!   say of unwritten blocks: they are reserved from then on until it is taken or given up;
//! - the lock of the CoW fork is taken behind the file's range and before anything that a transaction locks; whoever stages
//!   or remaps holds it from the first look at the fork until the fork says what was committed.

use super::kept::Kept;
use super::runs::Runs;
use crate::cow::CowFork;
use crate::ifork::{ExtentList, Mapped};
use crate::refcount::SharedRun;
use arc_swap::ArcSwapOption;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use xfs_format::bmbt::Extent;
use xfs_format::types::{AgNumber, FileBlock, FsBlock};

/// Out of what copies are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cuts {
    /// Out of the blocks that are copied.
    Copied,
    /// Out of the blocks that are staged for that.
    Staged,
}

/// See above.
#[derive(Debug, Default)]
pub(crate) struct Copying {
    shared: ArcSwapOption<BlockSet>,
    fork: Mutex<CowFork>,
    /// Blocks that are reserved for the map, for what writes have claimed.
    kept: Kept,
    /// The same of writes that will say of unwritten blocks that they hold data.
    to_mark: Kept,
    /// Blocks whose copies may begin a piece, for which room was promised to owners, by the group that promised it.
    owners: Mutex<BTreeMap<(AgNumber, Cuts), Runs>>,
}

impl Copying {
    /// Whether it is known which blocks are shared.
    #[inline]
    pub(crate) fn is_known(&self) -> bool {
        self.shared.load().is_some()
    }

    /// Whether any blocks are known as shared.
    pub(crate) fn knows_any(&self) -> bool {
        self.shared.load().as_ref().is_some_and(|set| !set.0.is_empty())
    }

    /// What is known of a block and so many from it on; `None` if nothing is.
    #[inline]
    pub(crate) fn run(&self, start: FsBlock, blocks: u64) -> Option<SharedRun> {
        self.shared.load().as_ref().map(|set| set.run(start, blocks))
    }

    /// The CoW fork, for as long as the guard lives.
    pub(crate) fn fork(&self) -> MutexGuard<'_, CowFork> {
        self.fork.lock()
    }

    /// The same, if nobody has it.
    pub(crate) fn try_fork(&self) -> Option<MutexGuard<'_, CowFork>> {
        self.fork.try_lock()
    }

    /// What is reserved for the map, for what writes have claimed.
    pub(crate) fn kept(&self) -> &Kept {
        &self.kept
    }

    /// What is reserved for the map, for writes to unwritten blocks.
    pub(crate) fn to_mark(&self) -> &Kept {
        &self.to_mark
    }

    /// Blocks for whose copies room was promised to owners, by the group that promised it, and for what.
    pub(crate) fn owners(&self) -> MutexGuard<'_, BTreeMap<(AgNumber, Cuts), Runs>> {
        self.owners.lock()
    }

    /// Says which blocks are shared, with the fork locked.
    pub(crate) fn know(&self, shared: BlockSet, _fork: &CowFork) {
        self.shared.store(Some(Arc::new(shared)));
    }

    /// Changes what is known, with the fork locked.
    pub(crate) fn change(&self, _fork: &CowFork, change: impl Fn(&mut BlockSet)) {
        self.change_known(change);
    }

    /// The file gets blocks that were free: nobody else has them.
    pub(crate) fn got_free_blocks(&self, start: FsBlock, blocks: u64) {
        if self.shared.load().as_ref().is_some_and(|set| set.has_any(start, blocks)) {
            self.change_known(|set| set.remove(start, blocks));
        }
    }

    /// `change` may be asked for more than once: whoever allocates does not have the fork.
    fn change_known(&self, change: impl Fn(&mut BlockSet)) {
        self.shared.rcu(|known| {
            known.as_ref().map(|known| {
                let mut set = BlockSet::clone(known);
                change(&mut set);
                Arc::new(set)
            })
        });
    }

    /// Bytes of memory.
    pub(crate) fn weight(&self) -> u64 {
        size_of::<Self>() as u64 + self.shared.load().as_ref().map_or(0, |set| set.0.weight())
    }
}

/// Blocks of a volume. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockSet(ExtentList);

impl BlockSet {
    /// What it says of a block and so many from it on.
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

    /// Whether any of so many blocks are in it.
    fn has_any(&self, start: FsBlock, blocks: u64) -> bool {
        let next = self.0.ending_behind(FileBlock(start.0));
        next.is_some_and(|run| run.startoff.0 < start.0 + blocks)
    }

    /// Adds blocks, some of which may be there.
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

    /// Takes blocks out, some of which may not be there.
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
