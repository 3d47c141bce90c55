//! The volume's shape, taken once from a superblock that passed its checks.
//!
//! Every field is in range: shifts below 64, sizes powers of two, counts that multiply without overflow.

use crate::types::{AgBlock, AgInode, AgNumber, DiskAddr, FsBlock, InodeNumber, Uuid};

/// What every reader of metadata needs to know of the volume.
#[derive(Clone, Debug)]
pub struct Geometry {
    /// v5: metadata carry checksums, owners, addresses and LSNs. Otherwise v4, for reading only.
    pub v5: bool,
    /// The UUID that v5 metadata carry.
    pub meta_uuid: Uuid,
    /// The volume's UUID, which users see.
    pub uuid: Uuid,
    /// Bytes a block, and its log2.
    pub block_size: u32,
    /// log2 of `block_size`.
    pub block_log: u8,
    /// Bytes a sector, of the volume (not of the device).
    pub sector_size: u32,
    /// Bytes an inode.
    pub inode_size: u16,
    /// log2 of inodes a block.
    pub inodes_per_block_log: u8,
    /// log2 of blocks a directory block.
    pub dir_block_log: u8,
    /// Blocks of the data device.
    pub data_blocks: u64,
    /// Blocks an allocation group (the last may have fewer).
    pub ag_blocks: u32,
    /// log2 of `ag_blocks`, rounded up.
    pub ag_block_log: u8,
    /// Allocation groups.
    pub ag_count: u32,
    /// Root directory.
    pub root: InodeNumber,
    /// Root of the metadata directory tree, where the volume has one.
    pub metadir_root: Option<InodeNumber>,
    /// Blocks by which inode chunks are aligned.
    pub inode_align: u32,
    /// Whether directory entries carry the file's type.
    pub ftype: bool,
    /// Whether inode chunks may be sparse.
    pub sparse_inodes: bool,
    /// Whether timestamps may be 64-bit nanosecond counts (the inode's own flag decides).
    pub bigtime: bool,
    /// Whether extent counts may be 64-bit (the inode's own flag decides).
    pub nrext64: bool,
    /// Whether each group has a tree of free inodes.
    pub finobt: bool,
    /// Whether each group has a reverse map.
    pub rmapbt: bool,
    /// Whether blocks may be shared.
    pub reflink: bool,
    /// Whether inodes carry parent pointers as attributes.
    pub parent_pointers: bool,
    /// v4's case-insensitive directory hash (`-n version=ci`).
    pub ascii_ci: bool,
}

impl Geometry {
    /// Bytes a directory block.
    pub const fn dir_block_size(&self) -> u32 {
        self.block_size << self.dir_block_log
    }

    /// Blocks a directory block.
    pub const fn dir_block_blocks(&self) -> u32 {
        1 << self.dir_block_log
    }

    /// Splits a block number; `None` if its group or its block lies outside the volume.
    pub fn split_block(&self, block: FsBlock) -> Option<(AgNumber, AgBlock)> {
        let ag = block.0 >> self.ag_block_log;
        let within = (block.0 & ((1 << self.ag_block_log) - 1)) as u32;
        let ag = u32::try_from(ag).ok()?;
        (ag < self.ag_count && within < self.ag_blocks_of(AgNumber(ag)))
            .then_some((AgNumber(ag), AgBlock(within)))
    }

    /// Blocks of one group: all but the last have `ag_blocks`.
    pub fn ag_blocks_of(&self, ag: AgNumber) -> u32 {
        if ag.0 + 1 == self.ag_count {
            (self.data_blocks - u64::from(ag.0) * u64::from(self.ag_blocks)) as u32
        } else {
            self.ag_blocks
        }
    }

    /// Where a block of a group lies on the device.
    pub const fn daddr_of(&self, ag: AgNumber, block: AgBlock) -> DiskAddr {
        DiskAddr((ag.0 as u64 * self.ag_blocks as u64 + block.0 as u64) << (self.block_log - 9))
    }

    /// Splits an inode number; `None` if its group or its block lies outside the volume.
    pub fn split_inode(&self, ino: InodeNumber) -> Option<(AgNumber, AgInode)> {
        let bits = self.ag_block_log + self.inodes_per_block_log;
        let ag = u32::try_from(ino.0 >> bits).ok()?;
        let within = (ino.0 & ((1 << bits) - 1)) as u32;
        let block = within >> self.inodes_per_block_log;
        (ag < self.ag_count && block < self.ag_blocks_of(AgNumber(ag)))
            .then_some((AgNumber(ag), AgInode(within)))
    }
}
