//! The first and the last transaction of a volume that is open for writing: both change the superblock.
//!
//! Invariant: nothing else is in them; what lies in the superblock and is not changed stays as it is on disk.

use super::Trans;
use super::reservation::Need;
use crate::error::{Error, Result};
use crate::volume::Volume;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;
use xfs_format::error::FormatError;
use xfs_format::features::QuotaFlags;
use xfs_format::superblock::{RawSuperblock, SUPERBLOCK};
use xfs_format::types::DiskAddr;
use zerocopy::FromBytes;

/// Logs a superblock with the counters as they are now. Nobody may have a transaction open that changes them.
pub(crate) fn write_counters(volume: &Arc<Volume>) -> Result<()> {
    let counters = &volume.write_side()?.counters;
    let (icount, ifree, fdblocks) = (counters.inodes(), counters.free_inodes(), counters.free_blocks());
    let range = offset_of!(RawSuperblock, icount)..offset_of!(RawSuperblock, fdblocks) + 8;
    change(volume, range, |raw| {
        raw.icount = icount.into();
        raw.ifree = ifree.into();
        raw.fdblocks = fdblocks.into();
    })
}

/// Has the kernel count anew what each user, group and project takes when it mounts the volume with quota: nobody keeps
/// these counts up while we write.
pub(crate) fn doubt_quota_counts(volume: &Arc<Volume>) -> Result<()> {
    let flags = QuotaFlags::from_bits_retain(volume.superblock().raw().qflags.get());
    if !flags.intersects(QuotaFlags::COUNTED) {
        return Ok(());
    }
    let at = offset_of!(RawSuperblock, qflags);
    change(volume, at..at + 2, |raw| raw.qflags = flags.difference(QuotaFlags::COUNTED).bits().into())?;
    // Before any change that the counts would not show.
    volume.sync()
}

fn change(volume: &Arc<Volume>, range: Range<usize>, change: impl FnOnce(&mut RawSuperblock)) -> Result<()> {
    let mut trans = Trans::start(volume, Need::new(volume.geometry()).sectors(1).reservation())?;
    let sector = volume.geometry().sector_size.into();
    let buf = trans.buf_at(DiskAddr(0), sector, &SUPERBLOCK)?;
    let (raw, _) = RawSuperblock::mut_from_prefix(trans.bytes_mut(buf, range)).map_err(|_| {
        Error::corrupt_block(DiskAddr(0), None, FormatError::value(SUPERBLOCK.name, "length", sector))
    })?;
    change(raw);
    trans.commit()?;
    Ok(())
}
