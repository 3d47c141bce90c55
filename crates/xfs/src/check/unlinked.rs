//! The unlinked lists: each bucket of each group has inodes that belong to it by number, in use, without links, each on
//! one list. Every inode without links is on one. If the log is clean, all lists are empty, because only recovery looks
//! at them.

use super::inode_table::Use;
use super::report::FindingPlace;
use super::{Check, inode};
use crate::error::Result;
use xfs_format::ag::{NULL_AG_BLOCK, UNLINKED_BUCKETS};
use xfs_format::error::FormatError;
use xfs_format::inode::Dinode;
use xfs_format::types::{AgInode, InodeNumber};
use zerocopy::FromBytes;

const NAME: &str = "list of unlinked inodes";

/// Checks all lists.
pub(super) fn check(check: &mut Check<'_>) -> Result<()> {
    for (ag, bucket, head) in std::mem::take(&mut check.inodes.unlinked) {
        let place = FindingPlace::group(ag);
        let mut next = head;
        // Each step marks an unmarked inode, so this ends.
        while next != NULL_AG_BLOCK && !check.report.stopped() {
            let ino = check.geometry().join_inode(ag, AgInode(next));
            if next % UNLINKED_BUCKETS as u32 != bucket {
                check.report.add(place, FormatError::mismatch(NAME, "bucket", next.into(), bucket.into()));
            }
            match check.inodes.in_use(ino) {
                Use::Unknown => break,
                Use::No => {
                    check.report.add(place, FormatError::value(NAME, "inode that is not in use", ino.0));
                    break;
                }
                Use::Yes => {}
            }
            if check.report.log_clean {
                let problem = FormatError::value(NAME, "entry, though the log is clean", next.into());
                check.report.add(place.of(ino), problem);
            }
            if !check.inodes.note_listed(ino) {
                check.report.add(place, FormatError::value(NAME, "inode that is on a list already", ino.0));
                break;
            }
            let Some((core, bytes)) = inode::read(check, ino)? else { break };
            if core.nlink != 0 {
                let problem = FormatError::mismatch(NAME, "link count", core.nlink.into(), 0);
                check.report.add(place.of(ino), problem);
            }
            next = Dinode::ref_from_prefix(&bytes).map_or(NULL_AG_BLOCK, |(raw, _)| raw.next_unlinked.get());
        }
    }
    Ok(())
}

/// Reports an inode without links that is on no list.
pub(super) fn report_unlisted(check: &mut Check<'_>, ino: InodeNumber) {
    if check.inodes.is_unlinked(ino) && !check.inodes.is_listed(ino) && check.inodes.is_sound(ino) {
        let problem = FormatError::value("inode", "no links, and on no list of unlinked inodes", 0);
        check.report.add(FindingPlace::inode(ino), problem);
    }
}
