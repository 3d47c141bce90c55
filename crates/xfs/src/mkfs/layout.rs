//! Where everything of a new volume lies.
//!
//! ```text
//! block 0         headers          +1       +2       +3      …            in this order, where there is one
//! +--------------+--------+--------+--------+--------+--------+---------+-------+------+--------------+------
//! | SB AGF AGI   | bnobt  | cntbt  | inobt  | finobt | rmapbt | refcnt  |  log  | AGFL | root inodes  | free
//! | AGFL         | root   | root   | root   | root   | root   | root    | (one  |blocks| (group 0)    |
//! |  (a sector   |        |        |        |        |        |         | group)|      |  aligned     |
//! |   each)      |        |        |        |        |        |         |       |      |              |
//! +--------------+--------+--------+--------+--------+--------+---------+-------+------+--------------+------
//! ```
//! Invariant: a [`VolumeLayout`] is sound. Each part lies within its group, parts don't overlap, and the superblock and
//! the counts in it agree with them.

use super::options::Features;
use xfs_format::geometry::Geometry;
use xfs_format::superblock::Superblock;
use xfs_format::timestamp::Timestamp;
use xfs_format::types::{AgBlock, AgNumber};

/// Superblock, AGF, AGI, AGFL: each group begins with these sectors.
const HEADER_SECTORS: u32 = 4;
/// Inodes in use in the first chunk: the root directory, and bitmap and summary of a realtime section (there is none,
/// but each volume has these two).
pub(super) const INODES_USED: u64 = 3;

/// A run of blocks of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First block.
    pub start: AgBlock,
    /// How many.
    pub blocks: u32,
}

impl Extent {
    /// The block after it.
    pub const fn end(self) -> u32 {
        self.start.0 + self.blocks
    }
}

/// The trees of a group in the order of their roots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TreeRoot {
    Bnobt,
    Cntbt,
    Inobt,
    Finobt,
    Rmapbt,
    Refcountbt,
}

impl TreeRoot {
    const ALL: [Self; 6] =
        [Self::Bnobt, Self::Cntbt, Self::Inobt, Self::Finobt, Self::Rmapbt, Self::Refcountbt];

    fn exists(self, features: &Features) -> bool {
        match self {
            Self::Bnobt | Self::Cntbt | Self::Inobt => true,
            Self::Finobt => features.finobt,
            Self::Rmapbt => features.rmapbt,
            Self::Refcountbt => features.reflink,
        }
    }

    /// The trees of a volume with these features.
    pub(super) fn of(features: &Features) -> impl Iterator<Item = Self> + '_ {
        Self::ALL.into_iter().filter(|root| root.exists(features))
    }
}

/// The layout of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLayout {
    /// The group.
    pub ag: AgNumber,
    /// Its number of blocks.
    pub blocks: u32,
    /// The log, in one group.
    pub log: Option<Extent>,
    /// Blocks in the AGFL.
    pub agfl: Extent,
    /// The first inodes, in the first group.
    pub inodes: Option<Extent>,
    /// Free extents by block.
    pub free: Vec<Extent>,
}

/// The layout of a volume. Only [`plan`](super::plan) makes one.
#[derive(Clone, Debug)]
pub struct VolumeLayout {
    pub(super) superblock: Superblock,
    pub(super) geometry: Geometry,
    pub(super) features: Features,
    pub(super) time: Timestamp,
    /// Blocks in the AGFL of each group.
    pub(super) agfl_blocks: u32,
}

impl VolumeLayout {
    /// The superblock of the first group, complete. Those of the others are the same.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The volume's shape.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The volume's size in bytes.
    pub fn bytes(&self) -> u64 {
        self.geometry.bytes()
    }

    /// Blocks of superblock, AGF, AGI and AGFL.
    pub(super) fn header_blocks(&self) -> u32 {
        header_blocks(self.geometry.sector_size, self.geometry.block_log)
    }

    /// The block of a tree's root in any group. `None` if the volume has no such tree.
    pub(super) fn root(&self, root: TreeRoot) -> Option<AgBlock> {
        let index = TreeRoot::of(&self.features).position(|other| other == root)?;
        // Six trees at most.
        Some(AgBlock(self.header_blocks() + index as u32))
    }

    /// Blocks of headers and roots at the start of each group.
    pub(super) fn fixed_blocks(&self) -> u32 {
        self.header_blocks() + TreeRoot::of(&self.features).count() as u32
    }

    /// The layout of one group.
    pub fn group(&self, ag: AgNumber) -> GroupLayout {
        let blocks = self.geometry.ag_blocks_of(ag);
        let mut next = self.fixed_blocks();
        let mut take = |blocks: u32| {
            let start = AgBlock(next);
            next += blocks;
            Extent { start, blocks }
        };
        let (log_start, log_blocks) = self.geometry.log;
        let log_ag = log_start.0 >> self.geometry.ag_block_log;
        let log = (log_ag == u64::from(ag.0)).then(|| take(log_blocks));
        let agfl = take(self.agfl_blocks);
        let inodes = (ag.0 == 0).then(|| self.root_chunk(AgBlock(agfl.end())));
        let mut free = Vec::with_capacity(2);
        let mut push = |start: u32, end: u32| {
            if start < end {
                free.push(Extent { start: AgBlock(start), blocks: end - start });
            }
        };
        if let Some(inodes) = inodes {
            push(agfl.end(), inodes.start.0);
        }
        push(inodes.map_or(agfl.end(), Extent::end), blocks);
        GroupLayout { ag, blocks, log, agfl, inodes, free }
    }

    /// The first inodes, aligned, at or after `first`.
    fn root_chunk(&self, first: AgBlock) -> Extent {
        let start = AgBlock(first.0.next_multiple_of(self.geometry.inode_align.max(1)));
        Extent { start, blocks: chunk_blocks(self.geometry.inodes_per_block_log) }
    }
}

/// Blocks of superblock, AGF, AGI and AGFL, one sector each.
pub(super) fn header_blocks(sector_size: u32, block_log: u8) -> u32 {
    (HEADER_SECTORS * sector_size).div_ceil(1 << block_log)
}

/// Blocks in which inodes are allocated: a chunk of 64, or as many as fit into a block.
pub(super) const fn chunk_blocks(inodes_per_block_log: u8) -> u32 {
    let blocks = 64 >> inodes_per_block_log;
    if blocks == 0 { 1 } else { blocks }
}
