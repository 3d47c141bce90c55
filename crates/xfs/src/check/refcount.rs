//! The refcount tree of a group: extents that files share, and those staged for copy-on-write.

use super::Check;
use super::owners::{Owner, SharedRun};
use super::report::FindingPlace;
use super::tree::walk_group;
use crate::error::Result;
use xfs_format::ag::Agf;
use xfs_format::btree::{Refcountbt, Tree};
use xfs_format::error::FormatError;
use xfs_format::records::RefcountRecord;
use xfs_format::types::{AgBlock, AgNumber};

/// Checks the tree and returns its number of blocks. `None` if there is none, or it could not be read.
pub(super) fn check(check: &mut Check<'_>, ag: AgNumber, agf: &Agf) -> Result<Option<u32>> {
    if !check.geometry().reflink {
        return Ok(None);
    }
    let mut records: Vec<RefcountRecord> = Vec::new();
    let root = (agf.refcount_root.get(), agf.refcount_level.get());
    let walked = walk_group::<Refcountbt>(check, ag, root, Owner::RefcountTree, &mut |record| {
        records.push(*record);
    })?;
    let mut before: Option<(u64, u32)> = None;
    for record in records {
        if check.report.stopped() {
            break;
        }
        let staged = record.startblock.get() & RefcountRecord::COW != 0;
        let start = record.startblock.get() & !RefcountRecord::COW;
        let (len, count) = (record.blockcount.get(), record.refcount.get());
        let place = FindingPlace::block(ag, AgBlock(start));
        let report = &mut check.report;
        if staged {
            report.same(place, Refcountbt::NAME, "reference count of a staged extent", count, 1_u32);
            check.owners.claim(ag, (start, len), Owner::Staging, report);
            continue;
        }
        if count < 2 {
            report.add(place, FormatError::mismatch(Refcountbt::NAME, "reference count", count.into(), 2));
        }
        if before == Some((start.into(), count)) {
            report.add(place, FormatError::new(Refcountbt::NAME, "extents that are one"));
        }
        before = Some((u64::from(start) + u64::from(len), count));
        check.owners.share(ag, SharedRun { start, len, count }, report);
    }
    if !walked.whole {
        check.report.owners_known = false;
        return Ok(None);
    }
    Ok(Some(walked.blocks))
}
