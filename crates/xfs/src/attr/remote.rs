//! Remote values, in blocks of their own. On v5 each block has its owner and the piece of the value that it holds.

use crate::da::check_owner;
use crate::error::{Error, Result};
use crate::fork::Fork;
use xfs_format::attr::{RAW, REMOTE, RemoteBlock, VALUE_MAX, remote_payload_len};
use xfs_format::error::FormatError;
use xfs_format::types::FileBlock;

/// Reads a value of `len` bytes that begins at `block`.
pub(super) fn read(fork: &dyn Fork, block: FileBlock, len: u32) -> Result<Vec<u8>> {
    let corrupt = |problem| Error::corrupt_inode(fork.inode(), problem);
    if len > VALUE_MAX {
        let problem = FormatError::mismatch(REMOTE.name, "value length", len.into(), VALUE_MAX.into());
        return Err(corrupt(problem));
    }
    if block.0 == 0 && len != 0 {
        return Err(corrupt(FormatError::value(REMOTE.name, "block pointer", 0))); // block 0 is the index
    }
    let geometry = fork.geometry();
    let room = remote_payload_len(geometry.block_size, geometry.v5).max(1);
    let mut value = Vec::with_capacity(len as usize);
    for nth in 0..len.div_ceil(room) {
        let at = FileBlock(block.0 + u64::from(nth)); // both have 32 bits
        let due = room.min(len - nth * room) as usize;
        if geometry.v5 {
            read_piece(fork, at, due, &mut value)?;
        } else {
            let buf = fork.read(at, 1, &RAW)?;
            let piece = buf.get(..due).ok_or_else(|| corrupt(FormatError::new(RAW.name, "size")))?;
            value.extend_from_slice(piece);
        }
    }
    Ok(value)
}

/// Reads one v5 block: the piece of `due` bytes that follows what `value` has.
fn read_piece(fork: &dyn Fork, at: FileBlock, due: usize, value: &mut Vec<u8>) -> Result<()> {
    let buf = fork.read(at, 1, &REMOTE)?;
    let corrupt = |problem| Error::corrupt_block(buf.daddr(), Some(fork.inode()), problem);
    let piece = RemoteBlock::parse(&buf).map_err(corrupt)?;
    check_owner(fork, buf.daddr(), REMOTE.name, Some(piece.owner))?;
    if piece.offset as usize != value.len() {
        let (found, expected) = (piece.offset.into(), value.len() as u64);
        return Err(corrupt(FormatError::mismatch(REMOTE.name, "offset", found, expected)));
    }
    if piece.payload.len() != due {
        let (found, expected) = (piece.payload.len() as u64, due as u64);
        return Err(corrupt(FormatError::mismatch(REMOTE.name, "byte count", found, expected)));
    }
    value.extend_from_slice(piece.payload);
    Ok(())
}
