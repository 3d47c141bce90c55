//! The end of a file.

use super::join_file;
use crate::error::Result;
use crate::inode::InodeEntry;
use crate::trans::Trans;
use crate::trans::reservation::Need;
use crate::volume::Volume;
use std::sync::Arc;
use xfs_format::log::InodeFields;
use xfs_format::timestamp::Timestamp;

impl Volume {
    /// Sets the end of a file, and nothing else: blocks stay as they are.
    pub fn set_size(self: &Arc<Self>, entry: &Arc<InodeEntry>, size: u64, now: Timestamp) -> Result<()> {
        self.set_size_if(entry, size, now, |_| Ok(()))
    }

    /// The same, unless `check` fails once the inode is locked.
    pub(super) fn set_size_if(
        self: &Arc<Self>,
        entry: &Arc<InodeEntry>,
        size: u64,
        now: Timestamp,
        check: impl FnOnce(&Trans<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut trans = Trans::start(self, Need::new(self.geometry()).inodes(1).reservation())?;
        join_file(&mut trans, entry)?;
        check(&trans)?;
        let core = trans.inode_mut(entry.ino(), InodeFields::CORE).core_mut();
        core.size = size;
        (core.mtime, core.ctime) = (now, now);
        trans.commit()?;
        Ok(())
    }
}
