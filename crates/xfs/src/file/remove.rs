//! Blocks that a file gives back.

use super::copies;
use super::limits;
use super::{BLOCKS_END, Blocks, join_ending, join_file};
use crate::attr;
use crate::bmap;
use crate::buf::Piece;
use crate::defer;
use crate::error::{Error, Result};
use crate::ifork::ExtentList;
use crate::inode::{ForkKind, Inode, InodeEntry, Life};
use crate::mount::Mount;
use crate::trans::Trans;
use crate::trans::reservation::Need;
use crate::trans_fork::TransFork;
use fileio::testing::point;
use std::sync::Arc;
use xfs_format::attr::RAW;
use xfs_format::bmbt::Extent;
use xfs_format::error::FormatError;
use xfs_format::inode::{ForkFormat, InodeCore, InodeFlags, InodeFlags2};
use xfs_format::log::InodeFields;
use xfs_format::timestamp::Timestamp;
use xfs_format::types::{FileBlock, FsBlock, InodeNumber};

/// Extents that one transaction takes out of a map.
const REMOVED_AT_ONCE: usize = 2;
/// Blocks of attributes that one transaction frees: each is a buffer of its own in the log.
const ATTR_BLOCKS_AT_ONCE: u64 = 128;

/// Gives up the blocks of a file in `blocks`: a hole is left. What nobody else has is freed. [`Error::NoSpace`] comes
/// before anything has changed, and only where blocks are shared.
pub fn remove_blocks(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: Blocks,
    now: Timestamp,
) -> Result<()> {
    if entry.peek().is_reflinked() {
        limits::check_room_to_cut(mount, entry, &blocks)?;
    }
    remove_blocks_and(mount, entry, blocks, |core| (core.mtime, core.ctime) = (now, now))
}

/// The same, with another change of the inode; times stay as they are.
pub(super) fn remove_blocks_and(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: Blocks,
    change: impl Fn(&mut InodeCore),
) -> Result<()> {
    let mut checked = false;
    loop {
        let mut trans = Trans::start(mount, need_to_remove(mount).reservation().or_no_blocks())?;
        join_file(&mut trans, entry)?;
        if !std::mem::replace(&mut checked, true) {
            mount.check_unmarked(entry, blocks.clone())?;
        }
        let more = remove_some(&mut trans, entry.ino(), ForkKind::Data, blocks.clone())?;
        change(trans.inode_mut(entry.ino(), InodeFields::CORE).core_mut());
        trans.commit()?;
        if !more {
            return Ok(());
        }
    }
}

/// Whether blocks of a file that lie behind its end and before `to` hold data. Nobody would read them, until the file
/// grows over them: a crash in the middle of [`truncate_blocks`] or
/// [`data_written`](super::data_written) leaves such, and so do kernels whose speculative
/// preallocation is not unwritten.
pub fn has_data_behind_end(mount: &Arc<Mount>, entry: &InodeEntry, to: FileBlock) -> Result<bool> {
    let inode = entry.current();
    let from = block_behind_end(mount, &inode);
    Ok(written(&*mount.extents(&inode, ForkKind::Data)?, from).is_some_and(|run| run.start < to))
}

/// Frees all blocks of a file that lie behind its end and hold data. The caller keeps others off them, and off the
/// end.
pub fn free_data_behind_end(mount: &Arc<Mount>, entry: &Arc<InodeEntry>) -> Result<()> {
    let mut at = block_behind_end(mount, &entry.peek());
    loop {
        // Who holds a map while it changes has it copied.
        let Some(run) = written(&*mount.extents(&entry.current(), ForkKind::Data)?, at) else {
            return Ok(());
        };
        at = run.end;
        remove_blocks_and(mount, entry, run, |_| {})?;
    }
}

/// Frees all blocks of a file that lie behind its end, unless that was set aside on purpose: what a kernel does when it
/// lets go of a file, as it then may have speculated. It does not look behind the end of an empty file, and we neither.
pub(crate) fn free_speculated(mount: &Arc<Mount>, entry: &Arc<InodeEntry>) -> Result<()> {
    let inode = entry.current();
    let kept = InodeFlags::PREALLOC | InodeFlags::APPEND;
    if !inode.is_file() || inode.size() == 0 || inode.core().flags.intersects(kept) {
        return Ok(());
    }
    let from = block_behind_end(mount, &inode);
    if mount.extents(&inode, ForkKind::Data)?.end() <= from {
        return Ok(());
    }
    // Who holds a version of the inode holds its map, which is copied then.
    drop(inode);
    remove_blocks_and(mount, entry, from..BLOCKS_END, |_| {})
}

/// The first block of which nothing lies before the end of the file.
fn block_behind_end(mount: &Mount, inode: &Inode) -> FileBlock {
    FileBlock(inode.size().div_ceil(mount.geometry().block_size.into()))
}

/// Sets the end of a file, and frees what lies behind it. The bytes of the last block behind the end are the
/// caller's to zero, before. A crash in between leaves blocks behind the end. A file that has no blocks then has no flag
/// for shared ones either.
pub fn truncate_blocks(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, size: u64, now: Timestamp) -> Result<()> {
    let first = FileBlock(size.div_ceil(mount.geometry().block_size.into()));
    copies::give_back_copies(mount, entry, first..BLOCKS_END)?;
    let mut is_cut = false;
    loop {
        let mut trans = Trans::start(mount, need_to_remove(mount).reservation().or_no_blocks())?;
        join_file(&mut trans, entry)?;
        if !is_cut {
            mount.check_unmarked(entry, first..BLOCKS_END)?;
        }
        let more = remove_some(&mut trans, entry.ino(), ForkKind::Data, first..BLOCKS_END)?;
        if !is_cut {
            let core = trans.inode_mut(entry.ino(), InodeFields::CORE).core_mut();
            core.size = size;
            (core.mtime, core.ctime) = (now, now);
            is_cut = true;
        }
        trans.commit()?;
        if !more {
            return forget_sharing(mount, entry);
        }
    }
}

