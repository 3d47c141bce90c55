//! Free space: which blocks of a group are free, and who gets them.
//!
//! Each group keeps its free extents in two trees, one ordered by place and one by size, and a short ring of single
//! blocks (the AGFL) from which those trees take the blocks that they grow by. This folder decides and keeps the
//! three in step; it reads and changes them through [`SpaceStore`] alone, and so does not know what a transaction,
//! a buffer or a tree's block is.
//!
//! Invariants:
//! - both trees hold the same extents, none of which touch or overlap; `freeblks` is their sum, `longest` the
//!   longest of them;
//! - before a tree changes, the ring holds as many blocks as the change can need ([`Limits::ring_minimum`]);
//! - where the volume has a reverse map, blocks that change hands here change their owner in it at once, but for those
//!   of files, of which an intent says whose they are;
//! - the volume's count of free blocks (`freeblks + flcount + btreeblks` over all groups) changes only when blocks
//!   change hands with somebody outside this folder;
//! - an extent that is *busy* (freed by a transaction that is not on disk yet) is given to nobody but the ring:
//!   blocks of the ring are written through the journal, which keeps the order;
//! - whoever finds too little room has changed nothing that matters: the ring may have been filled, no more.

pub(crate) mod agfl;
mod busy;
mod claims;
#[cfg(test)]
mod effort;
mod group;
mod limits;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod model;
mod pick;
mod seam;
mod search;
mod space;

pub use busy::{BusyExtents, BusyGuard, BusyMark};
pub use claims::OwnerClaim;
pub use group::Group;
pub use limits::Limits;
pub(crate) use limits::rmap_levels;
pub use pick::{Allocated, FEW, Owners, Space, Target};
pub use seam::{Freed, Order, SpaceStore, Spent, VolumeStore};

use crate::rmap::RmapOwner;
use xfs_format::types::AgBlock;

/// A run of blocks of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// Its first block.
    pub start: AgBlock,
    /// Its length in blocks, at least 1.
    pub len: u32,
}

impl Run {
    /// A run of `len` blocks at `start`.
    pub const fn new(start: u32, len: u32) -> Self {
        Self { start: AgBlock(start), len }
    }

    /// The block behind its last one. 64 bits, as a damaged run may end behind the highest block number.
    pub const fn end(self) -> u64 {
        self.start.0 as u64 + self.len as u64
    }

    /// What two runs have in common.
    pub fn common(self, other: Self) -> Option<Self> {
        Self::between(self.start.max(other.start).0.into(), self.end().min(other.end()))
    }

    /// Sorts runs, and joins those that overlap or touch.
    pub fn normalize(runs: &mut Vec<Self>) {
        runs.sort_unstable();
        let mut kept: Vec<Self> = Vec::with_capacity(runs.len());
        for &run in runs.iter() {
            match kept.last_mut() {
                Some(last) if u64::from(run.start.0) <= last.end() => {
                    *last = Self::between(last.start.0.into(), last.end().max(run.end())).unwrap_or(*last);
                }
                _ => kept.push(run),
            }
        }
        *runs = kept;
    }

    /// The run between two blocks; `None` if nothing is between them.
    pub(crate) fn between(start: u64, end: u64) -> Option<Self> {
        let len = end.checked_sub(start).filter(|&len| len > 0)?;
        Some(Self { start: AgBlock(u32::try_from(start).ok()?), len: u32::try_from(len).ok()? })
    }
}

/// What blocks are wanted for: which reserve they may use, and how they are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// File content. Lies as far in front as it can, so that it can grow.
    Data,
    /// Directories, attributes, block maps, inodes and their tree.
    Metadata,
    /// Blocks of the tree of free inodes, or of the one of reference counts: they come from the group's reserve and not
    /// from what the transaction has reserved, since what frees inodes or blocks must not fail for want of space.
    ReservedTree,
}

/// What is wanted of a group, wherever it is found.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The fewest blocks that will do, at least 1.
    pub min: u32,
    /// How many blocks are wanted, at least `min`.
    pub max: u32,
    /// The first block is a multiple of this number; 1 for any block.
    pub align: u32,
    /// The length is a multiple of this (where that leaves at least `min`); 1 for any length.
    pub multiple: u32,
    /// Blocks that must be left in the group for what the same transaction will need there.
    pub min_left: u32,
    /// No block before this one,
    pub first: u32,
    /// and the first block of the run at this one at the latest.
    pub last: u32,
    /// What for.
    pub purpose: Purpose,
    /// Whose they are from now on, for the reverse map; `None` where an intent of the same transaction says so.
    pub owner: Option<RmapOwner>,
}

impl Request {
    /// Between `min` and `max` blocks without further wishes.
    pub const fn new(min: u32, max: u32, purpose: Purpose) -> Self {
        Self { min, max, align: 1, multiple: 1, min_left: 0, first: 0, last: u32::MAX, purpose, owner: None }
    }

    /// The same, for this owner.
    pub const fn owned_by(self, owner: RmapOwner) -> Self {
        Self { owner: Some(owner), ..self }
    }

    /// One block.
    pub const fn block(purpose: Purpose) -> Self {
        Self::new(1, 1, purpose)
    }
}

/// Where in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Wherever the size fits best.
    Any,
    /// As near to this block as there is room.
    Near(AgBlock),
    /// At this block or not at all.
    Exact(AgBlock),
}
