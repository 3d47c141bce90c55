//! The headers of an allocation group: AGF (free space), AGI (inodes), AGFL (blocks kept for the trees).
//!
//! Each takes one sector of the volume: sectors 1, 2 and 3 of the group. What needs the volume's shape
//! (sequence number, roots within the group) is checked by `check_group`, apart from the verifiers.

use crate::error::FormatError;
use crate::geometry::Geometry;
use crate::types::{AgBlock, AgNumber, DiskAddr, Lsn, Uuid};
use crate::verify::{Verifier, VerifyContext, check_identity};
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `XAGF`
pub const AGF_MAGIC: u32 = 0x5841_4746;
/// `XAGI`
pub const AGI_MAGIC: u32 = 0x5841_4749;
/// `XAFL`
pub const AGFL_MAGIC: u32 = 0x5841_464c;
/// No tree has more levels than this: each level at least halves what is left of 2^64.
pub const MAX_LEVELS: u32 = 16;
/// The number for "no block of the group".
pub const NULL_AG_BLOCK: u32 = u32::MAX;
/// The number for "no inode of the group".
pub const NULL_AG_INODE: u32 = u32::MAX;
/// Buckets of the list of unlinked inodes.
pub const UNLINKED_BUCKETS: usize = 64;

/// Free space of a group, and the roots of its trees of blocks.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are the format's")]
pub struct Agf {
    pub magicnum: U32,
    pub versionnum: U32,
    pub seqno: U32,
    pub length: U32,
    pub bno_root: U32,
    pub cnt_root: U32,
    pub rmap_root: U32,
    pub bno_level: U32,
    pub cnt_level: U32,
    pub rmap_level: U32,
    pub flfirst: U32,
    pub fllast: U32,
    pub flcount: U32,
    pub freeblks: U32,
    pub longest: U32,
    pub btreeblks: U32,
    pub uuid: [u8; 16],
    pub rmap_blocks: U32,
    pub refcount_blocks: U32,
    pub refcount_root: U32,
    pub refcount_level: U32,
    pub spare64: [U64; 14],
    pub lsn: U64,
    /// Little-endian.
    pub crc: [u8; 4],
    pub spare2: U32,
}

/// Inodes of a group.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are the format's")]
pub struct Agi {
    pub magicnum: U32,
    pub versionnum: U32,
    pub seqno: U32,
    pub length: U32,
    pub count: U32,
    pub root: U32,
    pub level: U32,
    pub freecount: U32,
    pub newino: U32,
    pub dirino: U32,
    pub unlinked: [U32; UNLINKED_BUCKETS],
    pub uuid: [u8; 16],
    /// Little-endian.
    pub crc: [u8; 4],
    pub pad32: U32,
    pub lsn: U64,
    pub free_root: U32,
    pub free_level: U32,
    pub iblocks: U32,
    pub fblocks: U32,
}

/// Header of the group's list of reserved blocks on v5. v4 has the list alone.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are the format's")]
pub struct AgflHeader {
    pub magicnum: U32,
    pub seqno: U32,
    pub uuid: [u8; 16],
    pub lsn: U64,
    /// Little-endian.
    pub crc: [u8; 4],
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<Agf>() == 224);
    assert!(offset_of!(Agf, flfirst) == 40);
    assert!(offset_of!(Agf, uuid) == 64);
    assert!(offset_of!(Agf, refcount_root) == 88);
    assert!(offset_of!(Agf, lsn) == 208);
    assert!(offset_of!(Agf, crc) == 216);
    assert!(size_of::<Agi>() == 344);
    assert!(offset_of!(Agi, unlinked) == 40);
    assert!(offset_of!(Agi, crc) == 312);
    assert!(offset_of!(Agi, free_root) == 328);
    assert!(size_of::<AgflHeader>() == 36);
    assert!(offset_of!(AgflHeader, crc) == 32);
};

/// Checks an AGF.
pub static AGF: Verifier = Verifier { name: "AGF", check: check_agf };
/// Checks an AGI.
pub static AGI: Verifier = Verifier { name: "AGI", check: check_agi };
/// Checks an AGFL.
pub static AGFL: Verifier = Verifier { name: "AGFL", check: check_agfl };

fn check_number(
    structure: &'static str,
    check: &'static str,
    found: u32,
    expected: u32,
) -> Result<(), FormatError> {
    if found != expected {
        return Err(FormatError::mismatch(structure, check, found.into(), expected.into()));
    }
    Ok(())
}

