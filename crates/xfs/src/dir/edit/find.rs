//! Finding a name in a directory that is about to change: once for the look and for the change.
//!
//! Invariant: a [`Lookup`] holds as long as nothing else of its directory is changed.

use super::tree::{Block, Path, find_path, next_path};
use super::{Form, Shape, missing, short};
use crate::da::check_owner;
use crate::dir::crowd::LastData;
use crate::dir::{CROWD_MAX, FileType, NAME, hash_index};
use crate::error::NameProblem;
use crate::error::{Error, Result};
use crate::fork::{Fork, ForkMut};
use xfs_format::da::name_hash;
use xfs_format::dir::{DataBlock, DataEdit, DataKind, Leaf, LeafEntry, LeafKind, is_valid_name};
use xfs_format::error::FormatError;
use xfs_format::types::InodeNumber;

/// What looking for a name found out, and the way there.
#[derive(Debug)]
pub struct Lookup {
    pub(super) way: Way,
    found: Option<Found>,
}

/// Where a name is, or would go.
#[derive(Debug)]
pub(super) enum Way {
    /// In the inode.
    Short,
    /// In the only block.
    Block(Block),
    /// In the only leaf.
    Leaf(Block),
    /// In this leaf of a tree.
    Node(Path, Block),
}

/// A name that is there.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) inode: InodeNumber,
    file_type: FileType,
    /// Its place in the index; nothing in short form.
    pub(super) slot: usize,
    /// Its place in its data block.
    pub(super) offset: usize,
    /// Its data block, if that is not the directory's only block.
    pub(super) data: Option<(u64, Block)>,
}

impl Lookup {
    /// What the name stands for.
    pub fn found(&self) -> Option<(InodeNumber, FileType)> {
        self.found.as_ref().map(|found| (found.inode, found.file_type))
    }

    /// The way, and what was found there; fails if that is nothing.
    pub(super) fn into_found(self, fork: &dyn Fork) -> Result<(Way, Found)> {
        let Self { way, found } = self;
        Ok((way, found.ok_or_else(|| missing(fork))?))
    }
}

/// Looks for a name, to change or to remove it.
pub fn look(fork: &mut dyn ForkMut, name: &[u8]) -> Result<Lookup> {
    look_among(fork, name, usize::MAX)
}

/// Looks for a name, to add it: fails if so many others have its hash that it was not found among the first of them.
pub fn look_to_add(fork: &mut dyn ForkMut, name: &[u8]) -> Result<Lookup> {
    look_among(fork, name, CROWD_MAX)
}

fn look_among(fork: &mut dyn ForkMut, name: &[u8], most: usize) -> Result<Lookup> {
    let shape = Shape::of(fork)?;
    if !is_valid_name(name) {
        let problem = FormatError::value(NAME, "entry name", name.len() as u64);
        return Err(Error::corrupt_inode(fork.inode(), problem));
    }
    match Form::of(fork)? {
        Form::Short => in_short(fork, name),
        Form::Block => in_block(fork, &shape, name),
        Form::Indexed => in_index(fork, &shape, name, most),
    }
}

fn in_short(fork: &dyn Fork, name: &[u8]) -> Result<Lookup> {
    let found = short::find(fork, name)?.map(|(inode, file_type)| {
        let (slot, offset, data) = (0, 0, None);
        Found { inode, file_type, slot, offset, data }
    });
    Ok(Lookup { way: Way::Short, found })
}

fn in_block(fork: &mut dyn ForkMut, shape: &Shape, name: &[u8]) -> Result<Lookup> {
    let block = super::block::read(fork, shape)?;
    let view = view_data(&block, shape)?;
    let hash = name_hash(name);
    let rest = view.index_from_hash(hash);
    let first = view.index.len() - rest.len();
    let mut found = None;
    for (slot, entry) in (first..).zip(rest).take_while(|(_, entry)| entry.hash.get() == hash) {
        if entry.is_stale() {
            continue;
        }
        let offset = usize::try_from(entry.data_offset()).unwrap_or(usize::MAX);
        let entry = view.entry_at(offset).map_err(|problem| block.place.bad(problem))?;
        if entry.name == name {
            let (inode, file_type) = (entry.inode, entry.file_type.into());
            found = Some(Found { inode, file_type, slot, offset, data: None });
            break;
        }
    }
    Ok(Lookup { way: Way::Block(block), found })
}

