//! Directories in every form. Their names are passed on to `links`. The directories themselves are checked here:
//! entries inside the inode (`short`), data blocks (`data`), the hash index and the free space index (`index`).

mod data;
mod index;
mod short;

use super::inode_table::DIRECTORY;
use super::links::{self, Entry};
use super::map::{self, ForkOf, Map, WhichFork};
use super::report::FindingPlace;
use super::{Check, inode};
use crate::error::Result;
use xfs_format::bmbt::Extent;
use xfs_format::da::{ascii_ci_hash, name_hash};
use xfs_format::dir::{DataKind, DirFileType, FREE_SPACE, LEAF_SPACE};
use xfs_format::error::FormatError;
use xfs_format::inode::ForkFormat;
use xfs_format::types::InodeNumber;

const NAME: &str = "directory";

/// Checks all directories.
pub(super) fn check_all(check: &mut Check<'_>) -> Result<()> {
    for ag in check.groups() {
        let mut index = 0;
        while let Some(inodes) = check.inodes.used_in(ag, index) {
            for ino in inodes {
                if check.report.stopped() {
                    return Ok(());
                }
                if check.inodes.kind(ino) == DIRECTORY && check.inodes.is_sound(ino) {
                    check_directory(check, ino)?;
                }
            }
            index += 1;
        }
    }
    Ok(())
}

fn check_directory(check: &mut Check<'_>, ino: InodeNumber) -> Result<()> {
    let Some((core, bytes)) = inode::read(check, ino)? else { return Ok(()) };
    check.report.counts.directories += 1;
    check.links.add_directory(ino);
    check.parents.enter(ino, core.generation);
    let fork = ForkOf { ino, core: &core, bytes: &bytes, which: WhichFork::Data };
    let whole = if fork.format() == Some(ForkFormat::Local) {
        short::check(check, &fork)
    } else {
        let map = map::load(check, &fork, false, true)?;
        check_blocks(check, &fork, &map)?
    };
    if !whole {
        check.report.names_known = false;
    }
    Ok(())
}

/// Checks a directory in blocks. Returns `false` if not all names are known.
fn check_blocks(check: &mut Check<'_>, fork: &ForkOf<'_>, map: &Map) -> Result<bool> {
    let place = FindingPlace::inode(fork.ino);
    let extents = &map.extents;
    if extents.is_empty() {
        // A removed directory that is still open has nothing left.
        if fork.core.nlink != 0 {
            check.report.add(place, FormatError::new(NAME, "no blocks"));
        }
        return Ok(true);
    }
    let spaces = Spaces::of(check, extents);
    let Some(data) = data::check(check, fork, extents, &spaces)? else { return Ok(false) };
    let end = spaces.data_end << check.geometry().block_log;
    check.report.same(place, "inode", "size of a directory", fork.core.size, end);
    match data.kind {
        Some(DataKind::Block) => {
            if spaces.has_index || spaces.has_free {
                check.report.add(place, FormatError::new(NAME, "block form with further blocks"));
            }
        }
        _ => index::check(check, fork, extents, &spaces, &data)?,
    }
    Ok(true)
}

/// The three spaces of a directory's fork, in file system blocks.
struct Spaces {
    /// The start of the hash index.
    leaf: u64,
    /// The start of the free space index.
    free: u64,
    /// The end of the data.
    data_end: u64,
    has_index: bool,
    has_free: bool,
}

impl Spaces {
    fn of(check: &Check<'_>, extents: &[Extent]) -> Self {
        let log = check.geometry().block_log;
        let (leaf, free) = (LEAF_SPACE >> log, FREE_SPACE >> log);
        let data = extents.partition_point(|extent| extent.startoff.0 < leaf);
        let index = extents.partition_point(|extent| extent.startoff.0 < free);
        let data_end = data.checked_sub(1).and_then(|last| extents.get(last)).map_or(0, |last| last.end().0);
        Self {
            leaf,
            free,
            data_end: data_end.min(leaf),
            has_index: index > data,
            has_free: extents.len() > index,
        }
    }
}

/// The mapped directory blocks of a fork in a range, by the first block of each.
fn mapped_blocks(extents: &[Extent], (from, to): (u64, u64), step: u64) -> impl Iterator<Item = u64> + '_ {
    let first = extents.partition_point(|extent| extent.end().0 <= from);
    let mut behind = from;
    extents.iter().skip(first).take_while(move |extent| extent.startoff.0 < to).flat_map(move |extent| {
        let start = (extent.startoff.0.max(from) / step * step).max(behind);
        let end = extent.end().0.min(to);
        behind = behind.max(end.next_multiple_of(step));
        (start..end).step_by(usize::try_from(step).unwrap_or(usize::MAX))
    })
}

/// The hash of a name on this volume.
fn hash(check: &Check<'_>, name: &[u8]) -> u32 {
    if check.geometry().ascii_ci { ascii_ci_hash(name) } else { name_hash(name) }
}

/// Passes a name on.
fn hand_on(check: &mut Check<'_>, dir: InodeNumber, name: &[u8], inode: InodeNumber, file_type: DirFileType) {
    let keeps_type = check.geometry().ftype;
    links::entry(check, &Entry { dir, name, inode, file_type }, keeps_type);
}

#[cfg(test)]
mod tests {
    use super::*;
    use xfs_format::types::{FileBlock, FsBlock};

    #[test]
    fn blocks_of_several_pieces_come_once() {
        let extent = |startoff, blockcount| Extent {
            startoff: FileBlock(startoff),
            startblock: FsBlock(100),
            blockcount,
            unwritten: false,
        };
        let extents = [extent(0, 3), extent(3, 1), extent(4, 6), extent(13, 3), extent(1000, 4)];
        let blocks = |from, to| mapped_blocks(&extents, (from, to), 4).collect::<Vec<_>>();
        assert_eq!(blocks(0, 1000), [0, 4, 8, 12]);
        assert_eq!(blocks(1000, 2000), [1000]);
        assert_eq!(blocks(8, 12), [8]);
    }
}
