//! The map store of a transaction.

use super::{ForkContent, ForkStore, RmapUpdateKind};
use crate::agf;
use crate::alloc::{Purpose, Request, Target};
use crate::bmap::TransFork;
use crate::btree::edit::Block;
use crate::defer;
use crate::error::{Error, Result};
use crate::inode::{ForkKind, ForkState};
use crate::rmap::RmapOwner;
use std::ops::Range;
use std::sync::Arc;
use xfs_format::btree::{Bmbt, Tree};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::inode::InodeFlags2;
use xfs_format::types::{DiskAddr, FsBlock, InodeNumber};

impl TransFork<'_, '_> {
    /// The owner of the blocks of the map's tree.
    fn tree_owner(&self) -> RmapOwner {
        RmapOwner::bmbt(self.ino, self.kind == ForkKind::Attr)
    }

    fn tree_daddr(&self, block: FsBlock) -> Result<DiskAddr> {
        self.trans.geometry().extent_daddr(block, 1).ok_or_else(|| {
            Error::corrupt_inode(self.ino, FormatError::value(Bmbt::NAME, "child pointer", block.0))
        })
    }
}

impl ForkStore for TransFork<'_, '_> {
    fn geometry(&self) -> &Geometry {
        self.trans.geometry()
    }
    fn ino(&self) -> InodeNumber {
        self.ino
    }
    fn kind(&self) -> ForkKind {
        self.kind
    }
    fn large_counts(&self) -> bool {
        self.trans.inode(self.ino).core().flags2.contains(InodeFlags2::NREXT64)
    }
    fn room(&self) -> usize {
        let core = self.trans.inode(self.ino).core();
        match self.kind {
            ForkKind::Data => core.data.range.len(),
            ForkKind::Attr => core.attr.as_ref().map_or(0, |attr| attr.range.len()),
        }
    }
    fn content(&self) -> Result<ForkContent> {
        let inode = self.trans.inode_snapshot(self.ino);
        let extents = self.trans.mount().extents(&inode, self.kind)?;
        let fork = inode.fork_state(self.kind).ok_or_else(|| {
            Error::corrupt_inode(self.ino, FormatError::new("inode", "attribute fork that is not there"))
        })?;
        Ok(ForkContent { format: fork.format, bytes: fork.bytes.to_vec(), extents: (*extents).clone() })
    }
    fn set_content(&mut self, content: ForkContent, blocks: i64) -> Result<()> {
        let inode = self.trans.inode_mut(self.ino, self.fields());
        let ForkContent { format, bytes, extents } = content;
        let count = extents.len() as u64;
        inode.set_fork(self.kind, ForkState::with(format, count, bytes.into(), Some(Arc::new(extents))));
        let old = inode.core().nblocks;
        inode.core_mut().nblocks = old
            .checked_add_signed(blocks)
            .ok_or_else(|| Error::corrupt_inode(self.ino, FormatError::value("inode", "block count", old)))?;
        Ok(())
    }
    fn read(&self, block: FsBlock) -> Result<Block<'_>> {
        let ino = self.ino;
        self.trans.read_block(self.tree_daddr(block)?, Bmbt::verifier()).map_err(|error| error.of_inode(ino))
    }
    fn modify(&mut self, block: FsBlock, ranges: &[Range<usize>]) -> Result<&mut [u8]> {
        let (daddr, ino) = (self.tree_daddr(block)?, self.ino);
        self.trans.modify_block(daddr, Bmbt::verifier(), ranges).map_err(|error| error.of_inode(ino))
    }
    fn create(&mut self, block: FsBlock) -> Result<&mut [u8]> {
        let daddr = self.tree_daddr(block)?;
        self.trans.create_block(daddr, Bmbt::verifier())
    }
    fn allocate(&mut self, near: FsBlock) -> Result<FsBlock> {
        let request = Request::block(Purpose::Metadata).owned_by(self.tree_owner());
        let found = agf::allocate(self.trans, Target::Near(near), request)?;
        Ok(found.start(self.trans.geometry()))
    }
    fn free(&mut self, block: FsBlock) -> Result<()> {
        let daddr = self.tree_daddr(block)?;
        self.trans.forget_block(daddr, Bmbt::verifier())?;
        let owner = Some(self.tree_owner());
        defer::defer_free(self.trans, self.ino, block, 1, owner)
    }
    fn remapped(&mut self, change: RmapUpdateKind) -> Result<()> {
        if self.trans.geometry().rmapbt {
            defer::defer_rmap(self.trans, self.ino, self.kind, change);
        }
        Ok(())
    }
}
