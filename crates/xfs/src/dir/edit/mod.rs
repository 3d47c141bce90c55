//! Changing directories: adding, removing and changing names. The form follows the size.
//!
//! | form | content | grows when | shrinks when |
//! |---|---|---|---|
//! | short | bytes in the inode | the inode is full | – |
//! | block | one block: entries and index | the block is full | the rest fits into the inode |
//! | leaf | data blocks, one leaf that also has their free space | the leaf is full | one data block is left with room for the index |
//! | node | data blocks, a tree of leaves, free blocks | – | one leaf and one free block are left and fit into one |
//!
//! Invariants: every entry has one index entry with its hash and address. The free space recorded for a data block is
//! the length of its longest unused piece. An empty data block is freed. `di_size` is the end of the last data block
//! (in short form, the bytes in the inode).
//!
//! This module knows neither transactions nor allocation: everything goes through [`ForkMut`]. The cost of a change
//! does not depend on the size of the directory, except for the depth of its tree and the number of names with the same
//! hash.

mod block;
mod convert;
mod find;
mod free;
mod leaf;
mod node;
mod short;
mod space;

pub use find::{Lookup, find, find_to_add};

use super::{FileType, NAME, leaf_space, walk};
use crate::error::{Error, NameProblem, Result};
use crate::fork::{Fork, ForkMut};
use find::EntryPath;
use std::ops::ControlFlow;
use xfs_format::da::{Node, block_magic, name_hash};
use xfs_format::dir::{
    DATA_ALIGN_LOG, INDEX, LEAF_SPACE, LeafKind, NewDataEntry, ShortImage, data_entry_len, data_verifier,
    is_valid_name,
};
use xfs_format::error::FormatError;
use xfs_format::types::{FileBlock, InodeNumber};
use xfs_format::verify::Verifier;

/// A name to add.
#[derive(Clone, Copy, Debug)]
pub struct NewEntry<'a> {
    /// The name.
    pub name: &'a [u8],
    /// The inode that it names.
    pub ino: InodeNumber,
    /// The type of that inode.
    pub ftype: FileType,
}

/// What an [`add`] may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryReservation {
    /// Blocks of the volume that may be mapped.
    pub blocks: u32,
    /// Runs of blocks, one directory block each, that may be mapped. Each may cost a split of the block map.
    pub maps: u32,
    /// Directory blocks that may be changed or made, and so are logged.
    pub buffers: u32,
}

impl EntryReservation {
    /// No change of any directory maps more than this many directory blocks.
    pub const MAPS_MAX: u32 = 9;
    /// No change of any directory changes or makes more than this many directory blocks: on each of five levels a
    /// block, a new one or a neighbour on either side, and the parent's; a data block and a free block.
    pub const BUFFERS_MAX: u32 = 5 * 4 + 4;

    const fn of(fork_blocks: u32, maps: u32, buffers: u32) -> Self {
        Self { blocks: maps * fork_blocks, maps, buffers }
    }
}

/// Makes the fork of a new inode an empty directory.
pub fn init(fork: &mut dyn ForkMut, parent: InodeNumber) -> Result<()> {
    let shape = DirGeometry::of(fork)?;
    let empty = ShortImage::new(parent, shape.v5, shape.ftype);
    short::store(fork, &empty)?.then_some(()).ok_or(Error::NoSpace)
}

impl Lookup {
    /// Adds the name, which was not found.
    pub fn add(self, fork: &mut dyn ForkMut, entry: NewEntry<'_>) -> Result<()> {
        debug_assert!(is_valid_name(entry.name), "{}", entry.name.escape_ascii());
        debug_assert!(self.found().is_none(), "the name exists");
        let shape = DirGeometry::of(fork)?;
        let new = EntryToAdd {
            hash: name_hash(entry.name),
            need: data_entry_len(shape.name_len(fork, entry.name)?, shape.ftype),
            data: NewDataEntry { inode: entry.ino, name: entry.name, file_type: entry.ftype.into() },
        };
        match self.path {
            EntryPath::Short => short::add(fork, &new),
            EntryPath::Block(block) => block::add(fork, block, &new),
            EntryPath::Leaf(leaf) => leaf::add(fork, leaf, &new),
            EntryPath::Node(path, leaf) => node::add(fork, &path, leaf, &new),
        }
    }

