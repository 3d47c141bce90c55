//! Changing B+trees: one core for all of them.
//!
//! A tree lies behind a [`TreeStore`], which knows where its root and its blocks are and in which transaction they
//! change. The core knows nothing of groups, inodes or logs. A [`BtreeCursor`] is a position in the tree, a path from
//! the root to a leaf, and changes the tree there.
//!
//! Invariants after each change: ranks ascend strictly. Every block but the root is at least half full. The key that a
//! block has for a child is that of the child. Siblings of one level form a chain. The root of a tree of blocks has
//! more than one child or is a leaf. A root within an inode may have one child, which may then be less than half full,
//! like a root. A change that fails half-way leaves the tree broken: the transaction must be dropped.
//!
//! The core goes through paths and never follows siblings further than one step, which it checks. On the way down
//! levels decrease, and the content of a child must lie within the keys around it. So a damaged tree gives an error and
//! never an endless loop.
//!
//! ```text
//! seek_le, seek_ge, seek_eq, first, last   move to a record, or between two
//! get, next, prev                          the record there; the next or previous one
//! insert, update, delete                   change the tree there
//! visit                                    all records under the keys that are wanted
//! ```

mod check;
mod delete;
mod entries;
mod insert;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod memory;
mod path;
#[cfg(test)]
mod tests;
mod visit;

pub use check::{Census, check};
pub use path::BtreeCursor;

use crate::buf::Buf;
use crate::error::{Error, Result};
use std::ops::{Deref, Range};
use xfs_format::btree::Tree;
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::types::{DiskAddr, InodeNumber};

/// One tree in one transaction.
///
/// A pointer is what the tree's blocks hold: a block of the group for short-pointer trees, a block of the volume for
/// block maps. No method may be called with a pointer that [`daddr`](Self::daddr) refuses.
pub trait TreeStore {
    /// Which kind of tree it is.
    type Tree: Tree;

    /// The volume's shape. Only trees of v5 volumes can be changed.
    fn geometry(&self) -> &Geometry;
    /// The number of the group or inode, which every block carries.
    fn owner(&self) -> u64;
    /// The inode, if the tree belongs to one: for messages.
    fn inode(&self) -> Option<InodeNumber> {
        None
    }
    /// The disk address of a block. `None` if it lies outside of the group or volume, or where no tree block can be.
    fn daddr(&self, pointer: u64) -> Option<DiskAddr>;
    /// A block as the transaction sees it. The tree's verifier checks it when it is read from the device.
    fn read(&self, pointer: u64) -> Result<Block<'_>>;
    /// Locks a block that is about to be changed, which makes later looks at it cheaper.
    fn hold(&mut self, pointer: u64) -> Result<()> {
        let _ = pointer;
        Ok(())
    }
    /// All bytes of a block, for changing those in `ranges`, which are logged. Ranges may be empty.
    fn modify(&mut self, pointer: u64, ranges: &[Range<usize>]) -> Result<&mut [u8]>;
    /// The zeroed bytes of a block that [`allocate`](Self::allocate) just returned. All of it is logged.
    fn create(&mut self, pointer: u64) -> Result<&mut [u8]>;
    /// A new block for the tree, near another one.
    fn allocate(&mut self, near: u64) -> Result<u64>;
    /// Frees a block. Its changes are forgotten.
    fn free(&mut self, pointer: u64) -> Result<()>;
    /// The root as the transaction sees it.
    fn root(&self) -> RootRef<'_>;
    /// Replaces the root by one of the same form. [`RootRef::Inline`] has all bytes of the fork.
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

/// A block's bytes: the committed ones, or those that the transaction changed.
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

/// The root of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootRef<'a> {
    /// A block of its own. A group header has pointer and level count.
    Block {
        /// The root's block.
        pointer: u64,
        /// Levels, including leaves: at least 1.
        levels: u32,
    },
    /// Within an inode: all bytes that its fork may use.
    Inline(&'a [u8]),
}

/// Corruption in a tree block or in the root.
fn corrupt<S: TreeStore>(store: &S, pointer: Option<u64>, problem: FormatError) -> Error {
    Error::Corrupt { daddr: pointer.and_then(|pointer| store.daddr(pointer)), inode: store.inode(), problem }
}
