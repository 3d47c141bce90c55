//! Converting directories from one form to the next, in both directions.
//!
//! Each conversion to a smaller form begins where a removal ends, with blocks that were changed and not written yet. So
//! a block that is about to be freed is not logged first.

use super::find::read_pure_data;
use super::{DirGeometry, free, leaf, short, space};
use crate::da::edit::Block;
use crate::dir::{NAME, hash_index};
use crate::error::{Error, Result};
use crate::fork::ForkMut;
use xfs_format::da::{block_magic, name_hash};
use xfs_format::dir::{
    BESTFREE_NONE, DataBlock, DataEdit, DataItem, DirFileType, FreeEdit, Leaf, LeafEdit, LeafEntry, LeafKind,
    NewDataEntry, ShortDir, ShortImage, ShortRow,
};
use xfs_format::error::FormatError;
use xfs_format::types::FileBlock;

/// Bytes of an index entry, of the counts at the end of a block-form directory, of an entry in a free space table, and
/// of the count at the end of a leaf that has such a table.
const ENTRY: usize = 8;
const BLOCK_TAIL: usize = 8;
const BEST: usize = 2;
const LEAF_TAIL: usize = 4;

/// Moves a directory out of the inode. Entries keep their offsets.
pub(super) fn short_to_block(fork: &mut dyn ForkMut, dir: &ShortImage) -> Result<()> {
    let shape = DirGeometry::of(fork)?;
    let own = fork.inode();
    fork.set_extents()?;
    fork.set_size(0);
    let mut block = space::new_data(fork, &shape, 0)?;
    let place = block.place;
    let mut edit = DataEdit::new(&mut block.image, shape.v5, shape.ftype);
    let dots = [
        (ShortDir::dot_offset(shape.v5), &b"."[..], own, DirFileType::Directory),
        (ShortDir::dotdot_offset(shape.v5, shape.ftype), b"..", dir.parent, DirFileType::Directory),
    ];
    let others = dir.rows().iter().map(|row| (row.offset.into(), &*row.name, row.inode, row.file_type));
    let mut index = Vec::with_capacity(dir.rows().len() + dots.len());
    for (offset, name, inode, file_type) in dots.into_iter().chain(others) {
        let entry = NewDataEntry { inode, name, file_type };
        edit.add_at(offset, entry).map_err(|problem| place.bad(problem))?;
        index.push(LeafEntry::new(name_hash(name), shape.address(0, offset)));
    }
    index.sort_by_key(|entry| entry.hash.get());
    edit.make_block(&index).map_err(|problem| place.bad(problem))?;
    block.write(fork)
}

/// Writes the block of a block-form directory that lost an entry, or moves the directory into the inode.
pub(super) fn write_block_or_short(fork: &mut dyn ForkMut, block: Block) -> Result<()> {
    match fits_inode(fork, &block)? {
        Some(dir) => {
            block.unmap(fork)?;
            if let Some(stray) = fork.next_mapped(FileBlock(0))? {
                let problem = FormatError::value(NAME, "block that nothing tells of", stray.0);
                return Err(Error::corrupt_inode(fork.inode(), problem));
            }
            short::store(fork, &dir)?.then_some(()).ok_or(Error::NoSpace)
        }
        None => block.write(fork),
    }
}

/// The directory in short form, if it fits into the inode.
fn fits_inode(fork: &dyn ForkMut, block: &Block) -> Result<Option<ShortImage>> {
    let shape = DirGeometry::of(fork)?;
    let bad = |problem| block.place.bad(problem);
    let view = DataBlock::parse(block.image.bytes(), shape.v5, shape.ftype).map_err(bad)?;
    let names = view.index.len().saturating_sub(view.stale() as usize + 2);
    if ShortImage::least_len(names) > fork.local_capacity() {
        return Ok(None);
    }
    let mut parent = None;
    let mut rows = Vec::with_capacity(names);
    for item in view.items() {
        let DataItem::Entry(entry) = item.map_err(bad)? else {
            continue;
        };
        match entry.name {
            b"." => {}
            b".." => parent = Some(entry.inode),
            name => {
                let offset = u16::try_from(entry.offset).unwrap_or(u16::MAX);
                let file_type = entry.file_type;
                rows.push(ShortRow { offset, name: name.to_vec(), inode: entry.inode, file_type });
            }
        }
    }
    let parent = parent.ok_or_else(|| bad(FormatError::new(NAME, "entry of the parent")))?;
    if rows.len() != names {
        let problem = FormatError::mismatch(NAME, "index entry count", names as u64, rows.len() as u64);
        return Err(bad(problem));
    }
    let mut dir = ShortImage::new(parent, shape.v5, shape.ftype);
    rows.into_iter().for_each(|row| dir.push(row));
    let fits = dir.encode().is_some_and(|bytes| bytes.len() <= fork.local_capacity());
    Ok(fits.then_some(dir))
}

