//! Copy-on-write of shared blocks.
//!
//! Space for a copy is *staged*: allocated, recorded in the refcount tree without an owner, and kept in the file's CoW
//! fork, which is only in memory. A write *claims* what it needs of it, writes its data there, and then *takes* it: one
//! transaction unmaps the old blocks, decrements their refcount, removes the staging record, and maps the new blocks.
//! After a crash each block has the old or the new content, and there are staged blocks that the next open of the
//! volume frees.
//!
//! Invariants:
//! - what a write has claimed stays until it is taken or the claim is given up. The rest may be freed at any time;
//! - a claim reserves the blocks that the map may need to record everything that is claimed, and groups promise the
//!   room that this may take in their rmap trees. So taking never finds too little room, nor is one of several copies
//!   refused after others were made;
//! - by the file's CoW extent size hint, more is staged than a write needs. So later writes nearby find space, and
//!   extents stay whole. The surplus is freed when the file is cut or closed, and when space is short.

use super::allocate::{self, EXTENT_BLOCKS_MAX};
use super::exchange::tree_blocks;
use super::limits;
use super::shared::{self, FsBlockRun, written_runs};
use super::{FileBlocks, MapUpdate, join_file};
use crate::agf;
use crate::alloc::{FEW, Owners, Purpose, Request, Target};
use crate::bmap;
use crate::counters::Counters;
use crate::cow::{CowFork, CowTarget, DEFAULT_HINT, Remap, Staging, next_remap, parts, remaps};
use crate::defer;
use crate::error::{Error, Result};
use crate::ifork::Mapped;
use crate::inode::{CowState, CutExtents, ForkKind, Inode, InodeEntry};
use crate::mount::Mount;
use crate::refcount::SharedRun;
use crate::trans::Trans;
use crate::trans::reservation::ReservationBuilder;
use fileio::testing::point;
use std::collections::BTreeMap;
use std::sync::Arc;
use xfs_format::bmbt::Extent;
use xfs_format::inode::InodeFlags2;
use xfs_format::types::{AgNumber, FileBlock, FsBlock};

/// Rmap records that are left of an extent when a copy cuts a part out of it, be it the copied extent or the staged
/// one.
const LEFT: u64 = 2;
/// Minimum number of free blocks for promising room to copies that are mapped at once.
const FREE_TO_PROMISE: u64 = 1024;
/// Staged extents that one transaction frees.
const GIVEN_BACK_AT_ONCE: usize = 2;

/// Fails with [`Error::NoSpace`] if there is too little space for the holes of a file in `blocks` and for copies of the
/// shared blocks there. Unclaimed staged blocks of other files are freed first.
pub(crate) fn check_room_with_copies(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: &FileBlocks,
) -> Result<()> {
    if !entry.snapshot().is_reflinked() {
        return Ok(());
    }
    if missing_copies(mount, entry, blocks)? == 0 {
        return Ok(());
    }
    or_without_its_own(mount, entry, blocks, || {
        check_room(mount, || {
            Ok(allocate::missing_blocks(mount, entry, blocks.clone())?
                + missing_copies(mount, entry, blocks)?)
        })
    })
}

/// Tries to find space for copies of `blocks`. If there is too little, checks which blocks are no longer shared and
/// tries again. What has lost its other owners lately is the file's own once that is on disk: if nothing else helps, this
/// sees to it.
fn or_without_its_own(
    mount: &Mount,
    entry: &InodeEntry,
    blocks: &FileBlocks,
    look: impl Fn() -> Result<()>,
) -> Result<()> {
    let once_more = || match forget_its_own(mount, entry, blocks)? {
        true => look(),
        false => Err(Error::NoSpace),
    };
    let write = mount.write_side()?;
    // Asked first: what lands amid a look has been taken for shared in it.
    let are_lately = write.unshared.any();
    let mut done = look();
    if matches!(done, Err(Error::NoSpace)) {
        done = once_more();
        point("blocks were looked for that are shared no longer");
    }
    if matches!(done, Err(Error::NoSpace)) && are_lately {
        write.journal.force_all()?;
        done = once_more();
    }
    done
}

