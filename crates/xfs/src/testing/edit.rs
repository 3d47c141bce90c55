//! Changes to a fork in memory, stricter than a transaction.
//!
//! - A change outside of the announced range is lost.
//! - A changed buffer is verified whenever it is read again, after correcting only its checksum.
//! - Mapping, unmapping and writing around check their preconditions. Blocks are not contiguous on the device, unless
//!   that is requested.

use super::{MemoryFork, checksum_place};
use crate::error::{Error, Result};
use crate::fork::{Fork, ForkBuf, ForkMut};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use xfs_format::checksum;
use xfs_format::error::FormatError;
use xfs_format::types::{DiskAddr, FileBlock};
use xfs_format::verify::Verifier;

const NAME: &str = "fork in memory";

/// The state of changes besides the blocks.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    /// Buffers whose checksum is not correct yet: start and number of blocks.
    dirty: BTreeMap<u64, u32>,
    /// The addresses that the fork's blocks get. If `None`, addresses are made up.
    pool: Option<BTreeMap<u64, DiskAddr>>,
    /// The last announced change.
    pending: Option<Pending>,
    next_daddr: u64,
    /// Blocks are contiguous on the device.
    adjacent: bool,
    capacity: Option<usize>,
    data: bool,
    mapped: u64,
    logged: u64,
    removed: bool,
}

#[derive(Clone, Debug)]
struct Pending {
    at: u64,
    blocks: u32,
    range: Range<usize>,
    bytes: Vec<u8>,
}

impl MemoryFork {
    /// Makes this a data fork, whose size follows its local content.
    pub fn set_data_fork(&mut self) {
        self.changes.data = true;
    }

    /// Sets where mapped blocks lie. Elsewhere there is no space.
    pub fn set_pool(&mut self, pool: BTreeMap<FileBlock, DiskAddr>) {
        self.changes.pool = Some(pool.into_iter().map(|(at, daddr)| (at.0, daddr)).collect());
    }

    /// Makes mapped blocks contiguous on the device.
    pub fn set_adjacent(&mut self) {
        self.changes.adjacent = true;
    }

    /// Sets how many bytes the fork may have in the inode.
    pub fn set_local_capacity(&mut self, bytes: usize) {
        self.changes.capacity = Some(bytes);
    }

    /// How many blocks were mapped by changes so far.
    pub fn mapped_by_changes(&self) -> u64 {
        self.changes.mapped
    }

    /// How many bytes of buffers changes have announced or made so far.
    pub fn logged_by_changes(&self) -> u64 {
        self.changes.logged
    }

    /// Whether the attribute fork was removed, and nothing has come since.
    pub fn is_removed(&self) -> bool {
        self.changes.removed
    }

    /// Address and bytes of each mapped block, with correct checksums: what write-back would leave.
    pub fn written_back(&self) -> Vec<(FileBlock, DiskAddr, Vec<u8>)> {
        let mut done = self.clone();
        done.settle();
        for (at, blocks) in std::mem::take(&mut done.changes.dirty) {
            let Some((_, mut bytes)) = done.gather(FileBlock(at), blocks) else { continue };
            if let Some(place) = checksum_place(&bytes) {
                checksum::store(&mut bytes, place);
            }
            for (nth, part) in (at..).zip(bytes.chunks_exact(done.geometry.block_size as usize)) {
                if let Some((_, block)) = done.blocks.get_mut(&nth) {
                    block.copy_from_slice(part);
                }
            }
        }
        done.blocks.into_iter().map(|(at, (daddr, bytes))| (FileBlock(at), daddr, bytes)).collect()
    }

    /// The bytes of a buffer as a reader within the transaction sees them.
    pub(super) fn current(&self, at: FileBlock, blocks: u32) -> Option<(DiskAddr, Vec<u8>)> {
        let (daddr, mut bytes) = self.gather(at, blocks)?;
        let mut dirty = self.changes.dirty.range(at.0..at.0 + u64::from(blocks)).next().is_some();
        if let Some(pending) = &self.changes.pending {
            // Both as bytes of the fork.
            let log = self.geometry.block_log;
            let (start, from) = ((at.0 << log) as usize, (pending.at << log) as usize);
            let low = start.max(from + pending.range.start);
            let high = (start + bytes.len()).min(from + pending.range.end);
            if low < high {
                bytes[low - start..high - start].copy_from_slice(&pending.bytes[low - from..high - from]);
                dirty = true;
            }
        }
        if dirty && let Some(place) = checksum_place(&bytes) {
            checksum::store(&mut bytes, place);
        }
        Some((daddr, bytes))
    }

    /// Applies the announced part of the last change.
    fn settle(&mut self) {
        let Some(pending) = self.changes.pending.take() else { return };
        let size = self.geometry.block_size as usize;
        for nth in 0..pending.blocks as usize {
            let at = pending.at + nth as u64;
            let Some((_, block)) = self.blocks.get_mut(&at) else { continue };
            let (start, end) = (pending.range.start.max(nth * size), pending.range.end.min((nth + 1) * size));
            if start < end {
                block[start - nth * size..end - nth * size].copy_from_slice(&pending.bytes[start..end]);
            }
        }
        self.changes.dirty.insert(pending.at, pending.blocks);
    }

