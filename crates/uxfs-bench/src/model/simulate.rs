//! Runs a program of many threads, each on a processor of its own, in time that is made up: whoever's next access comes
//! first is next.
//!
//! - What a thread does by itself takes the time that it takes alone.
//! - An access to a line that another cache has to give up, or has changed, waits until whoever asked for this line before
//!   has it, and then for one move. Copies of a line that nobody has changed are given out at once.
//! - A lock that is taken is waited for, and goes to the next in one of two ways ([`HandOver`]). Threads that go to sleep
//!   are not in here.
//!
//! Invariants: the same program, cost and seed give the same figures; caches are warm before anything is counted.

use super::coherence::{Caches, Found};
use super::steps::{LineId, LockId, Locked, Program, Step};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// How a lock that many want goes from one to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandOver {
    /// To whoever has waited longest, who fetches its line and then all that it guards. Nobody else touches the line
    /// meanwhile, as with locks whose waiters stand in a queue.
    Fair,
    /// To whoever is first. All who wait look at the word; when it was given back, they fetch its line, each a little later
    /// than it could, and those who find it free try to take it. Who gave it back has the line, mostly takes it again
    /// before that, and finds in its cache what it guards: fast, and the others starve.
    Greedy,
}

/// The result of a simulation, per operation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SimulationOutcome {
    /// From one operation to the next, all threads together, in nanoseconds.
    pub(crate) ns_per_op: f64,
    /// Lines that moved between caches, or were copied.
    pub(crate) moved_per_op: f64,
    /// The same by line.
    pub(crate) moved_by_line: Vec<f64>,
    /// The longest that anything that only one thread can have was had, by operation, and what it was.
    pub(crate) serial_ns: f64,
    pub(crate) serial: Option<Serial>,
}

/// Something that only one thread can have at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serial {
    /// A line that is on its way.
    Line(LineId),
    /// A lock.
    Lock(LockId),
}

/// What a thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    /// The access that its program has next.
    Step,
    /// A look at a lock that was given back.
    Look(LockId),
    /// What it does behind the lock that it has been given.
    Given(LockId),
    /// Its next operation.
    Begin,
}

#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    operation: usize,
    step: usize,
}

#[derive(Clone, Debug, Default)]
struct Lock {
    alone: bool,
    sharers: usize,
    waiters: VecDeque<usize>,
    /// Since when it is held by anyone.
    since: f64,
    held: f64,
    /// When it was given back while somebody waited.
    wanted_since: Option<f64>,
}

impl Lock {
    fn is_free(&self, alone: bool) -> bool {
        !self.alone && (!alone || self.sharers == 0)
    }

    /// Takes it, at `now`.
    fn take(&mut self, alone: bool, now: f64) {
        if self.sharers == 0 {
            // On its way to the next who wants it, nobody else can have it either.
            self.since = self.wanted_since.take().unwrap_or(now);
        }
        if alone {
            self.alone = true;
        } else {
            self.sharers += 1;
        }
    }

    fn give(&mut self, now: f64) {
        if self.alone {
            self.alone = false;
        } else {
            self.sharers = self.sharers.saturating_sub(1);
        }
        if self.sharers == 0 {
            self.held += now - self.since;
            self.wanted_since = (!self.waiters.is_empty()).then_some(now);
        }
    }
}

/// The thread that acts first; among equals, the lower one.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Event {
    at: f64,
    thread: usize,
    next: Next,
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.total_cmp(&other.at).then(self.thread.cmp(&other.thread)).then(self.next.cmp(&other.next))
    }
}

struct Machine<'a> {
    program: &'a Program,
    moved_ns: f64,
    hand_over: HandOver,
    caches: Caches,
    /// Until when a line is on its way.
    busy_until: Vec<f64>,
    busy: Vec<f64>,
    moved: Vec<u64>,
    locks: Vec<Lock>,
    threads: Vec<Thread>,
    events: BinaryHeap<Reverse<Event>>,
    random: fastrand::Rng,
    operations: u64,
}

