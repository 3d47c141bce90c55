//! Names: making, linking, moving and removing files.
//!
//! Each call is one operation of POSIX, whole or not at all. None checks permissions: whoever has the image may do
//! anything to it, and owners are as given. Every call takes the time that it is to write: nothing here knows a clock.
//!
//! The way of a call: reserve → lock the inodes in ascending order of their numbers → look → change → commit → unlock.
//! What is looked up before the locks are held is looked up again behind them, and the call starts over if it changed.
//!
//! Invariants:
//! - a directory that has been removed takes no new names: its link count is 0, and that is asked under its lock;
//! - no directory is moved below itself: moves of directories between directories exclude each other;
//! - an inode without names is on its group's list of unlinked ones until it is freed, unless it is freed in the very
//!   transaction that takes its last name;
//! - on volumes with parent pointers, an inode with names has one for each, and no others.

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
pub use rename::{RenameFlags, rename};

pub use crate::error::NameProblem;
pub use crate::inode::Protection;
pub use crate::setattr::{Change, XattrChange};

use crate::dir::{FileType, Lookup};
use crate::error::{Error, Result};
use crate::inode::{ForkKind, Inode, InodeHandle};
use crate::setattr::touch;
use crate::symlink::TargetError;
use crate::trans::Trans;
use crate::trans_fork::TransFork;
use xfs_format::dir::is_valid_name;
use xfs_format::error::FormatError;
use xfs_format::inode::{InodeFlags, InodeType};
use xfs_format::log::InodeFields;
use xfs_format::types::InodeNumber;

/// The most names that an inode can have.
const LINKS_MAX: u32 = i32::MAX as u32;
/// The longest name, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Fails for what cannot be a name in a directory.
fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(NameProblem::TooLong.into());
    }
    if name == b"." || name == b".." || !is_valid_name(name) {
        return Err(NameProblem::Invalid.into());
    }
    Ok(())
}

/// Fails unless `inode` is the directory that the handle stands for, and can take names.
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

/// A directory that hands its project down takes no inode of another one in. Special files without a project may
/// come: tools that set up projects pass them over.
fn check_project(dir: &Inode, inode: &Inode) -> Result<()> {
    let (dir, inode) = (dir.core(), inode.core());
    let passed_over = inode.kind.is_special() && inode.projid == 0;
    if dir.flags.contains(InodeFlags::PROJINHERIT) && dir.projid != inode.projid && !passed_over {
        return Err(NameProblem::OtherProject.into());
    }
    Ok(())
}

/// Looks for a name of a joined directory, as the transaction sees it, to change it.
fn look(trans: &mut Trans<'_>, dir: InodeNumber, name: &[u8]) -> Result<Lookup> {
    crate::dir::look(&mut TransFork::new(trans, dir, ForkKind::Data), name)
}

/// The same, to add it.
fn look_to_add(trans: &mut Trans<'_>, dir: InodeNumber, name: &[u8]) -> Result<Lookup> {
    crate::dir::look_to_add(&mut TransFork::new(trans, dir, ForkKind::Data), name)
}

/// What a directory entry says of an inode's type.
fn file_type(kind: InodeType) -> FileType {
    match kind {
        InodeType::Fifo => FileType::Fifo,
        InodeType::CharDevice => FileType::CharDevice,
        InodeType::Directory => FileType::Directory,
        InodeType::BlockDevice => FileType::BlockDevice,
        InodeType::Regular => FileType::Regular,
        InodeType::Symlink => FileType::Symlink,
        InodeType::Socket => FileType::Socket,
    }
}

/// Fails unless the name of `inode` may go from `dir`.
fn check_may_remove(dir: &Inode, inode: &Inode) -> Result<()> {
    dir.check_unprotected()?;
    inode.check_unprotected()
}

/// Changes a link count.
fn add_links(trans: &mut Trans<'_>, ino: InodeNumber, by: i32) -> Result<()> {
    let links = trans.inode(ino).nlink();
    let Some(new) = links.checked_add_signed(by) else {
        // It has more names than it counts.
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
