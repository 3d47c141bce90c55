//! What can go wrong, and what to do about it.
//!
//! Callers decide by [`ErrorKind`]; people read the message, which is one line, names the path or the place on
//! the device, and says what to do where something can be done.

use crate::names;
use std::fmt;
use xfs::alter::Refusal;
use xfs::log::ShutdownReason;
use xfs::namespace::NameProblem;

/// The result of the library's calls.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no such path, inode number or attribute name.
    NotFound,
    /// The file of this [`Node`](crate::Node) was removed, and another file may have its inode number. Nothing was
    /// changed. Look it up again.
    Stale,
    /// Something on the path, or the thing itself, is not a directory.
    NotADirectory,
    /// It is a directory, but something else is needed.
    IsADirectory,
    /// It is of the wrong type (neither of the two above).
    WrongType,
    /// More than [`MAX_SYMLINKS`](crate::MAX_SYMLINKS) symbolic links on the way.
    TooManySymlinks,
    /// A name is longer than [`MAX_NAME`](crate::MAX_NAME) bytes.
    NameTooLong,
    /// The path or name is impossible: it has a NUL byte, or is empty.
    InvalidPath,
    /// The device does not hold an XFS volume.
    NotXfs,
    /// The volume has a feature that this version does not handle.
    Unsupported,
    /// The device's sectors are larger than the volume's, or the volume's start is not a multiple of
    /// them.
    SectorSize,
    /// The image is shorter than the volume in it.
    Truncated,
    /// A structure of the volume is damaged.
    Damaged,
    /// The log holds changes that were not replayed, or cannot be.
    DirtyLog,
    /// Another process or the kernel has the image open for writing, locked, attached or mounted; or another process
    /// reads it while it is to be written.
    Locked,
    /// The volume is open for reading only.
    ReadOnly,
    /// The device takes no writes: the host has it read-only.
    ReadOnlyDevice,
    /// The bytes have no block of their own yet, so that they cannot be overwritten in place.
    NotAllocated,
    /// The blocks to change or free are shared, but the file's flag does not say so.
    Shared,
    /// There is no such attribute.
    NoAttribute,
    /// Something is there already, under this name or in this place.
    AlreadyExists,
    /// The directory has entries.
    NotEmpty,
    /// It already has the maximum number of names.
    TooManyLinks,
    /// A directory would be moved into itself.
    IntoItself,
    /// It belongs to another project's tree.
    OtherProject,
    /// It is immutable or append-only, which forbids this to everyone.
    Protected,
    /// The volume has no room for it.
    NoSpace,
    /// The file, or an attribute, would become larger than the format allows.
    TooLarge,
    /// The file would lie in more pieces than its inode can count.
    TooManyExtents,
    /// The volume's log is too small for such a change.
    LogTooSmall,
    /// The volume was shut down after an error, or closed.
    ShutDown,
    /// Requests that must end first are still in progress.
    Busy,
    /// The volume was shut down because damage was found in the middle of a change.
    ShutDownByDamage,
    /// An argument is out of range.
    InvalidInput,
    /// The device, or the host behind it, failed.
    Io,
}

/// Why a call failed, with a message.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    path: Option<Vec<u8>>,
    message: String,
}

