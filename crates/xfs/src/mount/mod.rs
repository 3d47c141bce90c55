//! What transactions need of a volume: device, geometry, buffer cache, inode cache, group headers. If it is open for
//! writing, also the journal, the counters and the state of the allocators.
//!
//! A [`Mount`] (the kernel's `xfs_mount`) ties these together and does nothing to the volume by itself. Opening one
//! reads nothing that grows with the volume. Transactions and their operations lie above.
//! [`Volume`](crate::volume::Volume) is on top: it replays the log before there is a mount, and closes it.

mod flush;
mod fork;
mod inodes;
mod readahead;
mod reservations;
mod superblock;

pub use fork::InodeFork;
pub use reservations::Reservation;
pub(crate) use reservations::{LogNeed, WhenFull};
pub(crate) use superblock::{check_device, check_volume, read_superblock, refuse_unhandled};

use crate::alloc::{BusyExtents, Space};
use crate::buf::BufCache;
use crate::cache::Cache;
use crate::counters::Counters;
use crate::dcache::{Dcache, FileId};
use crate::error::{Error, Result};
use crate::group::{Groups, InodeRoots, SpaceRoots};
use crate::imap::{ImapSource, Inodes, Streams};
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
use xfs_format::inode::InodeCore;
use xfs_format::log::LogEnds;
use xfs_format::superblock::Superblock;
use xfs_format::timestamp::Timestamp;
use xfs_format::types::{AgNumber, InodeNumber};

const INODE_SHARDS: usize = 32;

/// The part of the cache size that cached names take, as a divisor, and their maximum.
const DCACHE_PART: u64 = 32;
const DCACHE_BYTES_MAX: u64 = 16 << 20;
/// The same for the table of recently looked-up inodes.
const RECENT_PART: u64 = 128;
const RECENT_BYTES_MAX: u64 = 4 << 20;

static INODE_SHARD_LOCK: LockClass = LockClass::new("inode cache");

/// How to open a volume.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Read a volume whose log is dirty as it is, without replay. Only for read-only volumes.
    pub norecovery: bool,
    /// Whether the volume may be changed.
    pub writable: bool,
    /// Bytes that all caches may take together.
    pub cache_size: u64,
    /// The same changes made by one thread give the same bytes: the clock stands still at this time, generation numbers
    /// follow from it, and the journal works in step ([`Pace::InStep`]).
    pub repeatable: Option<Timestamp>,
    /// The journal's designs. Only measurements choose others than the default.
    pub designs: Designs,
}

impl OpenOptions {
    /// Default size of the caches in bytes.
    pub const DEFAULT_CACHE_SIZE: u64 = 64 << 20;
}

impl Default for OpenOptions {
    /// Opens for reading.
    fn default() -> Self {
        Self {
            norecovery: false,
            writable: false,
            cache_size: Self::DEFAULT_CACHE_SIZE,
            repeatable: None,
            designs: Designs::default(),
        }
    }
}

/// Frees blocks that nobody uses; returns whether there were any. A transaction that finds too few blocks calls it. It
/// runs transactions of the layers above, hence the function pointer.
pub(crate) type BlockGc = fn(&Arc<Mount>) -> Result<bool>;

/// How many threads count references to the geometry apart from each other.
const INODE_GEOMETRIES: usize = 64;

/// A volume as its transactions see it. All threads share it, and any thread may make any call. It has a cache line
/// apart from its reference count.
#[derive(Debug)]
#[repr(align(128))]
pub struct Mount {
    superblock: Superblock,
    geometry: Arc<Geometry>,
    /// Copies of the geometry for inodes in memory: see [`geometry_for_inode`](Self::geometry_for_inode).
    inode_geometries: Box<[Arc<Geometry>]>,
    bufs: BufCache,
    inodes: Cache<InodeNumber, Arc<InodeEntry>>,
    /// Inodes that were looked up by name recently.
    pub(crate) recent: Arc<RecentInodes>,
    pub(crate) dcache: Dcache,
    /// The root directory, once it has been read.
    pub(crate) root: OnceLock<FileId>,
    groups: Groups,
    /// How far inode chunks have been read ahead.
    streams: Streams,
    write: Option<WriteSide>,
    /// What all caches of the volume may take together, in bytes.
    cache_size: u64,
    /// Blocks that a file's map may need for one more extent and for writing data into it. Computed at the first use.
    pub(crate) map_change: OnceLock<u64>,
    /// Keeps every other writer of this process out until the volume is closed. Released when nothing writes any more.
    claim: Mutex<Option<Arc<Claim>>>,
    /// Dropped last: its memory, or its number, may be another device's as soon as it is gone.
    device: Arc<dyn BlockDevice>,
}

