//! One metadata buffer: its committed version, and its state in the journal.
//!
//! Invariants:
//! - committed bytes never change in place: a commit publishes new ones, and readers can take a snapshot at any time;
//! - whoever changes the buffer holds `lock` from the first snapshot to the commit;
//! - a pinned buffer is not written: everything in a snapshot without pins is in the log;
//! - when a transaction frees the buffer's blocks, no write is in progress, and none begins later;
//! - `dirty` has every chunk that was logged since the buffer was last written. It is cleared only if the version that
//!   was written is still the newest.

use super::chunks::ChunkMap;
use super::format::LoggedVersion;
use super::{Buf, BufMap, WriteCounts, spare};
use crate::cache::Recall;
use crate::log::{
    AfterCommit, Entered, ItemState, Joining, Journal, LogItem, LogVector, Pending, Push, WriteJob,
};
use blockdev::{AlignedBuf, DeviceError};
use lockstat::{Counted, LockClass, Mode, Users};
use parking_lot::lock_api::ArcMutexGuard;
use parking_lot::{Condvar, Mutex, MutexGuard, RawMutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use xfs_format::ag::{AGF, AGFL, AGI};
use xfs_format::identity;
use xfs_format::types::{DiskAddr, Lsn};
use xfs_format::verify::Verifier;

/// The lock of a buffer, held by a transaction.
pub(crate) type BufLock = Counted<ArcMutexGuard<RawMutex, Newest>>;

/// How long a waiter sleeps at most before it checks whether the journal is still running.
const WAIT_MAX: Duration = Duration::from_millis(20);

static BUFFER: LockClass = LockClass::new("buffer");
static AG_HEADER: LockClass = LockClass::new("group header");
static STATE: LockClass = LockClass::new("buffer state");
static CLUSTER_INODES: LockClass = LockClass::new("cluster's inodes");

/// An inode of a cluster. It is logged by itself, and is flushed into its cluster's buffer when that is written.
pub(crate) trait ClusterInode: Send + Sync + Debug {
    /// Flushes itself into the cluster's bytes, unless it has changes that are not in the log yet.
    fn flush_into(&self, bytes: &mut [u8]) -> bool;
    /// The buffer was freed. The inode is not flushed any more unless it is attached again.
    fn cluster_freed(&self);
    /// The last flush is on disk. Returns the item to be removed from the AIL, if there has been no newer change.
    fn flush_done(self: Arc<Self>) -> Option<(Arc<dyn LogItem>, Lsn)>;
}

/// A metadata buffer.
pub(crate) struct MetaBuf {
    maps: Box<[BufMap]>,
    lock: Arc<Mutex<Newest>>,
    state: RwLock<State>,
    cluster_inodes: Mutex<Vec<Arc<dyn ClusterInode>>>,
    /// For threads that wait until a write ends.
    write_wait: Mutex<()>,
    write_ended: Condvar,
    /// Number of checkpoints that hold changes of it and are not in the log. It grows only while `lock` is held, so the
    /// holder of `lock` never sees it grow.
    pins: AtomicU32,
    /// It is no longer in the cache, or never was.
    displaced: AtomicBool,
    item: ItemState,
    /// Whether it is a group header. Those locks have a class of their own.
    is_header: bool,
    /// The users of `lock`, and those of `state` and `cluster_inodes`.
    lock_users: Users,
    state_users: Users,
    /// The write counts of the volume.
    writes: Arc<WriteCounts>,
}

struct State {
    /// The committed version in the form in which it is logged.
    latest: LoggedVersion,
    verifier: &'static Verifier,
    /// Counts commits.
    version: u64,
    writing: bool,
    /// Another item's change made it, and it has not been written since. It must be written although no chunk is dirty.
    unwritten: bool,
    /// What checkpoints have of it. It is pinned while there is any.
    pending: Pending<LoggedVersion>,
}

impl State {
    /// Applies a change. Returns the version that it replaces.
    fn apply(&mut self, change: BufChange<'_>) -> Option<Arc<[u8]>> {
        self.version += 1;
        let latest = &mut self.latest;
        match change {
            BufChange::Bytes { bytes, dirty, verifier, fresh, unlogged, inodes } => {
                self.verifier = verifier;
                latest.inodes = inodes;
                if fresh {
                    self.unwritten = unlogged;
                }
                latest.change(Some(dirty), fresh);
                Some(std::mem::replace(&mut latest.bytes, bytes))
            }
            BufChange::Invalidate => {
                self.unwritten = false;
                latest.change(None, false);
                None
            }
        }
    }
}

impl MetaBuf {
    pub(crate) fn new(
        maps: &[BufMap],
        bytes: Arc<[u8]>,
        verifier: &'static Verifier,
        writes: &Arc<WriteCounts>,
    ) -> Self {
        let newest = Newest {
            bytes: Arc::clone(&bytes),
            verifier,
            stale: false,
            inodes: false,
            older: None,
            near: Vec::new(),
        };
        let state = State {
            latest: LoggedVersion { bytes, dirty: ChunkMap::default(), stale: false, inodes: false },
            verifier,
            version: 0,
            writing: false,
            unwritten: false,
            pending: Pending::default(),
        };
        Self {
            maps: maps.into(),
            lock: Arc::new(Mutex::new(newest)),
            state: RwLock::new(state),
            cluster_inodes: Mutex::default(),
            write_wait: Mutex::default(),
            write_ended: Condvar::new(),
            pins: AtomicU32::new(0),
            displaced: AtomicBool::new(false),
            item: ItemState::default(),
            is_header: [&AGF, &AGI, &AGFL].iter().any(|header| std::ptr::eq(*header, verifier)),
            lock_users: Users::new(),
            state_users: Users::new(),
            writes: Arc::clone(writes),
        }
    }

    /// The disk address of its first byte.
    pub(crate) fn daddr(&self) -> DiskAddr {
        self.maps.first().map_or(DiskAddr(0), |map| map.daddr)
    }

    /// Its maps.
    pub(crate) fn maps(&self) -> &[BufMap] {
        &self.maps
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.maps.iter().map(|map| map.len as usize).sum()
    }

    /// The committed version, and the verifier that passed it.
    pub(crate) fn snapshot(&self) -> (Buf, &'static Verifier) {
        let state = self.read();
        (Buf::new(self.daddr(), Arc::clone(&state.latest.bytes)), state.verifier)
    }

    /// The committed version, if the buffer is not stale and `verifier` was the last to pass it.
    pub(super) fn passed_by(&self, verifier: &'static Verifier) -> Option<Buf> {
        let state = self.read();
        let good = !state.latest.stale && std::ptr::eq(state.verifier, verifier);
        good.then(|| Buf::new(self.daddr(), Arc::clone(&state.latest.bytes)))
    }

    /// Tells the holder of the lock which verifier was the last to pass it.
    pub(crate) fn tell_verifier(&self, lock: &mut BufLock) {
        lock.verifier = self.read().verifier;
    }

    /// The verifier that passed it, unless its blocks were freed.
    pub(crate) fn live_verifier(&self) -> Option<&'static Verifier> {
        let state = self.read();
        (!state.latest.stale).then_some(state.verifier)
    }

    /// Whether another item's change made it and it has not been written yet.
    pub(crate) fn is_unwritten(&self) -> bool {
        self.read().unwritten
    }

    /// Whether its blocks were freed.
    pub(crate) fn is_stale(&self) -> bool {
        self.read().latest.stale
    }

    /// Whether it is stale and that is not in the log yet. Whoever needs the blocks must wait for the log.
    pub(crate) fn is_stale_and_pinned(&self) -> bool {
        self.is_stale() && self.is_pinned()
    }

    /// Whether checkpoints that are not in the log have changes of it.
    fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 0
    }

    /// Whether this is the buffer that the cache returns for its address. That does not change while the caller holds
    /// it: a buffer in use leaves the cache only by [`displace`](Self::displace).
    pub(crate) fn is_cached(&self) -> bool {
        !self.displaced.load(Ordering::Acquire)
    }

    /// Says that the cache will return another buffer from now on. The caller has its lock, or knows that no
    /// transaction wants it.
    pub(super) fn displace(&self) {
        self.displaced.store(true, Ordering::Release);
    }

    /// Whether a write of it is in progress.
    pub(crate) fn is_being_written(&self) -> bool {
        self.read().writing
    }

    /// Waits until a write in progress ends, but not for long.
    pub(crate) fn wait_for_write(&self) {
        let mut settling = self.write_wait.lock();
        if self.is_being_written() {
            self.write_ended.wait_for(&mut settling, WAIT_MAX);
        }
    }

    /// Remembers that `verifier` passed it, too.
    pub(crate) fn set_verifier(&self, verifier: &'static Verifier) {
        self.write().verifier = verifier;
    }

    /// Locks it for a transaction.
    pub(crate) fn lock(&self) -> BufLock {
        let (attempt, block) = (|| Mutex::try_lock_arc(&self.lock), || Mutex::lock_arc(&self.lock));
        self.class().lock_by(&self.lock_users, Mode::Exclusive, attempt, block)
    }

    /// Like [`lock`](Self::lock), without waiting.
    pub(crate) fn try_lock(&self) -> Option<BufLock> {
        let attempt = || Mutex::try_lock_arc(&self.lock);
        self.class().try_lock_by(&self.lock_users, Mode::Exclusive, attempt)
    }

    /// The class of its lock.
    fn class(&self) -> &'static LockClass {
        if self.is_header { &AG_HEADER } else { &BUFFER }
    }

    fn read(&self) -> Counted<RwLockReadGuard<'_, State>> {
        let state = &self.state;
        STATE.lock_by(&self.state_users, Mode::Shared, || state.try_read(), || state.read())
    }

    fn write(&self) -> Counted<RwLockWriteGuard<'_, State>> {
        let state = &self.state;
        STATE.lock_by(&self.state_users, Mode::Exclusive, || state.try_write(), || state.write())
    }

    fn cluster_inodes(&self) -> Counted<MutexGuard<'_, Vec<Arc<dyn ClusterInode>>>> {
        let inodes = &self.cluster_inodes;
        CLUSTER_INODES.lock_by(&self.state_users, Mode::Exclusive, || inodes.try_lock(), || inodes.lock())
    }

    /// Publishes a transaction's change in the checkpoint that it joins. The caller has the buffer's lock.
    pub(crate) fn commit(
        self: &Arc<Self>,
        change: BufChange<'_>,
        lock: &mut BufLock,
        joining: &mut Joining<'_>,
    ) {
        let differs = match &change {
            BufChange::Bytes { dirty, fresh: false, unlogged: false, .. } => Some((*dirty).clone()),
            _ => None,
        };
        lock.apply(&change);
        let (entered, old) = self.enter(change, joining.seq(), joining.is_formatted());
        joining.entered(entered, || Arc::clone(self) as Arc<dyn LogItem>);
        lock.older = differs.zip(old).map(|(differs, bytes)| Older { bytes, differs });
    }

    fn enter(&self, change: BufChange<'_>, seq: u64, is_formatted: bool) -> (Entered, Option<Arc<[u8]>>) {
        let mut state = self.write();
        let State { pending, latest, .. } = &mut **state;
        pending.before_change(seq, || latest.clone());
        let said = |state: &State| state.latest.dirty.as_word().zip(Some(state.latest.stale));
        let before = said(&state);
        let old = state.apply(change);
        // Mostly the commit makes no new chunk dirty, and the size stays the same.
        let same = state.pending.bytes_in(seq).filter(|_| before.is_some() && before == said(&state));
        let bytes = same.unwrap_or_else(|| state.latest.log_bytes(&self.maps));
        let entered = state.pending.changed(seq, bytes);
        if entered.before.is_none() {
            self.pin();
        }
        if is_formatted {
            let mut vector = LogVector::of_spare(bytes as usize);
            state.latest.format(&self.maps, &mut vector);
            state.pending.keep_vector(vector);
        }
        self.changed(state);
        (entered, old)
    }

    /// Log bytes of a commit that changes those chunks, of a `fresh` buffer or not, or frees its blocks (`None`).
    pub(crate) fn log_bytes_with(&self, dirty: Option<&ChunkMap>, fresh: bool) -> u32 {
        let mut latest = self.read().latest.clone();
        latest.change(dirty, fresh);
        latest.log_bytes(&self.maps)
    }

    /// Publishes a change that is logged by another item. The caller has the buffer's lock.
    pub(crate) fn publish(&self, change: BufChange<'_>, lock: &mut BufLock) {
        lock.apply(&change);
        lock.older = None;
        let mut state = self.write();
        debug_assert!(state.pending.is_empty(), "a checkpoint has what was here before");
        let old = state.apply(change);
        self.changed(state);
        old.into_iter().for_each(spare::keep);
    }

    /// Ends a change.
    fn changed(&self, state: Counted<RwLockWriteGuard<'_, State>>) {
        let stale = state.latest.stale;
        if stale {
            // Readers that have read these blocks from the device must not keep the result.
            self.writes.freed(&self.maps);
        }
        drop(state);
        if stale {
            self.detach_all();
        }
    }

    /// Detaches all inodes: they will not be flushed with it.
    pub(super) fn detach_all(&self) {
        let inodes = std::mem::take(&mut **self.cluster_inodes());
        inodes.iter().for_each(|inode| inode.cluster_freed());
    }

    /// Attaches an inode to be flushed with the buffer. Returns `false` if its blocks were freed, so that it is never
    /// written.
    pub(crate) fn attach(&self, inode: Arc<dyn ClusterInode>) -> bool {
        // Hold the state until the inode is attached. Whoever frees the blocks later then detaches it.
        let state = self.read();
        if !state.latest.stale {
            self.cluster_inodes().push(inode);
        }
        !state.latest.stale
    }

    /// Begins to write the buffer. Attached inodes whose changes are in the log are flushed into it.
    pub(crate) fn write_back(self: &Arc<Self>) -> Push {
        // This makes a new version, so no transaction may hold the buffer meanwhile.
        let Some(mut lock) = self.try_lock() else { return Push::Busy };
        // It does not belong to the version made here, and a clean buffer should keep no memory besides its bytes.
        lock.older = None;
        let mut state = self.write();
        if state.latest.stale {
            // Until the freeing is in the log, recovery after a crash needs the earlier log items of the buffer.
            return if self.is_pinned() { Push::Pinned } else { Push::Gone };
        }
        if state.writing {
            return Push::Flushing;
        }
        if self.is_pinned() {
            return Push::Pinned;
        }
        debug_assert!(state.pending.is_empty(), "in a checkpoint, and not pinned");
        // First the LSN, then the copy. A copy that is newer than its LSN is replayed again, which does no harm.
        let lsn = self.item.lsn();
        let mut bytes = state.latest.bytes.to_vec();
        let flushed = self.flush_cluster(&mut bytes);
        if flushed.is_empty() && state.latest.dirty.is_empty() && !state.unwritten {
            // Only inodes were to be written, and none of them can be yet.
            return Push::Pinned;
        }
        identity::stamp(&mut bytes, lsn);
        // As if it had just been read from disk, so that what is logged later does not depend on whether the cache kept
        // it.
        state.latest.bytes = Arc::from(&*bytes);
        lock.bytes = Arc::clone(&state.latest.bytes);
        state.writing = true;
        let version = state.version;
        drop(state);
        self.write_jobs(&bytes, WriteBack { version, lsn, flushed })
    }

    /// The writes of all maps. The last one to finish ends the write of the buffer.
    fn write_jobs(self: &Arc<Self>, bytes: &[u8], written: WriteBack) -> Push {
        let shared = Arc::new(Mutex::new((self.maps.len(), Some(written), true)));
        let mut at = 0;
        let mut jobs: Vec<WriteJob> = Vec::with_capacity(self.maps.len());
        for map in &self.maps {
            let len = usize::try_from(map.len).unwrap_or(0);
            let mut part = AlignedBuf::zeroed(len);
            part.copy_from_slice(&bytes[at..at + len]);
            at += len;
            let (this, shared) = (Arc::clone(self), Arc::clone(&shared));
            let done = Box::new(move |journal: &Journal, result: Result<(), DeviceError>| {
                let mut shared = shared.lock();
                shared.0 -= 1;
                shared.2 &= result.is_ok();
                let ok = shared.2;
                let last = if shared.0 == 0 { shared.1.take() } else { None };
                drop(shared);
                let Some(written) = last else { return };
                for (item, lsn) in this.write_done(written, ok) {
                    journal.ail_remove(&item, lsn);
                }
            });
            jobs.push(WriteJob { daddr: map.daddr, bytes: part, done });
        }
        if jobs.len() > 1 {
            return Push::WriteAll(jobs);
        }
        jobs.pop().map_or(Push::Gone, Push::Write)
    }

    /// Flushes the inodes that are ready into `bytes`, and removes them from the list.
    fn flush_cluster(&self, bytes: &mut [u8]) -> Vec<Arc<dyn ClusterInode>> {
        let mut inodes = self.cluster_inodes();
        let mut flushed = Vec::new();
        inodes.retain(|inode| {
            let ready = inode.flush_into(bytes);
            if ready {
                flushed.push(Arc::clone(inode));
            }
            !ready
        });
        flushed
    }

    /// Ends a write. Returns the items to be removed from the AIL.
    fn write_done(self: &Arc<Self>, written: WriteBack, ok: bool) -> Vec<(Arc<dyn LogItem>, Lsn)> {
        let settled = self.finish_write(written, ok);
        // Waiters check their condition under this lock.
        drop(self.write_wait.lock());
        self.write_ended.notify_all();
        settled
    }

    fn finish_write(self: &Arc<Self>, written: WriteBack, ok: bool) -> Vec<(Arc<dyn LogItem>, Lsn)> {
        let WriteBack { version, lsn, flushed } = written;
        self.writes.written(&self.maps);
        let mut state = self.write();
        state.writing = false;
        if !ok {
            return Vec::new();
        }
        let newest = state.version == version;
        if newest {
            state.latest.dirty.clear();
            state.unwritten = false;
        }
        drop(state);
        let own = newest.then(|| (Arc::clone(self) as Arc<dyn LogItem>, lsn));
        own.into_iter().chain(flushed.into_iter().filter_map(ClusterInode::flush_done)).collect()
    }
}

