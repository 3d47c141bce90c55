//! What can go wrong in the engine.
//!
//! Invariant: it knows the format and the device, and no module that fails: what each can say of its failure is defined
//! here.

pub(crate) mod alter;
pub(crate) mod mkfs;
mod name;
mod rmap;
mod shutdown;

pub use name::{CROWD_MAX, NameProblem};
pub use rmap::{RmapDamage, RmapProblem};
pub use shutdown::ShutdownReason;

use blockdev::DeviceError;
use xfs_format::error::FormatError;
use xfs_format::types::{DiskAddr, InodeNumber, Lsn};

/// The engine's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong in the engine. Corruption is data: it names structure, place and check.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A structure on the device is damaged.
    #[error("{}damaged: {problem}", Place { daddr: *.daddr, inode: *.inode })]
    Corrupt {
        /// Where the structure lies, in units of 512 bytes, where it is a block of its own.
        daddr: Option<DiskAddr>,
        /// The inode that it belongs to, where there is one.
        inode: Option<InodeNumber>,
        /// Structure and check.
        problem: FormatError,
    },
    /// The reverse map of a group does not say of blocks what it should.
    #[error(transparent)]
    ReverseMap(#[from] RmapDamage),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device does not hold an XFS volume.
    #[error("not an XFS volume (no superblock magic at its start)")]
    NotXfs,
    /// The image ends before the volume does.
    #[error("truncated image: the volume has {expected} bytes, the device {actual}")]
    Truncated {
        /// Bytes that the superblock promises.
        expected: u64,
        /// Bytes that the device has.
        actual: u64,
    },
    /// The volume has a feature that this version does not handle.
    #[error("unsupported feature: {0}")]
    UnsupportedFeature(String),
    /// The log lies on a device of its own.
    #[error("the volume has an external log, which is not supported")]
    ExternalLog,
    /// The volume has a realtime section.
    #[error("the volume has a realtime section, which is not supported")]
    Realtime,
    /// The volume is marked as damaged.
    #[error("the volume is marked as in need of repair: run xfs_repair on it first")]
    NeedsRepair,
    /// The volume may be read, and must not be written by code that does not know its features.
    #[error("the volume can be opened for reading only: {0}")]
    Unwritable(String),
    /// The device cannot read units as small as the volume's.
    #[error("the volume has sectors of {volume} bytes, the device cannot read fewer than {device}")]
    SectorSize {
        /// Bytes a sector of the volume.
        volume: u32,
        /// Bytes a sector of the device.
        device: u32,
    },
    /// The log holds changes that were not replayed.
    #[error(
        "the log is dirty: the volume was not unmounted cleanly, or is mounted now. Recover it (uxfs recover, or a mount \
         by the kernel), or read it as it is with --norecovery"
    )]
    DirtyLog,
    /// The log holds something that this version cannot carry out. Nothing was written.
    #[error("the log cannot be recovered: {0}. Nothing was written; mount the volume once with the kernel")]
    CannotRecover(String),
    /// What the log promises cannot be done within it. All that it says is in its place, and it has what is still to be done.
    #[error(
        "the log cannot be recovered to its end: that needs {needed} bytes of it, and there is room for {room}; \
         mount the volume once with the kernel"
    )]
    CannotFinish {
        /// Bytes that would have to be reserved.
        needed: u64,
        /// Bytes that can be reserved at all.
        room: u64,
    },
    /// A structure was last changed behind the end of the log, which was zeroed or made anew. Recovery, ours or the
    /// kernel's, would take whatever is logged next for older than what is in place, and leave it out. Nothing was written.
    #[error(
        "the log is behind the volume: {structure} was last changed at {}, and the log ends at {} (cycle:block), as it \
         does when it was zeroed or reformatted. A crash would lose what is changed now. Nothing was written; run \
         xfs_repair on the volume first", InLog(*.lsn), InLog(*.head)
    )]
    LogBehind {
        /// What it is.
        structure: &'static str,
        /// The LSN that it carries.
        lsn: Lsn,
        /// Where the log ends.
        head: Lsn,
    },
    /// The journal was shut down: nothing can be changed any more.
    #[error("the volume was shut down: {0}")]
    Shutdown(ShutdownReason),
    /// A transaction could never fit into the log.
    #[error(
        "the volume's log is too small: the change needs {needed} bytes of it, and there is room for {room}"
    )]
    LogTooSmall {
        /// Bytes that it reserves.
        needed: u64,
        /// Bytes that can be reserved at all.
        room: u64,
    },
    /// No inode of this number is in use.
    #[error("inode {0} is not in use")]
    NoSuchInode(InodeNumber),
    /// The file that had this number when it was looked up is gone, or going. Nothing was changed.
    #[error("the file that had inode number {0} was removed since it was looked up")]
    Stale(InodeNumber),
    /// The operation does not fit this kind of inode.
    #[error("inode {inode} is not a {wanted}")]
    WrongType {
        /// The inode.
        inode: InodeNumber,
        /// `directory`, `symbolic link`, `regular file`.
        wanted: &'static str,
    },
    /// Blocks that would be changed or freed belong to other files as well, and the inode does not say so. Nothing was
    /// changed.
    #[error(
        "inode {0} shares blocks with other files and lacks the flag that says so: run xfs_repair. Nothing was changed"
    )]
    Shared(InodeNumber),
    /// A block of a directory lies in several pieces, changes of which no kernel could replay. Nothing was changed.
    #[error(
        "directory {0} has a block of several pieces, as its directory blocks are larger than the volume's and no space in \
         one piece was left; such a directory cannot be changed. Nothing was changed"
    )]
    ScatteredDirectory(InodeNumber),
    /// The volume or the operation is read-only.
    #[error("read-only: {0}")]
    ReadOnly(&'static str),
    /// A name cannot be made, changed or removed. Nothing was changed.
    #[error(transparent)]
    Name(NameProblem),
    /// The inode is immutable or append-only, which forbids this change to everyone. Nothing was changed.
    #[error("inode {inode} is {how}: take the flag off first (chattr)")]
    Protected {
        /// The inode.
        inode: InodeNumber,
        /// `immutable` or `append-only`.
        how: &'static str,
    },
    /// The volume was shut down after an error: nothing more can be changed. What is in the log will be recovered.
    #[error("the volume was shut down after an error; close it and recover its log")]
    ShutDown,
    /// A volume cannot be made as it is wanted. Nothing was written.
    #[error(transparent)]
    Mkfs(#[from] mkfs::Refusal),
    /// A volume cannot be changed as it is wanted. Nothing was written.
    #[error(transparent)]
    Alter(#[from] alter::Refusal),
    /// A fork has as many extents as its inode can count.
    #[error("inode {inode} can have no more than {limit} extents")]
    TooManyExtents {
        /// The inode.
        inode: InodeNumber,
        /// How many it may have.
        limit: u64,
    },
    /// Blocks would lie behind what a file can address.
    #[error("inode {0} would become larger than a file can be")]
    FileTooLarge(InodeNumber),
    /// No file can have this as its extent size hint. Nothing was changed.
    #[error("{bytes} bytes cannot be the extent size of inode {inode}: {why}")]
    ExtentSize {
        /// The inode.
        inode: InodeNumber,
        /// What was asked for.
        bytes: u32,
        /// What it must be, or where.
        why: &'static str,
    },
    /// The volume has no room for what was asked, or may have no more inodes. Nothing was changed.
    #[error("no space left on the volume")]
    NoSpace,
    /// A commit that the log would say nothing of. Nothing was done.
    #[error("a transaction that logs nothing was committed: this is an error of uxfs")]
    EmptyCommit,
}

impl Error {
    /// A damaged structure of an inode, in the inode itself or in a block whose address does not matter.
    pub const fn corrupt_inode(inode: InodeNumber, problem: FormatError) -> Self {
        Self::Corrupt { daddr: None, inode: Some(inode), problem }
    }

    /// A damaged block.
    pub const fn corrupt_block(daddr: DiskAddr, inode: Option<InodeNumber>, problem: FormatError) -> Self {
        Self::Corrupt { daddr: Some(daddr), inode, problem }
    }

    /// Whether a change was refused before anything of it was done, and the volume goes on: it lacks room, blocks
    /// have other owners, or the format cannot hold it.
    pub const fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::NoSpace
                | Self::Shared(_)
                | Self::TooManyExtents { .. }
                | Self::FileTooLarge(_)
                | Self::LogTooSmall { .. }
        )
    }

    /// The same error, with the inode on whose behalf a block was read.
    pub fn of_inode(self, ino: InodeNumber) -> Self {
        match self {
            Self::Corrupt { daddr, inode: None, problem } => {
                Self::Corrupt { daddr, inode: Some(ino), problem }
            }
            other => other,
        }
    }
}

/// How a place in the log is said in messages.
struct InLog(Lsn);

impl std::fmt::Display for InLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.0.0 >> 32, self.0.0 & 0xffff_ffff)
    }
}

/// How a place is said in messages.
struct Place {
    daddr: Option<DiskAddr>,
    inode: Option<InodeNumber>,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(inode) = self.inode {
            write!(f, "inode {inode}: ")?;
        }
        if let Some(daddr) = self.daddr {
            write!(f, "block at 512-byte sector {daddr}: ")?;
        }
        Ok(())
    }
}
