//! What a device holds instead of XFS, so that the error can say it, and what to do.
//!
//! Reads a bounded number of bytes, whatever the device holds. This does not decide whether a volume is opened: it
//! runs after the engine has found no superblock. Unreadable bytes may be anything. They count as nothing here, but
//! [`Unread`] records them for callers that want to write there.

use blockdev::{AlignedBuf, BlockDevice, DeviceError};
use std::cell::RefCell;
use xfs_format::superblock::Superblock;

/// A signature at a fixed place.
struct Mark {
    at: u64,
    magic: &'static [u8],
    what: &'static str,
}

const fn mark(at: u64, magic: &'static [u8], what: &'static str) -> Mark {
    Mark { at, magic, what }
}

/// File systems and containers that lie on disks, those with the longer marks first.
const ON_DISKS: &[Mark] = &[
    mark(0x1_0040, b"_BHRfS_M", "a btrfs volume"),
    mark(1024, &[0x10, 0x20, 0xf5, 0xf2], "an f2fs volume"),
    mark(1024, &[0xe2, 0xe1, 0xf5, 0xe0], "an EROFS volume"),
    mark(0, b"hsqs", "a squashfs image"),
    mark(3, b"NTFS    ", "an NTFS volume"),
    mark(3, b"EXFAT   ", "an exFAT volume"),
    mark(82, b"FAT32   ", "a FAT volume"),
    mark(54, b"FAT16   ", "a FAT volume"),
    mark(54, b"FAT12   ", "a FAT volume"),
    mark(0x8001, b"CD001", "an ISO 9660 image"),
    mark(4086, b"SWAPSPACE2", "a swap area"),
    mark(0, b"LUKS\xba\xbe", "a LUKS container (open it with cryptsetup, and give uxfs the opened device)"),
    // In the list of names and values of its first label.
    mark(0x4018, b"version\0", "a member of a ZFS pool"),
    mark(512, b"LABELONE", "an LVM physical volume (activate it, and give uxfs the logical volume)"),
];

/// Files that hold something else.
const FILES: &[Mark] = &[
    mark(0, b"QFI\xfb", "a qcow2 image (make it raw: qemu-img convert -O raw FROM TO)"),
    mark(0, b"KDMV", "a VMDK image (make it raw: qemu-img convert -O raw FROM TO)"),
    mark(0, b"vhdxfile", "a VHDX image (make it raw: qemu-img convert -O raw FROM TO)"),
    mark(0, b"conectix", "a VHD image (make it raw: qemu-img convert -O raw FROM TO)"),
    mark(0, b"<<< Oracle VM VirtualBox", "a VDI image (make it raw: qemu-img convert -O raw FROM TO)"),
    mark(0, b"XFSM", "an XFS metadump (restore it with xfs_mdrestore)"),
    mark(257, b"ustar", "a tar archive"),
    mark(0, b"070701", "a cpio archive"),
    mark(0, b"070707", "a cpio archive"),
    mark(0, b"PK\x03\x04", "a zip archive (unpack it first)"),
    mark(0, b"SQLite format 3\0", "an SQLite database"),
    mark(0, &[0x1f, 0x8b], "a gzip file (unpack it first)"),
    mark(0, &[0xfd, b'7', b'z', b'X', b'Z', 0], "an xz file (unpack it first)"),
    mark(0, &[0x28, 0xb5, 0x2f, 0xfd], "a zstd file (unpack it first)"),
];

/// The first read error.
#[derive(Debug, Default)]
pub(crate) struct Unread(RefCell<Option<DeviceError>>);

impl Unread {
    /// Fails if anything could not be read. Call it before relying on having found nothing.
    pub(crate) fn check(self) -> Result<(), DeviceError> {
        self.0.into_inner().map_or(Ok(()), Err)
    }

    fn note(&self, error: DeviceError) {
        self.0.borrow_mut().get_or_insert(error);
    }
}

/// A part of a device, from whose start marks are counted.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    device: &'a dyn BlockDevice,
    start: u64,
    end: u64,
    unread: &'a Unread,
}

impl<'a> View<'a> {
    /// The whole device; `unread` records read errors.
    pub(crate) fn whole(device: &'a dyn BlockDevice, unread: &'a Unread) -> Self {
        Self { device, start: 0, end: device.size(), unread }
    }

    /// A part of this view; `None` if none of it lies inside.
    pub(crate) fn part(&self, start: u64, length: u64) -> Option<Self> {
        let start = self.start.checked_add(start).filter(|&start| start < self.end)?;
        Some(Self { start, end: start.saturating_add(length).min(self.end), ..*self })
    }

    fn starts_with(&self, at: u64, magic: &[u8]) -> bool {
        let mut found = [0; 32];
        found.get_mut(..magic.len()).is_some_and(|found| self.read(at, found).is_some() && found == magic)
    }

