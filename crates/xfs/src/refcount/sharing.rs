//! Which blocks have more than one owner, according to the refcount trees.
//!
//! Invariant: no block in such a tree is ever written in place or added to the free space trees. Freeing blocks of a
//! file with the reflink flag decrements their refcount. A file without it must have no blocks in the tree, which is
//! checked before anything has changed, and again for each extent.

use crate::btree::Cursor;
use crate::buf::BufCache;
use crate::error::{Error, Result};
use crate::group::{Groups, Root};
use crate::ifork::ExtentList;
use parking_lot::RwLockReadGuard;
use std::cmp::Ordering;
use std::ops::Range;
use xfs_format::btree::{Refcountbt, Tree};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::records::RefcountRecord;
use xfs_format::types::{AgBlock, AgNumber, FileBlock, FsBlock, InodeNumber};

/// A run of blocks that are all shared or all not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedRun {
    /// Number of blocks from the requested one on.
    pub blocks: u64,
    /// Whether more than one file has them.
    pub shared: bool,
}

/// Reads which blocks are shared.
///
/// Whoever holds a file's range keeps its blocks from being shared again. Other files may give up theirs at any time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sharing<'a> {
    /// The buffers.
    pub bufs: &'a BufCache,
    /// The volume's shape.
    pub geometry: &'a Geometry,
    /// The groups' headers.
    pub groups: &'a Groups,
}

impl Sharing<'_> {
    /// What is known of `start` and up to `blocks` blocks from it, which lie in one group.
    pub(crate) fn run(&self, start: FsBlock, blocks: u64) -> Result<SharedRun> {
        let not_shared = SharedRun { blocks, shared: false };
        let Some((tree, first)) = self.tree_of(start)? else { return Ok(not_shared) };
        let mut cursor = tree.seek(self, first)?;
        while let Some(record) = cursor.next_record()? {
            // Extents that are staged for copy-on-write come last, and belong to no file.
            if record.startblock.get() & RefcountRecord::COW != 0 {
                break;
            }
            let (from, end) = tree.blocks(self, &record)?;
            if end <= u64::from(first) || record.refcount.get() < 2 {
                continue;
            }
            let first = u64::from(first);
            return Ok(if from <= first {
                SharedRun { blocks: blocks.min(end - first), shared: true }
            } else {
                SharedRun { blocks: blocks.min(from - first), shared: false }
            });
        }
        Ok(not_shared)
    }

    /// Whether a refcount tree has anything on `blocks` blocks from `start`, which lie in one group. Blocks with a
    /// single owner are in no tree. A file's or an intent's blocks must not be staged for a copy as well: that is
    /// corruption, because the next mount by a kernel frees what is staged.
    pub(crate) fn is_counted(&self, start: FsBlock, blocks: u64) -> Result<bool> {
        let Some((tree, first)) = self.tree_of(start)? else { return Ok(false) };
        let (first, end) = (u64::from(first), u64::from(first) + blocks);
        for staged in [0, RefcountRecord::COW] {
            let mut cursor = tree.seek(self, first as u32 | staged)?;
            while let Some(record) = cursor.next_record()? {
                let (from, to) = tree.blocks(self, &record)?;
                match (record.startblock.get() & RefcountRecord::COW).cmp(&staged) {
                    Ordering::Less => continue,
                    Ordering::Greater => break,
                    Ordering::Equal if from >= end => break,
                    Ordering::Equal if to > first && staged != 0 => {
                        let at = self.geometry.daddr_of(tree.ag, AgBlock(from.max(first) as u32));
                        let what = "owner (staged for copy-on-write)";
                        return Err(Error::corrupt_block(at, None, FormatError::new("extent", what)));
                    }
                    Ordering::Equal if to > first => return Ok(true),
                    Ordering::Equal => {}
                }
            }
        }
        Ok(false)
    }

    /// Fails with [`Error::Shared`] if any block that a fork maps in `blocks` has more than one owner.
    pub(crate) fn check(
        &self,
        ino: InodeNumber,
        extents: &ExtentList,
        blocks: Range<FileBlock>,
    ) -> Result<()> {
        if !self.geometry.reflink {
            return Ok(());
        }
        // Most volumes share nothing in most groups.
        let mut without = None;
        let mut at = blocks.start;
        while let Some(extent) = extents.ending_behind(at).filter(|extent| extent.startoff < blocks.end) {
            let from = at.max(extent.startoff);
            at = extent.end();
            let (skip, count) = (from.0 - extent.startoff.0, at.min(blocks.end).0 - from.0);
            let start = FsBlock(extent.startblock.0 + skip);
            let group = self.geometry.split_block(start).map(|(ag, _)| ag);
            if group == without {
                continue;
            }
            if self.is_counted(start, count).map_err(|error| error.of_inode(ino))? {
                return Err(Error::Shared(ino));
            }
            if self.counts_nothing(start)? {
                without = group;
            }
        }
        Ok(())
    }

    /// Whether nothing is shared in the whole group of a block.
    fn counts_nothing(&self, start: FsBlock) -> Result<bool> {
        let Some((tree, _)) = self.tree_of(start)? else { return Ok(true) };
        Ok(tree.seek(self, 0)?.next_record()?.is_none())
    }

    /// The tree for a block, and the block's number in its group.
    fn tree_of(&self, start: FsBlock) -> Result<Option<(CountTree<'_>, u32)>> {
        let Some((ag, first)) = self.geometry.split_block(start) else { return Ok(None) };
        let still = self.groups.counts_still();
        let root = self.groups.space(self.bufs, self.geometry, ag)?.refcountbt;
        Ok(root.map(|root| (CountTree { ag, root, _still: still }, first.0)))
    }
}

/// One group's refcount tree, which does not change meanwhile.
struct CountTree<'a> {
    ag: AgNumber,
    root: Root,
    _still: RwLockReadGuard<'a, ()>,
}

impl CountTree<'_> {
    /// Positioned before the last record that begins at or before `rank`.
    fn seek<'b>(&self, of: &Sharing<'b>, rank: u32) -> Result<Cursor<'b, Refcountbt>> {
        Cursor::seek(of.bufs, of.geometry, self.ag, self.root, Some(rank))
    }

    /// The blocks of its group that a record is about.
    fn blocks(&self, of: &Sharing<'_>, record: &RefcountRecord) -> Result<(u64, u64)> {
        let start = u64::from(record.startblock.get() & !RefcountRecord::COW);
        let len = u64::from(record.blockcount.get());
        if len == 0 || start + len > u64::from(of.geometry.ag_blocks_of(self.ag)) {
            let problem = FormatError::value(Refcountbt::NAME, "block count", len);
            let daddr = of.geometry.daddr_of(self.ag, self.root.block);
            return Err(Error::corrupt_block(daddr, None, problem));
        }
        Ok((start, start + len))
    }
}
