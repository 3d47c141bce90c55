//! The claims of one call, with the buckets that each touches; and the guard of several ranges.
//!
//! Invariant: [`Request::buckets`] is ascending and lists each bucket once.

use std::fmt;

use crate::Mode;
use crate::claim::Claim;

use super::RangeLock;
use super::geometry::{BucketSet, Geometry};

#[derive(Clone, Copy, Debug)]
pub(super) struct Request<const N: usize> {
    claims: [(Claim, BucketSet); N],
}

impl<const N: usize> Request<N> {
    pub(super) fn new(geometry: Geometry, claims: [Claim; N]) -> Self {
        Request { claims: claims.map(|claim| (claim, geometry.buckets_of(&claim))) }
    }

    /// The first bucket at or after `from` that any claim touches.
    pub(super) fn next_at(&self, from: usize) -> Option<usize> {
        self.claims.iter().filter_map(|(_, set)| set.next_at(from)).min()
    }

    pub(super) fn buckets(&self) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(self.next_at(0), |at| self.next_at(at + 1))
    }

    pub(super) fn claims_at(&self, bucket: usize) -> impl Iterator<Item = &Claim> + Clone {
        self.claims.iter().filter(move |(_, set)| set.contains(bucket)).map(|(claim, _)| claim)
    }

    /// The strongest mode among the claims, which the call is counted as.
    pub(super) fn mode(&self) -> Mode {
        let exclusive = self.claims.iter().any(|(claim, _)| claim.mode == Mode::Exclusive);
        if exclusive { Mode::Exclusive } else { Mode::Shared }
    }
}

/// Several ranges of a [`RangeLock`] held at once; dropping it releases them.
#[must_use = "the ranges are released at once if the guard is not kept"]
pub struct ManyGuard<'a, const N: usize> {
    lock: &'a RangeLock,
    request: Request<N>,
    since: u64,
}

impl<'a, const N: usize> ManyGuard<'a, N> {
    pub(super) fn new(lock: &'a RangeLock, request: Request<N>, since: u64) -> Self {
        ManyGuard { lock, request, since }
    }
}

impl<const N: usize> Drop for ManyGuard<'_, N> {
    fn drop(&mut self) {
        self.lock.meter.released(self.since);
        self.lock.leave_below(&self.request, usize::MAX);
    }
}

impl<const N: usize> fmt::Debug for ManyGuard<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.request.claims.iter().map(|(claim, _)| claim)).finish()
    }
}
