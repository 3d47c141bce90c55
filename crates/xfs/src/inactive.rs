//! What happens to an inode that has no name any more, once nobody uses it.
//!
//! Invariant: an inode is inactivated once, by one thread, and only after its end has begun under its lock
//! (`InodeEntry::begin_inactivation`): nobody opens it, changes it or gives it a name between the transactions that
//! free it; but for who closes the volume, and has all others wait: that one does the rest of it, which who was at it
//! notices by the inode's life. What fails here leaves it on its group's list, as a crash would, and in memory, so that who
//! lacks space, makes all durable or closes the volume tries again: a log that says that it is clean has nobody look at
//! these lists.

use crate::error::{Error, Result};
use crate::file::{self, join_ending};
use crate::ialloc;
use crate::inode::{ForkKind, InodeEntry, Life};
use crate::mount::Mount;
use crate::trans::Trans;
use crate::trans::reservation::Need;
use std::sync::Arc;
use xfs_format::inode::{ForkFormat, InodeFlags, InodeFlags2};
use xfs_format::log::InodeFields;
use xfs_format::types::InodeNumber;

/// Has blocks be free again that nobody uses: what is staged for copies that nobody makes, and what a file held that could not
/// be freed in its time. Whether there were any.
pub(crate) fn gives_room(mount: &Arc<Mount>) -> Result<bool> {
    Ok(file::give_back_unused_copies(mount)? > 0 || finish_ends(mount)?)
}

/// Frees an inode that has no names, unless somebody has it open: then the last one to close it does this.
pub(crate) fn release_if_unused(mount: &Arc<Mount>, entry: &Arc<InodeEntry>) -> Result<()> {
    let inode = entry.peek();
    // What is decided here is only that there is nothing to do: whoever takes its last name asks afterwards.
    let gone = inode.is_free() || inode.nlink() > 0;
    drop(inode);
    let life = if gone { None } else { entry.begin_inactivation() };
    life.map_or(Ok(()), |life| free_ending(mount, entry, life))
}

/// Frees an inode whose end in this life the caller has begun.
pub(crate) fn free_ending(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, life: Life) -> Result<()> {
    match inactivate(mount, entry, life) {
        // Who closes the volume did the rest.
        Err(Error::Shutdown(_)) if entry.peek().life() != life => Ok(()),
        done => {
            if done.is_err() {
                // So that who tries again finds it.
                mount.write_side()?.unfinished.lock().push(Arc::clone(entry));
            }
            done
        }
    }
}

/// As [`release_if_unused`], of an inode that has just lost a name; gives its number if that was
/// the last one and somebody has it open still.
pub(crate) fn lost_name(mount: &Arc<Mount>, entry: &Arc<InodeEntry>) -> Result<Option<InodeNumber>> {
    let inode = entry.peek();
    let is_nameless = !inode.is_free() && inode.nlink() == 0;
    drop(inode);
    match release_if_unused(mount, entry) {
        // Unless that has shut the volume down, the name is gone all the same, and what the file holds is freed later: see
        // `finish_ends`. What is damaged may never be, which is said here, and when the volume is closed.
        Err(error @ Error::Device(_)) => mount.check_writable().map_err(|_| error)?,
        done => done?,
    }
    Ok((is_nameless && entry.is_open()).then(|| entry.ino()))
}

/// Tries again to free what could not be freed when its time had come; whether any could.
pub fn finish_ends(mount: &Arc<Mount>) -> Result<bool> {
    let ends = std::mem::take(&mut *mount.write_side()?.unfinished.lock());
    let mut is_any = false;
    for entry in ends {
        let inode = entry.peek();
        let (ends, life) = (entry.is_ending(&inode) && !inode.is_free(), inode.life());
        drop(inode);
        is_any |= ends && free_ending(mount, &entry, life).is_ok();
    }
    Ok(is_any)
}

/// Frees every inode that has no names, whoever has it open, or was in the middle of freeing it. For a volume that is
/// being closed: nobody else can change it any more, and the next to open it would look for such inodes only in a
/// volume that has to be recovered. One that cannot be freed keeps no other from it: the first error comes in the end.
/// Unless that is damage, the log must then stay as one to recover.
pub(crate) fn inactivate_all(mount: &Arc<Mount>) -> Result<()> {
    let mut all = Ok(());
    let unlinked = mount.unlinked_in_memory()?;
    if !unlinked.is_empty() {
        // What fails half-way shuts the volume down, and nothing else is to be lost by that.
        mount.write_side()?.journal.force_all()?;
    }
    for entry in unlinked {
        // Its end may have begun, by one who waits to go on with it, and will find that it is done.
        let life = entry.take_inactivation();
        all = all.and(inactivate(mount, &entry, life));
    }
    all
}

/// Frees what an inode without names holds, and the inode. Nothing of it is freed if others share any of it.
fn inactivate(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, life: Life) -> Result<()> {
    mount.check_freeable(&entry.current())?;
    file::free_all(mount, entry, life, ForkKind::Data)?;
    file::free_all(mount, entry, life, ForkKind::Attr)?;
    let need = Need::new(mount.geometry()).inodes(1).unlinked().inode_chunk().steps(2);
    let mut trans = Trans::start(mount, need.reservation().or_no_blocks())?;
    join_ending(&mut trans, entry, life)?;
    let ino = entry.ino();
    debug_assert!(trans.inode(ino).nlink() == 0 && !entry.is_open(), "inode {ino} is in use");
    ialloc::remove_unlinked(&mut trans, ino)?;
    free(&mut trans, ino)?;
    trans.commit()?;
    Ok(())
}

/// Whether the joined inode, whose last name goes, can be freed in the same transaction.
pub(crate) fn can_be_freed_at_once(trans: &Trans<'_>, ino: InodeNumber) -> bool {
    let inode = trans.inode(ino);
    let core = inode.core();
    let inline = |format: ForkFormat, extents: u64| format != ForkFormat::Btree && extents == 0;
    inline(core.data.format, core.data.nextents)
        && core.attr.as_ref().is_none_or(|attr| inline(attr.format, attr.nextents))
        && !trans.entry(ino).is_open()
}

/// Frees a joined inode that holds no blocks.
pub(crate) fn free(trans: &mut Trans<'_>, ino: InodeNumber) -> Result<()> {
    debug_assert_eq!(trans.inode(ino).blocks(), 0, "blocks of inode {ino} would be lost");
    ialloc::free_inode(trans, ino)?;
    clear(trans, ino);
    Ok(())
}

/// Leaves of an inode what the next file at this place begins with.
fn clear(trans: &mut Trans<'_>, ino: InodeNumber) {
    let inode_size = usize::from(trans.geometry().inode_size);
    let inode = trans.inode_mut(ino, InodeFields::DFORK);
    let mut core = inode.core().clone();
    core.generation = core.generation.wrapping_add(1);
    core.nlink = 0;
    core.size = 0;
    core.flags = InodeFlags::empty();
    // No free inode shares blocks or hints at how to copy them.
    core.flags2 &= InodeFlags2::BIGTIME | InodeFlags2::NREXT64;
    core.data.format = ForkFormat::Extents;
    core.data.range.end = inode_size;
    *inode = inode.succeeded_by(core, true);
}
