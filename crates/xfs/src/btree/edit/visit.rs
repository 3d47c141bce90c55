//! Records of the parts of a tree that a caller wants, for trees whose keys say what lies below a child, not only where
//! it begins.

use super::path::{BtreeCursor, KeyOf, NodeRef, RankOf, RecordOf, TreeOf};
use super::{TreeStore, corrupt};
use crate::error::Result;
use smallvec::SmallVec;
use std::ops::ControlFlow;
use xfs_format::btree::Tree;
use xfs_format::error::FormatError;

/// A child to descend to, and the ranks between which everything below it must lie.
struct Child<R> {
    pointer: Option<u64>,
    low: Option<R>,
    high: Option<R>,
}

impl<S: TreeStore> BtreeCursor<S> {
    /// Calls `each` with the records, in order, of all leaves whose keys in the blocks above are `wanted`, until it
    /// breaks. The cursor does not move.
    ///
    /// The content of a child must lie within the keys around it, at any depth. So no block is met twice, however the
    /// tree is damaged.
    pub fn visit(
        &self,
        mut wanted: impl FnMut(&KeyOf<S>) -> bool,
        mut each: impl FnMut(&RecordOf<S>) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let (place, levels) = self.top()?;
        let all = Child { pointer: place.pointer(), low: None, high: None };
        self.visit_under(place, levels - 1, true, &all, &mut wanted, &mut each).map(drop)
    }

    /// The recursion is as deep as the tree.
    fn visit_under(
        &self,
        place: NodeRef,
        level: usize,
        is_root: bool,
        bounds: &Child<RankOf<S>>,
        wanted: &mut dyn FnMut(&KeyOf<S>) -> bool,
        each: &mut dyn FnMut(&RecordOf<S>) -> Result<ControlFlow<()>>,
    ) -> Result<ControlFlow<()>> {
        if level == 0 {
            return self.read(place, 0, is_root, |node| {
                let ranks = node.records().iter().map(TreeOf::<S>::record_rank);
                self.check_bounds(place, ranks, bounds)?;
                for record in node.records() {
                    if each(record)?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                Ok(ControlFlow::Continue(()))
            });
        }
        let children: SmallVec<[Child<RankOf<S>>; 4]> = self.read(place, level, false, |node| {
            let keys = node.keys();
            self.check_bounds(place, keys.iter().map(TreeOf::<S>::key_rank), bounds)?;
            let rank = |index: usize| keys.get(index).map(TreeOf::<S>::key_rank);
            let found = keys.iter().enumerate().filter(|(_, key)| wanted(key));
            Ok(found
                .map(|(index, _)| Child {
                    pointer: node.pointer(index),
                    low: rank(index),
                    high: rank(index + 1).or(bounds.high),
                })
                .collect())
        })?;
        for bounds in children {
            let child = NodeRef::Block(self.child(place, bounds.pointer)?);
            if self.visit_under(child, level - 1, false, &bounds, wanted, each)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn check_bounds(
        &self,
        place: NodeRef,
        mut ranks: impl DoubleEndedIterator<Item = RankOf<S>>,
        bounds: &Child<RankOf<S>>,
    ) -> Result<()> {
        let Some(first) = ranks.next() else { return Ok(()) };
        let last = ranks.next_back().unwrap_or(first);
        if bounds.low.is_some_and(|low| first < low) || bounds.high.is_some_and(|high| last >= high) {
            let problem = FormatError::new(TreeOf::<S>::NAME, "keys of the block above");
            return Err(corrupt(&self.store, place.pointer(), problem));
        }
        Ok(())
    }
}
