//! Extended attributes: inside the inode, in leaves, and with remote values.
//!
//! Checked besides the index: the hash of every name, that no name comes twice in a namespace, the number of bytes that
//! a leaf claims to use, that names and values do not overlap, and every block of every remote value.

use super::Check;
use super::da_tree::{IndexFork, LeafBlock, walk};
use super::map::{ForkOf, Map};
use super::parents;
use super::report::FindingPlace;
use crate::error::Result;
use std::collections::HashSet;
use xfs_format::attr::{
    AttrFlags, AttrLeaf, AttrLeafEntry, AttrValue, INDEX, LeafAttr, RAW, REMOTE, RemoteBlock, SHORT_ATTRS,
    ShortAttrs, remote_payload_len,
};
use xfs_format::bmbt::Extent;
use xfs_format::da::name_hash;
use xfs_format::error::FormatError;
use xfs_format::inode::ForkFormat;
use xfs_format::types::FileBlock;

const LEAF: &str = "attribute leaf block";

/// A namespace and a name, which must not come twice.
type Name = (u8, Box<[u8]>);

/// Checks the attributes of an inode.
pub(super) fn check(check: &mut Check<'_>, fork: &ForkOf<'_>, map: &Map) -> Result<()> {
    let place = FindingPlace::inode(fork.ino);
    match fork.format() {
        None | Some(ForkFormat::Dev) => Ok(()),
        Some(ForkFormat::Local) => {
            short(check, fork);
            Ok(())
        }
        // A crash while attributes were removed leaves a fork without blocks.
        Some(_) if map.extents.is_empty() => Ok(()),
        Some(_) => {
            if map.extents.first().is_some_and(|first| first.startoff.0 != 0) {
                check.report.add(place, FormatError::new(LEAF, "first block"));
                return Ok(());
            }
            index(check, fork, &map.extents)
        }
    }
}

fn short(check: &mut Check<'_>, fork: &ForkOf<'_>) {
    let place = FindingPlace::inode(fork.ino);
    let mut names: HashSet<Name> = HashSet::new();
    let attrs = match ShortAttrs::parse(fork.literal()) {
        Ok(attrs) => attrs,
        Err(problem) => return check.report.add(place, problem),
    };
    for attr in attrs.entries() {
        let attr = match attr {
            Ok(attr) => attr,
            Err(problem) => return check.report.add(place, problem),
        };
        check.report.counts.attributes += 1;
        if let Err(problem) = attr.check_flags() {
            check.report.add_named(place, problem, attr.name);
        }
        // There may be parent pointers with the same name in several directories.
        let parent = attr.flags.contains(AttrFlags::PARENT);
        if parent {
            parents::pointer(check, fork.ino, (attr.name, Some(attr.value)), None);
        } else if !names.insert((attr.flags.namespace().bits(), attr.name.into())) {
            check.report.add_named(place, FormatError::new(SHORT_ATTRS, "name that comes twice"), attr.name);
        }
    }
}

fn index(check: &mut Check<'_>, fork: &ForkOf<'_>, extents: &[Extent]) -> Result<()> {
    let index =
        IndexFork { fork, extents, root: 0, end: 1 << 32, blocks: 1, verifier: &INDEX, directory: false };
    let mut run: (u32, HashSet<Name>) = (0, HashSet::new());
    walk(check, &index, &mut |check, block| leaf(check, fork, extents, block, &mut run))?;
    Ok(())
}

/// Checks one leaf. `run` has the hash of the previous entries, and their names.
fn leaf(
    check: &mut Check<'_>,
    fork: &ForkOf<'_>,
    extents: &[Extent],
    block: &LeafBlock,
    run: &mut (u32, HashSet<Name>),
) -> Result<()> {
    let place = FindingPlace::inode(fork.ino);
    let leaf = match AttrLeaf::parse(&block.bytes, check.geometry().v5) {
        Ok(leaf) => leaf,
        Err(problem) => {
            check.report.add(place, problem);
            return Ok(());
        }
    };
    if leaf.entries.is_empty() && !block.root {
        check.report.add(place, FormatError::value(LEAF, "entry count", 0));
    }
    let mut pieces: Vec<(usize, usize)> = Vec::with_capacity(leaf.entries.len());
    for entry in leaf.entries {
        let attr = match leaf.attr(entry) {
            Ok(attr) => attr,
            Err(problem) => {
                check.report.add(place, problem);
                return Ok(());
            }
        };
        check.report.counts.attributes += 1;
        pieces.push((entry.name_index(), entry_len(&attr)));
        if attr.flags.contains(AttrFlags::INCOMPLETE) {
            // A crash left it in the middle of a change. Nobody sees it, and it takes up space for ever.
            let problem = FormatError::new(LEAF, "attribute that is incomplete");
            check.report.add_named(place, problem, attr.name);
        }
        check_name(check, fork, entry, &attr, run);
        if let AttrValue::Remote { block, len } = attr.value
            && !attr.flags.contains(AttrFlags::INCOMPLETE)
        {
            remote(check, fork, extents, (block, len), attr.name)?;
        }
    }
    check_layout(check, fork, &leaf, pieces);
    Ok(())
}

