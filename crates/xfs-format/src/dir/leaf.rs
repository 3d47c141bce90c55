//! Leaves of the hash index: the only index block of a directory (leaf1, which also holds the table of free space)
//! or one of many (leafn).
//!
//! Invariants of a [`Leaf`] that passed [`INDEX`]: the entries and the table lie in the block and do not overlap;
//! hashes ascend; as many entries are stale (address 0) as the header says.

use crate::da::{DaHeader, Node, block_magic, check_hash_order, check_index_identity};
use crate::error::FormatError;
use crate::verify::{Verifier, VerifyContext};
use std::mem::size_of;
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Magic of a single leaf, v4.
pub const LEAF1_MAGIC_V4: u16 = 0xd2f1;
/// Magic of a single leaf, v5.
pub const LEAF1_MAGIC_V5: u16 = 0x3df1;
/// Magic of a leaf among several, v4.
pub const LEAFN_MAGIC_V4: u16 = 0xd2ff;
/// Magic of a leaf among several, v5.
pub const LEAFN_MAGIC_V5: u16 = 0x3dff;

const NAME: &str = "directory leaf block";

/// What follows the sibling header; v5 pads it to 8 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Counts {
    count: U16,
    stale: U16,
}

/// One name's hash and the place of its entry. Block-form directories keep the same in their tail.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LeafEntry {
    /// Hash of the name.
    pub hash: U32,
    /// Place of the entry: byte offset in the data space, divided by 8; 0: the entry was removed.
    pub address: U32,
}

impl LeafEntry {
    /// Whether the entry that this one pointed to was removed.
    pub fn is_stale(&self) -> bool {
        self.address.get() == 0
    }

    /// Byte offset of the entry in the data space.
    pub fn data_offset(&self) -> u64 {
        u64::from(self.address.get()) << super::DATA_ALIGN_LOG
    }
}

const _: () = {
    assert!(size_of::<Counts>() == 4);
    assert!(size_of::<LeafEntry>() == 8);
    // The whole header: 16 bytes on v4, 64 on v5.
    assert!(header_len(false) == 16 && header_len(true) == 64);
};

pub(super) const fn header_len(v5: bool) -> usize {
    DaHeader::len(v5) + size_of::<Counts>() + if v5 { 4 } else { 0 }
}

/// Which kind of leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafKind {
    /// The directory's only index block.
    Single,
    /// One leaf of a tree.
    OfTree,
}

impl LeafKind {
    /// The kind that a magic says; `None` if it is no leaf's.
    pub const fn of(magic: u16, v5: bool) -> Option<Self> {
        match (v5, magic) {
            (true, LEAF1_MAGIC_V5) | (false, LEAF1_MAGIC_V4) => Some(Self::Single),
            (true, LEAFN_MAGIC_V5) | (false, LEAFN_MAGIC_V4) => Some(Self::OfTree),
            _ => None,
        }
    }
}

/// A leaf.
#[derive(Clone, Copy, Debug)]
pub struct Leaf<'a> {
    /// The sibling header.
    pub header: DaHeader,
    /// Which kind.
    pub kind: LeafKind,
    /// How many entries are stale.
    pub stale: u16,
    /// The entries, ascending by hash.
    pub entries: &'a [LeafEntry],
    /// The largest free space of each data block (single leaves; 0xffff: no such block).
    pub bestfree: &'a [U16],
}

impl<'a> Leaf<'a> {
    /// Reads a leaf: the magic is a leaf's, the entries and the table lie in the block.
    pub fn parse(bytes: &'a [u8], v5: bool) -> Result<Self, FormatError> {
        let header = DaHeader::parse(NAME, bytes, v5)?;
        let kind =
            LeafKind::of(header.magic, v5).ok_or(FormatError::value(NAME, "magic", header.magic.into()))?;
        let size = || FormatError::value(NAME, "size", bytes.len() as u64);
        let body = bytes.get(DaHeader::len(v5)..).ok_or_else(size)?;
        let counts = Counts::ref_from_prefix(body).map_err(|_| size())?.0;
        let mut room = bytes.get(header_len(v5)..).ok_or_else(size)?;
        let mut bestfree: &[U16] = &[];
        if kind == LeafKind::Single {
            let (rest, bests_len) = U32::read_from_suffix(room).map_err(|_| size())?;
            let count = bests_len.get();
            let bad = || FormatError::mismatch(NAME, "table size", count.into(), rest.len() as u64 / 2);
            let elems = usize::try_from(count).map_err(|_| bad())?;
            (room, bestfree) = <[U16]>::ref_from_suffix_with_elems(rest, elems).map_err(|_| bad())?;
        }
        let count = counts.count.get();
        let limit = (room.len() / size_of::<LeafEntry>()) as u64;
        let entries = <[LeafEntry]>::ref_from_prefix_with_elems(room, count.into())
            .map_err(|_| FormatError::mismatch(NAME, "entry count", count.into(), limit))?
            .0;
        Ok(Self { header, kind, stale: counts.stale.get(), entries, bestfree })
    }

