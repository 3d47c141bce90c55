//! What the behaviour tests share: a seeded generator, a watchdog, and every design by name.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A small generator that a printed seed replays.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// The seed of this run: `RANGELOCK_SEED`, or a new one; printed, so that a failure can be replayed.
pub fn seed() -> u64 {
    let given = std::env::var("RANGELOCK_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |since| since.subsec_nanos().into())
    });
    println!("RANGELOCK_SEED={seed}");
    seed
}

/// Aborts the test process if it hangs: a deadlock would otherwise never end.
pub struct Watchdog(Arc<AtomicBool>);

impl Watchdog {
    pub fn start(what: &'static str) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let seen = done.clone();
        thread::spawn(move || {
            let began = Instant::now();
            while !seen.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(50));
                if began.elapsed() > Duration::from_secs(300) {
                    eprintln!("{what}: hangs");
                    std::process::abort();
                }
            }
        });
        Watchdog(done)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a generic test function for every design (and for range locks of odd geometries).
#[macro_export]
macro_rules! for_every_design {
    ($check:ident) => {
        mod $check {
            use rangelock::*;

            #[test]
            fn range() {
                super::$check(RangeLock::new);
            }
            #[test]
            fn range_of_few_buckets_and_small_segments() {
                super::$check(|| RangeLock::with_geometry(4, 2));
            }
            #[cfg(feature = "designs")]
            #[test]
            fn whole_file() {
                super::$check(WholeFileLock::new);
            }
            #[cfg(feature = "designs")]
            #[test]
            fn interval_tree() {
                super::$check(IntervalTreeLock::new);
            }
            #[cfg(feature = "designs")]
            #[test]
            fn btree() {
                super::$check(BTreeLock::new);
            }
        }
    };
}
