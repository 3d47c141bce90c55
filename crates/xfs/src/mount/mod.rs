//! What transactions need of a volume: device, geometry, buffer cache, inode cache, group headers, and of one that is open
//! for writing journal, counters, and what allocators remember.
//!
//! A [`Mount`] (the kernel's `xfs_mount`) ties these together, and does nothing to the volume by itself. Opening one reads
//! nothing that grows with the volume. Transactions, and all that works in them, lie above; on top of all stands
//! [`Volume`](crate::volume::Volume), which replays logs before there is a mount, and closes it.

mod flush;
mod fork;
mod inodes;
mod reservations;
mod superblock;

pub use fork::InodeFork;
pub use reservations::Reservation;
pub(crate) use superblock::{check_device, check_volume, read_superblock, refuse_unhandled};

use crate::alloc::{BusyExtents, Space};
use crate::buf::BufCache;
use crate::cache::Cache;
use crate::counters::Counters;
use crate::dcache::{Dcache, FileId};
use crate::error::{Error, Result};
use crate::group::{Groups, InodeRoots, SpaceRoots};
use crate::imap::{InodeSource, Inodes};
use crate::inode::{InodeEntry, RecentInodes};
use crate::log::{Designs, Journal, Pace};
use crate::refcount::Sharing;
use blockdev::{BlockDevice, Claim};
use lockstat::LockClass;
use parking_lot::Mutex;
use reservations::Reservations;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use xfs_format::features::{QuotaFlags, VersionFlags};
use xfs_format::geometry::Geometry;
use xfs_format::log::LogEnds;
use xfs_format::superblock::Superblock;
use xfs_format::timestamp::Timestamp;
use xfs_format::types::{AgNumber, InodeNumber};

const INODE_SHARDS: usize = 32;

/// The part of the caches that names in memory take, and the most.
const DCACHE_PART: u64 = 32;
const DCACHE_BYTES_MAX: u64 = 16 << 20;
/// The same of the table of inodes that were looked up lately.
const RECENT_PART: u64 = 128;
const RECENT_BYTES_MAX: u64 = 4 << 20;

static INODE_SHARD_LOCK: LockClass = LockClass::new("inode cache");

/// How to open a volume.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Read a volume whose log is dirty as it is, without replay. Read-only volumes alone.
    pub norecovery: bool,
    /// Whether files may be overwritten.
    pub writable: bool,
    /// Bytes that the buffer cache and the inode cache may hold together.
    pub cache_size: u64,
    /// The same changes, made by one thread, give the same bytes: the clock stands still at this time, generation
    /// numbers follow from it, and the journal works in step ([`Pace::InStep`]).
    pub repeatable: Option<Timestamp>,
    /// What the journal is made of. For measurements; the default is the one to use.
    pub designs: Designs,
}

impl Default for OpenOptions {
    /// For reading, with 64 MiB of caches.
    fn default() -> Self {
        Self {
            norecovery: false,
            writable: false,
            cache_size: 64 << 20,
            repeatable: None,
            designs: Designs::default(),
        }
    }
}

/// Has blocks be free again that nobody uses; whether there were any. A transaction that finds too few blocks asks for it,
/// and what it takes is transactions of layers above.
pub(crate) type GivesRoom = fn(&Arc<Mount>) -> Result<bool>;

/// A volume as its transactions see it. Shared by all threads; every call may be made from any of them.
#[derive(Debug)]
pub struct Mount {
    device: Arc<dyn BlockDevice>,
    superblock: Superblock,
    geometry: Arc<Geometry>,
    bufs: BufCache,
    inodes: Cache<InodeNumber, Arc<InodeEntry>>,
    /// Of those, some that were looked up by name lately.
    pub(crate) recent: Arc<RecentInodes>,
    pub(crate) dcache: Dcache,
    /// The root directory, once it was read.
    pub(crate) root: OnceLock<FileId>,
    groups: Groups,
    write: Option<WriteSide>,
    /// What all caches of the volume may take together.
    cache_size: u64,
    /// Blocks that a file's map may need for an extent more, and to tell of its data: once it was asked.
    pub(crate) map_change: OnceLock<u64>,
    /// Keeps every other writer of this process out until the volume is closed. Let go of last.
    claim: Mutex<Option<Arc<Claim>>>,
}

impl Drop for Mount {
    /// What was changed and not written back, as nobody closed the volume, or it was shut down, goes with it.
    fn drop(&mut self) {
        if let Some(write) = &self.write {
            write.journal.end();
            self.bufs.end();
        }
    }
}

