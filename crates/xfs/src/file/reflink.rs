//! Reflink: files that share the blocks of another.
//!
//! One transaction replaces a mapping of the destination by one of the source, decrements the refcount of the old
//! blocks, and increments that of the new ones. After a crash or an error, a part of the destination has the new
//! content, in whole blocks.
//!
//! Invariants:
//! - both inodes have the reflink flag before any block has two owners: the destination gets it with its first piece;
//! - the source's blocks are known as shared before they are counted as such, and earlier lookups of its map become
//!   void. So no write to the source overlooks it.

use super::cow;
use super::limits;
use super::shared::{self, written_runs};
use super::{FileBlocks, join_file};
use crate::bmap;
use crate::defer;
use crate::error::{Error, Result};
use crate::ifork::Mapped;
use crate::inode::{ForkKind, InodeEntry};
use crate::mount::Mount;
use crate::trans::Trans;
use crate::trans::reservation::ReservationBuilder;
use std::sync::Arc;
use xfs_format::bmbt::Extent;
use xfs_format::inode::{InodeCore, InodeFlags2};
use xfs_format::log::InodeFields;
use xfs_format::timestamp::Timestamp;
use xfs_format::types::{FileBlock, FsBlock};

/// The blocks to share, and their destination.
#[derive(Clone, Debug)]
pub struct Reflink<'a> {
    /// The source file.
    pub from: &'a Arc<InodeEntry>,
    /// Its blocks.
    pub blocks: FileBlocks,
    /// The destination file, which may be the same.
    pub to: &'a Arc<InodeEntry>,
    /// The first block in the destination.
    pub at: FileBlock,
    /// Minimum size of the destination when everything is done.
    pub size: u64,
    /// Further changes of the destination, if its content changes.
    pub end: Option<ReflinkEnd>,
}

/// The changes of a file that has got another's blocks.
#[derive(Clone, Copy, Debug)]
pub struct ReflinkEnd {
    /// The CoW extent size hint that it takes over.
    pub hint: Option<u32>,
    /// The time of the change.
    pub now: Timestamp,
}

impl Reflink<'_> {
    /// Applies the final changes to the destination's inode.
    fn end_of(&self, mount: &Mount, core: &mut InodeCore) {
        let Some(end) = self.end else { return };
        core.size = core.size.max(self.size);
        if let Some(hint) = end.hint {
            core.flags2 |= InodeFlags2::COWEXTSIZE;
            core.cowextsize = hint;
        }
        mount.touch(core, true, end.now);
    }
}

/// A piece of a mapping that one transaction changes.
#[derive(Clone, Copy, Debug)]
struct ReflinkPiece {
    at: FileBlock,
    blocks: u64,
    new: Option<Extent>,
    is_mapped: bool,
}

impl ReflinkPiece {
    fn end(&self) -> FileBlock {
        FileBlock(self.at.0 + self.blocks)
    }
}

/// Fails unless files of this volume can share blocks.
pub fn check_sharing(mount: &Mount) -> Result<()> {
    match mount.geometry().reflink {
        true => Ok(()),
        false => Err(Error::UnsupportedFeature("files that share blocks (the volume has no reflink)".into())),
    }
}

/// Shares blocks of a file with another. Holes and unwritten blocks become holes. The caller keeps writers off the
/// source and everybody off the destination, in whole blocks. No data lie past the end of the destination.
pub fn reflink_blocks(mount: &Arc<Mount>, share: &Reflink<'_>) -> Result<()> {
    check_sharing(mount)?;
    limits::check_block_change(mount, share.to)?;
    let end = FileBlock(share.at.0 + (share.blocks.end.0 - share.blocks.start.0));
    limits::check_room_to_cut(mount, share.to, &(share.at..end))?;
    shared::know_shared(mount, share.from)?;
    shared::know_shared(mount, share.to)?;
    mark_sharing(mount, share.from)?;
    check_if_unmarked(mount, share.to)?;
    let source = mount.extents(&share.from.current(), ForkKind::Data)?;
    let runs: Vec<_> = written_runs(&source, share.blocks.clone()).collect();
    drop(source);
    shared::mark_shared([share.from, share.to], &runs);
    // It was staged for content that leaves the file.
    cow::cancel_cow(mount, share.to, share.at..end)?;
    let Some(mut map) = next_change(mount, share, share.blocks.start)? else {
        return share_nothing(mount, share);
    };
    loop {
        let behind = FileBlock(share.blocks.start.0 + (map.end().0 - share.at.0));
        let next = next_change(mount, share, behind)?;
        share_piece(mount, share, &map, next.is_none())?;
        let Some(next) = next else { return Ok(()) };
        map = next;
    }
}

/// The destination's map does not change.
fn share_nothing(mount: &Arc<Mount>, share: &Reflink<'_>) -> Result<()> {
    if share.end.is_none() && share.to.snapshot().is_reflinked() {
        return Ok(());
    }
    let mut trans = Trans::start(mount, ReservationBuilder::new(mount.geometry()).inodes(1).build())?;
    join_file(&mut trans, share.to)?;
    let core = trans.inode_mut(share.to.ino(), InodeFields::CORE).core_mut();
    core.flags2 |= InodeFlags2::REFLINK;
    share.end_of(mount, core);
    trans.commit()?;
    Ok(())
}

