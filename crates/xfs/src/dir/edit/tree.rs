//! Changing a hash-indexed tree: the way down with what is needed to come back up, splits, joins, the root's moves.
//!
//! What a leaf holds is known to [`Leaves`] alone.
//!
//! Invariants:
//! - The root never moves. It grows by moving its content into a new block, and shrinks by taking in its only child.
//! - A node's hash for a child is the child's last hash, stale entries included.
//! - Blocks of one level are linked both ways in the order of the tree. A link is followed only if it is returned.
//! - No block but the root is empty.
//!
//! A block joins a neighbour below the same parent only: fewer blocks are touched, and a block without such a
//! neighbour goes when it is empty, its parent with it.

use crate::buf::copy_of;
use crate::da::{Index, check_owner};
use crate::error::{Error, Result};
use crate::fork::{Fork, ForkBuf, ForkMut};
use smallvec::SmallVec;
use xfs_format::da::{DaHeader, Node, NodeEdit, NodeEntry, block_magic, set_back, set_forw, settle};
use xfs_format::edit::{Image, Stamp};
use xfs_format::error::FormatError;
use xfs_format::types::{DiskAddr, FileBlock, InodeNumber};
use xfs_format::verify::Verifier;

/// The highest level that a root may grow to: other implementations count five levels, the leaves among them.
const ROOT_LEVEL_MAX: u16 = 4;
/// A block joins a neighbour when it is filled to less than 3/8, and both together fill no more than 3/4.
const JOIN_BELOW: (usize, usize) = (3, 8);
const JOINED_MAX: (usize, usize) = (3, 4);

/// Where a problem was found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    daddr: DiskAddr,
    inode: InodeNumber,
}

impl Place {
    /// Where on the device.
    pub(crate) const fn daddr(self) -> DiskAddr {
        self.daddr
    }

    /// The error for a problem found here.
    pub(crate) fn bad(self, problem: FormatError) -> Error {
        Error::corrupt_block(self.daddr, Some(self.inode), problem)
    }
}

/// A block of a fork under change. Nothing reaches the fork before [`Block::write`].
#[derive(Debug)]
pub(crate) struct Block {
    /// Where it lies in the fork.
    pub(crate) at: FileBlock,
    /// Its bytes.
    pub(crate) image: Image,
    /// Where it lies, for errors.
    pub(crate) place: Place,
    blocks: u32,
    verifier: &'static Verifier,
    /// What was read; nothing of a new block.
    old: Option<ForkBuf>,
}

impl Block {
    /// Reads the block at `at`, and locks it.
    pub(crate) fn read(
        fork: &mut dyn ForkMut,
        at: FileBlock,
        blocks: u32,
        verifier: &'static Verifier,
    ) -> Result<Self> {
        let buf = fork.read_buf(at, blocks, verifier)?;
        let ForkBuf { at, blocks, verifier, .. } = buf;
        let place = Place { daddr: buf.buf.daddr(), inode: fork.inode() };
        let image = Image::copied_by(verifier.name, buf.buf.share(), copy_of);
        Ok(Self { at, image, place, blocks, verifier, old: Some(buf) })
    }

    /// Its bytes as they are now.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.image.bytes()
    }

    /// Allocates the block at `at`: zeroes.
    pub(crate) fn map(
        fork: &mut dyn ForkMut,
        at: FileBlock,
        blocks: u32,
        verifier: &'static Verifier,
    ) -> Result<Self> {
        let mapped = fork.next_mapped(at)?;
        if mapped.is_some_and(|mapped| mapped.0 < at.0 + u64::from(blocks)) {
            let problem = FormatError::value(verifier.name, "block that should be free", at.0);
            return Err(Error::corrupt_inode(fork.inode(), problem));
        }
        fork.map(at, blocks)?;
        let place = Place { daddr: fork.daddr(at)?, inode: fork.inode() };
        let len = (fork.geometry().block_size as usize) * blocks as usize;
        Ok(Self { at, image: Image::new(verifier.name, vec![0; len]), place, blocks, verifier, old: None })
    }

    /// What a new block at its place says of itself.
    pub(crate) fn stamp(&self, fork: &dyn Fork) -> Stamp {
        let geometry = fork.geometry();
        Stamp {
            v5: geometry.v5,
            meta_uuid: geometry.meta_uuid,
            daddr: self.place.daddr,
            owner: self.place.inode,
        }
    }

    /// Hands the changes to the fork, and no more than these.
    pub(crate) fn write(self, fork: &mut dyn ForkMut) -> Result<()> {
        let (bytes, changed) = self.image.into_parts();
        match self.old {
            None => fork.create(self.at, self.blocks, self.verifier)?.copy_from_slice(&bytes),
            Some(_) if changed.is_empty() => {}
            Some(old) => fork.log_buf(old, bytes, &changed)?,
        }
        Ok(())
    }

    /// Gives the block back, whatever was changed of it.
    pub(crate) fn unmap(self, fork: &mut dyn ForkMut) -> Result<()> {
        fork.unmap(self.at, self.blocks)
    }

    pub(crate) fn header(&self, v5: bool) -> Result<DaHeader> {
        DaHeader::parse(self.verifier.name, self.image.bytes(), v5).map_err(|problem| self.place.bad(problem))
    }

    fn set_siblings(&mut self, forw: Option<u32>, back: Option<u32>) -> Result<()> {
        let place = self.place;
        let mut patch = self.image.edit();
        if let Some(forw) = forw {
            set_forw(&mut patch, forw).map_err(|problem| place.bad(problem))?;
        }
        if let Some(back) = back {
            set_back(&mut patch, back).map_err(|problem| place.bad(problem))?;
        }
        Ok(())
    }
}

