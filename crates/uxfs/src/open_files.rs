//! The files of a volume that are open, by inode: all handles of one file share one data path, and with it one
//! range lock. Two that each had their own would not keep out of each other's half-written sectors.
//!
//! Invariants:
//! - a file that any handle keeps open is here; of those that none does, at most as many are here as of the others, and
//!   [`SLACK`] more, however many were opened;
//! - the last so many that were read or written through pages stay open when their handles are closed, so that who opens one
//!   anew finds its pages; but for those without a name;
//! - nothing is opened or closed under the table's lock, as both may read the volume and change it.

use crate::error::Result;
use fileio::BufferedFile;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use xfs::iomap::FileMap;

/// Closed files that are kept without a look at whether they are.
const SLACK: usize = 64;

/// Files that are kept open for their pages at most, and memory of the caches for each: as long as it is open, an inode stays
/// in its cache.
const KEPT: usize = 1024;
const BYTES_KEPT: u64 = 64 << 10;

/// The data path of one open file.
pub(crate) type Data = BufferedFile<FileMap>;

/// The files of one volume that are open.
#[derive(Debug)]
pub(crate) struct OpenFiles<T = Data> {
    table: Mutex<Table<T>>,
    /// Nobody is held off any more.
    let_in: Condvar,
}

/// As long as this lives, nobody opens a file that is not open.
#[must_use = "they are let in at once if it is not kept"]
pub(crate) struct HeldOff<'a, T>(&'a OpenFiles<T>);

impl<T> Drop for HeldOff<'_, T> {
    fn drop(&mut self) {
        self.0.with(|table| table.holds_off = false);
        self.0.let_in.notify_all();
    }
}

#[derive(Debug)]
struct Table<T> {
    by_inode: HashMap<u64, Open<T>>,
    /// How many may be here before the closed ones are dropped.
    limit: usize,
    /// The numbers of those that are kept, the oldest in front, and of some that are not any more.
    kept: VecDeque<u64>,
    /// How many are.
    kept_max: usize,
    /// Whether who opens a file waits.
    holds_off: bool,
}

/// A file that some handle has open, or had.
#[derive(Debug)]
struct Open<T> {
    data: Weak<T>,
    kept: Option<Arc<T>>,
    /// Whether it was opened again since it was kept, or looked at for that.
    was_used: bool,
}

impl<T> OpenFiles<T> {
    /// Of a volume whose caches have so many bytes.
    pub(crate) fn within(bytes: u64) -> Self {
        let kept_max = usize::try_from(bytes / BYTES_KEPT).unwrap_or(KEPT).min(KEPT);
        let (by_inode, kept) = (HashMap::new(), VecDeque::new());
        let table = Table { by_inode, limit: 0, kept, kept_max, holds_off: false };
        Self { table: Mutex::new(table), let_in: Condvar::new() }
    }

    /// The file of inode `ino` if it is open, or else what `open` gives, which is called with no lock held.
    pub(crate) fn get_or_open(&self, ino: u64, open: impl FnOnce() -> Result<Arc<T>>) -> Result<Arc<T>> {
        if let Some(data) = self.get_unless_held_off(ino) {
            return Ok(data);
        }
        let opened = open()?;
        // Another thread may have been faster: then its file is the one, and ours is closed without the lock.
        Ok(self.with(|table| table.get(ino).unwrap_or_else(|| table.insert(ino, &opened))))
    }