/// The committed version, for the holder of the buffer's lock.
#[derive(Debug)]
pub(crate) struct Newest {
    pub(crate) bytes: Arc<[u8]>,
    /// A verifier that passed these bytes.
    pub(crate) verifier: &'static Verifier,
    /// Its blocks were freed.
    pub(crate) stale: bool,
    /// It holds inodes.
    pub(crate) inodes: bool,
    /// The previous version, whose memory the next version can use.
    pub(crate) older: Option<Older>,
    /// For a group header: the tree blocks below it that were used last.
    pub(crate) near: Vec<Arc<MetaBuf>>,
}

impl Newest {
    /// Whether the buffer is not stale and `verifier` has passed it.
    pub(crate) fn is_passed_by(&self, verifier: &'static Verifier) -> bool {
        !self.stale && std::ptr::eq(self.verifier, verifier)
    }

    /// Applies a change.
    fn apply(&mut self, change: &BufChange<'_>) {
        match change {
            BufChange::Bytes { bytes, verifier, inodes, .. } => {
                self.bytes = Arc::clone(bytes);
                (self.verifier, self.stale, self.inodes) = (verifier, false, *inodes);
            }
            BufChange::Invalidate => self.stale = true,
        }
    }
}

/// The committed version before the newest.
#[derive(Debug)]
pub(crate) struct Older {
    bytes: Arc<[u8]>,
    /// All chunks in which it differs from the newest.
    differs: ChunkMap,
}

