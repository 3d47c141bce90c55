//! Counting of acquisitions, contentions, wait and hold times.
//!
//! Invariants:
//! - a lock that was not given a [`LockStats`] pays one predictable branch and reads no clock;
//! - threads count in lines of their own (as far as there are enough), so that counting adds no
//!   contention to what it counts.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::Mode;

const SHARDS: usize = 64;

/// Counters that one or more locks of a class share.
#[derive(Debug)]
pub struct LockStats {
    shards: Box<[Shard]>,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    shared: AtomicU64,
    exclusive: AtomicU64,
    contended: AtomicU64,
    wait_ns: AtomicU64,
    hold_ns: AtomicU64,
}

/// The sums of a [`LockStats`] at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatsSnapshot {
    /// Acquisitions in shared mode.
    pub shared: u64,
    /// Acquisitions in exclusive mode.
    pub exclusive: u64,
    /// Acquisitions that had to wait for a holder or behind another waiter.
    pub contended: u64,
    /// Time spent waiting, in nanoseconds.
    pub wait_ns: u64,
    /// Time that ranges were held, in nanoseconds (only of those released).
    pub hold_ns: u64,
}

impl LockStats {
    /// New counters, all zero.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(LockStats { shards: (0..SHARDS).map(|_| Shard::default()).collect() })
    }

    /// Adds up what all threads have counted.
    #[must_use]
    pub fn snapshot(&self) -> StatsSnapshot {
        let mut sum = StatsSnapshot::default();
        for shard in &self.shards {
            sum.shared += shard.shared.load(Ordering::Relaxed);
            sum.exclusive += shard.exclusive.load(Ordering::Relaxed);
            sum.contended += shard.contended.load(Ordering::Relaxed);
            sum.wait_ns += shard.wait_ns.load(Ordering::Relaxed);
            sum.hold_ns += shard.hold_ns.load(Ordering::Relaxed);
        }
        sum
    }

    fn shard(&self) -> &Shard {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
        }
        // A thread that is being torn down counts with the first.
        &self.shards[MINE.try_with(|mine| *mine).unwrap_or(0)]
    }
}

fn now_ns() -> u64 {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    let elapsed = EPOCH.get_or_init(Instant::now).elapsed().as_nanos();
    // Never 0, which stands for "not counted"; 2^64 ns are 584 years.
    u64::try_from(elapsed).unwrap_or(u64::MAX).max(1)
}

/// What a lock keeps to count with, or nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter(Option<Arc<LockStats>>);

impl Meter {
    pub(crate) fn new(stats: Arc<LockStats>) -> Self {
        Meter(Some(stats))
    }

    /// The time now, or 0 if nothing is counted.
    #[inline(always)]
    pub(crate) fn clock(&self) -> u64 {
        if self.0.is_some() { now_ns() } else { 0 }
    }

    /// Counts an acquisition that did not wait; returns the start of the hold, for [`released`](Self::released).
    #[inline(always)]
    pub(crate) fn acquired(&self, mode: Mode) -> u64 {
        match &self.0 {
            None => 0,
            Some(stats) => count(stats, mode, None),
        }
    }

    /// Counts an acquisition that waited since `began`.
    pub(crate) fn acquired_after_wait(&self, mode: Mode, began: u64) -> u64 {
        match &self.0 {
            None => 0,
            Some(stats) => count(stats, mode, Some(began)),
        }
    }

    /// Counts the end of a hold.
    #[inline(always)]
    pub(crate) fn released(&self, since: u64) {
        if let Some(stats) = &self.0 {
            hold_ended(stats, since);
        }
    }

    pub(crate) fn snapshot(&self) -> Option<StatsSnapshot> {
        self.0.as_ref().map(|stats| stats.snapshot())
    }
}

#[cold]
fn count(stats: &LockStats, mode: Mode, waited_since: Option<u64>) -> u64 {
    let now = now_ns();
    let shard = stats.shard();
    match mode {
        Mode::Shared => shard.shared.fetch_add(1, Ordering::Relaxed),
        Mode::Exclusive => shard.exclusive.fetch_add(1, Ordering::Relaxed),
    };
    if let Some(began) = waited_since {
        shard.contended.fetch_add(1, Ordering::Relaxed);
        shard.wait_ns.fetch_add(now.saturating_sub(began), Ordering::Relaxed);
    }
    now
}

#[cold]
fn hold_ended(stats: &LockStats, since: u64) {
    if since != 0 {
        stats.shard().hold_ns.fetch_add(now_ns().saturating_sub(since), Ordering::Relaxed);
    }
}
