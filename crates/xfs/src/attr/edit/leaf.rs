//! One leaf: finding an attribute in the leaves of its hash, and splitting the items of a leaf that is too full.

use crate::attr::{Key, index};
use crate::da::check_owner;
use crate::da::edit::{Block, DaPath, Leaves, Seen, seek};
use crate::error::Result;
use crate::fork::{Fork, ForkMut};
use xfs_format::attr::{
    AttrLeaf, AttrValue, INDEX, LeafItem, format_leaf, leaf_cost, leaf_items, leaf_room, write_leaf,
};
use xfs_format::edit::Image;
use xfs_format::error::FormatError;
use xfs_format::types::FileBlock;

/// The result of looking up an attribute, and the path to it.
pub(super) struct Lookup {
    /// The path to its leaf. If the attribute does not exist: to the first leaf that may have its hash.
    pub(super) path: DaPath,
    /// That leaf.
    pub(super) leaf: Block,
    pub(super) found: Option<Found>,
}

/// An existing attribute.
pub(super) struct Found {
    /// Its slot in the table.
    pub(super) slot: usize,
    /// Where its value is. `None` if it is stored beside the name.
    pub(super) remote: Option<(FileBlock, u32)>,
}

/// Looks up an attribute. Names of one hash may lie in several leaves.
pub(super) fn look(fork: &mut dyn ForkMut, key: &Key<'_>) -> Result<Lookup> {
    let hash = key.hash();
    let (path, leaf, found) = seek(fork, &index(), hash, |fork, _, block| {
        let leaf = parse(fork, block)?;
        let rest = leaf.from_hash(hash);
        let from = leaf.entries.len() - rest.len();
        for (slot, entry) in (from..).zip(rest) {
            if entry.hash.get() != hash {
                return Ok(Seen::End);
            }
            let attr = leaf.attr(entry).map_err(|problem| block.place.bad(problem))?;
            let (inline, remote) = match attr.value {
                AttrValue::Inline(value) => (Some(value), None),
                AttrValue::Remote { block, len } => (None, Some((block, len))),
            };
            if key.is(attr.flags, attr.name, inline) {
                return Ok(Seen::Found(Found { slot, remote }));
            }
        }
        let more = leaf.entries.last().is_some_and(|last| last.hash.get() == hash);
        Ok(if more { Seen::More } else { Seen::End })
    })?;
    Ok(Lookup { path, leaf, found })
}

/// Reads the leaf at `at` in order to change it.
pub(super) fn read(fork: &mut dyn ForkMut, at: FileBlock) -> Result<Block> {
    Block::read(fork, at, index().blocks, &INDEX)
}

/// A view of a leaf as it is now. It must belong to the fork.
pub(super) fn parse<'a>(fork: &dyn Fork, block: &'a Block) -> Result<AttrLeaf<'a>> {
    let leaf = AttrLeaf::parse(block.bytes(), true).map_err(|problem| block.place.bad(problem))?;
    check_owner(fork, block.place.daddr(), INDEX.name, leaf.header.owner)?;
    Ok(leaf)
}

/// Makes a leaf where nothing is mapped.
pub(super) fn map(fork: &mut dyn ForkMut, at: FileBlock, items: &[LeafItem<'_>]) -> Result<Block> {
    let block = Block::map(fork, at, index().blocks, &INDEX)?;
    format(fork, block, items)
}

/// Makes a leaf in a zeroed block.
pub(super) fn format(fork: &dyn Fork, mut block: Block, items: &[LeafItem<'_>]) -> Result<Block> {
    let (place, stamp) = (block.place, block.stamp(fork));
    format_leaf(&mut block.image, &stamp, items).map_err(|problem| place.bad(problem))?;
    Ok(block)
}

/// The largest hash of some items in order; 0 if there are none.
pub(super) fn last_hash(items: &[LeafItem<'_>]) -> u32 {
    items.last().map_or(0, |item| item.hash)
}

/// Where to split items that do not fit into one leaf of `size` bytes into two parts as even as possible. `None` if a
/// large item fits beside neither of its neighbours.
pub(super) fn halve(items: &[LeafItem<'_>], size: usize) -> Option<usize> {
    let (room, total) = (leaf_room(size), items.iter().map(LeafItem::cost).sum::<usize>());
    let mut before = 0;
    let mut best: Option<(usize, usize)> = None;
    for (at, item) in items.iter().enumerate() {
        let fuller = before.max(total - before);
        if at > 0 && fuller <= room && best.is_none_or(|(least, _)| fuller < least) {
            best = Some((fuller, at));
        }
        before += item.cost();
    }
    best.map(|(_, at)| at)
}

/// What the tree needs to know of attribute leaves.
pub(super) struct AttrLeaves;

impl Leaves for AttrLeaves {
    fn fill(&self, leaf: &[u8]) -> Result<(usize, usize), FormatError> {
        Ok((leaf_cost(&AttrLeaf::parse(leaf, true)?)?, leaf_room(leaf.len())))
    }

    fn last_hash(&self, leaf: &[u8]) -> Result<Option<u32>, FormatError> {
        Ok(AttrLeaf::parse(leaf, true)?.entries.last().map(|entry| entry.hash.get()))
    }

    fn join(&self, left: &mut Image, right: &[u8]) -> Result<(), FormatError> {
        let before = left.clone();
        let mut items = leaf_items(&AttrLeaf::parse(before.bytes(), true)?)?;
        items.extend(leaf_items(&AttrLeaf::parse(right, true)?)?);
        if !items.is_sorted_by_key(|item| item.hash) {
            return Err(FormatError::new(INDEX.name, "hash order of neighbours"));
        }
        write_leaf(left, &items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xfs_format::attr::AttrFlags;

    fn items(lens: &[usize]) -> Vec<LeafItem<'static>> {
        let item = |(nth, &len): (usize, &usize)| {
            let value = vec![0; len];
            LeafItem::new(nth as u32, AttrFlags::empty(), b"n", AttrValue::Inline(&value)).unwrap()
        };
        lens.iter().enumerate().map(item).collect()
    }

    #[test]
    fn halves_are_even_and_fit() {
        let at = |lens: &[usize]| halve(&items(lens), 1024);
        assert_eq!(at(&[200; 6]), Some(3));
        assert_eq!(at(&[700, 100, 100, 100]), Some(1));
        assert_eq!(at(&[700, 700]), Some(1));
        assert_eq!(at(&[400, 700, 400]), None);
        assert_eq!(at(&[200, 200, 700, 200, 200]), None);
    }
}
