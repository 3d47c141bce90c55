//! The workload `rangelock`: threads that lock and unlock ranges of their own, of one lock and with no file.
//!
//! Each thread has [`RANGES`] ranges that no other uses. It cycles through them with one held at a time (`one-held`),
//! or takes all and then lets go of all (`all-held`). A lock whose cost depends on what others hold, or that shares a
//! cache line between them, shows it here. A whole-file lock cannot hold a range exclusively while it waits for
//! another, hence appears with shared holders where all are held. `uncontended` is one thread and one range, against
//! the word-sized lock of `parking_lot`. Single pairs are not timed: the shortest take a third of a look at the clock.

use crate::config::Config;
use crate::error::Result;
use crate::interrupt;
use crate::measure::{Collector, Measurement, Sample, Series};
use crate::model::locks as model;
use crate::suite::Observer;
use crate::target::Label;
use crate::together;
use rangelock::{BTreeLock, ByteRangeLock, IntervalTreeLock, Mode, RangeLock, WholeFileLock};
use std::ops::Range;
use std::time::Duration;

/// Ranges of each thread.
pub const RANGES: u64 = 100;

/// Bytes of each.
const RANGE_BYTES: u64 = 4096;

/// A locking that can be made anew for each measurement.
pub(crate) trait Design: ByteRangeLock + Sized {
    /// Whether it locks only whole files.
    const WHOLE: bool;
    /// A new lock.
    fn make() -> Self;
}

macro_rules! designs {
    ($($lock:ty: $whole:literal),*) => { $(impl Design for $lock {
        const WHOLE: bool = $whole;
        fn make() -> Self {
            Self::new()
        }
    })* };
}
designs!(WholeFileLock: true, IntervalTreeLock: false, BTreeLock: false, RangeLock: false);

/// One line of the table.
pub(crate) struct Case {
    /// `rangelock`, or the library that it is compared with.
    target: &'static str,
    pub(crate) locking: &'static str,
    pub(crate) op: &'static str,
    /// Gives pairs a second.
    pub(crate) run: Run,
    /// Does the same for the model's recorder.
    pub(crate) record: Record,
}

/// Runs so many threads for so long.
type Run = fn(usize, Duration) -> Result<f64>;
/// Has so many threads take turns.
type Record = fn(usize) -> Result<()>;

impl Case {
    pub(crate) fn label(&self) -> Label {
        Label { target: self.target.into(), device: "none".into(), locking: Some(self.locking.into()) }
    }
}

const fn case(locking: &'static str, op: &'static str, (run, record): (Run, Record)) -> Case {
    Case { target: "rangelock", locking, op, run, record }
}

const fn one<L: Design, const EXCLUSIVE: bool>() -> (Run, Record) {
    (one_held::<L, EXCLUSIVE>, model::one_held::<L, EXCLUSIVE>)
}

const fn all<L: Design, const EXCLUSIVE: bool>() -> (Run, Record) {
    (all_held::<L, EXCLUSIVE>, model::all_held::<L, EXCLUSIVE>)
}

const fn word<const EXCLUSIVE: bool>() -> (Run, Record) {
    (word_lock::<EXCLUSIVE>, model::word_lock)
}

/// The one that has no threads beside it is not recorded as a line of its own.
const fn single<L: Design>() -> (Run, Record) {
    (uncontended::<L>, model::one_held::<L, true>)
}

/// Lines that are measured at each thread count.
pub(crate) const CASES: &[Case] = &[
    case("exclusive", "one-held", one::<WholeFileLock, true>()),
    case("interval-tree", "one-held", one::<IntervalTreeLock, true>()),
    case("btree", "one-held", one::<BTreeLock, true>()),
    case("range", "one-held", one::<RangeLock, true>()),
    case("interval-tree", "all-held", all::<IntervalTreeLock, true>()),
    case("btree", "all-held", all::<BTreeLock, true>()),
    case("range", "all-held", all::<RangeLock, true>()),
    case("shared", "shared, one-held", one::<WholeFileLock, false>()),
    case("interval-tree", "shared, one-held", one::<IntervalTreeLock, false>()),
    case("btree", "shared, one-held", one::<BTreeLock, false>()),
    case("range", "shared, one-held", one::<RangeLock, false>()),
    Case { target: "parking_lot", ..case("rwlock", "shared, one-held", word::<false>()) },
];

/// Lines that are measured with one thread.
const SINGLE: &[Case] = &[
    case("exclusive", "uncontended", single::<WholeFileLock>()),
    case("interval-tree", "uncontended", single::<IntervalTreeLock>()),
    case("btree", "uncontended", single::<BTreeLock>()),
    case("range", "uncontended", single::<RangeLock>()),
    Case { target: "parking_lot", ..case("rwlock", "uncontended", word::<true>()) },
];

