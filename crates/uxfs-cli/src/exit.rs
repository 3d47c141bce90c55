//! Exit codes, and the failure that carries one.
//!
//! The codes are part of the interface: they are listed in `--help`, and scripts rely on them. A new one gets a
//! new number; none changes its meaning.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

/// The list that `--help` ends with.
pub const HELP: &str = "\
Paths inside an image are written IMAGE:/path; IMAGE alone is its root directory. IMAGE@2:/path is in the second
partition of a whole disk's image (GPT or MBR).

Exit codes:
  0  done
  1  some of it failed; the rest is done (each failure has its line on standard error)
  2  the command line is wrong
  3  no such file, or one of another type than is wanted
  4  not an XFS volume, or one with a feature that is not supported
  5  the volume is damaged, or the image is shorter than the volume
  6  the device or the host failed a request
  7  the volume's log is dirty (--norecovery reads the volume as it is)
  8  another process or the kernel writes the volume, or reads what is to be written
  9  something is there already that would be lost
 10  the volume, or what in it should grow, has no room for it
 11  interrupted; what is done is whole, and the volume was closed
 12  the file shares blocks with others and does not say so; it is as it was
 13  a limit that was given would be passed (--max-size, --max-files, --max-depth)
 14  not permitted: what would change is immutable or append-only";

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// All is done.
    Ok = 0,
    /// Some of it failed, and that was said.
    Partial = 1,
    /// The command line is wrong.
    Usage = 2,
    /// No such file, or one of another type than is wanted.
    NotFound = 3,
    /// Not an XFS volume, or one with a feature that is not supported.
    Unsupported = 4,
    /// The volume is damaged, or the image is shorter than the volume.
    Damaged = 5,
    /// The device or the host failed a request.
    Io = 6,
    /// The volume's log is dirty.
    DirtyLog = 7,
    /// Another process or the kernel writes the volume, or reads what is to be written.
    Locked = 8,
    /// Something is there already that would be lost.
    AlreadyExists = 9,
    /// The volume, or what in it should grow, has no room.
    NoSpace = 10,
    /// A signal asked for an end, and the volume was closed.
    Interrupted = 11,
    /// A file shares blocks with others, and lacks the flag that says so.
    Shared = 12,
    /// A limit that was given would be passed.
    Limit = 13,
    /// What would change is immutable or append-only.
    Protected = 14,
}

impl Exit {
    /// The same, about something that has to be there.
    pub fn of_source(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => Self::NotFound,
            _ => Self::of_host(error),
        }
    }

    /// Of what the host said about a file of its own.
    pub fn of_host(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::AlreadyExists => Self::AlreadyExists,
            // The host itself says so of what is mounted, and the like.
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

/// What ends a verb early: a line for standard error, and an exit code.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    message: Option<String>,
}

/// What a verb gives.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A failure with its message, which says what to do where that is known.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: Some(message.into()) }
    }

    /// Whether it is that somebody else has the image.
    pub fn is_locked(&self) -> bool {
        self.exit == Exit::Locked
    }

    /// What a volume said, about an image.
    pub fn of_image(image: &Path, error: &uxfs::Error) -> Self {
        Self::new(error.kind().into(), format!("{}: {error}", host_name(image)))
    }

    /// What the host said, about a file of its own.
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

    /// Whether there is nothing to say.
    pub fn is_quiet(&self) -> bool {
        self.message.is_none()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message.as_deref().unwrap_or_default())
    }
}

/// A path of the host, fit for a line on a terminal.
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

/// A failure of the host: a file that cannot be written, a terminal that is gone. A reader that closed its end
/// of standard output has what it wanted, so that this ends quietly.
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
