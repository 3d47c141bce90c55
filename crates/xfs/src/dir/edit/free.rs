//! The free-space index of node form: which data blocks there are, and the longest unused piece of each.
//!
//! Invariants: data block `db` is told of in free block `db / places`; a free block that tells of no data block is
//! given back (the first always tells of the first).

use super::Shape;
use super::tree::{Block, scatter};
use crate::da::check_owner;
use crate::dir::NAME;
use crate::error::{Error, Result};
use crate::fork::{Fork, ForkMut};
use xfs_format::dir::{BEST_NONE, FREE, FREE_SPACE, FreeBlock, FreeEdit};
use xfs_format::error::FormatError;
use xfs_format::types::FileBlock;

/// Free blocks that a search for room looks into: the last ones, and others by chance. Each tells of 2,000 data
/// blocks where blocks have 4 KiB, so that almost every directory is searched whole.
const LOOK_LAST: u64 = 8;
const LOOK_ELSEWHERE: u64 = 8;

/// Where there is room for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// In a data block that is there.
    In(u64),
    /// In a data block to be made at a place that is free.
    New(u64),
}

/// Places in the table of one free block.
fn places(shape: &Shape) -> u64 {
    FreeEdit::capacity(shape.block_size, shape.v5) as u64
}

/// Where free block `fdb` lies.
pub(super) fn free_at(fork: &dyn Fork, shape: &Shape, fdb: u64) -> FileBlock {
    FileBlock((FREE_SPACE >> fork.geometry().block_log) + fdb * u64::from(shape.blocks))
}

/// Reads free block `fdb` to change it, if it is there.
pub(super) fn read(fork: &mut dyn ForkMut, shape: &Shape, fdb: u64) -> Result<Option<Block>> {
    let at = free_at(fork, shape, fdb);
    let mapped = fork.next_mapped(at)?;
    if mapped.is_none_or(|mapped| mapped.0 >= at.0 + u64::from(shape.blocks)) {
        return Ok(None);
    }
    let block = Block::read(fork, at, shape.blocks, &FREE)?;
    let view = view(&block, shape)?;
    check_owner(fork, block.place.daddr(), FREE.name, view.owner)?;
    let first = fdb * places(shape);
    if u64::from(view.first_db) != first {
        let problem = FormatError::mismatch(FREE.name, "first data block", view.first_db.into(), first);
        return Err(block.place.bad(problem));
    }
    Ok(Some(block))
}

pub(super) fn view<'a>(block: &'a Block, shape: &Shape) -> Result<FreeBlock<'a>> {
    FreeBlock::parse(block.bytes(), shape.v5).map_err(|problem| block.place.bad(problem))
}

/// Finds room for `need` bytes, with the free block that tells of it. The search looks into a bounded number of free
/// blocks: what lies in others is found by later searches, with another `seed`.
pub(super) fn find_room(
    fork: &mut dyn ForkMut,
    shape: &Shape,
    need: usize,
    seed: u32,
) -> Result<(Room, Option<Block>)> {
    let count = shape.data_count(fork)?;
    let last = (count - 1) / places(shape);
    let near = (0..LOOK_LAST).map_while(|back| last.checked_sub(back));
    let rest = last.saturating_sub(LOOK_LAST - 1);
    let far = (0..LOOK_ELSEWHERE.min(rest))
        .map(|nth| if rest <= LOOK_ELSEWHERE { nth } else { scatter(u64::from(seed) << 8 | nth) % rest });
    let mut hole = None;
    for fdb in near.chain(far) {
        let first = fdb * places(shape);
        let Some(block) = read(fork, shape, fdb)? else {
            hole = Some(first);
            continue;
        };
        let view = view(&block, shape)?;
        let room = |best: u16| best != BEST_NONE && usize::from(best) >= need;
        if let Some(slot) = view.bests.iter().rposition(|best| room(best.get())) {
            return Ok((Room::In(first + slot as u64), Some(block)));
        }
        if u64::from(view.used) < view.bests.len() as u64 {
            let slot = view.bests.iter().position(|best| best.get() == BEST_NONE);
            hole = slot.map(|slot| first + slot as u64).or(hole);
        }
    }
    Ok((Room::New(hole.filter(|&hole| hole < count).unwrap_or(count)), None))
}

/// Tells the longest unused piece of data block `db`; [`BEST_NONE`]: it is there no more. `free`: the block that tells of
/// it, if that was read; `new`: the data block is.
pub(super) fn tell(
    fork: &mut dyn ForkMut,
    shape: &Shape,
    free: Option<Block>,
    (db, best): (u64, u16),
    new: bool,
) -> Result<()> {
    let (fdb, slot) = (db / places(shape), (db % places(shape)) as usize);
    let known = match free {
        Some(block) => Some(block),
        None => read(fork, shape, fdb)?,
    };
    let mut block = match known {
        Some(block) => block,
        None if new => make(fork, shape, fdb)?,
        None => {
            let problem = FormatError::value(FREE.name, "block that should be there", fdb);
            return Err(Error::corrupt_inode(fork.inode(), problem));
        }
    };
    let place = block.place;
    FreeEdit::new(&mut block.image, shape.v5).set(slot, best).map_err(|problem| place.bad(problem))?;
    if view(&block, shape)?.used == 0 {
        return block.unmap(fork);
    }
    block.write(fork)
}

/// Makes free block `fdb`, which tells of no data block yet.
pub(super) fn make(fork: &mut dyn ForkMut, shape: &Shape, fdb: u64) -> Result<Block> {
    let first = u32::try_from(fdb * places(shape))
        .map_err(|_| Error::corrupt_inode(fork.inode(), FormatError::value(NAME, "free block", fdb)))?;
    let at = free_at(fork, shape, fdb);
    let mut block = Block::map(fork, at, shape.blocks, &FREE)?;
    let (place, stamp) = (block.place, block.stamp(fork));
    FreeEdit::format(&mut block.image, &stamp, first).map_err(|problem| place.bad(problem))?;
    Ok(block)
}
