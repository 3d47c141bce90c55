//! A file that was looked up: an inode, and which of the files with its number is meant.
//!
//! A handle does not keep the file from being removed, nor its inode from being reused. So its user checks, with the
//! inode locked, whether it still stands for the same file.
//!
//! Invariants:
//! - the lives of a number are told apart exactly: they are counted as long as its inode is in memory, and a handle
//!   keeps it there;
//! - the end of a life begins once. From then on every handle of that file is stale, although freeing the inode may
//!   take many transactions.

use super::{IlockShared, Inode, InodeEntry};
use crate::error::{Error, Result};
use std::sync::Arc;
use xfs_format::inode::InodeType;
use xfs_format::types::InodeNumber;

/// The files that have had an inode number since it came into memory, numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Life(u64);

impl Life {
    /// The first known life.
    pub(crate) const FIRST: Self = Self(0);

    /// The life of the number's next file.
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// As a number, for an atomic.
    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }
}

/// A file that was looked up or made. Cheap to clone.
#[derive(Clone, Debug)]
pub struct InodeHandle {
    entry: Arc<InodeEntry>,
    life: Life,
    kind: InodeType,
}

impl InodeHandle {
    /// A handle of the file that `inode`, a version of the inode in `entry`, belongs to.
    pub(crate) fn new(entry: Arc<InodeEntry>, inode: &Inode) -> Self {
        Self { entry, life: inode.life(), kind: inode.kind() }
    }

    /// Its inode number.
    pub fn ino(&self) -> InodeNumber {
        self.entry.ino()
    }

    /// The file's type, which never changes.
    pub fn kind(&self) -> InodeType {
        self.kind
    }

    /// Its inode in memory, which may belong to another file by now.
    pub fn entry(&self) -> &Arc<InodeEntry> {
        &self.entry
    }

    /// Which of the files with its number it is.
    pub(crate) fn life(&self) -> Life {
        self.life
    }

    /// The committed version. [`Error::Stale`] if the file is gone or going.
    pub fn current(&self) -> Result<Arc<Inode>> {
        let inode = self.entry.current();
        self.check(&inode)?;
        Ok(inode)
    }

    /// Locks the inode shared and returns the committed version, which does not change meanwhile. Blocks that it maps
    /// belong to it meanwhile.
    pub fn ilock_shared(&self) -> Result<(IlockShared, Arc<Inode>)> {
        let shared = self.entry.ilock_shared();
        Ok((shared, self.current()?))
    }

    /// Fails unless `inode`, the latest version that the caller sees, is the file that this handle was made for.
    pub fn check(&self, inode: &Inode) -> Result<()> {
        let same = inode.life() == self.life && self.entry.is_in_use(inode);
        if same { Ok(()) } else { Err(Error::Stale(self.ino())) }
    }
}
