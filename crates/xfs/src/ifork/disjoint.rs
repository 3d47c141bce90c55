//! Extents of one fork that overlap on the volume.
//!
//! Only files that share blocks may have them. Elsewhere they are corruption, and a costly one: a few blocks mapped
//! over and over make a directory with any number of entries.

use super::ExtentList;
use crate::error::{Error, Result};
use xfs_format::error::FormatError;
use xfs_format::types::InodeNumber;

/// Fails if two extents of a map overlap on the volume. For a map in disk order this looks at each extent once; any
/// other map has its starts sorted.
pub(crate) fn check_disjoint(ino: InodeNumber, extents: &ExtentList) -> Result<()> {
    let runs = || extents.iter().map(|extent| (extent.startblock.0, u64::from(extent.blockcount)));
    if overlap(runs()).is_none() {
        return Ok(());
    }
    let mut sorted: Vec<(u64, u64)> = runs().collect();
    sorted.sort_unstable();
    match overlap(sorted.into_iter()) {
        None => Ok(()),
        Some(block) => Err(Error::corrupt_inode(
            ino,
            FormatError::value("extent", "blocks that are mapped twice", block),
        )),
    }
}

/// The start of the first run that does not lie behind the previous one.
fn overlap(runs: impl Iterator<Item = (u64, u64)>) -> Option<u64> {
    let mut end = 0;
    for (start, len) in runs {
        if start < end {
            return Some(start);
        }
        end = start + len;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use xfs_format::bmbt::{BmbtRecord, Extent};
    use xfs_format::types::{FileBlock, FsBlock};

    fn list(runs: &[(u64, u32)]) -> ExtentList {
        let mut startoff = FileBlock(0);
        let records: Vec<BmbtRecord> = runs
            .iter()
            .map(|&(start, blockcount)| {
                let extent = Extent { startoff, startblock: FsBlock(start), blockcount, unwritten: false };
                startoff = extent.end();
                extent.pack()
            })
            .collect();
        ExtentList::from_sorted(&records)
    }

    #[test]
    fn blocks_are_mapped_once() {
        let is_fine = |runs: &[(u64, u32)]| check_disjoint(InodeNumber(1), &list(runs)).is_ok();
        assert!(is_fine(&[]));
        assert!(is_fine(&[(5, 3), (8, 2), (20, 1)]));
        assert!(is_fine(&[(20, 1), (5, 3), (8, 2)]));
        assert!(!is_fine(&[(5, 3), (7, 2)]));
        assert!(!is_fine(&[(20, 4), (5, 3), (23, 1)]));
        assert!(!is_fine(&[(20, 4), (5, 16), (30, 1)]));
        assert!(!is_fine(&[(20, 4), (20, 4)]));
    }
}
