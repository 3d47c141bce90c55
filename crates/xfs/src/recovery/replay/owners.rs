//! Blocks of maps that changed their owner because two files exchanged their extent trees.
//!
//! The log only has a mark in the inodes. The blocks were to be written back with their new owners, and may or may not
//! have been. So everything in a marked inode's tree at the end belongs to that inode.

use crate::error::{Error, Result};
use crate::inode::ForkKind;
use crate::recovery::patch::Patch;
use std::collections::BTreeSet;
use std::mem::offset_of;
use xfs_format::bmbt::BmbtRoot;
use xfs_format::btree::{Bmbt, LongHeader, Node, Tree};
use xfs_format::checksum;
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::inode::{ForkFormat, InodeCore};
use xfs_format::types::{DiskAddr, FsBlock, InodeNumber};
use xfs_format::verify::VerifyContext;

/// A fork whose blocks must belong to it.
pub(super) type Owner = (InodeNumber, ForkKind);

/// Sets the owner in all blocks of these trees. Each block passes its verifier first.
pub(super) fn change(patch: &mut Patch, geometry: &Geometry, owners: &BTreeSet<Owner>) -> Result<()> {
    for &(ino, kind) in owners {
        let at = super::place_of(geometry, ino).ok_or(Error::NoSuchInode(ino))?;
        let bytes = patch.get(at, geometry.inode_size.into(), "inode")?;
        let damaged = |problem| Error::Corrupt { daddr: Some(DiskAddr(at / 512)), inode: Some(ino), problem };
        let Some(core) = InodeCore::parse(&bytes, ino, geometry).map_err(damaged)? else { continue };
        let fork = match kind {
            ForkKind::Data => Some(core.data),
            ForkKind::Attr => core.attr,
        };
        let Some(fork) = fork.filter(|fork| fork.format == ForkFormat::Btree) else { continue };
        let root = BmbtRoot::view(bytes.get(fork.range).unwrap_or_default()).map_err(damaged)?;
        let mut tree = OwnedTree { patch, geometry, ino, seen: BTreeSet::new() };
        for child in root.pointers() {
            tree.visit(child, root.level() - 1)?;
        }
    }
    Ok(())
}

struct OwnedTree<'a> {
    patch: &'a mut Patch,
    geometry: &'a Geometry,
    ino: InodeNumber,
    /// Ends a circular tree.
    seen: BTreeSet<FsBlock>,
}

impl OwnedTree<'_> {
    /// Visits a block and everything below it. The recursion is as deep as the tree.
    fn visit(&mut self, block: FsBlock, level: u16) -> Result<()> {
        const OWNER: usize = offset_of!(LongHeader, owner);
        let Self { geometry, ino, .. } = *self;
        let pointer = || Error::corrupt_inode(ino, FormatError::value(Bmbt::NAME, "child pointer", block.0));
        let daddr = geometry.extent_daddr(block, 1).ok_or_else(pointer)?;
        if !self.seen.insert(block) {
            return Err(pointer());
        }
        let wrap = |problem| Error::corrupt_block(daddr, Some(ino), problem);
        let mut change = self.patch.change(daddr.0 * 512, geometry.block_size.into(), Bmbt::NAME)?;
        let bytes = change.bytes();
        let context = VerifyContext { v5: geometry.v5, meta_uuid: geometry.meta_uuid, daddr };
        (Bmbt::verifier().check)(bytes, &context).map_err(wrap)?;
        let node = Node::<Bmbt>::view(bytes, geometry.v5).map_err(wrap)?;
        if node.level() != level {
            let problem = FormatError::mismatch(Bmbt::NAME, "level", node.level().into(), level.into());
            return Err(wrap(problem));
        }
        let inner = if level == 0 { 0 } else { node.count() };
        let children: Vec<FsBlock> =
            (0..inner).filter_map(|index| node.pointer(index)).map(FsBlock).collect();
        if node.owner() != Some(ino.0) {
            bytes[OWNER..OWNER + 8].copy_from_slice(&ino.0.to_be_bytes());
            checksum::store(bytes, offset_of!(LongHeader, crc));
            self.patch.put(change);
        }
        children.into_iter().try_for_each(|child| self.visit(child, level - 1))
    }
}
