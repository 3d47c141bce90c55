//! Inodes: the core, and where its forks lie.
//!
//! [`InodeCore::parse`] gives a copy of the core in which every number is in range for the volume: forks lie within
//! the inode, counts fit the forks' formats, and flags belong to features that the volume has. The forks'
//! contents are not looked at.

use crate::bmbt::BmbtRoot;
use crate::checksum;
use crate::error::FormatError;
use crate::geometry::Geometry;
use crate::timestamp::Timestamp;
use crate::types::{InodeNumber, Lsn, Uuid};
use crate::verify::check_lsn;
use bitflags::bitflags;
use std::ops::Range;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const NAME: &str = "inode";
/// `IN`
pub const MAGIC: u16 = 0x494e;
/// Bytes of a v1 or v2 core.
pub const CORE_LEN: usize = 100;
/// Bytes of a v3 core.
pub const CORE_LEN_V3: usize = 176;
/// Where a v3 core has its checksum.
pub const CRC_OFFSET: usize = 100;

/// The part of the core that all versions have.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are the format's")]
pub struct Dinode {
    pub magic: U16,
    pub mode: U16,
    pub version: u8,
    pub format: u8,
    /// Link count of version 1; kind of a metadata inode where those have a directory tree.
    pub onlink: U16,
    pub uid: U32,
    pub gid: U32,
    pub nlink: U32,
    pub projid_lo: U16,
    pub projid_hi: U16,
    /// Data extent count with 64-bit counts; otherwise padding and `flushiter`.
    pub big_nextents: U64,
    pub atime: U64,
    pub mtime: U64,
    pub ctime: U64,
    pub size: U64,
    pub nblocks: U64,
    pub extsize: U32,
    /// Data extents; attribute extents with 64-bit counts.
    pub nextents: U32,
    /// Attribute extents; padding with 64-bit counts.
    pub anextents: U16,
    pub forkoff: u8,
    pub aformat: u8,
    pub dmevmask: U32,
    pub dmstate: U16,
    pub flags: U16,
    pub gen_: U32,
    pub next_unlinked: U32,
}

/// What v3 adds.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are the format's")]
pub struct DinodeV3 {
    /// Little-endian.
    pub crc: [u8; 4],
    pub changecount: U64,
    pub lsn: U64,
    pub flags2: U64,
    pub cowextsize: U32,
    pub pad2: [u8; 12],
    pub crtime: U64,
    pub ino: U64,
    pub uuid: [u8; 16],
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Dinode>() == CORE_LEN);
    assert!(offset_of!(Dinode, big_nextents) == 24);
    assert!(offset_of!(Dinode, size) == 56);
    assert!(offset_of!(Dinode, forkoff) == 82);
    assert!(offset_of!(Dinode, next_unlinked) == 96);
    assert!(CORE_LEN + size_of::<DinodeV3>() == CORE_LEN_V3);
    assert!(CORE_LEN + offset_of!(DinodeV3, flags2) == 120);
    assert!(CORE_LEN + offset_of!(DinodeV3, ino) == 152);
};

bitflags! {
    /// `di_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct InodeFlags: u16 {
        /// Data lie on the realtime device.
        const REALTIME = 1 << 0;
        /// Blocks were preallocated.
        const PREALLOC = 1 << 1;
        /// The realtime bitmap's inode.
        const NEWRTBM = 1 << 2;
        /// Cannot be changed.
        const IMMUTABLE = 1 << 3;
        /// Can only be appended to.
        const APPEND = 1 << 4;
        /// Writes are synchronous.
        const SYNC = 1 << 5;
        /// Access times are not kept.
        const NOATIME = 1 << 6;
        /// Backups skip it.
        const NODUMP = 1 << 7;
        /// New files in it go to the realtime device.
        const RTINHERIT = 1 << 8;
        /// New files in it get its project.
        const PROJINHERIT = 1 << 9;
        /// No symbolic links can be made in it.
        const NOSYMLINKS = 1 << 10;
        /// Space is allocated in units of `extsize`.
        const EXTSIZE = 1 << 11;
        /// New files in it get its `extsize`.
        const EXTSZINHERIT = 1 << 12;
        /// The defragmenter leaves it alone.
        const NODEFRAG = 1 << 13;
        /// The stream allocator serves its directory.
        const FILESTREAM = 1 << 14;
    }
}