/// Checks for blocks that are known as shared, and for which no write has claimed copies, whether they still are. Those
/// that are not become known as the file's own. Returns whether there were any. The caller keeps others off `blocks`,
/// so nobody can share them again and the answer stays true.
fn forget_its_own(mount: &Mount, entry: &InodeEntry, blocks: &FileBlocks) -> Result<bool> {
    shared::know_shared(mount, entry)?;
    let cow = entry.cow();
    let fork = cow.fork();
    let data = mount.extents(&entry.current(), ForkKind::Data)?;
    let mut are_any = false;
    for (part, goes) in parts_of(mount, entry, &fork, blocks.clone())? {
        let is_claimed = matches!(goes, CowTarget::Staged(_)) && fork.next_claimed(&part).is_some();
        if is_claimed || matches!(goes, CowTarget::Hole | CowTarget::InPlace(_)) {
            continue;
        }
        for (start, count) in written_runs(&data, part) {
            are_any |= forget_its_own_run(mount, cow, &fork, (start, count))?;
        }
    }
    if are_any {
        entry.sharing_changed();
    }
    Ok(are_any)
}

fn forget_its_own_run(
    mount: &Mount,
    cow: &CowState,
    fork: &CowFork,
    (start, count): FsBlockRun,
) -> Result<bool> {
    let (mut at, mut are_any) = (0, false);
    while at < count {
        let from = FsBlock(start.0 + at);
        let run = mount.shared_run(from, count - at)?;
        let len = run.blocks.clamp(1, count - at);
        if !run.shared {
            cow.change(fork, |known| known.remove(from, len));
            are_any = true;
        }
        at += len;
    }
    Ok(are_any)
}

/// Fails with [`Error::NoSpace`] if there is less than `wanted`. Frees unclaimed staged blocks first. Some of them may
/// have been for the same purpose, so `wanted` is called again then.
pub(super) fn check_room(mount: &Arc<Mount>, wanted: impl Fn() -> Result<u64>) -> Result<()> {
    let lacks = || Ok::<_, Error>(wanted()? > mount.write_side()?.counters.available_blocks());
    if lacks()? && (cancel_unused_cow(mount)? == 0 || lacks()?) {
        return Err(Error::NoSpace);
    }
    Ok(())
}

/// How many shared blocks in `blocks` have nothing staged.
fn missing_copies(mount: &Mount, entry: &InodeEntry, blocks: &FileBlocks) -> Result<u64> {
    shared::know_shared(mount, entry)?;
    let fork = entry.cow().fork();
    let parts = parts_of(mount, entry, &fork, blocks.clone())?;
    let missing = parts.iter().filter(|(_, goes)| matches!(goes, CowTarget::Elsewhere(_)));
    Ok(missing.map(|(blocks, _)| blocks.end.0 - blocks.start.0).sum())
}

fn parts_of(
    mount: &Mount,
    entry: &InodeEntry,
    fork: &CowFork,
    blocks: FileBlocks,
) -> Result<Vec<(FileBlocks, CowTarget)>> {
    let data = mount.extents(&entry.current(), ForkKind::Data)?;
    let cow = entry.cow();
    let known = |start, blocks| Ok(cow.run(start, blocks).unwrap_or(SharedRun { blocks, shared: true }));
    let parts = parts(&data, fork, blocks, known)?;
    Ok(parts.into_iter().map(|part| (part.blocks, part.target)).collect())
}

