//! The geometry of inodes: sizes of chunks, sparse parts and clusters, and the maximum number of inodes.

use xfs_format::geometry::Geometry;
use xfs_format::records::INODES_PER_CHUNK;
use xfs_format::types::{AgBlock, AgInode, AgNumber};

/// The inode geometry of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeGeometry {
    /// Inodes that are made at once: a chunk, or a whole block if that has more.
    pub inodes: u32,
    /// Their number of blocks.
    pub blocks: u32,
    /// Their alignment in blocks.
    pub align: u32,
    /// Blocks of a part of a chunk (and their alignment), if chunks may be sparse.
    pub piece: Option<u32>,
    per_block_log: u8,
}

impl InodeGeometry {
    /// The inode geometry of a volume.
    pub fn new(geometry: &Geometry) -> Self {
        let per_block_log = geometry.inodes_per_block_log;
        let inodes = INODES_PER_CHUNK.max(1 << per_block_log);
        let blocks = inodes >> per_block_log;
        let piece = geometry.sparse_inode_align;
        let in_group = |blocks: u32| blocks.clamp(1, geometry.ag_blocks.max(1));
        Self {
            inodes,
            blocks,
            align: in_group(geometry.inode_align),
            piece: (geometry.sparse_inodes && piece > 0 && piece < blocks && blocks.is_multiple_of(piece))
                .then_some(piece),
            per_block_log,
        }
    }

    /// Maximum number of inodes of the volume at its present size: a percentage of its blocks, in whole chunks. `None`
    /// if there is no limit.
    pub fn most(&self, geometry: &Geometry) -> Option<u64> {
        let percent = u64::from(geometry.max_inode_percent.min(100));
        if percent == 0 {
            return None;
        }
        let blocks = u128::from(geometry.data_blocks()) * u128::from(percent) / 100;
        let blocks = u64::try_from(blocks).unwrap_or(u64::MAX);
        Some((blocks - blocks % u64::from(self.blocks)) << self.per_block_log)
    }

    /// The first inode of a block.
    pub const fn first_inode(&self, block: AgBlock) -> AgInode {
        AgInode(block.0 << self.per_block_log)
    }

    /// The block of an inode.
    pub const fn block_of(&self, inode: AgInode) -> AgBlock {
        AgBlock(inode.0 >> self.per_block_log)
    }

    /// Inodes in this many blocks.
    pub const fn inodes_in(&self, blocks: u32) -> u32 {
        blocks << self.per_block_log
    }

    /// The last block at which a chunk may begin: nothing of it may lie past the group's end, not even a hole.
    pub fn last_start(&self, geometry: &Geometry, ag: AgNumber) -> u32 {
        let blocks = geometry.ag_blocks_of(ag);
        (blocks - blocks % self.align).saturating_sub(self.blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::geometry;

    #[test]
    fn chunks_pieces_and_limits() {
        let mut shape = geometry(true, 12, 0);
        shape.inode_align = 8;
        shape.sparse_inode_align = 4;
        let inodes = InodeGeometry::new(&shape);
        assert_eq!((inodes.inodes, inodes.blocks, inodes.align, inodes.piece), (64, 8, 8, Some(4)));
        assert_eq!(inodes.most(&shape), Some((1 << 18) * 8));
        assert_eq!(inodes.first_inode(AgBlock(5)), AgInode(40));
        shape.ag_blocks = 1003;
        assert_eq!(inodes.last_start(&shape, AgNumber(0)), 1000 - 8);
    }

    #[test]
    fn damaged_numbers_are_bounded() {
        let mut shape = geometry(true, 16, 0);
        (shape.inode_align, shape.sparse_inode_align, shape.max_inode_percent) = (0, 7, 255);
        let inodes = InodeGeometry::new(&shape);
        assert_eq!((inodes.inodes, inodes.blocks, inodes.align, inodes.piece), (128, 1, 1, None));
        assert_eq!(inodes.most(&shape), Some(shape.data_blocks() * 128));
        shape.inode_align = u32::MAX;
        assert_eq!(InodeGeometry::new(&shape).align, shape.ag_blocks);
    }
}
