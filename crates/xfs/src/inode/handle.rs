//! A file, as somebody knows it who looked it up: an inode, and which of the files that had its number is meant.
//!
//! A handle keeps nobody from removing the file, and does not keep what is freed from being used again: whoever goes
//! by one asks, with the inode locked, whether it still stands for what it stood for.
//!
//! Invariants:
//! - the lives of a number are told apart exactly: they are counted as long as its inode is in memory, and a handle
//!   keeps it there;
//! - the end of a life begins once. From then on every handle of that file is stale, though the inode is freed in many
//!   transactions.

use super::{Inode, InodeEntry, InodeShared};
use crate::error::{Error, Result};
use std::sync::Arc;
use xfs_format::inode::InodeType;
use xfs_format::types::InodeNumber;

/// Which of the files that had an inode number since it came into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Life(u64);

impl Life {
    /// The first that is known.
    pub(crate) const FIRST: Self = Self(0);

    /// That of the file that has the number next.
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
    /// A handle of the file that `inode` is, a version of the inode in `entry`.
    pub(crate) fn new(entry: Arc<InodeEntry>, inode: &Inode) -> Self {
        Self { entry, life: inode.life(), kind: inode.kind() }
    }

    /// Its inode number.
    pub fn ino(&self) -> InodeNumber {
        self.entry.ino()
    }

    /// Its type, which no file changes.
    pub fn kind(&self) -> InodeType {
        self.kind
    }

    /// Its place in memory, which may stand for another file since.
    pub fn entry(&self) -> &Arc<InodeEntry> {
        &self.entry
    }

    /// Which of the files that had its number it is.
    pub(crate) fn life(&self) -> Life {
        self.life
    }

    /// The committed version. [`Error::Stale`] once the file is gone, or going.
    pub fn current(&self) -> Result<Arc<Inode>> {
        let inode = self.entry.current();
        self.check(&inode)?;
        Ok(inode)
    }

    /// Keeps changes off, and gives the committed version, which is there to stay as long as they are. Blocks that it
    /// maps are its own meanwhile.
    pub fn share(&self) -> Result<(InodeShared, Arc<Inode>)> {
        let shared = self.entry.share();
        Ok((shared, self.current()?))
    }

    /// Fails unless `inode`, the latest version for who asks, is the file that this handle was made for.
    pub(crate) fn check(&self, inode: &Inode) -> Result<()> {
        let same = inode.life() == self.life && self.entry.is_in_use(inode);
        if same { Ok(()) } else { Err(Error::Stale(self.ino())) }
    }
}
