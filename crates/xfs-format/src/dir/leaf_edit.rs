//! Changing leaves of the hash index, and the table of free space in a directory's only leaf.
//!
//! Invariants: entries stay sorted by hash; a removed entry stays as a stale one, keeping its hash, until its place
//! is needed; the header counts both right; entries and table never meet.

use super::leaf::{
    LEAF1_MAGIC_V4, LEAF1_MAGIC_V5, LEAFN_MAGIC_V4, LEAFN_MAGIC_V5, Leaf, LeafEntry, LeafKind, header_len,
};
use crate::da::{DaHeader, format_header, set_magic};
use crate::edit::{ByteEdit, Image, Stamp};
use crate::error::FormatError;
use std::mem::size_of;
use zerocopy::IntoBytes;

const NAME: &str = "directory leaf block";
/// Bytes of an entry.
pub(super) const ENTRY: usize = size_of::<LeafEntry>();
/// Bytes of the count at the end of a single leaf.
const TAIL: usize = 4;
/// The value in the bestfree table for a data block that does not exist.
pub const BESTFREE_NONE: u16 = 0xffff;

impl LeafEntry {
    /// An entry.
    pub fn new(hash: u32, address: u32) -> Self {
        Self { hash: hash.into(), address: address.into() }
    }
}

impl LeafKind {
    /// The magic of a leaf of this kind.
    pub const fn magic(self, v5: bool) -> u16 {
        match (self, v5) {
            (Self::Single, false) => LEAF1_MAGIC_V4,
            (Self::Single, true) => LEAF1_MAGIC_V5,
            (Self::OfTree, false) => LEAFN_MAGIC_V4,
            (Self::OfTree, true) => LEAFN_MAGIC_V5,
        }
    }
}

/// A leaf under change.
#[derive(Debug)]
pub struct LeafEdit<'a> {
    image: ByteEdit<'a>,
    v5: bool,
}

impl<'a> LeafEdit<'a> {
    /// Changes a block that is a leaf.
    pub fn new(image: &'a mut Image, v5: bool) -> Self {
        Self { image: image.edit(), v5 }
    }

    /// Makes the block an empty leaf without siblings.
    pub fn format(image: &'a mut Image, stamp: &Stamp, kind: LeafKind) -> Result<Self, FormatError> {
        let mut image = image.edit();
        format_header(&mut image, kind.magic(stamp.v5), stamp)?;
        image.put(DaHeader::len(stamp.v5), &[0; 4])?;
        if stamp.v5 {
            image.put(DaHeader::len(true) + 4, &[0; 4])?;
        }
        if kind == LeafKind::Single {
            let len = image.bytes().len();
            image.put(len.saturating_sub(TAIL), &[0; TAIL])?;
        }
        Ok(Self { image, v5: stamp.v5 })
    }

