//! Blocks for holes, and what becomes of them once they hold data.

use super::copies::{self, Unclaims};
use super::limits;
use super::remove;
use super::{Blocks, Told, join_file};
use crate::agf;
use crate::alloc::{Purpose, Request, Target};
use crate::bmap;
use crate::error::{Error, Result};
use crate::ifork::Mapped;
use crate::inode::{ForkKind, InodeEntry, TakenTime, after_overwrite};
use crate::mount::Mount;
use crate::trans::Trans;
use crate::trans::reservation::Need;
use std::sync::Arc;
use xfs_format::bmbt::{BLOCKCOUNT_BITS, Extent};
use xfs_format::inode::InodeFlags;
use xfs_format::log::InodeFields;
use xfs_format::timestamp::Timestamp;
use xfs_format::types::{FileBlock, FsBlock};

/// The longest extent that a record can hold.
pub(super) const EXTENT_BLOCKS_MAX: u64 = (1 << BLOCKCOUNT_BITS) - 1;
/// Extents that one transaction converts.
const CONVERTED_AT_ONCE: usize = 2;

/// What a file was given by an allocation.
#[derive(Debug, Default)]
#[must_use = "whoever gives up afterwards takes it back"]
pub struct Given {
    runs: Vec<Blocks>,
}

impl Given {
    fn add(&mut self, run: Blocks) {
        match self.runs.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ if run.start < run.end => self.runs.push(run),
            _ => {}
        }
    }
}

/// Gives every hole of a file in `blocks` unwritten blocks, all or none: an error that [is a
/// refusal](Error::is_refusal) leaves the file as it was. The caller keeps others off `blocks`, whole. Gives what
/// [`take_back`] needs.
pub fn allocate_blocks(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, blocks: Blocks) -> Result<Given> {
    let mut given = Given::default();
    // Whoever is given blocks must be able to give them back, and to say that they hold data.
    limits::check_log_for_blocks(mount)?;
    copies::check_room(mount, || missing_blocks(mount, entry, blocks.clone()))?;
    let mut at = blocks.start;
    while let Some(hole) = next_hole(mount, entry, at..blocks.end)? {
        let start = hole.start;
        match limits::check_extents_left(mount, entry).and_then(|()| fill_hole(mount, entry, hole)) {
            Ok(end) => {
                given.add(start..end);
                at = end;
            }
            // What is free may lie in too many pieces for the map to tell of.
            Err(error) => {
                if error.is_refusal() {
                    take_back(mount, entry, given)?;
                }
                return Err(error);
            }
        }
    }
    Ok(given)
}

/// Frees what [`allocate_blocks`] gave a file, which nothing was written to: the file is as
/// it was before.
pub fn take_back(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, given: Given) -> Result<()> {
    for blocks in given.runs.into_iter().rev() {
        remove::remove_blocks_and(mount, entry, blocks, |_| {})?;
    }
    Ok(())
}

/// How many of `blocks` are holes.
pub(super) fn missing_blocks(mount: &Arc<Mount>, entry: &InodeEntry, blocks: Blocks) -> Result<u64> {
    let mut missing = 0;
    let mut at = blocks.start;
    while let Some(hole) = next_hole(mount, entry, at..blocks.end)? {
        missing += hole.end.0 - hole.start.0;
        at = hole.end;
    }
    Ok(missing)
}

