//! Quota files: arrays of dquots, one for each id.
//!
//! Big-endian, except for the checksum. Invariant: a [`Dquot`] that passed its checks has the id that its place
//! stands for.

use crate::error::FormatError;
use crate::types::Uuid;
use std::mem::{offset_of, size_of};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, big_endian as be, little_endian as le,
};

const NAME: &str = "dquot";
/// `DQ`.
const MAGIC: u16 = 0x4451;
const VERSION: u8 = 1;

/// User, group or project: bits of `d_type`, of which one is set.
const TYPES: [u8; 3] = [1, 2, 4];
/// `d_type`: timers count in the bigtime form.
const BIGTIME: u8 = 0x80;

/// `xfs_disk_dquot`: limits and use of an id. Dquot log items carry the same structure.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "names of the format; limits and counts of blocks and inodes")]
pub struct DiskDquot {
    pub magic: be::U16,
    pub version: u8,
    /// 1 user, 2 project, 4 group, and 0x80 for timers in the bigtime form.
    pub kind: u8,
    pub id: be::U32,
    pub blk_hardlimit: be::U64,
    pub blk_softlimit: be::U64,
    pub ino_hardlimit: be::U64,
    pub ino_softlimit: be::U64,
    pub bcount: be::U64,
    pub icount: be::U64,
    pub itimer: be::U32,
    pub btimer: be::U32,
    pub iwarns: be::U16,
    pub bwarns: be::U16,
    pub pad0: be::U32,
    pub rtb_hardlimit: be::U64,
    pub rtb_softlimit: be::U64,
    pub rtbcount: be::U64,
    pub rtbtimer: be::U32,
    pub rtbwarns: be::U16,
    pub pad: be::U16,
}

/// `xfs_dqblk`: a dquot as it lies in a quota file.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Dquot {
    /// The dquot.
    pub disk: DiskDquot,
    fill: [u8; 4],
    /// CRC-32C of these 136 bytes (v5). Little-endian.
    pub crc: le::U32,
    /// LSN of the last change (v5).
    pub lsn: be::U64,
    /// The UUID that metadata carry (v5).
    pub uuid: [u8; 16],
}

const _: () = {
    assert!(size_of::<DiskDquot>() == 104);
    assert!(offset_of!(DiskDquot, blk_hardlimit) == 8);
    assert!(offset_of!(DiskDquot, itimer) == 56);
    assert!(offset_of!(DiskDquot, rtb_hardlimit) == 72);
    assert!(size_of::<Dquot>() == 136);
    assert!(offset_of!(Dquot, crc) == 108);
    assert!(offset_of!(Dquot, uuid) == 120);
};

impl DiskDquot {
    /// The dquot at the start of `bytes`, which must be of `id`.
    pub fn check(bytes: &[u8], id: u32) -> Result<&Self, FormatError> {
        let (dquot, _) =
            Self::ref_from_prefix(bytes).map_err(|_| FormatError::new(NAME, "truncated structure"))?;
        dquot.check_fields(id)?;
        Ok(dquot)
    }

    fn check_fields(&self, id: u32) -> Result<(), FormatError> {
        let bad = |check, found: u64, expected: u64| Err(FormatError::mismatch(NAME, check, found, expected));
        if self.magic.get() != MAGIC {
            return bad("magic", self.magic.get().into(), MAGIC.into());
        }
        if self.version != VERSION {
            return bad("version", self.version.into(), VERSION.into());
        }
        if !TYPES.contains(&(self.kind & !BIGTIME)) {
            return Err(FormatError::value(NAME, "type", self.kind.into()));
        }
        if self.id.get() != id {
            return bad("id", self.id.get().into(), id.into());
        }
        Ok(())
    }
}

impl Dquot {
    /// The dquot at the start of `bytes`, which must be of `id`; on v5 volumes with checksum and UUID.
    pub fn check(bytes: &[u8], id: u32, v5: Option<Uuid>) -> Result<&Self, FormatError> {
        let (dquot, _) =
            Self::ref_from_prefix(bytes).map_err(|_| FormatError::new(NAME, "truncated structure"))?;
        dquot.disk.check_fields(id)?;
        if let Some(uuid) = v5 {
            let expected = dquot.checksum();
            if dquot.crc.get() != expected {
                return Err(FormatError::mismatch(NAME, "checksum", dquot.crc.get().into(), expected.into()));
            }
            if dquot.uuid != uuid.0 {
                return Err(FormatError::new(NAME, "UUID"));
            }
        }
        Ok(dquot)
    }

    /// The checksum that it should carry.
    pub fn checksum(&self) -> u32 {
        let mut clean = *self;
        clean.crc.set(0);
        crc32c::crc32c(clean.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn a_dquot_and_what_may_be_wrong_with_it() {
        let uuid = Uuid([3; 16]);
        let mut good = Dquot::new_zeroed();
        good.disk.magic.set(MAGIC);
        good.disk.version = VERSION;
        good.disk.kind = 0x81;
        good.disk.id.set(1000);
        good.uuid = uuid.0;
        good.crc.set(good.checksum());
        Dquot::check(good.as_bytes(), 1000, Some(uuid)).unwrap();
        assert_eq!(Dquot::check(good.as_bytes(), 7, None).unwrap_err().check, "id");
        assert_eq!(Dquot::check(good.as_bytes(), 1000, Some(Uuid([4; 16]))).unwrap_err().check, "UUID");
        let mut bad = good;
        bad.disk.bcount.set(1);
        assert_eq!(Dquot::check(bad.as_bytes(), 1000, Some(uuid)).unwrap_err().check, "checksum");
        bad = good;
        bad.disk.kind = 3;
        assert_eq!(Dquot::check(bad.as_bytes(), 1000, None).unwrap_err().check, "type");
        assert!(Dquot::check(&good.as_bytes()[..135], 1000, None).is_err());
    }
}