    /// The leaf as it is now.
    pub fn view(&self) -> Result<Leaf<'_>, FormatError> {
        Leaf::parse(self.image.bytes(), self.v5)
    }

    /// Bytes for entries in a leaf of `len` bytes that has a table of `bestfree` places (`None`: no table at all).
    pub const fn room(len: usize, bestfree: Option<usize>, v5: bool) -> usize {
        let table = match bestfree {
            Some(count) => TAIL + 2 * count,
            None => 0,
        };
        len.saturating_sub(header_len(v5) + table)
    }

    /// Bytes between entries and table (or the end of the block).
    pub fn gap(&self) -> Result<usize, FormatError> {
        let view = self.view()?;
        let bestfree = (view.kind == LeafKind::Single).then_some(view.bestfree.len());
        let room = Self::room(self.image.bytes().len(), bestfree, self.v5);
        Ok(room.saturating_sub(view.entries.len() * ENTRY))
    }

    /// Puts an entry in its place. `false` if there is no room for it.
    pub fn insert(&mut self, entry: LeafEntry) -> Result<bool, FormatError> {
        let view = self.view()?;
        let (count, stale) = (view.entries.len(), view.stale);
        let slot = view.entries.partition_point(|known| known.hash.get() < entry.hash.get());
        if stale > 0 {
            let stale_slot = nearest_stale(view.entries, slot).ok_or(FormatError::mismatch(
                NAME,
                "stale count",
                stale.into(),
                0,
            ))?;
            put_over_stale(&mut self.image, header_len(self.v5), slot, stale_slot, entry)?;
            self.set_counts(count, stale - 1)?;
            return Ok(true);
        }
        if self.gap()? < ENTRY {
            return Ok(false);
        }
        self.image.shift(self.at(slot)..self.at(count), self.at(slot + 1))?;
        self.image.put(self.at(slot), entry.as_bytes())?;
        self.set_counts(count + 1, 0)?;
        Ok(true)
    }

    /// Makes the entry at `slot` stale.
    pub fn remove(&mut self, slot: usize) -> Result<(), FormatError> {
        let view = self.view()?;
        let (count, stale) = (view.entries.len(), view.stale);
        let known = view.entries.get(slot).filter(|entry| !entry.is_stale());
        known.ok_or(FormatError::value(NAME, "place of an entry", slot as u64))?;
        let stale = stale.checked_add(1).ok_or(FormatError::value(NAME, "stale count", stale.into()))?;
        self.image.put(self.at(slot) + 4, &[0; 4])?;
        self.set_counts(count, stale)
    }

    /// Replaces all entries; none of the new ones is stale.
    pub fn set_entries(&mut self, entries: &[LeafEntry]) -> Result<(), FormatError> {
        let view = self.view()?;
        let bestfree = (view.kind == LeafKind::Single).then_some(view.bestfree.len());
        if entries.len() * ENTRY > Self::room(self.image.bytes().len(), bestfree, self.v5) {
            return Err(FormatError::value(NAME, "entry count", entries.len() as u64));
        }
        self.image.put(header_len(self.v5), entries.as_bytes())?;
        self.set_counts(entries.len(), 0)
    }

    /// Removes the stale entries.
    pub fn compact(&mut self) -> Result<(), FormatError> {
        let view = self.view()?;
        if view.stale == 0 {
            return Ok(());
        }
        let live = view.live();
        self.set_entries(&live)
    }

    /// Changes the kind. A leaf that becomes the only one gets an empty table, for which there must be room.
    pub fn set_kind(&mut self, kind: LeafKind) -> Result<(), FormatError> {
        if kind == LeafKind::Single && self.view()?.kind != kind {
            if self.gap()? < TAIL {
                return Err(FormatError::new(NAME, "room for the table"));
            }
            let at = self.image.bytes().len().saturating_sub(TAIL);
            self.image.put(at, &[0; TAIL])?;
        }
        set_magic(&mut self.image, kind.magic(self.v5))
    }

    /// Sets the largest free space of data block `db`, which the table has a place for.
    pub fn set_bestfree(&mut self, db: usize, best: u16) -> Result<(), FormatError> {
        let bestfree = self.view()?.bestfree.len();
        if db >= bestfree {
            return Err(FormatError::mismatch(NAME, "place in the table", db as u64, bestfree as u64));
        }
        let at = self.table_at(bestfree) + 2 * db;
        self.image.put(at, &best.to_be_bytes())
    }

    /// Replaces the whole table; entries and table must fit.
    pub fn set_bestfrees(&mut self, bestfree: &[u16]) -> Result<(), FormatError> {
        let view = self.view()?;
        let room = Self::room(self.image.bytes().len(), Some(bestfree.len()), self.v5);
        if view.kind != LeafKind::Single || view.entries.len() * ENTRY > room {
            return Err(FormatError::value(NAME, "table size", bestfree.len() as u64));
        }
        let table: Vec<u8> = bestfree.iter().flat_map(|best| best.to_be_bytes()).collect();
        let at = self.table_at(bestfree.len());
        self.image.put(at, &table)?;
        let tail = self.image.bytes().len().saturating_sub(TAIL);
        self.image.put(tail, &(bestfree.len() as u32).to_be_bytes())
    }

    const fn at(&self, slot: usize) -> usize {
        header_len(self.v5) + slot * ENTRY
    }

    fn table_at(&self, bestfree: usize) -> usize {
        self.image.bytes().len().saturating_sub(TAIL + 2 * bestfree)
    }

    fn set_counts(&mut self, count: usize, stale: u16) -> Result<(), FormatError> {
        let on_disk =
            u16::try_from(count).map_err(|_| FormatError::value(NAME, "entry count", count as u64))?;
        let at = DaHeader::len(self.v5);
        self.image.put(at, &on_disk.to_be_bytes())?;
        self.image.put(at + 2, &stale.to_be_bytes())
    }
}

impl Leaf<'_> {
    /// The entries that are not stale.
    pub fn live(&self) -> Vec<LeafEntry> {
        self.entries.iter().filter(|entry| !entry.is_stale()).copied().collect()
    }

    /// How many entries are not stale.
    pub fn live_count(&self) -> usize {
        self.entries.len().saturating_sub(self.stale.into())
    }
}

