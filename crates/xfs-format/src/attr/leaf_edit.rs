//! Changes to a v5 attribute leaf: entries in and out, and leaves made anew.
//!
//! The header's account of free space is never trusted: each change works out from the entries what is in use, and
//! writes the header anew. So a change to a damaged leaf overwrites nothing that an entry points to.
//!
//! Invariants of a leaf that was changed or made here: names and values do not overlap and are aligned to 4 bytes;
//! `used_bytes` is their sum and `first_used` the first of them; the free map names the gap behind the table and the
//! two largest others, and the leaf says that it has holes if there are any. Bytes that are given up become zeroes.

use super::leaf::{
    AttrLeaf, AttrLeafEntry, Counts, FreeMap, LEAF_MAGIC_V5, LocalName, NAME, RemoteName, header_len,
};
use super::{AttrFlags, AttrValue};
use crate::da::{DaHeader, format_header};
use crate::edit::{ByteEdit, Image, Stamp};
use crate::error::FormatError;
use std::borrow::Cow;
use std::mem::size_of;
use std::ops::Range;
use zerocopy::{FromZeros, IntoBytes};

/// Names and values begin at multiples of this.
const ALIGN: usize = 4;
/// Bytes behind a name whose value lies elsewhere that count as used: the head once ended on a multiple of 4.
const REMOTE_PAD: usize = 2;
const ENTRY: usize = size_of::<AttrLeafEntry>();
const HEADER: usize = header_len(true);

/// One attribute as it lies in a leaf, ready to be put into another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafItem<'a> {
    /// Hash of the name.
    pub hash: u32,
    flags: u8,
    /// Head, name and value or its place, filled up to the alignment.
    place: Cow<'a, [u8]>,
}

impl<'a> LeafItem<'a> {
    /// A new one. `None` if name or value are too long for any leaf.
    pub fn new(
        hash: u32,
        namespace: AttrFlags,
        name: &[u8],
        value: AttrValue<'_>,
    ) -> Option<LeafItem<'static>> {
        let name_len = u8::try_from(name.len()).ok()?;
        let mut place = Vec::new();
        let mut flags = namespace.namespace();
        match value {
            AttrValue::Inline(value) => {
                flags |= AttrFlags::LOCAL;
                let value_len = u16::try_from(value.len()).ok()?;
                place.extend_from_slice(LocalName { value_len: value_len.into(), name_len }.as_bytes());
                place.extend_from_slice(name);
                place.extend_from_slice(value);
            }
            AttrValue::Remote { block, len } => {
                let value_block = u32::try_from(block.0).ok()?.into();
                let head = RemoteName { value_block, value_len: len.into(), name_len };
                place.extend_from_slice(head.as_bytes());
                place.extend_from_slice(name);
                place.extend_from_slice(&[0; REMOTE_PAD]);
            }
        }
        place.resize(place.len().next_multiple_of(ALIGN), 0);
        Some(LeafItem { hash, flags: flags.bits(), place: place.into() })
    }

    /// Its entry in the table, if its bytes lie at `at`.
    fn entry(&self, at: usize) -> Result<AttrLeafEntry, FormatError> {
        let name_index = u16::try_from(at).map_err(|_| FormatError::value(NAME, "name index", at as u64))?;
        let (hash, name_index) = (self.hash.into(), name_index.into());
        Ok(AttrLeafEntry { hash, name_index, flags: self.flags, pad: 0 })
    }

    /// Bytes of a leaf that it takes, with its entry in the table.
    pub fn cost(&self) -> usize {
        self.place.len() + ENTRY
    }
}

/// Bytes of a leaf of `len` bytes for items.
pub const fn leaf_room(len: usize) -> usize {
    len.saturating_sub(HEADER)
}

/// Whether a value lies beside its name: it does where both take less than three quarters of a block.
pub const fn is_local(block_size: usize, name_len: usize, value_len: usize) -> bool {
    (size_of::<LocalName>() + name_len + value_len).next_multiple_of(ALIGN) < block_size / 2 + block_size / 4
}

