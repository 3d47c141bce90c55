//! Allocates blocks for holes, and converts them once they have data.

use super::cow::{self, Unclaims};
use super::limits;
use super::remove;
use super::{FileBlocks, MapUpdate, join_file};
use crate::agf;
use crate::alloc::{Purpose, Request, Target};
use crate::bmap;
use crate::error::{Error, Result};
use crate::ifork::Mapped;
use crate::inode::{ForkKind, InodeEntry};
use crate::mount::Mount;
use crate::trans::reservation::{LogNeed, Reservation, ReservationBuilder, WhenFull};
use crate::trans::{Trans, begin_small};
use std::sync::Arc;
use xfs_format::bmbt::{BLOCKCOUNT_BITS, Extent};
use xfs_format::inode::InodeFlags;
use xfs_format::log::InodeFields;
use xfs_format::timestamp::Timestamp;
use xfs_format::types::{FileBlock, FsBlock, InodeNumber};

/// Maximum length of an extent in a record.
pub(super) const EXTENT_BLOCKS_MAX: u64 = (1 << BLOCKCOUNT_BITS) - 1;
/// Extents that one transaction converts.
const CONVERTED_AT_ONCE: usize = 2;

/// The runs that an allocation gave to a file.
#[derive(Debug, Default)]
#[must_use = "whoever gives up afterwards takes it back"]
pub struct AllocatedRuns {
    runs: Vec<FileBlocks>,
}

impl AllocatedRuns {
    fn add(&mut self, run: FileBlocks) {
        match self.runs.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ if run.start < run.end => self.runs.push(run),
            _ => {}
        }
    }
}