/// Takes the flag for shared blocks off a file that has no blocks, neither its own nor staged.
fn forget_sharing(mount: &Arc<Mount>, entry: &Arc<InodeEntry>) -> Result<()> {
    let has_none = |inode: &Inode| inode.fork_state(ForkKind::Data).is_none_or(|fork| fork.nextents == 0);
    if !entry.peek().is_reflinked() || !has_none(&entry.peek()) {
        return Ok(());
    }
    // Nobody stages anything meanwhile.
    let fork = entry.copying().fork();
    if !fork.extents().is_empty() {
        return Ok(());
    }
    let mut trans = Trans::start(mount, Need::new(mount.geometry()).inodes(1).reservation())?;
    join_file(&mut trans, entry)?;
    if has_none(trans.inode(entry.ino())) {
        trans.inode_mut(entry.ino(), InodeFields::CORE).core_mut().flags2.remove(InodeFlags2::REFLINK);
        trans.commit()?;
    }
    Ok(())
}

/// The first run at or behind `from` of blocks that hold data, with the holes in it.
fn written(extents: &ExtentList, from: FileBlock) -> Option<Blocks> {
    let mut at = from;
    let mut run: Option<Blocks> = None;
    while let Some(extent) = extents.ending_behind(at) {
        match &mut run {
            Some(run) if extent.unwritten => {
                run.end = extent.startoff;
                break;
            }
            None if !extent.unwritten => run = Some(extent.startoff.max(from)..BLOCKS_END),
            _ => {}
        }
        at = extent.end();
    }
    run
}

/// Frees all blocks of a fork of an inode that nobody uses any more, whatever its type. If that takes more than one
/// transaction, a crash between two must not leave a tree of attributes without some of its blocks: whoever frees the
/// inode then may go through it.
pub(crate) fn free_all(
    volume: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    life: Life,
    kind: ForkKind,
) -> Result<()> {
    let mut rootless = false;
    loop {
        let inode = entry.current();
        let Some(fork) = inode.fork_state(kind) else { return Ok(()) };
        if fork.nextents == 0 && fork.format != ForkFormat::Btree {
            return Ok(());
        }
        let mut trans = Trans::start(volume, need_to_remove(volume).reservation().or_no_blocks())?;
        join_ending(&mut trans, entry, life)?;
        let ino = entry.ino();
        debug_assert!(entry.is_ending(trans.inode(ino)), "inode {ino} is in use");
        let mut first = FileBlock(0);
        if kind == ForkKind::Attr {
            let map = trans.extents(ino, kind)?;
            first.0 = map.end().0.saturating_sub(ATTR_BLOCKS_AT_ONCE);
            let at_once = first.0 == 0 && map.len() <= REMOVED_AT_ONCE;
            // Whoever holds a map while it changes has it copied.
            drop(map);
            if !rootless && !at_once {
                attr::edit::clear_root(&mut TransFork::new(&mut trans, ino, kind))?;
                rootless = true;
            }
        }
        let blocks = trans.inode(ino).blocks();
        remove_some(&mut trans, ino, kind, first..BLOCKS_END)?;
        if trans.inode(ino).blocks() >= blocks {
            // A fork that counts what its map does not have: this would never end.
            return Err(Error::corrupt_inode(ino, FormatError::new("inode", "extent count")));
        }
        trans.commit()?;
        point("some blocks are freed");
    }
}

pub(super) fn need_to_remove(volume: &Mount) -> Need<'_> {
    let at_once = REMOVED_AT_ONCE as u64;
    Need::new(volume.geometry()).inodes(1).map_changes(2 * at_once).frees(at_once).bytes(64 << 10).steps(2)
}

/// Takes some extents out of the end of `blocks`; tells whether more are left there.
fn remove_some(trans: &mut Trans<'_>, ino: InodeNumber, kind: ForkKind, blocks: Blocks) -> Result<bool> {
    // From the back: what is left is as if the file had been shorter.
    let unmapped = bmap::unmap(trans, ino, kind, blocks, REMOVED_AT_ONCE)?;
    for extent in &unmapped.freed {
        if kind == ForkKind::Attr || !trans.inode(ino).is_file() {
            forget(trans, kind, extent)?;
        }
        defer::give_up_later(trans, ino, kind, extent)?;
    }
    Ok(unmapped.rest.is_some())
}

/// What was logged of metadata blocks must not be replayed over what lies there next. Attribute blocks are buffers
/// each; the target of a symbolic link is one for each extent.
fn forget(trans: &mut Trans<'_>, kind: ForkKind, extent: &Extent) -> Result<()> {
    let geometry = trans.geometry();
    let (each, count) = match kind {
        ForkKind::Attr => (1, u64::from(extent.blockcount)),
        ForkKind::Data => (u64::from(extent.blockcount), 1),
    };
    for nth in 0..count {
        let Some(daddr) = geometry.extent_daddr(FsBlock(extent.startblock.0 + nth * each), each) else {
            continue;
        };
        let buf = trans.buf_new(&[Piece { daddr, len: each << geometry.block_log }], &RAW)?;
        trans.invalidate(buf);
    }
    Ok(())
}
