//! A B-tree under a mutex.
//!
//! Invariants:
//! - the tree maps the start of each held piece to its end and holders; pieces never overlap, so one
//!   look to the left of a range's end finds out whether it is free;
//! - shared ranges that overlap are cut into pieces that count their holders; neighbours that have become
//!   equal again are joined, so that short-lived holders leave no crumbs;
//! - waiters stand in one queue; who conflicts with an earlier one stays behind it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::claim::Claim;
use crate::guard::RangeGuard;
use crate::stats::{LockStats, Meter, StatsSnapshot};
use crate::waiter::{Waiter, Wake, wake_all};
use crate::{ByteRangeLock, Mode};

use super::queue::WaitQueue;

/// Ranges in a B-tree under one mutex.
#[derive(Debug, Default)]
pub struct BTreeLock {
    inner: Mutex<Inner>,
    meter: Meter,
}

/// A hold of a [`BTreeLock`].
#[derive(Debug)]
#[must_use = "the range stays held until the token is given back"]
pub struct BTreeToken {
    claim: Claim,
    since: u64,
}

#[derive(Debug, Default)]
struct Inner {
    held: BTreeMap<u64, Piece>,
    waiters: WaitQueue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    end: u64,
    holders: Holders,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holders {
    One,
    Shared(usize),
}

impl Inner {
    fn fits(&self, claim: &Claim) -> bool {
        match claim.mode {
            Mode::Exclusive => match self.held.range(..claim.end).next_back() {
                Some((_, piece)) => piece.end <= claim.start,
                None => true,
            },
            Mode::Shared => self
                .held
                .range(..claim.end)
                .rev()
                .take_while(|(_, piece)| piece.end > claim.start)
                .all(|(_, piece)| piece.holders != Holders::One),
        }
    }

    fn enter(&mut self, claim: &Claim) {
        if claim.mode == Mode::Exclusive {
            self.held.insert(claim.start, Piece { end: claim.end, holders: Holders::One });
            return;
        }
        self.cut(claim.start);
        self.cut(claim.end);
        let mut at = claim.start;
        while at < claim.end {
            let next = self.held.range_mut(at..claim.end).next();
            match next {
                Some((&start, piece)) if start == at => {
                    if let Holders::Shared(count) = &mut piece.holders {
                        *count += 1;
                    }
                    at = piece.end;
                }
                other => {
                    let end = other.map_or(claim.end, |(&start, _)| start);
                    self.held.insert(at, Piece { end, holders: Holders::Shared(1) });
                    at = end;
                }
            }
        }
    }

    /// Takes the claim out; false if it is not held.
    fn leave(&mut self, claim: &Claim) -> bool {
        if claim.mode == Mode::Exclusive {
            let expected = Piece { end: claim.end, holders: Holders::One };
            let found = self.held.get(&claim.start) == Some(&expected);
            if found {
                self.held.remove(&claim.start);
            }
            return found;
        }
        self.cut(claim.start);
        self.cut(claim.end);
        let mut at = claim.start;
        while at < claim.end {
            let Some(piece) = self.held.get_mut(&at) else { return false };
            let Holders::Shared(count) = &mut piece.holders else { return false };
            let end = piece.end;
            *count -= 1;
            if *count == 0 {
                self.held.remove(&at);
            }
            at = end;
        }
        self.join(claim.start);
        self.join(claim.end);
        true
    }

    /// Makes `at` the border of the shared piece that it lies within.
    fn cut(&mut self, at: u64) {
        if let Some((_, piece)) = self.held.range_mut(..at).next_back()
            && piece.end > at
        {
            let right = *piece;
            piece.end = at;
            self.held.insert(at, right);
        }
    }

    /// Joins the two shared pieces that meet at `at` if they have equally many holders.
    fn join(&mut self, at: u64) {
        let Some(&right) = self.held.get(&at) else { return };
        if let Some((_, left)) = self.held.range_mut(..at).next_back()
            && left.end == at
            && left.holders == right.holders
            && left.holders != Holders::One
        {
            left.end = right.end;
            self.held.remove(&at);
        }
    }

