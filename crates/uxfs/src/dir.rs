//! Directories: their entries in order, with a place to go on from, and one entry by its name.
//!
//! Invariant: an iteration holds [`BATCH`] entries at most, however large the directory, and ends on any input:
//! the position must rise from batch to batch.

use crate::error::{Error, ErrorKind, Result};
use crate::node::Node;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use xfs::dir::FileType;
use xfs::volume::ForkKind;
use xfs_format::types::InodeNumber;

/// Entries that are read at once.
const BATCH: usize = 256;

/// A directory.
#[derive(Clone, Debug)]
pub struct Dir {
    node: Node,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Its name: bytes, without NUL and slash.
    pub name: Vec<u8>,
    /// The inode that it names.
    pub ino: u64,
    /// The type of what it names.
    pub file_type: FileType,
    /// Where to continue after this entry: see [`Dir::entries_from`].
    pub next: u64,
}

impl DirEntry {
    /// Whether this is `.` or `..`.
    pub fn is_dot(&self) -> bool {
        matches!(&*self.name, b"." | b"..")
    }
}

impl Dir {
    pub(crate) fn new(node: Node) -> Self {
        Self { node }
    }

    /// The directory as a node.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Its entries, without `.` and `..`, in the order of the directory.
    pub fn entries(&self) -> Entries {
        self.entries_from(0)
    }

    /// Its entries from a position on, as given in [`DirEntry::next`]; 0 is the start.
    pub fn entries_from(&self, place: u64) -> Entries {
        Entries { dir: self.clone(), place, batch: VecDeque::new(), done: false, with_inodes: false }
    }

    /// Whether many of its names have the same hash. That does not happen by accident. Finding such a name takes long,
    /// except for those that [`first_of_index`](Self::first_of_index) gives.
    pub fn has_collisions(&self) -> Result<bool> {
        let (_shared, inode) = self.node.handle.ilock_shared()?;
        match self.node.volume.engine().fork(&inode, ForkKind::Data) {
            Some(fork) => Ok(xfs::dir::has_collisions(&*fork)?),
            None => Ok(false),
        }
    }

    /// `most` entries, without `.` and `..`, in the order of its hash index, after the first `skip`: the fastest order
    /// for removing all. Empty if the directory is too small for an index.
    pub fn first_of_index(&self, skip: usize, most: usize) -> Result<Vec<DirEntry>> {
        let (_shared, inode) = self.node.handle.ilock_shared()?;
        let Some(fork) = self.node.volume.engine().fork(&inode, ForkKind::Data) else {
            return Ok(Vec::new());
        };
        let (mut skip, mut entries) = (skip, Vec::new());
        xfs::dir::walk_index(&*fork, &mut |entry| {
            if skip > 0 {
                skip -= 1;
                return ControlFlow::Continue(());
            }
            entries.push(of_engine(&entry));
            if entries.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(entries)
    }

    /// The entry `name`; `None` if there is none. Takes a few reads, however large the directory is.
    pub fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
        self.node.child(name)
    }

    /// The next entries from `place` on, with `.` and `..`.
    fn read(&self, place: u64, into: &mut VecDeque<DirEntry>) -> Result<()> {
        let (_shared, inode) = self.node.handle.ilock_shared()?;
        let Some(fork) = self.node.volume.engine().fork(&inode, ForkKind::Data) else {
            return Ok(());
        };
        xfs::dir::walk(&*fork, place, &mut |entry| {
            into.push_back(of_engine(&entry));
            if into.len() < BATCH { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(())
    }
}

fn of_engine(entry: &xfs::dir::DirEntry<'_>) -> DirEntry {
    DirEntry { name: entry.name.to_vec(), ino: entry.inode.0, file_type: entry.file_type, next: entry.next }
}

/// The entries of a directory; see [`Dir::entries`]. After an error it ends.
#[derive(Debug)]
pub struct Entries {
    dir: Dir,
    place: u64,
    batch: VecDeque<DirEntry>,
    done: bool,
    with_inodes: bool,
}

impl Entries {
    /// Reads the inodes of the entries ahead, many at once. For callers that look at each of them, by
    /// [`Volume::metadata_of`](crate::Volume::metadata_of) or [`Volume::node`](crate::Volume::node). Nothing else changes:
    /// an inode that cannot be read is an error of the call that looks at it.
    #[must_use]
    pub fn with_inodes(mut self) -> Self {
        self.with_inodes = true;
        self
    }

    /// Where to continue after the last entry that was given.
    pub fn place(&self) -> u64 {
        self.place
    }

    fn fill(&mut self) -> Result<()> {
        self.dir.read(self.place, &mut self.batch)?;
        let Some(last) = self.batch.back() else {
            self.done = true;
            return Ok(());
        };
        if last.next <= self.place {
            let ino = self.dir.node.ino();
            return Err(Error::new(
                ErrorKind::Damaged,
                format!("inode {ino}: damaged: directory: bad entry order"),
            ));
        }
        if self.with_inodes {
            let named = self.batch.iter().filter(|entry| !entry.is_dot());
            let inodes = named.map(|entry| InodeNumber(entry.ino)).collect();
            self.dir.node.volume.engine().read_inodes_ahead(inodes);
        }
        Ok(())
    }

    /// The entry's type where the directory doesn't keep it.
    fn complete(&self, mut entry: DirEntry) -> DirEntry {
        if entry.file_type == FileType::Unknown
            && let Ok(node) = self.dir.node.volume.node(entry.ino)
        {
            entry.file_type = node.file_type();
        }
        entry
    }
}

impl Iterator for Entries {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.batch.pop_front() {
                self.place = entry.next;
                if entry.is_dot() {
                    continue;
                }
                return Some(Ok(self.complete(entry)));
            }
            if self.done {
                return None;
            }
            if let Err(error) = self.fill() {
                self.done = true;
                self.batch.clear();
                return Some(Err(error));
            }
        }
    }
}
