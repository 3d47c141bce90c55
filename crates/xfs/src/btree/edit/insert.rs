//! Inserting records: in place if the leaf has room; otherwise by sharing with a sibling, by a split, or by a new
//! level.
//!
//! A full block shares with the sibling under the same parent that has more room, and splits only if both are full. If
//! records come in ascending (or descending) order, the sibling is filled completely, so that files written from front
//! to back have full blocks.

use super::entries::{Entries, Entry, key_of, rank_range};
use super::path::{Aim, BtreeCursor, CursorLevel, KeyOf, NodeRef, RecordOf, TreeOf};
use super::{RootRef, TreeStore, corrupt};
use crate::error::Result;
use std::ops::Range;
use xfs_format::ag::MAX_LEVELS;
use xfs_format::btree::Tree;
use xfs_format::error::FormatError;
use xfs_format::node_mut::{NO_BLOCK, NewBlock, NodeMut, NodeShape, same};

impl<S: TreeStore> BtreeCursor<S> {
    /// Inserts a record where it belongs and moves to it. If there is a record of the same rank, that is corruption.
    pub fn insert(&mut self, record: RecordOf<S>) -> Result<()> {
        let rank = TreeOf::<S>::record_rank(&record);
        if !self.fits_here(rank)? && self.seek_eq(rank)?.is_some() {
            let problem = FormatError::new(TreeOf::<S>::NAME, "record that is there already");
            return Err(self.damage(0, problem));
        }
        self.path.on = true;
        if self.insert_entry(Entry::Record(record))? {
            self.seek_eq(rank)?;
        }
        Ok(())
    }

    /// Replaces the record at the cursor. The new one must belong between the same neighbours.
    pub fn update(&mut self, record: RecordOf<S>) -> Result<()> {
        let rank = TreeOf::<S>::record_rank(&record);
        let index = self.path.steps[0].index;
        let ok = self.path.levels > 0
            && self.path.on
            && self.at(0, |node| {
                let rank_at = |index: usize| node.records().get(index).map(TreeOf::<S>::record_rank);
                let before = index.checked_sub(1).and_then(rank_at);
                Ok(index < node.count()
                    && before.is_none_or(|before| before < rank)
                    && rank_at(index + 1).is_none_or(|behind| rank < behind))
            })?;
        if !ok {
            return Err(self.damage(0, FormatError::new(TreeOf::<S>::NAME, "order of records")));
        }
        let range = self.shape(0)?.records(index..index + 1);
        self.change(self.path.steps[0].node, &[range], |node| node.set_record(index, &record))?;
        if index == 0 || TreeOf::<S>::OVERLAPPING {
            self.fix_keys(0)?;
        }
        Ok(())
    }

    /// Whether a record of this rank belongs at the present position, strictly within the leaf.
    fn fits_here(&mut self, rank: <TreeOf<S> as Tree>::Rank) -> Result<bool> {
        if self.path.levels == 0 {
            return Ok(false);
        }
        let index = self.path.steps[0].index + usize::from(self.path.on);
        let fits = self.at(0, |node| {
            let rank_at = |index: usize| node.records().get(index).map(TreeOf::<S>::record_rank);
            let before = index.checked_sub(1).and_then(rank_at);
            Ok(before.is_some_and(|before| before < rank)
                && rank_at(index).is_some_and(|behind| rank < behind))
        })?;
        if fits {
            self.path.steps[0].index = index;
        }
        Ok(fits)
    }

    /// Inserts an entry at the leaf's index. Returns `true` if entries moved, so that the path is invalid.
    fn insert_entry(&mut self, mut entry: Entry<TreeOf<S>>) -> Result<bool> {
        let mut level = 0;
        let mut moved = false;
        loop {
            let CursorLevel { node: place, index } = self.path.steps[level];
            let shape = self.shape(level)?;
            let count = self.at(level, |node| Ok(node.count()))?;
            if count < shape.capacity() {
                self.put(place, shape, index, count, &entry)?;
                if index == 0 || TreeOf::<S>::OVERLAPPING {
                    self.fix_keys(level)?;
                }
                return Ok(moved);
            }
            moved = true;
            if level + 1 == self.path.levels {
                self.add_level(level)?;
                // A root within an inode became a block, which has room.
                continue;
            }
            if self.share(level, &entry)? {
                return Ok(true);
            }
            entry = self.split(level, &entry)?;
            level += 1;
            self.path.steps[level].index += 1;
        }
    }

    /// Inserts an entry into a block that has room.
    fn put(
        &mut self,
        place: NodeRef,
        shape: NodeShape<TreeOf<S>>,
        index: usize,
        count: usize,
        entry: &Entry<TreeOf<S>>,
    ) -> Result<()> {
        let [first, second] = shape.entries(index..count + 1);
        self.change(place, &[shape.counts(), first, second], |node| match entry {
            Entry::Record(record) => node.insert_record(index, record),
            Entry::Child(key, pointer) => node.insert_child(index, key, *pointer),
        })
    }

