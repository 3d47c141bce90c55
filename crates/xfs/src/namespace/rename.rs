//! Renaming.

use super::locking::join_all;
use super::lookup::{forget, remove_entry, replace_entry};
use super::remove::{self, check_removable, drop_name};
use super::{
    NameProblem, Removal, add_links, check_directory, check_may_remove, check_name, check_project, find,
    find_to_add, parents, start_even_if_full, touch,
};
use crate::bmap::TransFork;
use crate::dir::{self, Lookup, NewEntry};
use crate::error::Result;
use crate::inactive;
use crate::inode::{ForkKind, InodeEntry, InodeHandle};
use crate::mount::Mount;
use crate::trans::reservation::LogNeed;
use crate::trans::{Trans, begin_small};
use fileio::testing::point;
use parking_lot::MutexGuard;
use std::sync::Arc;
use xfs_format::timestamp::Timestamp;
use xfs_format::types::InodeNumber;

/// How a rename treats the new name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rename {
    /// An existing file is replaced.
    #[default]
    Replace,
    /// It must not exist.
    NoReplace,
    /// The two files swap names.
    Exchange,
}

/// One end of a rename.
struct RenameEnd<'a> {
    dir: &'a InodeHandle,
    name: &'a [u8],
}

/// Moves a name in one step. Returns the number of an inode that lost its last name by that and that somebody has open.
pub fn rename(
    mount: &Arc<Mount>,
    (from_dir, from): (&InodeHandle, &[u8]),
    (to_dir, to): (&InodeHandle, &[u8]),
    how: Rename,
    now: Timestamp,
) -> Result<Option<InodeNumber>> {
    check_name(from)?;
    check_name(to)?;
    let (source, target) = (RenameEnd { dir: from_dir, name: from }, RenameEnd { dir: to_dir, name: to });
    let replaced = begin_small(|need| {
        loop {
            if let Some(replaced) = try_rename(mount, &source, &target, how, now, need)? {
                return Ok(replaced);
            }
        }
    })?;
    replaced.map_or(Ok(None), |entry| inactive::lost_name(mount, &entry))
}

/// One attempt. `None` if the names changed before their inodes were locked; otherwise the inode that lost its last
/// name.
fn try_rename(
    mount: &Arc<Mount>,
    source: &RenameEnd<'_>,
    target: &RenameEnd<'_>,
    how: Rename,
    now: Timestamp,
    need: LogNeed,
) -> Result<Option<Option<Arc<InodeEntry>>>> {
    let moved = remove::child_of(mount, source.dir, source.name)?;
    let there = match remove::child_of(mount, target.dir, target.name) {
        Ok(entry) => Some(entry),
        Err(crate::Error::Name(NameProblem::Missing)) => None,
        Err(error) => return Err(error),
    };
    let across = source.dir.ino() != target.dir.ino();
    // Either may be a file of another type by now: this is checked again under their locks.
    let is_dir = |entry: &Arc<InodeEntry>| entry.snapshot().is_dir();
    let dirs_seen = (is_dir(&moved), there.as_ref().is_some_and(is_dir));
    let _moves = exclude_moves(mount, across, dirs_seen)?;
    check_no_loop(mount, (source, dirs_seen.0, &moved), (target, dirs_seen.1, there.as_ref()), how)?;

    point("a rename has looked");
    let most = remove::need_to_remove(mount).inodes(2).dir_change().parent_changes(1).log_count(2);
    let mut trans = start_even_if_full(mount, most.build_to_begin_small().with_log_space(need))?;
    let mut all = vec![source.dir.entry(), target.dir.entry(), &moved];
    all.extend(&there);
    join_all(&mut trans, &all)?;
    let dirs = (source.dir.ino(), target.dir.ino());
    check_directory(source.dir, trans.inode(dirs.0))?;
    check_directory(target.dir, trans.inode(dirs.1))?;
    let is = |entry: Option<&Arc<InodeEntry>>| entry.map(|entry| entry.ino());
    let source_at = find(&mut trans, dirs.0, source.name)?;
    match number(&source_at) {
        None => return Err(NameProblem::Missing.into()),
        found if found != Some(moved.ino()) => {
            // The names in memory may be wrong because the directory is damaged. Do not use this one again.
            forget(&trans, dirs.0, source.name);
            return Ok(None);
        }
        _ => {}
    }
    let target_at = find_to_add(&mut trans, dirs.1, target.name)?;
    if number(&target_at) != is(there.as_ref()) {
        forget(&trans, dirs.1, target.name);
        return Ok(None);
    }
    let ino = moved.ino();
    let is_dir = |entry: &Arc<InodeEntry>| trans.inode(entry.ino()).is_dir();
    if dirs_seen != (is_dir(&moved), there.as_ref().is_some_and(is_dir)) {
        return Ok(None);
    }
    match (&there, how) {
        (Some(_), Rename::NoReplace) => return Err(NameProblem::Exists.into()),
        (None, Rename::Exchange) => return Err(NameProblem::Missing.into()),
        // Two names of one inode: POSIX demands that nothing happens.
        (Some(other), _) if other.ino() == ino => return Ok(Some(None)),
        // For an exchange, the kernel checks only the first.
        _ => check_project(trans.inode(dirs.1), trans.inode(ino))?,
    }
    check_may_remove(trans.inode(dirs.0), trans.inode(ino))?;
    match &there {
        Some(other) => check_may_remove(trans.inode(dirs.1), trans.inode(other.ino()))?,
        None => trans.inode(dirs.1).check_may_grow()?,
    }
    let outcome = match (&there, how) {
        (Some(other), Rename::Exchange) => {
            exchange(&mut trans, (dirs.0, source.name, ino), (dirs.1, target.name, other.ino()), now)?;
            None
        }
        (Some(other), _) => {
            let what = if trans.inode(ino).is_dir() { Removal::Directory } else { Removal::File };
            check_removable(&mut trans, other.ino(), what)?;
            drop_name(&mut trans, (dirs.1, target.name), other.ino(), now)?;
            replace_entry(&mut trans, dirs.1, target.name, target_at, ino)?;
            Some(Arc::clone(other))
        }
        (None, _) => {
            let entry = NewEntry { name: target.name, ino, ftype: trans.inode(ino).kind().into() };
            target_at.add(&mut TransFork::new(&mut trans, dirs.1, ForkKind::Data), entry)?;
            None
        }
    };
    if how != Rename::Exchange {
        // Within one directory, changing the other name may have moved this one.
        let source_at = if across { source_at } else { find(&mut trans, dirs.0, source.name)? };
        remove_entry(&mut trans, dirs.0, source.name, source_at)?;
        parents::replace(&mut trans, ino, (dirs.0, source.name), (dirs.1, target.name))?;
        if across && trans.inode(ino).is_dir() {
            change_parent(&mut trans, ino, dirs.0, dirs.1)?;
        }
        touch(&mut trans, ino, false, now);
    }
    touch(&mut trans, dirs.0, true, now);
    touch(&mut trans, dirs.1, true, now);
    trans.commit()?;
    Ok(Some(outcome))
}

