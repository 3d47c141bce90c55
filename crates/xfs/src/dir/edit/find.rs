//! Finding a name through the index, with all that its removal needs.

use super::tree::{Block, Path, find_path, next_path};
use super::{Shape, missing};
use crate::da::check_owner;
use crate::dir::crowd::LastData;
use crate::dir::{Data, FileType, NAME, hash_index};
use crate::error::{Error, Result};
use crate::fork::{Fork, ForkMut};
use xfs_format::da::name_hash;
use xfs_format::dir::{DataBlock, DataEdit, DataKind, Leaf, LeafEntry};
use xfs_format::error::FormatError;
use xfs_format::types::InodeNumber;

/// A name that was found.
pub(super) struct Hit {
    /// The way to its leaf.
    pub(super) path: Path,
    /// Its leaf.
    pub(super) leaf: Block,
    /// Its place in the leaf.
    pub(super) slot: usize,
    /// Its data block.
    pub(super) data: Block,
    /// Which data block that is.
    pub(super) db: u64,
    /// Its place in the data block.
    pub(super) offset: usize,
    /// What it names.
    pub(super) inode: InodeNumber,
}

/// Finds a name in a directory of leaf or node form.
pub(super) fn find(fork: &dyn Fork, name: &[u8]) -> Result<Hit> {
    let shape = Shape::of(fork)?;
    let index = hash_index(fork.geometry());
    let hash = name_hash(name);
    let (mut path, mut buf) = find_path(fork, &index, hash)?;
    let first = path.leaf;
    let mut last = LastData::default();
    loop {
        let corrupt = |problem| Error::corrupt_block(buf.daddr(), Some(fork.inode()), problem);
        let leaf = Leaf::parse(&buf, shape.v5).map_err(corrupt)?;
        check_owner(fork, &buf, index.verifier.name, leaf.header.owner)?;
        let rest = leaf.from_hash(hash);
        let from = leaf.entries.len() - rest.len();
        for (slot, entry) in (from..).zip(rest) {
            if entry.hash.get() != hash {
                return Err(missing(fork));
            }
            if let Some((data, db, offset, inode)) = candidate(fork, &shape, entry, name, &mut last)? {
                let leaf = Block::of(fork, path.leaf, index.blocks, index.verifier, &buf);
                return Ok(Hit { path, leaf, slot, data, db, offset, inode });
            }
        }
        match next_path(fork, &index, first, path, &buf)? {
            Some((next, next_buf)) => (path, buf) = (next, next_buf),
            None => return Err(missing(fork)),
        }
    }
}

/// The data block of the entry that the index points to, where in it the entry lies, and what it names, if it has this
/// name.
fn candidate(
    fork: &dyn Fork,
    shape: &Shape,
    entry: &LeafEntry,
    name: &[u8],
    last: &mut LastData,
) -> Result<Option<(Block, u64, usize, InodeNumber)>> {
    if entry.is_stale() {
        return Ok(None);
    }
    let (data, at, offset) = last.read(fork, entry)?;
    let found = data.view(fork)?.entry_at(offset).map_err(|problem| data.corrupt(fork, problem))?;
    if found.name != name {
        return Ok(None);
    }
    let block = Block::of(fork, at, shape.blocks, shape.data, &data.buf);
    Ok(Some((block, entry.data_offset() / shape.block_size as u64, offset, found.inode)))
}

/// Has the name that was found name another inode.
pub(super) fn replace(
    fork: &mut dyn ForkMut,
    hit: Hit,
    ino: InodeNumber,
    ftype: FileType,
) -> Result<InodeNumber> {
    let shape = Shape::of(fork)?;
    let mut data = hit.data;
    let place = data.place;
    let mut edit = DataEdit::new(&mut data.image, shape.v5, shape.ftype);
    edit.replace(hit.offset, ino, ftype.into()).map_err(|problem| place.bad(problem))?;
    data.write(fork)?;
    Ok(hit.inode)
}

/// Reads a data block (or the block of a block-form directory) to change it.
pub(super) fn read_data(fork: &dyn Fork, shape: &Shape, db: u64) -> Result<Block> {
    let at = shape.data_at(db);
    let data = Data::read(fork, at)?;
    Ok(Block::of(fork, at, shape.blocks, shape.data, &data.buf))
}

/// Reads a data block of leaf or node form to change it.
pub(super) fn read_pure_data(fork: &dyn Fork, shape: &Shape, db: u64) -> Result<Block> {
    let block = read_data(fork, shape, db)?;
    expect_data(&block, shape)?;
    Ok(block)
}

/// Fails for the block of a block-form directory.
pub(super) fn expect_data(block: &Block, shape: &Shape) -> Result<()> {
    let view = DataBlock::parse(block.image.bytes(), shape.v5, shape.ftype)
        .map_err(|problem| block.place.bad(problem))?;
    match view.kind {
        DataKind::Data => Ok(()),
        DataKind::Block => Err(block.place.bad(FormatError::new(NAME, "block form with further blocks"))),
    }
}
