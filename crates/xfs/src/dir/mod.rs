//! Directories in every form: short, block, leaf, node.
//!
//! Invariants: every name that is given out is legal (1 to 255 bytes, neither `/` nor NUL); every block belongs to
//! the directory's inode; positions to go on from ascend along a walk and stay valid while entries come and go.

mod crowd;
pub mod edit;
mod lookup;
mod walk;

pub use crowd::{CROWD_MAX, is_crowded, walk_index};
pub use edit::{Lookup, Needs, NewEntry, add, add_needs, init, is_empty, look, look_to_add, remove, replace};
pub use lookup::lookup;
pub use walk::walk;

use crate::buf::Buf;
use crate::da::{Index, check_owner};
use crate::error::{Error, Result};
use crate::fork::Fork;
use xfs_format::dir::{
    DATA_ALIGN_LOG, DataBlock, DirFileType, FREE_SPACE, INDEX, LEAF_SPACE, ShortDir, data_verifier,
};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::types::{FileBlock, InodeNumber};

/// The type of a file as a directory entry says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileType {
    /// The volume does not keep types in directories, or the type is not known.
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
}

/// One entry of a directory. `.` and `..` are entries too.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// The name: any bytes but `/` and NUL, 1 to 255 of them.
    pub name: &'a [u8],
    /// The inode that it names.
    pub inode: InodeNumber,
    /// Its type, where the volume keeps it.
    pub file_type: FileType,
    /// Where to go on behind this entry: pass it to [`walk`].
    pub next: u64,
}

impl From<DirFileType> for FileType {
    fn from(on_disk: DirFileType) -> Self {
        match on_disk {
            // A whiteout is a matter of overlays; the inode behind it says what it is.
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

/// The block of the fork at which the index begins, and the data ends.
fn leaf_space(geometry: &Geometry) -> u64 {
    LEAF_SPACE >> geometry.block_log
}

/// The index by hash.
fn hash_index(geometry: &Geometry) -> Index {
    Index {
        root: leaf_space(geometry),
        end: FREE_SPACE >> geometry.block_log,
        blocks: geometry.dir_block_blocks(),
        verifier: &INDEX,
    }
}

/// The place of an entry as its position: what the kernel's directory offsets are made of, too.
const fn position(data_offset: u64) -> u64 {
    data_offset >> DATA_ALIGN_LOG
}

/// Reads a directory inside the inode: as many bytes as the inode says that it has.
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

/// A block of the data space that was read.
struct Data {
    buf: Buf,
    v5: bool,
    ftype: bool,
}

impl Data {
    /// Reads the directory block at `at`, a multiple of the directory block's size.
    fn read(fork: &dyn Fork, at: FileBlock) -> Result<Self> {
        let geometry = fork.geometry();
        let ftype = geometry.ftype;
        let buf = fork.read(at, geometry.dir_block_blocks(), data_verifier(ftype))?;
        let data = Self { buf, v5: geometry.v5, ftype };
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
