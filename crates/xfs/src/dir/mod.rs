//! Directories in every form: short, block, leaf, node.
//!
//! Invariants: every name that is returned is legal (1 to 255 bytes, without `/` and NUL). Every block belongs to the
//! directory's inode. The positions of a walk ascend, and stay valid while entries come and go.

pub mod edit;
mod hash_collisions;
mod lookup;
mod walk;

pub use edit::{
    EntryReservation, Lookup, NewEntry, add, add_needs, find, find_to_add, init, is_empty, remove, replace,
};
pub use hash_collisions::{COLLISIONS_MAX, has_collisions, walk_index};
pub use lookup::lookup;
pub use walk::walk;

use crate::buf::Buf;
use crate::da::{DaIndex, check_owner};
use crate::error::{Error, Result};
use crate::fork::Fork;
use std::fmt;
use xfs_format::dir::{
    DATA_ALIGN_LOG, DataBlock, DirFileType, FREE_SPACE, INDEX, LEAF_SPACE, ShortDir, data_verifier,
};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::inode::InodeType;
use xfs_format::types::{FileBlock, InodeNumber};

/// The type of a file as a directory entry has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileType {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// Unknown: the volume does not store types in directories, or the inode cannot be read.
    Unknown,
}

impl FileType {
    /// Whether it is a directory.
    pub fn is_dir(self) -> bool {
        self == Self::Directory
    }

    /// Whether it is a regular file.
    pub fn is_file(self) -> bool {
        self == Self::Regular
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(self) -> bool {
        self == Self::Symlink
    }

    /// The letter that `ls -l` starts with.
    pub fn letter(self) -> char {
        match self {
            Self::Regular => '-',
            Self::Directory => 'd',
            Self::Symlink => 'l',
            Self::CharDevice => 'c',
            Self::BlockDevice => 'b',
            Self::Fifo => 'p',
            Self::Socket => 's',
            Self::Unknown => '?',
        }
    }
}

/// In words: `regular file`, `directory`, …
impl fmt::Display for FileType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Regular => "regular file",
            Self::Directory => "directory",
            Self::Symlink => "symbolic link",
            Self::CharDevice => "character device",
            Self::BlockDevice => "block device",
            Self::Fifo => "named pipe",
            Self::Socket => "socket",
            Self::Unknown => "file of unknown type",
        })
    }
}

/// One entry of a directory. `.` and `..` are entries too.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// The name: 1 to 255 bytes, without `/` and NUL.
    pub name: &'a [u8],
    /// The number of its inode.
    pub inode: InodeNumber,
    /// Its type, if the volume stores it.
    pub file_type: FileType,
    /// The position after this entry, for [`walk`].
    pub next: u64,
}

impl From<InodeType> for FileType {
    fn from(kind: InodeType) -> Self {
        match kind {
            InodeType::Fifo => Self::Fifo,
            InodeType::CharDevice => Self::CharDevice,
            InodeType::Directory => Self::Directory,
            InodeType::BlockDevice => Self::BlockDevice,
            InodeType::Regular => Self::Regular,
            InodeType::Symlink => Self::Symlink,
            InodeType::Socket => Self::Socket,
        }
    }
}

impl From<DirFileType> for FileType {
    fn from(on_disk: DirFileType) -> Self {
        match on_disk {
            // Overlay file systems use whiteouts. Their inode has the real type.
            DirFileType::Unknown | DirFileType::Whiteout => Self::Unknown,
            DirFileType::Regular => Self::Regular,
            DirFileType::Directory => Self::Directory,
            DirFileType::CharDevice => Self::CharDevice,
            DirFileType::BlockDevice => Self::BlockDevice,
            DirFileType::Fifo => Self::Fifo,
            DirFileType::Socket => Self::Socket,
            DirFileType::Symlink => Self::Symlink,
        }
    }
}

impl From<FileType> for DirFileType {
    fn from(kind: FileType) -> Self {
        match kind {
            FileType::Unknown => Self::Unknown,
            FileType::Regular => Self::Regular,
            FileType::Directory => Self::Directory,
            FileType::CharDevice => Self::CharDevice,
            FileType::BlockDevice => Self::BlockDevice,
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            FileType::Symlink => Self::Symlink,
        }
    }
}

const NAME: &str = "directory";

/// The block of the fork at which the index begins and the data ends.
fn leaf_space(geometry: &Geometry) -> u64 {
    LEAF_SPACE >> geometry.block_log
}

/// The hash index.
fn hash_index(geometry: &Geometry) -> DaIndex {
    DaIndex {
        root: leaf_space(geometry),
        end: FREE_SPACE >> geometry.block_log,
        blocks: geometry.dir_block_blocks(),
        verifier: &INDEX,
    }
}

/// The position of an entry at this offset. The kernel's directory offsets are made in the same way.
const fn position(data_offset: u64) -> u64 {
    data_offset >> DATA_ALIGN_LOG
}

/// Parses a directory inside the inode, with as many bytes as the inode's size says.
fn parse_short<'a>(fork: &dyn Fork, local: &'a [u8]) -> Result<ShortDir<'a>> {
    let geometry = fork.geometry();
    let size = fork.size();
    usize::try_from(size)
        .ok()
        .and_then(|size| local.get(..size))
        .ok_or(FormatError::mismatch(NAME, "size", size, local.len() as u64))
        .and_then(|local| ShortDir::parse(local, geometry.v5, geometry.ftype))
        .map_err(|problem| Error::corrupt_inode(fork.inode(), problem))
}

/// A data block that was read.
struct DirDataBlock {
    buf: Buf,
    v5: bool,
    ftype: bool,
}

impl DirDataBlock {
    /// Reads the directory block at `at`, a multiple of the directory block's size.
    fn read(fork: &dyn Fork, at: FileBlock) -> Result<Self> {
        let geometry = fork.geometry();
        let buf = fork.read(at, geometry.dir_block_blocks(), data_verifier(geometry.ftype))?;
        Self::of(fork, buf)
    }

    /// The same, for callers that will read the following blocks.
    fn read_in_order(fork: &dyn Fork, at: FileBlock) -> Result<Self> {
        let geometry = fork.geometry();
        let (blocks, verifier) = (geometry.dir_block_blocks(), data_verifier(geometry.ftype));
        let buf = fork.read_in_order(at, blocks, verifier, FileBlock(leaf_space(geometry)))?;
        Self::of(fork, buf)
    }

    fn of(fork: &dyn Fork, buf: Buf) -> Result<Self> {
        let geometry = fork.geometry();
        let data = Self { buf, v5: geometry.v5, ftype: geometry.ftype };
        check_owner(fork, data.buf.daddr(), NAME, data.view(fork)?.owner)?;
        Ok(data)
    }

    fn view(&self, fork: &dyn Fork) -> Result<DataBlock<'_>> {
        DataBlock::parse(&self.buf, self.v5, self.ftype).map_err(|problem| self.corrupt(fork, problem))
    }

    fn corrupt(&self, fork: &dyn Fork, problem: FormatError) -> Error {
        Error::corrupt_block(self.buf.daddr(), Some(fork.inode()), problem)
    }
}
