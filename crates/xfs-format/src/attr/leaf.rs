//! Leaves of an attribute fork: a table sorted by hash that grows from the front, names and values from the back.
//!
//! Invariants of an [`AttrLeaf`] that passed [`INDEX`]: the table ends before the names begin; every entry's name
//! (and value, where it lies beside it) is in the block after `first_used`; hashes ascend.

use super::{AttrFlags, AttrValue, VALUE_MAX, is_valid_name};
use crate::da::{DaHeader, Node, block_magic, check_hash_order, check_index_identity};
use crate::error::FormatError;
use crate::types::FileBlock;
use crate::verify::{Verifier, VerifyContext};
use std::mem::{offset_of, size_of};
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Magic of an attribute leaf, v4.
pub const LEAF_MAGIC_V4: u16 = 0xfbee;
/// Magic of an attribute leaf, v5.
pub const LEAF_MAGIC_V5: u16 = 0x3bee;

pub(super) const NAME: &str = "attribute leaf block";
/// Largest block: there, `first_used` of an empty leaf does not fit its field and is stored as 0.
const LARGEST_BLOCK: usize = 65536;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct FreeMap {
    pub(super) base: U16,
    pub(super) size: U16,
}

/// What follows the sibling header; v5 pads it to 8 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Counts {
    pub(super) count: U16,
    pub(super) used_bytes: U16,
    pub(super) first_used: U16,
    pub(super) holes: u8,
    pad: u8,
    pub(super) free_map: [FreeMap; 3],
}

/// One attribute in the table of a leaf.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AttrLeafEntry {
    /// Hash of the name.
    pub hash: U32,
    /// Where name and value (or the value's place) lie in the block.
    pub(super) name_index: U16,
    pub(super) flags: u8,
    pub(super) pad: u8,
}

/// A name whose value follows it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct LocalName {
    pub(super) value_len: U16,
    pub(super) name_len: u8,
}

/// A name whose value lies in blocks of its own.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RemoteName {
    pub(super) value_block: U32,
    pub(super) value_len: U32,
    pub(super) name_len: u8,
}

const _: () = {
    assert!(size_of::<FreeMap>() == 4);
    assert!(size_of::<Counts>() == 20);
    assert!(offset_of!(Counts, free_map) == 8);
    assert!(size_of::<AttrLeafEntry>() == 8);
    assert!(offset_of!(AttrLeafEntry, flags) == 6);
    assert!(size_of::<LocalName>() == 3);
    assert!(size_of::<RemoteName>() == 9);
    // The whole header: 32 bytes on v4, 80 on v5.
    assert!(header_len(false) == 32 && header_len(true) == 80);
};

pub(super) const fn header_len(v5: bool) -> usize {
    DaHeader::len(v5) + size_of::<Counts>() + if v5 { 4 } else { 0 }
}

/// A leaf.
#[derive(Clone, Copy, Debug)]
pub struct AttrLeaf<'a> {
    /// The sibling header.
    pub header: DaHeader,
    /// The table, ascending by hash.
    pub entries: &'a [AttrLeafEntry],
    pub(super) counts: &'a Counts,
    pub(super) first_used: usize,
    pub(super) bytes: &'a [u8],
}

impl AttrLeafEntry {
    /// Where name and value (or the value's place) lie in the block.
    pub fn name_index(&self) -> usize {
        self.name_index.get().into()
    }
}

/// One attribute of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafAttr<'a> {
    /// Its namespace, and whether it is complete.
    pub flags: AttrFlags,
    /// Its name.
    pub name: &'a [u8],
    /// Its value.
    pub value: AttrValue<'a>,
}

