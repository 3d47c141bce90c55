//! A changeable fork in memory that checks the code that changes it.
//!
//! Buffers pass their verifiers each time that they are read, with the checksum corrected as write-back would.
//! [`EditFork::settle`], to be called after each operation, fails if bytes changed outside of the announced ranges.

use super::MemoryFork;
use crate::buf::Buf;
use crate::error::{Error, Result};
use crate::fork::{Fork, ForkBuf, ForkMut};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use xfs_format::checksum;
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::types::{DiskAddr, FileBlock, InodeNumber};
use xfs_format::verify::{Verifier, VerifyContext};

#[derive(Clone, Debug)]
struct Held {
    blocks: u32,
    daddr: DiskAddr,
    bytes: Arc<[u8]>,
    /// The bytes before the operation, and the ranges announced since.
    before: Option<Vec<u8>>,
    announced: Vec<Range<usize>>,
}

/// A changeable fork in memory: its buffers.
#[derive(Clone, Debug)]
pub struct EditFork {
    geometry: Geometry,
    inode: InodeNumber,
    size: u64,
    local: Option<Vec<u8>>,
    capacity: usize,
    bufs: BTreeMap<u64, Held>,
    next_daddr: u64,
    zones: Vec<(FileBlock, DiskAddr)>,
    touched: BTreeSet<u64>,
    /// Whether buffers are verified and changes are checked. Without it, operations have their real cost.
    pub strict: bool,
    maps: u32,
    calls: Cell<u32>,
}

/// The effects of one operation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settled {
    /// Runs of blocks that were mapped.
    pub maps: u32,
    /// Buffers that were changed or made.
    pub buffers: u32,
    /// Bytes that would be logged.
    pub logged: u64,
    /// Buffers and mapped blocks that were asked for: the cost of the operation.
    pub calls: u32,
}

impl EditFork {
    /// An empty fork with room for `capacity` bytes in the inode.
    pub fn new(geometry: Geometry, inode: InodeNumber, capacity: usize) -> Self {
        Self {
            geometry,
            inode,
            size: 0,
            local: Some(Vec::new()),
            capacity,
            bufs: BTreeMap::new(),
            next_daddr: 1 << 12,
            zones: Vec::new(),
            touched: BTreeSet::new(),
            strict: true,
            maps: 0,
            calls: Cell::new(0),
        }
    }

    /// A copy of a fork whose buffers have `blocks` blocks each. Partly mapped buffers are left out.
    pub fn of(fork: &MemoryFork, blocks: u32, capacity: usize) -> Self {
        let mut new = Self::new(fork.geometry.clone(), fork.inode, capacity);
        new.size = fork.size;
        new.local = fork.local.clone();
        for &at in fork.blocks.keys().filter(|at| at.is_multiple_of(blocks.into())) {
            if let Some((daddr, bytes)) = fork.gather(FileBlock(at), blocks) {
                new.next_daddr = new.next_daddr.max(daddr.0 + (1 << 12));
                new.hold(at, blocks, daddr, bytes);
            }
        }
        new
    }

    /// Buffers: fork block, disk address, content (with checksums).
    pub fn buffers(&self) -> impl Iterator<Item = (FileBlock, DiskAddr, Vec<u8>)> + '_ {
        self.bufs.iter().map(|(&at, held)| (FileBlock(at), held.daddr, with_checksum(&held.bytes)))
    }

    /// Sets where future blocks will lie: contiguously from an address on, beginning at each of these fork blocks. The
    /// blocks are in ascending order, and the first is 0.
    pub fn lay_out(&mut self, zones: Vec<(FileBlock, DiskAddr)>) {
        self.zones = zones;
    }

    /// The bytes of a buffer, or of the inode if there is none, for damaging them.
    pub fn bytes_mut(&mut self, at: FileBlock) -> Option<&mut [u8]> {
        match self.bufs.get_mut(&at.0) {
            Some(held) => Some(Arc::make_mut(&mut held.bytes)),
            None => self.local.as_deref_mut(),
        }
    }

    /// Ends an operation: its changes must lie in the ranges that it announced.
    ///
    /// # Panics
    /// If they don't.
    pub fn settle(&mut self) -> Settled {
        let (maps, calls) = (std::mem::take(&mut self.maps), self.calls.take());
        let mut settled = Settled { maps, calls, ..Settled::default() };
        for at in std::mem::take(&mut self.touched) {
            let Some(held) = self.bufs.get_mut(&at) else {
                continue;
            };
            settled.buffers += 1;
            let announced = std::mem::take(&mut held.announced);
            settled.logged += announced.iter().map(|range| range.len() as u64).sum::<u64>();
            let Some(before) = held.before.take() else {
                continue;
            };
            for (nth, (old, new)) in before.iter().zip(&*held.bytes).enumerate() {
                let known = old == new || announced.iter().any(|range| range.contains(&nth));
                assert!(known, "byte {nth} of the buffer at {at} changed outside {announced:?}");
            }
        }
        settled
    }

    fn hold(&mut self, at: u64, blocks: u32, daddr: DiskAddr, bytes: Vec<u8>) {
        let held = Held { blocks, daddr, bytes: bytes.into(), before: None, announced: Vec::new() };
        self.bufs.insert(at, held);
    }

    fn unmapped(&self, name: &'static str, at: FileBlock) -> Error {
        Error::corrupt_inode(self.inode, FormatError::value(name, "unmapped block", at.0))
    }
}