impl Older {
    /// A copy of `newest`, the newest version, in the memory of this one. `None` if somebody still reads this one.
    pub(crate) fn caught_up(self, newest: &[u8]) -> Option<Arc<[u8]>> {
        let Self { mut bytes, differs } = self;
        let room = Arc::get_mut(&mut bytes).filter(|room| room.len() == newest.len())?;
        differs.for_each_run(newest.len(), |run| room[run.clone()].copy_from_slice(&newest[run]));
        // Skipped where locks are counted: the check would add to those of a release build.
        debug_assert!(lockstat::is_enabled() || *room == *newest, "bytes changed that are not logged");
        Some(bytes)
    }
}

/// A version of a buffer that is being written.
struct WriteBack {
    version: u64,
    lsn: Lsn,
    flushed: Vec<Arc<dyn ClusterInode>>,
}

/// What a transaction did to a buffer.
pub(crate) enum BufChange<'a> {
    /// It has new content.
    Bytes {
        bytes: Arc<[u8]>,
        dirty: &'a ChunkMap,
        verifier: &'static Verifier,
        /// The old content does not matter.
        fresh: bool,
        /// Another item rebuilds it when the log is replayed.
        unlogged: bool,
        inodes: bool,
    },
    /// Its blocks were freed.
    Invalidate,
}

