//! Writing inodes: the core as it lies on disk, and as it is logged. v3 alone, as v4 volumes are only read.
//!
//! Invariant: what is written from a core reads back as the same core.

use crate::ag::NULL_AG_INODE;
use crate::checksum;
use crate::geometry::Geometry;
use crate::inode::{CORE_LEN_V3, CRC_OFFSET, Dinode, DinodeV3, ForkFormat, InodeCore, InodeFlags2, MAGIC};
use crate::log::{InodeFields, InodeFormat, ItemType, LogDinode, LogTime};
use crate::timestamp::Timestamp;
use crate::types::{InodeNumber, Lsn};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

impl ForkFormat {
    /// The field as in the core.
    pub const fn to_disk(self) -> u8 {
        match self {
            Self::Dev => 0,
            Self::Local => 1,
            Self::Extents => 2,
            Self::Btree => 3,
        }
    }
}

/// The three fields of a core that hold extent counts.
struct Counts {
    big_nextents: u64,
    nextents: u32,
    anextents: u16,
}

impl InodeCore {
    fn counts(&self) -> Counts {
        let (data, attr) = (self.data.nextents, self.attr.as_ref().map_or(0, |attr| attr.nextents));
        if self.flags2.contains(InodeFlags2::NREXT64) {
            return Counts { big_nextents: data, nextents: attr as u32, anextents: 0 };
        }
        // Counts are held within these bounds where extents are added.
        Counts { big_nextents: 0, nextents: data as u32, anextents: attr as u16 }
    }

    /// Where the attribute fork begins, in units of 8 bytes behind the core; 0: there is none.
    fn forkoff(&self) -> u8 {
        self.attr.as_ref().map_or(0, |attr| ((attr.range.start - CORE_LEN_V3) / 8) as u8)
    }

    fn attr_format(&self) -> u8 {
        self.attr.as_ref().map_or(ForkFormat::Extents, |attr| attr.format).to_disk()
    }

    fn time(&self, time: Timestamp) -> u64 {
        time.to_disk(self.flags2.contains(InodeFlags2::BIGTIME))
    }

    /// Writes core and forks into `inode` (one inode's bytes), LSN and checksum included. `next_unlinked` stays what
    /// it is there: it belongs to the list, not to the inode. A `free` inode has no mode.
    pub fn encode(
        &self,
        ino: InodeNumber,
        geometry: &Geometry,
        free: bool,
        forks: (&[u8], &[u8]),
        lsn: Lsn,
        inode: &mut [u8],
    ) {
        let counts = self.counts();
        let next_unlinked = Dinode::ref_from_prefix(inode).map_or(NULL_AG_INODE, |(old, _)| {
            if old.magic.get() == MAGIC { old.next_unlinked.get() } else { NULL_AG_INODE }
        });
        let core = Dinode {
            magic: MAGIC.into(),
            mode: if free { 0 } else { self.mode }.into(),
            version: 3,
            format: self.data.format.to_disk(),
            onlink: 0.into(),
            uid: self.uid.into(),
            gid: self.gid.into(),
            nlink: self.nlink.into(),
            projid_lo: (self.projid as u16).into(),
            projid_hi: ((self.projid >> 16) as u16).into(),
            big_nextents: counts.big_nextents.into(),
            atime: self.time(self.atime).into(),
            mtime: self.time(self.mtime).into(),
            ctime: self.time(self.ctime).into(),
            size: self.size.into(),
            nblocks: self.nblocks.into(),
            extsize: self.extsize.into(),
            nextents: counts.nextents.into(),
            anextents: counts.anextents.into(),
            forkoff: self.forkoff(),
            aformat: self.attr_format(),
            dmevmask: 0.into(),
            dmstate: 0.into(),
            flags: self.flags.bits().into(),
            gen_: self.generation.into(),
            next_unlinked: next_unlinked.into(),
        };
        let v3 = DinodeV3 {
            crc: [0; 4],
            changecount: self.changecount.into(),
            lsn: lsn.0.into(),
            flags2: self.flags2.bits().into(),
            cowextsize: self.cowextsize.into(),
            pad2: [0; 12],
            crtime: self.time(self.crtime.unwrap_or_default()).into(),
            ino: ino.0.into(),
            uuid: geometry.meta_uuid.0,
        };
        let (head, literal) = inode.split_at_mut(CORE_LEN_V3);
        let (head1, head2) = head.split_at_mut(core.as_bytes().len());
        head1.copy_from_slice(core.as_bytes());
        head2.copy_from_slice(v3.as_bytes());
        let split = self.attr.as_ref().map_or(literal.len(), |attr| attr.range.start - CORE_LEN_V3);
        let (data, attr) = literal.split_at_mut(split.min(literal.len()));
        for (to, from) in [(data, forks.0), (attr, forks.1)] {
            let len = from.len().min(to.len());
            debug_assert_eq!(len, from.len(), "a fork outgrew its room");
            to[..len].copy_from_slice(&from[..len]);
            to[len..].fill(0);
        }
        checksum::store(inode, CRC_OFFSET);
    }

