//! Inode forks: what the inode has of each, and where its blocks lie.
//!
//! A map is read as a whole at its first use, into an [`ExtentList`]. Each version of it is immutable and needs no lock
//! for lookups. Inodes have the lists of their forks, and map changes make new ones. Both know this module; it knows
//! neither of them, nor volumes or transactions.
//!
//! Invariant: a list that is in memory has the same content as the fork's bytes.

mod buf_maps;
mod disjoint;
mod list;
mod read;

pub(crate) use buf_maps::buf_maps;
pub(crate) use disjoint::check_disjoint;
pub use list::ExtentList;
#[cfg(test)]
pub(crate) use list::looks;
pub(crate) use read::load;

use std::sync::{Arc, OnceLock};
use xfs_format::bmbt::Extent;
use xfs_format::inode::{ForkFormat, ForkInfo};
use xfs_format::types::FileBlock;

/// The mapping of a block of a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapped {
    /// Nothing is mapped in this run: first block, and the block after the last (`None`: it never ends).
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

/// One fork's bytes within the inode, and its extents once they have been loaded.
#[derive(Clone, Debug)]
pub(crate) struct ForkState {
    pub(crate) format: ForkFormat,
    pub(crate) nextents: u64,
    pub(crate) bytes: Box<[u8]>,
    extents: OnceLock<Arc<ExtentList>>,
}

impl ForkState {
    /// The fork that `info` describes, of an inode with these bytes. `size` is the inode's size, for the data fork.
    pub(crate) fn new(info: &ForkInfo, inode: &[u8], size: Option<u64>) -> Self {
        let bytes = inode.get(info.range.clone()).unwrap_or_default();
        // Keep only what the fork uses: there are hundreds of thousands of inodes in memory.
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

    /// Keeps `list` unless another thread was faster. Returns the one that is kept.
    pub(crate) fn keep(&self, list: ExtentList) -> &Arc<ExtentList> {
        self.extents.get_or_init(|| Arc::new(list))
    }

    /// The fork with other content: its bytes within the inode, and its extents if they are known.
    pub(crate) fn with(
        format: ForkFormat,
        nextents: u64,
        bytes: Box<[u8]>,
        extents: Option<Arc<ExtentList>>,
    ) -> Self {
        Self { format, nextents, bytes, extents: extents.map_or_else(OnceLock::new, OnceLock::from) }
    }

    /// Bytes of memory in addition to the state itself.
    pub(crate) fn weight(&self) -> u64 {
        self.bytes.len() as u64 + self.loaded().map_or(0, |list| list.weight())
    }
}
