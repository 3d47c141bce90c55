//! What is wanted of a new volume.

use super::groups::Groups;
use xfs_format::timestamp::Timestamp;
use xfs_format::types::Uuid;

/// Features that may be on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Features {
    /// A tree of chunks with free inodes in each group.
    pub finobt: bool,
    /// The AGI counts the blocks of the inode trees. Needs `finobt`.
    pub inobt_counts: bool,
    /// Inode chunks may be sparse.
    pub sparse_inodes: bool,
    /// Files may share blocks.
    pub reflink: bool,
    /// Timestamps reach beyond 2038.
    pub bigtime: bool,
    /// Extent counts may be 64-bit.
    pub nrext64: bool,
    /// A reverse map in each group.
    pub rmapbt: bool,
    /// Inodes know their names.
    pub parent_pointers: bool,
}

impl Default for Features {
    /// What xfsprogs 6.1 has on: all but `nrext64`, `rmapbt` and `parent_pointers`.
    fn default() -> Self {
        Self {
            finobt: true,
            inobt_counts: true,
            sparse_inodes: true,
            reflink: true,
            bigtime: true,
            nrext64: false,
            rmapbt: false,
            parent_pointers: false,
        }
    }
}

/// What is wanted. UUID and time are part of it, so that the same options give the same volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of the volume; `None`: as many as the device has.
    pub size: Option<u64>,
    /// Bytes a block: a power of two from 1024 to 65536.
    pub block_size: u32,
    /// Bytes a sector: a power of two from 512 to 32768, and no more than a block.
    pub sector_size: u32,
    /// Bytes an inode: 512, 1024 or 2048, and no more than half a block.
    pub inode_size: u32,
    /// Bytes a directory block, from a block to 65536; `None`: 4096, or a block where that is more.
    pub dir_block_size: Option<u32>,
    /// Bytes of the log; `None`: by the volume's size.
    pub log_size: Option<u64>,
    /// How the volume is cut into groups.
    pub groups: Groups,
    /// The label: up to 12 bytes, none of them 0.
    pub label: Vec<u8>,
    /// The UUID. All zeroes is none, and is refused.
    pub uuid: Uuid,
    /// When the root directory was made.
    pub time: Timestamp,
    /// What is on and off.
    pub features: Features,
    /// Whether volumes are made that `mkfs.xfs` takes only with `--unsupported`: below 300 MiB, of one group, with
    /// a log below 64 MiB. The kernel mounts them; they are slow, and one group has no second superblock. For
    /// tests, and for images that stay small.
    pub small: bool,
}

impl Options {
    /// What `mkfs.xfs` does unasked, on sectors of 512 bytes.
    pub fn new(uuid: Uuid, time: Timestamp) -> Self {
        Self {
            size: None,
            block_size: 4096,
            sector_size: 512,
            inode_size: 512,
            dir_block_size: None,
            log_size: None,
            groups: Groups::Automatic,
            label: Vec::new(),
            uuid,
            time,
            features: Features::default(),
            small: false,
        }
    }
}