    /// The file if it is open. If not, comes back once who opens it may go on.
    fn get_unless_held_off(&self, ino: u64) -> Option<Arc<T>> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let open = table.get(ino);
            if open.is_some() || !table.holds_off {
                return open;
            }
            table = self.let_in.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Has who would open a file that is not open wait. Who holds bytes of a file may be among them: it must be for a short time.
    /// One at a time does so.
    pub(crate) fn hold_off_openers(&self) -> HeldOff<'_, T> {
        self.with(|table| table.holds_off = true);
        HeldOff(self)
    }

    /// Keeps a file that a handle has open, for who opens it next.
    pub(crate) fn keep(&self, ino: u64, data: &Arc<T>) {
        let gone = self.with(|table| table.keep(ino, data));
        // Perhaps the last handle of another.
        drop(gone);
    }

    /// Keeps a file no more that has lost its last name. If no handle has it open, and `is_unwanted` says that nobody else has
    /// it, nor will open it, it is closed here with all that is dirty of it.
    pub(crate) fn let_go(&self, ino: u64, is_unwanted: impl FnOnce(&Arc<T>) -> bool) {
        let gone = self.with(|table| {
            let open = table.by_inode.get_mut(&ino)?;
            let data = open.kept.take().or_else(|| open.data.upgrade())?;
            if is_unwanted(&data) {
                table.by_inode.remove(&ino);
            }
            Some(data)
        });
        drop(gone);
    }

    /// Keeps none from now on, as the volume ends.
    pub(crate) fn keep_none(&self) {
        let gone: Vec<_> =
            self.with(|table| table.by_inode.values_mut().filter_map(|open| open.kept.take()).collect());
        drop(gone);
    }

    /// All that are open now and that `is_known` does not know, by their inodes' numbers. If there are none, `then` is done
    /// before another is opened.
    pub(crate) fn others(
        &self,
        is_known: impl Fn(u64) -> bool,
        then: impl FnOnce(),
    ) -> BTreeMap<u64, Arc<T>> {
        self.with(|table| {
            let unknown = table.by_inode.iter().filter(|(ino, _)| !is_known(**ino));
            let others: BTreeMap<_, _> =
                unknown.filter_map(|(ino, open)| Some((*ino, open.data.upgrade()?))).collect();
            if others.is_empty() {
                then();
            }
            others
        })
    }

    fn with<R>(&self, work: impl FnOnce(&mut Table<T>) -> R) -> R {
        work(&mut self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T> Table<T> {
    fn get(&self, ino: u64) -> Option<Arc<T>> {
        self.by_inode.get(&ino)?.data.upgrade()
    }

    fn insert(&mut self, ino: u64, data: &Arc<T>) -> Arc<T> {
        if self.by_inode.len() >= self.limit {
            self.by_inode.retain(|_, open| open.data.strong_count() > 0);
            self.limit = 2 * self.by_inode.len() + SLACK;
        }
        self.by_inode.insert(ino, Open { data: Arc::downgrade(data), kept: None, was_used: false });
        Arc::clone(data)
    }

    /// Gives what is not kept any more instead, to be dropped without the lock.
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

    /// A file whose closing looks at the table, as one without names does: it is freed.
    struct Closes {
        files: Weak<OpenFiles<Closes>>,
        closed: Arc<AtomicU32>,
    }

    impl Drop for Closes {
        fn drop(&mut self) {
            if let Some(files) = self.files.upgrade() {
                assert!(files.table.try_lock().is_ok(), "closed under the table's lock");
            }
            self.closed.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn opens(files: &Files, closed: &Arc<AtomicU32>) -> impl Fn() -> Result<Arc<Closes>> + use<> {
        let (files, closed) = (Arc::downgrade(files), Arc::clone(closed));
        move || Ok(Arc::new(Closes { files: Weak::clone(&files), closed: Arc::clone(&closed) }))
    }

    /// Of two threads that opened a file at once, the slower one closed its own under the lock: a transaction, with log
    /// space to wait for, and nobody could open any file meanwhile.
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

    /// Threads that opened one file after the other kept a volume from being closed.
    #[test]
    fn who_opens_a_file_can_be_held_off() {
        let (files, closed) = (Files::new(OpenFiles::within(u64::MAX)), Arc::default());
        let open = opens(&files, &closed);
        let seven = files.get_or_open(7, &open).expect("open");
        let held_off = files.hold_off_openers();
        let (tells, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // What is open is there for all.
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
        // What nobody will open is not found any more, whoever has it still.
        let handle = files.get_or_open(7, &open).expect("open");
        files.let_go(7, |_| true);
        assert!(!Arc::ptr_eq(&handle, &files.get_or_open(7, &open).expect("open")));
    }
}