bitflags! {
    /// `di_flags2`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct InodeFlags2: u64 {
        /// DAX is wanted.
        const DAX = 1 << 0;
        /// May share blocks.
        const REFLINK = 1 << 1;
        /// `cowextsize` counts.
        const COWEXTSIZE = 1 << 2;
        /// Timestamps are 64-bit nanosecond counts.
        const BIGTIME = 1 << 3;
        /// Extent counts are 64-bit.
        const NREXT64 = 1 << 4;
        /// Belongs to the metadata directory tree.
        const METADATA = 1 << 5;
    }
}

/// What kind of file an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum InodeType {
    Fifo,
    CharDevice,
    Directory,
    BlockDevice,
    Regular,
    Symlink,
    Socket,
}

impl InodeType {
    /// The type in a mode's highest bits.
    pub fn from_mode(mode: u16) -> Option<Self> {
        Some(match mode >> 12 {
            0o01 => Self::Fifo,
            0o02 => Self::CharDevice,
            0o04 => Self::Directory,
            0o06 => Self::BlockDevice,
            0o10 => Self::Regular,
            0o12 => Self::Symlink,
            0o14 => Self::Socket,
            _ => return None,
        })
    }

    /// The highest bits of a mode of this type.
    pub fn to_mode(self) -> u16 {
        let bits = match self {
            Self::Fifo => 0o01,
            Self::CharDevice => 0o02,
            Self::Directory => 0o04,
            Self::BlockDevice => 0o06,
            Self::Regular => 0o10,
            Self::Symlink => 0o12,
            Self::Socket => 0o14,
        };
        bits << 12
    }

    /// Whether it has a device number and no data fork.
    pub fn is_special(self) -> bool {
        matches!(self, Self::Fifo | Self::CharDevice | Self::BlockDevice | Self::Socket)
    }
}

/// How a fork holds its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ForkFormat {
    /// A device number.
    Dev,
    /// The content itself.
    Local,
    /// A list of extents.
    Extents,
    /// The root of a block map tree.
    Btree,
}

impl ForkFormat {
    /// The format that a byte of the core stands for.
    pub fn from_disk(format: u8) -> Option<Self> {
        Some(match format {
            0 => Self::Dev,
            1 => Self::Local,
            2 => Self::Extents,
            3 => Self::Btree,
            _ => return None,
        })
    }
}

/// Where one fork lies in the inode, its format and its extent count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForkInfo {
    /// How it holds its content.
    pub format: ForkFormat,
    /// Its extents.
    pub nextents: u64,
    /// Its bytes within the inode.
    pub range: Range<usize>,
}

/// The core of an inode in use. Every number is in range.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the format's")]
pub struct InodeCore {
    pub version: u8,
    pub mode: u16,
    pub kind: InodeType,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub projid: u32,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    /// When the file was made: v3 only.
    pub crtime: Option<Timestamp>,
    pub size: u64,
    /// Blocks of both forks, trees included.
    pub nblocks: u64,
    pub extsize: u32,
    pub cowextsize: u32,
    pub flags: InodeFlags,
    pub flags2: InodeFlags2,
    pub generation: u32,
    pub changecount: u64,
    pub data: ForkInfo,
    pub attr: Option<ForkInfo>,
}

impl InodeCore {
    /// Checks the inode in `bytes` (one inode's, `inode_size` long). `None`: it is sound, and free.
    pub fn parse(bytes: &[u8], ino: InodeNumber, geometry: &Geometry) -> Result<Option<Self>, FormatError> {
        let bytes = bytes.get(..usize::from(geometry.inode_size)).ok_or(FormatError::value(
            NAME,
            "length",
            bytes.len() as u64,
        ))?;
        let (raw, rest) = Dinode::ref_from_prefix(bytes)
            .map_err(|_| FormatError::value(NAME, "length", bytes.len() as u64))?;
        if raw.magic.get() != MAGIC {
            return Err(FormatError::mismatch(NAME, "magic", raw.magic.get().into(), MAGIC.into()));
        }
        let v3 = match (raw.version, geometry.v5) {
            (3, true) => Some(check_v3(bytes, rest, ino, geometry)?),
            (1 | 2, false) => None,
            (version, _) => return Err(FormatError::value(NAME, "version", version.into())),
        };
        if raw.mode.get() == 0 {
            return Ok(None);
        }
        parse_used(raw, v3, geometry).map(Some)
    }

