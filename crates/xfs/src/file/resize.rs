//! The end of a file.
//!
//! Who moves it forward has seen to it that nothing shows that lay behind it
//! ([`free_data_behind_end`](super::free_data_behind_end)).

use super::join_file;
use crate::error::Result;
use crate::inode::InodeEntry;
use crate::mount::Mount;
use crate::trans::Trans;
use crate::trans::reservation::Need;
use std::sync::Arc;
use xfs_format::inode::{InodeCore, InodeFlags};
use xfs_format::log::InodeFields;
use xfs_format::timestamp::Timestamp;

/// Sets the end of a file, and nothing else: blocks stay as they are.
pub fn set_size(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, size: u64, now: Timestamp) -> Result<()> {
    let mut trans = Trans::start(mount, Need::new(mount.geometry()).inodes(1).reservation())?;
    join_file(&mut trans, entry)?;
    let core = trans.inode_mut(entry.ino(), InodeFields::CORE).core_mut();
    core.size = size;
    (core.mtime, core.ctime) = (now, now);
    trans.commit()?;
    Ok(())
}

/// Remembers that space was set aside for a file on purpose, and lets it end at `size` at the earliest.
pub fn space_set_aside(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    size: Option<u64>,
    now: Timestamp,
) -> Result<()> {
    let grows = |core: &InodeCore| size.filter(|&size| size > core.size);
    let is_done = |core: &InodeCore| core.flags.contains(InodeFlags::PREALLOC) && grows(core).is_none();
    if is_done(entry.peek().core()) {
        return Ok(());
    }
    let mut trans = Trans::start(mount, Need::new(mount.geometry()).inodes(1).reservation())?;
    join_file(&mut trans, entry)?;
    let core = trans.inode_mut(entry.ino(), InodeFields::CORE).core_mut();
    core.flags |= InodeFlags::PREALLOC;
    if let Some(size) = grows(core) {
        core.size = size;
        (core.mtime, core.ctime) = (now, now);
    }
    trans.commit()?;
    Ok(())
}
