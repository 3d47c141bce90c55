//! Between the inode and a tree of leaves.

use super::leaf::create;
use super::tree::insert;
use crate::attr::index;
use crate::da::edit::map_block;
use crate::error::{Error, Result};
use crate::fork::ForkMut;
use xfs_format::attr::{
    AttrFlags, AttrLeaf, AttrValue, INDEX, LeafItem, ShortAttr, attr_hash, encode_short, leaf_room,
};
use xfs_format::da::{Node, block_magic};
use xfs_format::error::FormatError;
use xfs_format::types::FileBlock;

/// Makes a tree of a fork that was in the inode or empty, with these attributes.
pub(super) fn to_tree(fork: &mut dyn ForkMut, attrs: &[ShortAttr<'_>]) -> Result<()> {
    fork.set_extents()?;
    let root = map_block(fork, &index())?;
    if root.0 != index().root {
        return Err(Error::corrupt_inode(fork.inode(), FormatError::value(INDEX.name, "root", root.0)));
    }
    let mut items = Vec::with_capacity(attrs.len());
    for attr in attrs {
        let (hash, value) = (attr_hash(attr.flags, attr.name, attr.value), AttrValue::Inline(attr.value));
        let item = LeafItem::new(hash, attr.flags, attr.name, value);
        items.push(item.ok_or_else(|| {
            Error::corrupt_inode(fork.inode(), FormatError::new(INDEX.name, "attribute name"))
        })?);
    }
    items.sort_by_key(|item| item.hash);
    // Tiny attributes may take more than a block: a leaf has more to say of each.
    let room = leaf_room(fork.geometry().block_size as usize);
    let mut cost = 0;
    let fit = items.iter().take_while(|item| {
        cost += item.cost();
        cost <= room
    });
    let rest = items.split_off(fit.count());
    create(fork, root, &items)?;
    for item in rest {
        insert(fork, item)?;
    }
    Ok(())
}

/// Takes the attributes back into the inode, if one leaf is left and all of it fits there.
pub(super) fn to_short(fork: &mut dyn ForkMut) -> Result<()> {
    let buf = fork.read(FileBlock(index().root), 1, &INDEX)?;
    if block_magic(&buf).is_some_and(|magic| Node::is(magic, true))
        || fork.next_mapped(FileBlock(index().root + 1))?.is_some()
    {
        return Ok(());
    }
    let corrupt = |problem| Error::corrupt_block(buf.daddr(), Some(fork.inode()), problem);
    let leaf = AttrLeaf::parse(&buf, true).map_err(corrupt)?;
    let mut attrs = Vec::with_capacity(leaf.entries.len());
    for entry in leaf.entries {
        let attr = leaf.attr(entry).map_err(corrupt)?;
        let AttrValue::Inline(value) = attr.value else { return Ok(()) };
        if attr.flags.contains(AttrFlags::INCOMPLETE) {
            return Ok(());
        }
        let attr = ShortAttr { flags: attr.flags, name: attr.name, value };
        if !attr.is_short() {
            return Ok(());
        }
        attrs.push(attr);
    }
    let Some(bytes) = encode_short(attrs).filter(|bytes| bytes.len() <= fork.local_capacity()) else {
        return Ok(());
    };
    fork.unmap(FileBlock(index().root), 1)?;
    fork.set_local(&bytes)
}
