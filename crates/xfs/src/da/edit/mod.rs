//! Changing a hash-indexed tree of a directory or of attributes: splits, joins, moves of the root's content.
//!
//! Only [`Leaves`] knows the content of leaves.
//!
//! Invariants:
//! - The root never moves. It grows by moving its content into a new block, and shrinks by taking in its only child.
//! - A node's hash for a child is the child's last hash, including stale entries.
//! - Blocks of one level are linked in both directions in tree order. A link is followed only if the other block links
//!   back.
//! - No block but the root is empty.

mod block;
mod path;
mod shrink;
mod space;
mod split;
#[cfg(test)]
mod tests;

pub(crate) use block::Block;
pub(crate) use path::{DaPath, Seen, find_path, seek};
pub(crate) use shrink::{Leaves, shrink};
pub(crate) use space::{free_place, scatter};
pub(crate) use split::enter_split;

use super::DaIndex;
use crate::error::Result;
use crate::fork::ForkMut;
use path::DaPathNode;
use xfs_format::da::{Node, NodeEdit};
use xfs_format::error::FormatError;
use xfs_format::types::FileBlock;

/// Maximum level of a root. Other implementations allow five levels, including the leaves.
const ROOT_LEVEL_MAX: u16 = 4;

/// Updates the hashes in the nodes of a path after the last hash of the block below them became `hash`.
pub(crate) fn fix_path(fork: &mut dyn ForkMut, index: &DaIndex, path: &DaPath, hash: u32) -> Result<()> {
    fix_hashes(fork, index, &path.nodes, hash)
}

fn fix_hashes(fork: &mut dyn ForkMut, index: &DaIndex, nodes: &[DaPathNode], hash: u32) -> Result<()> {
    let v5 = fork.geometry().v5;
    for step in nodes.iter().rev() {
        let mut block = Block::read(fork, step.at, index.blocks, index.verifier)?;
        let place = block.place;
        let node = Node::parse(block.bytes(), v5).map_err(|problem| place.bad(problem))?;
        let count = node.entries.len();
        if node.entries.get(step.slot).is_some_and(|entry| entry.hash.get() == hash) {
            return Ok(());
        }
        let mut edit = NodeEdit::new(&mut block.image, v5);
        edit.set_hash(step.slot, hash).map_err(|problem| place.bad(problem))?;
        block.write(fork)?;
        if step.slot + 1 < count {
            return Ok(());
        }
    }
    Ok(())
}

/// The block of the same level that a sibling pointer of `block` names. `None` if it is 0.
fn neighbour(fork: &mut dyn ForkMut, index: &DaIndex, block: &Block, pointer: u32) -> Result<Option<Block>> {
    if pointer == 0 {
        return Ok(None);
    }
    let at = index.block(pointer).map_err(|problem| block.place.bad(problem))?;
    let other = Block::read(fork, at, index.blocks, index.verifier)?;
    let v5 = fork.geometry().v5;
    let (here, there) = (block.header(v5)?, other.header(v5)?);
    let level = |block: &Block| Node::level_of(block.image.bytes(), v5);
    if at == block.at || here.magic != there.magic || level(block) != level(&other) {
        return Err(block.place.bad(index.mismatch("sibling", pointer.into(), 0)));
    }
    if there.owner.is_some_and(|owner| owner != fork.inode()) {
        return Err(other.place.bad(FormatError::new(index.verifier.name, "owner")));
    }
    Ok(Some(other))
}

fn last_node_hash(block: &Block, v5: bool) -> Result<u32> {
    let node = Node::parse(block.image.bytes(), v5).map_err(|problem| block.place.bad(problem))?;
    Ok(node.entries.last().map_or(0, |entry| entry.hash.get()))
}

/// A block's number as other blocks store it. Both index spaces end below 2^32 blocks.
fn pointer(at: FileBlock) -> u32 {
    debug_assert!(u32::try_from(at.0).is_ok(), "an index lies in the first 2^32 blocks of its fork");
    at.0 as u32
}