/// Ensures that all shared blocks of a file in `blocks` have space for a copy, and claims it. Blocks that turn out to
/// be the file's own become known as such. [`Error::NoSpace`] and other refusals claim nothing. The caller keeps others
/// off `blocks`, and so also those who would close the volume: once that has begun, nobody frees what is staged.
pub fn allocate_cow(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: FileBlocks,
    told: MapUpdate,
) -> Result<()> {
    mount.check_writable()?;
    if !entry.snapshot().is_reflinked() {
        return Ok(());
    }
    check_room_with_copies(mount, entry, &blocks)?;
    or_without_its_own(mount, entry, &blocks, || try_allocate_cow(mount, entry, &blocks, told))
}

fn try_allocate_cow(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: &FileBlocks,
    told: MapUpdate,
) -> Result<()> {
    // Dropped after the fork's lock, however this ends. What the caller has reserved for unwritten blocks is the
    // caller's.
    let mut claim = Unclaims { volume: mount, entry, blocks: None, only_staged: true };
    let mut fork = entry.cow().fork();
    let parts = parts_of(mount, entry, &fork, blocks.clone())?;
    let is_claimed = |part: &FileBlocks, goes: &CowTarget| match goes {
        CowTarget::Elsewhere(_) => false,
        CowTarget::Staged(_) => fork.next_unused(part).is_none() && entry.cow().kept().keeps(blocks),
        CowTarget::Hole | CowTarget::InPlace(_) => true,
    };
    // A repeated claim needs nothing more.
    if parts.iter().all(|(part, goes)| is_claimed(part, goes)) {
        return Ok(());
    }
    limits::check_block_change(mount, entry)?;
    limits::check_room_to_cut(mount, entry, blocks)?;
    match stage_parts(mount, entry, &mut fork, blocks, hint(&entry.snapshot())) {
        // Space staged beside one part may be what another part lacks.
        Err(Error::NoSpace) => {
            give_back(mount, entry, &mut fork, &(FileBlock(0)..FileBlock(u64::MAX)))?;
            stage_parts(mount, entry, &mut fork, blocks, 1)?;
        }
        staged => staged?,
    }
    let parts = parts_of(mount, entry, &fork, blocks.clone())?;
    claim.blocks = Some(blocks.clone());
    for (part, goes) in parts {
        debug_assert!(!matches!(goes, CowTarget::Elsewhere(_)), "{part:?} is shared, and nothing is staged");
        if let CowTarget::Staged(_) = goes {
            fork.mark(&part, true);
        }
    }
    keep_for_map(mount, entry, &mut fork, blocks, told)?;
    promise_to_owners(mount, entry, &fork, blocks, told)?;
    claim.keep();
    Ok(())
}

/// Promises the rmap room that copies of what is claimed in `blocks` may take, so that none of them is refused for lack
/// of room after others were made. If the volume is nearly full, others may need the blocks that this would hold back.
/// Then copies that are mapped at once only need the room to be there now. After [`Error::NoSpace`], some of it may be
/// promised.
fn promise_to_owners(
    mount: &Arc<Mount>,
    entry: &InodeEntry,
    fork: &CowFork,
    blocks: &FileBlocks,
    told: MapUpdate,
) -> Result<()> {
    if !mount.geometry().rmapbt {
        return Ok(());
    }
    let groups = pieces_by_group(mount, entry, fork, blocks, told)?;
    let records: u64 = groups.values().map(|parts| records_of(parts)).sum();
    let free = mount.write_side()?.counters.available_blocks();
    if told == MapUpdate::AtOnce && free < most_growth(records) + FREE_TO_PROMISE {
        let room = |(&ag, parts): (&_, &Vec<_>)| {
            limits::check_room_in(mount, ag, Owners::InPieces(records_of(parts)))
        };
        return groups.iter().try_for_each(room);
    }
    promise_to_groups(mount, entry, &groups)
}

