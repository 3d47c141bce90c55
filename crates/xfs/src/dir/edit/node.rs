//! Directories with a tree of leaves.

use super::find::{Hit, read_pure_data};
use super::free::{Room, find_room, tell};
use super::leaf::{enter, take_out};
use super::tree::{Block, Leaves, Path, enter_split, find_path, fix_path, free_place, shrink};
use super::{New, Shape, convert, space};
use crate::dir::{NAME, hash_index};
use crate::error::Result;
use crate::fork::ForkMut;
use xfs_format::dir::{Leaf, LeafEdit, LeafEntry, LeafKind};
use xfs_format::edit::Image;
use xfs_format::error::FormatError;
use xfs_format::types::InodeNumber;

const ENTRY: usize = 8;

pub(super) fn add(fork: &mut dyn ForkMut, new: &New<'_>) -> Result<()> {
    let shape = Shape::of(fork)?;
    let room = find_room(fork, &shape, new.need, new.hash)?;
    let (db, mut data) = match room {
        Room::In(db) => (db, read_pure_data(fork, &shape, db)?),
        Room::New(db) => (db, space::new_data(fork, &shape, db)?),
    };
    let before = longest(&data, &shape)?;
    let (offset, after) = enter(&mut data, &shape, new)?;
    data.write(fork)?;
    let made = matches!(room, Room::New(_));
    if after != before || made {
        tell(fork, &shape, db, after, made)?;
    }
    index(fork, &shape, LeafEntry::new(new.hash, shape.address(db, offset)))
}

fn longest(data: &Block, shape: &Shape) -> Result<u16> {
    let view = xfs_format::dir::DataBlock::parse(data.image.bytes(), shape.v5, shape.ftype);
    Ok(view.map_err(|problem| data.place.bad(problem))?.largest_free()[0].1)
}

/// Puts an entry into its leaf.
fn index(fork: &mut dyn ForkMut, shape: &Shape, entry: LeafEntry) -> Result<()> {
    let index = hash_index(fork.geometry());
    let (path, buf) = find_path(fork, &index, entry.hash.get())?;
    let mut leaf = Block::of(fork, path.leaf, index.blocks, index.verifier, &buf);
    drop(buf);
    let place = leaf.place;
    let bad = |problem| place.bad(problem);
    let view = Leaf::parse(leaf.image.bytes(), shape.v5).map_err(bad)?;
    if view.kind != LeafKind::OfTree {
        return Err(bad(FormatError::new(NAME, "kind of leaf in a tree")));
    }
    let last = last_hash(&view);
    if !LeafEdit::new(&mut leaf.image, shape.v5).insert(entry).map_err(bad)? {
        return split(fork, shape, &path, leaf, entry);
    }
    let new_last = last_hash(&Leaf::parse(leaf.image.bytes(), shape.v5).map_err(bad)?);
    leaf.write(fork)?;
    match new_last {
        Some(hash) if last != new_last => fix_path(fork, &index, &path, hash),
        _ => Ok(()),
    }
}

/// Splits a full leaf in halves, with a new entry in one of them.
fn split(
    fork: &mut dyn ForkMut,
    shape: &Shape,
    path: &Path,
    mut leaf: Block,
    entry: LeafEntry,
) -> Result<()> {
    let index = hash_index(fork.geometry());
    let place = leaf.place;
    let bad = |problem| place.bad(problem);
    let mut lower = Leaf::parse(leaf.image.bytes(), shape.v5).map_err(bad)?.live();
    let hash = entry.hash.get();
    lower.insert(lower.partition_point(|known| known.hash.get() < hash), entry);
    let upper = lower.split_off(lower.len() / 2);
    let (Some(lower_last), Some(upper_last)) = (lower.last(), upper.last()) else {
        return Err(bad(FormatError::new(NAME, "room in the leaf")));
    };
    let (lower_hash, upper_hash) = (lower_last.hash.get(), upper_last.hash.get());
    LeafEdit::new(&mut leaf.image, shape.v5).set_entries(&lower).map_err(bad)?;
    let at = free_place(fork, &index, hash)?;
    let mut right = Block::map(fork, at, index.blocks, index.verifier)?;
    let stamp = right.stamp(fork);
    LeafEdit::format(&mut right.image, &stamp, LeafKind::OfTree)
        .and_then(|mut edit| edit.set_entries(&upper))
        .map_err(bad)?;
    enter_split(fork, &index, path, (leaf, lower_hash), (right, upper_hash))
}

pub(super) fn remove(fork: &mut dyn ForkMut, hit: Hit) -> Result<InodeNumber> {
    let shape = Shape::of(fork)?;
    let index = hash_index(fork.geometry());
    let mut leaf = hit.leaf;
    let place = leaf.place;
    LeafEdit::new(&mut leaf.image, shape.v5).remove(hit.slot).map_err(|problem| place.bad(problem))?;
    let before = longest(&hit.data, &shape)?;
    let after = take_out(fork, &shape, hit.data, hit.db, hit.offset)?;
    if after != before {
        tell(fork, &shape, hit.db, after, false)?;
    }
    if hit.path.is_lone() {
        convert::write_lone_leaf_or_leaf(fork, leaf)?;
        return Ok(hit.inode);
    }
    shrink(fork, &index, &hit.path, leaf, &DirLeaves { v5: shape.v5 })?;
    convert::node_to_leaf(fork)?;
    Ok(hit.inode)
}

fn last_hash(leaf: &Leaf<'_>) -> Option<u32> {
    leaf.entries.last().map(|entry| entry.hash.get())
}

/// What the tree must know of a directory's leaves.
struct DirLeaves {
    v5: bool,
}

impl Leaves for DirLeaves {
    fn fill(&self, leaf: &[u8]) -> Result<(usize, usize), FormatError> {
        let view = Leaf::parse(leaf, self.v5)?;
        Ok((view.live_count() * ENTRY, LeafEdit::room(leaf.len(), None, self.v5)))
    }

    fn last_hash(&self, leaf: &[u8]) -> Result<Option<u32>, FormatError> {
        Ok(last_hash(&Leaf::parse(leaf, self.v5)?))
    }

    fn join(&self, left: &mut Image, right: &[u8]) -> Result<(), FormatError> {
        let mut entries = Leaf::parse(left.bytes(), self.v5)?.live();
        entries.extend(Leaf::parse(right, self.v5)?.live());
        if !entries.is_sorted_by_key(|entry| entry.hash.get()) {
            return Err(FormatError::new(NAME, "hash order of neighbours"));
        }
        LeafEdit::new(left, self.v5).set_entries(&entries)
    }
}
