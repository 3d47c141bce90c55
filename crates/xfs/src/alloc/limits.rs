//! Space that is kept back, so that what must not fail has room.
//!
//! - The AGFL's minimum: what both free space trees need if every level of them splits, and again for the change that
//!   refills the AGFL afterwards.
//! - The set-aside of the volume: the most that the AGFLs of all groups may have to hold. A kernel counts eight blocks
//!   for each group, however high its trees are, and so offers some blocks that no group gives.
//! - A group's reservation: what the free inode tree and the refcount tree may grow by. A kernel reserves the same at
//!   mount, and does without if it cannot. This code keeps the same space free.
//! - The same for the rmap tree, as far as each block has one owner. It has a record for each owner of a shared block,
//!   so it may need more. Whoever adds owners or cuts extents into more pieces checks for room first, and some of it is
//!   kept for those who have checked.
//! - The reserve pool, for removals on a full volume.

use super::Purpose;
use xfs_format::ag::{Agf, MAX_LEVELS};
use xfs_format::btree::{Bnobt, Finobt, Refcountbt, Rmapbt, Tree};
use xfs_format::geometry::Geometry;
use xfs_format::records::INODES_PER_CHUNK;
use xfs_format::types::AgNumber;

/// Minimum number of blocks per group that the volume does not offer.
const LEAST_SET_ASIDE: u32 = 8;

/// Changes that have found room for the rmap tree and have not taken it yet. Each may split every level of it.
const OWNERS_AT_ONCE: u32 = 8;
/// The same for the refcount tree.
const COUNTS_AT_ONCE: u32 = 8;
/// Whoever adds owners leaves one part in this many of what is kept for the rmap tree.
const PART_LEFT: u32 = 10;

/// Blocks of the reserve pool of a volume with this many. (A kernel keeps one in 20, up to 8,192.)
pub(crate) fn reserve_pool(blocks: u64) -> u32 {
    const PART: u64 = 512;
    const MOST: u32 = 64;
    u32::try_from(blocks / PART).unwrap_or(MOST).min(MOST)
}

/// Bounds that follow from the volume's geometry.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum levels of the free space trees.
    space_levels: u32,
    /// Maximum levels of the rmap tree; 0 if there is none.
    rmap_levels: u32,
    /// Blocks that all groups keep back together.
    set_aside: u64,
    last_ag: u32,
    log_ag: u32,
    full: AgReservation,
    /// For the last group, for the one with the log, and for the last group if it has the log.
    last: AgReservation,
    with_log: AgReservation,
}

/// Maximum number of blocks of the trees with a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AgReservation {
    free_inodes: u32,
    shared: u32,
    reverse_map: u32,
}

impl Limits {
    /// The bounds of a volume.
    pub fn new(geometry: &Geometry) -> Self {
        let log_ag = u32::try_from(geometry.log.0.0 >> geometry.ag_block_log).unwrap_or(u32::MAX);
        let last_ag = geometry.ag_count().saturating_sub(1);
        let log_blocks = geometry.log.1;
        let last_blocks = geometry.ag_blocks_of(AgNumber(last_ag));
        let log_group = if log_ag == last_ag { last_blocks } else { geometry.ag_blocks };
        let space_levels = levels::<Bnobt>(geometry, (u64::from(geometry.ag_blocks) / 2).max(1));
        let rmap_levels = if geometry.rmapbt { rmap_levels(geometry) } else { 0 };
        let longest_ring = 2 * agfl_share(space_levels, space_levels) + agfl_share(rmap_levels, rmap_levels);
        Self {
            space_levels,
            rmap_levels,
            set_aside: u64::from(longest_ring.max(LEAST_SET_ASIDE)) * u64::from(geometry.ag_count()),
            last_ag,
            log_ag,
            full: AgReservation::new(geometry, geometry.ag_blocks),
            last: AgReservation::new(geometry, last_blocks),
            with_log: AgReservation::new(geometry, log_group.saturating_sub(log_blocks)),
        }
    }

