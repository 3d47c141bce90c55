//! Conversion between the inode and a tree of leaves.

use super::leaf;
use super::tree::insert;
use crate::attr::index;
use crate::da::edit::Block;
use crate::error::{Error, Result};
use crate::fork::ForkMut;
use xfs_format::attr::{
    AttrFlags, AttrValue, INDEX, LeafItem, ShortAttr, attr_hash, encode_short, leaf_room,
};
use xfs_format::da::{Node, block_magic};
use xfs_format::error::FormatError;
use xfs_format::types::FileBlock;

/// Converts a fork that was in the inode or empty to a tree with these attributes.
pub(super) fn to_tree(fork: &mut dyn ForkMut, attrs: &[ShortAttr<'_>]) -> Result<()> {
    fork.set_extents()?;
    let mut items = Vec::with_capacity(attrs.len());
    for attr in attrs {
        let (hash, value) = (attr_hash(attr.flags, attr.name, attr.value), AttrValue::Inline(attr.value));
        let item = LeafItem::new(hash, attr.flags, attr.name, value);
        items.push(item.ok_or_else(|| {
            Error::corrupt_inode(fork.inode(), FormatError::new(INDEX.name, "attribute name"))
        })?);
    }
    items.sort_by_key(|item| item.hash);
    // Tiny attributes may take more than one block, because a leaf has more overhead for each.
    let room = leaf_room(fork.geometry().block_size as usize);
    let mut cost = 0;
    let fit = items.iter().take_while(|item| {
        cost += item.cost();
        cost <= room
    });
    let rest = items.split_off(fit.count());
    leaf::map(fork, FileBlock(index().root), &items)?.write(fork)?;
    for item in rest {
        insert(fork, item)?;
    }
    Ok(())
}

/// After a change of the tree: moves the attributes back into the inode, if one leaf is left and everything fits.
pub(super) fn tree_to_short(fork: &mut dyn ForkMut) -> Result<()> {
    let root = leaf::read(fork, FileBlock(index().root))?;
    if block_magic(root.bytes()).is_some_and(|magic| Node::is(magic, true)) {
        return Ok(());
    }
    write_leaf_or_short(fork, root)
}

/// Writes the only leaf of a fork that lost an attribute, or moves what is left into the inode.
pub(super) fn write_leaf_or_short(fork: &mut dyn ForkMut, leaf: Block) -> Result<()> {
    match fits_inode(fork, &leaf)? {
        Some(bytes) => {
            leaf.unmap(fork)?;
            fork.set_local(&bytes)
        }
        None => leaf.write(fork),
    }
}

/// The attributes of the only leaf in short form, if they can have it and it fits into the inode.
fn fits_inode(fork: &dyn ForkMut, block: &Block) -> Result<Option<Vec<u8>>> {
    if fork.next_mapped(FileBlock(index().root + 1))?.is_some() {
        return Ok(None);
    }
    let leaf = leaf::parse(fork, block)?;
    let mut attrs = Vec::with_capacity(leaf.entries.len());
    for entry in leaf.entries {
        let attr = leaf.attr(entry).map_err(|problem| block.place.bad(problem))?;
        let AttrValue::Inline(value) = attr.value else { return Ok(None) };
        let short = ShortAttr { flags: attr.flags, name: attr.name, value };
        if attr.flags.contains(AttrFlags::INCOMPLETE) || !short.is_short() {
            return Ok(None);
        }
        attrs.push(short);
    }
    Ok(encode_short(attrs).filter(|bytes| bytes.len() <= fork.local_capacity()))
}
