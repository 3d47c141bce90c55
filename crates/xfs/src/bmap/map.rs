//! Changes of the maps of a transaction's inodes.

use super::edit::{MapEditor, TransFork, Unmapped};
use crate::error::Result;
use crate::inode::ForkKind;
use crate::trans::Trans;
use std::ops::Range;
use xfs_format::bmbt::Extent;
use xfs_format::types::{FileBlock, InodeNumber};

/// Maps an extent of a joined inode's fork where nothing is mapped.
pub(crate) fn map(trans: &mut Trans<'_>, ino: InodeNumber, kind: ForkKind, extent: Extent) -> Result<()> {
    change_map(trans, ino, kind, |editor| editor.map(extent))
}

/// Takes `range` out of a map, from its end on, up to `most` extents. The blocks are the caller's to free.
pub(crate) fn unmap(
    trans: &mut Trans<'_>,
    ino: InodeNumber,
    kind: ForkKind,
    range: Range<FileBlock>,
    most: usize,
) -> Result<Unmapped> {
    change_map(trans, ino, kind, |editor| editor.unmap(range, most))
}

/// Says that blocks hold data, or that they do not, up to `most` extents of them. Gives what is still to be done.
pub(crate) fn mark(
    trans: &mut Trans<'_>,
    ino: InodeNumber,
    range: Range<FileBlock>,
    unwritten: bool,
    most: usize,
) -> Result<Option<Range<FileBlock>>> {
    change_map(trans, ino, ForkKind::Data, |editor| editor.convert(range, unwritten, most))
}

/// Cuts the extent that holds the blocks on both sides of `at`.
pub(crate) fn split_map(trans: &mut Trans<'_>, ino: InodeNumber, at: FileBlock) -> Result<()> {
    change_map(trans, ino, ForkKind::Data, |editor| editor.split_at(at))
}

/// Moves the extents that begin in `range` within the file, up to `most`. Gives what is still to be done.
pub(crate) fn shift_map(
    trans: &mut Trans<'_>,
    ino: InodeNumber,
    range: Range<FileBlock>,
    by: i64,
    most: usize,
) -> Result<Option<Range<FileBlock>>> {
    change_map(trans, ino, ForkKind::Data, |editor| editor.shift(range, by, most))
}

/// Makes a data fork's map fit into so many bytes of the inode: what does not goes into blocks. The caller moves
/// the boundary between the forks.
pub(crate) fn fit_map(trans: &mut Trans<'_>, ino: InodeNumber, room: usize) -> Result<()> {
    change_map(trans, ino, ForkKind::Data, |editor| editor.fit(room))
}

fn change_map<R>(
    trans: &mut Trans<'_>,
    ino: InodeNumber,
    kind: ForkKind,
    change: impl FnOnce(&mut MapEditor<TransFork<'_, '_>>) -> Result<R>,
) -> Result<R> {
    let mut editor = MapEditor::new(TransFork::new(trans, ino, kind))?;
    let done = change(&mut editor)?;
    editor.finish()?;
    Ok(done)
}
