//! Descent through the hash-indexed tree of a directory or an attribute fork, and from leaf to leaf.
//!
//! Why this ends on any input: a descent ends because the level falls with every block, from 5 at most. A walk
//! along siblings ends because each leaf must point back to the one before it, and none may be the first again: if
//! any leaf came twice, so would the one before it, and so on back to the first.

pub(crate) mod draft;
pub(crate) mod edit;
mod path;
#[cfg(test)]
mod tests;

pub(crate) use path::{Path, Side};

use crate::buf::Buf;
use crate::error::{Error, Result};
use crate::fork::Fork;
use xfs_format::da::{DaHeader, Node, block_magic};
use xfs_format::error::FormatError;
use xfs_format::types::{DiskAddr, FileBlock, InodeNumber};
use xfs_format::verify::Verifier;

/// Where an index lies in its fork, and what its blocks are.
pub(crate) struct Index {
    /// The block of the fork at which the root lies.
    pub(crate) root: u64,
    /// The block of the fork behind the last that the index may use.
    pub(crate) end: u64,
    /// Blocks of the volume that make one block of the index.
    pub(crate) blocks: u32,
    /// The check of a node or leaf.
    pub(crate) verifier: &'static Verifier,
}

/// A block of the index that is no node.
pub(crate) struct LeafBlock {
    /// Where it lies in the fork.
    pub(crate) at: FileBlock,
    /// What it holds.
    pub(crate) buf: Buf,
}

/// Finds the first leaf that may hold `hash` (`None`: the first of all). `None` if the index has no hash as large.
pub(crate) fn descend(fork: &dyn Fork, index: &Index, hash: Option<u32>) -> Result<Option<LeafBlock>> {
    let v5 = fork.geometry().v5;
    let mut at = FileBlock(index.root);
    let mut level_due: Option<u16> = None;
    loop {
        let buf = fork.read(at, index.blocks, index.verifier)?;
        let corrupt = |problem| Error::corrupt_block(buf.daddr(), Some(fork.inode()), problem);
        if !block_magic(&buf).is_some_and(|magic| Node::is(magic, v5)) {
            return match level_due {
                None | Some(0) => Ok(Some(LeafBlock { at, buf })),
                Some(due) => Err(corrupt(index.mismatch("level", 0, due.into()))),
            };
        }
        let node = Node::parse(&buf, v5).map_err(corrupt)?;
        check_owner(fork, buf.daddr(), index.verifier.name, node.header.owner)?;
        if let Some(due) = level_due.filter(|&due| due != node.level) {
            return Err(corrupt(index.mismatch("level", node.level.into(), due.into())));
        }
        let child = match hash {
            None => node.entries.first(),
            Some(hash) => node.child(hash),
        };
        let Some(child) = child else {
            return Ok(None);
        };
        at = index.block(child.before.get()).map_err(corrupt)?;
        level_due = node.level.checked_sub(1);
    }
}

/// The leaf behind `leaf`, whose header is `header`. `first` is where the walk began.
pub(crate) fn next_leaf(
    fork: &dyn Fork,
    index: &Index,
    first: FileBlock,
    leaf: &LeafBlock,
    header: &DaHeader,
) -> Result<Option<LeafBlock>> {
    if header.forw == 0 {
        return Ok(None);
    }
    let corrupt_here = |problem| Error::corrupt_block(leaf.buf.daddr(), Some(fork.inode()), problem);
    let at = index.block(header.forw).map_err(corrupt_here)?;
    if at == first {
        return Err(corrupt_here(FormatError::value(index.verifier.name, "cycle of siblings", at.0)));
    }
    let buf = fork.read(at, index.blocks, index.verifier)?;
    let corrupt = |problem| Error::corrupt_block(buf.daddr(), Some(fork.inode()), problem);
    let next = DaHeader::parse(index.verifier.name, &buf, fork.geometry().v5).map_err(corrupt)?;
    if u64::from(next.back) != leaf.at.0 {
        return Err(corrupt(index.mismatch("backward sibling", next.back.into(), leaf.at.0)));
    }
    Ok(Some(LeafBlock { at, buf }))
}

/// Fails if a v5 block says that it belongs to another inode.
pub(crate) fn check_owner(
    fork: &dyn Fork,
    daddr: DiskAddr,
    structure: &'static str,
    owner: Option<InodeNumber>,
) -> Result<()> {
    match owner {
        Some(owner) if owner != fork.inode() => {
            let problem = FormatError::mismatch(structure, "owner", owner.0, fork.inode().0);
            Err(Error::corrupt_block(daddr, Some(fork.inode()), problem))
        }
        _ => Ok(()),
    }
}

impl Index {
    /// A block that another one points to: it must be one of the index.
    pub(crate) fn block(&self, at: u32) -> Result<FileBlock, FormatError> {
        let at = u64::from(at);
        let inside = (self.root..self.end).contains(&at);
        if inside && (at - self.root).is_multiple_of(self.blocks.into()) {
            Ok(FileBlock(at))
        } else {
            Err(FormatError::value(self.verifier.name, "block pointer", at))
        }
    }

    pub(crate) fn mismatch(&self, check: &'static str, found: u64, expected: u64) -> FormatError {
        FormatError::mismatch(self.verifier.name, check, found, expected)
    }
}
