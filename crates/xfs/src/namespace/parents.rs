//! Parent pointers: on volumes that have them, each name of an inode has an attribute that says where the name is.
//!
//! A pointer is added, moved and removed in the same transaction as its name, so that no crash comes in between and no
//! intent is needed. Nobody looks up the pointers of an inode without names: those of the last name go with the inode.
//! The root directory has neither name nor pointer.

use crate::attr::ParentRecord;
use crate::attr::edit::{self, EditError};
use crate::bmap::TransFork;
use crate::error::{Error, Result};
use crate::setattr::attr_fork;
use crate::trans::Trans;
use xfs_format::error::FormatError;
use xfs_format::types::InodeNumber;

const NAME: &str = "parent pointer";

/// The joined inode `ino` has got a name in the joined directory.
pub(super) fn add(trans: &mut Trans<'_>, ino: InodeNumber, dir: InodeNumber, name: &[u8]) -> Result<()> {
    if !trans.geometry().parent_pointers {
        return Ok(());
    }
    let parent = record(trans, dir);
    edit::add_parent(&mut attr_fork(trans, ino)?, name, parent).map_err(|error| match error {
        EditError::Exists => Error::corrupt_inode(ino, FormatError::value(NAME, "one without a name", dir.0)),
        error => error.into(),
    })
}

/// The joined inode `ino` has lost a name in the joined directory, and keeps others or gets one.
pub(super) fn remove(trans: &mut Trans<'_>, ino: InodeNumber, dir: InodeNumber, name: &[u8]) -> Result<()> {
    if !trans.geometry().parent_pointers {
        return Ok(());
    }
    let missing = || Error::corrupt_inode(ino, FormatError::value(NAME, "name without one", dir.0));
    if !trans.inode(ino).has_attrs() {
        return Err(missing());
    }
    let parent = record(trans, dir);
    edit::remove_parent(&mut TransFork::attr(trans, ino)?, name, parent).map_err(|error| match error {
        EditError::Missing => missing(),
        error => error.into(),
    })
}

/// A name of the joined inode `ino` has moved.
pub(super) fn replace(
    trans: &mut Trans<'_>,
    ino: InodeNumber,
    (from_dir, from): (InodeNumber, &[u8]),
    (to_dir, to): (InodeNumber, &[u8]),
) -> Result<()> {
    remove(trans, ino, from_dir, from)?;
    add(trans, ino, to_dir, to)
}

/// The pointer's record of a joined directory.
fn record(trans: &Trans<'_>, dir: InodeNumber) -> ParentRecord {
    ParentRecord { dir, generation: trans.inode(dir).core().generation }
}
