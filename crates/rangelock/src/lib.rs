//! A byte-range lock: disjoint ranges never wait for each other.
//!
//! See [`ByteRangeLock`] for what every design here offers.
#![deny(unsafe_op_in_unsafe_fn)]

use std::ops::Range;

/// How a range is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Any number of shared holders may overlap.
    Shared,
    /// No other holder may overlap.
    Exclusive,
}

/// What every locking design in this crate offers, so that they can be run side by side.
///
/// Ranges are half-open byte ranges `start..end` with `start < end`; `0..u64::MAX` is the whole file.
pub trait ByteRangeLock: Send + Sync {
    /// Proof that a range is held; dropping it releases the range.
    type Guard<'a>
    where
        Self: 'a;
    /// Waits until `range` can be held in `mode`.
    fn lock(&self, range: Range<u64>, mode: Mode) -> Self::Guard<'_>;
    /// Takes `range` in `mode` if nobody has to be waited for.
    fn try_lock(&self, range: Range<u64>, mode: Mode) -> Option<Self::Guard<'_>>;
}
