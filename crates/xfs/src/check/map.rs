//! The map of a fork: its extents are in order, each within a group; each block is claimed; and extents and blocks are
//! as many as the inode says.

use super::Check;
use super::owners::Owner;
use super::report::FindingPlace;
use super::tree::walk_map;
use crate::error::Result;
use xfs_format::bmbt::{BmbtRecord, BmbtRoot, Extent, inline_extents};
use xfs_format::error::FormatError;
use xfs_format::inode::{ForkFormat, ForkInfo, InodeCore, InodeFlags2, InodeType};
use xfs_format::types::{FileBlock, InodeNumber};

const NAME: &str = "inode";

/// Which fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WhichFork {
    Data,
    Attr,
}

/// The result of reading a fork's map.
pub(super) struct Map {
    /// The extents, if they are wanted.
    pub(super) extents: Vec<Extent>,
    /// Blocks of content and of the map's tree.
    pub(super) blocks: u64,
    /// The end of the last mapped block.
    pub(super) end: FileBlock,
    /// Whether nothing is wrong with it.
    pub(super) sound: bool,
}

/// A fork of an inode that is to be read.
pub(super) struct ForkOf<'a> {
    pub(super) ino: InodeNumber,
    pub(super) core: &'a InodeCore,
    /// The inode's bytes.
    pub(super) bytes: &'a [u8],
    pub(super) which: WhichFork,
}

impl ForkOf<'_> {
    fn info(&self) -> Option<&ForkInfo> {
        match self.which {
            WhichFork::Data => Some(&self.core.data),
            WhichFork::Attr => self.core.attr.as_ref(),
        }
    }

    /// The fork's bytes within the inode.
    pub(super) fn literal(&self) -> &[u8] {
        self.info().and_then(|info| self.bytes.get(info.range.clone())).unwrap_or_default()
    }

    /// How the fork stores its content. `None` if there is no such fork.
    pub(super) fn format(&self) -> Option<ForkFormat> {
        self.info().map(|info| info.format)
    }
}

/// Reads the map of a fork. With `claim`, its blocks are claimed and everything is checked. Without it, an earlier call
/// has done so and found nothing. With `keep`, the extents are returned.
pub(super) fn load(check: &mut Check<'_>, fork: &ForkOf<'_>, claim: bool, keep: bool) -> Result<Map> {
    let place = FindingPlace::inode(fork.ino);
    let before = check.report.total();
    let mut map = Map { extents: Vec::new(), blocks: 0, end: FileBlock(0), sound: true };
    let Some(info) = fork.info() else { return Ok(map) };
    let mut count = 0_u64;
    match info.format {
        ForkFormat::Dev | ForkFormat::Local => return Ok(map),
        ForkFormat::Extents => match inline_extents(fork.literal(), info.nextents) {
            Ok(records) => {
                for record in records {
                    count += 1;
                    extent(check, fork, record, &mut map, (claim, keep));
                }
            }
            Err(problem) => check.report.add(place, problem),
        },
        ForkFormat::Btree => match BmbtRoot::view(fork.literal()) {
            Ok(root) => {
                // Extents are added leaf by leaf. A tree has no more records than fit into its claimed blocks.
                let mut records: Vec<BmbtRecord> = Vec::new();
                let owner = Owner::MapBlock { ino: fork.ino, attr: fork.which == WhichFork::Attr };
                let walked =
                    walk_map(check, fork.ino, &root, (owner, claim), &mut |record| records.push(*record))?;
                map.blocks += u64::from(walked.blocks);
                map.sound &= walked.whole;
                for record in &records {
                    count += 1;
                    extent(check, fork, record, &mut map, (claim, keep));
                }
            }
            Err(problem) => check.report.add(place, problem),
        },
    }
    if claim && map.sound {
        let what = match fork.which {
            WhichFork::Data => "data extent count",
            WhichFork::Attr => "attribute extent count",
        };
        check.report.same(place, NAME, what, info.nextents, count);
        check.report.counts.extents += count;
    }
    map.sound &= check.report.total() == before;
    Ok(map)
}

/// Processes one extent.
fn extent(
    check: &mut Check<'_>,
    fork: &ForkOf<'_>,
    record: &BmbtRecord,
    map: &mut Map,
    (claim, keep): (bool, bool),
) {
    let extent = record.unpack();
    let place = FindingPlace::inode(fork.ino);
    if check.report.stopped() {
        map.sound = false;
        return;
    }
    if let Err(problem) = extent.check(check.geometry()) {
        check.report.add(place, problem);
        map.sound = false;
        return;
    }
    if extent.startoff < map.end {
        let (found, expected) = (extent.startoff.0, map.end.0);
        check.report.add(place, FormatError::mismatch("extent", "order of extents", found, expected));
        map.sound = false;
        return;
    }
    map.end = extent.end();
    map.blocks += u64::from(extent.blockcount);
    if keep {
        map.extents.push(extent);
    }
    if !claim {
        return;
    }
    let file = fork.which == WhichFork::Data && fork.core.kind == InodeType::Regular;
    if extent.unwritten && !file {
        check.report.add(place, FormatError::value("extent", "unwritten metadata", extent.startoff.0));
    }
    let Some((ag, block)) = check.geometry().split_block(extent.startblock) else { return };
    let owner = Owner::Fork {
        ino: fork.ino,
        attr: fork.which == WhichFork::Attr,
        offset: extent.startoff.0,
        unwritten: extent.unwritten,
    };
    let run = (block.0, extent.blockcount);
    if !file {
        check.owners.claim(ag, run, owner, &mut check.report);
        return;
    }
    let shared = check.owners.claim_file(ag, run, owner, &mut check.report);
    if shared > 0 && !fork.core.flags2.contains(InodeFlags2::REFLINK) {
        check
            .report
            .add(place, FormatError::value("extent", "shared blocks of an inode without the flag", shared));
    }
}
