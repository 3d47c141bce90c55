//! Finds the ends of the log and whether it is clean, that is, whether its last record is an unmount record.
//!
//! The format crate finds the ends. This module lets it read 512-byte blocks from a device whose sectors may be larger.

use crate::error::{Error, Result};
use blockdev::{AlignedBuf, BlockDevice, DeviceError};
use xfs_format::error::FormatError;
use xfs_format::log::{BLOCK_SIZE, LogEnds, LogIdentity, find_ends};
use xfs_format::superblock::Superblock;
use xfs_format::types::DiskAddr;

/// Finds the ends of the internal log of a volume.
pub fn log_ends(device: &dyn BlockDevice, superblock: &Superblock) -> Result<LogEnds> {
    let start = superblock.log_daddr();
    let identity = LogIdentity { v5: superblock.is_v5(), uuid: superblock.uuid() };
    // The superblock's checks keep the log below 2 GiB.
    let blocks = u32::try_from(superblock.log_bytes() / BLOCK_SIZE as u64).unwrap_or(u32::MAX);
    let read = |block, buf: &mut [u8]| Ok(read(device, start, block, buf)?);
    find_ends(blocks, &identity, read).map_err(|error| match error {
        LogError::Format(problem) => Error::corrupt_block(start, None, problem),
        LogError::Device(error) => error.into(),
    })
}

enum LogError {
    Format(FormatError),
    Device(DeviceError),
}

impl From<FormatError> for LogError {
    fn from(problem: FormatError) -> Self {
        Self::Format(problem)
    }
}

impl From<DeviceError> for LogError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

/// Fills `buf` from a block of the log on, reading whole sectors.
pub(crate) fn read(
    device: &dyn BlockDevice,
    start: DiskAddr,
    block: u32,
    buf: &mut [u8],
) -> Result<(), DeviceError> {
    let sector = u64::from(device.sector_size()).max(BLOCK_SIZE as u64);
    let begin = (start.0 + u64::from(block)) * BLOCK_SIZE as u64;
    let aligned = begin / sector * sector;
    let end = (begin + buf.len() as u64).next_multiple_of(sector);
    let mut sectors = AlignedBuf::zeroed(usize::try_from(end - aligned).unwrap_or(0));
    device.read(aligned, &mut sectors)?;
    let skip = usize::try_from(begin - aligned).unwrap_or(usize::MAX);
    if let Some(wanted) = sectors.get(skip..).and_then(|rest| rest.get(..buf.len())) {
        buf.copy_from_slice(wanted);
    }
    Ok(())
}
