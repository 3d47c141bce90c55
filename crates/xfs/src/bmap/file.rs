//! The map of one open file, as the data path looks it up.
//!
//! A lookup is a binary search in an immutable list: no lock, no allocation, no shared line written. Only files
//! that may share blocks ask the reference count tree on top, and only for those who would write.

use super::{ExtentList, Mapped};
use crate::error::{Error, Result};
use crate::inode::{ForkKind, Inode};
use crate::volume::Volume;
use fileio::{Extent, ExtentState, FileMapping, MapSeq};
use std::sync::Arc;
use xfs_format::types::{FileBlock, FsBlock};

/// A regular file's map, ready for use.
#[derive(Debug)]
pub struct FileMap {
    volume: Arc<Volume>,
    inode: Arc<Inode>,
    extents: Arc<ExtentList>,
}

impl FileMap {
    /// Loads the map of `inode`, which must be a regular file.
    pub(crate) fn new(volume: Arc<Volume>, inode: Arc<Inode>) -> Result<Self> {
        if !inode.is_file() {
            return Err(Error::WrongType { inode: inode.ino(), wanted: "regular file" });
        }
        let extents = volume.extents(&inode, ForkKind::Data)?;
        Ok(Self { volume, inode, extents })
    }

    /// The file's inode.
    pub fn inode(&self) -> &Arc<Inode> {
        &self.inode
    }

    /// The byte behind the last one that is mapped; may lie before or behind the end of the file.
    pub fn map_end(&self) -> u64 {
        self.bytes(self.extents.end())
    }

    /// A block's first byte; files have no bytes beyond 2^64, whatever their maps say.
    fn bytes(&self, block: FileBlock) -> u64 {
        let log = self.volume.geometry().block_log;
        if block.0 > u64::MAX >> log { u64::MAX } else { block.0 << log }
    }

    fn hole(&self, start: FileBlock, end: Option<FileBlock>) -> Extent {
        let offset = self.bytes(start);
        let end = end.map_or(u64::MAX, |end| self.bytes(end));
        Extent { offset, len: end - offset, state: ExtentState::Hole }
    }

    /// The run that holds byte `offset`; if sharing is to be told, cut where it begins or ends.
    fn run_at(&self, offset: u64, tell_sharing: bool) -> Result<(Extent, MapSeq)> {
        let block = FileBlock(offset >> self.volume.geometry().block_log);
        let extent = match self.extents.lookup(block) {
            Mapped::Hole(start, end) => self.hole(start, end),
            Mapped::Extent(extent) => self.mapped(extent, block, tell_sharing)?,
        };
        Ok((extent, self.seq()))
    }

    /// The run of a mapped extent that holds `block`.
    fn mapped(
        &self,
        extent: xfs_format::bmbt::Extent,
        block: FileBlock,
        tell_sharing: bool,
    ) -> Result<Extent> {
        let geometry = self.volume.geometry();
        let (mut start, mut count) = (extent.startoff, u64::from(extent.blockcount));
        let mut from = extent.startblock;
        let mut shared = false;
        if tell_sharing && self.inode.is_reflinked() && !extent.unwritten {
            let skip = block.0 - start.0;
            (start, from, count) = (block, FsBlock(from.0 + skip), count - skip);
            let run = self.volume.shared_run(from, count)?;
            (count, shared) = (run.blocks, run.shared);
        }
        // Extents were checked when the list was made; a start within one stays within its group.
        let daddr = geometry.split_block(from).map_or(0, |(ag, block)| geometry.daddr_of(ag, block).0);
        let device = daddr << 9;
        let state = match (extent.unwritten, shared) {
            (true, _) => ExtentState::Unwritten(device),
            (false, true) => ExtentState::Shared(device),
            (false, false) => ExtentState::Written(device),
        };
        let offset = self.bytes(start);
        let len = self.bytes(FileBlock(start.0 + count)) - offset;
        Ok(Extent { offset, len, state })
    }
}

impl FileMapping for FileMap {
    type Error = Error;

    fn size(&self) -> u64 {
        self.inode.size()
    }

    fn block_size(&self) -> u32 {
        self.volume.geometry().block_size
    }

    fn lookup(&self, offset: u64) -> Result<(Extent, MapSeq)> {
        self.run_at(offset, true)
    }

    fn lookup_to_read(&self, offset: u64) -> Result<(Extent, MapSeq)> {
        self.run_at(offset, false)
    }

    fn seq(&self) -> MapSeq {
        // Nothing changes maps yet.
        MapSeq(0)
    }
}
