//! Choosing an inode: the group, and the chunk in it.
//!
//! Files go to their directory's group, near its inode, so that what is used together lies together. Directories go to
//! one group after the other, so that unrelated trees lie apart. A group with neither a free inode nor room for a chunk
//! is skipped.

use super::chunk;
use super::locked::LockedInodes;
use super::trees::{self, InodeTree};
use crate::agf::LockedSpace;
use crate::defer;
use crate::error::{Error, Result};
use crate::imap::{CLUSTER, Inodes};
use crate::rmap::RmapOwner;
use crate::trans::Trans;
use xfs_format::ag::{AGI, AgHeader, Agi, NULL_AG_INODE};
use xfs_format::btree::{Finobt, Inobt};
use xfs_format::records::InodeChunk;
use xfs_format::types::{AgInode, AgNumber, InodeNumber};

/// Chunks that are checked on each side of the parent's if there is no free inode tree.
const STEPS_ASIDE: u32 = 10;

/// Takes a free inode for a new file or directory in `parent`, and makes a chunk if there is none. Must come before
/// anything that locks group headers. [`Error::NoSpace`] if there is neither a free inode nor room for one.
pub fn allocate_inode(trans: &mut Trans<'_>, parent: InodeNumber, directory: bool) -> Result<InodeNumber> {
    let write = trans.mount().write_side()?;
    let geometry = trans.geometry();
    let inodes = &write.inodes;
    let first = inodes.first_group(geometry, parent, directory);
    let may_grow = inodes
        .geometry()
        .most(geometry)
        .is_none_or(|most| write.counters.inodes().saturating_add(inodes.geometry().inodes.into()) <= most);
    // Mostly the first group has one, and its AGI must be locked anyway. This saves a look.
    if trans.highest_group().is_none_or(|highest| first >= highest)
        && let Some(inode) = inode_in(trans, inodes, first, parent, false)?
    {
        return Ok(geometry.join_inode(first, inode));
    }
    for ag in (first.0..geometry.ag_count()).chain(0..first.0).map(AgNumber) {
        if trans.highest_group().is_some_and(|highest| ag < highest)
            || !may_have_inode(trans, inodes, ag, may_grow, directory)?
        {
            continue;
        }
        if let Some(inode) = inode_in(trans, inodes, ag, parent, may_grow)? {
            return Ok(geometry.join_inode(ag, inode));
        }
    }
    Err(Error::NoSpace)
}

/// Whether a group is worth locking, going by its last committed AGI.
fn may_have_inode(
    trans: &mut Trans<'_>,
    inodes: &Inodes,
    ag: AgNumber,
    may_grow: bool,
    directory: bool,
) -> Result<bool> {
    let geometry = trans.geometry();
    let daddr = AgHeader::Agi.daddr(geometry, ag);
    let buf = trans.snapshot_at(daddr, geometry.sector_size.into(), &AGI)?;
    let agi = Agi::view(&buf).map_err(|problem| Error::corrupt_block(daddr, None, problem))?;
    if agi.freecount.get() > 0 {
        return Ok(true);
    }
    if !may_grow {
        return Ok(false);
    }
    let shape = inodes.geometry();
    let space = &trans.mount().write_side()?.space;
    let least = shape.piece.unwrap_or(shape.blocks);
    space.has_room(&mut LockedSpace::new(trans), ag, least, directory.into())
}