/// Moves the index of a block-form directory into a leaf, which is not written yet.
pub(super) fn block_to_leaf(fork: &mut dyn ForkMut, mut block: Block) -> Result<Block> {
    let shape = DirGeometry::of(fork)?;
    let place = block.place;
    let bad = |problem| place.bad(problem);
    let view = DataBlock::parse(block.image.bytes(), shape.v5, shape.ftype).map_err(bad)?;
    let live: Vec<LeafEntry> = view.index.iter().filter(|entry| !entry.is_stale()).copied().collect();
    let mut edit = DataEdit::new(&mut block.image, shape.v5, shape.ftype);
    edit.make_data().map_err(bad)?;
    let longest = edit.longest().map_err(bad)?;
    block.write(fork)?;
    let index = hash_index(fork.geometry());
    let mut leaf = Block::map(fork, FileBlock(index.root), index.blocks, index.verifier)?;
    let stamp = leaf.stamp(fork);
    let mut edit = LeafEdit::format(&mut leaf.image, &stamp, LeafKind::Single).map_err(bad)?;
    edit.set_bestfrees(&[longest]).map_err(bad)?;
    edit.set_entries(&live).map_err(bad)?;
    Ok(leaf)
}

/// Writes the only leaf of a directory that lost an entry, or moves its content into the last remaining data block.
pub(super) fn write_leaf_or_block(fork: &mut dyn ForkMut, mut leaf: Block) -> Result<()> {
    let shape = DirGeometry::of(fork)?;
    let place = leaf.place;
    let bad = |problem| place.bad(problem);
    // Empty data blocks at the end are left over from removals that had no room to free them.
    loop {
        let mut edit = LeafEdit::new(&mut leaf.image, shape.v5);
        let bestfree = leaf::table(&edit).map_err(bad)?;
        let (Some(&last), true) = (bestfree.last(), bestfree.len() > 1) else {
            break;
        };
        if last != BESTFREE_NONE
            && usize::from(last) < DataEdit::longest_when_empty(shape.block_size, shape.v5)
        {
            return leaf.write(fork);
        }
        let db = bestfree.len() - 1;
        edit.set_bestfree(db, BESTFREE_NONE).map_err(bad)?;
        leaf::trim(&mut edit).map_err(bad)?;
        if last != BESTFREE_NONE {
            let data = read_pure_data(fork, &shape, db as u64)?;
            expect_empty(&data, &shape)?;
            space::drop_data(fork, &shape, db as u64, data)?;
        }
    }
    if fork.size() != shape.block_size as u64 {
        return leaf.write(fork);
    }
    let live = Leaf::parse(leaf.image.bytes(), shape.v5).map_err(bad)?.live();
    let mut data = read_pure_data(fork, &shape, 0)?;
    let data_place = data.place;
    let view = DataBlock::parse(data.image.bytes(), shape.v5, shape.ftype)
        .map_err(|problem| data_place.bad(problem))?;
    let room = view.last_unused().map_err(|problem| data_place.bad(problem))?.map_or(0, |(_, len)| len);
    if room < live.len() * ENTRY + BLOCK_TAIL {
        return leaf.write(fork);
    }
    let mut edit = DataEdit::new(&mut data.image, shape.v5, shape.ftype);
    edit.make_block(&live).map_err(|problem| data_place.bad(problem))?;
    leaf.unmap(fork)?;
    write_block_or_short(fork, data)
}

