//! CUI and CUD: intent and done item for changes of reference counts.

use super::check_extent;
use super::update::{Update, operations, sealed, split_flags};
use crate::error::FormatError;
use crate::geometry::Geometry;
use crate::log::host;
use crate::log::item::ItemType;
use crate::types::FsBlock;
use std::mem::size_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

operations! {
    /// How a reference count changes.
    RefcountOp {
        /// The blocks get one more owner.
        Increase = 1,
        /// The blocks lose an owner. The last one frees them.
        Decrease = 2,
        /// Blocks are staged for copy-on-write.
        AllocCow = 3,
        /// Blocks are no longer staged: a file has them, or they are freed next.
        FreeCow = 4,
    }
}

/// A reference count to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefcountUpdate {
    /// What to do.
    pub op: RefcountOp,
    /// First block.
    pub start: FsBlock,
    /// Blocks.
    pub len: u32,
}

/// `xfs_phys_extent`: one update of a CUI. In the host's byte order.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct PhysExtent {
    startblock: host::U64,
    len: host::U32,
    /// Low byte: what to do.
    flags: host::U32,
}

impl RefcountUpdate {
    /// Whether the blocks lie within a group.
    pub fn check(&self, geometry: &Geometry) -> Result<(), FormatError> {
        check_extent(Self::NAME, geometry, self.start, self.len)
    }
}

impl sealed::Sealed for RefcountUpdate {}

impl Update for RefcountUpdate {
    const INTENT: ItemType = ItemType::Cui;
    const DONE: ItemType = ItemType::Cud;
    const NAME: &'static str = "CUI";
    type Raw = PhysExtent;

    fn from_raw(raw: &PhysExtent) -> Result<Self, FormatError> {
        let (op, _) = split_flags(Self::NAME, raw.flags.get(), 0, RefcountOp::from_disk)?;
        Ok(Self { op, start: FsBlock(raw.startblock.get()), len: raw.len.get() })
    }

    fn to_raw(&self) -> PhysExtent {
        PhysExtent { startblock: self.start.0.into(), len: self.len.into(), flags: (self.op as u32).into() }
    }
}

const _: () = assert!(size_of::<PhysExtent>() == 16);
