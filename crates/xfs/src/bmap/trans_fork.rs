//! A fork of an inode that a transaction has joined, as directory, attribute and symlink code changes it, and (in
//! [`edit`](super::edit)) the editor of its map.
//!
//! This module settles the boundary between the two forks of an inode: forkoff moves as far as the content of both
//! allows.
//!
//! Invariant: content lies outside of the inode only if it would not fit into its fork. Kernels insist on that for
//! maps, and older ones for targets of symbolic links. So such an inode keeps its attribute fork when its last
//! attribute is removed.

use crate::agf;
use crate::alloc::{Purpose, Request, Target};
use crate::buf::{Buf, BufMap, BufMaps};
use crate::defer;
use crate::error::{Error, Result};
use crate::fork::{Fork, ForkBuf, ForkMut};
use crate::ifork::{self, ExtentList};
use crate::inode::{ForkKind, ForkState};
use crate::trans::{BufIndex, Trans};
use blockdev::Durability;
use std::ops::Range;
use std::sync::Arc;
use xfs_format::bmbt::{BmbtRoot, Extent};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::inode::{CORE_LEN_V3, ForkFormat};
use xfs_format::log::InodeFields;
use xfs_format::types::{AgBlock, DiskAddr, FileBlock, FsBlock, InodeNumber};
use xfs_format::verify::Verifier;

/// A data fork keeps room for a tree root with three children, an attribute fork for one with two.
const DATA_BYTES_MIN: usize = 56;
const ATTR_BYTES_MIN: usize = 40;
/// The size of a device number. It is also the unit of forkoff.
const DEVICE_BYTES: usize = 8;
/// Usual size of a data fork beside an attribute fork, as long as the attributes fit behind it.
pub(crate) const DATA_BYTES_USUAL: usize = 200;
/// The same for an inode that is made with an attribute fork.
const DATA_BYTES_OF_NEW: usize = 192;
/// A local attribute fork without attributes: a length and a count.
const NO_ATTRS: [u8; 4] = [0, 4, 0, 0];

/// One fork of one joined inode.
#[derive(Debug)]
pub struct TransFork<'t, 'v> {
    pub(super) trans: &'t mut Trans<'v>,
    pub(super) ino: InodeNumber,
    pub(super) kind: ForkKind,
}

impl<'t, 'v> TransFork<'t, 'v> {
    /// The fork of a joined inode.
    pub fn new(trans: &'t mut Trans<'v>, ino: InodeNumber, kind: ForkKind) -> Self {
        Self { trans, ino, kind }
    }

