//! A fork in plain memory, for tests and fuzz targets of fork readers.
//!
//! Blocks pass the same verifiers as those from a device. [`MemoryFork::seal`] corrects checksum and identity of
//! damaged blocks, so that the damage gets as far as the readers.

mod buffers;
mod edit;

pub use buffers::{EditFork, Settled};

use crate::buf::Buf;
use crate::error::{Error, Result};
use crate::fork::Fork;
use std::collections::BTreeMap;
use xfs_format::checksum;
use xfs_format::dir::LEAF_SPACE;
use xfs_format::error::FormatError;
use xfs_format::geometry::{DataBlocks, Geometry};
use xfs_format::types::{DiskAddr, FileBlock, FsBlock, InodeNumber, Uuid};
use xfs_format::verify::{Verifier, VerifyContext};

/// A fork in memory.
#[derive(Clone, Debug)]
pub struct MemoryFork {
    geometry: Geometry,
    inode: InodeNumber,
    size: u64,
    local: Option<Vec<u8>>,
    blocks: BTreeMap<u64, (DiskAddr, Vec<u8>)>,
    /// Runs of mapped blocks, by start and end.
    runs: BTreeMap<u64, u64>,
    changes: edit::Changes,
}

/// The geometry of a small volume, as far as fork readers need it.
pub fn geometry(v5: bool, block_log: u8, dir_block_log: u8) -> Geometry {
    Geometry {
        v5,
        meta_uuid: Uuid([7; 16]),
        uuid: Uuid([7; 16]),
        block_size: 1 << block_log,
        block_log,
        sector_size: 512,
        inode_size: if v5 { 512 } else { 256 },
        inodes_per_block_log: block_log - if v5 { 9 } else { 8 },
        dir_block_log,
        size: DataBlocks::new(1 << 20),
        ag_blocks: 1 << 18,
        ag_block_log: 18,
        root: InodeNumber(128),
        metadir_root: None,
        inode_align: 4,
        sparse_inode_align: if v5 { 1 } else { 0 },
        max_inode_percent: 25,
        log: (FsBlock(1 << 17), 1 << 12),
        ftype: v5,
        sparse_inodes: v5,
        bigtime: v5,
        nrext64: false,
        finobt: v5,
        inobt_counts: v5,
        rmapbt: false,
        reflink: v5,
        parent_pointers: false,
        ascii_ci: false,
    }
}

impl MemoryFork {
    /// A fork without blocks.
    pub fn new(geometry: Geometry, inode: InodeNumber, size: u64) -> Self {
        Self {
            geometry,
            inode,
            size,
            local: None,
            blocks: BTreeMap::new(),
            runs: BTreeMap::new(),
            changes: edit::Changes::default(),
        }
    }

    /// Puts the fork into the inode.
    pub fn set_local(&mut self, bytes: Vec<u8>) {
        self.local = Some(bytes);
    }

    /// The bytes inside the inode, for changing them.
    pub fn local_mut(&mut self) -> Option<&mut Vec<u8>> {
        self.local.as_mut()
    }

    /// Maps one block. The bytes are cut or zero-filled to the size of a block.
    pub fn map(&mut self, at: FileBlock, daddr: DiskAddr, mut bytes: Vec<u8>) {
        bytes.resize(self.geometry.block_size as usize, 0);
        self.put(at.0, daddr, bytes);
    }

    /// Removes one block.
    pub fn unmap(&mut self, at: FileBlock) {
        self.take(at.0);
    }

    fn put(&mut self, at: u64, daddr: DiskAddr, bytes: Vec<u8>) {
        if self.blocks.insert(at, (daddr, bytes)).is_some() {
            return;
        }
        let end = self.runs.remove(&(at + 1)).unwrap_or(at + 1);
        let before = self.runs.range_mut(..at).next_back().filter(|(_, before)| **before == at);
        match before {
            Some((_, before)) => *before = end,
            None => drop(self.runs.insert(at, end)),
        }
    }

    fn take(&mut self, at: u64) -> bool {
        if self.blocks.remove(&at).is_none() {
            return false;
        }
        if let Some((&start, &end)) = self.runs.range(..=at).next_back() {
            self.runs.remove(&start);
            if start < at {
                self.runs.insert(start, at);
            }
            if at + 1 < end {
                self.runs.insert(at + 1, end);
            }
        }
        true
    }

    /// The blocks that are mapped.
    pub fn mapped(&self) -> impl Iterator<Item = FileBlock> {
        self.blocks.keys().map(|&at| FileBlock(at))
    }

    /// A mapped block, for changing it.
    pub fn block_mut(&mut self, at: FileBlock) -> Option<&mut Vec<u8>> {
        self.blocks.get_mut(&at.0).map(|(_, bytes)| bytes)
    }

    /// Sets the checksum, UUID, owner and address in the buffer of `blocks` blocks at `at`, as far as its magic tells
    /// where they are.
    pub fn seal(&mut self, at: FileBlock, blocks: u32) {
        let Some((daddr, mut bytes)) = self.gather(at, blocks) else {
            return;
        };
        seal_block(&mut bytes, daddr, self.geometry.meta_uuid, self.inode);
        for (nth, part) in (at.0..).zip(bytes.chunks_exact(self.geometry.block_size as usize)) {
            if let Some((_, block)) = self.blocks.get_mut(&nth) {
                block.copy_from_slice(part);
            }
        }
    }