/// The parts of a file that copies of what is claimed in `blocks` cut out of extents, by the group of these extents.
/// Each part has as many blocks as there may be cuts. Blocks that turned out to be the file's own are not included,
/// because their copies are never mapped.
fn pieces_by_group(
    mount: &Mount,
    entry: &InodeEntry,
    fork: &CowFork,
    blocks: &FileBlocks,
    told: MapUpdate,
) -> Result<BTreeMap<AgNumber, Vec<(CutExtents, FileBlocks)>>> {
    let mut groups = BTreeMap::<_, Vec<_>>::new();
    let data = mount.extents(&entry.current(), ForkKind::Data)?;
    for Remap { new, old } in remaps(&data, fork, blocks) {
        let end = match told {
            MapUpdate::InParts => new.end(),
            MapUpdate::AtOnce => FileBlock(new.startoff.0 + 1),
        };
        for (cuts, cut) in
            old.map(|old| (CutExtents::Copied, old)).into_iter().chain([(CutExtents::Staged, new)])
        {
            if let Some((ag, _)) = mount.geometry().split_block(cut.startblock) {
                groups.entry(ag).or_default().push((cuts, new.startoff..end));
            }
        }
    }
    Ok(groups)
}

fn promise_to_groups(
    mount: &Arc<Mount>,
    entry: &InodeEntry,
    groups: &BTreeMap<AgNumber, Vec<(CutExtents, FileBlocks)>>,
) -> Result<()> {
    for (&ag, parts) in groups {
        let mut trans = Trans::start(mount, ReservationBuilder::new(mount.geometry()).build())?;
        let mut owners = entry.cow().owners();
        let missing =
            |(cuts, part): &(CutExtents, FileBlocks)| owners.entry((ag, *cuts)).or_default().missing(part);
        let more: u64 = parts.iter().map(missing).sum();
        agf::promise_to_copies(&mut trans, ag, LEFT * more)?;
        for (cuts, part) in parts {
            owners.entry((ag, *cuts)).or_default().add(part);
        }
    }
    Ok(())
}

/// Ends the promise for copies of `blocks`: they were taken, or never will be.
fn end_promise_to_owners(mount: &Mount, entry: &InodeEntry, blocks: &FileBlocks) -> Result<()> {
    let Some(cow) = entry.cow_if_any() else { return Ok(()) };
    let write = mount.write_side()?;
    for (&(ag, _), runs) in cow.owners().iter_mut() {
        let ended = runs.cut(blocks);
        if ended > 0 {
            write.space.end_promise_to_copies(&write.counters, ag, LEFT * ended);
        }
    }
    Ok(())
}

/// Reserves what the map may need to record everything that is claimed in `blocks`.
fn keep_for_map(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    fork: &mut CowFork,
    blocks: &FileBlocks,
    told: MapUpdate,
) -> Result<()> {
    let kept = blocks_to_take(mount, entry, fork, blocks, told)?;
    if kept == 0 {
        return Ok(());
    }
    let counters = &mount.write_side()?.counters;
    let mut reserved = counters.reserve_blocks(kept);
    if matches!(reserved, Err(Error::NoSpace)) {
        give_back_unused(mount, entry, fork)?;
        reserved = counters.reserve_blocks(kept);
    }
    reserved?;
    entry.cow().kept().keep(blocks, kept);
    Ok(())
}

/// Stages space for all shared blocks of a file in `blocks`, with this hint.
fn stage_parts(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    fork: &mut CowFork,
    blocks: &FileBlocks,
    hint: u32,
) -> Result<()> {
    for (part, goes) in parts_of(mount, entry, fork, blocks.clone())? {
        if let CowTarget::Elsewhere(start) = goes {
            stage_part(mount, entry, fork, part, (start, hint))?;
        }
    }
    Ok(())
}

