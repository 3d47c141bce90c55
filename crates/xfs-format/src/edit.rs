//! A block under change: its bytes as they will be, and which of them differ from what was read.
//!
//! Invariant: every byte that was changed lies in one of the ranges that [`Image::into_parts`] names. Writers of
//! structures work on an image and know nothing of journals. The transaction asks the image what to log.

use crate::error::FormatError;
use crate::types::{DiskAddr, InodeNumber, Uuid};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// Ranges closer than this are named as one: the journal counts in units larger than that.
const GAP: usize = 64;
/// The journal's unit: see [`ByteEdit::put_changes`].
const CHUNK: usize = 128;

/// Where bytes changed. Most blocks change in few places, which take no memory of their own.
pub type Changed = SmallVec<[Range<usize>; 6]>;

/// A block under change.
#[derive(Clone, Debug)]
pub struct Image {
    structure: &'static str,
    bytes: Arc<[u8]>,
    changed: Changed,
    copy: fn(&[u8]) -> Arc<[u8]>,
}

/// The bytes of an [`Image`], writable: see [`Image::edit`].
#[derive(Debug)]
pub struct ByteEdit<'a> {
    structure: &'static str,
    bytes: &'a mut [u8],
    changed: &'a mut Changed,
}

/// What a new block says of itself. v4 blocks say nothing.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    /// Whether the volume is v5.
    pub v5: bool,
    /// The UUID that the volume's metadata carry.
    pub meta_uuid: Uuid,
    /// Where the block lies.
    pub daddr: DiskAddr,
    /// The inode that it belongs to.
    pub owner: InodeNumber,
}

impl Image {
    /// A block with these bytes, unchanged so far; `structure` names it in errors. The first change copies the bytes
    /// if they are shared.
    pub fn new(structure: &'static str, bytes: impl Into<Arc<[u8]>>) -> Self {
        Self::copied_by(structure, bytes.into(), |bytes| Arc::from(bytes))
    }

    /// As [`new`](Self::new); `copy` makes the copy.
    pub fn copied_by(structure: &'static str, bytes: Arc<[u8]>, copy: fn(&[u8]) -> Arc<[u8]>) -> Self {
        Self { structure, bytes, changed: SmallVec::new(), copy }
    }

    /// The bytes as they are now.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes as they are now, to be kept, and where they may differ from those at the start. Ranges may overlap.
    pub fn into_parts(self) -> (Arc<[u8]>, Changed) {
        (self.bytes, self.changed)
    }

    /// The structure's name in errors.
    pub const fn structure(&self) -> &'static str {
        self.structure
    }

    /// The bytes, to be changed.
    pub fn edit(&mut self) -> ByteEdit<'_> {
        if Arc::get_mut(&mut self.bytes).is_none() {
            self.bytes = (self.copy)(&self.bytes);
        }
        let Self { structure, bytes, changed, copy: _ } = self;
        // A fresh copy is not shared.
        ByteEdit { structure, bytes: Arc::get_mut(bytes).unwrap_or_default(), changed }
    }
}

impl ByteEdit<'_> {
    /// The bytes as they are now.
    pub const fn bytes(&self) -> &[u8] {
        self.bytes
    }

    /// The structure's name in errors.
    pub const fn structure(&self) -> &'static str {
        self.structure
    }

    /// Writes `with` at `at`.
    #[inline]
    pub fn put(&mut self, at: usize, with: &[u8]) -> Result<(), FormatError> {
        let end = at.saturating_add(with.len());
        let Some(place) = self.bytes.get_mut(at..end) else {
            return Err(self.outside(at));
        };
        if place != with {
            place.copy_from_slice(with);
            self.mark(at..end);
        }
        Ok(())
    }

    /// As [`put`](Self::put), where no more is named than differs, in steps of 128 bytes.
    pub fn put_changes(&mut self, at: usize, with: &[u8]) -> Result<(), FormatError> {
        if at.saturating_add(with.len()) > self.bytes.len() {
            return Err(self.outside(at));
        }
        (at..).step_by(CHUNK).zip(with.chunks(CHUNK)).try_for_each(|(at, chunk)| self.put(at, chunk))
    }

    /// Writes zeroes over a range.
    pub fn clear(&mut self, range: Range<usize>) -> Result<(), FormatError> {
        let Some(place) = self.bytes.get_mut(range.clone()) else {
            return Err(self.outside(range.start));
        };
        if place.iter().any(|byte| *byte != 0) {
            place.fill(0);
            self.mark(range);
        }
        Ok(())
    }

    /// Moves the bytes of `from` to `to`; the two may overlap.
    pub fn shift(&mut self, from: Range<usize>, to: usize) -> Result<(), FormatError> {
        let len = from.end.checked_sub(from.start).ok_or_else(|| self.outside(to))?;
        let inside = |end: &usize| *end <= self.bytes.len();
        let end = to.checked_add(len).filter(inside).ok_or_else(|| self.outside(to))?;
        if from.end > self.bytes.len() {
            return Err(self.outside(to));
        }
        if len > 0 && from.start != to {
            self.bytes.copy_within(from, to);
            self.mark(to..end);
        }
        Ok(())
    }

    #[cold]
    const fn outside(&self, at: usize) -> FormatError {
        FormatError::value(self.structure, "place of a change", at as u64)
    }

    fn mark(&mut self, range: Range<usize>) {
        for known in self.changed.iter_mut() {
            if range.start <= known.end + GAP && known.start <= range.end + GAP {
                *known = known.start.min(range.start)..known.end.max(range.end);
                return;
            }
        }
        self.changed.push(range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_named_and_stay_inside() {
        let mut image = Image::new("x", vec![0; 1024]);
        let mut patch = image.edit();
        patch.put(10, &[0; 4]).unwrap();
        assert!(patch.changed.is_empty(), "nothing changed");
        patch.put(10, &[1; 4]).unwrap();
        patch.put(20, &[1; 4]).unwrap();
        patch.shift(10..24, 1000).unwrap();
        assert_eq!(patch.changed[..], [10..24, 1000..1014]);
        assert_eq!(patch.bytes()[1010], 1);
        assert!(patch.put(1022, &[1; 4]).is_err());
        assert!(patch.put(usize::MAX, &[1; 4]).is_err());
        assert!(patch.shift(1000..1030, 0).is_err());
        assert!(patch.shift(0..30, 1000).is_err());
        assert!(patch.put_changes(1000, &[1; 30]).is_err());
        assert!(patch.clear(1000..1030).is_err());
    }

    #[test]
    fn what_stays_as_it_is_is_not_named() {
        let mut image = Image::new("x", vec![0; 1024]);
        let mut patch = image.edit();
        let mut with = vec![0; 1000];
        (with[0], with[130], with[400], with[999]) = (1, 1, 1, 1);
        patch.put_changes(10, &with).unwrap();
        assert_eq!(patch.changed[..], [10..266, 394..522, 906..1010]);
        assert_eq!(patch.bytes()[10..1010], with);
        patch.clear(300..380).unwrap();
        assert_eq!(patch.changed.len(), 3, "zeroes stay zeroes");
        patch.clear(906..1010).unwrap();
        assert!(patch.bytes()[523..].iter().all(|byte| *byte == 0));
    }
}
