//! The free space index of node form: which data blocks there are, and the longest unused piece of each.
//!
//! Invariants: free block `db / places` describes data block `db`. A free block that describes no data block is freed
//! (the first one always describes the first data block).

use super::DirGeometry;
use crate::da::check_owner;
use crate::da::edit::{Block, scatter};
use crate::dir::NAME;
use crate::error::{Error, Result};
use crate::fork::{Fork, ForkMut};
use xfs_format::dir::{BESTFREE_NONE, FREE, FREE_SPACE, FreeBlock, FreeEdit};
use xfs_format::error::FormatError;
use xfs_format::types::FileBlock;

/// How many free blocks a search for room reads: the last ones, and some at random. With 4 KiB blocks each describes
/// 2,000 data blocks, so almost every directory is searched completely.
const LOOK_LAST: u64 = 8;
const LOOK_ELSEWHERE: u64 = 8;

/// Where there is room for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FreeSlot {
    /// In this existing data block.
    In(u64),
    /// In a new data block with this number.
    New(u64),
}

/// Data blocks that one free block describes.
fn places(shape: &DirGeometry) -> u64 {
    FreeEdit::capacity(shape.block_size, shape.v5) as u64
}

/// Where free block `fdb` lies.
pub(super) fn free_at(fork: &dyn Fork, shape: &DirGeometry, fdb: u64) -> FileBlock {
    FileBlock((FREE_SPACE >> fork.geometry().block_log) + fdb * u64::from(shape.blocks))
}

/// Reads free block `fdb`, if it exists, in order to change it.
pub(super) fn read(fork: &mut dyn ForkMut, shape: &DirGeometry, fdb: u64) -> Result<Option<Block>> {
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

pub(super) fn view<'a>(block: &'a Block, shape: &DirGeometry) -> Result<FreeBlock<'a>> {
    FreeBlock::parse(block.bytes(), shape.v5).map_err(|problem| block.place.bad(problem))
}

/// Finds room for `need` bytes. Returns also the free block that describes it. The search reads a bounded number of
/// free blocks. Later searches, with another `seed`, find room in others.
pub(super) fn find_room(
    fork: &mut dyn ForkMut,
    shape: &DirGeometry,
    need: usize,
    seed: u32,
) -> Result<(FreeSlot, Option<Block>)> {
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
        let room = |best: u16| best != BESTFREE_NONE && usize::from(best) >= need;
        if let Some(slot) = view.bestfree.iter().rposition(|best| room(best.get())) {
            return Ok((FreeSlot::In(first + slot as u64), Some(block)));
        }
        if u64::from(view.used) < view.bestfree.len() as u64 {
            let slot = view.bestfree.iter().position(|best| best.get() == BESTFREE_NONE);
            hole = slot.map(|slot| first + slot as u64).or(hole);
        }
    }
    Ok((FreeSlot::New(hole.filter(|&hole| hole < count).unwrap_or(count)), None))
}

/// Records the longest unused piece of data block `db`, or [`BESTFREE_NONE`] if it no longer exists. `free` is its free
/// block, if that was read; `new` says that the data block is new.
pub(super) fn tell(
    fork: &mut dyn ForkMut,
    shape: &DirGeometry,
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

/// Makes free block `fdb`, which describes no data block yet.
pub(super) fn make(fork: &mut dyn ForkMut, shape: &DirGeometry, fdb: u64) -> Result<Block> {
    let first = u32::try_from(fdb * places(shape))
        .map_err(|_| Error::corrupt_inode(fork.inode(), FormatError::value(NAME, "free block", fdb)))?;
    let at = free_at(fork, shape, fdb);
    let mut block = Block::map(fork, at, shape.blocks, &FREE)?;
    let (place, stamp) = (block.place, block.stamp(fork));
    FreeEdit::format(&mut block.image, &stamp, first).map_err(|problem| place.bad(problem))?;
    Ok(block)
}
