//! The hash-indexed tree of a directory or attribute fork, from its root down, with every link checked: levels, owners,
//! siblings in both directions, each node's hash of each child, and that hashes never descend.
//!
//! Why this ends on any input: levels decrease from 5 at most, and a block is visited only once.

use super::Check;
use super::map::ForkOf;
use super::report::FindingPlace;
use crate::error::Result;
use blockdev::AlignedBuf;
use std::collections::HashSet;
use xfs_format::attr::AttrLeaf;
use xfs_format::bmbt::Extent;
use xfs_format::da::{DaHeader, NODE_MAX_LEVEL, Node, block_magic};
use xfs_format::dir::Leaf;
use xfs_format::error::FormatError;
use xfs_format::types::FileBlock;
use xfs_format::verify::Verifier;

/// Where an index lies in its fork, and the type of its blocks.
pub(super) struct IndexFork<'a> {
    pub(super) fork: &'a ForkOf<'a>,
    pub(super) extents: &'a [Extent],
    /// The fork block of the root, and the end of the index.
    pub(super) root: u64,
    pub(super) end: u64,
    /// File system blocks per index block.
    pub(super) blocks: u32,
    pub(super) verifier: &'static Verifier,
    /// Whether its leaves are those of directories.
    pub(super) directory: bool,
}

/// A leaf that was reached.
pub(super) struct LeafBlock {
    pub(super) at: FileBlock,
    pub(super) bytes: AlignedBuf,
    /// Whether it is the root.
    pub(super) root: bool,
}

/// The result of a walk.
pub(super) struct Walked {
    /// Blocks of the index, leaves and nodes.
    pub(super) blocks: u64,
    /// Whether every leaf was seen.
    pub(super) whole: bool,
}

#[derive(Clone, Copy)]
enum Last {
    None,
    Unknown,
    Block { at: u64, forw: u64 },
}

struct Walk<'a, 'c> {
    index: &'a IndexFork<'a>,
    last: [Last; NODE_MAX_LEVEL as usize + 1],
    seen: HashSet<u64>,
    hash: u32,
    whole: bool,
    each: &'a mut dyn FnMut(&mut Check<'c>, &LeafBlock) -> Result<()>,
}

/// Walks an index. Calls `each` with its leaves in order.
pub(super) fn walk<'c>(
    check: &mut Check<'c>,
    index: &IndexFork<'_>,
    each: &mut dyn FnMut(&mut Check<'c>, &LeafBlock) -> Result<()>,
) -> Result<Walked> {
    let last = [Last::None; NODE_MAX_LEVEL as usize + 1];
    let mut walk = Walk { index, last, seen: HashSet::new(), hash: 0, whole: true, each };
    walk.visit(check, index.root, None, None)?;
    let place = FindingPlace::inode(index.fork.ino);
    for last in walk.last {
        if let Last::Block { forw, .. } = last
            && forw != 0
        {
            check.report.add(
                place,
                FormatError::value(index.verifier.name, "forward sibling of the last block", forw),
            );
        }
    }
    Ok(Walked { blocks: walk.seen.len() as u64, whole: walk.whole })
}

