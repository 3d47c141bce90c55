//! An inode in memory: its committed version, its ilock, and its log item.
//!
//! Invariants:
//! - the committed version never changes in place; a commit publishes a new one. Readers may look at it at any time. If
//!   this thread has seen that version before, this takes no lock and writes no cache line that others use (see
//!   [`published`](crate::published)). Otherwise it takes the lock of the inode's state for a few instructions;
//! - a change holds `ilock` exclusively up to the commit. Several consistent reads of a directory hold it shared;
//! - an inode has only one entry at a time: the cache keeps it as long as anybody holds it;
//! - it is written into its cluster only when all its changes are in the log.

use super::cow_state::CowState;
use super::delalloc::Delalloc;
use super::in_memory::InMemory;
use super::lazy_time::LazyTime;
use super::recent::RecentInodes;
use super::{Inode, Life};
use crate::buf::{ClusterInode, MetaBuf};
use crate::cache::Recall;
use crate::log::{
    AfterCommit, CommitSeq, Entered, ItemState, Joining, LogItem, LogVector, Pending, Push, op_bytes,
};
use crate::published::{Snapshot, VersionNumber};
use lockstat::{Counted, LockClass, Mode, Users};
use parking_lot::lock_api::{ArcRwLockReadGuard, ArcRwLockWriteGuard};
use parking_lot::{Mutex, MutexGuard, RawRwLock, RwLock};
use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};
use xfs_format::geometry::Geometry;
use xfs_format::inode::ForkFormat;
use xfs_format::log::{InodeFields, InodeFormat, LogDinode};
use xfs_format::types::{DiskAddr, InodeNumber, Lsn};

/// The ilock, held exclusively.
pub type IlockExclusive = Counted<ArcRwLockWriteGuard<RawRwLock, ()>>;
/// The ilock, held shared.
pub type IlockShared = Counted<ArcRwLockReadGuard<RawRwLock, ()>>;

static INODE: LockClass = LockClass::new("inode");
static STATE: LockClass = LockClass::new("inode state");

/// Where an inode is written: its imap.
#[derive(Clone, Debug)]
pub(crate) struct Imap {
    pub(crate) cluster: Arc<MetaBuf>,
    /// Its offset in the cluster in bytes.
    pub(crate) offset: usize,
}

/// By how many bytes an inode's weight may be off before the cache is told, which takes a lock of the cache.
const WEIGHT_GRAIN: u64 = 1024;

/// What readers, overwrites and path lookups use. Only a change of the file writes these cache lines; no count of users
/// is in them.
#[repr(align(64))]
struct Looked {
    /// The number of the committed version.
    version: VersionNumber,
    /// Counts the versions whose data map or size differs from the one before.
    map_version: AtomicU64,
    /// The first life whose end has not begun.
    ended: AtomicU64,
    overwritten: LazyTime,
    /// Whether the inode is known to have no capabilities. A change of the content would have to remove them.
    unprivileged: AtomicBool,
    /// Whether the committed version has an attribute fork.
    has_attrs: AtomicBool,
    /// For a file that may share blocks, from the first use on.
    copying: OnceLock<Box<CowState>>,
    /// For a file with delayed allocation, from the first use on.
    delayed: OnceLock<Box<Delalloc>>,
    ino: InodeNumber,
}

/// An inode in memory.
pub struct InodeEntry {
    looked: Looked,
    ilock: Arc<RwLock<()>>,
    /// The checkpoint of the last commit, and that of the last commit that changed more than times.
    committed: AtomicU64,
    datasync: AtomicU64,
    geometry: Arc<Geometry>,
    state: Mutex<State>,
    /// Commits of the inode that are not in the log. Counted before the version is published. So whoever holds the
    /// state's lock and finds none may write the current version.
    pins: AtomicU32,
    item: ItemState,
    /// How many have it open.
    opens: AtomicU32,
    /// Its weight as the cache knows it.
    weighed: AtomicU64,
    /// The table of recent inodes in which it was noted, if ever; whether it may still be there; whether it was ever
    /// looked up by name.
    noted_in: OnceLock<Weak<RecentInodes>>,
    noted: AtomicBool,
    looked_up: AtomicBool,
    /// The users of `ilock`, and those of `state`.
    users: Users,
    state_users: Users,
}