/// How many blocks the map may need to record what is claimed in `blocks`.
fn blocks_to_take(
    mount: &Mount,
    entry: &InodeEntry,
    fork: &CowFork,
    blocks: &FileBlocks,
    told: MapUpdate,
) -> Result<u64> {
    // Each further piece may be in the middle of another leaf, which it splits, and now and then also a block above.
    const FURTHER: u64 = 3;
    let data = mount.extents(&entry.current(), ForkKind::Data)?;
    let pieces = remaps(&data, fork, blocks).count() as u64;
    if pieces == 0 {
        return Ok(0);
    }
    let first = reservation_to_end_cow(mount).build().blocks;
    // A map has no more leaves to split.
    let tree = tree_blocks(mount.geometry(), data.len() as u64 + 2 * pieces);
    // A list that just fits into the inode may become a tree with each piece, and a list again. What it gives back for
    // one piece it can use again for the next (`Trans::with_kept`).
    let at_once = first + (FURTHER * (pieces - 1)).min(2 * tree);
    Ok(match told.more_blocks(blocks) {
        0 => at_once,
        // Both ends of the claim may be in separate leaves.
        more => at_once + first + more,
    })
}

/// Stages space for a part of a file whose blocks, from `start` on, were shared when that was last checked.
fn stage_part(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    fork: &mut CowFork,
    part: FileBlocks,
    (start, hint): (FsBlock, u32),
) -> Result<()> {
    let mut at = part.start;
    while at < part.end {
        let (from, left) = (FsBlock(start.0 + (at.0 - part.start.0)), part.end.0 - at.0);
        // The caller holds the range, so blocks cannot be shared again: if nobody else has them, that stays true.
        let run = mount.shared_run(from, left)?;
        let end = FileBlock(at.0 + run.blocks.clamp(1, left));
        if !run.shared {
            entry.cow().change(fork, |shared| shared.remove(from, end.0 - at.0));
            entry.sharing_changed();
            at = end;
            continue;
        }
        while let Some(missing) = first_unstaged(fork, at..end) {
            stage_some(mount, entry, fork, missing, (from, hint))?;
        }
        at = end;
    }
    Ok(())
}

/// Stages space at least for the first of `missing` blocks, and for as many around them as the hint asks for and as
/// there is room for.
fn stage_some(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    fork: &mut CowFork,
    missing: FileBlocks,
    (near, hint): (FsBlock, u32),
) -> Result<()> {
    let mut staging = Staging::new(fork, missing, hint);
    let mut len = staging.blocks().min(EXTENT_BLOCKS_MAX);
    let mut trans = loop {
        let need =
            ReservationBuilder::new(mount.geometry()).blocks(len).extents(1).counts(1).rmaps(1).log_count(2);
        match Trans::start(mount, need.build()) {
            Err(Error::NoSpace) if len > 1 => {
                // First only what is wanted, then less and less of it.
                let wanted = staging.wanted.end.0 - staging.wanted.start.0;
                len = if len > wanted { wanted } else { len / 2 };
                staging.asked = staging.wanted.clone();
            }
            other => break other?,
        }
    };
    let before =
        fork.extents().before(staging.asked.start).filter(|before| before.end() == staging.asked.start);
    let target = before.map_or(near, |before| FsBlock(before.startblock.0 + u64::from(before.blockcount)));
    let most = u32::try_from(len).unwrap_or(u32::MAX);
    let got = agf::allocate(&mut trans, Target::Near(target), Request::new(1, most, Purpose::Data))?;
    let extent = staging.place(got.start(mount.geometry()), got.run.len);
    entry.cow().got_free_blocks(extent.startblock, extent.blockcount.into());
    defer::defer_stage(&mut trans, extent.startblock, extent.blockcount);
    trans.commit()?;
    fork.stage(&extent);
    mount.write_side()?.staging.lock().insert(entry.ino(), Arc::clone(entry));
    Ok(())
}

/// The staged copy of a block: the rest of the extent from there on.
pub(crate) fn staged_copy(entry: &InodeEntry, block: FileBlock) -> Option<Extent> {
    let fork = entry.cow().fork();
    let claimed = fork.extents().ending_behind(block)?;
    (claimed.startoff <= block && !claimed.unwritten).then_some(claimed)
}

/// What was claimed in `blocks` now has the data and becomes part of the file. The caller keeps others off `blocks`.
pub fn end_cow(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: FileBlocks,
    told: MapUpdate,
) -> Result<()> {
    take_claimed(mount, entry, blocks, false, told)
}

