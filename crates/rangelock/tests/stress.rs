//! Exclusion, checked for every byte: an atomic a byte, which exclusive holders claim and shared ones count.
#![forbid(unsafe_code)]
#![cfg(not(loom))]

mod common;

use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;

use common::{Random, Watchdog, seed};
use rangelock::{ByteRangeLock, Mode, RangeLock};

const BYTES: u64 = 96;

/// Above 0: so many readers; -1: a writer.
struct File(Vec<AtomicI32>);

impl File {
    fn new() -> Self {
        File((0..BYTES).map(|_| AtomicI32::new(0)).collect())
    }

    fn enter(&self, start: u64, end: u64, mode: Mode) {
        for byte in &self.0[start as usize..end as usize] {
            // Relaxed: the lock under test has to provide the order.
            let before = match mode {
                Mode::Exclusive => byte.swap(-1, Ordering::Relaxed),
                Mode::Shared => byte.fetch_add(1, Ordering::Relaxed),
            };
            match mode {
                Mode::Exclusive => assert_eq!(before, 0, "a writer came in beside {before}"),
                Mode::Shared => assert!(before >= 0, "a reader came in beside a writer"),
            }
        }
    }

    fn leave(&self, start: u64, end: u64, mode: Mode) {
        for byte in &self.0[start as usize..end as usize] {
            match mode {
                Mode::Exclusive => assert_eq!(byte.swap(0, Ordering::Relaxed), -1),
                Mode::Shared => assert!(byte.fetch_sub(1, Ordering::Relaxed) > 0),
            }
        }
    }
}

fn pick(random: &mut Random) -> (u64, u64, Mode) {
    let start = random.below(BYTES);
    let longest = if random.below(8) == 0 { BYTES } else { 12 };
    let end = (start + 1 + random.below(longest)).min(BYTES);
    let mode = if random.below(2) == 0 { Mode::Shared } else { Mode::Exclusive };
    (start, end, mode)
}

fn exclusion<L: ByteRangeLock>(make: impl Fn() -> L) {
    let _watchdog = Watchdog::start("exclusion");
    let seed = seed();
    for threads in [1, 2, 4, 8, 16, 32, 64] {
        let (lock, file) = (make(), File::new());
        thread::scope(|scope| {
            for thread in 0..threads {
                let (lock, file) = (&lock, &file);
                scope.spawn(move || {
                    let mut random = Random::new(seed + thread);
                    for _ in 0..6000 / threads + 50 {
                        let (start, end, mode) = pick(&mut random);
                        let range = if random.below(50) == 0 { 0..u64::MAX } else { start..end };
                        let guard = if random.below(4) == 0 {
                            let Some(guard) = lock.try_lock(range, mode) else { continue };
                            guard
                        } else {
                            lock.lock(range, mode)
                        };
                        file.enter(start, end, mode);
                        if random.below(4) == 0 {
                            thread::yield_now();
                        }
                        file.leave(start, end, mode);
                        drop(guard);
                    }
                });
            }
        });
        // All gone: the whole file is free.
        assert!(lock.try_lock(0..u64::MAX, Mode::Exclusive).is_some());
    }
}

for_every_design!(exclusion);

/// Pairs, futures that are dropped half way, and pending requests, among blocking ones.
#[test]
fn exclusion_among_pairs_and_pending_requests() {
    let _watchdog = Watchdog::start("exclusion_among_pairs_and_pending_requests");
    let seed = seed();
    for threads in [1, 2, 4, 8, 16, 32, 64] {
        let (lock, file) = (RangeLock::with_geometry(8, 4), File::new());
        thread::scope(|scope| {
            for thread in 0..threads {
                let (lock, file) = (&lock, &file);
                scope.spawn(move || {
                    let mut random = Random::new(seed + thread);
                    for _ in 0..4000 / threads + 50 {
                        one_step(lock, file, &mut random);
                    }
                });
            }
        });
        assert!(lock.try_lock(0..u64::MAX, Mode::Exclusive).is_some());
    }
}

fn one_step(lock: &RangeLock, file: &File, random: &mut Random) {
    let (start, end, mode) = pick(random);
    match random.below(3) {
        0 => {
            // The two halves of one range, in either order, as a pair.
            if end - start < 2 {
                return;
            }
            let middle = start + 1 + random.below(end - start - 1);
            let (mut first, mut second) = ((start..middle, mode), (middle..end, Mode::Shared));
            if random.below(2) == 0 {
                std::mem::swap(&mut first, &mut second);
            }
            let guard = lock.lock_pair(first, second);
            file.enter(start, middle, mode);
            file.enter(middle, end, Mode::Shared);
            file.leave(start, middle, mode);
            file.leave(middle, end, Mode::Shared);
            drop(guard);
        }
        1 => {
            let waker = thread_waker();
            let token = match lock.acquire_or_notify(start..end, mode, &waker) {
                Ok(token) => token,
                Err(mut pending) => {
                    let cancel = random.below(2) == 0;
                    loop {
                        if let Some(token) = pending.try_finish() {
                            break token;
                        }
                        if cancel {
                            return;
                        }
                        thread::park();
                    }
                }
            };
            file.enter(start, end, mode);
            file.leave(start, end, mode);
            lock.release(token);
        }
        _ => {
            let guard = lock.lock(start..end, mode);
            file.enter(start, end, mode);
            file.leave(start, end, mode);
            drop(guard);
        }
    }
}

fn thread_waker() -> std::task::Waker {
    struct Unpark(thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    std::sync::Arc::new(Unpark(thread::current())).into()
}
