//! After a removal from a leaf: it is joined with a neighbour or removed, and so may be the nodes above it.
//!
//! A block is only joined with a neighbour below the same parent, so that fewer blocks are touched. A block without
//! such a neighbour is removed when it is empty, together with its parent.

use super::{Block, DaPath, fix_hashes, last_node_hash, neighbour, pointer};
use crate::da::DaIndex;
use crate::error::{Error, Result};
use crate::fork::ForkMut;
use xfs_format::da::{Node, NodeEdit, block_magic, settle};
use xfs_format::edit::Image;
use xfs_format::error::FormatError;

/// A block is joined with a neighbour if it is less than 3/8 full and both together are at most 3/4 full.
const JOIN_BELOW: (usize, usize) = (3, 8);
const JOINED_MAX: (usize, usize) = (3, 4);

/// What is known of leaves.
pub(crate) trait Leaves {
    /// Bytes of live content, and bytes available for it.
    fn fill(&self, leaf: &[u8]) -> Result<(usize, usize), FormatError>;
    /// The hash that a leaf's parent must have for it. `None` for a leaf without entries.
    fn last_hash(&self, leaf: &[u8]) -> Result<Option<u32>, FormatError>;
    /// Appends the live content of `right`, whose hashes are not smaller, to `left`.
    fn join(&self, left: &mut Image, right: &[u8]) -> Result<(), FormatError>;
}

/// Called after a removal from `leaf`, which is at the end of `path` and not written yet. Writes it, joins it with a
/// neighbour, or removes it from the tree, and does the same on the levels above.
pub(crate) fn shrink(
    fork: &mut dyn ForkMut,
    index: &DaIndex,
    path: &DaPath,
    leaf: Block,
    leaves: &dyn Leaves,
) -> Result<()> {
    let tree = Tree { index, leaves, v5: fork.geometry().v5 };
    let mut block = leaf;
    for (depth, step) in path.nodes.iter().enumerate().rev() {
        let (used, room) = tree.fill(&block)?;
        let small = used * JOIN_BELOW.1 < room * JOIN_BELOW.0;
        let mut parent =
            if small { Some(Block::read(fork, step.at, index.blocks, index.verifier)?) } else { None };
        let next = match &mut parent {
            Some(parent) if used == 0 => {
                tree.drop_empty(fork, parent, step.slot, block)?;
                None
            }
            Some(parent) => tree.join(fork, parent, step.slot, block)?,
            None => Some(block),
        };
        match (next, parent) {
            // Nothing was joined: the parent has as many children as before.
            (Some(block), _) => {
                let hash = tree.last_hash(&block)?;
                block.write(fork)?;
                return match hash {
                    Some(hash) => fix_hashes(fork, index, &path.nodes[..=depth], hash),
                    None => Ok(()),
                };
            }
            (None, Some(parent)) => block = parent,
            (None, None) => return Ok(()), // cannot be: joining needs the parent
        }
    }
    let is_node = Node::is(block.header(tree.v5)?.magic, tree.v5);
    if is_node { tree.lower_root(fork, block) } else { block.write(fork) }
}

/// What the steps of [`shrink`] share.
struct Tree<'a> {
    index: &'a DaIndex,
    leaves: &'a dyn Leaves,
    v5: bool,
}

