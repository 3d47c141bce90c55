//! The part of an extent from a request's byte on, checked: whatever a format says, no address overflows.

use crate::{ExtentState, FileError, FileMapping, MapLookup, MapSeq, Refusal};

use super::{DirectFile, FileResult};

/// What a run holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Reads as zeroes and cannot be overwritten, for this reason.
    Zeroes(Refusal),
    Data,
    /// As data, but not to be overwritten.
    SharedData,
}

/// The bytes from one offset to the end of their extent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MappedRun {
    pub kind: Kind,
    /// Device byte of the first, unless it has none.
    pub device: u64,
    /// Bytes up to the end of the extent, at least 1.
    pub len: u64,
    /// Size of the file in bytes.
    pub size: u64,
    /// The version of the map that says so.
    pub seq: MapSeq,
}

impl MappedRun {
    /// How many of `len` bytes the run has.
    #[inline]
    pub(crate) fn take(&self, len: usize) -> usize {
        self.len.min(len as u64) as usize
    }

    /// Whether its bytes, which start at byte `offset` of the file, can be overwritten in place.
    #[inline]
    pub(crate) fn check_overwritable<E: std::error::Error>(&self, offset: u64) -> Result<(), FileError<E>> {
        let why = match self.kind {
            Kind::Data => return Ok(()),
            Kind::SharedData => Refusal::Shared,
            Kind::Zeroes(why) => why,
        };
        Err(FileError::NotOverwritable { offset, why })
    }
}

impl<M: FileMapping> DirectFile<M> {
    /// Looks up the run at byte `offset`, to overwrite it.
    #[inline]
    pub(crate) fn run_at(&self, offset: u64) -> FileResult<MappedRun, M> {
        self.run_from(offset, self.map.lookup(offset))
    }

    /// Looks up the run at byte `offset`, to read it: shared blocks may be called data.
    #[inline]
    pub(crate) fn run_to_read(&self, offset: u64) -> FileResult<MappedRun, M> {
        self.run_from(offset, self.map.lookup_to_read(offset))
    }

    /// Looks up the run at byte `offset`, which may be space that was never written: with its place, to write it.
    pub(crate) fn run_anywhere(&self, offset: u64) -> FileResult<MappedRun, M> {
        let found = self.map.lookup(offset).map_err(|source| FileError::Map { offset, source })?;
        let extent = found.extent;
        let run = self.run_from(offset, Ok(found))?;
        match extent.state {
            ExtentState::Unwritten(start) => {
                let device = start.checked_add(offset - extent.offset);
                let device = device.filter(|device| (device ^ offset) & self.sector_mask == 0);
                device
                    .map(|device| MappedRun { device, ..run })
                    .ok_or(FileError::BadExtent { offset, extent })
            }
            _ => Ok(run),
        }
    }

    #[inline]
    fn run_from(&self, offset: u64, found: Result<MapLookup, M::Error>) -> FileResult<MappedRun, M> {
        let found = found.map_err(|source| FileError::Map { offset, source })?;
        match self.run_of(offset, found) {
            Some(run) => Ok(run),
            None => Err(FileError::BadExtent { offset, extent: found.extent }),
        }
    }

    #[inline]
    fn run_of(&self, offset: u64, found: MapLookup) -> Option<MappedRun> {
        let MapLookup { extent, size, seq } = found;
        let skipped = offset.checked_sub(extent.offset)?;
        let len = extent.len.checked_sub(skipped).filter(|len| *len > 0)?;
        let (kind, start) = match extent.state {
            ExtentState::Written(start) => (Kind::Data, start),
            ExtentState::Shared(start) => (Kind::SharedData, start),
            ExtentState::Hole => {
                return Some(MappedRun { kind: Kind::Zeroes(Refusal::Hole), device: 0, len, size, seq });
            }
            ExtentState::Unwritten(_) => {
                return Some(MappedRun { kind: Kind::Zeroes(Refusal::Unwritten), device: 0, len, size, seq });
            }
        };
        let device = start.checked_add(skipped)?;
        // Sectors of the file are sectors of the device: locking and merging count on it.
        ((device ^ offset) & self.sector_mask == 0).then_some(MappedRun { kind, device, len, size, seq })
    }
}
