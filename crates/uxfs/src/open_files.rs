//! The files of a volume that are open, by inode: all handles of one file share one data path, and with it one
//! range lock. With a lock each, they would see each other's half-written sectors.
//!
//! Invariants:
//! - a file with an open handle is here; of the others, at most as many are here as there are open ones, and [`SLACK`]
//!   more;
//! - the most recent files with pages stay open after their handles are closed, so that a new open finds the pages;
//!   files without a name do not;
//! - no file is opened or closed under a lock of the table, as both may read or change the volume.
//!
//! The table is cut into shards by inode, so that threads that open files of their own do not wait for each other. Who needs
//! all of them locks them in their order.

use crate::error::Result;
use fileio::BufferedFile;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use xfs::iomap::FileMap;

/// How many closed files are kept before the table looks for them.
const SLACK: usize = 64;

/// Shards of a volume that keeps as many files as there are; of one that keeps fewer, each keeps some still.
const SHARDS: usize = 16;
const KEPT_OF_SHARD: usize = 16;

/// The most files that are kept open for their pages, and the cache memory for each: while a file is open, its inode
/// stays in the cache.
const KEPT: usize = 1024;
const BYTES_KEPT: u64 = 64 << 10;

/// The data path of one open file.
pub(crate) type Data = BufferedFile<FileMap>;

/// The files of one volume that are open.
#[derive(Debug)]
pub(crate) struct OpenFiles<T = Data> {
    shards: Box<[Shard<T>]>,
}

/// Some of the files, by inode.
#[derive(Debug)]
#[repr(align(128))]
struct Shard<T> {
    table: Mutex<Table<T>>,
    /// Openers may go on.
    let_in: Condvar,
}

/// While this lives, no file is opened that is not open already.
#[must_use = "they are let in at once if it is not kept"]
pub(crate) struct HeldOff<'a, T>(&'a OpenFiles<T>);

impl<T> Drop for HeldOff<'_, T> {
    fn drop(&mut self) {
        for shard in &self.0.shards {
            shard.lock().holds_off = false;
            shard.let_in.notify_all();
        }
    }
}

#[derive(Debug)]
struct Table<T> {
    by_inode: HashMap<u64, Open<T>>,
    /// How many may be here before the closed ones are dropped, and how many of those there may be in any case.
    limit: usize,
    slack: usize,
    /// The inode numbers of the kept files, oldest first. Some may be stale.
    kept: VecDeque<u64>,
    /// How many are kept.
    kept_max: usize,
    /// Whether openers wait.
    holds_off: bool,
}

/// A file with an open handle, or one that had one.
#[derive(Debug)]
struct Open<T> {
    data: Weak<T>,
    kept: Option<Arc<T>>,
    /// Whether it was opened since it was kept, or since it was last considered.
    was_used: bool,
}

impl<T> Shard<T> {
    fn lock(&self) -> MutexGuard<'_, Table<T>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> OpenFiles<T> {
    /// The table of a volume with caches of this many bytes.
    pub(crate) fn within(bytes: u64) -> Self {
        let kept = usize::try_from(bytes / BYTES_KEPT).unwrap_or(KEPT).min(KEPT);
        let shards = (kept / KEPT_OF_SHARD).clamp(1, SHARDS);
        let (kept_max, slack) = (kept / shards, SLACK / shards);
        let shard = || {
            let (by_inode, kept) = (HashMap::new(), VecDeque::new());
            let table = Table { by_inode, limit: 0, slack, kept, kept_max, holds_off: false };
            Shard { table: Mutex::new(table), let_in: Condvar::new() }
        };
        Self { shards: std::iter::repeat_with(shard).take(shards).collect() }
    }

    /// Where an inode is. Those that are numbered in a row lie in different shards, and so do chunks of them.
    fn shard(&self, ino: u64) -> &Shard<T> {
        let mixed = ino ^ ino >> 4 ^ ino >> 8;
        &self.shards[mixed as usize % self.shards.len()]
    }

    /// The file of inode `ino` if it is open, or else the result of `open`, which is called without the
    /// lock.
    pub(crate) fn get_or_open(&self, ino: u64, open: impl FnOnce() -> Result<Arc<T>>) -> Result<Arc<T>> {
        if let Some(data) = self.get_unless_held_off(ino) {
            return Ok(data);
        }
        let opened = open()?;
        // Another thread may have been faster: then its file counts, and ours is closed without the lock.
        let mut table = self.shard(ino).lock();
        Ok(table.get(ino).unwrap_or_else(|| table.insert(ino, &opened)))
    }

