//! One leaf: finding an attribute in the leaves of its hash, and parting the items of a leaf that is too full.

use crate::attr::{Key, index, parse_leaf};
use crate::da::draft::{Draft, identity};
use crate::da::{LeafBlock, Path, Side, check_owner};
use crate::error::{Error, Result};
use crate::fork::{Fork, ForkMut};
use xfs_format::attr::{AttrLeaf, AttrValue, INDEX, LeafItem, init_leaf, leaf_room};
use xfs_format::error::FormatError;
use xfs_format::types::FileBlock;

/// Where an attribute is, or would be.
pub(super) struct Place {
    /// The way to its leaf.
    pub(super) path: Path,
    /// Its slot in the table.
    pub(super) slot: usize,
    /// If it is there: where its value lies outside the leaf (nothing: beside the name).
    pub(super) found: Option<Option<(FileBlock, u32)>>,
}

/// Finds an attribute. Names of one hash may lie in several leaves.
pub(super) fn locate(fork: &dyn Fork, key: &Key<'_>) -> Result<Place> {
    let hash = key.hash();
    let first = Path::to_hash(fork, &index(), hash)?;
    let mut vacant = None;
    let mut path = first.clone();
    loop {
        let here = LeafBlock { at: path.leaf(), buf: fork.read(path.leaf(), 1, &INDEX)? };
        let leaf = parse_leaf(fork, &here)?;
        let corrupt = |problem| Error::corrupt_block(here.buf.daddr(), Some(fork.inode()), problem);
        let start = leaf.entries.partition_point(|entry| entry.hash.get() < hash);
        for (slot, entry) in leaf.entries.iter().enumerate().skip(start) {
            if entry.hash.get() != hash {
                break;
            }
            let attr = leaf.attr(entry).map_err(corrupt)?;
            let inline = if let AttrValue::Inline(value) = attr.value { Some(value) } else { None };
            if key.is(attr.flags, attr.name, inline) {
                let remote = match attr.value {
                    AttrValue::Inline(_) => None,
                    AttrValue::Remote { block, len } => Some((block, len)),
                };
                return Ok(Place { path, slot, found: Some(remote) });
            }
        }
        let vacant = vacant.get_or_insert(start);
        let more = leaf.entries.last().is_some_and(|last| last.hash.get() == hash);
        let next = if more { path.neighbour(fork, &index(), Side::Behind)? } else { None };
        let Some(next) = next else {
            return Ok(Place { path: first, slot: *vacant, found: None });
        };
        // Each leaf points back to the one before it, and none may be the first: so no leaf comes twice.
        let back = parse_leaf(fork, &LeafBlock { at: next.leaf(), buf: fork.read(next.leaf(), 1, &INDEX)? })?
            .header
            .back;
        if u64::from(back) != here.at.0 || next.leaf() == first.leaf() {
            let (found, expected) = (back.into(), here.at.0);
            return Err(corrupt(FormatError::mismatch(INDEX.name, "backward sibling", found, expected)));
        }
        path = next;
    }
}

/// A leaf, to be changed.
pub(super) fn read(fork: &dyn Fork, at: FileBlock) -> Result<Draft> {
    Draft::read(fork, at, 1, &INDEX)
}

/// The leaf in a draft, which must be one of the fork's.
pub(super) fn parse<'a>(fork: &dyn Fork, draft: &'a Draft) -> Result<AttrLeaf<'a>> {
    let leaf = AttrLeaf::parse(&draft.bytes, true).map_err(|problem| draft.corrupt(fork, problem))?;
    check_owner(fork, draft.daddr(), INDEX.name, leaf.header.owner)?;
    Ok(leaf)
}

/// Fills a block that was just mapped.
pub(super) fn create(fork: &mut dyn ForkMut, at: FileBlock, items: &[LeafItem<'_>]) -> Result<()> {
    let id = identity(fork, at)?;
    let bytes = fork.create(at, 1, &INDEX)?;
    init_leaf(bytes, &id, items).map_err(|problem| Error::corrupt_block(id.daddr, Some(id.owner), problem))
}

/// The greatest hash of some items in order; 0 if there is none.
pub(super) fn last_hash(items: &[LeafItem<'_>]) -> u32 {
    items.last().map_or(0, |item| item.hash)
}

/// Bytes that items take.
pub(super) fn cost(items: &[LeafItem<'_>]) -> usize {
    items.iter().map(LeafItem::cost).sum()
}

/// Parts items that do not fit into one leaf of `size` bytes: into two as even as can be, or into three if a large
/// one (at `large`) fits beside neither of its neighbours.
pub(super) fn part<'a>(items: Vec<LeafItem<'a>>, large: usize, size: usize) -> Vec<Vec<LeafItem<'a>>> {
    let (room, total) = (leaf_room(size), cost(&items));
    let mut before = 0;
    let mut best: Option<(usize, usize)> = None;
    for (at, item) in items.iter().enumerate() {
        let fuller = before.max(total - before);
        if at > 0 && fuller <= room && best.is_none_or(|(least, _)| fuller < least) {
            best = Some((fuller, at));
        }
        before += item.cost();
    }
    let mut left = items;
    if let Some((_, at)) = best {
        let right = left.split_off(at);
        return vec![left, right];
    }
    let mut middle = left.split_off(large.min(left.len()));
    let right = middle.split_off(1.min(middle.len()));
    [left, middle, right].into_iter().filter(|part| !part.is_empty()).collect()
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

    fn sizes(lens: &[usize], large: usize) -> Vec<usize> {
        part(items(lens), large, 1024).iter().map(Vec::len).collect()
    }

    #[test]
    fn parts_are_even_and_three_where_two_do_not_do() {
        assert_eq!(sizes(&[200; 6], 3), [3, 3]);
        assert_eq!(sizes(&[700, 100, 100, 100], 0), [1, 3]);
        assert_eq!(sizes(&[400, 700, 400], 1), [1, 1, 1]);
        assert_eq!(sizes(&[200, 200, 700, 200, 200], 2), [2, 1, 2]);
        assert_eq!(sizes(&[700, 700], 0), [1, 1]);
    }
}
