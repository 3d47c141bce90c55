//! Values in blocks of their own. They bypass the journal: each block has its checksum, and can be reached only through
//! the leaf, which is committed after the value was written.

use crate::error::{Error, Result};
use crate::fork::{Fork, ForkMut, stamp};
use xfs_format::attr::{REMOTE, remote_payload_len, write_remote_block};
use xfs_format::error::FormatError;
use xfs_format::types::FileBlock;

/// Writes a value, which must not be empty. Returns its first block.
pub(super) fn write(fork: &mut dyn ForkMut, value: &[u8]) -> Result<FileBlock> {
    let size = fork.geometry().block_size as usize;
    let room = remote_payload_len(fork.geometry().block_size, true).max(1) as usize;
    let count = value.len().div_ceil(room);
    let at = free_run(fork, count as u64)?;
    fork.map(at, count as u32)?; // a value has 64 KiB at most
    let mut bytes = vec![0; count * size];
    for (nth, (block, piece)) in bytes.chunks_exact_mut(size).zip(value.chunks(room)).enumerate() {
        let stamp = stamp(fork, fork.daddr(FileBlock(at.0 + nth as u64))?);
        if !write_remote_block(block, &stamp, (nth * room) as u32, piece) {
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

/// The first run of `count` unmapped blocks after the root.
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