/// A block with the checksum that write-back would set.
fn with_checksum(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    match bytes.get(..12) {
        Some([b'X', b'D', b'B' | b'D' | b'F', b'3', ..]) => checksum::store(&mut bytes, 4),
        Some([_, _, _, _, _, _, _, _, 0x3d, 0xf1 | 0xff, ..] | [_, _, _, _, _, _, _, _, 0x3e, 0xbe, ..]) => {
            checksum::store(&mut bytes, 12)
        }
        _ => false,
    };
    bytes
}

impl Fork for EditFork {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn inode(&self) -> InodeNumber {
        self.inode
    }

    fn local(&self) -> Option<&[u8]> {
        self.local.as_deref()
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, at: FileBlock, blocks: u32, verifier: &'static Verifier) -> Result<Buf> {
        self.calls.set(self.calls.get() + 1);
        let held = self.bufs.get(&at.0).filter(|held| held.blocks == blocks);
        let held = held.ok_or_else(|| self.unmapped(verifier.name, at))?;
        if self.strict {
            let ctx =
                VerifyContext { v5: self.geometry.v5, meta_uuid: self.geometry.meta_uuid, daddr: held.daddr };
            let changed = self.touched.contains(&at.0) || held.before.is_some();
            let bytes =
                if changed || self.geometry.v5 { with_checksum(&held.bytes) } else { held.bytes.to_vec() };
            (verifier.check)(&bytes, &ctx)
                .map_err(|problem| Error::corrupt_block(held.daddr, Some(self.inode), problem))?;
        }
        Ok(Buf::new(held.daddr, held.bytes.clone()))
    }

    fn next_mapped(&self, from: FileBlock) -> Result<Option<FileBlock>> {
        self.calls.set(self.calls.get() + 1);
        let around = self.bufs.range(..=from.0).next_back();
        if around.is_some_and(|(&at, held)| from.0 < at + u64::from(held.blocks)) {
            return Ok(Some(from));
        }
        Ok(self.bufs.range(from.0..).next().map(|(&at, _)| FileBlock(at)))
    }
}

impl ForkMut for EditFork {
    fn read_buf(&mut self, at: FileBlock, blocks: u32, verifier: &'static Verifier) -> Result<ForkBuf> {
        let buf = self.read(at, blocks, verifier)?;
        Ok(ForkBuf { at, blocks, verifier, buf, copy: None, slot: 0 })
    }

    fn log_buf(&mut self, buf: ForkBuf, bytes: Arc<[u8]>, changed: &[Range<usize>]) -> Result<()> {
        self.touched.insert(buf.at.0);
        let problem =
            FormatError::value(buf.verifier.name, "buffer that changed since it was read", buf.at.0);
        let held = self.bufs.get_mut(&buf.at.0).filter(|held| buf.buf.is_of(&held.bytes));
        let held = held.ok_or(Error::corrupt_inode(self.inode, problem))?;
        if self.strict && held.before.is_none() {
            held.before = Some(held.bytes.to_vec());
        }
        held.announced.extend_from_slice(changed);
        held.bytes = bytes;
        Ok(())
    }

    fn create(&mut self, at: FileBlock, blocks: u32, verifier: &'static Verifier) -> Result<&mut [u8]> {
        self.touched.insert(at.0);
        let missing = self.unmapped(verifier.name, at);
        let held = self.bufs.get_mut(&at.0).filter(|held| held.blocks == blocks).ok_or(missing)?;
        let bytes = Arc::make_mut(&mut held.bytes);
        bytes.fill(0);
        held.announced.push(0..bytes.len());
        Ok(bytes)
    }

    fn write_around(&mut self, at: FileBlock, _bytes: &[u8]) -> Result<()> {
        Err(self.unmapped("value", at))
    }

    fn daddr(&self, at: FileBlock) -> Result<DiskAddr> {
        self.bufs.get(&at.0).map(|held| held.daddr).ok_or_else(|| self.unmapped("block", at))
    }

    fn map(&mut self, at: FileBlock, blocks: u32) -> Result<()> {
        assert!(self.local.is_none(), "a fork in the inode maps nothing");
        let next = self.next_mapped(at)?;
        assert!(next.is_none_or(|next| next.0 >= at.0 + u64::from(blocks)), "{at} is mapped already");
        let len = self.geometry.block_size as usize * blocks as usize;
        let zone = self.zones.iter().rev().find(|(from, _)| from.0 <= at.0);
        let daddr = match zone {
            Some((from, daddr)) => DiskAddr(daddr.0 + ((at.0 - from.0) << (self.geometry.block_log - 9))),
            None => DiskAddr(self.next_daddr),
        };
        self.next_daddr += len as u64 / 512;
        // The old content is garbage.
        self.hold(at.0, blocks, daddr, vec![0xa5; len]);
        self.maps += 1;
        Ok(())
    }

    fn unmap(&mut self, at: FileBlock, blocks: u32) -> Result<()> {
        let held = self.bufs.remove(&at.0);
        assert!(held.is_some_and(|held| held.blocks == blocks), "{at}: no buffer of {blocks} blocks");
        Ok(())
    }

    fn local_capacity(&self) -> usize {
        self.capacity
    }

    fn set_local(&mut self, bytes: &[u8]) -> Result<()> {
        assert!(self.bufs.is_empty(), "blocks are still mapped");
        assert!(bytes.len() <= self.capacity, "more than the inode has room for");
        self.size = bytes.len() as u64;
        self.local = Some(bytes.to_vec());
        Ok(())
    }

    fn set_extents(&mut self) -> Result<()> {
        assert!(self.bufs.is_empty(), "blocks are mapped");
        self.local = None;
        Ok(())
    }

    fn remove_fork(&mut self) -> Result<()> {
        Ok(())
    }

    fn set_size(&mut self, bytes: u64) {
        self.size = bytes;
    }
}