/// What was claimed in `blocks` becomes part of the file; as unwritten blocks if `unwritten`.
pub(super) fn take_claimed(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: FileBlocks,
    unwritten: bool,
    told: MapUpdate,
) -> Result<()> {
    let Some(cow) = entry.cow_if_any() else { return Ok(()) };
    let mut fork = cow.fork();
    let counters = &mount.write_side()?.counters;
    let reserve = cow.kept().take(&blocks);
    let mut reserved = Reserved { counters, blocks: reserve.blocks };
    let taken = take_all(mount, entry, &mut fork, &blocks, (unwritten, &mut reserved.blocks), told);
    if taken.is_ok() {
        end_promise_to_owners(mount, entry, &blocks)?;
    }
    let done = if taken.is_ok() { blocks } else { blocks.start..blocks.start };
    // Look only at the claim: a file may have any number of staged extents beside it.
    let is_claimed = |rest: &FileBlocks| fork.next_claimed(rest).is_some();
    reserved.blocks = cow.kept().give_back(reserve, reserved.blocks, &done, is_claimed);
    drop(reserved);
    taken?;
    forget_if_nothing_staged(mount, entry, &fork)
}

fn take_all(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    fork: &mut CowFork,
    blocks: &FileBlocks,
    (unwritten, kept): (bool, &mut u64),
    told: MapUpdate,
) -> Result<()> {
    let to_check = groups_to_check(mount, entry, fork, blocks, told)?;
    loop {
        let data = mount.extents(&entry.current(), ForkKind::Data)?;
        let Some(Remap { new, old }) = next_remap(&data, fork, blocks) else { return Ok(()) };
        // A part that does not lie in the middle of an extent adds no record to the old owners' rmap tree.
        let cuts = matches!(data.lookup(new.startoff), Mapped::Extent(old)
            if old.startoff < new.startoff && new.end() < old.end());
        // Holding a version of the map during a change would make the change copy it.
        drop(data);
        for cut in old.filter(|_| cuts).iter().chain([&new]) {
            if let Some((ag, _)) = mount.geometry().split_block(cut.startblock)
                && let Some(&owners) = to_check.get(&ag)
            {
                limits::check_room_in(mount, ag, owners)?;
            }
        }
        take_copy(mount, entry, Extent { unwritten, ..new }, kept)?;
        fork.take(&(new.startoff..new.end()));
        // The old blocks stay known as shared: the file may have them at another place as well.
    }
}

/// The groups whose rmap trees must be checked for room before each copy of what is claimed in `blocks` is taken.
/// [`Error::NoSpace`] if a group that promised nothing has too little for all of them.
fn groups_to_check(
    mount: &Mount,
    entry: &InodeEntry,
    fork: &CowFork,
    blocks: &FileBlocks,
    told: MapUpdate,
) -> Result<BTreeMap<AgNumber, Owners>> {
    let mut to_check = BTreeMap::new();
    if !mount.geometry().rmapbt {
        return Ok(to_check);
    }
    for (ag, parts) in pieces_by_group(mount, entry, fork, blocks, told)? {
        // Others may have taken the promised room. Then the copy stays claimed.
        if told == MapUpdate::InParts {
            to_check.insert(ag, Owners::Promised);
            continue;
        }
        let owners = entry.cow().owners();
        let is_promised = |(cuts, part): &(CutExtents, FileBlocks)| {
            owners.get(&(ag, *cuts)).is_some_and(|runs| runs.missing(part) == 0)
        };
        // Everything is promised, so no copy is refused after others were taken.
        if parts.iter().all(is_promised) {
            continue;
        }
        drop(owners);
        let records = records_of(&parts);
        limits::check_room_in(mount, ag, Owners::InPieces(records))?;
        // If it is more than one change adds, others may take the rest of the room meanwhile.
        if records > FEW {
            to_check.insert(ag, Owners::InPieces(LEFT));
        }
    }
    Ok(to_check)
}