fn check_agf(bytes: &[u8], context: &VerifyContext) -> Result<(), FormatError> {
    let agf = Agf::view(bytes)?;
    check_number("AGF", "magic", agf.magicnum.get(), AGF_MAGIC)?;
    check_number("AGF", "version", agf.versionnum.get(), 1)?;
    if context.v5 {
        check_identity("AGF", bytes, 216, &agf.uuid, None, Lsn(agf.lsn.get()), context)?;
    }
    Ok(())
}

fn check_agi(bytes: &[u8], context: &VerifyContext) -> Result<(), FormatError> {
    let agi = Agi::view(bytes)?;
    check_number("AGI", "magic", agi.magicnum.get(), AGI_MAGIC)?;
    check_number("AGI", "version", agi.versionnum.get(), 1)?;
    if context.v5 {
        check_identity("AGI", bytes, 312, &agi.uuid, None, Lsn(agi.lsn.get()), context)?;
    }
    Ok(())
}

fn check_agfl(bytes: &[u8], context: &VerifyContext) -> Result<(), FormatError> {
    if !context.v5 {
        return Ok(());
    }
    let (header, _) = AgflHeader::ref_from_prefix(bytes)
        .map_err(|_| FormatError::value("AGFL", "length", bytes.len() as u64))?;
    check_number("AGFL", "magic", header.magicnum.get(), AGFL_MAGIC)?;
    check_identity("AGFL", bytes, 32, &header.uuid, None, Lsn(header.lsn.get()), context)
}

/// A root that lies within the group behind its headers, and a depth that a tree can have.
fn check_root(
    structure: &'static str,
    check: &'static str,
    (root, level): (U32, U32),
    length: u32,
) -> Result<(), FormatError> {
    if root.get() == 0 || root.get() >= length {
        return Err(FormatError::mismatch(structure, check, root.get().into(), length.into()));
    }
    if level.get() == 0 || level.get() > MAX_LEVELS {
        return Err(FormatError::mismatch(structure, "tree depth", level.get().into(), MAX_LEVELS.into()));
    }
    Ok(())
}

impl Agf {
    /// The AGF of a group of `length` blocks in which nothing is free, without roots and counts.
    pub fn new(ag: AgNumber, length: u32, uuid: Uuid) -> Self {
        Self {
            magicnum: AGF_MAGIC.into(),
            versionnum: 1.into(),
            seqno: ag.0.into(),
            length: length.into(),
            uuid: uuid.0,
            ..Self::new_zeroed()
        }
    }

    /// The AGF at the start of `bytes`.
    pub fn view(bytes: &[u8]) -> Result<&Self, FormatError> {
        Self::ref_from_prefix(bytes)
            .map(|(view, _)| view)
            .map_err(|_| FormatError::value("AGF", "length", bytes.len() as u64))
    }

    /// Checks what depends on the group: its number, length, roots and counts.
    pub fn check_group(&self, geometry: &Geometry, ag: AgNumber) -> Result<(), FormatError> {
        let length = geometry.ag_blocks_of(ag);
        check_number("AGF", "group number", self.seqno.get(), ag.0)?;
        check_number("AGF", "group length", self.length.get(), length)?;
        check_root("AGF", "bnobt root", (self.bno_root, self.bno_level), length)?;
        check_root("AGF", "cntbt root", (self.cnt_root, self.cnt_level), length)?;
        if geometry.rmapbt {
            check_root("AGF", "rmapbt root", (self.rmap_root, self.rmap_level), length)?;
        }
        if geometry.reflink {
            check_root("AGF", "refcountbt root", (self.refcount_root, self.refcount_level), length)?;
        }
        let slots = Agfl::slots(geometry);
        for (check, slot) in [("first AGFL slot", self.flfirst), ("last AGFL slot", self.fllast)] {
            if slot.get() >= slots {
                return Err(FormatError::mismatch("AGF", check, slot.get().into(), slots.into()));
            }
        }
        for (check, count) in [
            ("free block count", self.freeblks),
            ("longest free extent", self.longest),
            ("AGFL count", self.flcount),
        ] {
            if count.get() > length {
                return Err(FormatError::mismatch("AGF", check, count.get().into(), length.into()));
            }
        }
        Ok(())
    }
}

impl Agi {
    /// The AGI of a group of `length` blocks without inodes, without roots.
    pub fn new(ag: AgNumber, length: u32, uuid: Uuid) -> Self {
        Self {
            magicnum: AGI_MAGIC.into(),
            versionnum: 1.into(),
            seqno: ag.0.into(),
            length: length.into(),
            newino: NULL_AG_INODE.into(),
            dirino: NULL_AG_INODE.into(),
            unlinked: [NULL_AG_INODE.into(); UNLINKED_BUCKETS],
            uuid: uuid.0,
            ..Self::new_zeroed()
        }
    }

