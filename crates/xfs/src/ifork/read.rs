//! Reading a fork's map from the device.
//!
//! Invariant: every extent of the list lies within one group of the volume and begins at or past the end of the
//! previous one, and there are as many as the inode says. A damaged tree cannot cause an endless loop, because its
//! first repeated leaf breaks the order.

use super::{ExtentList, ForkState};
use crate::buf::BufCache;
use crate::error::{Error, Result};
use fileio::testing::point;
use xfs_format::bmbt::{BmbtRecord, BmbtRoot, inline_extents};
use xfs_format::btree::{Bmbt, Node, Tree};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::inode::ForkFormat;
use xfs_format::types::{FileBlock, FsBlock, InodeNumber};

/// Reads a fork's map.
pub(crate) fn load(
    bufs: &BufCache,
    geometry: &Geometry,
    ino: InodeNumber,
    fork: &ForkState,
) -> Result<ExtentList> {
    // Do not trust the count: reserve a little, and then grow with what is really there.
    let records = Vec::with_capacity(usize::try_from(fork.nextents.min(4096)).unwrap_or(0));
    let mut loader = Loader { bufs, geometry, ino, most: fork.nextents, records, end: FileBlock(0) };
    let wrap = |problem| Error::corrupt_inode(ino, problem);
    match fork.format {
        ForkFormat::Dev | ForkFormat::Local => {}
        ForkFormat::Extents => {
            let records = inline_extents(&fork.bytes, fork.nextents).map_err(wrap)?;
            loader.append(records).map_err(wrap)?;
        }
        ForkFormat::Btree => {
            let root = BmbtRoot::view(&fork.bytes).map_err(wrap)?;
            for child in root.pointers() {
                loader.visit(child, root.level() - 1)?;
            }
        }
    }
    if loader.records.len() as u64 != fork.nextents {
        let found = loader.records.len() as u64;
        return Err(wrap(FormatError::mismatch("inode", "extent count", found, fork.nextents)));
    }
    Ok(ExtentList::from_sorted(&loader.records))
}

struct Loader<'a> {
    bufs: &'a BufCache,
    geometry: &'a Geometry,
    ino: InodeNumber,
    most: u64,
    records: Vec<BmbtRecord>,
    end: FileBlock,
}

impl Loader<'_> {
    /// Reads the subtree at `block`. The recursion is as deep as the tree; levels are checked on the way down.
    fn visit(&mut self, block: FsBlock, level: u16) -> Result<()> {
        let geometry = self.geometry;
        let daddr = geometry.extent_daddr(block, 1).ok_or_else(|| {
            Error::corrupt_inode(self.ino, FormatError::value(Bmbt::NAME, "child pointer", block.0))
        })?;
        let ino = self.ino;
        let wrap = |problem| Error::corrupt_block(daddr, Some(ino), problem);
        let buf = self
            .bufs
            .read(daddr, geometry.block_size.into(), Bmbt::verifier())
            .map_err(|error| error.of_inode(ino))?;
        point("a block of a map is read");
        let node = Node::<Bmbt>::view(&buf, geometry.v5).map_err(wrap)?;
        if node.level() != level {
            let problem = FormatError::mismatch(Bmbt::NAME, "level", node.level().into(), level.into());
            return Err(wrap(problem));
        }
        if let Some(owner) = node.owner()
            && owner != ino.0
        {
            return Err(wrap(FormatError::mismatch(Bmbt::NAME, "owner", owner, ino.0)));
        }
        if node.count() == 0 {
            return Err(wrap(FormatError::value(Bmbt::NAME, "record count", 0)));
        }
        if level == 0 {
            return self.append(node.records()).map_err(wrap);
        }
        for child in (0..node.count()).filter_map(|index| node.pointer(index)) {
            self.visit(FsBlock(child), level - 1)?;
        }
        Ok(())
    }

    fn append(&mut self, records: &[BmbtRecord]) -> Result<(), FormatError> {
        for record in records {
            let extent = record.unpack();
            extent.check(self.geometry)?;
            if extent.startoff < self.end {
                let (found, expected) = (extent.startoff.0, self.end.0);
                return Err(FormatError::mismatch("extent", "order of extents", found, expected));
            }
            if self.records.len() as u64 >= self.most {
                return Err(FormatError::value("inode", "extent count", self.most));
            }
            self.end = extent.end();
            self.records.push(*record);
        }
        Ok(())
    }
}
