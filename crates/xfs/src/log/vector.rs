//! Log vectors: what one item logs in a checkpoint, ready to be copied into the log.
//!
//! All regions of an item lie in one allocation, each behind the operation header that it will have in the log:
//!
//! ```text
//! | op header (12) | region, padded to 4 | op header (12) | region, padded to 4 | …
//! ```
//!
//! So the writer only copies and fills in a transaction number. Invariants: every header's length is that of its padded
//! region; lengths are multiples of 4; a vector that was begun for a size holds that size without another allocation.

use std::cell::RefCell;
use xfs_format::log::OpHeader;
use zerocopy::{FromBytes, IntoBytes};

/// Maximum number of vectors whose memory a thread keeps, and the maximum size of each.
const SPARES_MOST: usize = 16;
const SPARE_BYTES_MAX: usize = 16 << 10;

thread_local! {
    static SPARES: RefCell<Vec<LogVector>> = const { RefCell::new(Vec::new()) };
}

/// Bytes of an operation header.
pub(crate) const OP_BYTES: usize = size_of::<OpHeader>();

/// Log bytes of a region of this size, with its operation header and padding.
pub(crate) const fn op_bytes(region: usize) -> usize {
    OP_BYTES + region.next_multiple_of(4)
}

/// The size of an item's changes in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VecSize {
    /// Number of regions.
    pub regions: u32,
    /// Bytes of all regions. It does not matter whether padding is included.
    pub bytes: u32,
}

impl VecSize {
    /// Adds a region of this many bytes.
    pub const fn region(self, bytes: usize) -> Self {
        Self { regions: self.regions + 1, bytes: self.bytes + bytes.next_multiple_of(4) as u32 }
    }

    /// Log bytes, including operation headers and padding. Reservations count these.
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
    /// An empty vector for this many log bytes, in memory that this thread has kept, if there is any.
    pub fn of_spare(bytes: usize) -> Self {
        let spare = SPARES.try_with(|spares| spares.borrow_mut().pop()).ok().flatten();
        Self::with_room(spare, bytes)
    }

    /// Keeps its memory for the next vector of this thread.
    pub(super) fn keep(self) {
        if self.capacity() > SPARE_BYTES_MAX {
            return;
        }
        // During thread teardown it is simply freed.
        let _ = SPARES.try_with(|spares| {
            let mut spares = spares.borrow_mut();
            if spares.len() < SPARES_MOST {
                spares.push(self);
            }
        });
    }

    /// An empty vector for regions of this size, in the memory of `shadow` if that is large enough.
    pub fn begin(shadow: Option<Self>, size: VecSize) -> Self {
        Self::with_room(shadow, size.log_bytes() as usize)
    }

    fn with_room(shadow: Option<Self>, needed: usize) -> Self {
        let mut bytes = shadow.map(|shadow| shadow.bytes).unwrap_or_default();
        bytes.clear();
        if bytes.capacity() < needed {
            // Allocate anew: growing would copy the old content.
            bytes = Vec::with_capacity(needed);
        }
        Self { bytes, regions: 0 }
    }

    /// Adds all regions of another vector.
    pub(crate) fn append(&mut self, other: &Self) {
        self.bytes.extend_from_slice(&other.bytes);
        self.regions += other.regions;
    }

    /// Removes all regions. Keeps the memory unless it is more than `most` bytes.
    pub(super) fn clear(&mut self, most: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(most);
        self.regions = 0;
    }

    /// Adds a region with a copy of `bytes`.
    pub fn region(&mut self, bytes: &[u8]) {
        self.header(bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.pad();
    }

    /// Adds a region of `len` zero bytes, which `fill` writes into.
    pub fn region_with(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) {
        self.header(len);
        let at = self.bytes.len();
        self.bytes.resize(at + len, 0);
        if let Some(region) = self.bytes.get_mut(at..) {
            fill(region);
        }
        self.pad();
    }

    fn header(&mut self, len: usize) {
        let header = OpHeader::transaction(0, len.next_multiple_of(4) as u32);
        self.bytes.extend_from_slice(header.as_bytes());
        self.regions += 1;
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// The number of regions.
    pub fn regions(&self) -> u32 {
        self.regions
    }

    /// Log bytes that it takes, including operation headers.
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
        let (bytes, mut again) = (vector.bytes.clone(), LogVector::default());
        again.append(&vector);
        assert_eq!((&again.bytes, again.regions), (&bytes, 3));
        again.clear(0);
        assert_eq!((again.log_bytes(), again.regions()), (0, 0));
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