    /// The file if it is open. If not, returns once an opener may go on.
    fn get_unless_held_off(&self, ino: u64) -> Option<Arc<T>> {
        let shard = self.shard(ino);
        let mut table = shard.lock();
        loop {
            let open = table.get(ino);
            if open.is_some() || !table.holds_off {
                return open;
            }
            table = shard.let_in.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Makes openers of files that are not open wait. They may hold bytes of another file, so it must be short. Only
    /// one caller at a time does this.
    pub(crate) fn hold_off_openers(&self) -> HeldOff<'_, T> {
        self.shards.iter().for_each(|shard| shard.lock().holds_off = true);
        HeldOff(self)
    }

    /// Keeps a file open for its next opener.
    pub(crate) fn keep(&self, ino: u64, data: &Arc<T>) {
        let gone = self.shard(ino).lock().keep(ino, data);
        // This may have been the last handle of another file.
        drop(gone);
    }

    /// Stops keeping a file that has lost its last name. If no handle has it open, and `is_unwanted` says that no one
    /// else has it or will open it, it is closed here, and its dirty pages are dropped.
    pub(crate) fn let_go(&self, ino: u64, is_unwanted: impl FnOnce(&Arc<T>) -> bool) {
        let mut table = self.shard(ino).lock();
        let Some(open) = table.by_inode.get_mut(&ino) else { return };
        let gone = open.kept.take().or_else(|| open.data.upgrade());
        if gone.as_ref().is_some_and(is_unwanted) {
            table.by_inode.remove(&ino);
        }
        drop(table);
        drop(gone);
    }

    /// Keeps no files from now on, as the volume is closed.
    pub(crate) fn keep_none(&self) {
        for shard in &self.shards {
            let mut table = shard.lock();
            let gone: Vec<_> = table.by_inode.values_mut().filter_map(|open| open.kept.take()).collect();
            drop(table);
            drop(gone);
        }
    }

    /// All open files that `is_known` does not know, by inode number. If there are none, `then` runs before another can
    /// be opened.
    pub(crate) fn others(
        &self,
        is_known: impl Fn(u64) -> bool,
        then: impl FnOnce(),
    ) -> BTreeMap<u64, Arc<T>> {
        let tables: Vec<_> = self.shards.iter().map(Shard::lock).collect();
        let open = tables.iter().flat_map(|table| &table.by_inode);
        let unknown = open.filter(|(ino, _)| !is_known(**ino));
        let others: BTreeMap<_, _> =
            unknown.filter_map(|(ino, open)| Some((*ino, open.data.upgrade()?))).collect();
        if others.is_empty() {
            then();
        }
        others
    }
}

impl<T> Table<T> {
    fn get(&self, ino: u64) -> Option<Arc<T>> {
        self.by_inode.get(&ino)?.data.upgrade()
    }

    fn insert(&mut self, ino: u64, data: &Arc<T>) -> Arc<T> {
        if self.by_inode.len() >= self.limit {
            self.by_inode.retain(|_, open| open.data.strong_count() > 0);
            self.limit = 2 * self.by_inode.len() + self.slack;
        }
        self.by_inode.insert(ino, Open { data: Arc::downgrade(data), kept: None, was_used: false });
        Arc::clone(data)
    }

