//! A fork of an inode as directory, attribute and symlink code reads it.

use super::Mount;
use crate::buf::{Buf, MAX_BUF_BYTES};
use crate::error::{Error, Result};
use crate::fork::Fork;
use crate::ifork::{ExtentList, buf_maps};
use crate::inode::{ForkKind, Inode};
use std::sync::Arc;
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::inode::ForkFormat;
use xfs_format::types::{FileBlock, InodeNumber};
use xfs_format::verify::Verifier;

/// One fork of one inode of a volume.
#[derive(Debug)]
pub struct InodeFork<'a> {
    mount: &'a Mount,
    inode: &'a Inode,
    kind: ForkKind,
}

impl<'a> InodeFork<'a> {
    /// The fork, if the inode has it.
    pub(crate) fn new(mount: &'a Mount, inode: &'a Inode, kind: ForkKind) -> Option<Self> {
        inode.fork_state(kind)?;
        Some(Self { mount, inode, kind })
    }

    fn extents(&self) -> Result<Arc<ExtentList>> {
        self.mount.extents(self.inode, self.kind)
    }

    fn corrupt(&self, verifier: &'static Verifier, check: &'static str, at: FileBlock) -> Error {
        Error::corrupt_inode(self.inode.ino(), FormatError::value(verifier.name, check, at.0))
    }
}

impl Mount {
    /// One fork of an inode, for the directory, attribute and symlink code. `None` if there is no attribute fork.
    pub fn fork<'a>(&'a self, inode: &'a Inode, kind: ForkKind) -> Option<Box<dyn Fork + 'a>> {
        Some(Box::new(InodeFork::new(self, inode, kind)?))
    }
}

impl Fork for InodeFork<'_> {
    fn geometry(&self) -> &Geometry {
        self.mount.geometry()
    }

    fn inode(&self) -> InodeNumber {
        self.inode.ino()
    }

    fn local(&self) -> Option<&[u8]> {
        let fork = self.inode.fork_state(self.kind)?;
        (fork.format == ForkFormat::Local).then_some(&*fork.bytes)
    }

    fn size(&self) -> u64 {
        match self.kind {
            ForkKind::Data => self.inode.size(),
            ForkKind::Attr => 0,
        }
    }

    fn read(&self, at: FileBlock, blocks: u32, verifier: &'static Verifier) -> Result<Buf> {
        let geometry = self.mount.geometry();
        if blocks == 0 || u64::from(blocks) << geometry.block_log > MAX_BUF_BYTES {
            return Err(self.corrupt(verifier, "length", at));
        }
        let maps = buf_maps(geometry, self.inode.ino(), &*self.extents()?, at, blocks, verifier)?;
        self.mount.bufs().read_maps(&maps, verifier).map_err(|error| error.of_inode(self.inode.ino()))
    }

    fn read_in_order(
        &self,
        at: FileBlock,
        blocks: u32,
        verifier: &'static Verifier,
        end: FileBlock,
    ) -> Result<Buf> {
        self.mount.read_fork_ahead(self.inode, self.kind, at..end, blocks, verifier);
        self.read(at, blocks, verifier)
    }

    fn next_mapped(&self, from: FileBlock) -> Result<Option<FileBlock>> {
        Ok(self.extents()?.next_mapped(from))
    }

    fn next_unmapped(&self, from: FileBlock) -> Result<FileBlock> {
        Ok(self.extents()?.next_unmapped(from))
    }
}
