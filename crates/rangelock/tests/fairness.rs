//! Everybody gets a turn; and nobody waits who needs not.
#![forbid(unsafe_code)]
#![cfg(not(loom))]

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use common::Watchdog;
#[cfg(feature = "designs")]
use rangelock::{BTreeLock, IntervalTreeLock};
use rangelock::{ByteRangeLock, LockStats, Mode, RangeLock};

const TURNS: u64 = 200;

/// One thread takes `lone` so many times while eight others, who overlap it and each other, never pause.
fn one_among_eight<L: ByteRangeLock>(lock: &L, lone: Mode, others: Mode) {
    let done = AtomicBool::new(false);
    let ready = AtomicU64::new(0);
    let turns = AtomicU64::new(0);
    thread::scope(|scope| {
        for other in 0..8u64 {
            let (done, ready) = (&done, &ready);
            scope.spawn(move || {
                ready.fetch_add(1, Ordering::Relaxed);
                while !done.load(Ordering::Relaxed) {
                    drop(lock.lock(other * 512..8192, others));
                }
            });
        }
        while ready.load(Ordering::Relaxed) < 8 {
            thread::yield_now();
        }
        for _ in 0..TURNS {
            drop(lock.lock(4096..8192, lone));
            turns.fetch_add(1, Ordering::Relaxed);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(turns.into_inner(), TURNS);
}

fn both_ways<L: ByteRangeLock>(make: impl Fn() -> L) {
    let _watchdog = Watchdog::start("fairness");
    one_among_eight(&make(), Mode::Exclusive, Mode::Shared);
    one_among_eight(&make(), Mode::Shared, Mode::Exclusive);
}

for_every_design!(both_ways);

/// With no turn given back but by hand: a newcomer that conflicts with a waiter stays behind it, one that
/// does not passes.
#[test]
fn a_waiter_is_not_overtaken_by_whom_it_conflicts_with() {
    let lock = RangeLock::new();
    let noop = std::task::Waker::noop();
    let reader = lock.acquire(0..4096, Mode::Shared);
    let Err(mut writer) = lock.acquire_or_notify(0..4096, Mode::Exclusive, noop) else {
        panic!("passed a reader")
    };
    assert!(lock.try_lock(0..10, Mode::Shared).is_none(), "a reader overtook the writer who waits");
    assert!(lock.try_lock(4096..8192, Mode::Exclusive).is_some(), "disjoint ranges wait for nobody");
    let Err(mut late) = lock.acquire_or_notify(0..10, Mode::Shared, noop) else { panic!("overtook") };
    lock.release(reader);
    assert!(late.try_finish().is_none());
    let token = writer.try_finish().expect("the writer's turn");
    lock.release(token);
    lock.release(late.try_finish().expect("the late reader's turn"));
}

#[test]
fn a_cancelled_waiter_lets_those_behind_it_in() {
    let lock = RangeLock::with_geometry(8, 4096);
    let noop = std::task::Waker::noop();
    let reader = lock.acquire(0..4096, Mode::Shared);
    let Err(writer) = lock.acquire_or_notify(0..8192, Mode::Exclusive, noop) else {
        panic!("passed a reader")
    };
    let Err(mut late) = lock.acquire_or_notify(0..10, Mode::Shared, noop) else { panic!("overtook") };
    drop(writer);
    lock.release(late.try_finish().expect("nobody before it is left"));
    lock.release(reader);
    // Granted, but never fetched: dropping gives it up.
    let first = lock.acquire(0..4096, Mode::Exclusive);
    let Err(granted) = lock.acquire_or_notify(0..16384, Mode::Exclusive, noop) else {
        panic!("passed a writer")
    };
    lock.release(first);
    drop(granted);
    assert!(lock.try_lock(0..u64::MAX, Mode::Exclusive).is_some());
}

#[test]
fn a_future_waits_and_can_be_dropped() {
    use std::future::Future;
    use std::task::{Context, Poll};

    let lock = RangeLock::with_geometry(8, 4096);
    let mut context = Context::from_waker(std::task::Waker::noop());
    let first = lock.lock(0..4096, Mode::Exclusive);
    let second = lock.lock(8192..9000, Mode::Exclusive);
    let mut future = Box::pin(lock.lock_async(0..16384, Mode::Exclusive));
    let mut dropped = Box::pin(lock.lock_async(0..16384, Mode::Exclusive));
    assert!(future.as_mut().poll(&mut context).is_pending());
    assert!(dropped.as_mut().poll(&mut context).is_pending());
    drop(first);
    assert!(future.as_mut().poll(&mut context).is_pending(), "the second holder is still there");
    drop(dropped);
    drop(second);
    let Poll::Ready(guard) = future.as_mut().poll(&mut context) else { panic!("nobody is left to wait for") };
    drop(guard);
    assert!(lock.try_lock(0..u64::MAX, Mode::Exclusive).is_some());
}

/// Threads that keep 128 requests in flight on disjoint ranges never wait for one another.
fn queued<L: ByteRangeLock>(lock: &L, blocking: bool) {
    let _watchdog = Watchdog::start("queued");
    thread::scope(|scope| {
        for thread in 0..8u64 {
            scope.spawn(move || {
                let range = |request: u64| {
                    let start = (thread * 128 + request) * 4096;
                    start..start + 4096
                };
                for _ in 0..50 {
                    let tokens: Vec<_> = (0..128)
                        .map(|request| match blocking {
                            true => lock.acquire(range(request), Mode::Exclusive),
                            false => lock.try_acquire(range(request), Mode::Exclusive).expect("disjoint"),
                        })
                        .collect();
                    tokens.into_iter().for_each(|token| lock.release(token));
                }
            });
        }
    });
    let stats = lock.stats().expect("it counts");
    assert_eq!((stats.contended, stats.exclusive, stats.shared), (0, 8 * 128 * 50, 0));
}

#[test]
fn queued_requests_on_disjoint_ranges_never_wait() {
    for blocking in [true, false] {
        queued(&RangeLock::new().with_stats(LockStats::new()), blocking);
        queued(&RangeLock::with_geometry(2, 4096).with_stats(LockStats::new()), blocking);
        #[cfg(feature = "designs")]
        {
            queued(&IntervalTreeLock::new().with_stats(LockStats::new()), blocking);
            queued(&BTreeLock::new().with_stats(LockStats::new()), blocking);
        }
    }
}

#[test]
fn contention_and_times_are_counted() {
    let stats = LockStats::new();
    let lock = RangeLock::new().with_stats(stats.clone());
    let held = lock.acquire(0..10, Mode::Exclusive);
    let Err(mut pending) = lock.acquire_or_notify(5..6, Mode::Shared, std::task::Waker::noop()) else {
        panic!()
    };
    thread::sleep(std::time::Duration::from_millis(2));
    lock.release(held);
    lock.release(pending.try_finish().expect("its turn"));
    let counted = stats.snapshot();
    assert_eq!((counted.exclusive, counted.shared, counted.contended), (1, 1, 1));
    assert!(counted.wait_ns >= 2_000_000 && counted.hold_ns >= 2_000_000, "{counted:?}");
}
