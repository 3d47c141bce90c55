//! Inode log items: the format structure in both its layouts, the inode core as it is logged, and inode
//! creation.
//!
//! Invariant: 32-bit hosts wrote a format structure without padding (52 bytes, 64-bit ones 56);
//! [`InodeFormat`] is the same for both.

use super::host;
use super::item::{ItemType, fixed};
use crate::error::FormatError;
use crate::inode::{Dinode, DinodeV3, InodeFlags2};
use crate::types::{AgBlock, AgNumber, DiskAddr, InodeNumber, Lsn, Uuid};
use std::mem::{offset_of, size_of};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned, big_endian as be};

const NAME: &str = "inode log item";

bitflags::bitflags! {
    /// `ilf_fields`: what is logged of the inode.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct InodeFields: u32 {
        /// The core.
        const CORE = 0x001;
        /// The data fork in local format.
        const DDATA = 0x002;
        /// The data fork's extents.
        const DEXT = 0x004;
        /// The root of the data fork's tree.
        const DBROOT = 0x008;
        /// The device number.
        const DEV = 0x010;
        /// A UUID in the data fork (unused).
        const UUID = 0x020;
        /// The attribute fork in local format.
        const ADATA = 0x040;
        /// The attribute fork's extents.
        const AEXT = 0x080;
        /// The root of the attribute fork's tree.
        const ABROOT = 0x100;
        /// The blocks of the data fork's tree change their owner.
        const DOWNER = 0x200;
        /// The blocks of the attribute fork's tree change their owner.
        const AOWNER = 0x400;
    }
}

impl InodeFields {
    /// Any of the regions that hold the data fork.
    pub const DFORK: Self = Self::DDATA.union(Self::DEXT).union(Self::DBROOT);
    /// Any of the regions that hold the attribute fork.
    pub const AFORK: Self = Self::ADATA.union(Self::AEXT).union(Self::ABROOT);
}

/// `xfs_inode_log_format` of 64-bit hosts. In the host's byte order.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
struct Format64 {
    kind: host::U16,
    regions: host::U16,
    fields: host::U32,
    asize: host::U16,
    dsize: host::U16,
    pad: host::U32,
    ino: host::U64,
    rdev_or_uuid: [u8; 16],
    blkno: host::I64,
    len: host::I32,
    boffset: host::I32,
}

/// `xfs_inode_log_format_32`: the same without padding. In the host's byte order.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
struct Format32 {
    kind: host::U16,
    regions: host::U16,
    fields: host::U32,
    asize: host::U16,
    dsize: host::U16,
    ino: host::U64,
    rdev_or_uuid: [u8; 16],
    blkno: host::I64,
    len: host::I32,
    boffset: host::I32,
}

/// An inode log item's format structure.
#[derive(Clone, Copy, Debug)]
pub struct InodeFormat {
    /// Regions of this item, the format structure included.
    pub regions: u16,
    /// What is logged.
    pub fields: InodeFields,
    /// Bytes of the attribute fork's region.
    pub asize: u16,
    /// Bytes of the data fork's region.
    pub dsize: u16,
    /// The inode.
    pub ino: InodeNumber,
    /// Device number, where [`InodeFields::DEV`] is set.
    pub rdev: u32,
    /// Where the buffer that holds the inode lies.
    pub daddr: DiskAddr,
    /// Length of that buffer in units of 512 bytes.
    pub len: u32,
    /// Byte of that buffer where the inode begins.
    pub offset: u32,
}

