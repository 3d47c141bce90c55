//! Exchanging blocks between two files: all of a range or nothing, whatever fails.
//!
//! One transaction logs the exchange intent (XMI) and carries it out in rolled steps, one pair of mappings at a time,
//! with both inodes locked. After a crash, the rest is in the log for recovery.
//!
//! Invariants:
//! - blocks for everything that either map may need are reserved before anything changes, and what the maps' trees free
//!   on the way stays with the transaction. Room in the rmap trees of all groups is reserved as well. So the exchange
//!   never runs out of space half-way;
//! - if either file has the reflink flag, both have it before any block moves;
//! - the exchange is permanently in the log before anybody can write to either range. Such a write goes in place, to
//!   blocks that would belong to the other file again after a crash.

use super::cow;
use super::limits;
use super::shared::{self, all_runs};
use super::{FileBlocks, join_file};
use crate::agf;
use crate::alloc::{FEW, OwnerClaim};
use crate::bmap::edit::extent_limit;
use crate::error::{Error, Result};
use crate::exchange::{self, new_owner_records};
use crate::inode::{ForkKind, InodeEntry};
use crate::mount::Mount;
use crate::trans::Trans;
use crate::trans::reservation::{ReservationBuilder, map_levels};
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
    /// The files. They may be the same.
    pub files: [&'a Arc<InodeEntry>; 2],
    /// The first block in each.
    pub at: [FileBlock; 2],
    /// The number of blocks.
    pub blocks: u64,
    /// The new sizes of the files, if they change.
    pub sizes: Option<[u64; 2]>,
    /// Exchange only what is written in the first file.
    pub only_written: bool,
    /// The time of the change.
    pub now: Timestamp,
}

impl ExchangeBlocks<'_> {
    fn range(&self, nth: usize) -> FileBlocks {
        let at = self.at[nth];
        at..FileBlock(at.0 + self.blocks)
    }

    fn is_one_file(&self) -> bool {
        self.files[0].ino() == self.files[1].ino()
    }

    /// What will be logged, for inodes of any generation.
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

/// Exchanges blocks of two files. The change is durable when this returns. The caller keeps everybody off both ranges,
/// which are whole blocks. If sizes change, it also keeps them off everything behind, and no data lie past the ends.
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
        // It was staged for content that leaves the file.
        cow::cancel_cow(mount, entry, exchange.range(nth))?;
    }
    let need = reservation_to_exchange(mount, exchange)?;
    Trans::check_log(mount, need.build())?;
    mark_shared_blocks(mount, exchange)?;
    let room = claim_room_to_exchange(mount, exchange)?;
    let mut trans = Trans::start(mount, need.build())?;
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
        mount.touch(core, true, exchange.now);
        core.flags2.set(InodeFlags2::REFLINK, shares);
    }
    let generations = exchange.files.map(|entry| trans.inode(entry.ino()).core().generation);
    if exchange.blocks > 0 {
        exchange::defer_exchange(&mut trans, Exchange { generations, ..exchange.promise() });
    } else {
        // Kernels take an exchange of no blocks in the log for corruption.
        for (entry, size) in exchange.files.into_iter().zip(exchange.sizes.into_iter().flatten()) {
            trans.inode_mut(entry.ino(), InodeFields::CORE).core_mut().size = size;
        }
    }
    let seq = trans.commit()?;
    mount.write_side()?.journal.force(seq)
}

/// Tells both files which of the exchanged blocks others have as well.
fn mark_shared_blocks(mount: &Mount, exchange: &ExchangeBlocks<'_>) -> Result<()> {
    let share = exchange.files.into_iter().any(|entry| entry.snapshot().is_reflinked());
    if !share && !exchange.files.into_iter().any(|entry| entry.cow().knows_any()) {
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
    shared::mark_exchanged(exchange.files, &blocks, &shared);
    Ok(())
}

/// Claims room in the groups' rmap trees for the additional records. [`Error::NoSpace`] if there is too little. The
/// caller keeps others off both ranges.
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
    // There is room for a few in any case: that was checked.
    if records.values().all(|&records| records <= FEW) {
        return Ok(None);
    }
    let mut trans = Trans::start(mount, ReservationBuilder::new(geometry).build())?;
    agf::claim_for_owners(&mut trans, &records).map(Some)
}

/// The maximum that it may need. [`Error::TooManyExtents`] if either file could get more extents than it may have.
fn reservation_to_exchange<'v>(
    mount: &'v Mount,
    exchange: &ExchangeBlocks<'_>,
) -> Result<ReservationBuilder<'v>> {
    let geometry = mount.geometry();
    let mut counts = [0; 2];
    for (count, entry) in counts.iter_mut().zip(exchange.files) {
        *count = mount.extents(&entry.current(), ForkKind::Data)?.len() as u64;
    }
    // An extent is split at either end of a range.
    const CUT: u64 = 4;
    let most = if exchange.is_one_file() { counts[0] } else { counts[0] + counts[1] } + CUT;
    for entry in exchange.files {
        let large = entry.snapshot().core().flags2.contains(InodeFlags2::NREXT64);
        let limit = extent_limit(ForkKind::Data, large);
        if most > limit {
            return Err(Error::TooManyExtents { inode: entry.ino(), limit });
        }
    }
    let blocks = 2 * (tree_blocks(geometry, most) + 2 * map_levels(geometry));
    let need = ReservationBuilder::new(geometry).inodes(2).maps_at_once(1).exchange_at_once();
    Ok(need.blocks(blocks).log_count(2))
}

/// Maximum number of blocks of a map tree for this many extents, with blocks half full.
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
