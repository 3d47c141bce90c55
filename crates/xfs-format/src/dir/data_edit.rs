//! Changing data blocks: adds and removes entries, and tracks the space between them.
//!
//! Invariants, given a block that passed its verifier: the pieces walk exactly to the end of the data area; no two
//! unused pieces are neighbours; the header names the three largest unused pieces, largest first.

use super::data::{
    ALIGN, BLOCK_MAGIC_V4, BLOCK_MAGIC_V5, BlockTail, DATA_MAGIC_V4, DATA_MAGIC_V5, DataBlock, DataEntry,
    DataItem, DataKind, FREE_TAG, bestfree_at, data_start,
};
use super::free_edit::put_header3;
use super::leaf_edit::{ENTRY, nearest_stale, put_over_stale};
use super::{DirFileType, LeafEntry, data_entry_len};
use crate::edit::{ByteEdit, Image, Stamp};
use crate::error::FormatError;
use crate::types::InodeNumber;
use std::mem::size_of;
use zerocopy::IntoBytes;

const NAME: &str = "directory data block";
const TAIL: usize = size_of::<BlockTail>();
/// The longest entry: number, length, a name of 255 bytes, type, tag, and padding.
const ENTRY_MAX: usize = (8 + 1 + 255 + 1 + 2usize).next_multiple_of(ALIGN);

/// A run of bytes in a data area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Piece {
    offset: usize,
    len: usize,
}

/// The bestfree table: the three largest unused pieces. Of equal ones, those that came first.
#[derive(Default)]
struct BestFreeTable([Piece; 3]);

impl BestFreeTable {
    fn offer(&mut self, piece: Piece) {
        let mut piece = piece;
        for place in &mut self.0 {
            if place.len < piece.len {
                std::mem::swap(place, &mut piece);
            }
        }
    }
}

impl Piece {
    const fn end(self) -> usize {
        self.offset + self.len
    }
}

/// A name to put into a data block.
#[derive(Clone, Copy, Debug)]
pub struct NewDataEntry<'a> {
    /// The inode that it names.
    pub inode: InodeNumber,
    /// The name.
    pub name: &'a [u8],
    /// Its type.
    pub file_type: DirFileType,
}

/// A data block under change.
#[derive(Debug)]
pub struct DataEdit<'a> {
    image: ByteEdit<'a>,
    v5: bool,
    ftype: bool,
}

impl<'a> DataEdit<'a> {
    /// Changes a block that is a data block.
    pub fn new(image: &'a mut Image, v5: bool, ftype: bool) -> Self {
        Self { image: image.edit(), v5, ftype }
    }

    /// Makes the block a data block with nothing in it.
    pub fn format(image: &'a mut Image, stamp: &Stamp, ftype: bool) -> Result<Self, FormatError> {
        let mut image = image.edit();
        put_header3(&mut image, stamp, DATA_MAGIC_V4, DATA_MAGIC_V5)?;
        let start = data_start(stamp.v5);
        let table = bestfree_at(stamp.v5);
        image.put(table, &[0; 64][..start - table])?;
        let mut edit = Self { image, v5: stamp.v5, ftype };
        let all = Piece { offset: start, len: edit.len().saturating_sub(start) };
        edit.put_unused(all)?;
        edit.put_table(&[all])?;
        Ok(edit)
    }

