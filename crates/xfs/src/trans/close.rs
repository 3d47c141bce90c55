//! The last transaction of a volume: the counters go back to the superblock.

use super::Trans;
use super::reservation::Need;
use crate::error::{Error, Result};
use crate::volume::Volume;
use std::mem::offset_of;
use std::sync::Arc;
use xfs_format::error::FormatError;
use xfs_format::superblock::{RawSuperblock, SUPERBLOCK};
use xfs_format::types::DiskAddr;
use zerocopy::FromBytes;

/// Logs a superblock with the counters as they are now. Nobody may have a transaction open that changes them.
pub(crate) fn write_superblock(volume: &Arc<Volume>) -> Result<()> {
    let mut trans = Trans::start(volume, Need::new(volume.geometry()).sectors(1).reservation())?;
    let counters = &volume.write_side()?.counters;
    let (icount, ifree, fdblocks) = (counters.inodes(), counters.free_inodes(), counters.free_blocks());
    let sector = volume.geometry().sector_size.into();
    let buf = trans.buf_at(DiskAddr(0), sector, &SUPERBLOCK)?;
    let range = offset_of!(RawSuperblock, icount)..offset_of!(RawSuperblock, fdblocks) + 8;
    let (raw, _) = RawSuperblock::mut_from_prefix(trans.bytes_mut(buf, range)).map_err(|_| {
        Error::corrupt_block(DiskAddr(0), None, FormatError::value(SUPERBLOCK.name, "length", sector))
    })?;
    raw.icount = icount.into();
    raw.ifree = ifree.into();
    raw.fdblocks = fdblocks.into();
    trans.commit()?;
    Ok(())
}
