//! What directory, attribute and symlink code may know of the fork that it walks or changes.
//!
//! The seam between `dir`/`attr` and `inode`/`bmap`/`buf`/`trans`: the walkers and the writers are tested and fuzzed
//! on forks made of plain memory.

use crate::buf::Buf;
use crate::error::Result;
use std::ops::Range;
use std::sync::Arc;
use xfs_format::geometry::Geometry;
use xfs_format::types::{DiskAddr, FileBlock, InodeNumber};
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
    /// The first block at or behind `from` that is not mapped. A fork that knows its extents does this faster.
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
    /// Where it lies in the fork.
    pub at: FileBlock,
    /// How many blocks of the volume it has.
    pub blocks: u32,
    /// The verifier that passed it.
    pub verifier: &'static Verifier,
    /// What it held.
    pub buf: Buf,
    /// Which buffer of the transaction it is, where there is one.
    pub(crate) slot: Option<usize>,
}

/// A fork that is being changed, within one transaction that has the inode locked.
///
/// Through the [`Fork`] half the caller sees its own changes. Nothing becomes visible to others before the
/// transaction commits, and nothing at all if it does not. An error leaves the transaction fit for nothing but to be
/// dropped, except where a method says otherwise.
///
/// Checksums and LSNs are filled in when a buffer is written to the device; all other header fields (magic, own
/// address, owner, UUID) are the caller's.
pub trait ForkMut: Fork {
    /// The bytes of the buffer of `blocks` blocks at `at`, for changing those in `range` (which will be logged; a
    /// change outside `range` may be lost). The whole buffer is given: `range` says which part of it changes.
    fn modify(
        &mut self,
        at: FileBlock,
        blocks: u32,
        verifier: &'static Verifier,
        range: Range<usize>,
    ) -> Result<&mut [u8]>;
    /// Locks the buffer of `blocks` blocks at `at`, to be changed by [`log_buf`](Self::log_buf).
    fn read_buf(&mut self, at: FileBlock, blocks: u32, verifier: &'static Verifier) -> Result<ForkBuf> {
        let buf = self.read(at, blocks, verifier)?;
        Ok(ForkBuf { at, blocks, verifier, buf, slot: None })
    }
    /// Has a buffer hold `bytes`. They differ in `changed` at most from what it held when it was read; that will be
    /// logged.
    fn log_buf(&mut self, buf: ForkBuf, bytes: Arc<[u8]>, changed: &[Range<usize>]) -> Result<()> {
        debug_assert_eq!(buf.buf.len(), bytes.len(), "a buffer's size does not change");
        for range in changed {
            let whole = self.modify(buf.at, buf.blocks, buf.verifier, range.clone())?;
            whole[range.clone()].copy_from_slice(&bytes[range.clone()]);
        }
        Ok(())
    }
    /// As [`modify`](Self::modify) for blocks whose old content does not matter, as they were just mapped: zeroes.
    /// All of it is logged; `verifier` says what it will be.
    fn create(&mut self, at: FileBlock, blocks: u32, verifier: &'static Verifier) -> Result<&mut [u8]>;
    /// Writes blocks past the journal, for content that is reached only through what this transaction commits, and
    /// that carries its own checksum already (remote attribute values). `bytes` are whole blocks.
    fn write_around(&mut self, at: FileBlock, bytes: &[u8]) -> Result<()>;
    /// Where the block at `at` lies on the device: the own address that its header carries.
    fn daddr(&self, at: FileBlock) -> Result<DiskAddr>;
    /// Allocates `blocks` blocks and maps them at `at`, where nothing is mapped. They may lie apart.
    fn map(&mut self, at: FileBlock, blocks: u32) -> Result<()>;
    /// Unmaps and frees `blocks` blocks at `at`, which hold one buffer or a run of unbuffered blocks. What was cached
    /// or logged of them is forgotten.
    fn unmap(&mut self, at: FileBlock, blocks: u32) -> Result<()>;
    /// The bytes that a local fork of this inode may have now. For an attribute fork: as far as the boundary between
    /// the forks may be moved.
    fn local_capacity(&self) -> usize;
    /// Makes the fork local with this content (moving the boundary between the forks where it has to and can). Nothing
    /// may be mapped. For a data fork the inode's size becomes the content's length.
    fn set_local(&mut self, bytes: &[u8]) -> Result<()>;
    /// Makes the fork a list of extents, empty, whatever content it held itself.
    fn set_extents(&mut self) -> Result<()>;
    /// Removes an attribute fork that is empty, if the inode can be without; nothing for a data fork.
    fn remove_fork(&mut self) -> Result<()>;
    /// Sets `di_size` of a data fork, in bytes.
    fn set_size(&mut self, bytes: u64);
}
