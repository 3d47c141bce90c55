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

use std::ops::Range;
use std::task::Waker;

use loom::cell::UnsafeCell;
use loom::future::block_on;
use loom::sync::Arc;
use loom::thread;
use rangelock::{Mode, RangeLock};

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

/// Two threads hold a pair each, the other one in the other order.
fn pair_in_opposite_orders(first: Range<u64>, second: Range<u64>) {
    model(move || {
        let shared = Shared::new(2);
        let other = shared.clone();
        let (a, b) = ((first.clone(), Mode::Exclusive), (second.clone(), Mode::Exclusive));
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

/// A pair, named in the other order by the other thread.
#[test]
fn pairs_in_opposite_order_do_not_deadlock() {
    pair_in_opposite_orders(0..1, 1..2);
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

/// Holds `range` exclusively for a moment, and writes.
fn write_in(shared: &Shared, range: std::ops::Range<u64>) {
    let guard = shared.lock.lock(range, Mode::Exclusive);
    shared.write();
    drop(guard);
}

/// Holds `range` with others for a moment, and reads.
fn read_in(shared: &Shared, range: std::ops::Range<u64>) {
    let guard = shared.lock.lock(range, Mode::Shared);
    shared.read();
    drop(guard);
}

const WHOLE: std::ops::Range<u64> = 0..u64::MAX;

/// The flags and the look at all buckets, against the bucket and the look at the flags.
#[test]
fn a_wide_writer_and_a_narrow_one_exclude_each_other() {
    model(|| {
        let shared = Shared::new(1);
        let other = shared.clone();
        let thread = thread::spawn(move || write_in(&other, WHOLE));
        write_in(&shared, 0..1);
        thread.join().unwrap();
        shared.finish(2);
    });
}

/// The same where others are in the bucket, so that the narrow one comes the other way.
#[test]
fn a_wide_writer_and_one_among_others_exclude_each_other() {
    model(|| {
        let shared = Shared::new(1);
        let beside = shared.lock.acquire(5..6, Mode::Shared);
        let other = shared.clone();
        let thread = thread::spawn(move || write_in(&other, 0..3));
        write_in(&shared, 0..1);
        thread.join().unwrap();
        shared.lock.release(beside);
        shared.finish(2);
    });
}

#[test]
fn a_wide_writer_and_a_visible_reader_exclude_each_other() {
    model(|| {
        let shared = biased();
        let other = shared.clone();
        let thread = thread::spawn(move || write_in(&other, WHOLE));
        read_in(&shared, 0..1);
        thread.join().unwrap();
        shared.finish(1);
    });
}

/// The writer comes and goes, and the bias comes back meanwhile.
#[test]
fn a_wide_writer_and_a_bias_that_comes_back() {
    model_within(2, || {
        let shared = biased();
        let other = shared.clone();
        let thread = thread::spawn(move || {
            read_in(&other, 0..1);
            read_in(&other, 0..1);
        });
        write_in(&shared, WHOLE);
        meet(&shared);
        write_in(&shared, WHOLE);
        thread.join().unwrap();
        shared.finish(2);
    });
}

/// Who tries neither waits nor leaves anything behind, whichever of the two it is.
#[test]
fn who_tries_backs_out_of_the_gate_and_of_buckets() {
    for wide_tries in [true, false] {
        model(move || {
            let shared = Shared::new(2);
            let other = shared.clone();
            let (tried, waited) = if wide_tries { (WHOLE, 0..2) } else { (0..2, WHOLE) };
            let thread = thread::spawn(move || {
                let guard = other.lock.try_lock(tried, Mode::Exclusive);
                let wrote = guard.is_some();
                if wrote {
                    other.write();
                }
                drop(guard);
                wrote
            });
            write_in(&shared, waited);
            let wrote = thread.join().unwrap();
            shared.finish(1 + u32::from(wrote));
        });
    }
}

/// A narrow request that has entered its bucket and finds the flags up leaves again: who waits for it there, and who
/// waits at the gate, go on.
#[test]
fn a_request_that_backs_out_wakes_who_waits_for_it() {
    model_within(2, || {
        let shared = Shared::new(1);
        let (second, third) = (shared.clone(), shared.clone());
        let wide = thread::spawn(move || write_in(&second, WHOLE));
        let narrow = thread::spawn(move || write_in(&third, 0..1));
        write_in(&shared, 0..1);
        wide.join().unwrap();
        narrow.join().unwrap();
        shared.finish(3);
    });
}

/// Wide readers and narrow ones do not keep each other off.
#[test]
fn a_wide_reader_lets_readers_in() {
    model(|| {
        let shared = Shared::new(1);
        let other = shared.clone();
        let whole = shared.lock.acquire(WHOLE, Mode::Shared);
        let thread = thread::spawn(move || {
            drop(other.lock.try_lock(0..1, Mode::Shared).expect("readers"));
            drop(other.lock.try_lock(1..9, Mode::Shared).expect("readers"));
        });
        drop(shared.lock.try_lock(0..1, Mode::Shared).expect("readers"));
        thread.join().unwrap();
        assert!(shared.lock.try_lock(0..1, Mode::Exclusive).is_none());
        shared.lock.release(whole);
        shared.finish(0);
    });
}

/// A writer waits at the gate while the reader for whom it waits goes.
#[test]
fn a_wide_reader_who_goes_wakes_a_narrow_writer() {
    model(|| {
        let shared = Shared::new(2);
        let other = shared.clone();
        let whole = shared.lock.acquire(WHOLE, Mode::Shared);
        let thread = thread::spawn(move || write_in(&other, 0..2));
        assert_eq!(shared.read(), 0);
        shared.lock.release(whole);
        thread.join().unwrap();
        shared.finish(1);
    });
}

/// A wide request that waits in two lines is cancelled while the holders go, with one behind it.
#[test]
fn a_wide_request_that_is_cancelled_lets_the_next_one_in() {
    model(|| {
        let shared = Shared::new(2);
        let other = shared.clone();
        let held = [0..1, 1..2].map(|range| shared.lock.acquire(range, Mode::Shared));
        let ask = |range, mode| shared.lock.acquire_or_notify(range, mode, Waker::noop());
        let pending = ask(WHOLE, Mode::Exclusive).expect_err("passed readers");
        let mut behind = ask(0..1, Mode::Shared).expect_err("passed a writer");
        let thread = thread::spawn(move || {
            held.into_iter().for_each(|token| other.lock.release(token));
        });
        drop(pending);
        shared.lock.release(behind.try_finish().expect("nobody is before it"));
        thread.join().unwrap();
        shared.finish(0);
    });
}

#[test]
fn a_task_at_the_gate_is_woken() {
    model(|| {
        let shared = Shared::new(1);
        let other = shared.clone();
        let thread = thread::spawn(move || write_in(&other, 0..1));
        let guard = block_on(shared.lock.lock_async(WHOLE, Mode::Exclusive));
        shared.write();
        drop(guard);
        thread.join().unwrap();
        shared.finish(2);
    });
}

/// Several ranges of one call, a wide one among them, named in the other order by the other thread.
#[test]
fn several_ranges_of_any_width_do_not_deadlock() {
    pair_in_opposite_orders(0..1, 4..20);
}

/// A move beside one who enters and leaves by a compare-and-swap each.
#[test]
fn the_table_moves_beside_one_who_comes_and_goes() {
    model(|| {
        let shared = Shared::new(1);
        let other = shared.clone();
        let thread = thread::spawn(move || write_in(&other, 0..1));
        shared.lock.reshape(2, 1);
        write_in(&shared, 0..1);
        thread.join().unwrap();
        shared.finish(2);
    });
}

/// A hold from before the move keeps others off after it, and ends in another thread while the table moves.
#[test]
fn a_hold_ends_in_another_thread_while_the_table_moves() {
    model(|| {
        let shared = Shared::new(1);
        let other = shared.clone();
        let held = shared.lock.acquire(0..1, Mode::Exclusive);
        let thread = thread::spawn(move || {
            other.write();
            other.lock.release(held);
        });
        shared.lock.reshape(2, 1);
        write_in(&shared, 0..2);
        thread.join().unwrap();
        shared.finish(2);
    });
}

/// Those in line when the table moves keep their order, and are woken by whoever goes after it, or before.
#[test]
fn the_table_moves_with_those_in_line() {
    model(|| {
        let shared = Shared::new(1);
        let other = shared.clone();
        let held = shared.lock.acquire(0..1, Mode::Exclusive);
        let ask =
            |mode| shared.lock.acquire_or_notify(0..2, mode, Waker::noop()).expect_err("passed a writer");
        let (mut first, mut second) = (ask(Mode::Exclusive), ask(Mode::Shared));
        let thread = thread::spawn(move || {
            other.write();
            other.lock.release(held);
        });
        shared.lock.reshape(2, 1);
        assert!(second.try_finish().is_none());
        thread.join().unwrap();
        let token = first.try_finish().expect("it was the first in line");
        shared.write();
        assert!(second.try_finish().is_none());
        shared.lock.release(token);
        shared.lock.release(second.try_finish().expect("its turn"));
        shared.finish(2);
    });
}

/// A thread that is in line, or about to be, while the table moves.
#[test]
fn the_table_moves_beside_one_who_lines_up() {
    model_within(2, || {
        let shared = Shared::new(1);
        let (other, mover) = (shared.clone(), shared.clone());
        let held = shared.lock.acquire(1..2, Mode::Exclusive);
        let thread = thread::spawn(move || write_in(&other, 0..2));
        let moves = thread::spawn(move || mover.lock.reshape(2, 1));
        shared.write();
        shared.lock.release(held);
        thread.join().unwrap();
        moves.join().unwrap();
        shared.finish(2);
    });
}

/// One who waits at the gate while the table moves: for a hold in a bucket, and with somebody behind it.
#[test]
fn the_table_moves_with_those_at_the_gate() {
    model(|| {
        let shared = Shared::new(1);
        let other = shared.clone();
        let held = shared.lock.acquire(0..1, Mode::Exclusive);
        let ask = |range| shared.lock.acquire_or_notify(range, Mode::Exclusive, Waker::noop());
        let (mut wide, mut behind) = (ask(WHOLE).expect_err("passed"), ask(7..8).expect_err("passed"));
        let thread = thread::spawn(move || {
            other.write();
            other.lock.release(held);
        });
        shared.lock.reshape(2, 1);
        thread.join().unwrap();
        let token = wide.try_finish().expect("it was the first");
        shared.write();
        assert!(behind.try_finish().is_none());
        shared.lock.release(token);
        shared.lock.release(behind.try_finish().expect("its turn"));
        shared.finish(2);
    });
}

/// The same with threads, who come to the gate before the move or after it.
#[test]
fn the_table_moves_beside_a_wide_writer() {
    model_within(2, || {
        let shared = Shared::new(1);
        let (other, mover) = (shared.clone(), shared.clone());
        let thread = thread::spawn(move || write_in(&other, WHOLE));
        let moves = thread::spawn(move || mover.lock.reshape(2, 1));
        write_in(&shared, 0..1);
        thread.join().unwrap();
        moves.join().unwrap();
        shared.finish(2);
    });
}

/// A range that is held at the gate is kept in a bucket after the move. Who saw the flags of before leaves its bucket
/// again.
#[test]
fn a_wide_hold_becomes_a_narrow_one() {
    model(|| {
        let shared = Shared::new(1);
        let other = shared.clone();
        let held = shared.lock.acquire(0..4, Mode::Exclusive);
        let thread = thread::spawn(move || write_in(&other, 0..1));
        shared.lock.reshape(1, 4);
        shared.write();
        shared.lock.release(held);
        thread.join().unwrap();
        shared.finish(2);
    });
}

/// And the other way round.
#[test]
fn a_narrow_hold_becomes_a_wide_one() {
    model(|| {
        let shared = Arc::new(Shared { lock: RangeLock::with_geometry(1, 4), value: UnsafeCell::new(0) });
        shared.lock.prepare();
        let other = shared.clone();
        let held = shared.lock.acquire(0..4, Mode::Exclusive);
        let thread = thread::spawn(move || write_in(&other, 0..1));
        shared.lock.reshape(1, 1);
        shared.write();
        shared.lock.release(held);
        thread.join().unwrap();
        shared.finish(2);
    });
}

/// A request that gives up while the table moves: in line, or granted by then.
#[test]
fn a_request_is_cancelled_while_the_table_moves() {
    for range in [0..2, WHOLE] {
        model_within(2, move || {
            let shared = Shared::new(1);
            let (other, mover) = (shared.clone(), shared.clone());
            let held = shared.lock.acquire(1..2, Mode::Exclusive);
            let pending = shared.lock.acquire_or_notify(range.clone(), Mode::Exclusive, Waker::noop());
            let pending = pending.expect_err("passed a writer");
            let thread = thread::spawn(move || other.lock.release(held));
            let moves = thread::spawn(move || mover.lock.reshape(2, 1));
            drop(pending);
            thread.join().unwrap();
            moves.join().unwrap();
            shared.finish(0);
        });
    }
}

/// Who tries while the table moves gets the range or leaves nothing behind.
#[test]
fn the_table_moves_beside_one_who_tries() {
    for range in [0..2, WHOLE] {
        model(move || {
            let shared = Shared::new(1);
            let other = shared.clone();
            let range = range.clone();
            let thread = thread::spawn(move || {
                let token = other.lock.try_acquire(range, Mode::Exclusive);
                if let Some(token) = token {
                    other.write();
                    other.lock.release(token);
                }
            });
            shared.lock.reshape(2, 1);
            thread.join().unwrap();
            shared.finish(1);
        });
    }
}

/// Several ranges of one call, taken and given back while the table moves.
#[test]
fn the_table_moves_beside_several_ranges_of_one_call() {
    model(|| {
        let shared = Shared::new(1);
        let other = shared.clone();
        let thread = thread::spawn(move || {
            let guard = other.lock.lock_many([
                (0..1, Mode::Exclusive),
                (0..2, Mode::Shared),
                (4..9, Mode::Exclusive),
            ]);
            other.write();
            drop(guard);
        });
        shared.lock.reshape(2, 1);
        write_in(&shared, 1..2);
        thread.join().unwrap();
        shared.finish(2);
    });
}

/// Two buckets become one and three, with both ends of the range moving.
#[test]
fn a_range_of_two_buckets_moves() {
    model(|| {
        let shared = Shared::new(2);
        let other = shared.clone();
        let held = shared.lock.acquire(0..2, Mode::Exclusive);
        let thread = thread::spawn(move || {
            other.write();
            other.lock.release(held);
        });
        shared.lock.reshape(4, 1);
        write_in(&shared, 1..3);
        thread.join().unwrap();
        shared.finish(2);
    });
}

/// A reader without a line of its own in the bucket, while the table moves from under it.
#[test]
fn the_table_moves_beside_a_visible_reader() {
    model(|| {
        let shared = biased();
        let other = shared.clone();
        let thread = thread::spawn(move || read_in(&other, 0..1));
        shared.lock.reshape(2, 1);
        write_in(&shared, 0..1);
        thread.join().unwrap();
        shared.finish(1);
    });
}

/// Its hold ends in another thread, before the move, during it, or after it with a writer in line.
#[test]
fn a_visible_hold_ends_in_another_thread_while_the_table_moves() {
    model(|| {
        let shared = biased();
        let other = shared.clone();
        let reading = shared.lock.acquire(0..1, Mode::Shared);
        let thread = thread::spawn(move || {
            assert_eq!(other.read(), 0);
            other.lock.release(reading);
        });
        shared.lock.reshape(2, 1);
        write_in(&shared, 0..1);
        thread.join().unwrap();
        shared.finish(1);
    });
}

/// Two who want larger tables at once, and one whose hold they carry.
#[test]
fn two_who_want_larger_tables_leave_one_that_holds_all() {
    model_within(2, || {
        let shared = Shared::new(1);
        let (other, mover) = (shared.clone(), shared.clone());
        let held = shared.lock.acquire(0..1, Mode::Exclusive);
        let thread = thread::spawn(move || {
            other.lock.reserve(4);
            write_in(&other, 0..1);
        });
        let moves = thread::spawn(move || mover.lock.reserve(2));
        shared.write();
        shared.lock.release(held);
        thread.join().unwrap();
        moves.join().unwrap();
        shared.finish(2);
    });
}

/// A reader who enters visibly finds the flags of a wide writer, or those of another table, and leaves from where its
/// claim has been taken to.
#[test]
fn a_visible_reader_backs_out_while_the_table_moves() {
    model_within(2, || {
        let shared = biased();
        let (other, mover) = (shared.clone(), shared.clone());
        let thread = thread::spawn(move || write_in(&other, WHOLE));
        let moves = thread::spawn(move || mover.lock.reshape(2, 1));
        read_in(&shared, 0..1);
        thread.join().unwrap();
        moves.join().unwrap();
        shared.finish(1);
    });
}

/// The same, with one who tries, so that the flags go down again without a release.
#[test]
fn who_tries_at_the_gate_backs_out_while_the_table_moves() {
    model_within(2, || {
        let shared = Shared::new(1);
        let (other, mover) = (shared.clone(), shared.clone());
        let thread = thread::spawn(move || {
            let guard = other.lock.try_lock(WHOLE, Mode::Exclusive);
            let wrote = guard.is_some();
            if wrote {
                other.write();
            }
            drop(guard);
            wrote
        });
        let moves = thread::spawn(move || mover.lock.reshape(1, 4));
        write_in(&shared, 0..1);
        let wrote = thread.join().unwrap();
        moves.join().unwrap();
        shared.finish(1 + u32::from(wrote));
    });
}

/// Pairs that name their ranges in opposite order, of which the move makes wide ones or narrow ones.
#[test]
fn the_table_moves_beside_pairs_in_opposite_order() {
    model_within(2, || {
        let shared = Shared::new(2);
        let (other, mover) = (shared.clone(), shared.clone());
        let (first, second) = ((0..1, Mode::Exclusive), (4..8, Mode::Exclusive));
        let (first2, second2) = (first.clone(), second.clone());
        let thread = thread::spawn(move || {
            let guard = other.lock.lock_pair(second2, first2);
            other.write();
            drop(guard);
        });
        let moves = thread::spawn(move || mover.lock.reshape(2, 4));
        let guard = shared.lock.lock_pair(first, second);
        shared.write();
        drop(guard);
        thread.join().unwrap();
        moves.join().unwrap();
        shared.finish(2);
    });
}

/// A waker that asks the lock when it is dropped. The claim is granted between lining up and the last look.
mod wakers {
    use super::*;
    use std::mem::ManuallyDrop;
    use std::sync::Arc as StdArc;
    use std::task::{RawWaker, RawWakerVTable};

    struct Asks(Arc<Shared>);

    impl Asks {
        fn waker(self: &StdArc<Self>) -> Waker {
            // SAFETY: `VTABLE` takes such pointers, each of which owns one reference.
            unsafe { Waker::from_raw(Self::raw(self.clone())) }
        }

        fn raw(this: StdArc<Self>) -> RawWaker {
            RawWaker::new(StdArc::into_raw(this).cast(), &Self::VTABLE)
        }

        const VTABLE: RawWakerVTable = RawWakerVTable::new(
            |this| {
                // SAFETY: as `waker` says.
                let this = ManuallyDrop::new(unsafe { StdArc::from_raw(this.cast::<Self>()) });
                Self::raw(StdArc::clone(&this))
            },
            // SAFETY: as `waker` says.
            |this| drop(unsafe { StdArc::from_raw(this.cast::<Self>()) }),
            |_| {},
            // SAFETY: as `waker` says.
            |this| unsafe { StdArc::from_raw(this.cast::<Self>()) }.ask(),
        );

        /// At the gate.
        fn ask(&self) {
            drop(self.0.lock.try_lock(50..u64::MAX, Mode::Shared));
        }
    }

    #[test]
    fn a_waker_is_dropped_without_locks_where_the_turn_comes_at_once() {
        model_within(2, || {
            let shared = Shared::new(1);
            let other = shared.clone();
            let held = shared.lock.try_acquire(0..1, Mode::Exclusive).expect("free");
            let thread = thread::spawn(move || other.lock.release(held));
            let asks = StdArc::new(Asks(shared.clone()));
            let waker = asks.waker();
            match shared.lock.acquire_or_notify(0..1, Mode::Exclusive, &waker) {
                Ok(token) => shared.lock.release(token),
                Err(pending) => drop(pending),
            }
            drop(waker);
            thread.join().unwrap();
            shared.finish(0);
        });
    }
}
