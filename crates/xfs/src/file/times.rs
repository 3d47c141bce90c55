//! Times of overwrites that are not logged yet.

use super::join_file;
use crate::error::{Error, Result};
use crate::inode::{InodeEntry, after_overwrite};
use crate::mount::Mount;
use crate::trans::Trans;
use crate::trans::reservation::ReservationBuilder;
use fileio::testing::point;
use std::sync::Arc;

/// Logs the time at which a file's content was last overwritten in place, unless the inode has it. The clock for it
/// ticks some hundred times per second, so a program that syncs each write more often than that usually has nothing to
/// log.
pub fn log_times(mount: &Arc<Mount>, entry: &Arc<InodeEntry>) -> Result<()> {
    let inode = entry.snapshot();
    let Some(noted) = entry.overwritten().get(&inode) else { return Ok(()) };
    let known = (inode.mtime(), inode.ctime());
    // It stays noted: if an earlier time is logged meanwhile, this one must be logged afterwards.
    if after_overwrite(known, mount.still_time().unwrap_or(noted)) == known {
        return Ok(());
    }
    let mut trans = Trans::start(mount, ReservationBuilder::new(mount.geometry()).inodes(1).build())?;
    join_file(&mut trans, entry)?;
    // Whoever had the inode locked before may have logged it.
    if entry.overwritten().get(trans.inode(entry.ino())).is_none() {
        return Ok(());
    }
    // Every change puts it there.
    trans.times_mut(entry.ino());
    point("the time of an overwrite is being logged");
    trans.commit()?;
    Ok(())
}

/// Whether a file has a name, so that its times are worth a commit. Who gives it its first one has it locked, and may have
/// looked for noted times before the last of them.
pub(crate) fn has_name(entry: &InodeEntry) -> bool {
    let has_name = || entry.snapshot().nlink() > 0;
    if !has_name() && entry.overwritten().is_noted() {
        drop(entry.ilock_shared());
    }
    has_name()
}

/// Logs times that are only in memory: those of overwrites of open files. A failure skips the file; the first error is
/// returned at the end.
pub fn log_all_times(mount: &Arc<Mount>) -> Result<()> {
    let mut all = Ok(());
    // Of all inodes in memory, only few have one.
    let noted = mount.inodes_in_memory(|entry| entry.overwritten().is_noted());
    for entry in noted.into_iter().filter(|entry| has_name(entry)) {
        match log_times(mount, &entry) {
            // It is gone by now.
            Ok(()) | Err(Error::NoSuchInode(_) | Error::WrongType { .. }) => {}
            Err(error) => all = all.and(Err(error)),
        }
    }
    all
}