/// Sees to it that [`data_written`] will not be refused half-way: it asks for the limits. Where extents
/// that never held data will be told of, what the map may need for that is reserved; if there is no space for it, they are
/// cut at the ends of `blocks` now. [`Error::NoSpace`] and the others come before any data are written.
pub fn prepare_blocks(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, blocks: &Blocks) -> Result<()> {
    limits::check_block_change(mount, entry)?;
    limits::check_room_to_cut(mount, entry, blocks)?;
    let extents = mount.extents(&entry.current(), ForkKind::Data)?;
    if !extents.has_unwritten(blocks) {
        return Ok(());
    }
    let wanted = need_to_mark(mount).reservation().blocks;
    match mount.write_side()?.counters.reserve_blocks(wanted) {
        Ok(()) => {
            entry.copying().to_mark().keep(blocks, wanted);
            return Ok(());
        }
        Err(Error::NoSpace) => {}
        Err(error) => return Err(error),
    }
    let is_inside = |at: &FileBlock| matches!(extents.lookup(*at), Mapped::Extent(extent) if extent.unwritten && extent.startoff < *at);
    let ends = [blocks.start, blocks.end].into_iter().filter(is_inside);
    let need = Need::new(mount.geometry()).inodes(1).map_changes(2).steps(2);
    let mut trans = Trans::start(mount, need.reservation().or_no_blocks())?;
    join_file(&mut trans, entry)?;
    for at in ends {
        bmap::split_map(&mut trans, entry.ino(), at)?;
    }
    trans.commit()?;
    Ok(())
}

/// The first run without blocks, as far as it lies in `blocks`.
fn next_hole(mount: &Arc<Mount>, entry: &InodeEntry, blocks: Blocks) -> Result<Option<Blocks>> {
    let inode = entry.current();
    let extents = mount.extents(&inode, ForkKind::Data)?;
    let mut at = blocks.start;
    while at < blocks.end {
        match extents.lookup(at) {
            Mapped::Extent(extent) => at = extent.end(),
            Mapped::Hole(_, end) => {
                return Ok(Some(at..end.map_or(blocks.end, |end| end.min(blocks.end))));
            }
        }
    }
    Ok(None)
}

/// Gives every hole of a file in `blocks` unwritten blocks, of those that are `kept` for it.
pub(super) fn fill_holes_with(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: Blocks,
    kept: &mut u64,
) -> Result<()> {
    let mut at = blocks.start;
    while let Some(hole) = next_hole(mount, entry, at..blocks.end)? {
        at = fill_hole_with(mount, entry, hole, Some(kept))?;
    }
    Ok(())
}

/// Allocates one extent at the start of a hole, if it is still there; gives where to go on.
fn fill_hole(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, hole: Blocks) -> Result<FileBlock> {
    fill_hole_with(mount, entry, hole, None)
}

/// The same, with all of what is `kept`, if anything is; what it does not take of that is kept still.
fn fill_hole_with(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    hole: Blocks,
    kept: Option<&mut u64>,
) -> Result<FileBlock> {
    let len = (hole.end.0 - hole.start.0).min(EXTENT_BLOCKS_MAX);
    let Some(kept) = kept else {
        let mut trans = start_with_room(mount, len)?;
        let end = fill_hole_in(mount, &mut trans, entry, hole.start, len)?;
        trans.commit()?;
        return Ok(end);
    };
    let need = need_for_extent(mount, len).reservation();
    Trans::with_kept(mount, need, kept, |trans| fill_hole_in(mount, trans, entry, hole.start, len))
}

fn fill_hole_in(
    mount: &Arc<Mount>,
    trans: &mut Trans<'_>,
    entry: &Arc<InodeEntry>,
    start: FileBlock,
    len: u64,
) -> Result<FileBlock> {
    join_file(trans, entry)?;
    let ino = entry.ino();
    let extents = trans.extents(ino, ForkKind::Data)?;
    // Somebody else may have been faster.
    let Mapped::Hole(_, end) = extents.lookup(start) else { return Ok(start) };
    let len = end.map_or(len, |end| len.min(end.0 - start.0));
    let extent = allocate_extent(mount, trans, entry, start, len)?;
    bmap::map(trans, ino, ForkKind::Data, extent)?;
    Ok(extent.end())
}

