//! XMI and XMD: intent and done item for an exchange of mappings of two files.

use super::{check_inode, check_range};
use crate::error::FormatError;
use crate::geometry::Geometry;
use crate::log::host;
use crate::log::item::{ItemType, fixed};
use crate::types::{FileBlock, InodeNumber};
use std::mem::size_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const NAME: &str = "XMI";

bitflags::bitflags! {
    /// `XFS_EXCHMAPS_*`: what to exchange, and what to do afterwards.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ExchangeFlags: u64 {
        /// Attribute forks, not data forks.
        const ATTR_FORK = 1;
        /// The files get the sizes that are given.
        const SET_SIZES = 1 << 1;
        /// Only what is written in the first file is exchanged.
        const INO1_WRITTEN = 1 << 2;
        /// The first inode loses the mark of shared blocks.
        const CLEAR_INO1_REFLINK = 1 << 3;
        /// The second inode loses the mark of shared blocks.
        const CLEAR_INO2_REFLINK = 1 << 4;
    }
}

/// In the host's byte order.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
struct XmiFixed {
    kind: host::U16,
    regions: host::U16,
    pad: host::U32,
    id: host::U64,
    inodes: [host::U64; 2],
    generations: [host::U32; 2],
    offsets: [host::U64; 2],
    blocks: host::U64,
    flags: host::U64,
    sizes: [host::U64; 2],
}

/// An exchange of mappings, or what is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The two inodes.
    pub inodes: [InodeNumber; 2],
    /// Their generations.
    pub generations: [u32; 2],
    /// First block in either file.
    pub offsets: [FileBlock; 2],
    /// Blocks.
    pub blocks: u64,
    /// Which fork, and what to do afterwards.
    pub flags: ExchangeFlags,
    /// Sizes that the files end with, if [`ExchangeFlags::SET_SIZES`] says so.
    pub sizes: [u64; 2],
}

/// XMI: mappings of two files to be exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeIntent {
    /// The intent's id.
    pub id: u64,
    /// What to do.
    pub exchange: Exchange,
}

impl ExchangeIntent {
    /// Bytes of an XMI.
    pub const BYTES: usize = size_of::<XmiFixed>();

    pub(in crate::log) fn parse(region: &[u8]) -> Result<Self, FormatError> {
        let (fixed, behind) = fixed::<XmiFixed>(NAME, region)?;
        if !behind.is_empty() {
            return Err(FormatError::mismatch(NAME, "length", region.len() as u64, Self::BYTES as u64));
        }
        if fixed.pad.get() != 0 {
            return Err(FormatError::value(NAME, "padding", fixed.pad.get().into()));
        }
        let unknown = |known: u64| FormatError::mismatch(NAME, "flags", fixed.flags.get(), known);
        let flags = ExchangeFlags::from_bits(fixed.flags.get())
            .ok_or_else(|| unknown(ExchangeFlags::all().bits()))?;
        let exchange = Exchange {
            inodes: fixed.inodes.map(|ino| InodeNumber(ino.get())),
            generations: fixed.generations.map(|generation| generation.get()),
            offsets: fixed.offsets.map(|offset| FileBlock(offset.get())),
            blocks: fixed.blocks.get(),
            flags,
            sizes: fixed.sizes.map(|size| size.get()),
        };
        Ok(Self { id: fixed.id.get(), exchange })
    }

    /// Writes it into `to`, which is [`BYTES`](Self::BYTES) long.
    pub fn encode(&self, to: &mut [u8]) {
        let Exchange { inodes, generations, offsets, blocks, flags, sizes } = self.exchange;
        let fixed = XmiFixed {
            kind: (ItemType::Xmi as u16).into(),
            regions: 1.into(),
            pad: 0.into(),
            id: self.id.into(),
            inodes: inodes.map(|ino| ino.0.into()),
            generations: generations.map(Into::into),
            offsets: offsets.map(|offset| offset.0.into()),
            blocks: blocks.into(),
            flags: flags.bits().into(),
            sizes: sizes.map(Into::into),
        };
        to.copy_from_slice(fixed.as_bytes());
    }
}

impl Exchange {
    /// Whether both inodes lie in the volume, and both ranges in what a file can have: apart from each other, if it is
    /// one file.
    pub fn check(&self, geometry: &Geometry) -> Result<(), FormatError> {
        self.inodes.iter().try_for_each(|ino| check_inode(NAME, geometry, *ino))?;
        self.offsets.iter().try_for_each(|offset| check_range(NAME, *offset, self.blocks))?;
        let [one, other] = self.offsets;
        if self.inodes[0] == self.inodes[1] && one.0.abs_diff(other.0) < self.blocks {
            return Err(FormatError::value(NAME, "file block", one.0));
        }
        // Where none is set, kernels write all ones.
        let sets = self.flags.contains(ExchangeFlags::SET_SIZES);
        let sizes = self.sizes.iter().find(|&&size| sets && i64::try_from(size).is_err());
        sizes.map_or(Ok(()), |size| Err(FormatError::value(NAME, "size", *size)))
    }
}

const _: () = assert!(ExchangeIntent::BYTES == 88);