fn inode_in(
    trans: &mut Trans<'_>,
    inodes: &Inodes,
    ag: AgNumber,
    parent: InodeNumber,
    may_grow: bool,
) -> Result<Option<AgInode>> {
    let mut locked = LockedInodes::lock(trans, ag)?;
    if locked.agi()?.freecount.get() == 0
        && (!may_grow || !chunk::make(&mut locked, inodes.geometry(), inodes.generation())?)
    {
        locked.unlock_clean();
        return Ok(None);
    }
    let near = locked.geometry().split_inode(parent).filter(|(of, _)| *of == ag).map(|(_, inode)| inode);
    let found = match locked.geometry().finobt {
        true => nearest::<Finobt>(&mut locked, near, u32::MAX)?,
        false => nearest::<Inobt>(&mut locked, near, STEPS_ASIDE)?,
    };
    let Some(found) = found else {
        let problem = xfs_format::error::FormatError::new("AGI", "free inode count");
        return Err(locked.damaged(problem));
    };
    chunk::take(&mut locked, found).map(Some)
}

/// Frees an inode that has no names left. Returns `true` if its chunk is gone, and with it the inode's cluster; then
/// the inode's own last change was logged in vain.
pub fn free_inode(trans: &mut Trans<'_>, ino: InodeNumber) -> Result<bool> {
    let write = trans.mount().write_side()?;
    let geometry = trans.geometry();
    let (ag, inode) = geometry.split_inode(ino).ok_or(Error::NoSuchInode(ino))?;
    let mut locked = LockedInodes::lock(trans, ag)?;
    let runs =
        chunk::free(&mut locked, write.inodes.geometry(), inode).map_err(|error| error.of_inode(ino))?;
    for run in &runs {
        for map in super::create::clusters(geometry, ag, run.start, run.len) {
            let cluster = trans.buf_at(map.daddr, map.len, &CLUSTER)?;
            trans.invalidate(cluster);
        }
        let owner = Some(RmapOwner::INODES);
        defer::defer_free(trans, ino, geometry.join_block(ag, run.start), run.len, owner)?;
    }
    Ok(!runs.is_empty())
}

/// The chunk with a free inode that is nearest to the parent's. Without a parent: the newest, or else any.
fn nearest<T: InodeTree>(
    inodes: &mut LockedInodes<'_, '_>,
    near: Option<AgInode>,
    steps: u32,
) -> Result<Option<InodeChunk>> {
    let newest = Some(inodes.agi()?.newino.get()).filter(|&newest| newest != NULL_AG_INODE).map(AgInode);
    for target in [near, newest].into_iter().flatten() {
        if let Some(found) = around::<T>(inodes, target, steps)? {
            return Ok(Some(found));
        }
    }
    let mut next = trees::at_or_after::<T>(inodes, AgInode(0))?;
    while let Some(chunk) = next {
        if chunk.free_places() > 0 {
            return Ok(Some(chunk));
        }
        next = behind::<T>(inodes, chunk)?;
    }
    Ok(None)
}

/// The nearest chunk with a free inode within this many steps to both sides.
fn around<T: InodeTree>(
    inodes: &mut LockedInodes<'_, '_>,
    target: AgInode,
    steps: u32,
) -> Result<Option<InodeChunk>> {
    let [mut left, mut right] = trees::around::<T>(inodes, target)?;
    for _ in 0..steps {
        let distance = |chunk: &InodeChunk| chunk.start.0.abs_diff(target.0);
        let found = [left, right].into_iter().flatten().filter(|chunk| chunk.free_places() > 0);
        if let Some(found) = found.min_by_key(distance) {
            return Ok(Some(found));
        }
        left = match left.and_then(|chunk| chunk.start.0.checked_sub(1)) {
            Some(before) => trees::at_or_before::<T>(inodes, AgInode(before))?,
            None => None,
        };
        right = match right {
            Some(chunk) => behind::<T>(inodes, chunk)?,
            None => None,
        };
        if left.is_none() && right.is_none() {
            break;
        }
    }
    Ok(None)
}

/// The next chunk after another.
fn behind<T: InodeTree>(inodes: &mut LockedInodes<'_, '_>, chunk: InodeChunk) -> Result<Option<InodeChunk>> {
    match chunk.start.0.checked_add(1) {
        Some(next) => trees::at_or_after::<T>(inodes, AgInode(next)),
        None => Ok(None),
    }
}
