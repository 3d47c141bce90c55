//! Models of the range lock, every interleaving of them (with a bound on preemptions):
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p rangelock --release --test loom
//! ```
//!
//! Each model gives the lock something to protect (a loom cell, which reports two accesses at once), and
//! ends by taking the whole file: what was forgotten, by a lost wake-up or a leaked claim, shows there or
//! as a deadlock.
#![cfg(loom)]

use std::task::Waker;

use loom::cell::UnsafeCell;
use loom::future::block_on;
use loom::sync::Arc;
use loom::thread;
use rangelock::{ByteRangeLock, Mode, RangeLock};

/// A lock and what it protects.
struct Shared {
    lock: RangeLock,
    value: UnsafeCell<u32>,
}

// SAFETY: the models reach `value` only with the range held that protects it; that this is so is what
// loom checks.
unsafe impl Sync for Shared {}
// SAFETY: a number.
unsafe impl Send for Shared {}

impl Shared {
    fn new(buckets: usize) -> Arc<Self> {
        let lock = RangeLock::with_geometry(buckets, 1);
        lock.prepare();
        Arc::new(Shared { lock, value: UnsafeCell::new(0) })
    }

    fn write(&self) {
        // SAFETY: the caller holds the range exclusively.
        self.value.with_mut(|value| unsafe { *value += 1 });
    }

    fn read(&self) -> u32 {
        // SAFETY: the caller holds the range.
        self.value.with(|value| unsafe { *value })
    }

    /// Everything has been given back, and the value is what it should be.
    fn finish(&self, expected: u32) {
        let whole = self.lock.try_lock(0..u64::MAX, Mode::Exclusive).expect("nothing is held or waited for");
        assert_eq!(self.read(), expected);
        drop(whole);
    }
}

fn model(check: impl Fn() + Sync + Send + 'static) {
    model_within(3, check);
}

/// With so many preemptions at most, where three are too many to try them all.
fn model_within(preemptions: usize, check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.check(check);
}

/// The bucket's word, and the hand-off to a thread that is parked.
#[test]
fn two_writers_exclude_each_other() {
    model(|| {
        let shared = Shared::new(1);
        let other = shared.clone();
        let thread = thread::spawn(move || {
            let guard = other.lock.lock(0..1, Mode::Exclusive);
            other.write();
            drop(guard);
        });
        let guard = shared.lock.lock(0..1, Mode::Exclusive);
        shared.write();
        drop(guard);
        thread.join().unwrap();
        shared.finish(2);
    });
}

/// A holder that gives its span back by one compare-and-swap, beside one who enters the same bucket.
#[test]
fn disjoint_ranges_of_one_bucket_never_wait() {
    model(|| {
        let shared = Shared::new(1);
        let other = shared.clone();
        let held = shared.lock.try_lock(1..2, Mode::Exclusive).expect("free");
        let thread = thread::spawn(move || {
            let first = other.lock.try_acquire(0..1, Mode::Exclusive).expect("disjoint");
            other.lock.release(first);
        });
        drop(held);
        drop(shared.lock.try_lock(2..3, Mode::Exclusive).expect("disjoint"));
        thread.join().unwrap();
        shared.finish(0);
    });
}

#[test]
fn a_reader_and_a_writer_exclude_each_other() {
    model(|| {
        let shared = Shared::new(1);
        let other = shared.clone();
        let reading = shared.lock.lock(0..1, Mode::Shared);
        let thread = thread::spawn(move || {
            let guard = other.lock.lock(0..1, Mode::Exclusive);
            other.write();
            drop(guard);
        });
        assert_eq!(shared.read(), 0);
        drop(reading);
        let guard = shared.lock.lock(0..1, Mode::Shared);
        assert!(shared.read() <= 1);
        drop(guard);
        thread.join().unwrap();
        shared.finish(1);
    });
}

/// Two ranges over the same two buckets.
#[test]
fn two_buckets_are_taken_in_one_order() {
    model(|| {
        let shared = Shared::new(2);
        let other = shared.clone();
        let thread = thread::spawn(move || {
            let guard = other.lock.lock(0..2, Mode::Exclusive);
            other.write();
            drop(guard);
        });
        let guard = shared.lock.lock(1..3, Mode::Exclusive);
        shared.write();
        drop(guard);
        thread.join().unwrap();
        shared.finish(2);
    });
}

