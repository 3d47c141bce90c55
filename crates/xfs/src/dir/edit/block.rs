//! Directories of one block.

use super::find::read_data;
use super::tree::Block;
use super::{New, Shape, convert, leaf, missing};
use crate::dir::{FileType, NAME};
use crate::error::{Error, Result};
use crate::fork::{Fork, ForkMut};
use xfs_format::da::name_hash;
use xfs_format::dir::{DataEdit, DataKind, LeafEntry};
use xfs_format::error::FormatError;
use xfs_format::types::InodeNumber;

pub(super) fn add(fork: &mut dyn ForkMut, new: &New<'_>) -> Result<()> {
    let shape = Shape::of(fork)?;
    let mut block = read(fork)?;
    let place = block.place;
    let mut edit = DataEdit::new(&mut block.image, shape.v5, shape.ftype);
    let mut at = edit.add(new.data).map_err(|problem| place.bad(problem))?;
    if at.is_none() {
        // Stale entries of the index stand where data could.
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

pub(super) fn remove(fork: &mut dyn ForkMut, name: &[u8]) -> Result<InodeNumber> {
    let shape = Shape::of(fork)?;
    let mut block = read(fork)?;
    let place = block.place;
    let hit = find(fork, &block, name)?;
    let mut edit = DataEdit::new(&mut block.image, shape.v5, shape.ftype);
    edit.index_remove(hit.slot).map_err(|problem| place.bad(problem))?;
    edit.remove(hit.offset).map_err(|problem| place.bad(problem))?;
    convert::write_block_or_short(fork, block)?;
    Ok(hit.inode)
}

pub(super) fn replace(
    fork: &mut dyn ForkMut,
    name: &[u8],
    ino: InodeNumber,
    ftype: FileType,
) -> Result<InodeNumber> {
    let shape = Shape::of(fork)?;
    let mut block = read(fork)?;
    let place = block.place;
    let hit = find(fork, &block, name)?;
    let mut edit = DataEdit::new(&mut block.image, shape.v5, shape.ftype);
    edit.replace(hit.offset, ino, ftype.into()).map_err(|problem| place.bad(problem))?;
    // A smaller number may make it fit into the inode; it goes there with the next removal.
    block.write(fork)?;
    Ok(hit.inode)
}

/// An entry that was found.
struct Hit {
    /// Its place in the index.
    slot: usize,
    offset: usize,
    inode: InodeNumber,
}

fn read(fork: &dyn Fork) -> Result<Block> {
    let shape = Shape::of(fork)?;
    let block = read_data(fork, &shape, 0)?;
    let place = block.place;
    let kind = view(&block, &shape)?.kind;
    if kind != DataKind::Block {
        return Err(place.bad(FormatError::new(NAME, "index: there is none")));
    }
    if fork.size() != shape.block_size as u64 {
        let problem = FormatError::mismatch(NAME, "size", fork.size(), shape.block_size as u64);
        return Err(Error::corrupt_inode(fork.inode(), problem));
    }
    Ok(block)
}

fn view<'a>(block: &'a Block, shape: &Shape) -> Result<xfs_format::dir::DataBlock<'a>> {
    xfs_format::dir::DataBlock::parse(block.image.bytes(), shape.v5, shape.ftype)
        .map_err(|problem| block.place.bad(problem))
}

fn find(fork: &dyn Fork, block: &Block, name: &[u8]) -> Result<Hit> {
    let shape = Shape::of(fork)?;
    let view = view(block, &shape)?;
    let hash = name_hash(name);
    let rest = view.index_from_hash(hash);
    let first = view.index.len() - rest.len();
    for (slot, entry) in (first..).zip(rest).take_while(|(_, entry)| entry.hash.get() == hash) {
        if entry.is_stale() {
            continue;
        }
        let offset = usize::try_from(entry.data_offset()).unwrap_or(usize::MAX);
        let entry = view.entry_at(offset).map_err(|problem| block.place.bad(problem))?;
        if entry.name == name {
            return Ok(Hit { slot, offset, inode: entry.inode });
        }
    }
    Err(missing(fork))
}
