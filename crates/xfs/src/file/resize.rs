//! The size of a file.
//!
//! Whoever increases it must first ensure that no old data behind the end become visible
//! ([`free_data_behind_end`](super::free_data_behind_end)).

use super::join_file;
use crate::error::Result;
use crate::inode::InodeEntry;
use crate::mount::Mount;
use crate::trans::Trans;
use crate::trans::reservation::ReservationBuilder;
use std::sync::Arc;
use xfs_format::inode::{InodeCore, InodeFlags};
use xfs_format::log::InodeFields;
use xfs_format::timestamp::Timestamp;

/// Sets a file's size and nothing else: its blocks stay.
pub fn set_size(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, size: u64, now: Timestamp) -> Result<()> {
    let mut trans = Trans::start(mount, ReservationBuilder::new(mount.geometry()).inodes(1).build())?;
    join_file(&mut trans, entry)?;
    let core = trans.inode_mut(entry.ino(), InodeFields::CORE).core_mut();
    core.size = size;
    mount.touch(core, true, now);
    trans.commit()?;
    Ok(())
}

/// Notes that space was preallocated explicitly for a file, and makes it at least `size` long.
pub fn space_set_aside(
    mount: &Arc<Mount>,
    entry: &Arc<InodeEntry>,
    size: Option<u64>,
    now: Timestamp,
) -> Result<()> {
    let grows = |core: &InodeCore| size.filter(|&size| size > core.size);
    let is_done = |core: &InodeCore| core.flags.contains(InodeFlags::PREALLOC) && grows(core).is_none();
    if is_done(entry.snapshot().core()) {
        return Ok(());
    }
    let mut trans = Trans::start(mount, ReservationBuilder::new(mount.geometry()).inodes(1).build())?;
    join_file(&mut trans, entry)?;
    let core = trans.inode_mut(entry.ino(), InodeFields::CORE).core_mut();
    core.flags |= InodeFlags::PREALLOC;
    if let Some(size) = grows(core) {
        core.size = size;
        mount.touch(core, true, now);
    }
    trans.commit()?;
    Ok(())
}