fn expect_empty(data: &Block, shape: &DirGeometry) -> Result<()> {
    let bad = |problem| data.place.bad(problem);
    let view = DataBlock::parse(data.image.bytes(), shape.v5, shape.ftype).map_err(bad)?;
    let longest = usize::from(view.largest_free()[0].1);
    if longest != DataEdit::longest_when_empty(shape.block_size, shape.v5) {
        return Err(bad(FormatError::value(NAME, "free space of a data block", longest as u64)));
    }
    Ok(())
}

/// Moves the free space table out of the only leaf, which becomes the first of a tree.
pub(super) fn leaf_to_node(fork: &mut dyn ForkMut, mut leaf: Block) -> Result<()> {
    let shape = DirGeometry::of(fork)?;
    let place = leaf.place;
    let bad = |problem| place.bad(problem);
    let mut edit = LeafEdit::new(&mut leaf.image, shape.v5);
    let bestfree = leaf::table(&edit).map_err(bad)?;
    if bestfree.len() as u64 > shape.data_count(fork)? {
        return Err(bad(FormatError::value(NAME, "table size", bestfree.len() as u64)));
    }
    edit.set_kind(LeafKind::OfTree).map_err(bad)?;
    let mut free = free::make(fork, &shape, 0)?;
    let mut edit = FreeEdit::new(&mut free.image, shape.v5);
    for (db, &best) in bestfree.iter().enumerate() {
        edit.set(db, best).map_err(bad)?;
    }
    free.write(fork)?;
    leaf.write(fork)
}

/// After a change of the tree: a single leaf may take the free space table back.
pub(super) fn node_to_leaf(fork: &mut dyn ForkMut) -> Result<()> {
    let index = hash_index(fork.geometry());
    let at = FileBlock(index.root);
    let leaf = Block::read(fork, at, index.blocks, index.verifier)?;
    let kind = block_magic(leaf.bytes()).and_then(|magic| LeafKind::of(magic, fork.geometry().v5));
    if kind == Some(LeafKind::OfTree) { write_lone_leaf_or_leaf(fork, leaf) } else { Ok(()) }
}

/// Writes a leaf that is the whole tree, or makes it the directory's only index block.
pub(super) fn write_lone_leaf_or_leaf(fork: &mut dyn ForkMut, mut leaf: Block) -> Result<()> {
    let shape = DirGeometry::of(fork)?;
    let place = leaf.place;
    let bad = |problem| place.bad(problem);
    if !drop_empty_free(fork, &shape)? {
        return leaf.write(fork);
    }
    let free = free::read(fork, &shape, 0)?;
    let free = free.ok_or_else(|| bad(FormatError::new(NAME, "first free block")))?;
    let bestfree: Vec<u16> = free::view(&free, &shape)?.bestfree.iter().map(|best| best.get()).collect();
    let live = Leaf::parse(leaf.image.bytes(), shape.v5).map_err(bad)?.live();
    let room = LeafEdit::room(shape.block_size, None, shape.v5);
    if live.len() * ENTRY + bestfree.len() * BEST + LEAF_TAIL > room {
        return leaf.write(fork);
    }
    let mut edit = LeafEdit::new(&mut leaf.image, shape.v5);
    edit.set_entries(&live).map_err(bad)?;
    edit.set_kind(LeafKind::Single).map_err(bad)?;
    edit.set_bestfrees(&bestfree).map_err(bad)?;
    free.unmap(fork)?;
    write_leaf_or_block(fork, leaf)
}

/// Frees free blocks after the first, if they describe no data block. Returns whether only the first is left.
fn drop_empty_free(fork: &mut dyn ForkMut, shape: &DirGeometry) -> Result<bool> {
    let first = free::free_at(fork, shape, 0);
    while let Some(mapped) = fork.next_mapped(free::free_at(fork, shape, 1))? {
        let block = free::read(fork, shape, (mapped.0 - first.0) / u64::from(shape.blocks))?;
        match block {
            Some(block) if free::view(&block, shape)?.used == 0 => block.unmap(fork)?,
            _ => return Ok(false),
        }
    }
    Ok(true)
}
