//! One inode's place in memory: its committed version, its lock, and what the journal knows of it.
//!
//! Invariants:
//! - the committed version never changes in place; a commit publishes another. Readers load it at any time, without
//!   a lock and without writing to a cache line that others use;
//! - who changes the inode holds `lock` exclusively up to the commit; who needs several looks at a directory to agree
//!   holds it shared;
//! - an inode has one entry at a time: the cache keeps it as long as anybody has it;
//! - it is written into its cluster only when all changes of it are in the log.

use super::copying::Copying;
use super::delayed::Delayed;
use super::lazy_time::{LazyTime, after_overwrite};
use super::recent::RecentInodes;
use super::{Inode, Life};
use crate::buf::{MetaBuf, Overlay};
use crate::cache::Recall;
use crate::log::{CommitSeq, ItemState, Landing, LogItem, LogVector, Push, VecSize};
use arc_swap::ArcSwap;
use lockstat::{Counted, LockClass, Mode, Users};
use parking_lot::lock_api::{ArcRwLockReadGuard, ArcRwLockWriteGuard};
use parking_lot::{Mutex, MutexGuard, RawRwLock, RwLock};
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};
use xfs_format::geometry::Geometry;
use xfs_format::inode::ForkFormat;
use xfs_format::log::{InodeFields, InodeFormat};
use xfs_format::timestamp::Timestamp;
use xfs_format::types::{InodeNumber, Lsn};

/// The inode lock, held exclusively.
pub type InodeLocked = Counted<ArcRwLockWriteGuard<RawRwLock, ()>>;
/// The inode lock, held shared.
pub type InodeShared = Counted<ArcRwLockReadGuard<RawRwLock, ()>>;

static INODE: LockClass = LockClass::new("inode");
static STATE: LockClass = LockClass::new("inode state");

/// Where an inode is written.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) cluster: Arc<MetaBuf>,
    /// Byte of the cluster where it begins.
    pub(crate) offset: usize,
}

/// By how many bytes an inode's weight may be off before the cache is told: each telling takes a lock of the cache.
const WEIGHT_GRAIN: u64 = 1024;

/// An inode in memory.
pub struct InodeEntry {
    ino: InodeNumber,
    lock: Arc<RwLock<()>>,
    current: ArcSwap<Inode>,
    /// Counts the versions that differ from the ones before in the map of the data or in size.
    map_version: AtomicU64,
    /// The checkpoint of the last commit, and of the last that is more than times.
    committed: AtomicU64,
    datasync: AtomicU64,
    geometry: Arc<Geometry>,
    state: Mutex<State>,
    item: ItemState,
    /// How many have it open.
    opens: AtomicU32,
    /// The first life whose end has not begun.
    ended: AtomicU64,
    overwritten: LazyTime,
    /// Whether the inode is known to hold no capabilities, which a change of its content would take away.
    unprivileged: AtomicBool,
    /// Of a file that may share blocks: once somebody asked.
    copying: OnceLock<Box<Copying>>,
    /// Of a file of which some is in memory alone, once there was any.
    delayed: OnceLock<Box<Delayed>>,
    /// What the cache takes it to weigh.
    weighed: AtomicU64,
    /// Where it was noted among those that were looked up lately, if it ever was; whether it may be there still.
    noted_in: OnceLock<Weak<RecentInodes>>,
    noted: AtomicBool,
    this: Weak<InodeEntry>,
    /// Of `lock`, of `state`.
    users: Users,
    state_users: Users,
}

struct State {
    /// Where it is to be written. An inode that is written lets go of its cluster, which many a clean inode would
    /// keep in memory otherwise.
    site: Option<Site>,
    /// What was logged since the inode was last written.
    fields: InodeFields,
    /// Counts commits.
    version: u64,
    /// The version that is being written.
    laid: Option<(u64, Lsn)>,
    pins: u32,
    /// Whether its cluster knows that it has to be written.
    attached: bool,
}