    /// The device number of a character or block device: major and minor.
    pub fn device(&self, fork: &[u8]) -> Option<(u32, u32)> {
        if !matches!(self.kind, InodeType::CharDevice | InodeType::BlockDevice) {
            return None;
        }
        let raw = u32::from_be_bytes(*fork.first_chunk::<4>()?);
        // 14 bits of major over 18 bits of minor.
        Some((raw >> 18 & 0x3fff, raw & 0x3_ffff))
    }
}

/// The LSN that the inode in `bytes` carries. `None`: it carries none, or never went through the log.
pub fn lsn_of(bytes: &[u8]) -> Option<Lsn> {
    let (v3, _) = DinodeV3::ref_from_prefix(bytes.get(CORE_LEN..)?).ok()?;
    Some(Lsn(v3.lsn.get())).filter(|lsn| lsn.0 != 0 && lsn.0 != u64::MAX)
}

/// Checks what a v3 core says of itself.
fn check_v3<'a>(
    bytes: &[u8],
    rest: &'a [u8],
    ino: InodeNumber,
    geometry: &Geometry,
) -> Result<&'a DinodeV3, FormatError> {
    checksum::check(NAME, bytes, CRC_OFFSET)?;
    let (v3, _) = DinodeV3::ref_from_prefix(rest)
        .map_err(|_| FormatError::value(NAME, "length", bytes.len() as u64))?;
    if v3.ino.get() != ino.0 {
        return Err(FormatError::mismatch(NAME, "own number", v3.ino.get(), ino.0));
    }
    if Uuid(v3.uuid) != geometry.meta_uuid {
        return Err(FormatError::new(NAME, "UUID"));
    }
    check_lsn(NAME, Lsn(v3.lsn.get()))?;
    Ok(v3)
}

/// Checks the fields of an inode in use.
fn parse_used(raw: &Dinode, v3: Option<&DinodeV3>, geometry: &Geometry) -> Result<InodeCore, FormatError> {
    let mode = raw.mode.get();
    let kind = InodeType::from_mode(mode).ok_or(FormatError::value(NAME, "mode", mode.into()))?;
    let flags = InodeFlags::from_bits_retain(raw.flags.get());
    let flags2 = InodeFlags2::from_bits_retain(v3.map_or(0, |v3| v3.flags2.get()));
    check_flags(flags, flags2, geometry)?;
    let size = raw.size.get();
    if size > i64::MAX.cast_unsigned() {
        return Err(FormatError::value(NAME, "size", size));
    }
    let (data, attr) = parse_forks(raw, kind, flags2, geometry)?;
    let extents = data.nextents.saturating_add(attr.as_ref().map_or(0, |attr| attr.nextents));
    if extents > raw.nblocks.get() {
        return Err(FormatError::mismatch(NAME, "block count", raw.nblocks.get(), extents));
    }
    let bigtime = flags2.contains(InodeFlags2::BIGTIME);
    let time = |bits: U64| Timestamp::from_disk(bits.get(), bigtime);
    Ok(InodeCore {
        version: raw.version,
        mode,
        kind,
        uid: raw.uid.get(),
        gid: raw.gid.get(),
        nlink: if raw.version == 1 { raw.onlink.get().into() } else { raw.nlink.get() },
        // Version 1 has no project.
        projid: if raw.version == 1 {
            0
        } else {
            u32::from(raw.projid_hi.get()) << 16 | u32::from(raw.projid_lo.get())
        },
        atime: time(raw.atime)?,
        mtime: time(raw.mtime)?,
        ctime: time(raw.ctime)?,
        crtime: v3.map(|v3| time(v3.crtime)).transpose()?,
        size,
        nblocks: raw.nblocks.get(),
        extsize: raw.extsize.get(),
        cowextsize: v3.map_or(0, |v3| v3.cowextsize.get()),
        flags,
        flags2,
        generation: raw.gen_.get(),
        changecount: v3.map_or(0, |v3| v3.changecount.get()),
        data,
        attr,
    })
}

/// Flags must belong to features that the volume has.
fn check_flags(flags: InodeFlags, flags2: InodeFlags2, geometry: &Geometry) -> Result<(), FormatError> {
    let mut allowed = InodeFlags2::DAX;
    for (on, flag) in [
        (geometry.reflink, InodeFlags2::REFLINK | InodeFlags2::COWEXTSIZE),
        (geometry.bigtime, InodeFlags2::BIGTIME),
        (geometry.nrext64, InodeFlags2::NREXT64),
        (geometry.metadir_root.is_some(), InodeFlags2::METADATA),
    ] {
        if on {
            allowed |= flag;
        }
    }
    if !allowed.contains(flags2) {
        return Err(FormatError::mismatch(NAME, "flags2", flags2.bits(), allowed.bits()));
    }
    // Volumes with a realtime section are refused: nothing can lie there.
    if flags.contains(InodeFlags::REALTIME) {
        return Err(FormatError::value(NAME, "flags: data on a realtime section", flags.bits().into()));
    }
    Ok(())
}

