//! The volume: ties device, buffers, inodes and maps together.
//!
//! Opening reads the superblock and a few blocks of the log, however large the volume is; everything else is read
//! when it is first needed.

use crate::alloc::{BusyExtents, Space};
use crate::alter;
use crate::bmap::{FileMap, InodeFork};
use crate::buf::{AHEAD, BufCache};
use crate::cache::Cache;
use crate::counters::Counters;
use crate::dcache::{Dcache, FileId};
use crate::error::{Error, Result};
use crate::fork::Fork;
use crate::group::{Groups, InodeRoots, SpaceRoots};
use crate::ifork::{self, ExtentList};
use crate::imap::{InodeSource, Inodes};
use crate::inode::{ForkState, RecentInodes};
use crate::log::{CommitSeq, Designs, Journal, Pace, ShutdownReason, check_headers};
use crate::recovery::{self, clean};
use crate::refcount::{SharedRun, Sharing};
use crate::trans;
use blockdev::{AlignedBuf, BlockDevice, Claim, DeviceError};
use fileio::testing::point;
use lockstat::LockClass;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashSet};
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use xfs_format::error::FormatError;
use xfs_format::features::{QuotaFlags, VersionFlags};
use xfs_format::geometry::Geometry;
use xfs_format::inode::ForkFormat;
use xfs_format::log::LogEnds;
use xfs_format::superblock::{Superblock, Unhandled};
use xfs_format::timestamp::Timestamp;
use xfs_format::types::{AgNumber, DiskAddr, FileBlock, FsBlock, InodeNumber, Lsn};

pub use crate::info::{VolumeInfo, VolumeStat};
pub use crate::inode::{ForkKind, Inode, InodeEntry, InodeHandle};

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

/// An open volume. Shared by all threads; every call may be made from any of them.
#[derive(Debug)]
pub struct Volume {
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
    log_clean: bool,
    /// Whether the copies of the superblock had to be made to follow it when the volume was opened.
    copies_settled: AtomicBool,
    /// What recovery found and did when the volume was opened.
    recovery: OnceLock<recovery::Report>,
    /// Blocks that a file's map may need for an extent more, and to tell of its data: once it was asked.
    pub(crate) map_change: OnceLock<u64>,
    /// Keeps every other writer of this process out until the volume is closed. Let go of last.
    claim: Mutex<Option<Arc<Claim>>>,
}

impl Drop for Volume {
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
    /// Set once the log was found to be large enough for whatever changes a file's blocks.
    pub(crate) log_suffices: OnceLock<()>,
    /// Held by whoever changes label or size.
    pub(crate) altering: Mutex<()>,
    /// Held by whoever moves a directory from one directory to another.
    pub(crate) moves: Mutex<()>,
}

