//! Changes to the maps of a transaction's inodes.

use super::TransFork;
use super::edit::{MapEditor, Unmapped};
use crate::error::Result;
use crate::inode::ForkKind;
use crate::trans::Trans;
use std::ops::Range;
use xfs_format::bmbt::Extent;
use xfs_format::types::{FileBlock, InodeNumber};

/// Maps an extent in a fork of a joined inode, where nothing is mapped yet.
pub(crate) fn map(trans: &mut Trans<'_>, ino: InodeNumber, kind: ForkKind, extent: Extent) -> Result<()> {
    change_map(trans, ino, kind, |editor| editor.map(extent))
}

/// Unmaps up to `most` extents of `range`, from its end backwards. The caller frees the blocks.
pub(crate) fn unmap(
    trans: &mut Trans<'_>,
    ino: InodeNumber,
    kind: ForkKind,
    range: Range<FileBlock>,
    most: usize,
) -> Result<Unmapped> {
    change_map(trans, ino, kind, |editor| editor.unmap(range, most))
}

/// Marks blocks as written or unwritten, up to `most` extents of them. Returns what is left to do.
pub(crate) fn mark(
    trans: &mut Trans<'_>,
    ino: InodeNumber,
    range: Range<FileBlock>,
    unwritten: bool,
    most: usize,
) -> Result<Option<Range<FileBlock>>> {
    change_map(trans, ino, ForkKind::Data, |editor| editor.convert(range, unwritten, most))
}

/// Splits the extent that has the blocks on both sides of `at`.
pub(crate) fn split_map(trans: &mut Trans<'_>, ino: InodeNumber, at: FileBlock) -> Result<()> {
    change_map(trans, ino, ForkKind::Data, |editor| editor.split_at(at))
}

/// Moves the extents that begin in `range` within the file, up to `most`. Returns what is left to do.
pub(crate) fn shift_map(
    trans: &mut Trans<'_>,
    ino: InodeNumber,
    range: Range<FileBlock>,
    by: i64,
    most: usize,
) -> Result<Option<Range<FileBlock>>> {
    change_map(trans, ino, ForkKind::Data, |editor| editor.shift(range, by, most))
}

/// Makes a data fork's map fit into this many bytes of the inode. What does not fit moves into blocks. The caller moves
/// forkoff.
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
