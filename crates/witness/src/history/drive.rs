//! Threads that do operations to a target and to their models.
//!
//! Invariants:
//! - a thread changes only what is its own: its folder, its names in the shared folder, its stripes of the shared
//!   file. So whatever order the threads' operations come in, each model says what its thread must see;
//! - what was done is kept, in order, so that it can be done again;
//! - the first difference ends all threads.

use super::generator::{Bounds, Generator, SHARED, SLOTS, STRIPED, folder};
use super::geometry::Geometry;
use super::model::{Checked, Model, Rules};
use super::op::{Name, Op, Ref};
use super::target::{Slots, Target, perform};
use anyhow::{Context, Result};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where calls that found no space are counted once more.
pub const NO_SPACE: &str = "(no space)";

/// Objects that all threads together have at most, more or less.
const OBJECTS: usize = 4_000;

/// What a thread of a history has and knows, from one run to the next.
#[derive(Clone, Debug)]
pub struct Actor {
    /// What its part of the tree must be.
    pub model: Model,
    /// Chooses what it does next.
    pub generator: Generator,
    /// What it did.
    pub trace: Vec<Op>,
    /// Operations done, by kind: those that succeeded, and those that failed as they must.
    pub counts: BTreeMap<&'static str, (u64, u64)>,
}

/// A difference between a target and a model.
#[derive(Debug)]
pub struct Failure {
    /// Which thread.
    pub thread: usize,
    /// How many operations it had done before.
    pub index: usize,
    /// What it did.
    pub op: Op,
    /// What was wrong.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {}, operation {}: {:?}: {}", self.thread, self.index, self.op, self.what)
    }
}

impl std::error::Error for Failure {}

/// A look at every operation, once it was done and found right.
pub trait Observer<T: Target>: Send {
    /// Called before an operation is done.
    fn begins(&mut self) {}
    /// Called with what was done, whether it succeeded, and the state after it.
    fn done(&mut self, target: &T, slots: &Slots<T>, actor: &Actor, op: &Op, ok: bool) -> Result<(), Errno>;
}

/// Looks at nothing.
#[derive(Clone, Copy, Debug)]
pub struct Blind;

impl<T: Target> Observer<T> for Blind {
    fn done(&mut self, _: &T, _: &Slots<T>, _: &Actor, _: &Op, _: bool) -> Result<(), Errno> {
        Ok(())
    }
}

/// Where the operations come from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// So many, from the actor's own generator.
    Generated(u64),
    /// These, one list a thread.
    Listed(&'a [Vec<Op>]),
}

/// What there is on a volume when a thread of a history begins.
fn setup(thread: usize) -> [Op; 3] {
    [
        Op::Mkdir { path: Name::from(SHARED), mode: 0o755 },
        Op::Create { path: Name::from(STRIPED), mode: 0o644, slot: None },
        Op::Mkdir { path: folder(thread), mode: 0o755 },
    ]
}

/// Threads for a fresh volume, and their folders in it.
pub fn actors<T: Target>(target: &T, seed: u64, threads: usize, geometry: &Geometry) -> Result<Vec<Actor>> {
    let mut slots = Slots::new(0);
    for thread in 0..threads {
        for op in setup(thread) {
            if thread == 0 || matches!(&op, Op::Mkdir { path, .. } if *path == folder(thread)) {
                perform(target, &mut slots, &op).with_context(|| format!("{op:?}"))?;
            }
        }
    }
    fresh_actors(seed, threads, geometry)
}

/// Threads for a volume that has their folders already.
pub fn fresh_actors(seed: u64, threads: usize, geometry: &Geometry) -> Result<Vec<Actor>> {
    let mut actors = Vec::new();
    for thread in 0..threads {
        let mut model = Model::new(geometry.block(), SLOTS);
        for op in setup(thread) {
            model.apply(&op).with_context(|| format!("{op:?}"))?;
        }
        model.share(&Name::from(SHARED));
        model.share(&Name::from(STRIPED));
        let bounds = Bounds {
            thread,
            threads,
            bytes: geometry.budget() / threads as u64,
            objects: OBJECTS / threads,
            literal: geometry.literal(),
            appetite: geometry.appetite(),
            shares: geometry.shares(),
            exchanges: geometry.exchanges(),
            often: false,
            same_sizes: false,
        };
        let generator = Generator::new(seed ^ geometry.salt(), bounds);
        actors.push(Actor { model, generator, trace: Vec::new(), counts: BTreeMap::new() });
    }
    Ok(actors)
}

/// Lets every actor do its operations, each in a thread of its own. All files are closed at the end, unless `leave`;
/// then they are given back open.
pub fn run<T: Target, O: Observer<T>>(
    target: &T,
    actors: &mut [Actor],
    observers: &mut [O],
    source: Source<'_>,
    rules: Rules,
    leave: bool,
) -> Result<Vec<Slots<T>>, Failure> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let handles: Vec<_> = actors
            .iter_mut()
            .zip(observers.iter_mut())
            .enumerate()
            .map(|(thread, (actor, observer))| {
                let stop = &stop;
                scope.spawn(move || {
                    let mut run =
                        HistoryRun { target, actor, observer, slots: Slots::new(SLOTS), thread, rules };
                    let result = run.all(source, leave, stop);
                    if result.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    result.map(|()| run.slots)
                })
            })
            .collect();
        let join = |handle: std::thread::ScopedJoinHandle<'_, _>| {
            handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        handles.into_iter().map(join).collect::<Vec<_>>().into_iter().collect()
    })
}

struct HistoryRun<'a, T: Target, O> {
    target: &'a T,
    actor: &'a mut Actor,
    observer: &'a mut O,
    slots: Slots<T>,
    thread: usize,
    rules: Rules,
}

impl<T: Target, O: Observer<T>> HistoryRun<'_, T, O> {
    fn all(&mut self, source: Source<'_>, leave: bool, stop: &AtomicBool) -> Result<(), Failure> {
        match source {
            Source::Generated(count) => {
                for _ in 0..count {
                    if stop.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                    let op = self.actor.generator.next(&self.actor.model);
                    self.step(op)?;
                }
            }
            Source::Listed(lists) => {
                for op in lists.get(self.thread).into_iter().flatten() {
                    if stop.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                    self.step(op.clone())?;
                }
            }
        }
        if !leave {
            for slot in 0..SLOTS {
                self.step(Op::Close { slot })?;
            }
        }
        Ok(())
    }

    fn step(&mut self, op: Op) -> Result<(), Failure> {
        if !self.actor.model.predictable(&op) {
            return Ok(());
        }
        let index = self.actor.trace.len();
        self.actor.trace.push(op.clone());
        self.observer.begins();
        let got = perform(self.target, &mut self.slots, &op);
        let (ok, failed) = self.actor.counts.entry(op.kind()).or_default();
        *(if got.is_ok() { ok } else { failed }) += 1;
        let fail = |what| Failure { thread: self.thread, index, op: op.clone(), what };
        let checked = self.actor.model.check(&op, &got, self.rules).map_err(fail)?;
        self.observer
            .done(self.target, &self.slots, self.actor, &op, got.is_ok())
            .map_err(|error| fail(format!("looking at it: {error}")))?;
        match checked {
            Checked::Right => {}
            Checked::NoSpace => {
                self.actor.counts.entry(NO_SPACE).or_default().1 += 1;
                self.actor.generator.no_space();
            }
            Checked::Undone(file) => self.empty(file)?,
        }
        Ok(())
    }

    /// Makes what is in a file known again.
    fn empty(&mut self, file: Ref) -> Result<(), Failure> {
        self.step(Op::Truncate { file, size: 0 })
    }
}