struct State {
    /// The committed version in the form in which it is logged.
    latest: LoggedVersion,
    /// The number of the version that is being written, and its LSN.
    flushing: Option<(u64, Lsn)>,
    /// Whether it is attached to its cluster for the next write.
    attached: bool,
    /// What checkpoints have of it. It is pinned while there is any.
    pending: Pending<LoggedVersion>,
}

/// A version of an inode that is to be logged.
#[derive(Clone, Debug)]
struct LoggedVersion {
    inode: Arc<Inode>,
    /// All fields that were logged since the inode was last written.
    fields: InodeFields,
    /// Where it is to be written. A clean inode releases its cluster, which would otherwise stay in memory.
    imap: Option<Imap>,
}

impl InodeEntry {
    pub(crate) fn new(ino: InodeNumber, inode: Arc<Inode>, geometry: &Arc<Geometry>) -> Arc<Self> {
        let weight = Self::weight_of(&inode);
        Arc::new(Self {
            looked: Looked {
                version: VersionNumber::default(),
                map_version: AtomicU64::new(0),
                ended: AtomicU64::new(Life::FIRST.to_bits()),
                overwritten: LazyTime::default(),
                unprivileged: AtomicBool::new(false),
                has_attrs: AtomicBool::new(inode.has_attrs()),
                copying: OnceLock::new(),
                delayed: OnceLock::new(),
                ino,
            },
            ilock: Arc::default(),
            committed: AtomicU64::new(0),
            datasync: AtomicU64::new(0),
            geometry: Arc::clone(geometry),
            state: Mutex::new(State {
                latest: LoggedVersion { inode, fields: InodeFields::empty(), imap: None },
                flushing: None,
                attached: false,
                pending: Pending::default(),
            }),
            pins: AtomicU32::new(0),
            item: ItemState::default(),
            opens: AtomicU32::new(0),
            weighed: AtomicU64::new(weight),
            noted_in: OnceLock::new(),
            noted: AtomicBool::new(false),
            looked_up: AtomicBool::new(false),
            users: Users::new(),
            state_users: Users::new(),
        })
    }

    /// Its number.
    pub fn ino(&self) -> InodeNumber {
        self.looked.ino
    }

    /// The committed version.
    pub fn current(&self) -> Arc<Inode> {
        self.snapshot().keep()
    }

    /// The committed version, and where it is to be written, if that still exists. For a caller that will publish the
    /// next version.
    pub(crate) fn latest(&self) -> (Arc<Inode>, Option<Imap>) {
        let state = self.words();
        let (inode, imap) = (Arc::clone(&state.latest.inode), state.latest.imap.clone());
        // Check after dropping the lock: write-back of a cluster takes it while inodes are flushed into the cluster.
        drop(state);
        (inode, imap.filter(|imap| !imap.cluster.is_stale()))
    }

    /// Whether the inode may have capabilities.
    #[inline]
    pub fn may_be_privileged(&self) -> bool {
        !self.looked.unprivileged.load(Ordering::Acquire)
    }

    /// Whether the committed version has an attribute fork.
    #[inline]
    pub(crate) fn has_attrs(&self) -> bool {
        self.looked.has_attrs.load(Ordering::Acquire)
    }

    /// Sets whether it may have capabilities. The caller holds the ilock: shared to say no, after a look that found
    /// none; exclusively to say yes, before the change is published. So nobody writes without removing them.
    pub(crate) fn set_privileged(&self, may_be: bool) {
        self.looked.unprivileged.store(!may_be, Ordering::Release);
    }

