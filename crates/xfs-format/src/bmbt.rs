//! Extents of a fork: packed records of 128 bits, and the block map tree's root inside an inode.
//!
//! A packed extent is, from the highest bit: 1 bit unwritten, 54 bits file block, 52 bits volume block, 21 bits
//! count. An [`Extent`] that passed [`Extent::check`] lies within one group of the volume and has no empty range.

use crate::ag::MAX_LEVELS;
use crate::btree::{Bmbt, LongHeader, Tree, read_pointer};
use crate::error::FormatError;
use crate::geometry::Geometry;
use crate::types::{FileBlock, FsBlock, Uuid};
use zerocopy::byteorder::big_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const NAME: &str = "extent";
/// Bits of a file block.
pub const STARTOFF_BITS: u32 = 54;
/// Bits of a block count.
pub const BLOCKCOUNT_BITS: u32 = 21;

/// A packed extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct BmbtRecord {
    /// Flag, file block, and the nine highest bits of the volume block.
    pub l0: U64,
    /// The rest of the volume block, and the count.
    pub l1: U64,
}

/// Key of the block map tree.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct BmbtKey {
    /// First file block under the child.
    pub startoff: U64,
}

const _: () = {
    assert!(size_of::<BmbtRecord>() == 16);
    assert!(size_of::<BmbtKey>() == 8);
};

/// An extent, unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First block in the file.
    pub startoff: FileBlock,
    /// First block on the volume.
    pub startblock: FsBlock,
    /// Blocks.
    pub blockcount: u32,
    /// Allocated and never written: reads as zeroes.
    pub unwritten: bool,
}

impl BmbtRecord {
    /// First block in the file.
    pub fn startoff(&self) -> u64 {
        self.l0.get() >> 9 & ((1 << STARTOFF_BITS) - 1)
    }

    /// All fields.
    pub fn unpack(&self) -> Extent {
        let (l0, l1) = (self.l0.get(), self.l1.get());
        Extent {
            startoff: FileBlock(self.startoff()),
            startblock: FsBlock((l0 & 0x1ff) << 43 | l1 >> BLOCKCOUNT_BITS),
            // 21 bits.
            blockcount: (l1 & ((1 << BLOCKCOUNT_BITS) - 1)) as u32,
            unwritten: l0 >> 63 == 1,
        }
    }
}

impl Extent {
    /// Packs the extent; fields that are out of range are truncated.
    pub fn pack(&self) -> BmbtRecord {
        let l0 = u64::from(self.unwritten) << 63
            | (self.startoff.0 & ((1 << STARTOFF_BITS) - 1)) << 9
            | (self.startblock.0 >> 43 & 0x1ff);
        let l1 =
            self.startblock.0 << BLOCKCOUNT_BITS | u64::from(self.blockcount) & ((1 << BLOCKCOUNT_BITS) - 1);
        BmbtRecord { l0: l0.into(), l1: l1.into() }
    }

    /// The file block after the last one.
    pub fn end(&self) -> FileBlock {
        FileBlock(self.startoff.0 + u64::from(self.blockcount))
    }

    /// Checks that the extent is not empty, ends within what a file can address, and lies in one group.
    pub fn check(&self, geometry: &Geometry) -> Result<(), FormatError> {
        if self.blockcount == 0 {
            return Err(FormatError::value(NAME, "block count", 0));
        }
        if self.end().0 > 1 << STARTOFF_BITS {
            return Err(FormatError::value(NAME, "file offset", self.startoff.0));
        }
        if geometry.extent_daddr(self.startblock, self.blockcount.into()).is_none() {
            return Err(FormatError::value(NAME, "volume block", self.startblock.0));
        }
        Ok(())
    }
}

/// The extents of a fork that holds `count` of them inside the inode.
pub fn inline_extents(fork: &[u8], count: u64) -> Result<&[BmbtRecord], FormatError> {
    usize::try_from(count)
        .ok()
        .and_then(|count| <[BmbtRecord]>::ref_from_prefix_with_elems(fork, count).ok())
        .map(|(records, _)| records)
        .ok_or(FormatError::mismatch("inode", "extent count", count, fork.len() as u64 / 16))
}

