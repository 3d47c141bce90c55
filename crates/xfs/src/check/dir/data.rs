//! Data blocks of directories: entries, unused pieces, and the list of the largest of these.
//!
//! Hash and offset of every entry are kept, in eight bytes each, for comparison with the index; and the largest unused
//! piece of each block, for comparison with the free space index.

use super::super::Check;
use super::super::map::ForkOf;
use super::super::report::FindingPlace;
use super::{Spaces, hand_on, hash, mapped_blocks};
use crate::error::Result;
use std::collections::HashSet;
use xfs_format::bmbt::Extent;
use xfs_format::dir::{DataBlock, DataItem, DataKind, data_verifier};
use xfs_format::error::FormatError;
use xfs_format::types::FileBlock;

const NAME: &str = "directory data block";

/// One entry as in an index: hash, and offset divided by 8.
pub(super) type Hashed = (u32, u32);

/// The content of a directory's data blocks.
pub(super) struct DirData {
    /// The kind of the first block.
    pub(super) kind: Option<DataKind>,
    /// All entries, sorted.
    pub(super) entries: Vec<Hashed>,
    /// The largest unused piece of each block: number of the block, and bytes.
    pub(super) bestfree: Vec<(u32, u16)>,
}

/// Checks all data blocks. `None` if not all of them could be read.
pub(super) fn check(
    check: &mut Check<'_>,
    fork: &ForkOf<'_>,
    extents: &[Extent],
    spaces: &Spaces,
) -> Result<Option<DirData>> {
    let step = u64::from(check.geometry().dir_block_blocks());
    let mut data = DirData { kind: None, entries: Vec::new(), bestfree: Vec::new() };
    let mut whole = true;
    if mapped_blocks(extents, (0, spaces.leaf), step).next() != Some(0) {
        check.report.add(FindingPlace::inode(fork.ino), FormatError::new(NAME, "first block"));
        return Ok(None);
    }
    for at in mapped_blocks(extents, (0, spaces.leaf), step) {
        if check.report.stopped() {
            return Ok(None);
        }
        whole &= block(check, fork, extents, FileBlock(at), &mut data)?;
    }
    if !whole {
        return Ok(None);
    }
    data.entries.sort_unstable();
    check_twice(check, fork, extents, &data.entries)?;
    Ok(Some(data))
}

/// Checks one block and collects its entries.
fn block(
    check: &mut Check<'_>,
    fork: &ForkOf<'_>,
    extents: &[Extent],
    at: FileBlock,
    data: &mut DirData,
) -> Result<bool> {
    let place = FindingPlace::inode(fork.ino);
    let geometry = check.geometry();
    let (v5, ftype) = (geometry.v5, geometry.ftype);
    let base = at.0 << geometry.block_log;
    let number = u32::try_from(at.0 / u64::from(geometry.dir_block_blocks())).unwrap_or(u32::MAX);
    let run = (at, geometry.dir_block_blocks());
    let bytes = check.reader.fork(extents, run, data_verifier(ftype), place, &mut check.report)?;
    let Some(bytes) = bytes else { return Ok(false) };
    let block = match DataBlock::parse(&bytes, v5, ftype) {
        Ok(block) => block,
        Err(problem) => {
            check.report.add(place, problem);
            return Ok(false);
        }
    };
    if let Some(owner) = block.owner
        && !check.report.same(place, NAME, "owner", owner.0, fork.ino.0)
    {
        return Ok(false);
    }
    let first = *data.kind.get_or_insert(block.kind);
    if block.kind != first || block.kind == DataKind::Block && at.0 != 0 {
        check.report.add(place, FormatError::value(NAME, "form", at.0));
        return Ok(false);
    }
    let (mut free, mut unused_end, mut position): (Vec<usize>, Option<usize>, usize) = (Vec::new(), None, 0);
    let from = data.entries.len();
    for item in block.items() {
        let entry = match item {
            Ok(DataItem::Entry(entry)) => entry,
            Ok(DataItem::Unused { offset, len }) => {
                if unused_end == Some(offset) {
                    let problem = FormatError::value(NAME, "unused pieces that are one", offset as u64);
                    check.report.add(place, problem);
                }
                unused_end = Some(offset + len);
                free.push(len);
                continue;
            }
            Err(problem) => {
                check.report.add(place, problem);
                return Ok(false);
            }
        };
        let dots = matches!(entry.name, b"." | b"..");
        let due: &[u8] = match (at.0, position) {
            (0, 0) => b".",
            (0, 1) => b"..",
            _ => b"",
        };
        if (dots || !due.is_empty()) && due != entry.name {
            let problem = FormatError::value(NAME, "place of `.` and `..`", entry.offset as u64);
            check.report.add_named(place, problem, entry.name);
        }
        position += 1;
        let address = u32::try_from((base + entry.offset as u64) >> 3).unwrap_or(u32::MAX);
        data.entries.push((hash(check, entry.name), address));
        hand_on(check, fork.ino, entry.name, entry.inode, entry.file_type);
    }
    check_largest(check, place, &bytes, v5, free, (number, data));
    if block.kind == DataKind::Block {
        let mut index: Vec<Hashed> = block
            .index
            .iter()
            .filter(|entry| !entry.is_stale())
            .map(|entry| (entry.hash.get(), entry.address.get()))
            .collect();
        index.sort_unstable();
        let mut entries: Vec<Hashed> = data.entries.get(from..).unwrap_or_default().to_vec();
        entries.sort_unstable();
        super::index::compare(check, fork, &entries, &index);
    }
    Ok(true)
}

