//! Attributes in leaves, be it one or a tree of them.

use super::leaf::{self, cost, last_hash, locate, part};
use super::{EditError, NewAttr, Put, check_how, convert, remote};
use crate::attr::{Key, index};
use crate::da::edit::{add_leaf, map_block, remove_leaf, set_last_hash};
use crate::da::{Path, Side};
use crate::error::{Error, Result};
use crate::fork::ForkMut;
use xfs_format::attr::{
    AttrValue, INDEX, LeafItem, insert_item, is_local, leaf_items, leaf_room, remove_item, write_leaf,
};
use xfs_format::error::FormatError;
use xfs_format::types::FileBlock;

/// Sets an attribute.
pub(super) fn set(fork: &mut dyn ForkMut, attr: &NewAttr<'_>, how: Put) -> Result<(), EditError> {
    let place = locate(fork, &attr.key())?;
    check_how(how, place.found.is_some())?;
    let replaced = place.found.is_some();
    if let Some(old) = place.found {
        // The leaf keeps its last hash: a name of the same hash comes back at once.
        let mut draft = leaf::read(fork, place.path.leaf())?;
        remove_item(&mut draft.bytes, place.slot).map_err(|problem| draft.corrupt(fork, problem))?;
        draft.store(fork)?;
        if let Some((block, len)) = old {
            remote::free(fork, block, len)?;
        }
    }
    let block_size = fork.geometry().block_size as usize;
    let value = if is_local(block_size, attr.name.len(), attr.value.len()) {
        AttrValue::Inline(attr.value)
    } else {
        let block = remote::write(fork, attr.value)?;
        AttrValue::Remote { block, len: attr.value.len() as u32 } // 64 KiB at most
    };
    let item =
        LeafItem::new(attr.key().hash(), attr.namespace.flags(), attr.name, value).ok_or(EditError::Name)?;
    let path = insert_at(fork, place.path, place.slot, item)?;
    if replaced {
        shrink(fork, path)?;
    }
    Ok(())
}

/// Puts an item where its hash belongs.
pub(super) fn insert(fork: &mut dyn ForkMut, item: LeafItem<'_>) -> Result<()> {
    let path = Path::to_hash(fork, &index(), item.hash)?;
    let draft = leaf::read(fork, path.leaf())?;
    let slot = leaf::parse(fork, &draft)?.entries.partition_point(|entry| entry.hash.get() < item.hash);
    insert_at(fork, path, slot, item)?;
    Ok(())
}

/// Puts an item into a slot of the leaf at the end of `path`, which is parted if it is too full. Gives the way to the
/// (left) leaf as it is now.
fn insert_at(fork: &mut dyn ForkMut, mut path: Path, slot: usize, item: LeafItem<'_>) -> Result<Path> {
    let mut draft = leaf::read(fork, path.leaf())?;
    let fits = insert_item(&mut draft.bytes, slot, &item).map_err(|problem| draft.corrupt(fork, problem))?;
    if fits {
        let last = leaf::parse(fork, &draft)?.entries.last().map_or(0, |entry| entry.hash.get());
        draft.store(fork)?;
        set_last_hash(fork, &index(), &path, last)?;
        return Ok(path);
    }
    let full = draft.bytes.clone();
    let leaf =
        xfs_format::attr::AttrLeaf::parse(&full, true).map_err(|problem| draft.corrupt(fork, problem))?;
    let mut items = leaf_items(&leaf).map_err(|problem| draft.corrupt(fork, problem))?;
    items.insert(slot.min(items.len()), item);
    let mut parts = part(items, slot, full.len());
    if parts.len() < 2 {
        return Err(draft.corrupt(fork, FormatError::value(INDEX.name, "entry count", parts.len() as u64)));
    }
    let left = parts.remove(0);
    write_leaf(&mut draft.bytes, &left).map_err(|problem| draft.corrupt(fork, problem))?;
    draft.store(fork)?;
    // Each goes directly behind the left one: the last first.
    for right in parts.iter().rev() {
        let new = map_block(fork, &index())?;
        leaf::create(fork, new, right)?;
        add_leaf(fork, &index(), &mut path, last_hash(&left), new, last_hash(right))?;
    }
    Ok(path)
}

