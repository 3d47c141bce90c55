//! Targets of symbolic links, inside and outside of the inode.
//!
//! Invariant: a target that is returned has as many bytes as the inode says, 1 to 1,024, and no NUL. One that is
//! written has at most one byte less, because kernels accept no more, and read no more outside of an inode.

use crate::da::check_owner;
use crate::error::{Error, Result};
use crate::fork::{Fork, ForkMut, stamp};
use xfs_format::attr::{RAW, remote_payload_len};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::symlink::write_symlink_block;
use xfs_format::symlink::{SYMLINK, SymlinkBlock, TARGET_MAX};
use xfs_format::types::FileBlock;

const NAME: &str = "symbolic link";

/// Maximum length of a target that is written.
pub const WRITABLE_MAX: usize = TARGET_MAX as usize - 1;

/// Why a target was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// It is empty or too long.
    #[error("a target of {0} bytes: a symbolic link has 1 to {WRITABLE_MAX}")]
    Length(usize),
    /// It has a NUL among its bytes.
    #[error("a target with a NUL in it")]
    Nul,
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] Error),
}

/// Maximum number of blocks that writing a target of `len` bytes maps: none if it fits into the inode.
pub const fn blocks_needed(geometry: &Geometry, len: usize) -> u32 {
    // No volume has a block size without room for a payload.
    let room = remote_payload_len(geometry.block_size, geometry.v5);
    (len as u32).div_ceil(if room == 0 { 1 } else { room })
}

/// Writes the target of a new symbolic link, whose data fork is empty.
pub fn write(fork: &mut dyn ForkMut, target: &[u8]) -> Result<(), TargetError> {
    if target.is_empty() || target.len() > WRITABLE_MAX {
        return Err(TargetError::Length(target.len()));
    }
    if target.contains(&0) {
        return Err(TargetError::Nul);
    }
    if !fork.geometry().v5 {
        return Err(Error::ReadOnly("volumes of version 4 are not written").into());
    }
    if target.len() <= fork.local_capacity() {
        return Ok(fork.set_local(target)?);
    }
    Ok(write_outside(fork, target)?)
}

/// Moves a target out of the inode, so that attributes have room there.
pub fn move_out(fork: &mut dyn ForkMut) -> Result<()> {
    let target = target(fork)?;
    write_outside(fork, &target)
}

fn write_outside(fork: &mut dyn ForkMut, target: &[u8]) -> Result<()> {
    fork.set_extents()?;
    let blocks = blocks_needed(fork.geometry(), target.len());
    fork.map(FileBlock(0), blocks)?;
    let size = fork.geometry().block_size as usize;
    let (mut rest, mut at) = (target, 0);
    while at < blocks && !rest.is_empty() {
        let run = adjacent(fork, at, blocks)?;
        let room = remote_payload_len((run as usize * size) as u32, true) as usize; // some KiB
        let (piece, behind) = rest.split_at(room.min(rest.len()));
        let stamp = stamp(fork, fork.daddr(FileBlock(at.into()))?);
        let bytes = fork.create(FileBlock(at.into()), run, &SYMLINK)?;
        if !write_symlink_block(bytes, &stamp, (target.len() - rest.len()) as u32, piece) {
            return Err(Error::corrupt_inode(fork.inode(), FormatError::new(NAME, "byte count")));
        }
        (rest, at) = (behind, at + run);
    }
    fork.set_size(target.len() as u64);
    Ok(())
}

/// How many blocks from `at` on, and before `end`, are contiguous on the device: an extent, and thus one buffer.
fn adjacent(fork: &dyn ForkMut, at: u32, end: u32) -> Result<u32> {
    let first = fork.daddr(FileBlock(at.into()))?.0;
    let step = u64::from(fork.geometry().block_size) >> 9;
    let mut count = 1;
    while at + count < end && fork.daddr(FileBlock((at + count).into()))?.0 == first + step * u64::from(count)
    {
        count += 1;
    }
    Ok(count)
}

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
    // There is one header per extent, but `Fork` does not tell extents. Usually a target is contiguous. If reading it
    // so fails, it may lie in single blocks. The checksum tells which.
    match read_pieces(fork, len, blocks) {
        Err(Error::Corrupt { daddr, inode, problem }) if blocks > 1 => {
            read_pieces(fork, len, 1).map_err(|_| Error::Corrupt { daddr, inode, problem })
        }
        result => result,
    }
}

/// Reads a v4 target: only its bytes.
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

/// Reads a v5 target in buffers of `blocks` blocks each.
fn read_pieces(fork: &dyn Fork, len: u32, blocks: u32) -> Result<Vec<u8>> {
    let mut target = Vec::with_capacity(len as usize);
    let mut at = 0u64;
    while target.len() < len as usize {
        let buf = fork.read(FileBlock(at), blocks, &SYMLINK)?;
        let corrupt = |problem| Error::corrupt_block(buf.daddr(), Some(fork.inode()), problem);
        let piece = SymlinkBlock::parse(&buf).map_err(corrupt)?;
        check_owner(fork, buf.daddr(), SYMLINK.name, Some(piece.owner))?;
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
