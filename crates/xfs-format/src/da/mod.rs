//! What directory and attribute index blocks share: the sibling header, the name hash, the interior nodes.
//!
//! Invariants:
//! - A [`DaHeader`] that was parsed tells the size of the v4 or v5 header, so no one else computes it.
//! - Hashes of a block that passed its verifier never descend, so that binary search works.

mod edit;
mod hash;
mod node;

pub use edit::{NodeEdit, format_header, set_back, set_forw, set_magic, settle};
pub use hash::{ascii_ci_fold, ascii_ci_hash, name_hash};
pub use node::{NODE_MAX_LEVEL, Node, NodeEntry};

use crate::error::FormatError;
use crate::types::{InodeNumber, Lsn};
use crate::verify::{VerifyContext, check_identity};
use std::mem::{offset_of, size_of};
use zerocopy::byteorder::{big_endian, little_endian};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Magic of an interior node, v4.
pub const NODE_MAGIC_V4: u16 = 0xfebe;
/// Magic of an interior node, v5.
pub const NODE_MAGIC_V5: u16 = 0x3ebe;

/// The v4 header of an index block (`xfs_da_blkinfo`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct BlockInfo {
    /// The next block of the same level; 0: none.
    pub forw: big_endian::U32,
    /// The previous block of the same level; 0: none.
    pub back: big_endian::U32,
    /// What kind of block this is.
    pub magic: big_endian::U16,
    /// Padding.
    pub pad: big_endian::U16,
}

/// The v5 header of an index block (`xfs_da3_blkinfo`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct BlockInfo3 {
    /// The part that v4 has as well.
    pub info: BlockInfo,
    /// CRC32c of the block.
    pub crc: little_endian::U32,
    /// The block's own address in 512-byte units.
    pub blkno: big_endian::U64,
    /// LSN of the last write.
    pub lsn: big_endian::U64,
    /// UUID of the volume's metadata.
    pub uuid: [u8; 16],
    /// The inode that the block belongs to.
    pub owner: big_endian::U64,
}

const _: () = {
    assert!(size_of::<BlockInfo>() == 12);
    assert!(offset_of!(BlockInfo, magic) == 8);
    assert!(size_of::<BlockInfo3>() == 56);
    assert!(offset_of!(BlockInfo3, crc) == 12);
    assert!(offset_of!(BlockInfo3, blkno) == 16);
    assert!(offset_of!(BlockInfo3, lsn) == 24);
    assert!(offset_of!(BlockInfo3, uuid) == 32);
    assert!(offset_of!(BlockInfo3, owner) == 48);
};

/// The sibling header of an index block, in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DaHeader {
    /// The next block of the same level; 0: none.
    pub forw: u32,
    /// The previous block of the same level; 0: none.
    pub back: u32,
    /// What kind of block this is.
    pub magic: u16,
    /// The inode that the block says it belongs to (v5).
    pub owner: Option<InodeNumber>,
}

impl DaHeader {
    /// Reads the header at the start of `bytes`; `structure` names the block in the error.
    pub fn parse(structure: &'static str, bytes: &[u8], v5: bool) -> Result<Self, FormatError> {
        let short = || FormatError::value(structure, "size", bytes.len() as u64);
        let (info, owner) = if v5 {
            let (head, _) = BlockInfo3::ref_from_prefix(bytes).map_err(|_| short())?;
            (&head.info, Some(InodeNumber(head.owner.get())))
        } else {
            (BlockInfo::ref_from_prefix(bytes).map_err(|_| short())?.0, None)
        };
        Ok(Self { forw: info.forw.get(), back: info.back.get(), magic: info.magic.get(), owner })
    }

    /// Bytes that the header takes.
    pub const fn len(v5: bool) -> usize {
        if v5 { size_of::<BlockInfo3>() } else { size_of::<BlockInfo>() }
    }
}

/// The magic of an index block, whatever its kind; `None` if there is no room for one.
pub fn block_magic(bytes: &[u8]) -> Option<u16> {
    BlockInfo::ref_from_prefix(bytes).ok().map(|(info, _)| info.magic.get())
}

/// Checks checksum, UUID, own address and LSN of an index block with the v5 header; v4 blocks have none of them.
pub(crate) fn check_index_identity(
    structure: &'static str,
    bytes: &[u8],
    ctx: &VerifyContext,
) -> Result<(), FormatError> {
    if !ctx.v5 {
        return Ok(());
    }
    let (head, _) = BlockInfo3::ref_from_prefix(bytes)
        .map_err(|_| FormatError::value(structure, "size", bytes.len() as u64))?;
    let (blkno, lsn) = (Some(head.blkno.get()), Lsn(head.lsn.get()));
    check_identity(structure, bytes, offset_of!(BlockInfo3, crc), &head.uuid, blkno, lsn, ctx)
}

/// Fails unless the hashes never descend.
pub(crate) fn check_hash_order(
    structure: &'static str,
    hashes: impl Iterator<Item = u32>,
) -> Result<(), FormatError> {
    let mut last = 0;
    for hash in hashes {
        if hash < last {
            return Err(FormatError::mismatch(structure, "hash order", hash.into(), last.into()));
        }
        last = hash;
    }
    Ok(())
}