    /// Blocks that count as free but that no transaction may reserve. The blocks of the free space trees and the
    /// groups' reservations come on top.
    pub const fn set_aside(&self) -> u64 {
        self.set_aside
    }

    /// Maximum levels of a free space tree in a group of this volume.
    pub const fn space_levels(&self) -> u32 {
        self.space_levels
    }

    /// How many blocks the AGFL must hold before the trees change.
    pub fn min_freelist(&self, agf: &Agf) -> u32 {
        let space = |levels| agfl_share(levels, self.space_levels);
        let map = agfl_share(agf.rmap_level.get(), self.rmap_levels);
        space(agf.bno_level.get()) + space(agf.cnt_level.get()) + map
    }

    /// Blocks of a group that are kept for its free inode, refcount and rmap trees. `free_inode_tree`: the number of
    /// blocks that the first has now.
    pub fn ag_reservation(&self, ag: AgNumber, agf: &Agf, free_inode_tree: Option<u32>) -> u32 {
        let most = self.reservation_of(ag);
        let free_inodes = free_inode_tree.unwrap_or(1);
        most.free_inodes.saturating_sub(free_inodes)
            + self.growth_of_counts(ag, agf)
            + self.kept_for_owners(ag, agf.rmap_blocks.get())
    }

    /// Blocks by which a group's refcount tree can still grow: it has at most one record per block.
    fn growth_of_counts(&self, ag: AgNumber, agf: &Agf) -> u32 {
        self.reservation_of(ag).shared.saturating_sub(agf.refcount_blocks.get().max(1))
    }

    /// Whether a group's refcount tree has room to grow, or cannot grow that far.
    pub fn has_room_for_counts(&self, ag: AgNumber, agf: &Agf) -> bool {
        let at_once = COUNTS_AT_ONCE * (agf.refcount_level.get() + 1);
        agf.freeblks.get() >= at_once.min(self.growth_of_counts(ag, agf))
    }

    /// Blocks that a group keeps for the growth of its rmap tree, which has `rmap_blocks` now. However large it is,
    /// something is kept for changes of blocks that have their owners already.
    pub fn kept_for_owners(&self, ag: AgNumber, rmap_blocks: u32) -> u32 {
        let most = self.reservation_of(ag).reverse_map;
        most.saturating_sub(rmap_blocks).max(most.min(OWNERS_AT_ONCE * self.rmap_levels))
    }

    /// Blocks that the rmap tree of a group may take in all, beyond what the AGFL has for it.
    pub fn room_for_owners(&self, ag: AgNumber, agf: &Agf, free_inode_tree: Option<u32>) -> u32 {
        let others =
            self.ag_reservation(ag, agf, free_inode_tree) - self.kept_for_owners(ag, agf.rmap_blocks.get());
        self.room(agf, others, Purpose::Metadata).available
    }

    /// Minimum of them with which blocks may get one more owner.
    pub fn least_to_share(&self, ag: AgNumber) -> u32 {
        (self.reservation_of(ag).reverse_map / PART_LEFT).max(OWNERS_AT_ONCE * self.rmap_levels)
    }

    /// Minimum of them with which extents may be cut into more pieces.
    pub fn least_to_cut(&self, ag: AgNumber) -> u32 {
        self.reservation_of(ag).reverse_map.min(OWNERS_AT_ONCE * self.rmap_levels) / 2
    }

    /// What a group can give as far as the AGF tells: blocks in its longest extent and in all.
    pub(super) fn room(&self, agf: &Agf, reserve: u32, purpose: Purpose) -> GroupRoom {
        let reserve = if purpose == Purpose::ReservedTree { 0 } else { u64::from(reserve) };
        let agfl = u64::from(self.min_freelist(agf));
        let free = u64::from(agf.freeblks.get());
        let (listed, longest) = (u64::from(agf.flcount.get()), u64::from(agf.longest.get()));
        let elsewhere = free.saturating_sub(longest);
        // What must be left comes out of the longest extent if the others do not have it.
        let owed = (agfl.saturating_sub(listed) + reserve).saturating_sub(elsewhere);
        GroupRoom {
            longest: clamp(longest.saturating_sub(owed)),
            available: clamp((free + listed).saturating_sub(reserve + agfl)),
        }
    }