    /// Removes the name, which was found. Returns its inode.
    pub fn remove(self, fork: &mut dyn ForkMut, name: &[u8]) -> Result<InodeNumber> {
        debug_assert!(name != b"." && name != b"..", "the dots stay");
        let (way, found) = self.into_found(fork)?;
        let inode = found.inode;
        match way {
            EntryPath::Short => short::remove(fork, name),
            EntryPath::Block(block) => block::remove(fork, block, &found),
            EntryPath::Leaf(leaf) => leaf::remove(fork, leaf, found),
            EntryPath::Node(path, leaf) => node::remove(fork, &path, leaf, found),
        }?;
        Ok(inode)
    }

    /// Changes the inode of the name, which was found (`..` is one). Returns the previous inode.
    pub fn replace(
        self,
        fork: &mut dyn ForkMut,
        name: &[u8],
        ino: InodeNumber,
        ftype: FileType,
    ) -> Result<InodeNumber> {
        debug_assert!(name != b".", "a directory stays itself");
        let (way, found) = self.into_found(fork)?;
        let inode = found.inode;
        match way {
            EntryPath::Short => {
                if !short::replace(fork, name, ino, ftype)? {
                    find(fork, name)?.replace(fork, name, ino, ftype)?;
                }
            }
            // With a smaller number it may fit into the inode. The next removal moves it there.
            EntryPath::Block(block) => find::replace(fork, block, found.offset, ino, ftype)?,
            EntryPath::Leaf(_) | EntryPath::Node(..) => {
                let (_, data) = found.data.ok_or_else(|| missing(fork))?;
                find::replace(fork, data, found.offset, ino, ftype)?;
            }
        }
        Ok(inode)
    }
}

/// Adds a name, unless it exists.
pub fn add(fork: &mut dyn ForkMut, entry: NewEntry<'_>) -> Result<()> {
    let lookup = find(fork, entry.name)?;
    match lookup.found() {
        Some(_) => Err(NameProblem::Exists.into()),
        None => lookup.add(fork, entry),
    }
}

/// Removes a name that exists. Returns its inode.
pub fn remove(fork: &mut dyn ForkMut, name: &[u8]) -> Result<InodeNumber> {
    find(fork, name)?.remove(fork, name)
}

/// Changes the inode of a name that exists (`..` is one). Returns the previous inode.
pub fn replace(
    fork: &mut dyn ForkMut,
    name: &[u8],
    ino: InodeNumber,
    ftype: FileType,
) -> Result<InodeNumber> {
    find(fork, name)?.replace(fork, name, ino, ftype)
}

/// Moves a directory out of the inode, so that attributes have room there.
pub fn move_out(fork: &mut dyn ForkMut) -> Result<()> {
    let dir = short::load(fork)?;
    convert::short_to_block(fork, &dir)
}

/// Whether there are no names but the dots.
pub fn is_empty(fork: &dyn Fork) -> Result<bool> {
    let mut empty = true;
    walk(fork, 0, &mut |entry| {
        if entry.name == b"." || entry.name == b".." {
            return ControlFlow::Continue(());
        }
        empty = false;
        ControlFlow::Break(())
    })?;
    Ok(empty)
}

