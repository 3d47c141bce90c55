//! One metadata buffer: its committed version, and what the journal knows of it.
//!
//! Invariants:
//! - the committed bytes never change in place: a commit publishes new ones. Readers take a snapshot, at any time;
//! - who changes the buffer holds `owner` from the first look to the commit;
//! - what is pinned is not written: a snapshot taken with no pins is wholly in the log;
//! - no write is under way when a transaction frees the buffer's blocks, and none begins after that;
//! - `dirty` names every chunk that was logged since the buffer was last written. It is forgotten only when what was
//!   written is still the newest version.

use super::chunks::ChunkMap;
use super::{Buf, Piece, spare};
use crate::cache::Recall;
use crate::log::{ItemState, Journal, Landing, LogItem, Push, WriteJob};
use blockdev::{AlignedBuf, DeviceError};
use lockstat::{Counted, LockClass, Mode, Users};
use parking_lot::lock_api::ArcMutexGuard;
use parking_lot::{Condvar, Mutex, MutexGuard, RawMutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use xfs_format::ag::{AGF, AGFL, AGI};
use xfs_format::identity;
use xfs_format::types::{DiskAddr, Lsn};
use xfs_format::verify::Verifier;

/// The lock of a buffer, while a transaction has it.
pub(crate) type Owned = Counted<ArcMutexGuard<RawMutex, ()>>;

/// How long a waiter sleeps at most before it looks whether the journal still runs.
const MOMENT: Duration = Duration::from_millis(20);

static BUFFER: LockClass = LockClass::new("buffer");
static AG_HEADER: LockClass = LockClass::new("group header");
static STATE: LockClass = LockClass::new("buffer state");
static OVERLAYS: LockClass = LockClass::new("cluster's inodes");

/// What is laid over a buffer when it is written: inodes, which are logged by themselves and written with their
/// cluster.
pub(crate) trait Overlay: Send + Sync + Debug {
    /// Puts itself into the cluster's bytes, unless changes of it are not in the log yet.
    fn lay(&self, bytes: &mut [u8]) -> bool;
    /// The buffer was freed: it is not asked to be laid any more, unless it is attached again.
    fn detached(&self);
    /// What was laid last is on disk. Gives the item that the AIL may forget, if nothing newer has come.
    fn written(self: Arc<Self>) -> Option<(Arc<dyn LogItem>, Lsn)>;
}

/// A metadata buffer.
pub(crate) struct MetaBuf {
    pieces: Box<[Piece]>,
    owner: Arc<Mutex<()>>,
    state: RwLock<State>,
    overlays: Mutex<Vec<Arc<dyn Overlay>>>,
    /// Where those wait who need a write to be over.
    settling: Mutex<()>,
    settled: Condvar,
    /// Checkpoints that hold changes of it and are not in the log. Counted up with `owner` locked, so that who has that
    /// finds no fewer later.
    pins: AtomicU32,
    /// Another one has its place in the cache, or it never had one.
    displaced: AtomicBool,
    item: ItemState,
    /// Whether it is a header of a group: their locks are a class of their own.
    is_header: bool,
    /// Who uses `owner`, and who uses `state` and `overlays`.
    owner_users: Users,
    users: Users,
    /// Counts buffers of the volume that were written back.
    writes: Arc<AtomicU64>,
}

struct State {
    bytes: Arc<[u8]>,
    verifier: &'static Verifier,
    dirty: ChunkMap,
    /// Counts commits.
    version: u64,
    writing: bool,
    /// Its blocks were freed: what it holds is never written.
    stale: bool,
    /// Made by another item's change, and not written since: to be written though nothing of it is dirty.
    unwritten: bool,
    /// Holds inodes, of which a log item carries the list pointers alone.
    inodes: bool,
}

impl MetaBuf {
    pub(crate) fn new(
        pieces: &[Piece],
        bytes: Arc<[u8]>,
        verifier: &'static Verifier,
        writes: &Arc<AtomicU64>,
    ) -> Self {
        let state = State {
            bytes,
            verifier,
            dirty: ChunkMap::default(),
            version: 0,
            writing: false,
            stale: false,
            unwritten: false,
            inodes: false,
        };
        Self {
            pieces: pieces.into(),
            owner: Arc::default(),
            state: RwLock::new(state),
            overlays: Mutex::default(),
            settling: Mutex::default(),
            settled: Condvar::new(),
            pins: AtomicU32::new(0),
            displaced: AtomicBool::new(false),
            item: ItemState::default(),
            is_header: [&AGF, &AGI, &AGFL].iter().any(|header| std::ptr::eq(*header, verifier)),
            owner_users: Users::new(),
            users: Users::new(),
            writes: Arc::clone(writes),
        }
    }

    /// Where its first byte lies.
    pub(crate) fn daddr(&self) -> DiskAddr {
        self.pieces.first().map_or(DiskAddr(0), |piece| piece.daddr)
    }

    /// The runs of bytes that it is made of.
    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len as usize).sum()
    }

    /// The committed version, and the verifier that passed it.
    pub(crate) fn snapshot(&self) -> (Buf, &'static Verifier) {
        let state = self.read();
        (Buf::new(self.daddr(), Arc::clone(&state.bytes)), state.verifier)
    }

    /// All that a transaction wants to know as it locks the buffer.
    pub(crate) fn look(&self) -> Look {
        let state = self.read();
        let State { verifier, stale, inodes, .. } = **state;
        Look { bytes: Arc::clone(&state.bytes), verifier, stale, inodes, dirty: state.dirty.clone() }
    }

    /// The verifier that passed it, unless its blocks were freed.
    pub(crate) fn live_verifier(&self) -> Option<&'static Verifier> {
        let state = self.read();
        (!state.stale).then_some(state.verifier)
    }

    /// Whether it was made by another item's change, and is still to be written.
    pub(crate) fn is_unwritten(&self) -> bool {
        self.read().unwritten
    }

    /// Whether its blocks were freed.
    pub(crate) fn is_stale(&self) -> bool {
        self.read().stale
    }

    /// Whether it is stale, and the log does not say so yet: who wants the blocks has to wait for the log.
    pub(crate) fn is_stale_and_pinned(&self) -> bool {
        self.is_stale() && self.is_pinned()
    }

    /// Whether changes of it are in checkpoints that are not in the log.
    fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 0
    }

    /// Whether others get this one when they ask for its place, as long as the caller has it: what somebody has does not
    /// leave the cache but by [`displace`](Self::displace).
    pub(crate) fn is_found(&self) -> bool {
        !self.displaced.load(Ordering::Acquire)
    }

    /// Says that others get another one from now on. The caller owns it, or knows that no transaction wants it.
    pub(super) fn displace(&self) {
        self.displaced.store(true, Ordering::Release);
    }

    /// Whether a write of it is under way.
    pub(crate) fn is_being_written(&self) -> bool {
        self.read().writing
    }

    /// Waits a moment, or until a write that is under way is over.
    pub(crate) fn wait_for_write(&self) {
        let mut settling = self.settling.lock();
        if self.is_being_written() {
            self.settled.wait_for(&mut settling, MOMENT);
        }
    }

    /// Remembers that `verifier` passed it, too.
    pub(crate) fn passed(&self, verifier: &'static Verifier) {
        self.write().verifier = verifier;
    }

    /// Locks it for a transaction.
    pub(crate) fn own(&self) -> Owned {
        let (attempt, block) = (|| Mutex::try_lock_arc(&self.owner), || Mutex::lock_arc(&self.owner));
        self.class().lock_by(&self.owner_users, Mode::Exclusive, attempt, block)
    }

    /// As [`own`](Self::own), without waiting.
    pub(crate) fn try_own(&self) -> Option<Owned> {
        let attempt = || Mutex::try_lock_arc(&self.owner);
        self.class().try_lock_by(&self.owner_users, Mode::Exclusive, attempt)
    }

    /// What its lock counts into.
    fn class(&self) -> &'static LockClass {
        if self.is_header { &AG_HEADER } else { &BUFFER }
    }

    fn read(&self) -> Counted<RwLockReadGuard<'_, State>> {
        let state = &self.state;
        STATE.lock_by(&self.users, Mode::Shared, || state.try_read(), || state.read())
    }

    fn write(&self) -> Counted<RwLockWriteGuard<'_, State>> {
        let state = &self.state;
        STATE.lock_by(&self.users, Mode::Exclusive, || state.try_write(), || state.write())
    }

    fn overlays(&self) -> Counted<MutexGuard<'_, Vec<Arc<dyn Overlay>>>> {
        let overlays = &self.overlays;
        OVERLAYS.lock_by(&self.users, Mode::Exclusive, || overlays.try_lock(), || overlays.lock())
    }

    /// Publishes what a transaction committed. The caller owns the buffer, and has pinned it.
    pub(crate) fn publish(&self, change: Change<'_>) {
        let mut state = self.write();
        state.version += 1;
        match change {
            Change::Bytes { bytes, dirty, verifier, fresh, unlogged, inodes } => {
                let old = std::mem::replace(&mut state.bytes, bytes);
                state.verifier = verifier;
                state.stale = false;
                state.inodes = inodes;
                if fresh {
                    state.dirty.clear();
                    state.unwritten = unlogged;
                }
                state.dirty.merge(dirty);
                drop(state);
                spare::keep(old);
            }
            Change::Stale => {
                state.stale = true;
                // What lies there on the device is of nobody any more, whoever is reading it.
                self.writes.fetch_add(1, Ordering::AcqRel);
                state.unwritten = false;
                state.dirty.clear();
                drop(state);
                self.detach_all();
            }
        }
    }

    /// Nothing that is laid over it will be written with it.
    pub(super) fn detach_all(&self) {
        let overlays = std::mem::take(&mut **self.overlays());
        overlays.iter().for_each(|overlay| overlay.detached());
    }

    /// Adds something that is to be written with the buffer. `false`: its blocks were freed, it is not written.
    pub(crate) fn attach(&self, overlay: Arc<dyn Overlay>) -> bool {
        // Held until it is in: who frees the blocks takes out all that is there by then.
        let state = self.read();
        if !state.stale {
            self.overlays().push(overlay);
        }
        !state.stale
    }

    /// Begins to write the buffer with everything that is laid over it, as far as the log has it.
    pub(crate) fn write_back(self: &Arc<Self>) -> Push {
        // This makes a new version: nobody may have the buffer meanwhile.
        let Some(_owned) = self.try_own() else { return Push::Busy };
        let mut state = self.write();
        if state.stale {
            // Until the log says that its blocks were freed, a crash needs what the log says of it from before.
            return if self.is_pinned() { Push::Pinned } else { Push::Gone };
        }
        if state.writing {
            return Push::Flushing;
        }
        if self.is_pinned() {
            return Push::Pinned;
        }
        // First the LSN, then the copy: one that has more than its LSN says is replayed once more, which does no harm.
        let lsn = self.item.lsn();
        let mut bytes = state.bytes.to_vec();
        let laid = self.lay(&mut bytes);
        if laid.is_empty() && state.dirty.is_empty() && !state.unwritten {
            // Only overlays were to be written, and none can be yet.
            return Push::Pinned;
        }
        identity::stamp(&mut bytes, lsn);
        // As if it were read from disk now: what the log says of it later does not depend on whether the cache kept it.
        state.bytes = Arc::from(&*bytes);
        state.writing = true;
        let version = state.version;
        drop(state);
        self.jobs(&bytes, Written { version, lsn, laid })
    }

    /// The writes of all pieces; the last one to be over settles the buffer.
    fn jobs(self: &Arc<Self>, bytes: &[u8], written: Written) -> Push {
        let shared = Arc::new(Mutex::new((self.pieces.len(), Some(written), true)));
        let mut at = 0;
        let mut jobs: Vec<WriteJob> = Vec::with_capacity(self.pieces.len());
        for piece in &self.pieces {
            let len = usize::try_from(piece.len).unwrap_or(0);
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
                for (item, lsn) in this.settle(written, ok) {
                    journal.ail_remove(&item, lsn);
                }
            });
            jobs.push(WriteJob { daddr: piece.daddr, bytes: part, done });
        }
        if jobs.len() > 1 {
            return Push::WriteAll(jobs);
        }
        jobs.pop().map_or(Push::Gone, Push::Write)
    }

    /// Lays over `bytes` what is ready for it, and takes it out of the list.
    fn lay(&self, bytes: &mut [u8]) -> Vec<Arc<dyn Overlay>> {
        let mut overlays = self.overlays();
        let mut laid = Vec::new();
        overlays.retain(|overlay| {
            let ready = overlay.lay(bytes);
            if ready {
                laid.push(Arc::clone(overlay));
            }
            !ready
        });
        laid
    }

    /// The write is over; gives what the AIL may forget.
    fn settle(self: &Arc<Self>, written: Written, ok: bool) -> Vec<(Arc<dyn LogItem>, Lsn)> {
        let settled = self.settle_state(written, ok);
        // Who waits looks with this lock held.
        drop(self.settling.lock());
        self.settled.notify_all();
        settled
    }

    fn settle_state(self: &Arc<Self>, written: Written, ok: bool) -> Vec<(Arc<dyn LogItem>, Lsn)> {
        let Written { version, lsn, laid } = written;
        self.writes.fetch_add(1, Ordering::AcqRel);
        let mut state = self.write();
        state.writing = false;
        if !ok {
            return Vec::new();
        }
        let newest = state.version == version;
        if newest {
            state.dirty.clear();
            state.unwritten = false;
        }
        drop(state);
        let own = newest.then(|| (Arc::clone(self) as Arc<dyn LogItem>, lsn));
        own.into_iter().chain(laid.into_iter().filter_map(Overlay::written)).collect()
    }
}

