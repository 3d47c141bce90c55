//! The inode trees of a group. The tree of all chunks fills the inode table. The free inode tree must have the same
//! records for the chunks with free inodes, and no others.

use super::Check;
use super::owners::Owner;
use super::report::FindingPlace;
use super::tree::walk_group;
use crate::error::Result;
use xfs_format::ag::Agi;
use xfs_format::btree::{Finobt, Inobt, Tree};
use xfs_format::error::FormatError;
use xfs_format::features::VersionFlags;
use xfs_format::geometry::Geometry;
use xfs_format::records::{INODES_PER_CHUNK, InobtRecord, InodeChunk};
use xfs_format::types::{AgBlock, AgNumber};

const NAME: &str = "inode chunk record";

/// The inodes of a group.
pub(super) struct Inodes {
    pub(super) count: u64,
    pub(super) free: u64,
    pub(super) inobt_blocks: u32,
    pub(super) finobt_blocks: Option<u32>,
}

/// Checks both trees. `None` if not all chunks are known.
pub(super) fn check(check: &mut Check<'_>, ag: AgNumber, agi: &Agi) -> Result<Option<Inodes>> {
    let mut records: Vec<InobtRecord> = Vec::new();
    let root = (agi.root.get(), agi.level.get());
    let inobt = walk_group::<Inobt>(check, ag, root, Owner::InodeTree, &mut |record| records.push(*record))?;
    let (chunks, sound) = take(check, ag, &records);
    let mut finobt_blocks = None;
    if check.geometry().finobt {
        let mut free_records: Vec<InobtRecord> = Vec::new();
        let root = (agi.free_root.get(), agi.free_level.get());
        let finobt = walk_group::<Finobt>(check, ag, root, Owner::InodeTree, &mut |record| {
            free_records.push(*record)
        })?;
        if finobt.whole && inobt.whole && sound {
            compare(check, ag, &chunks, &free_records);
        }
        if finobt.whole {
            finobt_blocks = Some(finobt.blocks);
        } else {
            check.report.owners_known = false;
        }
    }
    if !inobt.whole || !sound {
        check.lose_group_inodes(ag);
        return Ok(None);
    }
    let inodes = |chunk: &InodeChunk| u64::from((!chunk.holes).count_ones());
    let free = |chunk: &InodeChunk| u64::from((chunk.free & !chunk.holes).count_ones());
    Ok(Some(Inodes {
        count: chunks.iter().map(inodes).sum(),
        free: chunks.iter().map(free).sum(),
        inobt_blocks: inobt.blocks,
        finobt_blocks,
    }))
}

/// Checks records, claims the blocks of their inodes, and adds them to the table.
fn take(check: &mut Check<'_>, ag: AgNumber, records: &[InobtRecord]) -> (Vec<InodeChunk>, bool) {
    let geometry = check.geometry().clone();
    let aligned = check.superblock.version_flags().contains(VersionFlags::ALIGN);
    let (mut chunks, mut sound) = (Vec::with_capacity(records.len()), true);
    let (mut free_from, mut claimed_to) = (0, 0);
    for record in records {
        if check.report.stopped() {
            return (chunks, false);
        }
        let start = record.startino.get();
        let block = start >> geometry.inodes_per_block_log;
        let place = FindingPlace::block(ag, AgBlock(block));
        let mut refuse = |problem| {
            check.report.add(place, problem);
            sound = false;
        };
        let chunk = match record.chunk(geometry.sparse_inodes) {
            Ok(chunk) => chunk,
            Err(problem) => {
                refuse(problem);
                continue;
            }
        };
        let end = u64::from(start) + u64::from(INODES_PER_CHUNK);
        if start == 0 || end > u64::from(geometry.ag_blocks_of(ag)) << geometry.inodes_per_block_log {
            refuse(FormatError::value(NAME, "first inode", start.into()));
            continue;
        }
        if u64::from(start) < free_from {
            refuse(FormatError::mismatch(NAME, "overlap", start.into(), free_from));
            continue;
        }
        free_from = end;
        if chunk.holes & !chunk.free != 0 {
            check
                .report
                .add(place, FormatError::value(NAME, "holes that are not free", chunk.holes & !chunk.free));
        }
        if !is_aligned(&geometry, start, aligned) {
            check.report.add(place, FormatError::value(NAME, "alignment", start.into()));
        }
        for (first, len) in blocks(&geometry, &chunk) {
            // With large blocks, two chunks may share a block.
            let skip = u32::try_from(claimed_to).map_or(0, |to: u32| to.saturating_sub(first)).min(len);
            if len > skip {
                check.owners.claim(ag, (first + skip, len - skip), Owner::Inodes, &mut check.report);
            }
            claimed_to = u64::from(first) + u64::from(len);
        }
        check.inodes.add(ag, &chunk);
        chunks.push(chunk);
    }
    (chunks, sound)
}

fn is_aligned(geometry: &Geometry, start: u32, aligned: bool) -> bool {
    let per_block = 1_u32 << geometry.inodes_per_block_log;
    let block = start >> geometry.inodes_per_block_log;
    start.is_multiple_of(per_block.min(INODES_PER_CHUNK))
        && (!aligned || geometry.inode_align <= 1 || block.is_multiple_of(geometry.inode_align))
}

/// The blocks with inodes of a chunk, as runs.
pub(super) fn blocks(geometry: &Geometry, chunk: &InodeChunk) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::with_capacity(1);
    for index in (0..INODES_PER_CHUNK).filter(|index| chunk.holes >> index & 1 == 0) {
        let block = (chunk.start.0 + index) >> geometry.inodes_per_block_log;
        match runs.last_mut() {
            Some((first, len)) if block < *first + *len => {}
            Some((first, len)) if block == *first + *len => *len += 1,
            _ => runs.push((block, 1)),
        }
    }
    runs
}

/// The free inode tree must list exactly the chunks with free inodes, as the other tree has them.
fn compare(check: &mut Check<'_>, ag: AgNumber, chunks: &[InodeChunk], free: &[InobtRecord]) {
    let sparse = check.geometry().sparse_inodes;
    let per_block = check.geometry().inodes_per_block_log;
    let place = |start: u32| FindingPlace::block(ag, AgBlock(start >> per_block));
    let mut free = free.iter().peekable();
    for chunk in chunks.iter().filter(|chunk| chunk.free & !chunk.holes != 0) {
        while let Some(record) = free.next_if(|record| record.startino.get() < chunk.start.0) {
            let start = record.startino.get();
            check.report.add(
                place(start),
                FormatError::value(Finobt::NAME, "chunk without free inodes", start.into()),
            );
        }
        let start = chunk.start.0;
        let Some(record) = free.next_if(|record| record.startino.get() == start) else {
            let problem = FormatError::value(Finobt::NAME, "chunk with free inodes is missing", start.into());
            check.report.add(place(start), problem);
            continue;
        };
        match record.chunk(sparse) {
            Ok(found) if found == *chunk => {}
            Ok(found) => {
                let problem = FormatError::mismatch(Finobt::NAME, "free inodes", found.free, chunk.free);
                check.report.add(place(start), problem);
            }
            Err(problem) => check.report.add(place(start), problem),
        }
    }
    for record in free {
        let start = record.startino.get();
        check
            .report
            .add(place(start), FormatError::value(Finobt::NAME, "chunk without free inodes", start.into()));
    }
}