    /// A full block gives entries to a sibling under the same parent, the new entry included. Returns `false` if both
    /// siblings are full too.
    fn share(&mut self, level: usize, entry: &Entry<TreeOf<S>>) -> Result<bool> {
        let index = self.path.steps[level].index;
        let (left, right) = self.siblings_under_parent(level)?;
        let room = |sibling: Option<u64>| -> Result<Option<(u64, usize)>> {
            let Some(pointer) = sibling else { return Ok(None) };
            self.read(NodeRef::Block(pointer), level, false, |node| {
                Ok((node.count() < node.capacity()).then_some((pointer, node.capacity() - node.count())))
            })
        };
        let (left_room, right_room) = (room(left)?, room(right)?);
        let count = self.at(level, |node| Ok(node.count()))?;
        let (appends, prepends) = (index == count && right.is_none(), index == 0 && left.is_none());
        let parent = self.path.steps[level + 1].index;
        let Some(own) = self.path.steps[level].node.pointer() else { return Ok(false) };
        let use_left = match (left_room, right_room) {
            (None, None) => return Ok(false),
            (Some((_, left)), Some((_, right))) => left >= right,
            (left, _) => left.is_some(),
        };
        let (pair, at, right_child) = match (left_room, right_room) {
            (Some((left, _)), _) if use_left => {
                let before = self.view(NodeRef::Block(left), |node| Ok(node.count()))?;
                ([left, own], before + index, parent)
            }
            (_, Some((right, _))) => ([own, right], index, parent + 1),
            _ => return Ok(false),
        };
        self.check_pair(pair)?;
        let mut entries = self.gather(pair, 1)?;
        entries.insert(at, entry);
        let shape = self.shape(level)?;
        let (total, most, least) = (entries.len(), shape.capacity(), shape.least());
        let cut = if appends && use_left {
            most.min(total.saturating_sub(least))
        } else if prepends && !use_left {
            total.saturating_sub(most).max(least)
        } else {
            total.div_ceil(2)
        };
        self.deal(level, pair, right_child, entries, cut)?;
        if (index == 0 && !use_left) || TreeOf::<S>::OVERLAPPING {
            self.fix_keys_of_pair(level, pair[0], right_child - 1)?;
        }
        Ok(true)
    }

    /// Splits a full block in the middle, the new entry included. Returns the parent's entry for the new block.
    fn split(&mut self, level: usize, entry: &Entry<TreeOf<S>>) -> Result<Entry<TreeOf<S>>> {
        let CursorLevel { node: place, index } = self.path.steps[level];
        let Some(own) = place.pointer() else {
            return Err(self.damage(level, FormatError::new(TreeOf::<S>::NAME, "root")));
        };
        let (mut entries, (_, right)) = self.at(level, |node| Ok((Entries::of(node, 1), node.siblings())))?;
        entries.insert(index, entry);
        let new_entries = entries.split_off(entries.len().div_ceil(2));
        let new = self.store.allocate(own)?;
        if right != NO_BLOCK {
            self.relink(own, right, level, new)?;
        }
        self.make(new, level as u16, (own, right), &new_entries)?;
        self.rewrite(own, &entries, Some(new))?;
        if index == 0 || TreeOf::<S>::OVERLAPPING {
            self.fix_keys(level)?;
        }
        match new_entries.key() {
            Some(key) => Ok(Entry::Child(key, new)),
            None => Err(self.damage(level, FormatError::value(TreeOf::<S>::NAME, "record count", 0))),
        }
    }

    /// Tells the right sibling of a block about its new left sibling.
    pub(super) fn relink(&mut self, own: u64, right: u64, level: usize, new_left: u64) -> Result<()> {
        let right = self.child(NodeRef::Block(own), Some(right))?;
        let left = self.read(NodeRef::Block(right), level, false, |node| Ok(node.siblings().0))?;
        if left != own {
            let problem = FormatError::mismatch(TreeOf::<S>::NAME, "left sibling", left, own);
            return Err(corrupt(&self.store, Some(right), problem));
        }
        let range = self.shape(level)?.siblings();
        self.change(NodeRef::Block(right), &[range], |node| node.set_left(new_left))
    }

