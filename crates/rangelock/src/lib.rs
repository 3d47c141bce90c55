//! A byte-range lock: disjoint ranges never wait for each other.
//!
//! [`RangeLock`] locks ranges of one file (or of anything addressed by `u64`), shared or exclusive.
//! What it promises:
//!
//! - **Exact.** Ranges that do not overlap never wait for each other, however many one thread holds.
//! - **Constant cost.** A range within one segment costs one compare-and-swap and one store to take
//!   and the same to give back; no allocation, no reference count, no line of a cache shared with
//!   ranges that lie elsewhere in the file. That stays so with many ranges held at once, as the table grows, and
//!   with large requests, as segments grow. Whole files and the like are held at a gate.
//! - **Readers of the same bytes scale.** Where shared ranges within one segment contend, holding one writes no
//!   line of a cache that other readers write, until somebody wants the bytes exclusively.
//! - **Fair both ways.** Conflicting requests are served in the order in which they came; neither
//!   readers nor writers starve.
//! - **Usable from an I/O queue.** A request may leave a [`Waker`](std::task::Waker) instead of blocking
//!   ([`RangeLock::acquire_or_notify`]), be a future ([`RangeLock::lock_async`]), be cancelled by
//!   dropping it, and be held as a plain [`RangeToken`] with no lifetime.
//!
//! ```
//! use rangelock::{Mode, RangeLock};
//!
//! let lock = RangeLock::new();
//! let head = lock.lock(0..4096, Mode::Exclusive);
//! // Disjoint: does not wait, although this thread holds the neighbouring bytes.
//! let tail = lock.lock(4096..8192, Mode::Exclusive);
//! // Overlapping: has to wait, so `try_lock` says no.
//! assert!(lock.try_lock(0..u64::MAX, Mode::Shared).is_none());
//! drop((head, tail));
//! assert!(lock.try_lock(0..u64::MAX, Mode::Shared).is_some());
//! ```
//!
//! # The designs beside it
//! [`ByteRangeLock`] is the one trait behind which older designs stand, for measuring. They are there with the feature
//! `designs`: `WholeFileLock` (a reader-writer lock that ignores the range), `IntervalTreeLock` (an augmented
//! balanced tree under a spin lock) and `BTreeLock` (a B-tree under a mutex).
//!
//! # Deadlock
//! A thread that blocks for a range while it holds another can deadlock with one that does the same in
//! the other order, as with any lock. Take both in one call ([`RangeLock::lock_pair`],
//! [`RangeLock::lock_many`]), or do not block: use [`RangeLock::try_acquire`] or
//! [`RangeLock::acquire_or_notify`] while ranges are held. As requests are served in order, a holder of
//! a shared range who asks for it again can wait behind a writer who waits for the first hold.

mod claim;
#[cfg(feature = "designs")]
mod designs;
mod guard;
mod range_lock;
mod spin;
mod stats;
mod sync;
mod waiter;

use std::ops::Range;

#[cfg(feature = "designs")]
pub use designs::{
    BTreeLock, BTreeToken, IntervalTreeLock, IntervalTreeToken, WholeFileLock, WholeFileToken,
};
pub use guard::{OwnedRangeGuard, RangeGuard};
pub use range_lock::{LockFuture, ManyGuard, Pending, RangeLock, RangeToken};
pub use stats::{LockStats, StatsSnapshot};

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
/// Every method that takes a range panics on an empty one.
///
/// A range is held by a guard, which borrows the lock, or by a token, which borrows nothing and has to
/// be given back by [`release`](Self::release): what a queue of requests in flight keeps.
pub trait ByteRangeLock: Send + Sync {
    /// Proof that a range is held; dropping it releases the range.
    type Guard<'a>
    where
        Self: 'a;
    /// Proof that a range is held, without lifetime and without anything done on drop.
    type Token: Send;

    /// Waits until `range` can be held in `mode`.
    fn lock(&self, range: Range<u64>, mode: Mode) -> Self::Guard<'_>;
    /// Takes `range` in `mode` if nobody has to be waited for.
    fn try_lock(&self, range: Range<u64>, mode: Mode) -> Option<Self::Guard<'_>>;
    /// As [`lock`](Self::lock), but the hold lasts until [`release`](Self::release) gets the token.
    fn acquire(&self, range: Range<u64>, mode: Mode) -> Self::Token;
    /// As [`try_lock`](Self::try_lock), but the hold lasts until [`release`](Self::release) gets the token.
    ///
    /// A queue that holds ranges of its own calls this, not [`acquire`](Self::acquire): when it says no,
    /// the queue completes what it has in flight, and only with nothing in flight may it block.
    fn try_acquire(&self, range: Range<u64>, mode: Mode) -> Option<Self::Token>;
    /// Ends the hold that `token` stands for.
    ///
    /// # Panics
    /// If the token is of another lock (as far as that can be told).
    fn release(&self, token: Self::Token);
    /// What was counted so far, if the lock was made to count.
    fn stats(&self) -> Option<StatsSnapshot>;
}
