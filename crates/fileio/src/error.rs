//! Errors of the data path: of the device, of the map, or for a request that cannot be done in place.

use std::fmt;

use blockdev::DeviceError;

use crate::{Extent, Failure};

/// Why bytes cannot be overwritten in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Nothing is allocated there.
    Hole,
    /// Space is allocated but was never written.
    Unwritten,
    /// Other files share the blocks.
    Shared,
    /// The file ends before.
    PastEnd,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hole => "it lies in a hole",
            Self::Unwritten => "its space was never written",
            Self::Shared => "its blocks are shared with other files",
            Self::PastEnd => "it lies behind the end of the file",
        })
    }
}

/// Why a request on a file failed. `E` is the format's error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError<E: std::error::Error + 'static> {
    /// The device failed or refused a request.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The map of the file could not be read.
    #[error("looking up byte {offset} of the file: {source}")]
    Map {
        /// Offset in the file.
        offset: u64,
        /// The format's error.
        source: E,
    },
    /// The format returned an impossible extent.
    #[error("byte {offset} of the file is said to lie in {extent:?}")]
    BadExtent {
        /// Offset in the file.
        offset: u64,
        /// The extent.
        extent: Extent,
    },
    /// The file would become longer than any file can be. Nothing was written.
    #[error("{len} bytes at byte {offset}: no file reaches so far")]
    TooLarge {
        /// Offset in the file.
        offset: u64,
        /// Number of bytes from there.
        len: u64,
    },
    /// A range to be cut out of a file reaches its end. Nothing was changed.
    #[error("the range reaches to the end of the file: cut it off instead")]
    ReachesEnd,
    /// A hole to be inserted into a file begins past its end. Nothing was changed.
    #[error("the hole must begin before the end of the file: let it grow instead")]
    BehindEnd,
    /// Earlier writes could not be written back.
    #[error(transparent)]
    WriteBack(Failure),
    /// An overwrite includes bytes that cannot be overwritten in place. Nothing was written.
    #[error("byte {offset} of the file cannot be overwritten in place: {why}")]
    NotOverwritable {
        /// The first such byte.
        offset: u64,
        /// Why.
        why: Refusal,
    },
}
