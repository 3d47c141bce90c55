//! Blocks of values that lie outside the leaves. On v5 each block of the volume begins with a header of its own; on
//! v4 the value fills the blocks and nothing can be checked.
//!
//! Invariant of a [`RemoteBlock`]: the payload that it counts lies in the block.

use super::VALUE_MAX;
use crate::checksum;
use crate::edit::Stamp;
use crate::error::FormatError;
use crate::types::{InodeNumber, Lsn};
use crate::verify::{Verifier, VerifyContext, check_identity};
use std::mem::{offset_of, size_of};
use zerocopy::byteorder::{big_endian, little_endian};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `XARM`.
pub const REMOTE_MAGIC: u32 = 0x5841_524d;

const NAME: &str = "remote attribute block";

/// Header of blocks that hold a piece of a value or of a symlink's target (`xfs_attr3_rmt_hdr`,
/// `xfs_dsymlink_hdr`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct PieceHeader {
    pub(crate) magic: big_endian::U32,
    pub(crate) offset: big_endian::U32,
    pub(crate) bytes: big_endian::U32,
    crc: little_endian::U32,
    uuid: [u8; 16],
    pub(crate) owner: big_endian::U64,
    blkno: big_endian::U64,
    lsn: big_endian::U64,
}

const _: () = {
    assert!(size_of::<PieceHeader>() == 56);
    assert!(offset_of!(PieceHeader, crc) == 12);
    assert!(offset_of!(PieceHeader, uuid) == 16);
    assert!(offset_of!(PieceHeader, owner) == 32);
    assert!(offset_of!(PieceHeader, blkno) == 40);
    assert!(offset_of!(PieceHeader, lsn) == 48);
};

/// One block of a value.
#[derive(Clone, Copy, Debug)]
pub struct RemoteBlock<'a> {
    /// The inode that the block says it belongs to.
    pub owner: InodeNumber,
    /// Where its piece of the value begins.
    pub offset: u32,
    /// The piece.
    pub payload: &'a [u8],
}

impl<'a> RemoteBlock<'a> {
    /// Reads a v5 block: magic right, payload within the block.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FormatError> {
        let (head, payload) = parse_piece(NAME, REMOTE_MAGIC, VALUE_MAX, bytes)?;
        Ok(Self { owner: InodeNumber(head.owner.get()), offset: head.offset.get(), payload })
    }
}

/// Makes a v5 block with the piece of a value that begins at `offset`, with its checksum: such blocks pass the journal
/// by. `false` if the piece does not fit.
pub fn write_remote_block(bytes: &mut [u8], stamp: &Stamp, offset: u32, piece: &[u8]) -> bool {
    // No LSN: the block is never logged.
    write_piece(bytes, REMOTE_MAGIC, stamp, offset, piece, u64::MAX)
        && checksum::store(bytes, offset_of!(PieceHeader, crc))
}

/// Makes a block with header and piece; `false` if the piece does not fit. The checksum is not
/// filled in.
pub(crate) fn write_piece(
    bytes: &mut [u8],
    magic: u32,
    stamp: &Stamp,
    offset: u32,
    piece: &[u8],
    lsn: u64,
) -> bool {
    let Some((head, room)) = bytes.split_at_mut_checked(size_of::<PieceHeader>()) else { return false };
    let (Some(place), Ok(len)) = (room.get_mut(..piece.len()), u32::try_from(piece.len())) else {
        return false;
    };
    place.copy_from_slice(piece);
    room.get_mut(piece.len()..).unwrap_or_default().fill(0);
    let header = PieceHeader {
        magic: magic.into(),
        offset: offset.into(),
        bytes: len.into(),
        crc: 0.into(),
        uuid: stamp.meta_uuid.0,
        owner: stamp.owner.0.into(),
        blkno: stamp.daddr.0.into(),
        lsn: lsn.into(),
    };
    header.write_to(head).is_ok()
}

/// Bytes of a value that fit in one block.
pub const fn remote_payload_len(block_size: u32, v5: bool) -> u32 {
    if v5 { block_size.saturating_sub(size_of::<PieceHeader>() as u32) } else { block_size }
}

/// A block of a remote value, v5.
pub static REMOTE: Verifier = Verifier { name: NAME, check };

fn check(bytes: &[u8], ctx: &VerifyContext) -> Result<(), FormatError> {
    RemoteBlock::parse(bytes)?;
    check_piece_identity(NAME, bytes, ctx)
}

/// A block in which nothing can be checked: v4's remote values and symlink targets.
pub static RAW: Verifier = Verifier { name: "raw block", check: |_, _| Ok(()) };

/// Reads a header with its payload: magic right, payload within the block and below `most` of the whole.
pub(crate) fn parse_piece<'a>(
    structure: &'static str,
    magic: u32,
    most: u32,
    bytes: &'a [u8],
) -> Result<(&'a PieceHeader, &'a [u8]), FormatError> {
    let (head, rest) = PieceHeader::ref_from_prefix(bytes)
        .map_err(|_| FormatError::value(structure, "size", bytes.len() as u64))?;
    if head.magic.get() != magic {
        return Err(FormatError::mismatch(structure, "magic", head.magic.get().into(), magic.into()));
    }
    let (offset, len) = (head.offset.get(), head.bytes.get());
    if offset.checked_add(len).is_none_or(|end| end > most) {
        return Err(FormatError::mismatch(structure, "offset", offset.into(), most.into()));
    }
    let payload = usize::try_from(len).ok().and_then(|len| rest.get(..len)).ok_or(FormatError::mismatch(
        structure,
        "byte count",
        len.into(),
        rest.len() as u64,
    ))?;
    Ok((head, payload))
}

/// Checks checksum, UUID, own address and LSN of a block with such a header.
pub(crate) fn check_piece_identity(
    structure: &'static str,
    bytes: &[u8],
    ctx: &VerifyContext,
) -> Result<(), FormatError> {
    let (head, _) = PieceHeader::ref_from_prefix(bytes)
        .map_err(|_| FormatError::value(structure, "size", bytes.len() as u64))?;
    let (blkno, lsn) = (Some(head.blkno.get()), Lsn(head.lsn.get()));
    check_identity(structure, bytes, offset_of!(PieceHeader, crc), &head.uuid, blkno, lsn, ctx)
}
