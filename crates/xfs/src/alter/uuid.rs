//! The UUID, which the superblocks and each record of the log have.
//!
//! All other metadata of a v5 volume keep the one from mkfs, which the superblock has as `meta_uuid`. The log must be
//! clean. Only its last record matters, because nothing before it is read any more. Kernels compare that record with
//! the superblock before they mount, and accept one with an empty UUID:
//!
//! ```text
//! last record   old      none    none    none     new
//! superblock    old      old     new     new      new
//! copies        old      old     old     follow   new
//! ```
//!
//! Each step writes one sector and is durable before the next. So a crash leaves a sound volume, and whoever opens it
//! next for writing continues from the superblock.

use super::copies;
use crate::error::{Error, Result};
use crate::mkfs::seal;
use crate::mount::{OpenOptions, check_volume, read_superblock};
use crate::recovery::log_ends;
use blockdev::{AlignedBuf, BlockDevice, Claim, Durability};
use xfs_format::error::FormatError;
use xfs_format::features::Incompat;
use xfs_format::geometry::Geometry;
use xfs_format::log::{BLOCK_SIZE, LogEnds, RecordHeader, give_to};
use xfs_format::superblock::{RawSuperblock, Superblock};
use xfs_format::types::Uuid;
use zerocopy::FromBytes;

const NIL: Uuid = Uuid([0; 16]);

/// The new UUID of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UuidChange {
    /// This one. All zeroes mean none: the kernel mounts such a volume only with `nouuid`.
    To(Uuid),
    /// The one from mkfs.
    Restore,
}

/// Changes the UUID of the volume on `device`, which nobody else may use. Returns the new one. [`Error::DirtyLog`] if
/// the log is dirty, [`Error::LogTraces`] if something is left behind its end.
pub fn set_uuid(device: &dyn BlockDevice, change: UuidChange) -> Result<Uuid> {
    let _claim = Claim::new(device)?;
    let superblock = read_superblock(device)?;
    check_volume(device, &superblock, &OpenOptions { writable: true, ..OpenOptions::default() })?;
    let ends = log_ends::log_ends(device, &superblock)?;
    if !ends.clean {
        return Err(Error::DirtyLog);
    }
    // A kernel compares a header that was left behind the last record, as by `xfs_repair -L`. Whoever opens the volume
    // for writing and closes it ends the log well.
    if ends.is_torn {
        return Err(Error::LogTraces);
    }
    let uuid = match change {
        UuidChange::To(uuid) => uuid,
        UuidChange::Restore => superblock.meta_uuid(),
    };
    let now = with_uuid(&superblock, uuid);
    if uuid != superblock.uuid() {
        mark_log(device, &superblock, &ends, NIL)?;
        device.write(0, &AlignedBuf::copied(&seal(&now)), Durability::Fua)?;
        follow(device, &superblock, &ends, &now)?;
    } else if is_unfinished(device, &superblock, &ends)? {
        follow(device, &superblock, &ends, &now)?;
    }
    Ok(uuid)
}

/// Completes a change that a crash interrupted. The log is clean.
pub(crate) fn finish(device: &dyn BlockDevice, superblock: &Superblock, ends: &LogEnds) -> Result<()> {
    if is_unfinished(device, superblock, ends)? {
        follow(device, superblock, ends, superblock.raw())?;
    }
    Ok(())
}

/// The superblock with another UUID.
fn with_uuid(superblock: &Superblock, uuid: Uuid) -> RawSuperblock {
    let mut raw = *superblock.raw();
    let made_with = superblock.meta_uuid();
    let incompat = superblock.incompat().difference(Incompat::META_UUID);
    raw.uuid = uuid.0;
    if uuid == made_with {
        (raw.features_incompat, raw.meta_uuid) = (incompat.bits().into(), NIL.0);
    } else {
        let incompat = incompat.union(Incompat::META_UUID);
        (raw.features_incompat, raw.meta_uuid) = (incompat.bits().into(), made_with.0);
    }
    raw
}

/// After the superblock: writes its copies and the log.
fn follow(
    device: &dyn BlockDevice,
    superblock: &Superblock,
    ends: &LogEnds,
    raw: &RawSuperblock,
) -> Result<()> {
    let geometry = Geometry::from_superblock(superblock);
    copies::write(device, &geometry, raw, geometry.ag_count())?;
    mark_log(device, superblock, ends, Uuid(raw.uuid))
}

fn is_unfinished(device: &dyn BlockDevice, superblock: &Superblock, ends: &LogEnds) -> Result<bool> {
    let Some(last) = ends.last_record else { return Ok(false) };
    Ok(superblock.uuid() != NIL && header(device, superblock, last)?.fs_uuid == NIL.0)
}

fn header(device: &dyn BlockDevice, superblock: &Superblock, block: u32) -> Result<RecordHeader> {
    let mut bytes = [0; BLOCK_SIZE];
    log_ends::read(device, superblock.log_daddr(), block, &mut bytes)?;
    let (header, _) = RecordHeader::read_from_prefix(&bytes)
        .map_err(|_| damaged(superblock, FormatError::new("log record", "truncated header")))?;
    Ok(header)
}

/// Sets the UUID in the last record of the log. A log that was never written has none.
fn mark_log(device: &dyn BlockDevice, superblock: &Superblock, ends: &LogEnds, uuid: Uuid) -> Result<()> {
    let Some(last) = ends.last_record else { return Ok(()) };
    let (start, blocks) = (superblock.log_daddr(), superblock.log_bytes() / BLOCK_SIZE as u64);
    let total = header(device, superblock, last)?.total_blocks();
    let mut record = vec![0; total as usize * BLOCK_SIZE];
    for (at, block) in (u64::from(last)..).zip(record.chunks_exact_mut(BLOCK_SIZE)) {
        // The log has fewer than 2^32 blocks.
        log_ends::read(device, start, (at % blocks) as u32, block)?;
    }
    give_to(&mut record, uuid).map_err(|problem| damaged(superblock, problem))?;
    // The rest of the device's sector stays.
    let sector = u64::from(device.sector_size()).max(BLOCK_SIZE as u64);
    let at = (start.0 + u64::from(last)) * BLOCK_SIZE as u64;
    let aligned = at / sector * sector;
    let mut whole = AlignedBuf::zeroed(sector as usize);
    device.read(aligned, &mut whole)?;
    let place = (at - aligned) as usize;
    whole[place..place + BLOCK_SIZE].copy_from_slice(&record[..BLOCK_SIZE]);
    device.write(aligned, &whole, Durability::Fua)?;
    Ok(())
}

fn damaged(superblock: &Superblock, problem: FormatError) -> Error {
    Error::corrupt_block(superblock.log_daddr(), None, problem)
}