/// What is known of leaves.
pub(crate) trait Leaves {
    /// Bytes that live content takes, and bytes there are for it.
    fn fill(&self, leaf: &[u8]) -> Result<(usize, usize), FormatError>;
    /// The hash that a leaf's parent must have for it; `None` for a leaf without entries.
    fn last_hash(&self, leaf: &[u8]) -> Result<Option<u32>, FormatError>;
    /// Appends the live content of `right` to `left`, whose hashes are no larger.
    fn join(&self, left: &mut Image, right: &[u8]) -> Result<(), FormatError>;
}

/// A node on the way down, and the child that was taken.
#[derive(Clone, Copy, Debug)]
struct Step {
    at: FileBlock,
    slot: usize,
    level: u16,
}

/// The way from the root to a leaf.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    nodes: SmallVec<[Step; 4]>,
    /// The leaf.
    pub(crate) leaf: FileBlock,
}

impl Path {
    /// Whether the leaf is the root.
    pub(crate) fn is_lone(&self) -> bool {
        self.nodes.is_empty()
    }
}

/// The way to the first leaf that may hold `hash`, or to the last one of all; and that leaf.
pub(crate) fn find_path(fork: &mut dyn ForkMut, index: &Index, hash: u32) -> Result<(Path, Block)> {
    let path = Path { nodes: SmallVec::new(), leaf: FileBlock(index.root) };
    go_down(fork, index, path, Some(hash))
}

/// The way to the leaf behind `leaf`, which `path` leads to. `first` is where the walk began.
pub(crate) fn next_path(
    fork: &mut dyn ForkMut,
    index: &Index,
    first: FileBlock,
    mut path: Path,
    leaf: &Block,
) -> Result<Option<(Path, Block)>> {
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
        path.leaf = index.block(child.before.get()).map_err(|problem| place.bad(problem))?;
        path.nodes.push(step);
        let (path, next) = go_down(fork, index, path, None)?;
        // As links must be returned, no leaf can come twice without the first one coming twice.
        let (here, there) = (leaf.header(v5)?, next.header(v5)?);
        if u64::from(here.forw) != path.leaf.0 || u64::from(there.back) != before.0 || path.leaf == first {
            return Err(leaf.place.bad(index.mismatch("forward sibling", here.forw.into(), path.leaf.0)));
        }
        return Ok(Some((path, next)));
    }
    Ok(None)
}

/// Goes on from `path.leaf`, which may be a node, down to a leaf. Levels must fall, so this ends.
fn go_down(
    fork: &mut dyn ForkMut,
    index: &Index,
    mut path: Path,
    hash: Option<u32>,
) -> Result<(Path, Block)> {
    let v5 = fork.geometry().v5;
    let mut due = path.nodes.last().map(|step| step.level.saturating_sub(1));
    loop {
        let block = Block::read(fork, path.leaf, index.blocks, index.verifier)?;
        let place = block.place;
        if !block_magic(block.bytes()).is_some_and(|magic| Node::is(magic, v5)) {
            check_owner(fork, place.daddr, index.verifier.name, block.header(v5)?.owner)?;
            return match due {
                None | Some(0) => Ok((path, block)),
                Some(due) => Err(place.bad(index.mismatch("level", 0, due.into()))),
            };
        }
        let node = Node::parse(block.bytes(), v5).map_err(|problem| place.bad(problem))?;
        check_owner(fork, place.daddr, index.verifier.name, node.header.owner)?;
        if let Some(due) = due.filter(|&due| due != node.level) {
            return Err(place.bad(index.mismatch("level", node.level.into(), due.into())));
        }
        let slot = match hash {
            Some(hash) => node.entries.partition_point(|entry| entry.hash.get() < hash),
            None => 0,
        };
        let slot = slot.min(node.entries.len() - 1); // a parsed node has a child
        let child = node.entries[slot].before.get();
        let step = Step { at: path.leaf, slot, level: node.level };
        path.nodes.push(step);
        path.leaf = index.block(child).map_err(|problem| place.bad(problem))?;
        due = Some(node.level - 1);
    }
}