/// Fails if a file without the reflink flag has shared blocks.
fn check_if_unmarked(mount: &Mount, entry: &InodeEntry) -> Result<()> {
    match entry.snapshot().is_reflinked() {
        true => Ok(()),
        false => {
            // Without the ilock, blocks that the file loses meanwhile might be shared by others at once.
            let _still = entry.ilock_shared();
            mount.check_unmarked(entry, FileBlock(0)..super::BLOCKS_END)
        }
    }
}

/// Sets the reflink flag of an inode.
fn mark_sharing(mount: &Arc<Mount>, entry: &Arc<InodeEntry>) -> Result<()> {
    if entry.snapshot().is_reflinked() {
        return Ok(());
    }
    check_if_unmarked(mount, entry)?;
    let mut trans = Trans::start(mount, ReservationBuilder::new(mount.geometry()).inodes(1).build())?;
    join_file(&mut trans, entry)?;
    trans.inode_mut(entry.ino(), InodeFields::CORE).core_mut().flags2 |= InodeFlags2::REFLINK;
    trans.commit()?;
    Ok(())
}

/// The first piece of the destination that changes, beginning where block `at` of the source goes.
fn next_change(mount: &Mount, share: &Reflink<'_>, mut at: FileBlock) -> Result<Option<ReflinkPiece>> {
    while at < share.blocks.end {
        let map = next_piece(mount, share, at)?;
        if map.new.is_some() || map.is_mapped {
            return Ok(Some(map));
        }
        at = FileBlock(at.0 + map.blocks);
    }
    Ok(None)
}

/// What happens to the destination where block `at` of the source goes, and for how many blocks.
fn next_piece(mount: &Mount, share: &Reflink<'_>, at: FileBlock) -> Result<ReflinkPiece> {
    let source = mount.extents(&share.from.current(), ForkKind::Data)?.lookup(at);
    let to = FileBlock(share.at.0 + (at.0 - share.blocks.start.0));
    let old = mount.extents(&share.to.current(), ForkKind::Data)?.lookup(to);
    let until = |mapped: &Mapped, from: FileBlock| match mapped {
        Mapped::Extent(extent) => extent.end().0 - from.0,
        Mapped::Hole(_, end) => end.map_or(u64::MAX, |end| end.0 - from.0),
    };
    let left = share.blocks.end.0 - at.0;
    let blocks = left.min(until(&source, at)).min(until(&old, to)).max(1);
    let place =
        |extent: &Extent, from: FileBlock| FsBlock(extent.startblock.0 + (from.0 - extent.startoff.0));
    let new = match source {
        Mapped::Extent(extent) if !extent.unwritten => Some(Extent {
            startoff: to,
            startblock: place(&extent, at),
            blockcount: u32::try_from(blocks).unwrap_or(extent.blockcount),
            unwritten: false,
        }),
        _ => None,
    };
    let source_unwritten = matches!(source, Mapped::Extent(extent) if extent.unwritten);
    let (new, is_mapped) = match (new, old) {
        // It already has the same blocks.
        (Some(new), Mapped::Extent(old)) if !old.unwritten && place(&old, to) == new.startblock => {
            (None, false)
        }
        // Both are unwritten.
        (None, Mapped::Extent(old)) if old.unwritten && source_unwritten => (None, false),
        (new, old) => (new, matches!(old, Mapped::Extent(_))),
    };
    Ok(ReflinkPiece { at: to, blocks, new, is_mapped })
}

fn share_piece(mount: &Arc<Mount>, share: &Reflink<'_>, map: &ReflinkPiece, is_last: bool) -> Result<()> {
    if let Some(new) = map.new {
        limits::check_room_to_share(mount, new.startblock)?;
    }
    let need = ReservationBuilder::new(mount.geometry()).inodes(1).map_changes(2).counts(2).log_count(2);
    let mut trans = Trans::start(mount, need.build())?;
    join_file(&mut trans, share.to)?;
    let ino = share.to.ino();
    // If the last other extent of the file was removed meanwhile, the flag was cleared. The deferred work for its
    // blocks depends on the flag.
    trans.inode_mut(ino, InodeFields::CORE).core_mut().flags2 |= InodeFlags2::REFLINK;
    if map.is_mapped {
        let gone = bmap::unmap(&mut trans, ino, ForkKind::Data, map.at..map.end(), 1)?;
        debug_assert!(gone.rest.is_none(), "one piece at a time");
        for extent in &gone.freed {
            defer::defer_give_up(&mut trans, ino, ForkKind::Data, extent)?;
        }
    }
    if let Some(new) = map.new {
        defer::defer_share(&mut trans, new.startblock, new.blockcount);
        bmap::map(&mut trans, ino, ForkKind::Data, new)?;
    }
    let end = map.end().0.saturating_mul(mount.geometry().block_size.into());
    let core = trans.inode_mut(ino, InodeFields::CORE).core_mut();
    core.size = core.size.max(share.size.min(end));
    if let Some(end) = share.end {
        // Nobody may take a part of it for the old content.
        mount.touch(core, true, end.now);
    }
    if is_last {
        share.end_of(mount, core);
    }
    trans.commit()?;
    Ok(())
}