/// What only a volume that is open for writing has.
#[derive(Debug)]
pub(crate) struct WriteSide {
    pub(crate) journal: Arc<Journal>,
    pub(crate) counters: Counters,
    pub(crate) space: Space,
    pub(crate) busy: Arc<BusyExtents>,
    /// Blocks that have lost all owners but one, and whose loss is not on disk yet: a crash may give them back to the
    /// others, so that they are as good as shared.
    pub(crate) unshared: Arc<BusyExtents>,
    pub(crate) inodes: Inodes,
    /// Where the clock stands, if it stands still.
    pub(crate) clock: Option<Timestamp>,
    /// Whether the superblock says of quota counts that they are right, which the first change will take back.
    pub(crate) quota_counted: AtomicBool,
    /// Whether the superblock says that the volume has attributes, as the first one makes it.
    pub(crate) attributes_said: AtomicBool,
    /// Files that have blocks staged for copies.
    pub(crate) staging: Mutex<BTreeMap<InodeNumber, Arc<InodeEntry>>>,
    /// Inodes without names whose end has begun, and failed on the way: who closes the volume tries again.
    pub(crate) unfinished: Mutex<Vec<Arc<InodeEntry>>>,
    /// The size in blocks for which the log was found to be large enough for whatever changes a file's blocks.
    pub(crate) log_suffices: AtomicU64,
    pub(crate) reservations: Reservations,
    /// Held by whoever changes label or size.
    pub(crate) altering: Mutex<()>,
    /// Held by whoever moves a directory from one directory to another.
    pub(crate) moves: Mutex<()>,
    gives_room: GivesRoom,
}

impl Mount {
    /// Ties together what is on `device`, of which this is the superblock. `ends`: where its log ends, for a volume that is to
    /// be written. What the log holds beyond that is the caller's business, and so is who covers it.
    pub(crate) fn open(
        device: Arc<dyn BlockDevice>,
        superblock: Superblock,
        ends: Option<LogEnds>,
        options: &OpenOptions,
        claim: Option<Arc<Claim>>,
        gives_room: GivesRoom,
    ) -> Result<Arc<Self>> {
        let geometry = Arc::new(Geometry::from_superblock(&superblock));
        let dcache = Dcache::within((options.cache_size / DCACHE_PART).min(DCACHE_BYTES_MAX));
        let recent = RecentInodes::within((options.cache_size / RECENT_PART).min(RECENT_BYTES_MAX));
        let half = options.cache_size.saturating_sub(dcache.bytes() + recent.bytes()) / 2;
        let mut bufs = BufCache::new(Arc::clone(&device), &geometry, half);
        let mut inodes = Cache::new(half, INODE_SHARDS, &INODE_SHARD_LOCK);
        // Beyond the limit of a cache, changes may take half as much again, or twice what the log has: from half of that on
        // they are written back. An item is larger in memory than in the log, most of all a lone inode: its whole cluster.
        let log_bytes = u64::from(superblock.raw().logblocks.get()) << geometry.block_log;
        let slack = log_bytes.min(half / 4);
        bufs.set_slack(slack);
        inodes.set_slack(slack);
        let write = match ends {
            Some(ends) => {
                let space = Space::new(&geometry);
                let kept = space.kept_back(&bufs, &geometry)?;
                let seed = options.repeatable.map(|time| time.secs.cast_unsigned());
                let inodes = Inodes::new(&geometry, seed);
                Some(WriteSide::open(&device, &superblock, ends, (space, inodes), kept, options, gives_room)?)
            }
            None => None,
        };
        if let Some(write) = &write {
            bufs.set_journal(Arc::clone(&write.journal));
        }
        Ok(Arc::new(Self {
            bufs,
            inodes,
            recent,
            dcache,
            root: OnceLock::new(),
            groups: Groups::new(geometry.ag_count(), options.writable),
            write,
            cache_size: options.cache_size,
            device,
            superblock,
            geometry,
            map_change: OnceLock::new(),
            claim: Mutex::new(claim),
        }))
    }

    /// Others use so many bytes of the memory that caches may have together; how many they may. Each side may have what the
    /// other one leaves, and has half of it in any case.
    pub fn share_memory(&self, others: u64) -> u64 {
        let (all, half) = (self.cache_size, self.cache_size / 2);
        // These are as large as they are, whoever needs memory.
        let tables = self.dcache.bytes() + self.recent.bytes();
        let own = (all - others.min(half)).saturating_sub(tables);
        self.bufs.set_limit(own / 2);
        self.inodes.set_limit(own / 2);
        all - (tables + self.bufs.weight() + self.inodes.weight()).min(half)
    }

    /// The volume's shape.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The superblock as it was when the volume was opened. Label and size may have changed since:
    /// [`label`](crate::alter::label), [`geometry`](Self::geometry).
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The device that the volume lies on.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// Whether files may be overwritten.
    pub fn is_writable(&self) -> bool {
        self.write.is_some()
    }

    /// The time of a change that is made now.
    pub fn now(&self) -> Timestamp {
        self.still_time().unwrap_or_else(Timestamp::now)
    }

