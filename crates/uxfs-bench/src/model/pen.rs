//! The recorded side of a recording: threads that take turns, and marks that tell who does what.
//!
//! Threads are real ones, so that each has its own stack, its own slots of whatever is kept by thread, and its own heap
//! pages. One goes on at a time. First each warms up and then takes up its stand: it holds what a thread would hold while
//! others work. Then each in turn leaves its stand, warms up among the others, and does what is recorded.
//!
//! Invariant: nothing that belongs to the recording lies between the two marks of an operation.

use super::trace::{MARK_BYTES, Mark};
use crate::error::{Error, Result};
use parking_lot::{Condvar, Mutex};
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::cell::Cell;
use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};

/// A line, or several, of the marks alone.
#[repr(align(4096))]
struct Marks([AtomicU32; Mark::COUNT]);

static MARKS: Marks = Marks([const { AtomicU32::new(0) }; Mark::COUNT]);
const _: () = assert!(size_of::<AtomicU32>() as u64 == MARK_BYTES);

/// What the line on standard error begins with that says where the marks are.
pub(crate) const HELLO: &str = "marks at ";

fn mark(mark: Mark) {
    compiler_fence(Ordering::SeqCst);
    MARKS.0[mark.index()].store(1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
}

/// Announces the address of the marks, and waits for the answer.
pub(crate) fn introduce() -> Result<()> {
    let told = |error| Error::host("the recorder does not listen")(error);
    let addr = std::ptr::from_ref(&MARKS).addr();
    writeln!(std::io::stderr(), "{HELLO}{addr:#x}").map_err(told)?;
    std::io::stdin().lock().read_line(&mut String::new()).map_err(told)?;
    Ok(())
}

/// What a thread marks its operations with.
#[derive(Debug)]
pub(crate) struct Pen {
    begin: Option<Mark>,
    /// The system's coarse clock when the last operation began, where operations go by it.
    clock: Cell<Option<Timespec>>,
}

impl Pen {
    fn new(begin: Option<Mark>) -> Self {
        Self { begin, clock: Cell::new(None) }
    }

    /// Does one operation; marked, unless nothing is recorded now.
    #[inline(always)]
    pub(crate) fn op<R>(&self, operation: impl FnOnce() -> R) -> R {
        self.marked(operation, || Mark::End)
    }

    /// The same, of an operation that does more where the coarse clock has ticked since one like it.
    #[inline(always)]
    pub(crate) fn op_by_clock<R>(&self, operation: impl FnOnce() -> R) -> R {
        let clock = || clock_gettime(ClockId::RealtimeCoarse);
        let before = clock();
        let known = self.clock.replace(Some(before)) == Some(before);
        self.marked(operation, || if known && clock() == before { Mark::End } else { Mark::Ticked })
    }

    #[inline(always)]
    fn marked<R>(&self, operation: impl FnOnce() -> R, end: impl FnOnce() -> Mark) -> R {
        let Some(begin) = self.begin else { return operation() };
        mark(begin);
        let done = operation();
        // Which end it is takes a look at the clock, which is no part of the operation: that ends here.
        mark(Mark::Over);
        mark(end());
        done
    }
}

/// What the threads of a recording do.
pub(crate) trait Script: Sync {
    /// What one thread has of its own.
    type Part;
    /// What a thread holds while others work.
    type Stand;
    /// Makes a thread's own things, on that thread.
    fn part(&self, thread: usize) -> Result<Self::Part>;
    /// Takes up the stand.
    fn stand(&self, part: &mut Self::Part) -> Result<Self::Stand>;
    /// Gives up the stand.
    fn leave(&self, part: &mut Self::Part, stand: Self::Stand) -> Result<()>;
    /// Does some operations, each by the pen. Done over and over, it goes on with what comes next.
    fn cycle(&self, part: &mut Self::Part, pen: &Pen) -> Result<()>;
}

/// What threads do that have nothing of their own, and hold nothing while others work.
pub(crate) struct Bare<F>(pub(crate) F);

impl<F: Fn(&Pen) -> Result<()> + Sync> Script for Bare<F> {
    type Part = ();
    type Stand = ();

    fn part(&self, _: usize) -> Result<()> {
        Ok(())
    }

    fn stand(&self, (): &mut ()) -> Result<()> {
        Ok(())
    }

    fn leave(&self, (): &mut (), (): ()) -> Result<()> {
        Ok(())
    }

    fn cycle(&self, (): &mut (), pen: &Pen) -> Result<()> {
        (self.0)(pen)
    }
}

/// The thread with the turn; none once a thread has failed, as the others would wait for it.
struct Baton {
    turn: Mutex<Option<usize>>,
    passed: Condvar,
}

/// Holds the baton; it goes to the next when this is dropped.
struct Turn<'a>(&'a Baton);