/// The stale entry nearest to `slot`.
pub(super) fn nearest_stale(entries: &[LeafEntry], slot: usize) -> Option<usize> {
    let (below, above) = entries.split_at_checked(slot)?;
    let low = below.iter().rposition(LeafEntry::is_stale);
    // Farther away than the lower one, it is of no use.
    let reach = low.map_or(above.len(), |low| above.len().min(slot - low));
    let high = above.get(..reach)?.iter().position(LeafEntry::is_stale).map(|up| slot + up);
    high.or(low)
}

/// Puts an entry that belongs before `slot` into the array at `base`, in exchange for the stale one at `stale`.
pub(super) fn put_over_stale(
    image: &mut ByteEdit<'_>,
    base: usize,
    slot: usize,
    stale: usize,
    entry: LeafEntry,
) -> Result<(), FormatError> {
    let at = |slot: usize| base + slot * ENTRY;
    if stale < slot {
        image.shift(at(stale + 1)..at(slot), at(stale))?;
        image.put(at(slot - 1), entry.as_bytes())
    } else {
        image.shift(at(slot)..at(stale), at(slot + 1))?;
        image.put(at(slot), entry.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{DiskAddr, InodeNumber, Uuid};

    fn stamp(v5: bool) -> Stamp {
        Stamp { v5, meta_uuid: Uuid([1; 16]), daddr: DiskAddr(8), owner: InodeNumber(9) }
    }

    #[test]
    fn entries_stay_sorted_and_stale_places_are_used_again() {
        let mut random = fastrand::Rng::with_seed(7);
        for v5 in [false, true] {
            for kind in [LeafKind::Single, LeafKind::OfTree] {
                let mut image = Image::new(NAME, vec![0xee; 512]);
                let mut leaf = LeafEdit::format(&mut image, &stamp(v5), kind).unwrap();
                let mut model: Vec<(u32, u32)> = Vec::new();
                let mut full = false;
                for step in 1..2000 {
                    if random.bool() || model.is_empty() {
                        let entry = (random.u32(0..20), step);
                        if leaf.insert(LeafEntry::new(entry.0, entry.1)).unwrap() {
                            model.push(entry);
                        } else {
                            full = true;
                            assert_eq!(leaf.gap().unwrap() / ENTRY, 0);
                            leaf.set_entries(&[]).unwrap();
                            model.clear();
                        }
                    } else {
                        let gone = model.swap_remove(random.usize(..model.len()));
                        let slot =
                            leaf.view().unwrap().entries.iter().position(|e| e.address.get() == gone.1);
                        leaf.remove(slot.unwrap()).unwrap();
                        assert!(leaf.remove(slot.unwrap()).is_err());
                    }
                    if step % 97 == 0 {
                        leaf.compact().unwrap();
                    }
                    let view = leaf.view().unwrap();
                    assert!(view.entries.is_sorted_by_key(|e| e.hash.get()));
                    assert_eq!(view.live_count(), model.len());
                    let mut live: Vec<_> =
                        view.live().iter().map(|e| (e.hash.get(), e.address.get())).collect();
                    live.sort_unstable();
                    model.sort_unstable();
                    assert_eq!(live, model);
                }
                assert!(full || model.len() < 60);
            }
        }
    }

    #[test]
    fn the_table_and_the_entries_never_meet() {
        let mut image = Image::new(NAME, vec![0; 512]);
        let mut leaf = LeafEdit::format(&mut image, &stamp(true), LeafKind::Single).unwrap();
        leaf.set_bestfrees(&[1, 2, 3]).unwrap();
        leaf.set_bestfree(1, BESTFREE_NONE).unwrap();
        assert!(leaf.set_bestfree(3, 1).is_err());
        for nth in 0.. {
            if !leaf.insert(LeafEntry::new(nth, nth + 1)).unwrap() {
                break;
            }
        }
        let view = leaf.view().unwrap();
        assert_eq!(view.entries.len(), (512 - 64 - 4 - 6) / 8);
        assert_eq!(view.bestfree.iter().map(|b| b.get()).collect::<Vec<_>>(), [1, BESTFREE_NONE, 3]);
        assert!(leaf.set_bestfrees(&[0; 10]).is_err());
        leaf.set_kind(LeafKind::OfTree).unwrap();
        for _ in 0..2 {
            assert!(leaf.insert(LeafEntry::new(0, 99)).unwrap(), "the table's room is free now");
        }
        assert!(leaf.set_kind(LeafKind::Single).is_err());
    }
}