/// The maximum that adding a name may need. Reads no more than the root of the index. [`EntryReservation::MAPS_MAX`]
/// and [`EntryReservation::BUFFERS_MAX`] are bounds that need no reading.
pub fn add_needs(fork: &dyn Fork) -> Result<EntryReservation> {
    let shape = DirGeometry::of(fork)?;
    let n = shape.blocks;
    Ok(match DirForm::of(fork)? {
        // Out of the inode. A block of minimum size may then not have room for the new name.
        DirForm::Short => EntryReservation::of(n, 3, 3),
        // To leaf form, and a data block for the new name.
        DirForm::Block => EntryReservation::of(n, 2, 3),
        DirForm::Indexed => {
            let root = fork.read(FileBlock(leaf_space(fork.geometry())), n, &INDEX)?;
            let magic = block_magic(&root).unwrap_or_default();
            if LeafKind::of(magic, shape.v5) == Some(LeafKind::Single) {
                // A data block; a free block for the conversion to node form; and the leaf is split, for which the root
                // moves, so it makes two blocks.
                return Ok(EntryReservation::of(n, 4, 6));
            }
            let level = u32::from(Node::level_of(&root, shape.v5));
            // A data block, a free block, a block on each level, and one more for the root.
            let maps = level + 4;
            EntryReservation::of(n, maps, maps + 2 * (level + 1) + 2)
        }
    })
}

/// The geometry that all forms need.
#[derive(Clone, Copy, Debug)]
struct DirGeometry {
    v5: bool,
    ftype: bool,
    /// Bytes of a directory block.
    block_size: usize,
    /// File system blocks per directory block.
    blocks: u32,
    data: &'static Verifier,
}

impl DirGeometry {
    fn of(fork: &dyn Fork) -> Result<Self> {
        let geometry = fork.geometry();
        if geometry.ascii_ci {
            return Err(Error::Unwritable("its directories ignore case".into()));
        }
        Ok(Self {
            v5: geometry.v5,
            ftype: geometry.ftype,
            block_size: geometry.dir_block_size() as usize,
            blocks: geometry.dir_block_blocks(),
            data: data_verifier(geometry.ftype),
        })
    }

    fn name_len(&self, fork: &dyn Fork, name: &[u8]) -> Result<u8> {
        let bad = FormatError::value(NAME, "entry name", name.len() as u64);
        let len = u8::try_from(name.len()).ok().filter(|_| is_valid_name(name));
        len.ok_or(Error::corrupt_inode(fork.inode(), bad))
    }

    /// The fork block of data block `db`.
    fn data_at(&self, db: u64) -> FileBlock {
        FileBlock(db * u64::from(self.blocks))
    }

    /// The address of an entry as the index has it.
    fn address(&self, db: u64, offset: usize) -> u32 {
        ((db * self.block_size as u64 + offset as u64) >> DATA_ALIGN_LOG) as u32
    }

    /// The number of data blocks according to `di_size`.
    fn data_count(&self, fork: &dyn Fork) -> Result<u64> {
        let size = fork.size();
        let whole = size.is_multiple_of(self.block_size as u64) && size > 0 && size <= LEAF_SPACE;
        if !whole {
            let problem = FormatError::value(NAME, "size", size);
            return Err(Error::corrupt_inode(fork.inode(), problem));
        }
        Ok(size / self.block_size as u64)
    }
}

/// A name to add, with derived values.
struct EntryToAdd<'a> {
    hash: u32,
    /// Bytes that the entry takes in a data block.
    need: usize,
    data: NewDataEntry<'a>,
}

/// The form of a directory.
enum DirForm {
    Short,
    Block,
    /// Leaf or node: the block at the index's root tells which.
    Indexed,
}

impl DirForm {
    fn of(fork: &dyn Fork) -> Result<Self> {
        if fork.local().is_some() {
            return Ok(Self::Short);
        }
        let step = fork.geometry().dir_block_blocks();
        Ok(match fork.next_mapped(FileBlock(step.into()))? {
            None => Self::Block,
            Some(_) => Self::Indexed,
        })
    }
}

/// The error for a name that the caller had found and that is not there.
fn missing(fork: &dyn Fork) -> Error {
    Error::corrupt_inode(fork.inode(), FormatError::new(NAME, "entry: there is none of this name"))
}
