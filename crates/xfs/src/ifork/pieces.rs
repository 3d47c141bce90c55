//! Where blocks of a fork lie on the device.

use super::{ExtentList, Mapped};
use crate::buf::{Piece, Pieces};
use crate::error::{Error, Result};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::types::{FileBlock, FsBlock, InodeNumber};
use xfs_format::verify::Verifier;

/// Where `blocks` blocks at `at` of a fork lie, piece by piece.
pub(crate) fn pieces(
    geometry: &Geometry,
    ino: InodeNumber,
    extents: &ExtentList,
    at: FileBlock,
    blocks: u32,
    verifier: &'static Verifier,
) -> Result<Pieces> {
    let corrupt =
        |check, at: FileBlock| Error::corrupt_inode(ino, FormatError::value(verifier.name, check, at.0));
    let mut pieces = Pieces::new();
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
        pieces.push(Piece { daddr, len: count << geometry.block_log });
        at.0 += count;
        left -= count;
    }
    Ok(pieces)
}