/// Both forks' place, format and counts.
fn parse_forks(
    raw: &Dinode,
    kind: InodeType,
    flags2: InodeFlags2,
    geometry: &Geometry,
) -> Result<(ForkInfo, Option<ForkInfo>), FormatError> {
    let core = if raw.version == 3 { CORE_LEN_V3 } else { CORE_LEN };
    let end = usize::from(geometry.inode_size);
    let offset = usize::from(raw.forkoff) * 8;
    // At least 8 bytes of each fork, if there are two.
    if offset != 0 && core + offset + 8 > end {
        return Err(FormatError::mismatch(NAME, "fork offset", offset as u64, (end - core) as u64));
    }
    let split = if offset == 0 { end } else { core + offset };
    let (nextents, anextents) = if flags2.contains(InodeFlags2::NREXT64) {
        if raw.anextents.get() != 0 {
            return Err(FormatError::value(NAME, "padding", raw.anextents.get().into()));
        }
        (raw.big_nextents.get(), u64::from(raw.nextents.get()))
    } else {
        (u64::from(raw.nextents.get()), u64::from(raw.anextents.get()))
    };
    let format = ForkFormat::from_disk(raw.format)
        .filter(|format| match format {
            ForkFormat::Dev => kind.is_special(),
            ForkFormat::Local => matches!(kind, InodeType::Directory | InodeType::Symlink),
            ForkFormat::Extents | ForkFormat::Btree => !kind.is_special(),
        })
        .ok_or(FormatError::value(NAME, "data fork format", raw.format.into()))?;
    let data = ForkInfo { format, nextents, range: core..split };
    check_fork(&data, Some(raw.size.get()), "data fork size", "data extent count")?;
    if offset == 0 {
        // Inodes without attributes have the format `extents`, or 0 when they were made long ago.
        if anextents != 0 {
            return Err(FormatError::mismatch(NAME, "attribute extent count", anextents, 0));
        }
        return Ok((data, None));
    }
    let format = ForkFormat::from_disk(raw.aformat)
        .filter(|format| *format != ForkFormat::Dev)
        .ok_or(FormatError::value(NAME, "attribute fork format", raw.aformat.into()))?;
    let attr = ForkInfo { format, nextents: anextents, range: split..end };
    check_fork(&attr, None, "attribute fork size", "attribute extent count")?;
    Ok((data, Some(attr)))
}

/// A fork's counts against the room that it has.
fn check_fork(
    fork: &ForkInfo,
    size: Option<u64>,
    size_check: &'static str,
    count_check: &'static str,
) -> Result<(), FormatError> {
    let room = fork.range.len() as u64;
    match fork.format {
        ForkFormat::Dev | ForkFormat::Local => {
            let least = if fork.format == ForkFormat::Dev { 4 } else { size.unwrap_or(0) };
            if least > room {
                return Err(FormatError::mismatch(NAME, size_check, least, room));
            }
            if fork.nextents != 0 {
                return Err(FormatError::mismatch(NAME, count_check, fork.nextents, 0));
            }
        }
        ForkFormat::Extents => {
            if fork.nextents > room / 16 {
                return Err(FormatError::mismatch(NAME, count_check, fork.nextents, room / 16));
            }
        }
        ForkFormat::Btree => {
            // Counts have at most 48 bits. The least fork that holds a root with one child:
            const ROOT: u64 = 4 + 16;
            if fork.nextents > 1 << 48 || fork.nextents == 0 {
                return Err(FormatError::value(NAME, count_check, fork.nextents));
            }
            if room < ROOT {
                return Err(FormatError::mismatch(NAME, size_check, room, ROOT));
            }
        }
    }
    Ok(())
}