/// A pair, named in the other order by the other thread.
#[test]
fn pairs_in_opposite_order_do_not_deadlock() {
    model(|| {
        let shared = Shared::new(2);
        let other = shared.clone();
        let (a, b) = ((0..1, Mode::Exclusive), (1..2, Mode::Exclusive));
        let (a2, b2) = (a.clone(), b.clone());
        let thread = thread::spawn(move || {
            let guard = other.lock.lock_pair(b2, a2);
            other.write();
            drop(guard);
        });
        let guard = shared.lock.lock_pair(a, b);
        shared.write();
        drop(guard);
        thread.join().unwrap();
        shared.finish(2);
    });
}

/// A task's waker is left before the grant is looked for, so that none is missed.
#[test]
fn a_task_is_woken() {
    model(|| {
        let shared = Shared::new(2);
        let other = shared.clone();
        let thread = thread::spawn(move || {
            let guard = other.lock.lock(0..2, Mode::Exclusive);
            other.write();
            drop(guard);
        });
        let guard = block_on(shared.lock.lock_async(0..2, Mode::Exclusive));
        shared.write();
        drop(guard);
        thread.join().unwrap();
        shared.finish(2);
    });
}

/// A request is cancelled while the holder goes: it may be queued or granted by then.
#[test]
fn a_cancelled_request_leaves_nothing_behind() {
    model(|| {
        let shared = Shared::new(2);
        let other = shared.clone();
        let held = shared.lock.acquire(0..1, Mode::Exclusive);
        let thread = thread::spawn(move || {
            if let Ok(token) = other.lock.acquire_or_notify(0..2, Mode::Exclusive, Waker::noop()) {
                other.write();
                other.write();
                other.lock.release(token);
            }
        });
        shared.write();
        shared.lock.release(held);
        thread.join().unwrap();
        let so_far = shared.read();
        assert!(so_far == 1 || so_far == 3);
        shared.finish(so_far);
    });
}

/// Somebody waits behind a request that is cancelled.
#[test]
fn a_cancelled_request_lets_the_next_one_in() {
    model(|| {
        let shared = Shared::new(1);
        let other = shared.clone();
        let held = shared.lock.acquire(0..1, Mode::Shared);
        let pending = shared.lock.acquire_or_notify(0..1, Mode::Exclusive, Waker::noop());
        assert!(pending.is_err());
        let thread = thread::spawn(move || drop(other.lock.lock(0..1, Mode::Shared)));
        drop(pending);
        thread.join().unwrap();
        shared.lock.release(held);
        shared.finish(0);
    });
}

/// A lock of one bucket that is biased to readers: in a model it is once a reader has met another.
fn biased() -> Arc<Shared> {
    let shared = Shared::new(1);
    meet(&shared);
    shared
}

fn meet(shared: &Shared) {
    let first = shared.lock.lock(0..1, Mode::Shared);
    drop(shared.lock.lock(0..1, Mode::Shared));
    drop(first);
}

/// The reader's claim and look at the bias, against the writer's revocation and look at the claims.
#[test]
fn a_visible_reader_and_a_writer_exclude_each_other() {
    model(|| {
        let shared = biased();
        let other = shared.clone();
        let thread = thread::spawn(move || {
            let guard = other.lock.lock(0..1, Mode::Exclusive);
            other.write();
            drop(guard);
        });
        let guard = shared.lock.lock(0..1, Mode::Shared);
        assert!(shared.read() <= 1);
        drop(guard);
        thread.join().unwrap();
        shared.finish(1);
    });
}

/// The reader goes while the writer comes: before it is seen, while it is taken over, or with the writer in line.
#[test]
fn a_visible_reader_who_goes_wakes_the_writer() {
    model(|| {
        let shared = biased();
        let other = shared.clone();
        let reading = shared.lock.lock(0..1, Mode::Shared);
        let thread = thread::spawn(move || {
            let guard = other.lock.lock(0..1, Mode::Exclusive);
            other.write();
            drop(guard);
        });
        assert_eq!(shared.read(), 0);
        drop(reading);
        thread.join().unwrap();
        shared.finish(1);
    });
}

#[test]
fn a_visible_reader_who_goes_wakes_a_task() {
    model(|| {
        let shared = biased();
        let other = shared.clone();
        let reading = shared.lock.acquire(0..1, Mode::Shared);
        let thread = thread::spawn(move || {
            assert_eq!(other.read(), 0);
            other.lock.release(reading);
        });
        let guard = block_on(shared.lock.lock_async(0..1, Mode::Exclusive));
        shared.write();
        drop(guard);
        thread.join().unwrap();
        shared.finish(1);
    });
}