    /// The transaction.
    pub fn trans(&mut self) -> &mut Trans<'v> {
        self.trans
    }

    /// Whether a joined inode has an attribute fork, or room for one beside its content.
    pub fn has_room_for_attrs(trans: &'t mut Trans<'v>, ino: InodeNumber) -> bool {
        let fork = Self::new(trans, ino, ForkKind::Attr);
        fork.trans.inode(ino).has_attrs() || fork.forkoff_for(ATTR_BYTES_MIN).is_some()
    }

    /// The attribute fork of a joined inode. It is made if there is none.
    pub fn attr(trans: &'t mut Trans<'v>, ino: InodeNumber) -> Result<Self> {
        let mut fork = Self::new(trans, ino, ForkKind::Attr);
        if !fork.trans.inode(ino).has_attrs() {
            let start = fork.forkoff_for(ATTR_BYTES_MIN).ok_or(Error::NoSpace)?;
            fork.set_forkoff(start)?;
            fork.trans.makes_attributes = true;
        }
        Ok(fork)
    }

    /// The attribute fork of a joined inode that is being made and has no content yet: empty, and where a kernel places
    /// it.
    pub fn attr_of_new(trans: &'t mut Trans<'v>, ino: InodeNumber) -> Result<Self> {
        let mut fork = Self::new(trans, ino, ForkKind::Attr);
        let format = fork.trans.inode(ino).core().data.format;
        fork.set_forkoff(if format == ForkFormat::Dev { DEVICE_BYTES } else { DATA_BYTES_OF_NEW })?;
        fork.trans.makes_attributes = true;
        Ok(fork)
    }

    pub(super) fn fields(&self) -> InodeFields {
        match self.kind {
            ForkKind::Data => InodeFields::DFORK,
            ForkKind::Attr => InodeFields::AFORK,
        }
    }

    fn state(&self) -> Option<&ForkState> {
        self.trans.inode(self.ino).fork_state(self.kind)
    }

    fn extents(&self) -> Result<Arc<ExtentList>> {
        extents(self.trans, self.ino, self.kind)
    }

    fn maps(&self, at: FileBlock, blocks: u32, verifier: &'static Verifier) -> Result<BufMaps> {
        let geometry = self.trans.geometry();
        match self.state().and_then(ForkState::loaded) {
            Some(extents) => ifork::buf_maps(geometry, self.ino, extents, at, blocks, verifier),
            None => ifork::buf_maps(geometry, self.ino, &*self.extents()?, at, blocks, verifier),
        }
    }

    /// Like [`maps`](Self::maps), for a buffer that will be logged. No kernel can replay a directory block with several
    /// maps: in the log each map is a buffer of its own, which the kernel takes for a whole block.
    fn maps_to_log(&self, at: FileBlock, blocks: u32, verifier: &'static Verifier) -> Result<BufMaps> {
        let maps = self.maps(at, blocks, verifier)?;
        if maps.len() > 1 && self.is_directory() {
            return Err(Error::ScatteredDirectory(self.ino));
        }
        Ok(maps)
    }

    fn is_directory(&self) -> bool {
        self.kind == ForkKind::Data && self.trans.inode(self.ino).is_dir()
    }

    fn literal_bytes(&self) -> usize {
        usize::from(self.trans.geometry().inode_size) - CORE_LEN_V3
    }

    /// Minimum size of the data fork in bytes.
    fn data_need(&self) -> usize {
        let Some(data) = self.trans.inode(self.ino).fork_state(ForkKind::Data) else { return 0 };
        let used = match data.format {
            ForkFormat::Dev => return 8,
            // Local content may outgrow the inode. Then the fork needs the space of a map.
            ForkFormat::Local | ForkFormat::Extents => data.bytes.len(),
            ForkFormat::Btree => {
                BmbtRoot::view(&data.bytes).map_or(data.bytes.len(), |root| 4 + 16 * root.keys().len())
            }
        };
        used.next_multiple_of(8).max(DATA_BYTES_MIN)
    }

    /// Where the attribute fork must begin (offset behind the core) to hold this many bytes. `None` if it cannot.
    fn forkoff_for(&self, bytes: usize) -> Option<usize> {
        let literal = self.literal_bytes();
        let bytes = bytes.next_multiple_of(8).max(ATTR_BYTES_MIN);
        let last = literal.checked_sub(bytes)?;
        if self
            .trans
            .inode(self.ino)
            .fork_state(ForkKind::Data)
            .is_some_and(|data| data.format == ForkFormat::Dev)
        {
            // A device number never grows, so attributes get all the rest. xfs_repair insists on it.
            return Some(DEVICE_BYTES);
        }
        let need = self.data_need().max(8);
        let attr = self.trans.inode(self.ino).core().attr.as_ref();
        let wish = attr.map_or(DATA_BYTES_USUAL, |attr| attr.range.start - CORE_LEN_V3);
        (need <= last).then(|| wish.clamp(need, last))
    }

    /// Moves forkoff, and lays out a tree root in the data fork for the new size.
    fn set_forkoff(&mut self, start: usize) -> Result<()> {
        let inode_size = usize::from(self.trans.geometry().inode_size);
        let inode = self.trans.inode_mut(self.ino, InodeFields::DFORK | InodeFields::AFORK);
        let relaid = match inode.fork_state(ForkKind::Data) {
            Some(data) if data.format == ForkFormat::Btree => {
                let ino = self.ino;
                let root =
                    BmbtRoot::view(&data.bytes).map_err(|problem| Error::corrupt_inode(ino, problem))?;
                let bytes = root.laid_out(start).into_boxed_slice();
                Some(ForkState::with(data.format, data.nextents, bytes, data.loaded().cloned()))
            }
            _ => None,
        };
        inode.set_forkoff(Some(CORE_LEN_V3 + start), inode_size);
        if let Some(fork) = relaid {
            inode.set_fork(ForkKind::Data, fork);
        }
        Ok(())
    }

    /// Whether the data fork lies outside of the inode but would fit into it if it had all the room.
    fn data_would_fit(&self) -> bool {
        let inode = self.trans.inode(self.ino);
        let literal = self.literal_bytes();
        inode.fork_state(ForkKind::Data).is_some_and(|data| match data.format {
            ForkFormat::Btree => data.nextents <= literal as u64 / 16,
            ForkFormat::Extents => inode.is_symlink() && inode.size() <= literal as u64,
            ForkFormat::Local | ForkFormat::Dev => false,
        })
    }

    fn corrupt(&self, check: &'static str, at: FileBlock) -> Error {
        Error::corrupt_inode(self.ino, FormatError::value("fork", check, at.0))
    }
}