impl Volume {
    /// Opens the volume on `device`: reads the superblock and nothing else that grows with the volume. A log that is
    /// dirty is replayed: for reading in memory alone, for writing on the device.
    pub fn open(device: Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<Arc<Self>> {
        Self::open_claimed(device, options, None)
    }

    /// As [`open`](Self::open), on a device that the caller may have claimed before: for as long as it keeps that, nobody
    /// else gets in, be the volume closed.
    pub fn open_claimed(
        device: Arc<dyn BlockDevice>,
        options: &OpenOptions,
        claim: Option<Arc<Claim>>,
    ) -> Result<Arc<Self>> {
        let mut device = device;
        // Before the first look: another writer who closes now would leave us with its old counters.
        let claim = match claim {
            None if options.writable => Some(Arc::new(Claim::new(&*device)?)),
            claim => claim,
        };
        let mut superblock = read_superblock(&*device)?;
        check_volume(&*device, &superblock, options)?;
        let ends = clean::log_ends(&*device, &superblock);
        let log_clean = match &ends {
            Ok(ends) => ends.clean,
            // Whoever wants no replay wants to read what is there, whatever the log looks like.
            Err(_) if options.norecovery => false,
            Err(_) => return ends.map(|_| unreachable!("an error has no value")),
        };
        if let (Ok(ends), true, true) = (&ends, log_clean, options.writable) {
            check_headers(&*device, &Geometry::from_superblock(&superblock), ends.head_lsn())?;
            alter::finish_uuid(&*device, &superblock, ends)?;
        }
        let (mut report, mut recovered) = (OnceLock::new(), None);
        if let (Ok(ends), false) = (&ends, log_clean || options.norecovery) {
            let replayed = recovery::replay(&device, &superblock, ends)?;
            superblock = *replayed.superblock();
            check_volume(&*device, &superblock, options)?;
            if options.writable {
                replayed.check_writable()?;
                recovered = Some(replayed.write()?);
            } else {
                let (patched, what) = if replayed.owes() {
                    // Files that the unfinished work is about would be neither as they were nor as they were to be.
                    let finished = recovery::finish_in_memory(&device, options);
                    finished.unwrap_or_else(|error| replayed.into_device_despite(&error))
                } else {
                    replayed.into_device()
                };
                device = patched;
                // With the counters of what was finished.
                superblock = read_superblock(&*device)?;
                report = OnceLock::from(what);
            }
        }
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
            Ok(ends) if options.writable => {
                let space = Space::new(&geometry);
                let kept = space.kept_back(&bufs, &geometry)?;
                let seed = options.repeatable.map(|time| time.secs.cast_unsigned());
                let inodes = Inodes::new(&geometry, seed);
                let ends = recovered.as_ref().map_or(ends, |recovered| recovered.ends(ends));
                Some(WriteSide::open(&device, &superblock, ends, (space, inodes), kept, options)?)
            }
            _ => None,
        };
        if let Some(write) = &write {
            bufs.set_journal(Arc::clone(&write.journal));
        }
        let volume = Arc::new(Self {
            bufs,
            inodes,
            recent,
            dcache,
            root: OnceLock::new(),
            groups: Groups::new(geometry.ag_count(), options.writable),
            write,
            cache_size: options.cache_size,
            log_clean,
            copies_settled: AtomicBool::new(false),
            recovery: report,
            device,
            superblock,
            geometry,
            map_change: OnceLock::new(),
            claim: Mutex::new(claim),
        });
        if let Some(write) = &volume.write {
            let this = Arc::downgrade(&volume);
            write.journal.set_cover(move || {
                // What fails here is tried again when the journal has been idle once more.
                let _ = this.upgrade().map(|volume| trans::superblock::cover(&volume));
            });
        }
        if let Some(recovered) = recovered {
            let owed = recovered.adopt(&volume.write_side()?.journal, &volume.geometry)?;
            let report = owed.finish(&volume)?;
            let _first = volume.recovery.set(report);
        }
        if volume.is_writable() {
            recovery::free_staged(&volume)?;
            // A kernel that recovered a growth or a label that was cut short leaves the copies as they were.
            let settled = alter::settle_copies(&volume)?;
            volume.copies_settled.store(settled, Ordering::Relaxed);
        }
        Ok(volume)
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
    /// [`label`](Self::label), [`geometry`](Self::geometry).
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

    /// Whether something can be changed now: the volume is open for writing, and was not shut down.
    pub fn check_writable(&self) -> Result<()> {
        match self.write_side()?.journal.is_shut_down() {
            Some(why) => Err(Error::Shutdown(why)),
            None if self.has_stopped_writes() => Err(Error::Shutdown(ShutdownReason::Closed)),
            None => Ok(()),
        }
    }

    /// Whether nothing in the log waited to be replayed when the volume was opened.
    pub fn log_is_clean(&self) -> bool {
        self.log_clean
    }

    /// What recovery found and did when the volume was opened. `None`: there was nothing to do.
    pub fn recovery(&self) -> Option<&recovery::Report> {
        self.recovery.get()
    }

    /// Whether the copies of the superblock lagged behind it when the volume was opened, and were made to follow: a change of
    /// its size, label, UUID or features had been cut short.
    pub fn copies_settled(&self) -> bool {
        self.copies_settled.load(Ordering::Relaxed)
    }

    /// Reads an inode, or finds it in the cache: the version that is committed now. An inode that is free is an error.
    pub fn inode(self: &Arc<Self>, ino: InodeNumber) -> Result<Arc<Inode>> {
        Ok(self.entry(ino)?.current())
    }

    /// As [`inode`](Self::inode), with its lock and whatever version is committed later.
    pub fn entry(self: &Arc<Self>, ino: InodeNumber) -> Result<Arc<InodeEntry>> {
        let entry = match self.inodes.get(&ino) {
            Some(entry) => entry,
            None => self.read_inode(ino)?,
        };
        if entry.peek().is_free() { Err(Error::NoSuchInode(ino)) } else { Ok(entry) }
    }

    /// The file that has this number now, for whoever works with it later. One that is being freed is an error, too.
    pub fn handle(self: &Arc<Self>, ino: InodeNumber) -> Result<InodeHandle> {
        let entry = self.entry(ino)?;
        let inode = entry.current();
        let gone = !entry.is_in_use(&inode);
        if gone { Err(Error::NoSuchInode(ino)) } else { Ok(InodeHandle::new(entry, &inode)) }
    }

    /// Reads an inode that is not in memory, or finds that another thread was faster.
    fn read_inode(self: &Arc<Self>, ino: InodeNumber) -> Result<Arc<InodeEntry>> {
        // The tree is read as it is being changed: one block of it may be of before a commit, and another of after it. That
        // an inode is not to be found there is believed of those alone who keep changes off.
        let mut still = None;
        loop {
            let writes = self.bufs.writes();
            if let Some(entry) = self.inodes.get(&ino) {
                return Ok(entry);
            }
            let found = self.inode_source().find(ino);
            let parsed = found.and_then(|found| {
                self.check_inode_lsn(ino, found.bytes())?;
                Inode::parse(ino, &found, &self.geometry)
            });
            point("an inode is read");
            match parsed {
                // It may have been changed, written and forgotten since its cluster was looked at, or freed with it.
                Ok(inode) => {
                    if let Some(entry) =
                        self.enter_if_newest(Arc::new(inode), || self.bufs.writes() == writes)
                    {
                        return Ok(entry);
                    }
                }
                Err(error) if still.is_some() || !self.is_writable() => return Err(error),
                Err(error) => {
                    let Some((ag, _)) = self.geometry.split_inode(ino) else { return Err(error) };
                    still = Some(self.inode_source().keep_still(ag)?);
                }
            }
        }
    }

    /// An inode that is newer than the log may be read, and not changed: a crash would lose that.
    fn check_inode_lsn(&self, ino: InodeNumber, bytes: &[u8]) -> Result<()> {
        let Some(write) = self.write.as_ref().filter(|_| self.geometry.v5) else { return Ok(()) };
        let Some(lsn) = xfs_format::inode::lsn_of(bytes) else { return Ok(()) };
        let ahead = |head: Lsn| FormatError::mismatch("inode", AHEAD, lsn.0, head.0);
        write.journal.check_lsn(lsn).map_err(|head| Error::corrupt_inode(ino, ahead(head)))
    }

    /// The entry of an inode that is in memory, in use or not.
    #[allow(dead_code, reason = "its users follow")]
    pub(crate) fn cached_entry(&self, ino: InodeNumber) -> Option<Arc<InodeEntry>> {
        self.inodes.get(&ino)
    }

    /// The entry of an inode for a look at it, which is found in a quicker way the next time.
    pub(crate) fn noted_entry(self: &Arc<Self>, ino: InodeNumber) -> Result<Arc<InodeEntry>> {
        match self.inodes.get_and(&ino, |entry| self.recent.note(entry)) {
            Some(entry) => Ok(entry),
            None => self.read_inode(ino),
        }
    }

    /// Has the cache forget an inode, as it may whenever nobody has it and it is written.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn forget_inode(&self, ino: InodeNumber) {
        self.inodes.remove(&ino);
    }