impl Baton {
    /// Waits for a turn; none if there will be none.
    fn take(&self, turn: usize) -> Option<Turn<'_>> {
        let mut now = self.turn.lock();
        self.passed.wait_while(&mut now, |now| now.is_some_and(|now| now != turn));
        now.map(|_| Turn(self))
    }

    fn stop(&self) {
        *self.turn.lock() = None;
        self.passed.notify_all();
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut now = self.0.turn.lock();
        *now = now.filter(|_| !std::thread::panicking()).map(|turn| turn + 1);
        self.0.passed.notify_all();
    }
}

/// Has so many threads do what `script` says, one at a time.
pub(crate) fn take_turns<S: Script>(script: &S, threads: usize) -> Result<()> {
    let baton = &Baton { turn: Mutex::new(Some(0)), passed: Condvar::new() };
    let thread = |thread| one(script, baton, thread, threads).inspect_err(|_| baton.stop());
    let thread = &thread;
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|nth| scope.spawn(move || thread(nth))).collect();
        let mut done = Ok(());
        for thread in all {
            let ended = thread.join().unwrap_or(Err(Error::Panicked));
            done = done.and(ended);
        }
        done
    })
}

fn one<S: Script>(script: &S, baton: &Baton, thread: usize, threads: usize) -> Result<()> {
    let Some(turn) = baton.take(thread) else { return Ok(()) };
    let mut part = script.part(thread)?;
    script.cycle(&mut part, &Pen::new(None))?;
    let stand = script.stand(&mut part)?;
    drop(turn);
    let Some(turn) = baton.take(threads + thread) else { return Ok(()) };
    mark(Mark::Turn(thread));
    script.leave(&mut part, stand)?;
    script.cycle(&mut part, &Pen::new(Some(Mark::Warm)))?;
    script.cycle(&mut part, &Pen::new(Some(Mark::Begin)))?;
    let stand = script.stand(&mut part)?;
    drop(turn);
    let Some(_turn) = baton.take(2 * threads + thread) else { return Ok(()) };
    script.leave(&mut part, stand)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the threads at each point.
    struct Counting(Mutex<Vec<String>>);

    impl Script for Counting {
        type Part = usize;
        type Stand = ();
        fn part(&self, thread: usize) -> Result<usize> {
            Ok(thread)
        }
        fn stand(&self, part: &mut usize) -> Result<()> {
            self.0.lock().push(format!("{part} stands"));
            Ok(())
        }
        fn leave(&self, part: &mut usize, (): ()) -> Result<()> {
            self.0.lock().push(format!("{part} leaves"));
            Ok(())
        }
        fn cycle(&self, part: &mut usize, pen: &Pen) -> Result<()> {
            pen.op(|| self.0.lock().push(format!("{part} {:?}", pen.begin)));
            Ok(())
        }
    }

    #[test]
    fn one_works_while_the_others_stand() {
        let script = Counting(Mutex::default());
        take_turns(&script, 2).expect("nothing fails");
        let expected = "0 None, 0 stands, 1 None, 1 stands, \
             0 leaves, 0 Some(Warm), 0 Some(Begin), 0 stands, 1 leaves, 1 Some(Warm), 1 Some(Begin), 1 stands, \
             0 leaves, 1 leaves";
        assert_eq!(script.0.into_inner().join(", "), expected);
    }

    /// A thread that fails must not leave the others waiting for it.
    struct Failing;

    impl Script for Failing {
        type Part = ();
        type Stand = ();
        fn part(&self, thread: usize) -> Result<()> {
            if thread == 1 { Err(Error::Interrupted) } else { Ok(()) }
        }
        fn stand(&self, (): &mut ()) -> Result<()> {
            Ok(())
        }
        fn leave(&self, (): &mut (), (): ()) -> Result<()> {
            Ok(())
        }
        fn cycle(&self, (): &mut (), _: &Pen) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_thread_that_fails_keeps_nobody_waiting() {
        assert!(matches!(take_turns(&Failing, 3), Err(Error::Interrupted)));
    }
}
