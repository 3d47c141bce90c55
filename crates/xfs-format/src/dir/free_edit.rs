//! Changing blocks of the free-space index.
//!
//! Invariants: a slot past the table's end means the same as one that holds 0xffff; the table ends in a place
//! that is used; the used count says how many are.

use super::free::{FREE_MAGIC_V4, FREE_MAGIC_V5, FreeBlock};
use super::{BESTFREE_NONE, BlockHeader3};
use crate::edit::{ByteEdit, Image, Stamp};
use crate::error::FormatError;
use std::mem::size_of;
use zerocopy::IntoBytes;

const NAME: &str = "directory free block";

/// A free block under change.
#[derive(Debug)]
pub struct FreeEdit<'a> {
    image: ByteEdit<'a>,
    v5: bool,
}

/// Bytes of the header.
const fn header_len(v5: bool) -> usize {
    if v5 { 64 } else { 16 }
}

/// Where the three counts lie.
const fn counts_at(v5: bool) -> usize {
    if v5 { size_of::<BlockHeader3>() } else { 4 }
}

impl<'a> FreeEdit<'a> {
    /// Changes a block that is a free block.
    pub fn new(image: &'a mut Image, v5: bool) -> Self {
        Self { image: image.edit(), v5 }
    }

    /// Makes the block a free block whose table starts with data block `first_db`, empty.
    pub fn format(image: &'a mut Image, stamp: &Stamp, first_db: u32) -> Result<Self, FormatError> {
        let mut image = image.edit();
        put_header3(&mut image, stamp, FREE_MAGIC_V4, FREE_MAGIC_V5)?;
        let at = counts_at(stamp.v5);
        image.put(at, &first_db.to_be_bytes())?;
        image.put(at + 4, &[0; 8])?;
        Ok(Self { image, v5: stamp.v5 })
    }

    /// How many places a table in a block of `len` bytes has.
    pub const fn capacity(len: usize, v5: bool) -> usize {
        len.saturating_sub(header_len(v5)) / 2
    }

    /// Sets the largest free space of the data block at `slot`; [`BESTFREE_NONE`]: there is no such block.
    pub fn set(&mut self, slot: usize, best: u16) -> Result<(), FormatError> {
        let view = FreeBlock::parse(self.image.bytes(), self.v5)?;
        let (valid, view_used) = (view.bestfree.len(), view.used);
        let used = view_used;
        if slot >= Self::capacity(self.image.bytes().len(), self.v5) {
            return Err(FormatError::value(NAME, "place in the table", slot as u64));
        }
        let old = view.bestfree.get(slot).map_or(BESTFREE_NONE, |best| best.get());
        let bad_used = || FormatError::value(NAME, "used count", used.into());
        let used = match (old, best) {
            (BESTFREE_NONE, BESTFREE_NONE) => return Ok(()),
            (BESTFREE_NONE, _) => used.checked_add(1).ok_or_else(bad_used)?,
            (_, BESTFREE_NONE) => used.checked_sub(1).ok_or_else(bad_used)?,
            _ => used,
        };
        let mut new_valid = valid.max(slot + 1);
        if best == BESTFREE_NONE && slot + 1 == valid {
            let kept = view.bestfree.get(..slot).unwrap_or_default();
            new_valid = kept.iter().rposition(|best| best.get() != BESTFREE_NONE).map_or(0, |last| last + 1);
        }
        for between in valid..slot {
            self.put_bestfree(between, BESTFREE_NONE)?;
        }
        self.put_bestfree(slot, best)?;
        if (new_valid, used) == (valid, view_used) {
            return Ok(());
        }
        let at = counts_at(self.v5);
        self.image.put(at + 4, &(new_valid as u32).to_be_bytes())?;
        self.image.put(at + 8, &used.to_be_bytes())
    }

    fn put_bestfree(&mut self, slot: usize, best: u16) -> Result<(), FormatError> {
        self.image.put(header_len(self.v5) + 2 * slot, &best.to_be_bytes())
    }
}

/// Writes the header that data and free blocks share.
pub(super) fn put_header3(
    image: &mut ByteEdit<'_>,
    stamp: &Stamp,
    magic_v4: u32,
    magic_v5: u32,
) -> Result<(), FormatError> {
    if !stamp.v5 {
        return image.put(0, &magic_v4.to_be_bytes());
    }
    let head = BlockHeader3 {
        magic: magic_v5.into(),
        crc: 0.into(),
        blkno: stamp.daddr.0.into(),
        lsn: 0.into(),
        uuid: stamp.meta_uuid.0,
        owner: stamp.owner.0.into(),
    };
    image.put(0, head.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{DiskAddr, InodeNumber, Uuid};

    fn view(image: &Image, v5: bool) -> (u32, Vec<u16>) {
        let block = FreeBlock::parse(image.bytes(), v5).unwrap();
        (block.used, block.bestfree.iter().map(|best| best.get()).collect())
    }

    #[test]
    fn the_table_grows_and_ends_in_a_used_place() {
        for v5 in [false, true] {
            let stamp = Stamp { v5, meta_uuid: Uuid([1; 16]), daddr: DiskAddr(8), owner: InodeNumber(9) };
            let mut image = Image::new(NAME, vec![0; 512]);
            let mut free = FreeEdit::format(&mut image, &stamp, 0).unwrap();
            free.set(0, 10).unwrap();
            free.set(3, 20).unwrap();
            free.set(3, 30).unwrap();
            assert_eq!(view(&image, v5), (2, vec![10, BESTFREE_NONE, BESTFREE_NONE, 30]));
            FreeEdit::new(&mut image, v5).set(1, BESTFREE_NONE).unwrap();
            FreeEdit::new(&mut image, v5).set(3, BESTFREE_NONE).unwrap();
            assert_eq!(view(&image, v5), (1, vec![10]));
            FreeEdit::new(&mut image, v5).set(0, BESTFREE_NONE).unwrap();
            assert_eq!(view(&image, v5), (0, vec![]));
            let capacity = FreeEdit::capacity(512, v5);
            FreeEdit::new(&mut image, v5).set(capacity - 1, 8).unwrap();
            assert!(FreeEdit::new(&mut image, v5).set(capacity, 8).is_err());
            assert_eq!(view(&image, v5).1.len(), capacity);
        }
    }
}