impl InodeFormat {
    pub(super) fn parse(region: &[u8]) -> Result<Self, FormatError> {
        let f = Self::widen(region)?;
        let unknown = f.fields.get() & !InodeFields::all().bits();
        if unknown != 0 {
            return Err(FormatError::value(NAME, "fields", unknown.into()));
        }
        let number = |check, value: i64| {
            u64::try_from(value).map_err(|_| FormatError::value(NAME, check, value as u64))
        };
        let small = |check, value: i32| {
            u32::try_from(value).map_err(|_| FormatError::value(NAME, check, value as u32 as u64))
        };
        let [a, b, c, d, ..] = f.rdev_or_uuid;
        Ok(Self {
            regions: f.regions.get(),
            fields: InodeFields::from_bits_truncate(f.fields.get()),
            asize: f.asize.get(),
            dsize: f.dsize.get(),
            ino: InodeNumber(f.ino.get()),
            rdev: u32::from_le_bytes([a, b, c, d]),
            daddr: DiskAddr(number("block number", f.blkno.get())?),
            len: small("buffer length", f.len.get())?,
            offset: small("offset in its buffer", f.boffset.get())?,
        })
    }

    fn widen(region: &[u8]) -> Result<Format64, FormatError> {
        if region.len() != size_of::<Format32>() {
            return fixed::<Format64>(NAME, region).map(|(f, _)| *f);
        }
        let (f, _) = fixed::<Format32>(NAME, region)?;
        Ok(Format64 {
            kind: f.kind,
            regions: f.regions,
            fields: f.fields,
            asize: f.asize,
            dsize: f.dsize,
            pad: 0.into(),
            ino: f.ino,
            rdev_or_uuid: f.rdev_or_uuid,
            blkno: f.blkno,
            len: f.len,
            boffset: f.boffset,
        })
    }
}

/// A timestamp of a logged inode. In the host's byte order; what it means depends on the inode's bigtime
/// flag.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct LogTime(pub host::U64);

impl LogTime {
    /// Seconds and nanoseconds of the older form: two 32-bit numbers, seconds first in memory.
    pub fn legacy(self) -> (i32, u32) {
        let raw = self.0.get();
        (raw as u32 as i32, (raw >> 32) as u32)
    }

    /// Nanoseconds since the year 1901 of the bigtime form.
    pub fn bigtime(self) -> u64 {
        self.0.get()
    }
}

/// `xfs_log_dinode`: the inode core as it is logged. In the host's byte order, other than the core on disk.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields are those of the inode core, documented there")]
pub struct LogDinode {
    pub magic: host::U16,
    pub mode: host::U16,
    pub version: u8,
    pub format: u8,
    pub metatype: host::U16,
    pub uid: host::U32,
    pub gid: host::U32,
    pub nlink: host::U32,
    pub projid_lo: host::U16,
    pub projid_hi: host::U16,
    /// 64-bit extent count (nrext64); else padding, whose last two bytes are the flush counter of v2 inodes.
    pub big_nextents: host::U64,
    pub atime: LogTime,
    pub mtime: LogTime,
    pub ctime: LogTime,
    pub size: host::U64,
    pub nblocks: host::U64,
    pub extsize: host::U32,
    /// Extents of the data fork; of the attribute fork with nrext64.
    pub nextents: host::U32,
    /// Extents of the attribute fork; 0 with nrext64.
    pub anextents: host::U16,
    pub forkoff: u8,
    pub aformat: u8,
    pub dmevmask: host::U32,
    pub dmstate: host::U16,
    pub flags: host::U16,
    pub gen_: host::U32,
    pub next_unlinked: host::U32,
    pub crc: host::U32,
    pub changecount: host::U64,
    pub lsn: host::U64,
    pub flags2: host::U64,
    pub cowextsize: host::U32,
    pub pad2: [u8; 12],
    pub crtime: LogTime,
    pub ino: host::U64,
    pub uuid: [u8; 16],
}

/// `di_magic`: `IN`.
const DINODE_MAGIC: u16 = 0x494e;
/// Bytes of the core that are logged of v1 and v2 inodes: up to `di_next_unlinked`.
const V2_CORE: usize = 96;

