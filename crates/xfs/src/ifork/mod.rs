//! Inode forks: what the inode holds of each, and where its blocks lie.
//!
//! A map is read whole, at its first use, into an [`ExtentList`] of which every version is immutable and looked up without
//! a lock. Inodes have their forks' lists, and whoever changes maps makes new ones: both know this, and it knows neither
//! of them, nor a volume, nor a transaction.
//!
//! Invariant: a list that is in memory says the same as the fork's bytes.

mod disjoint;
mod list;
mod pieces;
mod read;

pub(crate) use disjoint::check_disjoint;
pub use list::ExtentList;
#[cfg(test)]
pub(crate) use list::looks;
pub(crate) use pieces::pieces;
pub(crate) use read::load;

use std::sync::{Arc, OnceLock};
use xfs_format::bmbt::Extent;
use xfs_format::inode::{ForkFormat, ForkInfo};
use xfs_format::types::FileBlock;

/// What is known of a block of a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapped {
    /// Nothing is mapped in this run: first block, and the block behind it (`None`: it never ends).
    Hole(FileBlock, Option<FileBlock>),
    /// The extent that holds the block.
    Extent(Extent),
}

/// Which fork of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ForkKind {
    /// File content, directory entries, symlink targets.
    Data,
    /// Extended attributes.
    Attr,
}

/// One fork's bytes within the inode, and its extents once they were asked for.
#[derive(Clone, Debug)]
pub(crate) struct ForkState {
    pub(crate) format: ForkFormat,
    pub(crate) nextents: u64,
    pub(crate) bytes: Box<[u8]>,
    extents: OnceLock<Arc<ExtentList>>,
}

impl ForkState {
    /// The fork that `info` tells of, of an inode with these bytes; `size`: the inode's, if it is the data fork.
    pub(crate) fn new(info: &ForkInfo, inode: &[u8], size: Option<u64>) -> Self {
        let bytes = inode.get(info.range.clone()).unwrap_or_default();
        // Only what the fork uses: inodes are kept by the hundred thousand.
        let used = match info.format {
            ForkFormat::Dev => 4,
            ForkFormat::Local => size.and_then(|size| usize::try_from(size).ok()).unwrap_or(bytes.len()),
            ForkFormat::Extents => usize::try_from(info.nextents.saturating_mul(16)).unwrap_or(bytes.len()),
            ForkFormat::Btree => bytes.len(),
        };
        let bytes = bytes.get(..used).unwrap_or(bytes).into();
        Self { format: info.format, nextents: info.nextents, bytes, extents: OnceLock::new() }
    }

    /// The extents, if they are in memory.
    pub(crate) fn loaded(&self) -> Option<&Arc<ExtentList>> {
        self.extents.get()
    }

    /// Keeps `list`, unless another thread was faster; gives the one that stays.
    pub(crate) fn keep(&self, list: ExtentList) -> &Arc<ExtentList> {
        self.extents.get_or_init(|| Arc::new(list))
    }

    /// A fork with other content: bytes as the inode holds them, and its extents if they are known.
    #[allow(dead_code, reason = "its users follow")]
    pub(crate) fn with(
        format: ForkFormat,
        nextents: u64,
        bytes: Box<[u8]>,
        extents: Option<Arc<ExtentList>>,
    ) -> Self {
        Self { format, nextents, bytes, extents: extents.map_or_else(OnceLock::new, OnceLock::from) }
    }

    /// Bytes of memory beside the state itself.
    pub(crate) fn weight(&self) -> u64 {
        self.bytes.len() as u64 + self.loaded().map_or(0, |list| list.weight())
    }
}