    fn try_enter(&mut self, claim: &Claim) -> bool {
        let free = self.fits(claim) && !self.waiters.conflicts(claim);
        if free {
            self.enter(claim);
        }
        free
    }

    fn grant(&mut self) -> Vec<Arc<Waiter>> {
        let mut granted = Vec::new();
        let mut queue = std::mem::take(&mut self.waiters);
        let mut from = 0;
        while let Some(waiter) =
            queue.next_grantable(&mut from, |claims| claims.iter().all(|claim| self.fits(claim)))
        {
            for claim in waiter.claims() {
                self.enter(claim);
            }
            if waiter.left_line() {
                granted.push(waiter);
            }
        }
        self.waiters = queue;
        granted
    }
}

impl BTreeLock {
    /// A lock that counts nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts into `stats` from now on.
    #[must_use]
    pub fn with_stats(mut self, stats: Arc<LockStats>) -> Self {
        self.meter = Meter::new(stats);
        self
    }

    #[cold]
    fn wait(&self, waiter: &Waiter, mode: Mode) -> u64 {
        let began = self.meter.clock();
        waiter.wait();
        self.meter.acquired_after_wait(mode, began)
    }
}

impl ByteRangeLock for BTreeLock {
    type Guard<'a> = RangeGuard<'a, Self>;
    type Token = BTreeToken;

    fn lock(&self, range: Range<u64>, mode: Mode) -> Self::Guard<'_> {
        RangeGuard::new(self, self.acquire(range, mode))
    }

    fn try_lock(&self, range: Range<u64>, mode: Mode) -> Option<Self::Guard<'_>> {
        self.try_acquire(range, mode).map(|token| RangeGuard::new(self, token))
    }

    fn acquire(&self, range: Range<u64>, mode: Mode) -> Self::Token {
        let claim = Claim::new(range, mode);
        let mut inner = self.inner.lock();
        let since = if inner.try_enter(&claim) {
            drop(inner);
            self.meter.acquired(mode)
        } else {
            let waiter = Waiter::new(vec![claim], 0, Wake::this_thread());
            inner.waiters.push(waiter.clone());
            drop(inner);
            self.wait(&waiter, mode)
        };
        BTreeToken { claim, since }
    }

    fn try_acquire(&self, range: Range<u64>, mode: Mode) -> Option<Self::Token> {
        let claim = Claim::new(range, mode);
        let free = self.inner.lock().try_enter(&claim);
        free.then(|| BTreeToken { claim, since: self.meter.acquired(mode) })
    }

    fn release(&self, token: Self::Token) {
        self.meter.released(token.since);
        let mut inner = self.inner.lock();
        let found = inner.leave(&token.claim);
        let granted = if inner.waiters.is_empty() { Vec::new() } else { inner.grant() };
        drop(inner);
        wake_all(granted);
        assert!(found, "the token is of another lock");
    }

    fn stats(&self) -> Option<StatsSnapshot> {
        self.meter.snapshot()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn shared_pieces_are_cut_and_joined_again() {
        let lock = BTreeLock::new();
        let wide = lock.lock(0..100, Mode::Shared);
        for _ in 0..10 {
            let narrow = lock.lock(40..60, Mode::Shared);
            assert_eq!(lock.inner.lock().held.len(), 3);
            drop(narrow);
            assert_eq!(lock.inner.lock().held.len(), 1);
        }
        assert!(lock.try_lock(99..200, Mode::Exclusive).is_none());
        drop(wide);
        assert!(lock.inner.lock().held.is_empty());
    }

    #[test]
    #[should_panic(expected = "another lock")]
    fn a_foreign_token_is_refused() {
        let token = BTreeLock::new().acquire(0..10, Mode::Exclusive);
        BTreeLock::new().release(token);
    }
}
