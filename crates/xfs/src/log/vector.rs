//! Log vectors: what one item says in a checkpoint, ready to be copied into the log.
//!
//! All regions of an item lie in one allocation, each behind the operation header that it will have in the log:
//! ```text
//! | op header (12) | region, padded to 4 | op header (12) | region, padded to 4 | …
//! ```
//! so that the writer copies and fills in a transaction number, and nothing else. Invariants: every header's
//! length is that of its padded region; lengths are multiples of 4; a vector that was begun for a size holds
//! that size without another allocation.

use std::cell::RefCell;
use xfs_format::log::OpHeader;
use zerocopy::{FromBytes, IntoBytes};

/// How many vectors' memory a thread keeps, and how large each may be.
const SPARES_MOST: usize = 16;
const SPARE_BYTES_MAX: usize = 16 << 10;

thread_local! {
    static SPARES: RefCell<Vec<LogVector>> = const { RefCell::new(Vec::new()) };
}

/// Bytes of an operation header.
pub(crate) const OP_BYTES: usize = size_of::<OpHeader>();

/// What the changes of an item will need in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VecSize {
    /// Regions.
    pub regions: u32,
    /// Bytes of all regions. Whether padding is counted does not matter.
    pub bytes: u32,
}

impl VecSize {
    /// Adds a region of so many bytes.
    pub const fn region(self, bytes: usize) -> Self {
        Self { regions: self.regions + 1, bytes: self.bytes + bytes.next_multiple_of(4) as u32 }
    }

    /// Bytes of the log that this takes, operation headers and padding included: what a reservation counts.
    pub const fn log_bytes(self) -> u32 {
        self.bytes + self.regions * (OP_BYTES as u32 + 3)
    }
}

impl std::ops::Add for VecSize {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { regions: self.regions + other.regions, bytes: self.bytes + other.bytes }
    }
}

/// All regions of one item.
#[derive(Debug, Default)]
pub struct LogVector {
    bytes: Vec<u8>,
    regions: u32,
}

impl LogVector {
    /// An empty vector for regions of that size, in memory that this thread has kept, if it has any.
    pub fn of_spare(size: VecSize) -> Self {
        let spare = SPARES.try_with(|spares| spares.borrow_mut().pop()).ok().flatten();
        Self::begin(spare, size)
    }

    /// Keeps its memory for the next vector of this thread.
    pub(super) fn keep(self) {
        if self.capacity() > SPARE_BYTES_MAX {
            return;
        }
        // While a thread is being torn down it is just freed.
        let _ = SPARES.try_with(|spares| {
            let mut spares = spares.borrow_mut();
            if spares.len() < SPARES_MOST {
                spares.push(self);
            }
        });
    }

    /// An empty vector for regions of that size, in the memory of `shadow` if that is large enough.
    pub fn begin(shadow: Option<Self>, size: VecSize) -> Self {
        let needed = size.log_bytes() as usize;
        let mut bytes = shadow.map(|shadow| shadow.bytes).unwrap_or_default();
        bytes.clear();
        if bytes.capacity() < needed {
            // A fresh one: growing would copy what nobody needs any more.
            bytes = Vec::with_capacity(needed);
        }
        Self { bytes, regions: 0 }
    }

    /// Adds a region that holds a copy of `bytes`.
    pub fn region(&mut self, bytes: &[u8]) {
        self.header(bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.pad();
    }

    /// Adds a region of `len` bytes that `fill` writes into; they are zero before.
    pub fn region_with(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) {
        self.header(len);
        let at = self.bytes.len();
        self.bytes.resize(at + len, 0);
        if let Some(region) = self.bytes.get_mut(at..) {
            fill(region);
        }
        self.pad();
    }

    /// The same, in memory of its own, as older designs make it: one pass counts the regions and takes note of them, the
    /// other copies them.
    pub(super) fn in_two_passes(self) -> Self {
        let regions: Vec<&[u8]> = self.iter().collect();
        let needed = regions.iter().map(|region| OP_BYTES + region.len()).sum();
        let mut vector = Self { bytes: Vec::with_capacity(needed), regions: 0 };
        regions.iter().for_each(|region| vector.region(region));
        vector
    }

    fn header(&mut self, len: usize) {
        let header = OpHeader::transaction(0, len.next_multiple_of(4) as u32);
        self.bytes.extend_from_slice(header.as_bytes());
        self.regions += 1;
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// How many regions there are.
    pub fn regions(&self) -> u32 {
        self.regions
    }

    /// Bytes of the log that it takes, operation headers included.
    pub fn log_bytes(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// Bytes that it can hold without another allocation.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// The regions, padded, in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            let (header, behind) = OpHeader::ref_from_prefix(rest).ok()?;
            let (region, behind) = behind.split_at_checked(header.len.get() as usize)?;
            rest = behind;
            Some(region)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_padded_and_in_order() {
        let size = VecSize::default().region(5).region(8).region(1);
        let mut vector = LogVector::begin(None, size);
        vector.region(b"hello");
        vector.region_with(8, |bytes| bytes[7] = 9);
        vector.region(b"x");
        let regions: Vec<_> = vector.iter().collect();
        assert_eq!(regions, [&b"hello\0\0\0"[..], &[0, 0, 0, 0, 0, 0, 0, 9], b"x\0\0\0"]);
        assert_eq!(vector.regions(), 3);
        assert!(vector.log_bytes() <= size.log_bytes());
        let (bytes, again) = (vector.bytes.clone(), vector.in_two_passes());
        assert_eq!((again.bytes, again.regions), (bytes, 3));
    }

    #[test]
    fn a_large_enough_shadow_is_used_again() {
        let size = VecSize { regions: 1, bytes: 400 };
        let mut first = LogVector::begin(None, size);
        first.region(&[1; 400]);
        let place = first.bytes.as_ptr();
        let mut second = LogVector::begin(Some(first), VecSize { regions: 2, bytes: 300 });
        assert_eq!((second.regions(), second.log_bytes()), (0, 0));
        second.region(&[2; 100]);
        second.region(&[2; 200]);
        assert_eq!(second.bytes.as_ptr(), place);
        let third = LogVector::begin(Some(second), VecSize { regions: 1, bytes: 4000 });
        assert!(third.capacity() >= 4000);
    }
}
