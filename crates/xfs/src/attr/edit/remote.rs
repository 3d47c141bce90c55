//! Values in blocks of their own. They pass the journal by: each block carries its checksum, and is reached only
//! through the leaf that is committed after it was written.

use crate::da::draft::identity;
use crate::error::{Error, Result};
use crate::fork::{Fork, ForkMut};
use xfs_format::attr::{REMOTE, remote_payload_len, write_remote_block};
use xfs_format::error::FormatError;
use xfs_format::types::FileBlock;

/// Writes a value, which has bytes; gives the first of its blocks.
pub(super) fn write(fork: &mut dyn ForkMut, value: &[u8]) -> Result<FileBlock> {
    let size = fork.geometry().block_size as usize;
    let room = remote_payload_len(fork.geometry().block_size, true).max(1) as usize;
    let count = value.len().div_ceil(room);
    let at = free_run(fork, count as u64)?;
    fork.map(at, count as u32)?; // a value has 64 KiB at most
    let mut bytes = vec![0; count * size];
    for (nth, (block, piece)) in bytes.chunks_exact_mut(size).zip(value.chunks(room)).enumerate() {
        let id = identity(fork, FileBlock(at.0 + nth as u64))?;
        if !write_remote_block(block, &id, (nth * room) as u32, piece) {
            return Err(Error::corrupt_inode(fork.inode(), FormatError::new(REMOTE.name, "byte count")));
        }
    }
    fork.write_around(at, &bytes)?;
    Ok(at)
}

/// Frees the blocks of a value of `len` bytes at `at`.
pub(super) fn free(fork: &mut dyn ForkMut, at: FileBlock, len: u32) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    if at.0 == 0 {
        let problem = FormatError::value(REMOTE.name, "block pointer", 0); // block 0 is the index
        return Err(Error::corrupt_inode(fork.inode(), problem));
    }
    let room = remote_payload_len(fork.geometry().block_size, true).max(1);
    fork.unmap(at, len.div_ceil(room))
}

/// The first run of `count` blocks behind the root that are not mapped.
fn free_run(fork: &dyn Fork, count: u64) -> Result<FileBlock> {
    let mut at = fork.next_unmapped(FileBlock(1))?;
    while let Some(next) = fork.next_mapped(at)?
        && next.0 - at.0 < count
    {
        at = fork.next_unmapped(next)?;
    }
    if at.0 + count > 1 << 32 {
        return Err(Error::corrupt_inode(
            fork.inode(),
            FormatError::value(REMOTE.name, "blocks in use", at.0),
        ));
    }
    Ok(at)
}
