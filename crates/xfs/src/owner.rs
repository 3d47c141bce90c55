//! Owners of blocks, as rmap trees and their intents have them.
//!
//! These are plain values. Whoever asks for blocks says who will own them, and needs nothing else of the rmap tree.

use std::fmt;
use xfs_format::bmbt::STARTOFF_BITS;
use xfs_format::btree::{Rmapbt, Tree};
use xfs_format::geometry::Geometry;
use xfs_format::records::RmapRecord;
use xfs_format::types::{AgBlock, AgNumber, FileBlock, InodeNumber};

/// The owner of an extent: an inode's fork from some offset on, the tree of that fork's map, or something of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RmapOwner {
    owner: u64,
    /// Offset and flags as in a record, without the unwritten flag.
    offset: u64,
}

/// An extent and its owner, as in one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First block.
    pub start: AgBlock,
    /// Number of blocks.
    pub len: u32,
    /// Their owner. If it has offsets, with that of the first block.
    pub owner: RmapOwner,
    /// Allocated and not written. Only data forks have such extents.
    pub unwritten: bool,
}

/// An offset that cannot be mistaken for flags. One that is too large stays too large, and is refused later.
const fn no_flags(offset: FileBlock) -> u64 {
    if offset.0 >> STARTOFF_BITS == 0 { offset.0 } else { 1 << STARTOFF_BITS }
}

/// Sectors of superblock, AGF, AGI and AGFL at the start of each group.
const HEADER_SECTORS: u32 = 4;

impl RmapOwner {
    /// Superblock, AGF, AGI and AGFL.
    pub const HEADERS: Self = Self::special(RmapRecord::OWNER_HEADERS);
    /// The log.
    pub const LOG: Self = Self::special(RmapRecord::OWNER_LOG);
    /// The free space trees, the rmap tree, and the blocks in the AGFL.
    pub const SPACE_TREES: Self = Self::special(RmapRecord::OWNER_SPACE_TREES);
    /// The inode trees.
    pub const INODE_TREES: Self = Self::special(RmapRecord::OWNER_INODE_TREES);
    /// Inode chunks.
    pub const INODES: Self = Self::special(RmapRecord::OWNER_INODES);
    /// The refcount tree.
    pub const REFCOUNT_TREE: Self = Self::special(RmapRecord::OWNER_REFCOUNT_TREE);
    /// Blocks staged for copy-on-write.
    pub const COW_STAGING: Self = Self::special(RmapRecord::OWNER_COW_STAGING);
    /// Any owner: for [`unmap`](crate::rmap::unmap) of blocks that an intent in the log frees without naming their
    /// owner. No record has it.
    pub const ANY: Self = Self::special(-2_i64 as u64);

    const fn special(owner: u64) -> Self {
        Self { owner, offset: 0 }
    }

    /// An inode's data fork from this offset on.
    pub const fn data(ino: InodeNumber, offset: FileBlock) -> Self {
        Self { owner: ino.0, offset: no_flags(offset) }
    }

    /// An inode's attribute fork from this offset on.
    pub const fn attr(ino: InodeNumber, offset: FileBlock) -> Self {
        Self { owner: ino.0, offset: no_flags(offset) | RmapRecord::ATTR_FORK }
    }

    /// Blocks of the map tree of an inode's attribute or data fork.
    pub const fn bmbt(ino: InodeNumber, attr_fork: bool) -> Self {
        let fork = if attr_fork { RmapRecord::ATTR_FORK } else { 0 };
        Self { owner: ino.0, offset: RmapRecord::BMBT_BLOCK | fork }
    }

    /// The owner in an intent: a number, which may be one of the special ones, and flags. Whether there can be such an
    /// owner is checked when it is used.
    pub const fn numbered(owner: u64, offset: FileBlock, attr_fork: bool, bmbt_block: bool) -> Self {
        let attr_fork = if attr_fork { RmapRecord::ATTR_FORK } else { 0 };
        let bmbt_block = if bmbt_block { RmapRecord::BMBT_BLOCK } else { 0 };
        Self { owner, offset: no_flags(offset) | attr_fork | bmbt_block }
    }

    /// The owner as in records and intents: an inode's number, or one of the special ones.
    pub const fn number(self) -> u64 {
        self.owner
    }

    /// The inode, unless it is something of the group.
    pub const fn inode(self) -> Option<InodeNumber> {
        if self.owner >> 63 == 0 { Some(InodeNumber(self.owner)) } else { None }
    }

    /// Offset in the fork; 0 if there are none.
    pub const fn offset(self) -> FileBlock {
        FileBlock(self.offset & !(RmapRecord::ATTR_FORK | RmapRecord::BMBT_BLOCK))
    }

    /// Whether it is the attribute fork.
    pub const fn attr_fork(self) -> bool {
        self.offset & RmapRecord::ATTR_FORK != 0
    }

    /// Whether it is a block of a fork's map.
    pub const fn bmbt_block(self) -> bool {
        self.offset & RmapRecord::BMBT_BLOCK != 0
    }

    /// Whether it has offsets.
    const fn has_offsets(self) -> bool {
        self.owner >> 63 == 0 && !self.bmbt_block()
    }

    /// The same owner this many blocks further on.
    #[must_use]
    pub const fn advanced(self, blocks: u32) -> Self {
        let step = if self.has_offsets() { blocks as u64 } else { 0 };
        Self { offset: self.offset + step, ..self }
    }

