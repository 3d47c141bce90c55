//! Two files that exchange blocks: all of a range, or nothing, whatever fails.
//!
//! One transaction promises the exchange (XMI), and carries it out in rolled steps, a pair of mappings at a time, with both
//! inodes locked; a crash amid that leaves the rest in the log, for whoever recovers it.
//!
//! Invariants:
//! - blocks for all that either map may need are reserved before anything changes, and what the maps' trees give back on
//!   the way stays with the transaction; so is room in the reverse maps of all groups for the pieces that owners will have:
//!   it never lacks space half-way;
//! - if either file has the flag for shared blocks, both have it before any block moves;
//! - it is in the log for good before anybody can write to either range: such a write goes in place, to what the other file
//!   would have again behind a crash.

use super::copies;
use super::limits;
use super::shared::{self, all_runs};
use super::{Blocks, join_file};
use crate::agf;
use crate::alloc::{FEW, OwnerClaim};
use crate::bmap::edit::extent_limit;
use crate::error::{Error, Result};
use crate::exchange::{self, new_owner_records};
use crate::inode::{ForkKind, InodeEntry};
use crate::mount::Mount;
use crate::trans::Trans;
use crate::trans::reservation::{Need, map_levels};
use std::sync::Arc;
use xfs_format::btree::{Bmbt, Tree};
use xfs_format::features::Incompat;
use xfs_format::geometry::Geometry;
use xfs_format::inode::InodeFlags2;
use xfs_format::log::{Exchange, ExchangeFlags, InodeFields};
use xfs_format::timestamp::Timestamp;
use xfs_format::types::FileBlock;

/// Blocks of two files that are to be exchanged.
#[derive(Clone, Debug)]
pub struct ExchangeBlocks<'a> {
    /// The files, which may be one.
    pub files: [&'a Arc<InodeEntry>; 2],
    /// First block in each.
    pub at: [FileBlock; 2],
    /// Blocks.
    pub blocks: u64,
    /// Where the files end then, if that changes.
    pub sizes: Option<[u64; 2]>,
    /// Only what the first file has written there.
    pub only_written: bool,
    /// The time that it is.
    pub now: Timestamp,
}

impl ExchangeBlocks<'_> {
    fn range(&self, nth: usize) -> Blocks {
        let at = self.at[nth];
        at..FileBlock(at.0 + self.blocks)
    }

    fn is_one_file(&self) -> bool {
        self.files[0].ino() == self.files[1].ino()
    }

    /// What the log will promise, of whichever generations the inodes are.
    fn promise(&self) -> Exchange {
        let mut flags = ExchangeFlags::empty();
        flags.set(ExchangeFlags::INO1_WRITTEN, self.only_written);
        flags.set(ExchangeFlags::SET_SIZES, self.sizes.is_some());
        Exchange {
            inodes: self.files.map(|entry| entry.ino()),
            generations: [0; 2],
            offsets: self.at,
            blocks: self.blocks,
            flags,
            sizes: self.sizes.unwrap_or([u64::MAX; 2]),
        }
    }
}

/// Fails unless files of this volume can exchange blocks.
pub fn check_exchanging(mount: &Mount) -> Result<()> {
    match mount.superblock().incompat().contains(Incompat::EXCHRANGE) {
        true => Ok(()),
        false => Err(Error::UnsupportedFeature("exchange of files' content (the volume has it not)".into())),
    }
}

/// Has two files exchange blocks; durable when this returns. The caller keeps everybody off both ranges, whole blocks;
/// where sizes change, off all behind them too, and nothing holds data behind the ends.
pub fn exchange_blocks(mount: &Arc<Mount>, exchange: &ExchangeBlocks<'_>) -> Result<()> {
    check_exchanging(mount)?;
    let mut files = exchange.files.to_vec();
    files.sort_by_key(|entry| entry.ino());
    files.dedup_by_key(|entry| entry.ino());
    for entry in &files {
        limits::check_block_change(mount, entry)?;
    }
    for (nth, entry) in exchange.files.into_iter().enumerate() {
        mount.check_unmarked(entry, exchange.range(nth))?;
        limits::check_room_to_cut(mount, entry, &exchange.range(nth))?;
        shared::know_shared(mount, entry)?;
        // What was staged for content that goes.
        copies::give_back_copies(mount, entry, exchange.range(nth))?;
    }
    let need = need_to_exchange(mount, exchange)?;
    Trans::check_log(mount, need.reservation())?;
    say_what_is_shared(mount, exchange)?;
    let room = claim_room_to_exchange(mount, exchange)?;
    let mut trans = Trans::start(mount, need.reservation())?;
    trans.keep_what_is_freed();
    if let Some(claim) = room {
        trans.hold_claim(claim);
    }
    for entry in &files {
        join_file(&mut trans, entry)?;
    }
    let shares = files.iter().any(|entry| trans.inode(entry.ino()).is_reflinked());
    for entry in &files {
        let core = trans.inode_mut(entry.ino(), InodeFields::CORE).core_mut();
        (core.mtime, core.ctime) = (exchange.now, exchange.now);
        core.flags2.set(InodeFlags2::REFLINK, shares);
    }
    let generations = exchange.files.map(|entry| trans.inode(entry.ino()).core().generation);
    if exchange.blocks > 0 {
        exchange::exchange_later(&mut trans, Exchange { generations, ..exchange.promise() });
    } else {
        // Kernels take an exchange of no blocks in the log for damage.
        for (entry, size) in exchange.files.into_iter().zip(exchange.sizes.into_iter().flatten()) {
            trans.inode_mut(entry.ino(), InodeFields::CORE).core_mut().size = size;
        }
    }
    let seq = trans.commit()?;
    mount.write_side()?.journal.force(seq)
}