    /// Puts an inode into the cache, unless it is there; gives the entry that stays.
    pub(crate) fn enter_inode(&self, inode: Arc<Inode>) -> Arc<InodeEntry> {
        let entry = InodeEntry::new(inode.ino(), inode, &self.geometry);
        let weight = entry.weigh();
        let kept = self.inodes.get_or_insert(entry.ino(), Arc::clone(&entry), weight, || true);
        kept.unwrap_or(entry)
    }

    /// The same of an inode that was read, if that is still the latest version of it.
    fn enter_if_newest(
        &self,
        inode: Arc<Inode>,
        is_newest: impl FnOnce() -> bool,
    ) -> Option<Arc<InodeEntry>> {
        let entry = InodeEntry::new(inode.ino(), inode, &self.geometry);
        let weight = entry.weigh();
        self.inodes.get_or_insert(entry.ino(), entry, weight, is_newest)
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

    /// Stops all writing, as what is in memory can no longer be trusted to agree with what is in the log.
    pub(crate) fn shut_down(&self, why: &Error) {
        let Some(WriteSide { journal, .. }) = &self.write else { return };
        match why {
            Error::Device(error) => journal.shutdown_for(ShutdownReason::Device, error),
            _ => journal.shutdown(ShutdownReason::Corruption),
        }
    }

    /// Makes durable what was written to the device. If that fails, the volume is shut down: the system says so once,
    /// whoever asks, and metadata that were on their way to their places may be among what was lost. One that was shut down,
    /// or closed, leaves its device alone.
    pub fn flush(&self) -> Result<()> {
        self.flush_by(|| self.device.flush())
    }

    /// As [`flush`](Self::flush), by whoever flushes the device for several at once.
    pub fn flush_by(&self, flush: impl FnOnce() -> Result<(), DeviceError>) -> Result<()> {
        if self.is_writable() {
            self.check_writable()?;
        }
        match flush() {
            // The volume is being closed, and the device was not asked.
            Err(DeviceError::Ended) => Err(Error::Shutdown(ShutdownReason::Closed)),
            flushed => self.flushed(flushed),
        }
    }

    fn flushed(&self, flushed: Result<(), DeviceError>) -> Result<()> {
        Ok(flushed.inspect_err(|error| self.flush_failed(error))?)
    }

    /// Shuts the volume down, as a flush of its device has failed.
    pub fn flush_failed(&self, error: &DeviceError) {
        if let Some(write) = &self.write {
            write.journal.shutdown_for(ShutdownReason::Flush, error);
        }
    }

    /// Makes durable what was committed up to the checkpoint of `upto`, and what was written to the device before this call.
    /// `flush` is for whoever flushes the device for several at once. Where the log flushes the device on its way it is not
    /// called. On a volume that was shut down this fails, even if there was nothing left to do; of one that is only read, the
    /// device is flushed.
    pub fn sync_upto(&self, upto: CommitSeq, flush: impl FnOnce() -> Result<(), DeviceError>) -> Result<()> {
        let Some(write) = &self.write else { return self.flush_by(flush) };
        self.check_writable()?;
        let journal = &write.journal;
        if journal.is_forced(upto) || !journal.will_flush(upto) {
            self.flush_by(flush)?;
        }
        journal.force(upto)
    }

    /// As [`sync_upto`](Self::sync_upto), of all that was committed before this call.
    pub fn sync_all(&self, flush: impl FnOnce() -> Result<(), DeviceError>) -> Result<()> {
        let newest = self.write.as_ref().map(|write| write.journal.newest());
        self.sync_upto(newest.unwrap_or_default(), flush)
    }

    /// As [`sync_upto`](Self::sync_upto), where nothing but what was committed has to be durable.
    pub fn force_upto(&self, upto: CommitSeq) -> Result<()> {
        self.write_side()?.journal.force(upto)
    }

    /// Makes everything durable that was committed before this call; when files were written over only if that was logged
    /// ([`log_all_times`](Self::log_all_times)). On a volume that was shut down it fails, even if
    /// there was nothing left to do.
    pub fn sync(&self) -> Result<()> {
        self.check_writable()?;
        self.write_side()?.journal.force_all()
    }

    /// Begins to close the volume, for good: from here on nobody finds where a file's bytes are to be written. Who is in
    /// the middle of a change of them would be left there: whoever knows of the files holds all of each meanwhile.
    pub fn stop_writes(&self) {
        if let Some(write) = &self.write {
            write.journal.stop_writes();
        }
    }

    /// Whether nobody may find any more where a file's bytes are to be written: the volume is being closed, or was shut down.
    /// Where blocks lie in memory is then not where they will lie behind a recovery.
    #[inline]
    pub(crate) fn has_stopped_writes(&self) -> bool {
        self.write.as_ref().is_some_and(|write| write.journal.has_stopped_writes())
    }

    /// Writes everything back and leaves a clean log. Files may not be in use any more: later changes fail. A volume
    /// that is dropped without this is as after a crash: its log has to be replayed.
    ///
    /// If an inode without a name cannot be freed, or a time not be told, because something is damaged, all else is written
    /// back, the log is clean, and the damage is what this fails with: `xfs_repair` finds the inode on its list.
    ///
    /// If it fails otherwise, the volume is shut down, and its log is left to be recovered, with all that was committed in it
    /// unless the device refused that. The first error says why; all that is asked for later, this again too, fails with
    /// [`Error::Shutdown`]. However it ends, nothing is written any more when it returns.
    pub fn close(self: &Arc<Self>) -> Result<()> {
        if self.is_writable() {
            self.write_back()?;
            drop(self.claim.lock().take());
        }
        Ok(())
    }

    /// Shuts the volume down instead of closing it, as not all could be written that was to be: what was committed is in the
    /// log.
    pub fn close_in_vain(&self) -> Result<()> {
        let write = self.write_side()?;
        {
            // Growth and labels write beside the journal: they end before this.
            let _alone = write.altering.lock();
            match write.journal.freeze() {
                Ok(frozen) => frozen.give_up(),
                Err(_) => write.journal.halt(ShutdownReason::NotClosed),
            }
        }
        drop(self.claim.lock().take());
        Ok(())
    }

    fn write_back(self: &Arc<Self>) -> Result<()> {
        let write = self.write_side()?;
        let journal = &write.journal;
        // Growth and labels write beside the journal. They end before this, or find the volume closed.
        let _alone = write.altering.lock();
        // What fails here is in the way of all else, too: it says why.
        let given = self.give_back_all_copies();
        debug_assert!(
            given.is_err() || write.space.promises_nothing(),
            "all that was promised has come or never will"
        );
        // Who is in the middle of a change ends it, and nobody begins one: from here on the counters stand still.
        let frozen = match journal.freeze() {
            Ok(frozen) => frozen,
            Err(stopped) => {
                journal.halt(ShutdownReason::NotClosed);
                return Err(given.err().unwrap_or(stopped));
            }
        };
        let (times, freed) = (self.log_all_times(), self.inactivate_all());
        self.end_promises();
        let done = given.and(times).and(freed);
        if self.log_clean && frozen.is_untouched() && done.is_ok() {
            // What nobody has changed stays as it is, to the byte.
            let flushed = self.flushed(self.device.flush());
            frozen.leave();
            return flushed;
        }
        let (unlinked, done) = match done {
            // It stays on its list, which is for `xfs_repair`: recovery would fail on it as well, and nothing else is to
            // depend on the log.
            Err(error @ Error::Corrupt { .. }) => (Err(error), Ok(())),
            done => (Ok(()), done),
        };
        match done.and_then(|()| trans::superblock::write_counters(self, &frozen)) {
            Ok(()) => frozen.close().and(unlinked),
            Err(error) => {
                frozen.give_up();
                Err(unlinked.err().unwrap_or(error))
            }
        }
    }

    /// Has the journal do at once, and waits for it, what it does by itself when nothing has happened for half a minute:
    /// [`Journal::pass_idle_time`]. So that tests need not wait.
    pub fn pass_idle_time(&self) -> Result<()> {
        self.write_side()?.journal.pass_idle_time()
    }

    /// Has the journal's thread let go of the volume, which covers its log when it is idle, and take it no more. Whoever drops
    /// the last handle behind this ends the volume there; without it, that thread may, a moment later.
    pub fn stop_covering(&self) {
        if let Some(write) = &self.write {
            write.journal.stop_covering();
        }
    }

    /// Inodes in memory of this kind.
    pub(crate) fn inodes_in_memory(&self, is_one: impl Fn(&Arc<InodeEntry>) -> bool) -> Vec<Arc<InodeEntry>> {
        self.inodes.select(is_one)
    }

    /// Inodes in use that have no name. Whoever has one open, or is at work on it, keeps it in memory, and so does a failure
    /// to free it.
    pub(crate) fn unlinked_in_memory(&self) -> Result<Vec<Arc<InodeEntry>>> {
        let is_unlinked = |entry: &Arc<InodeEntry>| {
            let inode = entry.peek();
            inode.nlink() == 0 && !inode.is_free()
        };
        let mut found = std::mem::take(&mut *self.write_side()?.unfinished.lock());
        found.retain(is_unlinked);
        let known: HashSet<InodeNumber> = found.iter().map(|entry| entry.ino()).collect();
        found.extend(self.inodes.select(|entry| !known.contains(&entry.ino()) && is_unlinked(entry)));
        Ok(found)
    }

    /// Logs what only memory knows: when files that are still open were written over. One that cannot be told is left out,
    /// and the first error given when all others are told.
    pub fn log_all_times(self: &Arc<Self>) -> Result<()> {
        let mut all = Ok(());
        let is_pending = |entry: &Arc<InodeEntry>| {
            let inode = entry.peek();
            inode.nlink() > 0 && entry.overwritten().get(inode.life()).is_some()
        };
        for entry in self.inodes.select(is_pending) {
            match self.log_times(&entry) {
                // Gone meanwhile.
                Ok(()) | Err(Error::NoSuchInode(_) | Error::WrongType { .. }) => {}
                Err(error) => all = all.and(Err(error)),
            }
        }
        all
    }

    /// Calls `each` with the number of every inode in use, in order, until it breaks. Inodes that are unlinked and
    /// not yet freed are among them.
    pub fn for_each_inode(&self, each: &mut dyn FnMut(InodeNumber) -> ControlFlow<()>) -> Result<()> {
        self.inode_source().for_each(each)
    }

    /// One fork of an inode, for the directory, attribute and symlink walkers. `None`: there is no attribute fork.
    pub fn fork<'a>(self: &'a Arc<Self>, inode: &'a Inode, kind: ForkKind) -> Option<Box<dyn Fork + 'a>> {
        Some(Box::new(InodeFork::new(self, inode, kind)?))
    }

    /// The map of a regular file, for the data path: the file is open as long as that is.
    pub fn file_map(self: &Arc<Self>, inode: &Inode) -> Result<FileMap> {
        self.open_file(&InodeHandle::new(self.entry(inode.ino())?, inode))
    }

    /// The same of a file that was looked up.
    pub fn open_file(self: &Arc<Self>, file: &InodeHandle) -> Result<FileMap> {
        FileMap::new(Arc::clone(self), file)
    }

    /// The extents of a fork, read at the first call. A fork that the inode does not have has none.
    pub fn extents(&self, inode: &Inode, kind: ForkKind) -> Result<Arc<ExtentList>> {
        let Some(fork) = inode.fork_state(kind) else { return Ok(Arc::default()) };
        if let Some(list) = fork.loaded() {
            return Ok(Arc::clone(list));
        }
        let list = ifork::load(&self.bufs, &self.geometry, inode.ino(), fork)?;
        if kind == ForkKind::Attr || !inode.is_reflinked() {
            ifork::check_disjoint(inode.ino(), &list)?;
        }
        let list = Arc::clone(fork.keep(list));
        if let Some(entry) = self.inodes.get(&inode.ino()) {
            self.inodes.reweigh(inode.ino(), entry.weigh());
        }
        Ok(list)
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

    /// Has the cache know what an inode weighs after a change, if that differs by much.
    pub(crate) fn weigh_anew(&self, entry: &InodeEntry) {
        if entry.is_misjudged() {
            self.inodes.reweigh(entry.ino(), entry.weigh());
        }
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

    /// Bytes that the caches hold now.
    pub fn cache_weight(&self) -> u64 {
        self.bufs.weight() + self.inodes.weight()
    }

    /// The metadata buffers.
    pub fn bufs(&self) -> &BufCache {
        &self.bufs
    }

    /// What is known of `start` and up to `blocks` blocks from it, which lie in one group. What has one owner left since a
    /// moment ago counts as shared until that is on disk.
    pub(crate) fn shared_run(&self, start: FsBlock, blocks: u64) -> Result<SharedRun> {
        // In this order: what leaves the tree is noted before.
        let run = self.sharing().run(start, blocks)?;
        let (Some((ag, at)), false) = (self.geometry.split_block(start), run.shared) else { return Ok(run) };
        let lately = self.write.as_ref().and_then(|write| write.unshared.behind(ag, at.0));
        Ok(match lately {
            Some(lately) if lately.start <= at => {
                SharedRun { blocks: run.blocks.min(lately.end() - u64::from(at.0)), shared: true }
            }
            Some(lately) => SharedRun { blocks: run.blocks.min(u64::from(lately.start.0 - at.0)), ..run },
            None => run,
        })
    }

    /// Keeps those off who go through a tree of reference counts, while a change becomes visible.
    pub(crate) fn counts_changing(&self) -> parking_lot::RwLockWriteGuard<'_, ()> {
        self.groups.counts_changing()
    }

    /// What the trees of reference counts say.
    pub(crate) fn sharing(&self) -> Sharing<'_> {
        Sharing { bufs: &self.bufs, geometry: &self.geometry, groups: &self.groups }
    }

    /// Fails with [`Error::Shared`] if any block of a file in `blocks` has more than one owner, and the file's flag says
    /// that none has.
    pub fn check_unmarked(&self, entry: &InodeEntry, blocks: Range<FileBlock>) -> Result<()> {
        if !self.geometry.reflink {
            return Ok(());
        }
        let inode = entry.current();
        if inode.is_reflinked() {
            return Ok(());
        }
        let extents = self.extents(&inode, ForkKind::Data)?;
        point("a map is about to be compared with counts");
        self.sharing().check(entry.ino(), &extents, blocks)
    }

    /// Fails with [`Error::Shared`] if others have blocks of an inode that are marked as its own; with another error if
    /// its maps cannot be read. Whatever takes the last name of an inode asks this before.
    pub(crate) fn check_freeable(&self, inode: &Inode) -> Result<()> {
        for kind in [ForkKind::Data, ForkKind::Attr] {
            let holds = |fork: &ForkState| fork.nextents > 0 || fork.format == ForkFormat::Btree;
            if inode.fork_state(kind).is_some_and(holds) {
                let extents = self.extents(inode, kind)?;
                if kind == ForkKind::Data && inode.is_reflinked() {
                    continue;
                }
                self.sharing().check(inode.ino(), &extents, FileBlock(0)..FileBlock(u64::MAX))?;
            }
        }
        Ok(())
    }

    pub(crate) fn inode_source(&self) -> InodeSource<'_> {
        InodeSource { bufs: &self.bufs, geometry: &self.geometry, groups: &self.groups }
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
            log_suffices: OnceLock::new(),
            altering: Mutex::default(),
            moves,
        })
    }
}

