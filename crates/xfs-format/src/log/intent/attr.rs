//! ATTRI and ATTRD: intent and done item for a change of an attribute.
//!
//! The format structure says which of the regions behind it there are, in this order: name, new name, value, new value.
//! A region is there if its length is not 0, and is padded with zeroes to a multiple of 4 bytes.

use super::check_inode;
use super::update::operations;
use crate::attr::AttrFlags;
use crate::error::FormatError;
use crate::geometry::Geometry;
use crate::log::host;
use crate::log::item::{ItemType, fixed};
use crate::types::InodeNumber;
use std::mem::size_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const NAME: &str = "ATTRI";

operations! {
    /// What an ATTRI asks for: the low byte of `alfi_op_flags`.
    AttrOp {
        /// Set an attribute.
        Set = 1,
        /// Remove an attribute.
        Remove = 2,
        /// Replace an attribute.
        Replace = 3,
        /// Set a parent pointer.
        ParentSet = 4,
        /// Remove a parent pointer.
        ParentRemove = 5,
        /// Replace a parent pointer by one of another name.
        ParentReplace = 6,
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
struct AttriFixed {
    kind: host::U16,
    regions: host::U16,
    igen: host::U32,
    id: host::U64,
    ino: host::U64,
    op_flags: host::U32,
    name_len: host::U32,
    value_len: host::U32,
    attr_filter: host::U32,
}

/// The format structure of an ATTRI. Its further regions go with it into [`AttrChange::parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrIntent {
    /// The intent's id.
    pub id: u64,
    /// The inode.
    pub ino: InodeNumber,
    /// Generation of the inode, for parent pointers.
    pub generation: u32,
    /// What to do.
    pub op: AttrOp,
    /// Bytes of the name (of the old one, where there are two).
    pub name_len: u32,
    /// Bytes of the new name; 0 where there is just one.
    pub new_name_len: u32,
    /// Bytes of the value; where there are two, of each.
    pub value_len: u32,
    /// The name's space and state, as in an attribute entry.
    pub filter: AttrFlags,
}

/// A change of an attribute: all that an ATTRI says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrChange<'a> {
    /// The inode.
    pub ino: InodeNumber,
    /// Generation of the inode, for parent pointers; 0 otherwise.
    pub generation: u32,
    /// What to do.
    pub op: AttrOp,
    /// The name's space and state, as in an attribute entry.
    pub filter: AttrFlags,
    /// The name; where there are two, the old one.
    pub name: &'a [u8],
    /// The name that a parent pointer gets; empty otherwise.
    pub new_name: &'a [u8],
    /// The value; where there are two, the old one.
    pub value: &'a [u8],
    /// The value that a parent pointer gets; empty otherwise.
    pub new_value: &'a [u8],
}

/// Longest name of an attribute.
const NAME_MAX: u32 = 255;
/// Longest value of an attribute.
const VALUE_MAX: u32 = 65536;
/// Value of a parent pointer: the directory's number and generation.
const PARENT_BYTES: u32 = 12;

impl AttrOp {
    /// Whether it is about a parent pointer.
    pub const fn is_parent(self) -> bool {
        matches!(self, Self::ParentSet | Self::ParentRemove | Self::ParentReplace)
    }

    /// Values that are allowed, by length.
    const fn value_lens(self) -> (u32, u32) {
        match self {
            Self::Set | Self::Replace => (0, VALUE_MAX),
            Self::Remove => (0, 0),
            Self::ParentSet | Self::ParentRemove | Self::ParentReplace => (PARENT_BYTES, PARENT_BYTES),
        }
    }
}

impl AttrIntent {
    /// Bytes of the format structure.
    pub const BYTES: usize = size_of::<AttriFixed>();