    /// The committed version for a short look. Costs neither a reference count nor a lock if this thread has seen that
    /// version before.
    #[inline]
    pub fn snapshot(&self) -> Snapshot<Inode> {
        self.looked.version.remembered().unwrap_or_else(|| self.look())
    }

    #[inline(never)]
    fn look(&self) -> Snapshot<Inode> {
        let state = self.words();
        let (number, inode) = (self.looked.version.get(), Arc::clone(&state.latest.inode));
        drop(state);
        let weight = inode.weight();
        self.looked.version.remember(number, inode, weight)
    }

    /// A number that changes whenever a version is published with another data map or size. If it is read before
    /// [`snapshot`](Self::snapshot), and still is the same later, that snapshot's map and size are current.
    #[inline]
    pub(crate) fn map_version(&self) -> u64 {
        self.looked.map_version.load(Ordering::Acquire)
    }

    /// The checkpoint of the last commit of the inode, which `fsync` must force. A committer has the inode locked until
    /// the checkpoint is known. This waits for the lock, so it covers everything that can be seen.
    pub fn commit_seq(&self) -> CommitSeq {
        let _nobody_commits = self.ilock_shared();
        CommitSeq(self.committed.load(Ordering::Acquire))
    }

    /// Like [`commit_seq`](Self::commit_seq), for the last commit that changed more than times, which is enough for
    /// `fdatasync`.
    pub fn datasync_seq(&self) -> CommitSeq {
        let _nobody_commits = self.ilock_shared();
        CommitSeq(self.datasync.load(Ordering::Acquire))
    }

    /// A change was committed in this checkpoint; `is_times` says that it only changed times. The caller has the lock.
    pub(crate) fn committed_in(&self, seq: CommitSeq, is_times: bool) {
        self.committed.store(seq.0, Ordering::Release);
        if !is_times {
            self.datasync.store(seq.0, Ordering::Release);
        }
    }

    /// Locks the inode for changes.
    pub fn ilock(&self) -> IlockExclusive {
        let (attempt, block) = (|| RwLock::try_write_arc(&self.ilock), || RwLock::write_arc(&self.ilock));
        INODE.lock_by(&self.users, Mode::Exclusive, attempt, block)
    }

    /// Like [`ilock`](Self::ilock), without waiting.
    pub fn try_ilock(&self) -> Option<IlockExclusive> {
        INODE.try_lock_by(&self.users, Mode::Exclusive, || RwLock::try_write_arc(&self.ilock))
    }

    /// Locks the inode shared, which keeps changes out.
    pub fn ilock_shared(&self) -> IlockShared {
        let (attempt, block) = (|| RwLock::try_read_arc(&self.ilock), || RwLock::read_arc(&self.ilock));
        INODE.lock_by(&self.users, Mode::Shared, attempt, block)
    }

    /// Keeps the file of this life from being freed when it loses its last name. Returns `false` if it is gone or
    /// going. The caller keeps changes out.
    pub(crate) fn open(&self, life: Life, _shared: &IlockShared) -> bool {
        let inode = self.snapshot();
        let exists = inode.life() == life && self.is_in_use(&inode);
        if exists {
            self.count_open();
        }
        exists
    }

    /// Counts one more open. The caller has the lock.
    pub(crate) fn count_open(&self) {
        self.opens.fetch_add(1, Ordering::Relaxed);
    }

