//! Changes to the nodes above the leaves of a hash-indexed tree: the same for directories and attributes.
//!
//! A leaf is a block of which this code knows the header alone: its siblings and whose it is. Whoever owns the
//! leaves fills, splits and merges them, and tells here that a leaf came, went, or has another last hash.
//!
//! Invariants kept:
//! - the root stays at the block where it is: what it held moves when a level is added, and comes back when one goes;
//! - the hash of a node's entry is the last hash of the leaf at the right edge below it;
//! - blocks of one level are chained both ways in the order of their hashes;
//! - no node is empty; two nodes side by side that would fit into three quarters of one do not stay apart when one
//!   of them loses an entry; a root has at least two children.
//!
//! Whatever the blocks say, each operation ends: it works upwards along a path of at most five nodes.

use super::draft::{Draft, identity};
use super::path::{NodeBlock, Path, Side, Step, beside};
use super::{Index, check_owner};
use crate::error::{Error, Result};
use crate::fork::{Fork, ForkMut};
use xfs_format::da::{DaHeader, NODE_MAGIC_V5, NODE_MAX_LEVEL, Node, NodeEntry, block_magic};
use xfs_format::da::{init_index_block, set_index_daddr, set_siblings};
use xfs_format::error::FormatError;
use xfs_format::types::FileBlock;

/// Maps one block of the index where none is yet. Its content is to be made with [`ForkMut::create`].
pub(crate) fn map_block(fork: &mut dyn ForkMut, index: &Index) -> Result<FileBlock> {
    let at = first_free(fork, index)?;
    fork.map(at, index.blocks)?;
    Ok(at)
}

/// The first place in the index where a block of it can be mapped.
fn first_free(fork: &dyn Fork, index: &Index) -> Result<FileBlock> {
    let step = u64::from(index.blocks.max(1));
    let mut at = index.root;
    while at < index.end && index.end - at >= step {
        match fork.next_mapped(FileBlock(at))? {
            Some(FileBlock(next)) if next < at + step => {
                let behind = fork.next_unmapped(FileBlock(next))?.0.max(at + 1);
                at = index.root + (behind - index.root).next_multiple_of(step);
            }
            _ => return Ok(FileBlock(at)),
        }
    }
    Err(Error::corrupt_inode(fork.inode(), FormatError::value(index.verifier.name, "blocks in use", at)))
}

/// Tells that the last hash of the leaf at the end of `path` is now `hash`.
pub(crate) fn set_last_hash(fork: &mut dyn ForkMut, index: &Index, path: &Path, hash: u32) -> Result<()> {
    set_last_hash_above(fork, index, &path.steps, hash)
}

fn set_last_hash_above(fork: &mut dyn ForkMut, index: &Index, steps: &[Step], hash: u32) -> Result<()> {
    for step in steps.iter().rev() {
        let mut node = NodeBlock::read(fork, index, step.at)?;
        let behind = node.entries.get(step.slot + 1).map(|entry| entry.hash.get());
        if let Some(behind) = behind.filter(|&behind| behind < hash) {
            return Err(node_error(fork, index, &node, "hash order", hash, behind));
        }
        let Some(entry) = node.entries.get_mut(step.slot) else {
            return Err(node_error(
                fork,
                index,
                &node,
                "entry count",
                node.entries.len() as u32,
                step.slot as u32,
            ));
        };
        if entry.hash.get() == hash {
            break;
        }
        entry.hash = hash.into();
        write_node(fork, index, step.at, &node)?;
        if behind.is_some() {
            break;
        }
    }
    Ok(())
}

