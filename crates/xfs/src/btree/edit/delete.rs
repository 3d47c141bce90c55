//! Deleting records: in place. Then a block that is less than half full is joined with a sibling or borrows from it,
//! and a root with one child is removed.

use super::entries::Entries;
use super::path::{BtreeCursor, CursorLevel, NodeRef, RecordOf, TreeOf};
use super::{RootRef, TreeStore, corrupt};
use crate::error::Result;
use xfs_format::btree::Tree;
use xfs_format::error::FormatError;
use xfs_format::node_mut::NO_BLOCK;

impl<S: TreeStore> BtreeCursor<S> {
    /// Deletes the record at the cursor and returns it. Afterwards the cursor is between its neighbours. `None` if the
    /// cursor is not on a record.
    pub fn delete(&mut self) -> Result<Option<RecordOf<S>>> {
        let Some(record) = self.get()? else { return Ok(None) };
        self.path.on = false;
        if self.remove_entry()? {
            self.stand_before(TreeOf::<S>::record_rank(&record))?;
        }
        Ok(Some(record))
    }

    /// Frees the blocks of a tree whose root lies within an inode and whose records fit into one leaf. The root stays
    /// as it was: the caller converts the fork.
    pub fn uproot(&mut self) -> Result<()> {
        self.first()?;
        for level in (1..self.path.levels).rev() {
            let count = self.at(level, |node| Ok(node.count()))?;
            if count != 1 {
                return Err(self.damage(
                    level,
                    FormatError::mismatch(TreeOf::<S>::NAME, "record count", count as u64, 1),
                ));
            }
        }
        for level in 0..self.path.levels {
            if let NodeRef::Block(pointer) = self.path.steps[level].node {
                self.store.free(pointer)?;
            }
        }
        self.path.levels = 0;
        Ok(())
    }

    /// Removes the leaf's entry of the path. Returns `true` if entries moved, so that the path is invalid.
    fn remove_entry(&mut self) -> Result<bool> {
        let mut level = 0;
        loop {
            let CursorLevel { node: place, index } = self.path.steps[level];
            let shape = self.shape(level)?;
            let count = self.at(level, |node| Ok(node.count()))?;
            // The entries behind it move up by one. The last slot is left as it is.
            let [one, two] = shape.entries(index..count.saturating_sub(1).max(index));
            self.change(place, &[shape.counts(), one, two], |node| node.remove(index))?;
            let count = count - 1;
            if level + 1 == self.path.levels {
                let shrunk = self.shrink_root()?;
                return Ok(shrunk || level > 0);
            }
            if (index == 0 || TreeOf::<S>::OVERLAPPING) && count > 0 {
                self.fix_keys(level)?;
            }
            if count >= shape.least() {
                return Ok(level > 0);
            }
            let (left, right) = self.siblings_under_parent(level)?;
            let parent = self.path.steps[level + 1].index;
            let (pair, right_child) = match (place.pointer(), left, right) {
                (Some(own), Some(left), _) => ([left, own], parent),
                (Some(own), None, Some(right)) => ([own, right], parent + 1),
                // The only child of a root within an inode.
                _ => {
                    let shrunk = self.shrink_root()?;
                    return Ok(shrunk || level > 0);
                }
            };
            if !self.refill(level, pair, right_child)? {
                return Ok(true);
            }
            // The right one is gone, and so is its entry in the parent.
            self.path.steps[level + 1].index = right_child;
            level += 1;
        }
    }

    /// Two neighbours, one of them less than half full, are joined or share evenly. Returns `true` if the right one is
    /// gone.
    fn refill(&mut self, level: usize, pair: [u64; 2], right_child: usize) -> Result<bool> {
        let [left, right] = pair;
        for pointer in pair {
            self.read(NodeRef::Block(pointer), level, true, |_| Ok(()))?;
        }
        self.check_pair(pair)?;
        let entries = self.gather(pair, 0)?;
        let total = entries.len();
        if total > self.shape(level)?.capacity() {
            self.deal(level, pair, right_child, entries, total.div_ceil(2))?;
            if TreeOf::<S>::OVERLAPPING {
                self.fix_keys_of_pair(level, left, right_child - 1)?;
            }
            return Ok(false);
        }
        self.join(level, left, right, &entries)?;
        if right_child == 1 || TreeOf::<S>::OVERLAPPING {
            self.fix_keys_of_pair(level, left, right_child - 1)?;
        }
        Ok(true)
    }

    /// Moves all entries of two neighbours into the left one and frees the right one.
    fn join(&mut self, level: usize, left: u64, right: u64, entries: &Entries<TreeOf<S>>) -> Result<()> {
        let (_, beyond) = self.view(NodeRef::Block(right), |node| Ok(node.siblings()))?;
        if beyond != NO_BLOCK {
            self.relink(right, beyond, level, left)?;
        }
        self.rewrite(left, entries, Some(beyond))?;
        self.store.free(right)
    }

    /// Removes levels while the root has a single child that can replace it. Returns `true` if there was one.
    fn shrink_root(&mut self) -> Result<bool> {
        let mut shrunk = false;
        // Each iteration removes a level.
        loop {
            let (place, levels) = self.top()?;
            let (count, pointer, room) =
                self.view(place, |node| Ok((node.count(), node.pointer(0), node.capacity())))?;
            let least = if place == NodeRef::Inline { 3 } else { 2 };
            if levels < least || count != 1 {
                return Ok(shrunk);
            }
            let child = self.child(place, pointer)?;
            let level = levels - 2;
            match place {
                NodeRef::Block(old) => {
                    self.read(NodeRef::Block(child), level, true, |_| Ok(()))?;
                    self.store.set_root(RootRef::Block { pointer: child, levels: levels as u32 - 1 })?;
                    self.store.free(old)?;
                }
                NodeRef::Inline => {
                    let entries = self.read(NodeRef::Block(child), level, false, |node| {
                        Ok((node.count() <= room).then(|| Entries::of(node, 0)))
                    })?;
                    let Some(Entries::Children(children)) = entries else { return Ok(shrunk) };
                    self.replace_inline_root(level as u16, &children)?;
                    self.store.free(child)?;
                }
            }
            shrunk = true;
        }
    }

    /// Prepares a root within an inode for a fork of `bytes` bytes. Returns the future content of the fork. A root that
    /// needs more space moves into a block. The store's fork is left for the caller to replace.
    pub fn fit_root(&mut self, bytes: usize) -> Result<Vec<u8>> {
        let room = TreeOf::<S>::max_children(bytes.saturating_sub(4));
        if room == 0 {
            return Err(corrupt(
                &self.store,
                None,
                FormatError::value(TreeOf::<S>::NAME, "length", bytes as u64),
            ));
        }
        if self.view(NodeRef::Inline, |node| Ok(node.count()))? > room {
            self.push_down_root()?;
        }
        self.path.levels = 0;
        let (entries, level) = self.view(NodeRef::Inline, |node| Ok((Entries::of(node, 0), node.level())))?;
        let mut fork = vec![0; bytes];
        let mut root = xfs_format::node_mut::NodeMut::create_inline_root(&mut fork, level)
            .map_err(|problem| corrupt(&self.store, None, problem))?;
        entries.write(&mut root);
        Ok(fork)
    }
}