    /// The entries from the first whose hash is not below `hash`.
    pub fn from_hash(&self, hash: u32) -> &'a [LeafEntry] {
        from_hash(self.entries, hash)
    }

    fn check(bytes: &[u8], ctx: &VerifyContext) -> Result<(), FormatError> {
        let leaf = Leaf::parse(bytes, ctx.v5)?;
        check_index_identity(NAME, bytes, ctx)?;
        check_entries(NAME, leaf.entries, leaf.stale.into())
    }
}

/// The entries from the first whose hash is not below `hash`.
pub(super) fn from_hash(entries: &[LeafEntry], hash: u32) -> &[LeafEntry] {
    let at = entries.partition_point(|entry| entry.hash.get() < hash);
    entries.get(at..).unwrap_or_default()
}

/// Fails unless hashes ascend and `stale` entries are stale.
pub(super) fn check_entries(
    structure: &'static str,
    entries: &[LeafEntry],
    stale: u64,
) -> Result<(), FormatError> {
    check_hash_order(structure, entries.iter().map(|entry| entry.hash.get()))?;
    let counted = entries.iter().filter(|entry| entry.is_stale()).count() as u64;
    if counted != stale {
        return Err(FormatError::mismatch(structure, "stale count", stale, counted));
    }
    Ok(())
}

/// A block of a directory's hash index: a leaf of either kind, or a node.
pub static INDEX: Verifier = Verifier { name: "directory index block", check: check_index };

fn check_index(bytes: &[u8], ctx: &VerifyContext) -> Result<(), FormatError> {
    if block_magic(bytes).is_some_and(|magic| Node::is(magic, ctx.v5)) {
        Node::check(bytes, ctx)
    } else {
        Leaf::check(bytes, ctx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{DiskAddr, Uuid};

    fn v4() -> VerifyContext {
        VerifyContext { v5: false, meta_uuid: Uuid([0; 16]), daddr: DiskAddr(0) }
    }

    fn leafn(entries: &[(u32, u32)], stale: u16) -> Vec<u8> {
        let mut bytes = vec![0; 8];
        bytes.extend(LEAFN_MAGIC_V4.to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend((entries.len() as u16).to_be_bytes());
        bytes.extend(stale.to_be_bytes());
        for (hash, address) in entries {
            bytes.extend(hash.to_be_bytes());
            bytes.extend(address.to_be_bytes());
        }
        bytes.resize(512, 0);
        bytes
    }

    #[test]
    fn a_leaf_is_searched_from_its_first_equal_hash() {
        let bytes = leafn(&[(1, 2), (5, 4), (5, 0), (5, 6), (9, 8)], 1);
        (INDEX.check)(&bytes, &v4()).unwrap();
        let leaf = Leaf::parse(&bytes, false).unwrap();
        let found: Vec<u32> = leaf.from_hash(5).iter().map(|e| e.address.get()).collect();
        assert_eq!(found, [4, 0, 6, 8]);
        assert!(leaf.from_hash(10).is_empty());
        assert!(leaf.entries[2].is_stale());
    }

    #[test]
    fn lies_are_found() {
        let check = |bytes: &[u8]| (INDEX.check)(bytes, &v4()).unwrap_err().check;
        assert_eq!(check(&leafn(&[(2, 1), (1, 1)], 0)), "hash order");
        assert_eq!(check(&leafn(&[(1, 1)], 1)), "stale count");
        let mut bytes = leafn(&[(1, 1)], 0);
        bytes[12] = 0xff;
        assert_eq!(check(&bytes), "entry count");
        bytes[8] = 0;
        assert_eq!(check(&bytes), "magic");
        let mut bytes = leafn(&[(1, 1)], 0);
        bytes[8..10].copy_from_slice(&LEAF1_MAGIC_V4.to_be_bytes());
        bytes[508..].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(check(&bytes), "table size");
        for len in 0..16 {
            assert!((INDEX.check)(&bytes[..len], &v4()).is_err());
        }
    }
}
