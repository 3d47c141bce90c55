//! Block maps of forks: where a fork's blocks lie.
//!
//! A map is read whole, at its first use, into an immutable list that is looked up without a lock. Every extent
//! in it lies within one group of the volume, begins at or behind the end of the one before, and there are as many
//! as the inode says: a damaged tree cannot lead round in circles, as its first repeated leaf breaks the order.

mod file;
mod fork;
mod shared;

pub use file::FileMap;
pub use fork::InodeFork;
pub(crate) use shared::{SharedRun, shared_run};

use crate::buf::BufCache;
use crate::error::{Error, Result};
use crate::inode::ForkState;
use xfs_format::bmbt::{BmbtRecord, BmbtRoot, Extent, inline_extents};
use xfs_format::btree::{Bmbt, Node, Tree};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::inode::ForkFormat;
use xfs_format::types::{FileBlock, FsBlock, InodeNumber};

/// What is known of a block of a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapped {
    /// Nothing is mapped in this run: first block, and the block behind it (`None`: it never ends).
    Hole(FileBlock, Option<FileBlock>),
    /// The extent that holds the block.
    Extent(Extent),
}

/// The extents of a fork, in order.
#[derive(Debug, Default)]
pub struct ExtentList {
    /// In the packed form: 16 bytes each.
    records: Box<[BmbtRecord]>,
}

impl ExtentList {
    /// What lies at `block`.
    pub fn lookup(&self, block: FileBlock) -> Mapped {
        let behind = self.records.partition_point(|record| record.startoff() <= block.0);
        let before = behind.checked_sub(1).and_then(|index| self.records.get(index)).map(BmbtRecord::unpack);
        match before {
            Some(extent) if block < extent.end() => Mapped::Extent(extent),
            before => {
                let start = before.map_or(FileBlock(0), |extent| extent.end());
                let end = self.records.get(behind).map(|record| FileBlock(record.startoff()));
                Mapped::Hole(start, end)
            }
        }
    }

    /// The first mapped block at or behind `from`.
    pub fn next_mapped(&self, from: FileBlock) -> Option<FileBlock> {
        match self.lookup(from) {
            Mapped::Extent(_) => Some(from),
            Mapped::Hole(_, end) => end,
        }
    }

    /// The first block at or behind `from` that is not mapped.
    pub fn next_unmapped(&self, from: FileBlock) -> FileBlock {
        let mut at = from;
        while let Mapped::Extent(extent) = self.lookup(at) {
            at = extent.end();
        }
        at
    }

    /// The block behind the last mapped one.
    pub fn end(&self) -> FileBlock {
        self.records.last().map_or(FileBlock(0), |record| record.unpack().end())
    }

    /// All extents, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Extent> + '_ {
        self.records.iter().map(BmbtRecord::unpack)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Bytes of memory, for the cache.
    pub(crate) fn weight(&self) -> u64 {
        size_of_val(&*self.records) as u64 + 64
    }
}

/// Reads a fork's map.
pub(crate) fn load(
    bufs: &BufCache,
    geometry: &Geometry,
    ino: InodeNumber,
    fork: &ForkState,
) -> Result<ExtentList> {
    // Extents are not taken on trust: a small reservation, and what really is there after that.
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
    Ok(ExtentList { records: loader.records.into() })
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
    /// Takes in the subtree at `block`. As deep as the tree has levels, which are checked on the way down.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn list(extents: &[(u64, u64, u32)]) -> ExtentList {
        let pack = |&(startoff, startblock, blockcount): &(u64, u64, u32)| {
            let (startoff, startblock) = (FileBlock(startoff), FsBlock(startblock));
            Extent { startoff, startblock, blockcount, unwritten: false }.pack()
        };
        ExtentList { records: extents.iter().map(pack).collect() }
    }

    #[test]
    fn lookups_find_extents_and_the_holes_between() {
        let list = list(&[(5, 100, 3), (8, 200, 2), (20, 300, 1)]);
        assert_eq!(list.lookup(FileBlock(0)), Mapped::Hole(FileBlock(0), Some(FileBlock(5))));
        let Mapped::Extent(extent) = list.lookup(FileBlock(7)) else { panic!("mapped") };
        assert_eq!(extent.startblock, FsBlock(100));
        let Mapped::Extent(extent) = list.lookup(FileBlock(8)) else { panic!("mapped") };
        assert_eq!(extent.startblock, FsBlock(200));
        assert_eq!(list.lookup(FileBlock(15)), Mapped::Hole(FileBlock(10), Some(FileBlock(20))));
        assert_eq!(list.lookup(FileBlock(21)), Mapped::Hole(FileBlock(21), None));
        assert_eq!(list.next_mapped(FileBlock(9)), Some(FileBlock(9)));
        assert_eq!(list.next_mapped(FileBlock(10)), Some(FileBlock(20)));
        assert_eq!(list.next_mapped(FileBlock(21)), None);
        assert_eq!(list.next_unmapped(FileBlock(6)), FileBlock(10));
        assert_eq!(list.next_unmapped(FileBlock(12)), FileBlock(12));
        assert_eq!(list.next_unmapped(FileBlock(20)), FileBlock(21));
        assert_eq!(ExtentList::default().lookup(FileBlock(3)), Mapped::Hole(FileBlock(0), None));
    }
}
