//! Space that nobody may have, so that what must not fail has room.
//!
//! - The ring's minimum: what both trees of free space need if every level of them splits, and again for the change
//!   that refills the ring afterwards.
//! - The set-aside of the volume: the most that the rings of all groups may have to hold. A kernel counts eight blocks for
//!   each group, however high its trees are, and so offers some that no group gives.
//! - A group's reserve: what the tree of free inodes and the tree of shared blocks may grow by. A kernel reserves as
//!   much when it mounts the volume, and does without if it cannot; so does this code keep it free.
//! - The same for the reverse map, as far as each block has one owner. Of shared blocks it has a record for each, and so may
//!   need more than that: whoever adds owners, or cuts what they have into more pieces, asks before whether there is room,
//!   and some of it is kept for those who asked.

use super::Purpose;
use xfs_format::ag::{Agf, MAX_LEVELS};
use xfs_format::btree::{Bnobt, Finobt, Refcountbt, Rmapbt, Tree};
use xfs_format::geometry::Geometry;
use xfs_format::records::INODES_PER_CHUNK;
use xfs_format::types::AgNumber;

/// The fewest blocks of each group that are left out of what the volume offers.
const LEAST_SET_ASIDE: u32 = 8;

/// Changes that find room for the reverse map and have not taken it yet: each may split every level of it.
const OWNERS_AT_ONCE: u32 = 8;
/// The same for the tree of reference counts.
const COUNTS_AT_ONCE: u32 = 8;
/// Of what is kept for the reverse map, whoever adds owners leaves one part in so many.
const PART_LEFT: u32 = 10;

/// Bounds that follow from the volume's shape.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Most levels of the trees of free space.
    space_levels: u32,
    /// Most levels of the reverse map; 0 without one.
    rmap_levels: u32,
    /// Blocks that all groups keep back together.
    set_aside: u64,
    ag_blocks: u32,
    last_ag: u32,
    log_ag: u32,
    full: Reserve,
    /// Of the last group, of the one that holds the log, and of the last if it holds the log.
    last: Reserve,
    with_log: Reserve,
}

