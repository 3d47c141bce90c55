//! The indexes of a directory with several blocks: the hash index, in which each entry is compared in both directions;
//! and the free space index with each data block's largest unused piece, in the tail of a single leaf or in blocks of
//! its own.

use super::super::Check;
use super::super::da_tree::{IndexFork, LeafBlock, walk};
use super::super::map::ForkOf;
use super::super::report::FindingPlace;
use super::Spaces;
use super::data::{DirData, Hashed};
use super::mapped_blocks;
use crate::error::Result;
use xfs_format::bmbt::Extent;
use xfs_format::dir::{FREE, FreeBlock, INDEX, Leaf, LeafKind};
use xfs_format::error::FormatError;
use xfs_format::types::FileBlock;

const NAME: &str = "directory leaf block";
const FREE_NAME: &str = "directory free block";
/// The value for a data block that does not exist.
const NO_BLOCK: u16 = 0xffff;

/// Checks both indexes.
pub(super) fn check(
    check: &mut Check<'_>,
    fork: &ForkOf<'_>,
    extents: &[Extent],
    spaces: &Spaces,
    data: &DirData,
) -> Result<()> {
    let place = FindingPlace::inode(fork.ino);
    if !spaces.has_index {
        check.report.add(place, FormatError::new("directory", "index: there is none"));
        return Ok(());
    }
    let step = u64::from(check.geometry().dir_block_blocks());
    let index = IndexFork {
        fork,
        extents,
        root: spaces.leaf,
        end: spaces.free,
        blocks: check.geometry().dir_block_blocks(),
        verifier: &INDEX,
        directory: true,
    };
    let (mut found, mut single): (Vec<Hashed>, bool) = (Vec::with_capacity(data.entries.len()), false);
    let walked = walk(check, &index, &mut |check, block| {
        single |= leaf(check, fork, block, data, &mut found);
        Ok(())
    })?;
    if walked.whole {
        found.sort_unstable();
        compare(check, fork, &data.entries, &found);
        let mapped = mapped_blocks(extents, (spaces.leaf, spaces.free), step).count() as u64;
        check.report.same(place, "directory", "blocks of the index", mapped, walked.blocks);
    }
    if !single {
        return free_blocks(check, fork, extents, spaces, data);
    }
    if spaces.has_free {
        check.report.add(place, FormatError::new("directory", "single leaf with blocks of free space"));
    }
    Ok(())
}

/// Processes one leaf. Returns whether it is a single one.
fn leaf(
    check: &mut Check<'_>,
    fork: &ForkOf<'_>,
    block: &LeafBlock,
    data: &DirData,
    found: &mut Vec<Hashed>,
) -> bool {
    let place = FindingPlace::inode(fork.ino);
    let leaf = match Leaf::parse(&block.bytes, check.geometry().v5) {
        Ok(leaf) => leaf,
        Err(problem) => {
            check.report.add(place, problem);
            return false;
        }
    };
    found.extend(
        leaf.entries
            .iter()
            .filter(|entry| !entry.is_stale())
            .map(|entry| (entry.hash.get(), entry.address.get())),
    );
    let single = leaf.kind == LeafKind::Single;
    if single && !block.root {
        check.report.add(place, FormatError::value(NAME, "magic of a leaf in a tree", block.at.0));
    }
    if single {
        let bests: Vec<u16> = leaf.bestfree.iter().map(|best| best.get()).collect();
        let due = data.bestfree.last().map_or(0, |last| u64::from(last.0) + 1);
        if check.report.same(place, NAME, "table size", bests.len() as u64, due) {
            compare_bestfree(check, place, NAME, (0, &bests), &data.bestfree);
        }
    }
    single
}

/// Each entry of the data must be in the index, and vice versa. Both are sorted.
pub(super) fn compare(check: &mut Check<'_>, fork: &ForkOf<'_>, entries: &[Hashed], index: &[Hashed]) {
    let place = FindingPlace::inode(fork.ino);
    let (mut entries, mut index) = (entries.iter().peekable(), index.iter().peekable());
    while !check.report.stopped() {
        let (what, at) = match (entries.peek(), index.peek()) {
            (None, None) => return,
            (Some(a), Some(b)) if a == b => {
                entries.next();
                index.next();
                continue;
            }
            (Some(a), b) if b.is_none_or(|b| a < b) => {
                let at = a.1;
                entries.next();
                ("name that the index lacks", at)
            }
            (_, Some(b)) => {
                let at = b.1;
                index.next();
                ("index entry without a name", at)
            }
            (Some(_), None) => return,
        };
        check.report.add(place, FormatError::value("directory", what, u64::from(at) << 3));
    }
}

/// Compares a table of largest unused pieces, which begins with data block `first`, with the blocks.
fn compare_bestfree(
    check: &mut Check<'_>,
    place: FindingPlace,
    structure: &'static str,
    (first, table): (u32, &[u16]),
    bests: &[(u32, u16)],
) {
    for (number, best) in (first..).zip(table) {
        let due = bests.binary_search_by_key(&number, |best| best.0).map_or(NO_BLOCK, |at| bests[at].1);
        if !check.report.same(place, structure, "largest free space of a block", *best, due) {
            // One finding per table is enough.
            return;
        }
    }
}

/// Checks the blocks of the free space index.
fn free_blocks(
    check: &mut Check<'_>,
    fork: &ForkOf<'_>,
    extents: &[Extent],
    spaces: &Spaces,
    data: &DirData,
) -> Result<()> {
    let place = FindingPlace::inode(fork.ino);
    let geometry = check.geometry();
    let (v5, blocks) = (geometry.v5, geometry.dir_block_blocks());
    let step = u64::from(blocks);
    let room = (geometry.dir_block_size() - if v5 { 64 } else { 16 }) / 2;
    let mut seen = 0_usize;
    for at in mapped_blocks(extents, (spaces.free, u64::MAX), step) {
        if check.report.stopped() {
            return Ok(());
        }
        let run = (FileBlock(at), blocks);
        let Some(bytes) = check.reader.fork(extents, run, &FREE, place, &mut check.report)? else {
            return Ok(());
        };
        let Ok(free) = FreeBlock::parse(&bytes, v5) else { return Ok(()) };
        let report = &mut check.report;
        let number = (at - spaces.free) / step;
        if free.owner.is_some_and(|owner| !report.same(place, FREE_NAME, "owner", owner.0, fork.ino.0))
            || !report.same(place, FREE_NAME, "first data block", free.first_db, number * u64::from(room))
        {
            return Ok(());
        }
        let table: Vec<u16> = free.bestfree.iter().map(|best| best.get()).collect();
        let used = table.iter().filter(|&&best| best != NO_BLOCK).count();
        report.same(place, FREE_NAME, "used count", free.used, used as u64);
        compare_bestfree(check, place, FREE_NAME, (free.first_db, &table), &data.bestfree);
        let end = u64::from(free.first_db) + table.len() as u64;
        let from = data.bestfree.partition_point(|best| best.0 < free.first_db);
        seen +=
            data.bestfree.get(from..).map_or(0, |rest| rest.partition_point(|best| u64::from(best.0) < end));
    }
    check.report.same(place, FREE_NAME, "data blocks in all tables", seen as u64, data.bestfree.len() as u64);
    Ok(())
}
