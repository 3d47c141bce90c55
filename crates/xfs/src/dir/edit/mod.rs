//! Changing directories: names come, go, and change what they name; the form follows the size.
//!
//! | form | what there is | grows when | shrinks when |
//! |---|---|---|---|
//! | short | bytes in the inode | the inode is full | – |
//! | block | one block: entries and index | the block is full | what is left fits into the inode |
//! | leaf | data blocks, one leaf that also tells their free space | the leaf is full | one data block is left, and has room for the index |
//! | node | data blocks, a tree of leaves, blocks that tell the free space | – | one leaf and one free block are left, and fit into one |
//!
//! Invariants: every entry has one index entry with its hash and place; the free space that is told of a data block
//! is the length of its longest unused piece; an empty data block is given back; `di_size` is the end of the last
//! data block (in short form, the bytes in the inode).
//!
//! Nothing here knows transactions or allocation: all goes through [`ForkMut`]. The cost of a change does not depend
//! on the size of the directory, but for the depth of its tree and for how many names share a hash.

mod block;
mod convert;
mod find;
mod free;
mod leaf;
mod node;
mod short;
mod space;
mod tree;

pub use find::{Lookup, look, look_to_add};

use super::{FileType, NAME, leaf_space, walk};
use crate::error::{Error, Result};
use crate::fork::{Fork, ForkMut};
use find::Way;
use std::ops::ControlFlow;
use xfs_format::da::{Node, block_magic, name_hash};
use xfs_format::dir::{
    DATA_ALIGN_LOG, INDEX, LEAF_SPACE, LeafKind, NewDataEntry, ShortImage, data_entry_len, data_verifier,
    is_valid_name,
};
use xfs_format::error::FormatError;
use xfs_format::types::{FileBlock, InodeNumber};
use xfs_format::verify::Verifier;

/// A name to enter.
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
pub struct Needs {
    /// Blocks of the volume that may be mapped.
    pub blocks: u32,
    /// Runs of blocks, each one directory block, that may be mapped: each may cost a split of the block map.
    pub maps: u32,
    /// Directory blocks that may be changed or made, and so logged.
    pub buffers: u32,
}

impl Needs {
    /// No change of any directory needs more than this many directory blocks mapped.
    pub const MAPS_MAX: u32 = 9;
    /// No change of any directory changes or makes more directory blocks than this: on each of five levels a block, a
    /// new one or a neighbour on either side, and the parent's; a data block and a free block.
    pub const BUFFERS_MAX: u32 = 5 * 4 + 4;

    const fn of(fork_blocks: u32, maps: u32, buffers: u32) -> Self {
        Self { blocks: maps * fork_blocks, maps, buffers }
    }
}

/// Makes the fork of a new inode an empty directory.
pub fn init(fork: &mut dyn ForkMut, parent: InodeNumber) -> Result<()> {
    let shape = Shape::of(fork)?;
    let empty = ShortImage::new(parent, shape.v5, shape.ftype);
    short::store(fork, &empty)?.then_some(()).ok_or(Error::NoSpace)
}

impl Lookup {
    /// Enters the name, which was not found.
    pub fn add(self, fork: &mut dyn ForkMut, entry: NewEntry<'_>) -> Result<()> {
        debug_assert!(is_valid_name(entry.name), "{}", entry.name.escape_ascii());
        debug_assert!(self.found().is_none(), "the name exists");
        let shape = Shape::of(fork)?;
        let new = New {
            hash: name_hash(entry.name),
            need: data_entry_len(shape.name_len(fork, entry.name)?, shape.ftype),
            data: NewDataEntry { inode: entry.ino, name: entry.name, file_type: entry.ftype.into() },
        };
        match self.way {
            Way::Short => short::add(fork, &new),
            Way::Block(block) => block::add(fork, block, &new),
            Way::Leaf(leaf) => leaf::add(fork, leaf, &new),
            Way::Node(path, leaf) => node::add(fork, &path, leaf, &new),
        }
    }

    /// Removes the name, which was found; the inode that it named.
    pub fn remove(self, fork: &mut dyn ForkMut, name: &[u8]) -> Result<InodeNumber> {
        debug_assert!(name != b"." && name != b"..", "the dots stay");
        let (way, found) = self.into_found(fork)?;
        let inode = found.inode;
        match way {
            Way::Short => short::remove(fork, name),
            Way::Block(block) => block::remove(fork, block, &found),
            Way::Leaf(leaf) => leaf::remove(fork, leaf, found),
            Way::Node(path, leaf) => node::remove(fork, &path, leaf, found),
        }?;
        Ok(inode)
    }

