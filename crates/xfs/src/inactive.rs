//! Inactivation: what happens to an inode without a name once nobody uses it.
//!
//! Invariant: an inode is inactivated once, by one thread, and only after its end has begun under its lock
//! (`InodeEntry::begin_inactivation`). Between the transactions that free it, nobody opens it, changes it or gives it a
//! name. The exception is closing the volume, for which all others wait: it completes the inactivation, and the thread
//! that was at it notices this by the inode's life. A failure leaves the inode on its unlinked list, as a crash would,
//! and in memory, so that it is tried again when space is short, when everything is made durable, or when the volume is
//! closed. After a clean close nobody looks at these lists.

use crate::error::{Error, Result};
use crate::file::{self, join_ending};
use crate::ialloc;
use crate::inode::{ForkKind, InodeEntry, Life};
use crate::mount::Mount;
use crate::trans::reservation::{LogNeed, ReservationBuilder};
use crate::trans::{Trans, begin_small};
use std::sync::Arc;
use xfs_format::inode::{ForkFormat, InodeFlags, InodeFlags2};
use xfs_format::log::InodeFields;
use xfs_format::types::InodeNumber;

/// Frees blocks that nobody uses: unclaimed staged blocks, and the blocks of files that could not be freed when they
/// should have been. Returns whether there were any.
pub(crate) fn block_gc(mount: &Arc<Mount>) -> Result<bool> {
    Ok(file::cancel_unused_cow(mount)? > 0 || retry_inactivation(mount)?)
}

/// Frees an inode without names, unless somebody has it open: then the last one to close it does this.
pub(crate) fn release_if_unused(mount: &Arc<Mount>, entry: &Arc<InodeEntry>) -> Result<()> {
    let inode = entry.snapshot();
    // This only decides that there is nothing to do. Whoever removes its last name checks afterwards.
    let gone = inode.is_free() || inode.nlink() > 0;
    drop(inode);
    let life = if gone { None } else { entry.begin_inactivation() };
    life.map_or(Ok(()), |life| inactivate_ending(mount, entry, life))
}

/// Frees an inode whose end in this life the caller has begun.
pub(crate) fn inactivate_ending(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, life: Life) -> Result<()> {
    match inactivate(mount, entry, life) {
        // Closing the volume completed it.
        Err(Error::Shutdown(_)) if entry.snapshot().life() != life => Ok(()),
        done => {
            if done.is_err() {
                // So that the next attempt finds it.
                mount.write_side()?.unfinished.lock().push(Arc::clone(entry));
            }
            done
        }
    }
}

/// Like [`release_if_unused`], for an inode that has just lost a name. Returns its number if that was the last one and
/// somebody still has it open.
pub(crate) fn lost_name(mount: &Arc<Mount>, entry: &Arc<InodeEntry>) -> Result<Option<InodeNumber>> {
    let inode = entry.snapshot();
    let is_nameless = !inode.is_free() && inode.nlink() == 0;
    drop(inode);
    match release_if_unused(mount, entry) {
        // Unless the volume was shut down, the name is gone all the same, and what the file has is freed later: see
        // `retry_inactivation`. Damage may prevent that for ever. It is reported here, and when the volume is closed.
        Err(error @ Error::Device(_)) => mount.check_writable().map_err(|_| error)?,
        done => done?,
    }
    Ok((is_nameless && entry.is_open()).then(|| entry.ino()))
}

/// Tries again to free what could not be freed before. Returns whether any could.
pub fn retry_inactivation(mount: &Arc<Mount>) -> Result<bool> {
    let ends = std::mem::take(&mut *mount.write_side()?.unfinished.lock());
    let mut is_any = false;
    for entry in ends {
        let inode = entry.snapshot();
        let (ends, life) = (entry.is_ending(&inode) && !inode.is_free(), inode.life());
        drop(inode);
        is_any |= ends && inactivate_ending(mount, &entry, life).is_ok();
    }
    Ok(is_any)
}

/// Frees every inode without names, even if somebody has it open or was in the middle of freeing it. For a volume that
/// is being closed: nobody else can change it any more, and whoever opens it next would look for such inodes only in
/// recovery. If one cannot be freed, the others still are, and the first error is returned at the end. Unless that is
/// damage, the log must then be left for recovery.
pub(crate) fn inactivate_all(mount: &Arc<Mount>) -> Result<()> {
    let mut all = Ok(());
    let unlinked = mount.unlinked_in_memory()?;
    if !unlinked.is_empty() {
        // A half-way failure shuts the volume down. Nothing else may be lost by that.
        mount.write_side()?.journal.force_all()?;
    }
    for entry in unlinked {
        // A thread may have begun its end and wait to go on with it. It will find that it is done.
        let life = entry.take_inactivation();
        all = all.and(inactivate(mount, &entry, life));
    }
    all
}

/// Frees the content of an inode without names, and the inode. Nothing of it is freed if others share any of its
/// blocks.
fn inactivate(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, life: Life) -> Result<()> {
    mount.check_freeable(&entry.current())?;
    file::free_all(mount, entry, life, ForkKind::Data)?;
    file::free_all(mount, entry, life, ForkKind::Attr)?;
    begin_small(|need| free_empty(mount, entry, life, need))
}

/// Frees an inode without names and without content.
fn free_empty(mount: &Arc<Mount>, entry: &Arc<InodeEntry>, life: Life, need: LogNeed) -> Result<()> {
    let most = ReservationBuilder::new(mount.geometry()).inodes(1).unlinked().inode_chunk().log_count(2);
    let reservation = most.build_to_begin_small().or_reserve_pool().with_log_space(need);
    let mut trans = Trans::start(mount, reservation)?;
    join_ending(&mut trans, entry, life)?;
    let ino = entry.ino();
    debug_assert!(trans.inode(ino).nlink() == 0 && !entry.is_open(), "inode {ino} is in use");
    ialloc::remove_unlinked(&mut trans, ino)?;
    free(&mut trans, ino)?;
    trans.commit()?;
    Ok(())
}

/// Whether the joined inode, whose last name is being removed, can be freed in the same transaction.
pub(crate) fn can_be_freed_at_once(trans: &Trans<'_>, ino: InodeNumber) -> bool {
    let inode = trans.inode(ino);
    let core = inode.core();
    let inline = |format: ForkFormat, extents: u64| format != ForkFormat::Btree && extents == 0;
    inline(core.data.format, core.data.nextents)
        && core.attr.as_ref().is_none_or(|attr| inline(attr.format, attr.nextents))
        && !trans.entry(ino).is_open()
}

/// Frees a joined inode that has no blocks.
pub(crate) fn free(trans: &mut Trans<'_>, ino: InodeNumber) -> Result<()> {
    debug_assert_eq!(trans.inode(ino).blocks(), 0, "blocks of inode {ino} would be lost");
    ialloc::free_inode(trans, ino)?;
    clear(trans, ino);
    Ok(())
}

/// Reduces an inode to what the next file with this number starts from.
fn clear(trans: &mut Trans<'_>, ino: InodeNumber) {
    let inode_size = usize::from(trans.geometry().inode_size);
    let inode = trans.inode_mut(ino, InodeFields::DFORK);
    let mut core = inode.core().clone();
    core.generation = core.generation.wrapping_add(1);
    core.nlink = 0;
    core.size = 0;
    core.flags = InodeFlags::empty();
    // A free inode has no reflink flag and no CoW extent size hint.
    core.flags2 &= InodeFlags2::BIGTIME | InodeFlags2::NREXT64;
    core.data.format = ForkFormat::Extents;
    core.data.range.end = inode_size;
    *inode = inode.succeeded_by(core, true);
}