/// Takes in a new leaf behind the one at the end of `path`, whose last hash is now `left_hash`. The new one lies at
/// `new`, was just made (no siblings yet), and ends with `right_hash`. Afterwards `path` leads to the left one again,
/// which has moved if it was the root.
pub(crate) fn add_leaf(
    fork: &mut dyn ForkMut,
    index: &Index,
    path: &mut Path,
    left_hash: u32,
    new: FileBlock,
    right_hash: u32,
) -> Result<()> {
    if path.leaf_is_root() {
        let moved = move_root(fork, index)?;
        link_behind(fork, index, moved, new)?;
        write_root(fork, index, 1, &[node_entry(left_hash, moved)?, node_entry(right_hash, new)?])?;
        path.steps.push(Step { at: FileBlock(index.root), slot: 0 });
        path.leaf = moved;
        return Ok(());
    }
    link_behind(fork, index, path.leaf, new)?;
    let mut left_hash = left_hash;
    let mut right = node_entry(right_hash, new)?;
    // How far the path's child moves to the right within the level above, because its node was split.
    let mut shift = 0;
    for depth in (0..path.steps.len()).rev() {
        let Some(&Step { at, slot }) = path.steps.get(depth) else { break };
        let mut node = NodeBlock::read(fork, index, at)?;
        let Some(left) = node.entries.get_mut(slot) else {
            return Err(node_error(
                fork,
                index,
                &node,
                "entry count",
                node.entries.len() as u32,
                slot as u32,
            ));
        };
        left.hash = left_hash.into();
        node.entries.insert(slot + 1, right);
        let follow = slot + shift;
        let capacity = Node::capacity(node.buf.len());
        if node.entries.len() <= capacity {
            let last = node.entries.last().map_or(0, |entry| entry.hash.get());
            write_node(fork, index, at, &node)?;
            set_step(path, depth, Step { at, slot: follow });
            return set_last_hash_above(fork, index, path.steps.get(..depth).unwrap_or_default(), last);
        }
        let split = node.entries.len() / 2;
        let behind = node.entries.split_off(split);
        let (level, left_last, right_last) = (node.level, last_hash(&node.entries), last_hash(&behind));
        let beside = map_block(fork, index)?;
        create_node(fork, index, beside, level, &behind)?;
        let in_right = follow >= split;
        if depth == 0 {
            if level >= NODE_MAX_LEVEL {
                return Err(node_error(
                    fork,
                    index,
                    &node,
                    "level",
                    u32::from(level) + 1,
                    NODE_MAX_LEVEL.into(),
                ));
            }
            write_node(fork, index, at, &node)?;
            let moved = move_root(fork, index)?;
            link_behind(fork, index, moved, beside)?;
            let children = [node_entry(left_last, moved)?, node_entry(right_last, beside)?];
            write_root(fork, index, level + 1, &children)?;
            let step = if in_right {
                Step { at: beside, slot: follow - split }
            } else {
                Step { at: moved, slot: follow }
            };
            set_step(path, 0, step);
            path.steps.insert(0, Step { at, slot: in_right.into() });
            return Ok(());
        }
        write_node(fork, index, at, &node)?;
        link_behind(fork, index, at, beside)?;
        let step =
            if in_right { Step { at: beside, slot: follow - split } } else { Step { at, slot: follow } };
        set_step(path, depth, step);
        (left_hash, right, shift) = (left_last, node_entry(right_last, beside)?, in_right.into());
    }
    Ok(())
}

/// Takes out the leaf at the end of `path`, which must not be the root, and frees its block.
pub(crate) fn remove_leaf(fork: &mut dyn ForkMut, index: &Index, path: &Path) -> Result<()> {
    unlink(fork, index, path.leaf)?;
    fork.unmap(path.leaf, index.blocks)?;
    remove_child(fork, index, &path.steps)
}

/// Takes the child that `steps` end at out of its parent. Its block is gone already.
fn remove_child(fork: &mut dyn ForkMut, index: &Index, steps: &[Step]) -> Result<()> {
    let mut steps = steps.to_vec();
    while let Some(Step { at, slot }) = steps.pop() {
        let mut node = NodeBlock::read(fork, index, at)?;
        if slot >= node.entries.len() || (steps.is_empty() && node.entries.len() == 1) {
            return Err(node_error(
                fork,
                index,
                &node,
                "entry count",
                node.entries.len() as u32,
                slot as u32 + 1,
            ));
        }
        node.entries.remove(slot);
        if node.entries.is_empty() {
            unlink(fork, index, at)?;
            fork.unmap(at, index.blocks)?;
            continue;
        }
        write_node(fork, index, at, &node)?;
        if slot == node.entries.len() {
            set_last_hash_above(fork, index, &steps, last_hash(&node.entries))?;
        }
        if steps.is_empty() {
            return collapse_root(fork, index);
        }
        match join(fork, index, &steps, at, &node)? {
            Some(gone) => steps = gone,
            None => return Ok(()),
        }
    }
    Ok(())
}

