//! A private copy of one buffer of a fork, changed at will and then given back.
//!
//! Invariant: giving a draft back changes, and so logs, the chunks of the buffer that differ and no others.

use crate::buf::Buf;
use crate::error::{Error, Result};
use crate::fork::{Fork, ForkMut};
use std::ops::Range;
use xfs_format::da::BlockIdentity;
use xfs_format::error::FormatError;
use xfs_format::types::{DiskAddr, FileBlock};
use xfs_format::verify::Verifier;

/// The journal's grain: a smaller change costs as much.
const CHUNK: usize = 128;

/// A copy of a buffer.
pub(crate) struct Draft {
    at: FileBlock,
    blocks: u32,
    verifier: &'static Verifier,
    old: Buf,
    /// What the buffer will hold.
    pub(crate) bytes: Vec<u8>,
}

impl Draft {
    /// Reads the buffer of `blocks` blocks at `at`.
    pub(crate) fn read(
        fork: &dyn Fork,
        at: FileBlock,
        blocks: u32,
        verifier: &'static Verifier,
    ) -> Result<Self> {
        let old = fork.read(at, blocks, verifier)?;
        let bytes = old.to_vec();
        Ok(Self { at, blocks, verifier, old, bytes })
    }

    /// A draft of a buffer that was read.
    pub(crate) fn of(buf: &Buf, at: FileBlock, blocks: u32, verifier: &'static Verifier) -> Self {
        Self { at, blocks, verifier, old: buf.clone(), bytes: buf.to_vec() }
    }

    /// Where the buffer lies on the device.
    pub(crate) fn daddr(&self) -> DiskAddr {
        self.old.daddr()
    }

    /// What is wrong with the buffer, as an error.
    pub(crate) fn corrupt(&self, fork: &dyn Fork, problem: FormatError) -> Error {
        Error::corrupt_block(self.daddr(), Some(fork.inode()), problem)
    }

    /// Writes what differs into the transaction's version of the buffer.
    pub(crate) fn store(self, fork: &mut dyn ForkMut) -> Result<()> {
        for range in changed(&self.old, &self.bytes) {
            let place = fork.modify(self.at, self.blocks, self.verifier, range.clone())?;
            if let (Some(to), Some(from)) = (place.get_mut(range.clone()), self.bytes.get(range)) {
                to.copy_from_slice(from);
            }
        }
        Ok(())
    }
}

/// Runs of chunks that differ.
fn changed(old: &[u8], new: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (nth, (before, after)) in old.chunks(CHUNK).zip(new.chunks(CHUNK)).enumerate() {
        if before == after {
            continue;
        }
        let chunk = nth * CHUNK..nth * CHUNK + after.len();
        match runs.last_mut() {
            Some(last) if last.end == chunk.start => last.end = chunk.end,
            _ => runs.push(chunk),
        }
    }
    runs
}

/// What the header of the block at `at` says of itself.
pub(crate) fn identity(fork: &dyn ForkMut, at: FileBlock) -> Result<BlockIdentity> {
    let daddr = fork.daddr(at)?;
    Ok(BlockIdentity { daddr, owner: fork.inode(), meta_uuid: fork.geometry().meta_uuid })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cover_what_differs_and_little_else() {
        let old = vec![0u8; 1000];
        let mut new = old.clone();
        assert!(changed(&old, &new).is_empty());
        new[0] = 1;
        new[130] = 1;
        new[400] = 1;
        new[999] = 1;
        assert_eq!(changed(&old, &new), [0..256, 384..512, 896..1000]);
    }
}