/// A writer who does not wait gets in, or leaves the readers undisturbed.
#[test]
fn a_visible_reader_and_a_writer_who_tries() {
    model(|| {
        let shared = biased();
        let other = shared.clone();
        let thread = thread::spawn(move || {
            let guard = other.lock.try_lock(0..1, Mode::Exclusive);
            let wrote = guard.is_some();
            if wrote {
                other.write();
            }
            drop(guard);
            wrote
        });
        for _ in 0..2 {
            let guard = shared.lock.lock(0..1, Mode::Shared);
            shared.read();
            drop(guard);
        }
        let wrote = thread.join().unwrap();
        shared.finish(u32::from(wrote));
    });
}

/// A hold that is given back by another thread than took it, while that one waits to write.
#[test]
fn a_visible_hold_ends_in_another_thread() {
    model(|| {
        let shared = biased();
        let other = shared.clone();
        let reading = shared.lock.acquire(0..1, Mode::Shared);
        let thread = thread::spawn(move || {
            assert_eq!(other.read(), 0);
            other.lock.release(reading);
        });
        let guard = shared.lock.lock(0..1, Mode::Exclusive);
        shared.write();
        drop(guard);
        thread.join().unwrap();
        shared.finish(1);
    });
}

/// Two readers have one entry between them, as a model's table has two: one gets it, and the other gets the other
/// or enters the ordinary way. The one who comes last writes too.
#[test]
fn readers_of_one_entry_and_a_writer() {
    model(|| {
        let shared = biased();
        let read = |shared: &Shared| {
            let guard = shared.lock.lock(0..1, Mode::Shared);
            shared.read();
            drop(guard);
        };
        // This thread is given the first entry, and the second goes to one who is gone by then.
        read(&shared);
        let other = shared.clone();
        thread::spawn(move || read(&other)).join().unwrap();
        let other = shared.clone();
        let thread = thread::spawn(move || {
            read(&other);
            let guard = other.lock.lock(0..1, Mode::Exclusive);
            other.write();
            drop(guard);
        });
        read(&shared);
        thread.join().unwrap();
        shared.finish(1);
    });
}

/// The entry of one bucket's reader is reused by another bucket's, and a writer of the first finds it so.
#[test]
fn an_entry_serves_two_buckets() {
    model(|| {
        let shared = Shared::new(2);
        meet(&shared);
        let (first, second) = (shared.lock.lock(1..2, Mode::Shared), shared.lock.lock(1..2, Mode::Shared));
        drop((first, second));
        let other = shared.clone();
        let thread = thread::spawn(move || {
            let guard = other.lock.lock(0..1, Mode::Exclusive);
            other.write();
            drop(guard);
        });
        let guard = shared.lock.lock(0..1, Mode::Shared);
        shared.read();
        drop(guard);
        let elsewhere = shared.lock.lock(1..2, Mode::Shared);
        thread.join().unwrap();
        drop(elsewhere);
        shared.finish(1);
    });
}

/// The bias is revoked and given again while a reader is about to enter by it.
#[test]
fn the_bias_comes_back() {
    model_within(2, || {
        let shared = biased();
        let other = shared.clone();
        let thread = thread::spawn(move || {
            let guard = other.lock.lock(0..1, Mode::Shared);
            assert!(other.read() <= 2);
            drop(guard);
        });
        let write = || {
            let guard = shared.lock.lock(0..1, Mode::Exclusive);
            shared.write();
            drop(guard);
        };
        write();
        meet(&shared);
        write();
        thread.join().unwrap();
        shared.finish(2);
    });
}

/// The writer finds the first claim in the entry and takes over the second.
#[test]
fn a_visible_reader_of_two_ranges_and_a_writer() {
    model(|| {
        let shared = biased();
        let other = shared.clone();
        let thread = thread::spawn(move || {
            let guard = other.lock.lock(0..2, Mode::Exclusive);
            other.write();
            drop(guard);
        });
        for start in 0..2 {
            let guard = shared.lock.lock(start..start + 1, Mode::Shared);
            shared.read();
            drop(guard);
        }
        thread.join().unwrap();
        shared.finish(1);
    });
}

/// One writer is in line behind a visible reader when the next comes.
#[test]
fn writers_line_up_behind_a_visible_reader() {
    model(|| {
        let shared = biased();
        let other = shared.clone();
        let reading = shared.lock.acquire(0..1, Mode::Shared);
        let pending = shared.lock.acquire_or_notify(0..1, Mode::Exclusive, Waker::noop());
        let mut pending = pending.expect_err("passed a reader");
        let thread = thread::spawn(move || {
            let guard = other.lock.lock(0..1, Mode::Exclusive);
            other.write();
            drop(guard);
        });
        shared.read();
        shared.lock.release(reading);
        let token = pending.try_finish().expect("it was the first in line");
        shared.write();
        shared.lock.release(token);
        thread.join().unwrap();
        shared.finish(2);
    });
}
