//! A prediction, with the parts that it is made of.

use super::Subject;
use super::quoted::Quoted;
use super::simulate::{self, HandOver, Serial};
use super::steps::{self, Pace, Program};
use super::trace::Recording;
use crate::config::Workload;
use serde::Serialize;

/// Operations that are played, at least.
const OPERATIONS: u64 = 4000;
/// Lines that are named.
const WORST: usize = 4;

/// The predicted result of a workload: not a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Prediction {
    /// Always true.
    pub predicted: bool,
    /// `overwrite`, `rangelock`, ….
    pub workload: &'static str,
    /// The subject: `uxfs`, `rangelock`, ….
    pub target: String,
    /// Where the bytes lie.
    pub device: String,
    /// The locking, where it can be chosen.
    pub locking: Option<String>,
    /// `read`, `write`; for locks, what is held.
    pub op: &'static str,
    /// Threads, each on a processor of its own.
    pub threads: usize,
    /// Requests that each thread keeps in flight.
    pub depth: u32,
    /// Operations a second, all threads together, where a lock goes to whoever has waited longest.
    pub ops_per_s: f64,
    /// The same where whoever gave a lock back may take it again before any other can.
    pub greedy_ops_per_s: f64,
    /// The upper bound: all threads without waiting, or one after the other through what only one can have.
    pub limit_ops_per_s: f64,
    /// An operation alone: measured with one thread, and longer by the instructions that it takes among as many.
    pub alone_ns: f64,
    /// Its instructions.
    pub instructions: f64,
    /// Lines that move between caches for it.
    pub moved_lines: f64,
    /// What each of them costs.
    pub moved_line_ns: f64,
    /// How long an operation has something that only one thread can have: a lock, or a line that all of them write.
    pub serial_ns: f64,
    /// What that is.
    pub serial: Option<String>,
    /// Lines that move most.
    pub worst: Vec<MovedLine>,
    /// What was reported of another machine.
    pub quoted: Option<Quoted>,
}

/// A line that moves between caches.
#[derive(Clone, Debug, Serialize)]
pub struct MovedLine {
    /// Where it was in the program that was recorded, and what is in it as far as that is known.
    pub line: String,
    /// Moves for one operation.
    pub moves: f64,
}

/// What a prediction is made of.
pub(super) struct Parts<'a> {
    pub(super) workload: Workload,
    pub(super) subject: &'a Subject<'a>,
    pub(super) threads: usize,
    pub(super) pace: Pace,
    pub(super) moved_ns: f64,
    pub(super) recording: &'a Recording,
}

impl Parts<'_> {
    pub(super) fn predict(&self, seed: u64) -> Prediction {
        let Self { subject, pace, recording, .. } = self;
        let program = steps::program(recording, *pace);
        let run = |hand_over| simulate::run(&program, self.moved_ns, hand_over, OPERATIONS, seed);
        let (outcome, greedy) = (run(HandOver::Fair), run(HandOver::Greedy));
        let each = subject.each as f64;
        let instructions = recording.instructions() / each;
        let alone_ns = instructions * pace.instruction_ns + recording.cold_lines() / each * pace.cold_line_ns;
        let moved_lines = outcome.moved_per_op / each;
        let serial_ns = outcome.serial_ns / each;
        let busy_ns = alone_ns + moved_lines * self.moved_ns;
        Prediction {
            predicted: true,
            workload: self.workload.name(),
            target: subject.label.target.clone(),
            device: subject.label.device.clone(),
            locking: subject.label.locking.clone(),
            op: subject.op,
            threads: self.threads,
            depth: subject.depth,
            ops_per_s: 1e9 * each / outcome.ns_per_op.max(1e-9),
            greedy_ops_per_s: 1e9 * each / greedy.ns_per_op.max(1e-9),
            limit_ops_per_s: (1e9 * self.threads as f64 / busy_ns).min(1e9 / serial_ns),
            alone_ns,
            instructions,
            moved_lines,
            moved_line_ns: self.moved_ns,
            serial_ns,
            serial: outcome.serial.map(|serial| name(serial, &program)),
            worst: worst(&outcome.moved_by_line, &program, each),
            quoted: None,
        }
    }
}

fn name(serial: Serial, program: &Program) -> String {
    match serial {
        Serial::Line(line) => format!("the line {}", program.lines[line]),
        Serial::Lock(lock) => format!("the lock in the line {}", program.lines[program.locks[lock]]),
    }
}

fn worst(moved: &[f64], program: &Program, each: f64) -> Vec<MovedLine> {
    let mut all: Vec<(f64, &String)> =
        moved.iter().copied().zip(&program.lines).filter(|(moves, _)| *moves > 0.0).collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    let line = |(moves, line): (f64, &String)| MovedLine { line: line.clone(), moves: moves / each };
    all.into_iter().take(WORST).map(line).collect()
}