/// Removes an attribute.
pub(super) fn remove(fork: &mut dyn ForkMut, key: &Key<'_>) -> Result<(), EditError> {
    let place = locate(fork, key)?;
    let old = place.found.ok_or(EditError::Missing)?;
    let mut draft = leaf::read(fork, place.path.leaf())?;
    remove_item(&mut draft.bytes, place.slot).map_err(|problem| draft.corrupt(fork, problem))?;
    let last = leaf::parse(fork, &draft)?.entries.last().map(|entry| entry.hash.get());
    if let Some((block, len)) = old {
        remote::free(fork, block, len)?;
    }
    match last {
        Some(last) => {
            draft.store(fork)?;
            set_last_hash(fork, &index(), &place.path, last)?;
            shrink(fork, place.path)?;
        }
        None if place.path.leaf_is_root() => {
            unmap_values(fork)?;
            fork.unmap(FileBlock(index().root), 1)?;
            fork.remove_fork()?;
        }
        None => {
            remove_leaf(fork, &index(), &place.path)?;
            convert::to_short(fork)?;
        }
    }
    Ok(())
}

/// Gives back the blocks of values that no leaf names: a kernel that is cut while it sets an attribute may leave some.
fn unmap_values(fork: &mut dyn ForkMut) -> Result<()> {
    let mut at = FileBlock(index().root + 1);
    while let Some(start) = fork.next_mapped(at)? {
        let end = fork.next_unmapped(start)?;
        let count = u32::try_from(end.0 - start.0).unwrap_or(u32::MAX);
        fork.unmap(start, count)?;
        at = end;
    }
    Ok(())
}

/// Merges the leaf at the end of `path` with one beside it, if it is half empty and both together leave a quarter of a
/// block free; then takes what is left into the inode, if it fits.
fn shrink(fork: &mut dyn ForkMut, path: Path) -> Result<()> {
    if !path.leaf_is_root() {
        merge(fork, path)?;
    }
    convert::to_short(fork)
}

fn merge(fork: &mut dyn ForkMut, path: Path) -> Result<()> {
    let this = leaf::read(fork, path.leaf())?;
    let items = items_of(fork, &this)?;
    let size = this.bytes.len();
    if cost(&items) + (size - leaf_room(size)) > size / 2 {
        return Ok(());
    }
    for side in [Side::Behind, Side::Before] {
        let Some(other_path) = path.neighbour(fork, &index(), side)? else { continue };
        let other = leaf::read(fork, other_path.leaf())?;
        let others = items_of(fork, &other)?;
        if cost(&items) + cost(&others) > leaf_room(size) - size / 4 {
            continue;
        }
        if other_path.leaf() == path.leaf() {
            return Err(this.corrupt(fork, FormatError::value(INDEX.name, "child pointer", path.leaf().0)));
        }
        let (left_path, right_path, both) = match side {
            Side::Behind => (&path, &other_path, [items, others].concat()),
            Side::Before => (&other_path, &path, [others, items].concat()),
        };
        if both.windows(2).any(|pair| matches!(pair, [a, b] if a.hash > b.hash)) {
            return Err(this.corrupt(fork, FormatError::new(INDEX.name, "hash order")));
        }
        let mut draft = leaf::read(fork, left_path.leaf())?;
        write_leaf(&mut draft.bytes, &both).map_err(|problem| draft.corrupt(fork, problem))?;
        draft.store(fork)?;
        set_last_hash(fork, &index(), left_path, last_hash(&both))?;
        return remove_leaf(fork, &index(), right_path);
    }
    Ok(())
}

fn items_of(fork: &dyn ForkMut, draft: &crate::da::draft::Draft) -> Result<Vec<LeafItem<'static>>> {
    let leaf = leaf::parse(fork, draft)?;
    let items =
        leaf_items(&leaf).map_err(|problem: FormatError| -> Error { draft.corrupt(fork, problem) })?;
    Ok(items.into_iter().map(LeafItem::into_owned).collect())
}
