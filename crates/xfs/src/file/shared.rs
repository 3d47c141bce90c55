//! Knowing which blocks of a file are shared, and keeping this up to date.

use super::{BLOCKS_END, FileBlocks};
use crate::error::Result;
use crate::ifork::ExtentList;
use crate::inode::{BlockSet, ForkKind, InodeEntry};
use crate::mount::Mount;
use crate::refcount::SharedRun;
use std::sync::Arc;
use xfs_format::types::{FileBlock, FsBlock};

/// A run of blocks of the volume.
pub(super) type FsBlockRun = (FsBlock, u64);

/// Where the written blocks of a map's `blocks` lie, run by run. Unwritten blocks are never shared.
pub(super) fn written_runs(
    extents: &ExtentList,
    blocks: FileBlocks,
) -> impl Iterator<Item = FsBlockRun> + '_ {
    runs(extents, blocks, false)
}

/// Where a map's `blocks` lie, run by run, written or not.
pub(super) fn all_runs(extents: &ExtentList, blocks: FileBlocks) -> impl Iterator<Item = FsBlockRun> + '_ {
    runs(extents, blocks, true)
}

fn runs(extents: &ExtentList, blocks: FileBlocks, unwritten: bool) -> impl Iterator<Item = FsBlockRun> + '_ {
    let mut at = blocks.start;
    let next = move || {
        let extent = extents.ending_behind(at).filter(|extent| extent.startoff < blocks.end)?;
        let (from, end) = (at.max(extent.startoff), extent.end().min(blocks.end));
        at = extent.end();
        Some((extent, from, end))
    };
    let wanted = std::iter::from_fn(next).filter(move |(extent, ..)| unwritten || !extent.unwritten);
    wanted.map(|(extent, from, end)| {
        (FsBlock(extent.startblock.0 + (from.0 - extent.startoff.0)), end.0 - from.0)
    })
}

/// Those of a map's `blocks` that others have as well. The caller keeps them from being shared again.
pub(super) fn shared_runs(
    mount: &Mount,
    extents: &ExtentList,
    blocks: FileBlocks,
) -> Result<Vec<FsBlockRun>> {
    let mut runs = Vec::new();
    for (start, count) in written_runs(extents, blocks) {
        let mut at = 0;
        while at < count {
            let from = FsBlock(start.0 + at);
            let run = mount.shared_run(from, count - at)?;
            if run.shared {
                runs.push((from, run.blocks));
            }
            at += run.blocks.max(1);
        }
    }
    Ok(runs)
}

/// Finds out which blocks of a file are shared, unless that is known. Returns what is known of the `blocks` blocks from
/// `start` on.
pub(crate) fn known_run(mount: &Mount, entry: &InodeEntry, start: FsBlock, blocks: u64) -> Result<SharedRun> {
    know_shared(mount, entry)?;
    Ok(entry.cow().run(start, blocks).unwrap_or(SharedRun { blocks, shared: true }))
}

/// Finds out which blocks of a file are shared, unless that is known.
pub(crate) fn know_shared(mount: &Mount, entry: &InodeEntry) -> Result<()> {
    let cow = entry.cow();
    if cow.is_known() {
        return Ok(());
    }
    let fork = cow.fork();
    if cow.is_known() {
        return Ok(());
    }
    // So nobody is in the middle of a change whose refcounts are still to be updated.
    let _still = entry.ilock_shared();
    let inode = entry.current();
    let mut shared = BlockSet::default();
    if inode.is_reflinked() {
        let extents = mount.extents(&inode, ForkKind::Data)?;
        let runs = shared_runs(mount, &extents, FileBlock(0)..BLOCKS_END)?;
        runs.into_iter().for_each(|(start, blocks)| shared.add(start, blocks));
    }
    cow.know(shared, &fork);
    Ok(())
}

/// Tells both files, before they exchange blocks, which of these others have as well. The rest is known as their own.
pub(super) fn mark_exchanged(files: [&Arc<InodeEntry>; 2], blocks: &[FsBlockRun], shared: &[FsBlockRun]) {
    for entry in files {
        let cow = entry.cow();
        cow.change(&cow.fork(), |known| {
            blocks.iter().for_each(|&(start, count)| known.remove(start, count));
            shared.iter().for_each(|&(start, count)| known.add(start, count));
        });
        // Earlier lookups are void.
        entry.sharing_changed();
    }
}

/// Tells both files that blocks are shared, before they are.
pub(super) fn mark_shared(files: [&Arc<InodeEntry>; 2], runs: &[FsBlockRun]) {
    for entry in files {
        let cow = entry.cow();
        cow.change(&cow.fork(), |shared| {
            runs.iter().for_each(|&(start, blocks)| shared.add(start, blocks));
        });
        // Earlier lookups are void.
        entry.sharing_changed();
    }
}
