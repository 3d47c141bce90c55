//! Quota: the dquot files and their counts for each user, group and project, compared with what inodes use.
//!
//! Counts are checked only if the superblock says that they are right (then the kernel does not recount) and all inodes
//! were read. The quota files and the metadata directory tree count for nobody. Volumes of version 4 are skipped,
//! because groups and projects share a file there. Memory grows with the number of ids that own something.

use super::map::{ForkOf, WhichFork};
use super::report::FindingPlace;
use super::{Check, inode, map};
use crate::error::Result;
use std::collections::BTreeMap;
use std::mem::size_of;
use xfs_format::bmbt::Extent;
use xfs_format::error::FormatError;
use xfs_format::features::{Incompat, QuotaFlags, VersionFlags};
use xfs_format::inode::{Dinode, InodeCore, InodeFlags2, InodeType};
use xfs_format::quota::Dquot;
use xfs_format::superblock::Superblock;
use xfs_format::types::{FsBlock, InodeNumber};
use zerocopy::FromBytes;

const NAME: &str = "inode";
/// `d_type` without the bit for the format of timers.
const KIND_BITS: u8 = 7;

/// What an id uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Used {
    blocks: u64,
    inodes: u64,
}

/// Quota of users, of groups or of projects.
struct Kind {
    structure: &'static str,
    /// `d_type` of its dquots.
    bit: u8,
    /// `di_metatype` of its file, if that is in the metadata directory tree.
    metatype: u16,
    /// The id of an inode for this kind.
    id: fn(&InodeCore) -> u32,
    /// Whether the superblock says that its counts are right.
    counted: bool,
    file: Option<InodeNumber>,
    used: BTreeMap<u32, Used>,
}

/// What is known of quota.
pub(super) struct Quota {
    kinds: Vec<Kind>,
}

impl Quota {
    /// Reads the superblock's fields. Quota files in a metadata directory tree are found later.
    pub(super) fn new(superblock: &Superblock) -> Self {
        if !superblock.is_v5() || !superblock.version_flags().contains(VersionFlags::QUOTA) {
            return Self { kinds: Vec::new() };
        }
        let raw = superblock.raw();
        let by_name = superblock.incompat().contains(Incompat::METADIR);
        let flags = QuotaFlags::from_bits_retain(raw.qflags.get());
        let kind = |structure, bit, metatype, (file, counted): (u64, _), id| Kind {
            structure,
            bit,
            metatype,
            id,
            counted: flags.contains(counted),
            file: Some(file).filter(|&ino| !by_name && ino != 0 && ino != u64::MAX).map(InodeNumber),
            used: BTreeMap::new(),
        };
        let user = (raw.uquotino.get(), QuotaFlags::USER_COUNTED);
        let group = (raw.gquotino.get(), QuotaFlags::GROUP_COUNTED);
        let project = (raw.pquotino.get(), QuotaFlags::PROJECT_COUNTED);
        let kinds = vec![
            kind("user dquot", 1, 2, user, |core| core.uid),
            kind("group dquot", 4, 3, group, |core| core.gid),
            kind("project dquot", 2, 4, project, |core| core.projid),
        ];
        Self { kinds }
    }
}

/// Processes an inode in use whose forks have this many blocks.
pub(super) fn note(check: &mut Check<'_>, ino: InodeNumber, core: &InodeCore, bytes: &[u8], blocks: u64) {
    let is_metadata = check.geometry().metadir_root.is_some() && core.flags2.contains(InodeFlags2::METADATA);
    let metatype = Dinode::ref_from_prefix(bytes).map_or(0, |(raw, _)| raw.onlink.get());
    let kinds = &mut check.quota.kinds;
    let is_file = |kind: &&mut Kind| kind.file == Some(ino) || is_metadata && kind.metatype == metatype;
    if let Some(kind) = kinds.iter_mut().find(is_file) {
        kind.file = Some(ino);
        if core.kind != InodeType::Regular {
            check.report.add(FindingPlace::inode(ino), FormatError::new(NAME, "type of a quota inode"));
            kind.file = None;
        }
        // Its blocks lie past its end.
        check.report.same(FindingPlace::inode(ino), NAME, "size of a quota inode", core.size, 0_u64);
    } else if !is_metadata {
        for kind in kinds.iter_mut().filter(|kind| kind.counted) {
            let used = kind.used.entry((kind.id)(core)).or_default();
            used.blocks += blocks;
            used.inodes += 1;
        }
    }
}

