//! Interior nodes of the hash-indexed trees (`xfs_da_intnode`): the same block for directories and attributes.
//!
//! Invariants of a [`Node`] that passed [`Node::check`]: level 1 to 5, at least one entry, hashes ascending.

use super::{DaHeader, NODE_MAGIC_V4, NODE_MAGIC_V5, check_hash_order, check_index_identity};
use crate::error::FormatError;
use crate::verify::VerifyContext;
use std::mem::size_of;
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The deepest tree that the format allows: the level of its root.
pub const NODE_MAX_LEVEL: u16 = 5;

const NAME: &str = "index node";

/// What follows the sibling header; v5 pads it to 8 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Counts {
    count: U16,
    level: U16,
}

/// One child of a node.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct NodeEntry {
    /// The largest hash below this child.
    pub hash: U32,
    /// Where the child lies in the fork, in blocks of the volume.
    pub before: U32,
}

const _: () = {
    assert!(size_of::<Counts>() == 4);
    assert!(size_of::<NodeEntry>() == 8);
    // The whole header: 16 bytes on v4, 64 on v5.
    assert!(header_len(false) == 16 && header_len(true) == 64);
};

pub(super) const fn header_len(v5: bool) -> usize {
    DaHeader::len(v5) + size_of::<Counts>() + if v5 { 4 } else { 0 }
}

/// An interior node.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    /// The sibling header.
    pub header: DaHeader,
    /// Distance from the leaves: their parents are at 1.
    pub level: u16,
    /// The children, ascending by hash.
    pub entries: &'a [NodeEntry],
}

impl<'a> Node<'a> {
    /// Whether a block of this magic is a node.
    pub const fn is(magic: u16, v5: bool) -> bool {
        magic == if v5 { NODE_MAGIC_V5 } else { NODE_MAGIC_V4 }
    }

    /// Reads a node: magic, level and count are right, the entries lie in the block.
    pub fn parse(bytes: &'a [u8], v5: bool) -> Result<Self, FormatError> {
        let header = DaHeader::parse(NAME, bytes, v5)?;
        if !Self::is(header.magic, v5) {
            return Err(FormatError::value(NAME, "magic", header.magic.into()));
        }
        let size = || FormatError::value(NAME, "size", bytes.len() as u64);
        let body = bytes.get(DaHeader::len(v5)..).ok_or_else(size)?;
        let counts = Counts::ref_from_prefix(body).map_err(|_| size())?.0;
        let (count, level) = (counts.count.get(), counts.level.get());
        if level == 0 || level > NODE_MAX_LEVEL {
            return Err(FormatError::mismatch(NAME, "level", level.into(), NODE_MAX_LEVEL.into()));
        }
        let room = bytes.get(header_len(v5)..).ok_or_else(size)?;
        let limit = (room.len() / size_of::<NodeEntry>()) as u64;
        let entries = <[NodeEntry]>::ref_from_prefix_with_elems(room, count.into())
            .map_err(|_| FormatError::mismatch(NAME, "entry count", count.into(), limit))?
            .0;
        if entries.is_empty() {
            return Err(FormatError::value(NAME, "entry count", 0));
        }
        Ok(Self { header, level, entries })
    }

    /// The level of an index block: 0 for a leaf. A node that has just lost its last child is
    /// allowed.
    pub fn level_of(bytes: &[u8], v5: bool) -> u16 {
        let is_node = super::block_magic(bytes).is_some_and(|magic| Self::is(magic, v5));
        let counts = bytes.get(DaHeader::len(v5)..).and_then(|body| Counts::ref_from_prefix(body).ok());
        counts.filter(|_| is_node).map_or(0, |(counts, _)| counts.level.get())
    }

    /// The first child that may hold `hash`; the count of children if every hash below is smaller.
    pub fn slot(&self, hash: u32) -> usize {
        self.entries.partition_point(|entry| entry.hash.get() < hash)
    }

    /// Everything that a verifier checks of a node.
    pub fn check(bytes: &[u8], ctx: &VerifyContext) -> Result<(), FormatError> {
        let node = Node::parse(bytes, ctx.v5)?;
        check_index_identity(NAME, bytes, ctx)?;
        check_hash_order(NAME, node.entries.iter().map(|entry| entry.hash.get()))
    }
}
