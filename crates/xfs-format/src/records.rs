//! Records and keys of the trees of an allocation group: free space, inodes, reverse map, reference counts.

use crate::error::FormatError;
use crate::types::{AgBlock, AgInode};
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Inodes in a chunk: one record of the inode trees.
pub const INODES_PER_CHUNK: u32 = 64;

/// A free extent, record and key of `bnobt` and `cntbt`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are the format's")]
pub struct AllocRecord {
    pub startblock: U32,
    pub blockcount: U32,
}

/// A chunk of 64 inodes, record of `inobt` and `finobt`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are the format's")]
pub struct InobtRecord {
    pub startino: U32,
    /// Free inodes where chunks cannot be sparse; otherwise hole mask (16 bits), inode count, free count.
    pub counts: [u8; 4],
    pub free: U64,
}

/// A chunk's record, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeChunk {
    /// First inode.
    pub start: AgInode,
    /// A bit for every inode that has no place on disk.
    pub holes: u64,
    /// A bit for every inode that is free; holes are free too.
    pub free: u64,
}

impl AllocRecord {
    /// The record of `blocks` free blocks from `start` on.
    pub fn new(start: AgBlock, blocks: u32) -> Self {
        Self { startblock: start.0.into(), blockcount: blocks.into() }
    }
}

impl InobtRecord {
    /// The record of a chunk without holes: a bit of `free` for every inode that is free. `sparse`: whether the
    /// volume has sparse chunks.
    pub fn whole(start: AgInode, free: u64, sparse: bool) -> Self {
        let count = free.count_ones();
        // 64 inodes at most: each count fits its byte.
        let counts = if sparse { [0, 0, INODES_PER_CHUNK as u8, count as u8] } else { count.to_be_bytes() };
        Self { startino: start.0.into(), counts, free: free.into() }
    }

    /// The record of a chunk. `sparse`: whether the volume has sparse chunks; if not, it must have no holes.
    pub fn of(chunk: &InodeChunk, sparse: bool) -> Self {
        let free_count = (chunk.free & !chunk.holes).count_ones();
        let counts = if sparse {
            let holes = (0..16).filter(|bit| chunk.holes >> (bit * 4) & 1 == 1);
            let mask = if chunk.holes == 0 { 0 } else { holes.fold(0_u16, |mask, bit| mask | 1 << bit) };
            let [high, low] = mask.to_be_bytes();
            // 64 inodes at most: each count fits its byte.
            [high, low, (INODES_PER_CHUNK - chunk.holes.count_ones()) as u8, free_count as u8]
        } else {
            free_count.to_be_bytes()
        };
        Self { startino: chunk.start.0.into(), counts, free: (chunk.free | chunk.holes).into() }
    }

    /// The decoded record, checked for consistency.
    pub fn chunk(&self, sparse: bool) -> Result<InodeChunk, FormatError> {
        const NAME: &str = "inode chunk record";
        let [mask_high, mask_low, count, free_count] = self.counts;
        let (holes, count, free_count) = if sparse {
            (spread(u16::from_be_bytes([mask_high, mask_low])), u32::from(count), u32::from(free_count))
        } else {
            (0, INODES_PER_CHUNK, u32::from_be_bytes(self.counts))
        };
        let free = self.free.get();
        if INODES_PER_CHUNK - holes.count_ones() != count {
            let expected = INODES_PER_CHUNK - holes.count_ones();
            return Err(FormatError::mismatch(NAME, "inode count", count.into(), expected.into()));
        }
        // Free bits of holes are set, and not counted.
        if (free & !holes).count_ones() != free_count {
            let expected = (free & !holes).count_ones();
            return Err(FormatError::mismatch(NAME, "free inode count", free_count.into(), expected.into()));
        }
        if u64::from(self.startino.get()) + u64::from(INODES_PER_CHUNK) > 1 << 32 {
            return Err(FormatError::value(NAME, "first inode", self.startino.get().into()));
        }
        Ok(InodeChunk { start: AgInode(self.startino.get()), holes, free })
    }
}

impl InodeChunk {
    /// Whether `inode` belongs to this chunk, has a place on disk, and is in use.
    pub fn in_use(&self, inode: AgInode) -> bool {
        match inode.0.checked_sub(self.start.0) {
            Some(index) if index < INODES_PER_CHUNK => (self.free | self.holes) >> index & 1 == 0,
            _ => false,
        }
    }

    /// How many inodes have a place on disk.
    pub fn places(self) -> u32 {
        INODES_PER_CHUNK - self.holes.count_ones()
    }

    /// How many of those are free.
    pub fn free_places(self) -> u32 {
        (self.free & !self.holes).count_ones()
    }

    /// The inodes in use, in order.
    pub fn inodes_in_use(self) -> impl Iterator<Item = AgInode> {
        (0..INODES_PER_CHUNK)
            .filter(move |index| (self.free | self.holes) >> index & 1 == 0)
            .map(move |index| AgInode(self.start.0 + index))
    }
}

/// A hole mask with one bit for each inode.
fn spread(mask: u16) -> u64 {
    if mask == 0 {
        return 0;
    }
    (0..16).filter(|bit| mask >> bit & 1 == 1).fold(0, |holes, bit| holes | 0xf << (bit * 4))
}

/// Key of `inobt` and `finobt`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are the format's")]
pub struct InobtKey {
    pub startino: U32,
}

