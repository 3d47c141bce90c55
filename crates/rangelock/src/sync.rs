//! The primitives that the locks are built from: those of `std`, or those of loom or shuttle where a model is
//! checked.
//!
//! Invariant: nothing that a model runs through takes a synchronizing primitive from elsewhere.

#[cfg(loom)]
pub(crate) use loom::{
    cell::{MutPtr, UnsafeCell},
    lazy_static,
    sync::Mutex,
    sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence},
    thread::{Thread, current, park, yield_now},
    thread_local,
};

#[cfg(shuttle)]
pub(crate) use shuttle::{
    lazy_static,
    sync::Mutex,
    sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence},
    thread::{Thread, current, park, yield_now},
    thread_local,
};

#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::{
    sync::Mutex,
    sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence},
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

/// Between two accesses that are `SeqCst` and have to be seen in this order by somebody who makes two such accesses in
/// the other. loom takes such accesses for acquire and release alone, and needs a fence there; nobody else does.
#[cfg(loom)]
pub(crate) fn seq_cst() {
    fence(Ordering::SeqCst);
}
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn seq_cst() {}

/// How often a bucket is crowded before somebody looks whether the table is too small. loom moves tables where a model
/// says so, and by itself never.
#[cfg(loom)]
pub(crate) const LOOK_AFTER: u32 = 0;
#[cfg(shuttle)]
pub(crate) const LOOK_AFTER: u32 = 1;
#[cfg(not(any(loom, shuttle)))]
pub(crate) const LOOK_AFTER: u32 = 4;

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
    pub(crate) fn get_mut(&self) -> MutPtr<T> {
        MutPtr(self.0.get())
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// The content behind such a pointer.
///
/// # Safety
/// Nobody changes the content for as long as the reference lives.
#[inline(always)]
pub(crate) unsafe fn look<T>(content: &MutPtr<T>) -> &T {
    #[cfg(loom)]
    // SAFETY: the caller says so; nobody makes use of its being exclusive.
    return unsafe { content.deref() };
    #[cfg(not(loom))]
    // SAFETY: the caller says so.
    return unsafe { &*content.0 };
}

/// The pointer to a cell's content, with loom's interface.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct MutPtr<T>(*mut T);

#[cfg(not(loom))]
impl<T> MutPtr<T> {
    /// # Safety
    /// The caller alone has access to the content for as long as the reference lives.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "as loom has it")]
    pub(crate) unsafe fn deref(&self) -> &mut T {
        // SAFETY: the caller says so.
        unsafe { &mut *self.0 }
    }
}
