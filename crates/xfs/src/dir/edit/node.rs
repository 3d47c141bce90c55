//! Directories with a tree of leaves.

use super::find::{Found, read_pure_data, view_data};
use super::free::{FreeSlot, find_room, tell};
use super::leaf::{enter, take_out};
use super::{DirGeometry, EntryToAdd, convert, space};
use crate::da::edit::{Block, DaPath, Leaves, enter_split, find_path, fix_path, free_place, shrink};
use crate::dir::{NAME, hash_index};
use crate::error::Result;
use crate::fork::ForkMut;
use xfs_format::dir::{Leaf, LeafEdit, LeafEntry, LeafKind};
use xfs_format::edit::Image;
use xfs_format::error::FormatError;

const ENTRY: usize = 8;

/// Adds a name to a directory that was just converted to this form.
pub(super) fn add_anew(fork: &mut dyn ForkMut, new: &EntryToAdd<'_>) -> Result<()> {
    let index = hash_index(fork.geometry());
    let (path, leaf) = find_path(fork, &index, new.hash)?;
    add(fork, &path, leaf, new)
}

/// Adds a name. Its index entry goes into `leaf`, at the end of `path`.
pub(super) fn add(fork: &mut dyn ForkMut, path: &DaPath, leaf: Block, new: &EntryToAdd<'_>) -> Result<()> {
    let shape = DirGeometry::of(fork)?;
    let (room, free) = find_room(fork, &shape, new.need, new.hash)?;
    let (db, mut data) = match room {
        FreeSlot::In(db) => (db, read_pure_data(fork, &shape, db)?),
        FreeSlot::New(db) => (db, space::new_data(fork, &shape, db)?),
    };
    let before = longest(&data, &shape)?;
    let (offset, after) = enter(&mut data, &shape, new)?;
    data.write(fork)?;
    let made = matches!(room, FreeSlot::New(_));
    if after != before || made {
        tell(fork, &shape, free, (db, after), made)?;
    }
    index(fork, &shape, path, leaf, LeafEntry::new(new.hash, shape.address(db, offset)))
}

fn longest(data: &Block, shape: &DirGeometry) -> Result<u16> {
    Ok(view_data(data, shape)?.largest_free()[0].1)
}

/// Adds an index entry to its leaf.
fn index(
    fork: &mut dyn ForkMut,
    shape: &DirGeometry,
    path: &DaPath,
    mut leaf: Block,
    entry: LeafEntry,
) -> Result<()> {
    let index = hash_index(fork.geometry());
    let place = leaf.place;
    let bad = |problem| place.bad(problem);
    let view = Leaf::parse(leaf.bytes(), shape.v5).map_err(bad)?;
    if view.kind != LeafKind::OfTree {
        return Err(bad(FormatError::new(NAME, "kind of leaf in a tree")));
    }
    let last = last_hash(&view);
    if !LeafEdit::new(&mut leaf.image, shape.v5).insert(entry).map_err(bad)? {
        return split(fork, shape, path, leaf, entry);
    }
    let new_last = last_hash(&Leaf::parse(leaf.bytes(), shape.v5).map_err(bad)?);
    leaf.write(fork)?;
    match new_last {
        Some(hash) if last != new_last => fix_path(fork, &index, path, hash),
        _ => Ok(()),
    }
}

/// Splits a full leaf into halves, with a new entry in one of them.
fn split(
    fork: &mut dyn ForkMut,
    shape: &DirGeometry,
    path: &DaPath,
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

pub(super) fn remove(fork: &mut dyn ForkMut, path: &DaPath, mut leaf: Block, found: Found) -> Result<()> {
    let shape = DirGeometry::of(fork)?;
    let index = hash_index(fork.geometry());
    let place = leaf.place;
    LeafEdit::new(&mut leaf.image, shape.v5).remove(found.slot).map_err(|problem| place.bad(problem))?;
    let before = found.data.as_ref().map(|(_, data)| longest(data, &shape)).transpose()?;
    let (db, after) = take_out(fork, &shape, found.data, found.offset)?;
    if Some(after) != before {
        tell(fork, &shape, None, (db, after), false)?;
    }
    if path.is_lone() {
        return convert::write_lone_leaf_or_leaf(fork, leaf);
    }
    shrink(fork, &index, path, leaf, &DirLeaves { v5: shape.v5 })?;
    convert::node_to_leaf(fork)
}

fn last_hash(leaf: &Leaf<'_>) -> Option<u32> {
    leaf.entries.last().map(|entry| entry.hash.get())
}

/// What the tree needs to know of directory leaves.
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
