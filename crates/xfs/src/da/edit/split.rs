//! After a leaf was split: updates the nodes above it, up to the root.

use super::{Block, DaPath, ROOT_LEVEL_MAX, fix_hashes, free_place, last_node_hash, neighbour, pointer};
use crate::da::DaIndex;
use crate::error::{Error, Result};
use crate::fork::ForkMut;
use xfs_format::da::{Node, NodeEdit, NodeEntry, settle};
use xfs_format::types::FileBlock;

/// Records in the tree that the leaf at the end of `path` was split: `left` is that leaf, `right` is new. Both come
/// with their last hash.
pub(crate) fn enter_split(
    fork: &mut dyn ForkMut,
    index: &DaIndex,
    path: &DaPath,
    (mut left, mut left_hash): (Block, u32),
    (mut right, mut right_hash): (Block, u32),
) -> Result<()> {
    let v5 = fork.geometry().v5;
    for (depth, step) in path.nodes.iter().enumerate().rev() {
        link_behind(fork, index, &mut left, &mut right)?;
        let mut parent = Block::read(fork, step.at, index.blocks, index.verifier)?;
        let place = parent.place;
        let entry = node_entry(right_hash, right.at);
        let node = Node::parse(parent.image.bytes(), v5).map_err(|problem| place.bad(problem))?;
        let mut entries = node.entries.to_vec();
        let level = node.level;
        let room = NodeEdit::capacity(parent.image.bytes().len(), v5);
        left.write(fork)?;
        right.write(fork)?;
        let mut edit = NodeEdit::new(&mut parent.image, v5);
        if entries.len() < room {
            edit.set_hash(step.slot, left_hash).map_err(|problem| place.bad(problem))?;
            edit.insert(step.slot + 1, entry).map_err(|problem| place.bad(problem))?;
            let last = last_node_hash(&parent, v5)?;
            parent.write(fork)?;
            return fix_hashes(fork, index, &path.nodes[..depth], last);
        }
        if let Some(known) = entries.get_mut(step.slot) {
            known.hash = left_hash.into();
        }
        entries.insert((step.slot + 1).min(entries.len()), entry);
        let upper = entries.split_off(entries.len() / 2);
        edit.set_entries(&entries).map_err(|problem| place.bad(problem))?;
        let at = free_place(fork, index, right_hash)?;
        let mut new = Block::map(fork, at, index.blocks, index.verifier)?;
        let stamp = new.stamp(fork);
        NodeEdit::format(&mut new.image, &stamp, level, &upper).map_err(|problem| place.bad(problem))?;
        (left_hash, right_hash) = (last_node_hash(&parent, v5)?, last_node_hash(&new, v5)?);
        (left, right) = (parent, new);
    }
    split_root(fork, index, (left, left_hash), (right, right_hash))
}

/// The root was split: its part moves into a new block, and the root becomes the parent of the two.
fn split_root(
    fork: &mut dyn ForkMut,
    index: &DaIndex,
    (mut root, left_hash): (Block, u32),
    (mut right, right_hash): (Block, u32),
) -> Result<()> {
    let v5 = fork.geometry().v5;
    let place = root.place;
    let level = match Node::parse(root.image.bytes(), v5) {
        Ok(node) => node.level + 1,
        Err(_) => 1,
    };
    if level > ROOT_LEVEL_MAX {
        return Err(Error::NoSpace);
    }
    // The right block is not written yet, but it is mapped, so nobody else gets its place.
    let at = free_place(fork, index, left_hash)?;
    let mut left = Block::map(fork, at, index.blocks, index.verifier)?;
    let stamp = left.stamp(fork);
    let mut patch = left.image.edit();
    patch.put(0, root.image.bytes()).map_err(|problem| place.bad(problem))?;
    settle(&mut patch, &stamp).map_err(|problem| place.bad(problem))?;
    let (left_at, right_at) = (pointer(left.at), pointer(right.at));
    left.set_siblings(Some(right_at), Some(0))?;
    right.set_siblings(Some(0), Some(left_at))?;
    let entries = [node_entry(left_hash, left.at), node_entry(right_hash, right.at)];
    let stamp = root.stamp(fork);
    NodeEdit::format(&mut root.image, &stamp, level, &entries).map_err(|problem| place.bad(problem))?;
    left.write(fork)?;
    right.write(fork)?;
    root.write(fork)
}

/// Links `right`, which is new, after `left`.
fn link_behind(fork: &mut dyn ForkMut, index: &DaIndex, left: &mut Block, right: &mut Block) -> Result<()> {
    let v5 = fork.geometry().v5;
    let forw = left.header(v5)?.forw;
    let right_at = pointer(right.at);
    right.set_siblings(Some(forw), Some(pointer(left.at)))?;
    left.set_siblings(Some(right_at), None)?;
    if let Some(mut next) = neighbour(fork, index, left, forw)? {
        if u64::from(next.header(v5)?.back) != left.at.0 {
            return Err(next.place.bad(index.mismatch("backward sibling", 0, left.at.0)));
        }
        next.set_siblings(None, Some(right_at))?;
        next.write(fork)?;
    }
    Ok(())
}

fn node_entry(hash: u32, at: FileBlock) -> NodeEntry {
    NodeEntry { hash: hash.into(), before: pointer(at).into() }
}
