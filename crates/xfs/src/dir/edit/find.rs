//! Finding a name in a directory that is about to change: the lookup serves both the check and the change.
//!
//! Invariant: a [`Lookup`] is valid as long as nothing else in its directory is changed.

use super::{DirForm, DirGeometry, missing, short};
use crate::da::check_owner;
use crate::da::edit::{Block, DaPath, Seen, seek};
use crate::dir::hash_collisions::LastData;
use crate::dir::{COLLISIONS_MAX, FileType, NAME, hash_index};
use crate::error::NameProblem;
use crate::error::{Error, Result};
use crate::fork::{Fork, ForkMut};
use xfs_format::da::name_hash;
use xfs_format::dir::{DataBlock, DataEdit, DataKind, Leaf, LeafEntry, LeafKind, is_valid_name};
use xfs_format::error::FormatError;
use xfs_format::types::InodeNumber;

/// The result of looking up a name, and the path to it.
#[derive(Debug)]
pub struct Lookup {
    pub(super) path: EntryPath,
    found: Option<Found>,
}

/// Where a name is or would go.
#[derive(Debug)]
pub(super) enum EntryPath {
    /// In the inode.
    Short,
    /// In the only block.
    Block(Block),
    /// In the only leaf.
    Leaf(Block),
    /// In this leaf of a tree.
    Node(DaPath, Block),
}

/// An existing name.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) inode: InodeNumber,
    file_type: FileType,
    /// Its slot in the index. Unused in short form.
    pub(super) slot: usize,
    /// Its offset in its data block.
    pub(super) offset: usize,
    /// Its data block, if that is not the directory's only block.
    pub(super) data: Option<(u64, Block)>,
}

impl Lookup {
    /// The inode and type that the name has.
    pub fn found(&self) -> Option<(InodeNumber, FileType)> {
        self.found.as_ref().map(|found| (found.inode, found.file_type))
    }

    /// The path and the entry. Fails if there is none.
    pub(super) fn into_found(self, fork: &dyn Fork) -> Result<(EntryPath, Found)> {
        let Self { path: way, found } = self;
        Ok((way, found.ok_or_else(|| missing(fork))?))
    }
}

/// Looks up a name in order to change or remove it.
pub fn find(fork: &mut dyn ForkMut, name: &[u8]) -> Result<Lookup> {
    find_among(fork, name, usize::MAX)
}

/// Looks up a name in order to add it. Fails if it is not found among the first names of its hash and there are too
/// many of these.
pub fn find_to_add(fork: &mut dyn ForkMut, name: &[u8]) -> Result<Lookup> {
    find_among(fork, name, COLLISIONS_MAX)
}

fn find_among(fork: &mut dyn ForkMut, name: &[u8], most: usize) -> Result<Lookup> {
    let shape = DirGeometry::of(fork)?;
    if !is_valid_name(name) {
        let problem = FormatError::value(NAME, "entry name", name.len() as u64);
        return Err(Error::corrupt_inode(fork.inode(), problem));
    }
    match DirForm::of(fork)? {
        DirForm::Short => in_short(fork, name),
        DirForm::Block => in_block(fork, &shape, name),
        DirForm::Indexed => in_index(fork, &shape, name, most),
    }
}

fn in_short(fork: &dyn Fork, name: &[u8]) -> Result<Lookup> {
    let found = short::find(fork, name)?.map(|(inode, file_type)| {
        let (slot, offset, data) = (0, 0, None);
        Found { inode, file_type, slot, offset, data }
    });
    Ok(Lookup { path: EntryPath::Short, found })
}

fn in_block(fork: &mut dyn ForkMut, shape: &DirGeometry, name: &[u8]) -> Result<Lookup> {
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
    Ok(Lookup { path: EntryPath::Block(block), found })
}

fn in_index(fork: &mut dyn ForkMut, shape: &DirGeometry, name: &[u8], most: usize) -> Result<Lookup> {
    let index = hash_index(fork.geometry());
    let hash = name_hash(name);
    let mut last = LastData::default();
    let mut compared = 0;
    let mut single = false;
    let (path, leaf, found) = seek(fork, &index, hash, |fork, path, block| {
        let place = block.place;
        let leaf = Leaf::parse(block.bytes(), shape.v5).map_err(|problem| place.bad(problem))?;
        check_owner(fork, place.daddr(), index.verifier.name, leaf.header.owner)?;
        single = leaf.kind == LeafKind::Single;
        if single && !path.is_lone() {
            return Err(place.bad(FormatError::new(NAME, "kind of leaf in a tree")));
        }
        let rest = leaf.from_hash(hash);
        let from = leaf.entries.len() - rest.len();
        for (slot, entry) in (from..).zip(rest) {
            if entry.hash.get() != hash {
                return Ok(Seen::End);
            }
            if entry.is_stale() {
                continue;
            }
            if let Some(found) = candidate(fork, shape, (slot, entry), name, &mut last)? {
                return Ok(Seen::Found(found));
            }
            compared += 1;
            if compared >= most {
                return Err(NameProblem::TooManyCollisions.into());
            }
        }
        let more = !single && leaf.entries.last().is_some_and(|entry| entry.hash.get() == hash);
        Ok(if more { Seen::More } else { Seen::End })
    })?;
    let way = if single { EntryPath::Leaf(leaf) } else { EntryPath::Node(path, leaf) };
    Ok(Lookup { path: way, found })
}

/// The name that index entry `slot` points to, if it is the wanted one. Only its own data block is locked: names of one
/// hash, of which there may be any number, are compared without locks.
fn candidate(
    fork: &mut dyn ForkMut,
    shape: &DirGeometry,
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

/// Changes the inode of an entry in a data block.
pub(super) fn replace(
    fork: &mut dyn ForkMut,
    mut data: Block,
    offset: usize,
    ino: InodeNumber,
    ftype: FileType,
) -> Result<()> {
    let shape = DirGeometry::of(fork)?;
    let place = data.place;
    let mut edit = DataEdit::new(&mut data.image, shape.v5, shape.ftype);
    edit.replace(offset, ino, ftype.into()).map_err(|problem| place.bad(problem))?;
    data.write(fork)
}

/// Reads a data block (or the block of a block-form directory) in order to change it.
pub(super) fn read_data(fork: &mut dyn ForkMut, shape: &DirGeometry, db: u64) -> Result<Block> {
    let block = Block::read(fork, shape.data_at(db), shape.blocks, shape.data)?;
    check_owner(fork, block.place.daddr(), NAME, view_data(&block, shape)?.owner)?;
    Ok(block)
}

/// A view of a data block as it is now.
pub(super) fn view_data<'a>(block: &'a Block, shape: &DirGeometry) -> Result<DataBlock<'a>> {
    DataBlock::parse(block.bytes(), shape.v5, shape.ftype).map_err(|problem| block.place.bad(problem))
}

/// Reads a data block of leaf or node form in order to change it.
pub(super) fn read_pure_data(fork: &mut dyn ForkMut, shape: &DirGeometry, db: u64) -> Result<Block> {
    let block = read_data(fork, shape, db)?;
    expect_data(&block, shape)?;
    Ok(block)
}

/// Fails for the block of a block-form directory.
pub(super) fn expect_data(block: &Block, shape: &DirGeometry) -> Result<()> {
    match view_data(block, shape)?.kind {
        DataKind::Data => Ok(()),
        DataKind::Block => Err(block.place.bad(FormatError::new(NAME, "block form with further blocks"))),
    }
}
