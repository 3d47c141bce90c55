//! Directories in every form: short, block, leaf, node.

use crate::error::Result;
use crate::fork::Fork;
use std::ops::ControlFlow;
use xfs_format::types::InodeNumber;

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

/// Calls `each` for every entry from `cookie` (0: the start) on, in the order of the directory, `.` and `..`
/// first. Stops when `each` breaks.
pub fn walk(
    fork: &dyn Fork,
    cookie: u64,
    each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
) -> Result<()> {
    let _ = (fork, cookie, each);
    unimplemented!()
}

/// Finds `name` by its hash: a few block reads, however large the directory.
pub fn lookup(fork: &dyn Fork, name: &[u8]) -> Result<Option<(InodeNumber, FileType)>> {
    let _ = (fork, name);
    unimplemented!()
}