/// A buffer as it is committed.
pub(crate) struct Look {
    pub(crate) bytes: Arc<[u8]>,
    pub(crate) verifier: &'static Verifier,
    /// Its blocks were freed.
    pub(crate) stale: bool,
    /// It holds inodes.
    pub(crate) inodes: bool,
    /// Everything that was logged and not written.
    pub(crate) dirty: ChunkMap,
}

/// What was written of a buffer.
struct Written {
    version: u64,
    lsn: Lsn,
    laid: Vec<Arc<dyn Overlay>>,
}

/// What a transaction did to a buffer.
pub(crate) enum Change<'a> {
    /// It has new content.
    Bytes {
        bytes: Arc<[u8]>,
        dirty: &'a ChunkMap,
        verifier: &'static Verifier,
        /// What was there before does not count.
        fresh: bool,
        /// It is made anew by another item when the log is replayed.
        unlogged: bool,
        inodes: bool,
    },
    /// Its blocks were freed.
    Stale,
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

    fn landed(&self, _lsn: Lsn) -> Landing {
        // The freeing may be in a later checkpoint than the one that is landing: that one has a pin of its own.
        let stale = self.is_stale();
        if stale && self.pins.load(Ordering::Acquire) <= 1 { Landing::Drop } else { Landing::Ail }
    }

    fn push(self: Arc<Self>) -> Push {
        self.write_back()
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

    fn change<'a>(dirty: &'a ChunkMap) -> Change<'a> {
        let bytes = Arc::from(vec![0; 512]);
        Change::Bytes { bytes, dirty, verifier: &AGF, fresh: false, unlogged: false, inodes: false }
    }

    /// The block of a directory was freed while its last version was being written, and that write landed on the data of
    /// the file that had got the block meanwhile.
    #[test]
    fn a_write_under_way_can_be_waited_for() {
        let piece = Piece { daddr: DiskAddr(8), len: 512 };
        let buf = Arc::new(MetaBuf::new(&[piece], Arc::from(vec![0; 512]), &AGF, &Arc::default()));
        let mut dirty = ChunkMap::default();
        dirty.mark(0..128);
        buf.publish(change(&dirty));
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
            let written = Written { version: 1, lsn: Lsn(0), laid: Vec::new() };
            assert_eq!(buf.settle(written, true).len(), 1);
        });
        drop(job);
    }

    /// What a freed buffer's older changes say is needed until the freeing is in the log: the AIL must keep them.
    #[test]
    fn a_freed_buffer_stays_until_the_log_says_so() {
        let piece = Piece { daddr: DiskAddr(8), len: 512 };
        let buf = Arc::new(MetaBuf::new(&[piece], Arc::from(vec![0; 512]), &AGF, &Arc::default()));
        let mut dirty = ChunkMap::default();
        dirty.mark(0..128);
        // One checkpoint changes it, the next one frees it before the first has landed.
        buf.pin();
        buf.publish(change(&dirty));
        buf.pin();
        buf.publish(Change::Stale);
        assert!(matches!(buf.landed(Lsn(1 << 32)), Landing::Ail));
        buf.unpin();
        assert!(matches!(Arc::clone(&buf).push(), Push::Pinned));
        assert!(matches!(buf.landed(Lsn(1 << 32 | 8)), Landing::Drop));
        buf.unpin();
        assert!(matches!(Arc::clone(&buf).push(), Push::Gone));
    }
}
