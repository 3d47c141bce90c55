//! The superblock of the first group, and its copies in the others.
//!
//! Only mkfs and growing write the copies. What a mounted kernel changes in the first one (counters, some feature bits,
//! quota) need not agree.

use super::Check;
use super::report::{FindingPlace, Report};
use crate::error::Result;
use std::mem::offset_of;
use xfs_format::checksum;
use xfs_format::error::FormatError;
use xfs_format::features::{Incompat, VersionFlags};
use xfs_format::superblock::{CRC_OFFSET, MAGIC, RawSuperblock, SIZE};
use xfs_format::types::{AgBlock, AgNumber, DiskAddr};
use zerocopy::FromBytes;

const NAME: &str = "superblock";
const COPY: &str = "superblock copy";
/// Quota flags that group and project quota share on v4.
const V4_QUOTA_FLAGS: u16 = 0x30;

/// Checks of the first superblock that opening a volume does not need.
pub(super) fn check_primary(check: &mut Check<'_>) -> Result<()> {
    let sector = check.geometry().sector_size;
    let bytes = check.reader.raw(DiskAddr(0), sector.into())?;
    let raw = *check.superblock.raw();
    let report = &mut check.report;
    check_fields(&raw, &bytes, (NAME, FindingPlace::VOLUME), report);
    check.reader.check_lsn(&bytes, NAME, FindingPlace::VOLUME, report);
    if check.superblock.is_v5() {
        report.same(
            FindingPlace::VOLUME,
            NAME,
            "second features2",
            raw.bad_features2.get(),
            raw.features2.get(),
        );
    }
    Ok(())
}

