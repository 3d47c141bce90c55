//! Descending the hash-indexed tree of a directory or attribute fork, and walking from leaf to leaf.
//!
//! Why this ends on any input: a [`Descent`] ends because the level decreases with every block, from 5 at most. A walk
//! along siblings ends because each leaf must point back to the previous one, and none may be the first again. If any
//! leaf came twice, so would the one before it, and so on back to the first.

mod descent;
pub(crate) mod edit;

use descent::Descent;

use crate::buf::Buf;
use crate::error::{Error, Result};
use crate::fork::Fork;
use xfs_format::da::DaHeader;
use xfs_format::error::FormatError;
use xfs_format::types::{DiskAddr, FileBlock, InodeNumber};
use xfs_format::verify::Verifier;

/// Where an index lies in its fork, and the type of its blocks.
pub(crate) struct DaIndex {
    /// The fork block of the root.
    pub(crate) root: u64,
    /// The end of the fork blocks that the index may use.
    pub(crate) end: u64,
    /// File system blocks per index block.
    pub(crate) blocks: u32,
    /// The verifier of a node or leaf.
    pub(crate) verifier: &'static Verifier,
}

/// An index block that is not a node.
pub(crate) struct LeafBlock {
    /// Its block in the fork.
    pub(crate) at: FileBlock,
    /// Its content.
    pub(crate) buf: Buf,
}

/// Finds the first leaf that may have `hash` (`None`: the first leaf). `None` if all hashes of the index are smaller.
pub(crate) fn descend(fork: &dyn Fork, index: &DaIndex, hash: Option<u32>) -> Result<Option<LeafBlock>> {
    let mut descent = Descent::from_root(index);
    loop {
        let buf = fork.read(descent.at, index.blocks, index.verifier)?;
        let Some(node) = descent.node(fork, index, buf.daddr(), &buf)? else {
            return Ok(Some(LeafBlock { at: descent.at, buf }));
        };
        let Some(child) = node.entries.get(hash.map_or(0, |hash| node.slot(hash))) else {
            return Ok(None);
        };
        descent = Descent::below(index, &node, child)
            .map_err(|problem| Error::corrupt_block(buf.daddr(), Some(fork.inode()), problem))?;
    }
}

/// The leaf after `leaf`, whose header is `header`. `first` is where the walk began.
pub(crate) fn next_leaf(
    fork: &dyn Fork,
    index: &DaIndex,
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

/// Fails if a v5 block has another inode as its owner.
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

impl DaIndex {
    /// A block that another one points to. It must belong to the index.
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