const _: () = {
    assert!(size_of::<Format64>() == 56);
    assert!(offset_of!(Format64, ino) == 16);
    assert!(offset_of!(Format64, blkno) == 40);
    assert!(size_of::<Format32>() == 52);
    assert!(offset_of!(Format32, ino) == 12);
    assert!(size_of::<LogDinode>() == 176);
    assert!(offset_of!(LogDinode, atime) == 32);
    assert!(offset_of!(LogDinode, size) == 56);
    assert!(offset_of!(LogDinode, nextents) == 76);
    assert!(offset_of!(LogDinode, forkoff) == 82);
    assert!(offset_of!(LogDinode, next_unlinked) == V2_CORE);
    assert!(offset_of!(LogDinode, flags2) == 120);
    assert!(offset_of!(LogDinode, crtime) == 144);
    assert!(offset_of!(LogDinode, ino) == 152);
    assert!(size_of::<InodeCreate>() == 28);
};

impl LogDinode {
    /// The logged core in a region: 176 bytes, or 96 for v1 and v2 inodes, whose further fields are then 0.
    pub fn parse(region: &[u8]) -> Result<Self, FormatError> {
        const NAME: &str = "logged inode core";
        let mut core = Self::new_zeroed();
        let whole = size_of::<Self>();
        let have = if region.len() < whole { V2_CORE } else { whole };
        let from = region.get(..have).ok_or(FormatError::value(NAME, "length", region.len() as u64))?;
        core.as_mut_bytes().iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        if core.magic.get() != DINODE_MAGIC {
            return Err(FormatError::mismatch(NAME, "magic", core.magic.get().into(), DINODE_MAGIC.into()));
        }
        if core.version >= 3 && have != whole {
            return Err(FormatError::mismatch(NAME, "length", region.len() as u64, whole as u64));
        }
        Ok(core)
    }

    /// Puts the core into an inode as it lies on disk, with `lsn` as that of its last change. The pointer to the next
    /// unlinked inode is not part of the logged core and stays. The caller sets the checksum.
    pub fn apply_to(&self, lsn: Lsn, inode: &mut [u8]) -> Result<(), FormatError> {
        const NAME: &str = "logged inode core";
        let short = FormatError::value(NAME, "length of its inode", inode.len() as u64);
        let (core, rest) = Dinode::mut_from_prefix(inode).map_err(|_| short.clone())?;
        let bigtime = self.version >= 3
            && InodeFlags2::from_bits_retain(self.flags2.get()).contains(InodeFlags2::BIGTIME);
        // Two 32-bit numbers, seconds first in memory, each in the host's order: on disk, too, seconds come first.
        let time = |time: LogTime| if bigtime { time.bigtime() } else { time.0.get().rotate_left(32) };
        *core = Dinode {
            magic: self.magic.get().into(),
            mode: self.mode.get().into(),
            version: self.version,
            format: self.format,
            onlink: self.metatype.get().into(),
            uid: self.uid.get().into(),
            gid: self.gid.get().into(),
            nlink: self.nlink.get().into(),
            projid_lo: self.projid_lo.get().into(),
            projid_hi: self.projid_hi.get().into(),
            big_nextents: self.big_nextents.get().into(),
            atime: time(self.atime).into(),
            mtime: time(self.mtime).into(),
            ctime: time(self.ctime).into(),
            size: self.size.get().into(),
            nblocks: self.nblocks.get().into(),
            extsize: self.extsize.get().into(),
            nextents: self.nextents.get().into(),
            anextents: self.anextents.get().into(),
            forkoff: self.forkoff,
            aformat: self.aformat,
            dmevmask: self.dmevmask.get().into(),
            dmstate: self.dmstate.get().into(),
            flags: self.flags.get().into(),
            gen_: self.gen_.get().into(),
            next_unlinked: core.next_unlinked,
        };
        if self.version < 3 {
            return Ok(());
        }
        let (more, _) = DinodeV3::mut_from_prefix(rest).map_err(|_| short)?;
        *more = DinodeV3 {
            crc: [0; 4],
            changecount: self.changecount.get().into(),
            lsn: lsn.0.into(),
            flags2: self.flags2.get().into(),
            cowextsize: self.cowextsize.get().into(),
            pad2: [0; 12],
            crtime: time(self.crtime).into(),
            ino: self.ino.get().into(),
            uuid: self.uuid,
        };
        Ok(())
    }