impl Error {
    /// An error of this kind with its message.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, path: None, message: message.into() }
    }

    /// An error about a path inside the volume.
    pub(crate) fn at_path(kind: ErrorKind, path: &[u8], what: impl fmt::Display) -> Self {
        Self { kind, path: Some(path.to_vec()), message: what.to_string() }
    }

    /// The same error, for a path inside the volume.
    pub(crate) fn on_path(self, path: &[u8]) -> Self {
        Self::at_path(self.kind, path, self)
    }

    /// The path inside the volume that it is about, if any, as the caller gave it.
    pub fn path(&self) -> Option<&[u8]> {
        self.path.as_deref()
    }

    /// What is wrong, without the path.
    pub fn what(&self) -> &str {
        &self.message
    }

    /// The same error for another path: for a caller that chose the failing path itself.
    #[must_use]
    pub fn of_path(self, path: &[u8]) -> Self {
        Self { path: Some(path.to_vec()), ..self }
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{}: {}", names::printable(path), self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for Error {}

impl From<xfs::Error> for Error {
    fn from(error: xfs::Error) -> Self {
        Self::new(engine_kind(&error), error.to_string())
    }
}

/// The kind of an error of the engine.
pub(crate) fn engine_kind(error: &xfs::Error) -> ErrorKind {
    match error {
        xfs::Error::Corrupt { .. } | xfs::Error::ReverseMap(_) => ErrorKind::Damaged,
        xfs::Error::Device(device) => device_kind(device),
        xfs::Error::NotXfs => ErrorKind::NotXfs,
        xfs::Error::Truncated { .. } => ErrorKind::Truncated,
        xfs::Error::UnsupportedFeature(_)
        | xfs::Error::ExternalLog
        | xfs::Error::Realtime
        | xfs::Error::ScatteredDirectory(_) => ErrorKind::Unsupported,
        xfs::Error::SectorSize { .. } => ErrorKind::SectorSize,
        xfs::Error::NeedsRepair | xfs::Error::LogBehind { .. } => ErrorKind::Damaged,
        xfs::Error::Unwritable(_) => ErrorKind::ReadOnly,
        xfs::Error::DirtyLog
        | xfs::Error::LogTraces
        | xfs::Error::CannotRecover(_)
        | xfs::Error::CannotFinish { .. } => ErrorKind::DirtyLog,
        xfs::Error::NoSuchInode(_) => ErrorKind::NotFound,
        xfs::Error::Stale(_) => ErrorKind::Stale,
        xfs::Error::WrongType { wanted: "directory", .. } => ErrorKind::NotADirectory,
        xfs::Error::WrongType { .. } => ErrorKind::WrongType,
        xfs::Error::ReadOnly(_) => ErrorKind::ReadOnly,
        xfs::Error::Alter(refusal) => alter_kind(refusal),
        xfs::Error::Mkfs(_) | xfs::Error::ExtentSize { .. } => ErrorKind::InvalidInput,
        xfs::Error::Protected { .. } => ErrorKind::Protected,
        xfs::Error::NoSpace => ErrorKind::NoSpace,
        xfs::Error::Shared(_) => ErrorKind::Shared,
        xfs::Error::FileTooLarge(_) => ErrorKind::TooLarge,
        xfs::Error::TooManyExtents { .. } => ErrorKind::TooManyExtents,
        xfs::Error::LogTooSmall { .. } => ErrorKind::LogTooSmall,
        xfs::Error::Shutdown(ShutdownReason::Corruption) => ErrorKind::ShutDownByDamage,
        xfs::Error::Shutdown(_) => ErrorKind::ShutDown,
        xfs::Error::Name(problem) => name_kind(*problem),
        _ => ErrorKind::Io,
    }
}

impl From<blockdev::DeviceError> for Error {
    fn from(error: blockdev::DeviceError) -> Self {
        Self::new(device_kind(&error), error.to_string())
    }
}

/// The kind of a problem with a name.
fn name_kind(problem: NameProblem) -> ErrorKind {
    match problem {
        NameProblem::Exists | NameProblem::AttributeExists => ErrorKind::AlreadyExists,
        NameProblem::NoAttribute => ErrorKind::NoAttribute,
        NameProblem::AttributeTooLong => ErrorKind::TooLarge,
        NameProblem::Missing => ErrorKind::NotFound,
        NameProblem::Removed => ErrorKind::Stale,
        NameProblem::UserAttribute | NameProblem::ListOfLink => ErrorKind::WrongType,
        NameProblem::NotEmpty => ErrorKind::NotEmpty,
        NameProblem::NotDirectory => ErrorKind::NotADirectory,
        NameProblem::IsDirectory => ErrorKind::IsADirectory,
        NameProblem::TooLong | NameProblem::TargetTooLong => ErrorKind::NameTooLong,
        NameProblem::TooManyLinks | NameProblem::TooManyCollisions => ErrorKind::TooManyLinks,
        NameProblem::IntoItself => ErrorKind::IntoItself,
        NameProblem::OtherProject => ErrorKind::OtherProject,
        _ => ErrorKind::InvalidPath,
    }
}

/// The kind of a refusal to change what a volume is.
fn alter_kind(refusal: &Refusal) -> ErrorKind {
    match refusal {
        Refusal::Device { .. } => ErrorKind::NoSpace,
        Refusal::TooLarge { .. } => ErrorKind::TooLarge,
        Refusal::Log { .. } => ErrorKind::LogTooSmall,
        Refusal::Needs { .. } => ErrorKind::Unsupported,
        _ => ErrorKind::InvalidInput,
    }
}

/// The kind of a device's error.
pub(crate) fn device_kind(error: &blockdev::DeviceError) -> ErrorKind {
    use blockdev::DeviceError as D;
    match error {
        D::Locked | D::BeingRead | D::BeingWritten | D::Attached(_) | D::Replaced | D::Claimed => {
            ErrorKind::Locked
        }
        D::ReadOnly => ErrorKind::ReadOnlyDevice,
        D::Failed(_) => ErrorKind::ShutDown,
        D::Setup { source, .. } if source.kind() == std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        D::Setup { source, .. } if source.kind() == std::io::ErrorKind::InvalidInput => {
            ErrorKind::InvalidInput
        }
        _ => ErrorKind::Io,
    }
}

/// For code that uses `std::io`.
impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        use std::io::ErrorKind as Host;
        let kind = match error.kind {
            ErrorKind::NotFound | ErrorKind::NoAttribute => Host::NotFound,
            ErrorKind::Stale => Host::StaleNetworkFileHandle,
            ErrorKind::NotADirectory => Host::NotADirectory,
            ErrorKind::IsADirectory => Host::IsADirectory,
            ErrorKind::WrongType
            | ErrorKind::NameTooLong
            | ErrorKind::InvalidPath
            | ErrorKind::InvalidInput
            | ErrorKind::NotAllocated => Host::InvalidInput,
            ErrorKind::NotXfs
            | ErrorKind::Truncated
            | ErrorKind::Damaged
            | ErrorKind::ShutDownByDamage
            | ErrorKind::DirtyLog => Host::InvalidData,
            ErrorKind::Unsupported | ErrorKind::SectorSize | ErrorKind::Shared | ErrorKind::LogTooSmall => {
                Host::Unsupported
            }
            ErrorKind::NotEmpty => Host::DirectoryNotEmpty,
            ErrorKind::TooManyLinks => Host::TooManyLinks,
            ErrorKind::IntoItself => Host::InvalidInput,
            ErrorKind::OtherProject => Host::CrossesDevices,
            ErrorKind::Protected => Host::PermissionDenied,
            ErrorKind::NoSpace => Host::StorageFull,
            ErrorKind::TooLarge | ErrorKind::TooManyExtents => Host::FileTooLarge,
            ErrorKind::Locked | ErrorKind::Busy => Host::ResourceBusy,
            ErrorKind::ReadOnly | ErrorKind::ReadOnlyDevice => Host::ReadOnlyFilesystem,
            ErrorKind::AlreadyExists => Host::AlreadyExists,
            ErrorKind::TooManySymlinks | ErrorKind::ShutDown | ErrorKind::Io => Host::Other,
        };
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind as Host;
    use xfs_format::types::InodeNumber;

    /// They were reported as failures of the device.
    #[test]
    fn what_the_format_cannot_hold_has_its_own_name() {
        let inode = InodeNumber(131);
        for (error, kind, host) in [
            (xfs::Error::FileTooLarge(inode), ErrorKind::TooLarge, Host::FileTooLarge),
            (
                xfs::Error::TooManyExtents { inode, limit: 0x7fff },
                ErrorKind::TooManyExtents,
                Host::FileTooLarge,
            ),
            (xfs::Error::LogTooSmall { needed: 2, room: 1 }, ErrorKind::LogTooSmall, Host::Unsupported),
        ] {
            assert!(error.is_refusal());
            let error = Error::from(error);
            assert_eq!(error.kind(), kind, "{error}");
            assert_eq!(std::io::Error::from(error).kind(), host);
        }
    }
}
