//! Further names of an inode that exists.

use super::locking::join_all;
use super::{NameProblem, add_links, check_directory, check_name, check_project, file_type, lookup, touch};
use crate::dir::edit::{self as dir_edit, NewEntry};
use crate::error::Result;
use crate::inode::{ForkKind, InodeEntry};
use crate::trans::Trans;
use crate::trans::fork::TransFork;
use crate::trans::reservation::Need;
use crate::volume::Volume;
use std::sync::Arc;
use xfs_format::timestamp::Timestamp;

impl Volume {
    /// Gives an inode, which may have none, another name.
    pub fn link(
        self: &Arc<Self>,
        dir: &Arc<InodeEntry>,
        name: &[u8],
        entry: &Arc<InodeEntry>,
        now: Timestamp,
    ) -> Result<()> {
        check_name(name)?;
        let need = Need::new(self.geometry()).inodes(2).dir_change().unlinked().steps(2);
        let mut trans = Trans::start(self, need.reservation())?;
        join_all(&mut trans, &[dir, entry])?;
        let (dir, ino) = (dir.ino(), entry.ino());
        check_directory(trans.inode(dir))?;
        if trans.inode(ino).is_dir() {
            return Err(NameProblem::IsDirectory.into());
        }
        if trans.inode(ino).is_free() {
            return Err(NameProblem::Missing.into());
        }
        if lookup(&mut trans, dir, name)?.is_some() {
            return Err(NameProblem::Exists.into());
        }
        check_project(trans.inode(dir), trans.inode(ino))?;
        if trans.inode(ino).nlink() == 0 {
            trans.remove_unlinked(ino)?;
        }
        let new = NewEntry { name, ino, ftype: file_type(trans.inode(ino).kind()) };
        dir_edit::add(&mut TransFork::new(&mut trans, dir, ForkKind::Data), new)?;
        add_links(&mut trans, ino, 1)?;
        touch(&mut trans, dir, true, now);
        touch(&mut trans, ino, false, now);
        trans.commit()?;
        Ok(())
    }
}
