//! What the allocator may know of the transaction that it works in.
//!
//! The groups' headers and trees as the transaction sees them, its own changes included. An error leaves the
//! transaction fit for nothing but to be dropped, which takes back all that was changed.

use super::Run;
use crate::error::{Error, Result};
use crate::rmap::RmapOwner;
use xfs_format::ag::{AgHeader, Agf, Agfl};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::types::AgNumber;

/// Which of the two trees of free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// By place.
    Place,
    /// By size, then place.
    Size,
}

impl Order {
    /// The place of a run in this order.
    pub const fn rank(self, run: Run) -> (u32, u32) {
        match self {
            Self::Place => (run.start.0, 0),
            Self::Size => (run.len, run.start.0),
        }
    }
}

/// Blocks that changed hands, for the volume's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spent {
    /// Blocks taken out of what the transaction has reserved (negative: given back to everybody).
    Reserved(i64),
    /// Blocks taken out of the groups' own reserve (negative: given back to it): they count as used on disk, and
    /// what the volume has left for everybody stays as it was.
    FromPool(i64),
    /// Blocks that the trees of free space grew by (negative: shrank by). Those count as free on disk, though nobody
    /// can have them.
    SpaceTrees(i64),
}

/// Whose freeing makes a block busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// Freed by this very transaction.
    Here,
    /// Freed by it, or by one that is not on disk yet.
    ByAnybody,
}

/// Free space of groups that the transaction has locked.
pub trait SpaceStore {
    /// The volume's shape.
    fn geometry(&self) -> &Geometry;
    /// The AGF. Its counts, roots and slots were checked against the group.
    fn agf(&self, ag: AgNumber) -> Result<&Agf>;
    /// The AGF, to change it.
    fn agf_mut(&mut self, ag: AgNumber) -> Result<&mut Agf>;
    /// What slot `slot` of the ring holds, below [`Agfl::slots`].
    fn ring_slot(&mut self, ag: AgNumber, slot: u32) -> Result<u32>;
    /// Fills slot `slot` of the ring.
    fn set_ring_slot(&mut self, ag: AgNumber, slot: u32, block: u32) -> Result<()>;
    /// The last extent whose rank is at most `rank`.
    fn at_or_before(&mut self, ag: AgNumber, order: Order, rank: (u32, u32)) -> Result<Option<Run>>;
    /// The first extent whose rank is at least `rank`.
    fn at_or_after(&mut self, ag: AgNumber, order: Order, rank: (u32, u32)) -> Result<Option<Run>>;
    /// Adds an extent to one tree.
    fn insert(&mut self, ag: AgNumber, order: Order, run: Run) -> Result<()>;
    /// Removes an extent from one tree. That it is not there is corruption.
    fn remove(&mut self, ag: AgNumber, order: Order, run: Run) -> Result<()>;
    /// Changes an extent in one tree, where no other extent lies between `old` and `new` in its order.
    fn replace(&mut self, ag: AgNumber, order: Order, old: Run, new: Run) -> Result<()>;
    /// Of the busy runs that end behind block `at`, the one that begins first.
    fn busy_behind(&self, ag: AgNumber, at: u32, freed: Freed) -> Option<Run>;
    /// Of the busy runs that begin before block `end`, the one that ends last.
    fn busy_before(&self, ag: AgNumber, end: u64, freed: Freed) -> Option<Run>;
    /// Records in the reverse map whose a run is, which nobody's was. Nothing happens where the volume has none.
    fn record_owner(&mut self, ag: AgNumber, run: Run, owner: RmapOwner) -> Result<()>;
    /// Takes a run out of the reverse map, which must say that it is this owner's; or, without an owner, that it is nobody's
    /// any more.
    fn forget_owner(&mut self, ag: AgNumber, run: Run, owner: Option<RmapOwner>) -> Result<()>;
    /// Makes a run busy once the transaction commits, until that commit is on disk.
    fn note_busy(&mut self, ag: AgNumber, run: Run);
    /// Counts blocks that changed hands, for the volume's counters. [`Error::NoSpace`] if the transaction takes more
    /// than it has reserved.
    fn spend(&mut self, spent: Spent) -> Result<()>;
}

/// All groups of a volume, as a transaction may come by them.
pub trait VolumeStore: SpaceStore {
    /// The AGF as this transaction sees it, or as it was committed last: a hint of whether to try the group.
    fn peek_agf(&mut self, ag: AgNumber) -> Result<Agf>;
    /// Blocks of the tree of free inodes, if known; likewise a hint.
    fn peek_free_inode_tree_blocks(&mut self, ag: AgNumber) -> Result<Option<u32>>;
    /// Locks a group's AGF for this transaction. Without `wait`, gives up (`false`) if somebody else has it. Nothing
    /// happens if it is locked by this transaction already.
    fn lock_space(&mut self, ag: AgNumber, wait: bool) -> Result<bool>;
    /// Whether this transaction has a group's AGF locked.
    fn is_locked(&self, ag: AgNumber) -> bool;
    /// Gives back the lock of a group of which nothing was changed; does nothing if something was.
    fn unlock_clean(&mut self, ag: AgNumber);
    /// The highest group of which this transaction holds a header locked.
    fn highest_locked(&self) -> Option<AgNumber>;
    /// Waits until what others have freed is on disk. `false`: there is nothing to wait for.
    fn settle_busy(&mut self) -> Result<bool>;
}

/// A damaged AGF or AGFL.
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
