//! The way from the root of a hash-indexed tree to one of its leaves, and to the leaf beside it.
//!
//! Invariants: a way has at most five nodes, one a level, with falling levels; every slot is one that its node had
//! when the way was taken. Neighbours are found through the nodes, never through sibling pointers.

use super::{Index, check_owner};
use crate::buf::Buf;
use crate::error::{Error, Result};
use crate::fork::Fork;
use xfs_format::da::{Node, NodeEntry, block_magic};
use xfs_format::error::FormatError;
use xfs_format::types::FileBlock;

/// One node on the way, and the child that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The node.
    pub(crate) at: FileBlock,
    /// Which of its children.
    pub(crate) slot: usize,
}

/// Nodes from the root down to the parent of a leaf, and the leaf. No nodes: the leaf is the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    pub(super) steps: Vec<Step>,
    pub(super) leaf: FileBlock,
}

/// Which neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The one with smaller hashes.
    Before,
    /// The one with larger hashes.
    Behind,
}

/// A node that was read and checked.
pub(super) struct NodeBlock {
    pub(super) buf: Buf,
    pub(super) level: u16,
    pub(super) entries: Vec<NodeEntry>,
}

impl Path {
    /// The way to the first leaf that may hold `hash`, or to the last of all if its hash is greater than any.
    pub(crate) fn to_hash(fork: &dyn Fork, index: &Index, hash: u32) -> Result<Self> {
        let mut steps = Vec::new();
        let mut at = FileBlock(index.root);
        let mut level_due = None;
        loop {
            let buf = fork.read(at, index.blocks, index.verifier)?;
            if !block_magic(&buf).is_some_and(|magic| Node::is(magic, fork.geometry().v5)) {
                return match level_due {
                    None | Some(0) => Ok(Self { steps, leaf: at }),
                    Some(due) => Err(wrong_level(fork, index, &buf, 0, due)),
                };
            }
            let node = NodeBlock::parse(fork, index, buf)?;
            if let Some(due) = level_due.filter(|&due| due != node.level) {
                return Err(wrong_level(fork, index, &node.buf, node.level, due));
            }
            let behind = node.entries.partition_point(|entry| entry.hash.get() < hash);
            let slot = behind.min(node.entries.len() - 1);
            steps.push(Step { at, slot });
            at = node.child(fork, index, slot)?;
            level_due = node.level.checked_sub(1);
        }
    }

    /// The leaf at the end of the way.
    pub(crate) fn leaf(&self) -> FileBlock {
        self.leaf
    }

    /// Whether the leaf is the root, so that there is no other.
    pub(crate) fn leaf_is_root(&self) -> bool {
        self.steps.is_empty()
    }

    /// The way to the leaf beside this one; `None` at the end.
    pub(crate) fn neighbour(&self, fork: &dyn Fork, index: &Index, side: Side) -> Result<Option<Self>> {
        let Some((steps, leaf)) = beside(fork, index, &self.steps, side)? else {
            return Ok(None);
        };
        let buf = fork.read(leaf, index.blocks, index.verifier)?;
        if block_magic(&buf).is_some_and(|magic| Node::is(magic, fork.geometry().v5)) {
            return Err(wrong_level(fork, index, &buf, 1, 0));
        }
        Ok(Some(Self { steps, leaf }))
    }
}

/// The way to the block beside the one that `steps` end at, of the same level; and that block.
pub(super) fn beside(
    fork: &dyn Fork,
    index: &Index,
    steps: &[Step],
    side: Side,
) -> Result<Option<(Vec<Step>, FileBlock)>> {
    let mut way = steps.to_vec();
    // Up to the first node that has a child on that side.
    let (mut node, mut slot) = loop {
        let Some(step) = way.pop() else { return Ok(None) };
        let node = NodeBlock::read(fork, index, step.at)?;
        let slot = match side {
            Side::Before => step.slot.checked_sub(1),
            Side::Behind => Some(step.slot + 1),
        };
        if let Some(slot) = slot.filter(|&slot| slot < node.entries.len()) {
            way.push(Step { at: step.at, slot });
            break (node, slot);
        }
    };
    // Down again, along that edge of it.
    while way.len() < steps.len() {
        let at = node.child(fork, index, slot)?;
        let child = NodeBlock::read(fork, index, at)?;
        if child.level + 1 != node.level {
            return Err(wrong_level(fork, index, &child.buf, child.level, node.level - 1));
        }
        node = child;
        slot = match side {
            Side::Before => node.entries.len() - 1,
            Side::Behind => 0,
        };
        way.push(Step { at, slot });
    }
    let at = node.child(fork, index, slot)?;
    Ok(Some((way, at)))
}

fn wrong_level(fork: &dyn Fork, index: &Index, buf: &Buf, found: u16, due: u16) -> Error {
    let problem = FormatError::mismatch(index.verifier.name, "level", found.into(), due.into());
    Error::corrupt_block(buf.daddr(), Some(fork.inode()), problem)
}

impl NodeBlock {
    pub(super) fn read(fork: &dyn Fork, index: &Index, at: FileBlock) -> Result<Self> {
        Self::parse(fork, index, fork.read(at, index.blocks, index.verifier)?)
    }

    fn parse(fork: &dyn Fork, index: &Index, buf: Buf) -> Result<Self> {
        let node = Node::parse(&buf, fork.geometry().v5)
            .map_err(|problem| Error::corrupt_block(buf.daddr(), Some(fork.inode()), problem))?;
        check_owner(fork, buf.daddr(), index.verifier.name, node.header.owner)?;
        let (level, entries) = (node.level, node.entries.to_vec());
        Ok(Self { buf, level, entries })
    }

    /// Where the child in `slot` lies.
    pub(super) fn child(&self, fork: &dyn Fork, index: &Index, slot: usize) -> Result<FileBlock> {
        let corrupt = |problem| Error::corrupt_block(self.buf.daddr(), Some(fork.inode()), problem);
        let entry = self.entries.get(slot).ok_or_else(|| {
            corrupt(FormatError::mismatch(
                index.verifier.name,
                "entry count",
                self.entries.len() as u64,
                slot as u64,
            ))
        })?;
        index.block(entry.before.get()).map_err(corrupt)
    }
}