    /// Gives the file that it replaces, to be dropped without the lock.
    fn keep(&mut self, ino: u64, data: &Arc<T>) -> Option<Arc<T>> {
        let open =
            self.by_inode.get_mut(&ino).filter(|open| Weak::ptr_eq(&open.data, &Arc::downgrade(data)))?;
        if open.kept.is_some() {
            open.was_used = true;
            return None;
        }
        open.kept = Some(Arc::clone(data));
        self.kept.push_back(ino);
        while self.kept.len() > self.kept_max {
            let oldest = self.kept.pop_front()?;
            let Some(open) = self.by_inode.get_mut(&oldest).filter(|open| open.kept.is_some()) else {
                continue;
            };
            if !std::mem::take(&mut open.was_used) {
                return open.kept.take();
            }
            self.kept.push_back(oldest);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    type Files = Arc<OpenFiles<Closes>>;

    /// A file whose close uses the table, as the close of a file without names does.
    struct Closes {
        files: Weak<OpenFiles<Closes>>,
        closed: Arc<AtomicU32>,
    }

    impl Drop for Closes {
        fn drop(&mut self) {
            if let Some(files) = self.files.upgrade() {
                let is_free = |shard: &Shard<_>| shard.table.try_lock().is_ok();
                assert!(files.shards.iter().all(is_free), "closed under a lock of the table");
            }
            self.closed.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn opens(files: &Files, closed: &Arc<AtomicU32>) -> impl Fn() -> Result<Arc<Closes>> + use<> {
        let (files, closed) = (Arc::downgrade(files), Arc::clone(closed));
        move || Ok(Arc::new(Closes { files: Weak::clone(&files), closed: Arc::clone(&closed) }))
    }

    /// Two threads opened a file at once, and the slower one closed its copy under the lock. That needs a transaction
    /// and log space, and no other file could be opened meanwhile.
    #[test]
    fn whoever_comes_second_closes_its_file_without_the_lock() {
        let (files, closed) = (Files::new(OpenFiles::within(u64::MAX)), Arc::default());
        let open = opens(&files, &closed);
        let mut first = None;
        let second = files.get_or_open(7, || {
            first = Some(files.get_or_open(7, &open));
            open()
        });
        let (first, second) = (first.expect("it was called").expect("open"), second.expect("open"));
        assert!(Arc::ptr_eq(&first, &second), "both have one file");
        assert_eq!(closed.load(Ordering::Relaxed), 1);
        drop((first, second));
        assert_eq!(closed.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn so_many_are_kept_and_those_that_are_opened_again_for_longer() {
        let (files, closed) = (Files::new(OpenFiles::within(u64::MAX)), Arc::default());
        let open = opens(&files, &closed);
        let mut use_one = |ino| files.keep(ino, &files.get_or_open(ino, &open).expect("open"));
        (0..KEPT as u64).for_each(&mut use_one);
        assert_eq!(closed.load(Ordering::Relaxed), 0);
        use_one(0);
        (0..10).for_each(|nth| use_one(KEPT as u64 + nth));
        assert_eq!(closed.load(Ordering::Relaxed), 10);
        use_one(0);
        assert_eq!(closed.load(Ordering::Relaxed), 10, "it was there still");
        files.keep_none();
        assert_eq!(closed.load(Ordering::Relaxed), KEPT as u32 + 10);
    }

    /// Threads that opened one file after another kept a volume from being closed.
    #[test]
    fn who_opens_a_file_can_be_held_off() {
        let (files, closed) = (Files::new(OpenFiles::within(u64::MAX)), Arc::default());
        let open = opens(&files, &closed);
        let seven = files.get_or_open(7, &open).expect("open");
        let held_off = files.hold_off_openers();
        let (tells, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Open files are found by everyone.
                assert!(Arc::ptr_eq(&seven, &files.get_or_open(7, opens(&files, &closed)).expect("open")));
                tells.send(()).expect("somebody waits");
                files.get_or_open(8, opens(&files, &closed)).expect("open");
                tells.send(()).expect("somebody waits");
            });
            told.recv().expect("it is open");
            let early = told.recv_timeout(std::time::Duration::from_millis(50));
            assert!(early.is_err(), "held off");
            drop(held_off);
            told.recv().expect("let in");
        });
    }

    /// Who decides about all open files has none opened meanwhile, in whichever shard.
    #[test]
    fn nothing_is_opened_while_all_are_looked_at() {
        let (files, closed) = (Files::new(OpenFiles::within(u64::MAX)), Arc::default());
        let open = opens(&files, &closed);
        let some: Vec<_> = (0..100).map(|ino| files.get_or_open(ino, &open).expect("open")).collect();
        assert_eq!(files.others(|_| false, || unreachable!("there are some")).len(), 100);
        assert!(
            files
                .others(|ino| ino % 2 == 0, || unreachable!("there are some"))
                .keys()
                .all(|ino| ino % 2 == 1)
        );
        let mut is_asked = false;
        let then = || {
            is_asked = true;
            assert!(
                files.shards.len() == SHARDS
                    && files.shards.iter().all(|shard| shard.table.try_lock().is_err())
            );
        };
        assert!(files.others(|_| true, then).is_empty());
        assert!(is_asked);
        drop(some);
    }

    #[test]
    fn small_caches_keep_few() {
        let (files, closed) = (Files::new(OpenFiles::within(4 * BYTES_KEPT)), Arc::default());
        let open = opens(&files, &closed);
        (0..10).for_each(|ino| files.keep(ino, &files.get_or_open(ino, &open).expect("open")));
        assert_eq!(closed.load(Ordering::Relaxed), 6);
        files.keep_none();
    }

    #[test]
    fn what_lost_its_name_is_kept_no_more() {
        let (files, closed) = (Files::new(OpenFiles::within(u64::MAX)), Arc::default());
        let open = opens(&files, &closed);
        let handle = files.get_or_open(7, &open).expect("open");
        files.keep(7, &handle);
        files.let_go(7, |_| false);
        assert_eq!(closed.load(Ordering::Relaxed), 0, "a handle has it");
        assert!(Arc::ptr_eq(&handle, &files.get_or_open(7, &open).expect("open")));
        drop(handle);
        assert_eq!(closed.load(Ordering::Relaxed), 1);
        // A file that no one will open again is not found any more, even if someone still has it.
        let handle = files.get_or_open(7, &open).expect("open");
        files.let_go(7, |_| true);
        assert!(!Arc::ptr_eq(&handle, &files.get_or_open(7, &open).expect("open")));
    }
}
