//! Files that get another's blocks, to have them beside it.
//!
//! A mapping of the source comes in the place of what the destination has there, in one transaction, which counts an owner
//! less for the old blocks and one more for the new. What a crash or an error leaves is a destination of which a part has
//! the new content, in whole blocks.
//!
//! Invariants:
//! - both inodes have the flag for shared blocks before any block has two owners: the destination gets it with its first piece;
//! - whoever would write to the source knows that its blocks are shared before they are counted: they are named in what is
//!   known of it, and looks at its map from before are void.

use super::copies;
use super::limits;
use super::shared::{self, written_runs};
use super::{Blocks, join_file};
use crate::bmap;
use crate::defer;
use crate::error::{Error, Result};
use crate::ifork::Mapped;
use crate::inode::{ForkKind, InodeEntry};
use crate::mount::Mount;
use crate::trans::Trans;
use crate::trans::reservation::Need;
use std::sync::Arc;
use xfs_format::bmbt::Extent;
use xfs_format::inode::{InodeCore, InodeFlags2};
use xfs_format::log::InodeFields;
use xfs_format::timestamp::Timestamp;
use xfs_format::types::{FileBlock, FsBlock};

/// Where blocks of one file are to be shared with another.
#[derive(Clone, Debug)]
pub struct Share<'a> {
    /// The file that has them.
    pub from: &'a Arc<InodeEntry>,
    /// Which of its blocks.
    pub blocks: Blocks,
    /// The file that gets them, which may be the same.
    pub to: &'a Arc<InodeEntry>,
    /// Where, in that file.
    pub at: FileBlock,
    /// Where the destination ends at the earliest, when all is done.
    pub size: u64,
    /// What else becomes of the destination then, if its content changes.
    pub end: Option<ShareEnd>,
}

/// What becomes of a file that has got another's blocks.
#[derive(Clone, Copy, Debug)]
pub struct ShareEnd {
    /// The hint for the size of copies that it takes over.
    pub hint: Option<u32>,
    /// When that was.
    pub now: Timestamp,
}

impl Share<'_> {
    /// What becomes of the destination's inode when all is done.
    fn end_of(&self, core: &mut InodeCore) {
        let Some(end) = self.end else { return };
        core.size = core.size.max(self.size);
        if let Some(hint) = end.hint {
            core.flags2 |= InodeFlags2::COWEXTSIZE;
            core.cowextsize = hint;
        }
        (core.mtime, core.ctime) = (end.now, end.now);
    }
}

/// A piece of a mapping that one transaction changes.
#[derive(Clone, Copy, Debug)]
struct Piece {
    at: FileBlock,
    blocks: u64,
    new: Option<Extent>,
    is_mapped: bool,
}