    /// Adds a level at the top: a root block gets a parent; a root within an inode moves into a block.
    fn add_level(&mut self, level: usize) -> Result<()> {
        if level + 1 >= MAX_LEVELS as usize {
            let problem =
                FormatError::mismatch(TreeOf::<S>::NAME, "tree depth", level as u64 + 2, MAX_LEVELS.into());
            return Err(self.damage(level, problem));
        }
        match self.path.steps[level].node {
            NodeRef::Inline => {
                let new = self.push_down_root()?;
                self.path.steps[level].node = NodeRef::Block(new);
                self.path.steps[level + 1] = CursorLevel { node: NodeRef::Inline, index: 0 };
            }
            NodeRef::Block(old) => {
                let new = self.store.allocate(old)?;
                let Some(key) = self.at(level, |node| Ok(key_of(node)))? else {
                    return Err(self.damage(level, FormatError::value(TreeOf::<S>::NAME, "record count", 0)));
                };
                let children = Entries::Children(vec![(key, old)]);
                self.make(new, level as u16 + 1, (NO_BLOCK, NO_BLOCK), &children)?;
                self.store.set_root(RootRef::Block { pointer: new, levels: level as u32 + 2 })?;
                self.path.steps[level + 1] = CursorLevel { node: NodeRef::Block(new), index: 0 };
            }
        }
        self.path.levels = level + 2;
        Ok(())
    }

    /// Moves the children of a root within an inode into a new block, which becomes its only child. Also used when the
    /// fork gets less space than its root needs. Any path is invalid afterwards.
    pub(super) fn push_down_root(&mut self) -> Result<u64> {
        let (entries, level, near) =
            self.view(NodeRef::Inline, |node| Ok((Entries::of(node, 0), node.level(), node.pointer(0))))?;
        let near = self.child(NodeRef::Inline, near)?;
        let new = self.store.allocate(near)?;
        self.make(new, level, (NO_BLOCK, NO_BLOCK), &entries)?;
        let Some(key) = entries.key() else {
            return Err(corrupt(&self.store, None, FormatError::value(TreeOf::<S>::NAME, "record count", 0)));
        };
        self.replace_inline_root(level + 1, &[(key, new)])?;
        Ok(new)
    }

    /// Rewrites a root within the inode.
    pub(super) fn replace_inline_root(&mut self, level: u16, children: &[(KeyOf<S>, u64)]) -> Result<()> {
        let mut fork = match self.store.root() {
            RootRef::Inline(fork) => vec![0; fork.len()],
            RootRef::Block { .. } => Vec::new(),
        };
        let mut root = NodeMut::<TreeOf<S>>::create_inline_root(&mut fork, level)
            .map_err(|problem| corrupt(&self.store, None, problem))?;
        root.set_children(children);
        self.store.set_root(RootRef::Inline(&fork))
    }

    /// Fills a block that was just allocated.
    fn make(
        &mut self,
        pointer: u64,
        level: u16,
        siblings: (u64, u64),
        entries: &Entries<TreeOf<S>>,
    ) -> Result<()> {
        let pointer = self.child(NodeRef::Block(pointer), Some(pointer))?;
        let daddr = self.store.daddr(pointer).unwrap_or_default();
        let (uuid, owner) = (self.store.geometry().meta_uuid, self.store.owner());
        let bytes = self.store.create(pointer)?;
        let birth = NewBlock { level, siblings, daddr, uuid, owner };
        match NodeMut::create(bytes, &birth) {
            Ok(mut node) => {
                entries.write(&mut node);
                Ok(())
            }
            Err(problem) => Err(corrupt(&self.store, Some(pointer), problem)),
        }
    }

    /// The layout of the path's block on this level.
    pub(super) fn shape(&self, level: usize) -> Result<NodeShape<TreeOf<S>>> {
        let geometry = self.store.geometry();
        Ok(match self.path.steps[level].node {
            NodeRef::Block(_) => NodeShape::block(geometry.block_size as usize, geometry.v5, level as u16),
            NodeRef::Inline => match self.store.root() {
                RootRef::Inline(fork) => NodeShape::inline_root(fork.len(), level as u16),
                RootRef::Block { pointer, .. } => {
                    return Err(self.damage(level, FormatError::value(TreeOf::<S>::NAME, "root", pointer)));
                }
            },
        })
    }

    /// The siblings of a block of the path under its parent.
    pub(super) fn siblings_under_parent(&self, level: usize) -> Result<(Option<u64>, Option<u64>)> {
        let parent = self.path.steps[level + 1];
        let (left, right) = self.at(level + 1, |node| {
            let left = parent.index.checked_sub(1).and_then(|index| node.pointer(index));
            Ok((left, node.pointer(parent.index + 1)))
        })?;
        let check =
            |pointer: Option<u64>| pointer.map(|pointer| self.child(parent.node, Some(pointer))).transpose();
        Ok((check(left)?, check(right)?))
    }

    /// Two neighbours under one parent must point to each other.
    pub(super) fn check_pair(&self, [left, right]: [u64; 2]) -> Result<()> {
        let wrap = |pointer, problem| Err(corrupt(&self.store, Some(pointer), problem));
        let (_, found) = self.view(NodeRef::Block(left), |node| Ok(node.siblings()))?;
        if found != right {
            return wrap(left, FormatError::mismatch(TreeOf::<S>::NAME, "right sibling", found, right));
        }
        let (found, _) = self.view(NodeRef::Block(right), |node| Ok(node.siblings()))?;
        if found != left {
            return wrap(right, FormatError::mismatch(TreeOf::<S>::NAME, "left sibling", found, left));
        }
        Ok(())
    }

