//! Checks a whole tree against the invariants of the core. Slow: for tests and for checking volumes.

use super::entries::{key_of, rank_range};
use super::path::{BtreeCursor, NodeRef, RankOf, RecordOf, TreeOf};
use super::{TreeStore, corrupt};
use crate::error::Result;
use xfs_format::btree::Tree;
use xfs_format::error::FormatError;
use xfs_format::node_mut::{NO_BLOCK, NodeShape, same};

/// What a tree consists of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Records in leaves.
    pub records: u64,
    /// Blocks, not counting a root within an inode.
    pub blocks: u64,
    /// Levels, counting a root within an inode.
    pub levels: u32,
}

/// Walks the whole tree and checks order, keys, fill, levels and siblings. Calls `visit` with every record, in order.
pub fn check<S: TreeStore>(store: &mut S, visit: impl FnMut(&RecordOf<S>)) -> Result<Census> {
    let editor = BtreeCursor::new(store);
    let (place, levels) = editor.top()?;
    let mut walk = Walk {
        editor: &editor,
        visit,
        last: None,
        chain: vec![NO_BLOCK; levels],
        census: Census { levels: levels as u32, ..Census::default() },
    };
    walk.node(place, levels - 1, true)?;
    // The last block of each level has no right sibling.
    for (level, &last) in walk.chain.clone().iter().enumerate().filter(|(_, last)| **last != NO_BLOCK) {
        let right = walk.editor.view(NodeRef::Block(last), |node| Ok(node.siblings().1))?;
        walk.expect(NodeRef::Block(last), right == NO_BLOCK, "right sibling", level as u64)?;
    }
    Ok(walk.census)
}

struct Walk<'a, S: TreeStore, V> {
    editor: &'a BtreeCursor<S>,
    visit: V,
    last: Option<RankOf<S>>,
    /// The last block seen on each level.
    chain: Vec<u64>,
    census: Census,
}

impl<S: TreeStore, V: FnMut(&RecordOf<S>)> Walk<'_, S, V> {
    /// Checks a block and everything below it. The recursion is as deep as the tree.
    fn node(&mut self, place: NodeRef, level: usize, like_root: bool) -> Result<()> {
        let editor = self.editor;
        if let NodeRef::Block(pointer) = place {
            self.block(pointer, level, like_root)?;
        }
        if level == 0 {
            return editor.read(place, 0, like_root, |node| {
                for record in node.records() {
                    let rank = TreeOf::<S>::record_rank(record);
                    self.expect(place, self.last.is_none_or(|last| last < rank), "order of records", 0)?;
                    self.last = Some(rank);
                    self.census.records += 1;
                    (self.visit)(record);
                }
                Ok(())
            });
        }
        let children: Vec<_> = editor.read(place, level, false, |node| {
            Ok((0..node.count())
                .map(|index| (node.keys().get(index).copied(), node.pointer(index)))
                .collect())
        })?;
        if place != NodeRef::Inline && like_root && editor.path_is_root(place) {
            self.expect(place, children.len() > 1, "root with one child", children.len() as u64)?;
        }
        let only_child = place == NodeRef::Inline && children.len() == 1;
        for (key, pointer) in children {
            let child = NodeRef::Block(editor.child(place, pointer)?);
            let (found, range) = editor.view(child, |node| Ok((key_of(node), rank_range(node))))?;
            let agree = match (key, found) {
                (Some(key), Some(found)) => same(&key, &found),
                _ => only_child && range.is_none(),
            };
            self.expect(child, agree, "key in the block above", level as u64)?;
            self.node(child, level - 1, only_child)?;
        }
        Ok(())
    }

    /// Checks fill and left sibling of a block.
    fn block(&mut self, pointer: u64, level: usize, like_root: bool) -> Result<()> {
        let place = NodeRef::Block(pointer);
        let geometry = self.editor.store.geometry();
        let shape = NodeShape::<TreeOf<S>>::block(geometry.block_size as usize, geometry.v5, level as u16);
        let (count, siblings) =
            self.editor.read(place, level, like_root, |node| Ok((node.count(), node.siblings())))?;
        self.expect(place, like_root || count >= shape.least(), "fill", count as u64)?;
        let Some(before) = self.chain.get(level).copied() else { return Ok(()) };
        self.expect(place, siblings.0 == before, "left sibling", siblings.0)?;
        if before != NO_BLOCK {
            let right = self.editor.view(NodeRef::Block(before), |node| Ok(node.siblings().1))?;
            self.expect(NodeRef::Block(before), right == pointer, "right sibling", right)?;
        }
        if let Some(last) = self.chain.get_mut(level) {
            *last = pointer;
        }
        self.census.blocks += 1;
        Ok(())
    }

    fn expect(&self, place: NodeRef, holds: bool, check: &'static str, found: u64) -> Result<()> {
        if holds {
            return Ok(());
        }
        let problem = FormatError::value(TreeOf::<S>::NAME, check, found);
        Err(corrupt(&self.editor.store, place.pointer(), problem))
    }
}

impl<S: TreeStore> BtreeCursor<S> {
    fn path_is_root(&self, place: NodeRef) -> bool {
        self.top().is_ok_and(|(top, _)| top == place)
    }
}
