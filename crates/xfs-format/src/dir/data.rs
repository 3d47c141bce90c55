//! Data blocks of directories: entries and unused pieces without gaps. In block form (a directory of one block)
//! the hash index follows in the same block.
//!
//! Invariants of a block that passed [`DATA`] or [`DATA_FTYPE`]: the pieces walk exactly to the end of the data
//! area; each is aligned to 8 bytes and ends in a tag that holds its own offset; the header's largest free pieces
//! are there; in block form the index is sorted and counts its stale entries right. Names are checked as entries
//! are read.

use super::free::check_header3;
use super::leaf::{check_entries, from_hash};
use super::{BlockHeader3, DATA_ALIGN_LOG, DirFileType, LeafEntry, data_entry_len, is_valid_name};
use crate::error::FormatError;
use crate::types::InodeNumber;
use crate::verify::{Verifier, VerifyContext};
use std::mem::{offset_of, size_of};
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `XD2B`: block form, v4.
pub const BLOCK_MAGIC_V4: u32 = 0x5844_3242;
/// `XDB3`: block form, v5.
pub const BLOCK_MAGIC_V5: u32 = 0x5844_4233;
/// `XD2D`: data block, v4.
pub const DATA_MAGIC_V4: u32 = 0x5844_3244;
/// `XDD3`: data block, v5.
pub const DATA_MAGIC_V5: u32 = 0x5844_4433;

const NAME: &str = "directory data block";
/// Marks an unused piece where an entry has the top of its inode number.
pub(super) const FREE_TAG: u16 = 0xffff;
/// Bytes that pieces are aligned to.
pub(super) const ALIGN: usize = 1 << DATA_ALIGN_LOG;

/// A large free piece, kept in the header.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct BestFree {
    offset: U16,
    length: U16,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    magic: U32,
    bestfree: [BestFree; 3],
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header3 {
    block: BlockHeader3,
    bestfree: [BestFree; 3],
    pad: U32,
}

/// The end of a block-form directory.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct BlockTail {
    pub(super) count: U32,
    pub(super) stale: U32,
}

const _: () = {
    assert!(size_of::<BestFree>() == 4);
    assert!(size_of::<Header>() == 16);
    assert!(size_of::<Header3>() == 64);
    assert!(offset_of!(Header3, bestfree) == 48);
    assert!(size_of::<BlockTail>() == 8);
};

/// Where the data area begins.
pub(super) const fn data_start(v5: bool) -> usize {
    if v5 { size_of::<Header3>() } else { size_of::<Header>() }
}

/// Where the list of the largest unused pieces lies.
pub(super) const fn bestfree_at(v5: bool) -> usize {
    if v5 { offset_of!(Header3, bestfree) } else { offset_of!(Header, bestfree) }
}

/// Which kind of data block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataKind {
    /// The whole directory is this block: the index lies behind the entries.
    Block,
    /// A data block of a larger directory.
    Data,
}

/// A data block.
#[derive(Clone, Copy, Debug)]
pub struct DataBlock<'a> {
    /// Which kind.
    pub kind: DataKind,
    /// The inode that the block says it belongs to (v5).
    pub owner: Option<InodeNumber>,
    /// The index, ascending by hash (block form only).
    pub index: &'a [LeafEntry],
    stale: u32,
    bestfree: &'a [BestFree; 3],
    /// The block up to the end of its data area: offsets into it are offsets into the block.
    data: &'a [u8],
    start: usize,
    ftype: bool,
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataEntry<'a> {
    /// Where it lies in the block.
    pub offset: usize,
    /// The inode that it names.
    pub inode: InodeNumber,
    /// The name.
    pub name: &'a [u8],
    /// Its type.
    pub file_type: DirFileType,
}

/// One piece of a data area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataItem<'a> {
    /// An entry.
    Entry(DataEntry<'a>),
    /// Bytes not in use.
    Unused {
        /// Where they lie in the block.
        offset: usize,
        /// How many.
        len: usize,
    },
}