    /// The entries of two neighbours.
    pub(super) fn gather(&self, [left, right]: [u64; 2], more: usize) -> Result<Entries<TreeOf<S>>> {
        let (right, last) =
            self.view(NodeRef::Block(right), |node| Ok((Entries::of(node, 0), rank_range(node))))?;
        let (mut entries, first) = self.view(NodeRef::Block(left), |node| {
            Ok((Entries::of(node, right.len() + more), rank_range(node)))
        })?;
        if let (Some((_, left_last)), Some((right_first, _))) = (first, last)
            && left_last >= right_first
        {
            return Err(corrupt(
                &self.store,
                Some(left),
                FormatError::new(TreeOf::<S>::NAME, "order of records"),
            ));
        }
        entries.append(right);
        Ok(entries)
    }

    /// Gives the first `cut` entries to the left one of two neighbours and the others to the right one, and updates the
    /// right one's key in the parent.
    pub(super) fn deal(
        &mut self,
        level: usize,
        [left, right]: [u64; 2],
        right_child: usize,
        mut entries: Entries<TreeOf<S>>,
        cut: usize,
    ) -> Result<()> {
        let right_entries = entries.split_off(cut);
        self.rewrite(left, &entries, None)?;
        self.rewrite(right, &right_entries, None)?;
        let parent = self.path.steps[level + 1].node;
        let Some(key) = right_entries.key() else {
            return Err(self.damage(level, FormatError::value(TreeOf::<S>::NAME, "record count", 0)));
        };
        let range = self.shape(level + 1)?.keys(right_child..right_child + 1);
        self.change(parent, &[range], |node| node.set_key(right_child, &key))
    }

    /// After two neighbours changed: updates the left one's key in the parent, and the parent's key in the blocks
    /// above.
    pub(super) fn fix_keys_of_pair(&mut self, level: usize, left: u64, left_child: usize) -> Result<()> {
        let Some(key) = self.view(NodeRef::Block(left), |node| Ok(key_of(node)))? else { return Ok(()) };
        self.set_child_key(level + 1, left_child, key)?;
        self.fix_keys(level + 1)
    }

    /// Rewrites a block's entries, logging from the first that changes.
    pub(super) fn rewrite(
        &mut self,
        pointer: u64,
        entries: &Entries<TreeOf<S>>,
        new_right: Option<u64>,
    ) -> Result<()> {
        let (first, level) =
            self.view(NodeRef::Block(pointer), |node| Ok((entries.first_difference(node), node.level())))?;
        let geometry = self.store.geometry();
        let shape = NodeShape::<TreeOf<S>>::block(geometry.block_size as usize, geometry.v5, level);
        let [one, two] = shape.entries(first..entries.len().max(first));
        let siblings: Range<usize> = if new_right.is_some() { shape.siblings() } else { 0..0 };
        self.change(NodeRef::Block(pointer), &[shape.counts(), siblings, one, two], |node| {
            entries.write(node);
            if let Some(right) = new_right {
                node.set_right(right);
            }
        })
    }

    /// Updates the key of the path's block on this level in the blocks above, as far up as it matters.
    pub(super) fn fix_keys(&mut self, mut level: usize) -> Result<()> {
        while level + 1 < self.path.levels {
            let Some(key) = self.at(level, |node| Ok(key_of(node)))? else { return Ok(()) };
            level += 1;
            let index = self.path.steps[level].index;
            if !self.set_child_key(level, index, key)? || (index > 0 && !TreeOf::<S>::OVERLAPPING) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Sets the key of a child of the path's block on this level. Returns `false` if it was the same.
    fn set_child_key(&mut self, level: usize, index: usize, key: KeyOf<S>) -> Result<bool> {
        if self.at(level, |node| Ok(node.keys().get(index).is_some_and(|old| same(old, &key))))? {
            return Ok(false);
        }
        let range = self.shape(level)?.keys(index..index + 1);
        self.change(self.path.steps[level].node, &[range], |node| node.set_key(index, &key))?;
        Ok(true)
    }

    /// Moves to where a record of this rank is or would be, on no record.
    pub(super) fn stand_before(&mut self, rank: <TreeOf<S> as Tree>::Rank) -> Result<()> {
        self.descend(Aim::Rank(rank))?;
        let index = self.at(0, |node| {
            Ok(node.records().partition_point(|record| TreeOf::<S>::record_rank(record) < rank))
        })?;
        self.path.on = false;
        self.path.steps[0].index = index;
        Ok(())
    }
}