impl InodeEntry {
    pub(crate) fn new(ino: InodeNumber, inode: Arc<Inode>, geometry: &Arc<Geometry>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            ino,
            lock: Arc::default(),
            current: ArcSwap::new(inode),
            map_version: AtomicU64::new(0),
            committed: AtomicU64::new(0),
            datasync: AtomicU64::new(0),
            geometry: Arc::clone(geometry),
            state: Mutex::new(State {
                site: None,
                fields: InodeFields::empty(),
                version: 0,
                laid: None,
                pins: 0,
                attached: false,
            }),
            item: ItemState::default(),
            opens: AtomicU32::new(0),
            ended: AtomicU64::new(Life::FIRST.to_bits()),
            overwritten: LazyTime::default(),
            unprivileged: AtomicBool::new(false),
            copying: OnceLock::new(),
            delayed: OnceLock::new(),
            weighed: AtomicU64::new(0),
            noted_in: OnceLock::new(),
            noted: AtomicBool::new(false),
            this: this.clone(),
            users: Users::new(),
            state_users: Users::new(),
        })
    }

    /// Its number.
    pub fn ino(&self) -> InodeNumber {
        self.ino
    }

    /// The committed version.
    pub fn current(&self) -> Arc<Inode> {
        self.current.load_full()
    }

    /// Whether the inode may hold capabilities, as far as is known.
    #[inline]
    pub fn may_be_privileged(&self) -> bool {
        !self.unprivileged.load(Ordering::Acquire)
    }

    /// Says whether it may. Whoever says so holds the inode's lock: shared to say no, behind a look that found none;
    /// exclusive to say yes, before the change is published. So nobody writes where there are some still.
    pub(crate) fn set_privileged(&self, may_be: bool) {
        self.unprivileged.store(!may_be, Ordering::Release);
    }

    /// The committed version, for a look of a few instructions: costs no reference count.
    pub fn peek(&self) -> arc_swap::Guard<Arc<Inode>> {
        self.current.load()
    }

    /// Another number whenever a version was published that maps the data differently, or has another size. Who looks at
    /// it first and at [`peek`](Self::peek) then knows, while it stays the same, that there is no later version.
    #[inline]
    pub(crate) fn map_version(&self) -> u64 {
        self.map_version.load(Ordering::Acquire)
    }

    /// The checkpoint in which the last commit of the inode is, which `fsync` has to see into the log. Whoever commits has
    /// the inode locked until that is known: this waits for it, and covers all that can be seen.
    pub fn commit_seq(&self) -> CommitSeq {
        let _nobody_commits = self.share();
        CommitSeq(self.committed.load(Ordering::Acquire))
    }

    /// As [`commit_seq`](Self::commit_seq), of the last commit that is more than times: `fdatasync` needs no others.
    pub fn datasync_seq(&self) -> CommitSeq {
        let _nobody_commits = self.share();
        CommitSeq(self.datasync.load(Ordering::Acquire))
    }

    /// A change, of times alone or not, was committed in this checkpoint. The caller has the lock.
    pub(crate) fn committed_in(&self, seq: CommitSeq, is_times: bool) {
        self.committed.store(seq.0, Ordering::Release);
        if !is_times {
            self.datasync.store(seq.0, Ordering::Release);
        }
    }

    /// Locks the inode for changes.
    pub fn lock(&self) -> InodeLocked {
        let (attempt, block) = (|| RwLock::try_write_arc(&self.lock), || RwLock::write_arc(&self.lock));
        INODE.lock_by(&self.users, Mode::Exclusive, attempt, block)
    }

    /// As [`lock`](Self::lock), without waiting.
    pub fn try_lock(&self) -> Option<InodeLocked> {
        INODE.try_lock_by(&self.users, Mode::Exclusive, || RwLock::try_write_arc(&self.lock))
    }

    /// Keeps changes off.
    pub fn share(&self) -> InodeShared {
        let (attempt, block) = (|| RwLock::try_read_arc(&self.lock), || RwLock::read_arc(&self.lock));
        INODE.lock_by(&self.users, Mode::Shared, attempt, block)
    }

    /// Keeps the file of this life from being freed when it loses its last name. `false`: it is gone, or going. The caller
    /// keeps changes off.
    pub(crate) fn open(&self, life: Life, _shared: &InodeShared) -> bool {
        let inode = self.peek();
        let exists = inode.life() == life && self.is_in_use(&inode);
        if exists {
            self.count_open();
        }
        exists
    }

    /// Counts one more who has it open. The caller has the lock.
    pub(crate) fn count_open(&self) {
        self.opens.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes an [`open`](Self::open) of the file of this life back; whether it was the last one.
    pub(crate) fn close(&self, life: Life) -> bool {
        if self.has_ended(life) {
            // Whoever closed the volume took them all back, and those of now are another file's.
            return false;
        }
        let one_less = |opens: u32| opens.checked_sub(1);
        let last = self.opens.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less) == Ok(1);
        if last {
            // Of one who closes it and one who takes its last name, each of whom looks at what the other does, one sees it.
            fence(Ordering::SeqCst);
        }
        last
    }

    /// Whether somebody has it open. Nobody opens it while the caller has the lock.
    pub(crate) fn is_open(&self) -> bool {
        self.opens.load(Ordering::Acquire) > 0
    }

    /// Begins the end of a file that has no name and that nobody has open: nobody opens, links or changes it any more.
    /// The life, once in it: who gets that frees the file.
    pub(crate) fn begin_inactivation(&self) -> Option<Life> {
        fence(Ordering::SeqCst);
        let _locked = self.lock();
        let inode = self.peek();
        let unused = self.is_in_use(&inode) && inode.nlink() == 0 && !self.is_open();
        if unused {
            self.end(inode.life());
        }
        unused.then(|| inode.life())
    }

    /// Begins the end of a file that has no name, for the only one who has it open: it is not open any more then. `false` also
    /// where that cannot be said without a wait for somebody.
    pub(crate) fn begin_inactivation_by_last(&self, life: Life) -> bool {
        let Some(_locked) = self.try_lock() else { return false };
        let inode = self.peek();
        let is_going = inode.life() == life && self.is_in_use(&inode) && inode.nlink() == 0;
        let is_last = is_going && self.opens.load(Ordering::Acquire) == 1;
        if is_last {
            self.opens.store(0, Ordering::SeqCst);
            self.end(life);
        }
        is_last
    }

    /// Ends the life that the inode is in, whoever has it open or has begun that: the volume is being closed, and nobody
    /// has it any more.
    pub(crate) fn take_inactivation(&self) -> Life {
        let _locked = self.lock();
        self.opens.store(0, Ordering::SeqCst);
        let life = self.peek().life();
        self.end(life);
        life
    }

    fn end(&self, life: Life) {
        self.ended.store(life.next().to_bits(), Ordering::Release);
    }

    /// Whether this version is of a file, and one whose end has not begun.
    #[inline]
    pub(crate) fn is_in_use(&self, inode: &Inode) -> bool {
        !inode.is_free() && !self.is_ending(inode)
    }

    /// Whether the end of the file that this version is of has begun.
    pub(crate) fn is_ending(&self, inode: &Inode) -> bool {
        self.has_ended(inode.life())
    }

    /// Whether the end of the file of this life has begun.
    #[inline]
    pub(crate) fn has_ended(&self, life: Life) -> bool {
        self.ended.load(Ordering::Acquire) > life.to_bits()
    }

    /// What is known of the file's shared blocks, and what is staged for copies of them.
    pub(crate) fn copying(&self) -> &Copying {
        self.copying.get_or_init(Box::default)
    }

    /// The same, if anybody asked for it.
    #[inline]
    pub(crate) fn copying_if_any(&self) -> Option<&Copying> {
        self.copying.get().map(Box::as_ref)
    }

    /// What is promised to the part of the file that is in memory alone.
    pub(crate) fn delayed(&self) -> &Delayed {
        self.delayed.get_or_init(Box::default)
    }

    /// The same, if anything ever was.
    #[inline]
    pub(crate) fn delayed_if_any(&self) -> Option<&Delayed> {
        self.delayed.get().map(Box::as_ref)
    }

    /// Has whoever looked at the map look again: other blocks are shared than before.
    pub(crate) fn sharing_changed(&self) {
        self.map_version.fetch_add(1, Ordering::Release);
    }

    /// When the content of a file with this number was last written over in place.
    pub(crate) fn overwritten(&self) -> &LazyTime {
        &self.overwritten
    }

    /// Times of modification and of change of a version of it, where that does not know yet that the content was
    /// written over.
    pub fn pending_times(&self, inode: &Inode) -> Option<(Timestamp, Timestamp)> {
        let time = self.overwritten.get(inode.life())?;
        Some(after_overwrite((inode.mtime(), inode.ctime()), time))
    }

    /// Where it is to be written, if it has changed since it was, and that still exists.
    pub(crate) fn site(&self) -> Option<Site> {
        // Not looked at with the lock held: who writes a cluster has it locked while its inodes are laid into it.
        let site = self.words().site.clone();
        site.filter(|site| !site.cluster.is_stale())
    }

    /// Bytes of memory, for the cache, which takes it to weigh that from now on.
    pub(crate) fn weigh(&self) -> u64 {
        let weight = self.weight();
        self.weighed.store(weight, Ordering::Relaxed);
        weight
    }

    fn weight(&self) -> u64 {
        let copying = self.copying_if_any().map_or(0, Copying::weight);
        size_of::<Self>() as u64 + self.peek().weight() + copying
    }

    /// It is noted there. The caller has its shard of the cache locked.
    pub(super) fn note_in(&self, recent: &Weak<RecentInodes>) {
        self.noted_in.get_or_init(|| Weak::clone(recent));
        self.noted.store(true, Ordering::Relaxed);
    }

    /// Whether its maps have grown or shrunk so much that the cache should know.
    pub(crate) fn is_misjudged(&self) -> bool {
        let weighed = self.weighed.load(Ordering::Relaxed);
        let weight = self.weight();
        weight.abs_diff(weighed) > WEIGHT_GRAIN + weighed / 4
    }

    /// What has to be logged if `fields` of `inode` change, earlier changes that are not written yet included.
    pub(crate) fn to_log(&self, inode: &Inode, fields: InodeFields) -> InodeFields {
        let earlier = self.words().fields;
        // A fork that changed its format is logged in its new form alone.
        ((earlier | fields) & !(InodeFields::DFORK | InodeFields::AFORK | InodeFields::DEV))
            | fork_fields(inode, earlier | fields)
            | InodeFields::CORE
    }

    /// Formats what is logged of the inode, which lies at `site`.
    pub(crate) fn format(&self, inode: &Inode, fields: InodeFields, site: &Site) -> LogVector {
        let regions = inode.log_regions(fields, &self.geometry);
        let count = 2 + regions.iter().flatten().count();
        let region_bytes =
            regions.iter().flatten().map(|bytes| bytes.len().next_multiple_of(4)).sum::<usize>();
        let core = inode.core().to_log(self.ino, &self.geometry, inode.is_free(), self.item.lsn());
        let core = zerocopy::IntoBytes::as_bytes(&core);
        let size =
            VecSize { regions: count as u32, bytes: (InodeFormat::BYTES + core.len() + region_bytes) as u32 };
        let [data, attr] = &regions;
        // Recovery takes the region behind the core for the data fork if the fields say so: a fork without bytes must
        // not be among them, or the attribute fork's region is not found.
        let mut fields = fields;
        for (fork, region) in [(InodeFields::DFORK, data), (InodeFields::AFORK, attr)] {
            if region.is_none() {
                fields.remove(fork);
            }
        }
        let len = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, |bytes| bytes.len() as u16);
        let header = InodeFormat {
            regions: count as u16,
            fields,
            asize: len(attr),
            dsize: len(data),
            ino: self.ino,
            rdev: inode.raw_device(),
            daddr: site.cluster.daddr(),
            len: (site.cluster.len() / 512) as u32,
            offset: site.offset as u32,
        };
        let mut vector = LogVector::of_spare(size);
        vector.region_with(InodeFormat::BYTES, |to| header.encode(to));
        vector.region(core);
        for bytes in regions.iter().flatten() {
            vector.region(bytes);
        }
        vector
    }

    fn words(&self) -> Counted<MutexGuard<'_, State>> {
        let state = &self.state;
        STATE.lock_by(&self.state_users, Mode::Exclusive, || state.try_lock(), || state.lock())
    }

    /// Lets go of a cluster that was freed, which would stay in memory as long as the inode does otherwise; unless there
    /// is another version since.
    fn let_go(&self, version: u64) {
        let mut state = self.words();
        if state.version == version && state.pins == 0 && !state.attached {
            state.site = None;
        }
    }

    /// Publishes what a transaction committed. The caller has the lock, and has pinned the inode.
    pub(crate) fn publish(&self, inode: Arc<Inode>, fields: InodeFields, site: &Site) {
        let maps = |inode: &Inode| (inode.map_seq(), inode.size());
        let (before, now) = (maps(&self.peek()), maps(&inode));
        self.current.store(inode);
        if before != now {
            self.map_version.fetch_add(1, Ordering::Release);
        }
        let mut state = self.words();
        state.version += 1;
        state.fields = fields;
        let known = state.site.as_ref().is_some_and(|known| Arc::ptr_eq(&known.cluster, &site.cluster));
        if !known {
            state.site = Some(site.clone());
        }
        let attached = std::mem::replace(&mut state.attached, true);
        drop(state);
        if !(attached && known)
            && let Some(this) = self.this.upgrade()
            && !site.cluster.attach(this)
        {
            // The last inode of a chunk was freed, and the chunk with it, in one transaction.
            self.detached();
        }
    }
}