/// Who owns an extent, record of `rmapbt`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are the format's")]
pub struct RmapRecord {
    pub startblock: U32,
    pub blockcount: U32,
    pub owner: U64,
    /// Offset in the owner's fork, and flags in the three highest bits.
    pub offset: U64,
}

impl RmapRecord {
    /// Owner of a group's headers.
    pub const OWNER_HEADERS: u64 = -3_i64 as u64;
    /// Owner of the log.
    pub const OWNER_LOG: u64 = -4_i64 as u64;
    /// Owner of the free space trees, the reverse map itself and the AGFL.
    pub const OWNER_SPACE_TREES: u64 = -5_i64 as u64;
    /// Owner of the inode trees.
    pub const OWNER_INODE_TREES: u64 = -6_i64 as u64;
    /// Owner of inode chunks.
    pub const OWNER_INODES: u64 = -7_i64 as u64;
    /// Owner of the tree of reference counts.
    pub const OWNER_REFCOUNT_TREE: u64 = -8_i64 as u64;
    /// Owner of blocks staged for copy-on-write.
    pub const OWNER_COW_STAGING: u64 = -9_i64 as u64;

    /// The owner's attribute fork, not its data fork.
    pub const ATTR_FORK: u64 = 1 << 63;
    /// A block of the owner's block map tree.
    pub const BMBT_BLOCK: u64 = 1 << 62;
    /// Allocated and not written.
    pub const UNWRITTEN: u64 = 1 << 61;
}

/// Key of `rmapbt`. Inner blocks hold two for each child: the lowest and the highest.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are the format's")]
pub struct RmapKey {
    pub startblock: U32,
    pub owner: U64,
    pub offset: U64,
}

/// Keys of one child in an inner block of `rmapbt`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are the format's")]
pub struct RmapKeyPair {
    pub low: RmapKey,
    pub high: RmapKey,
}

/// How many owners an extent has, record of `refcountbt`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are the format's")]
pub struct RefcountRecord {
    /// First block; the highest bit marks an extent that is staged for copy-on-write.
    pub startblock: U32,
    pub blockcount: U32,
    pub refcount: U32,
}

impl RefcountRecord {
    /// Bit of `startblock`: staged for copy-on-write, not shared.
    pub const COW: u32 = 1 << 31;
}

/// Key of `refcountbt`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are the format's")]
pub struct RefcountKey {
    pub startblock: U32,
}

const _: () = {
    assert!(size_of::<AllocRecord>() == 8);
    assert!(size_of::<InobtRecord>() == 16);
    assert!(size_of::<InobtKey>() == 4);
    assert!(size_of::<RmapRecord>() == 24);
    assert!(size_of::<RmapKey>() == 20);
    assert!(size_of::<RmapKeyPair>() == 40);
    assert!(size_of::<RefcountRecord>() == 12);
    assert!(size_of::<RefcountKey>() == 4);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_read_as_it_was_made() {
        for sparse in [false, true] {
            let record = InobtRecord::whole(AgInode(64), !7, sparse);
            let chunk = InodeChunk { start: AgInode(64), holes: 0, free: !7 };
            assert_eq!(record.chunk(sparse), Ok(chunk));
            assert_eq!(InobtRecord::of(&chunk, sparse).chunk(sparse), Ok(chunk));
        }
    }

    #[test]
    fn a_full_chunk() {
        let record = InobtRecord { startino: 64.into(), counts: 62_u32.to_be_bytes(), free: (!3).into() };
        let chunk = record.chunk(false).unwrap();
        assert_eq!(chunk.inodes_in_use().collect::<Vec<_>>(), [AgInode(64), AgInode(65)]);
        assert!(chunk.in_use(AgInode(65)));
        assert!(!chunk.in_use(AgInode(66)) && !chunk.in_use(AgInode(63)) && !chunk.in_use(AgInode(128)));
        let record = InobtRecord { counts: 61_u32.to_be_bytes(), ..record };
        assert_eq!(record.chunk(false).unwrap_err().check, "free inode count");
    }

    #[test]
    fn a_sparse_chunk() {
        // The upper half is a hole. In the lower half, all but two inodes are free.
        let record = InobtRecord { startino: 64.into(), counts: [0xff, 0, 32, 30], free: (!3).into() };
        let chunk = record.chunk(true).unwrap();
        assert_eq!(chunk.holes, 0xffff_ffff_0000_0000);
        assert_eq!((chunk.places(), chunk.free_places()), (32, 30));
        let again = InobtRecord::of(&chunk, true);
        assert_eq!((again.counts, again.chunk(true)), (record.counts, Ok(chunk)));
        assert_eq!(chunk.inodes_in_use().count(), 2);
        // A hole is never in use, whatever its free bit says.
        let record = InobtRecord { free: 0x0000_0001_ffff_fffc.into(), ..record };
        assert!(!record.chunk(true).unwrap().in_use(AgInode(64 + 40)));
        let record = InobtRecord { counts: [0xff, 0, 33, 30], ..record };
        assert_eq!(record.chunk(true).unwrap_err().check, "inode count");
    }

    #[test]
    fn a_chunk_stays_below_the_highest_number() {
        let record =
            InobtRecord { startino: u32::MAX.into(), counts: 64_u32.to_be_bytes(), free: u64::MAX.into() };
        assert_eq!(record.chunk(false).unwrap_err().check, "first inode");
    }
}
