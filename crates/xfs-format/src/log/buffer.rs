//! Buffer log items: which 128-byte chunks of a metadata buffer are logged.
//!
//! Invariants of a [`BufFormat`] that parsed: the map is all there; it has a bit for each chunk of the buffer
//! or fewer (what it has no bit for is clean), and no set bit stands for bytes behind the buffer.

use super::host;
use super::item::{ItemType, fixed};
use crate::error::FormatError;
use crate::types::DiskAddr;
use std::mem::size_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const NAME: &str = "buffer log item";
/// Bytes that one bit of the map stands for.
pub const CHUNK_SIZE: usize = 128;
/// Most words of a map: a bit for each chunk of 64 KiB, and one word more that old kernels kept.
const MAX_MAP_WORDS: u32 = 17;

bitflags::bitflags! {
    /// The low bits of `blf_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct BufFlags: u16 {
        /// A buffer of inodes, of which only `di_next_unlinked` is logged.
        const INODE_BUF = 0x01;
        /// The buffer was freed: earlier changes of it are not replayed.
        const CANCEL = 0x02;
        /// Dquots of users.
        const UDQUOT_BUF = 0x04;
        /// Dquots of projects.
        const PDQUOT_BUF = 0x08;
        /// Dquots of groups.
        const GDQUOT_BUF = 0x10;
    }
}

const TYPE_SHIFT: u32 = 11;

/// What a buffer holds: the high 5 bits of `blf_flags`. Says which verifier to run after replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names of the structures")]
pub enum BufType {
    Unknown,
    UserDquot,
    ProjectDquot,
    GroupDquot,
    Btree,
    Agf,
    Agfl,
    Agi,
    Inode,
    Symlink,
    DirBlock,
    DirData,
    DirFree,
    DirLeaf1,
    DirLeafN,
    DaNode,
    AttrLeaf,
    AttrRemote,
    Superblock,
    RtBitmap,
    RtSummary,
    /// A number that has no meaning yet.
    Other(u8),
}

impl BufType {
    const fn from_disk(flags: u16) -> Self {
        match flags >> TYPE_SHIFT {
            0 => Self::Unknown,
            1 => Self::UserDquot,
            2 => Self::ProjectDquot,
            3 => Self::GroupDquot,
            4 => Self::Btree,
            5 => Self::Agf,
            6 => Self::Agfl,
            7 => Self::Agi,
            8 => Self::Inode,
            9 => Self::Symlink,
            10 => Self::DirBlock,
            11 => Self::DirData,
            12 => Self::DirFree,
            13 => Self::DirLeaf1,
            14 => Self::DirLeafN,
            15 => Self::DaNode,
            16 => Self::AttrLeaf,
            17 => Self::AttrRemote,
            18 => Self::Superblock,
            19 => Self::RtBitmap,
            20 => Self::RtSummary,
            other => Self::Other(other as u8),
        }
    }
}

impl BufType {
    /// Its number in the high bits of `blf_flags`.
    const fn to_disk(self) -> u16 {
        let number = match self {
            Self::Unknown => 0,
            Self::UserDquot => 1,
            Self::ProjectDquot => 2,
            Self::GroupDquot => 3,
            Self::Btree => 4,
            Self::Agf => 5,
            Self::Agfl => 6,
            Self::Agi => 7,
            Self::Inode => 8,
            Self::Symlink => 9,
            Self::DirBlock => 10,
            Self::DirData => 11,
            Self::DirFree => 12,
            Self::DirLeaf1 => 13,
            Self::DirLeafN => 14,
            Self::DaNode => 15,
            Self::AttrLeaf => 16,
            Self::AttrRemote => 17,
            Self::Superblock => 18,
            Self::RtBitmap => 19,
            Self::RtSummary => 20,
            Self::Other(number) => number as u16,
        };
        number << TYPE_SHIFT
    }
}

/// What the format structure of a buffer log item says, for writing it.
#[derive(Clone, Copy, Debug)]
pub struct BufHeader<'a> {
    /// Where the buffer lies on the device.
    pub daddr: DiskAddr,
    /// Its length in units of 512 bytes.
    pub len: u16,
    /// Its flags.
    pub flags: BufFlags,
    /// What it holds.
    pub buf_type: BufType,
    /// Regions of this item, the format structure included.
    pub regions: u16,
    /// One bit a chunk of [`CHUNK_SIZE`] bytes: those that are logged.
    pub map: &'a [u32],
}

impl BufHeader<'_> {
    /// Bytes of the structure with a map of this many words.
    pub const fn bytes(map_words: usize) -> usize {
        size_of::<Fixed>() + 4 * map_words
    }

    /// Words of the map of a buffer of this many bytes.
    pub const fn map_words(buffer_bytes: usize) -> usize {
        buffer_bytes.div_ceil(CHUNK_SIZE * 32)
    }

    /// Writes the structure into `to`, which is [`bytes`](Self::bytes) long.
    pub fn encode(&self, to: &mut [u8]) {
        let fixed = Fixed {
            kind: (ItemType::Buf as u16).into(),
            regions: self.regions.into(),
            flags: (self.flags.bits() | self.buf_type.to_disk()).into(),
            len: self.len.into(),
            blkno: self.daddr.0.cast_signed().into(),
            map_size: (self.map.len() as u32).into(),
        };
        let (head, map) = to.split_at_mut(size_of::<Fixed>());
        head.copy_from_slice(fixed.as_bytes());
        for (to, word) in map.chunks_exact_mut(4).zip(self.map) {
            to.copy_from_slice(host::U32::new(*word).as_bytes());
        }
    }
}

