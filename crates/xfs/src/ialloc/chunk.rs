//! Making and freeing chunks of inodes, whole or sparse, and taking inodes from them.
//!
//! Invariants: the inode tree has every chunk. The free inode tree has those with a free inode, with the same records.
//! The AGI counts allocated inodes and the free ones among them.

use super::create;
use super::locked::LockedInodes;
use super::trees;
use crate::agf::LockedSpace;
use crate::alloc::{AgExtent, AgTarget, Purpose, Request};
use crate::error::{Error, Result};
use crate::imap::InodeGeometry;
use crate::rmap::RmapOwner;
use xfs_format::ag::NULL_AG_INODE;
use xfs_format::btree::{Finobt, Inobt};
use xfs_format::error::FormatError;
use xfs_format::records::{INODES_PER_CHUNK, InodeChunk};
use xfs_format::types::{AgBlock, AgInode};

/// Blocks that the group must have left for the trees that a new chunk changes.
const MIN_LEFT: u32 = 3;

/// Makes a chunk or a part of one. Returns `false`, with nothing changed, if the group has no room for it.
pub fn make(inodes: &mut LockedInodes<'_, '_>, shape: &InodeGeometry, generation: u32) -> Result<bool> {
    let (agi, geometry, ag) = (inodes.agi()?, inodes.geometry(), inodes.ag());
    let (newest, root) = (agi.newino.get(), AgBlock(agi.root.get()));
    let whole = Request {
        align: shape.align,
        min_left: MIN_LEFT,
        last: shape.last_start(geometry, ag),
        ..Request::new(shape.blocks, shape.blocks, Purpose::Metadata).owned_by(RmapOwner::INODES)
    };
    // After the chunk that was made last, so that inodes made together lie together.
    let mut got = None;
    if newest != NULL_AG_INODE {
        let behind = shape.block_of(AgInode(newest)).0.checked_add(shape.blocks);
        if let Some(behind) = behind {
            got = allocate(inodes, AgTarget::Exact(AgBlock(behind)), whole)?;
        }
    }
    if got.is_none() {
        got = allocate(inodes, AgTarget::Near(root), whole)?;
    }
    if let Some(run) = got {
        create::fill(inodes.trans_mut(), ag, run.start, run.len, generation)?;
        for first in (0..shape.inodes).step_by(INODES_PER_CHUNK as usize) {
            let start = AgInode(shape.first_inode(run.start).0 + first);
            add(inodes, InodeChunk { start, holes: 0, free: u64::MAX }, INODES_PER_CHUNK)?;
        }
        return Ok(true);
    }
    let Some(piece) = shape.piece else { return Ok(false) };
    let request = Request {
        align: piece,
        min_left: MIN_LEFT,
        first: shape.align,
        last: shape.last_start(geometry, ag).saturating_add(shape.blocks - piece),
        ..Request::new(piece, piece, Purpose::Metadata).owned_by(RmapOwner::INODES)
    };
    let Some(run) = allocate(inodes, AgTarget::Near(root), request)? else { return Ok(false) };
    create::fill(inodes.trans_mut(), ag, run.start, run.len, generation)?;
    add_piece(inodes, shape, run)?;
    Ok(true)
}

fn allocate(
    inodes: &mut LockedInodes<'_, '_>,
    place: AgTarget,
    request: Request,
) -> Result<Option<AgExtent>> {
    let ag = inodes.ag();
    let trans = inodes.trans_mut();
    if trans.blocks_left() < u64::from(request.min) {
        return Err(Error::NoSpace);
    }
    let space = &trans.mount().write_side()?.space;
    space.allocate_in(&mut LockedSpace::new(trans), ag, place, request)
}

/// Adds the part of a chunk that lies in `run`, merging it with the other part if that exists.
fn add_piece(inodes: &mut LockedInodes<'_, '_>, shape: &InodeGeometry, run: AgExtent) -> Result<()> {
    let first = shape.first_inode(run.start).0;
    let start = AgInode(first - first % INODES_PER_CHUNK);
    let count = shape.inodes_in(run.len);
    let here = bits(first - start.0, count);
    let old = trees::at_or_before::<Inobt>(inodes, start)?.filter(|old| old.start == start);
    let Some(old) = old else {
        return add(inodes, InodeChunk { start, holes: !here, free: u64::MAX }, count);
    };
    if old.holes & here != here {
        return Err(corrupt("inode chunk record", "piece that is there already", first));
    }
    let new = InodeChunk { start, holes: old.holes & !here, free: old.free | here };
    trees::replace::<Inobt>(inodes, &old, &new)?;
    if inodes.geometry().finobt {
        if old.free_places() > 0 {
            trees::replace::<Finobt>(inodes, &old, &new)?;
        } else {
            trees::insert::<Finobt>(inodes, &new)?;
        }
    }
    count_inodes(inodes, start, count)
}

/// Adds a chunk with `count` allocated inodes, all free.
fn add(inodes: &mut LockedInodes<'_, '_>, chunk: InodeChunk, count: u32) -> Result<()> {
    trees::insert::<Inobt>(inodes, &chunk)?;
    if inodes.geometry().finobt {
        trees::insert::<Finobt>(inodes, &chunk)?;
    }
    count_inodes(inodes, chunk.start, count)
}

