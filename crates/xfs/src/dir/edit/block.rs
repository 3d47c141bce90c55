//! Directories of one block.

use super::find::{Found, read_data, view_data};
use super::{DirGeometry, EntryToAdd, convert, leaf};
use crate::da::edit::Block;
use crate::dir::NAME;
use crate::error::{Error, Result};
use crate::fork::ForkMut;
use xfs_format::dir::{DataEdit, DataKind, LeafEntry};
use xfs_format::error::FormatError;

pub(super) fn add(fork: &mut dyn ForkMut, mut block: Block, new: &EntryToAdd<'_>) -> Result<()> {
    let shape = DirGeometry::of(fork)?;
    let place = block.place;
    let mut edit = DataEdit::new(&mut block.image, shape.v5, shape.ftype);
    let mut at = edit.add(new.data).map_err(|problem| place.bad(problem))?;
    if at.is_none() {
        // Stale index entries take space that data could use.
        edit.index_compact().map_err(|problem| place.bad(problem))?;
        at = edit.add(new.data).map_err(|problem| place.bad(problem))?;
    }
    if let Some(offset) = at {
        let entry = LeafEntry::new(new.hash, shape.address(0, offset));
        edit.index_insert(entry).map_err(|problem| place.bad(problem))?;
        return block.write(fork);
    }
    let leaf = convert::block_to_leaf(fork, block)?;
    leaf::add(fork, leaf, new)
}

pub(super) fn remove(fork: &mut dyn ForkMut, mut block: Block, found: &Found) -> Result<()> {
    let shape = DirGeometry::of(fork)?;
    let place = block.place;
    let mut edit = DataEdit::new(&mut block.image, shape.v5, shape.ftype);
    edit.index_remove(found.slot).map_err(|problem| place.bad(problem))?;
    edit.remove(found.offset).map_err(|problem| place.bad(problem))?;
    convert::write_block_or_short(fork, block)
}

/// Reads the only block in order to change it.
pub(super) fn read(fork: &mut dyn ForkMut, shape: &DirGeometry) -> Result<Block> {
    let block = read_data(fork, shape, 0)?;
    let place = block.place;
    if view_data(&block, shape)?.kind != DataKind::Block {
        return Err(place.bad(FormatError::new(NAME, "index: there is none")));
    }
    if fork.size() != shape.block_size as u64 {
        let problem = FormatError::mismatch(NAME, "size", fork.size(), shape.block_size as u64);
        return Err(Error::corrupt_inode(fork.inode(), problem));
    }
    Ok(block)
}