    /// Bytes of it.
    pub(crate) fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// `len` bytes at byte `at`, if they exist. The caller bounds `len`.
    pub(crate) fn vec(&self, at: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.read(at, &mut bytes)?;
        Some(bytes)
    }

    /// `N` bytes at byte `at`, if they exist.
    pub(crate) fn bytes<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.read(at, &mut bytes)?;
        Some(bytes)
    }

    /// Fills `buf` from any byte on, by reading the sectors around it.
    fn read(&self, at: u64, buf: &mut [u8]) -> Option<()> {
        let sector = u64::from(self.device.sector_size());
        let at = self.start.checked_add(at)?;
        let behind = at.checked_add(buf.len() as u64).filter(|&behind| behind <= self.end)?;
        let start = at - at % sector;
        let end = behind.checked_next_multiple_of(sector).filter(|&end| end <= self.device.size())?;
        let mut sectors = AlignedBuf::zeroed(usize::try_from(end - start).ok()?);
        self.device.read(start, &mut sectors).map_err(|error| self.unread.note(error)).ok()?;
        let skip = usize::try_from(at - start).ok()?;
        buf.copy_from_slice(sectors.get(skip..skip.checked_add(buf.len())?)?);
        Some(())
    }
}

/// Describes what is there, if it is known.
pub(crate) fn describe(view: &View<'_>) -> Option<&'static str> {
    if view.starts_with(0, b"XFSB") {
        return Some("an XFS volume");
    }
    if let Some(ext) = ext_version(view) {
        return Some(ext);
    }
    ON_DISKS.iter().chain(FILES).find(|mark| view.starts_with(mark.at, mark.magic)).map(|mark| mark.what)
}

/// Describes a volume or container that begins there, among bytes that may be leftovers. Copies of a superblock do not
/// count, nor do files, as old data often begins with their short signatures.
pub(crate) fn beginning(view: &View<'_>) -> Option<&'static str> {
    if view.starts_with(0, b"XFSB") {
        return (!is_xfs_copy(view)).then_some("an XFS volume");
    }
    if let Some(ext) = ext_version(view) {
        return ext_first(view).then_some(ext);
    }
    ON_DISKS.iter().find(|mark| view.starts_with(mark.at, mark.magic)).map(|mark| mark.what)
}

/// How far after a start its signatures can lie.
pub(crate) const MARKS_WITHIN: u64 = 0x1_1000;

/// Whether this superblock is that of a group other than the first. `mkfs` and growing leave "in progress" in those, which
/// goes when they are written anew; the header of free space behind it has the group's number. A volume does not begin
/// with "in progress" either: its `mkfs` did not finish.
fn is_xfs_copy(view: &View<'_>) -> bool {
    const SECTSIZE: std::ops::Range<usize> = 102..104;
    const INPROGRESS: usize = 126;
    let Some(superblock) = view.bytes::<512>(0) else { return false };
    let sector = superblock[SECTSIZE].iter().fold(0, |sector, &byte| sector << 8 | u64::from(byte));
    let agf = view.bytes::<12>(sector);
    let of_another = agf.is_some_and(|agf| agf.starts_with(b"XAGF") && agf[8..] != [0; 4]);
    superblock[INPROGRESS] != 0 || of_another
}

/// Whether this is the first superblock of ext, and no coincidence: its magic has only two bytes.
fn ext_first(view: &View<'_>) -> bool {
    let Some(superblock) = view.bytes::<104>(1024) else { return false };
    let (log, group) = (&superblock[24..28], &superblock[90..92]);
    const LOG_MAX: u8 = 6; // 64 KiB
    group == [0; 2] && log[0] <= LOG_MAX && log[1..] == [0; 3] && ext_extent(view).is_some_and(|len| len > 0)
}

/// ext2, 3 and 4 share a magic and differ in their features.
fn ext_version(view: &View<'_>) -> Option<&'static str> {
    let superblock: [u8; 104] = view.bytes(1024)?;
    if superblock[56..58] != [0x53, 0xef] {
        return None;
    }
    const HAS_JOURNAL: u8 = 0x04;
    const EXT4_ONLY: [u8; 2] = [0xc0, 0x02]; // extents and 64bit; flex_bg
    Some(if superblock[96] & EXT4_ONLY[0] != 0 || superblock[97] & EXT4_ONLY[1] != 0 {
        "an ext4 volume"
    } else if superblock[92] & HAS_JOURNAL != 0 {
        "an ext3 volume"
    } else {
        "an ext2 volume"
    })
}

/// How many bytes belong to what [`describe`] found there: as many as its superblock says, or all of the view if that is
/// not known.
pub(crate) fn extent(view: &View<'_>) -> u64 {
    let said = if view.starts_with(0, b"XFSB") { xfs_extent(view) } else { ext_extent(view) };
    said.unwrap_or_else(|| view.len())
}

/// The size according to a sound superblock.
fn xfs_extent(view: &View<'_>) -> Option<u64> {
    let sector = Superblock::claimed_sector_size(&view.vec(0, 512)?).ok()?;
    let superblock = Superblock::parse(&view.vec(0, usize::try_from(sector).ok()?)?).ok()?;
    let raw = superblock.raw();
    // A realtime section may lie behind the data, on the same device.
    let alone = raw.rtstart.get() == 0;
    raw.dblocks.get().checked_mul(raw.blocksize.get().into()).filter(|_| alone)
}

fn ext_extent(view: &View<'_>) -> Option<u64> {
    const SIXTY_FOUR_BITS: u8 = 0x80;
    ext_version(view)?;
    let superblock: [u8; 1024] = view.bytes(1024)?;
    let word = |at: usize| Some(u32::from_le_bytes(*superblock.get(at..)?.first_chunk()?));
    let high = if superblock[96] & SIXTY_FOUR_BITS != 0 { word(336)? } else { 0 };
    let blocks = u64::from(high) << 32 | u64::from(word(4)?);
    1024u64.checked_shl(word(24)?)?.checked_mul(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::{Durability, MemoryDevice};

    fn device_with(marks: &[(u64, &[u8])]) -> MemoryDevice {
        let device = MemoryDevice::anonymous(1 << 20).unwrap();
        for (at, bytes) in marks {
            let start = at - at % 4096;
            let mut sectors = vec![0; 8192];
            device.read(start, &mut sectors).unwrap();
            let skip = usize::try_from(at - start).unwrap();
            sectors[skip..skip + bytes.len()].copy_from_slice(bytes);
            device.write(start, &sectors, Durability::Volatile).unwrap();
        }
        device
    }

    fn described(marks: &[(u64, &[u8])]) -> Option<&'static str> {
        let device = device_with(marks);
        describe(&View::whole(&device, &Unread::default()))
    }

    #[test]
    fn volumes_are_told_by_their_marks() {
        assert_eq!(described(&[]), None);
        assert_eq!(described(&[(0, b"XFSB")]), Some("an XFS volume"));
        assert_eq!(described(&[(1080, &[0x53, 0xef])]), Some("an ext2 volume"));
        assert_eq!(described(&[(1080, &[0x53, 0xef]), (1024 + 92, &[4])]), Some("an ext3 volume"));
        assert_eq!(described(&[(1080, &[0x53, 0xef]), (1024 + 96, &[0x40])]), Some("an ext4 volume"));
        for mark in ON_DISKS.iter().chain(FILES) {
            assert_eq!(described(&[(mark.at, mark.magic)]), Some(mark.what));
            assert!(mark.at + mark.magic.len() as u64 <= MARKS_WITHIN);
        }
    }

    #[test]
    fn copies_of_superblocks_begin_nothing() {
        let begins =
            |marks: &[(u64, &[u8])]| beginning(&View::whole(&device_with(marks), &Unread::default()));
        let xfs: (u64, &[u8]) = (0, b"XFSB");
        let sector: (u64, &[u8]) = (102, &[2, 0]);
        assert_eq!(begins(&[xfs]), Some("an XFS volume"));
        assert_eq!(begins(&[xfs, sector, (512, b"XAGF\0\0\0\x01\0\0\0\0")]), Some("an XFS volume"));
        assert_eq!(begins(&[xfs, sector, (512, b"XAGF\0\0\0\x01\0\0\0\x03")]), None);
        assert_eq!(begins(&[xfs, (126, &[1])]), None);
        let ext: (u64, &[u8]) = (1080, &[0x53, 0xef]);
        let blocks: (u64, &[u8]) = (1028, &[9]);
        assert_eq!(begins(&[ext, blocks]), Some("an ext2 volume"));
        assert_eq!(begins(&[ext, blocks, (1024 + 90, &[3])]), None);
        assert_eq!(begins(&[ext]), None);
        assert_eq!(begins(&[(0, &[0x1f, 0x8b])]), None);
        assert_eq!(begins(&[(0x1_0040, b"_BHRfS_M")]), Some("a btrfs volume"));
    }

    #[test]
    fn the_end_of_the_device_is_kept() {
        let device = MemoryDevice::anonymous(4096).unwrap();
        let unread = Unread::default();
        let view = View::whole(&device, &unread);
        assert!(view.bytes::<8>(4090).is_none());
        assert!(view.bytes::<8>(4088).is_some());
        assert!(view.bytes::<8>(u64::MAX).is_none());
        assert!(view.part(4096, 1).is_none());
        assert!(view.part(512, u64::MAX).unwrap().bytes::<8>(4096 - 512).is_none());
        assert_eq!(describe(&view), None);
    }
}