impl Fork for TransFork<'_, '_> {
    fn geometry(&self) -> &Geometry {
        self.trans.geometry()
    }

    fn inode(&self) -> InodeNumber {
        self.ino
    }

    fn local(&self) -> Option<&[u8]> {
        let fork = self.state()?;
        (fork.format == ForkFormat::Local).then_some(&*fork.bytes)
    }

    fn size(&self) -> u64 {
        match self.kind {
            ForkKind::Data => self.trans.inode(self.ino).size(),
            ForkKind::Attr => 0,
        }
    }

    fn read(&self, at: FileBlock, blocks: u32, verifier: &'static Verifier) -> Result<Buf> {
        let maps = self.maps(at, blocks, verifier)?;
        self.trans.snapshot_of(&maps, verifier).map_err(|error| error.of_inode(self.ino))
    }

    fn next_mapped(&self, from: FileBlock) -> Result<Option<FileBlock>> {
        Ok(self.extents()?.next_mapped(from))
    }

    fn next_unmapped(&self, from: FileBlock) -> Result<FileBlock> {
        Ok(self.extents()?.next_unmapped(from))
    }
}

impl ForkMut for TransFork<'_, '_> {
    fn read_buf(&mut self, at: FileBlock, blocks: u32, verifier: &'static Verifier) -> Result<ForkBuf> {
        let maps = self.maps(at, blocks, verifier)?;
        let ino = self.ino;
        let slot = self.trans.buf_read(&maps, verifier).map_err(|error| error.of_inode(ino))?;
        let copy = self.trans.cheap_copy(slot);
        let buf = self.trans.snapshot(slot);
        Ok(ForkBuf { at, blocks, verifier, buf, copy, slot: slot.0 })
    }

    fn log_buf(&mut self, buf: ForkBuf, bytes: Arc<[u8]>, changed: &[Range<usize>]) -> Result<()> {
        let slot = BufIndex(buf.slot);
        if self.trans.is_scattered(slot) && self.is_directory() {
            return Err(Error::ScatteredDirectory(self.ino));
        }
        self.trans.replace_bytes(slot, buf.buf, bytes, changed);
        Ok(())
    }

    fn create(&mut self, at: FileBlock, blocks: u32, verifier: &'static Verifier) -> Result<&mut [u8]> {
        let maps = self.maps_to_log(at, blocks, verifier)?;
        let buf = self.trans.buf_get(&maps, verifier)?;
        let len = self.trans.bytes(buf).len();
        Ok(self.trans.bytes_mut(buf, 0..len))
    }

    fn write_around(&mut self, at: FileBlock, bytes: &[u8]) -> Result<()> {
        let geometry = self.trans.geometry();
        let blocks = u32::try_from(bytes.len() >> geometry.block_log).unwrap_or(u32::MAX);
        let mut rest = bytes;
        for map in self.maps(at, blocks, &xfs_format::attr::RAW)? {
            let (now, later) = rest.split_at(usize::try_from(map.len).unwrap_or(usize::MAX).min(rest.len()));
            // The flush before the commit record makes it durable.
            self.trans.mount().device().write(map.daddr.0 << 9, now, Durability::Volatile)?;
            // Blocks may still be cached one by one as they were read for their former owner.
            let size = u64::from(self.trans.geometry().block_size);
            for daddr in (map.daddr.0..map.daddr.0 + (map.len >> 9)).step_by((size >> 9) as usize) {
                self.trans.mount().bufs().forget(BufMap { daddr: DiskAddr(daddr), len: size });
            }
            rest = later;
        }
        Ok(())
    }

    fn daddr(&self, at: FileBlock) -> Result<DiskAddr> {
        let maps = self.maps(at, 1, &xfs_format::attr::RAW)?;
        maps.first().map(|map| map.daddr).ok_or_else(|| self.corrupt("unmapped block", at))
    }

