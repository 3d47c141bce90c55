//! Directories: entries inside the inode (short form), data blocks, the index by hash, the index of free space.
//!
//! A directory's fork has three spaces: data blocks from 0, the hash index from 32 GiB, the free-space index from
//! 64 GiB. A directory block is one or more blocks of the volume, 512 bytes to 64 KiB.

mod data;
mod data_edit;
mod free;
mod free_edit;
mod leaf;
mod leaf_edit;
mod short;
mod short_edit;

pub use data::{
    BLOCK_MAGIC_V4, BLOCK_MAGIC_V5, DATA, DATA_FTYPE, DATA_MAGIC_V4, DATA_MAGIC_V5, DataBlock, DataEntry,
    DataItem, DataItems, DataKind, data_verifier,
};
pub use data_edit::{DataEdit, NewDataEntry};
pub use free::{FREE, FREE_MAGIC_V4, FREE_MAGIC_V5, FreeBlock};
pub use free_edit::FreeEdit;
pub use leaf::{
    INDEX, LEAF1_MAGIC_V4, LEAF1_MAGIC_V5, LEAFN_MAGIC_V4, LEAFN_MAGIC_V5, Leaf, LeafEntry, LeafKind,
};
pub use leaf_edit::{BESTFREE_NONE, LeafEdit};
pub use short::{ShortDir, ShortEntries, ShortEntry};
pub use short_edit::{ShortImage, ShortRow};

use std::mem::{offset_of, size_of};
use zerocopy::byteorder::{big_endian, little_endian};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Where the hash index begins, in bytes of the directory's fork.
pub const LEAF_SPACE: u64 = 32 << 30;
/// Where the free-space index begins, in bytes of the directory's fork.
pub const FREE_SPACE: u64 = 64 << 30;
/// log2 of the unit of entry offsets.
pub const DATA_ALIGN_LOG: u32 = 3;
/// Longest name.
pub const NAME_MAX: usize = 255;

/// Header of v5 data and free blocks (`xfs_dir3_blk_hdr`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct BlockHeader3 {
    /// What kind of block this is.
    pub magic: big_endian::U32,
    /// CRC32c of the block.
    pub crc: little_endian::U32,
    /// The block's own address in 512-byte units.
    pub blkno: big_endian::U64,
    /// LSN of the last write.
    pub lsn: big_endian::U64,
    /// UUID of the volume's metadata.
    pub uuid: [u8; 16],
    /// The directory's inode.
    pub owner: big_endian::U64,
}

const _: () = {
    assert!(size_of::<BlockHeader3>() == 48);
    assert!(offset_of!(BlockHeader3, crc) == 4);
    assert!(offset_of!(BlockHeader3, blkno) == 8);
    assert!(offset_of!(BlockHeader3, lsn) == 16);
    assert!(offset_of!(BlockHeader3, uuid) == 24);
    assert!(offset_of!(BlockHeader3, owner) == 40);
};

/// Whether a directory entry can have this name: 1 to 255 bytes without `/` and NUL.
pub fn is_valid_name(name: &[u8]) -> bool {
    !name.is_empty() && name.len() <= NAME_MAX && !name.iter().any(|&byte| byte == 0 || byte == b'/')
}

/// The type of a file as a directory entry says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DirFileType {
    /// Not kept, or not known.
    Unknown,
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A symbolic link.
    Symlink,
    /// A whiteout of an overlay.
    Whiteout,
}

impl DirFileType {
    /// From the byte on disk; `None` if it means nothing.
    pub const fn from_disk(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Unknown,
            1 => Self::Regular,
            2 => Self::Directory,
            3 => Self::CharDevice,
            4 => Self::BlockDevice,
            5 => Self::Fifo,
            6 => Self::Socket,
            7 => Self::Symlink,
            8 => Self::Whiteout,
            _ => return None,
        })
    }
}

impl DirFileType {
    /// The byte on disk.
    pub const fn to_disk(self) -> u8 {
        match self {
            Self::Unknown => 0,
            Self::Regular => 1,
            Self::Directory => 2,
            Self::CharDevice => 3,
            Self::BlockDevice => 4,
            Self::Fifo => 5,
            Self::Socket => 6,
            Self::Symlink => 7,
            Self::Whiteout => 8,
        }
    }
}

/// Bytes that an entry takes in a data block: inode number, length, name, type if kept, tag, rounded up to 8.
pub const fn data_entry_len(name_len: u8, ftype: bool) -> usize {
    (8 + 1 + name_len as usize + ftype as usize + 2).next_multiple_of(8)
}
