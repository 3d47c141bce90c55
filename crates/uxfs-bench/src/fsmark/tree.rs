//! What `fsmark` runs on: a place for directories, each thread's way into its own, and the loops over them.
//!
//! Invariant: all targets run the same loops, and the loops allocate and lock nothing while the clock runs.

use super::{PHASES, Phase, Plan, Timed};
use crate::error::{Error, Result};
use crate::interrupt;
use crate::target::Label;
use crate::timer::Timer;
use crate::work::Tally;
use std::io::Write;
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// The result of a stat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) is_file: bool,
    pub(crate) size: u64,
}

/// A directory that one thread works in.
pub(crate) trait TreeDir: Send {
    /// Makes an empty file.
    fn create(&mut self, name: &[u8]) -> Result<()>;
    /// Makes a file with this content, which is durable then.
    fn create_durably(&mut self, name: &[u8], content: &[u8]) -> Result<()>;
    /// Lists the directory and looks at everything in it.
    fn walk(&mut self, each: &mut dyn FnMut(Seen)) -> Result<()>;
    /// Removes a file.
    fn unlink(&mut self, name: &[u8]) -> Result<()>;
}

/// A place for directories.
pub(crate) trait Tree: Send {
    type Dir: TreeDir;
    /// Makes a directory.
    fn make_dir(&mut self, name: &str) -> Result<Self::Dir>;
    /// Removes an empty directory.
    fn remove_dir(&mut self, name: &str) -> Result<()>;
    /// Makes everything durable.
    fn sync(&mut self) -> Result<()>;
    /// Leaves the volume in `keep`, if it has one of its own, and takes down the rest.
    fn finish(self, keep: Option<&Path>) -> Result<()>;
}

/// A [`Tree`] with its name in reports.
pub(crate) struct Named<T> {
    pub(crate) label: Label,
    pub(crate) tree: T,
}

/// Observes the progress of a round.
pub(crate) trait Watch {
    /// A phase is about to begin.
    fn begin(&mut self);
    /// The last operation of a phase is over.
    fn end(&mut self, phase: Phase);
    /// The sync after a phase is over.
    fn timed(&mut self, timed: &Timed);
}

/// A [`Named`] tree of any type.
pub(crate) trait AnyTree: Send {
    fn label(&self) -> &Label;
    /// Runs all phases once.
    fn round(&mut self, plan: Plan, watch: &mut dyn Watch) -> Result<()>;
    fn finish(self: Box<Self>, keep: Option<&Path>) -> Result<()>;
}

impl<T: Tree> AnyTree for Named<T> {
    fn label(&self) -> &Label {
        &self.label
    }

    fn round(&mut self, plan: Plan, watch: &mut dyn Watch) -> Result<()> {
        let names: Vec<String> = (0..plan.threads * plan.dirs)
            .map(|nth| format!("round-{}-{}-{nth}", plan.round, plan.threads))
            .collect();
        let mut dirs = names.iter().map(|name| self.tree.make_dir(name)).collect::<Result<Vec<_>>>()?;
        self.tree.sync()?;
        for phase in PHASES {
            watch.begin();
            let work = |dirs: &mut [T::Dir], timer: &mut Timer| work(phase, plan, dirs, timer);
            let (tally, wall) = together(dirs.chunks_mut(plan.dirs), phase.timed(plan.fsync), work)?;
            watch.end(phase);
            let start = Instant::now();
            if phase != Phase::Walk {
                self.tree.sync()?;
            }
            let timed = Timed { phase, tally, wall, sync: start.elapsed() };
            self.check(&timed, plan)?;
            watch.timed(&timed);
        }
        for dir in &mut dirs {
            let mut left = 0;
            dir.walk(&mut |_| left += 1)?;
            self.expect("after unlink", 0, left)?;
        }
        drop(dirs);
        names.iter().try_for_each(|name| self.tree.remove_dir(name))?;
        self.tree.sync()
    }

    fn finish(self: Box<Self>, keep: Option<&Path>) -> Result<()> {
        self.tree.finish(keep)
    }
}