    /// The block as it is now.
    pub fn view(&self) -> Result<DataBlock<'_>, FormatError> {
        DataBlock::parse(self.image.bytes(), self.v5, self.ftype)
    }

    /// Bytes of the longest unused piece.
    pub fn longest(&self) -> Result<u16, FormatError> {
        Ok(self.view()?.largest_free()[0].1)
    }

    /// The result of [`longest`](Self::longest) for an empty data block of `len` bytes.
    pub const fn longest_when_empty(len: usize, v5: bool) -> usize {
        len.saturating_sub(data_start(v5))
    }

    /// Puts an entry where there is room, and gives its offset. `None`: there is no room.
    pub fn add(&mut self, entry: NewDataEntry<'_>) -> Result<Option<usize>, FormatError> {
        let need = entry_len(entry.name, self.ftype)?;
        let view = self.view()?;
        let grows = view.kind == DataKind::Block && view.stale() == 0;
        let last = view.last_unused()?.map(|(offset, len)| Piece { offset, len });
        // In block form the index takes its next entry's room from the end of the last piece.
        let reserved = if grows { ENTRY } else { 0 };
        if grows && last.is_none_or(|last| last.len < ENTRY) {
            return Ok(None);
        }
        let fits = |piece: &Piece| {
            let reserved = if last == Some(*piece) { reserved } else { 0 };
            piece.len >= need + reserved
        };
        let pieces =
            view.largest_free().map(|(offset, len)| Piece { offset: offset.into(), len: len.into() });
        let Some(piece) = pieces.into_iter().filter(fits).min_by_key(|piece| piece.len) else {
            return Ok(None);
        };
        self.take(piece, Piece { offset: piece.offset, len: need })?;
        self.put_entry(piece.offset, entry)?;
        Ok(Some(piece.offset))
    }

    /// Puts an entry at a place of the caller's choice, which must be unused.
    pub fn add_at(&mut self, offset: usize, entry: NewDataEntry<'_>) -> Result<(), FormatError> {
        let want = Piece { offset, len: entry_len(entry.name, self.ftype)? };
        let mut found = None;
        for item in self.view()?.items() {
            if let DataItem::Unused { offset, len } = item? {
                let piece = Piece { offset, len };
                if piece.offset <= want.offset && want.end() <= piece.end() {
                    found = Some(piece);
                    break;
                }
            }
        }
        let piece = found.ok_or(FormatError::value(NAME, "place of an entry", offset as u64))?;
        self.take(piece, want)?;
        self.put_entry(offset, entry)
    }

    /// Takes the entry at `offset` out.
    pub fn remove(&mut self, offset: usize) -> Result<(), FormatError> {
        let view = self.view()?;
        let entry = view.entry_at(offset)?;
        let len = entry_len(entry.name, self.ftype)?;
        self.release(Piece { offset, len })
    }

    /// Sets the inode of the entry at `offset`.
    pub fn replace(
        &mut self,
        offset: usize,
        inode: InodeNumber,
        file_type: DirFileType,
    ) -> Result<(), FormatError> {
        let view = self.view()?;
        let DataEntry { name, .. } = view.entry_at(offset)?;
        let type_at = offset + 9 + name.len();
        self.image.put(offset, &inode.0.to_be_bytes())?;
        if self.ftype {
            self.image.put(type_at, &[file_type.to_disk()])?;
        }
        Ok(())
    }

    /// Makes a data block a directory of its own: the index moves in behind the entries.
    pub fn make_block(&mut self, index: &[LeafEntry]) -> Result<(), FormatError> {
        let need = index.len() * ENTRY + TAIL;
        let no_room = FormatError::value(NAME, "room for the index", index.len() as u64);
        let (offset, len) = self.view()?.last_unused()?.ok_or(no_room.clone())?;
        let last = Piece { offset, len };
        let left = len.checked_sub(need).ok_or(no_room)?;
        let tail_at = self.len() - TAIL;
        self.image.put(tail_at - index.len() * ENTRY, index.as_bytes())?;
        self.put_tail(index.len(), 0)?;
        self.put_magic(DataKind::Block)?;
        self.resize(last, Piece { offset, len: left })
    }

    /// Makes a block-form directory a data block. The index lies elsewhere now, and its room becomes free.
    pub fn make_data(&mut self) -> Result<(), FormatError> {
        let start = self.index_start()?;
        self.put_magic(DataKind::Data)?;
        self.release(Piece { offset: start, len: self.len() - start })
    }

    /// Puts an entry into the index of a block-form directory; [`add`](Self::add) saw to it that there is room.
    pub fn index_insert(&mut self, entry: LeafEntry) -> Result<(), FormatError> {
        let view = self.view()?;
        let (count, stale) = (view.index.len(), view.stale());
        let slot = view.index.partition_point(|known| known.hash.get() < entry.hash.get());
        let start = self.index_start()?;
        if stale > 0 {
            let over = nearest_stale(view.index, slot).ok_or(FormatError::mismatch(
                NAME,
                "stale count",
                stale.into(),
                0,
            ))?;
            put_over_stale(&mut self.image, start, slot, over, entry)?;
            return self.put_tail(count, stale - 1);
        }
        let no_room = FormatError::value(NAME, "room for the index", count as u64);
        let (offset, len) = view.last_unused()?.ok_or(no_room.clone())?;
        let left = len.checked_sub(ENTRY).ok_or(no_room)?;
        self.image.shift(start..start + slot * ENTRY, start - ENTRY)?;
        self.image.put(start - ENTRY + slot * ENTRY, entry.as_bytes())?;
        self.put_tail(count + 1, 0)?;
        self.resize(Piece { offset, len }, Piece { offset, len: left })
    }

    /// Makes the entry at `slot` of the index stale.
    pub fn index_remove(&mut self, slot: usize) -> Result<(), FormatError> {
        let view = self.view()?;
        let (count, stale) = (view.index.len(), view.stale());
        let known = view.index.get(slot).filter(|entry| !entry.is_stale());
        known.ok_or(FormatError::value(NAME, "place of an index entry", slot as u64))?;
        let at = self.index_start()? + slot * ENTRY;
        self.image.put(at + 4, &[0; 4])?;
        self.put_tail(count, stale + 1)
    }

    /// Removes the stale entries from the index, to make room for data.
    pub fn index_compact(&mut self) -> Result<(), FormatError> {
        let view = self.view()?;
        if view.stale() == 0 {
            return Ok(());
        }
        let live: Vec<_> = view.index.iter().filter(|entry| !entry.is_stale()).copied().collect();
        let start = self.index_start()?;
        let new_start = self.len() - TAIL - live.len() * ENTRY;
        self.image.put(new_start, live.as_bytes())?;
        self.put_tail(live.len(), 0)?;
        self.release(Piece { offset: start, len: new_start - start })
    }

    fn len(&self) -> usize {
        self.image.bytes().len()
    }

    /// Where the index of a block-form directory begins.
    fn index_start(&self) -> Result<usize, FormatError> {
        let view = self.view()?;
        if view.kind != DataKind::Block {
            return Err(FormatError::new(NAME, "index: there is none"));
        }
        Ok(view.data_end())
    }

    /// Takes `want` out of the unused `piece`; what is left of it on both sides stays unused.
    fn take(&mut self, piece: Piece, want: Piece) -> Result<(), FormatError> {
        self.expect_unused(piece)?;
        let before = Piece { offset: piece.offset, len: want.offset - piece.offset };
        let behind = Piece { offset: want.end(), len: piece.end() - want.end() };
        // Until the entry is written, the piece is marked as unused, so that the block stays walkable.
        self.put_unused(want)?;
        for piece in [before, behind] {
            if piece.len > 0 {
                self.put_unused(piece)?;
            }
        }
        self.retable(&[piece], &[before, behind], Some(want))
    }

    /// Makes a piece unused and joins it with unused neighbours.
    fn release(&mut self, piece: Piece) -> Result<(), FormatError> {
        let mut merged = piece;
        let mut gone = [Piece { offset: 0, len: 0 }; 2];
        let view = self.view()?;
        if let Some((offset, len)) = view.unused_before(piece.offset)? {
            gone[0] = Piece { offset, len };
            merged = Piece { offset, len: len + merged.len };
        }
        if let Some((offset, len)) = view.unused_at(piece.end())? {
            gone[1] = Piece { offset, len };
            merged.len += len;
        }
        self.put_unused(merged)?;
        self.retable(&gone, &[merged], None)
    }

    /// The unused piece `from` becomes `to`, at the same place, or vanishes.
    fn resize(&mut self, from: Piece, to: Piece) -> Result<(), FormatError> {
        if to.len == 0 {
            return self.retable(&[from], &[], None);
        }
        self.put_unused(to)?;
        self.retable(&[from], &[to], None)
    }

    fn expect_unused(&self, piece: Piece) -> Result<(), FormatError> {
        match self.view()?.unused_at(piece.offset)? {
            Some((_, len)) if len == piece.len => Ok(()),
            _ => Err(FormatError::value(NAME, "list of largest free space", piece.offset as u64)),
        }
    }

    /// Updates the bestfree table: some pieces are gone, and some are new, unless they are empty. `hidden` looks unused
    /// and is not.
    fn retable(&mut self, gone: &[Piece], new: &[Piece], hidden: Option<Piece>) -> Result<(), FormatError> {
        let listed = self.view()?.largest_free();
        // If the table is full, pieces that are not in it are no longer than its last.
        let floor = usize::from(listed[2].1);
        let mut table = BestFreeTable::default();
        for (offset, len) in listed {
            let piece = Piece { offset: offset.into(), len: len.into() };
            if !gone.iter().any(|gone| gone.len > 0 && gone.offset == piece.offset) {
                table.offer(piece);
            }
        }
        new.iter().for_each(|piece| table.offer(*piece));
        if floor > 0 && table.0[2].len < floor {
            table = BestFreeTable::default();
            for item in self.view()?.items() {
                if let DataItem::Unused { offset, len } = item? {
                    let piece = Piece { offset, len };
                    if hidden != Some(piece) {
                        table.offer(piece);
                    }
                }
            }
        }
        self.put_table(&table.0)
    }

    fn put_table(&mut self, pieces: &[Piece]) -> Result<(), FormatError> {
        let mut table = [[0u8; 4]; 3];
        for (place, piece) in table.iter_mut().zip(pieces) {
            let [a, b] = (piece.offset as u16).to_be_bytes();
            let [c, d] = (piece.len as u16).to_be_bytes();
            *place = [a, b, c, d];
        }
        self.image.put(bestfree_at(self.v5), table.as_flattened())
    }

    /// Writes the tags of an unused piece, at its start and at its end.
    fn put_unused(&mut self, piece: Piece) -> Result<(), FormatError> {
        let bad = || FormatError::value(NAME, "length of unused space", piece.len as u64);
        if piece.len < ALIGN || !piece.len.is_multiple_of(ALIGN) || !piece.offset.is_multiple_of(ALIGN) {
            return Err(bad());
        }
        let len = u16::try_from(piece.len).map_err(|_| bad())?;
        let offset = u16::try_from(piece.offset).map_err(|_| bad())?;
        let head = u32::from(FREE_TAG) << 16 | u32::from(len);
        self.image.put(piece.offset, &head.to_be_bytes())?;
        self.image.put(piece.end() - 2, &offset.to_be_bytes())
    }

    fn put_entry(&mut self, offset: usize, entry: NewDataEntry<'_>) -> Result<(), FormatError> {
        let len = entry_len(entry.name, self.ftype)?;
        let mut bytes = [0; ENTRY_MAX];
        let name_end = 9 + entry.name.len();
        bytes[..8].copy_from_slice(&entry.inode.0.to_be_bytes());
        bytes[8] = entry.name.len() as u8;
        bytes[9..name_end].copy_from_slice(entry.name);
        if self.ftype {
            bytes[name_end] = entry.file_type.to_disk();
        }
        bytes[len - 2..len].copy_from_slice(&(offset as u16).to_be_bytes());
        self.image.put(offset, &bytes[..len])
    }

    fn put_magic(&mut self, kind: DataKind) -> Result<(), FormatError> {
        let magic = match (kind, self.v5) {
            (DataKind::Block, false) => BLOCK_MAGIC_V4,
            (DataKind::Block, true) => BLOCK_MAGIC_V5,
            (DataKind::Data, false) => DATA_MAGIC_V4,
            (DataKind::Data, true) => DATA_MAGIC_V5,
        };
        self.image.put(0, &magic.to_be_bytes())
    }

    fn put_tail(&mut self, count: usize, stale: u32) -> Result<(), FormatError> {
        let tail = BlockTail { count: (count as u32).into(), stale: stale.into() };
        let at = self.len().saturating_sub(TAIL);
        self.image.put(at, tail.as_bytes())
    }
}