/// Merges a node that became small with one beside it, if both together leave a quarter of a block free. Gives the
/// way to the one that went.
fn join(
    fork: &mut dyn ForkMut,
    index: &Index,
    steps: &[Step],
    at: FileBlock,
    node: &NodeBlock,
) -> Result<Option<Vec<Step>>> {
    let capacity = Node::capacity(node.buf.len());
    if node.entries.len() > capacity / 2 {
        return Ok(None);
    }
    for side in [Side::Behind, Side::Before] {
        let Some((way, other_at)) = beside(fork, index, steps, side)? else { continue };
        let other = NodeBlock::read(fork, index, other_at)?;
        if other.level != node.level {
            return Err(node_error(fork, index, &other, "level", other.level.into(), node.level.into()));
        }
        if other.entries.len() + node.entries.len() > capacity - capacity / 4 {
            continue;
        }
        let ((left_at, left, left_way), (right_at, right, right_way)) = match side {
            Side::Behind => ((at, node, steps), (other_at, &other, &*way)),
            Side::Before => ((other_at, &other, &*way), (at, node, steps)),
        };
        let entries = [&*left.entries, &*right.entries].concat();
        let last = last_hash(&entries);
        let merged = NodeBlock { buf: left.buf.clone(), level: left.level, entries };
        write_node(fork, index, left_at, &merged)?;
        set_last_hash_above(fork, index, left_way, last)?;
        unlink(fork, index, right_at)?;
        fork.unmap(right_at, index.blocks)?;
        return Ok(Some(right_way.to_vec()));
    }
    Ok(None)
}

/// While the root has a single child, the child's content becomes the root's.
fn collapse_root(fork: &mut dyn ForkMut, index: &Index) -> Result<()> {
    let root = FileBlock(index.root);
    for _ in 0..NODE_MAX_LEVEL {
        let mut draft = Draft::read(fork, root, index.blocks, index.verifier)?;
        if !block_magic(&draft.bytes).is_some_and(|magic| Node::is(magic, true)) {
            return Ok(());
        }
        let node = NodeBlock::read(fork, index, root)?;
        if node.entries.len() > 1 {
            return Ok(());
        }
        let at = node.child(fork, index, 0)?;
        let child = fork.read(at, index.blocks, index.verifier)?;
        let corrupt = |problem| Error::corrupt_block(child.daddr(), Some(fork.inode()), problem);
        let header = DaHeader::parse(index.verifier.name, &child, true).map_err(corrupt)?;
        check_owner(fork, child.daddr(), index.verifier.name, header.owner)?;
        if let sibling @ 1.. = header.forw | header.back {
            return Err(corrupt(index.mismatch("sibling of an only child", sibling.into(), 0)));
        }
        if at == root
            || (Node::is(header.magic, true) && NodeBlock::read(fork, index, at)?.level + 1 != node.level)
        {
            return Err(corrupt(index.mismatch("level", node.level.into(), node.level.into())));
        }
        draft.bytes.copy_from_slice(&child);
        let daddr = draft.daddr();
        set_index_daddr(&mut draft.bytes, daddr).map_err(|problem| draft.corrupt(fork, problem))?;
        draft.store(fork)?;
        fork.unmap(at, index.blocks)?;
    }
    Ok(())
}

/// Copies the root into a block of its own; the root is to be written anew.
fn move_root(fork: &mut dyn ForkMut, index: &Index) -> Result<FileBlock> {
    let root = fork.read(FileBlock(index.root), index.blocks, index.verifier)?;
    let moved = map_block(fork, index)?;
    let daddr = fork.daddr(moved)?;
    let bytes = fork.create(moved, index.blocks, index.verifier)?;
    bytes.copy_from_slice(&root);
    set_index_daddr(bytes, daddr).map_err(|problem| Error::corrupt_block(daddr, None, problem))?;
    Ok(moved)
}

/// Makes the root a node, whatever it was.
fn write_root(fork: &mut dyn ForkMut, index: &Index, level: u16, entries: &[NodeEntry]) -> Result<()> {
    let at = FileBlock(index.root);
    let mut draft = Draft::read(fork, at, index.blocks, index.verifier)?;
    let id = identity(fork, at)?;
    init_index_block(&mut draft.bytes, NODE_MAGIC_V5, &id)
        .and_then(|()| Node::write(&mut draft.bytes, level, entries))
        .map_err(|problem| draft.corrupt(fork, problem))?;
    draft.store(fork)
}

fn create_node(
    fork: &mut dyn ForkMut,
    index: &Index,
    at: FileBlock,
    level: u16,
    entries: &[NodeEntry],
) -> Result<()> {
    let id = identity(fork, at)?;
    let bytes = fork.create(at, index.blocks, index.verifier)?;
    init_index_block(bytes, NODE_MAGIC_V5, &id)
        .and_then(|()| Node::write(bytes, level, entries))
        .map_err(|problem| Error::corrupt_block(id.daddr, Some(id.owner), problem))
}

