//! The files of a volume that are open, by inode: all handles of one file share one data path, and with it one
//! range lock. Two that each had their own would not keep out of each other's half-written sectors.
//!
//! Invariants:
//! - a file that any handle keeps open is here; of those that none does, at most as many are here as of the others, and
//!   [`SLACK`] more, however many were opened;
//! - nothing is opened or closed under the table's lock, as both may read the volume and change it.

use crate::error::Result;
use fileio::BufferedFile;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use xfs::bmap::FileMap;

/// Closed files that are kept without a look at whether they are.
const SLACK: usize = 64;

/// The data path of one open file.
pub(crate) type Data = BufferedFile<FileMap>;

/// The files of one volume that are open.
#[derive(Debug)]
pub(crate) struct OpenFiles<T = Data> {
    table: Mutex<Table<T>>,
}

#[derive(Debug)]
struct Table<T> {
    by_inode: HashMap<u64, Weak<T>>,
    /// How many may be here before the closed ones are dropped.
    limit: usize,
}

impl<T> Default for OpenFiles<T> {
    fn default() -> Self {
        Self { table: Mutex::new(Table { by_inode: HashMap::new(), limit: 0 }) }
    }
}

impl<T> OpenFiles<T> {
    /// The file of inode `ino` if it is open, or else what `open` gives, which is called with no lock held.
    pub(crate) fn get_or_open(&self, ino: u64, open: impl FnOnce() -> Result<Arc<T>>) -> Result<Arc<T>> {
        if let Some(data) = self.with(|table| table.get(ino)) {
            return Ok(data);
        }
        let opened = open()?;
        // Another thread may have been faster: then its file is the one, and ours is closed without the lock.
        Ok(self.with(|table| table.get(ino).unwrap_or_else(|| table.insert(ino, &opened))))
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
                unknown.filter_map(|(ino, file)| Some((*ino, file.upgrade()?))).collect();
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
        self.by_inode.get(&ino)?.upgrade()
    }

    fn insert(&mut self, ino: u64, data: &Arc<T>) -> Arc<T> {
        if self.by_inode.len() >= self.limit {
            self.by_inode.retain(|_, data| data.strong_count() > 0);
            self.limit = 2 * self.by_inode.len() + SLACK;
        }
        self.by_inode.insert(ino, Arc::downgrade(data));
        Arc::clone(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A file whose closing looks at the table, as one without names does: it is freed.
    struct Closes<'a> {
        files: &'a OpenFiles<Closes<'a>>,
        closed: &'a AtomicU32,
    }

    impl Drop for Closes<'_> {
        fn drop(&mut self) {
            assert!(self.files.table.try_lock().is_ok(), "closed under the table's lock");
            self.closed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Of two threads that opened a file at once, the slower one closed its own under the lock: a transaction, with log
    /// space to wait for, and nobody could open any file meanwhile.
    #[test]
    fn whoever_comes_second_closes_its_file_without_the_lock() {
        let closed = AtomicU32::new(0);
        let files = OpenFiles::default();
        let open = || Ok(Arc::new(Closes { files: &files, closed: &closed }));
        let mut first = None;
        let second = files.get_or_open(7, || {
            first = Some(files.get_or_open(7, open));
            open()
        });
        let (first, second) = (first.expect("it was called").expect("open"), second.expect("open"));
        assert!(Arc::ptr_eq(&first, &second), "both have one file");
        assert_eq!(closed.load(Ordering::Relaxed), 1);
        drop((first, second));
        assert_eq!(closed.load(Ordering::Relaxed), 2);
    }
}