    /// Undoes an [`open`](Self::open) of the file of this life. Returns whether it was the last one.
    pub(crate) fn close(&self, life: Life) -> bool {
        if self.has_ended(life) {
            // The end of this life took back all its opens. The current ones belong to another file.
            return false;
        }
        let one_less = |opens: u32| opens.checked_sub(1);
        let last = self.opens.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less) == Ok(1);
        if last {
            // One thread closes the file while another removes its last name. Each checks what the other does, and at
            // least one of them notices.
            fence(Ordering::SeqCst);
        }
        last
    }

    /// Whether somebody has it open. Nobody can open it while the caller has the lock.
    pub(crate) fn is_open(&self) -> bool {
        self.opens.load(Ordering::Acquire) > 0
    }

    /// Begins the end of a file that has no name and that nobody has open. From then on nobody opens, links or changes
    /// it. Returns the life only once; whoever gets it frees the file.
    pub(crate) fn begin_inactivation(&self) -> Option<Life> {
        fence(Ordering::SeqCst);
        let _locked = self.ilock();
        let inode = self.snapshot();
        let unused = self.is_in_use(&inode) && inode.nlink() == 0 && !self.is_open();
        if unused {
            self.end(inode.life());
        }
        unused.then(|| inode.life())
    }

    /// Begins the end of a file that has no name, for the only one who has it open, and closes it. Returns `false` also
    /// if finding out would mean waiting.
    pub(crate) fn begin_inactivation_by_last(&self, life: Life) -> bool {
        let Some(_locked) = self.try_ilock() else { return false };
        let inode = self.snapshot();
        let is_going = inode.life() == life && self.is_in_use(&inode) && inode.nlink() == 0;
        let is_last = is_going && self.opens.load(Ordering::Acquire) == 1;
        if is_last {
            self.opens.store(0, Ordering::SeqCst);
            self.end(life);
        }
        is_last
    }

    /// Ends the current life, whoever has it open or has begun its end. The volume is being closed, and nobody uses the
    /// file any more.
    pub(crate) fn take_inactivation(&self) -> Life {
        let _locked = self.ilock();
        self.opens.store(0, Ordering::SeqCst);
        let life = self.snapshot().life();
        self.end(life);
        life
    }

    fn end(&self, life: Life) {
        self.looked.ended.store(life.next().to_bits(), Ordering::Release);
    }

    /// Whether this version is that of a file whose end has not begun.
    #[inline]
    pub(crate) fn is_in_use(&self, inode: &Inode) -> bool {
        !inode.is_free() && !self.is_ending(inode)
    }

    /// Whether the end of this version's file has begun.
    pub(crate) fn is_ending(&self, inode: &Inode) -> bool {
        self.has_ended(inode.life())
    }

    /// Whether the end of the file of this life has begun.
    #[inline]
    pub(crate) fn has_ended(&self, life: Life) -> bool {
        self.looked.ended.load(Ordering::Acquire) > life.to_bits()
    }

    /// The copy-on-write state of the file.
    pub(crate) fn cow(&self) -> &CowState {
        self.looked.copying.get_or_init(Box::default)
    }

    /// The same, if it has been used.
    #[inline]
    pub(crate) fn cow_if_any(&self) -> Option<&CowState> {
        self.looked.copying.get().map(Box::as_ref)
    }

    /// The delayed allocation of the file.
    pub(crate) fn delalloc(&self) -> &Delalloc {
        self.looked.delayed.get_or_init(Box::default)
    }

    /// The same, if it has been used.
    #[inline]
    pub(crate) fn delalloc_if_any(&self) -> Option<&Delalloc> {
        self.looked.delayed.get().map(Box::as_ref)
    }

    /// Makes readers of the map look again, because other blocks are shared now.
    pub(crate) fn sharing_changed(&self) {
        self.looked.map_version.fetch_add(1, Ordering::Release);
    }

    /// When the content of this file was last overwritten in place.
    pub(crate) fn overwritten(&self) -> &LazyTime {
        &self.looked.overwritten
    }

    /// What only memory knows of the file. Read it before the version that it is to be added to: what a commit puts into
    /// a version goes from here afterwards.
    #[inline]
    fn in_memory(&self) -> InMemory {
        let delalloc = self.delalloc_if_any();
        // A size in memory goes after its blocks.
        let (blocks, size) =
            delalloc.map_or((0, 0), |delalloc| (delalloc.unmapped(), delalloc.size().unwrap_or(0)));
        InMemory { size, blocks, overwritten: self.looked.overwritten.read() }
    }

    /// What only memory knows of the file, and the version to add it to. Their caller knows that both are of one file.
    #[inline]
    pub fn with_version(&self) -> (InMemory, Snapshot<Inode>) {
        loop {
            let map_version = self.map_version();
            let (in_memory, inode) = (self.in_memory(), self.snapshot());
            // A size that grows in memory is told to the inode bit by bit, and the file never ended in between. A version
            // with such a size is older than the end in memory.
            if in_memory.size >= inode.size() || self.is_still_at(map_version, in_memory.size) {
                return (in_memory, inode);
            }
        }
    }

    /// Whether the size in memory, and that of the committed version, are still what they were.
    #[inline]
    fn is_still_at(&self, map_version: u64, in_memory: u64) -> bool {
        let is_still = |delalloc: &Delalloc| delalloc.size().unwrap_or(0) == in_memory;
        self.delalloc_if_any().is_none_or(|delalloc| is_still(delalloc) && self.map_version() == map_version)
    }

    /// As [`with_version`](Self::with_version), of an inode that may be freed and used again meanwhile: both are of one file.
    #[inline]
    pub(crate) fn in_memory_with_version(&self) -> (InMemory, Snapshot<Inode>) {
        let mut life = self.snapshot().life();
        loop {
            let (in_memory, inode) = self.with_version();
            if inode.life() == life {
                return (in_memory, inode);
            }
            life = inode.life();
        }
    }

    /// Its weight in bytes as the cache knows it.
    pub(crate) fn weighed(&self) -> u64 {
        self.weighed.load(Ordering::Relaxed)
    }

    /// The weight in bytes with `inode`, its committed version. The cache uses this weight from now on.
    pub(crate) fn weigh(&self, inode: &Inode) -> u64 {
        let weight = self.weight(inode);
        self.weighed.store(weight, Ordering::Relaxed);
        weight
    }

    fn weight(&self, inode: &Inode) -> u64 {
        Self::weight_of(inode) + self.cow_if_any().map_or(0, CowState::weight)
    }

    fn weight_of(inode: &Inode) -> u64 {
        size_of::<Self>() as u64 + inode.weight()
    }

    /// Whether it was looked up by name before. Notes this lookup.
    pub(crate) fn is_looked_up_again(&self) -> bool {
        let again = self.looked_up.load(Ordering::Relaxed);
        if !again {
            self.looked_up.store(true, Ordering::Relaxed);
        }
        again
    }

    /// Records that it is noted in `recent`. The caller has its shard of the cache locked.
    pub(super) fn note_in(&self, recent: &Weak<RecentInodes>) {
        self.noted_in.get_or_init(|| Weak::clone(recent));
        self.noted.store(true, Ordering::Relaxed);
    }

    /// Whether the maps of `inode`, its committed version, have grown or shrunk so much that the cache should know.
    pub(crate) fn is_misjudged(&self, inode: &Inode) -> bool {
        let weighed = self.weighed();
        let weight = self.weight(inode);
        weight.abs_diff(weighed) > WEIGHT_GRAIN + weighed / 4
    }

    /// Formats a version into a vector.
    fn format(&self, version: &LoggedVersion, vector: &mut LogVector) {
        let before = vector.log_bytes();
        let LoggedVersion { inode, fields, imap } = version;
        let regions = inode.log_regions(*fields, &self.geometry);
        let count = 2 + regions.iter().flatten().count();
        let core = inode.core().to_log(self.looked.ino, &self.geometry, inode.is_free(), self.item.lsn());
        let [data, attr] = &regions;
        // If the fields include the data fork, recovery takes the region after the core for it. So a fork without bytes
        // must not be included, or recovery would miss the attribute fork's region.
        let mut fields = *fields;
        for (fork, region) in [(InodeFields::DFORK, data), (InodeFields::AFORK, attr)] {
            if region.is_none() {
                fields.remove(fork);
            }
        }
        let len = |bytes: &Option<Cow<'_, [u8]>>| bytes.as_ref().map_or(0, |bytes| bytes.len() as u16);
        let (cluster, offset) = imap.as_ref().map_or((None, 0), |imap| (Some(&imap.cluster), imap.offset));
        debug_assert!(cluster.is_some(), "an inode is pinned, and has no place");
        let header = InodeFormat {
            regions: count as u16,
            fields,
            asize: len(attr),
            dsize: len(data),
            ino: self.looked.ino,
            rdev: inode.raw_device(),
            daddr: cluster.map_or(DiskAddr(0), |cluster| cluster.daddr()),
            len: cluster.map_or(0, |cluster| cluster.len() / 512) as u32,
            offset: offset as u32,
        };
        vector.region_with(InodeFormat::BYTES, |to| header.encode(to));
        vector.region(zerocopy::IntoBytes::as_bytes(&core));
        for bytes in regions.iter().flatten() {
            vector.region(bytes);
        }
        let said = Self::log_bytes(inode, version.fields);
        debug_assert_eq!(vector.log_bytes() - before, said, "what its commit paid for");
    }

    /// Log bytes of a version, including operation headers.
    fn log_bytes(inode: &Inode, fields: InodeFields) -> u32 {
        let forks = inode.log_region_bytes(fields);
        (op_bytes(InodeFormat::BYTES) + op_bytes(size_of::<LogDinode>()) + forks) as u32
    }

    fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 0
    }

    fn words(&self) -> Counted<MutexGuard<'_, State>> {
        let state = &self.state;
        STATE.lock_by(&self.state_users, Mode::Exclusive, || state.try_lock(), || state.lock())
    }

    /// Releases a freed cluster, which would otherwise stay in memory as long as the inode. Does nothing if there is a
    /// newer version.
    fn let_go(&self, version: u64) {
        let mut state = self.words();
        if self.looked.version.get() == version && !self.is_pinned() && !state.attached {
            state.latest.imap = None;
        }
    }

    /// Publishes a transaction's change of these fields in the checkpoint that it joins. The caller has the lock.
    pub(crate) fn commit(
        self: &Arc<Self>,
        inode: Arc<Inode>,
        changed: InodeFields,
        imap: &Imap,
        joining: &mut Joining<'_>,
    ) {
        let entered = self.enter(inode, changed, imap, joining.seq(), joining.is_formatted());
        joining.entered(entered, || Arc::clone(self) as Arc<dyn LogItem>);
    }

    fn enter(
        self: &Arc<Self>,
        inode: Arc<Inode>,
        changed: InodeFields,
        imap: &Imap,
        seq: u64,
        is_formatted: bool,
    ) -> Entered {
        let maps = |inode: &Inode| (inode.map_seq(), inode.size());
        let mut state = self.words();
        let State { pending, latest, .. } = &mut **state;
        pending.before_change(seq, || latest.clone());
        latest.fields = to_log(&inode, latest.fields, changed);
        let bytes = Self::log_bytes(&inode, latest.fields);
        let entered = pending.changed(seq, bytes);
        if entered.before.is_none() {
            self.pin();
        }
        let before = std::mem::replace(&mut latest.inode, inode);
        self.looked.version.renew(&latest.inode, || latest.inode.weight());
        self.looked.has_attrs.store(latest.inode.has_attrs(), Ordering::Release);
        // This order matters: see `map_version`.
        if maps(&before) != maps(&latest.inode) {
            self.looked.map_version.fetch_add(1, Ordering::Release);
        }
        let known = latest.imap.as_ref().is_some_and(|known| Arc::ptr_eq(&known.cluster, &imap.cluster));
        if !known {
            latest.imap = Some(imap.clone());
        }
        if is_formatted {
            let mut vector = LogVector::of_spare(bytes as usize);
            self.format(latest, &mut vector);
            pending.keep_vector(vector);
        }
        let attached = std::mem::replace(&mut state.attached, true);
        drop(state);
        drop(before);
        let is_attached = attached && known;
        if !is_attached && !imap.cluster.attach(Arc::clone(self) as Arc<dyn ClusterInode>) {
            // The transaction freed the last inode of a chunk, and the chunk with it.
            self.cluster_freed();
        }
        entered
    }
}