/// Bytes that name and value take in the leaf. Entries are aligned to 4.
fn entry_len(attr: &LeafAttr<'_>) -> usize {
    // The head of a remote name has nine bytes, but counts as eleven, like the structure in C.
    let len = match attr.value {
        AttrValue::Inline(value) => 3 + attr.name.len() + value.len(),
        AttrValue::Remote { .. } => 11 + attr.name.len(),
    };
    len.next_multiple_of(4)
}

fn check_name(
    check: &mut Check<'_>,
    fork: &ForkOf<'_>,
    entry: &AttrLeafEntry,
    attr: &LeafAttr<'_>,
    run: &mut (u32, HashSet<Name>),
) {
    let place = FindingPlace::inode(fork.ino);
    let hash = entry.hash.get();
    if hash != run.0 {
        *run = (hash, HashSet::new());
    }
    // A parent pointer is hashed with more than its name. One that is being replaced has its successor beside it.
    if attr.flags.contains(AttrFlags::PARENT) && !attr.flags.contains(AttrFlags::INCOMPLETE) {
        let value = match attr.value {
            AttrValue::Inline(value) => Some(value),
            AttrValue::Remote { .. } => None,
        };
        parents::pointer(check, fork.ino, (attr.name, value), Some(hash));
    }
    if attr.flags.intersects(AttrFlags::PARENT | AttrFlags::INCOMPLETE) {
        return;
    }
    let due = name_hash(attr.name);
    if hash != due {
        let problem = FormatError::mismatch(LEAF, "hash of the name", hash.into(), due.into());
        check.report.add_named(place, problem, attr.name);
    }
    if !run.1.insert((attr.flags.namespace().bits(), attr.name.into())) {
        check.report.add_named(place, FormatError::new(LEAF, "name that comes twice"), attr.name);
    }
}

/// Checks the header's account of the block: used bytes, and free pieces. The first used byte may be too low, because
/// names move to other leaves; the verifier ensures that it is not too high.
fn check_layout(
    check: &mut Check<'_>,
    fork: &ForkOf<'_>,
    leaf: &AttrLeaf<'_>,
    mut pieces: Vec<(usize, usize)>,
) {
    let place = FindingPlace::inode(fork.ino);
    let report = &mut check.report;
    let used: usize = pieces.iter().map(|piece| piece.1).sum();
    report.same(place, LEAF, "used bytes", leaf.used_bytes() as u64, used as u64);
    pieces.sort_unstable();
    if pieces.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
        report.add(place, FormatError::new(LEAF, "names that lie over each other"));
    }
    // Kernels that merge leaves rely on it.
    if let Some(first) = pieces.first()
        && !leaf.has_holes()
        && (first.0 != leaf.first_used() || first.0 + used != leaf.block_len())
    {
        report.add(place, FormatError::new(LEAF, "holes between the names that the header denies"));
    }
    let mut free = leaf.free_map();
    free.sort_unstable();
    let mut behind = leaf.entries_end();
    for (base, len) in free {
        let near = pieces.partition_point(|piece| piece.0 + piece.1 <= base);
        // Some kernels leave empty pieces with an arbitrary start.
        let taken = len != 0 && (base < behind || pieces.get(near).is_some_and(|piece| piece.0 < base + len));
        if len != 0 {
            behind = behind.max(base + len);
        }
        if base % 4 != 0 || len % 4 != 0 || taken {
            report.add(place, FormatError::value(LEAF, "free map", base as u64));
        }
    }
}

/// Checks all blocks of a remote value.
fn remote(
    check: &mut Check<'_>,
    fork: &ForkOf<'_>,
    extents: &[Extent],
    (block, len): (FileBlock, u32),
    name: &[u8],
) -> Result<()> {
    let place = FindingPlace::inode(fork.ino);
    let geometry = check.geometry();
    let (v5, room) = (geometry.v5, remote_payload_len(geometry.block_size, geometry.v5).max(1));
    if block.0 == 0 && len != 0 {
        check.report.add_named(place, FormatError::value(REMOTE.name, "block pointer", 0), name);
        return Ok(());
    }
    for nth in 0..len.div_ceil(room) {
        let at = FileBlock(block.0 + u64::from(nth));
        let verifier = if v5 { &REMOTE } else { &RAW };
        let Some(bytes) = check.reader.fork(extents, (at, 1), verifier, place, &mut check.report)? else {
            return Ok(());
        };
        if !v5 {
            continue;
        }
        let Ok(piece) = RemoteBlock::parse(&bytes) else { return Ok(()) };
        let due = room.min(len - nth * room);
        let report = &mut check.report;
        if !report.same(place, REMOTE.name, "owner", piece.owner.0, fork.ino.0)
            || !report.same(place, REMOTE.name, "offset", piece.offset, nth * room)
            || !report.same(place, REMOTE.name, "byte count", piece.payload.len() as u64, due)
        {
            return Ok(());
        }
    }
    Ok(())
}
