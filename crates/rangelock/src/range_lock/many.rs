//! The guard of several ranges.

use std::fmt;

use crate::claim::Claim;

use super::RangeLock;

/// Several ranges of a [`RangeLock`] held at once; dropping it releases them.
#[must_use = "the ranges are released at once if the guard is not kept"]
pub struct ManyGuard<'a, const N: usize> {
    lock: &'a RangeLock,
    claims: [Claim; N],
    since: u64,
}

impl<'a, const N: usize> ManyGuard<'a, N> {
    pub(super) fn new(lock: &'a RangeLock, claims: [Claim; N], since: u64) -> Self {
        ManyGuard { lock, claims, since }
    }
}

impl<const N: usize> Drop for ManyGuard<'_, N> {
    fn drop(&mut self) {
        self.lock.meter.released(self.since);
        self.lock.leave(&self.claims);
    }
}

impl<const N: usize> fmt::Debug for ManyGuard<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.claims).finish()
    }
}