/// The block map tree's root in the bytes of a fork that is in [`ForkFormat::Btree`].
pub fn btree_root(fork: &[u8]) -> Result<BmbtRoot<'_>, FormatError> {
    BmbtRoot::view(fork)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superblock::{Superblock, tests::sample};

    const INO: InodeNumber = InodeNumber(131);

    fn geometry() -> Geometry {
        let mut geometry = Geometry::from_superblock(&Superblock::parse(&sample()).unwrap());
        geometry.nrext64 = true;
        geometry
    }

    fn parse(change: impl FnOnce(&mut Dinode, &mut DinodeV3)) -> Result<Option<InodeCore>, &'static str> {
        let mut bytes = [0; 512];
        {
            let (raw, rest) = Dinode::mut_from_prefix(&mut bytes).unwrap();
            let (v3, _) = DinodeV3::mut_from_prefix(rest).unwrap();
            raw.magic = MAGIC.into();
            raw.mode = 0o100_644.into();
            raw.version = 3;
            raw.format = 2;
            raw.aformat = 2;
            raw.nlink = 1.into();
            raw.size = 5.into();
            raw.nblocks = 30.into();
            v3.ino = INO.0.into();
            v3.uuid = [7; 16];
            change(raw, v3);
        }
        checksum::store(&mut bytes, CRC_OFFSET);
        InodeCore::parse(&bytes, INO, &geometry()).map_err(|e| e.check)
    }

    #[test]
    fn a_plain_file() {
        let core = parse(|_, _| ()).unwrap().unwrap();
        assert_eq!((core.kind, core.size, core.nlink), (InodeType::Regular, 5, 1));
        assert_eq!(core.data, ForkInfo { format: ForkFormat::Extents, nextents: 0, range: 176..512 });
        assert_eq!(core.attr, None);
        assert_eq!(parse(|raw, _| raw.mode = 0.into()), Ok(None));
    }

    #[test]
    fn forks_share_the_inode() {
        let core = parse(|raw, _| {
            raw.forkoff = 20;
            raw.aformat = 1;
        });
        let core = core.unwrap().unwrap();
        assert_eq!(core.data.range, 176..336);
        assert_eq!(core.attr.unwrap().range, 336..512);
        assert_eq!(parse(|raw, _| raw.forkoff = 42), Err("fork offset"));
        assert_eq!(parse(|raw, _| raw.forkoff = 255), Err("fork offset"));
    }

    #[test]
    fn counts_move_with_nrext64() {
        let core = parse(|raw, v3| {
            v3.flags2 = InodeFlags2::NREXT64.bits().into();
            raw.big_nextents = 3.into();
            raw.nextents = 2.into();
            raw.forkoff = 20;
        });
        let core = core.unwrap().unwrap();
        assert_eq!((core.data.nextents, core.attr.unwrap().nextents), (3, 2));
    }

    #[test]
    fn damage_is_named() {
        assert_eq!(parse(|raw, _| raw.magic = 0.into()), Err("magic"));
        assert_eq!(parse(|raw, _| raw.version = 2), Err("version"));
        assert_eq!(parse(|_, v3| v3.ino = 1.into()), Err("own number"));
        assert_eq!(parse(|_, v3| v3.uuid = [1; 16]), Err("UUID"));
        assert_eq!(parse(|raw, _| raw.mode = 0o070_000.into()), Err("mode"));
        assert_eq!(parse(|raw, _| raw.format = 1), Err("data fork format"));
        assert_eq!(parse(|raw, _| raw.format = 9), Err("data fork format"));
        assert_eq!(parse(|raw, _| raw.nextents = 22.into()), Err("data extent count"));
        assert_eq!(parse(|raw, _| raw.format = 3), Err("data extent count"));
        assert_eq!(parse(|raw, _| raw.anextents = 1.into()), Err("attribute extent count"));
        assert_eq!(parse(|raw, _| raw.size = u64::MAX.into()), Err("size"));
        assert_eq!(parse(|_, v3| v3.flags2 = (1 << 40).into()), Err("flags2"));
        assert_eq!(parse(|raw, _| raw.atime = u64::from(u32::MAX).into()), Err("nanoseconds"));
        assert_eq!(parse(|raw, _| raw.flags = 1.into()), Err("flags: data on a realtime section"));
        let local = |raw: &mut Dinode, size: u64| {
            raw.mode = 0o120_777.into();
            raw.format = 1;
            raw.size = size.into();
        };
        assert!(parse(|raw, _| local(raw, 336)).is_ok());
        assert_eq!(parse(|raw, _| local(raw, 337)), Err("data fork size"));
        assert!(InodeCore::parse(&[0; 10], INO, &geometry()).is_err());
    }
}