impl Tree<'_> {
    /// The number of children of a node: 0 if it has just lost the last one. `None` if the block is not a node.
    fn children(&self, block: &Block) -> Option<usize> {
        let magic = block_magic(block.image.bytes())?;
        let count = || Node::parse(block.image.bytes(), self.v5).map_or(0, |node| node.entries.len());
        Node::is(magic, self.v5).then(count)
    }

    fn fill(&self, block: &Block) -> Result<(usize, usize)> {
        let bytes = block.image.bytes();
        match self.children(block) {
            Some(count) => Ok((count, NodeEdit::capacity(bytes.len(), self.v5))),
            None => self.leaves.fill(bytes).map_err(|problem| block.place.bad(problem)),
        }
    }

    fn last_hash(&self, block: &Block) -> Result<Option<u32>> {
        match self.children(block) {
            Some(_) => last_node_hash(block, self.v5).map(Some),
            None => self.leaves.last_hash(block.image.bytes()).map_err(|problem| block.place.bad(problem)),
        }
    }

    /// Removes an empty block from its level and its parent.
    fn drop_empty(
        &self,
        fork: &mut dyn ForkMut,
        parent: &mut Block,
        slot: usize,
        block: Block,
    ) -> Result<()> {
        let header = block.header(self.v5)?;
        let next = neighbour(fork, self.index, &block, header.forw)?;
        let back = neighbour(fork, self.index, &block, header.back)?;
        if let Some(next) = &next {
            self.expect(next, next.header(self.v5)?.back, &block)?;
        }
        if let Some(back) = &back {
            self.expect(back, back.header(self.v5)?.forw, &block)?;
        }
        if let Some(mut next) = next {
            next.set_siblings(None, Some(header.back))?;
            next.write(fork)?;
        }
        if let Some(mut back) = back {
            back.set_siblings(Some(header.forw), None)?;
            back.write(fork)?;
        }
        block.unmap(fork)?;
        let place = parent.place;
        NodeEdit::new(&mut parent.image, self.v5).remove(slot).map_err(|problem| place.bad(problem))
    }

    /// Joins a block with a neighbour below the same parent, if both fit into one. Otherwise returns the block.
    fn join(
        &self,
        fork: &mut dyn ForkMut,
        parent: &mut Block,
        slot: usize,
        block: Block,
    ) -> Result<Option<Block>> {
        let place = parent.place;
        let node = Node::parse(parent.image.bytes(), self.v5).map_err(|problem| place.bad(problem))?;
        let child = |slot: usize| node.entries.get(slot).map(|entry| entry.before.get());
        let (used, room) = self.fill(&block)?;
        let mut found = None;
        for (other_slot, behind) in [(Some(slot + 1), true), (slot.checked_sub(1), false)] {
            let Some((other_slot, at)) = other_slot.and_then(|slot| Some((slot, child(slot)?))) else {
                continue;
            };
            let Some(other) = neighbour(fork, self.index, &block, at)? else {
                continue;
            };
            let (other_used, _) = self.fill(&other)?;
            if (used + other_used) * JOINED_MAX.1 <= room * JOINED_MAX.0 {
                found = Some((other, behind, slot.min(other_slot)));
                break;
            }
        }
        let Some((other, behind, left_slot)) = found else {
            return Ok(Some(block));
        };
        let (mut left, right) = if behind { (block, other) } else { (other, block) };
        self.merge(fork, &mut left, right)?;
        let hash = self.last_hash(&left)?.unwrap_or(0);
        left.write(fork)?;
        let mut edit = NodeEdit::new(&mut parent.image, self.v5);
        edit.set_hash(left_slot, hash).map_err(|problem| place.bad(problem))?;
        edit.remove(left_slot + 1).map_err(|problem| place.bad(problem))?;
        Ok(None)
    }

    /// Moves the content of `right` into `left` and frees `right`.
    fn merge(&self, fork: &mut dyn ForkMut, left: &mut Block, right: Block) -> Result<()> {
        let (here, there) = (left.header(self.v5)?, right.header(self.v5)?);
        if u64::from(here.forw) != right.at.0 || u64::from(there.back) != left.at.0 {
            return Err(left.place.bad(self.index.mismatch("forward sibling", here.forw.into(), right.at.0)));
        }
        let place = left.place;
        if self.children(left).is_some() {
            let parse = |block: &Block| {
                let node = Node::parse(block.image.bytes(), self.v5).map_err(|problem| place.bad(problem))?;
                Ok::<_, Error>(node.entries.to_vec())
            };
            let entries = [parse(left)?, parse(&right)?].concat();
            let mut edit = NodeEdit::new(&mut left.image, self.v5);
            edit.set_entries(&entries).map_err(|problem| place.bad(problem))?;
        } else {
            self.leaves.join(&mut left.image, right.image.bytes()).map_err(|problem| place.bad(problem))?;
        }
        left.set_siblings(Some(there.forw), None)?;
        if let Some(mut next) = neighbour(fork, self.index, &right, there.forw)? {
            self.expect(&next, next.header(self.v5)?.back, &right)?;
            next.set_siblings(None, Some(pointer(left.at)))?;
            next.write(fork)?;
        }
        right.unmap(fork)
    }

    /// Fails unless `link`, a sibling pointer of `of`, names `block`.
    fn expect(&self, of: &Block, link: u32, block: &Block) -> Result<()> {
        if u64::from(link) == block.at.0 {
            return Ok(());
        }
        Err(of.place.bad(self.index.mismatch("sibling", link.into(), block.at.0)))
    }

    /// While the root has only one child, takes the child's content into the root. The level decreases each time, so
    /// this ends.
    fn lower_root(&self, fork: &mut dyn ForkMut, mut root: Block) -> Result<()> {
        loop {
            let place = root.place;
            let Ok(node) = Node::parse(root.image.bytes(), self.v5) else {
                return match self.children(&root) {
                    Some(_) => Err(place.bad(self.index.mismatch("entry count", 0, 1))),
                    None => root.write(fork),
                };
            };
            let [only] = node.entries else {
                return root.write(fork);
            };
            let level = node.level;
            let at = self.index.block(only.before.get()).map_err(|problem| place.bad(problem))?;
            let child = Block::read(fork, at, self.index.blocks, self.index.verifier)?;
            let child_level = Node::parse(child.image.bytes(), self.v5).map_or(0, |node| node.level);
            if at == root.at || child_level + 1 != level {
                return Err(place.bad(self.index.mismatch("level", child_level.into(), level.into())));
            }
            let stamp = root.stamp(fork);
            let mut patch = root.image.edit();
            patch.put(0, child.image.bytes()).map_err(|problem| place.bad(problem))?;
            settle(&mut patch, &stamp).map_err(|problem| place.bad(problem))?;
            child.unmap(fork)?;
        }
    }
}