impl<'a> AttrLeaf<'a> {
    /// Reads a leaf: magic right, table within the block and before the names.
    pub fn parse(bytes: &'a [u8], v5: bool) -> Result<Self, FormatError> {
        let header = DaHeader::parse(NAME, bytes, v5)?;
        let expected = if v5 { LEAF_MAGIC_V5 } else { LEAF_MAGIC_V4 };
        if header.magic != expected {
            return Err(FormatError::mismatch(NAME, "magic", header.magic.into(), expected.into()));
        }
        let size = || FormatError::value(NAME, "size", bytes.len() as u64);
        let body = bytes.get(DaHeader::len(v5)..).ok_or_else(size)?;
        let counts = Counts::ref_from_prefix(body).map_err(|_| size())?.0;
        let first_used = match counts.first_used.get() {
            0 if bytes.len() == LARGEST_BLOCK => LARGEST_BLOCK,
            first_used => first_used.into(),
        };
        let table = bytes.get(header_len(v5)..first_used).ok_or(FormatError::mismatch(
            NAME,
            "first used byte",
            first_used as u64,
            bytes.len() as u64,
        ))?;
        let count = counts.count.get();
        let limit = (table.len() / size_of::<AttrLeafEntry>()) as u64;
        let entries = <[AttrLeafEntry]>::ref_from_prefix_with_elems(table, count.into())
            .map_err(|_| FormatError::mismatch(NAME, "entry count", count.into(), limit))?
            .0;
        Ok(Self { header, entries, counts, first_used, bytes })
    }

    /// The entries from the first whose hash is not below `hash`.
    pub fn from_hash(&self, hash: u32) -> &'a [AttrLeafEntry] {
        let at = self.entries.partition_point(|entry| entry.hash.get() < hash);
        self.entries.get(at..).unwrap_or_default()
    }

    /// Name and value that an entry of this leaf points to.
    pub fn attr(&self, entry: &AttrLeafEntry) -> Result<LeafAttr<'a>, FormatError> {
        let index = entry.name_index.get();
        let outside = || FormatError::value(NAME, "name index", index.into());
        let flags = AttrFlags::from_disk(NAME, entry.flags)?;
        if usize::from(index) < self.first_used {
            return Err(outside());
        }
        let place = self.bytes.get(index.into()..).ok_or_else(outside)?;
        let (name, value) = if flags.contains(AttrFlags::LOCAL) {
            let (head, rest) = LocalName::ref_from_prefix(place).map_err(|_| outside())?;
            let (name, rest) = rest.split_at_checked(head.name_len.into()).ok_or_else(outside)?;
            let value = rest.get(..head.value_len.get().into()).ok_or_else(outside)?;
            (name, AttrValue::Inline(value))
        } else {
            let (head, rest) = RemoteName::ref_from_prefix(place).map_err(|_| outside())?;
            let name = rest.get(..head.name_len.into()).ok_or_else(outside)?;
            let (block, len) = (FileBlock(head.value_block.get().into()), head.value_len.get());
            if len > VALUE_MAX {
                return Err(FormatError::mismatch(NAME, "value length", len.into(), VALUE_MAX.into()));
            }
            (name, AttrValue::Remote { block, len })
        };
        if !is_valid_name(name) {
            return Err(FormatError::value(NAME, "attribute name", index.into()));
        }
        Ok(LeafAttr { flags, name, value })
    }

    /// Bytes that names and values take, as the header counts them.
    pub fn used_bytes(&self) -> usize {
        self.counts.used_bytes.get().into()
    }

    /// Whether names and values may have free bytes between them.
    pub fn has_holes(&self) -> bool {
        self.counts.holes != 0
    }

    /// The first byte of names and values, as the header has it: not too high.
    pub fn first_used(&self) -> usize {
        self.first_used
    }

    /// Bytes of the block.
    pub fn block_len(&self) -> usize {
        self.bytes.len()
    }

    /// Where the table ends.
    pub fn entries_end(&self) -> usize {
        header_len(self.header.magic == LEAF_MAGIC_V5) + size_of_val(self.entries)
    }

    /// The three pieces of the block that the header lists as free: base and size.
    pub fn free_map(&self) -> [(usize, usize); 3] {
        self.counts.free_map.map(|free| (free.base.get().into(), free.size.get().into()))
    }

    fn check(bytes: &[u8], ctx: &VerifyContext) -> Result<(), FormatError> {
        let leaf = AttrLeaf::parse(bytes, ctx.v5)?;
        check_index_identity(NAME, bytes, ctx)?;
        check_hash_order(NAME, leaf.entries.iter().map(|entry| entry.hash.get()))?;
        for entry in leaf.entries {
            leaf.attr(entry)?;
        }
        let used = usize::from(leaf.counts.used_bytes.get());
        let room = bytes.len() - leaf.first_used;
        if used > room {
            return Err(FormatError::mismatch(NAME, "used bytes", used as u64, room as u64));
        }
        for free in &leaf.counts.free_map {
            let end = usize::from(free.base.get()) + usize::from(free.size.get());
            if end > bytes.len() {
                return Err(FormatError::mismatch(NAME, "free map", end as u64, bytes.len() as u64));
            }
        }
        Ok(())
    }
}

