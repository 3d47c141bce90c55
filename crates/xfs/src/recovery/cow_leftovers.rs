//! Frees blocks that were staged for copies at the time of a crash, of a kernel or of uxfs. They belong to no file;
//! only the refcount trees say that they are not free. Opening a volume for writing frees them.
//!
//! Invariant: this comes after everything that the log promised, and before anybody can stage blocks.

use crate::btree::Cursor;
use crate::defer;
use crate::error::{Error, Result};
use crate::mount::Mount;
use crate::trans::Trans;
use crate::trans::reservation::ReservationBuilder;
use std::sync::Arc;
use xfs_format::btree::{Refcountbt, Tree};
use xfs_format::error::FormatError;
use xfs_format::records::RefcountRecord;
use xfs_format::types::{AgBlock, AgNumber, FsBlock};

/// Runs that are looked up at a time.
const AT_ONCE: usize = 256;

/// Frees what is staged in any group. Nobody else uses the volume yet. Returns the number of runs.
pub(crate) fn free_staged(mount: &Arc<Mount>) -> Result<u64> {
    let mut freed = 0;
    if !mount.geometry().reflink {
        return Ok(freed);
    }
    for ag in (0..mount.geometry().ag_count()).map(AgNumber) {
        loop {
            let staged = staged(mount, ag)?;
            for &(start, len) in &staged {
                let need = ReservationBuilder::new(mount.geometry()).counts(1).rmaps(1).frees(1).log_count(4);
                let mut trans = Trans::start(mount, need.build())?;
                defer::defer_free_staged(&mut trans, start, len);
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

/// The first staged runs of a group.
fn staged(mount: &Arc<Mount>, ag: AgNumber) -> Result<Vec<(FsBlock, u32)>> {
    let (bufs, geometry) = (mount.bufs(), mount.geometry());
    let mut found = Vec::new();
    let Some(root) = mount.sharing().groups.space(bufs, geometry, ag)?.refcountbt else { return Ok(found) };
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