/// What must be logged if `fields` of `inode` change, including earlier changes that are not written back yet.
fn to_log(inode: &Inode, earlier: InodeFields, fields: InodeFields) -> InodeFields {
    // A fork that changed its format is logged only in its new form.
    ((earlier | fields) & !(InodeFields::DFORK | InodeFields::AFORK | InodeFields::DEV))
        | fork_fields(inode, earlier | fields)
        | InodeFields::CORE
}

/// The fork regions of `wanted`, in the present format of the forks.
fn fork_fields(inode: &Inode, wanted: InodeFields) -> InodeFields {
    use InodeFields as F;
    let mut fields = F::empty();
    if wanted.intersects(F::DFORK | F::DEV) {
        fields |= match inode.core().data.format {
            ForkFormat::Dev => F::DEV,
            ForkFormat::Local => F::DDATA,
            ForkFormat::Extents => F::DEXT,
            ForkFormat::Btree => F::DBROOT,
        };
    }
    if wanted.intersects(F::AFORK)
        && let Some(attr) = &inode.core().attr
    {
        fields |= match attr.format {
            ForkFormat::Dev => F::empty(),
            ForkFormat::Local => F::ADATA,
            ForkFormat::Extents => F::AEXT,
            ForkFormat::Btree => F::ABROOT,
        };
    }
    fields
}