/// The fork regions of `wanted`, in the form that the forks have now.
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
    /// Asked with its shard of the cache locked exclusively.
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

impl Overlay for InodeEntry {
    fn lay(&self, bytes: &mut [u8]) -> bool {
        let mut state = self.words();
        if state.pins > 0 {
            return false;
        }
        // First the LSN, then the copy.
        let lsn = self.item.lsn();
        let inode = self.current.load();
        let inode_len = usize::from(self.geometry.inode_size);
        let place = state.site.as_ref().and_then(|site| bytes.get_mut(site.offset..site.offset + inode_len));
        if let Some(place) = place {
            inode.core().encode(self.ino, &self.geometry, inode.is_free(), inode.fork_bytes(), lsn, place);
        }
        state.laid = Some((state.version, lsn));
        state.attached = false;
        true
    }

    fn detached(&self) {
        self.words().attached = false;
    }

    fn written(self: Arc<Self>) -> Option<(Arc<dyn LogItem>, Lsn)> {
        let mut state = self.words();
        let (version, lsn) = state.laid.take()?;
        if version != state.version {
            return None;
        }
        state.fields = InodeFields::empty();
        state.site = None;
        drop(state);
        Some((self, lsn))
    }
}

impl LogItem for InodeEntry {
    fn state(&self) -> &ItemState {
        &self.item
    }