/// Reads and checks the superblock of the first group.
pub(crate) fn read_superblock(device: &dyn BlockDevice) -> Result<Superblock> {
    let wrap = |problem| Error::corrupt_block(DiskAddr(0), None, problem);
    let read = |len: u64| -> Result<AlignedBuf> {
        let len = len.next_multiple_of(u64::from(device.sector_size()).max(512));
        let mut buf = AlignedBuf::zeroed(usize::try_from(len).unwrap_or(0));
        device.read(0, &mut buf)?;
        Ok(buf)
    };
    let least = u64::from(device.sector_size()).max(512);
    if device.size() < least {
        return Err(Error::NotXfs);
    }
    let start = read(least)?;
    if !Superblock::has_magic(&start) {
        return Err(Error::NotXfs);
    }
    let sector = u64::from(Superblock::claimed_sector_size(&start).map_err(wrap)?);
    if device.size() < sector {
        return Err(Error::Truncated { expected: sector, actual: device.size() });
    }
    let whole = if sector > least { read(sector)? } else { start };
    Superblock::parse(&whole).map_err(wrap)
}

/// What must hold before anything but the superblock is looked at.
pub(crate) fn check_volume(
    device: &dyn BlockDevice,
    superblock: &Superblock,
    options: &OpenOptions,
) -> Result<()> {
    refuse_unhandled(superblock)?;
    check_device(device, &Geometry::from_superblock(superblock))?;
    if options.writable {
        check_writable(device, superblock, options)?;
    }
    Ok(())
}