/// Has both files know which of the blocks that they exchange others have as well.
fn say_what_is_shared(mount: &Mount, exchange: &ExchangeBlocks<'_>) -> Result<()> {
    let share = exchange.files.into_iter().any(|entry| entry.peek().is_reflinked());
    if !share && !exchange.files.into_iter().any(|entry| entry.copying().knows_any()) {
        return Ok(());
    }
    let (mut blocks, mut shared) = (Vec::new(), Vec::new());
    for (nth, entry) in exchange.files.into_iter().enumerate() {
        let extents = mount.extents(&entry.current(), ForkKind::Data)?;
        blocks.extend(all_runs(&extents, exchange.range(nth)));
        if share {
            shared.extend(shared::shared_runs(mount, &extents, exchange.range(nth))?);
        }
    }
    shared::say_exchanged(exchange.files, &blocks, &shared);
    Ok(())
}

/// Has the groups keep room for the pieces that owners will have in their reverse maps. [`Error::NoSpace`]: there is too
/// little. The caller keeps others off both ranges.
fn claim_room_to_exchange<'v>(
    mount: &'v Arc<Mount>,
    exchange: &ExchangeBlocks<'_>,
) -> Result<Option<OwnerClaim<'v>>> {
    let geometry = mount.geometry();
    if !geometry.rmapbt {
        return Ok(None);
    }
    let [one, two] = exchange.files.map(|entry| entry.current());
    let lists = [mount.extents(&one, ForkKind::Data)?, mount.extents(&two, ForkKind::Data)?];
    let records = new_owner_records(geometry, [&lists[0], &lists[1]], exchange.promise());
    // For few there is room anyway: it was asked for.
    if records.values().all(|&records| records <= FEW) {
        return Ok(None);
    }
    let mut trans = Trans::start(mount, Need::new(geometry).reservation())?;
    agf::claim_for_owners(&mut trans, &records).map(Some)
}

/// What it takes at most. [`Error::TooManyExtents`] if either file could get more than it may have.
fn need_to_exchange<'v>(mount: &'v Mount, exchange: &ExchangeBlocks<'_>) -> Result<Need<'v>> {
    let geometry = mount.geometry();
    let mut counts = [0; 2];
    for (count, entry) in counts.iter_mut().zip(exchange.files) {
        *count = mount.extents(&entry.current(), ForkKind::Data)?.len() as u64;
    }
    // An extent is cut at either end of a range.
    const CUT: u64 = 4;
    let most = if exchange.is_one_file() { counts[0] } else { counts[0] + counts[1] } + CUT;
    for entry in exchange.files {
        let large = entry.peek().core().flags2.contains(InodeFlags2::NREXT64);
        let limit = extent_limit(ForkKind::Data, large);
        if most > limit {
            return Err(Error::TooManyExtents { inode: entry.ino(), limit });
        }
    }
    let blocks = 2 * (tree_blocks(geometry, most) + 2 * map_levels(geometry));
    let need = Need::new(geometry).inodes(2).maps_at_once(1).exchange_at_once();
    Ok(need.blocks(blocks).steps(2))
}

/// Most blocks of the tree of a map of so many extents, whose blocks are half full.
pub(super) fn tree_blocks(geometry: &Geometry, extents: u64) -> u64 {
    let body = geometry.block_size as usize - Bmbt::header_len(geometry.v5);
    let (leaf, inner) = ((Bmbt::max_records(body) / 2).max(1), (Bmbt::max_children(body) / 2).max(2));
    let mut level = extents.div_ceil(leaf as u64);
    let mut sum = level;
    while level > 1 {
        level = level.div_ceil(inner as u64);
        sum += level;
    }
    sum
}
