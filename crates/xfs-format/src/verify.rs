//! One verifier object a block type: what a metadata buffer must satisfy before its content is used.

use crate::checksum;
use crate::error::FormatError;
use crate::types::{DiskAddr, Lsn, Uuid};

/// The context that a block is checked against.
#[derive(Clone, Copy, Debug)]
pub struct VerifyContext {
    /// Whether the volume is v5: blocks carry checksum, UUID, own address, owner and LSN.
    pub v5: bool,
    /// The UUID that v5 metadata carry (the meta UUID where the volume has one of its own).
    pub meta_uuid: Uuid,
    /// Where the block was read.
    pub daddr: DiskAddr,
}

/// The checks of one block type. Run once, when the block enters the buffer cache; the code that uses the
/// block checks the owner, since only that knows it.
#[derive(Debug)]
pub struct Verifier {
    /// The structure's name in messages.
    pub name: &'static str,
    /// Checks a block that was read: magic, checksum, UUID, own address, and every count that a reader relies on.
    pub check: fn(&[u8], &VerifyContext) -> Result<(), FormatError>,
}

/// Checks what every v5 block carries: the checksum at `crc_offset`, the UUID, the block's own address and a
/// plausible LSN. Structures without an own address pass `None`.
pub fn check_identity(
    structure: &'static str,
    bytes: &[u8],
    crc_offset: usize,
    uuid: &[u8; 16],
    blkno: Option<u64>,
    lsn: Lsn,
    context: &VerifyContext,
) -> Result<(), FormatError> {
    checksum::check(structure, bytes, crc_offset)?;
    if Uuid(*uuid) != context.meta_uuid {
        return Err(FormatError::new(structure, "UUID"));
    }
    if let Some(blkno) = blkno
        && blkno != context.daddr.0
    {
        return Err(FormatError::mismatch(structure, "own address", blkno, context.daddr.0));
    }
    check_lsn(structure, lsn)
}

/// Checks that an LSN is one that a log can have given: cycles count from 1, so only "never logged" (0, or all
/// ones) has no cycle.
pub fn check_lsn(structure: &'static str, lsn: Lsn) -> Result<(), FormatError> {
    if lsn.0 >> 32 == 0 && lsn.0 != 0 {
        return Err(FormatError::value(structure, "LSN", lsn.0));
    }
    Ok(())
}
