//! Which of a file's blocks others have as well, and who has to know it.

use super::{BLOCKS_END, Blocks};
use crate::error::Result;
use crate::ifork::ExtentList;
use crate::inode::{BlockSet, ForkKind, InodeEntry};
use crate::mount::Mount;
use crate::refcount::SharedRun;
use std::sync::Arc;
use xfs_format::types::{FileBlock, FsBlock};

/// A run of blocks of the volume.
pub(super) type Run = (FsBlock, u64);

/// Where what is written of a map's `blocks` lies, run by run. What never held data is nobody else's.
pub(super) fn written_runs(extents: &ExtentList, blocks: Blocks) -> impl Iterator<Item = Run> + '_ {
    runs(extents, blocks, false)
}

/// Where a map's `blocks` lie, run by run, data or not.
pub(super) fn all_runs(extents: &ExtentList, blocks: Blocks) -> impl Iterator<Item = Run> + '_ {
    runs(extents, blocks, true)
}

fn runs(extents: &ExtentList, blocks: Blocks, unwritten: bool) -> impl Iterator<Item = Run> + '_ {
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

/// Those of a map's `blocks` that others have as well. Whoever asks keeps them from being shared once more.
pub(super) fn shared_runs(mount: &Mount, extents: &ExtentList, blocks: Blocks) -> Result<Vec<Run>> {
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

/// Finds out which blocks of a file are shared, unless that is known, and what of `start` and so many blocks from it on.
pub(crate) fn known_run(mount: &Mount, entry: &InodeEntry, start: FsBlock, blocks: u64) -> Result<SharedRun> {
    know_shared(mount, entry)?;
    Ok(entry.copying().run(start, blocks).unwrap_or(SharedRun { blocks, shared: true }))
}

/// Finds out which blocks of a file are shared, unless that is known.
pub(crate) fn know_shared(mount: &Mount, entry: &InodeEntry) -> Result<()> {
    let copying = entry.copying();
    if copying.is_known() {
        return Ok(());
    }
    let fork = copying.fork();
    if copying.is_known() {
        return Ok(());
    }
    // Nobody is in the middle of a change whose counts are still owed.
    let _still = entry.share();
    let inode = entry.current();
    let mut shared = BlockSet::default();
    if inode.is_reflinked() {
        let extents = mount.extents(&inode, ForkKind::Data)?;
        let runs = shared_runs(mount, &extents, FileBlock(0)..BLOCKS_END)?;
        runs.into_iter().for_each(|(start, blocks)| shared.add(start, blocks));
    }
    copying.know(shared, &fork);
    Ok(())
}

/// Says of both files, which are to exchange blocks, which of them others have as well; the rest is known as their own.
pub(super) fn say_exchanged(files: [&Arc<InodeEntry>; 2], blocks: &[Run], shared: &[Run]) {
    for entry in files {
        let copying = entry.copying();
        copying.change(&copying.fork(), |known| {
            blocks.iter().for_each(|&(start, count)| known.remove(start, count));
            shared.iter().for_each(|&(start, count)| known.add(start, count));
        });
        // Looks from before are void.
        entry.sharing_changed();
    }
}

/// Says of both files that blocks are shared, before they are.
pub(super) fn say_shared(files: [&Arc<InodeEntry>; 2], runs: &[Run]) {
    for entry in files {
        let copying = entry.copying();
        copying.change(&copying.fork(), |shared| {
            runs.iter().for_each(|&(start, blocks)| shared.add(start, blocks));
        });
        // Looks from before are void.
        entry.sharing_changed();
    }
}
