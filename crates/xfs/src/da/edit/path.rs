//! The path from the root to a leaf, with what is needed to go back up.

use super::Block;
use crate::da::{DaIndex, Descent, check_owner};
use crate::error::Result;
use crate::fork::ForkMut;
use smallvec::SmallVec;
use xfs_format::da::Node;
use xfs_format::types::FileBlock;

/// A node on the path, and the child that was taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct DaPathNode {
    pub(super) at: FileBlock,
    pub(super) slot: usize,
}

/// The path from the root to a leaf.
#[derive(Clone, Debug)]
pub(crate) struct DaPath {
    pub(super) nodes: SmallVec<[DaPathNode; 4]>,
    /// The leaf.
    pub(crate) leaf: FileBlock,
}

impl DaPath {
    /// Whether the leaf is the root.
    pub(crate) fn is_lone(&self) -> bool {
        self.nodes.is_empty()
    }
}

/// The path to the first leaf that may have `hash`, or to the last leaf; and that leaf.
pub(crate) fn find_path(fork: &mut dyn ForkMut, index: &DaIndex, hash: u32) -> Result<(DaPath, Block)> {
    go_down(fork, index, SmallVec::new(), Descent::from_root(index), Some(hash))
}

/// The path to the leaf after `leaf`, which `path` leads to. `first` is where the walk began.
pub(crate) fn next_path(
    fork: &mut dyn ForkMut,
    index: &DaIndex,
    first: FileBlock,
    mut path: DaPath,
    leaf: &Block,
) -> Result<Option<(DaPath, Block)>> {
    let v5 = fork.geometry().v5;
    let before = path.leaf;
    while let Some(mut step) = path.nodes.pop() {
        let node_block = Block::read(fork, step.at, index.blocks, index.verifier)?;
        let place = node_block.place;
        let node = Node::parse(node_block.bytes(), v5).map_err(|problem| place.bad(problem))?;
        step.slot += 1;
        let Some(child) = node.entries.get(step.slot) else {
            continue;
        };
        let descent = Descent::below(index, &node, child).map_err(|problem| place.bad(problem))?;
        path.nodes.push(step);
        let (path, next) = go_down(fork, index, path.nodes, descent, None)?;
        // Each link must be returned, so no leaf can come twice unless the first one does.
        let (here, there) = (leaf.header(v5)?, next.header(v5)?);
        if u64::from(here.forw) != path.leaf.0 || u64::from(there.back) != before.0 || path.leaf == first {
            return Err(leaf.place.bad(index.mismatch("forward sibling", here.forw.into(), path.leaf.0)));
        }
        return Ok(Some((path, next)));
    }
    Ok(None)
}

/// Descends to a leaf: the first that may have `hash`, otherwise the last. `None` means the first leaf.
fn go_down(
    fork: &mut dyn ForkMut,
    index: &DaIndex,
    mut nodes: SmallVec<[DaPathNode; 4]>,
    mut descent: Descent,
    hash: Option<u32>,
) -> Result<(DaPath, Block)> {
    let v5 = fork.geometry().v5;
    loop {
        let block = Block::read(fork, descent.at, index.blocks, index.verifier)?;
        let place = block.place;
        let Some(node) = descent.node(fork, index, place.daddr(), block.bytes())? else {
            check_owner(fork, place.daddr(), index.verifier.name, block.header(v5)?.owner)?;
            return Ok((DaPath { nodes, leaf: descent.at }, block));
        };
        let slot = hash.map_or(0, |hash| node.slot(hash)).min(node.entries.len() - 1); // a parsed node has a child
        nodes.push(DaPathNode { at: descent.at, slot });
        descent = Descent::below(index, &node, &node.entries[slot]).map_err(|problem| place.bad(problem))?;
    }
}

/// The result of searching a leaf.
pub(crate) enum Seen<T> {
    /// It is there.
    Found(T),
    /// It is not there. The next leaf may have more of the hash.
    More,
    /// It is not there, and there is no more of the hash.
    End,
}

/// Searches the leaves that may have `hash`, beginning with the first. Returns the leaf in which something was found,
/// otherwise the first of them, where a new entry goes.
pub(crate) fn seek<T>(
    fork: &mut dyn ForkMut,
    index: &DaIndex,
    hash: u32,
    mut look: impl FnMut(&mut dyn ForkMut, &DaPath, &Block) -> Result<Seen<T>>,
) -> Result<(DaPath, Block, Option<T>)> {
    let (mut path, mut leaf) = find_path(fork, index, hash)?;
    let first = path.leaf;
    let mut vacant: Option<(DaPath, Block)> = None;
    loop {
        let next = match look(fork, &path, &leaf)? {
            Seen::Found(found) => return Ok((path, leaf, Some(found))),
            Seen::More => next_path(fork, index, first, path.clone(), &leaf)?,
            Seen::End => None,
        };
        let Some(next) = next else {
            let (path, leaf) = vacant.unwrap_or((path, leaf));
            return Ok((path, leaf, None));
        };
        let here = (std::mem::replace(&mut path, next.0), std::mem::replace(&mut leaf, next.1));
        vacant.get_or_insert(here);
    }
}
