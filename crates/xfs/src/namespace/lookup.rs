//! What a name stands for: by names in memory, without a lock; and who keeps these right.

use super::file_type;
use crate::dcache::{Dentry, FileId};
use crate::dir::Lookup;
use crate::error::Result;
use crate::inode::{ForkKind, Inode, InodeEntry, InodeHandle, InodeShared};
use crate::mount::Mount;
use crate::trans::Trans;
use crate::trans_fork::TransFork;
use fileio::testing::point;
use std::sync::Arc;
use xfs_format::inode::InodeType;
use xfs_format::types::InodeNumber;

/// The root directory, where paths begin.
pub fn root_id(mount: &Arc<Mount>) -> Result<FileId> {
    if let Some(root) = mount.root.get() {
        return Ok(*root);
    }
    let root = mount.entry(mount.geometry().root)?.peek().id();
    Ok(*mount.root.get_or_init(|| root))
}

/// What `name` stands for in a directory, if that is in memory. It does so while the name is looked for; whoever goes on
/// from there asks [`Dentry::holds`] behind the next look, as what it stands for may be gone by then, and its number used
/// again.
#[inline]
pub fn dentry<'v>(mount: &'v Mount, dir: FileId, name: &[u8]) -> Option<Dentry<'v>> {
    mount.dcache.find(dir, name)
}

/// Does something with the committed version of what a name stands for. `None`: the name does not stand for it any more.
#[inline]
pub fn look_at<R>(
    mount: &Arc<Mount>,
    dentry: &Dentry<'_>,
    work: impl FnOnce(&InodeEntry, &Inode) -> R,
) -> Option<R> {
    let ino = dentry.child().ino;
    let recent = mount.recent.find(ino);
    match recent.as_ref().and_then(|recent| recent.entry()) {
        Some(entry) => look_at_entry(entry, dentry, work),
        None => look_at_entry(&*mount.noted_entry(ino).ok()?, dentry, work),
    }
}

/// The file that a name stands for, for whoever works with it later.
pub fn handle_of(mount: &Arc<Mount>, dentry: &Dentry<'_>) -> Option<InodeHandle> {
    let ino = dentry.child().ino;
    let recent = mount.recent.find(ino).and_then(|recent| recent.entry().map(Arc::clone));
    let entry = recent.map_or_else(|| mount.noted_entry(ino).ok(), Some)?;
    look_at_entry(&entry, dentry, |_, inode| InodeHandle::new(Arc::clone(&entry), inode))
}

/// What `name` stands for in the directory that a handle stands for, if that is in memory.
pub fn cached_child(mount: &Arc<Mount>, dir: &InodeHandle, name: &[u8]) -> Option<InodeHandle> {
    let id = {
        let inode = dir.entry().peek();
        dir.check(&inode).ok()?;
        inode.id()
    };
    let child = handle_of(mount, &dentry(mount, id, name)?)?;
    dir.check(&dir.entry().peek()).ok()?;
    Some(child)
}

/// Keeps in memory what a name was found to stand for in `dir`, which the caller has had locked since.
pub fn keep_name(mount: &Mount, _shared: &InodeShared, dir: &Inode, name: &[u8], child: &InodeHandle) {
    let inode = child.entry().peek();
    if child.check(&inode).is_ok() {
        keep(mount, dir.id(), name, inode.id(), child.kind());
    }
}

/// Keeps in memory what a name stands for. The caller has had the directory locked since that was found, or made.
pub(super) fn keep(mount: &Mount, dir: FileId, name: &[u8], child: FileId, kind: InodeType) {
    // Where case is ignored, a name has many forms, and whoever takes it away knows one of them.
    if !mount.geometry().ascii_ci {
        mount.dcache.keep(dir, name, child, kind);
    }
}

/// The same, of the inode that it is said to stand for.
#[inline]
fn look_at_entry<R>(
    entry: &InodeEntry,
    dentry: &Dentry<'_>,
    work: impl FnOnce(&InodeEntry, &Inode) -> R,
) -> Option<R> {
    point("a name in memory is found");
    let inode = entry.peek();
    let is_there = inode.generation() == dentry.child().generation && entry.is_in_use(&inode);
    // In this order: what the inode is now, it was while the name still stood for it.
    (is_there && dentry.holds()).then(|| work(entry, &inode))
}

/// Takes a name out of a joined directory.
pub(super) fn remove_entry(
    trans: &mut Trans<'_>,
    dir: InodeNumber,
    name: &[u8],
    lookup: Lookup,
) -> Result<()> {
    forget(trans, dir, name);
    lookup.remove(&mut TransFork::new(trans, dir, ForkKind::Data), name)?;
    Ok(())
}

/// Has a name of a joined directory stand for another joined inode.
pub(super) fn replace_entry(
    trans: &mut Trans<'_>,
    dir: InodeNumber,
    name: &[u8],
    lookup: Lookup,
    ino: InodeNumber,
) -> Result<()> {
    forget(trans, dir, name);
    let ftype = file_type(trans.inode(ino).kind());
    lookup.replace(&mut TransFork::new(trans, dir, ForkKind::Data), name, ino, ftype)?;
    Ok(())
}

/// From here on until the directory is let go of, nobody finds the name without waiting for that.
pub(super) fn forget(trans: &Trans<'_>, dir: InodeNumber, name: &[u8]) {
    // Joined, and so locked exclusively.
    let id = trans.inode(dir).id();
    trans.volume().dcache.forget(id, name);
}