impl Recall for InodeEntry {
    /// Called with its shard of the cache locked exclusively.
    fn recall(&self) -> bool {
        let noted = self.noted.load(Ordering::Relaxed);
        if noted {
            self.noted.store(false, Ordering::Relaxed);
            if let Some(recent) = self.noted_in.get().and_then(Weak::upgrade) {
                recent.recall(self);
            }
        }
        noted
    }
}

impl ClusterInode for InodeEntry {
    fn flush_into(&self, bytes: &mut [u8]) -> bool {
        let mut state = self.words();
        if self.is_pinned() {
            return false;
        }
        // First the LSN, then the copy.
        let lsn = self.item.lsn();
        let inode = &state.latest.inode;
        let inode_len = usize::from(self.geometry.inode_size);
        let place =
            state.latest.imap.as_ref().and_then(|imap| bytes.get_mut(imap.offset..imap.offset + inode_len));
        if let Some(place) = place {
            inode.core().encode(
                self.looked.ino,
                &self.geometry,
                inode.is_free(),
                inode.fork_bytes(),
                lsn,
                place,
            );
        }
        state.flushing = Some((self.looked.version.get(), lsn));
        state.attached = false;
        true
    }

    fn cluster_freed(&self) {
        self.words().attached = false;
    }

    fn flush_done(self: Arc<Self>) -> Option<(Arc<dyn LogItem>, Lsn)> {
        let mut state = self.words();
        let (version, lsn) = state.flushing.take()?;
        if version != self.looked.version.get() {
            return None;
        }
        state.latest.fields = InodeFields::empty();
        state.latest.imap = None;
        drop(state);
        Some((self, lsn))
    }
}

