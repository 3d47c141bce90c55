//! What a pair costs beside what is held: nanoseconds of one thread, medians.
//!
//! ```text
//! cargo run --release -p rangelock --example held [-- ROUNDS]
//! ```
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::hint::black_box;
use std::ops::Range;
use std::task::Waker;
use std::time::Instant;

use rangelock::{Mode, Pending, RangeLock};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

/// Nanoseconds of one pair, over and over through `ranges`.
fn pair_ns(lock: &RangeLock, ranges: &[Range<u64>]) -> f64 {
    const PAIRS: usize = 20_000;
    let began = Instant::now();
    for range in ranges.iter().cycle().take(PAIRS) {
        black_box(&lock.lock(black_box(range.clone()), Mode::Exclusive));
    }
    began.elapsed().as_nanos() as f64 / PAIRS as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn report(what: &str, lock: &RangeLock, held: &[Range<u64>], ranges: &[Range<u64>], rounds: usize) {
    let tokens: Vec<_> = held
        .iter()
        .map(|range| lock.try_acquire(range.clone(), Mode::Exclusive).expect("disjoint"))
        .collect();
    let ns = median((0..rounds).map(|_| pair_ns(lock, ranges)).collect());
    println!("{what:<58}{ns:>10.1} ns");
    tokens.into_iter().for_each(|token| lock.release(token));
}

fn pages(range: Range<u64>) -> Vec<Range<u64>> {
    range.map(|page| page * PAGE..(page + 1) * PAGE).collect()
}

/// `count` requests of 1 MiB, this many bytes off a multiple of it.
fn mebibytes(from: u64, count: u64, off: u64) -> Vec<Range<u64>> {
    (from..from + count).map(|nth| nth * MIB + off..(nth + 1) * MIB + off).collect()
}

/// Nanoseconds from asking to giving back, of each of `waiters` that stand in line for one page behind a writer.
fn in_line_ns(waiters: usize, mode: Mode) -> f64 {
    let lock = RangeLock::new();
    let ask = |mode| lock.acquire_or_notify(0..PAGE, mode, Waker::noop());
    let mut held = VecDeque::from([ask(Mode::Exclusive).expect("nobody is there")]);
    let began = Instant::now();
    let mut in_line: VecDeque<_> = (0..waiters).map(|_| ask(mode).expect_err("held")).collect();
    while let Some(token) = held.pop_front() {
        lock.release(token);
        while let Some(token) = in_line.front_mut().and_then(Pending::try_finish) {
            held.push_back(token);
            in_line.pop_front();
        }
    }
    began.elapsed().as_nanos() as f64 / waiters as f64
}

fn main() {
    let rounds = std::env::args().nth(1).map_or(31, |rounds| rounds.parse().expect("a number"));
    let few = pages(8192..8192 + 100);
    report("one page, nothing held", &RangeLock::new(), &[], &few[..1], rounds);
    report("100 pages in turn, nothing held", &RangeLock::new(), &[], &few, rounds);
    report("the same, of a file created empty", &RangeLock::for_size(0), &[], &few, rounds);
    let held = pages(0..64 * 128);
    report(
        "beside 64 x 128 pages held, of a file created empty",
        &RangeLock::for_size(0),
        &held,
        &few,
        rounds,
    );
    report("1 MiB, nothing held", &RangeLock::new(), &[], &mebibytes(4096, 100, 0), rounds);
    let held = mebibytes(0, 2048, 0);
    report("1 MiB, beside 2,048 in flight", &RangeLock::new(), &held, &mebibytes(4096, 100, 0), rounds);
    let held = mebibytes(0, 2048, PAGE);
    report(
        "1 MiB across a border, nothing held",
        &RangeLock::new(),
        &[],
        &mebibytes(4096, 100, PAGE),
        rounds,
    );
    report(
        "1 MiB across a border, beside 2,048 in flight",
        &RangeLock::new(),
        &held,
        &mebibytes(4096, 100, PAGE),
        rounds,
    );
    report(
        "the whole file, nothing held",
        &RangeLock::new(),
        &[],
        std::slice::from_ref(&(0..u64::MAX)),
        rounds,
    );
    for (mode, whom) in [(Mode::Exclusive, "writers"), (Mode::Shared, "readers")] {
        for waiters in [10, 100, 1000] {
            let ns = median((0..rounds).map(|_| in_line_ns(waiters, mode)).collect());
            println!("{:<58}{ns:>10.1} ns", format!("one of {waiters} {whom} in line behind a writer"));
        }
    }
}