/// Checks of all fields of any superblock.
fn check_fields(
    raw: &RawSuperblock,
    bytes: &[u8],
    (name, place): (&'static str, FindingPlace),
    report: &mut Report,
) {
    let v5 = raw.versionnum.get() & 0xf == 5;
    let flags = VersionFlags::from_bits_retain(raw.versionnum.get());
    let incompat = Incompat::from_bits_retain(if v5 { raw.features_incompat.get() } else { 0 });
    let mut refuse = |problem| report.add(place, problem);
    if v5 && bytes.get(used(incompat)..).unwrap_or_default().iter().any(|&byte| byte != 0) {
        refuse(FormatError::new(name, "bytes behind the structure"));
    }
    if raw.imax_pct > 100 {
        refuse(FormatError::mismatch(name, "inode percentage", raw.imax_pct.into(), 100));
    }
    let (unit, width) = (raw.unit.get(), raw.width.get());
    let stripes = flags.contains(VersionFlags::DALIGN);
    if stripes != (unit != 0) || (unit == 0 && width != 0) || (unit != 0 && (width == 0 || width % unit != 0))
    {
        refuse(FormatError::mismatch(name, "stripe unit and width", unit.into(), width.into()));
    }
    let spino_align = raw.spino_align.get();
    if incompat.contains(Incompat::SPINODES)
        && spino_align != 0
        && !raw.inoalignmt.get().is_multiple_of(spino_align)
    {
        refuse(FormatError::value(name, "alignment of sparse inodes", spino_align.into()));
    }
    if raw.shared_vn != 0 {
        refuse(FormatError::value(name, "shared version number", raw.shared_vn.into()));
    }
    if v5 && raw.qflags.get() & V4_QUOTA_FLAGS != 0 {
        refuse(FormatError::value(name, "quota flags", raw.qflags.get().into()));
    }
    if raw.flags != 0 {
        refuse(FormatError::value(name, "flags", raw.flags.into()));
    }
    // Volumes with a realtime section are refused, so all its fields are 0.
    if raw.rbmblocks.get() != 0 || raw.rextslog != 0 || raw.frextents.get() != 0 {
        refuse(FormatError::new(name, "realtime section where there is none"));
    }
    let (log_sector, log_log) = (raw.logsectsize.get(), raw.logsectlog);
    let large = flags.contains(VersionFlags::SECTOR);
    if large && 1_u32.checked_shl(log_log.into()) != Some(log_sector.into())
        || !large && (log_sector, log_log) != (0, 0)
    {
        refuse(FormatError::mismatch(name, "log sector size", log_sector.into(), log_log.into()));
    }
}

/// Bytes of the fields of a v5 superblock with these features.
fn used(incompat: Incompat) -> usize {
    if incompat.contains(Incompat::METADIR) {
        SIZE
    } else if incompat.contains(Incompat::META_UUID) {
        offset_of!(RawSuperblock, metadirino)
    } else {
        offset_of!(RawSuperblock, meta_uuid)
    }
}

/// Checks the copy in a group.
pub(super) fn check_copy(check: &mut Check<'_>, ag: AgNumber) -> Result<()> {
    let geometry = check.geometry();
    let daddr = geometry.daddr_of(ag, AgBlock(0));
    let (v5, meta_uuid) = (geometry.v5, geometry.meta_uuid);
    let bytes = check.reader.raw(daddr, geometry.sector_size.into())?;
    let place = FindingPlace::block(ag, AgBlock(0));
    let primary = *check.superblock.raw();
    let report = &mut check.report;
    report.counts.blocks += 1;
    let Ok((copy, _)) = RawSuperblock::ref_from_prefix(&bytes) else { return Ok(()) };
    if !report.same(place, COPY, "magic", copy.magicnum.get(), MAGIC) {
        return Ok(());
    }
    if v5 && let Err(problem) = checksum::check(COPY, &bytes, CRC_OFFSET) {
        report.add(place, problem);
        return Ok(());
    }
    report.same(place, COPY, "version", copy.versionnum.get() & 0xf, primary.versionnum.get() & 0xf);
    let uuid = if copy.uuid == meta_uuid.0 || copy.uuid == primary.uuid { copy.uuid } else { copy.meta_uuid };
    if v5 && uuid != meta_uuid.0 && uuid != primary.uuid {
        report.add(place, FormatError::new(COPY, "UUID"));
    }
    if let Err(problem) = check.superblock.check_copy(copy) {
        report.add(place, FormatError { structure: COPY, ..problem });
        return Ok(());
    }
    check_fields(copy, &bytes, (COPY, place), report);
    if v5 {
        check_features(copy, &primary, place, report);
    }
    for (field, found, expected) in shape(copy).into_iter().zip(shape(&primary)).map(|(a, b)| (a.0, a.1, b.1))
    {
        report.same(place, COPY, field, found, expected);
    }
    Ok(())
}

/// Features must agree in all copies, except for those that come and go, and quota, which copies do not have.
fn check_features(copy: &RawSuperblock, primary: &RawSuperblock, place: FindingPlace, report: &mut Report) {
    let passing = Incompat::NEEDSREPAIR.bits();
    for (field, found, expected) in [
        ("features2", copy.features2.get(), primary.features2.get()),
        ("compatible features", copy.features_compat.get(), primary.features_compat.get()),
        ("read-only compatible features", copy.features_ro_compat.get(), primary.features_ro_compat.get()),
        (
            "incompatible features",
            copy.features_incompat.get() & !passing,
            primary.features_incompat.get() & !passing,
        ),
    ] {
        report.same(place, COPY, field, found, expected);
    }
    // A mounted kernel may have set some in the first superblock and nowhere else.
    let (found, expected) = (copy.features_log_incompat.get(), primary.features_log_incompat.get());
    let expected = if report.log_clean { expected } else { expected & found };
    report.same(place, COPY, "log-incompatible features", found, expected);
    if Incompat::from_bits_retain(primary.features_incompat.get()).contains(Incompat::SPINODES) {
        let (found, expected) = (copy.spino_align.get(), primary.spino_align.get());
        report.same(place, COPY, "alignment of sparse inodes", found, expected);
    }
    // Growing copies the first superblock as it is. Only mkfs leaves the mark that it is in progress.
    let none = |ino: u64| ino == 0 || ino == u64::MAX;
    if copy.inprogress != 0
        && !(none(copy.uquotino.get()) && none(copy.gquotino.get()) && none(copy.pquotino.get()))
    {
        report.add(place, FormatError::new(COPY, "quota inode"));
    }
    // If quota inodes are found by name, mkfs says in all copies that there is quota.
    let by_name = Incompat::from_bits_retain(primary.features_incompat.get()).contains(Incompat::METADIR);
    if copy.inprogress != 0 && copy.qflags.get() != 0 && !by_name {
        report.add(place, FormatError::value(COPY, "quota flags", copy.qflags.get().into()));
    }
}

/// What all copies must agree on.
fn shape(sb: &RawSuperblock) -> [(&'static str, u64); 20] {
    [
        ("block size", sb.blocksize.get().into()),
        ("data block count", sb.dblocks.get()),
        ("realtime block count", sb.rblocks.get()),
        ("realtime extent count", sb.rextents.get()),
        ("realtime extent size", sb.rextsize.get().into()),
        ("log start", sb.logstart.get()),
        ("log size", sb.logblocks.get().into()),
        ("blocks per group", sb.agblocks.get().into()),
        ("group count", sb.agcount.get().into()),
        ("sector size", sb.sectsize.get().into()),
        ("inode size", sb.inodesize.get().into()),
        ("inodes per block", sb.inopblock.get().into()),
        ("log2 of the block size", sb.blocklog.into()),
        ("log2 of the inode size", sb.inodelog.into()),
        ("log2 of inodes per block", sb.inopblog.into()),
        ("log2 of blocks per group", sb.agblklog.into()),
        ("inode alignment", sb.inoalignmt.get().into()),
        ("log2 of the directory block size", sb.dirblklog.into()),
        ("log sector size", sb.logsectsize.get().into()),
        // 0 and 1 both mean that there is none.
        ("log stripe unit", sb.logsunit.get().max(1).into()),
    ]
}