    fn pin(&self) {
        self.words().pins += 1;
    }

    fn unpin(&self) {
        let mut state = self.words();
        debug_assert!(state.pins > 0, "unpinned more often than pinned");
        state.pins = state.pins.saturating_sub(1);
    }

    fn landed(&self, _lsn: Lsn) -> Landing {
        Landing::Ail
    }

    fn push(self: Arc<Self>) -> Push {
        let state = self.words();
        if state.laid.is_some() {
            return Push::Flushing;
        }
        if state.pins > 0 {
            return Push::Pinned;
        }
        let (site, version) = (state.site.clone(), state.version);
        let detached = !state.attached;
        drop(state);
        match site {
            // Its cluster was freed, and perhaps made again since, without it: once the log says so, nothing is left to
            // be written.
            Some(site) if detached && !site.cluster.is_stale_and_pinned() => {
                self.let_go(version);
                Push::Gone
            }
            Some(site) => site.cluster.write_back(),
            None => Push::Gone,
        }
    }
}

impl Debug for InodeEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InodeEntry").field("ino", &self.ino).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::buf::{Change, Piece};
    use crate::imap::CLUSTER;
    use crate::testing::geometry;
    use xfs_format::inode::{CORE_LEN_V3, ForkInfo, InodeCore, InodeFlags, InodeFlags2, InodeType};
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

    /// Each inode of a removed file that was still in memory kept the cluster there that it had been in; and the inode
    /// whose removal freed the cluster, published behind that, stayed in memory itself, held by the cluster.
    #[test]
    fn a_cluster_that_was_freed_is_let_go_of() {
        for freed_first in [false, true] {
            a_freed_cluster(freed_first);
        }
    }

    fn a_freed_cluster(freed_first: bool) {
        let piece = Piece { daddr: DiskAddr(32), len: 16384 };
        let bytes = Arc::from(vec![0; 16384]);
        let cluster = Arc::new(MetaBuf::new(&[piece], bytes, &CLUSTER, &Arc::default()));
        let site = Site { cluster: Arc::clone(&cluster), offset: 0 };
        let inode = Arc::new(free_inode(64));
        let entry = InodeEntry::new(InodeNumber(64), Arc::clone(&inode), &Arc::new(geometry(true, 12, 0)));
        entry.pin();
        cluster.pin();
        if freed_first {
            cluster.publish(Change::Stale);
            entry.publish(inode, InodeFields::CORE, &site);
        } else {
            entry.publish(inode, InodeFields::CORE, &site);
            cluster.publish(Change::Stale);
        }
        drop(site);
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
