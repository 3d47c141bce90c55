//! Why a run fails.

use blockdev::DeviceError;
use std::path::PathBuf;

/// The result of a step of a run.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a run fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The options do not fit together, or the machine.
    #[error("{0}")]
    Usage(String),
    /// A program that sets up what is measured is missing or failed.
    #[error("{program}: {message}")]
    Program {
        /// The program's name.
        program: &'static str,
        /// What it said, or how to get it.
        message: String,
    },
    /// The host failed a step.
    #[error("{what}: {source}")]
    Host {
        /// What was being done, and to what.
        what: String,
        /// What the host said.
        source: std::io::Error,
    },
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// uxfs failed a request or could not open the volume.
    #[error("uxfs: {0}")]
    Volume(Box<dyn std::error::Error + Send + Sync>),
    /// The file does not hold what was last written to it.
    #[error(
        "{target}: page {page} holds the word {found:#018x} at its byte {byte}, not {expected:#018x} \
         (last written in generation {generation})"
    )]
    Content {
        /// Name of the target.
        target: String,
        /// Index of the page in the file.
        page: u64,
        /// First byte in the page that differs, a multiple of 8.
        byte: usize,
        /// The generation that wrote the page last.
        generation: u32,
        /// What should be there.
        expected: u64,
        /// What is.
        found: u64,
    },
    /// A target has more or fewer files than were made.
    #[error("{target}: {when}: {found} empty files, not {expected}")]
    Files {
        /// Name of the target.
        target: String,
        /// After which phase.
        when: &'static str,
        /// How many there should be.
        expected: u64,
        /// How many there are.
        found: u64,
    },
    /// A file does not have the time that was set last.
    #[error("{target}: {path} has the time {found}, and was given {expected} last")]
    Time {
        /// Name of the target.
        target: String,
        /// The file.
        path: String,
        /// Seconds that it was given.
        expected: i64,
        /// Seconds that it has.
        found: i64,
    },
    /// A target does not hold what a workload left there.
    #[error("{0}")]
    Result(String),
    /// The run was interrupted by a signal.
    #[error("interrupted")]
    Interrupted,
    /// A thread of the run panicked.
    #[error("a thread of the run panicked")]
    Panicked,
    /// The file does not fit the run.
    #[error("{path}: {problem}", path = path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

impl Error {
    /// Whether something else uses what was to be measured.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        use DeviceError::{Attached, BeingRead, BeingWritten, Claimed, Locked};
        matches!(self, Self::Device(Locked | BeingRead | BeingWritten | Attached(_) | Claimed))
    }

    /// What the host said, if it was the host.
    #[must_use]
    pub fn host_error(&self) -> Option<&std::io::Error> {
        match self {
            Self::Host { source, .. } | Self::Device(DeviceError::Io { source, .. }) => Some(source),
            _ => None,
        }
    }

    /// Wraps an error of the host with what was being done.
    pub(crate) fn host(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Host { what, source }
    }

    /// Wraps an error of the engine or of the data path.
    pub(crate) fn volume(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Volume(Box::new(error))
    }
}
