//! Changing B+trees: one core for all of them.
//!
//! A tree lies behind a [`TreeStore`], which knows where its root and its blocks are and in which transaction they
//! change; the core knows nothing of groups, inodes or logs. An [`Editor`] is a place in the tree, a path from the
//! root to a leaf, and changes the tree at that place.
//!
//! What holds after each change: ranks ascend strictly; every block but the root is at least half full; the key that
//! a block holds for a child is that of the child; siblings of one level form a chain; the root of a tree of blocks
//! has more than one child or is a leaf. A root within an inode may have one child, which is then as free as a root:
//! it may be less than half full. A change that fails half-way leaves the tree broken: the transaction is to be
//! dropped.
//!
//! The core goes through paths and never follows siblings further than by one step, which it checks. On the way down
//! levels fall, and what a child holds must lie within the keys around it; so a damaged tree is an error and never a
//! circle.
//!
//! ```text
//! seek_le, seek_ge, seek_eq, first, last   stand on a record, or between two
//! get, next, prev                          where it stands; one further
//! insert, update, delete                   change the tree there
//! visit                                    all records under those keys that are wanted
//! ```

mod check;
mod delete;
mod entries;
mod insert;
#[doc(hidden)]
pub mod memory;
mod path;
#[cfg(test)]
mod tests;
mod visit;

pub use check::{Census, check};
pub use path::{Editor, Path};

use crate::buf::Buf;
use crate::error::{Error, Result};
use std::ops::{Deref, Range};
use xfs_format::btree::Tree;
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::types::{DiskAddr, InodeNumber};

/// One tree within one transaction.
///
/// A pointer is what the tree's blocks hold: a block of the group for short trees, a block of the volume for block
/// maps. No method may be called for a pointer that [`daddr`](Self::daddr) refuses.
pub trait TreeStore {
    /// Which kind of tree it is.
    type Tree: Tree;

    /// The volume's shape. Trees of v5 volumes alone can be changed.
    fn geometry(&self) -> &Geometry;
    /// The group's or the inode's number, which blocks carry.
    fn owner(&self) -> u64;
    /// The inode, where the tree is of one: for messages.
    fn inode(&self) -> Option<InodeNumber> {
        None
    }
    /// Where a block lies on the device; `None` if it lies outside the group or volume, or where none can be.
    fn daddr(&self, pointer: u64) -> Option<DiskAddr>;
    /// A block as the transaction sees it, checked by the tree's verifier when it came from the device.
    fn read(&self, pointer: u64) -> Result<Block<'_>>;
    /// Locks a block that is about to be changed: looks at it then cost less.
    fn hold(&mut self, pointer: u64) -> Result<()> {
        let _ = pointer;
        Ok(())
    }
    /// All bytes of a block, for changing those in `ranges`, which are logged. Ranges may be empty.
    fn modify(&mut self, pointer: u64, ranges: &[Range<usize>]) -> Result<&mut [u8]>;
    /// The bytes of a block that [`allocate`](Self::allocate) just gave: zeroes. All of it is logged.
    fn create(&mut self, pointer: u64) -> Result<&mut [u8]>;
    /// A new block for the tree, near another one.
    fn allocate(&mut self, near: u64) -> Result<u64>;
    /// Gives a block back. What was changed in it is forgotten.
    fn free(&mut self, pointer: u64) -> Result<()>;
    /// The root as the transaction sees it.
    fn root(&self) -> RootRef<'_>;
    /// Replaces the root by one of the same form; [`RootRef::Inline`] brings all bytes of the fork.
    fn set_root(&mut self, root: RootRef<'_>) -> Result<()>;
}

impl<S: TreeStore> TreeStore for &mut S {
    type Tree = S::Tree;

    fn geometry(&self) -> &Geometry {
        (**self).geometry()
    }
    fn owner(&self) -> u64 {
        (**self).owner()
    }
    fn inode(&self) -> Option<InodeNumber> {
        (**self).inode()
    }
    fn daddr(&self, pointer: u64) -> Option<DiskAddr> {
        (**self).daddr(pointer)
    }
    fn read(&self, pointer: u64) -> Result<Block<'_>> {
        (**self).read(pointer)
    }
    fn hold(&mut self, pointer: u64) -> Result<()> {
        (**self).hold(pointer)
    }
    fn modify(&mut self, pointer: u64, ranges: &[Range<usize>]) -> Result<&mut [u8]> {
        (**self).modify(pointer, ranges)
    }
    fn create(&mut self, pointer: u64) -> Result<&mut [u8]> {
        (**self).create(pointer)
    }
    fn allocate(&mut self, near: u64) -> Result<u64> {
        (**self).allocate(near)
    }
    fn free(&mut self, pointer: u64) -> Result<()> {
        (**self).free(pointer)
    }
    fn root(&self) -> RootRef<'_> {
        (**self).root()
    }
    fn set_root(&mut self, root: RootRef<'_>) -> Result<()> {
        (**self).set_root(root)
    }
}

/// A block's bytes: those that all see, or those that the transaction changed.
#[derive(Debug)]
pub enum Block<'a> {
    /// As committed.
    Shared(Buf),
    /// Changed by this transaction.
    Private(&'a [u8]),
}

impl Deref for Block<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Block::Shared(buf) => buf,
            Block::Private(bytes) => bytes,
        }
    }
}

/// Where a tree begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootRef<'a> {
    /// A block of its own; a group header holds pointer and depth.
    Block {
        /// The root's block.
        pointer: u64,
        /// Levels, leaves included: at least 1.
        levels: u32,
    },
    /// Inside an inode: all the bytes that its fork may use.
    Inline(&'a [u8]),
}

/// The most blocks that inserting one record can allocate, in a tree of so many levels (a root within an inode is
/// one): every block of a path is split, and the root besides.
pub const fn blocks_to_insert(levels: u32) -> u32 {
    levels + 1
}

/// The most blocks that deleting one record can free.
pub const fn blocks_freed_by_delete(levels: u32) -> u32 {
    levels
}

/// The levels that a tree of blocks needs at most for `records` records.
pub fn levels_for<T: Tree>(geometry: &Geometry, records: u64) -> u32 {
    let body = (geometry.block_size as usize).saturating_sub(T::header_len(geometry.v5));
    let (leaf, inner) = ((T::max_records(body) / 2).max(1) as u64, (T::max_children(body) / 2).max(2) as u64);
    let mut blocks = records.div_ceil(leaf);
    let mut levels = 1;
    while blocks > 1 {
        blocks = blocks.div_ceil(inner);
        levels += 1;
    }
    levels
}

/// Damage in a tree's block, or in its root.
fn corrupt<S: TreeStore>(store: &S, pointer: Option<u64>, problem: FormatError) -> Error {
    Error::Corrupt { daddr: pointer.and_then(|pointer| store.daddr(pointer)), inode: store.inode(), problem }
}