impl<'c> Walk<'_, 'c> {
    /// Visits the subtree at `at`. `due` is the level that it must have; `hash` is the largest hash according to its
    /// parent.
    fn visit(&mut self, check: &mut Check<'c>, at: u64, due: Option<u16>, hash: Option<u32>) -> Result<()> {
        let index = self.index;
        let name = index.verifier.name;
        let place = FindingPlace::inode(index.fork.ino);
        let inside = (index.root..index.end).contains(&at)
            && (at - index.root).is_multiple_of(index.blocks.into())
            && (due.is_none() || at != index.root);
        if !inside || !self.seen.insert(at) {
            check.report.add(place, FormatError::value(name, "block pointer", at));
            self.lost(due);
            return Ok(());
        }
        let (v5, run) = (check.geometry().v5, (FileBlock(at), index.blocks));
        let bytes = check.reader.fork(index.extents, run, index.verifier, place, &mut check.report)?;
        let Some(bytes) = bytes else {
            self.lost(due);
            return Ok(());
        };
        let Ok(header) = DaHeader::parse(name, &bytes, v5) else {
            self.lost(due);
            return Ok(());
        };
        let is_node = block_magic(&bytes).is_some_and(|magic| Node::is(magic, v5));
        let node = if is_node { Node::parse(&bytes, v5).ok() } else { None };
        let level = node.as_ref().map_or(0, |node| node.level);
        let right_owner = header
            .owner
            .is_none_or(|owner| check.report.same(place, name, "owner", owner.0, index.fork.ino.0));
        let right_level = due.is_none_or(|due| check.report.same(place, name, "level", level, due));
        if !right_owner || !right_level {
            self.lost(due);
            return Ok(());
        }
        self.check_siblings(check, at, level, &header);
        if let Some(hash) = hash
            && let Some(largest) = self.largest_hash(&bytes, node.as_ref(), v5)
        {
            check.report.same(place, name, "largest hash below a node", hash, largest);
        }
        let Some(node) = node else {
            self.check_first_hash(check, &bytes, v5);
            return (self.each)(check, &LeafBlock { at: FileBlock(at), bytes, root: due.is_none() });
        };
        for entry in node.entries {
            if check.report.stopped() {
                break;
            }
            self.visit(check, entry.before.get().into(), Some(level - 1), Some(entry.hash.get()))?;
        }
        Ok(())
    }

    /// The largest hash of a block. `None` if it has no entries.
    fn largest_hash(&self, bytes: &[u8], node: Option<&Node<'_>>, v5: bool) -> Option<u32> {
        if let Some(node) = node {
            return node.entries.last().map(|entry| entry.hash.get());
        }
        if self.index.directory {
            Leaf::parse(bytes, v5).ok()?.entries.last().map(|entry| entry.hash.get())
        } else {
            AttrLeaf::parse(bytes, v5).ok()?.entries.last().map(|entry| entry.hash.get())
        }
    }

    /// Hashes must ascend from leaf to leaf. The verifier checks them within a leaf.
    fn check_first_hash(&mut self, check: &mut Check<'c>, bytes: &[u8], v5: bool) {
        let first = if self.index.directory {
            Leaf::parse(bytes, v5).ok().and_then(|leaf| leaf.entries.first().map(|entry| entry.hash.get()))
        } else {
            AttrLeaf::parse(bytes, v5)
                .ok()
                .and_then(|leaf| leaf.entries.first().map(|entry| entry.hash.get()))
        };
        if let Some(first) = first
            && first < self.hash
        {
            let (name, place) = (self.index.verifier.name, FindingPlace::inode(self.index.fork.ino));
            check
                .report
                .add(place, FormatError::mismatch(name, "hash order", first.into(), self.hash.into()));
        }
        self.hash = self.largest_hash(bytes, None, v5).unwrap_or(self.hash);
    }

    fn check_siblings(&mut self, check: &mut Check<'c>, at: u64, level: u16, header: &DaHeader) {
        let (name, place) = (self.index.verifier.name, FindingPlace::inode(self.index.fork.ino));
        let last = &mut self.last[usize::from(level)];
        match *last {
            Last::Unknown => {}
            Last::None => {
                check.report.same(place, name, "backward sibling", header.back, 0_u32);
            }
            Last::Block { at: before, forw } => {
                check.report.same(place, name, "backward sibling", header.back, before);
                check.report.same(place, name, "forward sibling of the block before", forw, at);
            }
        }
        *last = Last::Block { at, forw: header.forw.into() };
    }

    fn lost(&mut self, due: Option<u16>) {
        self.whole = false;
        let levels = due.map_or(self.last.len(), |due| usize::from(due) + 1);
        for last in self.last.iter_mut().take(levels) {
            *last = Last::Unknown;
        }
    }
}