fn in_index(fork: &mut dyn ForkMut, shape: &Shape, name: &[u8], most: usize) -> Result<Lookup> {
    let index = hash_index(fork.geometry());
    let hash = name_hash(name);
    let (mut path, mut block) = find_path(fork, &index, hash)?;
    let first = path.leaf;
    let mut vacant: Option<(Path, Block)> = None;
    let mut last = LastData::default();
    let mut compared = 0;
    loop {
        let place = block.place;
        let leaf = Leaf::parse(block.bytes(), shape.v5).map_err(|problem| place.bad(problem))?;
        check_owner(fork, place.daddr(), index.verifier.name, leaf.header.owner)?;
        let kind = leaf.kind;
        if kind == LeafKind::Single && !path.is_lone() {
            return Err(place.bad(FormatError::new(NAME, "kind of leaf in a tree")));
        }
        let rest = leaf.from_hash(hash);
        let from = leaf.entries.len() - rest.len();
        let mut ends = leaf.entries.last().is_none_or(|entry| entry.hash.get() != hash);
        let mut found = None;
        for (slot, entry) in (from..).zip(rest) {
            if entry.hash.get() != hash {
                ends = true;
                break;
            }
            if entry.is_stale() {
                continue;
            }
            found = candidate(fork, shape, (slot, entry), name, &mut last)?;
            if found.is_some() {
                break;
            }
            compared += 1;
            if compared >= most {
                return Err(NameProblem::Crowded.into());
            }
        }
        let next = if found.is_some() || ends || kind == LeafKind::Single {
            None
        } else {
            next_path(fork, &index, first, path.clone(), &block)?
        };
        if let Some(next) = next {
            let here = (std::mem::replace(&mut path, next.0), std::mem::replace(&mut block, next.1));
            vacant.get_or_insert(here);
            continue;
        }
        // A new entry goes into the first leaf that may hold its hash.
        if found.is_none()
            && let Some(first) = vacant
        {
            (path, block) = first;
        }
        let way = if kind == LeafKind::Single { Way::Leaf(block) } else { Way::Node(path, block) };
        return Ok(Lookup { way, found });
    }
}

/// The name that the entry `slot` of the index points to, if it is this one. Its data block alone is locked: names of one
/// hash, of which there may be any number, are compared as they are read.
fn candidate(
    fork: &mut dyn ForkMut,
    shape: &Shape,
    (slot, entry): (usize, &LeafEntry),
    name: &[u8],
    last: &mut LastData,
) -> Result<Option<Found>> {
    let (data, offset) = last.read(fork, entry)?;
    let at = data.view(fork)?.entry_at(offset).map_err(|problem| data.corrupt(fork, problem))?;
    if at.name != name {
        return Ok(None);
    }
    let (inode, file_type) = (at.inode, at.file_type.into());
    let db = entry.data_offset() / shape.block_size as u64;
    let data = Some((db, read_data(fork, shape, db)?));
    Ok(Some(Found { inode, file_type, slot, offset, data }))
}

/// Has an entry of a data block name another inode.
pub(super) fn replace(
    fork: &mut dyn ForkMut,
    mut data: Block,
    offset: usize,
    ino: InodeNumber,
    ftype: FileType,
) -> Result<()> {
    let shape = Shape::of(fork)?;
    let place = data.place;
    let mut edit = DataEdit::new(&mut data.image, shape.v5, shape.ftype);
    edit.replace(offset, ino, ftype.into()).map_err(|problem| place.bad(problem))?;
    data.write(fork)
}

/// Reads a data block (or the block of a block-form directory) to change it.
pub(super) fn read_data(fork: &mut dyn ForkMut, shape: &Shape, db: u64) -> Result<Block> {
    let block = Block::read(fork, shape.data_at(db), shape.blocks, shape.data)?;
    check_owner(fork, block.place.daddr(), NAME, view_data(&block, shape)?.owner)?;
    Ok(block)
}

/// A data block as it is now.
pub(super) fn view_data<'a>(block: &'a Block, shape: &Shape) -> Result<DataBlock<'a>> {
    DataBlock::parse(block.bytes(), shape.v5, shape.ftype).map_err(|problem| block.place.bad(problem))
}

/// Reads a data block of leaf or node form to change it.
pub(super) fn read_pure_data(fork: &mut dyn ForkMut, shape: &Shape, db: u64) -> Result<Block> {
    let block = read_data(fork, shape, db)?;
    expect_data(&block, shape)?;
    Ok(block)
}

/// Fails for the block of a block-form directory.
pub(super) fn expect_data(block: &Block, shape: &Shape) -> Result<()> {
    match view_data(block, shape)?.kind {
        DataKind::Data => Ok(()),
        DataKind::Block => Err(block.place.bad(FormatError::new(NAME, "block form with further blocks"))),
    }
}
