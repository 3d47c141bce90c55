//! The superblock: the first sector of every allocation group. The first group's is authoritative.
//!
//! [`Superblock::parse`] gives a copy only of what passed its checks: magic, version, checksum, and every number
//! that readers compute with. What it says about features is asked separately, so that a volume that is sound but
//! not handled is refused by the feature's name.

use crate::checksum;
use crate::error::FormatError;
use crate::feature_table::{self, FeatureMark, Present};
use crate::features::{Features2, Incompat, LogIncompat, RoCompat, VersionFlags};
use crate::types::{DiskAddr, FsBlock, InodeNumber, Lsn, Uuid};
use crate::verify::{Verifier, VerifyContext};
use std::mem::offset_of;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const NAME: &str = "superblock";

/// `XFSB`
pub const MAGIC: u32 = 0x5846_5342;
/// Where the checksum lies.
pub const CRC_OFFSET: usize = 224;
/// Bytes of the structure up to its newest field.
pub const SIZE: usize = 304;

/// The superblock's fields as they lie on disk.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are the format's")]
pub struct RawSuperblock {
    pub magicnum: U32,
    pub blocksize: U32,
    pub dblocks: U64,
    pub rblocks: U64,
    pub rextents: U64,
    pub uuid: [u8; 16],
    pub logstart: U64,
    pub rootino: U64,
    pub rbmino: U64,
    pub rsumino: U64,
    pub rextsize: U32,
    pub agblocks: U32,
    pub agcount: U32,
    pub rbmblocks: U32,
    pub logblocks: U32,
    pub versionnum: U16,
    pub sectsize: U16,
    pub inodesize: U16,
    pub inopblock: U16,
    pub fname: [u8; 12],
    pub blocklog: u8,
    pub sectlog: u8,
    pub inodelog: u8,
    pub inopblog: u8,
    pub agblklog: u8,
    pub rextslog: u8,
    pub inprogress: u8,
    pub imax_pct: u8,
    pub icount: U64,
    pub ifree: U64,
    pub fdblocks: U64,
    pub frextents: U64,
    pub uquotino: U64,
    pub gquotino: U64,
    pub qflags: U16,
    pub flags: u8,
    pub shared_vn: u8,
    pub inoalignmt: U32,
    pub unit: U32,
    pub width: U32,
    pub dirblklog: u8,
    pub logsectlog: u8,
    pub logsectsize: U16,
    pub logsunit: U32,
    pub features2: U32,
    pub bad_features2: U32,
    pub features_compat: U32,
    pub features_ro_compat: U32,
    pub features_incompat: U32,
    pub features_log_incompat: U32,
    /// Little-endian.
    pub crc: [u8; 4],
    pub spino_align: U32,
    pub pquotino: U64,
    pub lsn: U64,
    pub meta_uuid: [u8; 16],
    pub metadirino: U64,
    pub rgcount: U32,
    pub rgextents: U32,
    pub rgblklog: u8,
    pub pad: [u8; 7],
    pub rtstart: U64,
    pub rtreserved: U64,
}

const _: () = {
    use std::mem::size_of;
    assert!(size_of::<RawSuperblock>() == SIZE);
    assert!(offset_of!(RawSuperblock, versionnum) == 100);
    assert!(offset_of!(RawSuperblock, blocklog) == 120);
    assert!(offset_of!(RawSuperblock, icount) == 128);
    assert!(offset_of!(RawSuperblock, inoalignmt) == 180);
    assert!(offset_of!(RawSuperblock, features2) == 200);
    assert!(offset_of!(RawSuperblock, crc) == CRC_OFFSET);
    assert!(offset_of!(RawSuperblock, lsn) == 240);
    assert!(offset_of!(RawSuperblock, metadirino) == 264);
    assert!(offset_of!(RawSuperblock, rtstart) == 288);
};

/// Why a sound volume cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unhandled {
    /// A feature that readers must know, by name.
    Feature(String),
    /// The log lies on a device of its own.
    ExternalLog,
    /// The volume has a realtime section.
    Realtime,
    /// The volume is marked as in need of repair.
    NeedsRepair,
}

