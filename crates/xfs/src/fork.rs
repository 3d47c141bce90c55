//! The interface through which directory, attribute and symlink code sees a fork.
//!
//! It separates `dir`/`attr` from `inode`/`bmap`/`buf`/`trans`: readers and writers of forks are tested and fuzzed on
//! forks in plain memory.

use crate::buf::Buf;
use crate::error::Result;
use std::ops::Range;
use std::sync::Arc;
use xfs_format::edit::Stamp;
use xfs_format::geometry::Geometry;
use xfs_format::types::{DiskAddr, FileBlock, InodeNumber};
use xfs_format::verify::Verifier;

/// The blocks of one fork of an inode.
pub trait Fork {
    /// The volume's shape.
    fn geometry(&self) -> &Geometry;
    /// The inode of the fork, which its blocks must have as owner.
    fn inode(&self) -> InodeNumber;
    /// The bytes inside the inode, if the fork is in local format.
    fn local(&self) -> Option<&[u8]>;
    /// `di_size` for a data fork; 0 for an attribute fork.
    fn size(&self) -> u64;
    /// Reads `blocks` blocks at `at` as one buffer from the metadata cache, checked. They may lie in several extents. A
    /// hole is corruption, with the check `unmapped block`.
    fn read(&self, at: FileBlock, blocks: u32, verifier: &'static Verifier) -> Result<Buf>;
    /// Like [`read`](Self::read), for callers that will read the following buffers up to `end`. A fork may read some of
    /// those ahead.
    fn read_in_order(
        &self,
        at: FileBlock,
        blocks: u32,
        verifier: &'static Verifier,
        end: FileBlock,
    ) -> Result<Buf> {
        let _ = end;
        self.read(at, blocks, verifier)
    }
    /// The first mapped block at or after `from`, if any.
    fn next_mapped(&self, from: FileBlock) -> Result<Option<FileBlock>>;
    /// The first unmapped block at or after `from`. A fork that knows its extents has a faster implementation.
    fn next_unmapped(&self, from: FileBlock) -> Result<FileBlock> {
        let mut at = from;
        while self.next_mapped(at)? == Some(at) {
            at.0 += 1;
        }
        Ok(at)
    }
}

/// A buffer of a fork that its transaction has locked, as it was when it was read.
#[derive(Clone, Debug)]
pub struct ForkBuf {
    /// Its block in the fork.
    pub at: FileBlock,
    /// Its number of file system blocks.
    pub blocks: u32,
    /// The verifier that passed it.
    pub verifier: &'static Verifier,
    /// Its content.
    pub buf: Buf,
    /// A private copy of the content, if that was cheap.
    pub(crate) copy: Option<Arc<[u8]>>,
    /// Its index in the transaction. Unused by a fork in memory.
    pub(crate) slot: usize,
}

/// The header fields of a block at `daddr` that belongs to the fork.
pub(crate) fn stamp(fork: &dyn Fork, daddr: DiskAddr) -> Stamp {
    let geometry = fork.geometry();
    Stamp { v5: geometry.v5, meta_uuid: geometry.meta_uuid, daddr, owner: fork.inode() }
}

/// A fork that is being changed in one transaction that has the inode locked.
///
/// Through its [`Fork`] half the caller sees its own changes. Others see nothing before the transaction commits, and
/// nothing at all if it does not. After an error the transaction can only be dropped, except where a method says
/// otherwise.
///
/// Checksums and LSNs are filled in when a buffer is written to the device. All other header fields (magic, address,
/// owner, UUID) are up to the caller.
pub trait ForkMut: Fork {
    /// Locks the buffer of `blocks` blocks at `at`, to be changed by [`log_buf`](Self::log_buf).
    fn read_buf(&mut self, at: FileBlock, blocks: u32, verifier: &'static Verifier) -> Result<ForkBuf>;
    /// Replaces a buffer's content by `bytes`, which may differ only in `changed`. These ranges are logged.
    fn log_buf(&mut self, buf: ForkBuf, bytes: Arc<[u8]>, changed: &[Range<usize>]) -> Result<()>;
    /// The zeroed bytes of the buffer of `blocks` blocks at `at`, which were just mapped. All of it is logged.
    /// `verifier` is that of its future content.
    fn create(&mut self, at: FileBlock, blocks: u32, verifier: &'static Verifier) -> Result<&mut [u8]>;
    /// Writes blocks without logging them: content that can be reached only through what this transaction commits, and
    /// that already has its own checksum (remote attribute values). `bytes` are whole blocks.
    fn write_around(&mut self, at: FileBlock, bytes: &[u8]) -> Result<()>;
    /// The disk address of the block at `at`, which its header has.
    fn daddr(&self, at: FileBlock) -> Result<DiskAddr>;
    /// Allocates `blocks` blocks and maps them at `at`, where nothing is mapped. They need not be contiguous.
    fn map(&mut self, at: FileBlock, blocks: u32) -> Result<()>;
    /// Unmaps and frees `blocks` blocks at `at`, which are one buffer or a run of unbuffered blocks. Their cached and
    /// logged content is forgotten.
    fn unmap(&mut self, at: FileBlock, blocks: u32) -> Result<()>;
    /// Maximum size of a local fork of this inode now. For an attribute fork: as far as forkoff can move.
    fn local_capacity(&self) -> usize;
    /// Makes the fork local with this content, moving forkoff if necessary and possible. Nothing may be mapped. For a
    /// data fork, the inode's size becomes the content's length.
    fn set_local(&mut self, bytes: &[u8]) -> Result<()>;
    /// Makes the fork an empty list of extents. Its local content is dropped.
    fn set_extents(&mut self) -> Result<()>;
    /// Removes an empty attribute fork, if the inode can be without it. Does nothing for a data fork.
    fn remove_fork(&mut self) -> Result<()>;
    /// Sets `di_size` of a data fork, in bytes.
    fn set_size(&mut self, bytes: u64);
}
