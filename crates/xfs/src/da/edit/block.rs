//! A block of a fork that is being changed.

use crate::buf::copy_of;
use crate::error::{Error, Result};
use crate::fork::{Fork, ForkBuf, ForkMut, stamp};
use xfs_format::da::{DaHeader, set_back, set_forw};
use xfs_format::edit::{Image, Stamp};
use xfs_format::error::FormatError;
use xfs_format::types::{DiskAddr, FileBlock, InodeNumber};
use xfs_format::verify::Verifier;

/// Where a problem was found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    daddr: DiskAddr,
    inode: InodeNumber,
}

impl Place {
    /// Its disk address.
    pub(crate) const fn daddr(self) -> DiskAddr {
        self.daddr
    }

    /// The error for a problem at this place.
    pub(crate) fn bad(self, problem: FormatError) -> Error {
        Error::corrupt_block(self.daddr, Some(self.inode), problem)
    }
}

/// A block of a fork that is being changed. Nothing reaches the fork before [`Block::write`].
#[derive(Debug)]
pub(crate) struct Block {
    /// Its block in the fork.
    pub(crate) at: FileBlock,
    /// Its bytes.
    pub(crate) image: Image,
    /// Its place, for errors.
    pub(crate) place: Place,
    blocks: u32,
    verifier: &'static Verifier,
    /// What was read. `None` for a new block.
    old: Option<ForkBuf>,
}

impl Block {
    /// Reads the block at `at` and locks it.
    pub(crate) fn read(
        fork: &mut dyn ForkMut,
        at: FileBlock,
        blocks: u32,
        verifier: &'static Verifier,
    ) -> Result<Self> {
        let mut buf = fork.read_buf(at, blocks, verifier)?;
        let ForkBuf { at, blocks, verifier, .. } = buf;
        let place = Place { daddr: buf.buf.daddr(), inode: fork.inode() };
        let bytes = buf.copy.take().unwrap_or_else(|| buf.buf.share());
        let image = Image::copied_by(verifier.name, bytes, copy_of);
        Ok(Self { at, image, place, blocks, verifier, old: Some(buf) })
    }

    /// Its bytes as they are now.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.image.bytes()
    }

    /// Maps the block at `at`, where nothing is mapped. It is zeroed.
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
        Self::anew(fork, at, blocks, verifier)
    }

    /// Makes the mapped block at `at` anew. It is zeroed.
    pub(crate) fn anew(
        fork: &dyn ForkMut,
        at: FileBlock,
        blocks: u32,
        verifier: &'static Verifier,
    ) -> Result<Self> {
        let place = Place { daddr: fork.daddr(at)?, inode: fork.inode() };
        let len = (fork.geometry().block_size as usize) * blocks as usize;
        Ok(Self { at, image: Image::new(verifier.name, vec![0; len]), place, blocks, verifier, old: None })
    }

    /// The header fields that a new block has at this place.
    pub(crate) fn stamp(&self, fork: &dyn Fork) -> Stamp {
        stamp(fork, self.place.daddr)
    }

    /// Writes only the changes to the fork.
    pub(crate) fn write(self, fork: &mut dyn ForkMut) -> Result<()> {
        let (bytes, changed) = self.image.into_parts();
        match self.old {
            None => fork.create(self.at, self.blocks, self.verifier)?.copy_from_slice(&bytes),
            Some(_) if changed.is_empty() => {}
            Some(old) => fork.log_buf(old, bytes, &changed)?,
        }
        Ok(())
    }

    /// Frees the block and discards its changes.
    pub(crate) fn unmap(self, fork: &mut dyn ForkMut) -> Result<()> {
        fork.unmap(self.at, self.blocks)
    }

    pub(crate) fn header(&self, v5: bool) -> Result<DaHeader> {
        DaHeader::parse(self.verifier.name, self.image.bytes(), v5).map_err(|problem| self.place.bad(problem))
    }

    pub(super) fn set_siblings(&mut self, forw: Option<u32>, back: Option<u32>) -> Result<()> {
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
