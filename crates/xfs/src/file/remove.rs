//! Removes blocks from files.

use super::cow;
use super::limits;
use super::{BLOCKS_END, FileBlocks, join_ending, join_file};
use crate::attr;
use crate::bmap::{self, TransFork};
use crate::buf::BufMap;
use crate::defer;
use crate::error::{Error, Result};
use crate::ifork::ExtentList;
use crate::inode::{ForkKind, Inode, InodeEntry, Life};
use crate::mount::Mount;
use crate::trans::reservation::{LogNeed, Reservation, ReservationBuilder, WhenFull};
use crate::trans::{Trans, begin_small};
use fileio::testing::point;
use std::sync::Arc;
use xfs_format::attr::RAW;
use xfs_format::bmbt::Extent;
use xfs_format::error::FormatError;
use xfs_format::inode::{ForkFormat, InodeCore, InodeFlags, InodeFlags2};
use xfs_format::log::InodeFields;
use xfs_format::timestamp::Timestamp;
use xfs_format::types::{FileBlock, FsBlock, InodeNumber};

/// Extents that one transaction unmaps.
const REMOVED_AT_ONCE: usize = 2;
/// Blocks of attributes that one transaction frees: each is a buffer of its own in the log.
const ATTR_BLOCKS_AT_ONCE: u64 = 128;

/// Removes the blocks of a file in `blocks`, which leaves a hole. Blocks without another owner are freed.
/// [`Error::NoSpace`] comes before anything has changed, and only if blocks are shared.
pub fn remove_blocks(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: FileBlocks,
    now: Timestamp,
) -> Result<()> {
    let change = |core: &mut InodeCore| mount.touch(core, true, now);
    if !entry.snapshot().is_reflinked() {
        return remove_blocks_and(mount, entry, (blocks, WhenFull::ReservePool), change);
    }
    limits::check_room_to_cut(mount, entry, &blocks)?;
    // A hole where blocks are shared may free nothing, so it takes nothing from the reserve pool.
    match remove_blocks_and(mount, entry, (blocks.clone(), WhenFull::GoOn), change) {
        Err(Error::NoSpace) if !shares(mount, entry, blocks.clone())? => {
            remove_blocks_and(mount, entry, (blocks, WhenFull::ReservePool), change)
        }
        done => done,
    }
}

/// Whether another file has any of a file's `blocks`. The caller keeps others off them, so nobody shares them meanwhile.
fn shares(mount: &Mount, entry: &InodeEntry, blocks: FileBlocks) -> Result<bool> {
    let extents = mount.extents(&entry.current(), ForkKind::Data)?;
    match mount.sharing().check(entry.ino(), &extents, blocks) {
        Err(Error::Shared { .. }) => Ok(true),
        done => done.map(|()| false),
    }
}

/// Like [`remove_blocks`], with another change of the inode, and `when_full` for each transaction. Its times stay.
pub(super) fn remove_blocks_and(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    (blocks, when_full): (FileBlocks, WhenFull),
    change: impl Fn(&mut InodeCore),
) -> Result<()> {
    let mut is_begun = false;
    loop {
        let more = begin_small(|need| {
            let mut trans = start_to_unmap(mount, need, when_full)?;
            join_file(&mut trans, entry)?;
            if !is_begun {
                mount.check_unmarked(entry, blocks.clone())?;
            }
            let more = remove_some(&mut trans, entry.ino(), ForkKind::Data, blocks.clone())?;
            change(trans.inode_mut(entry.ino(), InodeFields::CORE).core_mut());
            trans.commit()?;
            Ok(more)
        })?;
        is_begun = true;
        if !more {
            return Ok(());
        }
    }
}

