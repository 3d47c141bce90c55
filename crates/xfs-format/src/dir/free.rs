//! Blocks of the free-space index of large directories: the largest free space of each data block.
//!
//! Invariant of a [`FreeBlock`]: the table lies in the block. Readers of directories never need it; checkers do.

use super::BlockHeader3;
use crate::error::FormatError;
use crate::types::{InodeNumber, Lsn};
use crate::verify::{Verifier, VerifyContext, check_identity};
use std::mem::{offset_of, size_of};
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `XD2F`.
pub const FREE_MAGIC_V4: u32 = 0x5844_3246;
/// `XDF3`.
pub const FREE_MAGIC_V5: u32 = 0x5844_4633;

const NAME: &str = "directory free block";

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    magic: U32,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header3 {
    block: BlockHeader3,
    counts: Counts,
    pad: U32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Counts {
    first_db: U32,
    nvalid: U32,
    nused: U32,
}

const _: () = {
    assert!(size_of::<Header>() == 16);
    assert!(size_of::<Header3>() == 64);
};

/// A block of the free-space index.
#[derive(Clone, Copy, Debug)]
pub struct FreeBlock<'a> {
    /// The inode that the block says it belongs to (v5).
    pub owner: Option<InodeNumber>,
    /// The data block that the table starts with.
    pub first_db: u32,
    /// How many places of the table hold a data block's free space.
    pub used: u32,
    /// Largest free space of each data block; 0xffff: no such block.
    pub bestfree: &'a [U16],
}

impl<'a> FreeBlock<'a> {
    /// Reads the block: magic right, table within the block.
    pub fn parse(bytes: &'a [u8], v5: bool) -> Result<Self, FormatError> {
        let size = || FormatError::value(NAME, "size", bytes.len() as u64);
        let (magic, owner, counts, room) = if v5 {
            let (head, room) = Header3::ref_from_prefix(bytes).map_err(|_| size())?;
            (head.block.magic.get(), Some(InodeNumber(head.block.owner.get())), &head.counts, room)
        } else {
            let (head, room) = Header::ref_from_prefix(bytes).map_err(|_| size())?;
            (head.magic.get(), None, &head.counts, room)
        };
        let expected = if v5 { FREE_MAGIC_V5 } else { FREE_MAGIC_V4 };
        if magic != expected {
            return Err(FormatError::mismatch(NAME, "magic", magic.into(), expected.into()));
        }
        let valid = counts.nvalid.get();
        let bad = || FormatError::mismatch(NAME, "table size", valid.into(), room.len() as u64 / 2);
        let elems = usize::try_from(valid).map_err(|_| bad())?;
        let bestfree = <[U16]>::ref_from_prefix_with_elems(room, elems).map_err(|_| bad())?.0;
        let used = counts.nused.get();
        if used > valid {
            return Err(FormatError::mismatch(NAME, "used count", used.into(), valid.into()));
        }
        Ok(Self { owner, first_db: counts.first_db.get(), used, bestfree })
    }
}

/// A block of a directory's free-space index.
pub static FREE: Verifier = Verifier { name: NAME, check };

fn check(bytes: &[u8], ctx: &VerifyContext) -> Result<(), FormatError> {
    FreeBlock::parse(bytes, ctx.v5)?;
    check_header3(NAME, bytes, ctx)
}

/// Checks checksum, UUID, own address and LSN of a block with the v5 data header; v4 blocks have none of them.
pub(super) fn check_header3(
    structure: &'static str,
    bytes: &[u8],
    ctx: &VerifyContext,
) -> Result<(), FormatError> {
    if !ctx.v5 {
        return Ok(());
    }
    let (head, _) = BlockHeader3::ref_from_prefix(bytes)
        .map_err(|_| FormatError::value(structure, "size", bytes.len() as u64))?;
    let (blkno, lsn) = (Some(head.blkno.get()), Lsn(head.lsn.get()));
    check_identity(structure, bytes, offset_of!(BlockHeader3, crc), &head.uuid, blkno, lsn, ctx)
}