    fn refuse(&self, check: &'static str, at: FileBlock) -> Error {
        Error::corrupt_inode(self.inode, FormatError::value(NAME, check, at.0))
    }

    fn announce(
        &mut self,
        at: FileBlock,
        blocks: u32,
        range: Range<usize>,
        bytes: Vec<u8>,
    ) -> Result<&mut [u8]> {
        if range.end > bytes.len() || range.start > range.end {
            return Err(self.refuse("range", at));
        }
        self.changes.logged += range.len() as u64;
        let pending = Pending { at: at.0, blocks, range, bytes };
        Ok(&mut self.changes.pending.insert(pending).bytes)
    }
}

impl ForkMut for MemoryFork {
    fn read_buf(&mut self, at: FileBlock, blocks: u32, verifier: &'static Verifier) -> Result<ForkBuf> {
        let buf = self.read(at, blocks, verifier)?;
        Ok(ForkBuf { at, blocks, verifier, buf, copy: None, slot: 0 })
    }

    fn log_buf(&mut self, buf: ForkBuf, bytes: Arc<[u8]>, changed: &[Range<usize>]) -> Result<()> {
        self.settle();
        let (_, now) =
            self.current(buf.at, buf.blocks).ok_or_else(|| self.refuse("unmapped block", buf.at))?;
        if *now != *buf.buf || bytes.len() != now.len() {
            return Err(self.refuse("buffer that changed since it was read", buf.at));
        }
        for range in changed {
            self.announce(buf.at, buf.blocks, range.clone(), bytes.to_vec())?;
            self.settle();
        }
        Ok(())
    }

    fn create(&mut self, at: FileBlock, blocks: u32, _: &'static Verifier) -> Result<&mut [u8]> {
        self.settle();
        let (_, bytes) = self.gather(at, blocks).ok_or_else(|| self.refuse("unmapped block", at))?;
        self.announce(at, blocks, 0..bytes.len(), vec![0; bytes.len()])
    }

    fn write_around(&mut self, at: FileBlock, bytes: &[u8]) -> Result<()> {
        self.settle();
        let pieces = bytes.chunks_exact(self.geometry.block_size as usize);
        if !pieces.remainder().is_empty() {
            return Err(self.refuse("bytes behind the last block", at));
        }
        for (nth, piece) in (at.0..).zip(pieces) {
            let unmapped = self.refuse("unmapped block", FileBlock(nth));
            self.blocks.get_mut(&nth).ok_or(unmapped)?.1.copy_from_slice(piece);
            self.changes.dirty.remove(&nth);
        }
        Ok(())
    }

    fn daddr(&self, at: FileBlock) -> Result<DiskAddr> {
        let block = self.blocks.get(&at.0).ok_or_else(|| self.refuse("unmapped block", at))?;
        Ok(block.0)
    }

    fn map(&mut self, at: FileBlock, blocks: u32) -> Result<()> {
        self.settle();
        if self.local.is_some() || self.changes.removed {
            return Err(self.refuse("block of a fork that is not a list of extents", at));
        }
        for nth in at.0..at.0 + u64::from(blocks) {
            if self.blocks.contains_key(&nth) {
                return Err(self.refuse("block that is mapped already", FileBlock(nth)));
            }
            let log = self.geometry.block_log - 9;
            self.changes.next_daddr += if self.changes.adjacent { 1 } else { 2 };
            let daddr = match &self.changes.pool {
                Some(pool) => *pool.get(&nth).ok_or(Error::NoSpace)?,
                None => DiskAddr((1 << 16 | self.changes.next_daddr) << log),
            };
            // The old content does not matter.
            let bytes = vec![0xdb; self.geometry.block_size as usize];
            self.put(nth, daddr, bytes);
        }
        self.changes.mapped += u64::from(blocks);
        Ok(())
    }

    fn unmap(&mut self, at: FileBlock, blocks: u32) -> Result<()> {
        self.settle();
        let end = at.0.checked_add(blocks.into()).ok_or_else(|| self.refuse("block count", at))?;
        for nth in at.0..end {
            if !self.take(nth) {
                return Err(self.refuse("unmapped block", FileBlock(nth)));
            }
            self.changes.dirty.remove(&nth);
        }
        Ok(())
    }

    fn local_capacity(&self) -> usize {
        let room = usize::from(self.geometry.inode_size).saturating_sub(xfs_format::inode::CORE_LEN_V3);
        self.changes.capacity.unwrap_or(room)
    }

    fn set_local(&mut self, bytes: &[u8]) -> Result<()> {
        if !self.blocks.is_empty() || bytes.len() > self.local_capacity() {
            return Err(self.refuse("local fork", FileBlock(bytes.len() as u64)));
        }
        self.local = Some(bytes.to_vec());
        self.changes.removed = false;
        if self.changes.data {
            self.size = bytes.len() as u64;
        }
        Ok(())
    }

    fn set_extents(&mut self) -> Result<()> {
        self.local = None;
        self.changes.removed = false;
        Ok(())
    }

    fn remove_fork(&mut self) -> Result<()> {
        if !self.blocks.is_empty() {
            return Err(self.refuse("block of a fork to be removed", FileBlock(0)));
        }
        if !self.changes.data {
            self.local = None;
            self.changes.removed = true;
        }
        Ok(())
    }

    fn set_size(&mut self, bytes: u64) {
        self.size = bytes;
    }
}