impl LogItem for InodeEntry {
    fn state(&self) -> &ItemState {
        &self.item
    }

    fn pin(&self) {
        self.pins.fetch_add(1, Ordering::Release);
    }

    fn unpin(&self) {
        let before = self.pins.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "unpinned more often than pinned");
    }

    fn committed(&self, _lsn: Lsn) -> AfterCommit {
        AfterCommit::Ail
    }

    fn collect(&self, seq: u64, vector: &mut LogVector) -> bool {
        let mut state = self.words();
        let State { pending, latest, .. } = &mut **state;
        let taken = pending.collect(seq, || latest.clone());
        drop(state);
        let Some(taken) = taken else { return false };
        taken.add_to(vector, |version, vector| self.format(&version, vector));
        true
    }

    fn push(self: Arc<Self>) -> Push {
        let state = self.words();
        if state.flushing.is_some() {
            return Push::Flushing;
        }
        if self.is_pinned() {
            return Push::Pinned;
        }
        let (imap, version) = (state.latest.imap.clone(), self.looked.version.get());
        let detached = !state.attached;
        drop(state);
        match imap {
            // Its cluster was freed, and perhaps made again without this inode. Once that is in the log, nothing is
            // left to be written.
            Some(imap) if detached && !imap.cluster.is_stale_and_pinned() => {
                self.let_go(version);
                Push::Gone
            }
            Some(imap) => imap.cluster.write_back(),
            None => Push::Gone,
        }
    }
}