/// The most blocks that the trees with a reserve can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reserve {
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
        let longest_ring = 2 * ring_share(space_levels, space_levels) + ring_share(rmap_levels, rmap_levels);
        Self {
            space_levels,
            rmap_levels,
            set_aside: u64::from(longest_ring.max(LEAST_SET_ASIDE)) * u64::from(geometry.ag_count()),
            ag_blocks: geometry.ag_blocks,
            last_ag,
            log_ag,
            full: Reserve::new(geometry, geometry.ag_blocks),
            last: Reserve::new(geometry, last_blocks),
            with_log: Reserve::new(geometry, log_group.saturating_sub(log_blocks)),
        }
    }

    /// Blocks that count as free and that no transaction may reserve, besides the blocks of the trees of free space
    /// and the groups' reserves.
    pub const fn set_aside(&self) -> u64 {
        self.set_aside
    }

    /// Most levels that a tree of free space can have in a group of this volume.
    pub const fn space_levels(&self) -> u32 {
        self.space_levels
    }

    /// How many blocks the ring must hold before the trees change.
    pub fn ring_minimum(&self, agf: &Agf) -> u32 {
        let space = |levels| ring_share(levels, self.space_levels);
        let map = ring_share(agf.rmap_level.get(), self.rmap_levels);
        space(agf.bno_level.get()) + space(agf.cnt_level.get()) + map
    }

    /// Blocks of a group that are kept for its trees of free inodes and shared blocks, and for its reverse map.
    /// `free_inode_tree`: the blocks that the first of them has.
    pub fn group_reserve(&self, ag: AgNumber, agf: &Agf, free_inode_tree: Option<u32>) -> u32 {
        let most = self.reserve_of(ag);
        let free_inodes = free_inode_tree.unwrap_or(1);
        most.free_inodes.saturating_sub(free_inodes)
            + self.growth_of_counts(ag, agf)
            + self.kept_for_owners(ag, agf.rmap_blocks.get())
    }

    /// Blocks by which a group's tree of reference counts can grow at most: it has one record a block at the most.
    fn growth_of_counts(&self, ag: AgNumber, agf: &Agf) -> u32 {
        self.reserve_of(ag).shared.saturating_sub(agf.refcount_blocks.get().max(1))
    }

    /// Whether there are blocks for a group's tree of reference counts to grow, or it cannot grow so far.
    pub fn has_room_for_counts(&self, ag: AgNumber, agf: &Agf) -> bool {
        let at_once = COUNTS_AT_ONCE * (agf.refcount_level.get() + 1);
        agf.freeblks.get() >= at_once.min(self.growth_of_counts(ag, agf))
    }

    /// Blocks that a group keeps for its reverse map to grow, which has so many. However large it is, something is kept for
    /// changes of blocks that have their owners already.
    pub fn kept_for_owners(&self, ag: AgNumber, rmap_blocks: u32) -> u32 {
        let most = self.reserve_of(ag).reverse_map;
        most.saturating_sub(rmap_blocks).max(most.min(OWNERS_AT_ONCE * self.rmap_levels))
    }

    /// Blocks that the reverse map of a group may take in all, beyond what the ring has for it.
    pub fn room_for_owners(&self, ag: AgNumber, agf: &Agf, free_inode_tree: Option<u32>) -> u32 {
        let others =
            self.group_reserve(ag, agf, free_inode_tree) - self.kept_for_owners(ag, agf.rmap_blocks.get());
        self.room(agf, others, Purpose::Metadata).available
    }

    /// The fewest of them with which blocks may get one owner more.
    pub fn least_to_share(&self, ag: AgNumber) -> u32 {
        (self.reserve_of(ag).reverse_map / PART_LEFT).max(OWNERS_AT_ONCE * self.rmap_levels)
    }

    /// The fewest of them with which what owners have may be cut into more pieces.
    pub fn least_to_cut(&self, ag: AgNumber) -> u32 {
        self.reserve_of(ag).reverse_map.min(OWNERS_AT_ONCE * self.rmap_levels) / 2
    }

    /// The most that [`group_reserve`](Self::group_reserve) of all groups can be together.
    pub fn all_reserves(&self) -> u64 {
        let groups = u64::from(self.last_ag) + 1;
        (0..self.last_ag.saturating_add(1))
            .rev()
            .take(2)
            .chain([self.log_ag])
            .map(|ag| u64::from(self.reserve_of(AgNumber(ag)).sum()))
            .max()
            .unwrap_or(0)
            .saturating_mul(groups)
    }

    /// The longest run that a group can ever hold free.
    pub fn longest_run(&self) -> u32 {
        // The headers, a root of each tree, and a ring of two trees of one level.
        const LEAST_METADATA: u32 = 4 + 4 + 4;
        self.ag_blocks.saturating_sub(LEAST_METADATA).max(1)
    }

    /// Whether a request can be met, as far as the AGF tells: the blocks in its longest extent and in all.
    pub(super) fn room(&self, agf: &Agf, reserve: u32, purpose: Purpose) -> Room {
        let reserve = if purpose == Purpose::ReservedTree { 0 } else { u64::from(reserve) };
        let ring = u64::from(self.ring_minimum(agf));
        let free = u64::from(agf.freeblks.get());
        let (listed, longest) = (u64::from(agf.flcount.get()), u64::from(agf.longest.get()));
        let elsewhere = free.saturating_sub(longest);
        // What must be left over comes out of the longest extent where the others do not have it.
        let owed = (ring.saturating_sub(listed) + reserve).saturating_sub(elsewhere);
        Room {
            longest: clamp(longest.saturating_sub(owed)),
            available: clamp((free + listed).saturating_sub(reserve + ring)),
        }
    }

    fn reserve_of(&self, ag: AgNumber) -> Reserve {
        if ag.0 == self.log_ag {
            self.with_log
        } else if ag.0 == self.last_ag {
            self.last
        } else {
            self.full
        }
    }
}

/// What a group has to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Blocks in one run.
    pub longest: u32,
    /// Blocks in all.
    pub available: u32,
}

impl Reserve {
    fn new(geometry: &Geometry, blocks: u32) -> Self {
        let chunks = (u64::from(blocks) << geometry.inodes_per_block_log) / u64::from(INODES_PER_CHUNK);
        Self {
            free_inodes: if geometry.finobt { tree_blocks::<Finobt>(geometry, chunks) } else { 0 },
            shared: if geometry.reflink { tree_blocks::<Refcountbt>(geometry, blocks.into()) } else { 0 },
            // A block that many files share is in the map for each of them: then the map may want more.
            reverse_map: if geometry.rmapbt {
                tree_blocks::<Rmapbt>(geometry, blocks.into()).max(blocks / 100)
            } else {
                0
            },
        }
    }

    const fn sum(self) -> u32 {
        self.free_inodes.saturating_add(self.shared).saturating_add(self.reverse_map)
    }
}

