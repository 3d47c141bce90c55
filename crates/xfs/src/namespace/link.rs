//! Additional names of an existing inode.

use super::locking::join_all;
use super::{
    NameProblem, add_links, check_directory, check_name, check_project, find_to_add, parents,
    start_even_if_full, touch,
};
use crate::bmap::TransFork;
use crate::dir::NewEntry;
use crate::error::Result;
use crate::ialloc;
use crate::inode::{ForkKind, InodeHandle};
use crate::mount::Mount;
use crate::trans::begin_small;
use crate::trans::reservation::{LogNeed, ReservationBuilder};
use std::sync::Arc;
use xfs_format::log::InodeFields;
use xfs_format::timestamp::Timestamp;

/// Gives an inode another name. It must have a name, or have been made without one.
pub fn link(
    mount: &Arc<Mount>,
    dir: &InodeHandle,
    name: &[u8],
    file: &InodeHandle,
    now: Timestamp,
) -> Result<()> {
    check_name(name)?;
    begin_small(|need| enter_name(mount, dir, name, file, now, need))
}

fn enter_name(
    mount: &Arc<Mount>,
    dir: &InodeHandle,
    name: &[u8],
    file: &InodeHandle,
    now: Timestamp,
    need: LogNeed,
) -> Result<()> {
    let most = ReservationBuilder::new(mount.geometry())
        .inodes(2)
        .dir_change()
        .parent_changes(1)
        .unlinked()
        .log_count(2);
    let mut trans = start_even_if_full(mount, most.build_to_begin_small().with_log_space(need))?;
    join_all(&mut trans, &[dir.entry(), file.entry()])?;
    check_directory(dir, trans.inode(dir.ino()))?;
    file.check(trans.inode(file.ino()))?;
    let (dir, ino) = (dir.ino(), file.ino());
    if trans.inode(ino).is_dir() {
        return Err(NameProblem::IsDirectory.into());
    }
    let lookup = find_to_add(&mut trans, dir, name)?;
    if lookup.found().is_some() {
        return Err(NameProblem::Exists.into());
    }
    trans.inode(dir).check_may_grow()?;
    trans.inode(ino).check_unprotected()?;
    // An inode that lost its last name never gets another: its attributes and more may be on their way out.
    if trans.inode(ino).nlink() == 0 && !trans.inode(ino).is_nameless() {
        return Err(NameProblem::Missing.into());
    }
    check_project(trans.inode(dir), trans.inode(ino))?;
    if trans.inode(ino).nlink() == 0 {
        ialloc::remove_unlinked(&mut trans, ino)?;
        trans.inode_mut(ino, InodeFields::CORE).set_nameless(false);
    }
    let new = NewEntry { name, ino, ftype: trans.inode(ino).kind().into() };
    lookup.add(&mut TransFork::new(&mut trans, dir, ForkKind::Data), new)?;
    parents::add(&mut trans, ino, dir, name)?;
    add_links(&mut trans, ino, 1)?;
    touch(&mut trans, dir, true, now);
    touch(&mut trans, ino, false, now);
    trans.commit()?;
    Ok(())
}
