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
    /// The log may hold exchanges of file content.
    pub exchange: bool,
    /// Inodes have parent pointers.
    pub parent_pointers: bool,
}

impl Features {
    /// The long-term kernels of which [`of_kernel`](Self::of_kernel) knows the set, the oldest first.
    pub const KERNELS: [&str; 8] = ["4.19", "5.4", "5.10", "5.15", "6.1", "6.6", "6.12", "6.18"];

    /// What `mkfs.xfs` has on for volumes that a long-term kernel and all later ones mount: the features that were its
    /// defaults when that kernel came out. `None`: no kernel of that name is known.
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
    /// The set of the newest: what `mkfs.xfs` of xfsprogs 6.18 has on.
    fn default() -> Self {
        Self::of_kernel(Self::KERNELS[Self::KERNELS.len() - 1]).expect("its set is known")
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