    fn reservation_of(&self, ag: AgNumber) -> AgReservation {
        if ag.0 == self.log_ag {
            self.with_log
        } else if ag.0 == self.last_ag {
            self.last
        } else {
            self.full
        }
    }
}

/// What a group can give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupRoom {
    /// Blocks in one run.
    pub longest: u32,
    /// Blocks in all.
    pub available: u32,
}

impl AgReservation {
    fn new(geometry: &Geometry, blocks: u32) -> Self {
        let chunks = (u64::from(blocks) << geometry.inodes_per_block_log) / u64::from(INODES_PER_CHUNK);
        Self {
            free_inodes: if geometry.finobt { tree_blocks::<Finobt>(geometry, chunks) } else { 0 },
            shared: if geometry.reflink { tree_blocks::<Refcountbt>(geometry, blocks.into()) } else { 0 },
            // The rmap tree has a record for each owner of a shared block, so it may need more than this.
            reverse_map: if geometry.rmapbt {
                tree_blocks::<Rmapbt>(geometry, blocks.into()).max(blocks / 100)
            } else {
                0
            },
        }
    }
}

/// How many blocks the AGFL holds for a tree of `levels` levels, which can have at most `most`; 0 if there is no such
/// tree.
///
/// A change may split every level and add one (levels + 1 blocks). The change that refills the AGFL may then split all
/// but the new root again (levels - 1).
fn agfl_share(levels: u32, most: u32) -> u32 {
    if most == 0 { 0 } else { levels.saturating_add(1).min(most.max(2)) * 2 - 2 }
}

/// Maximum levels of a group's rmap tree. Without shared blocks it has at most one record per block. With them it may
/// have any number, up to a tree that fills the group.
pub(crate) fn rmap_levels(geometry: &Geometry) -> u32 {
    if !geometry.reflink {
        return levels::<Rmapbt>(geometry, geometry.ag_blocks.into());
    }
    let (_, in_inner) = least_full::<Rmapbt>(geometry);
    let mut left = u64::from(geometry.ag_blocks).saturating_sub(1);
    // Only the root may have as few as two children.
    let (mut wide, mut levels) = (2, 1);
    while wide < left && levels < MAX_LEVELS {
        left -= wide;
        wide = wide.saturating_mul(in_inner);
        levels += 1;
    }
    levels
}

/// Minimum number of records and of children in a block other than the root.
fn least_full<T: Tree>(geometry: &Geometry) -> (u64, u64) {
    let body = (geometry.block_size as usize).saturating_sub(T::header_len(geometry.v5));
    let half = |most: usize| (most as u64 / 2).max(2);
    (half(T::max_records(body)), half(T::max_children(body)))
}

/// Blocks by which an rmap tree of `blocks` blocks may grow at most when this many records are inserted one after the
/// other: each may split a leaf, and every leaf is at least half full.
pub(super) fn map_growth(geometry: &Geometry, blocks: u32, records: u64) -> u32 {
    let (_, in_inner) = least_full::<Rmapbt>(geometry);
    let (mut level, mut split) = (records, records);
    while level > 1 {
        level = level.div_ceil(in_inner);
        split += level;
    }
    clamp(split.min(u64::from(blocks) + u64::from(tree_blocks::<Rmapbt>(geometry, records))))
}

/// Blocks of the largest tree with `records` records.
fn tree_blocks<T: Tree>(geometry: &Geometry, records: u64) -> u32 {
    let (in_leaf, in_inner) = least_full::<T>(geometry);
    let mut level = records.div_ceil(in_leaf).max(1);
    let mut total = level;
    while level > 1 {
        level = level.div_ceil(in_inner);
        total += level;
    }
    clamp(total)
}

