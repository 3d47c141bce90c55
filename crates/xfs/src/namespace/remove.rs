//! Removing names, and inodes with their last name.

use super::locking::join_all;
use super::lookup::{cached_child, forget, remove_entry};
use super::{NameProblem, add_links, check_directory, check_may_remove, check_name, find, parents, touch};
use crate::bmap::TransFork;
use crate::dir::edit as dir_edit;
use crate::error::{Error, Result};
use crate::ialloc;
use crate::inactive;
use crate::inode::{ForkKind, InodeEntry, InodeHandle};
use crate::mount::Mount;
use crate::trans::reservation::{LogNeed, Reservation, ReservationBuilder};
use crate::trans::{Trans, begin_small};
use fileio::testing::point;
use std::sync::Arc;
use xfs_format::error::FormatError;
use xfs_format::timestamp::Timestamp;
use xfs_format::types::InodeNumber;

/// What may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Anything but a directory.
    File,
    /// An empty directory.
    Directory,
}

/// Removes a name. If it was the last one of its inode, the inode is freed as soon as nobody has it open. It stays,
/// with its name, if other files wrongly share its blocks. Returns its number if it lost its last name and somebody has
/// it open.
pub fn remove(
    mount: &Arc<Mount>,
    dir: &InodeHandle,
    name: &[u8],
    what: Removal,
    now: Timestamp,
) -> Result<Option<InodeNumber>> {
    check_name(name)?;
    let child = begin_small(|need| take_name(mount, dir, name, what, now, need))?;
    point("a name is gone");
    inactive::lost_name(mount, &child)
}

/// Removes a name. Returns the inode that had it.
fn take_name(
    mount: &Arc<Mount>,
    dir: &InodeHandle,
    name: &[u8],
    what: Removal,
    now: Timestamp,
    need: LogNeed,
) -> Result<Arc<InodeEntry>> {
    loop {
        let child = child_of(mount, dir, name)?;
        let known = &mount.write_side()?.reservations.remove;
        let reservation = known.get(mount.geometry(), || reservation_to_remove(mount).or_reserve_pool());
        let mut trans = Trans::start(mount, reservation.with_log_space(need))?;
        join_all(&mut trans, &[dir.entry(), &child])?;
        check_directory(dir, trans.inode(dir.ino()))?;
        let found = find(&mut trans, dir.ino(), name)?;
        match found.found() {
            None => return Err(NameProblem::Missing.into()),
            Some((ino, _)) if ino != child.ino() => {
                // If the names in memory are wrong because the directory is damaged, do not use this one again.
                forget(&trans, dir.ino(), name);
                continue;
            }
            Some(_) => {}
        }
        check_may_remove(trans.inode(dir.ino()), trans.inode(child.ino()))?;
        check_removable(&mut trans, child.ino(), what)?;
        drop_name(&mut trans, (dir.ino(), name), child.ino(), now)?;
        remove_entry(&mut trans, dir.ino(), name, found)?;
        touch(&mut trans, dir.ino(), true, now);
        trans.commit()?;
        return Ok(child);
    }
}

pub(super) fn reservation_to_remove(mount: &Mount) -> Reservation {
    need_to_remove(mount).build_to_begin_small()
}

pub(super) fn need_to_remove(mount: &Mount) -> ReservationBuilder<'_> {
    ReservationBuilder::new(mount.geometry())
        .inodes(3)
        .dir_change()
        .parent_changes(1)
        .unlinked()
        .inode_chunk()
        .log_count(2)
}

/// The inode that a name has at the moment. The caller locks both and then checks that the name still has this inode;
/// the inode may belong to another file by then.
pub(super) fn child_of(mount: &Arc<Mount>, dir: &InodeHandle, name: &[u8]) -> Result<Arc<InodeEntry>> {
    if let Some(child) = cached_child(mount, dir, name) {
        point("a child is found");
        return Ok(Arc::clone(child.entry()));
    }
    loop {
        let (shared, inode) = dir.ilock_shared()?;
        check_directory(dir, &inode)?;
        let fork = mount.fork(&inode, ForkKind::Data).ok_or(NameProblem::Missing)?;
        let ino = crate::dir::lookup(&*fork, name)?.ok_or(NameProblem::Missing)?.0;
        drop(fork);
        drop(shared);
        point("a child is found");
        match mount.entry(ino) {
            Err(Error::NoSuchInode(_)) if mount.is_writable() => {
                // It was removed since, or the directory is damaged. Looking again ends only if something changed.
                let (_shared, now) = dir.ilock_shared()?;
                if Arc::ptr_eq(&inode, &now) {
                    return Err(names_free_inode(dir.ino(), ino));
                }
            }
            other => return other,
        }
    }
}

/// The error for a directory with a name for an inode that is free in its inode tree.
fn names_free_inode(dir: InodeNumber, ino: InodeNumber) -> Error {
    Error::corrupt_inode(dir, FormatError::value("directory", "name of an inode that is not in use", ino.0))
}

/// Fails unless the joined inode may be removed as `what`.
pub(super) fn check_removable(trans: &mut Trans<'_>, ino: InodeNumber, what: Removal) -> Result<()> {
    match (trans.inode(ino).is_dir(), what) {
        (true, Removal::File) => Err(NameProblem::IsDirectory.into()),
        (false, Removal::Directory) => Err(NameProblem::NotDirectory.into()),
        (false, Removal::File) => Ok(()),
        (true, Removal::Directory) => {
            let empty = dir_edit::is_empty(&TransFork::new(trans, ino, ForkKind::Data))?;
            if empty { Ok(()) } else { Err(NameProblem::NotEmpty.into()) }
        }
    }
}

/// Removes from a joined inode a link that it has in the joined directory `dir`. The entry is removed after this:
/// freeing the inode locks an AGI, and a directory that changes may lock AGFs.
pub(super) fn drop_name(
    trans: &mut Trans<'_>,
    (dir, name): (InodeNumber, &[u8]),
    ino: InodeNumber,
    now: Timestamp,
) -> Result<()> {
    touch(trans, ino, false, now);
    if trans.inode(ino).is_dir() {
        // Its own `.`, and its name in the parent.
        add_links(trans, ino, -2)?;
        add_links(trans, dir, -1)?;
    } else {
        add_links(trans, ino, -1)?;
    }
    if trans.inode(ino).nlink() > 0 {
        return parents::remove(trans, ino, dir, name);
    }
    // If the name goes for good, its blocks must be freeable.
    trans.mount().check_freeable(trans.inode(ino))?;
    // There is nothing to take apart first, and nobody still uses it: one transaction does everything.
    if inactive::can_be_freed_at_once(trans, ino) {
        return inactive::free(trans, ino);
    }
    ialloc::add_unlinked(trans, ino)
}