fn write_node(fork: &mut dyn ForkMut, index: &Index, at: FileBlock, node: &NodeBlock) -> Result<()> {
    let mut draft = Draft::of(&node.buf, at, index.blocks, index.verifier);
    Node::write(&mut draft.bytes, node.level, &node.entries)
        .map_err(|problem| draft.corrupt(fork, problem))?;
    draft.store(fork)
}

/// Puts the block at `new`, which has no siblings, behind `at` in its chain.
fn link_behind(fork: &mut dyn ForkMut, index: &Index, at: FileBlock, new: FileBlock) -> Result<()> {
    let (header, _) = header_of(fork, index, at)?;
    write_siblings(fork, index, new, header.forw, pointer(at)?)?;
    if header.forw != 0 {
        let (next_at, next) = sibling(fork, index, &header, at, Side::Behind)?;
        write_siblings(fork, index, next_at, next.forw, pointer(new)?)?;
    }
    write_siblings(fork, index, at, pointer(new)?, header.back)
}

/// Takes the block at `at` out of its chain.
fn unlink(fork: &mut dyn ForkMut, index: &Index, at: FileBlock) -> Result<()> {
    let (header, _) = header_of(fork, index, at)?;
    if header.forw != 0 {
        let (next_at, next) = sibling(fork, index, &header, at, Side::Behind)?;
        write_siblings(fork, index, next_at, next.forw, header.back)?;
    }
    if header.back != 0 {
        let (before_at, before) = sibling(fork, index, &header, at, Side::Before)?;
        write_siblings(fork, index, before_at, header.forw, before.back)?;
    }
    Ok(())
}

/// A sibling of the block at `at`, which must be of the same kind and point back.
fn sibling(
    fork: &dyn Fork,
    index: &Index,
    header: &DaHeader,
    at: FileBlock,
    side: Side,
) -> Result<(FileBlock, DaHeader)> {
    let to = if side == Side::Behind { header.forw } else { header.back };
    let to = index.block(to).map_err(|problem| Error::corrupt_inode(fork.inode(), problem))?;
    let (other, daddr) = header_of(fork, index, to)?;
    let corrupt = |problem| Error::corrupt_block(daddr, Some(fork.inode()), problem);
    if other.magic != header.magic || to == at {
        return Err(corrupt(index.mismatch("magic of a sibling", other.magic.into(), header.magic.into())));
    }
    let (check, found) = match side {
        Side::Behind => ("backward sibling", other.back),
        Side::Before => ("forward sibling", other.forw),
    };
    if u64::from(found) != at.0 {
        return Err(corrupt(index.mismatch(check, found.into(), at.0)));
    }
    Ok((to, other))
}

fn header_of(
    fork: &dyn Fork,
    index: &Index,
    at: FileBlock,
) -> Result<(DaHeader, xfs_format::types::DiskAddr)> {
    let buf = fork.read(at, index.blocks, index.verifier)?;
    let header = DaHeader::parse(index.verifier.name, &buf, true)
        .map_err(|problem| Error::corrupt_block(buf.daddr(), Some(fork.inode()), problem))?;
    check_owner(fork, buf.daddr(), index.verifier.name, header.owner)?;
    Ok((header, buf.daddr()))
}

fn write_siblings(fork: &mut dyn ForkMut, index: &Index, at: FileBlock, forw: u32, back: u32) -> Result<()> {
    let mut draft = Draft::read(fork, at, index.blocks, index.verifier)?;
    set_siblings(&mut draft.bytes, forw, back).map_err(|problem| draft.corrupt(fork, problem))?;
    draft.store(fork)
}

fn set_step(path: &mut Path, depth: usize, step: Step) {
    if let Some(place) = path.steps.get_mut(depth) {
        *place = step;
    }
}

fn last_hash(entries: &[NodeEntry]) -> u32 {
    entries.last().map_or(0, |entry| entry.hash.get())
}

fn node_entry(hash: u32, at: FileBlock) -> Result<NodeEntry> {
    Ok(NodeEntry { hash: hash.into(), before: pointer(at)?.into() })
}

/// A block as index blocks name it. Those that [`map_block`] gives always fit.
fn pointer(at: FileBlock) -> Result<u32> {
    u32::try_from(at.0).map_err(|_| Error::Corrupt {
        daddr: None,
        inode: None,
        problem: FormatError::value("index block", "block pointer", at.0),
    })
}

fn node_error(
    fork: &dyn Fork,
    index: &Index,
    node: &NodeBlock,
    check: &'static str,
    found: u32,
    expected: u32,
) -> Error {
    let problem = index.mismatch(check, found.into(), expected.into());
    Error::corrupt_block(node.buf.daddr(), Some(fork.inode()), problem)
}