/// Turns what this code cannot read into an error of its own.
pub(crate) fn refuse_unhandled(superblock: &Superblock) -> Result<()> {
    Err(match superblock.unhandled() {
        None => return Ok(()),
        Some(Unhandled::Feature(name)) => Error::UnsupportedFeature(name),
        Some(Unhandled::ExternalLog) => Error::ExternalLog,
        Some(Unhandled::Realtime) => Error::Realtime,
        Some(Unhandled::NeedsRepair) => Error::NeedsRepair,
    })
}

/// The device must hold the whole volume, and read units as small as the volume's sectors.
pub(crate) fn check_device(device: &dyn BlockDevice, geometry: &Geometry) -> Result<()> {
    if device.sector_size() > geometry.sector_size {
        return Err(Error::SectorSize { volume: geometry.sector_size, device: device.sector_size() });
    }
    if device.size() < geometry.bytes() {
        return Err(Error::Truncated { expected: geometry.bytes(), actual: device.size() });
    }
    Ok(())
}

/// What must hold before anything on the volume may be written.
fn check_writable(device: &dyn BlockDevice, superblock: &Superblock, options: &OpenOptions) -> Result<()> {
    if options.norecovery {
        return Err(Error::ReadOnly("a volume that is opened without recovery cannot be written"));
    }
    let unwritable = superblock.unwritable();
    if !unwritable.is_empty() {
        return Err(Error::Unwritable(unwritable.join(", ")));
    }
    if device.is_read_only() {
        return Err(DeviceError::ReadOnly.into());
    }
    crate::log::check_shape(superblock, device.sector_size())
}
