//! Adding and freeing data blocks, and updating `di_size`.
//!
//! Invariant: `di_size` is the end of the last mapped data block, whether there are holes below it or not.

use super::DirGeometry;
use crate::da::edit::Block;
use crate::dir::NAME;
use crate::error::{Error, Result};
use crate::fork::{Fork, ForkMut};
use xfs_format::dir::{DataEdit, LEAF_SPACE};
use xfs_format::error::FormatError;

/// Makes data block `db`, which does not exist, without entries.
pub(super) fn new_data(fork: &mut dyn ForkMut, shape: &DirGeometry, db: u64) -> Result<Block> {
    let end = (db + 1) * shape.block_size as u64;
    if end > LEAF_SPACE {
        return Err(Error::NoSpace);
    }
    let mut block = Block::map(fork, shape.data_at(db), shape.blocks, shape.data)?;
    let (place, stamp) = (block.place, block.stamp(fork));
    DataEdit::format(&mut block.image, &stamp, shape.ftype).map_err(|problem| place.bad(problem))?;
    if end > fork.size() {
        fork.set_size(end);
    }
    Ok(block)
}

/// Frees data block `db`.
pub(super) fn drop_data(fork: &mut dyn ForkMut, shape: &DirGeometry, db: u64, block: Block) -> Result<()> {
    block.unmap(fork)?;
    if (db + 1) * shape.block_size as u64 >= fork.size() {
        let last = last_before(fork, shape, db)?;
        fork.set_size((last + 1) * shape.block_size as u64);
    }
    Ok(())
}

/// The last mapped data block below `db`. It is found by bisection, because a fork can only be asked for the next
/// mapped block.
fn last_before(fork: &dyn Fork, shape: &DirGeometry, db: u64) -> Result<u64> {
    let end = shape.data_at(db).0;
    let mapped_from = |from: u64| -> Result<bool> {
        Ok(fork.next_mapped(shape.data_at(from))?.is_some_and(|mapped| mapped.0 < end))
    };
    if db > 0 && mapped_from(db - 1)? {
        return Ok(db - 1);
    }
    if db == 0 || !mapped_from(0)? {
        return Err(Error::corrupt_inode(fork.inode(), FormatError::new(NAME, "first block")));
    }
    let (mut low, mut high) = (0, db - 1);
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        if mapped_from(middle)? { low = middle } else { high = middle }
    }
    Ok(low)
}
