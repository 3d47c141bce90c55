//! A prediction of what workloads would give on more processors than there are: `bench … --model`.
//!
//! Threads that do the same without waiting for each other would do as many times as much as one. What keeps them from it
//! are cache lines that move from processor to processor, and locks. Both are in what a program does, not in what it runs
//! on: so each thread's accesses to memory are recorded ([`record`], [`pen`]), cut down to lines that several threads touch
//! ([`steps`]), and played against each other on caches that are made up ([`coherence`], [`simulate`]). The time of an
//! operation alone, and that of a moved line, are measured here ([`cost`]).
//!
//! What is not in it: the distance between sockets, the width of the memory bus, threads that sleep, processors that share
//! a core, the scheduler. So it is a bound from above, on a machine where every line is as far from every processor as
//! here. A prediction says what stops first, and about where; it is no measurement.

mod coherence;
mod cost;
pub(crate) mod locks;
mod pen;
mod prediction;
mod record;
mod simulate;
mod steps;
mod trace;

pub use prediction::{MovedLine, Prediction};
pub use record::Recorder;

use crate::config::{Config, Workload};
use crate::error::{Error, Result};
use crate::interrupt;
use crate::suite::Observer;
use crate::target::Label;
use prediction::Parts;
use std::time::Duration;
use steps::Pace;

/// How long moves of a line are measured.
const MOVES_FOR: Duration = Duration::from_millis(500);
/// Slices in which an operation alone is measured, and how long each takes.
const SLICES: usize = 40;
const SLICE: Duration = Duration::from_millis(4);

/// Something that can be predicted.
pub(crate) struct Subject<'a> {
    pub(crate) label: Label,
    pub(crate) op: &'static str,
    pub(crate) depth: u32,
    /// Operations that are recorded as one.
    pub(crate) each: u64,
    /// Runs one thread for a slice, and gives operations a second.
    pub(crate) alone: Box<dyn Fn() -> Result<f64> + 'a>,
    /// Has so many threads take turns, in the program that is recorded.
    pub(crate) record: Box<dyn Fn(usize) -> Result<()> + 'a>,
}

fn subjects(config: &Config, workload: Workload) -> Result<Vec<Subject<'_>>> {
    match workload {
        Workload::RangeLock => Ok(locks::subjects(config)),
        other => {
            Err(Error::Usage(format!("there is no model of {} (there is one of rangelock)", other.name())))
        }
    }
}

/// Predicts what `workload` would give with each of the thread counts, each thread on a processor of its own. A moved line
/// costs `moved_ns`, or what is measured here.
pub fn predict(
    config: &Config,
    workload: Workload,
    recorder: &Recorder,
    moved_ns: Option<f64>,
    observer: &mut dyn Observer,
) -> Result<Vec<Prediction>> {
    let config = &Config { min_time: SLICE, ..config.clone() };
    config.check()?;
    if config.threads.iter().any(|&threads| threads > trace::Mark::MAX_THREADS) {
        return Err(Error::Usage(format!("the model has from 1 to {} threads", trace::Mark::MAX_THREADS)));
    }
    interrupt::install()?;
    let subjects = subjects(config, workload)?;
    observer.note("measuring what it takes to move a line between two processors");
    let moved_ns = moved_ns.map_or_else(|| cost::moved_line_ns(MOVES_FOR), Ok)?;
    observer.start(workload.name(), (subjects.len() * config.threads.len()) as u64);
    let mut all = Vec::new();
    for (nth, subject) in subjects.iter().enumerate() {
        let Subject { label, op, .. } = subject;
        interrupt::check()?;
        let alone_ns = cost::best_ns(SLICES, &subject.alone)?;
        let single = recorder.record(nth, 1)?;
        // An operation among many threads takes more instructions than one alone where it searches what all hold.
        let pace = Pace {
            instruction_ns: alone_ns * subject.each as f64 / single.instructions().max(1.0),
            cold_line_ns: 0.0,
        };
        for &threads in &config.threads {
            interrupt::check()?;
            observer.step(&format!("{label} {op} × {threads}"));
            let many = if threads == 1 { single.clone() } else { recorder.record(nth, threads)? };
            let parts = Parts { workload, subject, threads, pace, moved_ns, recording: &many };
            all.push(parts.predict(config.seed));
        }
    }
    Ok(all)
}

/// Does what [`Recorder`] records: the `nth` subject of `workload`, with so many threads. For the program that is recorded;
/// in any other it waits for somebody who listens.
pub fn record(config: &Config, workload: Workload, nth: usize, threads: usize) -> Result<()> {
    let subjects = subjects(config, workload)?;
    let subject = subjects.get(nth).ok_or_else(|| Error::Usage(format!("there is no subject {nth}")))?;
    pen::introduce()?;
    (subject.record)(threads)
}
