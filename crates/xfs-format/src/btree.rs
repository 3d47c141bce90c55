//! Blocks of the B+trees: one layout with short pointers (trees of a group) and one with long ones (block maps).
//!
//! A [`Tree`] supplies names, magics and the types of its records and keys; a [`Node`] is one block of it, whose
//! record count was checked against the block's size, so that its slices cannot be out of range. Keys must not
//! descend within a block; order between blocks is checked by whoever walks the tree.

use crate::ag::MAX_LEVELS;
use crate::bmbt::{BmbtKey, BmbtRecord};
use crate::error::FormatError;
use crate::records::{
    AllocRecord, InobtKey, InobtRecord, RefcountKey, RefcountRecord, RmapKey, RmapKeyPair, RmapRecord,
};
use crate::types::Lsn;
use crate::verify::{Verifier, VerifyContext, check_identity};
use std::fmt::Debug;
use std::marker::PhantomData;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Header of a block with short pointers; on v4 its first 16 bytes alone.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are the format's")]
pub struct ShortHeader {
    pub magic: U32,
    pub level: U16,
    pub numrecs: U16,
    pub leftsib: U32,
    pub rightsib: U32,
    pub blkno: U64,
    pub lsn: U64,
    pub uuid: [u8; 16],
    pub owner: U32,
    /// Little-endian.
    pub crc: [u8; 4],
}

/// Header of a block with long pointers; on v4 its first 24 bytes alone.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are the format's")]
pub struct LongHeader {
    pub magic: U32,
    pub level: U16,
    pub numrecs: U16,
    pub leftsib: U64,
    pub rightsib: U64,
    pub blkno: U64,
    pub lsn: U64,
    pub uuid: [u8; 16],
    pub owner: U64,
    /// Little-endian.
    pub crc: [u8; 4],
    pub pad: U32,
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<ShortHeader>() == 56);
    assert!(offset_of!(ShortHeader, blkno) == 16);
    assert!(offset_of!(ShortHeader, crc) == 52);
    assert!(size_of::<LongHeader>() == 72);
    assert!(offset_of!(LongHeader, blkno) == 24);
    assert!(offset_of!(LongHeader, crc) == 64);
};

/// Plain data that can be viewed anywhere in a block.
pub trait Plain:
    FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Copy + Debug + 'static
{
}
impl<T: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Copy + Debug + 'static> Plain for T {}

/// Whether pointers and owners have 32 or 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// A block of the group; the owner is the group.
    Short,
    /// A block of the volume; the owner is an inode.
    Long,
}

/// One kind of B+tree.
pub trait Tree: Sized + Copy + Debug + 'static {
    /// Its blocks' name in messages.
    const NAME: &'static str;
    /// Magic on v4, where v4 has this tree.
    const MAGIC_V4: Option<u32>;
    /// Magic on v5.
    const MAGIC_V5: u32;
    /// Width of pointers.
    const WIDTH: Width;
    /// A leaf's record.
    type Record: Plain;
    /// What an inner block holds for each child, besides the pointer.
    type Key: Plain;
    /// What records and keys are ordered by.
    type Rank: Ord + Copy + Debug;

    /// A record's place in the order.
    fn record_rank(record: &Self::Record) -> Self::Rank;
    /// A key's place in the order: that of the first record under its child.
    fn key_rank(key: &Self::Key) -> Self::Rank;
    /// The key that an inner block holds for a child whose only record is this one.
    fn record_key(record: &Self::Record) -> Self::Key;
    /// The verifier of its blocks.
    fn verifier() -> &'static Verifier;

    /// The key for a child with these keys or, for a leaf, with the keys of these records.
    fn span(keys: impl IntoIterator<Item = Self::Key>) -> Option<Self::Key> {
        keys.into_iter().next()
    }

    /// Whether a key describes a child correctly.
    fn same_key(found: &Self::Key, due: &Self::Key) -> bool {
        Self::key_rank(found) == Self::key_rank(due)
    }

    /// Whether a key describes all records under its child, and not only the first one.
    const OVERLAPPING: bool = false;

    /// Bytes of a block's header.
    fn header_len(v5: bool) -> usize {
        match (Self::WIDTH, v5) {
            (Width::Short, false) => 16,
            (Width::Short, true) => 56,
            (Width::Long, false) => 24,
            (Width::Long, true) => 72,
        }
    }

    /// Bytes of a pointer.
    fn pointer_len() -> usize {
        match Self::WIDTH {
            Width::Short => 4,
            Width::Long => 8,
        }
    }

    /// How many children an inner block of `bytes` behind its header has room for.
    fn max_children(bytes: usize) -> usize {
        bytes / (size_of::<Self::Key>() + Self::pointer_len())
    }

    /// How many records a leaf of `bytes` behind its header has room for.
    fn max_records(bytes: usize) -> usize {
        bytes / size_of::<Self::Record>()
    }
}

