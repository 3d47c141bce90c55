//! Copies of blocks that other files have as well, for whoever writes to them.
//!
//! Space for a copy is *staged*: allocated, named in the tree of reference counts as nobody's, and kept in the file's CoW
//! fork, which is in memory. A write *claims* what it needs of it, puts its data there, and has it *taken*: in one
//! transaction the old blocks go out of the file, which counts an owner of theirs less, what is staged is staged no more,
//! and the file has it. A crash leaves the old content or the new, block by block, and staged blocks that the next to open
//! the volume frees.
//!
//! Invariants:
//! - what a write has claimed stays until it is taken or the claim is given up; the rest may go back at any time;
//! - blocks that the map may need to tell of all that a write has claimed are reserved with the claim, and groups promise
//!   owners the room that it may take: taking it does not find that there is none, nor is one of several copies refused when
//!   others are made;
//! - more is staged than a write needs, by the file's hint, so that those who write beside it later find space, and what
//!   was one extent stays one; it goes back when the file is cut or closed, and when space is short.

use super::allocate::{self, EXTENT_BLOCKS_MAX};
use super::exchange::tree_blocks;
use super::limits;
use super::shared::{self, Run, written_runs};
use super::{Blocks, Told, join_file};
use crate::agf;
use crate::alloc::{FEW, Owners, Purpose, Request, Target};
use crate::bmap;
use crate::counters::Counters;
use crate::cow::{CowFork, DEFAULT_HINT, Goes, Remap, Staging, next_remap, parts, remaps};
use crate::defer;
use crate::error::{Error, Result};
use crate::ifork::Mapped;
use crate::inode::{Copying, Cuts, ForkKind, Inode, InodeEntry};
use crate::mount::Mount;
use crate::refcount::SharedRun;
use crate::trans::Trans;
use crate::trans::reservation::Need;
use std::collections::BTreeMap;
use std::sync::Arc;
use xfs_format::bmbt::Extent;
use xfs_format::inode::InodeFlags2;
use xfs_format::types::{AgNumber, FileBlock, FsBlock};

/// Records of the reverse map that are left of an extent out of which a copy cuts a part, be it what is copied or what was
/// staged for it.
const LEFT: u64 = 2;
/// Free blocks that a volume has left at the least when room is promised to copies that are told at once.
const FREE_TO_PROMISE: u64 = 1024;
/// Staged extents that one transaction gives back.
const GIVEN_BACK_AT_ONCE: usize = 2;

