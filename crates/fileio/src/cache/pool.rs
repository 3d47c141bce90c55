//! What all cached files of a volume share: the bound on memory, and who is to be let go or written back next.
//!
//! Invariants:
//! - nobody who holds a range waits here: memory is given at once, and who is about to make pages dirty waits before, with
//!   nothing held ([`PageCache::make_room`]);
//! - a file with dirty pages is waiting here or being written back, and kept in memory by that;
//! - a folio is let go only while nobody holds any byte of it; one that is dirty stays.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::counted::{self, Mutex};
use super::failures::{Failure, Failures, SyncCursor};
use super::folio::Trace;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::parking::Condvar;

/// How many folios are looked at, at most, for each that is to be let go.
const LOOKS: usize = 64;
/// How old the changes of a file get before they are written back without need.
const AGE_MAX: Duration = Duration::from_secs(5);
/// How often is attempted what lacks space.
const ATTEMPTS: usize = 4;
/// How long who waits for others to write back sleeps at most before they look again.
const NAP: Duration = Duration::from_millis(5);

/// What came of letting a folio go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evicted {
    /// It is gone.
    Gone,
    /// It has to stay for now.
    Stays,
}

/// A file, as the pool sees it.
pub(super) trait CachedFile: Send + Sync {
    /// Lets the folio of these pages go, if it is clean, nobody holds it, and nobody wanted it since it was last asked.
    fn evict(&self, pages: Range<u64>) -> Evicted;
    /// Writes some of its dirty pages back; whether all of these could be.
    fn write_some_back(&self) -> bool;
    /// Writes all pages back that are dirty now.
    fn write_all_back(&self) -> Result<(), Failure>;
    /// Whether it has dirty pages.
    fn is_dirty(&self) -> bool;
    /// Its ticket in the line of those that wait to be written back; [`NO_TICKET`] while it does not. Changed by the pool alone,
    /// under the line's lock.
    fn ticket(&self) -> &AtomicU64;
}

struct Folio {
    file: Weak<dyn CachedFile>,
    trace: Trace,
    pages: Range<u64>,
}

/// That of a file that does not wait.
pub(super) const NO_TICKET: u64 = 0;

struct Waiting {
    /// By their tickets: those that have waited longest come first.
    files: BTreeMap<u64, (Instant, Arc<dyn CachedFile>)>,
    last_ticket: u64,
    /// Those that somebody is writing back.
    active: Vec<Arc<dyn CachedFile>>,
    is_stopped: bool,
}

impl Waiting {
    fn new() -> Self {
        Self { files: BTreeMap::new(), last_ticket: NO_TICKET, active: Vec::new(), is_stopped: false }
    }

    /// A file waits, unless it does already, or nobody writes back any more.
    fn push(&mut self, since: Instant, file: Arc<dyn CachedFile>) {
        if self.is_stopped || file.ticket().load(Ordering::SeqCst) != NO_TICKET {
            return;
        }
        self.last_ticket += 1;
        file.ticket().store(self.last_ticket, Ordering::SeqCst);
        self.files.insert(self.last_ticket, (since, file));
    }

    /// A file does not wait any more; gives the line's reference, if it did.
    fn remove(&mut self, file: &Arc<dyn CachedFile>) -> Option<Arc<dyn CachedFile>> {
        let ticket = file.ticket().swap(NO_TICKET, Ordering::SeqCst);
        self.files.remove(&ticket).map(|(_, file)| file)
    }
}

/// What pages may take, told how much they take: others have the rest of the memory.
type Share = Box<dyn Fn(u64) -> u64 + Send + Sync>;

/// The page cache of a volume.
pub struct PageCache {
    limit: AtomicU64,
    /// Says what the limit is, if that depends on others.
    share: Option<Share>,
    /// What pages took when that was asked last, and after how much more or less it is asked again.
    asked: AtomicU64,
    step: u64,
    used: AtomicU64,
    dirty: AtomicU64,
    clock: Mutex<VecDeque<Folio>>,
    waiting: Mutex<Waiting>,
    /// There is something to write back, or something was.
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
    /// A cache of at most `limit` bytes, but for what is being read or written right now.
    pub fn new(limit: u64) -> Arc<Self> {
        Self::make(limit, None)
    }

    /// A cache that has memory in common with others. `share` is told now and then how much pages take, and says how much
    /// they may; all together have `all`. It is called by whoever reads or writes, who may hold bytes of files.
    pub fn sharing(all: u64, share: impl Fn(u64) -> u64 + Send + Sync + 'static) -> Arc<Self> {
        Self::make(all, Some(Box::new(share)))
    }

    fn make(limit: u64, share: Option<Share>) -> Arc<Self> {
        Arc::new(Self {
            limit: AtomicU64::new(limit),
            share,
            asked: AtomicU64::new(0),
            step: (limit / 64).clamp(1, 1 << 20),
            used: AtomicU64::new(0),
            dirty: AtomicU64::new(0),
            clock: Mutex::new(&counted::CLOCK, VecDeque::new()),
            waiting: Mutex::new(&counted::LINE, Waiting::new()),
            changed: Condvar::new(),
            failures: Failures::default(),
        })
    }

    /// Bytes of memory that pages take.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes of pages that are newer than what the device has.
    pub fn dirty(&self) -> u64 {
        self.dirty.load(Ordering::Relaxed)
    }

    /// The bound in bytes.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Asks for the limit, which goes with what others take.
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

    /// From how many dirty bytes on they are written back at once.
    fn dirty_background(&self) -> u64 {
        self.limit() / 8
    }

    /// How many there are at most, but for what is being written right now.
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