/// Lets all threads of `program` do about `operations` operations, after as many as warm the caches.
pub(crate) fn run(
    program: &Program,
    moved_ns: f64,
    hand_over: HandOver,
    operations: u64,
    seed: u64,
) -> SimulationOutcome {
    let mut machine = Machine {
        program,
        moved_ns,
        hand_over,
        caches: Caches::new(program.lines.len()),
        busy_until: vec![0.0; program.lines.len()],
        busy: vec![0.0; program.lines.len()],
        moved: vec![0; program.lines.len()],
        locks: vec![Lock::default(); program.locks.len()],
        threads: vec![Thread::default(); program.threads.len()],
        events: BinaryHeap::new(),
        random: fastrand::Rng::with_seed(seed),
        operations: 0,
    };
    for (thread, operations) in program.threads.iter().enumerate() {
        if let Some(first) = operations.first() {
            // Not all at once, as if they were one.
            let start = machine.random.f64() * (own_ns(first) + moved_ns);
            machine.schedule(thread, start);
        }
    }
    // Once through everything, at least, so that each line has been wherever it goes.
    let once: usize = program.threads.iter().map(Vec::len).sum();
    let operations = operations.max(once as u64);
    machine.run_until(operations);
    machine.busy.fill(0.0);
    machine.moved.fill(0);
    machine.locks.iter_mut().for_each(|lock| lock.held = 0.0);
    let (began, before) = (machine.now(), machine.operations);
    machine.run_until(before + operations);
    let (ended, count) = (machine.now(), (machine.operations - before).max(1) as f64);
    machine.outcome(ended - began, count)
}

/// What an operation takes by itself.
fn own_ns(operation: &super::steps::Steps) -> f64 {
    operation.tail_ns + operation.steps.iter().map(|step| step.after_ns).sum::<f64>()
}

