//! Targets of symbolic links: as long as the inode says, without a NUL, and in blocks with the right owner.

use super::Check;
use super::map::{ForkOf, Map};
use super::report::FindingPlace;
use crate::error::Result;
use xfs_format::attr::RAW;
use xfs_format::bmbt::Extent;
use xfs_format::error::FormatError;
use xfs_format::inode::ForkFormat;
use xfs_format::symlink::{SYMLINK, SymlinkBlock, TARGET_MAX};

const NAME: &str = "symbolic link";

/// Checks a target.
pub(super) fn check(check: &mut Check<'_>, fork: &ForkOf<'_>, map: &Map) -> Result<()> {
    let place = FindingPlace::inode(fork.ino);
    let size = fork.core.size;
    if size > u64::from(TARGET_MAX) {
        check.report.add(place, FormatError::mismatch(NAME, "size", size, TARGET_MAX.into()));
        return Ok(());
    }
    let len = usize::try_from(size).unwrap_or(0);
    let target = if fork.format() == Some(ForkFormat::Local) {
        fork.literal().get(..len).unwrap_or_default().to_vec()
    } else if len == 0 || fork.core.nlink == 0 {
        // It is being removed: some or all of its blocks may be gone.
        return Ok(());
    } else {
        match remote(check, fork, &map.extents, len)? {
            Some(target) => target,
            None => return Ok(()),
        }
    };
    if target.contains(&0) {
        check.report.add(place, FormatError::new(NAME, "target: NUL in it"));
    }
    Ok(())
}

/// A target in blocks: one buffer per extent, with one header.
fn remote(
    check: &mut Check<'_>,
    fork: &ForkOf<'_>,
    extents: &[Extent],
    len: usize,
) -> Result<Option<Vec<u8>>> {
    let place = FindingPlace::inode(fork.ino);
    let v5 = check.geometry().v5;
    let (mut target, mut end) = (Vec::new(), 0);
    for extent in extents {
        if !check.report.same(place, NAME, "first block of an extent", extent.startoff.0, end) {
            return Ok(None);
        }
        end += u64::from(extent.blockcount);
        let verifier = if v5 { &SYMLINK } else { &RAW };
        let left = len.saturating_sub(target.len());
        if left == 0 {
            check.report.add(place, FormatError::value(NAME, "extent behind the target", extent.startoff.0));
            break;
        }
        let at = (extent.startoff, extent.blockcount);
        let Some(bytes) = check.reader.fork(extents, at, verifier, place, &mut check.report)? else {
            return Ok(None);
        };
        if !v5 {
            target.extend_from_slice(bytes.get(..left).unwrap_or(&bytes));
            continue;
        }
        let piece = match SymlinkBlock::parse(&bytes) {
            Ok(piece) => piece,
            Err(problem) => {
                check.report.add(place, problem);
                return Ok(None);
            }
        };
        let report = &mut check.report;
        let due = left.min(bytes.len().saturating_sub(56));
        if !report.same(place, SYMLINK.name, "owner", piece.owner.0, fork.ino.0)
            || !report.same(place, SYMLINK.name, "offset", piece.offset, target.len() as u64)
            || !report.same(place, SYMLINK.name, "byte count", piece.payload.len() as u64, due as u64)
        {
            return Ok(None);
        }
        target.extend_from_slice(piece.payload);
    }
    let whole = check.report.same(place, NAME, "size", len as u64, target.len() as u64);
    Ok(whole.then_some(target))
}
