//! What the volume says of one file: what `stat` shows, and what only XFS keeps.

use std::fmt;

/// The type of a file.
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
    /// Not known: the directory does not say, and the inode cannot be read.
    Unknown,
}

impl FileType {
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

impl From<xfs::dir::FileType> for FileType {
    fn from(kind: xfs::dir::FileType) -> Self {
        use xfs::dir::FileType as F;
        match kind {
            F::Unknown => Self::Unknown,
            F::Regular => Self::Regular,
            F::Directory => Self::Directory,
            F::CharDevice => Self::CharDevice,
            F::BlockDevice => Self::BlockDevice,
            F::Fifo => Self::Fifo,
            F::Socket => Self::Socket,
            F::Symlink => Self::Symlink,
        }
    }
}

/// A moment: seconds since 1970 began in UTC, and the nanoseconds into that second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Whole seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds into the second, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// A device number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceNumber {
    /// Which driver.
    pub major: u32,
    /// Which of its devices.
    pub minor: u32,
}

/// Everything that an inode says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metadata {
    /// Inode number.
    pub ino: u64,
    /// Which life of that inode number this is.
    pub generation: u32,
    /// Type of the file.
    pub file_type: FileType,
    /// Type and permissions, as `st_mode` has them.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names (for a directory: 2, and one more for each directory in it).
    pub nlink: u32,
    /// Size in bytes; of a symbolic link, the length of its target.
    pub size: u64,
    /// Units of 512 bytes that are allocated, for attributes too.
    pub blocks: u64,
    /// The volume's block size in bytes.
    pub block_size: u32,
    /// When it was last read.
    pub atime: Timestamp,
    /// When its content was last changed.
    pub mtime: Timestamp,
    /// When the inode was last changed.
    pub ctime: Timestamp,
    /// When it was made; older volumes (v4) don't keep that.
    pub btime: Option<Timestamp>,
    /// Which device a device node stands for.
    pub rdev: Option<DeviceNumber>,
    /// The project that its space is counted for.
    pub project_id: u32,
    /// Flags, as `FS_IOC_FSGETXATTR` gives them in `fsx_xflags` (immutable is `0x8`, append-only `0x10`, …).
    pub xflags: u32,
    /// Bytes of which whole multiples should be allocated, where one of the flags (`0x800`, of a directory `0x1000`) says
    /// that there is such a wish.
    pub extent_size: u64,
    /// The same for copies of blocks that other files share, where a flag (`0x1_0000`) says so.
    pub cow_extent_size: u64,
    /// Extents that its content is in.
    pub extents: u64,
}

impl Metadata {
    /// The permission bits alone, with set-user-ID, set-group-ID and sticky: `mode & 0o7777`.
    pub fn permissions(&self) -> u16 {
        self.mode & 0o7777
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type == FileType::Directory
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.file_type == FileType::Regular
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.file_type == FileType::Symlink
    }
}

/// `fsx_xflags` for what an inode has in its two flag words. The low word has the same bits, all but one that
/// users don't see.
pub(crate) fn xflags(flags: u16, flags2: u64, has_attributes: bool) -> u32 {
    const LOW: u32 = 0x7ffb;
    let mut xflags = u32::from(flags) & LOW;
    for (bit, xflag) in [(1 << 0, 0x8000), (1 << 2, 0x1_0000)] {
        if flags2 & bit != 0 {
            xflags |= xflag;
        }
    }
    if has_attributes {
        xflags |= 0x8000_0000;
    }
    xflags
}

#[cfg(test)]
mod tests {
    use super::xflags;

    #[test]
    fn flags_are_those_that_users_see() {
        assert_eq!(xflags(0xffff, 0, false), 0x7ffb);
        assert_eq!(xflags(0, 0b1_1111, true), 0x8001_8000);
    }
}