impl Debug for InodeEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InodeEntry").field("ino", &self.looked.ino).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::buf::{BufChange, BufMap};
    use crate::imap::CLUSTER;
    use crate::testing::geometry;
    use xfs_format::inode::{CORE_LEN_V3, ForkInfo, InodeCore, InodeFlags, InodeFlags2, InodeType};
    use xfs_format::timestamp::Timestamp;
    use xfs_format::types::DiskAddr;

    pub(in crate::inode) fn free_inode(ino: u64) -> Inode {
        let core = InodeCore {
            version: 3,
            mode: 0,
            kind: InodeType::Regular,
            uid: 0,
            gid: 0,
            nlink: 0,
            projid: 0,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            crtime: None,
            size: 0,
            nblocks: 0,
            extsize: 0,
            cowextsize: 0,
            flags: InodeFlags::empty(),
            flags2: InodeFlags2::empty(),
            generation: 1,
            changecount: 1,
            data: ForkInfo { format: ForkFormat::Extents, nextents: 0, range: CORE_LEN_V3..512 },
            attr: None,
        };
        Inode::fresh(InodeNumber(ino), core, true)
    }

    /// Regression: each inode of a removed file that was still in memory kept its former cluster there. And the inode
    /// whose removal freed the cluster was published after that, and stayed in memory because the cluster held it.
    #[test]
    fn a_cluster_that_was_freed_is_let_go_of() {
        for freed_first in [false, true] {
            a_freed_cluster(freed_first);
        }
    }

    fn a_freed_cluster(freed_first: bool) {
        let map = BufMap { daddr: DiskAddr(32), len: 16384 };
        let bytes = Arc::from(vec![0; 16384]);
        let cluster = Arc::new(MetaBuf::new(&[map], bytes, &CLUSTER, &Arc::default()));
        let imap = Imap { cluster: Arc::clone(&cluster), offset: 0 };
        let inode = Arc::new(free_inode(64));
        let entry = InodeEntry::new(InodeNumber(64), Arc::clone(&inode), &Arc::new(geometry(true, 12, 0)));
        let enter = |inode| entry.enter(inode, InodeFields::CORE, &imap, 1, false);
        cluster.pin();
        if freed_first {
            cluster.publish(BufChange::Invalidate, &mut cluster.lock());
            enter(inode);
        } else {
            enter(inode);
            cluster.publish(BufChange::Invalidate, &mut cluster.lock());
        }
        drop(imap);
        entry.unpin();
        assert!(
            matches!(Arc::clone(&entry).push(), Push::Pinned),
            "the log does not say yet that it is freed"
        );
        assert!(Arc::strong_count(&cluster) > 1);
        cluster.unpin();
        assert!(matches!(Arc::clone(&entry).push(), Push::Gone));
        assert_eq!(Arc::strong_count(&cluster), 1);
        assert_eq!(Arc::strong_count(&entry), 1);
    }
}