impl Drop for Mount {
    /// Drops changes that were not written back, because the volume was shut down or nobody closed it.
    fn drop(&mut self) {
        if let Some(write) = &self.write {
            write.journal.end();
            self.bufs.end();
        }
    }
}

/// What only a volume has that is open for writing.
#[derive(Debug)]
pub(crate) struct WriteSide {
    pub(crate) journal: Arc<Journal>,
    pub(crate) counters: Counters,
    pub(crate) space: Space,
    pub(crate) busy: Arc<BusyExtents>,
    /// Blocks that have lost all owners but one, where this is not on disk yet. A crash may give them back to the other
    /// owners, so they count as shared.
    pub(crate) unshared: Arc<BusyExtents>,
    pub(crate) inodes: Inodes,
    /// The time at which the clock stands still, if it does.
    pub(crate) clock: Option<Timestamp>,
    /// Whether the superblock says that the quota counts are right. The first change clears that.
    pub(crate) quota_counted: AtomicBool,
    /// Whether the superblock says that the volume has attributes. The first attribute sets that.
    pub(crate) attr_feature_logged: AtomicBool,
    /// Files with blocks in the CoW fork.
    pub(crate) staging: Mutex<BTreeMap<InodeNumber, Arc<InodeEntry>>>,
    /// Unlinked inodes whose inactivation has begun and failed. Closing the volume tries again.
    pub(crate) unfinished: Mutex<Vec<Arc<InodeEntry>>>,
    /// The volume size in blocks for which the log was found large enough for every change of a file's blocks.
    pub(crate) log_suffices: AtomicU64,
    pub(crate) reservations: Reservations,
    /// Held while label or size change.
    pub(crate) altering: Mutex<()>,
    /// Held while a directory moves to another parent.
    pub(crate) moves: Mutex<()>,
    block_gc: BlockGc,
}