/// A free place for a new block of the index. Looking costs the same however large the index is: places near the
/// start, then a few picked by `seed`, then the first behind all that are taken. So holes are found again in
/// proportion to how many there are.
pub(crate) fn free_place(fork: &dyn Fork, index: &Index, seed: u32) -> Result<FileBlock> {
    const NEAR: u64 = 16;
    const PROBES: u64 = 12;
    let step = u64::from(index.blocks);
    let at = |slot: u64| FileBlock(index.root.saturating_add(slot.saturating_mul(step)));
    let mapped_from = |slot: u64| -> Result<Option<u64>> {
        let mapped = if at(slot).0 < index.end { fork.next_mapped(at(slot))? } else { None };
        Ok(mapped.map(|mapped| mapped.0).filter(|&mapped| mapped < index.end))
    };
    let is_free =
        |slot: u64| Ok::<_, Error>(mapped_from(slot)?.is_none_or(|mapped| mapped >= at(slot + 1).0));
    for slot in 0..NEAR {
        if is_free(slot)? {
            return Ok(at(slot));
        }
    }
    let (mut taken, mut free) = (NEAR - 1, NEAR);
    while mapped_from(free)?.is_some() {
        taken = free;
        free = free.saturating_mul(2);
    }
    while taken + 1 < free {
        let middle = taken + (free - taken) / 2;
        if mapped_from(middle)?.is_some() { taken = middle } else { free = middle }
    }
    for probe in 0..PROBES {
        let slot = scatter(u64::from(seed) << 8 | probe) % free;
        if is_free(slot)? {
            return Ok(at(slot));
        }
    }
    let end = at(free);
    if end.0.saturating_add(step) > index.end { Err(Error::NoSpace) } else { Ok(end) }
}

/// Spreads numbers evenly.
pub(crate) const fn scatter(number: u64) -> u64 {
    let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16
}

/// Enters into the tree that the leaf at the end of `path` was split: `left` is that leaf, `right` is new. Both come
/// with their last hash.
pub(crate) fn enter_split(
    fork: &mut dyn ForkMut,
    index: &Index,
    path: &Path,
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

/// The root was split: its part moves into a block of its own, and the root becomes the parent of the two.
fn split_root(
    fork: &mut dyn ForkMut,
    index: &Index,
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
    // The right block is not written yet, but mapped: no one else gets its place.
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

/// Links `right`, which is new, behind `left`.
fn link_behind(fork: &mut dyn ForkMut, index: &Index, left: &mut Block, right: &mut Block) -> Result<()> {
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

/// The block of the same level that a sibling pointer of `block` names; `None` for 0.
fn neighbour(fork: &mut dyn ForkMut, index: &Index, block: &Block, pointer: u32) -> Result<Option<Block>> {
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

/// Brings the hashes of the nodes of a path up to date after the last hash of the block below them became `hash`.
pub(crate) fn fix_path(fork: &mut dyn ForkMut, index: &Index, path: &Path, hash: u32) -> Result<()> {
    fix_hashes(fork, index, &path.nodes, hash)
}

fn fix_hashes(fork: &mut dyn ForkMut, index: &Index, nodes: &[Step], hash: u32) -> Result<()> {
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

/// After something was taken out of `leaf`, which `path` leads to and which was not written yet: writes it, or joins
/// it with a neighbour, or takes it out of the tree, and does the same on the levels above.
pub(crate) fn shrink(
    fork: &mut dyn ForkMut,
    index: &Index,
    path: &Path,
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

/// What the steps of [`shrink`] have in common.
struct Tree<'a> {
    index: &'a Index,
    leaves: &'a dyn Leaves,
    v5: bool,
}

impl Tree<'_> {
    /// The children of a node; none if it lost the last one just now, and `None` if the block is no node.
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

    /// Takes a block with nothing in it out of its level and its parent.
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

    /// Joins a block with a neighbour below the same parent, if both fit into one. Gives the block back if not.
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

    /// Moves the content of `right` into `left` and gives `right` back.
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

    /// While the root has but one child, takes the child's content into the root. The level falls, so this ends.
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

fn last_node_hash(block: &Block, v5: bool) -> Result<u32> {
    let node = Node::parse(block.image.bytes(), v5).map_err(|problem| block.place.bad(problem))?;
    Ok(node.entries.last().map_or(0, |entry| entry.hash.get()))
}

fn node_entry(hash: u32, at: FileBlock) -> NodeEntry {
    NodeEntry { hash: hash.into(), before: pointer(at).into() }
}

/// A block's place as other blocks say it. Both index spaces end below 2^32 blocks.
fn pointer(at: FileBlock) -> u32 {
    debug_assert!(u32::try_from(at.0).is_ok(), "an index lies in the first 2^32 blocks of its fork");
    at.0 as u32
}
