//! Attributes in leaves, one or a tree of them.

use super::leaf::{self, AttrLeaves, Lookup, halve, last_hash, look};
use super::{EditError, NewAttr, SetXattr, check_how, convert, remote};
use crate::attr::{Key, index};
use crate::da::edit::{Block, DaPath, enter_split, find_path, fix_path, free_place, shrink};
use crate::error::Result;
use crate::fork::ForkMut;
use xfs_format::attr::{
    AttrLeaf, AttrValue, INDEX, LeafItem, insert_item, is_local, leaf_items, remove_item, write_leaf,
};
use xfs_format::error::FormatError;
use xfs_format::types::FileBlock;

/// Sets an attribute.
pub(super) fn set(fork: &mut dyn ForkMut, attr: &NewAttr<'_>, how: SetXattr) -> Result<(), EditError> {
    let Lookup { path, mut leaf, found } = look(fork, &attr.key())?;
    check_how(how, found.is_some())?;
    let replaced = found.is_some();
    if let Some(old) = found {
        take_out(fork, &mut leaf, old)?;
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
    let place = leaf.place;
    if !insert_item(&mut leaf.image, &item).map_err(|problem| place.bad(problem))? {
        return Ok(split(fork, &path, leaf, item)?);
    }
    if replaced {
        write_smaller(fork, &path, leaf)?;
    } else {
        write_larger(fork, &path, leaf, item.hash)?;
    }
    Ok(())
}

/// Inserts an item where its hash belongs.
pub(super) fn insert(fork: &mut dyn ForkMut, item: LeafItem<'_>) -> Result<()> {
    let (path, mut leaf) = find_path(fork, &index(), item.hash)?;
    let place = leaf.place;
    if insert_item(&mut leaf.image, &item).map_err(|problem| place.bad(problem))? {
        write_larger(fork, &path, leaf, item.hash)
    } else {
        split(fork, &path, leaf, item)
    }
}

/// Writes a leaf that got an item with this hash.
fn write_larger(fork: &mut dyn ForkMut, path: &DaPath, leaf: Block, hash: u32) -> Result<()> {
    let last = leaf::parse(fork, &leaf)?.entries.last().map(|entry| entry.hash.get());
    leaf.write(fork)?;
    // Any other last hash was already the last before.
    if last == Some(hash) { fix_path(fork, &index(), path, hash) } else { Ok(()) }
}

/// Writes a leaf that may have shrunk, or joins it with a neighbour; then moves what is left into the inode, if it
/// fits.
fn write_smaller(fork: &mut dyn ForkMut, path: &DaPath, leaf: Block) -> Result<()> {
    if path.is_lone() {
        return convert::write_leaf_or_short(fork, leaf);
    }
    shrink(fork, &index(), path, leaf, &AttrLeaves)?;
    convert::tree_to_short(fork)
}

/// Splits a leaf that has no room for an item. A large item may fit into neither half. Then the leaf is split where the
/// item belongs, and the item is inserted afterwards.
fn split(fork: &mut dyn ForkMut, path: &DaPath, mut leaf: Block, item: LeafItem<'_>) -> Result<()> {
    let place = leaf.place;
    let bad = |problem| place.bad(problem);
    let before = leaf.image.clone();
    let view = AttrLeaf::parse(before.bytes(), true).map_err(bad)?;
    let mut lower = leaf_items(&view).map_err(bad)?;
    let (slot, hash) = (lower.partition_point(|known| known.hash < item.hash), item.hash);
    lower.insert(slot, item);
    let (upper, left_out) = match halve(&lower, before.bytes().len()) {
        Some(at) => (lower.split_off(at), None),
        None => {
            let mut rest = lower.split_off(slot);
            let item = rest.remove(0);
            (rest, Some(item))
        }
    };
    if lower.is_empty() || upper.is_empty() {
        return Err(bad(FormatError::value(INDEX.name, "entry count", view.entries.len() as u64)));
    }
    let (lower_hash, upper_hash) = (last_hash(&lower), last_hash(&upper));
    write_leaf(&mut leaf.image, &lower).map_err(bad)?;
    let at = free_place(fork, &index(), hash)?;
    let right = leaf::map(fork, at, &upper)?;
    enter_split(fork, &index(), path, (leaf, lower_hash), (right, upper_hash))?;
    left_out.map_or(Ok(()), |item| insert(fork, item))
}

/// Removes an attribute.
pub(super) fn remove(fork: &mut dyn ForkMut, key: &Key<'_>) -> Result<(), EditError> {
    let Lookup { path, mut leaf, found } = look(fork, key)?;
    take_out(fork, &mut leaf, found.ok_or(EditError::Missing)?)?;
    if path.is_lone() && leaf::parse(fork, &leaf)?.entries.is_empty() {
        unmap_values(fork)?;
        leaf.unmap(fork)?;
        fork.remove_fork()?;
        return Ok(());
    }
    Ok(write_smaller(fork, &path, leaf)?)
}

/// Removes an attribute from its leaf, which is not written yet, and frees the blocks of its value.
fn take_out(fork: &mut dyn ForkMut, leaf: &mut Block, old: leaf::Found) -> Result<()> {
    let place = leaf.place;
    remove_item(&mut leaf.image, old.slot).map_err(|problem| place.bad(problem))?;
    old.remote.map_or(Ok(()), |(block, len)| remote::free(fork, block, len))
}

/// Frees the blocks of values that no leaf refers to. A kernel that crashes while it sets an attribute may leave some.
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
