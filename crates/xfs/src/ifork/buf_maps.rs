//! Where the blocks of a fork lie on the device.

use super::{ExtentList, Mapped};
use crate::buf::{BufMap, BufMaps};
use crate::error::{Error, Result};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::types::{FileBlock, FsBlock, InodeNumber};
use xfs_format::verify::Verifier;

/// Where `blocks` blocks at `at` of a fork lie: one map per run.
pub(crate) fn buf_maps(
    geometry: &Geometry,
    ino: InodeNumber,
    extents: &ExtentList,
    at: FileBlock,
    blocks: u32,
    verifier: &'static Verifier,
) -> Result<BufMaps> {
    let corrupt =
        |check, at: FileBlock| Error::corrupt_inode(ino, FormatError::value(verifier.name, check, at.0));
    if let Some(extent) = extents.at(at).filter(|extent| !extent.unwritten) {
        let (skip, count) = (at.0 - extent.startoff.0, u64::from(blocks));
        if skip + count <= u64::from(extent.blockcount) && count > 0 {
            let start = FsBlock(extent.startblock.0 + skip);
            let daddr = geometry.extent_daddr(start, count).ok_or_else(|| corrupt("volume block", at))?;
            return Ok(BufMaps::from_buf([BufMap { daddr, len: count << geometry.block_log }]));
        }
    }
    let mut maps = BufMaps::new();
    let mut at = at;
    let mut left = u64::from(blocks);
    while left > 0 {
        let Mapped::Extent(extent) = extents.lookup(at) else {
            return Err(corrupt("unmapped block", at));
        };
        if extent.unwritten {
            return Err(corrupt("unwritten block", at));
        }
        let skip = at.0 - extent.startoff.0;
        let count = left.min(u64::from(extent.blockcount) - skip);
        let daddr = geometry
            .extent_daddr(FsBlock(extent.startblock.0 + skip), count)
            .ok_or_else(|| corrupt("volume block", at))?;
        maps.push(BufMap { daddr, len: count << geometry.block_log });
        at.0 += count;
        left -= count;
    }
    Ok(maps)
}
