//! Blocks that were set aside for copies of shared ones when somebody crashed, a kernel or we: they are of no file, and
//! only the trees of reference counts say that they are not free. Whoever opens a volume for writing frees them.
//!
//! Invariant: this comes behind all that the log promised, and before anybody can set such blocks aside.

use crate::btree::Cursor;
use crate::defer;
use crate::error::{Error, Result};
use crate::mount::Mount;
use crate::trans::Trans;
use crate::trans::reservation::Need;
use std::sync::Arc;
use xfs_format::btree::{Refcountbt, Tree};
use xfs_format::error::FormatError;
use xfs_format::records::RefcountRecord;
use xfs_format::types::{AgBlock, AgNumber, FsBlock};

/// Runs that are looked up at a time.
const AT_ONCE: usize = 256;

/// Frees what is staged in any group. Nobody else uses the volume yet. Gives the number of runs.
pub(crate) fn free_staged(volume: &Arc<Mount>) -> Result<u64> {
    let mut freed = 0;
    if !volume.geometry().reflink {
        return Ok(freed);
    }
    for ag in (0..volume.geometry().ag_count()).map(AgNumber) {
        loop {
            let staged = staged(volume, ag)?;
            for &(start, len) in &staged {
                let need = Need::new(volume.geometry()).counts(1).rmaps(1).frees(1).steps(4);
                let mut trans = Trans::start(volume, need.reservation())?;
                defer::free_staged_later(&mut trans, start, len);
                trans.commit()?;
                freed += 1;
            }
            if staged.len() < AT_ONCE {
                break;
            }
        }
    }
    Ok(freed)
}

/// The first runs of a group that are staged.
fn staged(volume: &Arc<Mount>, ag: AgNumber) -> Result<Vec<(FsBlock, u32)>> {
    let (bufs, geometry) = (volume.bufs(), volume.geometry());
    let mut found = Vec::new();
    let Some(root) = volume.sharing().groups.space(bufs, geometry, ag)?.refcountbt else { return Ok(found) };
    let mut cursor = Cursor::<Refcountbt>::seek(bufs, geometry, ag, root, Some(RefcountRecord::COW))?;
    while found.len() < AT_ONCE
        && let Some(record) = cursor.next_record()?
    {
        let start = record.startblock.get();
        if start & RefcountRecord::COW == 0 {
            continue;
        }
        let (start, len) = (start & !RefcountRecord::COW, record.blockcount.get());
        if u64::from(start) + u64::from(len) > u64::from(geometry.ag_blocks_of(ag)) || len == 0 {
            let problem = FormatError::value(Refcountbt::NAME, "block count", len.into());
            return Err(Error::corrupt_block(geometry.daddr_of(ag, root.block), None, problem));
        }
        found.push((geometry.join_block(ag, AgBlock(start)), len));
    }
    Ok(found)
}