/// Allocates unwritten blocks for every hole of a file in `blocks`, all or none: an error that [is a
/// refusal](Error::is_refusal) leaves the file as it was. The caller keeps others off all of `blocks`. Returns what
/// [`take_back`] needs.
pub fn allocate_blocks(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: FileBlocks,
) -> Result<AllocatedRuns> {
    let mut given = AllocatedRuns::default();
    // Allocated blocks must be removable and convertible: check the limits of those operations first.
    limits::check_log_for_blocks(mount)?;
    cow::check_room(mount, || missing_blocks(mount, entry, blocks.clone()))?;
    let mut at = blocks.start;
    while let Some(hole) = next_hole(mount, entry, at..blocks.end)? {
        let start = hole.start;
        match limits::check_extents_left(mount, entry).and_then(|()| fill_hole(mount, entry, hole)) {
            Ok(end) => {
                given.add(start..end);
                at = end;
            }
            // Free space may be too fragmented for the map.
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

/// Frees what [`allocate_blocks`] gave a file, before anything was written to it: the file is as it was before.
pub fn take_back(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, given: AllocatedRuns) -> Result<()> {
    for blocks in given.runs.into_iter().rev() {
        // Nobody shares them yet.
        remove::remove_blocks_and(mount, entry, (blocks, WhenFull::ReservePool), |_| {})?;
    }
    Ok(())
}

/// How many of `blocks` are holes.
pub(super) fn missing_blocks(mount: &Arc<Mount>, entry: &InodeEntry, blocks: FileBlocks) -> Result<u64> {
    let mut missing = 0;
    let mut at = blocks.start;
    while let Some(hole) = next_hole(mount, entry, at..blocks.end)? {
        missing += hole.end.0 - hole.start.0;
        at = hole.end;
    }
    Ok(missing)
}

/// Ensures that [`convert_unwritten`] will not be refused half-way, by checking its limits. For unwritten extents that
/// will be converted, reserves what the map may need. If there is no space for that, it splits the extents at the ends
/// of `blocks` now. [`Error::NoSpace`] and other refusals come before any data are written.
pub fn prepare_blocks(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, blocks: &FileBlocks) -> Result<()> {
    limits::check_block_change(mount, entry)?;
    limits::check_room_to_cut(mount, entry, blocks)?;
    let extents = mount.extents(&entry.current(), ForkKind::Data)?;
    if !extents.has_unwritten(blocks) {
        return Ok(());
    }
    let wanted = reservation_to_convert(mount).blocks;
    match mount.write_side()?.counters.reserve_blocks(wanted) {
        Ok(()) => {
            entry.cow().to_mark().keep(blocks, wanted);
            return Ok(());
        }
        Err(Error::NoSpace) => {}
        Err(error) => return Err(error),
    }
    let is_inside = |at: &FileBlock| matches!(extents.lookup(*at), Mapped::Extent(extent) if extent.unwritten && extent.startoff < *at);
    let ends = [blocks.start, blocks.end].into_iter().filter(is_inside);
    let need = ReservationBuilder::new(mount.geometry()).inodes(1).map_changes(2).log_count(2);
    let mut trans = Trans::start(mount, need.build().or_half_of_reserve_pool())?;
    join_file(&mut trans, entry)?;
    for at in ends {
        bmap::split_map(&mut trans, entry.ino(), at)?;
    }
    trans.commit()?;
    Ok(())
}

/// The first hole of a file within `blocks`.
fn next_hole(mount: &Arc<Mount>, entry: &InodeEntry, blocks: FileBlocks) -> Result<Option<FileBlocks>> {
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

/// Allocates unwritten blocks for every hole of a file in `blocks`, from the `kept` ones.
pub(super) fn fill_holes_with(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: FileBlocks,
    kept: &mut u64,
) -> Result<()> {
    let mut at = blocks.start;
    while let Some(hole) = next_hole(mount, entry, at..blocks.end)? {
        at = fill_hole_with(mount, entry, hole, Some(kept))?;
    }
    Ok(())
}

/// Allocates one extent at the start of a hole, if that is still there. Returns where to continue.
fn fill_hole(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, hole: FileBlocks) -> Result<FileBlock> {
    fill_hole_with(mount, entry, hole, None)
}

/// The same with all `kept` blocks, if there are any. What it does not use stays in `kept`.
fn fill_hole_with(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    hole: FileBlocks,
    kept: Option<&mut u64>,
) -> Result<FileBlock> {
    let len = (hole.end.0 - hole.start.0).min(EXTENT_BLOCKS_MAX);
    let fill = |trans: &mut Trans<'_>| fill_hole_in(mount, trans, entry, hole.start, len);
    let Some(kept) = kept else {
        return begin_small(|need| {
            let mut trans = start_with_room(mount, len, need)?;
            let end = fill(&mut trans)?;
            trans.commit()?;
            Ok(end)
        });
    };
    let reservation = reservation_for_extent(mount, len);
    begin_small(|need| Trans::with_kept(mount, reservation.with_log_space(need), kept, fill))
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
    let extents = bmap::extents(trans, ino, ForkKind::Data)?;
    // Another thread may have been faster.
    let Mapped::Hole(_, end) = extents.lookup(start) else { return Ok(start) };
    let len = end.map_or(len, |end| len.min(end.0 - start.0));
    let extent = allocate_extent(mount, trans, entry, start, len)?;
    bmap::map(trans, ino, ForkKind::Data, extent)?;
    Ok(extent.end())
}

/// Allocates up to `len` blocks for a file at `start`, near the blocks before them.
fn allocate_extent(
    mount: &Mount,
    trans: &mut Trans<'_>,
    entry: &InodeEntry,
    start: FileBlock,
    len: u64,
) -> Result<Extent> {
    let extents = bmap::extents(trans, entry.ino(), ForkKind::Data)?;
    let target = match extents.before(start) {
        // Right after the blocks before it, as if everything had been written at once.
        Some(before) if !extents.is_empty() => {
            Target::Near(FsBlock(before.startblock.0 + u64::from(before.blockcount)))
        }
        _ => bmap::allocation_target(trans, entry.ino()),
    };
    let most = u32::try_from(len.min(EXTENT_BLOCKS_MAX)).unwrap_or(u32::MAX);
    let got = agf::allocate(trans, target, Request::new(1, most, Purpose::Data))?;
    let startblock = got.start(mount.geometry());
    if let Some(cow) = entry.cow_if_any() {
        cow.got_free_blocks(startblock, got.run.len.into());
    }
    Ok(Extent { startoff: start, startblock, blockcount: got.run.len, unwritten: true })
}

/// Allocates blocks for holes of a file that have data from the start. For each extent, `write` writes the data before
/// anybody can see them. Afterwards the file is at least `size` long. Its times stay. Others that want space in the
/// same group wait for `write`. [`Error::NoSpace`] leaves what was written so far.
///
/// All of `blocks` must be holes past the end of the file. The caller keeps others off them.
pub fn fill_blocks(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: FileBlocks,
    size: u64,
    write: &mut dyn FnMut(Extent) -> Result<()>,
) -> Result<()> {
    let mut at = blocks.start;
    while at < blocks.end {
        // What is written is not written again.
        let len = (blocks.end.0 - at.0).min(EXTENT_BLOCKS_MAX);
        let mut trans = start_with_room(mount, len, LogNeed::Most)?;
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

/// Reserves for an extent of this many blocks, or of as many as there are.
fn start_with_room(mount: &Arc<Mount>, len: u64, need: LogNeed) -> Result<Trans<'_>> {
    let mut len = len;
    loop {
        match Trans::start(mount, reservation_for_extent(mount, len).with_log_space(need)) {
            // Fill up the volume with as much of the file as fits.
            Err(Error::NoSpace) if len > 1 => len /= 2,
            other => return other,
        }
    }
}

/// Makes all written extents in `blocks` unwritten, so that they read as zeroes. [`Error::NoSpace`] comes before
/// anything has changed.
pub fn mark_unwritten(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: FileBlocks,
    now: Timestamp,
) -> Result<()> {
    limits::check_block_change(mount, entry)?;
    limits::check_room_to_cut(mount, entry, &blocks)?;
    // The other owners keep their shared blocks, and this file gets blocks of its own.
    cow::allocate_cow(mount, entry, blocks.clone(), MapUpdate::AtOnce)?;
    let claim = Unclaims::new(mount, entry, blocks.clone());
    split_ends(mount, entry, &blocks)?;
    cow::take_claimed(mount, entry, blocks.clone(), true, MapUpdate::AtOnce)?;
    claim.keep();
    let mut todo = Some(blocks);
    while let Some(blocks) = todo {
        let mut trans =
            Trans::start(mount, reservation_to_convert(mount).with_log_space(LogNeed::Most).or_no_blocks())?;
        join_file(&mut trans, entry)?;
        todo = bmap::mark(&mut trans, entry.ino(), blocks, true, CONVERTED_AT_ONCE)?;
        let core = trans.inode_mut(entry.ino(), InodeFields::CORE).core_mut();
        // Otherwise a kernel would free what lies past the end.
        core.flags |= InodeFlags::PREALLOC;
        mount.touch(core, true, now);
        trans.commit()?;
    }
    Ok(())
}

/// Splits extents at both ends of `blocks`: that is all that blanking can need space for.
fn split_ends(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, blocks: &FileBlocks) -> Result<()> {
    let need = reservation_to_convert(mount).with_log_space(LogNeed::Most);
    let mut trans = Trans::start(mount, need.or_half_of_reserve_pool())?;
    join_file(&mut trans, entry)?;
    mount.check_unmarked(entry, blocks.clone())?;
    bmap::split_map(&mut trans, entry.ino(), blocks.start)?;
    bmap::split_map(&mut trans, entry.ino(), blocks.end)?;
    trans.commit()?;
    Ok(())
}

/// Converts all unwritten blocks in `blocks` to written, and sets the file's size to at least `size`.
pub fn convert_unwritten(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: FileBlocks,
    size: Option<u64>,
    now: Timestamp,
) -> Result<()> {
    let cow = entry.cow_if_any();
    let reserve = cow.map(|cow| cow.to_mark().take(&blocks));
    let mut kept = reserve.as_ref().map_or(0, |reserve| reserve.blocks);
    let told = convert_in_parts(mount, entry, blocks.clone(), (size, ChangedAt::Time(now)), &mut kept);
    if let Some((cow, reserve)) = cow.zip(reserve) {
        kept = cow.to_mark().give_back(reserve, kept, &blocks, |_| true);
    }
    mount.write_side()?.counters.return_blocks(kept);
    told
}

/// `kept`: blocks that were reserved for it.
pub(super) fn convert_in_parts(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: FileBlocks,
    (size, changed): (Option<u64>, ChangedAt),
    kept: &mut u64,
) -> Result<()> {
    let mut todo = Some(blocks);
    loop {
        let now = todo.take();
        let convert = |trans: &mut Trans<'_>| {
            join_file(trans, entry)?;
            let left = match now.clone() {
                Some(blocks) => bmap::mark(trans, entry.ino(), blocks, false, CONVERTED_AT_ONCE)?,
                None => None,
            };
            if left.is_none() {
                finish_write(trans, entry.ino(), size, changed);
            }
            Ok(left)
        };
        let reservation = reservation_to_convert(mount);
        let left =
            begin_small(|need| Trans::with_kept(mount, reservation.with_log_space(need), kept, convert))?;
        let Some(blocks) = left else { return Ok(()) };
        todo = Some(blocks);
    }
}

/// Sets the file's size and times with the last conversion of a write.
fn finish_write(trans: &mut Trans<'_>, ino: InodeNumber, size: Option<u64>, changed: ChangedAt) {
    // A time that was noted goes into any inode that is changed.
    let mount = trans.mount();
    let core = trans.inode_mut(ino, InodeFields::CORE).core_mut();
    core.size = size.map_or(core.size, |size| core.size.max(size));
    if let ChangedAt::Time(now) = changed {
        mount.touch(core, true, now);
    }
}

/// The time of the content's change.
#[derive(Clone, Copy, Debug)]
pub(super) enum ChangedAt {
    /// This time.
    Time(Timestamp),
    /// The time that was last noted, if the inode does not have it yet.
    Noted,
}

/// For allocating and mapping an extent of this many blocks.
pub(super) fn reservation_for_extent(mount: &Mount, len: u64) -> Reservation {
    let most = ReservationBuilder::new(mount.geometry()).inodes(1).extents(1).map_changes(1).blocks(len);
    most.log_count(2).build_to_begin_small()
}

/// For converting extents to unwritten or written.
pub(super) fn reservation_to_convert(mount: &Mount) -> Reservation {
    let most = ReservationBuilder::new(mount.geometry()).inodes(1).map_changes(2 * CONVERTED_AT_ONCE as u64);
    most.log_count(2).build_to_begin_small()
}
