//! Intents and dones: work of several transactions that recovery must finish where only its beginning is in
//! the log.
//!
//! All in the host's byte order. Invariants:
//! - an intent that parsed has all the updates it counts and nothing behind them, and no region can count more than its
//!   bytes hold;
//! - each update is of a known kind and has only known flags: it is either understood or refused. So a parsed intent
//!   encodes to the same bytes again;
//! - whether places lie in the volume is checked separately (`check`), as the volume may have grown since the
//!   log was written.

mod attr;
mod bmap;
mod exchange;
mod free;
mod refcount;
mod rmap;
mod update;

pub use attr::{AttrChange, AttrIntent, AttrOp};
pub use bmap::{BmapOp, BmapUpdate};
pub use exchange::{Exchange, ExchangeFlags, ExchangeIntent};
pub use free::{Extent, Extents, FreeIntent, encode_free_intent, free_intent_bytes};
pub use refcount::{RefcountOp, RefcountUpdate};
pub use rmap::{RmapOp, RmapUpdate};
pub use update::{Update, UpdateIntent};

use super::host;
use super::item::{ItemType, fixed};
use crate::error::FormatError;
use crate::geometry::Geometry;
use crate::types::{FileBlock, FsBlock, InodeNumber};
use std::mem::size_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// RUI: reverse mappings to be changed.
pub type RmapIntent<'a> = UpdateIntent<'a, RmapUpdate>;
/// CUI: reference counts to be changed.
pub type RefcountIntent<'a> = UpdateIntent<'a, RefcountUpdate>;
/// BUI: a block map to be changed.
pub type BmapIntent<'a> = UpdateIntent<'a, BmapUpdate>;

/// What EFI, EFD, RUI, CUI and BUI begin with. In the host's byte order.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
struct IntentHeader {
    kind: host::U16,
    regions: host::U16,
    nextents: host::U32,
    id: host::U64,
}

impl IntentHeader {
    fn new(kind: ItemType, count: usize, id: u64) -> Self {
        Self { kind: (kind as u16).into(), regions: 1.into(), nextents: (count as u32).into(), id: id.into() }
    }
}

/// RUD, CUD, BUD, ATTRD, XMD: an intent was carried out. In the host's byte order.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Done {
    kind: host::U16,
    regions: host::U16,
    pad: host::U32,
    /// The intent's id.
    pub intent_id: host::U64,
}

impl Done {
    /// Bytes of any of them.
    pub const BYTES: usize = size_of::<Self>();

    /// The end of an intent that has this id. The kind is that of the done item.
    pub fn new(kind: ItemType, intent_id: u64) -> Self {
        Self { kind: (kind as u16).into(), regions: 1.into(), pad: 0.into(), intent_id: intent_id.into() }
    }

    pub(super) fn parse<'a>(name: &'static str, region: &'a [u8]) -> Result<&'a Self, FormatError> {
        fixed::<Self>(name, region).map(|(done, _)| done)
    }

    /// Writes it into `to`, which is [`BYTES`](Self::BYTES) long.
    pub fn encode(&self, to: &mut [u8]) {
        to.copy_from_slice(self.as_bytes());
    }
}

/// `xfs_map_extent`: one update of a RUI or BUI. In the host's byte order.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct MapExtent {
    /// The owner (RUI), or the inode (BUI).
    owner: host::U64,
    startblock: host::U64,
    startoff: host::U64,
    len: host::U32,
    /// Low byte: what to do; high bits: which fork, and what it is.
    flags: host::U32,
}

/// Low byte of flags: what to do.
const OPERATION: u32 = 0xff;

/// The counted array after an intent's header: all of it, or an error. The bytes after it are given as
/// well.
fn counted<'a, T>(
    name: &'static str,
    header: &IntentHeader,
    rest: &'a [u8],
) -> Result<(&'a [T], &'a [u8]), FormatError>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    let count = header.nextents.get();
    let wrong = || FormatError::value(name, "number of extents", count.into());
    if count == 0 {
        return Err(wrong());
    }
    <[T]>::ref_from_prefix_with_elems(rest, count as usize).map_err(|_| wrong())
}

/// Whether a run of blocks is empty, reaches out of its group, or into the group's headers.
fn check_extent(
    name: &'static str,
    geometry: &Geometry,
    start: FsBlock,
    len: u32,
) -> Result<(), FormatError> {
    let wrong = || FormatError::value(name, "extent", start.0);
    let (ag, block) = geometry.split_block(start).ok_or_else(wrong)?;
    let headers = (4 * geometry.sector_size).div_ceil(geometry.block_size);
    let end = u64::from(block.0) + u64::from(len);
    let within = block.0 >= headers && end <= u64::from(geometry.ag_blocks_of(ag));
    if len == 0 || !within { Err(wrong()) } else { Ok(()) }
}

/// Whether an inode's number lies outside of the volume. Owners that are metadata do.
fn check_inode(name: &'static str, geometry: &Geometry, ino: InodeNumber) -> Result<(), FormatError> {
    let known = geometry.split_inode(ino).is_some();
    if known { Ok(()) } else { Err(FormatError::value(name, "inode", ino.0)) }
}

/// Whether a run of a file's blocks is empty, or reaches past the last block that a file can have.
fn check_range(name: &'static str, offset: FileBlock, len: u64) -> Result<(), FormatError> {
    const MAX: u64 = 1 << 54;
    let within = offset.0.checked_add(len).is_some_and(|end| len > 0 && end <= MAX);
    if within { Ok(()) } else { Err(FormatError::value(name, "file block", offset.0)) }
}

const _: () = {
    assert!(size_of::<IntentHeader>() == 16);
    assert!(size_of::<Done>() == 16);
    assert!(size_of::<MapExtent>() == 32);
};

#[cfg(test)]
mod tests;
