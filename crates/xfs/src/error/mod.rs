//! The errors of the engine.
//!
//! Invariant: this module knows the format and the device, but no module that fails: the details of every failure are
//! defined here.

pub(crate) mod alter;
pub(crate) mod mkfs;
mod name;
mod rmap;
mod shutdown;

pub use name::{COLLISIONS_MAX, NameProblem};
pub use rmap::{RmapDamage, RmapProblem};
pub use shutdown::ShutdownReason;

use blockdev::DeviceError;
use xfs_format::error::FormatError;
use xfs_format::types::{DiskAddr, InodeNumber, Lsn};

/// The engine's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The errors of the engine. Corruption is data: it has structure, place and check.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A structure on the device is damaged.
    #[error("{}damaged: {problem}", CorruptAt { daddr: *.daddr, inode: *.inode })]
    Corrupt {
        /// The disk address of the structure, if it is a block of its own.
        daddr: Option<DiskAddr>,
        /// The inode that it belongs to, if any.
        inode: Option<InodeNumber>,
        /// Structure and check.
        problem: FormatError,
    },
    /// The rmap tree of a group does not match what it should have for some blocks.
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
        /// Bytes that the superblock says.
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
    /// The volume is marked as needing repair.
    #[error("the volume is marked as in need of repair: run xfs_repair on it first")]
    NeedsRepair,
    /// The volume may be read, but must not be written by code that does not know its features.
    #[error("the volume can be opened for reading only: {0}")]
    Unwritable(String),
    /// The device's sectors are larger than the volume's.
    #[error("the volume has sectors of {volume} bytes, the device cannot read fewer than {device}")]
    SectorSize {
        /// Bytes per sector of the volume.
        volume: u32,
        /// Bytes per sector of the device.
        device: u32,
    },
    /// The log has changes that were not replayed.
    #[error(
        "the log is dirty: the volume was not unmounted cleanly, or is mounted now. Recover it (uxfs recover, or a mount \
         by the kernel), or read it as it is with --norecovery"
    )]
    DirtyLog,
    /// Something is left behind the end of the log, which whoever opens the volume for writing clears.
    #[error(
        "something is left behind the end of the log, as a crash or xfs_repair -L leaves it: clear it first (uxfs \
         recover, or a mount by the kernel)"
    )]
    LogTraces,
    /// The log has something that this version cannot carry out. Nothing was written.
    #[error("the log cannot be recovered: {0}. Nothing was written; mount the volume once with the kernel")]
    CannotRecover(String),
    /// The log has no room to finish its intents. Everything else in it was replayed, and what is left to do is still
    /// in it.
    #[error(
        "the log cannot be recovered to its end: that needs {needed} bytes of it, and there is room for {room}; \
         mount the volume once with the kernel"
    )]
    CannotFinish {
        /// Bytes that would have to be reserved.
        needed: u64,
        /// Maximum that can be reserved.
        room: u64,
    },
    /// A structure was last changed beyond the end of the log, which was zeroed or made anew. Recovery, ours or the
    /// kernel's, would take the next logged changes for older than what is in place, and skip them. Nothing was
    /// written.
    #[error(
        "the log is behind the volume: {structure} was last changed at {}, and the log ends at {} (cycle:block), as it \
         does when it was zeroed or reformatted. A crash would lose what is changed now. Nothing was written; run \
         xfs_repair on the volume first", InLog(*.lsn), InLog(*.head)
    )]
    LogBehind {
        /// The structure.
        structure: &'static str,
        /// Its LSN.
        lsn: Lsn,
        /// The end of the log.
        head: Lsn,
    },
    /// The volume was shut down: nothing can be changed any more. What is in the log will be recovered.
    #[error("the volume was shut down: {0}")]
    Shutdown(ShutdownReason),
    /// A transaction could never fit into the log.
    #[error(
        "the volume's log is too small: the change needs {needed} bytes of it, and there is room for {room}"
    )]
    LogTooSmall {
        /// Bytes that it reserves.
        needed: u64,
        /// Maximum that can be reserved.
        room: u64,
    },
    /// No inode with this number is in use.
    #[error("inode {0} is not in use")]
    NoSuchInode(InodeNumber),
    /// The file that had this number when it was looked up is gone or going. Nothing was changed.
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
    /// Blocks to be changed or freed belong to other files as well, although the inode has no reflink flag. Nothing was
    /// changed.
    #[error(
        "inode {0} shares blocks with other files and lacks the flag that says so: run xfs_repair. Nothing was changed"
    )]
    Shared(InodeNumber),
    /// A directory block lies in several pieces, and no kernel could replay changes of it. Nothing was changed.
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
    /// A volume cannot be made as requested. Nothing was written.
    #[error(transparent)]
    Mkfs(#[from] mkfs::Refusal),
    /// A volume cannot be changed as requested. Nothing was written.
    #[error(transparent)]
    Alter(#[from] alter::Refusal),
    /// A fork has as many extents as its inode can count.
    #[error("inode {inode} can have no more than {limit} extents")]
    TooManyExtents {
        /// The inode.
        inode: InodeNumber,
        /// The maximum.
        limit: u64,
    },
    /// Blocks would lie beyond what a file can address.
    #[error("inode {0} would become larger than a file can be")]
    FileTooLarge(InodeNumber),
    /// A file cannot have this extent size hint. Nothing was changed.
    #[error("{bytes} bytes cannot be the extent size of inode {inode}: {why}")]
    ExtentSize {
        /// The inode.
        inode: InodeNumber,
        /// What was asked for.
        bytes: u32,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// The volume has no room for the request, or may have no more inodes. Nothing was changed.
    #[error("no space left on the volume")]
    NoSpace,
    /// A transaction changed more than it had reserved log space for to begin with, and the log has no more at the moment.
    /// Nothing was changed; the operation begins again with all that it may need. No caller of an operation sees this.
    #[error("a transaction has to begin again with more log space")]
    ReservationShort,
    /// Something that should never happen. Nothing was done.
    #[error("{0}: this is an error of uxfs")]
    Internal(&'static str),
}

impl Error {
    /// Corruption of an inode, in the inode itself or in a block whose address does not matter.
    pub const fn corrupt_inode(inode: InodeNumber, problem: FormatError) -> Self {
        Self::Corrupt { daddr: None, inode: Some(inode), problem }
    }

    /// Corruption of a block.
    pub const fn corrupt_block(daddr: DiskAddr, inode: Option<InodeNumber>, problem: FormatError) -> Self {
        Self::Corrupt { daddr: Some(daddr), inode, problem }
    }

    /// Whether a change was refused before anything of it was done, so that the volume goes on: it lacks room, blocks
    /// have other owners, or the format cannot represent it.
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

    /// The same error with the inode for which a block was read.
    pub fn of_inode(self, ino: InodeNumber) -> Self {
        match self {
            Self::Corrupt { daddr, inode: None, problem } => {
                Self::Corrupt { daddr, inode: Some(ino), problem }
            }
            other => other,
        }
    }
}

/// How messages show a place in the log.
struct InLog(Lsn);

impl std::fmt::Display for InLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.0.0 >> 32, self.0.0 & 0xffff_ffff)
    }
}

/// How messages show a place.
struct CorruptAt {
    daddr: Option<DiskAddr>,
    inode: Option<InodeNumber>,
}

impl std::fmt::Display for CorruptAt {
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
