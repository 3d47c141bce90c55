//! What an inode does not use: padding, counts of forks that it lacks, flags that nobody set. Free inodes are checked
//! too: they must be fit to be taken into use as they are.
//!
//! Readers ignore these fields. Later features give them a meaning.

use super::Check;
use super::report::FindingPlace;
use xfs_format::error::FormatError;
use xfs_format::inode::{Dinode, DinodeV3, ForkFormat, InodeFlags, InodeFlags2, InodeType};
use xfs_format::types::InodeNumber;
use zerocopy::FromBytes;

const NAME: &str = "inode";
/// Maximum length of an extent. It bounds hints.
const EXTENT_MAX: u32 = (1 << 21) - 1;

/// Checks an inode that passed its own checks.
pub(super) fn check(check: &mut Check<'_>, ino: InodeNumber, bytes: &[u8], free: bool) {
    let Ok((raw, rest)) = Dinode::ref_from_prefix(bytes) else { return };
    let mut wrong = |what, found: u64| {
        check.report.add(FindingPlace::inode(ino), FormatError::value(NAME, what, found));
    };
    let flags = InodeFlags::from_bits_retain(raw.flags.get());
    if !InodeFlags::all().contains(flags) {
        wrong("flags: unknown", flags.bits().into());
    }
    if flags.contains(InodeFlags::NEWRTBM) && check.superblock.raw().rbmino.get() != ino.0 {
        wrong("flags: realtime bitmap", flags.bits().into());
    }
    let special = InodeType::from_mode(raw.mode.get()).is_some_and(InodeType::is_special);
    if special && raw.forkoff > 1 {
        // A device number takes eight bytes.
        wrong("fork offset of a special file", raw.forkoff.into());
    }
    let v3 = DinodeV3::ref_from_prefix(rest).ok().filter(|_| raw.version == 3);
    let Some((v3, _)) = v3 else { return };
    let flags2 = InodeFlags2::from_bits_retain(v3.flags2.get());
    if !flags2.contains(InodeFlags2::NREXT64) && raw.big_nextents.get() != 0 {
        wrong("padding", raw.big_nextents.get());
    }
    if raw.forkoff == 0 && !(raw.aformat == EXTENTS || free && raw.aformat == 0) {
        wrong("format of an attribute fork that is not there", raw.aformat.into());
    }
    if free {
        check_free(check, ino, raw, v3, (flags, flags2));
    } else if raw.onlink.get() != 0 && !flags2.contains(InodeFlags2::METADATA) {
        wrong("link count of version 1", raw.onlink.get().into());
    }
}

const EXTENTS: u8 = 2;

/// Checks of these that readers make for an inode in use, but not for a free one.
fn check_free(
    check: &mut Check<'_>,
    ino: InodeNumber,
    raw: &Dinode,
    v3: &DinodeV3,
    (flags, flags2): (InodeFlags, InodeFlags2),
) {
    let geometry = check.geometry().clone();
    let mut wrong = |what, found: u64| {
        check.report.add(FindingPlace::inode(ino), FormatError::value(NAME, what, found));
    };
    if raw.size.get() > i64::MAX.cast_unsigned() {
        wrong("size of a free one", raw.size.get());
    }
    if raw.nblocks.get() != 0 {
        wrong("block count of a free one", raw.nblocks.get());
    }
    if raw.onlink.get() != 0 {
        wrong("link count of version 1", raw.onlink.get().into());
    }
    let large_counts = flags2.contains(InodeFlags2::NREXT64);
    if large_counts && raw.anextents.get() != 0 {
        wrong("padding", raw.anextents.get().into());
    }
    let attr_extents = if large_counts { raw.nextents.get() } else { raw.anextents.get().into() };
    if raw.forkoff == 0 && attr_extents != 0 {
        wrong("attribute extent count of a free one", attr_extents.into());
    }
    if usize::from(raw.forkoff) * 8 >= usize::from(geometry.inode_size) - xfs_format::inode::CORE_LEN_V3
        || raw.forkoff != 0 && ForkFormat::from_disk(raw.aformat).is_none_or(|it| it == ForkFormat::Dev)
    {
        wrong("fork offset of a free one", raw.forkoff.into());
    }
    if flags.intersects(InodeFlags::EXTSIZE | InodeFlags::EXTSZINHERIT) {
        wrong("flags of a free one", flags.bits().into());
    }
    if flags.contains(InodeFlags::REALTIME) {
        wrong("flags: data on a realtime section", flags.bits().into());
    }
    let most = EXTENT_MAX.min(geometry.ag_blocks / 2);
    if raw.extsize.get() > most {
        wrong("extent size hint", raw.extsize.get().into());
    }
    if v3.cowextsize.get() > most {
        wrong("copy-on-write extent size hint", v3.cowextsize.get().into());
    }
    let mut allowed = InodeFlags2::DAX;
    for (on, flag) in [(geometry.bigtime, InodeFlags2::BIGTIME), (geometry.nrext64, InodeFlags2::NREXT64)] {
        if on {
            allowed |= flag;
        }
    }
    if !allowed.contains(flags2) {
        wrong("flags2 of a free one", flags2.bits());
    }
}
