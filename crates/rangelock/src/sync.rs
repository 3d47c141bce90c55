//! The primitives that the locks are built from: those of `std`, or those of loom or shuttle where a model is
//! checked.
//!
//! Invariant: nothing that a model runs through takes a synchronizing primitive from elsewhere.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    lazy_static,
    sync::Mutex,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
    thread::{Thread, current, park, yield_now},
    thread_local,
};

#[cfg(shuttle)]
pub(crate) use shuttle::{
    lazy_static,
    sync::Mutex,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
    thread::{Thread, current, park, yield_now},
    thread_local,
};

#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::{
    sync::Mutex,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
    thread::{Thread, current, park, yield_now},
};

/// How often to look again before yielding or parking; a model has no use for spinning.
#[cfg(any(loom, shuttle))]
pub(crate) const SPINS: u32 = 0;
#[cfg(not(any(loom, shuttle)))]
pub(crate) const SPINS: u32 = 100;

/// How many readers have to contend for a bucket before it is biased to them; in a model one who is not alone is
/// enough.
#[cfg(any(loom, shuttle))]
pub(crate) const CONTENDED_BEFORE_BIAS: u32 = 0;
#[cfg(not(any(loom, shuttle)))]
pub(crate) const CONTENDED_BEFORE_BIAS: u32 = 16;

/// `std`'s cell with loom's interface.
#[cfg(not(loom))]
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