fn entry_len(name: &[u8], ftype: bool) -> Result<usize, FormatError> {
    let len = u8::try_from(name.len()).ok().filter(|&len| len > 0);
    let len = len.ok_or(FormatError::value(NAME, "entry name", name.len() as u64))?;
    Ok(data_entry_len(len, ftype))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{DiskAddr, Uuid};

    /// The table must agree with a walk, and unused pieces must not adjoin.
    fn check(edit: &DataEdit<'_>) -> Vec<(usize, Vec<u8>)> {
        let view = edit.view().unwrap();
        let (mut unused, mut entries, mut touching) = (Vec::new(), Vec::new(), false);
        for item in view.items() {
            match item.unwrap() {
                DataItem::Unused { offset: _, len } => {
                    assert!(!touching, "unused pieces touch");
                    touching = true;
                    unused.push(len as u16);
                }
                DataItem::Entry(entry) => {
                    touching = false;
                    entries.push((entry.offset, entry.name.to_vec()));
                }
            }
        }
        unused.sort_unstable_by(|a, b| b.cmp(a));
        unused.resize(3, 0);
        assert_eq!(view.largest_free().map(|(_, len)| len)[..], unused[..3]);
        entries
    }

    #[test]
    fn space_is_kept_track_of() {
        let mut random = fastrand::Rng::with_seed(3);
        for (v5, ftype, size) in
            [(false, false, 512), (false, true, 512), (true, true, 1024), (true, true, 65536)]
        {
            let stamp = Stamp { v5, meta_uuid: Uuid([1; 16]), daddr: DiskAddr(8), owner: InodeNumber(9) };
            let mut image = Image::new(NAME, vec![0x55; size]);
            let mut edit = DataEdit::format(&mut image, &stamp, ftype).unwrap();
            let mut model: Vec<(usize, Vec<u8>)> = Vec::new();
            let mut refused = 0;
            for step in 0..3000 {
                if random.u8(..) < if step / 300 % 2 == 0 { 170 } else { 80 } || model.is_empty() {
                    let longest = if random.bool() { 255 } else { 20 };
                    let name = vec![b'a'; random.usize(1..=longest)];
                    let entry =
                        NewDataEntry { inode: InodeNumber(7), name: &name, file_type: DirFileType::Regular };
                    match edit.add(entry).unwrap() {
                        Some(offset) => model.push((offset, name)),
                        None => {
                            refused += 1;
                            assert!(usize::from(edit.longest().unwrap()) < entry_len(&name, ftype).unwrap());
                        }
                    }
                } else {
                    let (offset, _) = model.swap_remove(random.usize(..model.len()));
                    edit.remove(offset).unwrap();
                    assert!(edit.remove(offset).is_err());
                }
                if step % 10 == 0 || size < 65536 {
                    model.sort();
                    assert_eq!(check(&edit), model);
                }
            }
            for (offset, _) in model {
                edit.remove(offset).unwrap();
            }
            assert_eq!(usize::from(edit.longest().unwrap()), DataEdit::longest_when_empty(size, v5));
            assert!(refused > 0 || size == 65536);
        }
    }
}
