//! Names: making, linking, moving and removing files.
//!
//! Each call is one POSIX operation, done completely or not at all. None checks permissions: whoever has the image may
//! do anything to it, and owners are set as given. Every call is given the time to write; this module has no clock.
//!
//! The course of a call: reserve → lock the inodes in ascending order of their numbers → look → change → commit →
//! unlock. What was looked up before the locks were taken is looked up again under them, and the call starts over if it
//! changed.
//!
//! Invariants:
//! - a removed directory takes no new names: its link count is 0, which is checked under its lock;
//! - no directory is moved below itself: moves of directories between directories exclude each other;
//! - an inode without names is on its group's unlinked list until it is freed, unless the transaction that removes its
//!   last name also frees it;
//! - on volumes with parent pointers, an inode with names has exactly one for each.

mod create;
mod link;
mod locking;
mod lookup;
mod parents;
mod remove;
mod rename;
#[cfg(all(test, not(shuttle)))]
mod tests;

pub use create::{NewInode, create, create_unnamed, symlink};
pub use link::link;
pub use lookup::{cached_child, dentry, handle_of, keep_name, look_at, root_id};
pub use remove::{Removal, remove};
pub use rename::{Rename, rename};

pub use crate::error::NameProblem;
pub use crate::inode::Protection;
pub use crate::setattr::{Changes, XattrChange};

use crate::bmap::TransFork;
use crate::dir::Lookup;
use crate::error::{Error, Result};
use crate::inode::{ForkKind, Inode, InodeHandle};
use crate::mount::Mount;
use crate::setattr::touch;
use crate::symlink::TargetError;
use crate::trans::Trans;
use crate::trans::reservation::Reservation;
use std::sync::Arc;
use xfs_format::dir::is_valid_name;
use xfs_format::error::FormatError;
use xfs_format::inode::InodeFlags;
use xfs_format::log::InodeFields;
use xfs_format::types::InodeNumber;

/// Maximum number of names of an inode.
const LINKS_MAX: u32 = i32::MAX as u32;
/// Maximum length of a name in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Opens a transaction for a name that is moved or added. It seldom needs a block, so it goes on without one if the
/// volume is full, as in a kernel.
fn start_even_if_full(mount: &Arc<Mount>, reservation: Reservation) -> Result<Trans<'_>> {
    match Trans::start(mount, reservation) {
        // Not at first: only who is refused has blocks freed that nobody uses.
        Err(Error::NoSpace) => Trans::start(mount, reservation.or_no_blocks()),
        other => other,
    }
}

/// Fails if `name` cannot be a name in a directory.
fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(NameProblem::TooLong.into());
    }
    if name == b"." || name == b".." || !is_valid_name(name) {
        return Err(NameProblem::Invalid.into());
    }
    Ok(())
}

/// Fails unless `inode` is the directory that the handle stands for and can take names.
fn check_directory(dir: &InodeHandle, inode: &Inode) -> Result<()> {
    dir.check(inode)?;
    if !inode.is_dir() {
        return Err(NameProblem::NotDirectory.into());
    }
    if inode.nlink() == 0 {
        return Err(NameProblem::Removed.into());
    }
    Ok(())
}

/// A directory that passes on its project accepts no inode of another project, except special files without a project:
/// tools that set up projects skip those.
fn check_project(dir: &Inode, inode: &Inode) -> Result<()> {
    let (dir, inode) = (dir.core(), inode.core());
    let passed_over = inode.kind.is_special() && inode.projid == 0;
    if dir.flags.contains(InodeFlags::PROJINHERIT) && dir.projid != inode.projid && !passed_over {
        return Err(NameProblem::OtherProject.into());
    }
    Ok(())
}

/// Looks up a name in a joined directory, as the transaction sees it, in order to change it.
fn find(trans: &mut Trans<'_>, dir: InodeNumber, name: &[u8]) -> Result<Lookup> {
    crate::dir::find(&mut TransFork::new(trans, dir, ForkKind::Data), name)
}

/// The same, in order to add it.
fn find_to_add(trans: &mut Trans<'_>, dir: InodeNumber, name: &[u8]) -> Result<Lookup> {
    crate::dir::find_to_add(&mut TransFork::new(trans, dir, ForkKind::Data), name)
}

/// Fails unless the name of `inode` may be removed from `dir`.
fn check_may_remove(dir: &Inode, inode: &Inode) -> Result<()> {
    dir.check_unprotected()?;
    inode.check_unprotected()
}

/// Changes a link count.
fn add_links(trans: &mut Trans<'_>, ino: InodeNumber, by: i32) -> Result<()> {
    let links = trans.inode(ino).nlink();
    let Some(new) = links.checked_add_signed(by) else {
        // It has more names than its link count.
        return Err(Error::corrupt_inode(ino, FormatError::value("inode", "link count", links.into())));
    };
    if new > LINKS_MAX {
        return Err(NameProblem::TooManyLinks.into());
    }
    trans.inode_mut(ino, InodeFields::CORE).core_mut().nlink = new;
    Ok(())
}

impl From<TargetError> for Error {
    fn from(error: TargetError) -> Self {
        match error {
            TargetError::Engine(error) => error,
            TargetError::Length(_) => NameProblem::TooLong.into(),
            _ => NameProblem::Invalid.into(),
        }
    }
}