/// Whether blocks of a file that lie past its end and before `to` have data. Nobody reads these until the file grows
/// over them. A crash during [`truncate_blocks`] or [`convert_unwritten`](super::convert_unwritten) leaves such blocks,
/// and so do kernels whose speculative preallocation is not unwritten.
pub fn has_data_behind_end(mount: &Arc<Mount>, entry: &InodeEntry, to: FileBlock) -> Result<bool> {
    let inode = entry.current();
    let from = block_behind_end(mount, &inode);
    Ok(written(&*mount.extents(&inode, ForkKind::Data)?, from).is_some_and(|run| run.start < to))
}

/// Frees all blocks of a file that lie past its end and have data. The caller keeps others off them and off the end.
pub fn free_data_behind_end(mount: &Arc<Mount>, entry: &Arc<InodeEntry>) -> Result<()> {
    let mut at = block_behind_end(mount, &entry.snapshot());
    loop {
        // Holding a version of the map during a change would make the change copy it.
        let Some(run) = written(&*mount.extents(&entry.current(), ForkKind::Data)?, at) else {
            return Ok(());
        };
        at = run.end;
        remove_blocks_and(mount, entry, (run, WhenFull::ReservePool), |_| {})?;
    }
}

/// Frees all blocks of a file that lie past its end, unless they were preallocated explicitly. A kernel does this when
/// it closes a file, because it may have preallocated speculatively. Like the kernel, this skips empty files.
pub(crate) fn free_eof_blocks(mount: &Arc<Mount>, entry: &Arc<InodeEntry>) -> Result<()> {
    let inode = entry.current();
    let kept = InodeFlags::PREALLOC | InodeFlags::APPEND;
    if !inode.is_file() || inode.size() == 0 || inode.core().flags.intersects(kept) {
        return Ok(());
    }
    let from = block_behind_end(mount, &inode);
    if mount.extents(&inode, ForkKind::Data)?.end() <= from {
        return Ok(());
    }
    // Holding a version of the inode holds its map, so a change would copy it.
    drop(inode);
    remove_blocks_and(mount, entry, (from..BLOCKS_END, WhenFull::ReservePool), |_| {})
}

/// The first whole block past the end of the file.
fn block_behind_end(mount: &Mount, inode: &Inode) -> FileBlock {
    FileBlock(inode.size().div_ceil(mount.geometry().block_size.into()))
}

/// Sets a file's size and frees the blocks past the end. The caller zeroes the bytes of the last block past the end
/// first. A crash in between leaves blocks past the end. If no blocks are left, the reflink flag is cleared as well.
pub fn truncate_blocks(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, size: u64, now: Timestamp) -> Result<()> {
    let first = FileBlock(size.div_ceil(mount.geometry().block_size.into()));
    cow::cancel_cow(mount, entry, first..BLOCKS_END)?;
    let mut is_cut = false;
    loop {
        let more = begin_small(|need| {
            let mut trans = start_to_unmap(mount, need, WhenFull::ReservePool)?;
            join_file(&mut trans, entry)?;
            if !is_cut {
                mount.check_unmarked(entry, first..BLOCKS_END)?;
            }
            let more = remove_some(&mut trans, entry.ino(), ForkKind::Data, first..BLOCKS_END)?;
            if !is_cut {
                let core = trans.inode_mut(entry.ino(), InodeFields::CORE).core_mut();
                core.size = size;
                mount.touch(core, true, now);
            }
            trans.commit()?;
            Ok(more)
        })?;
        is_cut = true;
        if !more {
            return forget_sharing(mount, entry);
        }
    }
}

/// Clears the reflink flag of a file without blocks, mapped or staged.
fn forget_sharing(mount: &Arc<Mount>, entry: &Arc<InodeEntry>) -> Result<()> {
    let has_none = |inode: &Inode| inode.fork_state(ForkKind::Data).is_none_or(|fork| fork.nextents == 0);
    if !entry.snapshot().is_reflinked() || !has_none(&entry.snapshot()) {
        return Ok(());
    }
    // Nobody stages anything meanwhile.
    let fork = entry.cow().fork();
    if !fork.extents().is_empty() {
        return Ok(());
    }
    let mut trans = Trans::start(mount, ReservationBuilder::new(mount.geometry()).inodes(1).build())?;
    join_file(&mut trans, entry)?;
    if has_none(trans.inode(entry.ino())) {
        trans.inode_mut(entry.ino(), InodeFields::CORE).core_mut().flags2.remove(InodeFlags2::REFLINK);
        trans.commit()?;
    }
    Ok(())
}