    /// The core as it is logged.
    pub fn to_log(&self, ino: InodeNumber, geometry: &Geometry, free: bool, lsn: Lsn) -> LogDinode {
        let counts = self.counts();
        let bigtime = self.flags2.contains(InodeFlags2::BIGTIME);
        let time = |time: Timestamp| {
            let bits = time.to_disk(bigtime);
            // Two 32-bit numbers, seconds first in memory, each in the host's order.
            LogTime(if bigtime { bits } else { bits.rotate_left(32) }.into())
        };
        let mut log = LogDinode::new_zeroed();
        log.magic = MAGIC.into();
        log.mode = if free { 0 } else { self.mode }.into();
        log.version = 3;
        log.format = self.data.format.to_disk();
        log.uid = self.uid.into();
        log.gid = self.gid.into();
        log.nlink = self.nlink.into();
        log.projid_lo = (self.projid as u16).into();
        log.projid_hi = ((self.projid >> 16) as u16).into();
        log.big_nextents = counts.big_nextents.into();
        log.atime = time(self.atime);
        log.mtime = time(self.mtime);
        log.ctime = time(self.ctime);
        log.size = self.size.into();
        log.nblocks = self.nblocks.into();
        log.extsize = self.extsize.into();
        log.nextents = counts.nextents.into();
        log.anextents = counts.anextents.into();
        log.forkoff = self.forkoff();
        log.aformat = self.attr_format();
        log.flags = self.flags.bits().into();
        log.gen_ = self.generation.into();
        log.next_unlinked = NULL_AG_INODE.into();
        log.changecount = self.changecount.into();
        log.lsn = lsn.0.into();
        log.flags2 = self.flags2.bits().into();
        log.cowextsize = self.cowextsize.into();
        log.crtime = time(self.crtime.unwrap_or_default());
        log.ino = ino.0.into();
        log.uuid = geometry.meta_uuid.0;
        log
    }
}

impl InodeFormat {
    /// Bytes of the structure, as it is written.
    pub const BYTES: usize = 56;

    /// Writes the structure into `to`, which is [`BYTES`](Self::BYTES) long.
    pub fn encode(&self, to: &mut [u8]) {
        let rdev = if self.fields.contains(InodeFields::DEV) { self.rdev } else { 0 };
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            to[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&(ItemType::Inode as u16).to_le_bytes());
        put(&self.regions.to_le_bytes());
        put(&self.fields.bits().to_le_bytes());
        put(&self.asize.to_le_bytes());
        put(&self.dsize.to_le_bytes());
        put(&[0; 4]);
        put(&self.ino.0.to_le_bytes());
        put(&rdev.to_le_bytes());
        put(&[0; 12]);
        put(&self.daddr.0.to_le_bytes());
        put(&self.len.to_le_bytes());
        put(&self.offset.to_le_bytes());
        debug_assert_eq!(at, Self::BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::{ForkInfo, InodeFlags, InodeType};
    use crate::superblock::{Superblock, tests::sample};

    fn core(flags2: InodeFlags2) -> InodeCore {
        let time = |seconds| Timestamp { seconds, nanoseconds: 7 };
        InodeCore {
            version: 3,
            mode: 0o100_640,
            kind: InodeType::Regular,
            uid: 1,
            gid: 2,
            nlink: 3,
            projid: 0x1_0002,
            atime: time(4),
            mtime: time(5),
            ctime: time(6),
            crtime: Some(time(-7)),
            size: 1 << 40,
            nblocks: 99,
            extsize: 8,
            cowextsize: 0,
            flags: InodeFlags::SYNC,
            flags2,
            generation: 10,
            changecount: 11,
            data: ForkInfo { format: ForkFormat::Extents, nextents: 2, range: 176..336 },
            attr: Some(ForkInfo { format: ForkFormat::Local, nextents: 0, range: 336..512 }),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let mut geometry = Geometry::from_superblock(&Superblock::parse(&sample()).unwrap());
        (geometry.bigtime, geometry.nrext64) = (true, true);
        for flags2 in [InodeFlags2::empty(), InodeFlags2::BIGTIME, InodeFlags2::NREXT64] {
            let core = core(flags2);
            let ino = InodeNumber(131);
            let mut bytes = vec![0xff; 512];
            core.encode(ino, &geometry, false, (&[1; 32], &[2; 40]), Lsn(1 << 32), &mut bytes);
            assert_eq!(InodeCore::parse(&bytes, ino, &geometry), Ok(Some(core.clone())));
            assert_eq!((bytes[176 + 31], bytes[176 + 32], bytes[336], bytes[511]), (1, 0, 2, 0));
            core.encode(ino, &geometry, true, (&[], &[]), Lsn(1 << 32), &mut bytes);
            assert_eq!(InodeCore::parse(&bytes, ino, &geometry), Ok(None));
            let logged = core.to_log(ino, &geometry, false, Lsn(0));
            let mut laid = bytes.clone();
            laid[..96].fill(0x55);
            logged.apply_to(Lsn(1 << 32), &mut laid).unwrap();
            checksum::store(&mut laid, CRC_OFFSET);
            assert_eq!(InodeCore::parse(&laid, ino, &geometry).unwrap().as_ref(), Some(&core));
            match flags2.contains(InodeFlags2::BIGTIME) {
                true => assert_eq!(logged.atime.bigtime(), core.atime.to_disk(true)),
                false => assert_eq!(logged.crtime.legacy(), (-7, 7)),
            }
        }
    }

    #[test]
    fn the_next_unlinked_inode_is_not_the_inodes_own() {
        let geometry = Geometry::from_superblock(&Superblock::parse(&sample()).unwrap());
        let mut bytes = vec![0; 512];
        let core = core(InodeFlags2::empty());
        core.encode(InodeNumber(131), &geometry, false, (&[], &[]), Lsn(0), &mut bytes);
        assert_eq!(bytes[96..100], NULL_AG_INODE.to_be_bytes());
        bytes[96..100].copy_from_slice(&5_u32.to_be_bytes());
        core.encode(InodeNumber(131), &geometry, false, (&[], &[]), Lsn(0), &mut bytes);
        assert_eq!(bytes[96..100], 5_u32.to_be_bytes());
    }
}
