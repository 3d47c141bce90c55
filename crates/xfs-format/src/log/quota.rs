//! Quota in the log: changes of a dquot, and quota being switched off. In the host's byte order; the dquot
//! itself, the item's second region, is as on disk (see [`crate::quota`]).

use super::host;
use super::item::fixed;
use crate::error::FormatError;
use std::mem::size_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `xfs_dq_logformat`: where the dquot of the next region belongs.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct DquotFormat {
    kind: host::U16,
    regions: host::U16,
    /// User, group or project.
    pub id: host::U32,
    /// Where its buffer lies, in units of 512 bytes.
    pub blkno: host::I64,
    /// Length of that buffer in blocks of the volume, not in units of 512 bytes as anywhere else.
    pub len: host::I32,
    /// Byte of that buffer where the dquot begins.
    pub boffset: host::U32,
}

/// `xfs_qoff_logformat`: which quotas are switched off.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct QuotaOff {
    kind: host::U16,
    regions: host::U16,
    /// Kinds of quota.
    pub flags: host::U32,
    pad: [u8; 12],
}

const _: () = {
    assert!(size_of::<DquotFormat>() == 24);
    assert!(size_of::<QuotaOff>() == 20);
};

impl DquotFormat {
    pub(super) fn parse(region: &[u8]) -> Result<&Self, FormatError> {
        const NAME: &str = "dquot log item";
        let (item, _) = fixed::<Self>(NAME, region)?;
        if item.blkno.get() < 0 || item.len.get() <= 0 {
            return Err(FormatError::value(NAME, "place", item.blkno.get() as u64));
        }
        Ok(item)
    }
}

impl QuotaOff {
    pub(super) fn parse(region: &[u8]) -> Result<&Self, FormatError> {
        fixed::<Self>("quota-off log item", region).map(|(item, _)| item)
    }
}