impl<'a> DataBlock<'a> {
    /// Reads a data block of either kind: the magic is right and, in block form, the index lies in the block.
    pub fn parse(bytes: &'a [u8], v5: bool, ftype: bool) -> Result<Self, FormatError> {
        let size = || FormatError::value(NAME, "size", bytes.len() as u64);
        let (magic, owner, bestfree, start) = if v5 {
            let head = Header3::ref_from_prefix(bytes).map_err(|_| size())?.0;
            let owner = Some(InodeNumber(head.block.owner.get()));
            (head.block.magic.get(), owner, &head.bestfree, size_of::<Header3>())
        } else {
            let head = Header::ref_from_prefix(bytes).map_err(|_| size())?.0;
            (head.magic.get(), None, &head.bestfree, size_of::<Header>())
        };
        let kind = match (v5, magic) {
            (true, BLOCK_MAGIC_V5) | (false, BLOCK_MAGIC_V4) => DataKind::Block,
            (true, DATA_MAGIC_V5) | (false, DATA_MAGIC_V4) => DataKind::Data,
            _ => return Err(FormatError::value(NAME, "magic", magic.into())),
        };
        let (data, index, stale) = match kind {
            DataKind::Data => (bytes, &[][..], 0),
            DataKind::Block => split_tail(bytes, start)?,
        };
        Ok(Self { kind, owner, index, stale, bestfree, data, start, ftype })
    }

    /// The pieces in order; the iterator ends behind the first error.
    pub fn items(&self) -> DataItems<'a> {
        DataItems { block: *self, at: self.start, done: false }
    }

    /// The entry at an offset into the block, as an index says it.
    pub fn entry_at(&self, offset: usize) -> Result<DataEntry<'a>, FormatError> {
        let bad = || FormatError::value(NAME, "entry offset", offset as u64);
        if offset < self.start || !offset.is_multiple_of(ALIGN) {
            return Err(bad());
        }
        match self.item_at(offset)?.0 {
            DataItem::Entry(entry) => Ok(entry),
            DataItem::Unused { .. } => Err(bad()),
        }
    }

    /// The entries of the index from the first whose hash is not below `hash` (block form only).
    pub fn index_from_hash(&self, hash: u32) -> &'a [LeafEntry] {
        from_hash(self.index, hash)
    }

    /// How many entries of the index are stale (block form only).
    pub const fn stale(&self) -> u32 {
        self.stale
    }

    /// The list of the largest unused pieces: offset and length, largest first; length 0: no more of them.
    pub fn largest_free(&self) -> [(u16, u16); 3] {
        self.bestfree.map(|best| (best.offset.get(), best.length.get()))
    }

    /// The unused piece at the end of the data area, if there is one: offset and length.
    pub fn last_unused(&self) -> Result<Option<(usize, usize)>, FormatError> {
        self.unused_before(self.data.len())
    }

    /// Where the data area ends.
    pub(super) const fn data_end(&self) -> usize {
        self.data.len()
    }

    /// The piece that ends at `end`, if it is unused: offset and length.
    pub(super) fn unused_before(&self, end: usize) -> Result<Option<(usize, usize)>, FormatError> {
        if end <= self.start {
            return Ok(None);
        }
        let bad = || FormatError::value(NAME, "entry tag", end as u64);
        let before = self.data.get(..end).ok_or_else(bad)?;
        let tag = usize::from(u16::from_be_bytes(*before.last_chunk::<2>().ok_or_else(bad)?));
        if tag < self.start || !tag.is_multiple_of(ALIGN) {
            return Err(bad());
        }
        let (item, len) = self.item_at(tag)?;
        if tag + len != end {
            return Err(bad());
        }
        Ok(matches!(item, DataItem::Unused { .. }).then_some((tag, len)))
    }

    /// The piece at `offset`, if it is unused: offset and length. `None` also at the end of the data area.
    pub(super) fn unused_at(&self, offset: usize) -> Result<Option<(usize, usize)>, FormatError> {
        if offset == self.data.len() {
            return Ok(None);
        }
        let (item, len) = self.item_at(offset)?;
        Ok(matches!(item, DataItem::Unused { .. }).then_some((offset, len)))
    }

    /// The piece at an offset, and its length.
    fn item_at(&self, offset: usize) -> Result<(DataItem<'a>, usize), FormatError> {
        let bad = |check| FormatError::value(NAME, check, offset as u64);
        let rest = self.data.get(offset..).ok_or(bad("entry outside the block"))?;
        let (&[tag_high, tag_low, high, low, ..], _) =
            rest.split_first_chunk::<8>().ok_or(bad("entry outside the block"))?;
        if u16::from_be_bytes([tag_high, tag_low]) == FREE_TAG {
            let len = usize::from(u16::from_be_bytes([high, low]));
            if len < ALIGN || !len.is_multiple_of(ALIGN) {
                return Err(FormatError::value(NAME, "length of unused space", len as u64));
            }
            self.check_tag(offset, len)?;
            return Ok((DataItem::Unused { offset, len }, len));
        }
        let (number, behind) = rest.split_first_chunk::<8>().ok_or(bad("entry outside the block"))?;
        let (&name_len, behind) = behind.split_first().ok_or(bad("entry outside the block"))?;
        let len = data_entry_len(name_len, self.ftype);
        self.check_tag(offset, len)?;
        let (name, behind) =
            behind.split_at_checked(name_len.into()).ok_or(bad("entry outside the block"))?;
        if !is_valid_name(name) {
            return Err(bad("entry name"));
        }
        let file_type = if self.ftype {
            let byte = *behind.first().ok_or(bad("entry outside the block"))?;
            DirFileType::from_disk(byte).ok_or(FormatError::value(NAME, "entry file type", byte.into()))?
        } else {
            DirFileType::Unknown
        };
        let inode = InodeNumber(u64::from_be_bytes(*number));
        Ok((DataItem::Entry(DataEntry { offset, inode, name, file_type }), len))
    }

    /// Fails unless a piece ends within the data area, and in a tag with its own offset.
    fn check_tag(&self, offset: usize, len: usize) -> Result<(), FormatError> {
        let outside = FormatError::value(NAME, "entry outside the block", offset as u64);
        let end = offset.checked_add(len).ok_or(outside.clone())?;
        let piece = self.data.get(offset..end).ok_or(outside.clone())?;
        let tag = usize::from(u16::from_be_bytes(*piece.last_chunk::<2>().ok_or(outside)?));
        if tag != offset {
            return Err(FormatError::mismatch(NAME, "entry tag", tag as u64, offset as u64));
        }
        Ok(())
    }

    /// Walks all pieces; the header's list of large free pieces must name pieces that exist, largest first.
    fn check(&self) -> Result<(), FormatError> {
        let mut seen = [false; 3];
        for item in self.items() {
            if let DataItem::Unused { offset, len } = item? {
                for (best, seen) in self.bestfree.iter().zip(&mut seen) {
                    *seen |=
                        usize::from(best.offset.get()) == offset && usize::from(best.length.get()) == len;
                }
            }
        }
        let mut last = u16::MAX;
        for (best, seen) in self.bestfree.iter().zip(seen) {
            let (offset, length) = (best.offset.get(), best.length.get());
            if length > last || (length != 0 && !seen) || (length == 0 && offset != 0) {
                return Err(FormatError::value(NAME, "list of largest free space", offset.into()));
            }
            last = length;
        }
        check_entries(NAME, self.index, self.stale.into())
    }
}

