//! The files of a volume that are open, by inode: all handles of one file share one data path, and with it one
//! range lock. Two that each had their own would not keep out of each other's half-written sectors.
//!
//! Invariants: a file that any handle keeps open is here; of those that none does, at most as many are here as of
//! the others, and [`SLACK`] more, however many were opened.

use crate::error::Result;
use fileio::DirectFile;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use xfs::bmap::FileMap;

/// Closed files that are kept without a look at whether they are.
const SLACK: usize = 64;

/// The data path of one open file.
pub(crate) type Data = DirectFile<FileMap>;

/// The files of one volume that are open.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    by_inode: HashMap<u64, Weak<Data>>,
    /// How many may be here before the closed ones are dropped.
    limit: usize,
}

impl OpenFiles {
    /// The file of inode `ino` if it is open, or else what `open` gives, which is called with no lock held.
    pub(crate) fn get_or_open(&self, ino: u64, open: impl FnOnce() -> Result<Data>) -> Result<Arc<Data>> {
        if let Some(data) = self.with(|table| table.get(ino)) {
            return Ok(data);
        }
        let opened = Arc::new(open()?);
        // Another thread may have been faster: then its file is the one.
        Ok(self.with(|table| table.get(ino).unwrap_or_else(|| table.insert(ino, opened))))
    }

    /// All that are open now.
    pub(crate) fn all(&self) -> Vec<Arc<Data>> {
        self.with(|table| table.by_inode.values().filter_map(Weak::upgrade).collect())
    }

    fn with<R>(&self, work: impl FnOnce(&mut Table) -> R) -> R {
        work(&mut self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Table {
    fn get(&self, ino: u64) -> Option<Arc<Data>> {
        self.by_inode.get(&ino)?.upgrade()
    }

    fn insert(&mut self, ino: u64, data: Arc<Data>) -> Arc<Data> {
        if self.by_inode.len() >= self.limit {
            self.by_inode.retain(|_, data| data.strong_count() > 0);
            self.limit = 2 * self.by_inode.len() + SLACK;
        }
        self.by_inode.insert(ino, Arc::downgrade(&data));
        data
    }
}