/// One block of a tree, whose counts fit its size.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a, T: Tree> {
    bytes: &'a [u8],
    v5: bool,
    body_at: usize,
    level: u16,
    count: usize,
    tree: PhantomData<T>,
}

/// Where the body of an inline root begins: behind level and count.
pub(crate) const INLINE_BODY: usize = 4;

impl<'a, T: Tree> Node<'a, T> {
    /// The block in `bytes`. Only its counts are checked here; the rest is up to its verifier.
    pub fn view(bytes: &'a [u8], v5: bool) -> Result<Self, FormatError> {
        let short = || FormatError::value(T::NAME, "length", bytes.len() as u64);
        let (fields, _) = <[U16; 4]>::ref_from_prefix(bytes).map_err(|_| short())?;
        let [_, _, level, count] = fields.map(U16::get);
        Self::new(bytes, v5, T::header_len(v5), level, count)
    }

    /// The root in the bytes of an inode's fork: level and count, keys, and pointers behind the room for all keys.
    /// It has no siblings and no owner. A level of 0 is left to the caller to refuse.
    pub fn inline_root(fork: &'a [u8]) -> Result<Self, FormatError> {
        let short = || FormatError::value(T::NAME, "length", fork.len() as u64);
        let (fields, _) = <[U16; 2]>::ref_from_prefix(fork).map_err(|_| short())?;
        let [level, count] = fields.map(U16::get);
        Self::new(fork, false, INLINE_BODY, level, count)
    }

    fn new(bytes: &'a [u8], v5: bool, body_at: usize, level: u16, count: u16) -> Result<Self, FormatError> {
        let short = || FormatError::value(T::NAME, "length", bytes.len() as u64);
        let body = bytes.len().checked_sub(body_at).ok_or_else(short)?;
        let most = if level == 0 { T::max_records(body) } else { T::max_children(body) };
        let count = usize::from(count);
        if count > most {
            return Err(FormatError::mismatch(T::NAME, "record count", count as u64, most as u64));
        }
        if u32::from(level) >= MAX_LEVELS {
            return Err(FormatError::mismatch(T::NAME, "level", level.into(), MAX_LEVELS.into()));
        }
        Ok(Self { bytes, v5, body_at, level, count, tree: PhantomData })
    }

    /// How many records or children it has room for.
    pub fn capacity(&self) -> usize {
        if self.level == 0 { T::max_records(self.body().len()) } else { T::max_children(self.body().len()) }
    }

    /// Its height above the leaves.
    pub fn level(&self) -> u16 {
        self.level
    }

    /// How many records or children it has.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Its siblings, left and right; all ones where there is none.
    pub fn siblings(&self) -> (u64, u64) {
        if self.body_at == INLINE_BODY {
            return (u64::MAX, u64::MAX);
        }
        let after = self.bytes.get(8..).unwrap_or_default();
        match T::WIDTH {
            Width::Short => <[U32; 2]>::ref_from_prefix(after)
                .map_or((u64::MAX, u64::MAX), |([left, right], _)| (widen(*left), widen(*right))),
            Width::Long => <[U64; 2]>::ref_from_prefix(after)
                .map_or((u64::MAX, u64::MAX), |([left, right], _)| (left.get(), right.get())),
        }
    }

    /// The owner that the block carries: group number or inode. `None` on v4.
    pub fn owner(&self) -> Option<u64> {
        if !self.v5 {
            return None;
        }
        match T::WIDTH {
            Width::Short => ShortHeader::ref_from_prefix(self.bytes).ok().map(|(h, _)| h.owner.get().into()),
            Width::Long => LongHeader::ref_from_prefix(self.bytes).ok().map(|(h, _)| h.owner.get()),
        }
    }

