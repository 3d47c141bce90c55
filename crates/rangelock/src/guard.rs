//! Guards: a token that is given back when it is dropped.

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use crate::{ByteRangeLock, RangeLock, RangeToken};

/// A held range of any design; dropping it releases the range.
#[must_use = "the range is released at once if the guard is not kept"]
pub struct RangeGuard<'a, L: ByteRangeLock + ?Sized> {
    lock: &'a L,
    token: ManuallyDrop<L::Token>,
}

impl<'a, L: ByteRangeLock + ?Sized> RangeGuard<'a, L> {
    #[inline(always)]
    pub(crate) fn new(lock: &'a L, token: L::Token) -> Self {
        RangeGuard { lock, token: ManuallyDrop::new(token) }
    }

    /// Keeps the range held beyond this guard, as a token to be given back with
    /// [`ByteRangeLock::release`].
    #[must_use = "the range stays held until the token is given back"]
    pub fn into_token(self) -> L::Token {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped, so the token is taken once.
        unsafe { ManuallyDrop::take(&mut this.token) }
    }
}

impl<L: ByteRangeLock + ?Sized> Drop for RangeGuard<'_, L> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: this is the last use of the token; `into_token`, which takes it too, does not drop the guard.
        let token = unsafe { ManuallyDrop::take(&mut self.token) };
        self.lock.release(token);
    }
}

impl<L: ByteRangeLock + ?Sized> fmt::Debug for RangeGuard<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RangeGuard").finish_non_exhaustive()
    }
}

/// A held range of a [`RangeLock`] that keeps the lock alive; dropping it releases the range.
///
/// Each costs a reference count that all holders share; a queue that holds many ranges keeps
/// [`RangeToken`]s.
#[must_use = "the range is released at once if the guard is not kept"]
#[derive(Debug)]
pub struct OwnedRangeGuard {
    lock: Arc<RangeLock>,
    token: Option<RangeToken>,
}

impl OwnedRangeGuard {
    pub(crate) fn new(lock: Arc<RangeLock>, token: RangeToken) -> Self {
        OwnedRangeGuard { lock, token: Some(token) }
    }
}

impl Drop for OwnedRangeGuard {
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            self.lock.release(token);
        }
    }
}
