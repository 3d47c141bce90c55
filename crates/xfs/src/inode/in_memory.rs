//! What only memory knows of a file, beside the committed version of its inode.
//!
//! Invariant: it is read before the version that it is added to. What a commit puts into a version stays here until that
//! version is published, so that nothing is missed. What is in both for that moment does no harm to the size, which is
//! never that of a write-back that is half done ([`InodeEntry::with_version`](super::InodeEntry::with_version)); a version
//! says which times it has; blocks that are being allocated are counted twice.

use super::Inode;
use super::lazy_time::{NotedTime, after_overwrite};
use xfs_format::timestamp::Timestamp;

/// What was only in memory at some moment; see [`InodeEntry::with_version`](super::InodeEntry::with_version).
#[derive(Clone, Copy, Debug)]
pub struct InMemory {
    /// The size in bytes that the file has at least.
    pub size: u64,
    /// Blocks that the inode does not count: they are promised, or being allocated.
    pub blocks: u64,
    pub(super) overwritten: NotedTime,
}

impl InMemory {
    /// Times of modification and change with this version of the inode, on a volume whose clock may stand still.
    #[inline]
    pub fn times(&self, inode: &Inode, still: Option<Timestamp>) -> (Timestamp, Timestamp) {
        let known = (inode.mtime(), inode.ctime());
        match self.overwritten.since(inode) {
            Some(time) => after_overwrite(known, still.unwrap_or(time)),
            None => known,
        }
    }
}