    /// The records of a leaf; empty for an inner block.
    pub fn records(&self) -> &'a [T::Record] {
        if self.level != 0 {
            return &[];
        }
        elements(self.body(), self.count)
    }

    /// The keys of an inner block; empty for a leaf.
    pub fn keys(&self) -> &'a [T::Key] {
        if self.level == 0 {
            return &[];
        }
        elements(self.body(), self.count)
    }

    /// The pointer to child `index` of an inner block.
    pub fn pointer(&self, index: usize) -> Option<u64> {
        if self.level == 0 || index >= self.count {
            return None;
        }
        let body = self.body();
        let pointers = body.get(T::max_children(body.len()) * size_of::<T::Key>()..)?;
        read_pointer::<T>(pointers, index)
    }

    fn body(&self) -> &'a [u8] {
        self.bytes.get(self.body_at..).unwrap_or_default()
    }

    /// Checks that the block's order does not descend.
    fn check_order(&self) -> Result<(), FormatError> {
        let sorted = if self.level == 0 {
            self.records().is_sorted_by_key(T::record_rank)
        } else {
            self.keys().is_sorted_by_key(T::key_rank)
        };
        if sorted { Ok(()) } else { Err(FormatError::new(T::NAME, "order of records")) }
    }
}

/// The first `count` elements of `bytes`; the caller has checked that they fit.
fn elements<E: Plain>(bytes: &[u8], count: usize) -> &[E] {
    <[E]>::ref_from_prefix_with_elems(bytes, count).map(|(elements, _)| elements).unwrap_or_default()
}

/// Pointer `index` of an array of them.
pub(crate) fn read_pointer<T: Tree>(pointers: &[u8], index: usize) -> Option<u64> {
    let at = pointers.get(index.checked_mul(T::pointer_len())?..)?;
    match T::WIDTH {
        Width::Short => U32::ref_from_prefix(at).ok().map(|(p, _)| p.get().into()),
        Width::Long => U64::ref_from_prefix(at).ok().map(|(p, _)| p.get()),
    }
}

/// All ones stay all ones.
fn widen(pointer: U32) -> u64 {
    if pointer.get() == u32::MAX { u64::MAX } else { pointer.get().into() }
}

/// The check of every tree's blocks.
fn check_block<T: Tree>(bytes: &[u8], context: &VerifyContext) -> Result<(), FormatError> {
    let magic = bytes.first_chunk::<4>().map(|raw| u32::from_be_bytes(*raw)).unwrap_or_default();
    let expected = if context.v5 { Some(T::MAGIC_V5) } else { T::MAGIC_V4 };
    if expected != Some(magic) {
        let expected = expected.unwrap_or_default();
        return Err(FormatError::mismatch(T::NAME, "magic", magic.into(), expected.into()));
    }
    let node = Node::<T>::view(bytes, context.v5)?;
    if context.v5 {
        let short = || FormatError::value(T::NAME, "length", bytes.len() as u64);
        match T::WIDTH {
            Width::Short => {
                let (h, _) = ShortHeader::ref_from_prefix(bytes).map_err(|_| short())?;
                check_identity(T::NAME, bytes, 52, &h.uuid, Some(h.blkno.get()), Lsn(h.lsn.get()), context)?;
            }
            Width::Long => {
                let (h, _) = LongHeader::ref_from_prefix(bytes).map_err(|_| short())?;
                check_identity(T::NAME, bytes, 64, &h.uuid, Some(h.blkno.get()), Lsn(h.lsn.get()), context)?;
            }
        }
    }
    node.check_order()
}

macro_rules! tree {
    ($(#[$doc:meta])* $tree:ident, $width:ident, $v4:expr, $v5:literal, $name:literal,
     $record:ty, $key:ty, $rank:ty, $record_rank:expr, $key_rank:expr, $record_key:expr $(, $($more:item)+)?) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $tree;

        impl Tree for $tree {
            const NAME: &'static str = $name;
            const MAGIC_V4: Option<u32> = $v4;
            const MAGIC_V5: u32 = u32::from_be_bytes(*$v5);
            const WIDTH: Width = Width::$width;
            type Record = $record;
            type Key = $key;
            type Rank = $rank;

            fn record_rank(record: &Self::Record) -> Self::Rank {
                ($record_rank)(record)
            }
            fn key_rank(key: &Self::Key) -> Self::Rank {
                ($key_rank)(key)
            }
            fn record_key(record: &Self::Record) -> Self::Key {
                ($record_key)(record)
            }
            $($($more)+)?
            fn verifier() -> &'static Verifier {
                static VERIFIER: Verifier = Verifier { name: $name, check: check_block::<$tree> };
                &VERIFIER
            }
        }
    };
}