/// Takes space for up to `len` blocks of a file, from `start` on, near what lies before them.
fn allocate_extent(
    mount: &Mount,
    trans: &mut Trans<'_>,
    entry: &InodeEntry,
    start: FileBlock,
    len: u64,
) -> Result<Extent> {
    let extents = trans.extents(entry.ino(), ForkKind::Data)?;
    let target = match extents.before(start) {
        // Right behind what lies before it, as if it had been written in one go.
        Some(before) if !extents.is_empty() => {
            Target::Near(FsBlock(before.startblock.0 + u64::from(before.blockcount)))
        }
        _ => trans.allocation_target(entry.ino()),
    };
    let most = u32::try_from(len.min(EXTENT_BLOCKS_MAX)).unwrap_or(u32::MAX);
    let got = agf::allocate(trans, target, Request::new(1, most, Purpose::Data))?;
    let startblock = got.start(mount.geometry());
    if let Some(copying) = entry.copying_if_any() {
        copying.got_free_blocks(startblock, got.run.len.into());
    }
    Ok(Extent { startoff: start, startblock, blockcount: got.run.len, unwritten: true })
}

/// Gives holes of a file blocks that hold data from the first moment on: `write` puts it there, before anybody can
/// see them, whenever it is told of an extent. The file ends at `size` at the earliest; its times stay. Who wants
/// space in the same group waits for `write`. [`Error::NoSpace`] leaves what was written so far.
///
/// All of `blocks` must be holes behind the end of the file; the caller keeps others off them.
pub fn fill_blocks(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: Blocks,
    size: u64,
    write: &mut dyn FnMut(Extent) -> Result<()>,
) -> Result<()> {
    let mut at = blocks.start;
    while at < blocks.end {
        let mut trans = start_with_room(mount, (blocks.end.0 - at.0).min(EXTENT_BLOCKS_MAX))?;
        join_file(&mut trans, entry)?;
        let ino = entry.ino();
        let mut extent = allocate_extent(mount, &mut trans, entry, at, blocks.end.0 - at.0)?;
        extent.unwritten = false;
        bmap::map(&mut trans, ino, ForkKind::Data, extent)?;
        let core = trans.inode_mut(ino, InodeFields::CORE).core_mut();
        core.size = core.size.max(size.min(extent.end().0 << mount.geometry().block_log));
        write(extent)?;
        trans.commit()?;
        at = extent.end();
    }
    Ok(())
}

/// Reserves for an extent of so many blocks, or of as many as there are.
fn start_with_room(mount: &Arc<Mount>, len: u64) -> Result<Trans<'_>> {
    let mut len = len;
    loop {
        match Trans::start(mount, need_for_extent(mount, len).reservation()) {
            // A file that does not fit as a whole is filled up as far as it goes.
            Err(Error::NoSpace) if len > 1 => len /= 2,
            other => return other,
        }
    }
}

/// Makes all that is written in `blocks` unwritten, so that it reads as zeroes. [`Error::NoSpace`] comes before
/// anything has changed.
pub fn blank_blocks(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: Blocks,
    now: Timestamp,
) -> Result<()> {
    limits::check_block_change(mount, entry)?;
    limits::check_room_to_cut(mount, entry, &blocks)?;
    // Others keep what they share with this file, which gets blocks of its own.
    copies::stage_copies(mount, entry, blocks.clone(), Told::AtOnce)?;
    let claim = Unclaims::new(mount, entry, blocks.clone());
    split_ends(mount, entry, &blocks)?;
    copies::take_claimed(mount, entry, blocks.clone(), true, Told::AtOnce)?;
    claim.keep();
    let mut todo = Some(blocks);
    while let Some(blocks) = todo {
        let mut trans = Trans::start(mount, need_to_mark(mount).reservation().or_no_blocks())?;
        join_file(&mut trans, entry)?;
        todo = bmap::mark(&mut trans, entry.ino(), blocks, true, CONVERTED_AT_ONCE)?;
        let core = trans.inode_mut(entry.ino(), InodeFields::CORE).core_mut();
        // Or else a kernel frees what of it lies behind the end.
        core.flags |= InodeFlags::PREALLOC;
        (core.mtime, core.ctime) = (now, now);
        trans.commit()?;
    }
    Ok(())
}

