//! Looking up names: from the names in memory, without a lock; and keeping these right.

use crate::bmap::TransFork;
use crate::dcache::{Dentry, FileId};
use crate::dir::Lookup;
use crate::error::Result;
use crate::inode::{ForkKind, IlockShared, InMemory, Inode, InodeEntry, InodeHandle};
use crate::mount::Mount;
use crate::published::Snapshot;
use crate::trans::Trans;
use fileio::testing::point;
use std::sync::Arc;
use xfs_format::inode::InodeType;
use xfs_format::types::InodeNumber;

/// The root directory, where paths begin.
pub fn root_id(mount: &Arc<Mount>) -> Result<FileId> {
    if let Some(root) = mount.root.get() {
        return Ok(*root);
    }
    let root = mount.entry(mount.geometry().root)?.snapshot().id();
    Ok(*mount.root.get_or_init(|| root))
}

/// The file that `name` has in a directory, if that is in memory. It is right during the lookup. Whoever goes on from
/// it must call [`Dentry::holds`] after the next look, because the file may be gone by then and its number reused.
#[inline]
pub fn dentry<'v>(mount: &'v Mount, dir: FileId, name: &[u8]) -> Option<Dentry<'v>> {
    mount.dcache.find(dir, name)
}

/// Calls `work` with what only memory knew of a name's inode, and its committed version. `None` if the name no longer
/// stands for it.
#[inline]
pub fn look_at<R>(
    mount: &Arc<Mount>,
    dentry: &Dentry<'_>,
    work: impl FnOnce(&InMemory, &Inode) -> R,
) -> Option<R> {
    let work = |in_memory: InMemory, inode: &Inode| work(&in_memory, inode);
    let ino = dentry.child().ino;
    let recent = mount.recent.find(ino);
    match recent.as_ref().and_then(|recent| recent.entry()) {
        Some(entry) => look_at_entry(entry, dentry, InodeEntry::with_version, work),
        None => look_at_entry(&*mount.noted_entry(ino).ok()?, dentry, InodeEntry::with_version, work),
    }
}

/// A handle of the file that a name stands for.
pub fn handle_of(mount: &Arc<Mount>, dentry: &Dentry<'_>) -> Option<InodeHandle> {
    let ino = dentry.child().ino;
    let recent = mount.recent.find(ino).and_then(|recent| recent.entry().map(Arc::clone));
    let entry = recent.map_or_else(|| mount.noted_entry(ino).ok(), Some)?;
    let look = |entry: &InodeEntry| ((), entry.snapshot());
    look_at_entry(&entry, dentry, look, |(), inode| InodeHandle::new(Arc::clone(&entry), inode))
}

/// The file that `name` has in a handle's directory, if that is in memory.
pub fn cached_child(mount: &Arc<Mount>, dir: &InodeHandle, name: &[u8]) -> Option<InodeHandle> {
    let id = {
        let inode = dir.entry().snapshot();
        dir.check(&inode).ok()?;
        inode.id()
    };
    let child = handle_of(mount, &dentry(mount, id, name)?)?;
    dir.check(&dir.entry().snapshot()).ok()?;
    Some(child)
}

/// Keeps in memory which file a name in `dir` was found to have. The caller has had the directory locked since.
pub fn keep_name(mount: &Mount, _shared: &IlockShared, dir: &Inode, name: &[u8], child: &InodeHandle) {
    let inode = child.entry().snapshot();
    if child.check(&inode).is_ok() {
        keep(mount, dir.id(), name, inode.id(), child.kind());
    }
}

/// Keeps in memory which file a name has. The caller has had the directory locked since the name was found or made.
pub(super) fn keep(mount: &Mount, dir: FileId, name: &[u8], child: FileId, kind: InodeType) {
    // If case is ignored, a name has many forms, and its removal knows only one of them.
    if !mount.geometry().ascii_ci {
        mount.dcache.keep(dir, name, child, kind);
    }
}

/// The same for the name's inode. `look` reads its version, and what goes with it.
#[inline]
fn look_at_entry<B, R>(
    entry: &InodeEntry,
    dentry: &Dentry<'_>,
    look: impl FnOnce(&InodeEntry) -> (B, Snapshot<Inode>),
    work: impl FnOnce(B, &Inode) -> R,
) -> Option<R> {
    point("a name in memory is found");
    let (beside, inode) = look(entry);
    let is_there = inode.generation() == dentry.child().generation && entry.is_in_use(&inode);
    // This order matters: the version that was read was current while the name still held.
    (is_there && dentry.holds()).then(|| work(beside, &inode))
}

/// Removes a name from a joined directory.
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

/// Makes a name in a joined directory stand for another joined inode.
pub(super) fn replace_entry(
    trans: &mut Trans<'_>,
    dir: InodeNumber,
    name: &[u8],
    lookup: Lookup,
    ino: InodeNumber,
) -> Result<()> {
    forget(trans, dir, name);
    let ftype = trans.inode(ino).kind().into();
    lookup.replace(&mut TransFork::new(trans, dir, ForkKind::Data), name, ino, ftype)?;
    Ok(())
}

/// Forgets a name. From here until the directory is unlocked, nobody finds it without waiting for the directory.
pub(super) fn forget(trans: &Trans<'_>, dir: InodeNumber, name: &[u8]) {
    // It is joined, so it is locked exclusively.
    let id = trans.inode(dir).id();
    trans.mount().dcache.forget(id, name);
}