    /// The UUID of v3 inodes.
    pub const fn uuid(&self) -> Uuid {
        Uuid(self.uuid)
    }
}

/// `xfs_icreate_log`: a chunk of inodes that replay makes anew. Type and count of regions are in the host's
/// byte order, the rest is **big-endian**.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct InodeCreate {
    kind: host::U16,
    regions: host::U16,
    ag: be::U32,
    agbno: be::U32,
    /// Inodes of the chunk.
    pub count: be::U32,
    /// Bytes an inode.
    pub isize: be::U32,
    /// Blocks of the chunk.
    pub length: be::U32,
    /// Generation that each inode gets.
    pub gen_: be::U32,
}

impl InodeCreate {
    /// Bytes of the item.
    pub const BYTES: usize = size_of::<Self>();

    /// The creation of `count` inodes of `inode_size` bytes in `blocks` blocks at `block` of a group, all free and
    /// of this generation.
    pub fn new(
        (ag, block): (AgNumber, AgBlock),
        blocks: u32,
        count: u32,
        inode_size: u16,
        generation: u32,
    ) -> Self {
        Self {
            kind: (ItemType::InodeCreate as u16).into(),
            regions: 1.into(),
            ag: ag.0.into(),
            agbno: block.0.into(),
            count: count.into(),
            isize: u32::from(inode_size).into(),
            length: blocks.into(),
            gen_: generation.into(),
        }
    }

    pub(super) fn parse(region: &[u8]) -> Result<&Self, FormatError> {
        const NAME: &str = "inode creation log item";
        let (item, _) = fixed::<Self>(NAME, region)?;
        for (check, value) in
            [("inode count", item.count), ("inode size", item.isize), ("length", item.length)]
        {
            if value.get() == 0 {
                return Err(FormatError::value(NAME, check, 0));
            }
        }
        Ok(item)
    }

    /// The group that the chunk is in.
    pub fn ag(&self) -> AgNumber {
        AgNumber(self.ag.get())
    }

    /// First block of the chunk.
    pub fn agbno(&self) -> AgBlock {
        AgBlock(self.agbno.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_layouts_say_the_same() {
        let mut wide = Format64::new_zeroed();
        wide.fields.set(5);
        wide.ino.set(0x1234_5678_9abc);
        wide.blkno.set(77);
        wide.boffset.set(512);
        let mut narrow = wide.as_bytes().to_vec();
        narrow.drain(12..16);
        let (a, b) = (InodeFormat::parse(wide.as_bytes()).unwrap(), InodeFormat::parse(&narrow).unwrap());
        assert_eq!((a.ino, a.daddr, a.offset, a.fields), (b.ino, b.daddr, b.offset, b.fields));
        assert_eq!(a.ino, InodeNumber(0x1234_5678_9abc));
    }

    #[test]
    fn cores_of_both_lengths() {
        let mut core = LogDinode::new_zeroed();
        core.magic.set(DINODE_MAGIC);
        core.version = 3;
        core.ino.set(99);
        assert_eq!(LogDinode::parse(core.as_bytes()).unwrap().ino.get(), 99);
        assert!(LogDinode::parse(&core.as_bytes()[..96]).is_err(), "a v3 core is never short");
        core.version = 2;
        assert_eq!(LogDinode::parse(&core.as_bytes()[..100]).unwrap().ino.get(), 0);
        assert!(LogDinode::parse(&core.as_bytes()[..95]).is_err());
    }

    #[test]
    fn legacy_times_are_seconds_first() {
        let mut bytes = (-5i32).to_le_bytes().to_vec();
        bytes.extend(7u32.to_le_bytes());
        assert_eq!(LogTime::read_from_bytes(&bytes).unwrap().legacy(), (-5, 7));
    }
}