fn take_copy(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, new: Extent, kept: &mut u64) -> Result<()> {
    Trans::with_kept(mount, reservation_to_end_cow(mount).build(), kept, |trans| {
        join_file(trans, entry)?;
        let ino = entry.ino();
        let gone = bmap::unmap(trans, ino, ForkKind::Data, new.startoff..new.end(), 1)?;
        debug_assert!(gone.rest.is_none(), "one piece at a time");
        for extent in &gone.freed {
            defer::defer_give_up(trans, ino, ForkKind::Data, extent)?;
        }
        // The staging record is removed before the file gets the blocks.
        defer::defer_unstage(trans, new.startblock, new.blockcount);
        bmap::map(trans, ino, ForkKind::Data, new)
    })
}

/// Cancels the claims of a failed write, and their reservation.
pub(crate) fn cancel_cow_claims(mount: &Mount, entry: &InodeEntry, blocks: &FileBlocks) {
    unclaim_staged(mount, entry, blocks);
    if let (Some(cow), Ok(write)) = (entry.cow_if_any(), mount.write_side()) {
        write.counters.return_blocks(cow.to_mark().release(blocks, |_| true));
    }
}

/// Gives up what was claimed of copies. What is reserved for converting unwritten blocks stays.
fn unclaim_staged(mount: &Mount, entry: &InodeEntry, blocks: &FileBlocks) {
    let Some(cow) = entry.cow_if_any() else { return };
    // Taking a claim locks the fork as well.
    let mut fork = cow.fork();
    fork.mark(blocks, false);
    // A volume that is not open for writing has no promises.
    let _ = end_promise_to_owners(mount, entry, blocks);
    if let Ok(write) = mount.write_side() {
        let is_claimed = |rest: &FileBlocks| fork.next_claimed(rest).is_some();
        write.counters.return_blocks(cow.kept().release(blocks, is_claimed));
    }
}

/// Frees unclaimed staged blocks of a file in `blocks`. Returns how many.
pub(crate) fn cancel_cow(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, blocks: FileBlocks) -> Result<u64> {
    let Some(cow) = entry.cow_if_any() else { return Ok(0) };
    give_back(mount, entry, &mut cow.fork(), &blocks)
}

/// Frees unclaimed staged blocks of all files. Returns how many. Files in use are skipped.
pub(crate) fn cancel_unused_cow(mount: &Arc<Mount>) -> Result<u64> {
    let entries: Vec<_> = mount.write_side()?.staging.lock().values().cloned().collect();
    let mut given = 0;
    for entry in entries {
        if let Some(mut fork) = entry.cow_if_any().and_then(|cow| cow.try_fork()) {
            given += give_back(mount, &entry, &mut fork, &(FileBlock(0)..FileBlock(u64::MAX)))?;
        }
    }
    Ok(given)
}

/// The same, for a caller that has a file's CoW fork locked. That file is skipped.
fn give_back_unused(mount: &Arc<Mount>, entry: &InodeEntry, fork: &mut CowFork) -> Result<()> {
    give_back(mount, entry, fork, &(FileBlock(0)..FileBlock(u64::MAX)))?;
    cancel_unused_cow(mount)?;
    Ok(())
}

/// Frees all staged blocks of all files. There are no more writers.
pub(crate) fn cancel_all_cow(mount: &Arc<Mount>) -> Result<()> {
    let entries: Vec<_> = mount.write_side()?.staging.lock().values().cloned().collect();
    let all = FileBlock(0)..FileBlock(u64::MAX);
    for entry in entries {
        cancel_cow_claims(mount, &entry, &all);
        cancel_cow(mount, &entry, all.clone())?;
    }
    Ok(())
}

