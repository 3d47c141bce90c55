//! An interval tree under a spin lock.
//!
//! Invariants:
//! - the tree holds a node for every range that is held *or waited for*;
//! - a node counts the conflicting nodes that were there when it came; each of them, when it goes, takes
//!   one off every node that it conflicts with, and whoever takes the last one off wakes the waiter. A
//!   node whose count is zero is held. That is first come, first served among conflicting ranges.

mod tree;

use std::ops::Range;
use std::sync::Arc;

use crate::claim::Claim;
use crate::guard::RangeGuard;
use crate::spin::Spin;
use crate::stats::{LockStats, Meter, StatsSnapshot};
use crate::waiter::{Waiter, Wake, wake_all};
use crate::{ByteRangeLock, Mode};

use tree::{NodeId, Tree};

/// Ranges in an augmented balanced tree under one spin lock.
#[derive(Debug)]
pub struct IntervalTreeLock {
    tree: Spin<Tree>,
    meter: Meter,
}

/// A hold of an [`IntervalTreeLock`].
#[derive(Debug)]
#[must_use = "the range stays held until the token is given back"]
pub struct IntervalTreeToken {
    node: NodeId,
    claim: Claim,
    since: u64,
}

impl IntervalTreeLock {
    /// A lock that counts nothing.
    #[must_use]
    pub fn new() -> Self {
        IntervalTreeLock { tree: Spin::new(Tree::default()), meter: Meter::default() }
    }

    /// Counts into `stats` from now on.
    #[must_use]
    pub fn with_stats(mut self, stats: Arc<LockStats>) -> Self {
        self.meter = Meter::new(stats);
        self
    }

    #[cold]
    fn acquire_contended(&self, claim: Claim) -> IntervalTreeToken {
        let began = self.meter.clock();
        let waiter = Waiter::new(Vec::new(), 0, Wake::this_thread());
        let (node, blockers) = self.tree.with(|tree| {
            let blockers = tree.count_conflicts(&claim);
            let queued = (blockers > 0).then(|| waiter.clone());
            (tree.insert(claim, blockers, queued), blockers)
        });
        let since = if blockers > 0 {
            waiter.wait();
            self.meter.acquired_after_wait(claim.mode, began)
        } else {
            self.meter.acquired(claim.mode)
        };
        IntervalTreeToken { node, claim, since }
    }
}

impl Default for IntervalTreeLock {
    fn default() -> Self {
        Self::new()
    }
}

impl ByteRangeLock for IntervalTreeLock {
    type Guard<'a> = RangeGuard<'a, Self>;
    type Token = IntervalTreeToken;

    fn lock(&self, range: Range<u64>, mode: Mode) -> Self::Guard<'_> {
        RangeGuard::new(self, self.acquire(range, mode))
    }

    fn try_lock(&self, range: Range<u64>, mode: Mode) -> Option<Self::Guard<'_>> {
        self.try_acquire(range, mode).map(|token| RangeGuard::new(self, token))
    }

    fn acquire(&self, range: Range<u64>, mode: Mode) -> Self::Token {
        let claim = Claim::new(range.clone(), mode);
        match self.try_acquire(range, mode) {
            Some(token) => token,
            None => self.acquire_contended(claim),
        }
    }

    fn try_acquire(&self, range: Range<u64>, mode: Mode) -> Option<Self::Token> {
        let claim = Claim::new(range, mode);
        let node = self
            .tree
            .with(|tree| (tree.count_conflicts(&claim) == 0).then(|| tree.insert(claim, 0, None)))?;
        Some(IntervalTreeToken { node, claim, since: self.meter.acquired(mode) })
    }

    fn release(&self, token: Self::Token) {
        self.meter.released(token.since);
        let mut granted = Vec::new();
        let found = self.tree.with(|tree| {
            let found = tree.remove(token.node, &token.claim);
            if found {
                tree.unblock(&token.claim, |waiter| granted.push(waiter));
            }
            found
        });
        wake_all(granted);
        assert!(found, "the token is of another lock");
    }

    fn stats(&self) -> Option<StatsSnapshot> {
        self.meter.snapshot()
    }
}