/// Measures every line, round by round.
pub(crate) fn run(config: &Config, observer: &mut dyn Observer) -> Result<Vec<Measurement>> {
    let steps = config.rounds * (CASES.len() * config.threads.len() + SINGLE.len());
    observer.start("rangelock", steps as u64);
    let mut collector = Collector::default();
    for _ in 0..config.rounds {
        let lines = SINGLE
            .iter()
            .map(|case| (case, 1))
            .chain(config.threads.iter().flat_map(|&threads| CASES.iter().map(move |case| (case, threads))));
        for (case, threads) in lines {
            interrupt::check()?;
            observer.step(&format!("{} {} × {threads}", case.locking, case.op));
            let ops_per_s = (case.run)(threads, config.min_time)?;
            let line = Series {
                workload: "rangelock",
                label: case.label(),
                op: case.op,
                threads,
                depth: 1,
                bytes: 0,
                samples: Vec::new(),
            };
            collector.add(line, Sample { ops_per_s, ..Sample::default() });
        }
    }
    Ok(collector.finish())
}

/// The mode, from a constant: function pointers in a table cannot capture one.
pub(crate) const fn mode(exclusive: bool) -> Mode {
    if exclusive { Mode::Exclusive } else { Mode::Shared }
}

/// The `nth` range of a thread.
pub(crate) fn range(thread: usize, nth: u64) -> Range<u64> {
    let start = (thread as u64 * RANGES + nth) * RANGE_BYTES;
    start..start + RANGE_BYTES
}

/// Runs `cycle`, which makes a pair a range, over and over in each of `threads` threads.
fn pairs(threads: usize, time: Duration, cycle: impl Fn(usize) + Sync) -> Result<f64> {
    let mut numbers: Vec<usize> = (0..threads).collect();
    together::count(&mut numbers, time, RANGES, |thread| {
        cycle(*thread);
        Ok(())
    })
}

/// One range held at a time.
fn one_held<L: Design, const EXCLUSIVE: bool>(threads: usize, time: Duration) -> Result<f64> {
    let lock = L::make();
    pairs(threads, time, |thread| {
        for nth in 0..RANGES {
            drop(lock.lock(range(thread, nth), mode(EXCLUSIVE)));
        }
    })
}

/// All ranges held before the first is let go of.
fn all_held<L: Design, const EXCLUSIVE: bool>(threads: usize, time: Duration) -> Result<f64> {
    let lock = L::make();
    pairs(threads, time, |thread| {
        // On the stack, so that no allocator is measured along.
        let held: [L::Guard<'_>; RANGES as usize] =
            std::array::from_fn(|nth| lock.lock(range(thread, nth as u64), mode(EXCLUSIVE)));
        drop(held);
    })
}

/// One range, over and over.
fn uncontended<L: Design>(_threads: usize, time: Duration) -> Result<f64> {
    let lock = L::make();
    pairs(1, time, |thread| {
        for _ in 0..RANGES {
            drop(lock.lock(range(thread, 0), Mode::Exclusive));
        }
    })
}

/// The word-sized lock of `parking_lot` around nothing.
fn word_lock<const EXCLUSIVE: bool>(threads: usize, time: Duration) -> Result<f64> {
    let lock = parking_lot::RwLock::new(());
    pairs(threads, time, |_| {
        for _ in 0..RANGES {
            match mode(EXCLUSIVE) {
                Mode::Shared => drop(std::hint::black_box(lock.read())),
                Mode::Exclusive => drop(std::hint::black_box(lock.write())),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Silent;

    #[test]
    fn every_line_is_measured() {
        let config = Config {
            threads: vec![1, 3],
            rounds: 2,
            min_time: Duration::from_millis(2),
            ..Config::default()
        };
        let lines = run(&config, &mut Silent).expect("no lock fails");
        assert_eq!(lines.len(), 2 * CASES.len() + SINGLE.len());
        for line in &lines {
            assert!(line.ops_per_s > 0.0, "{line:?}");
            assert_eq!((line.median_of, line.mib_per_s), (2, None));
        }
    }

    #[test]
    fn no_two_threads_share_a_range() {
        let mut all: Vec<Range<u64>> =
            (0..16).flat_map(|thread| (0..RANGES).map(move |nth| range(thread, nth))).collect();
        all.sort_by_key(|range| range.start);
        assert!(all.windows(2).all(|pair| pair[0].end <= pair[1].start));
    }
}
