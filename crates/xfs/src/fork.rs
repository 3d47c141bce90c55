//! What directory, attribute and symlink code may know of the fork that it walks.
//!
//! The seam between `dir`/`attr` and `inode`/`bmap`/`buf`: the walkers are tested and fuzzed on forks made of
//! plain memory.

use crate::buf::Buf;
use crate::error::Result;
use xfs_format::geometry::Geometry;
use xfs_format::types::{FileBlock, InodeNumber};
use xfs_format::verify::Verifier;

/// One fork of one inode, as its blocks.
pub trait Fork {
    /// The volume's shape.
    fn geometry(&self) -> &Geometry;
    /// The inode that the fork belongs to: the owner that its blocks must carry.
    fn inode(&self) -> InodeNumber;
    /// The bytes inside the inode, if the fork is in local format.
    fn local(&self) -> Option<&[u8]>;
    /// `di_size` for a data fork; 0 for an attribute fork.
    fn size(&self) -> u64;
    /// Reads `blocks` blocks at `at` as one buffer and checks it (a buffer may be made of several extents). The
    /// buffer comes from the metadata cache. A hole is an error: corruption, check `unmapped block`.
    fn read(&self, at: FileBlock, blocks: u32, verifier: &'static Verifier) -> Result<Buf>;
    /// The first mapped block at or behind `from`, if there is one.
    fn next_mapped(&self, from: FileBlock) -> Result<Option<FileBlock>>;
}