impl Machine<'_> {
    fn now(&self) -> f64 {
        self.events.peek().map_or(0.0, |event| event.0.at)
    }

    fn run_until(&mut self, operations: u64) {
        while self.operations < operations
            && let Some(Reverse(event)) = self.events.pop()
        {
            match event.next {
                Next::Step => self.step(event.thread, event.at),
                Next::Look(lock) => self.look(event.thread, lock, event.at),
                Next::Given(lock) => self.given(event.thread, lock, event.at),
                Next::Begin => self.schedule(event.thread, event.at),
            }
        }
    }

    fn outcome(&self, took: f64, count: f64) -> SimulationOutcome {
        let lines = self.busy.iter().enumerate().map(|(line, busy)| (busy / count, Serial::Line(line)));
        let locks = self.locks.iter().enumerate().map(|(lock, of)| (of.held / count, Serial::Lock(lock)));
        let worst = lines.chain(locks).filter(|of| of.0 > 0.0).max_by(|a, b| a.0.total_cmp(&b.0));
        let moved_by_line: Vec<f64> = self.moved.iter().map(|&moved| moved as f64 / count).collect();
        SimulationOutcome {
            ns_per_op: took / count,
            moved_per_op: moved_by_line.iter().fold(0.0, |sum, moved| sum + moved),
            moved_by_line,
            serial_ns: worst.map_or(0.0, |worst| worst.0),
            serial: worst.map(|worst| worst.1),
        }
    }

    fn next_step(&self, thread: usize) -> Option<Step> {
        let at = self.threads[thread];
        self.program.threads[thread][at.operation].steps.get(at.step).copied()
    }

    /// Schedules the next act of a thread that continues at `now`.
    fn schedule(&mut self, thread: usize, mut now: f64) {
        match self.next_step(thread) {
            Some(step) => {
                now += step.after_ns;
                self.events.push(Reverse(Event { at: now, thread, next: Next::Step }));
            }
            None => {
                let operations = &self.program.threads[thread];
                let at = &mut self.threads[thread];
                now += operations[at.operation].tail_ns;
                *at = Thread { operation: (at.operation + 1) % operations.len(), step: 0 };
                self.operations += 1;
                self.events.push(Reverse(Event { at: now, thread, next: Next::Begin }));
            }
        }
    }

    /// When an access that is asked for at `now` is done.
    fn access(&mut self, thread: usize, line: LineId, write: bool, now: f64) -> f64 {
        match self.caches.access(thread, line, write) {
            Found::Hit => now,
            // The first touch: whoever measured an operation alone has measured it too.
            Found::Memory => now,
            Found::Copied => {
                self.moved[line] += 1;
                now.max(self.busy_until[line]) + self.moved_ns
            }
            Found::Moved => {
                self.moved[line] += 1;
                self.busy[line] += self.moved_ns;
                let done = now.max(self.busy_until[line]) + self.moved_ns;
                self.busy_until[line] = done;
                done
            }
        }
    }

    fn step(&mut self, thread: usize, now: f64) {
        let Some(step) = self.next_step(thread) else { return self.schedule(thread, now) };
        let now = self.access(thread, step.line, step.write, now);
        match step.lock {
            Some(Locked::Take(lock)) if !self.enter(thread, lock, true, now) => return,
            Some(Locked::Share(lock)) if !self.enter(thread, lock, false, now) => return,
            Some(Locked::Give(lock)) => self.leave(lock, now),
            _ => {}
        }
        self.threads[thread].step += 1;
        self.schedule(thread, now);
    }

    /// Takes a lock, or waits for it.
    fn enter(&mut self, thread: usize, id: LockId, alone: bool, now: f64) -> bool {
        let lock = &mut self.locks[id];
        let in_turn = self.hand_over == HandOver::Greedy || lock.waiters.is_empty();
        let free = in_turn && lock.is_free(alone);
        if free {
            lock.take(alone, now);
        } else {
            lock.waiters.push_back(thread);
        }
        free
    }

    fn leave(&mut self, id: LockId, now: f64) {
        self.locks[id].give(now);
        if self.hand_over == HandOver::Fair {
            while let Some(&thread) = self.locks[id].waiters.front() {
                let alone = self.wants_alone(thread);
                if !self.locks[id].is_free(alone) {
                    break;
                }
                self.locks[id].waiters.pop_front();
                self.locks[id].take(alone, now);
                self.events.push(Reverse(Event { at: now, thread, next: Next::Given(id) }));
            }
        } else if !self.locks[id].alone && self.locks[id].sharers == 0 {
            for thread in std::mem::take(&mut self.locks[id].waiters) {
                // Somewhere in its loop.
                let at = now + self.random.f64() * self.moved_ns;
                self.events.push(Reverse(Event { at, thread, next: Next::Look(id) }));
            }
        }
    }

    /// How a thread wants the lock that it waits for.
    fn wants_alone(&self, thread: usize) -> bool {
        !matches!(self.next_step(thread).and_then(|step| step.lock), Some(Locked::Share(_)))
    }

    /// One who has been given a lock fetches its line, and goes on.
    fn given(&mut self, thread: usize, id: LockId, now: f64) {
        let now = self.access(thread, self.program.locks[id], true, now);
        self.threads[thread].step += 1;
        self.schedule(thread, now);
    }

    /// One who waits fetches the line of the lock, and tries again if it is free.
    fn look(&mut self, thread: usize, id: LockId, now: f64) {
        let now = self.access(thread, self.program.locks[id], false, now);
        if self.locks[id].is_free(self.wants_alone(thread)) {
            self.events.push(Reverse(Event { at: now, thread, next: Next::Step }));
        } else {
            self.locks[id].waiters.push_back(thread);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::steps::Steps;
    use super::*;

    const MOVED: f64 = 50.0;

    fn step(after_ns: f64, line: LineId, write: bool, lock: Option<Locked>) -> Step {
        Step { after_ns, line, write, lock }
    }

    /// A program whose threads each do one operation over and over.
    fn program(lines: usize, locks: &[LineId], threads: Vec<Vec<Step>>) -> Program {
        Program {
            threads: threads.into_iter().map(|steps| vec![Steps { steps, tail_ns: 10.0 }]).collect(),
            lines: vec![String::new(); lines],
            locks: locks.to_vec(),
        }
    }

    fn outcome(program: &Program) -> SimulationOutcome {
        run(program, MOVED, HandOver::Fair, 1000, 1)
    }

    #[track_caller]
    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() <= expected * 0.02 + 1e-9, "{found}, not {expected}");
    }

    #[test]
    fn two_threads_that_write_one_line_move_it_once_an_operation() {
        let write = vec![step(10.0, 0, true, None)];
        let found = outcome(&program(1, &[], vec![write.clone(), write]));
        near(found.moved_per_op, 1.0);
        // The line is the whole of it: it is always on its way.
        near(found.ns_per_op, MOVED);
        assert_eq!(found.serial, Some(Serial::Line(0)));
        near(found.serial_ns, MOVED);
    }

    #[test]
    fn lines_of_ones_own_and_lines_that_are_only_read_stay() {
        let own = |line| vec![step(10.0, line, true, None), step(0.0, line, false, None)];
        let found = outcome(&program(4, &[], (0..4).map(own).collect()));
        assert_eq!((found.moved_per_op, found.serial), (0.0, None));
        near(found.ns_per_op, 20.0 / 4.0);
        let read = vec![step(10.0, 0, false, None)];
        assert_eq!(outcome(&program(1, &[], vec![read; 8])).moved_per_op, 0.0);
    }

    #[test]
    fn words_of_two_threads_in_one_line_are_as_bad_as_one_word() {
        // False sharing: by the time that addresses have become lines, there is no difference.
        use super::super::steps::{Pace, program};
        use super::super::trace::{Access, Kind, Operation, Recording, ThreadTrace};
        let moved = |apart: u64| {
            let thread = |thread: u64| {
                let access = Access { addr: 0x1000 + apart * thread, size: 8, kind: Kind::Store, at: 10 };
                let operations = vec![Operation { accesses: vec![access], instructions: 20 }];
                (thread as usize, ThreadTrace { operations, ..ThreadTrace::default() })
            };
            let recording = Recording { threads: (0..2).map(thread).collect() };
            outcome(&program(&recording, Pace { instruction_ns: 1.0, cold_line_ns: 0.0 })).moved_per_op
        };
        near(moved(8), 1.0);
        near(moved(56), 1.0);
        assert_eq!(moved(64), 0.0);
    }

    #[test]
    fn a_reader_beside_a_writer_moves_the_line_twice() {
        let (write, read) = (vec![step(100.0, 0, true, None)], vec![step(100.0, 0, false, None)]);
        // Each write takes the reader's copy, each read fetches it again: one move an operation of either.
        near(outcome(&program(1, &[], vec![write, read])).moved_per_op, 1.0);
    }

    /// An operation of 100 ns, 60 of them under the lock of line 0.
    fn locked(way: fn(LockId) -> Locked) -> Vec<Step> {
        vec![step(30.0, 0, true, Some(way(0))), step(60.0, 0, true, Some(Locked::Give(0)))]
    }

    #[test]
    fn a_lock_bounds_all_threads_together_and_sharing_it_does_not() {
        let threads = |count, way| program(1, &[0], vec![locked(way); count]);
        let alone = outcome(&threads(1, Locked::Take));
        near(alone.ns_per_op, 100.0);
        near(alone.serial_ns, 60.0);
        let many = outcome(&threads(8, Locked::Take));
        assert_eq!(many.serial, Some(Serial::Lock(0)));
        assert!(many.ns_per_op >= 60.0 + MOVED, "{many:?}");
        near(many.serial_ns, many.ns_per_op);
        let sharing = outcome(&threads(8, Locked::Share));
        // Nobody waits for anybody except for the line, which goes round twice an operation.
        near(sharing.ns_per_op, 2.0 * MOVED);
    }

    #[test]
    fn a_fair_lock_takes_along_what_it_guards_and_a_greedy_one_leaves_it_where_it_is() {
        // Three lines are written under the lock of line 0, by each of the threads that want it all the time.
        let guarded = |line| step(5.0, line, true, None);
        let (take, give) = (Some(Locked::Take(0)), Some(Locked::Give(0)));
        let steps =
            vec![step(0.0, 0, true, take), guarded(1), guarded(2), guarded(3), step(5.0, 0, true, give)];
        let program = program(4, &[0], vec![steps; 4]);
        let fair = outcome(&program);
        // The lock's line comes with the lock, is taken away by whoever comes to wait, and is fetched back to give it up.
        assert!(fair.moved_by_line[1..].iter().all(|&moves| (moves - 1.0).abs() < 0.02), "{fair:?}");
        assert!(fair.ns_per_op >= 20.0 + 4.0 * MOVED, "{fair:?}");
        let greedy = run(&program, MOVED, HandOver::Greedy, 1000, 1);
        assert!(greedy.moved_by_line[1..].iter().sum::<f64>() < 0.5, "{greedy:?}");
    }

    #[test]
    fn the_more_threads_look_at_a_greedy_lock_the_longer_it_takes_to_change_hands() {
        let took = |count| {
            let program = program(1, &[0], vec![locked(Locked::Take); count]);
            run(&program, MOVED, HandOver::Greedy, 1000, 1).ns_per_op
        };
        assert!(took(4) < took(16) && took(16) < took(64));
    }

    #[test]
    fn writers_and_readers_of_one_lock_all_come_to_it() {
        let ways: [fn(LockId) -> Locked; 4] = [Locked::Take, Locked::Share, Locked::Share, Locked::Take];
        let program = program(1, &[0], ways.into_iter().map(locked).collect());
        for hand_over in [HandOver::Fair, HandOver::Greedy] {
            let found = run(&program, MOVED, hand_over, 1000, 1);
            assert!(found.ns_per_op.is_finite() && found.ns_per_op > 25.0, "{hand_over:?}: {found:?}");
        }
    }

    #[test]
    fn a_seed_gives_one_outcome() {
        let program = program(1, &[0], vec![locked(Locked::Take); 5]);
        for hand_over in [HandOver::Fair, HandOver::Greedy] {
            let run = || run(&program, MOVED, hand_over, 500, 7);
            assert_eq!(run(), run());
        }
    }
}
