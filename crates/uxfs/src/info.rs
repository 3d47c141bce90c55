//! What a volume says of itself: shape, features, free space.

/// Shape, features and free space of a volume, much as `xfs_info` and `df` show them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeInfo {
    /// Version of the on-disk format: 5 has checksums, 4 has none.
    pub version: u16,
    /// UUID, as text.
    pub uuid: String,
    /// Label: bytes, at most 12.
    pub label: Vec<u8>,
    /// Bytes a block.
    pub block_size: u32,
    /// Bytes a sector.
    pub sector_size: u32,
    /// Bytes an inode.
    pub inode_size: u16,
    /// Bytes a directory block.
    pub dir_block_size: u32,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Blocks for files and metadata: all but the log's.
    pub available_blocks: u64,
    /// Blocks of those that are free.
    pub free_blocks: u64,
    /// Inodes that are allocated, in use or not.
    pub inodes: u64,
    /// Inodes among those that are free.
    pub free_inodes: u64,
    /// Allocation groups.
    pub ag_count: u32,
    /// Blocks an allocation group (the last may have fewer).
    pub ag_blocks: u32,
    /// Blocks of the log.
    pub log_blocks: u32,
    /// Whether nothing in the log waits to be replayed.
    pub log_clean: bool,
    /// Inode number of the root directory.
    pub root_ino: u64,
    /// Names of the features that it has, as `mkfs.xfs` calls them.
    pub features: Vec<String>,
    /// Features for whose sake the volume can only be read; empty: it can be written.
    pub read_only_because: Vec<String>,
}