/// Splits a block-form directory into data area, index and count of stale entries.
fn split_tail(bytes: &[u8], start: usize) -> Result<(&[u8], &[LeafEntry], u32), FormatError> {
    let size = || FormatError::value(NAME, "size", bytes.len() as u64);
    let (rest, tail) = BlockTail::ref_from_suffix(bytes).map_err(|_| size())?;
    let count = tail.count.get();
    let limit = rest.len().saturating_sub(start) / size_of::<LeafEntry>();
    let bad = || FormatError::mismatch(NAME, "index entry count", count.into(), limit as u64);
    let count = usize::try_from(count).ok().filter(|&count| count <= limit).ok_or_else(bad)?;
    let (data, index) = <[LeafEntry]>::ref_from_suffix_with_elems(rest, count).map_err(|_| bad())?;
    Ok((data, index, tail.stale.get()))
}

/// Pieces of a data block.
#[derive(Debug)]
pub struct DataItems<'a> {
    block: DataBlock<'a>,
    at: usize,
    done: bool,
}

impl<'a> Iterator for DataItems<'a> {
    type Item = Result<DataItem<'a>, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done || self.at == self.block.data.len() {
            return None;
        }
        match self.block.item_at(self.at) {
            Ok((item, len)) => {
                self.at += len; // within the block: its tag was read
                Some(Ok(item))
            }
            Err(problem) => {
                self.done = true;
                Some(Err(problem))
            }
        }
    }
}

