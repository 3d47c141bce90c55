//! What all cached files of a volume share: the memory limit, and what is evicted or written back next.
//!
//! Invariants:
//! - nobody who holds a range waits here: memory is given immediately, and whoever is about to make pages dirty waits
//!   before that, with nothing held ([`PageCache::make_room`]);
//! - a file with dirty pages is in the queue here or being written back, which keeps it in memory;
//! - a folio is evicted only while nobody holds any byte of it. A dirty one stays.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::counted::{self, Mutex};
use super::failures::{Failure, Failures, SyncCursor};
use super::folio::Trace;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::parking::Condvar;

/// Maximum number of folios that are checked for each one to be evicted.
const LOOKS: usize = 64;
/// Age of a file's changes at which they are written back without need.
const AGE_MAX: Duration = Duration::from_secs(5);
/// How often something is tried that lacks space.
const ATTEMPTS: usize = 4;
/// How long a thread that waits for write-back by others sleeps at most before it checks again.
const NAP: Duration = Duration::from_millis(5);

/// The result of evicting a folio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evicted {
    /// It is gone.
    Gone,
    /// It has to stay for now.
    Stays,
}

/// A file as the pool sees it.
pub(super) trait CachedFile: Send + Sync {
    /// Evicts the folio of these pages if it is clean, nobody holds it, and nobody used it since this was last called.
    fn evict(&self, pages: Range<u64>) -> Evicted;
    /// Writes back some of its dirty pages. Returns whether they all could be.
    fn write_some_back(&self) -> bool;
    /// Writes back all pages that are dirty now.
    fn write_all_back(&self) -> Result<(), Failure>;
    /// Whether it has dirty pages.
    fn is_dirty(&self) -> bool;
    /// Its ticket in the queue for write-back; [`NO_TICKET`] if it is not there. Only the pool changes it, under the
    /// queue's lock.
    fn ticket(&self) -> &AtomicU64;
}

struct Folio {
    file: Weak<dyn CachedFile>,
    trace: Trace,
    pages: Range<u64>,
}

/// The ticket of a file that is not in the queue.
pub(super) const NO_TICKET: u64 = 0;

struct WaitingFiles {
    /// By ticket: those that have waited longest come first.
    files: BTreeMap<u64, (Instant, Arc<dyn CachedFile>)>,
    last_ticket: u64,
    /// Files that are being written back.
    active: Vec<Arc<dyn CachedFile>>,
    is_stopped: bool,
}

impl WaitingFiles {
    fn new() -> Self {
        Self { files: BTreeMap::new(), last_ticket: NO_TICKET, active: Vec::new(), is_stopped: false }
    }

    /// Adds a file to the queue, unless it is there already or write-back has ended.
    fn push(&mut self, since: Instant, file: Arc<dyn CachedFile>) {
        if self.is_stopped || file.ticket().load(Ordering::SeqCst) != NO_TICKET {
            return;
        }
        self.last_ticket += 1;
        file.ticket().store(self.last_ticket, Ordering::SeqCst);
        self.files.insert(self.last_ticket, (since, file));
    }

    /// Removes a file from the queue. Returns the queue's reference, if it was there.
    fn remove(&mut self, file: &Arc<dyn CachedFile>) -> Option<Arc<dyn CachedFile>> {
        let ticket = file.ticket().swap(NO_TICKET, Ordering::SeqCst);
        self.files.remove(&ticket).map(|(_, file)| file)
    }
}

/// Returns what pages may take, given how much they take: others have the rest of the memory.
type CacheShare = Box<dyn Fn(u64) -> u64 + Send + Sync>;

/// The page cache of a volume.
pub struct PageCache {
    limit: AtomicU64,
    /// Determines the limit, if that depends on others.
    share: Option<CacheShare>,
    /// What pages took when `share` was last called, and after how much more or less it is called again.
    asked: AtomicU64,
    step: u64,
    used: AtomicU64,
    dirty: AtomicU64,
    clock: Mutex<VecDeque<Folio>>,
    waiting: Mutex<WaitingFiles>,
    /// Signalled when there is something to write back, or something was written back.
    changed: Condvar,
    failures: Failures,
}

impl std::fmt::Debug for PageCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (used, dirty) = (self.used(), self.dirty());
        f.debug_struct("PageCache")
            .field("limit", &self.limit())
            .field("used", &used)
            .field("dirty", &dirty)
            .finish()
    }
}

impl PageCache {
    /// A cache of at most `limit` bytes, in addition to what is being read or written right now.
    pub fn new(limit: u64) -> Arc<Self> {
        Self::make(limit, None)
    }

    /// A cache that shares memory with others. `share` is told now and then how much pages take, and returns how much
    /// they may; all together have `all`. It is called by readers and writers, who may hold bytes of files.
    pub fn sharing(all: u64, share: impl Fn(u64) -> u64 + Send + Sync + 'static) -> Arc<Self> {
        Self::make(all, Some(Box::new(share)))
    }