/// Levels of the highest tree with `records` records.
fn levels<T: Tree>(geometry: &Geometry, records: u64) -> u32 {
    let (in_leaf, in_inner) = least_full::<T>(geometry);
    let mut blocks = records.div_ceil(in_leaf).max(1);
    let mut levels = 1;
    while blocks > 1 && levels < MAX_LEVELS {
        blocks = blocks.div_ceil(in_inner);
        levels += 1;
    }
    levels
}

fn clamp(blocks: u64) -> u32 {
    u32::try_from(blocks).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::geometry;
    use zerocopy::FromZeros;

    fn agf(levels: u32, free: u32, longest: u32, listed: u32) -> Agf {
        let mut agf = Agf::new_zeroed();
        (agf.bno_level, agf.cnt_level) = (levels.into(), levels.into());
        (agf.freeblks, agf.longest, agf.flcount) = (free.into(), longest.into(), listed.into());
        agf
    }

    #[test]
    fn the_ring_grows_with_the_trees() {
        let limits = Limits::new(&geometry(true, 12, 0));
        assert_eq!(limits.min_freelist(&agf(1, 0, 0, 0)), 4);
        assert_eq!(limits.min_freelist(&agf(2, 0, 0, 0)), 8);
        // Half of 2^18 blocks may be single free ones; a leaf holds at least 252 records, an inner block 168.
        assert_eq!(limits.space_levels(), 3);
        assert_eq!(limits.min_freelist(&agf(3, 0, 0, 0)), 8);
        assert_eq!(limits.min_freelist(&agf(u32::MAX, 0, 0, 0)), 8);
    }

    /// As a kernel calculates it (`xfs_rmapbt_compute_maxlevels`): a root has at least two children, not half of its
    /// maximum.
    #[test]
    fn a_shared_reverse_map_is_as_high_as_one_that_fills_its_group() {
        let mut shape = geometry(true, 12, 0);
        shape.rmapbt = true;
        for (blocks, levels) in [(1, 1), (2, 1), (19_200, 4), (1 << 18, 5), (1 << 20, 5)] {
            shape.ag_blocks = blocks;
            assert_eq!(rmap_levels(&shape), levels, "{blocks} blocks");
        }
    }

    #[test]
    fn reserves_follow_the_size_of_the_group() {
        let shape = geometry(true, 12, 0);
        let limits = Limits::new(&shape);
        // 2^18 blocks of 8 inodes: 32,768 chunks, 126 in a leaf; a refcount record for each block, 168 in a leaf.
        assert_eq!(limits.reservation_of(AgNumber(1)).free_inodes, 261 + 2 + 1);
        assert_eq!(limits.reservation_of(AgNumber(1)).shared, 1561 + 7 + 1);
        assert!(limits.reservation_of(AgNumber(0)).shared < 1569, "the group that holds the log has fewer");
        let mut used = agf(1, 0, 0, 0);
        used.refcount_blocks = 1.into();
        assert_eq!(limits.ag_reservation(AgNumber(1), &used, Some(2)), 262 + 1568);
        assert_eq!(limits.growth_of_counts(AgNumber(1), &used), 1568);
        let plain = Limits::new(&geometry(false, 12, 0));
        assert_eq!(plain.ag_reservation(AgNumber(1), &used, None), 0);
    }

    #[test]
    fn room_leaves_what_is_owed() {
        let limits = Limits::new(&geometry(true, 12, 0));
        let room = |agf, reserve| limits.room(&agf, reserve, Purpose::Data);
        assert_eq!(room(agf(1, 100, 60, 4), 0), GroupRoom { longest: 60, available: 100 });
        // An empty AGFL and the reservation are filled from other extents first, then from the longest.
        assert_eq!(room(agf(1, 100, 60, 0), 30), GroupRoom { longest: 60, available: 66 });
        assert_eq!(room(agf(1, 100, 60, 0), 50), GroupRoom { longest: 46, available: 46 });
        assert_eq!(room(agf(1, 3, 3, 0), 0), GroupRoom { longest: 0, available: 0 });
        assert_eq!(limits.room(&agf(1, 100, 60, 4), 90, Purpose::ReservedTree).longest, 60);
    }
}