/// The root of a block map tree, as a fork of an inode holds it: level, count, keys, and pointers behind the room
/// for all keys. It always points to blocks, never holds records.
#[derive(Clone, Copy, Debug)]
pub struct BmbtRoot<'a> {
    level: u16,
    count: usize,
    keys: &'a [BmbtKey],
    pointers: &'a [u8],
}

impl<'a> BmbtRoot<'a> {
    /// The root in a fork's bytes.
    pub fn view(fork: &'a [u8]) -> Result<Self, FormatError> {
        const NAME: &str = "bmbt root";
        let short = || FormatError::value(NAME, "length", fork.len() as u64);
        let ([level, count], body) = <[U16; 2]>::ref_from_prefix(fork).map_err(|_| short())?;
        let (level, count) = (level.get(), usize::from(count.get()));
        let most = Bmbt::max_children(body.len());
        if count == 0 || count > most {
            return Err(FormatError::mismatch(NAME, "record count", count as u64, most as u64));
        }
        if level == 0 || u32::from(level) >= MAX_LEVELS {
            return Err(FormatError::mismatch(NAME, "level", level.into(), MAX_LEVELS.into()));
        }
        let (keys, _) = <[BmbtKey]>::ref_from_prefix_with_elems(body, count).map_err(|_| short())?;
        let pointers = body.get(most * size_of::<BmbtKey>()..).ok_or_else(short)?;
        Ok(Self { level, count, keys, pointers })
    }

    /// Its height above the leaves, at least 1.
    pub fn level(&self) -> u16 {
        self.level
    }