/// A superblock that passed its checks. Every number is in range.
#[derive(Clone, Copy, Debug)]
pub struct Superblock {
    raw: RawSuperblock,
}

impl Superblock {
    /// Whether `sector` begins as an XFS volume does.
    pub fn has_magic(sector: &[u8]) -> bool {
        sector.first_chunk::<4>() == Some(&MAGIC.to_be_bytes())
    }

    /// The sector size that a superblock claims, if it is a possible one: how much to read before [`Self::parse`].
    pub fn claimed_sector_size(start: &[u8]) -> Result<u32, FormatError> {
        let (raw, _) = RawSuperblock::ref_from_prefix(start)
            .map_err(|_| FormatError::value(NAME, "length", start.len() as u64))?;
        let size = u32::from(raw.sectsize.get());
        if !size.is_power_of_two() || !(512..=32768).contains(&size) {
            return Err(FormatError::value(NAME, "sector size", size.into()));
        }
        Ok(size)
    }

    /// Checks a superblock of at least one whole sector. The caller has read `claimed_sector_size` bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let sector = Self::claimed_sector_size(bytes)?;
        let bytes = usize::try_from(sector)
            .ok()
            .and_then(|len| bytes.get(..len))
            .ok_or(FormatError::value(NAME, "length", bytes.len() as u64))?;
        let (raw, _) = RawSuperblock::read_from_prefix(bytes)
            .map_err(|_| FormatError::value(NAME, "length", bytes.len() as u64))?;
        let sb = Self { raw };
        if raw.magicnum.get() != MAGIC {
            return Err(FormatError::mismatch(NAME, "magic", raw.magicnum.get().into(), MAGIC.into()));
        }
        if !matches!(sb.version(), 4 | 5) {
            return Err(FormatError::value(NAME, "version", sb.version().into()));
        }
        if sb.is_v5() {
            checksum::check(NAME, bytes, CRC_OFFSET)?;
        }
        sb.check_ranges()?;
        Ok(sb)
    }

    /// Checks the numbers of a copy of this one. mkfs leaves copies as they were before it had a root directory.
    pub fn check_copy(&self, raw: &RawSuperblock) -> Result<(), FormatError> {
        Self { raw: RawSuperblock { inprogress: 0, rootino: self.raw.rootino, ..*raw } }.check_ranges()
    }

    /// How large a volume is, in blocks and in groups, by the first bytes of a superblock; `None` if there are too few.
    pub fn size_in(start: &[u8]) -> Option<(u64, u32)> {
        let blocks = start.get(offset_of!(RawSuperblock, dblocks)..)?.first_chunk()?;
        let groups = start.get(offset_of!(RawSuperblock, agcount)..)?.first_chunk()?;
        Some((u64::from_be_bytes(*blocks), u32::from_be_bytes(*groups)))
    }

    /// A superblock with these fields, if its numbers are in range.
    pub fn of(raw: RawSuperblock) -> Result<Self, FormatError> {
        let sb = Self { raw };
        sb.check_ranges()?;
        Ok(sb)
    }

    /// This superblock with another number of blocks and groups.
    pub fn resized(&self, (blocks, groups): (u64, u32)) -> Result<Self, FormatError> {
        let raw = RawSuperblock { dblocks: blocks.into(), agcount: groups.into(), ..self.raw };
        Self::of(raw)
    }

    /// The fields as they lie on disk.
    pub fn raw(&self) -> &RawSuperblock {
        &self.raw
    }

    /// 4 or 5.
    pub fn version(&self) -> u16 {
        self.raw.versionnum.get() & 0xf
    }

    /// Whether metadata carry checksums, owners and addresses.
    pub fn is_v5(&self) -> bool {
        self.version() == 5
    }

    /// Flags beside the version.
    pub fn version_flags(&self) -> VersionFlags {
        VersionFlags::from_bits_retain(self.raw.versionnum.get() & !0xf)
    }

    /// `sb_features2`. Old volumes have it eight bytes later, or in both places.
    pub fn features2(&self) -> Features2 {
        if !self.version_flags().contains(VersionFlags::MOREBITS) {
            return Features2::empty();
        }
        Features2::from_bits_retain(self.raw.features2.get() | self.raw.bad_features2.get())
    }

    /// Features that writers must know.
    pub fn ro_compat(&self) -> RoCompat {
        RoCompat::from_bits_retain(if self.is_v5() { self.raw.features_ro_compat.get() } else { 0 })
    }

    /// Features that readers must know.
    pub fn incompat(&self) -> Incompat {
        Incompat::from_bits_retain(if self.is_v5() { self.raw.features_incompat.get() } else { 0 })
    }

    /// Features that whoever replays the log must know.
    pub fn log_incompat(&self) -> LogIncompat {
        LogIncompat::from_bits_retain(if self.is_v5() { self.raw.features_log_incompat.get() } else { 0 })
    }

    /// Whether directory entries carry the file's type.
    pub fn has_ftype(&self) -> bool {
        self.incompat().contains(Incompat::FTYPE)
            || (!self.is_v5() && self.features2().contains(Features2::FTYPE))
    }

    /// Whether log records are version 2 (they may be longer than 32 KiB, and padded to a stripe unit).
    pub fn has_log_v2(&self) -> bool {
        self.is_v5() || self.version_flags().contains(VersionFlags::LOGV2)
    }

    /// Whether the superblock's free counters are right only after a clean unmount.
    pub fn has_lazy_counters(&self) -> bool {
        self.is_v5() || self.features2().contains(Features2::LAZYSBCOUNT)
    }

    /// The volume's UUID, which users see.
    pub fn uuid(&self) -> Uuid {
        Uuid(self.raw.uuid)
    }

    /// The UUID that metadata carry.
    pub fn meta_uuid(&self) -> Uuid {
        if self.incompat().contains(Incompat::META_UUID) { Uuid(self.raw.meta_uuid) } else { self.uuid() }
    }

    /// The volume's label: up to 12 bytes.
    pub fn label(&self) -> &[u8] {
        let end = self.raw.fname.iter().position(|&b| b == 0).unwrap_or(self.raw.fname.len());
        self.raw.fname.get(..end).unwrap_or_default()
    }

    /// The root directory.
    pub fn root(&self) -> InodeNumber {
        InodeNumber(self.raw.rootino.get())
    }

    /// The LSN of the superblock's last change. 0 on v4.
    pub fn lsn(&self) -> Lsn {
        Lsn(if self.is_v5() { self.raw.lsn.get() } else { 0 })
    }

    /// Where the internal log begins on the device. Only for a volume whose [`Self::unhandled`] is `None`.
    pub fn log_daddr(&self) -> DiskAddr {
        let (ag, block) = self.split(FsBlock(self.raw.logstart.get()));
        let block = ag * u64::from(self.raw.agblocks.get()) + block;
        DiskAddr(block << (self.raw.blocklog - 9))
    }

    /// Bytes of the log.
    pub fn log_bytes(&self) -> u64 {
        u64::from(self.raw.logblocks.get()) << self.raw.blocklog
    }

    /// Why this volume cannot be opened even for reading, if so.
    pub fn unhandled(&self) -> Option<Unhandled> {
        let (mut named, mut own) = (Vec::new(), None);
        for feature in feature_table::present(self).filter(|feature| !feature.support.read) {
            let why = match feature.row.map(|row| row.mark) {
                Some(FeatureMark::Incompat(Incompat::NEEDSREPAIR)) => Unhandled::NeedsRepair,
                Some(FeatureMark::ExternalLog) => Unhandled::ExternalLog,
                Some(FeatureMark::Realtime) => Unhandled::Realtime,
                _ => {
                    named.push(feature.name);
                    continue;
                }
            };
            own = own.or(Some(why));
        }
        if named.is_empty() { own } else { Some(Unhandled::Feature(named.join(", "))) }
    }

    /// Features because of which the volume may be read and not written: their names.
    pub fn unwritable(&self) -> Vec<String> {
        let unwritten = |feature: &Present| !feature.support.written;
        feature_table::present(self).filter(unwritten).map(|feature| feature.name).collect()
    }

    /// Features because of which the volume cannot be checked: what they add is not known.
    pub fn uncheckable(&self) -> Vec<String> {
        let unchecked = |feature: &Present| !feature.support.checked;
        feature_table::present(self).filter(unchecked).map(|feature| feature.name).collect()
    }

    /// The features that are on, except for those that every volume has.
    pub fn features(&self) -> Vec<Present> {
        let unusual = |feature: &Present| !feature.row.is_some_and(|row| row.usual);
        feature_table::present(self).filter(unusual).collect()
    }

    /// Group and block of a block number, unchecked against the volume.
    fn split(&self, block: FsBlock) -> (u64, u64) {
        (block.0 >> self.raw.agblklog, block.0 & ((1 << self.raw.agblklog) - 1))
    }

    /// Checks every number that anything is computed from.
    fn check_ranges(&self) -> Result<(), FormatError> {
        self.check_sizes()?;
        self.check_groups()?;
        self.check_log()?;
        self.check_inodes()
    }

    /// Block, sector, inode and directory block sizes, and the logarithms beside them.
    fn check_sizes(&self) -> Result<(), FormatError> {
        let raw = &self.raw;
        let min_block = if self.is_v5() { 1024 } else { 512 };
        check_size("block size", raw.blocksize.get(), raw.blocklog, min_block, 65536)?;
        let sector = u32::from(raw.sectsize.get());
        // Volumes of 512-byte sectors made long ago leave the logarithm 0.
        let unsaid = raw.sectlog == 0 && sector == 512 && !self.is_v5();
        let sector_log = if unsaid { 9 } else { raw.sectlog };
        check_size("sector size", sector, sector_log, 512, raw.blocksize.get().min(32768))?;
        let min_inode = if self.is_v5() { 512 } else { 256 };
        let max_inode = raw.blocksize.get().min(2048);
        check_size("inode size", raw.inodesize.get().into(), raw.inodelog, min_inode, max_inode)?;
        let per_block = raw.blocksize.get() / u32::from(raw.inodesize.get());
        check_size("inodes per block", raw.inopblock.get().into(), raw.inopblog, per_block, per_block)?;
        if u32::from(raw.dirblklog) + u32::from(raw.blocklog) > 16 {
            return Err(FormatError::value(NAME, "directory block size", raw.dirblklog.into()));
        }
        if raw.inprogress != 0 {
            return Err(FormatError::value(NAME, "completeness: mkfs did not finish", raw.inprogress.into()));
        }
        Ok(())
    }

    /// Groups, and the volume's size in bytes.
    fn check_groups(&self) -> Result<(), FormatError> {
        let raw = &self.raw;
        let (ag_blocks, ag_count, blocks) =
            (u64::from(raw.agblocks.get()), u64::from(raw.agcount.get()), raw.dblocks.get());
        // No group is larger than 1 TiB, which also keeps block numbers within 31 bits; none is smaller than 64
        // blocks.
        if ag_blocks < 64 || ag_blocks > (1 << 40) >> raw.blocklog {
            return Err(FormatError::value(NAME, "blocks per group", ag_blocks));
        }
        let ag_log = 64 - (ag_blocks - 1).leading_zeros();
        if u32::from(raw.agblklog) != ag_log {
            let found = raw.agblklog.into();
            return Err(FormatError::mismatch(NAME, "log2 of blocks per group", found, ag_log.into()));
        }
        // An inode's number within its group has at most 32 bits.
        if ag_log + u32::from(raw.inopblog) > 32 {
            return Err(FormatError::value(NAME, "inodes per group", ag_blocks));
        }
        if ag_count == 0 {
            return Err(FormatError::value(NAME, "group count", 0));
        }
        // Both factors are below 2^32.
        let most = ag_count * ag_blocks;
        let least = (ag_count - 1) * ag_blocks;
        if blocks <= least || blocks > most {
            return Err(FormatError::mismatch(NAME, "data block count", blocks, most));
        }
        if blocks.leading_zeros() < u32::from(raw.blocklog) + 1 {
            return Err(FormatError::value(NAME, "data block count", blocks));
        }
        Ok(())
    }

    /// The log's place and size.
    fn check_log(&self) -> Result<(), FormatError> {
        let raw = &self.raw;
        let blocks = u64::from(raw.logblocks.get());
        if blocks == 0 || blocks > (1 << 31) >> raw.blocklog {
            return Err(FormatError::value(NAME, "log size", blocks));
        }
        if raw.logstart.get() == 0 {
            return Ok(());
        }
        let (ag, block) = self.split(FsBlock(raw.logstart.get()));
        let (ag_blocks, ag_count) = (u64::from(raw.agblocks.get()), u64::from(raw.agcount.get()));
        let in_ag = ag < ag_count && block + blocks <= ag_blocks;
        if !in_ag || ag * ag_blocks + block + blocks > raw.dblocks.get() {
            return Err(FormatError::value(NAME, "log start", raw.logstart.get()));
        }
        // Not set for sectors of 512 bytes.
        if raw.logsectsize.get() != 0 {
            check_size("log sector size", raw.logsectsize.get().into(), raw.logsectlog, 512, 32768)?;
        }
        if raw.logsunit.get() > 256 << 10 {
            return Err(FormatError::value(NAME, "log stripe unit", raw.logsunit.get().into()));
        }
        Ok(())
    }

    /// The root inode, and alignment of inode chunks.
    fn check_inodes(&self) -> Result<(), FormatError> {
        let raw = &self.raw;
        let root = raw.rootino.get();
        let (ag, block) = self.split(FsBlock(root >> raw.inopblog));
        if root == 0 || ag >= u64::from(raw.agcount.get()) || block >= u64::from(raw.agblocks.get()) {
            return Err(FormatError::value(NAME, "root inode", root));
        }
        if u64::from(raw.inoalignmt.get()) > u64::from(raw.agblocks.get()) {
            return Err(FormatError::value(NAME, "inode alignment", raw.inoalignmt.get().into()));
        }
        Ok(())
    }
}

