//! The superblock of the first group, and its copies in the others.
//!
//! The copies are written by mkfs and by growing alone: what the kernel changes in the first one while it is mounted
//! (counters, some feature bits, quota) does not have to agree.

use super::Check;
use super::report::Place;
use crate::error::Result;
use xfs_format::checksum;
use xfs_format::error::FormatError;
use xfs_format::superblock::{CRC_OFFSET, MAGIC, RawSuperblock, SIZE};
use xfs_format::types::{AgBlock, AgNumber, DiskAddr};
use zerocopy::FromBytes;

const NAME: &str = "superblock";
const COPY: &str = "superblock copy";

/// Checks of the first superblock what opening a volume does not need.
pub(super) fn check_primary(check: &mut Check<'_>) -> Result<()> {
    let sector = check.geometry().sector_size;
    let bytes = check.reader.raw(DiskAddr(0), sector.into())?;
    let (raw, v5) = (*check.superblock.raw(), check.superblock.is_v5());
    let sparse = check.geometry().sparse_inodes;
    let report = &mut check.report;
    if v5 && bytes.get(SIZE..).unwrap_or_default().iter().any(|&byte| byte != 0) {
        report.add(Place::VOLUME, FormatError::new(NAME, "bytes behind the structure"));
    }
    if raw.imax_pct > 100 {
        report.add(Place::VOLUME, FormatError::mismatch(NAME, "inode percentage", raw.imax_pct.into(), 100));
    }
    let flags = check.superblock.version_flags();
    let (unit, width) = (raw.unit.get(), raw.width.get());
    let stripes = flags.contains(xfs_format::features::VersionFlags::DALIGN);
    if stripes != (unit != 0) || (unit == 0 && width != 0) || (unit != 0 && (width == 0 || width % unit != 0))
    {
        report.add(
            Place::VOLUME,
            FormatError::mismatch(NAME, "stripe unit and width", unit.into(), width.into()),
        );
    }
    if sparse && raw.spino_align.get() != 0 && !raw.inoalignmt.get().is_multiple_of(raw.spino_align.get()) {
        let problem = FormatError::value(NAME, "alignment of sparse inodes", raw.spino_align.get().into());
        report.add(Place::VOLUME, problem);
    }
    if v5 && raw.features2.get() != raw.bad_features2.get() {
        let (found, expected) = (raw.bad_features2.get().into(), raw.features2.get().into());
        report.add(Place::VOLUME, FormatError::mismatch(NAME, "second features2", found, expected));
    }
    Ok(())
}

/// Checks the copy in a group.
pub(super) fn check_copy(check: &mut Check<'_>, ag: AgNumber) -> Result<()> {
    let geometry = check.geometry();
    let daddr = geometry.daddr_of(ag, AgBlock(0));
    let (v5, meta_uuid) = (geometry.v5, geometry.meta_uuid);
    let bytes = check.reader.raw(daddr, geometry.sector_size.into())?;
    let place = Place::block(ag, AgBlock(0));
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
    for (field, found, expected) in shape(copy).into_iter().zip(shape(&primary)).map(|(a, b)| (a.0, a.1, b.1))
    {
        report.same(place, COPY, field, found, expected);
    }
    Ok(())
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
        ("log stripe unit", sb.logsunit.get().into()),
    ]
}