/// All items of a leaf, in order.
pub fn leaf_items<'a>(leaf: &AttrLeaf<'a>) -> Result<Vec<LeafItem<'a>>, FormatError> {
    let item = |entry: &AttrLeafEntry| {
        let range = extent(leaf, entry)?;
        let place = leaf.bytes.get(range).ok_or(FormatError::new(NAME, "name index"))?;
        Ok(LeafItem { hash: entry.hash.get(), flags: entry.flags, place: place.into() })
    };
    leaf.entries.iter().map(item).collect()
}

/// Bytes of a leaf that its items take.
pub fn leaf_cost(leaf: &AttrLeaf<'_>) -> Result<usize, FormatError> {
    leaf.entries.iter().map(|entry| Ok(extent(leaf, entry)?.len() + ENTRY)).sum()
}

/// Initialises a v5 leaf without siblings in a block of zeroes.
pub fn format_leaf(image: &mut Image, stamp: &Stamp, items: &[LeafItem<'_>]) -> Result<(), FormatError> {
    format_header(&mut image.edit(), LEAF_MAGIC_V5, stamp)?;
    write_leaf(image, items)
}

/// Writes items into a leaf whose header is there, in place of all that it held. They must fit, in order.
pub fn write_leaf(image: &mut Image, items: &[LeafItem<'_>]) -> Result<(), FormatError> {
    let mut patch = image.edit();
    let cost: usize = items.iter().map(LeafItem::cost).sum();
    let room = leaf_room(patch.bytes().len());
    if cost > room {
        return Err(FormatError::mismatch(NAME, "used bytes", cost as u64, room as u64));
    }
    let mut body = vec![0; room];
    let (mut at, mut end) = (0, room);
    for item in items {
        end -= item.place.len();
        body[end..end + item.place.len()].copy_from_slice(&item.place);
        body[at..at + ENTRY].copy_from_slice(item.entry(HEADER + end)?.as_bytes());
        at += ENTRY;
    }
    patch.put_changes(HEADER, &body)?;
    finish(&mut patch, items.len())
}

/// Puts an item behind those with smaller hashes. `false`, and nothing is changed, if there is no room even after
/// compaction.
pub fn insert_item(image: &mut Image, item: &LeafItem<'_>) -> Result<bool, FormatError> {
    let leaf = AttrLeaf::parse(image.bytes(), true)?;
    let index = leaf.entries.partition_point(|entry| entry.hash.get() < item.hash);
    let count = leaf.entries.len();
    let regions = Usage::of(&leaf)?.free();
    let free: usize = regions.iter().map(Range::len).sum();
    if free < item.cost() {
        return Ok(false);
    }
    let table_end = HEADER + count * ENTRY;
    let Some(at) = choose(&regions, table_end, item.place.len()) else {
        let before = image.clone();
        let mut items = leaf_items(&AttrLeaf::parse(before.bytes(), true)?)?;
        items.insert(index, item.clone());
        write_leaf(image, &items)?;
        return Ok(true);
    };
    let mut patch = image.edit();
    let from = HEADER + index * ENTRY;
    patch.shift(from..table_end, from + ENTRY)?;
    patch.put(from, item.entry(at)?.as_bytes())?;
    patch.put(at, &item.place)?;
    finish(&mut patch, count + 1)?;
    Ok(true)
}

/// Takes the item at `index` of the table out.
pub fn remove_item(image: &mut Image, index: usize) -> Result<(), FormatError> {
    let leaf = AttrLeaf::parse(image.bytes(), true)?;
    let count = leaf.entries.len();
    Usage::of(&leaf)?; // no other item's bytes are zeroed
    let entry = leaf.entries.get(index);
    let entry = entry.ok_or(FormatError::mismatch(NAME, "entry count", count as u64, index as u64))?;
    let place = extent(&leaf, entry)?;
    let mut patch = image.edit();
    patch.clear(place)?;
    let (from, end) = (HEADER + index * ENTRY, HEADER + count * ENTRY);
    patch.shift(from + ENTRY..end, from)?;
    patch.clear(end - ENTRY..end)?;
    finish(&mut patch, count - 1)
}

/// Where a name of `len` bytes goes: the smallest hole that holds it, else the end of the gap behind the table,
/// which gives up room for an entry in any case. `None`: only compaction makes room.
fn choose(regions: &[Range<usize>], table_end: usize, len: usize) -> Option<usize> {
    let gap = regions.first().filter(|gap| gap.start == table_end && gap.len() >= ENTRY)?;
    let holes = regions.iter().skip(1).filter(|hole| hole.len() >= len);
    let region = match holes.min_by_key(|hole| hole.len()) {
        Some(hole) => hole.clone(),
        None if gap.len() >= ENTRY + len => gap.clone(),
        None => return None,
    };
    Some(region.end - len)
}

/// Writes the header of a leaf of `count` entries.
fn finish(patch: &mut ByteEdit<'_>, count: usize) -> Result<(), FormatError> {
    let len = patch.bytes().len();
    let size = FormatError::value(NAME, "size", len as u64);
    let narrow = |value: usize| u16::try_from(value).map_err(|_| size.clone());
    // All that `parse` needs to find the entries.
    let mut counts = Counts::new_zeroed();
    counts.count = narrow(count)?.into();
    let table_end = HEADER + count * ENTRY;
    counts.first_used = narrow(table_end)?.into();
    write_counts(patch, &counts)?;
    let leaf = AttrLeaf::parse(patch.bytes(), true)?;
    let usage = Usage::of(&leaf)?;
    counts.used_bytes = narrow(usage.used)?.into();
    // In an empty leaf that is the end of the block. For the largest block it does not fit, and is stored as 0.
    counts.first_used = u16::try_from(usage.first).unwrap_or(0).into();
    let mut regions = usage.free();
    let others = usize::from(regions.first().is_some_and(|gap| gap.start == table_end));
    regions.get_mut(others..).unwrap_or_default().sort_by_key(|region| std::cmp::Reverse(region.len()));
    // Kernels that merge leaves assume that names fill the block from `first_used` to its end, unless this says that
    // there are holes.
    counts.holes = (usage.first + usage.used != len).into();
    for (map, region) in counts.free_map.iter_mut().zip(&regions) {
        *map = FreeMap { base: narrow(region.start)?.into(), size: narrow(region.len())?.into() };
    }
    write_counts(patch, &counts)
}

fn write_counts(patch: &mut ByteEdit<'_>, counts: &Counts) -> Result<(), FormatError> {
    let (from, pad) = (DaHeader::len(true), DaHeader::len(true) + size_of::<Counts>());
    patch.put(from, counts.as_bytes())?;
    patch.clear(pad..HEADER)
}

/// The bytes of an entry's name and value (or its place), padding included.
fn extent(leaf: &AttrLeaf<'_>, entry: &AttrLeafEntry) -> Result<Range<usize>, FormatError> {
    let attr = leaf.attr(entry)?;
    let head = match attr.value {
        AttrValue::Inline(value) => size_of::<LocalName>() + value.len(),
        AttrValue::Remote { .. } => size_of::<RemoteName>() + REMOTE_PAD,
    };
    let at = usize::from(entry.name_index.get());
    let end = at + (head + attr.name.len()).next_multiple_of(ALIGN);
    if !at.is_multiple_of(ALIGN) || end > leaf.bytes.len() {
        return Err(FormatError::value(NAME, "name index", at as u64));
    }
    Ok(at..end)
}

/// Which bytes of a leaf are in use: a bit for each 4.
struct Usage {
    bits: Vec<u64>,
    table_end: usize,
    len: usize,
    used: usize,
    first: usize,
}

impl Usage {
    /// Fails where two names share bytes, or one lies in the table.
    fn of(leaf: &AttrLeaf<'_>) -> Result<Self, FormatError> {
        let len = leaf.bytes.len();
        let table_end = HEADER + leaf.entries.len() * ENTRY;
        let mut usage = Self { bits: vec![0; len.div_ceil(ALIGN * 64)], table_end, len, used: 0, first: len };
        for entry in leaf.entries {
            let range = extent(leaf, entry)?;
            if range.start < table_end || !usage.take(&range) {
                return Err(FormatError::value(NAME, "overlap of names", range.start as u64));
            }
            usage.used += range.len();
            usage.first = usage.first.min(range.start);
        }
        Ok(usage)
    }

    /// Marks a range; `false` if some of it is in use.
    fn take(&mut self, range: &Range<usize>) -> bool {
        let (mut at, end) = (range.start / ALIGN, range.end / ALIGN);
        while at < end {
            let count = (64 - at % 64).min(end - at);
            let mask = (u64::MAX >> (64 - count)) << (at % 64);
            let Some(word) = self.bits.get_mut(at / 64).filter(|word| **word & mask == 0) else {
                return false;
            };
            *word |= mask;
            at += count;
        }
        true
    }

    /// The runs behind the table that are not in use, in order.
    fn free(&self) -> Vec<Range<usize>> {
        let mut runs = Vec::new();
        let (mut at, end) = (self.table_end / ALIGN, self.len / ALIGN);
        while at < end {
            let free_at = self.next(at, false).min(end);
            at = self.next(free_at, true).min(end);
            if free_at < at {
                runs.push(free_at * ALIGN..at * ALIGN);
            }
        }
        runs
    }

    /// The first unit at or behind `at` that is (not) in use.
    fn next(&self, at: usize, used: bool) -> usize {
        let mut shift = at % 64;
        for (nth, word) in self.bits.iter().enumerate().skip(at / 64) {
            let word = (if used { *word } else { !*word }) >> shift;
            if word != 0 {
                return nth * 64 + shift + word.trailing_zeros() as usize;
            }
            shift = 0;
        }
        usize::MAX / ALIGN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::da::name_hash;
    use crate::types::{DiskAddr, FileBlock, InodeNumber, Uuid};
    use crate::verify::VerifyContext;

    const STAMP: Stamp =
        Stamp { v5: true, daddr: DiskAddr(64), owner: InodeNumber(131), meta_uuid: Uuid([3; 16]) };

    fn new_leaf(len: usize, items: &[LeafItem<'_>]) -> Image {
        let mut image = Image::new(NAME, vec![0; len]);
        format_leaf(&mut image, &STAMP, items).unwrap();
        image
    }

    fn sound(bytes: &[u8]) -> AttrLeaf<'_> {
        let mut sealed = bytes.to_vec();
        crate::checksum::store(&mut sealed, 12);
        let context = VerifyContext { v5: true, meta_uuid: STAMP.meta_uuid, daddr: STAMP.daddr };
        (super::super::INDEX.check)(&sealed, &context).unwrap();
        AttrLeaf::parse(bytes, true).unwrap()
    }

    /// Compares the header's account of free space with the entries.
    fn check_header(bytes: &[u8]) {
        let leaf = sound(bytes);
        let usage = Usage::of(&leaf).unwrap();
        assert_eq!(usize::from(leaf.counts.used_bytes.get()), usage.used);
        assert_eq!(leaf.first_used, usage.first);
        let map = |free: &FreeMap| {
            let base = usize::from(free.base.get());
            base..base + usize::from(free.size.get())
        };
        let named: Vec<_> = leaf.counts.free_map.iter().map(map).filter(|range| !range.is_empty()).collect();
        let free = usage.free();
        assert!(named.iter().all(|range| free.contains(range)), "{named:?} of {free:?}");
        assert_eq!(named.len(), free.len().min(3));
        let whole = free.iter().all(|region| region.end == usage.first);
        assert_eq!(leaf.counts.holes == 0, whole, "{free:?}");
        let table_end = HEADER + leaf.entries.len() * ENTRY;
        if let Some(gap) = free.first().filter(|gap| gap.start == table_end) {
            assert_eq!(&named[0], gap, "the gap comes first");
        }
    }

    fn random_history(seed: u64, len: usize) {
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut image = new_leaf(len, &[]);
        let mut model: Vec<(u32, Vec<u8>, Vec<u8>)> = Vec::new();
        let (mut refused, mut compactions) = (0, 0);
        for step in 0..2000 {
            // The leaf fills up and empties in turns, so it is full some of the time with any seed.
            let filling = step / 200 % 2 == 0;
            let add = rng.u32(0..100) < if filling { 75 } else { 35 };
            let before = image.bytes().to_vec();
            if add {
                let name: Vec<u8> = (0..rng.usize(1..40)).map(|_| rng.u8(1..)).collect();
                let value: Vec<u8> = (0..rng.usize(0..len / 20)).map(|_| rng.u8(..)).collect();
                let hash = name_hash(&name);
                let item = LeafItem::new(hash, AttrFlags::empty(), &name, AttrValue::Inline(&value)).unwrap();
                let index = model.partition_point(|(other, ..)| *other < hash);
                let cost: usize = sound(image.bytes()).entries.len() * ENTRY
                    + Usage::of(&sound(image.bytes())).unwrap().used;
                let fits = cost + item.cost() <= leaf_room(len);
                let regions = Usage::of(&sound(image.bytes())).unwrap().free();
                let table_end = HEADER + model.len() * ENTRY;
                let compaction = fits && choose(&regions, table_end, item.place.len()).is_none();
                compactions += u32::from(compaction);
                assert_eq!(insert_item(&mut image, &item).unwrap(), fits);
                if fits {
                    model.insert(index, (hash, name, value));
                } else {
                    refused += 1;
                }
            } else if !model.is_empty() {
                let index = rng.usize(0..model.len());
                model.remove(index);
                remove_item(&mut image, index).unwrap();
            }
            let (bytes, changed) = image.into_parts();
            let known =
                |at: usize| before[at] == bytes[at] || changed.iter().any(|range| range.contains(&at));
            assert!((0..len).all(known), "bytes changed outside {changed:?}");
            image = Image::new(NAME, bytes);
            check_header(image.bytes());
            let leaf = sound(image.bytes());
            assert_eq!(leaf.entries.len(), model.len());
            for (entry, (hash, name, value)) in leaf.entries.iter().zip(&model) {
                let attr = leaf.attr(entry).unwrap();
                assert_eq!((entry.hash.get(), attr.name), (*hash, &**name));
                assert_eq!(attr.value, AttrValue::Inline(value));
            }
        }
        assert!(refused > 0 && compactions > 0, "{refused} refused, {compactions} compactions");
    }

    #[test]
    fn entries_come_and_go() {
        for len in [1024, 4096, 65536] {
            random_history(fastrand::u64(..), len);
        }
    }

    #[test]
    fn remote_values_and_namespaces_are_kept() {
        let value = AttrValue::Remote { block: FileBlock(7), len: 65_536 };
        let item = LeafItem::new(1, AttrFlags::SECURE, b"name", value).unwrap();
        let image = new_leaf(1024, std::slice::from_ref(&item));
        let leaf = sound(image.bytes());
        let attr = leaf.attr(&leaf.entries[0]).unwrap();
        assert_eq!((attr.flags, attr.name, attr.value), (AttrFlags::SECURE, &b"name"[..], value));
        assert_eq!(leaf_items(&leaf).unwrap(), [item]);
        assert_eq!(leaf.first_used, 1024 - 16);
    }

    #[test]
    fn the_empty_leaf_of_the_largest_block() {
        let image = new_leaf(65536, &[]);
        check_header(image.bytes());
        assert_eq!(sound(image.bytes()).first_used, 65536);
    }

    #[test]
    fn names_that_share_bytes_are_not_changed() {
        let item =
            |hash| LeafItem::new(hash, AttrFlags::empty(), b"name", AttrValue::Inline(b"value")).unwrap();
        let mut bytes = new_leaf(1024, &[item(1), item(2)]).bytes().to_vec();
        // Both entries point to the same name.
        let index: [u8; 2] = *bytes[HEADER + 4..].first_chunk().unwrap();
        bytes[HEADER + ENTRY + 4..][..2].copy_from_slice(&index);
        let mut image = Image::new(NAME, bytes.clone());
        assert_eq!(insert_item(&mut image, &item(0)).unwrap_err().check, "overlap of names");
        assert_eq!(remove_item(&mut image, 0).unwrap_err().check, "overlap of names");
        assert_eq!(image.bytes(), bytes);
    }

    #[test]
    fn values_stay_beside_their_names_up_to_three_quarters_of_a_block() {
        assert!(is_local(4096, 1, 3064) && !is_local(4096, 1, 3065));
        assert!(is_local(1024, 4, 757) && !is_local(1024, 4, 758));
    }
}