fn count_inodes(inodes: &mut LockedInodes<'_, '_>, newest: AgInode, count: u32) -> Result<()> {
    let agi = inodes.agi_mut()?;
    agi.newino.set(newest.0);
    agi.count.set(agi.count.get().saturating_add(count));
    agi.freecount.set(agi.freecount.get().saturating_add(count));
    inodes.trans_mut().count_inodes(count.into(), count.into());
    Ok(())
}

/// Takes the first free inode of a chunk that has one.
pub fn take(inodes: &mut LockedInodes<'_, '_>, chunk: InodeChunk) -> Result<AgInode> {
    let free = chunk.free & !chunk.holes;
    let index = free.trailing_zeros();
    if index >= INODES_PER_CHUNK {
        return Err(corrupt("inode chunk record", "free inodes", chunk.start.0));
    }
    let new = InodeChunk { free: chunk.free & !(1 << index), ..chunk };
    trees::replace::<Inobt>(inodes, &chunk, &new)?;
    if inodes.geometry().finobt {
        if new.free_places() > 0 {
            trees::replace::<Finobt>(inodes, &chunk, &new)?;
        } else {
            trees::remove::<Finobt>(inodes, &chunk)?;
        }
    }
    let agi = inodes.agi()?;
    let left = agi.freecount.get().checked_sub(1);
    let left = left.ok_or_else(|| inodes.damaged(FormatError::value("AGI", "free inode count", 0)))?;
    inodes.agi_mut()?.freecount.set(left);
    inodes.trans_mut().count_inodes(0, -1);
    Ok(AgInode(chunk.start.0 + index))
}

/// Frees an inode. If all inodes of the chunk are free now, the chunk is removed, and its runs of blocks are returned
/// for the caller to free.
pub fn free(
    inodes: &mut LockedInodes<'_, '_>,
    shape: &InodeGeometry,
    inode: AgInode,
) -> Result<Vec<AgExtent>> {
    let old = trees::at_or_before::<Inobt>(inodes, inode)?.filter(|chunk| chunk.in_use(inode));
    let old = old.ok_or_else(|| corrupt("inobt block", "inode to be freed", inode.0))?;
    let new = InodeChunk { free: old.free | 1 << (inode.0 - old.start.0), ..old };
    let finobt = inodes.geometry().finobt;
    // A block with several chunks is kept: it is not known here whether the others are free.
    let gone = new.free == u64::MAX && shape.inodes == INODES_PER_CHUNK;
    let (mut places, mut free) = (0, 1);
    if gone {
        trees::remove::<Inobt>(inodes, &old)?;
        if finobt && old.free_places() > 0 {
            trees::remove::<Finobt>(inodes, &old)?;
        }
        (places, free) = (-i64::from(old.places()), -i64::from(old.free_places()));
    } else {
        trees::replace::<Inobt>(inodes, &old, &new)?;
        if finobt {
            if old.free_places() > 0 {
                trees::replace::<Finobt>(inodes, &old, &new)?;
            } else {
                trees::insert::<Finobt>(inodes, &new)?;
            }
        }
    }
    let agi = inodes.agi_mut()?;
    agi.count.set((i64::from(agi.count.get()) + places).max(0) as u32);
    agi.freecount.set((i64::from(agi.freecount.get()) + free).max(0) as u32);
    if gone && agi.newino.get() == old.start.0 {
        agi.newino.set(NULL_AG_INODE);
    }
    inodes.trans_mut().count_inodes(places, free);
    Ok(if gone { blocks_of(shape, &old) } else { Vec::new() })
}

/// The blocks of a chunk without its holes, as runs.
fn blocks_of(shape: &InodeGeometry, chunk: &InodeChunk) -> Vec<AgExtent> {
    let first = shape.block_of(chunk.start).0;
    let mut runs: Vec<AgExtent> = (0..shape.blocks)
        .filter(|nth| chunk.holes >> shape.inodes_in(*nth) & 1 == 0)
        .map(|nth| AgExtent::new(first + nth, 1))
        .collect();
    AgExtent::normalize(&mut runs);
    runs
}

/// `count` bits from `first` on.
const fn bits(first: u32, count: u32) -> u64 {
    if count >= INODES_PER_CHUNK { u64::MAX } else { ((1 << count) - 1) << first }
}

fn corrupt(structure: &'static str, check: &'static str, found: u32) -> Error {
    let problem = FormatError::value(structure, check, found.into());
    Error::Corrupt { daddr: None, inode: None, problem }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::geometry;

    #[test]
    fn blocks_of_sparse_chunks() {
        let mut shape = geometry(true, 12, 0);
        (shape.inode_align, shape.sparse_inode_align) = (8, 4);
        let inodes = InodeGeometry::new(&shape);
        let chunk = |holes| InodeChunk { start: AgInode(640), holes, free: u64::MAX };
        assert_eq!(blocks_of(&inodes, &chunk(0)), [AgExtent::new(80, 8)]);
        assert_eq!(blocks_of(&inodes, &chunk(u64::from(u32::MAX))), [AgExtent::new(84, 4)]);
        assert_eq!(bits(32, 32), 0xffff_ffff_0000_0000);
        // Parts may be as small as four inodes.
        let holes = !(bits(0, 16) | bits(32, 16));
        assert_eq!(blocks_of(&inodes, &chunk(holes)), [AgExtent::new(80, 2), AgExtent::new(84, 2)]);
    }
}