/// An index block of an attribute fork: a leaf or a node.
pub static INDEX: Verifier = Verifier { name: "attribute index block", check: check_index };

fn check_index(bytes: &[u8], ctx: &VerifyContext) -> Result<(), FormatError> {
    if block_magic(bytes).is_some_and(|magic| Node::is(magic, ctx.v5)) {
        Node::check(bytes, ctx)
    } else {
        AttrLeaf::check(bytes, ctx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::da::name_hash;
    use crate::types::{DiskAddr, Uuid};

    fn v4() -> VerifyContext {
        VerifyContext { v5: false, meta_uuid: Uuid([0; 16]), daddr: DiskAddr(0) }
    }

    /// A leaf of 512 bytes with a local `a` = "xy" and a remote `b` of 5,000 bytes at block 3.
    fn sample() -> Vec<u8> {
        let mut bytes = vec![0u8; 512];
        bytes[8..10].copy_from_slice(&LEAF_MAGIC_V4.to_be_bytes());
        bytes[12..14].copy_from_slice(&2u16.to_be_bytes());
        bytes[14..16].copy_from_slice(&20u16.to_be_bytes());
        bytes[16..18].copy_from_slice(&492u16.to_be_bytes());
        for (i, (name, index, flags)) in [(&b"a"[..], 504u16, 1u8), (b"b", 492, 2)].into_iter().enumerate() {
            let at = 32 + i * 8;
            bytes[at..at + 4].copy_from_slice(&name_hash(name).to_be_bytes());
            bytes[at + 4..at + 6].copy_from_slice(&index.to_be_bytes());
            bytes[at + 6] = flags;
        }
        bytes[504..510].copy_from_slice(&[0, 2, 1, b'a', b'x', b'y']);
        bytes[492..502].copy_from_slice(&[0, 0, 0, 3, 0, 0, 0x13, 0x88, 1, b'b']);
        bytes
    }

    #[test]
    fn names_and_values_are_found() {
        let bytes = sample();
        (INDEX.check)(&bytes, &v4()).unwrap();
        let leaf = AttrLeaf::parse(&bytes, false).unwrap();
        let local = leaf.attr(&leaf.entries[0]).unwrap();
        assert_eq!((local.name, local.value), (&b"a"[..], AttrValue::Inline(b"xy")));
        let remote = leaf.attr(&leaf.entries[1]).unwrap();
        assert_eq!(remote.value, AttrValue::Remote { block: FileBlock(3), len: 5000 });
        assert_eq!(remote.flags, AttrFlags::ROOT);
        assert_eq!(leaf.from_hash(u32::from(b'b')).len(), 1);
    }

    #[test]
    fn an_empty_leaf_of_the_largest_block_stores_no_first_used_byte() {
        let mut bytes = vec![0u8; LARGEST_BLOCK];
        bytes[8..10].copy_from_slice(&LEAF_MAGIC_V4.to_be_bytes());
        (INDEX.check)(&bytes, &v4()).unwrap();
        bytes.truncate(LARGEST_BLOCK / 2);
        assert_eq!((INDEX.check)(&bytes, &v4()).unwrap_err().check, "first used byte");
    }

    #[test]
    fn lies_are_found() {
        let check = |at: usize, byte: u8| {
            let mut bytes = sample();
            bytes[at] = byte;
            (INDEX.check)(&bytes, &v4()).expect_err("a lie is found").check
        };
        assert_eq!(check(8, 0), "magic");
        assert_eq!(check(13, 99), "entry count");
        assert_eq!(check(17, 0xf8), "name index");
        assert_eq!(check(16, 2), "first used byte");
        assert_eq!(check(14, 1), "used bytes");
        assert_eq!(check(20, 0xff), "free map");
        assert_eq!(check(35, 0xff), "hash order");
        assert_eq!(check(36, 0), "name index");
        assert_eq!(check(38, 7), "attribute flags");
        assert_eq!(check(496, 1), "value length");
        assert_eq!(check(506, 0), "attribute name");
        assert_eq!(check(505, 9), "name index");
    }
}