    /// Where the clock stands, if it stands still.
    pub(crate) fn still_time(&self) -> Option<Timestamp> {
        self.write.as_ref()?.clock
    }

    /// Journal and counters. [`Error::ReadOnly`] for a volume that is open for reading.
    pub(crate) fn write_side(&self) -> Result<&WriteSide> {
        self.write.as_ref().ok_or(Error::ReadOnly("the volume is open for reading"))
    }

    /// The journal of a volume that is open for writing.
    pub fn journal(&self) -> Result<&Arc<Journal>> {
        Ok(&self.write_side()?.journal)
    }

    /// The metadata buffers.
    pub fn bufs(&self) -> &BufCache {
        &self.bufs
    }

    /// Bytes that the caches hold now.
    pub fn cache_weight(&self) -> u64 {
        self.bufs.weight() + self.inodes.weight()
    }

    /// Has changes written back if they take much more memory than the caches have; waits for it if they take all that
    /// they may.
    pub(crate) fn relieve_caches(&self, journal: &Journal) -> Result<()> {
        if self.bufs.is_crowded() || self.inodes.is_crowded() {
            journal.relieve();
            if self.bufs.is_swamped() || self.inodes.is_swamped() {
                journal.wait_for_relief()?;
                self.bufs.shed();
                self.inodes.shed();
            }
        }
        Ok(())
    }

    /// The inode trees of a group.
    pub fn group_inodes(&self, ag: AgNumber) -> Result<InodeRoots> {
        self.groups.inodes(&self.bufs, &self.geometry, ag)
    }

    /// The trees of free and used space of a group.
    pub fn group_space(&self, ag: AgNumber) -> Result<SpaceRoots> {
        self.groups.space(&self.bufs, &self.geometry, ag)
    }

    /// Keeps those off who would find the last group's headers and the volume's shape in disagreement.
    pub(crate) fn groups_growing(&self) -> parking_lot::MutexGuard<'_, ()> {
        self.groups.growing()
    }

    /// Keeps those off who go through a tree of reference counts, while a change becomes visible.
    pub(crate) fn counts_changing(&self) -> parking_lot::RwLockWriteGuard<'_, ()> {
        self.groups.counts_changing()
    }

    /// What the trees of reference counts say.
    pub(crate) fn sharing(&self) -> Sharing<'_> {
        Sharing { bufs: &self.bufs, geometry: &self.geometry, groups: &self.groups }
    }

    pub(crate) fn inode_source(&self) -> InodeSource<'_> {
        InodeSource { bufs: &self.bufs, geometry: &self.geometry, groups: &self.groups }
    }

    /// Calls `each` with the number of every inode in use, in order, until it breaks. Inodes that are unlinked and
    /// not yet freed are among them.
    pub fn for_each_inode(&self, each: &mut dyn FnMut(InodeNumber) -> ControlFlow<()>) -> Result<()> {
        self.inode_source().for_each(each)
    }

    /// Has blocks be free again that nobody uses; whether there were any.
    pub(crate) fn gives_room(self: &Arc<Self>) -> Result<bool> {
        (self.write_side()?.gives_room)(self)
    }

    /// Lets other writers of this process in.
    pub(crate) fn give_up_claim(&self) {
        drop(self.claim.lock().take());
    }
}

impl WriteSide {
    fn open(
        device: &Arc<dyn BlockDevice>,
        superblock: &Superblock,
        ends: LogEnds,
        (space, inodes): (Space, Inodes),
        kept_back: u64,
        options: &OpenOptions,
        gives_room: GivesRoom,
    ) -> Result<Self> {
        let raw = superblock.raw();
        // The counters are those of the last clean close, or recovery has summed them up.
        let counters = Counters::new(raw.fdblocks.get(), raw.icount.get(), raw.ifree.get(), kept_back);
        let pace = options.repeatable.map_or(Pace::Background, |_| Pace::InStep);
        let journal = Journal::open(Arc::clone(device), superblock, ends, pace, options.designs)?;
        let (busy, moves) = (Arc::default(), Mutex::new(()));
        let flags = QuotaFlags::from_bits_retain(raw.qflags.get());
        let quota_counted = AtomicBool::new(flags.intersects(QuotaFlags::COUNTED));
        let attributes_said = AtomicBool::new(superblock.version_flags().contains(VersionFlags::ATTR));
        Ok(Self {
            journal,
            counters,
            space,
            busy,
            unshared: Arc::default(),
            inodes,
            clock: options.repeatable,
            quota_counted,
            attributes_said,
            staging: Mutex::default(),
            unfinished: Mutex::default(),
            log_suffices: AtomicU64::new(0),
            reservations: Reservations::default(),
            altering: Mutex::default(),
            moves,
            gives_room,
        })
    }
}
