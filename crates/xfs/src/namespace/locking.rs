//! Locks several inodes in ascending order of their numbers.

use crate::error::Result;
use crate::inode::InodeEntry;
use crate::trans::Trans;
use std::sync::Arc;

/// Locks these inodes and joins them, each once.
pub(super) fn join_all(trans: &mut Trans<'_>, entries: &[&Arc<InodeEntry>]) -> Result<()> {
    let mut sorted: Vec<_> = entries.to_vec();
    sorted.sort_by_key(|entry| entry.ino());
    sorted.dedup_by_key(|entry| entry.ino());
    for entry in sorted {
        trans.join_inode(Arc::clone(entry), entry.ilock())?;
    }
    Ok(())
}
