//! A position in a tree: finding it, and moving by one record.

use super::entries::rank_range;
use super::{RootRef, TreeStore, corrupt};
use crate::error::{Error, Result};
use std::ops::Range;
use xfs_format::ag::MAX_LEVELS;
use xfs_format::btree::{Node, Tree};
use xfs_format::error::FormatError;
use xfs_format::node_mut::NodeMut;

pub(super) type TreeOf<S> = <S as TreeStore>::Tree;
pub(super) type RecordOf<S> = <TreeOf<S> as Tree>::Record;
pub(super) type KeyOf<S> = <TreeOf<S> as Tree>::Key;
pub(super) type RankOf<S> = <TreeOf<S> as Tree>::Rank;

/// A block of a tree, or the root within an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeRef {
    Inline,
    Block(u64),
}

impl NodeRef {
    pub(super) fn pointer(self) -> Option<u64> {
        match self {
            NodeRef::Inline => None,
            NodeRef::Block(pointer) => Some(pointer),
        }
    }
}

/// A block of the path, and its child or record on the path.
#[derive(Clone, Copy, Debug)]
pub(super) struct CursorLevel {
    pub(super) node: NodeRef,
    pub(super) index: usize,
}

/// A path from the root to a position in a leaf: on a record, or before it. It is valid as long as only its own cursor
/// changes the tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct CursorPath {
    /// By level: the leaf comes first.
    pub(super) steps: [CursorLevel; MAX_LEVELS as usize],
    /// Number of levels in use; 0 before the first search.
    pub(super) levels: usize,
    /// On the record (`true`), or before it.
    pub(super) on: bool,
}

impl CursorPath {
    const NOWHERE: Self = Self {
        steps: [CursorLevel { node: NodeRef::Inline, index: 0 }; MAX_LEVELS as usize],
        levels: 0,
        on: false,
    };
}

/// Where to go down.
#[derive(Clone, Copy, Debug)]
pub(super) enum Aim<R> {
    First,
    Last,
    /// The last entry that is not beyond this rank.
    Rank(R),
}

/// A cursor of a B+tree: a position in it, and operations that change the tree there.
#[derive(Debug)]
pub struct BtreeCursor<S: TreeStore> {
    pub(super) store: S,
    pub(super) path: CursorPath,
    /// Whether leaves are locked on the way, because they will be changed.
    to_change: bool,
}

impl<S: TreeStore> BtreeCursor<S> {
    /// A cursor without a position.
    pub fn new(store: S) -> Self {
        Self { store, path: CursorPath::NOWHERE, to_change: false }
    }