impl Piece {
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

/// Has a file share blocks of another; holes, and what was never written, become holes. The caller keeps writers off
/// the source, and everybody off the destination, whole blocks; behind the end of that nothing holds data.
pub fn share_blocks(mount: &Arc<Mount>, share: &Share<'_>) -> Result<()> {
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
    shared::say_shared([share.from, share.to], &runs);
    // What was staged for content that goes.
    copies::give_back_copies(mount, share.to, share.at..end)?;
    let Some(mut piece) = next_change(mount, share, share.blocks.start)? else {
        return share_nothing(mount, share);
    };
    loop {
        let behind = FileBlock(share.blocks.start.0 + (piece.end().0 - share.at.0));
        let next = next_change(mount, share, behind)?;
        share_piece(mount, share, &piece, next.is_none())?;
        let Some(next) = next else { return Ok(()) };
        piece = next;
    }
}

/// Nothing changes of the destination's map.
fn share_nothing(mount: &Arc<Mount>, share: &Share<'_>) -> Result<()> {
    if share.end.is_none() && share.to.peek().is_reflinked() {
        return Ok(());
    }
    let mut trans = Trans::start(mount, Need::new(mount.geometry()).inodes(1).reservation())?;
    join_file(&mut trans, share.to)?;
    let core = trans.inode_mut(share.to.ino(), InodeFields::CORE).core_mut();
    core.flags2 |= InodeFlags2::REFLINK;
    share.end_of(core);
    trans.commit()?;
    Ok(())
}

/// Fails if a file without the flag for shared blocks has such.
fn check_if_unmarked(mount: &Mount, entry: &InodeEntry) -> Result<()> {
    match entry.peek().is_reflinked() {
        true => Ok(()),
        false => {
            // What the file loses meanwhile, where nobody is kept off, others may share at once.
            let _still = entry.share();
            mount.check_unmarked(entry, FileBlock(0)..super::BLOCKS_END)
        }
    }
}

/// Gives an inode the flag for shared blocks.
fn mark_sharing(mount: &Arc<Mount>, entry: &Arc<InodeEntry>) -> Result<()> {
    if entry.peek().is_reflinked() {
        return Ok(());
    }
    check_if_unmarked(mount, entry)?;
    let mut trans = Trans::start(mount, Need::new(mount.geometry()).inodes(1).reservation())?;
    join_file(&mut trans, entry)?;
    trans.inode_mut(entry.ino(), InodeFields::CORE).core_mut().flags2 |= InodeFlags2::REFLINK;
    trans.commit()?;
    Ok(())
}

/// The first piece of the destination that changes, from where block `at` of the source is to be.
fn next_change(mount: &Mount, share: &Share<'_>, mut at: FileBlock) -> Result<Option<Piece>> {
    while at < share.blocks.end {
        let piece = next_piece(mount, share, at)?;
        if piece.new.is_some() || piece.is_mapped {
            return Ok(Some(piece));
        }
        at = FileBlock(at.0 + piece.blocks);
    }
    Ok(None)
}

/// What becomes of the destination where block `at` of the source is to be, and for how many blocks.
fn next_piece(mount: &Mount, share: &Share<'_>, at: FileBlock) -> Result<Piece> {
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
        // The same blocks already.
        (Some(new), Mapped::Extent(old)) if !old.unwritten && place(&old, to) == new.startblock => {
            (None, false)
        }
        // Neither was written.
        (None, Mapped::Extent(old)) if old.unwritten && source_unwritten => (None, false),
        (new, old) => (new, matches!(old, Mapped::Extent(_))),
    };
    Ok(Piece { at: to, blocks, new, is_mapped })
}

fn share_piece(mount: &Arc<Mount>, share: &Share<'_>, piece: &Piece, is_last: bool) -> Result<()> {
    if let Some(new) = piece.new {
        limits::check_room_to_share(mount, new.startblock)?;
    }
    let need = Need::new(mount.geometry()).inodes(1).map_changes(2).counts(2).steps(2);
    let mut trans = Trans::start(mount, need.reservation())?;
    join_file(&mut trans, share.to)?;
    let ino = share.to.ino();
    // Whoever cut off the last that the file had beside this took the flag off. What is told of its blocks depends on it.
    trans.inode_mut(ino, InodeFields::CORE).core_mut().flags2 |= InodeFlags2::REFLINK;
    if piece.is_mapped {
        let gone = bmap::unmap(&mut trans, ino, ForkKind::Data, piece.at..piece.end(), 1)?;
        debug_assert!(gone.rest.is_none(), "one piece at a time");
        for extent in &gone.freed {
            defer::give_up_later(&mut trans, ino, ForkKind::Data, extent)?;
        }
    }
    if let Some(new) = piece.new {
        defer::share_later(&mut trans, new.startblock, new.blockcount);
        bmap::map(&mut trans, ino, ForkKind::Data, new)?;
    }
    let end = piece.end().0.saturating_mul(mount.geometry().block_size.into());
    let core = trans.inode_mut(ino, InodeFields::CORE).core_mut();
    core.size = core.size.max(share.size.min(end));
    if let Some(end) = share.end {
        // Nobody is to take a part for what was there before.
        (core.mtime, core.ctime) = (end.now, end.now);
    }
    if is_last {
        share.end_of(core);
    }
    trans.commit()?;
    Ok(())
}