impl Mount {
    /// Ties together what is on `device`; `superblock` is its superblock. `ends` says where its log ends, for a volume
    /// that is to be written. Replaying what the log still holds and covering it are the caller's business.
    pub(crate) fn open(
        device: Arc<dyn BlockDevice>,
        superblock: Superblock,
        ends: Option<LogEnds>,
        options: &OpenOptions,
        claim: Option<Arc<Claim>>,
        gives_room: BlockGc,
    ) -> Result<Arc<Self>> {
        let geometry = Arc::new(Geometry::from_superblock(&superblock));
        let dcache = Dcache::within((options.cache_size / DCACHE_PART).min(DCACHE_BYTES_MAX));
        let recent = RecentInodes::within((options.cache_size / RECENT_PART).min(RECENT_BYTES_MAX));
        let half = options.cache_size.saturating_sub(dcache.bytes() + recent.bytes()) / 2;
        let mut bufs = BufCache::new(Arc::clone(&device), &geometry, half);
        let mut inodes = Cache::new(half, INODE_SHARDS, &INODE_SHARD_LOCK);
        // Changes may exceed the limit of a cache by half of it, or by twice the size of the log, whichever is less. Above
        // half of that they are written back. An item is larger in memory than in the log; a lone inode keeps its cluster.
        let log_bytes = u64::from(superblock.raw().logblocks.get()) << geometry.block_log;
        let slack = log_bytes.min(half / 4);
        bufs.set_slack(slack);
        inodes.set_slack(slack);
        let write = match ends {
            Some(ends) => {
                let space = Space::new(&geometry);
                let kept = space.kept_back(&bufs, &geometry)?;
                let seed = options.repeatable.map(|time| time.seconds.cast_unsigned());
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
            streams: Streams::default(),
            write,
            cache_size: options.cache_size,
            superblock,
            inode_geometries: (0..INODE_GEOMETRIES).map(|_| Arc::new(Geometry::clone(&geometry))).collect(),
            geometry,
            map_change: OnceLock::new(),
            claim: Mutex::new(claim),
            device,
        }))
    }

    /// Others use `others` bytes of the memory for caches; returns how many they may use. Each side may take what the
    /// other leaves, and always has half.
    pub fn share_memory(&self, others: u64) -> u64 {
        let (all, half) = (self.cache_size, self.cache_size / 2);
        // The size of these is fixed.
        let tables = self.dcache.bytes() + self.recent.bytes();
        let own = (all - others.min(half)).saturating_sub(tables);
        self.bufs.set_limit(own / 2);
        self.inodes.set_limit(own / 2);
        all - (tables + self.bufs.bytes() + self.inodes.weight()).min(half)
    }

    /// The volume's shape.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The superblock as it was when the volume was opened. Label and size may have changed since: see
    /// [`label`](crate::alter::label) and [`geometry`](Self::geometry).
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The device that the volume is on.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// Whether the volume may be changed.
    pub fn is_writable(&self) -> bool {
        self.write.is_some()
    }

    /// The timestamp for a change made now.
    pub fn now(&self) -> Timestamp {
        self.still_time().unwrap_or_else(Timestamp::now)
    }

    /// Content (if `content`) and attributes of an inode, which is locked, change: at the time at which the operation
    /// `began`. If the inode has a later one, of another thread that was faster, or set by hand, the time is now.
    pub(crate) fn touch(&self, core: &mut InodeCore, content: bool, began: Timestamp) {
        let is_late = core.ctime.max(core.mtime) > began;
        core.ctime = if is_late { self.now() } else { began };
        if content {
            core.mtime = core.ctime;
        }
    }

    /// The time at which the clock stands still, if it does.
    pub fn still_time(&self) -> Option<Timestamp> {
        self.write.as_ref()?.clock
    }

    /// Journal, counters and allocators. [`Error::ReadOnly`] if the volume is open for reading.
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
        self.bufs.bytes() + self.inodes.weight()
    }

    /// Starts write-back if dirty metadata take much more memory than the caches may; waits for it if they take all
    /// that is allowed.
    pub(crate) fn reclaim_caches(&self, journal: &Journal) -> Result<()> {
        if self.bufs.is_over_high_watermark() || self.inodes.is_over_high_watermark() {
            journal.push_to_reclaim();
            if self.bufs.is_over_hard_watermark() || self.inodes.is_over_hard_watermark() {
                journal.push_to_reclaim_and_wait()?;
                self.bufs.reclaim();
                self.inodes.reclaim();
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

    /// Keeps out readers that would see the last group's headers disagree with the geometry.
    pub(crate) fn groups_growing(&self) -> parking_lot::MutexGuard<'_, ()> {
        self.groups.growing()
    }

    /// Keeps readers of the refcount trees out while a change becomes visible.
    pub(crate) fn counts_changing(&self) -> parking_lot::RwLockWriteGuard<'_, ()> {
        self.groups.counts_changing()
    }

    /// Reads the refcount trees.
    pub(crate) fn sharing(&self) -> Sharing<'_> {
        Sharing { bufs: &self.bufs, geometry: &self.geometry, groups: &self.groups }
    }

    pub(crate) fn imap_source(&self) -> ImapSource<'_> {
        ImapSource { bufs: &self.bufs, geometry: &self.geometry, groups: &self.groups }
    }

    /// Calls `each` with the number of every inode in use, in order, until it breaks. Unlinked inodes that are not
    /// freed yet are included.
    pub fn for_each_inode(&self, each: &mut dyn FnMut(InodeNumber) -> ControlFlow<()>) -> Result<()> {
        self.imap_source().for_each(each)
    }

    /// Frees blocks that nobody uses; returns whether there were any.
    pub(crate) fn block_gc(self: &Arc<Self>) -> Result<bool> {
        (self.write_side()?.block_gc)(self)
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
        gives_room: BlockGc,
    ) -> Result<Self> {
        let raw = superblock.raw();
        // The counters are those of the last clean close, or those that recovery has summed up.
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
            attr_feature_logged: attributes_said,
            staging: Mutex::default(),
            unfinished: Mutex::default(),
            log_suffices: AtomicU64::new(0),
            reservations: Reservations::default(),
            altering: Mutex::default(),
            moves,
            block_gc: gives_room,
        })
    }
}
