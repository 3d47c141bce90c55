//! The second pass: applies changes in log order.
//!
//! Within a transaction the order is: buffers and new inodes, then what lies in them (inodes, dquots), then unlinked
//! lists, and frees last. Nothing lies in two groups, so each of several threads has its own groups, and for each group
//! the order is that of the log. What needs the whole volume comes after all of it: the owners of map blocks
//! ([`owners`]), and checksums of directory blocks in several pieces ([`scattered`]).
//!
//! Invariants: every changed block passes its verifier in the end, or recovery fails and nothing is written. An item is
//! replayed by the one share whose group it names.

mod buffer;
mod dquot;
mod group_replay;
mod inode;
mod owners;
mod scattered;

use super::pass1::CancelTable;
use super::patch::Patch;
use super::report::Counts;
use super::transactions::{Item, Transaction};
use crate::error::{Error, Result};
use blockdev::BlockDevice;
use group_replay::GroupReplay;
use scattered::Scattered;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::thread::ScopedJoinHandle;
use xfs_format::geometry::Geometry;
use xfs_format::log::{BufFlags, LogItem};
use xfs_format::types::{AgBlock, AgNumber, DiskAddr, InodeNumber, Lsn};

/// Maximum number of threads that replay.
const SHARES_MAX: usize = 8;
/// Number of items in a transaction from which on threads are worth starting.
const WORTH_THREADS: usize = 256;
/// What all shares together cache of what they read.
const KEPT_BYTES: u64 = 64 << 20;

/// Something that is newer than the log's end, and its LSN.
pub(super) type Ahead = (&'static str, Lsn);

/// A replay in progress.
pub(super) struct Replay<'g> {
    geometry: &'g Geometry,
    shares: Vec<GroupReplay<'g>>,
    /// All changes, in the end.
    whole: Patch,
}

/// When within its transaction an item is replayed.
#[derive(Clone, Copy)]
enum ReorderList {
    Buffers,
    Items,
    InodeBuffers,
    Cancels,
}

/// The items of a transaction that one share replays, by order.
type ReorderLists<'i, 't> = [Vec<&'i Item<'t>>; 4];

fn reorder_list(item: &Item<'_>) -> ReorderList {
    match &item.format {
        LogItem::Buf(buf) if buf.flags.contains(BufFlags::CANCEL) => ReorderList::Cancels,
        LogItem::Buf(buf) if buf.flags.contains(BufFlags::INODE_BUF) => ReorderList::InodeBuffers,
        LogItem::Buf(_) | LogItem::InodeCreate(_) => ReorderList::Buffers,
        _ => ReorderList::Items,
    }
}

impl<'g> Replay<'g> {
    /// An empty replay of a log at `log`, in bytes of the device, that ends at `head`.
    pub(super) fn new(
        device: &Arc<dyn BlockDevice>,
        geometry: &'g Geometry,
        log: &Range<u64>,
        cancels: CancelTable,
        head: Lsn,
    ) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let count = cores.min(SHARES_MAX).min(geometry.ag_count() as usize).max(1);
        let kept = KEPT_BYTES / count as u64;
        let patch = || Patch::new(Arc::clone(device), geometry.bytes(), log.clone(), kept);
        let voids = cancels.split(count, |daddr| share_of(geometry, count, daddr));
        let shares =
            voids.into_iter().map(|cancels| GroupReplay::new(geometry, patch(), cancels, head)).collect();
        Self { geometry, shares, whole: patch() }
    }

    /// Replays a transaction.
    pub(super) fn transaction(&mut self, transaction: &Transaction) -> Result<()> {
        let damaged = |problem| Error::Corrupt { daddr: None, inode: None, problem };
        let items = transaction.items().map_err(damaged)?;
        let count = self.shares.len();
        let mut parts: Vec<ReorderLists<'_, '_>> = (0..count).map(|_| ReorderLists::default()).collect();
        for item in &items {
            // Unfinished intents are finished later, and finished ones are irrelevant.
            let Some(daddr) = place(item, self.geometry) else { continue };
            parts[share_of(self.geometry, count, daddr)][reorder_list(item) as usize].push(item);
        }
        self.together(items.len() >= WORTH_THREADS, parts, |share, turns| {
            turns.iter().flatten().try_for_each(|item| share.item(transaction.lsn, item))
        })
    }

    /// Verifies the final state of everything that was changed. Returns it, the item counts, and something that is
    /// newer than the log, if anything is.
    pub(super) fn finish(mut self) -> Result<(Patch, Counts, Option<Ahead>)> {
        let whole = vec![(); self.shares.len()];
        self.together(true, whole, |share, ()| share.verify())?;
        let mut counts = Counts::default();
        let (mut ahead, mut owners, mut scattered) = (None, BTreeSet::new(), Scattered::default());
        for share in self.shares {
            ahead = ahead.or(share.ahead());
            self.whole.take_in(share.patch);
            counts += share.counts;
            owners.extend(share.owners);
            scattered.take_in(share.scattered);
        }
        owners::change(&mut self.whole, self.geometry, &owners)?;
        Ok((scattered.put_together(self.whole, self.geometry)?, counts, ahead))
    }

    /// Lets each share do its part, in parallel if it is worth it.
    fn together<T: Send>(
        &mut self,
        worth: bool,
        parts: Vec<T>,
        work: impl Fn(&mut GroupReplay<'g>, T) -> Result<()> + Sync,
    ) -> Result<()> {
        let mut jobs = self.shares.iter_mut().zip(parts);
        if !worth {
            return jobs.try_for_each(|(share, part)| work(share, part));
        }
        let work = &work;
        std::thread::scope(|scope| {
            let threads: Vec<_> = jobs.map(|(share, part)| scope.spawn(move || work(share, part))).collect();
            let join = |thread: ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).fold(Ok(()), Result::and)
        })
    }
}

/// Where the metadata lie that an item changes, if any.
fn place(item: &Item<'_>, geometry: &Geometry) -> Option<DiskAddr> {
    match &item.format {
        LogItem::Buf(buf) => Some(buf.daddr),
        LogItem::Inode(inode) => Some(inode.daddr),
        LogItem::InodeCreate(create) => Some(geometry.daddr_of(create.ag(), create.agbno())),
        LogItem::Dquot(dquot) => Some(DiskAddr(dquot.blkno.get().unsigned_abs())),
        _ => None,
    }
}

/// The byte of the device where an inode lies.
fn place_of(geometry: &Geometry, ino: InodeNumber) -> Option<u64> {
    let (ag, inode) = geometry.split_inode(ino)?;
    let block = inode.0 >> geometry.inodes_per_block_log;
    let within = inode.0 & ((1 << geometry.inodes_per_block_log) - 1);
    let start = geometry.daddr_of(ag, AgBlock(block)).0 * 512;
    Some(start + u64::from(within) * u64::from(geometry.inode_size))
}

/// The share to which the group of a place belongs. A place beyond the volume's end has one too, which refuses it.
fn share_of(geometry: &Geometry, shares: usize, daddr: DiskAddr) -> usize {
    let group = geometry.daddr_of(AgNumber(1), AgBlock(0)).0;
    (daddr.0 / group.max(1) % shares as u64) as usize
}
