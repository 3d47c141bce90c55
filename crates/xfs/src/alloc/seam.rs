//! The allocator's interface to its transaction.
//!
//! It gives the groups' headers and trees as the transaction sees them, including its own changes. After an error the
//! transaction can only be dropped, which undoes all changes.

use super::AgExtent;
use crate::error::{Error, Result};
use crate::rmap::RmapOwner;
use xfs_format::ag::{AgHeader, Agf, Agfl};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::types::AgNumber;

/// One of the two free space trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeTree {
    /// By block.
    Bnobt,
    /// By size, then block.
    Cntbt,
}

impl FreeTree {
    /// The rank of a run in this order.
    pub const fn rank(self, run: AgExtent) -> (u32, u32) {
        match self {
            Self::Bnobt => (run.start.0, 0),
            Self::Cntbt => (run.len, run.start.0),
        }
    }
}

/// Blocks that changed hands, for the volume's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spent {
    /// Blocks taken from the transaction's reservation (negative: given back to the volume).
    Reserved(i64),
    /// Blocks taken from the group's own reservation (negative: given back to it). They count as used on disk, and the
    /// volume's available blocks stay the same.
    FromAgReservation(i64),
    /// Blocks by which the free space trees grew (negative: shrank). They count as free on disk, although nobody can
    /// get them.
    SpaceTrees(i64),
}

/// Which frees make a block count as busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// Only those of this transaction.
    Here,
    /// Those of this transaction, or of another one that is not on disk yet.
    ByAnybody,
}

/// Free space of groups that the transaction has locked.
pub trait SpaceStore {
    /// The volume's shape.
    fn geometry(&self) -> &Geometry;
    /// The AGF. Its counts, roots and slots have been checked against the group.
    fn agf(&self, ag: AgNumber) -> Result<&Agf>;
    /// The AGF, for changing it.
    fn agf_mut(&mut self, ag: AgNumber) -> Result<&mut Agf>;
    /// The content of slot `slot` of the AGFL, which is below [`Agfl::slots`].
    fn agfl_slot(&mut self, ag: AgNumber, slot: u32) -> Result<u32>;
    /// Sets slot `slot` of the AGFL.
    fn set_agfl_slot(&mut self, ag: AgNumber, slot: u32, block: u32) -> Result<()>;
    /// The last extent whose rank is at most `rank`.
    fn at_or_before(&mut self, ag: AgNumber, order: FreeTree, rank: (u32, u32)) -> Result<Option<AgExtent>>;
    /// The first extent whose rank is at least `rank`.
    fn at_or_after(&mut self, ag: AgNumber, order: FreeTree, rank: (u32, u32)) -> Result<Option<AgExtent>>;
    /// Adds an extent to one tree.
    fn insert(&mut self, ag: AgNumber, order: FreeTree, run: AgExtent) -> Result<()>;
    /// Removes an extent from one tree. It is corruption if it is not there.
    fn remove(&mut self, ag: AgNumber, order: FreeTree, run: AgExtent) -> Result<()>;
    /// Changes an extent in one tree. No other extent may lie between `old` and `new` in its order.
    fn replace(&mut self, ag: AgNumber, order: FreeTree, old: AgExtent, new: AgExtent) -> Result<()>;
    /// The first of the busy extents that end after block `at`.
    fn busy_behind(&self, ag: AgNumber, at: u32, freed: Freed) -> Option<AgExtent>;
    /// The last of the busy extents that begin before block `end`.
    fn busy_before(&self, ag: AgNumber, end: u64, freed: Freed) -> Option<AgExtent>;
    /// Records the owner of a run that has none in the rmap tree. Does nothing without an rmap tree.
    fn record_owner(&mut self, ag: AgNumber, run: AgExtent, owner: RmapOwner) -> Result<()>;
    /// Removes a run from the rmap tree, where this owner must have it. Without an owner, it must not be there any
    /// more.
    fn forget_owner(&mut self, ag: AgNumber, run: AgExtent, owner: Option<RmapOwner>) -> Result<()>;
    /// Makes a run busy when the transaction commits, until that commit is on disk.
    fn note_busy(&mut self, ag: AgNumber, run: AgExtent);
    /// Counts blocks that changed hands in the volume's counters. [`Error::NoSpace`] if the transaction takes more than
    /// it has reserved.
    fn spend(&mut self, spent: Spent) -> Result<()>;
}

/// All groups of a volume, as far as a transaction can reach them.
pub trait VolumeStore: SpaceStore {
    /// The AGF as this transaction sees it, or as it was last committed. Only a hint on whether to try the group.
    fn agf_snapshot(&mut self, ag: AgNumber) -> Result<Agf>;
    /// Number of blocks of the free inode tree, if known. Also only a hint.
    fn finobt_blocks_snapshot(&mut self, ag: AgNumber) -> Result<Option<u32>>;
    /// Locks a group's AGF for this transaction. Without `wait`, returns `false` if somebody else has it. Does nothing
    /// if this transaction has it locked already.
    fn lock_space(&mut self, ag: AgNumber, wait: bool) -> Result<bool>;
    /// Whether this transaction has a group's AGF locked.
    fn is_locked(&self, ag: AgNumber) -> bool;
    /// Releases the lock of a group that was not changed. Does nothing if it was.
    fn unlock_clean(&mut self, ag: AgNumber);
    /// The highest group of which this transaction has a header locked.
    fn highest_locked(&self) -> Option<AgNumber>;
    /// Waits until what others have freed is on disk. Returns `false` if there is nothing to wait for.
    fn flush_busy(&mut self) -> Result<bool>;
}

/// Corruption in an AGF or AGFL.
pub(super) fn damaged(
    geometry: &Geometry,
    ag: AgNumber,
    header: AgHeader,
    check: &'static str,
    found: u64,
) -> Error {
    let structure = match header {
        AgHeader::Agf => "AGF",
        AgHeader::Agi => "AGI",
        AgHeader::Agfl => "AGFL",
    };
    let expected = match header {
        AgHeader::Agfl => Agfl::slots(geometry).into(),
        _ => u64::from(geometry.ag_blocks_of(ag)),
    };
    let problem = FormatError::mismatch(structure, check, found, expected);
    Error::corrupt_block(header.daddr(geometry, ag), None, problem)
}
