//! Reading the superblock, and the checks that come before anything else is read or written.

use super::OpenOptions;
use crate::error::{Error, Result};
use blockdev::{AlignedBuf, BlockDevice, DeviceError};
use xfs_format::geometry::Geometry;
use xfs_format::superblock::{Superblock, Unhandled};
use xfs_format::types::DiskAddr;

/// Reads and checks the superblock of the first group.
pub(crate) fn read_superblock(device: &dyn BlockDevice) -> Result<Superblock> {
    let wrap = |problem| Error::corrupt_block(DiskAddr(0), None, problem);
    let read = |len: u64| -> Result<AlignedBuf> {
        let len = len.next_multiple_of(u64::from(device.sector_size()).max(512));
        let mut buf = AlignedBuf::zeroed(usize::try_from(len).unwrap_or(0));
        device.read(0, &mut buf)?;
        Ok(buf)
    };
    let least = u64::from(device.sector_size()).max(512);
    if device.size() < least {
        return Err(Error::NotXfs);
    }
    let start = read(least)?;
    if !Superblock::has_magic(&start) {
        return Err(Error::NotXfs);
    }
    let sector = u64::from(Superblock::claimed_sector_size(&start).map_err(wrap)?);
    if device.size() < sector {
        return Err(Error::Truncated { expected: sector, actual: device.size() });
    }
    let whole = if sector > least { read(sector)? } else { start };
    Superblock::parse(&whole).map_err(wrap)
}

/// Checks that come before anything but the superblock is read.
pub(crate) fn check_volume(
    device: &dyn BlockDevice,
    superblock: &Superblock,
    options: &OpenOptions,
) -> Result<()> {
    refuse_unhandled(superblock)?;
    check_device(device, &Geometry::from_superblock(superblock))?;
    if options.writable {
        check_writable(device, superblock, options)?;
    }
    Ok(())
}

/// Turns a feature that this code cannot read into its own error.
pub(crate) fn refuse_unhandled(superblock: &Superblock) -> Result<()> {
    Err(match superblock.unhandled() {
        None => return Ok(()),
        Some(Unhandled::Feature(name)) => Error::UnsupportedFeature(name),
        Some(Unhandled::ExternalLog) => Error::ExternalLog,
        Some(Unhandled::Realtime) => Error::Realtime,
        Some(Unhandled::NeedsRepair) => Error::NeedsRepair,
    })
}

/// The device must hold the whole volume, and its sectors must not be larger than the volume's.
pub(crate) fn check_device(device: &dyn BlockDevice, geometry: &Geometry) -> Result<()> {
    if device.sector_size() > geometry.sector_size {
        return Err(Error::SectorSize { volume: geometry.sector_size, device: device.sector_size() });
    }
    if device.size() < geometry.bytes() {
        return Err(Error::Truncated { expected: geometry.bytes(), actual: device.size() });
    }
    Ok(())
}

/// Checks that come before anything on the volume may be written.
fn check_writable(device: &dyn BlockDevice, superblock: &Superblock, options: &OpenOptions) -> Result<()> {
    if options.norecovery {
        return Err(Error::ReadOnly("a volume that is opened without recovery cannot be written"));
    }
    let unwritable = superblock.unwritable();
    if !unwritable.is_empty() {
        return Err(Error::Unwritable(unwritable.join(", ")));
    }
    if device.is_read_only() {
        return Err(DeviceError::ReadOnly.into());
    }
    crate::log::check_shape(superblock, device.sector_size())
}
