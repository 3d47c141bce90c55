//! Maximum levels of the trees of a volume, computed from its geometry.
//!
//! A tree is deepest when its blocks are as empty as the tree allows: half full. Log reservations and the blocks that a
//! group keeps for its trees follow from that.

use xfs_format::btree::{Bnobt, Inobt, Refcountbt, Rmapbt, Tree};
use xfs_format::features::{Incompat, RoCompat};
use xfs_format::superblock::Superblock;

/// Bytes of the header of a block of a block map tree.
const LONG_HEADER: u32 = 72;
/// Bytes of a record of a block map, and of key and pointer of an inner block.
const MAP_ENTRY: u32 = 16;
/// What log reservations assume for a volume that has both an rmap tree and shared blocks and is older than parent
/// pointers.
const RMAP_WITH_REFLINK: u32 = 9;

/// Depths of the trees of a group and of a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Levels {
    pub alloc: u32,
    pub inode: u32,
    pub refcount: u32,
    /// 0 without an rmap tree.
    pub rmap: u32,
    pub data_map: u32,
    pub attr_map: u32,
}

/// What the depths depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct DepthInputs {
    pub block_size: u32,
    pub inode_size: u32,
    pub ag_blocks: u32,
    pub reflink: bool,
    pub rmapbt: bool,
    pub nrext64: bool,
    pub parent_pointers: bool,
}

impl DepthInputs {
    /// For a volume of version 5.
    pub(super) fn of(superblock: &Superblock) -> Self {
        let raw = superblock.raw();
        let (ro, incompat) = (superblock.ro_compat(), superblock.incompat());
        Self {
            block_size: raw.blocksize.get(),
            inode_size: raw.inodesize.get().into(),
            ag_blocks: raw.agblocks.get(),
            reflink: ro.contains(RoCompat::REFLINK),
            rmapbt: ro.contains(RoCompat::RMAPBT),
            nrext64: incompat.contains(Incompat::NREXT64),
            parent_pointers: incompat.contains(Incompat::PARENT),
        }
    }
}

impl Levels {
    pub(super) fn of(shape: &DepthInputs) -> Self {
        let group = u64::from(shape.ag_blocks);
        let block = shape.block_size;
        // Inode numbers of a group are counted in powers of two.
        let inodes = group.next_power_of_two() * u64::from(block / shape.inode_size);
        let (data_extents, attr_extents) =
            if shape.nrext64 { ((1 << 48) - 1, u32::MAX.into()) } else { ((1 << 31) - 1, (1 << 15) - 1) };
        Self {
            // At worst every other block is free.
            alloc: depth::<Bnobt>(group.div_ceil(2), block),
            inode: depth::<Inobt>(inodes / 64, block),
            refcount: depth::<Refcountbt>(group, block),
            rmap: match (shape.rmapbt, shape.reflink) {
                (false, _) => 0,
                (true, true) if shape.parent_pointers => depth_in::<Rmapbt>(group, block),
                (true, true) => RMAP_WITH_REFLINK,
                (true, false) => depth::<Rmapbt>(group, block),
            },
            data_map: map_depth(data_extents, block, 3),
            attr_map: map_depth(attr_extents, block, 2),
        }
    }
}

/// Levels of a group's tree with `records` records.
fn depth<T: Tree>(records: u64, block_size: u32) -> u32 {
    let body = block_size as usize - T::header_len(true);
    let (leaf, inner) = (T::max_records(body) as u64 / 2, T::max_children(body) as u64 / 2);
    let (mut blocks, mut levels) = (records.div_ceil(leaf), 1);
    while blocks > 1 {
        blocks = blocks.div_ceil(inner);
        levels += 1;
    }
    levels
}

/// Levels of a group's tree with up to `blocks` blocks. If files share blocks, there is no other bound for the records
/// of an rmap tree.
fn depth_in<T: Tree>(blocks: u64, block_size: u32) -> u32 {
    let inner = T::max_children(block_size as usize - T::header_len(true)) as u64 / 2;
    let (mut wide, mut left, mut levels) = (2, blocks - 1, 1);
    while wide < left {
        left -= wide;
        wide *= inner;
        levels += 1;
    }
    levels
}

/// Levels of a block map with `extents` extents whose root, in an inode, has room for `root` pointers.
fn map_depth(extents: u64, block_size: u32, root: u64) -> u32 {
    let least = u64::from(map_entries(block_size) / 2);
    let (mut blocks, mut levels) = (extents.div_ceil(least), 1);
    while blocks > 1 {
        blocks = if blocks <= root { 1 } else { blocks.div_ceil(least) };
        levels += 1;
    }
    levels
}

/// Maximum entries of a block map's block.
pub(super) fn map_entries(block_size: u32) -> u32 {
    (block_size - LONG_HEADER) / MAP_ENTRY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_grow_with_the_volume_and_shrink_with_its_blocks() {
        let levels = |block_size, ag_blocks| {
            let (reflink, rmapbt, nrext64, parent_pointers) = (true, false, false, false);
            Levels::of(&DepthInputs {
                block_size,
                inode_size: 512,
                ag_blocks,
                reflink,
                rmapbt,
                nrext64,
                parent_pointers,
            })
        };
        let small = levels(4096, 19200);
        assert_eq!((small.alloc, small.inode, small.refcount, small.rmap), (2, 2, 2, 0));
        assert_eq!((small.data_map, small.attr_map), (5, 3));
        let large = levels(4096, 268_435_455);
        assert_eq!((large.alloc, large.inode, large.refcount), (4, 4, 4));
        assert_eq!(levels(65536, 1200).alloc, 1);
        assert_eq!(levels(1024, 1_073_741_823).alloc, 6);
    }
}
