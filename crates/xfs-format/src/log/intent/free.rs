//! EFI and EFD: intent and done item for the freeing of extents.

use super::{IntentHeader, check_extent, counted};
use crate::error::FormatError;
use crate::geometry::Geometry;
use crate::log::host;
use crate::log::item::{ItemType, fixed};
use crate::types::FsBlock;
use std::mem::size_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
struct Extent64 {
    start: host::U64,
    len: host::U32,
    pad: host::U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
struct Extent32 {
    start: host::U64,
    len: host::U32,
}

/// An extent to be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First block.
    pub start: FsBlock,
    /// Blocks.
    pub len: u32,
}

/// The extents of an EFI or EFD, in either layout.
#[derive(Clone, Copy, Debug)]
pub struct Extents<'a>(ExtentWidth<'a>);

#[derive(Clone, Copy, Debug)]
enum ExtentWidth<'a> {
    Wide(&'a [Extent64]),
    Narrow(&'a [Extent32]),
}

impl<'a> Extents<'a> {
    /// One after the other.
    pub fn iter(self) -> impl Iterator<Item = Extent> + use<'a> {
        let (wide, narrow) = match self.0 {
            ExtentWidth::Wide(wide) => (wide, Default::default()),
            ExtentWidth::Narrow(narrow) => (Default::default(), narrow),
        };
        let wide = wide.iter().map(|e| (e.start, e.len));
        let narrow = narrow.iter().map(|e| (e.start, e.len));
        wide.chain(narrow).map(|(start, len)| Extent { start: FsBlock(start.get()), len: len.get() })
    }
}

/// EFI or EFD: extents to be freed, or extents that were freed.
#[derive(Clone, Copy, Debug)]
pub struct FreeIntent<'a> {
    /// Ties intent and done together: the EFI's id in both.
    pub id: u64,
    /// The extents.
    pub extents: Extents<'a>,
}

impl Extent {
    /// Whether it lies within a group, behind the headers.
    pub fn check(self, geometry: &Geometry) -> Result<(), FormatError> {
        check_extent("EFI", geometry, self.start, self.len)
    }
}

impl<'a> FreeIntent<'a> {
    pub(in crate::log) fn parse(name: &'static str, region: &'a [u8]) -> Result<Self, FormatError> {
        let (header, rest) = fixed::<IntentHeader>(name, region)?;
        let narrow = u64::from(header.nextents.get()) * size_of::<Extent32>() as u64;
        let layout = if rest.len() as u64 == narrow {
            ExtentWidth::Narrow(counted(name, header, rest)?.0)
        } else {
            ExtentWidth::Wide(counted(name, header, rest)?.0)
        };
        Ok(Self { id: header.id.get(), extents: Extents(layout) })
    }
}

/// Bytes of an EFI or EFD of this many extents.
pub const fn free_intent_bytes(extents: usize) -> usize {
    size_of::<IntentHeader>() + extents * size_of::<Extent64>()
}

/// Writes an EFI, or an EFD where `done`, into `to`, which is [`free_intent_bytes`] long.
pub fn encode_free_intent(done: bool, id: u64, extents: &[Extent], to: &mut [u8]) {
    let kind = if done { ItemType::Efd } else { ItemType::Efi };
    let header = IntentHeader::new(kind, extents.len(), id);
    let (head, rest) = to.split_at_mut(size_of::<IntentHeader>());
    head.copy_from_slice(header.as_bytes());
    for (to, extent) in rest.chunks_exact_mut(size_of::<Extent64>()).zip(extents) {
        let extent = Extent64 { start: extent.start.0.into(), len: extent.len.into(), pad: 0.into() };
        to.copy_from_slice(extent.as_bytes());
    }
}

const _: () = {
    assert!(size_of::<Extent64>() == 16);
    assert!(size_of::<Extent32>() == 12);
};
