//! Directories inside the inode.

use super::super::Check;
use super::super::map::ForkOf;
use super::super::report::FindingPlace;
use super::hand_on;
use std::collections::HashSet;
use xfs_format::dir::{DirFileType, ShortDir, data_entry_len};
use xfs_format::error::FormatError;

const NAME: &str = "short directory";

/// Checks one. Returns `false` if not all names are known.
pub(super) fn check(check: &mut Check<'_>, fork: &ForkOf<'_>) -> bool {
    let place = FindingPlace::inode(fork.ino);
    let geometry = check.geometry();
    let (v5, ftype, block) = (geometry.v5, geometry.ftype, geometry.dir_block_size() as usize);
    let size = usize::try_from(fork.core.size).unwrap_or(usize::MAX);
    let Some(bytes) = fork.literal().get(..size) else {
        let room = fork.literal().len() as u64;
        check.report.add(place, FormatError::mismatch(NAME, "size", fork.core.size, room));
        return false;
    };
    let dir = match ShortDir::parse(bytes, v5, ftype) {
        Ok(dir) => dir,
        Err(problem) => {
            check.report.add(place, problem);
            return false;
        }
    };
    hand_on(check, fork.ino, b".", fork.ino, DirFileType::Directory);
    hand_on(check, fork.ino, b"..", dir.parent, DirFileType::Directory);
    let mut names: HashSet<&[u8]> = HashSet::new();
    // It must fit into one block with its index, because it moves there when it grows.
    let (mut end, mut count) = (0, 2);
    for entry in dir.entries() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(problem) => {
                check.report.add(place, problem);
                return false;
            }
        };
        if matches!(entry.name, b"." | b"..") {
            check.report.add_named(place, FormatError::new(NAME, "name that is implied"), entry.name);
            continue;
        }
        if !names.insert(entry.name) {
            check.report.add_named(place, FormatError::new(NAME, "name that comes twice"), entry.name);
        }
        end = usize::from(entry.offset) + data_entry_len(entry.name.len() as u8, ftype);
        count += 1;
        hand_on(check, fork.ino, entry.name, entry.inode, entry.file_type);
    }
    if end + count * 8 + 8 > block {
        check.report.add(place, FormatError::mismatch(NAME, "entry offset", end as u64, block as u64));
    }
    true
}
