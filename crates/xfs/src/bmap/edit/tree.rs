//! A map's tree: the store for the generic B+tree core, and the conversion between tree and list.

use super::{ForkStore, MapEditor};
use crate::btree::edit::{Block, BtreeCursor, RootRef, TreeStore};
use crate::error::{Error, Result};
use std::ops::Range;
use xfs_format::bmbt::BmbtRecord;
use xfs_format::btree::{Bmbt, Tree};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::inode::ForkFormat;
use xfs_format::node_mut::{NO_BLOCK, NewBlock, NodeMut};
use xfs_format::types::{DiskAddr, FsBlock, InodeNumber};

/// The tree of one fork's map. Its root is kept aside until the map is finished.
pub(super) struct MapTree<'a, F: ForkStore> {
    store: &'a mut F,
    root: &'a mut Vec<u8>,
    blocks: &'a mut i64,
}

impl<F: ForkStore> TreeStore for MapTree<'_, F> {
    type Tree = Bmbt;

    fn geometry(&self) -> &Geometry {
        self.store.geometry()
    }
    fn owner(&self) -> u64 {
        self.store.ino().0
    }
    fn inode(&self) -> Option<InodeNumber> {
        Some(self.store.ino())
    }
    fn daddr(&self, pointer: u64) -> Option<DiskAddr> {
        self.store.geometry().extent_daddr(FsBlock(pointer), 1)
    }
    fn read(&self, pointer: u64) -> Result<Block<'_>> {
        self.store.read(FsBlock(pointer))
    }
    fn modify(&mut self, pointer: u64, ranges: &[Range<usize>]) -> Result<&mut [u8]> {
        self.store.modify(FsBlock(pointer), ranges)
    }
    fn create(&mut self, pointer: u64) -> Result<&mut [u8]> {
        self.store.create(FsBlock(pointer))
    }
    fn allocate(&mut self, near: u64) -> Result<u64> {
        let block = self.store.allocate(FsBlock(near))?;
        *self.blocks += 1;
        Ok(block.0)
    }
    fn free(&mut self, pointer: u64) -> Result<()> {
        self.store.free(FsBlock(pointer))?;
        *self.blocks -= 1;
        Ok(())
    }
    fn root(&self) -> RootRef<'_> {
        RootRef::Inline(self.root)
    }
    fn set_root(&mut self, root: RootRef<'_>) -> Result<()> {
        match root {
            RootRef::Inline(bytes) => {
                self.root.clear();
                self.root.extend_from_slice(bytes);
                Ok(())
            }
            RootRef::Block { pointer, .. } => {
                Err(Error::corrupt_inode(self.store.ino(), FormatError::value(Bmbt::NAME, "root", pointer)))
            }
        }
    }
}

impl<F: ForkStore> MapEditor<F> {
    pub(super) fn tree(&mut self) -> MapTree<'_, F> {
        MapTree { store: &mut self.store, root: &mut self.root, blocks: &mut self.blocks }
    }

    /// Converts the list to a tree: a root within the inode, and one leaf that has everything.
    pub(super) fn make_tree(&mut self) -> Result<()> {
        let ino = self.store.ino();
        let wrap = |problem| Error::corrupt_inode(ino, problem);
        let records: Vec<BmbtRecord> = self.list.records().collect();
        let Some(first) = records.first() else { return Ok(()) };
        let key = Bmbt::record_key(first);
        let near = first.unpack().startblock;
        let mut root = vec![0; self.room];
        NodeMut::<Bmbt>::create_inline_root(&mut root, 1).map_err(wrap)?;
        self.root = root;
        let mut tree = self.tree();
        let leaf = tree.allocate(near.0)?;
        let daddr = tree.daddr(leaf).ok_or(wrap(FormatError::value(Bmbt::NAME, "child pointer", leaf)))?;
        let uuid = tree.geometry().meta_uuid;
        let birth = NewBlock { level: 0, siblings: (NO_BLOCK, NO_BLOCK), daddr, uuid, owner: ino.0 };
        let mut node = NodeMut::<Bmbt>::create(tree.create(leaf)?, &birth).map_err(wrap)?;
        if records.len() > node.shape().capacity() {
            return Err(wrap(FormatError::value(Bmbt::NAME, "record count", records.len() as u64)));
        }
        node.set_records(&records);
        NodeMut::<Bmbt>::inline_root(&mut self.root).map_err(wrap)?.insert_child(0, &key, leaf);
        self.format = ForkFormat::Btree;
        Ok(())
    }

    /// Frees the tree's blocks, so that only the list is left.
    pub(super) fn make_list(&mut self) -> Result<()> {
        BtreeCursor::new(self.tree()).uproot()?;
        self.root.clear();
        self.format = ForkFormat::Extents;
        Ok(())
    }

    /// Prepares the fork for its new number of bytes in the inode. The caller moves forkoff once the map is finished.
    pub fn fit(&mut self, room: usize) -> Result<()> {
        if room / 16 == 0 && !self.list.is_empty() && room < 4 + 16 {
            let problem = FormatError::value("inode", "fork size", room as u64);
            return Err(Error::corrupt_inode(self.store.ino(), problem));
        }
        if self.format == ForkFormat::Btree && self.list.len() > room / 16 {
            let root = BtreeCursor::new(self.tree()).fit_root(room)?;
            self.root = root;
        }
        self.room = room;
        self.choose_format()
    }
}