/// Moves of directories between directories exclude each other. So nobody makes a loop meanwhile, or changes the
/// ancestors of a directory while they are checked.
fn exclude_moves(
    mount: &Mount,
    across: bool,
    (moved_is_dir, there_is_dir): (bool, bool),
) -> Result<Option<MutexGuard<'_, ()>>> {
    let needed = across && (moved_is_dir || there_is_dir);
    Ok(if needed { Some(mount.write_side()?.moves.lock()) } else { None })
}

/// A directory must not become its own ancestor.
fn check_no_loop(
    mount: &Arc<Mount>,
    (source, moved_is_dir, moved): (&RenameEnd<'_>, bool, &InodeEntry),
    (target, there_is_dir, there): (&RenameEnd<'_>, bool, Option<&Arc<InodeEntry>>),
    how: Rename,
) -> Result<()> {
    if source.dir.ino() == target.dir.ino() {
        return Ok(());
    }
    if moved_is_dir && is_below(mount, target.dir, moved.ino())? {
        return Err(NameProblem::IntoItself.into());
    }
    if let Some(there) = there
        && there_is_dir
        && is_below(mount, source.dir, there.ino())?
    {
        // In an exchange it would end up below itself. To be replaced it would have to be empty, and it is not.
        let problem = if how == Rename::Exchange { NameProblem::IntoItself } else { NameProblem::NotEmpty };
        return Err(problem.into());
    }
    Ok(())
}

/// Whether `dir` is `ancestor` or lies below it.
fn is_below(mount: &Arc<Mount>, dir: &InodeHandle, ancestor: InodeNumber) -> Result<bool> {
    let root = mount.geometry().root;
    let mut at = dir.clone();
    // A damaged volume may have a loop of parents: no path is longer than the number of inodes.
    for _ in 0..=mount.write_side()?.counters.inodes() {
        if at.ino() == ancestor {
            return Ok(true);
        }
        if at.ino() == root {
            return Ok(false);
        }
        let parent = remove::child_of(mount, &at, b"..").map_err(|error| {
            // The ancestors of an existing directory do not vanish. If `dir` itself has vanished, report that.
            dir.current().err().unwrap_or(error)
        })?;
        point("a parent is found");
        at = InodeHandle::new(Arc::clone(&parent), &parent.snapshot());
    }
    Err(NameProblem::IntoItself.into())
}

/// Updates a directory that has got another parent.
fn change_parent(trans: &mut Trans<'_>, ino: InodeNumber, from: InodeNumber, to: InodeNumber) -> Result<()> {
    let ftype = crate::dir::FileType::Directory;
    dir::replace(&mut TransFork::new(trans, ino, ForkKind::Data), b"..", to, ftype)?;
    add_links(trans, from, -1)?;
    add_links(trans, to, 1)
}

/// The inode number that a lookup found.
fn number(lookup: &Lookup) -> Option<InodeNumber> {
    lookup.found().map(|(ino, _)| ino)
}

fn exchange(
    trans: &mut Trans<'_>,
    (a_dir, a_name, a): (InodeNumber, &[u8], InodeNumber),
    (b_dir, b_name, b): (InodeNumber, &[u8], InodeNumber),
    now: Timestamp,
) -> Result<()> {
    for (dir, name, ino) in [(a_dir, a_name, b), (b_dir, b_name, a)] {
        let lookup = find(trans, dir, name)?;
        replace_entry(trans, dir, name, lookup, ino)?;
    }
    let (a_at, b_at) = ((a_dir, a_name), (b_dir, b_name));
    for (ino, from_at, to_at) in [(a, a_at, b_at), (b, b_at, a_at)] {
        let (from, to) = (from_at.0, to_at.0);
        parents::replace(trans, ino, from_at, to_at)?;
        if a_dir != b_dir && trans.inode(ino).is_dir() {
            change_parent(trans, ino, from, to)?;
        }
        touch(trans, ino, false, now);
    }
    Ok(())
}