    /// The AGI at the start of `bytes`.
    pub fn view(bytes: &[u8]) -> Result<&Self, FormatError> {
        Self::ref_from_prefix(bytes)
            .map(|(view, _)| view)
            .map_err(|_| FormatError::value("AGI", "length", bytes.len() as u64))
    }

    /// Checks what depends on the group: its number, length, roots and counts.
    pub fn check_group(&self, geometry: &Geometry, ag: AgNumber) -> Result<(), FormatError> {
        let length = geometry.ag_blocks_of(ag);
        check_number("AGI", "group number", self.seqno.get(), ag.0)?;
        check_number("AGI", "group length", self.length.get(), length)?;
        check_root("AGI", "inobt root", (self.root, self.level), length)?;
        if geometry.finobt {
            check_root("AGI", "finobt root", (self.free_root, self.free_level), length)?;
        }
        let inodes = u64::from(length) << geometry.inodes_per_block_log;
        let (count, free) = (self.count.get(), self.freecount.get());
        if u64::from(count) > inodes {
            return Err(FormatError::mismatch("AGI", "inode count", count.into(), inodes));
        }
        if free > count {
            return Err(FormatError::mismatch("AGI", "free inode count", free.into(), count.into()));
        }
        Ok(())
    }
}

impl AgflHeader {
    /// The header of a group's list.
    pub fn new(ag: AgNumber, uuid: Uuid) -> Self {
        Self { magicnum: AGFL_MAGIC.into(), seqno: ag.0.into(), uuid: uuid.0, ..Self::new_zeroed() }
    }
}

/// The group's list of blocks that are kept for the free space and reverse map trees: a ring of slots.
#[derive(Clone, Copy, Debug)]
pub struct Agfl<'a> {
    slots: &'a [U32],
}

impl<'a> Agfl<'a> {
    /// The list in a sector that passed [`AGFL`].
    pub fn view(bytes: &'a [u8], geometry: &Geometry) -> Result<Self, FormatError> {
        let header = if geometry.v5 { size_of::<AgflHeader>() } else { 0 };
        let count = usize::try_from(Self::slots(geometry)).unwrap_or(0);
        let slots =
            bytes.get(header..).and_then(|rest| <[U32]>::ref_from_prefix_with_elems(rest, count).ok());
        let (slots, _) = slots.ok_or(FormatError::value("AGFL", "length", bytes.len() as u64))?;
        Ok(Self { slots })
    }

    /// The first slot, in use or not, that holds neither a possible block nor the mark of an empty slot.
    pub fn stray(self, geometry: &Geometry) -> Option<u32> {
        let mut slots = self.slots.iter().map(|slot| slot.get());
        slots.find(|&slot| slot != NULL_AG_BLOCK && slot >= geometry.ag_blocks)
    }

    /// How many slots the AGFL of this volume has.
    pub fn slots(geometry: &Geometry) -> u32 {
        let header = if geometry.v5 { 36 } else { 0 };
        (geometry.sector_size - header) / 4
    }

    /// The blocks in use, from slot `flfirst` on, `flcount` of them. Both are taken modulo the number of
    /// slots, so an unchecked AGF does no harm.
    pub fn blocks(self, agf: &Agf) -> impl Iterator<Item = AgBlock> + 'a {
        let first = usize::try_from(agf.flfirst.get()).unwrap_or(0) % self.slots.len().max(1);
        let count = usize::try_from(agf.flcount.get()).unwrap_or(0).min(self.slots.len());
        self.slots.iter().cycle().skip(first).take(count).map(|slot| AgBlock(slot.get()))
    }
}

/// Which header of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgHeader {
    /// Sector 1.
    Agf,
    /// Sector 2.
    Agi,
    /// Sector 3.
    Agfl,
}

impl AgHeader {
    /// In which sector of the group it lies.
    pub const fn sector(self) -> u64 {
        match self {
            Self::Agf => 1,
            Self::Agi => 2,
            Self::Agfl => 3,
        }
    }