impl<T> Named<T> {
    /// Every phase goes over every file once.
    fn check(&self, timed: &Timed, plan: Plan) -> Result<()> {
        self.expect(timed.phase.name(plan.fsync), plan.files * plan.threads as u64, timed.tally.ops)
    }

    fn expect(&self, when: &'static str, expected: u64, found: u64) -> Result<()> {
        if expected == found {
            return Ok(());
        }
        Err(Error::Files { target: self.label.to_string(), when, expected, found })
    }
}

/// A phase in one thread's directories; gives how many files it went over.
fn work<D: TreeDir>(phase: Phase, plan: Plan, dirs: &mut [D], timer: &mut Timer) -> Result<u64> {
    let mut ops = 0;
    if phase == Phase::Walk {
        for dir in dirs {
            // From one file to the next.
            timer.begin();
            dir.walk(&mut |seen| {
                timer.end();
                ops += u64::from(seen.is_file && seen.size == plan.fsync.unwrap_or(0));
                timer.begin();
            })?;
            timer.abandon();
        }
        return Ok(ops);
    }
    let (mut name, count) = (Name::default(), dirs.len() as u64);
    let content = plan.fsync.map(|bytes| vec![1; bytes as usize]);
    for (nth, dir) in (0..).zip(dirs) {
        for file in (nth..plan.files).step_by(count as usize) {
            let name = name.of(file);
            timer.of(|| match (phase, &content) {
                (Phase::Create, None) => dir.create(name),
                (Phase::Create, Some(content)) => dir.create_durably(name, content),
                _ => dir.unlink(name),
            })?;
            ops += 1;
        }
    }
    Ok(ops)
}

/// Room for a file's name.
#[derive(Default)]
struct Name([u8; 24]);

impl Name {
    fn of(&mut self, file: u64) -> &[u8] {
        let room = self.0.len();
        let mut rest = &mut self.0[..];
        // Cannot fail: there is room for any number.
        let _ = write!(rest, "f{file:010}");
        let left = rest.len();
        &self.0[..room - left]
    }
}

/// Runs a thread for each of `parts`, lets them go at once; gives the sum of what they count and what they time, one
/// operation in `every`, and the time from the first one's start to the last one's end.
pub(crate) fn together<P: Send>(
    parts: impl ExactSizeIterator<Item = P>,
    every: u32,
    body: impl Fn(P, &mut Timer) -> Result<u64> + Sync,
) -> Result<(Tally, Duration)> {
    interrupt::check()?;
    let barrier = Barrier::new(parts.len());
    let (barrier, body) = (&barrier, &body);
    let done: Vec<Result<(Tally, Instant, Instant)>> = std::thread::scope(|scope| {
        let timed = |part| {
            let mut timer = Timer::new(every);
            barrier.wait();
            let start = Instant::now();
            let ops = body(part, &mut timer)?;
            let end = Instant::now();
            Ok((Tally { ops, latency: timer.finish() }, start, end))
        };
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || timed(part))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(Err(Error::Panicked))).collect()
    });
    let done = done.into_iter().collect::<Result<Vec<_>>>()?;
    let mut tally = Tally::default();
    done.iter().for_each(|(of, ..)| tally.add(of));
    let start = done.iter().map(|&(_, start, _)| start).min();
    let end = done.iter().map(|&(.., end)| end).max();
    Ok((tally, start.zip(end).map_or(Duration::ZERO, |(start, end)| end - start)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timer::EACH;

    #[test]
    fn names_differ_and_have_one_length() {
        let mut name = Name::default();
        assert_eq!(name.of(7), b"f0000000007");
        assert_eq!(name.of(1_234_567), b"f0001234567");
    }

    #[test]
    fn parts_run_at_once_and_add_up() {
        // Each part waits for the other: one after the other would never end.
        let both = Barrier::new(2);
        let (tally, _) = together([3, 4].into_iter(), EACH, |ops, timer| {
            both.wait();
            (0..ops).for_each(|_| timer.of(|| ()));
            Ok(ops)
        })
        .expect("no part fails");
        assert_eq!((tally.ops, tally.latency.len()), (7, 7));
        assert!(together([1, 2].into_iter(), EACH, |_, _| Err(Error::Interrupted)).is_err());
    }
}
