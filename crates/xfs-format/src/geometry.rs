//! The volume's geometry, taken once from a superblock that passed its checks.
//!
//! Every field is in range: shifts below 64, sizes powers of two, counts that multiply without overflow. They never
//! change, except one: an open volume may grow.

use crate::features::{Incompat, RoCompat, VersionFlags};
use crate::superblock::Superblock;
use crate::types::{AgBlock, AgInode, AgNumber, DiskAddr, FsBlock, InodeNumber, Uuid};
use std::sync::atomic::{AtomicU64, Ordering};

/// How many blocks a volume has. It is the only part of the geometry that changes.
#[derive(Debug)]
pub struct DataBlocks(AtomicU64);

impl DataBlocks {
    /// A count of blocks.
    pub const fn new(blocks: u64) -> Self {
        Self(AtomicU64::new(blocks))
    }
}

impl Clone for DataBlocks {
    /// The present number. The copy does not follow later growth.
    fn clone(&self) -> Self {
        Self::new(self.0.load(Ordering::Acquire))
    }
}

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
    /// Blocks of the data device; see [`data_blocks`](Self::data_blocks).
    pub size: DataBlocks,
    /// Blocks an allocation group (the last may have fewer).
    pub ag_blocks: u32,
    /// log2 of `ag_blocks`, rounded up.
    pub ag_block_log: u8,
    /// Root directory.
    pub root: InodeNumber,
    /// Root of the metadata directory tree, where the volume has one.
    pub metadir_root: Option<InodeNumber>,
    /// Blocks by which inode chunks are aligned.
    pub inode_align: u32,
    /// Blocks by which pieces of sparse inode chunks are aligned; 0 where chunks are never sparse.
    pub sparse_inode_align: u32,
    /// Percent of the volume that inodes may take; 0 for no limit.
    pub max_inode_percent: u8,
    /// The internal log's first block, and its length in blocks.
    pub log: (FsBlock, u32),
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
    /// Whether the AGI counts the blocks of the inode trees.
    pub inobt_counts: bool,
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
    /// The shape that a superblock describes; its ranges were checked when it was parsed.
    pub fn from_superblock(sb: &Superblock) -> Self {
        let raw = sb.raw();
        let (incompat, ro_compat) = (sb.incompat(), sb.ro_compat());
        Self {
            v5: sb.is_v5(),
            meta_uuid: sb.meta_uuid(),
            uuid: sb.uuid(),
            block_size: raw.blocksize.get(),
            block_log: raw.blocklog,
            sector_size: raw.sectsize.get().into(),
            inode_size: raw.inodesize.get(),
            inodes_per_block_log: raw.inopblog,
            dir_block_log: raw.dirblklog,
            size: DataBlocks::new(raw.dblocks.get()),
            ag_blocks: raw.agblocks.get(),
            ag_block_log: raw.agblklog,
            root: sb.root(),
            metadir_root: incompat.contains(Incompat::METADIR).then_some(InodeNumber(raw.metadirino.get())),
            inode_align: if sb.version_flags().contains(VersionFlags::ALIGN) {
                raw.inoalignmt.get()
            } else {
                1
            },
            sparse_inode_align: if incompat.contains(Incompat::SPINODES) { raw.spino_align.get() } else { 0 },
            max_inode_percent: raw.imax_pct,
            log: (FsBlock(raw.logstart.get()), raw.logblocks.get()),
            ftype: sb.has_ftype(),
            sparse_inodes: incompat.contains(Incompat::SPINODES),
            bigtime: incompat.contains(Incompat::BIGTIME),
            nrext64: incompat.contains(Incompat::NREXT64),
            finobt: ro_compat.contains(RoCompat::FINOBT),
            inobt_counts: ro_compat.contains(RoCompat::INOBTCNT),
            rmapbt: ro_compat.contains(RoCompat::RMAPBT),
            reflink: ro_compat.contains(RoCompat::REFLINK),
            parent_pointers: incompat.contains(Incompat::PARENT),
            ascii_ci: sb.version_flags().contains(VersionFlags::BORG),
        }
    }

    /// Blocks of the data device.
    #[inline]
    pub fn data_blocks(&self) -> u64 {
        self.size.0.load(Ordering::Acquire)
    }

    /// Sets the number of blocks. It never shrinks, so what was inside stays inside.
    pub fn grow(&self, blocks: u64) {
        self.size.0.fetch_max(blocks, Ordering::AcqRel);
    }

    /// Allocation groups.
    pub fn ag_count(&self) -> u32 {
        // The superblock's checks keep it within 32 bits.
        self.data_blocks().div_ceil(self.ag_blocks.max(1).into()) as u32
    }

    /// The volume's size in bytes.
    pub fn bytes(&self) -> u64 {
        self.data_blocks() << self.block_log
    }

    /// Where a run of blocks lies on the device; `None` unless all of it lies within one group of the volume.
    pub fn extent_daddr(&self, start: FsBlock, blocks: u64) -> Option<DiskAddr> {
        let (ag, block) = self.split_block(start)?;
        let end = u64::from(block.0).checked_add(blocks)?;
        (blocks > 0 && end <= u64::from(self.ag_blocks_of(ag))).then(|| self.daddr_of(ag, block))
    }

    /// The volume's number of a block of a group.
    pub const fn join_block(&self, ag: AgNumber, block: AgBlock) -> FsBlock {
        FsBlock((ag.0 as u64) << self.ag_block_log | block.0 as u64)
    }

    /// The volume's number of an inode of a group.
    pub const fn join_inode(&self, ag: AgNumber, inode: AgInode) -> InodeNumber {
        InodeNumber((ag.0 as u64) << (self.ag_block_log + self.inodes_per_block_log) | inode.0 as u64)
    }

    /// Inodes per cluster: the part of an inode chunk that is read and written at once. On v5 the rule is the
    /// kernel's, so that log items of the same inodes name the same buffers: 8 KiB for each 256 bytes of an inode
    /// where chunks are aligned to as much, and whole blocks.
    pub fn inodes_per_cluster(&self) -> u32 {
        const BASE_BYTES: u32 = 8192;
        const BASE_INODE: u32 = 256;
        if !self.v5 {
            return BASE_BYTES / BASE_INODE;
        }
        let scaled = BASE_BYTES * (u32::from(self.inode_size) / BASE_INODE).max(1);
        let aligned = self.inode_align >= scaled >> self.block_log;
        let bytes = if aligned { scaled } else { BASE_BYTES };
        bytes.max(self.block_size) / u32::from(self.inode_size)
    }

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
        (within < self.ag_blocks_of(AgNumber(ag))).then_some((AgNumber(ag), AgBlock(within)))
    }

    /// Blocks of one group: all but the last have `ag_blocks`. A group that does not exist has
    /// none.
    #[inline]
    pub fn ag_blocks_of(&self, ag: AgNumber) -> u32 {
        let from_here = self.data_blocks().saturating_sub(u64::from(ag.0) * u64::from(self.ag_blocks));
        // No more than `ag_blocks`.
        from_here.min(self.ag_blocks.into()) as u32
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
        (block < self.ag_blocks_of(AgNumber(ag))).then_some((AgNumber(ag), AgInode(within)))
    }
}