/// The first run of written blocks at or after `from`, including holes in it.
fn written(extents: &ExtentList, from: FileBlock) -> Option<FileBlocks> {
    let mut at = from;
    let mut run: Option<FileBlocks> = None;
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

/// Frees all blocks of a fork of an inode that nobody uses any more, whatever its type. If that takes several
/// transactions, a crash between two of them must not leave an attribute tree without some of its blocks, because
/// recovery may walk it.
pub(crate) fn free_all(
    mount: &Arc<Mount>,
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
        let mut trans = start_to_unmap(mount, LogNeed::Most, WhenFull::ReservePool)?;
        join_ending(&mut trans, entry, life)?;
        let ino = entry.ino();
        debug_assert!(entry.is_ending(trans.inode(ino)), "inode {ino} is in use");
        let mut first = FileBlock(0);
        if kind == ForkKind::Attr {
            let map = bmap::extents(&trans, ino, kind)?;
            first.0 = map.end().0.saturating_sub(ATTR_BLOCKS_AT_ONCE);
            let at_once = first.0 == 0 && map.len() <= REMOVED_AT_ONCE;
            // Holding a version of the map during a change would make the change copy it.
            drop(map);
            if !rootless && !at_once {
                attr::edit::clear_root(&mut TransFork::new(&mut trans, ino, kind))?;
                rootless = true;
            }
        }
        let blocks = trans.inode(ino).blocks();
        remove_some(&mut trans, ino, kind, first..BLOCKS_END)?;
        if trans.inode(ino).blocks() >= blocks {
            // The fork counts extents that its map does not have: this would never end.
            return Err(Error::corrupt_inode(ino, FormatError::new("inode", "extent count")));
        }
        trans.commit()?;
        point("some blocks are freed");
    }
}

pub(super) fn reservation_to_unmap(mount: &Mount) -> Reservation {
    let at_once = REMOVED_AT_ONCE as u64;
    let most = ReservationBuilder::new(mount.geometry())
        .inodes(1)
        .map_changes(2 * at_once)
        .frees(at_once)
        .bytes(64 << 10)
        .log_count(2);
    most.build_to_begin_small()
}

fn start_to_unmap(mount: &Arc<Mount>, need: LogNeed, when_full: WhenFull) -> Result<Trans<'_>> {
    let reservation = Reservation { when_full, ..reservation_to_unmap(mount) };
    Trans::start(mount, reservation.with_log_space(need))
}

/// Unmaps some extents at the end of `blocks`. Returns whether more are left.
fn remove_some(trans: &mut Trans<'_>, ino: InodeNumber, kind: ForkKind, blocks: FileBlocks) -> Result<bool> {
    // From the end: then the rest is as if the file had been shorter.
    let unmapped = bmap::unmap(trans, ino, kind, blocks, REMOVED_AT_ONCE)?;
    for extent in &unmapped.freed {
        if kind == ForkKind::Attr || !trans.inode(ino).is_file() {
            forget(trans, kind, extent)?;
        }
        defer::defer_give_up(trans, ino, kind, extent)?;
    }
    Ok(unmapped.rest.is_some())
}

/// What was logged of metadata blocks must not be replayed over their next content. Each attribute block is a buffer;
/// the target of a symbolic link is one per extent.
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
        let buf = trans.buf_get(&[BufMap { daddr, len: each << geometry.block_log }], &RAW)?;
        trans.invalidate(buf);
    }
    Ok(())
}
