//! Exit codes, and the failure that carries one.
//!
//! The codes are part of the interface: they are listed in `--help`, and scripts rely on them. A new one gets a
//! new number; none changes its meaning.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

/// The list at the end of `--help`.
pub const HELP: &str = "\
Paths inside an image are written IMAGE:/path; IMAGE alone is its root directory. IMAGE@2:/path is in the second
partition of a whole disk's image (GPT or MBR).

Exit codes:
  0  done
  1  some of it failed; the rest is done (each failure has its line on standard error)
  2  the command line is wrong
  3  no such file, or one of an unsuitable type
  4  not an XFS volume, or one with a feature that is not supported
  5  the volume is damaged, or the image is shorter than the volume
  6  the device or the host failed a request
  7  the volume's log is dirty (--norecovery reads the volume as it is)
  8  another process or the kernel writes the volume, or reads it while it is to be written
  9  something exists already and would be lost
 10  no space left on the volume
 11  interrupted; what is done is whole, and the volume was closed
 12  the file shares blocks with others and does not say so; it is as it was
 13  a given limit would be exceeded (--max-size, --max-files, --max-depth)
 14  not permitted: what would change is immutable or append-only";

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Everything is done.
    Ok = 0,
    /// Some of it failed, and that was reported.
    Partial = 1,
    /// The command line is wrong.
    Usage = 2,
    /// No such file, or one of an unsuitable type.
    NotFound = 3,
    /// Not an XFS volume, or one with a feature that is not supported.
    Unsupported = 4,
    /// The volume is damaged, or the image is shorter than the volume.
    Damaged = 5,
    /// The device or the host failed a request.
    Io = 6,
    /// The volume's log is dirty.
    DirtyLog = 7,
    /// Another process or the kernel writes the volume, or reads it while it is to be written.
    Locked = 8,
    /// Something exists already and would be lost.
    AlreadyExists = 9,
    /// No space left on the volume.
    NoSpace = 10,
    /// Interrupted by a signal; the volume was closed.
    Interrupted = 11,
    /// A file shares blocks with others, and lacks the flag that says so.
    Shared = 12,
    /// A given limit would be exceeded.
    Limit = 13,
    /// What would change is immutable or append-only.
    Protected = 14,
}

impl Exit {
    /// The same, about something that must exist.
    pub fn of_source(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => Self::NotFound,
            _ => Self::of_host(error),
        }
    }

    /// For an error of the host about one of its files.
    pub fn of_host(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::AlreadyExists => Self::AlreadyExists,
            // The host reports the same for mounted devices and the like.
            std::io::ErrorKind::ResourceBusy if error.raw_os_error().is_none() => Self::Locked,
            _ => Self::Io,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// A failure that ends a verb: a line for standard error, and an exit code.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    message: Option<String>,
}

/// The result of a verb.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A failure with its message, which says what to do if that is known.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: Some(message.into()) }
    }

    /// Whether the reason is that someone else uses the image.
    pub fn is_locked(&self) -> bool {
        self.exit == Exit::Locked
    }

    /// An error of the library about an image.
    pub fn of_image(image: &Path, error: &uxfs::Error) -> Self {
        Self::new(error.kind().into(), format!("{}: {error}", host_name(image)))
    }

    /// An error of the host about one of its files.
    pub fn of_host(path: &Path, error: impl fmt::Display) -> Self {
        Self::new(Exit::Io, format!("{}: {error}", host_name(path)))
    }

    /// The same, about a file of the host.
    pub fn about(self, path: &Path) -> Self {
        let message = self.message.map(|message| format!("{}: {message}", host_name(path)));
        Self { message, ..self }
    }

    /// The exit code.
    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// Whether there is no message.
    pub fn is_quiet(&self) -> bool {
        self.message.is_none()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message.as_deref().unwrap_or_default())
    }
}

/// A path of the host, safe to print on a terminal.
pub fn host_name(path: &Path) -> String {
    uxfs::printable(path.as_os_str().as_bytes())
}

impl From<uxfs::ErrorKind> for Exit {
    fn from(kind: uxfs::ErrorKind) -> Self {
        use uxfs::ErrorKind as K;
        match kind {
            K::NotFound
            | K::Stale
            | K::NotADirectory
            | K::IsADirectory
            | K::WrongType
            | K::TooManySymlinks
            | K::NameTooLong
            | K::InvalidPath
            | K::NoAttribute => Self::NotFound,
            K::NotXfs | K::Unsupported | K::SectorSize | K::NotAllocated | K::ReadOnly => Self::Unsupported,
            K::Truncated | K::Damaged | K::ShutDownByDamage => Self::Damaged,
            K::DirtyLog => Self::DirtyLog,
            K::Shared => Self::Shared,
            K::Locked => Self::Locked,
            K::AlreadyExists | K::NotEmpty => Self::AlreadyExists,
            K::Protected => Self::Protected,
            K::NoSpace | K::TooLarge | K::TooManyExtents | K::LogTooSmall | K::TooManyLinks => Self::NoSpace,
            K::InvalidInput | K::IntoItself | K::OtherProject => Self::Usage,
            _ => Self::Io,
        }
    }
}

/// A failure to write output. If the reader of standard output has closed its end, it has what it wanted, so
/// the verb ends quietly.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self { exit: Exit::Ok, message: None };
        }
        Self::new(Exit::Io, format!("writing the output: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codes_are_those_that_help_lists() {
        for (exit, code) in [
            (Exit::Ok, 0),
            (Exit::Partial, 1),
            (Exit::Usage, 2),
            (Exit::NotFound, 3),
            (Exit::Unsupported, 4),
            (Exit::Damaged, 5),
            (Exit::Io, 6),
            (Exit::DirtyLog, 7),
            (Exit::Locked, 8),
            (Exit::AlreadyExists, 9),
            (Exit::NoSpace, 10),
            (Exit::Interrupted, 11),
            (Exit::Shared, 12),
            (Exit::Limit, 13),
            (Exit::Protected, 14),
        ] {
            assert_eq!(exit as u8, code);
            assert!(HELP.contains(&format!("\n{code:>3}  ")), "{code} is not in the help");
        }
    }

    #[test]
    fn a_closed_pipe_is_quiet() {
        let failure = Failure::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert!(failure.is_quiet());
        assert_eq!(failure.exit(), Exit::Ok);
    }
}
