//! RUI and RUD: intent and done item for changes of reverse mappings.

use super::update::{Update, operations, sealed, split_flags};
use super::{MapExtent, check_extent, check_inode, check_range};
use crate::error::FormatError;
use crate::geometry::Geometry;
use crate::log::item::ItemType;
use crate::types::{FileBlock, FsBlock, InodeNumber};

operations! {
    /// How a reverse mapping changes.
    RmapOp {
        /// A file gets blocks that no one else has.
        Map = 1,
        /// A file gets blocks that others may have too.
        MapShared = 2,
        /// A file loses blocks that no one else has.
        Unmap = 3,
        /// A file loses blocks that others may have too.
        UnmapShared = 4,
        /// Blocks that no one else has become written, or unwritten.
        Convert = 5,
        /// Blocks that others may have too become written, or unwritten.
        ConvertShared = 6,
        /// Blocks get an owner that is no file.
        Alloc = 7,
        /// Blocks lose an owner that is no file.
        Free = 8,
    }
}

/// A reverse mapping to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RmapUpdate {
    /// What to do.
    pub op: RmapOp,
    /// The inode, or the metadata (`RmapRecord::OWNER_…`).
    pub owner: u64,
    /// First block.
    pub start: FsBlock,
    /// First block in the file; 0 for metadata and for blocks of a block map's tree.
    pub offset: FileBlock,
    /// Blocks.
    pub len: u32,
    /// The owner's attribute fork, not its data fork.
    pub attr_fork: bool,
    /// Blocks of the owner's block map tree.
    pub bmbt_block: bool,
    /// Allocated and not written (after a conversion).
    pub unwritten: bool,
}

const ATTR_FORK: u32 = 1 << 31;
const BMBT_BLOCK: u32 = 1 << 30;
const UNWRITTEN: u32 = 1 << 29;

impl RmapUpdate {
    /// Whether the blocks lie within a group, and the owner is possible.
    pub fn check(&self, geometry: &Geometry) -> Result<(), FormatError> {
        check_extent(Self::NAME, geometry, self.start, self.len)?;
        check_range(Self::NAME, self.offset, self.len.into())?;
        // Metadata have negative numbers, -3 to -9.
        let metadata = (-9..=-3).contains(&(self.owner as i64));
        if metadata && matches!(self.op, RmapOp::Alloc | RmapOp::Free) {
            return Ok(());
        }
        check_inode(Self::NAME, geometry, InodeNumber(self.owner))
    }
}

impl sealed::Sealed for RmapUpdate {}

impl Update for RmapUpdate {
    const INTENT: ItemType = ItemType::Rui;
    const DONE: ItemType = ItemType::Rud;
    const NAME: &'static str = "RUI";
    type Raw = MapExtent;

    fn from_raw(raw: &MapExtent) -> Result<Self, FormatError> {
        const KNOWN: u32 = ATTR_FORK | BMBT_BLOCK | UNWRITTEN;
        let (op, flags) = split_flags(Self::NAME, raw.flags.get(), KNOWN, RmapOp::from_disk)?;
        Ok(Self {
            op,
            owner: raw.owner.get(),
            start: FsBlock(raw.startblock.get()),
            offset: FileBlock(raw.startoff.get()),
            len: raw.len.get(),
            attr_fork: flags & ATTR_FORK != 0,
            bmbt_block: flags & BMBT_BLOCK != 0,
            unwritten: flags & UNWRITTEN != 0,
        })
    }

    fn to_raw(&self) -> MapExtent {
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let flags = flag(self.attr_fork, ATTR_FORK)
            | flag(self.bmbt_block, BMBT_BLOCK)
            | flag(self.unwritten, UNWRITTEN);
        MapExtent {
            owner: self.owner.into(),
            startblock: self.start.0.into(),
            startoff: self.offset.0.into(),
            len: self.len.into(),
            flags: (flags | self.op as u32).into(),
        }
    }
}
