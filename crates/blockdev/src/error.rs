//! What can go wrong with a device: one narrow enum, which separates mistakes of the caller from failures
//! of the host.

/// Why a device refused or failed a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The request lies wholly or in part past the end of the device.
    #[error("{len} bytes at byte {offset} lie outside the device of {size} bytes")]
    OutOfRange {
        /// First byte of the request.
        offset: u64,
        /// Length of the request in bytes.
        len: u64,
        /// Size of the device in bytes.
        size: u64,
    },
    /// The request is not a multiple of the sector size.
    #[error("{len} bytes at byte {offset} are not whole sectors of {sector} bytes")]
    Misaligned {
        /// First byte of the request.
        offset: u64,
        /// Length of the request in bytes.
        len: u64,
        /// The device's sector size in bytes.
        sector: u32,
    },
    /// A write to a device that the host has read-only, or that was opened for reading only.
    #[error("the device is read-only")]
    ReadOnly,
    /// Another process or the kernel has the image open for writing or locked, or it is a block device that is mounted.
    #[error(
        "another process or the kernel has it open for writing, locked or mounted: wait until that is done, or end it"
    )]
    Locked,
    /// The image is to be written, and another process reads it.
    #[error("another process is reading it: wait until that is done, or end it")]
    BeingRead,
    /// The image is to be read, and another process writes it.
    #[error(
        "another process is writing it, so that what is read would be of several moments: wait until that is done, or \
         end it"
    )]
    BeingWritten,
    /// The kernel has the image attached as a loop device: its name, and what to do.
    #[error("{0}")]
    Attached(String),
    /// While we waited for the lock, the file was removed, or another file took its name.
    #[error("another file has taken its place meanwhile, or it is gone: try again")]
    Replaced,
    /// This process has the device open for writing already.
    #[error("this process has it open for writing already: close that first")]
    Claimed,
    /// The owner of the device has given it up.
    #[error("nobody uses the device any more")]
    Ended,
    /// The queue holds as many requests as it has room for.
    #[error("the queue is full")]
    QueueFull,
    /// The host failed the request.
    #[error("{op} of {len} bytes at byte {offset} failed: {source}")]
    Io {
        /// `read`, `write`, `flush`, …
        op: &'static str,
        /// First byte of the request.
        offset: u64,
        /// Length of the request in bytes.
        len: u64,
        /// What the host said.
        source: std::io::Error,
    },
    /// A request failed before in this way. All later requests fail too.
    #[error("{0}")]
    Failed(String),
    /// The device could not be opened or set up.
    #[error("{what}: {source}")]
    Setup {
        /// What was being done.
        what: String,
        /// What the host said.
        source: std::io::Error,
    },
}

impl DeviceError {
    /// A failed request.
    pub(crate) fn io(op: &'static str, offset: u64, len: usize, source: impl Into<std::io::Error>) -> Self {
        Self::Io { op, offset, len: len as u64, source: source.into() }
    }

    /// A copy of the failure, for another caller.
    pub fn again(&self) -> Self {
        let again = |source: &std::io::Error| match source.raw_os_error() {
            Some(errno) => std::io::Error::from_raw_os_error(errno),
            None => std::io::Error::new(source.kind(), source.to_string()),
        };
        match self {
            Self::Io { op, offset, len, source } => {
                Self::Io { op, offset: *offset, len: *len, source: again(source) }
            }
            Self::Setup { what, source } => Self::Setup { what: what.clone(), source: again(source) },
            Self::OutOfRange { offset, len, size } => {
                Self::OutOfRange { offset: *offset, len: *len, size: *size }
            }
            Self::Misaligned { offset, len, sector } => {
                Self::Misaligned { offset: *offset, len: *len, sector: *sector }
            }
            Self::ReadOnly => Self::ReadOnly,
            Self::Locked => Self::Locked,
            Self::BeingRead => Self::BeingRead,
            Self::BeingWritten => Self::BeingWritten,
            Self::Attached(what) => Self::Attached(what.clone()),
            Self::Replaced => Self::Replaced,
            Self::Claimed => Self::Claimed,
            Self::Ended => Self::Ended,
            Self::QueueFull => Self::QueueFull,
            Self::Failed(what) => Self::Failed(what.clone()),
        }
    }

    /// A device that could not be set up because the host said so.
    pub(crate) fn setup(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Self::Setup { what: what.into(), source: source.into() }
    }

    /// A device that could not be set up because of what the caller asked for.
    pub(crate) fn invalid(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::setup(what, std::io::Error::new(std::io::ErrorKind::InvalidInput, why.into()))
    }
}