/// Cuts extents at both ends of `blocks`, which is all that blanking can need space for.
fn split_ends(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, blocks: &Blocks) -> Result<()> {
    let mut trans = Trans::start(mount, need_to_mark(mount).reservation())?;
    join_file(&mut trans, entry)?;
    mount.check_unmarked(entry, blocks.clone())?;
    bmap::split_map(&mut trans, entry.ino(), blocks.start)?;
    bmap::split_map(&mut trans, entry.ino(), blocks.end)?;
    trans.commit()?;
    Ok(())
}

/// Says that all unwritten blocks in `blocks` hold data now, and that the file ends at `size` at the earliest.
pub fn data_written(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: Blocks,
    size: Option<u64>,
    now: Timestamp,
) -> Result<()> {
    let copying = entry.copying_if_any();
    let reserve = copying.map(|copying| copying.to_mark().take(&blocks));
    let mut kept = reserve.as_ref().map_or(0, |reserve| reserve.blocks);
    let told = tell_written(mount, entry, blocks.clone(), (size, ChangedAt::Time(now)), &mut kept);
    if let Some((copying, reserve)) = copying.zip(reserve) {
        kept = copying.to_mark().give_back(reserve, kept, &blocks, |_| true);
    }
    mount.write_side()?.counters.return_blocks(kept);
    told
}

/// `kept`: blocks that were reserved for it.
pub(super) fn tell_written(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: Blocks,
    (size, changed): (Option<u64>, ChangedAt),
    kept: &mut u64,
) -> Result<()> {
    let mut todo = Some(blocks);
    loop {
        let now = todo.take();
        let (left, noted) = Trans::with_kept(mount, need_to_mark(mount).reservation(), kept, |trans| {
            join_file(trans, entry)?;
            let left = match now {
                Some(blocks) => bmap::mark(trans, entry.ino(), blocks, false, CONVERTED_AT_ONCE)?,
                None => None,
            };
            let noted = match left {
                None => tell_end_of_write(mount, trans, entry, size, changed),
                Some(_) => None,
            };
            Ok((left, noted))
        })?;
        let Some(blocks) = left else {
            if let Some(noted) = noted {
                noted.told();
            }
            return Ok(());
        };
        todo = Some(blocks);
    }
}

/// Where the file ends at the earliest, and its times, with the last of what a write has to tell.
fn tell_end_of_write<'e>(
    mount: &Mount,
    trans: &mut Trans<'_>,
    entry: &'e InodeEntry,
    size: Option<u64>,
    changed: ChangedAt,
) -> Option<TakenTime<'e>> {
    let ino = entry.ino();
    let noted = match changed {
        ChangedAt::Noted => entry.overwritten().take(trans.inode(ino).life()),
        ChangedAt::Time(_) => None,
    };
    let core = trans.inode_mut(ino, InodeFields::CORE).core_mut();
    core.size = size.map_or(core.size, |size| core.size.max(size));
    let time = noted.as_ref().map(|noted| mount.still_time().unwrap_or(noted.time()));
    (core.mtime, core.ctime) = match (changed, time) {
        (ChangedAt::Time(now), _) => (now, now),
        (ChangedAt::Noted, Some(time)) => after_overwrite((core.mtime, core.ctime), time),
        (ChangedAt::Noted, None) => (core.mtime, core.ctime),
    };
    noted
}

/// When the content changed of which something is told.
#[derive(Clone, Copy, Debug)]
pub(super) enum ChangedAt {
    /// Then.
    Time(Timestamp),
    /// When the last note says, if the inode does not know of that yet.
    Noted,
}

/// An extent of so many blocks is allocated and mapped.
pub(super) fn need_for_extent(volume: &Mount, len: u64) -> Need<'_> {
    Need::new(volume.geometry()).inodes(1).extents(1).map_changes(1).steps(2).blocks(len)
}

/// Extents are made unwritten, or said to hold data.
pub(super) fn need_to_mark(volume: &Mount) -> Need<'_> {
    Need::new(volume.geometry()).inodes(1).map_changes(2 * CONVERTED_AT_ONCE as u64).steps(2)
}