    /// The same, for a record that will be changed.
    pub fn to_change(store: S) -> Self {
        Self { to_change: true, ..Self::new(store) }
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The store, for changing other things than this tree.
    pub fn store_mut(&mut self) -> &mut S {
        &mut self.store
    }

    /// Levels of the tree, including leaves and a root within an inode.
    pub fn levels(&self) -> Result<u32> {
        Ok(self.top()?.1 as u32)
    }

    /// Moves to the last record whose rank is at most `rank`. If there is none, moves before the first record.
    pub fn seek_le(&mut self, rank: RankOf<S>) -> Result<Option<RecordOf<S>>> {
        let (behind, found) = self.descend_to(Aim::Rank(rank), |node| {
            let records = node.records();
            let behind = records.partition_point(|record| TreeOf::<S>::record_rank(record) <= rank);
            Ok((behind, behind.checked_sub(1).and_then(|index| records.get(index).copied())))
        })?;
        self.path.on = behind > 0;
        self.path.steps[0].index = behind.saturating_sub(1);
        Ok(found)
    }

    /// The last record whose rank is at most `rank`, and the next one.
    pub fn around(&mut self, rank: RankOf<S>) -> Result<[Option<RecordOf<S>>; 2]> {
        let (behind, before, next) = self.descend_to(Aim::Rank(rank), |node| {
            let records = node.records();
            let behind = records.partition_point(|record| TreeOf::<S>::record_rank(record) <= rank);
            let before = behind.checked_sub(1).and_then(|index| records.get(index).copied());
            Ok((behind, before, records.get(behind).copied()))
        })?;
        self.path.on = behind > 0;
        self.path.steps[0].index = behind.saturating_sub(1);
        let next = if next.is_some() || self.path.levels == 1 { next } else { self.next()? };
        Ok([before, next])
    }

    /// Moves to the first record whose rank is at least `rank`. If there is none, moves behind the last record.
    pub fn seek_ge(&mut self, rank: RankOf<S>) -> Result<Option<RecordOf<S>>> {
        let (before, found) = self.descend_to(Aim::Rank(rank), |node| {
            let records = node.records();
            let before = records.partition_point(|record| TreeOf::<S>::record_rank(record) < rank);
            Ok((before, records.get(before).copied()))
        })?;
        self.path.on = found.is_some();
        self.path.steps[0].index = before;
        if found.is_some() { Ok(found) } else { self.next() }
    }

    /// Moves to the record of this rank. If there is none, moves to where it would be.
    pub fn seek_eq(&mut self, rank: RankOf<S>) -> Result<Option<RecordOf<S>>> {
        let (index, found) = self.descend_to(Aim::Rank(rank), |node| {
            let records = node.records();
            let index = records.partition_point(|record| TreeOf::<S>::record_rank(record) < rank);
            let is_it = |record: &RecordOf<S>| TreeOf::<S>::record_rank(record) == rank;
            Ok((index, records.get(index).copied().filter(is_it)))
        })?;
        self.path.on = found.is_some();
        self.path.steps[0].index = index;
        Ok(found)
    }

    /// Moves to the first record.
    pub fn first(&mut self) -> Result<Option<RecordOf<S>>> {
        self.descend(Aim::First)?;
        self.path.on = true;
        self.path.steps[0].index = 0;
        self.settle()
    }

    /// Moves to the last record.
    pub fn last(&mut self) -> Result<Option<RecordOf<S>>> {
        self.descend(Aim::Last)?;
        let count = self.at(0, |node| Ok(node.count()))?;
        self.path.on = count > 0;
        self.path.steps[0].index = count.saturating_sub(1);
        self.get()
    }

    /// The record at the cursor. `None` between records.
    pub fn get(&self) -> Result<Option<RecordOf<S>>> {
        if self.path.levels == 0 || !self.path.on {
            return Ok(None);
        }
        let index = self.path.steps[0].index;
        self.at(0, |node| Ok(node.records().get(index).copied()))
    }

    /// Moves to the next record; from between two records, to the one behind. `None` if there is none; then the cursor
    /// is behind the last record.
    #[allow(clippy::should_implement_trait, reason = "it is fallible, and one of two directions")]
    pub fn next(&mut self) -> Result<Option<RecordOf<S>>> {
        if self.path.levels == 0 {
            return self.first();
        }
        let CursorLevel { index, .. } = self.path.steps[0];
        let index = if self.path.on { index + 1 } else { index };
        let (count, last) = self.at(0, |node| Ok((node.count(), rank_range(node).map(|range| range.1))))?;
        self.path.steps[0].index = index.min(count);
        self.path.on = index < count;
        if index < count {
            return self.get();
        }
        for level in 1..self.path.levels {
            let next = self.path.steps[level].index + 1;
            if next < self.at(level, |node| Ok(node.count()))? {
                self.path.steps[level].index = next;
                self.descend_from(level, Aim::First, |_| Ok(()))?;
                self.path.steps[0].index = 0;
                self.path.on = true;
                let first = self.at(0, |node| Ok(rank_range(node).map(|range| range.0)))?;
                if last >= first {
                    return Err(self.damage(0, FormatError::new(TreeOf::<S>::NAME, "order of records")));
                }
                return self.get();
            }
        }
        Ok(None)
    }

    /// Moves to the previous record. `None` if there is none; then the cursor is before the first record.
    pub fn prev(&mut self) -> Result<Option<RecordOf<S>>> {
        if self.path.levels == 0 {
            return self.last();
        }
        let CursorLevel { index, .. } = self.path.steps[0];
        if index > 0 {
            self.path.steps[0].index = index - 1;
            self.path.on = true;
            return self.get();
        }
        self.path.on = false;
        let first = self.at(0, |node| Ok(rank_range(node).map(|range| range.0)))?;
        for level in 1..self.path.levels {
            let index = self.path.steps[level].index;
            if index > 0 {
                self.path.steps[level].index = index - 1;
                self.descend_from(level, Aim::Last, |_| Ok(()))?;
                let (count, last) =
                    self.at(0, |node| Ok((node.count(), rank_range(node).map(|range| range.1))))?;
                if first.is_some_and(|first| last.is_none_or(|last| last >= first)) {
                    return Err(self.damage(0, FormatError::new(TreeOf::<S>::NAME, "order of records")));
                }
                self.path.steps[0].index = count.saturating_sub(1);
                self.path.on = count > 0;
                return self.get();
            }
        }
        Ok(None)
    }

    /// Moves onto the record at the leaf's index, if there is one.
    fn settle(&mut self) -> Result<Option<RecordOf<S>>> {
        let found = self.get()?;
        self.path.on = found.is_some();
        Ok(found)
    }

    /// The root's place and the number of levels.
    pub(super) fn top(&self) -> Result<(NodeRef, usize)> {
        let (place, levels) = match self.store.root() {
            RootRef::Block { pointer, levels } => (NodeRef::Block(pointer), levels as usize),
            RootRef::Inline(fork) => {
                let node = Node::<TreeOf<S>>::inline_root(fork);
                let node = node.map_err(|problem| corrupt(&self.store, None, problem))?;
                (NodeRef::Inline, usize::from(node.level()) + 1)
            }
        };
        let least = if place == NodeRef::Inline { 2 } else { 1 };
        if levels < least || levels > MAX_LEVELS as usize {
            let problem =
                FormatError::mismatch(TreeOf::<S>::NAME, "tree depth", levels as u64, MAX_LEVELS.into());
            return Err(corrupt(&self.store, None, problem));
        }
        Ok((place, levels))
    }

    /// Descends from the root. The leaf's index is left to the caller.
    pub(super) fn descend(&mut self, aim: Aim<RankOf<S>>) -> Result<()> {
        self.descend_to(aim, |_| Ok(()))
    }

    /// Descends from the root and inspects the leaf. Its index is left to the caller.
    fn descend_to<R>(
        &mut self,
        aim: Aim<RankOf<S>>,
        look: impl FnOnce(&Node<'_, TreeOf<S>>) -> Result<R>,
    ) -> Result<R> {
        let (place, levels) = self.top()?;
        self.path.levels = levels;
        self.path.on = false;
        self.path.steps[levels - 1] = CursorLevel { node: place, index: 0 };
        if levels == 1 {
            self.hold(place)?;
            return self.read(place, 0, true, look);
        }
        let index = self.read(place, levels - 1, true, |node| Ok(choose(node, aim)))?;
        self.path.steps[levels - 1].index = index;
        self.descend_from(levels - 1, aim, look)
    }

    /// Locks a leaf that will be changed.
    fn hold(&mut self, place: NodeRef) -> Result<()> {
        match place.pointer() {
            Some(pointer) if self.to_change => self.store.hold(pointer),
            _ => Ok(()),
        }
    }

    /// Descends from the path's child at `level` and inspects the leaf.
    fn descend_from<R>(
        &mut self,
        level: usize,
        aim: Aim<RankOf<S>>,
        look: impl FnOnce(&Node<'_, TreeOf<S>>) -> Result<R>,
    ) -> Result<R> {
        let mut look = Some(look);
        let mut seen = None;
        for level in (0..level).rev() {
            let parent = self.path.steps[level + 1];
            let (pointer, only, low, high) = self.at(level + 1, |node| {
                let rank = |index: usize| node.keys().get(index).map(TreeOf::<S>::key_rank);
                let pointer = node.pointer(parent.index);
                Ok((pointer, node.count() == 1, rank(parent.index), rank(parent.index + 1)))
            })?;
            let place = NodeRef::Block(self.child(parent.node, pointer)?);
            // The only child of a root within an inode may be as empty as a root.
            let may_be_empty = level == 0 && only && parent.node == NodeRef::Inline;
            if level == 0 {
                self.hold(place)?;
            }
            let (index, range) = self.read(place, level, may_be_empty, |node| {
                if level == 0 {
                    seen = look.take().map(|look| look(node)).transpose()?;
                }
                Ok((choose(node, aim), rank_range(node)))
            })?;
            if let Some((first, last)) = range
                && (low.is_some_and(|low| first < low) || high.is_some_and(|high| last >= high))
            {
                let problem = FormatError::new(TreeOf::<S>::NAME, "keys of the block above");
                return Err(corrupt(&self.store, place.pointer(), problem));
            }
            self.path.steps[level] = CursorLevel { node: place, index };
        }
        seen.ok_or_else(|| self.damage(level, FormatError::new(TreeOf::<S>::NAME, "level")))
    }

    /// A child pointer of `parent`, if a block can be there.
    pub(super) fn child(&self, parent: NodeRef, pointer: Option<u64>) -> Result<u64> {
        pointer.filter(|&pointer| self.store.daddr(pointer).is_some()).ok_or_else(|| {
            let problem = FormatError::value(TreeOf::<S>::NAME, "child pointer", pointer.unwrap_or_default());
            corrupt(&self.store, parent.pointer(), problem)
        })
    }

    /// Reads a block that is met for the first time. It must be of this level and have the tree's owner, and only a
    /// root may be empty.
    pub(super) fn read<R>(
        &self,
        place: NodeRef,
        level: usize,
        may_be_empty: bool,
        look: impl FnOnce(&Node<'_, TreeOf<S>>) -> Result<R>,
    ) -> Result<R> {
        self.view(place, |node| {
            let name = TreeOf::<S>::NAME;
            let wrap = |problem| Err(corrupt(&self.store, place.pointer(), problem));
            if usize::from(node.level()) != level {
                return wrap(FormatError::mismatch(name, "level", node.level().into(), level as u64));
            }
            if let Some(owner) = node.owner()
                && place != NodeRef::Inline
                && owner != self.store.owner()
            {
                return wrap(FormatError::mismatch(name, "owner", owner, self.store.owner()));
            }
            if node.count() == 0 && !(may_be_empty && level == 0) {
                return wrap(FormatError::value(name, "record count", 0));
            }
            look(node)
        })
    }

    /// Inspects a block.
    pub(super) fn view<R>(
        &self,
        place: NodeRef,
        look: impl FnOnce(&Node<'_, TreeOf<S>>) -> Result<R>,
    ) -> Result<R> {
        let wrap = |problem| corrupt(&self.store, place.pointer(), problem);
        match place {
            NodeRef::Block(pointer) => {
                let block = self.store.read(pointer)?;
                look(&Node::view(&block, self.store.geometry().v5).map_err(wrap)?)
            }
            NodeRef::Inline => match self.store.root() {
                RootRef::Inline(fork) => look(&Node::inline_root(fork).map_err(wrap)?),
                RootRef::Block { pointer, .. } => {
                    Err(wrap(FormatError::value(TreeOf::<S>::NAME, "root", pointer)))
                }
            },
        }
    }

    /// Inspects the path's block on this level.
    pub(super) fn at<R>(
        &self,
        level: usize,
        look: impl FnOnce(&Node<'_, TreeOf<S>>) -> Result<R>,
    ) -> Result<R> {
        self.view(self.path.steps[level].node, look)
    }

    /// Changes the bytes of a block that `ranges` names.
    pub(super) fn change(
        &mut self,
        place: NodeRef,
        ranges: &[Range<usize>],
        change: impl FnOnce(&mut NodeMut<'_, TreeOf<S>>),
    ) -> Result<()> {
        match place {
            NodeRef::Block(pointer) => {
                let v5 = self.store.geometry().v5;
                let bytes = self.store.modify(pointer, ranges)?;
                let problem = match NodeMut::view(bytes, v5) {
                    Ok(mut node) => {
                        change(&mut node);
                        return Ok(());
                    }
                    Err(problem) => problem,
                };
                Err(corrupt(&self.store, Some(pointer), problem))
            }
            NodeRef::Inline => {
                let mut fork = match self.store.root() {
                    RootRef::Inline(fork) => fork.to_vec(),
                    RootRef::Block { .. } => Vec::new(),
                };
                let mut node =
                    NodeMut::inline_root(&mut fork).map_err(|problem| corrupt(&self.store, None, problem))?;
                change(&mut node);
                self.store.set_root(RootRef::Inline(&fork))
            }
        }
    }

    /// Corruption in the path's block on this level.
    pub(crate) fn damage(&self, level: usize, problem: FormatError) -> Error {
        corrupt(&self.store, self.path.steps[level].node.pointer(), problem)
    }
}

/// The child to descend to.
fn choose<T: Tree>(node: &Node<'_, T>, aim: Aim<T::Rank>) -> usize {
    match aim {
        Aim::First => 0,
        Aim::Last => node.count().saturating_sub(1),
        Aim::Rank(rank) => node.keys().partition_point(|key| T::key_rank(key) <= rank).saturating_sub(1),
    }
}
