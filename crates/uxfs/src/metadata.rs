//! The metadata of a file: what `stat` shows, and what only XFS has.

use xfs::dir::FileType;
use xfs_format::timestamp::Timestamp;

/// A device number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceNumber {
    /// Which driver.
    pub major: u32,
    /// Which of its devices.
    pub minor: u32,
}

/// All metadata of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metadata {
    /// Inode number.
    pub ino: u64,
    /// Generation of the inode number.
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
    /// The device number of a device node.
    pub rdev: Option<DeviceNumber>,
    /// The project that its space is counted for.
    pub project_id: u32,
    /// Flags, as `FS_IOC_FSGETXATTR` gives them in `fsx_xflags` (immutable is `0x8`, append-only `0x10`, …).
    pub xflags: u32,
    /// The extent size hint in bytes. It counts if one of the flags says so (`0x800`, for a directory `0x1000`).
    pub extent_size: u64,
    /// The same for copy-on-write, if a flag says so (`0x1_0000`).
    pub cow_extent_size: u64,
    /// The number of extents of its content.
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
