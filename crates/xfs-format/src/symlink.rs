//! Symlink targets that lie outside the inode: v5 begins each of their buffers with a header.
//!
//! A buffer here is one extent of the fork, not one block: a target in two adjacent blocks has one header. It
//! fits two buffers at most (v5 blocks hold at least 968 bytes of it).

use crate::attr;
use crate::edit::Stamp;
use crate::error::FormatError;
use crate::types::InodeNumber;
use crate::verify::{Verifier, VerifyContext};

/// `XSLM`.
pub const SYMLINK_MAGIC: u32 = 0x5853_4c4d;
/// Longest target.
pub const TARGET_MAX: u32 = 1024;

const NAME: &str = "symlink block";

/// One buffer of a target.
#[derive(Clone, Copy, Debug)]
pub struct SymlinkBlock<'a> {
    /// The inode that the buffer says it belongs to.
    pub owner: InodeNumber,
    /// Where its piece of the target begins.
    pub offset: u32,
    /// The piece.
    pub payload: &'a [u8],
}

impl<'a> SymlinkBlock<'a> {
    /// Reads a v5 buffer: magic right, payload within it.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FormatError> {
        let (head, payload) = attr::parse_piece(NAME, SYMLINK_MAGIC, TARGET_MAX, bytes)?;
        Ok(Self { owner: InodeNumber(head.owner.get()), offset: head.offset.get(), payload })
    }
}

/// Makes a v5 buffer with the piece of a target that begins at `offset`. Checksum and LSN are for whoever writes it to
/// the device. `false` if the piece does not fit.
pub fn write_symlink_block(bytes: &mut [u8], stamp: &Stamp, offset: u32, piece: &[u8]) -> bool {
    attr::write_piece(bytes, SYMLINK_MAGIC, stamp, offset, piece, 0)
}

/// A buffer of a symlink's target, v5.
pub static SYMLINK: Verifier = Verifier { name: NAME, check };

fn check(bytes: &[u8], ctx: &VerifyContext) -> Result<(), FormatError> {
    SymlinkBlock::parse(bytes)?;
    attr::check_piece_identity(NAME, bytes, ctx)
}