/// Fails with [`Error::NoSpace`] if there is too little for the holes of a file in `blocks` and for copies of what is
/// shared there. What is staged for others goes back first.
pub(crate) fn check_room_with_copies(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: &Blocks,
) -> Result<()> {
    if !entry.peek().is_reflinked() {
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

/// Does what looks for space for copies of `blocks`; if there is too little, once more, with what is known as shared and is
/// the file's alone by now out of the way.
fn or_without_its_own(
    mount: &Mount,
    entry: &InodeEntry,
    blocks: &Blocks,
    look: impl Fn() -> Result<()>,
) -> Result<()> {
    match look() {
        Err(Error::NoSpace) if forget_its_own(mount, entry, blocks)? => look(),
        done => done,
    }
}

/// Asks of blocks that are known as shared, and that no write has claimed copies for, whether they still are; whether any are
/// not, and are known as the file's alone behind this. Whoever keeps others off `blocks` keeps them from being shared once
/// more: it stays true.
fn forget_its_own(mount: &Mount, entry: &InodeEntry, blocks: &Blocks) -> Result<bool> {
    shared::know_shared(mount, entry)?;
    let copying = entry.copying();
    let fork = copying.fork();
    let data = mount.extents(&entry.current(), ForkKind::Data)?;
    let mut are_any = false;
    for (part, goes) in parts_of(mount, entry, &fork, blocks.clone())? {
        let is_claimed = matches!(goes, Goes::Staged(_)) && fork.next_claimed(&part).is_some();
        if is_claimed || matches!(goes, Goes::Hole | Goes::InPlace(_)) {
            continue;
        }
        for (start, count) in written_runs(&data, part) {
            are_any |= forget_its_own_run(mount, copying, &fork, (start, count))?;
        }
    }
    if are_any {
        entry.sharing_changed();
    }
    Ok(are_any)
}

fn forget_its_own_run(mount: &Mount, copying: &Copying, fork: &CowFork, (start, count): Run) -> Result<bool> {
    let (mut at, mut are_any) = (0, false);
    while at < count {
        let from = FsBlock(start.0 + at);
        let run = mount.shared_run(from, count - at)?;
        let len = run.blocks.clamp(1, count - at);
        if !run.shared {
            copying.change(fork, |known| known.remove(from, len));
            are_any = true;
        }
        at += len;
    }
    Ok(are_any)
}

/// Fails with [`Error::NoSpace`] if there is less than what is `wanted`; what is staged for copies that nobody makes goes
/// back first, and as some of it may have been for the same, it is asked again then what is wanted.
pub(super) fn check_room(mount: &Arc<Mount>, wanted: impl Fn() -> Result<u64>) -> Result<()> {
    let lacks = || Ok::<_, Error>(wanted()? > mount.write_side()?.counters.available_blocks());
    if lacks()? && (give_back_unused_copies(mount)? == 0 || lacks()?) {
        return Err(Error::NoSpace);
    }
    Ok(())
}

/// How many shared blocks in `blocks` have nothing staged for them.
fn missing_copies(mount: &Mount, entry: &InodeEntry, blocks: &Blocks) -> Result<u64> {
    shared::know_shared(mount, entry)?;
    let fork = entry.copying().fork();
    let parts = parts_of(mount, entry, &fork, blocks.clone())?;
    let missing = parts.iter().filter(|(_, goes)| matches!(goes, Goes::Elsewhere(_)));
    Ok(missing.map(|(blocks, _)| blocks.end.0 - blocks.start.0).sum())
}

fn parts_of(
    mount: &Mount,
    entry: &InodeEntry,
    fork: &CowFork,
    blocks: Blocks,
) -> Result<Vec<(Blocks, Goes)>> {
    let data = mount.extents(&entry.current(), ForkKind::Data)?;
    let copying = entry.copying();
    let known = |start, blocks| Ok(copying.run(start, blocks).unwrap_or(SharedRun { blocks, shared: true }));
    let parts = parts(&data, fork, blocks, known)?;
    Ok(parts.into_iter().map(|part| (part.blocks, part.goes)).collect())
}

/// Sees to it that all shared blocks of a file in `blocks` have space to be copied to, and claims that. What turns out
/// to be the file's alone by now is known as such behind this. [`Error::NoSpace`] and the other refusals claim nothing.
/// The caller keeps others off `blocks`, and with that who would close the volume: once that has begun, nobody gives back
/// what is staged.
pub fn stage_copies(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, blocks: Blocks, told: Told) -> Result<()> {
    mount.check_writable()?;
    if !entry.peek().is_reflinked() {
        return Ok(());
    }
    check_room_with_copies(mount, entry, &blocks)?;
    or_without_its_own(mount, entry, &blocks, || try_stage_copies(mount, entry, &blocks, told))
}

fn try_stage_copies(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, blocks: &Blocks, told: Told) -> Result<()> {
    // Behind the fork's lock, however this ends. What the caller has reserved for unwritten blocks is the caller's.
    let mut claim = Unclaims { volume: mount, entry, blocks: None, only_staged: true };
    let mut fork = entry.copying().fork();
    let parts = parts_of(mount, entry, &fork, blocks.clone())?;
    let is_claimed = |part: &Blocks, goes: &Goes| match goes {
        Goes::Elsewhere(_) => false,
        Goes::Staged(_) => fork.next_unused(part).is_none() && entry.copying().kept().keeps(blocks),
        Goes::Hole | Goes::InPlace(_) => true,
    };
    // Who claims anew what he has claimed before needs no more than that.
    if parts.iter().all(|(part, goes)| is_claimed(part, goes)) {
        return Ok(());
    }
    limits::check_block_change(mount, entry)?;
    limits::check_room_to_cut(mount, entry, blocks)?;
    match stage_parts(mount, entry, &mut fork, blocks, hint(&entry.peek())) {
        // What was staged beside some of it may be what the rest lacks.
        Err(Error::NoSpace) => {
            give_back(mount, entry, &mut fork, &(FileBlock(0)..FileBlock(u64::MAX)))?;
            stage_parts(mount, entry, &mut fork, blocks, 1)?;
        }
        staged => staged?,
    }
    let parts = parts_of(mount, entry, &fork, blocks.clone())?;
    claim.blocks = Some(blocks.clone());
    for (part, goes) in parts {
        debug_assert!(!matches!(goes, Goes::Elsewhere(_)), "{part:?} is shared, and nothing is staged");
        if let Goes::Staged(_) = goes {
            fork.mark(&part, true);
        }
    }
    keep_for_map(mount, entry, &mut fork, blocks, told)?;
    promise_to_owners(mount, entry, &fork, blocks, told)?;
    claim.keep();
    Ok(())
}

/// Promises owners the room that copies of what is claimed in `blocks` may take, so that none of them is refused for want
/// of it when some are made. Where the volume is nearly full, and others may need the blocks that are kept back for that,
/// what is told at once only needs the room to be there. [`Error::NoSpace`]: some of it may be promised.
fn promise_to_owners(
    mount: &Arc<Mount>,
    entry: &InodeEntry,
    fork: &CowFork,
    blocks: &Blocks,
    told: Told,
) -> Result<()> {
    if !mount.geometry().rmapbt {
        return Ok(());
    }
    let groups = pieces_by_group(mount, entry, fork, blocks, told)?;
    let records: u64 = groups.values().map(|parts| records_of(parts)).sum();
    let free = mount.write_side()?.counters.available_blocks();
    if told == Told::AtOnce && free < most_growth(records) + FREE_TO_PROMISE {
        let room = |(&ag, parts): (&_, &Vec<_>)| {
            limits::check_room_in(mount, ag, Owners::InPieces(records_of(parts)))
        };
        return groups.iter().try_for_each(room);
    }
    promise_to_groups(mount, entry, &groups)
}

/// Parts of a file that copies of what is claimed in `blocks` cut out of extents, as many blocks as they may cut them into
/// pieces, by the group in which the extents lie. What turned out to be the file's alone is not among them: nobody tells the
/// map of that.
fn pieces_by_group(
    mount: &Mount,
    entry: &InodeEntry,
    fork: &CowFork,
    blocks: &Blocks,
    told: Told,
) -> Result<BTreeMap<AgNumber, Vec<(Cuts, Blocks)>>> {
    let mut groups = BTreeMap::<_, Vec<_>>::new();
    let data = mount.extents(&entry.current(), ForkKind::Data)?;
    for Remap { new, old } in remaps(&data, fork, blocks) {
        let end = match told {
            Told::InParts => new.end(),
            Told::AtOnce => FileBlock(new.startoff.0 + 1),
        };
        for (cuts, cut) in old.map(|old| (Cuts::Copied, old)).into_iter().chain([(Cuts::Staged, new)]) {
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
    groups: &BTreeMap<AgNumber, Vec<(Cuts, Blocks)>>,
) -> Result<()> {
    for (&ag, parts) in groups {
        let mut trans = Trans::start(mount, Need::new(mount.geometry()).reservation())?;
        let mut owners = entry.copying().owners();
        let missing = |(cuts, part): &(Cuts, Blocks)| owners.entry((ag, *cuts)).or_default().missing(part);
        let more: u64 = parts.iter().map(missing).sum();
        agf::promise_to_copies(&mut trans, ag, LEFT * more)?;
        for (cuts, part) in parts {
            owners.entry((ag, *cuts)).or_default().add(part);
        }
    }
    Ok(())
}

/// Copies of `blocks` were taken, or never will be.
fn end_promise_to_owners(mount: &Mount, entry: &InodeEntry, blocks: &Blocks) -> Result<()> {
    let Some(copying) = entry.copying_if_any() else { return Ok(()) };
    let write = mount.write_side()?;
    for (&(ag, _), runs) in copying.owners().iter_mut() {
        let ended = runs.cut(blocks);
        if ended > 0 {
            write.space.end_promise_to_copies(&write.counters, ag, LEFT * ended);
        }
    }
    Ok(())
}

/// Reserves what the map may need to tell of all that is claimed in `blocks`.
fn keep_for_map(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    fork: &mut CowFork,
    blocks: &Blocks,
    told: Told,
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
    entry.copying().kept().keep(blocks, kept);
    Ok(())
}

/// Stages space for all shared blocks of a file in `blocks`, by this hint.
fn stage_parts(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    fork: &mut CowFork,
    blocks: &Blocks,
    hint: u32,
) -> Result<()> {
    for (part, goes) in parts_of(mount, entry, fork, blocks.clone())? {
        if let Goes::Elsewhere(start) = goes {
            stage_part(mount, entry, fork, part, (start, hint))?;
        }
    }
    Ok(())
}

/// How many blocks the map may need to tell of what is claimed in `blocks`.
fn blocks_to_take(
    mount: &Mount,
    entry: &InodeEntry,
    fork: &CowFork,
    blocks: &Blocks,
    told: Told,
) -> Result<u64> {
    // Each further piece may be in the midst of another leaf, which it splits, and now and then a block above.
    const FURTHER: u64 = 3;
    let data = mount.extents(&entry.current(), ForkKind::Data)?;
    let pieces = remaps(&data, fork, blocks).count() as u64;
    if pieces == 0 {
        return Ok(0);
    }
    let first = need_to_take(mount).reservation().blocks;
    // A map has no more leaves to split than that.
    let tree = tree_blocks(mount.geometry(), data.len() as u64 + 2 * pieces);
    // One that is as long as an inode has room for may leave it with each piece, and come back: what it gives back with one
    // it finds again with the next (`Trans::with_kept`).
    let at_once = first + (FURTHER * (pieces - 1)).min(2 * tree);
    Ok(match told.more_blocks(blocks) {
        0 => at_once,
        // Both ends of the claim may be in leaves of their own.
        more => at_once + first + more,
    })
}

/// Stages space for a part of a file whose blocks, from `start` on, were shared when that was last asked.
fn stage_part(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    fork: &mut CowFork,
    part: Blocks,
    (start, hint): (FsBlock, u32),
) -> Result<()> {
    let mut at = part.start;
    while at < part.end {
        let (from, left) = (FsBlock(start.0 + (at.0 - part.start.0)), part.end.0 - at.0);
        // Whoever holds the range keeps blocks from being shared once more: that nobody else has them stays true.
        let run = mount.shared_run(from, left)?;
        let end = FileBlock(at.0 + run.blocks.clamp(1, left));
        if !run.shared {
            entry.copying().change(fork, |shared| shared.remove(from, end.0 - at.0));
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

/// Stages space for the first of `missing` blocks at least, and for as many around them as the hint asks for and as
/// there is room for.
fn stage_some(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    fork: &mut CowFork,
    missing: Blocks,
    (near, hint): (FsBlock, u32),
) -> Result<()> {
    let mut staging = Staging::new(fork, missing, hint);
    let mut len = staging.blocks().min(EXTENT_BLOCKS_MAX);
    let mut trans = loop {
        let need = Need::new(mount.geometry()).blocks(len).extents(1).counts(1).rmaps(1).steps(2);
        match Trans::start(mount, need.reservation()) {
            Err(Error::NoSpace) if len > 1 => {
                // First what is wanted alone, then less and less of it.
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
    entry.copying().got_free_blocks(extent.startblock, extent.blockcount.into());
    defer::stage_later(&mut trans, extent.startblock, extent.blockcount);
    trans.commit()?;
    fork.stage(&extent);
    mount.write_side()?.staging.lock().insert(entry.ino(), Arc::clone(entry));
    Ok(())
}

/// Where a block is to be copied to: the rest of the extent from there on.
pub(crate) fn staged_copy(entry: &InodeEntry, block: FileBlock) -> Option<Extent> {
    let fork = entry.copying().fork();
    let claimed = fork.extents().ending_behind(block)?;
    (claimed.startoff <= block && !claimed.unwritten).then_some(claimed)
}

/// What was claimed in `blocks` holds the data now, and becomes the file's. The caller keeps others off `blocks`.
pub fn take_copies(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, blocks: Blocks, told: Told) -> Result<()> {
    take_claimed(mount, entry, blocks, false, told)
}

/// What was claimed in `blocks` becomes the file's, as never written if `unwritten`.
pub(super) fn take_claimed(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    blocks: Blocks,
    unwritten: bool,
    told: Told,
) -> Result<()> {
    let Some(copying) = entry.copying_if_any() else { return Ok(()) };
    let mut fork = copying.fork();
    let counters = &mount.write_side()?.counters;
    let reserve = copying.kept().take(&blocks);
    let mut reserved = Reserved { counters, blocks: reserve.blocks };
    let taken = take_all(mount, entry, &mut fork, &blocks, (unwritten, &mut reserved.blocks), told);
    if taken.is_ok() {
        end_promise_to_owners(mount, entry, &blocks)?;
    }
    let done = if taken.is_ok() { blocks } else { blocks.start..blocks.start };
    // No look goes further than the claim: a file may have any number of staged extents beside it.
    let is_claimed = |rest: &Blocks| fork.next_claimed(rest).is_some();
    reserved.blocks = copying.kept().give_back(reserve, reserved.blocks, &done, is_claimed);
    drop(reserved);
    taken?;
    forget_if_nothing_staged(mount, entry, &fork)
}

fn take_all(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    fork: &mut CowFork,
    blocks: &Blocks,
    (unwritten, kept): (bool, &mut u64),
    told: Told,
) -> Result<()> {
    let to_check = groups_to_check(mount, entry, fork, blocks, told)?;
    loop {
        let data = mount.extents(&entry.current(), ForkKind::Data)?;
        let Some(Remap { new, old }) = next_remap(&data, fork, blocks) else { return Ok(()) };
        // What does not cut an extent in its midst brings the old owners' map no record.
        let cuts = matches!(data.lookup(new.startoff), Mapped::Extent(old)
            if old.startoff < new.startoff && new.end() < old.end());
        // Who holds a map while it changes has it copied.
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
        // The old blocks stay known as shared: the file may have them in another place as well.
    }
}

/// The groups whose reverse maps are to be asked for room before each copy of what is claimed in `blocks` is taken.
/// [`Error::NoSpace`]: one that promised nothing has too little for all of them.
fn groups_to_check(
    mount: &Mount,
    entry: &InodeEntry,
    fork: &CowFork,
    blocks: &Blocks,
    told: Told,
) -> Result<BTreeMap<AgNumber, Owners>> {
    let mut to_check = BTreeMap::new();
    if !mount.geometry().rmapbt {
        return Ok(to_check);
    }
    for (ag, parts) in pieces_by_group(mount, entry, fork, blocks, told)? {
        // Others may have taken the room that was promised: then it stays claimed.
        if told == Told::InParts {
            to_check.insert(ag, Owners::Promised);
            continue;
        }
        let owners = entry.copying().owners();
        let is_promised = |(cuts, part): &(Cuts, Blocks)| {
            owners.get(&(ag, *cuts)).is_some_and(|runs| runs.missing(part) == 0)
        };
        // None of several is refused when some are taken.
        if parts.iter().all(is_promised) {
            continue;
        }
        drop(owners);
        let records = records_of(&parts);
        limits::check_room_in(mount, ag, Owners::InPieces(records))?;
        // Of more than any change brings, others may take the room of the rest meanwhile.
        if records > FEW {
            to_check.insert(ag, Owners::InPieces(LEFT));
        }
    }
    Ok(to_check)
}

fn take_copy(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, new: Extent, kept: &mut u64) -> Result<()> {
    Trans::with_kept(mount, need_to_take(mount).reservation(), kept, |trans| {
        join_file(trans, entry)?;
        let ino = entry.ino();
        let gone = bmap::unmap(trans, ino, ForkKind::Data, new.startoff..new.end(), 1)?;
        debug_assert!(gone.rest.is_none(), "one piece at a time");
        for extent in &gone.freed {
            defer::give_up_later(trans, ino, ForkKind::Data, extent)?;
        }
        // Nobody's any more before they are the file's.
        defer::unstage_later(trans, new.startblock, new.blockcount);
        bmap::map(trans, ino, ForkKind::Data, new)
    })
}

/// Gives up the claims of a write that failed, and what was reserved for it.
pub(crate) fn unclaim_copies(mount: &Mount, entry: &InodeEntry, blocks: &Blocks) {
    unclaim_staged(mount, entry, blocks);
    if let (Some(copying), Ok(write)) = (entry.copying_if_any(), mount.write_side()) {
        write.counters.return_blocks(copying.to_mark().release(blocks, |_| true));
    }
}

/// Gives up what was claimed of copies; what is reserved to say that unwritten blocks hold data stays.
fn unclaim_staged(mount: &Mount, entry: &InodeEntry, blocks: &Blocks) {
    let Some(copying) = entry.copying_if_any() else { return };
    // Who takes what was claimed has it locked as well.
    let mut fork = copying.fork();
    fork.mark(blocks, false);
    // What is not open for writing has promised nothing.
    let _ = end_promise_to_owners(mount, entry, blocks);
    if let Ok(write) = mount.write_side() {
        let is_claimed = |rest: &Blocks| fork.next_claimed(rest).is_some();
        write.counters.return_blocks(copying.kept().release(blocks, is_claimed));
    }
}

/// Gives back what is staged for a file in `blocks` and not claimed; how many blocks.
pub(crate) fn give_back_copies(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, blocks: Blocks) -> Result<u64> {
    let Some(copying) = entry.copying_if_any() else { return Ok(0) };
    give_back(mount, entry, &mut copying.fork(), &blocks)
}

/// Gives back what is staged for any file and not claimed; how many blocks. Files that somebody is at work on are left
/// alone.
pub(crate) fn give_back_unused_copies(mount: &Arc<Mount>) -> Result<u64> {
    let entries: Vec<_> = mount.write_side()?.staging.lock().values().cloned().collect();
    let mut given = 0;
    for entry in entries {
        if let Some(mut fork) = entry.copying_if_any().and_then(|copying| copying.try_fork()) {
            given += give_back(mount, &entry, &mut fork, &(FileBlock(0)..FileBlock(u64::MAX)))?;
        }
    }
    Ok(given)
}

/// The same for who has a file's fork, which is not among the others then.
fn give_back_unused(mount: &Arc<Mount>, entry: &InodeEntry, fork: &mut CowFork) -> Result<()> {
    give_back(mount, entry, fork, &(FileBlock(0)..FileBlock(u64::MAX)))?;
    give_back_unused_copies(mount)?;
    Ok(())
}

/// Gives back all that is staged for any file. Nobody writes any more.
pub(crate) fn give_back_all_copies(mount: &Arc<Mount>) -> Result<()> {
    let entries: Vec<_> = mount.write_side()?.staging.lock().values().cloned().collect();
    let all = FileBlock(0)..FileBlock(u64::MAX);
    for entry in entries {
        unclaim_copies(mount, &entry, &all);
        give_back_copies(mount, &entry, all.clone())?;
    }
    Ok(())
}

fn give_back(mount: &Arc<Mount>, entry: &InodeEntry, fork: &mut CowFork, blocks: &Blocks) -> Result<u64> {
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
        let need = Need::new(mount.geometry()).counts(2 * count).rmaps(count).steps(2);
        let mut trans = Trans::start(mount, need.reservation().or_no_blocks())?;
        for extent in &unused {
            defer::free_staged_later(&mut trans, extent.startblock, extent.blockcount);
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

/// A claim that is given up when this is dropped, be it by a panic of a device, unless it is [`kept`](Self::keep).
pub(super) struct Unclaims<'a> {
    volume: &'a Mount,
    entry: &'a InodeEntry,
    blocks: Option<Blocks>,
    /// No more than what was claimed of copies.
    only_staged: bool,
}

impl<'a> Unclaims<'a> {
    pub(super) fn new(volume: &'a Mount, entry: &'a InodeEntry, blocks: Blocks) -> Self {
        Self { volume, entry, blocks: Some(blocks), only_staged: false }
    }

    pub(super) fn keep(mut self) {
        self.blocks = None;
    }
}

impl Drop for Unclaims<'_> {
    fn drop(&mut self) {
        match self.blocks.take() {
            Some(blocks) if self.only_staged => unclaim_staged(self.volume, self.entry, &blocks),
            Some(blocks) => unclaim_copies(self.volume, self.entry, &blocks),
            None => {}
        }
    }
}

/// Free blocks that are reserved, and given back when this is dropped.
struct Reserved<'a> {
    counters: &'a Counters,
    blocks: u64,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.counters.return_blocks(self.blocks);
    }
}

/// A copy comes in the place of what it is a copy of.
fn need_to_take(volume: &Mount) -> Need<'_> {
    Need::new(volume.geometry()).inodes(1).map_changes(2).counts(2).rmaps(1).steps(2)
}

/// Records that copies may bring that cut these parts.
fn records_of(parts: &[(Cuts, Blocks)]) -> u64 {
    parts.iter().map(|(_, part)| LEFT * (part.end.0 - part.start.0)).sum()
}

/// More blocks than a reverse map grows by when so many records come.
fn most_growth(records: u64) -> u64 {
    2 * records
}

/// The first run of `blocks` for which nothing is staged.
fn first_unstaged(fork: &CowFork, blocks: Blocks) -> Option<Blocks> {
    let start = fork.extents().next_unmapped(blocks.start);
    let end = fork.extents().next_mapped(start).unwrap_or(blocks.end).min(blocks.end);
    (start < end).then_some(start..end)
}

/// How many blocks copies of a file are to be staged at a time.
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
