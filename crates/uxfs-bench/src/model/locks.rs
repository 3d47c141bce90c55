//! The range locks alone, as the workload `rangelock` has them, for a recording.
//!
//! While one thread is recorded, each of the others holds what it would hold in the middle of its work: a range, or half of
//! its ranges; nothing where the whole file can be held by one alone.

use super::pen::{Bare, Pen, Script, introduce, take_turns};
use super::{Scene, Subject, no_subject};
use crate::config::Config;
use crate::error::Result;
use crate::locks::{CASES, Case, Design, RANGES, mode, range};

/// The lines of the table that the model can be asked for.
pub(crate) fn scene(config: &Config) -> Scene<'_> {
    let wanted = |case: &&Case| {
        config.locking.is_empty() || config.locking.iter().any(|locking| locking.name() == case.locking)
    };
    let subjects = CASES.iter().filter(wanted).map(|case| Subject {
        label: case.label(),
        op: case.op,
        depth: 1,
        each: if case.op == "all-held" { RANGES } else { 1 },
        key: key(case),
        slices: super::SLICES,
        alone: Box::new(|| (case.run)(1, config.min_time)),
    });
    Scene { subjects: subjects.collect(), instruction_ns: None, image: None }
}

fn key(case: &Case) -> String {
    format!("{} {}", case.label(), case.op)
}

/// Runs the recorded operations.
pub(crate) fn record(wanted: &str, threads: usize) -> Result<()> {
    let case = CASES.iter().find(|case| key(case) == wanted).ok_or_else(|| no_subject(wanted))?;
    introduce()?;
    (case.record)(threads)
}

/// One range held at a time.
pub(crate) fn one_held<L: Design, const EXCLUSIVE: bool>(threads: usize) -> Result<()> {
    take_turns(&OneHeld::<L, EXCLUSIVE>(L::make()), threads)
}

/// All ranges held before the first is let go of.
pub(crate) fn all_held<L: Design, const EXCLUSIVE: bool>(threads: usize) -> Result<()> {
    take_turns(&AllHeld::<L, EXCLUSIVE>(L::make()), threads)
}

/// The word-sized lock of `parking_lot` around nothing, taken shared.
pub(crate) fn word_lock(threads: usize) -> Result<()> {
    let lock = parking_lot::RwLock::new(());
    let cycle = |pen: &Pen| {
        for _ in 0..RANGES {
            pen.op(|| drop(std::hint::black_box(lock.read())));
        }
        Ok(())
    };
    take_turns(&Bare(cycle), threads)
}

struct OneHeld<L, const EXCLUSIVE: bool>(L);

impl<L: Design, const EXCLUSIVE: bool> Script for OneHeld<L, EXCLUSIVE> {
    type Part = usize;
    type Stand = Option<L::Token>;

    fn part(&self, thread: usize) -> Result<usize> {
        Ok(thread)
    }

    fn stand(&self, thread: &mut usize) -> Result<Self::Stand> {
        let can = !(L::WHOLE && EXCLUSIVE);
        Ok(can.then(|| self.0.acquire(range(*thread, RANGES / 2), mode(EXCLUSIVE))))
    }

    fn leave(&self, _: &mut usize, stand: Self::Stand) -> Result<()> {
        stand.into_iter().for_each(|token| self.0.release(token));
        Ok(())
    }

    fn cycle(&self, thread: &mut usize, pen: &Pen) -> Result<()> {
        for nth in 0..RANGES {
            pen.op(|| drop(self.0.lock(range(*thread, nth), mode(EXCLUSIVE))));
        }
        Ok(())
    }
}

struct AllHeld<L, const EXCLUSIVE: bool>(L);

impl<L: Design, const EXCLUSIVE: bool> Script for AllHeld<L, EXCLUSIVE> {
    type Part = usize;
    type Stand = Vec<L::Token>;

    fn part(&self, thread: usize) -> Result<usize> {
        Ok(thread)
    }

    fn stand(&self, thread: &mut usize) -> Result<Self::Stand> {
        Ok((0..RANGES / 2).map(|nth| self.0.acquire(range(*thread, nth), mode(EXCLUSIVE))).collect())
    }

    fn leave(&self, _: &mut usize, stand: Self::Stand) -> Result<()> {
        stand.into_iter().for_each(|token| self.0.release(token));
        Ok(())
    }

    fn cycle(&self, thread: &mut usize, pen: &Pen) -> Result<()> {
        pen.op(|| {
            let held: [L::Guard<'_>; RANGES as usize] =
                std::array::from_fn(|nth| self.0.lock(range(*thread, nth as u64), mode(EXCLUSIVE)));
            drop(held);
        });
        Ok(())
    }
}
