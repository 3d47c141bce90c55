//! A tree in plain memory, for tests of tree changes.
//!
//! Beside each block it keeps what the log would know of it. A change outside of the logged ranges panics at the next
//! [`settle`](MemoryStore::settle).

use super::{Block, RootRef, TreeStore};
use crate::error::{Error, Result};
use crate::testing;
use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::ops::Range;
use xfs_format::btree::{Tree, Width};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::node_mut::{NO_BLOCK, NewBlock, NodeMut};
use xfs_format::types::{AgBlock, AgNumber, DiskAddr, FsBlock};

/// A tree in memory.
#[derive(Clone, Debug)]
pub struct MemoryStore<T: Tree> {
    geometry: Geometry,
    /// Each block as it is, and as the log knows it.
    blocks: BTreeMap<u64, (Vec<u8>, Vec<u8>)>,
    named: Vec<(u64, Range<usize>)>,
    freed: Vec<u64>,
    next: u64,
    root: Root,
    /// Blocks that may still be allocated.
    pub left: u64,
    /// Whether changes are no longer checked, for histories that are only timed.
    pub unwatched: bool,
    tree: PhantomData<T>,
}

#[derive(Clone, Debug)]
enum Root {
    Block(u64, u32),
    Inline(Vec<u8>),
}

const OWNER: u64 = 3;

impl<T: Tree> MemoryStore<T> {
    /// An empty tree with a leaf as its root.
    pub fn with_block_root(block_log: u8) -> Self {
        let mut store = Self::without_root(block_log);
        let root = store.leaf();
        store.root = Root::Block(root, 1);
        store
    }

    /// An empty tree with a root within an inode, whose fork has `bytes` bytes, and one leaf.
    pub fn with_inline_root(block_log: u8, bytes: usize, key: &T::Key) -> Self {
        let mut store = Self::without_root(block_log);
        let leaf = store.leaf();
        let mut fork = vec![0; bytes];
        NodeMut::<T>::create_inline_root(&mut fork, 1).expect("a fork with room").insert_child(0, key, leaf);
        store.root = Root::Inline(fork);
        store
    }

    fn without_root(block_log: u8) -> Self {
        Self {
            geometry: testing::geometry(true, block_log, 0),
            blocks: BTreeMap::new(),
            named: Vec::new(),
            freed: Vec::new(),
            next: 8,
            root: Root::Inline(Vec::new()),
            left: u64::MAX,
            unwatched: false,
            tree: PhantomData,
        }
    }

    fn leaf(&mut self) -> u64 {
        let at = self.allocate(8).expect("the first block");
        let daddr = self.daddr(at).expect("a place");
        let uuid = self.geometry.meta_uuid;
        let birth = NewBlock { level: 0, siblings: (NO_BLOCK, NO_BLOCK), daddr, uuid, owner: OWNER };
        NodeMut::<T>::create(self.create(at).expect("a block"), &birth).expect("a leaf");
        at
    }

    /// How many blocks the tree has.
    pub fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// How many blocks were changed since the last [`settle`](Self::settle).
    pub fn changed_blocks(&self) -> usize {
        self.named.iter().map(|(pointer, _)| pointer).collect::<BTreeSet<_>>().len()
    }

    /// A block, in order to damage it.
    pub fn block_mut(&mut self, nth: usize) -> Option<&mut Vec<u8>> {
        self.blocks.values_mut().nth(nth).map(|(now, _)| now)
    }

    /// Checks that nothing changed but what was logged, and takes the present state as logged.
    ///
    /// # Panics
    /// If something else changed.
    pub fn settle(&mut self) {
        for (pointer, range) in std::mem::take(&mut self.named) {
            if let Some((now, logged)) = self.blocks.get_mut(&pointer) {
                logged[range.clone()].copy_from_slice(&now[range]);
            }
        }
        for (pointer, (now, logged)) in &self.blocks {
            if now != logged {
                let at = now.iter().zip(logged).position(|(now, logged)| now != logged);
                panic!("block {pointer} changed at byte {at:?} without being logged");
            }
        }
    }

    fn missing(&self, pointer: u64) -> Error {
        Error::corrupt_block(DiskAddr(pointer), None, FormatError::value(T::NAME, "no such block", pointer))
    }
}

impl<T: Tree> TreeStore for MemoryStore<T> {
    type Tree = T;

    fn geometry(&self) -> &Geometry {
        &self.geometry
    }
    fn owner(&self) -> u64 {
        OWNER
    }
    fn daddr(&self, pointer: u64) -> Option<DiskAddr> {
        let (ag, block) = match T::WIDTH {
            Width::Short => (AgNumber(OWNER as u32), AgBlock(u32::try_from(pointer).ok()?)),
            Width::Long => self.geometry.split_block(FsBlock(pointer))?,
        };
        (block.0 < self.geometry.ag_blocks_of(ag)).then(|| self.geometry.daddr_of(ag, block))
    }
    fn read(&self, pointer: u64) -> Result<Block<'_>> {
        let (now, _) = self.blocks.get(&pointer).ok_or_else(|| self.missing(pointer))?;
        Ok(Block::Private(now))
    }
    fn modify(&mut self, pointer: u64, ranges: &[Range<usize>]) -> Result<&mut [u8]> {
        let missing = self.missing(pointer);
        if !self.unwatched {
            self.named.extend(ranges.iter().map(|range| (pointer, range.clone())));
        }
        self.blocks.get_mut(&pointer).map(|(now, _)| &mut now[..]).ok_or(missing)
    }
    fn create(&mut self, pointer: u64) -> Result<&mut [u8]> {
        let missing = self.missing(pointer);
        let len = self.geometry.block_size as usize;
        self.named.push((pointer, 0..len));
        let (now, _) = self.blocks.get_mut(&pointer).ok_or(missing)?;
        now.fill(0);
        Ok(now)
    }
    fn allocate(&mut self, _near: u64) -> Result<u64> {
        if self.left == 0 {
            return Err(Error::ReadOnly("no more blocks"));
        }
        self.left -= 1;
        let pointer = self.freed.pop().unwrap_or(self.next);
        self.next = self.next.max(pointer + 1);
        // The old content is garbage.
        let len = self.geometry.block_size as usize;
        self.blocks.insert(pointer, (vec![0xa5; len], vec![0xa5; len]));
        Ok(pointer)
    }
    fn free(&mut self, pointer: u64) -> Result<()> {
        let missing = self.missing(pointer);
        self.blocks.remove(&pointer).ok_or(missing)?;
        self.freed.push(pointer);
        Ok(())
    }
    fn root(&self) -> RootRef<'_> {
        match &self.root {
            Root::Block(pointer, levels) => RootRef::Block { pointer: *pointer, levels: *levels },
            Root::Inline(fork) => RootRef::Inline(fork),
        }
    }
    fn set_root(&mut self, root: RootRef<'_>) -> Result<()> {
        self.root = match root {
            RootRef::Block { pointer, levels } => Root::Block(pointer, levels),
            RootRef::Inline(fork) => Root::Inline(fork.to_vec()),
        };
        Ok(())
    }
}