    fn map(&mut self, at: FileBlock, blocks: u32) -> Result<()> {
        let (mut at, mut left) = (at, blocks);
        while left > 0 {
            let near = allocation_target(self.trans, self.ino);
            // A directory block is mapped as a whole or not at all.
            let least = if self.is_directory() { left } else { 1 };
            let request = Request::new(least, left, Purpose::Metadata);
            let got = agf::allocate(self.trans, near, request)?;
            let extent = Extent {
                startoff: at,
                startblock: got.start(self.trans.geometry()),
                blockcount: got.run.len,
                unwritten: false,
            };
            super::map(self.trans, self.ino, self.kind, extent)?;
            at = FileBlock(at.0 + u64::from(got.run.len));
            left -= got.run.len;
        }
        Ok(())
    }

    fn unmap(&mut self, at: FileBlock, blocks: u32) -> Result<()> {
        // What was logged of these blocks must not be replayed over their next content. A remote attribute value was
        // never logged, and as one buffer it might be larger than a buffer in the log can be.
        if self.kind == ForkKind::Data || blocks == 1 {
            let maps = self.maps(at, blocks, &xfs_format::attr::RAW)?;
            let buf = self.trans.buf_get(&maps, &xfs_format::attr::RAW)?;
            self.trans.invalidate(buf);
        }
        let end = FileBlock(at.0 + u64::from(blocks));
        for extent in super::unmap(self.trans, self.ino, self.kind, at..end, usize::MAX)?.freed {
            defer::defer_free(self.trans, self.ino, extent.startblock, extent.blockcount, None)?;
        }
        Ok(())
    }

    fn local_capacity(&self) -> usize {
        match self.kind {
            ForkKind::Data => self.trans.inode(self.ino).core().data.range.len(),
            ForkKind::Attr => self.literal_bytes().saturating_sub(self.data_need().max(8)),
        }
    }

    fn set_local(&mut self, bytes: &[u8]) -> Result<()> {
        if self.kind == ForkKind::Attr {
            let start = self.forkoff_for(bytes.len()).ok_or(Error::NoSpace)?;
            let now =
                self.trans.inode(self.ino).core().attr.as_ref().map(|attr| attr.range.start - CORE_LEN_V3);
            if now != Some(start) {
                self.set_forkoff(start)?;
            }
        }
        let inode = self.trans.inode_mut(self.ino, self.fields());
        inode.set_fork(self.kind, ForkState::with(ForkFormat::Local, 0, bytes.into(), None));
        if self.kind == ForkKind::Data {
            inode.core_mut().size = bytes.len() as u64;
        }
        Ok(())
    }

    fn set_extents(&mut self) -> Result<()> {
        let empty = ForkState::with(ForkFormat::Extents, 0, Box::default(), Some(Arc::default()));
        self.trans.inode_mut(self.ino, self.fields()).set_fork(self.kind, empty);
        Ok(())
    }

    fn remove_fork(&mut self) -> Result<()> {
        if self.kind == ForkKind::Data || !self.trans.inode(self.ino).has_attrs() {
            return Ok(());
        }
        if self.data_would_fit() || self.geometry().parent_pointers {
            return self.set_local(&NO_ATTRS);
        }
        let literal = self.literal_bytes();
        self.set_forkoff(literal)?;
        let inode_size = usize::from(self.trans.geometry().inode_size);
        self.trans.inode_mut(self.ino, InodeFields::DFORK | InodeFields::AFORK).set_forkoff(None, inode_size);
        Ok(())
    }

    fn set_size(&mut self, bytes: u64) {
        if self.kind == ForkKind::Data {
            self.trans.inode_mut(self.ino, InodeFields::CORE).core_mut().size = bytes;
        }
    }
}

/// The map of a joined inode's fork as its transaction has changed it.
pub(crate) fn extents(trans: &Trans<'_>, ino: InodeNumber, kind: ForkKind) -> Result<Arc<ExtentList>> {
    trans.mount().extents(trans.inode(ino), kind)
}

/// Where new blocks of an inode should lie: near the inode.
pub(crate) fn allocation_target(trans: &Trans<'_>, ino: InodeNumber) -> Target {
    let geometry = trans.geometry();
    match geometry.split_inode(ino) {
        Some((ag, inode)) => {
            Target::Near(geometry.join_block(ag, AgBlock(inode.0 >> geometry.inodes_per_block_log)))
        }
        None => Target::Near(FsBlock(0)),
    }
}
