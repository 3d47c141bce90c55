//! Writing a layout to a device.
//!
//! The order: what might still pass for a volume is wiped first, and the new superblock is written last, when
//! everything else is on stable storage. So an interruption leaves no volume, neither the old one nor half of a new
//! one.

use super::layout::{GroupLayout, VolumeLayout};
use super::log_record;
use super::structures::{fill_group, inode_blocks, seal};
use crate::error::mkfs::Refusal;
use crate::error::{Error, Result};
use blockdev::{AlignedBuf, BlockDevice, DeviceError, Durability};
use xfs_format::types::{AgBlock, AgNumber};

/// What is known of the device's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// All of it reads as zeroes: a new file, new memory.
    Zeroes,
    /// Anything may be there.
    Unknown,
    /// There may be blocks of a volume with the same UUID and a longer log. Recovery would take them for newer than
    /// what the new log has.
    SameUuid,
}

/// Bytes at both ends of the device where other formats have their signatures.
const MARKS_BYTES: u64 = 128 << 10;
/// Bytes that are zeroed at a time.
const CHUNK_BYTES: u64 = 1 << 20;

/// Makes the volume. The device's content is lost.
///
/// Only headers, roots, first inodes and the start of the log are written. On a device of unknown content, the rest of
/// the log is read, and zeroed where it is not zero, so that holes of a sparse file stay holes. If the UUID is not new,
/// the same is done for the whole volume.
pub fn format(device: &dyn BlockDevice, layout: &VolumeLayout, before: Before) -> Result<()> {
    check_device(device, layout)?;
    if before != Before::Zeroes {
        wipe(device, layout)?;
    }
    if before == Before::SameUuid {
        zero(device, 0, layout.bytes())?;
        device.flush()?;
    }
    for ag in (0..layout.geometry.ag_count()).map(AgNumber) {
        write_group(device, layout, &layout.group(ag), before)?;
    }
    device.flush()?;
    let superblock = seal(layout.superblock.raw());
    device.write(0, &AlignedBuf::copied(&superblock), Durability::Fua)?;
    Ok(())
}

fn check_device(device: &dyn BlockDevice, layout: &VolumeLayout) -> Result<()> {
    if device.is_read_only() {
        return Err(DeviceError::ReadOnly.into());
    }
    let (volume, device_sector) = (layout.geometry.sector_size, device.sector_size());
    if device_sector > volume {
        return Err(Error::Mkfs(Refusal::DeviceSector { volume, device: device_sector }));
    }
    if device.size() < layout.bytes() {
        return Err(Error::Mkfs(Refusal::Device { wanted: layout.bytes(), device: device.size() }));
    }
    Ok(())
}

/// Ensures that nothing takes the device for what it was.
fn wipe(device: &dyn BlockDevice, layout: &VolumeLayout) -> Result<()> {
    let sector = u64::from(device.sector_size());
    device.write(0, &AlignedBuf::zeroed(layout.geometry.sector_size as usize), Durability::Volatile)?;
    device.flush()?;
    let marks = MARKS_BYTES.min(device.size());
    zero(device, 0, marks)?;
    let start = (device.size() - marks) / sector * sector;
    zero(device, start, device.size() - start)
}

/// Zeroes whole sectors, writing only where something else is.
fn zero(device: &dyn BlockDevice, start: u64, len: u64) -> Result<()> {
    let mut buf = AlignedBuf::zeroed(CHUNK_BYTES.min(len) as usize);
    let zeroes = AlignedBuf::zeroed(buf.len());
    let mut done = 0;
    while done < len {
        let part = CHUNK_BYTES.min(len - done) as usize;
        device.read(start + done, &mut buf[..part])?;
        if buf[..part] != zeroes[..part] {
            device.write(start + done, &zeroes[..part], Durability::Volatile)?;
        }
        done += part as u64;
    }
    Ok(())
}

/// Writes all of a group except for the first superblock.
pub(crate) fn write_group(
    device: &dyn BlockDevice,
    layout: &VolumeLayout,
    group: &GroupLayout,
    before: Before,
) -> Result<()> {
    let geometry = &layout.geometry;
    let at = |block: AgBlock| geometry.daddr_of(group.ag, block).0 << 9;
    let mut head = AlignedBuf::zeroed((layout.fixed_blocks() as usize) << geometry.block_log);
    fill_group(layout, group, &mut head);
    if group.ag.0 == 0 {
        head[..geometry.sector_size as usize].fill(0);
    }
    device.write(at(AgBlock(0)), &head, Durability::Volatile)?;
    if let Some(inodes) = group.inodes {
        let blocks = AlignedBuf::copied(&inode_blocks(layout, inodes));
        device.write(at(inodes.start), &blocks, Durability::Volatile)?;
    }
    if let Some(log) = group.log {
        let start = at(log.start);
        if before == Before::Unknown {
            zero(device, start, u64::from(log.blocks) << geometry.block_log)?;
        }
        write_log_record(device, layout, start)?;
    }
    Ok(())
}

/// Writes the log's only record, in whole sectors of the device, and at most one block.
fn write_log_record(device: &dyn BlockDevice, layout: &VolumeLayout, start: u64) -> Result<()> {
    let geometry = &layout.geometry;
    let record = log_record::clean(geometry.uuid, layout.superblock.raw().logsunit.get())
        .map_err(|problem| Error::Corrupt { daddr: None, inode: None, problem })?;
    let mut buf = AlignedBuf::zeroed(record.len().next_multiple_of(geometry.sector_size as usize));
    buf[..record.len()].copy_from_slice(&record);
    device.write(start, &buf, Durability::Volatile)?;
    Ok(())
}