fn give_back(mount: &Arc<Mount>, entry: &InodeEntry, fork: &mut CowFork, blocks: &FileBlocks) -> Result<u64> {
    let mut given = 0;
    let mut at = blocks.start;
    loop {
        let mut unused = Vec::with_capacity(GIVEN_BACK_AT_ONCE);
        while unused.len() < GIVEN_BACK_AT_ONCE
            && let Some(extent) = fork.next_unused(&(at..blocks.end))
        {
            at = extent.end();
            unused.push(extent);
        }
        if unused.is_empty() {
            forget_if_nothing_staged(mount, entry, fork)?;
            return Ok(given);
        }
        let count = GIVEN_BACK_AT_ONCE as u64;
        let need = ReservationBuilder::new(mount.geometry()).counts(2 * count).rmaps(count).log_count(2);
        let mut trans = Trans::start(mount, need.build().or_reserve_pool())?;
        for extent in &unused {
            defer::defer_free_staged(&mut trans, extent.startblock, extent.blockcount);
        }
        trans.commit()?;
        for extent in unused {
            fork.take(&(extent.startoff..extent.end()));
            given += u64::from(extent.blockcount);
        }
    }
}

fn forget_if_nothing_staged(mount: &Mount, entry: &InodeEntry, fork: &CowFork) -> Result<()> {
    if fork.extents().is_empty() {
        mount.write_side()?.staging.lock().remove(&entry.ino());
    }
    Ok(())
}

/// A claim that is given up when this is dropped, even by a panic of a device, unless it is [`kept`](Self::keep).
pub(super) struct Unclaims<'a> {
    volume: &'a Mount,
    entry: &'a InodeEntry,
    blocks: Option<FileBlocks>,
    /// Only what was claimed of copies.
    only_staged: bool,
}

impl<'a> Unclaims<'a> {
    pub(super) fn new(mount: &'a Mount, entry: &'a InodeEntry, blocks: FileBlocks) -> Self {
        Self { volume: mount, entry, blocks: Some(blocks), only_staged: false }
    }

    pub(super) fn keep(mut self) {
        self.blocks = None;
    }
}

impl Drop for Unclaims<'_> {
    fn drop(&mut self) {
        match self.blocks.take() {
            Some(blocks) if self.only_staged => unclaim_staged(self.volume, self.entry, &blocks),
            Some(blocks) => cancel_cow_claims(self.volume, self.entry, &blocks),
            None => {}
        }
    }
}

/// Reserved free blocks, which are given back when this is dropped.
struct Reserved<'a> {
    counters: &'a Counters,
    blocks: u64,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.counters.return_blocks(self.blocks);
    }
}

/// For replacing blocks by their copy.
fn reservation_to_end_cow(mount: &Mount) -> ReservationBuilder<'_> {
    ReservationBuilder::new(mount.geometry()).inodes(1).map_changes(2).counts(2).rmaps(1).log_count(2)
}

/// Rmap records that copies which cut these parts may add.
fn records_of(parts: &[(CutExtents, FileBlocks)]) -> u64 {
    parts.iter().map(|(_, part)| LEFT * (part.end.0 - part.start.0)).sum()
}

/// An upper bound for the blocks by which this many records make an rmap tree grow.
fn most_growth(records: u64) -> u64 {
    2 * records
}

/// The first run of `blocks` without staged blocks.
fn first_unstaged(fork: &CowFork, blocks: FileBlocks) -> Option<FileBlocks> {
    let start = fork.extents().next_unmapped(blocks.start);
    let end = fork.extents().next_mapped(start).unwrap_or(blocks.end).min(blocks.end);
    (start < end).then_some(start..end)
}

/// The CoW extent size of a file, in blocks.
fn hint(inode: &Inode) -> u32 {
    let core = inode.core();
    let of_copies = if core.flags2.contains(InodeFlags2::COWEXTSIZE) { core.cowextsize } else { 0 };
    let of_extents =
        if core.flags.contains(xfs_format::inode::InodeFlags::EXTSIZE) { core.extsize } else { 0 };
    match of_copies.max(of_extents) {
        0 => DEFAULT_HINT,
        hint => hint,
    }
}