    /// Seals all buffers, each of `blocks` blocks.
    pub fn seal_all(&mut self, blocks: u32) {
        for at in self.blocks.keys().copied().collect::<Vec<_>>() {
            if at.is_multiple_of(blocks.into()) {
                self.seal(FileBlock(at), blocks);
            }
        }
    }

    /// A fork from arbitrary bytes: the first eight are its parameters, the others its content. The content goes into
    /// the inode, or into blocks at the start and at the place of a directory's index.
    pub fn from_fuzz(data: &[u8], directory: bool) -> Option<Self> {
        let (&[flags, logs, split, size, ..], rest) = data.split_first_chunk::<8>()?;
        let v5 = flags & 1 != 0;
        let block_log = if v5 { 10 } else { 9 } + (logs & 3);
        let dir_block_log = if directory { (logs >> 2) & 3 } else { 0 };
        let mut geometry = geometry(v5, block_log, dir_block_log);
        geometry.ftype = v5 || flags & 2 != 0;
        geometry.ascii_ci = flags & 4 != 0;
        let mut fork = Self::new(geometry, InodeNumber(131), 0);
        if flags & 8 != 0 {
            fork.size = rest.len() as u64;
            fork.set_local(rest.to_vec());
            return Some(fork);
        }
        let block_size = 1usize << block_log;
        let index = if directory { LEAF_SPACE >> block_log } else { u64::from(split) };
        for (nth, block) in (0u64..).zip(rest.chunks(block_size)) {
            let at = nth.checked_sub(split.into()).map_or(nth, |behind| index + behind);
            fork.map(FileBlock(at), DiskAddr((1000 + nth) << (block_log - 9)), block.to_vec());
        }
        fork.size = u64::from(size) << block_log;
        if flags & 16 != 0 {
            fork.seal_all(1 << dir_block_log);
        }
        Some(fork)
    }

    /// The bytes of `blocks` blocks at `at`, and the address of the first. `None` if one is not mapped.
    fn gather(&self, at: FileBlock, blocks: u32) -> Option<(DiskAddr, Vec<u8>)> {
        let daddr = self.blocks.get(&at.0)?.0;
        let mut bytes = Vec::new();
        for nth in 0..u64::from(blocks) {
            bytes.extend_from_slice(&self.blocks.get(&(at.0.checked_add(nth)?))?.1);
        }
        Some((daddr, bytes))
    }
}

impl Fork for MemoryFork {
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
        let Some((daddr, bytes)) = self.current(at, blocks) else {
            let problem = FormatError::value(verifier.name, "unmapped block", at.0);
            return Err(Error::corrupt_inode(self.inode, problem));
        };
        let ctx = VerifyContext { v5: self.geometry.v5, meta_uuid: self.geometry.meta_uuid, daddr };
        (verifier.check)(&bytes, &ctx)
            .map_err(|problem| Error::corrupt_block(daddr, Some(self.inode), problem))?;
        Ok(Buf::new(daddr, bytes.into()))
    }

    fn next_mapped(&self, from: FileBlock) -> Result<Option<FileBlock>> {
        Ok(self.blocks.range(from.0..).next().map(|(&at, _)| FileBlock(at)))
    }

    fn next_unmapped(&self, from: FileBlock) -> Result<FileBlock> {
        let run = self.runs.range(..=from.0).next_back();
        Ok(FileBlock(run.map_or(from.0, |(_, &end)| end.max(from.0))))
    }
}

/// Offset of the checksum in a v5 block of a directory, attribute fork or symlink.
fn checksum_place(bytes: &[u8]) -> Option<usize> {
    places(bytes).map(|[checksum, ..]| checksum)
}

/// Offsets of checksum, address, UUID and owner.
fn places(bytes: &[u8]) -> Option<[usize; 4]> {
    let word = |at: usize| bytes.get(at..at + 4).and_then(|word| word.first_chunk::<4>().copied());
    match (word(0), word(8)) {
        (Some([b'X', b'D', b'B' | b'D' | b'F', b'3']), _) => Some([4, 8, 24, 40]),
        (Some([b'X', b'A', b'R', b'M'] | [b'X', b'S', b'L', b'M']), _) => Some([12, 40, 16, 32]),
        (_, Some([0x3d, 0xf1 | 0xff, ..] | [0x3e, 0xbe, ..] | [0x3b, 0xee, ..])) => Some([12, 16, 32, 48]),
        _ => None,
    }
}

/// Writes address, UUID, owner and checksum into a v5 block of a directory, attribute fork or symlink.
fn seal_block(bytes: &mut [u8], daddr: DiskAddr, uuid: Uuid, owner: InodeNumber) {
    let Some(places) = places(bytes) else { return };
    let [crc_at, daddr_at, uuid_at, owner_at] = places;
    let mut put = |at: usize, value: &[u8]| {
        if let Some(place) = bytes.get_mut(at..at + value.len()) {
            place.copy_from_slice(value);
        }
    };
    put(daddr_at, &daddr.0.to_be_bytes());
    put(uuid_at, &uuid.0);
    put(owner_at, &owner.0.to_be_bytes());
    checksum::store(bytes, crc_at);
}