    /// The keys of its children.
    pub fn keys(&self) -> &'a [BmbtKey] {
        self.keys
    }

    /// The root as it is logged: as a block of its own without an address, with no room beyond its children.
    pub fn to_log(&self, meta_uuid: Uuid) -> Vec<u8> {
        let header = LongHeader {
            magic: Bmbt::MAGIC_V5.into(),
            level: self.level.into(),
            numrecs: (self.count as u16).into(),
            leftsib: u64::MAX.into(),
            rightsib: u64::MAX.into(),
            blkno: u64::MAX.into(),
            lsn: 0.into(),
            uuid: meta_uuid.0,
            owner: 0.into(),
            crc: [0; 4],
            pad: 0.into(),
        };
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(self.keys.as_bytes());
        self.pointers().for_each(|pointer| bytes.extend_from_slice(&pointer.0.to_be_bytes()));
        bytes
    }

    /// Bytes of [`to_log`](Self::to_log).
    pub fn log_len(&self) -> usize {
        size_of::<LongHeader>() + size_of_val(self.keys) + self.count * size_of::<u64>()
    }

    /// The root in a region of the log, where it has a whole block's header before it.
    pub fn from_log(region: &'a [u8]) -> Result<Self, FormatError> {
        const NAME: &str = "logged bmbt root";
        let short = || FormatError::value(NAME, "length", region.len() as u64);
        let (header, body) = LongHeader::ref_from_prefix(region).map_err(|_| short())?;
        if header.magic.get() != Bmbt::MAGIC_V5 {
            let (found, expected) = (header.magic.get().into(), Bmbt::MAGIC_V5.into());
            return Err(FormatError::mismatch(NAME, "magic", found, expected));
        }
        let (level, count) = (header.level.get(), usize::from(header.numrecs.get()));
        let most = Bmbt::max_children(body.len());
        if count == 0 || count > most {
            return Err(FormatError::mismatch(NAME, "record count", count as u64, most as u64));
        }
        if level == 0 || u32::from(level) >= MAX_LEVELS {
            return Err(FormatError::mismatch(NAME, "level", level.into(), MAX_LEVELS.into()));
        }
        let (keys, _) = <[BmbtKey]>::ref_from_prefix_with_elems(body, count).map_err(|_| short())?;
        let pointers = body.get(most * size_of::<BmbtKey>()..).ok_or_else(short)?;
        Ok(Self { level, count, keys, pointers })
    }

    /// Whether a fork of `bytes` bytes has room for it.
    pub fn fits(&self, bytes: usize) -> bool {
        self.count <= Bmbt::max_children(bytes.saturating_sub(4))
    }

    /// The same root, as a fork of `bytes` bytes holds it.
    pub fn laid_out(&self, bytes: usize) -> Vec<u8> {
        let mut fork = vec![0; bytes];
        let most = Bmbt::max_children(bytes.saturating_sub(4));
        debug_assert!(self.count <= most, "a root that does not fit");
        fork[..2].copy_from_slice(&self.level.to_be_bytes());
        fork[2..4].copy_from_slice(&(self.count as u16).to_be_bytes());
        let keys = self.keys.as_bytes();
        fork[4..4 + keys.len()].copy_from_slice(keys);
        let mut at = 4 + most * size_of::<BmbtKey>();
        for pointer in self.pointers() {
            fork[at..at + 8].copy_from_slice(&pointer.0.to_be_bytes());
            at += 8;
        }
        fork
    }

    /// Pointers to its children.
    pub fn pointers(&self) -> impl Iterator<Item = FsBlock> + 'a {
        let pointers = self.pointers;
        (0..self.count).filter_map(move |index| read_pointer::<Bmbt>(pointers, index)).map(FsBlock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superblock::{Superblock, tests::sample};

    #[test]
    fn packing_keeps_every_bit() {
        for extent in [
            Extent { startoff: FileBlock(0), startblock: FsBlock(0), blockcount: 1, unwritten: false },
            Extent {
                startoff: FileBlock((1 << 54) - 1),
                startblock: FsBlock((1 << 52) - 1),
                blockcount: (1 << 21) - 1,
                unwritten: true,
            },
            Extent {
                startoff: FileBlock(0x2a_5555_aaaa_1234),
                startblock: FsBlock(0x5_a5a5_1111_2222),
                blockcount: 0x12345,
                unwritten: false,
            },
        ] {
            assert_eq!(extent.pack().unpack(), extent);
        }
    }

    #[test]
    fn known_bytes() {
        // File block 1, volume block 2, 3 blocks.
        let record = BmbtRecord { l0: (1 << 9).into(), l1: (2 << 21 | 3).into() };
        let extent = record.unpack();
        assert_eq!((extent.startoff.0, extent.startblock.0, extent.blockcount), (1, 2, 3));
    }

    #[test]
    fn extents_stay_within_one_group() {
        let geometry = Geometry::from_superblock(&Superblock::parse(&sample()).unwrap());
        let check = |startoff, startblock, blockcount| {
            let extent = Extent {
                startoff: FileBlock(startoff),
                startblock: FsBlock(startblock),
                blockcount,
                unwritten: false,
            };
            extent.check(&geometry).map_err(|e| e.check)
        };
        assert_eq!(check(0, 19199, 1), Ok(()));
        assert_eq!(check(0, 19199, 2), Err("volume block"));
        assert_eq!(check(0, 4 << 15, 1), Err("volume block"));
        assert_eq!(check(0, 0, 0), Err("block count"));
        assert_eq!(check((1 << 54) - 1, 0, 2), Err("file offset"));
    }

    #[test]
    fn a_root_must_have_children_and_fit() {
        let mut fork = [0; 100];
        fork[1] = 1;
        assert_eq!(BmbtRoot::view(&fork).unwrap_err().check, "record count");
        fork[3] = 6;
        fork[4 + 48 + 7] = 9;
        let root = BmbtRoot::view(&fork).unwrap();
        assert_eq!(root.pointers().next(), Some(FsBlock(9)));
        assert_eq!(root.pointers().count(), 6);
        let logged = root.to_log(Uuid([3; 16]));
        let again = BmbtRoot::from_log(&logged).unwrap();
        assert!(again.fits(fork.len()) && !again.fits(4 + 16 * 5));
        assert_eq!(again.laid_out(fork.len()), fork);
        assert!(BmbtRoot::from_log(&logged[..logged.len() - 1]).is_err(), "a pointer is cut off");
        assert!(BmbtRoot::from_log(&fork).is_err());
        fork[3] = 7;
        assert_eq!(BmbtRoot::view(&fork).unwrap_err().check, "record count");
        fork[3] = 6;
        fork[1] = 0;
        assert_eq!(BmbtRoot::view(&fork).unwrap_err().check, "level");
        assert!(BmbtRoot::view(&[0; 3]).is_err());
    }
}
