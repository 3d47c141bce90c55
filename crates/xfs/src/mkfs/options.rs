//! What is wanted of a new volume.

use super::groups::Groups;
use xfs_format::timestamp::Timestamp;
use xfs_format::types::Uuid;

/// Features that can be on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Features {
    /// A free inode tree in each group.
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
    /// An rmap tree in each group.
    pub rmapbt: bool,
    /// The log may hold exchanges of file content.
    pub exchange: bool,
    /// Inodes have parent pointers.
    pub parent_pointers: bool,
}

impl Features {
    /// The long-term kernels whose set [`of_kernel`](Self::of_kernel) knows, oldest first.
    pub const KERNELS: [&str; 8] = ["4.19", "5.4", "5.10", "5.15", "6.1", "6.6", "6.12", "6.18"];

    /// The features for volumes that a long-term kernel and all later ones mount: the defaults of `mkfs.xfs` when that
    /// kernel came out. `None` if no kernel of that name is known.
    pub fn of_kernel(name: &str) -> Option<Self> {
        let place = |name| Self::KERNELS.iter().position(|known| *known == name);
        let at = place(name)?;
        let since = |name| place(name).is_some_and(|first| first <= at);
        Some(Self {
            finobt: true,
            inobt_counts: since("5.15"),
            sparse_inodes: true,
            reflink: since("5.4"),
            bigtime: since("5.15"),
            nrext64: since("6.6"),
            rmapbt: since("6.6"),
            exchange: since("6.18"),
            parent_pointers: since("6.18"),
        })
    }
}

impl Default for Features {
    /// The newest set: the defaults of `mkfs.xfs` from xfsprogs 6.18.
    fn default() -> Self {
        Self::of_kernel(Self::KERNELS[Self::KERNELS.len() - 1]).expect("its set is known")
    }
}

/// What is wanted. UUID and time are included, so that the same options give the same volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The volume's size in bytes. `None`: that of the device.
    pub size: Option<u64>,
    /// Bytes per block: a power of two from 1024 to 65536.
    pub block_size: u32,
    /// Bytes per sector: a power of two from 512 to 32768, and at most a block.
    pub sector_size: u32,
    /// Bytes per inode: 512, 1024 or 2048, and at most half a block.
    pub inode_size: u32,
    /// Bytes per directory block, from a block to 65536. `None`: 4096, or a block if that is larger.
    pub dir_block_size: Option<u32>,
    /// The log's size in bytes. `None`: by the volume's size.
    pub log_size: Option<u64>,
    /// How the volume is divided into groups.
    pub groups: Groups,
    /// The label: up to 12 bytes, none of them 0.
    pub label: Vec<u8>,
    /// The UUID. All zeroes mean none, and are refused.
    pub uuid: Uuid,
    /// The time when the root directory is made.
    pub time: Timestamp,
    /// The features that are on or off.
    pub features: Features,
    /// Whether to make volumes that `mkfs.xfs` makes only with `--unsupported`: below 300 MiB, with one group, or with
    /// a log below 64 MiB. The kernel mounts them. They are slow, and with one group there is no second superblock. For
    /// tests, and for images that stay small.
    pub small: bool,
}

impl Options {
    /// The defaults of `mkfs.xfs` on 512-byte sectors.
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