const fn v4(magic: [u8; 4]) -> Option<u32> {
    Some(u32::from_be_bytes(magic))
}

/// The parts of an rmap offset that order records: the flag for unwritten does not.
fn rmap_rank(start: U32, owner: U64, offset: U64) -> (u32, u64, u64) {
    (start.get(), owner.get(), offset.get() & !RmapRecord::UNWRITTEN)
}

/// The lowest and the highest key of one rmap record: its first block, and its last with the offset there.
fn rmap_keys(record: &RmapRecord) -> RmapKeyPair {
    let raw = record.offset.get();
    let offset = raw & !RmapRecord::UNWRITTEN;
    let low = RmapKey { startblock: record.startblock, owner: record.owner, offset: offset.into() };
    let more = record.blockcount.get().saturating_sub(1);
    // Owners that are not inodes have no offsets, nor have blocks of a block map tree.
    let high_offset = if record.owner.get() >> 63 == 1 || raw & RmapRecord::BMBT_BLOCK != 0 {
        offset
    } else {
        offset + u64::from(more)
    };
    let high = RmapKey {
        startblock: record.startblock.get().saturating_add(more).into(),
        owner: record.owner,
        offset: high_offset.into(),
    };
    RmapKeyPair { low, high }
}

tree!(
    /// Free space by place.
    Bnobt, Short, v4(*b"ABTB"), b"AB3B", "bnobt block", AllocRecord, AllocRecord, u32,
    |r: &AllocRecord| r.startblock.get(), |k: &AllocRecord| k.startblock.get(),
    |r: &AllocRecord| *r
);
tree!(
    /// Free space by size, then place.
    Cntbt, Short, v4(*b"ABTC"), b"AB3C", "cntbt block", AllocRecord, AllocRecord, (u32, u32),
    |r: &AllocRecord| (r.blockcount.get(), r.startblock.get()),
    |k: &AllocRecord| (k.blockcount.get(), k.startblock.get()), |r: &AllocRecord| *r
);
tree!(
    /// Inode chunks.
    Inobt, Short, v4(*b"IABT"), b"IAB3", "inobt block", InobtRecord, InobtKey, u32,
    |r: &InobtRecord| r.startino.get(), |k: &InobtKey| k.startino.get(),
    |r: &InobtRecord| InobtKey { startino: r.startino }
);
tree!(
    /// Inode chunks that have free inodes.
    Finobt, Short, v4(*b"FIBT"), b"FIB3", "finobt block", InobtRecord, InobtKey, u32,
    |r: &InobtRecord| r.startino.get(), |k: &InobtKey| k.startino.get(),
    |r: &InobtRecord| InobtKey { startino: r.startino }
);
tree!(
    /// Owners of extents.
    Rmapbt, Short, None, b"RMB3", "rmapbt block", RmapRecord, RmapKeyPair, (u32, u64, u64),
    |r: &RmapRecord| rmap_rank(r.startblock, r.owner, r.offset),
    |k: &RmapKeyPair| { let low: RmapKey = k.low; rmap_rank(low.startblock, low.owner, low.offset) },
    rmap_keys,
    const OVERLAPPING: bool = true;
    fn same_key(found: &RmapKeyPair, due: &RmapKeyPair) -> bool {
        // Old kernels left the flag for unwritten in keys.
        let rank = |key: &RmapKey| rmap_rank(key.startblock, key.owner, key.offset);
        rank(&found.low) == rank(&due.low) && rank(&found.high) == rank(&due.high)
    }
    fn span(keys: impl IntoIterator<Item = RmapKeyPair>) -> Option<RmapKeyPair> {
        keys.into_iter().reduce(|span, key| {
            let rank = |key: &RmapKey| rmap_rank(key.startblock, key.owner, key.offset);
            if rank(&span.high) < rank(&key.high) { RmapKeyPair { high: key.high, ..span } } else { span }
        })
    }
);
tree!(
    /// Reference counts of shared extents.
    Refcountbt, Short, None, b"R3FC", "refcountbt block", RefcountRecord, RefcountKey, u32,
    |r: &RefcountRecord| r.startblock.get(), |k: &RefcountKey| k.startblock.get(),
    |r: &RefcountRecord| RefcountKey { startblock: r.startblock }
);
tree!(
    /// The block map of a fork.
    Bmbt, Long, v4(*b"BMAP"), b"BMA3", "bmbt block", BmbtRecord, BmbtKey, u64,
    |r: &BmbtRecord| r.startoff(), |k: &BmbtKey| k.startoff.get(),
    |r: &BmbtRecord| BmbtKey { startoff: r.startoff().into() }
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum;
    use crate::types::{DiskAddr, Uuid};

    const CONTEXT: VerifyContext = VerifyContext { v5: true, meta_uuid: Uuid([7; 16]), daddr: DiskAddr(80) };

    #[test]
    fn both_keys_of_a_reverse_mapping_must_be_right() {
        let record =
            RmapRecord { startblock: 8.into(), blockcount: 4.into(), owner: 131.into(), offset: 16.into() };
        let due = Rmapbt::record_key(&record);
        assert_eq!((due.high.startblock.get(), due.high.offset.get()), (11, 19));
        assert!(Rmapbt::same_key(&due, &due));
        let old = RmapKey { offset: (RmapRecord::UNWRITTEN | 16).into(), ..due.low };
        assert!(Rmapbt::same_key(&RmapKeyPair { low: old, ..due }, &due));
        let high = RmapKey { startblock: 12.into(), ..due.high };
        assert!(!Rmapbt::same_key(&RmapKeyPair { high, ..due }, &due));
        let low = RmapKey { owner: 132.into(), ..due.low };
        assert!(!Rmapbt::same_key(&RmapKeyPair { low, ..due }, &due));
    }

    fn leaf() -> [u8; 1024] {
        let mut block = [0; 1024];
        let (header, _) = ShortHeader::mut_from_prefix(&mut block).unwrap();
        header.magic = Bnobt::MAGIC_V5.into();
        header.numrecs = 2.into();
        header.leftsib = u32::MAX.into();
        header.rightsib = 5.into();
        header.blkno = 80.into();
        header.uuid = [7; 16];
        header.owner = 3.into();
        block[56..60].copy_from_slice(&9_u32.to_be_bytes());
        block[64..68].copy_from_slice(&12_u32.to_be_bytes());
        block
    }

    fn check(mut block: [u8; 1024]) -> Result<(), FormatError> {
        checksum::store(&mut block, 52);
        (Bnobt::verifier().check)(&block, &CONTEXT)
    }

    #[test]
    fn a_leaf() {
        let block = leaf();
        assert_eq!(check(block), Ok(()));
        let node = Node::<Bnobt>::view(&block, true).unwrap();
        assert_eq!(node.records()[1].startblock.get(), 12);
        assert_eq!((node.siblings(), node.owner()), ((u64::MAX, 5), Some(3)));
        assert!(node.keys().is_empty() && node.pointer(0).is_none());
    }

    #[test]
    fn damage_is_named() {
        let changed = |at: usize, value: u8| {
            let mut block = leaf();
            block[at] = value;
            check(block).unwrap_err().check
        };
        assert_eq!(changed(3, b'C'), "magic");
        assert_eq!(changed(6, 0x80), "record count");
        assert_eq!(changed(4, 0x80), "level");
        assert_eq!(changed(23, 81), "own address");
        assert_eq!(changed(32, 0), "UUID");
        assert_eq!(changed(59, 13), "order of records");
        assert_eq!((Bnobt::verifier().check)(&leaf(), &CONTEXT).unwrap_err().check, "checksum");
        assert!((Bnobt::verifier().check)(&[0x41; 3], &CONTEXT).is_err());
        assert!((Bnobt::verifier().check)(b"AB3B\0\0\0\0", &CONTEXT).is_err());
    }

    #[test]
    fn inner_blocks_keep_pointers_behind_room_for_all_keys() {
        let mut block = leaf();
        block[5] = 1;
        let most = (1024 - 56) / 12;
        let at = 56 + most * 8 + 4;
        block[at..at + 4].copy_from_slice(&77_u32.to_be_bytes());
        let node = Node::<Bnobt>::view(&block, true).unwrap();
        assert_eq!(node.pointer(1), Some(77));
        assert_eq!(node.pointer(2), None);
        assert_eq!(node.keys().len(), 2);
        assert!(node.records().is_empty());
    }

    #[test]
    fn keys_of_the_reverse_map_come_in_pairs() {
        assert_eq!(Rmapbt::max_children(1024 - 56), (1024 - 56) / 44);
        assert_eq!(Bmbt::max_children(4096 - 72), 251);
        assert_eq!(Bmbt::max_records(4096 - 24), 254);
    }
}