/// A data block, in block form or not, on a volume whose entries carry no file type.
pub static DATA: Verifier = Verifier { name: NAME, check: |bytes, ctx| check(bytes, ctx, false) };
/// A data block, in block form or not, on a volume whose entries carry the file type.
pub static DATA_FTYPE: Verifier = Verifier { name: NAME, check: |bytes, ctx| check(bytes, ctx, true) };

/// The verifier of data blocks for a volume with or without file types in its directories.
pub const fn data_verifier(ftype: bool) -> &'static Verifier {
    if ftype { &DATA_FTYPE } else { &DATA }
}

fn check(bytes: &[u8], ctx: &VerifyContext, ftype: bool) -> Result<(), FormatError> {
    let block = DataBlock::parse(bytes, ctx.v5, ftype)?;
    check_header3(NAME, bytes, ctx)?;
    block.check()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{DiskAddr, Uuid};

    fn v4() -> VerifyContext {
        VerifyContext { v5: false, meta_uuid: Uuid([0; 16]), daddr: DiskAddr(0) }
    }

    /// A v4 data block with `.`, `..`, a free piece and one entry; then free to the end.
    fn sample() -> Vec<u8> {
        let mut bytes = DATA_MAGIC_V4.to_be_bytes().to_vec();
        bytes.resize(16, 0);
        let entry = |bytes: &mut Vec<u8>, name: &[u8]| {
            let at = bytes.len();
            bytes.extend(7u64.to_be_bytes());
            bytes.push(name.len() as u8);
            bytes.extend(name);
            bytes.resize(at + data_entry_len(name.len() as u8, false) - 2, 0);
            bytes.extend((at as u16).to_be_bytes());
        };
        let unused = |bytes: &mut Vec<u8>, len: usize| {
            let at = bytes.len();
            bytes.extend(FREE_TAG.to_be_bytes());
            bytes.extend((len as u16).to_be_bytes());
            bytes.resize(at + len - 2, 0);
            bytes.extend((at as u16).to_be_bytes());
        };
        entry(&mut bytes, b".");
        entry(&mut bytes, b"..");
        unused(&mut bytes, 24);
        entry(&mut bytes, b"file");
        let at = bytes.len();
        unused(&mut bytes, 512 - at);
        for (i, (offset, len)) in [(at, 512 - at), (48, 24)].into_iter().enumerate() {
            bytes[4 + i * 4..6 + i * 4].copy_from_slice(&(offset as u16).to_be_bytes());
            bytes[6 + i * 4..8 + i * 4].copy_from_slice(&(len as u16).to_be_bytes());
        }
        bytes
    }

    #[test]
    fn pieces_walk_to_the_end() {
        let bytes = sample();
        (DATA.check)(&bytes, &v4()).unwrap();
        let block = DataBlock::parse(&bytes, false, false).unwrap();
        let items: Vec<_> = block.items().map(Result::unwrap).collect();
        assert_eq!(items.len(), 5);
        assert_eq!(items[2], DataItem::Unused { offset: 48, len: 24 });
        let entry = block.entry_at(72).unwrap();
        assert_eq!((entry.name, entry.inode), (&b"file"[..], InodeNumber(7)));
        for offset in [0, 8, 15, 17, 40, 48, 96, 504, 512, 4096, usize::MAX & !7] {
            assert!(block.entry_at(offset).is_err(), "offset {offset}");
        }
    }

    #[test]
    fn lies_are_found() {
        let check = |at: usize, byte: u8| {
            let mut bytes = sample();
            bytes[at] = byte;
            (DATA.check)(&bytes, &v4()).expect_err("a lie is found").check
        };
        assert_eq!(check(0, 0), "magic");
        assert_eq!(check(5, 8), "list of largest free space");
        assert_eq!(check(31, 1), "entry tag");
        assert_eq!(check(51, 20), "length of unused space");
        assert_eq!(check(51, 0), "length of unused space");
        assert_eq!(check(50, 0xff), "entry outside the block");
        assert_eq!(check(81, b'/'), "entry name");
        assert_eq!(check(80, 0), "entry name");
        assert_eq!(check(80, 9), "entry tag");
    }
}