/// `xfs_buf_log_format` without its map. In the host's byte order.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
struct Fixed {
    kind: host::U16,
    regions: host::U16,
    flags: host::U16,
    len: host::U16,
    blkno: host::I64,
    map_size: host::U32,
}

const _: () = assert!(size_of::<Fixed>() == 20);

/// A buffer log item's format structure.
#[derive(Clone, Copy, Debug)]
pub struct BufFormat<'a> {
    /// Where the buffer lies on the device.
    pub daddr: DiskAddr,
    /// Its length in units of 512 bytes.
    pub len: u16,
    /// Its flags, without the type.
    pub flags: BufFlags,
    /// What it holds.
    pub buf_type: BufType,
    /// Regions of this item, the format structure included.
    pub regions: u16,
    map: &'a [host::U32],
}

/// A run of logged chunks: what one further region of the item holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRun {
    /// First byte in the buffer.
    pub offset: usize,
    /// Bytes, a multiple of [`CHUNK_SIZE`].
    pub len: usize,
}

impl<'a> BufFormat<'a> {
    pub(super) fn parse(region: &'a [u8]) -> Result<Self, FormatError> {
        let (fixed, rest) = fixed::<Fixed>(NAME, region)?;
        let words = fixed.map_size.get();
        if words > MAX_MAP_WORDS {
            return Err(FormatError::mismatch(NAME, "map size", words.into(), MAX_MAP_WORDS.into()));
        }
        let (map, _) = <[host::U32]>::ref_from_prefix_with_elems(rest, words as usize)
            .map_err(|_| FormatError::value(NAME, "map size", words.into()))?;
        let daddr = u64::try_from(fixed.blkno.get())
            .map_err(|_| FormatError::value(NAME, "block number", fixed.blkno.get() as u64))?;
        let flags = fixed.flags.get();
        let item = Self {
            daddr: DiskAddr(daddr),
            len: fixed.len.get(),
            flags: BufFlags::from_bits_truncate(flags),
            buf_type: BufType::from_disk(flags),
            regions: fixed.regions.get(),
            map,
        };
        item.check_map()?;
        Ok(item)
    }

    /// No chunk behind the buffer's end.
    fn check_map(&self) -> Result<(), FormatError> {
        let bytes = usize::from(self.len) * 512;
        match self.runs().last() {
            Some(last) if last.offset + last.len > bytes => Err(FormatError::mismatch(
                NAME,
                "chunk behind the buffer",
                (last.offset + last.len) as u64,
                bytes as u64,
            )),
            _ => Ok(()),
        }
    }

    /// Words of the map.
    pub const fn map_words(&self) -> usize {
        self.map.len()
    }

    fn is_dirty(&self, chunk: usize) -> bool {
        self.map.get(chunk / 32).is_some_and(|word| word.get() >> (chunk % 32) & 1 != 0)
    }

    /// The runs of dirty chunks, in order. A kernel writes a run as one region or as several (where it lies
    /// over several pages): whoever replays takes from the run as many bytes as the next region has.
    pub fn runs(&self) -> impl Iterator<Item = ChunkRun> + use<'a> {
        let this = *self;
        let chunks = this.map.len() * 32;
        let mut at = 0;
        std::iter::from_fn(move || {
            let first = (at..chunks).find(|&chunk| this.is_dirty(chunk))?;
            let end = (first..chunks).find(|&chunk| !this.is_dirty(chunk)).unwrap_or(chunks);
            at = end;
            Some(ChunkRun { offset: first * CHUNK_SIZE, len: (end - first) * CHUNK_SIZE })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(len: u16, map: &[u32]) -> Vec<u8> {
        let fixed = Fixed {
            kind: 0x123c.into(),
            regions: 2.into(),
            flags: 0x2802.into(),
            len: len.into(),
            blkno: 8.into(),
            map_size: (map.len() as u32).into(),
        };
        let mut bytes = fixed.as_bytes().to_vec();
        bytes.extend(map.iter().flat_map(|word| word.to_le_bytes()));
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        let map = [0x8000_0007, 0x1];
        let header = BufHeader {
            daddr: DiskAddr(77),
            len: 16,
            flags: BufFlags::INODE_BUF,
            buf_type: BufType::Inode,
            regions: 3,
            map: &map,
        };
        let mut bytes = vec![0; BufHeader::bytes(BufHeader::map_words(8192))];
        header.encode(&mut bytes);
        let read = BufFormat::parse(&bytes).unwrap();
        assert_eq!((read.daddr, read.len, read.regions), (DiskAddr(77), 16, 3));
        assert_eq!((read.flags, read.buf_type), (BufFlags::INODE_BUF, BufType::Inode));
        assert_eq!(read.runs().map(|run| run.len).collect::<Vec<_>>(), [384, 256]);
    }

    #[test]
    fn runs_of_chunks_and_flags() {
        let bytes = item(16, &[0x8000_0007, 0x1]);
        let buf = BufFormat::parse(&bytes).unwrap();
        assert_eq!(buf.buf_type, BufType::Agf);
        assert_eq!(buf.flags, BufFlags::CANCEL);
        let runs: Vec<_> = buf.runs().map(|run| (run.offset, run.len)).collect();
        assert_eq!(runs, [(0, 384), (31 * 128, 256)]);
    }

    #[test]
    fn chunks_behind_the_buffer_are_refused() {
        assert!(BufFormat::parse(&item(1, &[0x8])).is_ok());
        assert_eq!(BufFormat::parse(&item(1, &[0x10])).unwrap_err().check, "chunk behind the buffer");
        assert!(BufFormat::parse(&item(1, &[0; 18])).is_err());
    }
}
