//! BUI and BUD: intent and done item for a change of a block map.

use super::update::{Update, operations, sealed, split_flags};
use super::{MapExtent, check_extent, check_inode, check_range};
use crate::error::FormatError;
use crate::geometry::Geometry;
use crate::log::item::ItemType;
use crate::types::{FileBlock, FsBlock, InodeNumber};

operations! {
    /// How a block map changes.
    BmapOp {
        /// An extent comes in where there was a hole.
        Map = 1,
        /// An extent goes, and leaves a hole.
        Unmap = 2,
    }
}

/// A change of an inode's block map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BmapUpdate {
    /// What to do.
    pub op: BmapOp,
    /// The inode.
    pub ino: InodeNumber,
    /// First block.
    pub start: FsBlock,
    /// First block in the file.
    pub offset: FileBlock,
    /// Blocks.
    pub len: u32,
    /// The attribute fork, not the data fork.
    pub attr_fork: bool,
    /// Allocated and not written.
    pub unwritten: bool,
    /// Blocks of the realtime section.
    pub realtime: bool,
}

const ATTR_FORK: u32 = 1 << 31;
const UNWRITTEN: u32 = 1 << 30;
const REALTIME: u32 = 1 << 29;

impl BmapUpdate {
    /// Whether the inode lies in the volume, and the blocks within a group: those of the realtime section do not.
    pub fn check(&self, geometry: &Geometry) -> Result<(), FormatError> {
        if self.realtime {
            return Err(FormatError::value(Self::NAME, "flags (realtime)", REALTIME.into()));
        }
        check_inode(Self::NAME, geometry, self.ino)?;
        check_extent(Self::NAME, geometry, self.start, self.len)?;
        check_range(Self::NAME, self.offset, self.len.into())
    }
}

impl sealed::Sealed for BmapUpdate {}

impl Update for BmapUpdate {
    const INTENT: ItemType = ItemType::Bui;
    const DONE: ItemType = ItemType::Bud;
    const NAME: &'static str = "BUI";
    type Raw = MapExtent;

    fn from_raw(raw: &MapExtent) -> Result<Self, FormatError> {
        const KNOWN: u32 = ATTR_FORK | UNWRITTEN | REALTIME;
        let (op, flags) = split_flags(Self::NAME, raw.flags.get(), KNOWN, BmapOp::from_disk)?;
        Ok(Self {
            op,
            ino: InodeNumber(raw.owner.get()),
            start: FsBlock(raw.startblock.get()),
            offset: FileBlock(raw.startoff.get()),
            len: raw.len.get(),
            attr_fork: flags & ATTR_FORK != 0,
            unwritten: flags & UNWRITTEN != 0,
            realtime: flags & REALTIME != 0,
        })
    }

    fn to_raw(&self) -> MapExtent {
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let flags =
            flag(self.attr_fork, ATTR_FORK) | flag(self.unwritten, UNWRITTEN) | flag(self.realtime, REALTIME);
        MapExtent {
            owner: self.ino.0.into(),
            startblock: self.start.0.into(),
            startoff: self.offset.0.into(),
            len: self.len.into(),
            flags: (flags | self.op as u32).into(),
        }
    }
}