    fn make(limit: u64, share: Option<CacheShare>) -> Arc<Self> {
        Arc::new(Self {
            limit: AtomicU64::new(limit),
            share,
            asked: AtomicU64::new(0),
            step: (limit / 64).clamp(1, 1 << 20),
            used: AtomicU64::new(0),
            dirty: AtomicU64::new(0),
            clock: Mutex::new(&counted::CLOCK, VecDeque::new()),
            waiting: Mutex::new(&counted::LINE, WaitingFiles::new()),
            changed: Condvar::new(),
            failures: Failures::default(),
        })
    }

    /// Bytes of memory that pages take.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes of dirty pages.
    pub fn dirty(&self) -> u64 {
        self.dirty.load(Ordering::Relaxed)
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Updates the limit, which depends on what others take.
    fn ask_for_limit(&self) {
        if let Some(share) = &self.share {
            let used = self.used();
            self.asked.store(used, Ordering::Relaxed);
            self.limit.store(share(used), Ordering::Relaxed);
        }
    }

    fn has_changed_much(&self, used: u64) -> bool {
        self.share.is_some() && used.abs_diff(self.asked.load(Ordering::Relaxed)) >= self.step
    }

    /// The number of dirty bytes from which on they are written back immediately.
    fn dirty_background(&self) -> u64 {
        self.limit() / 8
    }

    /// Maximum number of dirty bytes, in addition to what is being written right now.
    fn dirty_max(&self) -> u64 {
        self.limit() / 2
    }

    pub(super) fn dirty_changed(&self, by: i64) {
        let before = self.dirty.fetch_add(by.cast_unsigned(), Ordering::Relaxed);
        let background = self.dirty_background();
        if by > 0 && before < background && before + by.cast_unsigned() >= background {
            self.changed.notify_all();
        }
    }

    /// A folio was made. Others are evicted if there is too little memory.
    pub(super) fn came(&self, file: Weak<dyn CachedFile>, trace: Trace, pages: Range<u64>, bytes: u64) {
        let used = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let mut clock = self.clock.lock();
        // Traces of removed folios go as fast as new folios come, and twice as fast.
        for _ in 0..2 {
            match clock.pop_front() {
                Some(folio) if !folio.trace.is_cold() => clock.push_back(folio),
                _ => {}
            }
        }
        clock.push_back(Folio { file, trace, pages });
        drop(clock);
        if self.has_changed_much(used) {
            self.ask_for_limit();
        }
        if used > self.limit() {
            self.shrink(bytes);
        }
    }

    /// Evicts folios because others need their memory.
    pub(super) fn keep_bound(&self) {
        self.ask_for_limit();
        let over = self.used().saturating_sub(self.limit());
        if over > 0 {
            self.shrink(over);
        }
    }

    /// A folio was removed.
    pub(super) fn went(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Evicts folios until the limit is kept, or until some were checked in vain.
    fn shrink(&self, bytes: u64) {
        let mut looks = LOOKS.max((bytes >> 12) as usize * 2);
        while self.used() > self.limit() && looks > 0 {
            let Some(folio) = self.clock.lock().pop_front() else { return };
            // It belongs to a closed file, or its pages were dropped.
            let Some(file) = folio.file.upgrade().filter(|_| !folio.trace.is_cold()) else { continue };
            looks -= 1;
            if file.evict(folio.pages.clone()) == Evicted::Stays {
                self.clock.lock().push_back(folio);
            }
        }
    }

    /// Whether no more pages may become dirty for now.
    #[inline]
    pub(super) fn is_over_dirty_limit(&self) -> bool {
        self.dirty() > self.dirty_max()
    }

    /// Waits until a few more pages may become dirty, or until `is_needed` is false, which is called while too many
    /// are. Returns `false` if that was in vain. The caller holds nothing.
    pub(super) fn make_room(&self, mut is_needed: impl FnMut() -> bool) -> bool {
        if self.used() > self.limit() {
            self.shrink(1 << 20);
        }
        let mut vain = 0;
        while self.is_over_dirty_limit() && vain < 1000 && is_needed() {
            let before = self.dirty();
            if !self.write_one_back(true) {
                drop(self.waiting.lock().wait_for(&self.changed, NAP));
            }
            vain = if self.dirty() < before { 0 } else { vain + 1 };
        }
        vain < 1000
    }

    /// A file has dirty pages: adds it to the queue, unless it is there. If it is there already, it is also found in
    /// the list.
    pub(super) fn enqueue(&self, file: Arc<dyn CachedFile>) {
        self.waiting.lock().push(Instant::now(), file);
    }

    /// Removes a file from the queue if it `is_unwanted`, whatever is dirty of it. Returns `false` if it is wanted, is
    /// not in the queue, or is being written back. `is_unwanted` is called under the queue's lock: writing back all
    /// files finds a file that stays in the queue.
    pub(super) fn take_out_if(&self, file: &Arc<dyn CachedFile>, is_unwanted: impl FnOnce() -> bool) -> bool {
        let mut waiting = self.waiting.lock();
        if file.ticket().load(Ordering::SeqCst) == NO_TICKET || !is_unwanted() {
            return false;
        }
        let gone = waiting.remove(file);
        drop(waiting);
        gone.is_some()
    }

    /// Writes back some of the file that has waited longest, unless it has not waited long and there is room. Returns
    /// whether there was one and it could be written.
    pub(super) fn write_one_back(&self, at_once: bool) -> bool {
        let mut waiting = self.waiting.lock();
        let is_due = |since: &Instant| {
            at_once || self.dirty() >= self.dirty_background() || since.elapsed() >= AGE_MAX
        };
        if waiting.is_stopped || !waiting.files.first_key_value().is_some_and(|(_, (since, _))| is_due(since))
        {
            return false;
        }
        let Some((_, (since, file))) = waiting.files.pop_first() else { return false };
        waiting.active.push(Arc::clone(&file));
        // Under the lock: until then it is found in the queue.
        file.ticket().store(NO_TICKET, Ordering::SeqCst);
        drop(waiting);
        let could_be = file.write_some_back();
        let mut waiting = self.waiting.lock();
        // Before anybody may drop it: a dirty file is always in the queue.
        if file.is_dirty() {
            waiting.push(since, Arc::clone(&file));
        }
        let index = waiting.active.iter().position(|active| Arc::ptr_eq(active, &file));
        let active = index.map(|index| waiting.active.swap_remove(index));
        drop(waiting);
        self.changed.notify_all();
        // These may be the last handles of a file, whose end takes time.
        drop((active, file));
        could_be
    }

    /// A file was written back: removes it from the queue, unless it is dirty again.
    pub(super) fn dequeue(&self, file: &Arc<dyn CachedFile>) {
        let mut waiting = self.waiting.lock();
        let ticket = file.ticket().swap(NO_TICKET, Ordering::SeqCst);
        if ticket == NO_TICKET {
            return;
        }
        // A thread that made it dirty before this may have found it in the queue, so it must stay there.
        if file.is_dirty() {
            file.ticket().store(ticket, Ordering::SeqCst);
            return;
        }
        let gone = waiting.files.remove(&ticket);
        drop(waiting);
        drop(gone);
    }

    /// Sleeps until there may be something to write back. Returns `false` when there will be nothing any more.
    pub(super) fn wait_for_work(&self) -> bool {
        let waiting = self.waiting.lock();
        !waiting.is_stopped && !waiting.wait_for(&self.changed, AGE_MAX / 5).is_stopped
    }

    /// Writes back all pages of all files that are dirty now. Tries all of them, and returns the first failure.
    pub fn write_every_file_back(&self) -> Result<(), Failure> {
        let waiting = self.waiting.lock();
        let mut files: Vec<_> = waiting.files.values().map(|(_, file)| Arc::clone(file)).collect();
        files.extend(waiting.active.iter().cloned());
        drop(waiting);
        let mut done = Ok(());
        for file in files {
            let written = file.write_all_back();
            done = done.and(written);
        }
        done
    }

    /// Repeats something that lacked space while files have dirty pages, which are written back first: a reservation
    /// for a block is larger than what the block finally takes. Others may take the space that becomes free, so it is
    /// tried several times. A failed attempt leaves nothing behind. The caller holds nothing of any file.
    pub fn with_room<T, E>(
        &self,
        attempt: impl Fn() -> Result<T, E>,
        lacks_space: impl Fn(&E) -> bool,
    ) -> Result<T, E> {
        for _ in 1..ATTEMPTS {
            let before = self.dirty();
            let done = attempt();
            // What was dirty a moment ago has given back what it did not need.
            if !done.as_ref().is_err_and(&lacks_space) || before == 0 && self.dirty() == 0 {
                return done;
            }
            let _told_when_synced = self.write_every_file_back();
        }
        attempt()
    }

    /// A cursor for failures from now on.
    pub fn sync_cursor(&self) -> SyncCursor {
        self.failures.cursor()
    }

    /// What failed since the cursor was last used, for all files.
    pub fn failed_since(&self, cursor: &SyncCursor) -> Option<Failure> {
        self.failures.tell(cursor)
    }

    pub(super) fn note_failure(&self, failure: Failure) {
        self.failures.note(failure);
    }

    /// Ends write-back: what is dirty is lost, as in a crash.
    pub fn abandon(&self) {
        let mut waiting = self.waiting.lock();
        waiting.is_stopped = true;
        let files = std::mem::take(&mut waiting.files);
        drop(waiting);
        self.changed.notify_all();
        drop(files);
    }
}

#[cfg(test)]
mod tests {
    use super::super::folio;
    use super::*;

    fn a_page() -> folio::Folio {
        folio::Folio::new(0, 1, 12, 12)
    }

    /// A file with one folio.
    struct File(Arc<PageCache>, AtomicU64);

    impl CachedFile for File {
        fn evict(&self, _: Range<u64>) -> Evicted {
            Evicted::Gone
        }
        fn write_some_back(&self) -> bool {
            true
        }
        fn write_all_back(&self) -> Result<(), Failure> {
            Ok(())
        }
        fn is_dirty(&self) -> bool {
            false
        }
        fn ticket(&self) -> &AtomicU64 {
            &self.1
        }
    }

    /// A file whose folios go one by one.
    struct Lasting(Arc<PageCache>, AtomicU64);

    impl CachedFile for Lasting {
        fn evict(&self, _: Range<u64>) -> Evicted {
            self.0.went(4096);
            Evicted::Gone
        }
        fn write_some_back(&self) -> bool {
            true
        }
        fn write_all_back(&self) -> Result<(), Failure> {
            Ok(())
        }
        fn is_dirty(&self) -> bool {
            false
        }
        fn ticket(&self) -> &AtomicU64 {
            &self.1
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            self.0.went(4096);
        }
    }

    /// What others take, pages give up: immediately when these grow, otherwise at the next update.
    #[test]
    fn pages_have_what_others_leave() {
        let others = Arc::new(AtomicU64::new(0));
        let told = Arc::new(AtomicU64::new(0));
        let (left, seen) = (Arc::clone(&others), Arc::clone(&told));
        let pool = PageCache::sharing(1 << 20, move |used| {
            seen.store(used, Ordering::Relaxed);
            (1 << 20) - left.load(Ordering::Relaxed)
        });
        assert_eq!(pool.limit(), 1 << 20);
        others.store(1 << 19, Ordering::Relaxed);
        let file: Arc<dyn CachedFile> = Arc::new(Lasting(Arc::clone(&pool), AtomicU64::new(NO_TICKET)));
        let folio = a_page();
        for page in 0..1000 {
            pool.came(Arc::downgrade(&file), folio.trace(), page..page + 1, 4096);
            assert!(pool.used() <= (1 << 19) + 4096, "{} at {page}", pool.used());
        }
        assert!(told.load(Ordering::Relaxed) > (1 << 19) - (1 << 15));
        others.store(3 << 18, Ordering::Relaxed);
        pool.keep_bound();
        assert!(pool.used() <= 1 << 18);
        others.store(0, Ordering::Relaxed);
        pool.keep_bound();
        assert_eq!(pool.limit(), 1 << 20);
    }

    /// Regression: an entry for each folio of each closed file stayed as long as the limit was kept.
    #[test]
    fn closed_files_leave_nothing_behind() {
        let pool = PageCache::new(1 << 20);
        for _ in 0..100_000 {
            let file: Arc<dyn CachedFile> = Arc::new(File(Arc::clone(&pool), AtomicU64::new(NO_TICKET)));
            pool.came(Arc::downgrade(&file), a_page().trace(), 0..1, 4096);
        }
        assert_eq!(pool.used(), 0);
        assert!(pool.clock.lock().len() < 10);
    }

    /// Regression: the same for each dropped folio of a file that stays open; and these came before those that could be
    /// evicted.
    #[test]
    fn forgotten_folios_leave_nothing_behind() {
        let pool = PageCache::new(1 << 20);
        let file: Arc<dyn CachedFile> = Arc::new(Lasting(Arc::clone(&pool), AtomicU64::new(NO_TICKET)));
        let stays = a_page();
        for page in 0..64 {
            pool.came(Arc::downgrade(&file), stays.trace(), page..page + 1, 4096);
        }
        for _ in 0..100_000 {
            pool.came(Arc::downgrade(&file), a_page().trace(), 0..1, 4096);
            pool.went(4096);
        }
        assert_eq!(pool.used(), 64 * 4096);
        assert!(pool.clock.lock().len() < 140);
        // Many at once, with nothing behind them.
        let gone: Vec<_> = (0..100_000).map(|_| a_page().trace()).collect();
        let entries = gone.into_iter().map(|trace| Folio { file: Arc::downgrade(&file), trace, pages: 0..1 });
        pool.clock.lock().extend(entries);
        pool.clock.lock().rotate_left(140);
        pool.came(Arc::downgrade(&file), stays.trace(), 64..65, 1 << 20);
        assert!(pool.used() <= 1 << 20);
    }
}
