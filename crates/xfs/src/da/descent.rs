//! The descent in a hash-indexed tree, block by block: the same for reading and for changing it.

use super::{DaIndex, check_owner};
use crate::error::{Error, Result};
use crate::fork::Fork;
use xfs_format::da::{Node, NodeEntry, block_magic};
use xfs_format::error::FormatError;
use xfs_format::types::{DiskAddr, FileBlock};

/// The state of a descent.
pub(super) struct Descent {
    /// The next block.
    pub(super) at: FileBlock,
    /// The level that the next block must have. The root may have any.
    due: Option<u16>,
}

impl Descent {
    /// At the root.
    pub(super) const fn from_root(index: &DaIndex) -> Self {
        Self { at: FileBlock(index.root), due: None }
    }

    /// At a child of a node.
    pub(super) fn below(index: &DaIndex, node: &Node<'_>, child: &NodeEntry) -> Result<Self, FormatError> {
        Ok(Self { at: index.block(child.before.get())?, due: node.level.checked_sub(1) })
    }

    /// Parses `bytes`, the block at this place, as a node. `None` if it is a leaf, which is not checked further.
    pub(super) fn node<'a>(
        &self,
        fork: &dyn Fork,
        index: &DaIndex,
        daddr: DiskAddr,
        bytes: &'a [u8],
    ) -> Result<Option<Node<'a>>> {
        let v5 = fork.geometry().v5;
        let corrupt = |problem| Error::corrupt_block(daddr, Some(fork.inode()), problem);
        let wrong = |level: u16, due: u16| corrupt(index.mismatch("level", level.into(), due.into()));
        if !block_magic(bytes).is_some_and(|magic| Node::is(magic, v5)) {
            return match self.due {
                None | Some(0) => Ok(None),
                Some(due) => Err(wrong(0, due)),
            };
        }
        let node = Node::parse(bytes, v5).map_err(corrupt)?;
        check_owner(fork, daddr, index.verifier.name, node.header.owner)?;
        match self.due.filter(|&due| due != node.level) {
            None => Ok(Some(node)),
            Some(due) => Err(wrong(node.level, due)),
        }
    }
}
