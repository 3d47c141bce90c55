//! Changing index blocks: sibling header and interior nodes.
//!
//! Invariants: counts never exceed what the block holds; callers keep hashes in order, as they alone know what is
//! below a child.

use super::{BlockInfo, BlockInfo3, DaHeader, NODE_MAGIC_V4, NODE_MAGIC_V5, Node, NodeEntry};
use crate::edit::{ByteEdit, Image, Stamp};
use crate::error::FormatError;
use std::mem::{offset_of, size_of};
use zerocopy::IntoBytes;

const ENTRY: usize = size_of::<NodeEntry>();
const NAME: &str = "index node";

/// Writes the header of a new index block without siblings. The caller writes the rest.
pub fn format_header(image: &mut ByteEdit<'_>, magic: u16, stamp: &Stamp) -> Result<(), FormatError> {
    let info = BlockInfo { forw: 0.into(), back: 0.into(), magic: magic.into(), pad: 0.into() };
    if !stamp.v5 {
        return image.put(0, info.as_bytes());
    }
    let head = BlockInfo3 {
        info,
        crc: 0.into(),
        blkno: stamp.daddr.0.into(),
        lsn: 0.into(),
        uuid: stamp.meta_uuid.0,
        owner: stamp.owner.0.into(),
    };
    image.put(0, head.as_bytes())
}

/// Gives a copied index block its new place, without siblings.
pub fn settle(image: &mut ByteEdit<'_>, stamp: &Stamp) -> Result<(), FormatError> {
    let header = DaHeader::parse(image.structure(), image.bytes(), stamp.v5)?;
    format_header(image, header.magic, stamp)
}

/// Changes the kind of an index block.
pub fn set_magic(image: &mut ByteEdit<'_>, magic: u16) -> Result<(), FormatError> {
    image.put(offset_of!(BlockInfo, magic), &magic.to_be_bytes())
}

/// Sets the next block of the same level; 0: none.
pub fn set_forw(image: &mut ByteEdit<'_>, forw: u32) -> Result<(), FormatError> {
    image.put(offset_of!(BlockInfo, forw), &forw.to_be_bytes())
}

/// Sets the previous block of the same level; 0: none.
pub fn set_back(image: &mut ByteEdit<'_>, back: u32) -> Result<(), FormatError> {
    image.put(offset_of!(BlockInfo, back), &back.to_be_bytes())
}

/// A node under change.
#[derive(Debug)]
pub struct NodeEdit<'a> {
    image: ByteEdit<'a>,
    v5: bool,
}

impl<'a> NodeEdit<'a> {
    /// Changes a block that is a node.
    pub fn new(image: &'a mut Image, v5: bool) -> Self {
        Self { image: image.edit(), v5 }
    }

    /// Makes the block a node of `level` without siblings, with these children.
    pub fn format(
        image: &'a mut Image,
        stamp: &Stamp,
        level: u16,
        entries: &[NodeEntry],
    ) -> Result<(), FormatError> {
        let mut image = image.edit();
        format_header(&mut image, if stamp.v5 { NODE_MAGIC_V5 } else { NODE_MAGIC_V4 }, stamp)?;
        let at = DaHeader::len(stamp.v5);
        image.put(at + 2, &level.to_be_bytes())?;
        if stamp.v5 {
            image.put(at + 4, &[0; 4])?;
        }
        Self { image, v5: stamp.v5 }.set_entries(entries)
    }

    /// How many children a node of `len` bytes has room for.
    pub const fn capacity(len: usize, v5: bool) -> usize {
        len.saturating_sub(super::node::header_len(v5)) / ENTRY
    }

    /// Replaces all children.
    pub fn set_entries(&mut self, entries: &[NodeEntry]) -> Result<(), FormatError> {
        self.image.put(super::node::header_len(self.v5), entries.as_bytes())?;
        self.set_count(entries.len())
    }

    /// Inserts a child at `slot`. The later ones move up.
    pub fn insert(&mut self, slot: usize, entry: NodeEntry) -> Result<(), FormatError> {
        let count = self.count()?;
        if slot > count || count >= Self::capacity(self.image.bytes().len(), self.v5) {
            return Err(bad_slot(slot, count));
        }
        self.image.shift(self.at(slot)..self.at(count), self.at(slot + 1))?;
        self.image.put(self.at(slot), entry.as_bytes())?;
        self.set_count(count + 1)
    }

    /// Takes the child at `slot` out.
    pub fn remove(&mut self, slot: usize) -> Result<(), FormatError> {
        let count = self.count()?;
        if slot >= count {
            return Err(bad_slot(slot, count));
        }
        self.image.shift(self.at(slot + 1)..self.at(count), self.at(slot))?;
        self.set_count(count - 1)
    }

    /// Sets the largest hash below the child at `slot`.
    pub fn set_hash(&mut self, slot: usize, hash: u32) -> Result<(), FormatError> {
        let count = self.count()?;
        if slot >= count {
            return Err(bad_slot(slot, count));
        }
        self.image.put(self.at(slot) + offset_of!(NodeEntry, hash), &hash.to_be_bytes())
    }

    fn count(&self) -> Result<usize, FormatError> {
        Ok(Node::parse(self.image.bytes(), self.v5)?.entries.len())
    }

    fn set_count(&mut self, count: usize) -> Result<(), FormatError> {
        let on_disk = u16::try_from(count).map_err(|_| bad_slot(count, count))?;
        self.image.put(DaHeader::len(self.v5), &on_disk.to_be_bytes())
    }

    const fn at(&self, slot: usize) -> usize {
        super::node::header_len(self.v5) + slot * ENTRY
    }
}

const fn bad_slot(slot: usize, count: usize) -> FormatError {
    FormatError::mismatch(NAME, "place of a child", slot as u64, count as u64)
}
