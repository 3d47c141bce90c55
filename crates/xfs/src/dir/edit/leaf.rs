//! Directories with one leaf, which also has the free space of each data block.

use super::find::{Found, expect_data, read_pure_data};
use super::{DirGeometry, EntryToAdd, convert, node, space};
use crate::da::edit::Block;
use crate::dir::NAME;
use crate::error::Result;
use crate::fork::ForkMut;
use xfs_format::dir::{BESTFREE_NONE, DataEdit, LeafEdit, LeafEntry};
use xfs_format::error::FormatError;

/// Bytes of an entry of the leaf, and of an entry of its free space table.
const ENTRY: usize = 8;
const BEST: usize = 2;

pub(super) fn add(fork: &mut dyn ForkMut, mut leaf: Block, new: &EntryToAdd<'_>) -> Result<()> {
    let shape = DirGeometry::of(fork)?;
    let place = leaf.place;
    let bad = |problem| place.bad(problem);
    let mut edit = LeafEdit::new(&mut leaf.image, shape.v5);
    let mut bestfree = table(&edit).map_err(bad)?;
    let known = bestfree.iter().position(|&best| best != BESTFREE_NONE && usize::from(best) >= new.need);
    let hole = || bestfree.iter().position(|&best| best == BESTFREE_NONE);
    let db = known.or_else(hole).unwrap_or(bestfree.len());
    let grows = if db == bestfree.len() { BEST } else { 0 };
    let stale = edit.view().map_err(bad)?.stale;
    if edit.gap().map_err(bad)? < grows + if stale == 0 { ENTRY } else { 0 } {
        edit.compact().map_err(bad)?;
        if edit.gap().map_err(bad)? < grows + ENTRY {
            convert::leaf_to_node(fork, leaf)?;
            return node::add_anew(fork, new);
        }
    }
    let mut data = match known {
        Some(db) => read_pure_data(fork, &shape, db as u64)?,
        None => space::new_data(fork, &shape, db as u64)?,
    };
    let (offset, longest) = enter(&mut data, &shape, new)?;
    data.write(fork)?;
    let mut edit = LeafEdit::new(&mut leaf.image, shape.v5);
    if db == bestfree.len() {
        bestfree.push(longest);
        edit.set_bestfrees(&bestfree).map_err(bad)?;
    } else {
        edit.set_bestfree(db, longest).map_err(bad)?;
    }
    let entry = LeafEntry::new(new.hash, shape.address(db as u64, offset));
    if !edit.insert(entry).map_err(bad)? {
        return Err(bad(FormatError::new(NAME, "room in the leaf")));
    }
    leaf.write(fork)
}

/// Adds a name to a data block that has room for it. Returns its offset, and the longest unused piece that is left.
pub(super) fn enter(data: &mut Block, shape: &DirGeometry, new: &EntryToAdd<'_>) -> Result<(usize, u16)> {
    let place = data.place;
    let mut edit = DataEdit::new(&mut data.image, shape.v5, shape.ftype);
    let offset = edit.add(new.data).map_err(|problem| place.bad(problem))?;
    let told = FormatError::value(NAME, "free space of a data block", new.need as u64);
    let offset = offset.ok_or_else(|| place.bad(told))?;
    Ok((offset, edit.longest().map_err(|problem| place.bad(problem))?))
}

pub(super) fn remove(fork: &mut dyn ForkMut, mut leaf: Block, found: Found) -> Result<()> {
    let shape = DirGeometry::of(fork)?;
    let place = leaf.place;
    let bad = |problem| place.bad(problem);
    let (db, best) = take_out(fork, &shape, found.data, found.offset)?;
    let mut edit = LeafEdit::new(&mut leaf.image, shape.v5);
    edit.remove(found.slot).map_err(bad)?;
    let db = usize::try_from(db).unwrap_or(usize::MAX);
    edit.set_bestfree(db, best).map_err(bad)?;
    if best == BESTFREE_NONE {
        trim(&mut edit).map_err(bad)?;
    }
    convert::write_leaf_or_block(fork, leaf)
}

/// Removes an entry from a data block. Returns the block's number and its new value for the free space table. An empty
/// block is freed.
pub(super) fn take_out(
    fork: &mut dyn ForkMut,
    shape: &DirGeometry,
    data: Option<(u64, Block)>,
    offset: usize,
) -> Result<(u64, u16)> {
    let (db, mut data) = data.ok_or_else(|| super::missing(fork))?;
    expect_data(&data, shape)?;
    let place = data.place;
    let mut edit = DataEdit::new(&mut data.image, shape.v5, shape.ftype);
    edit.remove(offset).map_err(|problem| place.bad(problem))?;
    let longest = edit.longest().map_err(|problem| place.bad(problem))?;
    let empty = usize::from(longest) >= DataEdit::longest_when_empty(shape.block_size, shape.v5);
    // The first block has the dots. On a damaged volume it may lack them, but it stays all the same.
    if empty && db > 0 {
        space::drop_data(fork, shape, db, data)?;
        return Ok((db, BESTFREE_NONE));
    }
    data.write(fork)?;
    Ok((db, longest))
}

/// The free space table.
pub(super) fn table(edit: &LeafEdit<'_>) -> Result<Vec<u16>, FormatError> {
    Ok(edit.view()?.bestfree.iter().map(|best| best.get()).collect())
}

/// Shortens the table so that it ends with an existing data block.
pub(super) fn trim(edit: &mut LeafEdit<'_>) -> Result<(), FormatError> {
    let bestfree = table(edit)?;
    let end = bestfree.iter().rposition(|&best| best != BESTFREE_NONE).map_or(0, |last| last + 1);
    if end < bestfree.len() { edit.set_bestfrees(&bestfree[..end]) } else { Ok(()) }
}