    /// Checks that there can be a record of it: no flags and offsets where there are none, and a valid number.
    fn check(self, len: u32, unwritten: bool, geometry: &Geometry) -> Result<(), &'static str> {
        let offset = self.offset();
        match self.inode() {
            None if self.owner > RmapRecord::OWNER_HEADERS || self.owner < RmapRecord::OWNER_COW_STAGING => {
                Err("owner")
            }
            None if self.offset != 0 || unwritten => Err("offset of an owner that has none"),
            None => Ok(()),
            Some(ino) if ino.0 == 0 || geometry.split_inode(ino).is_none() => Err("owner"),
            Some(_) if self.bmbt_block() && offset.0 != 0 => Err("offset of a bmbt block"),
            Some(_) if unwritten && (self.bmbt_block() || self.attr_fork()) => Err("flags"),
            Some(_) if offset.0 + u64::from(len) > 1 << STARTOFF_BITS => Err("offset"),
            Some(_) => Ok(()),
        }
    }
}

impl Mapping {
    /// The content of a record.
    pub fn of_record(record: &RmapRecord) -> Self {
        let offset = record.offset.get();
        Self {
            start: AgBlock(record.startblock.get()),
            len: record.blockcount.get(),
            owner: RmapOwner { owner: record.owner.get(), offset: offset & !RmapRecord::UNWRITTEN },
            unwritten: offset & RmapRecord::UNWRITTEN != 0,
        }
    }

    /// The record with this content.
    pub fn record(&self) -> RmapRecord {
        let unwritten = if self.unwritten { RmapRecord::UNWRITTEN } else { 0 };
        RmapRecord {
            startblock: self.start.0.into(),
            blockcount: self.len.into(),
            owner: self.owner.owner.into(),
            offset: (self.owner.offset | unwritten).into(),
        }
    }

    pub(crate) fn rank(&self) -> <Rmapbt as Tree>::Rank {
        Rmapbt::record_rank(&self.record())
    }

    /// The block after the last one.
    pub(crate) const fn end(&self) -> u64 {
        self.start.0 as u64 + self.len as u64
    }

    /// The part before that block, which lies within it.
    pub(crate) const fn until(&self, end: AgBlock) -> Self {
        Self { len: end.0 - self.start.0, ..*self }
    }

    /// The part from that block on, which lies within it.
    pub(crate) const fn from(&self, start: u64) -> Self {
        let gone = (start - self.start.0 as u64) as u32;
        Self {
            start: AgBlock(start as u32),
            len: self.len - gone,
            owner: self.owner.advanced(gone),
            unwritten: self.unwritten,
        }
    }

    /// The part that lies within the blocks of `other`. The two must intersect.
    pub(crate) fn within(&self, other: &Self) -> Self {
        let tail = self.from(self.start.max(other.start).0.into());
        Self { len: (tail.end().min(other.end()) - u64::from(tail.start.0)) as u32, ..tail }
    }

    /// Whether it contains `part`, for the same owner at the same offset. Their states are not compared.
    pub(crate) fn covers(&self, part: &Self) -> bool {
        self.start <= part.start
            && part.end() <= self.end()
            && self.owner.advanced(part.start.0 - self.start.0) == part.owner
    }

    /// Whether `next` continues it, for the same owner. Their states are not compared.
    pub(crate) fn touches(&self, next: &Self) -> bool {
        self.end() == u64::from(next.start.0) && self.owner.advanced(self.len) == next.owner
    }

    /// Whether one record can have both. A group has no more blocks than a record can count.
    pub(crate) fn joins(&self, next: &Self) -> bool {
        self.touches(next) && self.unwritten == next.unwritten
    }

    /// Why the rmap tree of this group cannot have it: blocks past its end, headers with another owner, an invalid
    /// owner, or flags and offsets that the owner cannot have.
    pub(crate) fn problem(&self, geometry: &Geometry, ag: AgNumber) -> Option<&'static str> {
        let headers = (HEADER_SECTORS * geometry.sector_size).div_ceil(geometry.block_size);
        if self.len == 0 {
            Some("length")
        } else if self.end() > geometry.ag_blocks_of(ag).into() {
            Some("end")
        } else if self.start.0 < headers
            && (self.owner, self.start.0, self.len) != (RmapOwner::HEADERS, 0, headers)
        {
            Some("owner of headers")
        } else {
            self.owner.check(self.len, self.unwritten, geometry).err()
        }
    }
}

impl fmt::Display for RmapOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fork = if self.attr_fork() { "attribute fork" } else { "data fork" };
        match self.inode() {
            Some(ino) if self.bmbt_block() => write!(f, "inode {ino} (map of its {fork})"),
            Some(ino) => write!(f, "inode {ino} ({fork}, from block {})", self.offset()),
            None => f.write_str(match *self {
                Self::HEADERS => "the group's headers",
                Self::LOG => "the log",
                Self::SPACE_TREES => "the trees of free space",
                Self::INODE_TREES => "the trees of inodes",
                Self::INODES => "inode chunks",
                Self::REFCOUNT_TREE => "the tree of reference counts",
                Self::COW_STAGING => "copies of shared blocks that are being made",
                Self::ANY => "anyone",
                Self { owner, .. } => return write!(f, "owner {owner:#x}"),
            }),
        }
    }
}

impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.unwritten { ", unwritten" } else { "" };
        write!(f, "{} blocks from {} of {}{state}", self.len, self.start, self.owner)
    }
}