    /// Has the name, which was found (`..` is one), name another inode; the inode that it named before.
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
            Way::Short => {
                if !short::replace(fork, name, ino, ftype)? {
                    look(fork, name)?.replace(fork, name, ino, ftype)?;
                }
            }
            // A smaller number may make it fit into the inode; it goes there with the next removal.
            Way::Block(block) => find::replace(fork, block, found.offset, ino, ftype)?,
            Way::Leaf(_) | Way::Node(..) => {
                let (_, data) = found.data.ok_or_else(|| missing(fork))?;
                find::replace(fork, data, found.offset, ino, ftype)?;
            }
        }
        Ok(inode)
    }
}

/// Enters a name that is not there.
pub fn add(fork: &mut dyn ForkMut, entry: NewEntry<'_>) -> Result<()> {
    look(fork, entry.name)?.add(fork, entry)
}

/// Removes a name that is there; the inode that it named.
pub fn remove(fork: &mut dyn ForkMut, name: &[u8]) -> Result<InodeNumber> {
    look(fork, name)?.remove(fork, name)
}

/// Has a name that is there (`..` is one) name another inode; the inode that it named before.
pub fn replace(
    fork: &mut dyn ForkMut,
    name: &[u8],
    ino: InodeNumber,
    ftype: FileType,
) -> Result<InodeNumber> {
    look(fork, name)?.replace(fork, name, ino, ftype)
}

/// Moves a directory that is in the inode out of it, so that attributes have room there.
pub fn move_out(fork: &mut dyn ForkMut) -> Result<()> {
    let dir = short::load(fork)?;
    convert::short_to_block(fork, &dir)
}

/// Whether there is no name but the dots.
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

/// The most that entering a name may need. It reads no more than the root of the index;
/// [`Needs::MAPS_MAX`] and [`Needs::BUFFERS_MAX`] bound it without reading anything.
pub fn add_needs(fork: &dyn Fork) -> Result<Needs> {
    let shape = Shape::of(fork)?;
    let n = shape.blocks;
    Ok(match Form::of(fork)? {
        // Out of the inode; a block as small as that may then not hold the new name.
        Form::Short => Needs::of(n, 3, 3),
        // To leaf form, and a data block for the new name.
        Form::Block => Needs::of(n, 2, 3),
        Form::Indexed => {
            let root = fork.read(FileBlock(leaf_space(fork.geometry())), n, &INDEX)?;
            let magic = block_magic(&root).unwrap_or_default();
            if LeafKind::of(magic, shape.v5) == Some(LeafKind::Single) {
                // A data block; to node form with a free block; the leaf split, which the root's move makes two blocks.
                return Ok(Needs::of(n, 4, 6));
            }
            let level = u32::from(Node::level_of(&root, shape.v5));
            // A data block, a free block, a block on each level, and one more for the root.
            let maps = level + 4;
            Needs::of(n, maps, maps + 2 * (level + 1) + 2)
        }
    })
}

/// What all forms need to know of the volume.
#[derive(Clone, Copy, Debug)]
struct Shape {
    v5: bool,
    ftype: bool,
    /// Bytes of a directory block.
    block_size: usize,
    /// Blocks of the volume that make one.
    blocks: u32,
    data: &'static Verifier,
}

impl Shape {
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

    /// Where data block `db` lies.
    fn data_at(&self, db: u64) -> FileBlock {
        FileBlock(db * u64::from(self.blocks))
    }

    /// How an index says the place of an entry.
    fn address(&self, db: u64, offset: usize) -> u32 {
        ((db * self.block_size as u64 + offset as u64) >> DATA_ALIGN_LOG) as u32
    }

    /// How many data blocks `di_size` makes.
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

/// A name to enter, with what follows from it.
struct New<'a> {
    hash: u32,
    /// Bytes that the entry takes in a data block.
    need: usize,
    data: NewDataEntry<'a>,
}

/// The form of a directory.
enum Form {
    Short,
    Block,
    /// Leaf or node: what lies at the index's root says which.
    Indexed,
}

impl Form {
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

/// What is said of a name that the caller had found and that is not there.
fn missing(fork: &dyn Fork) -> Error {
    Error::corrupt_inode(fork.inode(), FormatError::new(NAME, "entry: there is none of this name"))
}
