//! Information about a volume: geometry, features, free space.

use xfs_format::feature_table::{self, Present, Support};
use xfs_format::features::QuotaFlags;
use xfs_format::kernels;

/// A feature, and how this version supports it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FeatureSupport {
    /// Its name, as `mkfs.xfs` calls it; of an unknown bit, its number.
    pub name: String,
    /// Volumes with it can be read.
    pub read: bool,
    /// Volumes with it can be written.
    pub written: bool,
    /// The checker knows it.
    pub checked: bool,
    /// `mkfs` can make it.
    pub made: bool,
}

impl FeatureSupport {
    /// The feature of an option of `mkfs.xfs`: `-m rmapbt` is `('m', "rmapbt")`.
    pub fn of_option(letter: char, key: &str) -> Option<Self> {
        feature_table::of_option(letter, key).map(|row| Present::from(row).into())
    }
}

impl From<Present> for FeatureSupport {
    fn from(present: Present) -> Self {
        let Support { read, written, checked, made } = present.support;
        Self { name: present.name, read, written, checked, made }
    }
}

/// Which releases of Linux mount a volume, according to its features, on machines with pages of 4096 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kernels {
    /// The first that mounts it, perhaps read-only; `None`: none does.
    pub read: Option<String>,
    /// The features that keep older ones from it.
    pub read_because: Vec<String>,
    /// The first that mounts it for writing; `None`: none does.
    pub written: Option<String>,
    /// The features that keep older ones from it.
    pub written_because: Vec<String>,
    /// Build options that a recent kernel needs to mount it, as `XFS_SUPPORT_V4`.
    pub build_options: Vec<&'static str>,
}

impl From<kernels::Kernels> for Kernels {
    fn from(of: kernels::Kernels) -> Self {
        let name = |kernel: Option<kernels::Kernel>| kernel.map(|kernel| kernel.to_string());
        Self {
            read: name(of.since.read),
            read_because: of.read_because,
            written: name(of.since.written),
            written_because: of.written_because,
            build_options: of.build_options,
        }
    }
}

/// The quota state of a volume. Limits are enforced by kernels, not here. The first change here clears the marks of
/// the counts, so the next kernel that mounts it with quota counts anew.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quota {
    /// The kinds that are counted: `user`, `group`, `project`.
    pub kinds: Vec<&'static str>,
    /// The kinds whose counts are marked as right.
    pub counted: Vec<&'static str>,
}

impl Quota {
    pub(crate) fn of(flags: QuotaFlags) -> Option<Self> {
        let kinds = [
            ("user", QuotaFlags::USER, QuotaFlags::USER_COUNTED),
            ("group", QuotaFlags::GROUP, QuotaFlags::GROUP_COUNTED | QuotaFlags::OTHER_COUNTED),
            ("project", QuotaFlags::PROJECT, QuotaFlags::PROJECT_COUNTED | QuotaFlags::OTHER_COUNTED),
        ];
        let kinds = kinds.into_iter().filter(|(_, kind, _)| flags.contains(*kind));
        let counted = kinds.clone().filter(|(.., counted)| flags.intersects(*counted));
        let of = Self {
            kinds: kinds.map(|(name, ..)| name).collect(),
            counted: counted.map(|(name, ..)| name).collect(),
        };
        (!of.kinds.is_empty()).then_some(of)
    }
}

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
    /// The same, with the support for each.
    pub feature_table: Vec<FeatureSupport>,
    /// Features that keep the volume from being written; empty: it can be written.
    pub read_only_because: Vec<String>,
    /// Which kernels mount it.
    pub kernels: Kernels,
    /// Its quota state; `None`: no quota.
    pub quota: Option<Quota>,
}
