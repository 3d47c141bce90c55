//! The oldest design: one reader-writer lock for the whole file.
//!
//! Invariant: the range is ignored, so that any exclusive hold excludes everybody, its own thread's
//! further requests included.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::claim::Claim;
use crate::guard::RangeGuard;
use crate::stats::{LockStats, Meter, StatsSnapshot};
use crate::{ByteRangeLock, Mode};

/// A reader-writer lock over the whole file, whatever range is asked for.
#[derive(Debug)]
pub struct WholeFileLock {
    lock: RwLock<()>,
    id: u64,
    meter: Meter,
}

/// A hold of a [`WholeFileLock`].
#[derive(Debug)]
#[must_use = "the file stays locked until the token is given back"]
pub struct WholeFileToken {
    mode: Mode,
    lock_id: u64,
    since: u64,
}

impl WholeFileLock {
    /// A lock that counts nothing.
    #[must_use]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        WholeFileLock {
            lock: RwLock::new(()),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            meter: Meter::default(),
        }
    }

    /// Counts into `stats` from now on.
    #[must_use]
    pub fn with_stats(mut self, stats: Arc<LockStats>) -> Self {
        self.meter = Meter::new(stats);
        self
    }

    #[inline]
    fn take(&self, mode: Mode) -> bool {
        match mode {
            Mode::Shared => self.lock.try_read().map(std::mem::forget).is_some(),
            Mode::Exclusive => self.lock.try_write().map(std::mem::forget).is_some(),
        }
    }
}

impl Default for WholeFileLock {
    fn default() -> Self {
        Self::new()
    }
}

impl ByteRangeLock for WholeFileLock {
    type Guard<'a> = RangeGuard<'a, Self>;
    type Token = WholeFileToken;

    fn lock(&self, range: Range<u64>, mode: Mode) -> Self::Guard<'_> {
        RangeGuard::new(self, self.acquire(range, mode))
    }

    fn try_lock(&self, range: Range<u64>, mode: Mode) -> Option<Self::Guard<'_>> {
        self.try_acquire(range, mode).map(|token| RangeGuard::new(self, token))
    }

    fn acquire(&self, range: Range<u64>, mode: Mode) -> Self::Token {
        let claim = Claim::new(range, mode);
        let since = if self.take(claim.mode) {
            self.meter.acquired(mode)
        } else {
            let began = self.meter.clock();
            match mode {
                Mode::Shared => std::mem::forget(self.lock.read()),
                Mode::Exclusive => std::mem::forget(self.lock.write()),
            }
            self.meter.acquired_after_wait(mode, began)
        };
        WholeFileToken { mode, lock_id: self.id, since }
    }

    fn try_acquire(&self, range: Range<u64>, mode: Mode) -> Option<Self::Token> {
        let claim = Claim::new(range, mode);
        self.take(claim.mode).then(|| WholeFileToken {
            mode,
            lock_id: self.id,
            since: self.meter.acquired(mode),
        })
    }

    fn release(&self, token: Self::Token) {
        assert_eq!(token.lock_id, self.id, "the token is of another lock");
        self.meter.released(token.since);
        match token.mode {
            // SAFETY: the token was made by this lock (its id says so) when a read guard was forgotten,
            // and is consumed here, so this hold is released once. That may be by another thread: the feature
            // `send_guard` makes holds of `parking_lot` fit for that.
            Mode::Shared => unsafe { self.lock.force_unlock_read() },
            // SAFETY: as above, for a write guard.
            Mode::Exclusive => unsafe { self.lock.force_unlock_write() },
        }
    }

    fn stats(&self) -> Option<StatsSnapshot> {
        self.meter.snapshot()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Tokens are `Send`, and giving one back ends a hold of `parking_lot` in whatever thread that is.
    #[test]
    fn holds_may_end_in_another_thread() {
        fn fit_for_that<
            L: parking_lot::lock_api::RawRwLock<GuardMarker = parking_lot::lock_api::GuardSend>,
        >() {
        }
        fit_for_that::<parking_lot::RawRwLock>();
        let lock = WholeFileLock::new();
        for mode in [Mode::Shared, Mode::Exclusive] {
            let token = lock.acquire(0..1, mode);
            std::thread::scope(|scope| scope.spawn(|| lock.release(token)).join()).unwrap();
            drop(lock.try_lock(0..1, Mode::Exclusive).expect("nobody is left"));
        }
    }
}
