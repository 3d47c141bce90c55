//! Targets of symbolic links, inside the inode and outside.
//!
//! Invariant: a target that is given out has as many bytes as the inode says, 1 to 1,024, and no NUL.

use crate::da::check_owner;
use crate::error::{Error, Result};
use crate::fork::Fork;
use xfs_format::attr::{RAW, remote_payload_len};
use xfs_format::error::FormatError;
use xfs_format::symlink::{SYMLINK, SymlinkBlock, TARGET_MAX};
use xfs_format::types::FileBlock;

const NAME: &str = "symbolic link";

/// The target of a symbolic link, from its data fork.
pub fn target(fork: &dyn Fork) -> Result<Vec<u8>> {
    let corrupt = |problem| Error::corrupt_inode(fork.inode(), problem);
    let size = fork.size();
    let len = u32::try_from(size)
        .ok()
        .filter(|len| (1..=TARGET_MAX).contains(len))
        .ok_or_else(|| corrupt(FormatError::mismatch(NAME, "size", size, TARGET_MAX.into())))?;
    let target = match fork.local() {
        Some(local) => local
            .get(..len as usize)
            .ok_or_else(|| corrupt(FormatError::mismatch(NAME, "size", size, local.len() as u64)))?
            .to_vec(),
        None => remote(fork, len)?,
    };
    if target.contains(&0) {
        return Err(corrupt(FormatError::new(NAME, "target: NUL in it")));
    }
    Ok(target)
}

fn remote(fork: &dyn Fork, len: u32) -> Result<Vec<u8>> {
    let geometry = fork.geometry();
    let blocks = len.div_ceil(remote_payload_len(geometry.block_size, geometry.v5).max(1));
    if !geometry.v5 {
        return read_raw(fork, len, blocks);
    }
    // One header an extent, and the seam doesn't tell extents. A target that lies in one piece is the rule; where
    // that reading fails, the target may lie in single blocks. The checksum tells which.
    match read_pieces(fork, len, blocks) {
        Err(Error::Corrupt { daddr, inode, problem }) if blocks > 1 => {
            read_pieces(fork, len, 1).map_err(|_| Error::Corrupt { daddr, inode, problem })
        }
        result => result,
    }
}

/// Reads a v4 target: nothing but its bytes.
fn read_raw(fork: &dyn Fork, len: u32, blocks: u32) -> Result<Vec<u8>> {
    let mut target = Vec::with_capacity(len as usize);
    for at in 0..blocks {
        let buf = fork.read(FileBlock(at.into()), 1, &RAW)?;
        let left = len as usize - target.len();
        target.extend_from_slice(buf.get(..left).unwrap_or(&buf));
    }
    if target.len() != len as usize {
        let problem = FormatError::mismatch(NAME, "size", len.into(), target.len() as u64);
        return Err(Error::corrupt_inode(fork.inode(), problem));
    }
    Ok(target)
}

/// Reads a v5 target that lies in buffers of `blocks` blocks each.
fn read_pieces(fork: &dyn Fork, len: u32, blocks: u32) -> Result<Vec<u8>> {
    let mut target = Vec::with_capacity(len as usize);
    let mut at = 0u64;
    while target.len() < len as usize {
        let buf = fork.read(FileBlock(at), blocks, &SYMLINK)?;
        let corrupt = |problem| Error::corrupt_block(buf.daddr(), Some(fork.inode()), problem);
        let piece = SymlinkBlock::parse(&buf).map_err(corrupt)?;
        check_owner(fork, &buf, SYMLINK.name, Some(piece.owner))?;
        if piece.offset as usize != target.len() {
            let (found, expected) = (piece.offset.into(), target.len() as u64);
            return Err(corrupt(FormatError::mismatch(SYMLINK.name, "offset", found, expected)));
        }
        let left = len as usize - target.len();
        if piece.payload.is_empty() || piece.payload.len() > left {
            let (found, expected) = (piece.payload.len() as u64, left as u64);
            return Err(corrupt(FormatError::mismatch(SYMLINK.name, "byte count", found, expected)));
        }
        target.extend_from_slice(piece.payload);
        at += u64::from(blocks);
    }
    Ok(target)
}
