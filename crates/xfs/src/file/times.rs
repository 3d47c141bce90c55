//! Times of overwrites, which no transaction told the inode.

use super::join_file;
use crate::error::{Error, Result};
use crate::inode::{InodeEntry, after_overwrite};
use crate::mount::Mount;
use crate::trans::Trans;
use crate::trans::reservation::Need;
use std::sync::Arc;

/// Tells an inode when its content was last written over in place, unless it knows: the clock that says when ticks some
/// hundred times a second, and who syncs each write more often than that has nothing to tell.
pub fn log_times(mount: &Arc<Mount>, entry: &Arc<InodeEntry>) -> Result<()> {
    let inode = entry.peek();
    let Some(noted) = entry.overwritten().get(inode.life()) else { return Ok(()) };
    let known = (inode.mtime(), inode.ctime());
    // It stays noted: whoever tells the inode an earlier time meanwhile has to tell it this one afterwards.
    if after_overwrite(known, mount.still_time().unwrap_or(noted)) == known {
        return Ok(());
    }
    let mut trans = Trans::start(mount, Need::new(mount.geometry()).inodes(1).reservation())?;
    join_file(&mut trans, entry)?;
    // Not before: while this waits to begin, who closes the volume tells what nobody has taken.
    let life = trans.inode(entry.ino()).life();
    let Some(taken) = entry.overwritten().take(life) else { return Ok(()) };
    let time = mount.still_time().unwrap_or(taken.time());
    let core = trans.times_mut(entry.ino());
    (core.mtime, core.ctime) = after_overwrite((core.mtime, core.ctime), time);
    trans.commit()?;
    taken.told();
    Ok(())
}

/// Logs what only memory knows: when files that are still open were written over. One that cannot be told is left out,
/// and the first error given when all others are told.
pub fn log_all_times(mount: &Arc<Mount>) -> Result<()> {
    let mut all = Ok(());
    let is_pending = |entry: &Arc<InodeEntry>| {
        let inode = entry.peek();
        inode.nlink() > 0 && entry.overwritten().get(inode.life()).is_some()
    };
    for entry in mount.inodes_in_memory(is_pending) {
        match log_times(mount, &entry) {
            // Gone meanwhile.
            Ok(()) | Err(Error::NoSuchInode(_) | Error::WrongType { .. }) => {}
            Err(error) => all = all.and(Err(error)),
        }
    }
    all
}