/// Checks a power of two, its bounds, and the logarithm that is stored beside it.
fn check_size(what: &'static str, size: u32, log: u8, min: u32, max: u32) -> Result<(), FormatError> {
    if !size.is_power_of_two() || size < min || size > max || size.trailing_zeros() != u32::from(log) {
        return Err(FormatError::value(NAME, what, size.into()));
    }
    Ok(())
}

/// The verifier of a superblock's sector.
pub static SUPERBLOCK: Verifier = Verifier { name: "superblock", check: check_sector };

fn check_sector(bytes: &[u8], _: &VerifyContext) -> Result<(), FormatError> {
    Superblock::parse(bytes).map(drop)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::geometry::Geometry;

    /// A superblock as `mkfs.xfs` makes one for 300 MiB of 4 KiB blocks: enough for tests without a device.
    pub(crate) fn sample() -> [u8; 512] {
        let mut sector = [0; 512];
        let (raw, _) = RawSuperblock::mut_from_prefix(&mut sector).expect("a sector holds it");
        raw.magicnum = MAGIC.into();
        raw.blocksize = 4096.into();
        raw.dblocks = 76800.into();
        raw.uuid = [7; 16];
        raw.logstart = 65543.into();
        raw.rootino = 128.into();
        raw.rextsize = 1.into();
        raw.agblocks = 19200.into();
        raw.agcount = 4.into();
        raw.logblocks = 1368.into();
        raw.versionnum = 0xb4b5.into();
        raw.sectsize = 512.into();
        raw.inodesize = 512.into();
        raw.inopblock = 8.into();
        (raw.blocklog, raw.sectlog, raw.inodelog, raw.inopblog, raw.agblklog) = (12, 9, 9, 3, 15);
        raw.imax_pct = 25;
        raw.inoalignmt = 8.into();
        raw.logsunit = 1.into();
        raw.features2 = 0x18a.into();
        raw.bad_features2 = 0x18a.into();
        raw.features_ro_compat = 0xd.into();
        raw.features_incompat = 0xb.into();
        raw.spino_align = 4.into();
        raw.pquotino = u64::MAX.into();
        checksum::store(&mut sector, CRC_OFFSET);
        sector
    }

    fn changed(change: impl FnOnce(&mut RawSuperblock)) -> Result<Superblock, FormatError> {
        let mut sector = sample();
        change(RawSuperblock::mut_from_prefix(&mut sector).expect("a sector holds it").0);
        checksum::store(&mut sector, CRC_OFFSET);
        Superblock::parse(&sector)
    }

    #[test]
    fn a_sound_one_is_read() {
        let sb = Superblock::parse(&sample()).unwrap();
        assert!(sb.is_v5());
        assert_eq!(sb.unhandled(), None);
        assert_eq!(sb.unwritable(), Vec::<String>::new());
        assert_eq!(sb.log_daddr(), DiskAddr((2 * 19200 + 7) * 8));
        let geometry = Geometry::from_superblock(&sb);
        assert_eq!(geometry.root, InodeNumber(128));
        assert_eq!(geometry.split_inode(InodeNumber(128)).unwrap().1.0, 128);
    }

    #[test]
    fn damage_is_named() {
        let mut sector = sample();
        sector[500] ^= 1;
        assert_eq!(Superblock::parse(&sector).unwrap_err().check, "checksum");
        sector[0] = 0;
        assert_eq!(Superblock::parse(&sector).unwrap_err().check, "magic");
        assert_eq!(Superblock::parse(&sector[..100]).unwrap_err().check, "length");
        let check = |change: fn(&mut RawSuperblock)| changed(change).unwrap_err().check;
        assert_eq!(check(|raw| raw.blocklog = 13), "block size");
        assert_eq!(check(|raw| raw.blocksize = 5000.into()), "block size");
        assert_eq!(check(|raw| raw.inodelog = 70), "inode size");
        assert_eq!(check(|raw| raw.inopblock = 16.into()), "inodes per block");
        assert_eq!(check(|raw| raw.dirblklog = 255), "directory block size");
        assert_eq!(check(|raw| raw.agblocks = 1.into()), "blocks per group");
        assert_eq!(check(|raw| raw.agblocks = u32::MAX.into()), "blocks per group");
        assert_eq!(check(|raw| raw.agblklog = 63), "log2 of blocks per group");
        assert_eq!(check(|raw| raw.agcount = 0.into()), "group count");
        assert_eq!(check(|raw| raw.agcount = u32::MAX.into()), "data block count");
        assert_eq!(check(|raw| raw.dblocks = 1.into()), "data block count");
        assert_eq!(check(|raw| raw.sectlog = 0), "sector size");
        assert_eq!(check(|raw| raw.logsectsize = 600.into()), "log sector size");
        assert_eq!(check(|raw| raw.logstart = u64::MAX.into()), "log start");
        assert_eq!(check(|raw| raw.logblocks = u32::MAX.into()), "log size");
        assert_eq!(check(|raw| raw.rootino = u64::MAX.into()), "root inode");
        assert_eq!(check(|raw| raw.versionnum = 6.into()), "version");
    }

    #[test]
    fn what_is_not_handled_is_refused_by_name() {
        let unhandled = |change: fn(&mut RawSuperblock)| changed(change).unwrap().unhandled();
        assert_eq!(
            unhandled(|raw| raw.features_incompat = 0x8000_020b_u32.into()),
            Some(Unhandled::Feature("zoned, incompatible feature bit 0x80000000".into()))
        );
        assert_eq!(unhandled(|raw| raw.features_incompat = 0x1b.into()), Some(Unhandled::NeedsRepair));
        assert_eq!(unhandled(|raw| raw.logstart = 0.into()), Some(Unhandled::ExternalLog));
        assert_eq!(unhandled(|raw| raw.rextents = 9.into()), Some(Unhandled::Realtime));
        let sb = changed(|raw| raw.features_ro_compat = 0x4d.into()).unwrap();
        assert_eq!(sb.unhandled(), None);
        assert_eq!(sb.unwritable(), ["read-only compatible feature bit 0x40"]);
    }
}
