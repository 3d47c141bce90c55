//! Lock/unlock pairs a second of every design.
//!
//! First one thread's uncontended exclusive pair against that of `parking_lot::RwLock`; then threads that
//! cycle through 100 disjoint ranges of their own, one held at a time, and again with all 100 held (each
//! step gives one back and takes it again). Designs take turns in every round; the table shows medians.
//!
//! ```text
//! cargo run --release -p rangelock --features designs --example pairs -- [--threads 1,2,4,8,16] [--rounds 7] [--ms 60]
//!     [--shared] [--buckets 512] [--segment 16384] [--stride 4096] [--random] [--only NAME]
//! ```
//! `--stride` is the distance from one range to the next, `--random` puts every range at a page of a
//! 1 TiB file that a hash chooses; without it thread `t`'s range `i` is page `t * 100 + i`.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rangelock::{BTreeLock, ByteRangeLock, IntervalTreeLock, Mode, RangeLock, WholeFileLock};

const RANGES: u64 = 100;
const PAGE: u64 = 4096;

struct Options {
    threads: Vec<u64>,
    rounds: usize,
    slice: Duration,
    mode: Mode,
    buckets: usize,
    segment: u64,
    stride: u64,
    random: bool,
    only: Option<String>,
}

impl Options {
    fn parse() -> Options {
        let mut options = Options {
            threads: vec![1, 2, 4, 8, 16],
            rounds: 7,
            slice: Duration::from_millis(60),
            mode: Mode::Exclusive,
            buckets: RangeLock::DEFAULT_BUCKETS,
            segment: RangeLock::DEFAULT_SEGMENT,
            stride: PAGE,
            random: false,
            only: None,
        };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut value = || args.next().unwrap_or_else(|| panic!("{arg} wants a value"));
            let number = |text: String| text.parse::<u64>().expect("a number");
            match arg.as_str() {
                "--threads" => options.threads = value().split(',').map(|text| number(text.into())).collect(),
                "--rounds" => options.rounds = number(value()).max(1) as usize,
                "--ms" => options.slice = Duration::from_millis(number(value())),
                "--shared" => options.mode = Mode::Shared,
                "--buckets" => options.buckets = number(value()) as usize,
                "--segment" => options.segment = number(value()),
                "--stride" => options.stride = number(value()),
                "--random" => options.random = true,
                "--only" => options.only = Some(value()),
                _ => panic!("unknown option {arg}"),
            }
        }
        options
    }

    fn start_of(&self, thread: u64, range: u64) -> u64 {
        let index = thread * RANGES + range;
        match self.random {
            // An odd multiplier keeps the pages apart.
            true => ((index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % (1 << 28)) * PAGE,
            false => index * self.stride,
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Held {
    One,
    All,
}

/// One thread's cycle until `stop`; returns how many pairs it made.
fn cycle<L: ByteRangeLock>(lock: &L, starts: &[u64], mode: Mode, held: Held, stop: &AtomicBool) -> u64 {
    let range = |start: u64| start..start + PAGE;
    let mut pairs = 0;
    match held {
        Held::One => {
            while !stop.load(Ordering::Relaxed) {
                for &start in starts {
                    black_box(&lock.lock(range(start), mode));
                }
                pairs += RANGES;
            }
        }
        Held::All => {
            let mut tokens: Vec<_> =
                starts.iter().map(|&start| Some(lock.acquire(range(start), mode))).collect();
            while !stop.load(Ordering::Relaxed) {
                for (token, &start) in tokens.iter_mut().zip(starts) {
                    if let Some(held) = token.take() {
                        lock.release(held);
                    }
                    *token = Some(lock.acquire(range(start), mode));
                }
                pairs += RANGES;
            }
            tokens.into_iter().flatten().for_each(|token| lock.release(token));
        }
    }
    pairs
}

/// Pairs a second of this many threads together.
fn measure<L: ByteRangeLock>(lock: &L, options: &Options, threads: u64, held: Held) -> f64 {
    let (warm, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let barrier = Barrier::new(threads as usize + 1);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let (warm, stop, barrier) = (&warm, &stop, &barrier);
                scope.spawn(move || {
                    let starts: Vec<u64> = (0..RANGES).map(|range| options.start_of(thread, range)).collect();
                    barrier.wait();
                    // Uncounted at first: new threads share a processor until the scheduler has spread them.
                    cycle(lock, &starts, options.mode, held, warm);
                    let began = Instant::now();
                    let pairs = cycle(lock, &starts, options.mode, held, stop);
                    (pairs, began, Instant::now())
                })
            })
            .collect();
        barrier.wait();
        thread::sleep(options.slice.min(Duration::from_millis(50)));
        warm.store(true, Ordering::Relaxed);
        thread::sleep(options.slice);
        stop.store(true, Ordering::Relaxed);
        let runs: Vec<_> = workers.into_iter().map(|worker| worker.join().expect("a worker")).collect();
        // By the workers' own clocks: this thread may come late, with more threads than processors.
        let pairs: u64 = runs.iter().map(|run| run.0).sum();
        let began = runs.iter().map(|run| run.1).min().expect("a worker");
        let ended = runs.iter().map(|run| run.2).max().expect("a worker");
        pairs as f64 / (ended - began).as_secs_f64()
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Nanoseconds of one uncontended exclusive pair.
fn pair_ns(mut pair: impl FnMut()) -> f64 {
    // Shorter than a time slice, so that most rounds are not interrupted.
    const PAIRS: u32 = 20_000;
    let began = Instant::now();
    (0..PAIRS).for_each(|_| pair());
    began.elapsed().as_nanos() as f64 / f64::from(PAIRS)
}

fn uncontended(options: &Options) {
    let (rwlock, range) =
        (parking_lot::RwLock::new(()), RangeLock::with_geometry(options.buckets, options.segment));
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..options.rounds * 30 {
        // What is held is shown to the optimizer by reference: moving it would time the move.
        times[0].push(pair_ns(|| {
            black_box(&rwlock.write());
        }));
        times[1].push(pair_ns(|| {
            let start = black_box(4096);
            black_box(&range.lock(start..start + PAGE, Mode::Exclusive));
        }));
        times[2].push(pair_ns(|| {
            let start = black_box(4096);
            let token = range.acquire(start..start + PAGE, Mode::Exclusive);
            black_box(&token);
            range.release(token);
        }));
    }
    let [rwlock, guard, token] = times.map(median);
    println!(
        "uncontended exclusive pair: RwLock {rwlock:.1} ns, range lock {guard:.1} ns ({:.2}x) as guard, {token:.1} ns ({:.2}x) as token\n",
        guard / rwlock,
        token / rwlock
    );
}

fn table(options: &Options, held: Held) {
    type Run<'a> = Box<dyn Fn(u64) -> f64 + 'a>;
    let range = RangeLock::with_geometry(options.buckets, options.segment);
    let (whole, tree, btree) = (WholeFileLock::new(), IntervalTreeLock::new(), BTreeLock::new());
    let mut designs: Vec<(&str, Run)> = vec![
        ("range", Box::new(|threads| measure(&range, options, threads, held))),
        ("interval-tree", Box::new(|threads| measure(&tree, options, threads, held))),
        ("btree", Box::new(|threads| measure(&btree, options, threads, held))),
    ];
    // A thread cannot hold the whole file exclusively a hundred times.
    if held == Held::One || options.mode == Mode::Shared {
        designs.push(("whole-file", Box::new(|threads| measure(&whole, options, threads, held))));
    }
    designs.retain(|(name, _)| options.only.as_ref().is_none_or(|only| only == name));

    let mut rates = vec![vec![Vec::new(); options.threads.len()]; designs.len()];
    for _ in 0..options.rounds {
        for (column, &threads) in options.threads.iter().enumerate() {
            for (design, (_, run)) in designs.iter().enumerate() {
                rates[design][column].push(run(threads));
            }
        }
    }
    let what = if held == Held::One { "one held at a time" } else { "all 100 held" };
    println!("million pairs a second, {:?}, {what}, median of {}", options.mode, options.rounds);
    print!("{:<16}", "threads");
    options.threads.iter().for_each(|threads| print!("{threads:>9}"));
    println!();
    let medians: Vec<Vec<f64>> =
        rates.into_iter().map(|columns| columns.into_iter().map(median).collect()).collect();
    for ((name, _), medians) in designs.iter().zip(&medians) {
        print!("{name:<16}");
        medians.iter().for_each(|rate| print!("{:>9.2}", rate / 1e6));
        // One thread alone cannot do what two cores can.
        let many = || {
            medians.iter().zip(&options.threads).filter(|(_, threads)| **threads > 1).map(|(rate, _)| *rate)
        };
        println!(
            "   worst/best of 2 threads on: {:.2}",
            many().fold(f64::MAX, f64::min) / many().fold(0.0, f64::max)
        );
    }
    for (other, (name, _)) in designs.iter().enumerate().skip(1) {
        print!("{:<16}", format!("x {name}"));
        medians[0].iter().zip(&medians[other]).for_each(|(ours, theirs)| print!("{:>9.2}", ours / theirs));
        println!();
    }
    println!();
}

fn main() {
    let options = Options::parse();
    uncontended(&options);
    table(&options, Held::One);
    table(&options, Held::All);
}