impl Recall for MetaBuf {}

impl LogItem for MetaBuf {
    fn state(&self) -> &ItemState {
        &self.item
    }

    fn pin(&self) {
        self.pins.fetch_add(1, Ordering::AcqRel);
    }

    fn unpin(&self) {
        let pins = self.pins.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(pins > 0, "unpinned more often than pinned");
    }

    fn committed(&self, _lsn: Lsn) -> AfterCommit {
        // The freeing may be in a later checkpoint than the one that is committed here. That one has a pin of its own.
        let stale = self.is_stale();
        if stale && self.pins.load(Ordering::Acquire) <= 1 { AfterCommit::Drop } else { AfterCommit::Ail }
    }

    fn push(self: Arc<Self>) -> Push {
        self.write_back()
    }

    fn collect(&self, seq: u64, vector: &mut LogVector) -> bool {
        let mut state = self.write();
        let State { pending, latest, .. } = &mut **state;
        let taken = pending.collect(seq, || latest.clone());
        drop(state);
        let Some(taken) = taken else { return false };
        taken.add_to(vector, |version, vector| version.format(&self.maps, vector));
        true
    }
}

impl Debug for MetaBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MetaBuf").field("daddr", &self.daddr()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xfs_format::ag::AGF;

    fn change<'a>(dirty: &'a ChunkMap) -> BufChange<'a> {
        let bytes = Arc::from(vec![0; 512]);
        BufChange::Bytes { bytes, dirty, verifier: &AGF, fresh: false, unlogged: false, inodes: false }
    }

    /// Regression: a directory block was freed while its last version was being written, and the write landed on the
    /// data of a file that had been given the block.
    #[test]
    fn a_write_under_way_can_be_waited_for() {
        let map = BufMap { daddr: DiskAddr(8), len: 512 };
        let buf = Arc::new(MetaBuf::new(&[map], Arc::from(vec![0; 512]), &AGF, &Arc::default()));
        let mut dirty = ChunkMap::default();
        dirty.mark(0..128);
        buf.publish(change(&dirty), &mut buf.lock());
        let Push::Write(job) = buf.write_back() else { panic!("nothing to be written") };
        assert!(buf.is_being_written());
        buf.wait_for_write();
        assert!(buf.is_being_written(), "a moment passes, the write goes on");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while buf.is_being_written() {
                    buf.wait_for_write();
                }
            });
            let written = WriteBack { version: 1, lsn: Lsn(0), flushed: Vec::new() };
            assert_eq!(buf.write_done(written, true).len(), 1);
        });
        drop(job);
    }

    /// The next version is made in the memory of the previous one, unless somebody still reads that.
    #[test]
    fn an_older_version_catches_up() {
        let map = BufMap { daddr: DiskAddr(8), len: 1024 };
        let buf = Arc::new(MetaBuf::new(&[map], Arc::from(vec![0; 1024]), &AGF, &Arc::default()));
        let mut looks = None;
        for (nth, byte) in [1, 2, 3, 4, 5].into_iter().enumerate() {
            let mut lock = buf.lock();
            let newest = buf.snapshot().0;
            let place = lock.older.as_ref().map(|older| older.bytes.as_ptr());
            let made = lock.older.take().and_then(|older| older.caught_up(&newest));
            assert_eq!(made.is_some(), ![0, 2].contains(&nth), "round {nth}");
            if let Some(made) = &made {
                assert_eq!((&**made, Some(made.as_ptr())), (&*newest, place), "round {nth}");
            }
            let mut bytes = made.unwrap_or_else(|| Arc::from(&*newest));
            let at = nth % 3 * 256;
            Arc::get_mut(&mut bytes).expect("it is nobody else's")[at..at + 128].fill(byte);
            let mut dirty = ChunkMap::default();
            dirty.mark(at..at + 128);
            let (verifier, fresh, unlogged, inodes) = (&AGF, false, false, false);
            let change = BufChange::Bytes { bytes, dirty: &dirty, verifier, fresh, unlogged, inodes };
            lock.apply(&change);
            let (_, old) = buf.enter(change, 1, false);
            lock.older = old.map(|bytes| Older { bytes, differs: dirty });
            match nth {
                1 => looks = Some(newest),
                2 => {}
                _ => looks = None,
            }
        }
        assert!(buf.lock().older.is_some());
        buf.collect(1, &mut LogVector::default());
        buf.unpin();
        assert!(matches!(buf.write_back(), Push::Write(_)));
        assert!(buf.lock().older.is_none(), "what is clean takes no memory besides");
        assert!(looks.is_none());
    }

    /// The log gets the buffer as it was when its checkpoint was closed, whatever the next checkpoint does to it.
    #[test]
    fn each_checkpoint_has_its_own_version() {
        let map = BufMap { daddr: DiskAddr(8), len: 512 };
        for is_formatted in [false, true] {
            let buf = Arc::new(MetaBuf::new(&[map], Arc::from(vec![0; 512]), &AGF, &Arc::default()));
            let change = |seq: u64, byte: u8, at: usize| {
                let mut bytes = buf.snapshot().0.to_vec();
                bytes[at..at + 128].fill(byte);
                let mut dirty = ChunkMap::default();
                dirty.mark(at..at + 128);
                let (bytes, verifier, fresh) = (Arc::from(bytes), &AGF, false);
                let (unlogged, inodes, dirty) = (false, false, &dirty);
                let change = BufChange::Bytes { bytes, dirty, verifier, fresh, unlogged, inodes };
                buf.enter(change, seq, is_formatted).0
            };
            let logged = |seq| {
                let mut vector = LogVector::default();
                assert!(buf.collect(seq, &mut vector), "checkpoint {seq}");
                let regions = vector.iter().skip(1).map(|region| (region.len(), region[0]));
                (vector.log_bytes(), regions.collect::<Vec<_>>())
            };
            let first = change(1, 1, 0);
            assert_eq!(change(1, 2, 0), Entered { before: Some(first.bytes), ..first });
            let second = change(2, 3, 256);
            assert!(second.before.is_none() && second.bytes > first.bytes);
            assert_eq!(logged(1), (first.bytes, vec![(128, 2)]));
            assert!(matches!(Arc::clone(&buf).push(), Push::Pinned));
            assert_eq!(logged(2), (second.bytes, vec![(128, 2), (128, 3)]));
            assert!(!buf.collect(2, &mut LogVector::default()));
            // Freed: neither this nor anything earlier is replayed.
            let (freed, _) = buf.enter(BufChange::Invalidate, 3, is_formatted);
            assert_eq!(logged(3), (freed.bytes, vec![]));
        }
    }

    /// The earlier changes of a freed buffer are needed until the freeing is in the log, so the AIL must keep the
    /// buffer.
    #[test]
    fn a_freed_buffer_stays_until_the_log_says_so() {
        let map = BufMap { daddr: DiskAddr(8), len: 512 };
        let buf = Arc::new(MetaBuf::new(&[map], Arc::from(vec![0; 512]), &AGF, &Arc::default()));
        let mut dirty = ChunkMap::default();
        dirty.mark(0..128);
        // One checkpoint changes it, and the next one frees it before the first is committed.
        buf.pin();
        buf.publish(change(&dirty), &mut buf.lock());
        buf.pin();
        buf.publish(BufChange::Invalidate, &mut buf.lock());
        assert!(matches!(buf.committed(Lsn(1 << 32)), AfterCommit::Ail));
        buf.unpin();
        assert!(matches!(Arc::clone(&buf).push(), Push::Pinned));
        assert!(matches!(buf.committed(Lsn(1 << 32 | 8)), AfterCommit::Drop));
        buf.unpin();
        assert!(matches!(Arc::clone(&buf).push(), Push::Gone));
    }
}