    /// Where it lies on the device.
    pub fn daddr(self, geometry: &Geometry, ag: AgNumber) -> DiskAddr {
        let sector = u64::from(geometry.sector_size >> 9);
        DiskAddr(geometry.daddr_of(ag, AgBlock(0)).0 + self.sector() * sector)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum;
    use crate::superblock::{Superblock, tests::sample};

    const AG: AgNumber = AgNumber(2);

    fn geometry() -> Geometry {
        Geometry::from_superblock(&Superblock::parse(&sample()).unwrap())
    }

    fn context() -> VerifyContext {
        VerifyContext { v5: true, meta_uuid: Uuid([7; 16]), daddr: DiskAddr(0) }
    }

    fn agf(change: impl FnOnce(&mut Agf)) -> Result<(), &'static str> {
        let mut sector = [0; 512];
        let (agf, _) = Agf::mut_from_prefix(&mut sector).unwrap();
        agf.magicnum = AGF_MAGIC.into();
        agf.versionnum = 1.into();
        agf.seqno = AG.0.into();
        agf.length = 19200.into();
        (agf.bno_root, agf.cnt_root, agf.refcount_root) = (1.into(), 2.into(), 5.into());
        (agf.bno_level, agf.cnt_level, agf.refcount_level) = (1.into(), 1.into(), 1.into());
        (agf.flfirst, agf.fllast, agf.flcount) = (117.into(), 3.into(), 6.into());
        agf.uuid = [7; 16];
        change(agf);
        checksum::store(&mut sector, 216);
        (AGF.check)(&sector, &context()).map_err(|e| e.check)?;
        Agf::view(&sector).unwrap().check_group(&geometry(), AG).map_err(|e| e.check)
    }

    #[test]
    fn agf_damage_is_named() {
        assert_eq!(agf(|_| ()), Ok(()));
        assert_eq!(agf(|agf| agf.magicnum = 0.into()), Err("magic"));
        assert_eq!(agf(|agf| agf.uuid = [0; 16]), Err("UUID"));
        assert_eq!(agf(|agf| agf.lsn = 5.into()), Err("LSN"));
        assert_eq!(agf(|agf| agf.seqno = 1.into()), Err("group number"));
        assert_eq!(agf(|agf| agf.length = 19201.into()), Err("group length"));
        assert_eq!(agf(|agf| agf.bno_root = 19200.into()), Err("bnobt root"));
        assert_eq!(agf(|agf| agf.refcount_root = 0.into()), Err("refcountbt root"));
        assert_eq!(agf(|agf| agf.cnt_level = 17.into()), Err("tree depth"));
        assert_eq!(agf(|agf| agf.flfirst = 119.into()), Err("first AGFL slot"));
        assert_eq!(agf(|agf| agf.flcount = u32::MAX.into()), Err("AGFL count"));
    }

    #[test]
    fn agi_damage_is_named() {
        let check = |change: fn(&mut Agi)| {
            let mut sector = [0; 512];
            let (agi, _) = Agi::mut_from_prefix(&mut sector).unwrap();
            (agi.magicnum, agi.versionnum) = (AGI_MAGIC.into(), 1.into());
            (agi.seqno, agi.length) = (AG.0.into(), 19200.into());
            (agi.root, agi.level, agi.free_root, agi.free_level) = (3.into(), 1.into(), 4.into(), 1.into());
            (agi.count, agi.freecount) = (64.into(), 61.into());
            agi.uuid = [7; 16];
            change(agi);
            checksum::store(&mut sector, 312);
            (AGI.check)(&sector, &context()).map_err(|e| e.check)?;
            Agi::view(&sector).unwrap().check_group(&geometry(), AG).map_err(|e| e.check)
        };
        assert_eq!(check(|_| ()), Ok(()));
        assert_eq!(check(|agi| agi.level = 0.into()), Err("tree depth"));
        assert_eq!(check(|agi| agi.free_root = u32::MAX.into()), Err("finobt root"));
        assert_eq!(check(|agi| agi.count = u32::MAX.into()), Err("inode count"));
        assert_eq!(check(|agi| agi.freecount = 65.into()), Err("free inode count"));
    }

    #[test]
    fn the_agfl_is_a_ring() {
        let geometry = geometry();
        assert_eq!(Agfl::slots(&geometry), 119);
        let mut sector = [0; 512];
        for slot in 0..119_u8 {
            sector[36 + usize::from(slot) * 4 + 3] = slot;
        }
        let mut agf = [0; 224];
        let (agf, _) = Agf::mut_from_prefix(&mut agf).unwrap();
        (agf.flfirst, agf.flcount) = (117.into(), 4.into());
        let blocks: Vec<_> =
            Agfl::view(&sector, &geometry).unwrap().blocks(agf).map(|block| block.0).collect();
        assert_eq!(blocks, [117, 118, 0, 1]);
        // Found by the fuzzer, as slowness: the list was walked step by step to a damaged first slot,
        // four thousand million steps.
        (agf.flfirst, agf.flcount) = (u32::MAX.into(), u32::MAX.into());
        let blocks = Agfl::view(&sector, &geometry).unwrap().blocks(agf);
        assert_eq!(
            (blocks.size_hint(), blocks.map(|b| b.0).next()),
            ((119, Some(119)), Some(u32::MAX % 119))
        );
        assert!(Agfl::view(&sector[..100], &geometry).is_err());
        assert_eq!(AgHeader::Agfl.daddr(&geometry, AgNumber(1)).0, 19200 * 8 + 3);
    }
}
