//! One verifier object a block type: what a metadata buffer must satisfy before anything in it is believed.

use crate::error::FormatError;
use crate::types::{DiskAddr, Uuid};

/// What a block is checked against besides itself.
#[derive(Clone, Copy, Debug)]
pub struct VerifyContext {
    /// Whether the volume is v5: blocks carry checksum, UUID, own address, owner and LSN.
    pub v5: bool,
    /// The UUID that v5 metadata carry (the meta UUID where the volume has one of its own).
    pub meta_uuid: Uuid,
    /// Where the block was read.
    pub daddr: DiskAddr,
}

/// The checks of one block type. Run once, when the block enters the buffer cache; the owner is checked by
/// whoever looks at the block, as it depends on who looks.
#[derive(Debug)]
pub struct Verifier {
    /// The structure's name in messages.
    pub name: &'static str,
    /// Checks a block that was read: magic, checksum, UUID, own address, and every count that a reader relies on.
    pub check: fn(&[u8], &VerifyContext) -> Result<(), FormatError>,
}