    pub(in crate::log) fn parse(region: &[u8]) -> Result<Self, FormatError> {
        let (fixed, behind) = fixed::<AttriFixed>(NAME, region)?;
        if !behind.is_empty() {
            return Err(FormatError::mismatch(NAME, "length", region.len() as u64, Self::BYTES as u64));
        }
        let op = u8::try_from(fixed.op_flags.get())
            .ok()
            .and_then(AttrOp::from_disk)
            .ok_or_else(|| FormatError::value(NAME, "operation", fixed.op_flags.get().into()))?;
        let filter = fixed.attr_filter.get();
        let raw = fixed.name_len.get();
        // Two 16-bit lengths share the word where there are two names: the old one's comes first in memory.
        let two = op == AttrOp::ParentReplace;
        let (name_len, new_name_len) = if two { (raw & 0xffff, raw >> 16) } else { (raw, 0) };
        let intent = Self {
            id: fixed.id.get(),
            ino: InodeNumber(fixed.ino.get()),
            generation: fixed.igen.get(),
            op,
            name_len,
            new_name_len,
            value_len: fixed.value_len.get(),
            filter: u8::try_from(filter)
                .ok()
                .and_then(AttrFlags::from_bits)
                .ok_or_else(|| FormatError::value(NAME, "filter", filter.into()))?,
        };
        intent.check()?;
        let (regions, expected) = (fixed.regions.get(), 1 + intent.lens().filter(|&len| len > 0).count());
        if usize::from(regions) != expected {
            return Err(FormatError::mismatch(NAME, "number of regions", regions.into(), expected as u64));
        }
        Ok(intent)
    }

    /// Whether its fields are consistent.
    fn check(&self) -> Result<(), FormatError> {
        let (op, names) = (self.op, if self.op == AttrOp::ParentReplace { 2 } else { 1 });
        for len in [self.name_len, self.new_name_len].into_iter().take(names) {
            if len == 0 || len > NAME_MAX {
                return Err(FormatError::value(NAME, "name length", len.into()));
            }
        }
        let (least, most) = op.value_lens();
        if self.value_len < least || self.value_len > most {
            return Err(FormatError::mismatch(NAME, "value length", self.value_len.into(), most.into()));
        }
        let known = AttrFlags::NAMESPACES | AttrFlags::INCOMPLETE;
        let spaces = self.filter & AttrFlags::NAMESPACES;
        let parent = spaces.contains(AttrFlags::PARENT);
        if !known.contains(self.filter) || spaces.bits().count_ones() > 1 || parent != op.is_parent() {
            return Err(FormatError::value(NAME, "filter", self.filter.bits().into()));
        }
        Ok(())
    }

    /// Lengths of name, new name, value and new value.
    fn lens(&self) -> impl Iterator<Item = usize> + use<> {
        let new_value = if self.op == AttrOp::ParentReplace { self.value_len } else { 0 };
        [self.name_len, self.new_name_len, self.value_len, new_value].into_iter().map(|len| len as usize)
    }
}

impl<'a> AttrChange<'a> {
    /// The change that the format structure and its further regions describe.
    pub fn parse(
        intent: &AttrIntent,
        mut regions: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Self, FormatError> {
        let mut parts = [&[][..]; 4];
        for (part, len) in parts.iter_mut().zip(intent.lens()).filter(|(_, len)| *len > 0) {
            let region = regions.next().ok_or_else(|| FormatError::new(NAME, "number of regions"))?;
            if region.len() != len.next_multiple_of(4) {
                let padded = len.next_multiple_of(4) as u64;
                return Err(FormatError::mismatch(NAME, "length of a region", region.len() as u64, padded));
            }
            *part = region.get(..len).unwrap_or_default();
        }
        if regions.next().is_some() {
            return Err(FormatError::new(NAME, "number of regions"));
        }
        let [name, new_name, value, new_value] = parts;
        let AttrIntent { ino, generation, op, filter, .. } = *intent;
        Ok(Self { ino, generation, op, filter, name, new_name, value, new_value })
    }

    /// The regions behind the format structure, not padded.
    pub fn regions(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let parts = [self.name, self.new_name, self.value, self.new_value];
        parts.into_iter().filter(|part| !part.is_empty())
    }

    /// Writes the format structure into `to`, which is [`AttrIntent::BYTES`] long.
    pub fn encode(&self, id: u64, to: &mut [u8]) {
        debug_assert!(self.new_value.is_empty() || self.new_value.len() == self.value.len());
        let names = self.name.len() as u32 | (self.new_name.len() as u32) << 16;
        let fixed = AttriFixed {
            kind: (ItemType::Attri as u16).into(),
            regions: (1 + self.regions().count() as u16).into(),
            igen: self.generation.into(),
            id: id.into(),
            ino: self.ino.0.into(),
            op_flags: (self.op as u32).into(),
            name_len: names.into(),
            value_len: (self.value.len() as u32).into(),
            attr_filter: u32::from(self.filter.bits()).into(),
        };
        to.copy_from_slice(fixed.as_bytes());
    }

    /// Whether the inode lies in the volume.
    pub fn check(&self, geometry: &Geometry) -> Result<(), FormatError> {
        check_inode(NAME, geometry, self.ino)
    }
}

const _: () = assert!(AttrIntent::BYTES == 40);
