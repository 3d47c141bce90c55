//! Which blocks other files share: the reference count trees.

use crate::btree::Cursor;
use crate::buf::BufCache;
use crate::error::{Error, Result};
use crate::group::Groups;
use xfs_format::btree::{Refcountbt, Tree};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::records::RefcountRecord;
use xfs_format::types::FsBlock;

/// A run of blocks that are all shared or all not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedRun {
    /// Blocks from the one asked for.
    pub blocks: u64,
    /// Whether more than one file has them.
    pub shared: bool,
}

/// What is known of `start` and up to `blocks` blocks from it, which lie in one group.
pub(crate) fn shared_run(
    bufs: &BufCache,
    geometry: &Geometry,
    groups: &Groups,
    start: FsBlock,
    blocks: u64,
) -> Result<SharedRun> {
    let not_shared = SharedRun { blocks, shared: false };
    let Some((ag, first)) = geometry.split_block(start) else { return Ok(not_shared) };
    let Some(root) = groups.space(bufs, geometry, ag)?.refcountbt else { return Ok(not_shared) };
    let first = u64::from(first.0);
    let rank = u32::try_from(first).ok();
    let mut cursor = Cursor::<Refcountbt>::seek(bufs, geometry, ag, root, rank)?;
    while let Some(record) = cursor.next_record()? {
        let record_start = record.startblock.get();
        // Extents staged for copy-on-write come last, and belong to no file.
        if record_start & RefcountRecord::COW != 0 {
            break;
        }
        let (from, len) = (u64::from(record_start), u64::from(record.blockcount.get()));
        if len == 0 || from + len > u64::from(geometry.ag_blocks_of(ag)) {
            let problem = FormatError::value(Refcountbt::NAME, "block count", len);
            let daddr = geometry.daddr_of(ag, root.block);
            return Err(Error::corrupt_block(daddr, None, problem));
        }
        if from + len <= first || record.refcount.get() < 2 {
            continue;
        }
        return Ok(if from <= first {
            SharedRun { blocks: blocks.min(from + len - first), shared: true }
        } else {
            SharedRun { blocks: blocks.min(from - first), shared: false }
        });
    }
    Ok(not_shared)
}