/// Checks the dquot files, after all inodes.
pub(super) fn check_all(check: &mut Check<'_>) -> Result<()> {
    let is_known = check.report.owners_known
        && check.totals.inodes_known
        && (check.report.log_clean || check.report.replayed.is_some());
    for mut kind in std::mem::take(&mut check.quota.kinds) {
        let Some(file) = kind.file else { continue };
        kind.counted &= is_known;
        let Some((core, bytes)) = inode::read(check, file)? else { continue };
        let fork = ForkOf { ino: file, core: &core, bytes: &bytes, which: WhichFork::Data };
        let map = map::load(check, &fork, false, true)?;
        if !map.sound {
            continue;
        }
        for extent in &map.extents {
            check_extent(check, &mut kind, file, extent)?;
        }
        for (id, used) in kind.used.iter().filter(|_| kind.counted) {
            let problem = FormatError::value(kind.structure, "none, of an id that owns inodes", used.inodes);
            check.report.add_named(FindingPlace::inode(file), problem, id.to_string().as_bytes());
        }
    }
    Ok(())
}

fn check_extent(check: &mut Check<'_>, kind: &mut Kind, file: InodeNumber, extent: &Extent) -> Result<()> {
    let per_block = u64::from(check.geometry().block_size) / size_of::<Dquot>() as u64;
    for nth in 0..u64::from(extent.blockcount) {
        let first = (extent.startoff.0 + nth).saturating_mul(per_block);
        // There is no larger id. And nobody reads that many findings.
        if first > u64::from(u32::MAX) || check.report.stopped() {
            return Ok(());
        }
        let Some((ag, block)) = check.geometry().split_block(FsBlock(extent.startblock.0 + nth)) else {
            return Ok(());
        };
        let daddr = check.geometry().daddr_of(ag, block);
        let bytes = check.reader.raw(daddr, check.geometry().block_size.into())?;
        check.report.counts.blocks += 1;
        let place = FindingPlace::block(ag, block).of(file);
        for (dquot, id) in bytes.chunks_exact(size_of::<Dquot>()).zip(first..=u32::MAX.into()) {
            check_dquot(check, kind, place, (id as u32, dquot));
        }
    }
    Ok(())
}

fn check_dquot(check: &mut Check<'_>, kind: &mut Kind, place: FindingPlace, (id, bytes): (u32, &[u8])) {
    let used = kind.used.remove(&id).unwrap_or_default();
    let uuid = check.geometry().meta_uuid;
    let report = &mut check.report;
    let dquot = match Dquot::check(bytes, id, Some(uuid)) {
        Ok(dquot) => &dquot.disk,
        Err(problem) => return report.add_named(place, problem, id.to_string().as_bytes()),
    };
    if dquot.kind & KIND_BITS != kind.bit {
        let problem =
            FormatError::mismatch(kind.structure, "type", (dquot.kind & KIND_BITS).into(), kind.bit.into());
        return report.add_named(place, problem, id.to_string().as_bytes());
    }
    if !kind.counted {
        return;
    }
    let counts = [
        ("block count", dquot.bcount.get(), used.blocks),
        ("inode count", dquot.icount.get(), used.inodes),
        ("realtime block count", dquot.rtbcount.get(), 0),
    ];
    for (what, found, expected) in counts.into_iter().filter(|(_, found, expected)| found != expected) {
        let problem = FormatError::mismatch(kind.structure, what, found, expected);
        report.add_named(place, problem, id.to_string().as_bytes());
    }
}