/// The header must list the three largest unused pieces.
fn check_largest(
    check: &mut Check<'_>,
    place: FindingPlace,
    bytes: &[u8],
    v5: bool,
    mut free: Vec<usize>,
    (number, data): (u32, &mut DirData),
) {
    free.sort_unstable_by(|a, b| b.cmp(a));
    let largest = free.first().copied().unwrap_or(0);
    data.bestfree.push((number, u16::try_from(largest).unwrap_or(u16::MAX)));
    // The listed pieces were checked to exist. This checks that no larger piece was left out.
    let at = if v5 { 48 } else { 4 };
    for nth in 0..3 {
        let listed = bytes
            .get(at + nth * 4 + 2..)
            .and_then(|rest| rest.first_chunk::<2>())
            .map_or(0, |raw| u16::from_be_bytes(*raw));
        let due = free.get(nth).copied().unwrap_or(0);
        if !check.report.same(place, NAME, "list of largest free space", listed, due as u64) {
            break;
        }
    }
}

/// No name may come twice. Names with the same hash are rare, unless somebody crafted them; they are read again.
fn check_twice(
    check: &mut Check<'_>,
    fork: &ForkOf<'_>,
    extents: &[Extent],
    entries: &[Hashed],
) -> Result<()> {
    let place = FindingPlace::inode(fork.ino);
    let geometry = check.geometry();
    let (v5, ftype, size) = (geometry.v5, geometry.ftype, u64::from(geometry.dir_block_size()));
    let blocks = geometry.dir_block_blocks();
    for same in entries.chunk_by(|a, b| a.0 == b.0).filter(|same| same.len() > 1) {
        let mut names: HashSet<Box<[u8]>> = HashSet::new();
        let mut last = None;
        for &(_, address) in same {
            let offset = u64::from(address) << 3;
            let at = FileBlock(offset / size * u64::from(blocks));
            let (known, bytes) = match last.take() {
                Some((known, bytes)) if known == at => (known, bytes),
                _ => {
                    let run = (at, blocks);
                    let read =
                        check.reader.fork(extents, run, data_verifier(ftype), place, &mut check.report)?;
                    let Some(bytes) = read else { return Ok(()) };
                    (at, bytes)
                }
            };
            let entry = DataBlock::parse(&bytes, v5, ftype)
                .and_then(|block| block.entry_at(usize::try_from(offset % size).unwrap_or(usize::MAX)));
            if let Ok(entry) = entry
                && !names.insert(entry.name.into())
            {
                check.report.add_named(place, FormatError::new(NAME, "name that comes twice"), entry.name);
            }
            last = Some((known, bytes));
        }
    }
    Ok(())
}
