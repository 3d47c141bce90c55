//! Free space: which blocks of a group are free, and who gets them.
//!
//! Each group keeps its free extents in two trees, one ordered by block and one by size, and the AGFL, a short list of
//! single blocks from which those trees take the blocks that they grow by. This folder decides on allocations and keeps
//! the three consistent. It reads and changes them only through [`SpaceStore`], so it does not know what a transaction,
//! a buffer or a tree block is.
//!
//! Invariants:
//! - both trees hold the same extents, none of which touch or overlap. `freeblks` is their sum, `longest` the longest
//!   of them;
//! - before a tree changes, the AGFL holds as many blocks as the change can need ([`Limits::min_freelist`]);
//! - if the volume has an rmap tree, blocks that are allocated or freed here change their owner in it immediately,
//!   except those of files, whose owner is recorded through an intent;
//! - the volume's count of free blocks (`freeblks + flcount + btreeblks` over all groups) changes only when blocks
//!   enter or leave this folder;
//! - a *busy* extent (freed by a transaction that is not on disk yet) is given only to the AGFL: its blocks are written
//!   through the journal, which keeps the order;
//! - if there is too little room, nothing that matters has changed: at most the AGFL has been filled.

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
pub use group::LockedAg;
pub use limits::Limits;
pub(crate) use limits::{reserve_pool, rmap_levels};
pub use pick::{Allocated, FEW, Owners, Space, Target};
pub use seam::{FreeTree, Freed, SpaceStore, Spent, VolumeStore};

use crate::rmap::RmapOwner;
use xfs_format::types::AgBlock;

/// A run of blocks of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgExtent {
    /// Its first block.
    pub start: AgBlock,
    /// Its length in blocks, at least 1.
    pub len: u32,
}

impl AgExtent {
    /// A run of `len` blocks at `start`.
    pub const fn new(start: u32, len: u32) -> Self {
        Self { start: AgBlock(start), len }
    }

    /// The block after its last one. 64 bits, because a damaged run may end beyond the highest block number.
    pub const fn end(self) -> u64 {
        self.start.0 as u64 + self.len as u64
    }

    /// The intersection of two runs.
    pub fn common(self, other: Self) -> Option<Self> {
        Self::between(self.start.max(other.start).0.into(), self.end().min(other.end()))
    }

    /// Sorts runs and merges those that overlap or touch.
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

    /// The run between two blocks. `None` if it is empty.
    pub(crate) fn between(start: u64, end: u64) -> Option<Self> {
        let len = end.checked_sub(start).filter(|&len| len > 0)?;
        Some(Self { start: AgBlock(u32::try_from(start).ok()?), len: u32::try_from(len).ok()? })
    }
}

/// The purpose of blocks: it decides which reserve they may use and how they are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// File content. It is placed as far in front as possible, so that it can grow.
    Data,
    /// Directories, attributes, block maps, inodes and their tree.
    Metadata,
    /// Blocks of the free inode tree or of the refcount tree. They come from the group's reservation and not from the
    /// transaction's, because freeing inodes or blocks must not fail for lack of space.
    ReservedTree,
}

/// A request for blocks of a group.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Minimum number of blocks, at least 1.
    pub min: u32,
    /// Wanted number of blocks, at least `min`.
    pub max: u32,
    /// The first block is a multiple of this; 1 for any block.
    pub align: u32,
    /// The length is a multiple of this, if that leaves at least `min`; 1 for any length.
    pub multiple: u32,
    /// Blocks that must be left in the group for what the same transaction will need there.
    pub min_left: u32,
    /// No block before this one.
    pub first: u32,
    /// The run begins at this block at the latest.
    pub last: u32,
    /// The purpose.
    pub purpose: Purpose,
    /// Their new owner for the rmap tree. `None` if an intent of the same transaction records it.
    pub owner: Option<RmapOwner>,
}

impl Request {
    /// Between `min` and `max` blocks, without further conditions.
    pub const fn new(min: u32, max: u32, purpose: Purpose) -> Self {
        Self { min, max, align: 1, multiple: 1, min_left: 0, first: 0, last: u32::MAX, purpose, owner: None }
    }

    /// The same request for this owner.
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
pub enum AgTarget {
    /// Where the size fits best.
    Any,
    /// As near to this block as possible.
    Near(AgBlock),
    /// Only at this block.
    Exact(AgBlock),
}