/// How many blocks the ring holds for a tree of so many levels, which can have so many at most; 0: there is no such tree.
///
/// A change may split every level and add one (levels + 1 blocks), and the change that refills the ring may then
/// split all but the new root again (levels - 1).
fn ring_share(levels: u32, most: u32) -> u32 {
    if most == 0 { 0 } else { levels.saturating_add(1).min(most.max(2)) * 2 - 2 }
}

/// Levels of the highest reverse map that a group can have. Without shared blocks it has a record for each block. With
/// them it may have any number: it is as high as a tree that fills the group.
pub(crate) fn rmap_levels(geometry: &Geometry) -> u32 {
    if !geometry.reflink {
        return levels::<Rmapbt>(geometry, geometry.ag_blocks.into());
    }
    let (_, in_inner) = least_full::<Rmapbt>(geometry);
    let mut left = u64::from(geometry.ag_blocks).saturating_sub(1);
    // Of all blocks, the root alone may have as few as two below it.
    let (mut wide, mut levels) = (2, 1);
    while wide < left && levels < MAX_LEVELS {
        left -= wide;
        wide = wide.saturating_mul(in_inner);
        levels += 1;
    }
    levels
}

/// The fewest records and children that a block of the tree other than its root has.
fn least_full<T: Tree>(geometry: &Geometry) -> (u64, u64) {
    let body = (geometry.block_size as usize).saturating_sub(T::header_len(geometry.v5));
    let half = |most: usize| (most as u64 / 2).max(2);
    (half(T::max_records(body)), half(T::max_children(body)))
}

/// Blocks by which a reverse map that has `blocks` may grow at most when so many records come into it, one after the other:
/// each may split a leaf, and all leaves are half full at the least.
pub(super) fn map_growth(geometry: &Geometry, blocks: u32, records: u64) -> u32 {
    let (_, in_inner) = least_full::<Rmapbt>(geometry);
    let (mut level, mut split) = (records, records);
    while level > 1 {
        level = level.div_ceil(in_inner);
        split += level;
    }
    clamp(split.min(u64::from(blocks) + u64::from(tree_blocks::<Rmapbt>(geometry, records))))
}

/// Blocks of the largest tree that `records` can make.
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

/// Levels of the highest tree that `records` can make.
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
        assert_eq!(limits.ring_minimum(&agf(1, 0, 0, 0)), 4);
        assert_eq!(limits.ring_minimum(&agf(2, 0, 0, 0)), 8);
        // Half of 2^18 blocks may be single free ones; a leaf holds at least 252, an inner block 168.
        assert_eq!(limits.space_levels(), 3);
        assert_eq!(limits.ring_minimum(&agf(3, 0, 0, 0)), 8);
        assert_eq!(limits.ring_minimum(&agf(u32::MAX, 0, 0, 0)), 8);
    }

    /// What a kernel calculates (`xfs_rmapbt_compute_maxlevels`): a root has two children at the least, not half of what
    /// it can have.
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
        // 2^18 blocks of 8 inodes: 32,768 chunks, 126 in a leaf; a record of shared blocks for each, 168 in a leaf.
        assert_eq!(limits.reserve_of(AgNumber(1)).free_inodes, 261 + 2 + 1);
        assert_eq!(limits.reserve_of(AgNumber(1)).shared, 1561 + 7 + 1);
        assert!(limits.reserve_of(AgNumber(0)).shared < 1569, "the group that holds the log has fewer");
        let mut used = agf(1, 0, 0, 0);
        used.refcount_blocks = 1.into();
        assert_eq!(limits.group_reserve(AgNumber(1), &used, Some(2)), 262 + 1568);
        assert_eq!(limits.growth_of_counts(AgNumber(1), &used), 1568);
        let plain = Limits::new(&geometry(false, 12, 0));
        assert_eq!((plain.group_reserve(AgNumber(1), &used, None), plain.all_reserves()), (0, 0));
    }

    #[test]
    fn room_leaves_what_is_owed() {
        let limits = Limits::new(&geometry(true, 12, 0));
        let room = |agf, reserve| limits.room(&agf, reserve, Purpose::Data);
        assert_eq!(room(agf(1, 100, 60, 4), 0), Room { longest: 60, available: 100 });
        // An empty ring and the reserve are filled from other extents first, then from the longest.
        assert_eq!(room(agf(1, 100, 60, 0), 30), Room { longest: 60, available: 66 });
        assert_eq!(room(agf(1, 100, 60, 0), 50), Room { longest: 46, available: 46 });
        assert_eq!(room(agf(1, 3, 3, 0), 0), Room { longest: 0, available: 0 });
        assert_eq!(limits.room(&agf(1, 100, 60, 4), 90, Purpose::ReservedTree).longest, 60);
    }
}