    /// A folio came to be: others go, if there is too little memory.
    pub(super) fn came(&self, file: Weak<dyn CachedFile>, trace: Trace, pages: Range<u64>, bytes: u64) {
        let used = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let mut clock = self.clock.lock();
        // What is left of others goes as fast as new ones come, and twice.
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

    /// Lets folios go that take memory which others have needed since.
    pub(super) fn keep_bound(&self) {
        self.ask_for_limit();
        let over = self.used().saturating_sub(self.limit());
        if over > 0 {
            self.shrink(over);
        }
    }

    /// A folio is gone.
    pub(super) fn went(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Lets folios go until the bound is kept, or until some were looked at in vain.
    fn shrink(&self, bytes: u64) {
        let mut looks = LOOKS.max((bytes >> 12) as usize * 2);
        while self.used() > self.limit() && looks > 0 {
            let Some(folio) = self.clock.lock().pop_front() else { return };
            // Of a file that is closed, nothing is left, nor of pages that were forgotten.
            let Some(file) = folio.file.upgrade().filter(|_| !folio.trace.is_cold()) else { continue };
            looks -= 1;
            if file.evict(folio.pages.clone()) == Evicted::Stays {
                self.clock.lock().push_back(folio);
            }
        }
    }

    /// Whether no more pages may become dirty for now.
    #[inline]
    pub(super) fn is_full_of_dirty(&self) -> bool {
        self.dirty() > self.dirty_max()
    }

    /// Waits until a few more pages may become dirty, or until that is not needed any more, which is asked while too many are;
    /// `false` if that was in vain. The caller holds nothing.
    pub(super) fn make_room(&self, mut is_needed: impl FnMut() -> bool) -> bool {
        if self.used() > self.limit() {
            self.shrink(1 << 20);
        }
        let mut vain = 0;
        while self.is_full_of_dirty() && vain < 1000 && is_needed() {
            let before = self.dirty();
            if !self.write_one_back(true) {
                drop(self.waiting.lock().wait_for(&self.changed, NAP));
            }
            vain = if self.dirty() < before { 0 } else { vain + 1 };
        }
        vain < 1000
    }

    /// A file has dirty pages: it waits, unless it does already. Who finds that it does, finds it in the list, too.
    pub(super) fn enqueue(&self, file: Arc<dyn CachedFile>) {
        self.waiting.lock().push(Instant::now(), file);
    }

    /// A file that `is_unwanted` waits no longer, whatever is dirty of it; `false` if it is wanted, if it did not wait, or if
    /// somebody is writing it back. That is asked under the line's lock: whoever writes all files back finds a file that stays
    /// in the line.
    pub(super) fn take_out_if(&self, file: &Arc<dyn CachedFile>, is_unwanted: impl FnOnce() -> bool) -> bool {
        let mut waiting = self.waiting.lock();
        if file.ticket().load(Ordering::SeqCst) == NO_TICKET || !is_unwanted() {
            return false;
        }
        let gone = waiting.remove(file);
        drop(waiting);
        gone.is_some()
    }

    /// Writes some of the file back that has waited longest, unless it has not waited long and there is room; whether there
    /// was one, and it could be.
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
        // Under the lock: who finds it waiting finds it here.
        file.ticket().store(NO_TICKET, Ordering::SeqCst);
        drop(waiting);
        let could_be = file.write_some_back();
        let mut waiting = self.waiting.lock();
        // Before it is anybody's to drop: a dirty file always waits.
        if file.is_dirty() {
            waiting.push(since, Arc::clone(&file));
        }
        let index = waiting.active.iter().position(|active| Arc::ptr_eq(active, &file));
        let active = index.map(|index| waiting.active.swap_remove(index));
        drop(waiting);
        self.changed.notify_all();
        // Perhaps the last handles of a file, whose end takes its time.
        drop((active, file));
        could_be
    }

    /// A file was written back: it does not wait any more, unless it is dirty again.
    pub(super) fn dequeue(&self, file: &Arc<dyn CachedFile>) {
        let mut waiting = self.waiting.lock();
        let ticket = file.ticket().swap(NO_TICKET, Ordering::SeqCst);
        if ticket == NO_TICKET {
            return;
        }
        // Who made it dirty before may have found that it waits, and so it does.
        if file.is_dirty() {
            file.ticket().store(ticket, Ordering::SeqCst);
            return;
        }
        let gone = waiting.files.remove(&ticket);
        drop(waiting);
        drop(gone);
    }

    /// Sleeps until there may be something to write back; `false` when there will be nothing any more.
    pub(super) fn wait_for_work(&self) -> bool {
        let waiting = self.waiting.lock();
        !waiting.is_stopped && !waiting.wait_for(&self.changed, AGE_MAX / 5).is_stopped
    }

    /// Writes all pages of all files back that are dirty now. The first failure of those, but all are tried.
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

    /// Attempts something anew where it lacked space and files have dirty pages, which are written back before: what is
    /// reserved for a block is more than it takes in the end. Others may take what comes of it, so it is attempted some times.
    /// Of an attempt that fails nothing is left. The caller holds nothing of any file.
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

    /// Where somebody stands who is to be told of what fails from now on.
    pub fn sync_cursor(&self) -> SyncCursor {
        self.failures.cursor()
    }

    /// What failed since the cursor was last asked, of all files.
    pub fn failed_since(&self, cursor: &SyncCursor) -> Option<Failure> {
        self.failures.tell(cursor)
    }

    pub(super) fn note_failure(&self, failure: Failure) {
        self.failures.note(failure);
    }

    /// Nothing is written back any more: what is dirty is lost, as in a crash.
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

    /// A file of one folio.
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

    /// What others take, pages give up: at once where these grow, and otherwise when it is asked.
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

    /// An entry for each folio of each file that was ever closed stayed, as long as the bound was kept.
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

    /// The same of each folio that was forgotten, of a file that stays open; and they stood before those that could go.
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
