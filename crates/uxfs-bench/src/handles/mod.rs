//! The workload `handles`: threads that start and stop journal handles, and threads whose transactions change one inode.
//!
//! A handle is what the journal gives before a change: a pass through its gate, and log space ([`xfs::log::Ticket`]).
//! `start/stop` takes one and gives it back, which changes nothing; `extend` asks for more log space in between,
//! `roll` goes on with a second step. With `barrier`, each thread holds the journal still once in [`PAIRS_A_BARRIER`]
//! pairs: it waits until no handle is open, and none can be opened meanwhile. `inode` is whole transactions, each
//! of which changes the times of one file, while the log is kept moving.
//!
//! Journals of older designs can be measured beside today's ([`Designs`]); all take turns, round by round. The changes
//! of `inode` are checked afterwards, and again after the volume was closed and opened: a journal that loses changes
//! does not count.

mod inodes;
mod journal;

use crate::config::{Config, Workload};
use crate::error::Result;
use crate::fsmark::named;
use crate::interrupt;
use crate::lockstat::{self, Tracker};
use crate::measure::{Collector, Sample, Series};
use crate::suite::{Observer, Report};
use crate::target::Label;
use ::uxfs::Designs;
use inodes::Files;
pub(crate) use journal::{Handles, cycle};

/// The name of the workload in reports.
const NAME: &str = "handles";

/// Pairs of which each thread makes one barrier.
const PAIRS_A_BARRIER: u64 = 1000;

/// The size of a volume: one that has a log of the size that larger ones have.
pub(crate) const VOLUME_BYTES: u64 = 4 << 30;

/// What is measured, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    StartStop,
    Extend,
    Roll,
    Barrier,
    Inode,
}

impl Op {
    const ALL: [Self; 5] = [Self::StartStop, Self::Extend, Self::Roll, Self::Barrier, Self::Inode];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::StartStop => "start/stop",
            Self::Extend => "extend",
            Self::Roll => "roll",
            Self::Barrier => "barrier",
            Self::Inode => "inode",
        }
    }
}

/// A journal used only for handles, and a volume with files.
struct Target {
    designs: Designs,
    label: Label,
    handles: Handles,
    files: Files,
}

impl Target {
    fn make(config: &Config, designs: Designs) -> Result<Self> {
        let (handles, device) = Handles::make(config, designs)?;
        let files = Files::make(config, designs)?;
        let label = Label { target: "uxfs".to_owned(), device, locking: named(designs) };
        Ok(Self { designs, label, handles, files })
    }

    /// Whether it may differ from today's: handles that change nothing are never committed.
    fn tells_of(&self, op: Op) -> bool {
        let (Designs { handles, reservation, .. }, today) = (self.designs, Designs::default());
        let of_handles = Designs { handles, reservation, ..today };
        op == Op::Inode || self.designs == today || of_handles != today
    }

    /// Operations a second of this many threads, and what single ones take.
    fn measure(&mut self, op: Op, threads: usize, config: &Config) -> Result<Sample> {
        match op {
            Op::Inode => self.files.measure(threads, config.min_time),
            op => self.handles.measure(op, threads, config.min_time),
        }
    }
}

/// Measures all targets, round by round.
pub(crate) fn run(config: &Config, observer: &mut dyn Observer, report: &mut Report) -> Result<()> {
    observer.note("making volumes and their files");
    let designs = config.designs(Workload::Handles);
    let mut targets =
        designs.iter().map(|designs| Target::make(config, *designs)).collect::<Result<Vec<_>>>()?;
    let of_target = |target: &Target| Op::ALL.iter().filter(|op| target.tells_of(**op)).count();
    let steps: usize = targets.iter().map(of_target).sum();
    observer.start(NAME, (config.rounds * config.threads.len() * steps) as u64);
    let mut collector = Collector::default();
    let mut locks = config.lockstat.then(Tracker::start);
    for _ in 0..config.rounds {
        for &threads in &config.threads {
            for op in Op::ALL {
                for target in targets.iter_mut().filter(|target| target.tells_of(op)) {
                    interrupt::check()?;
                    observer.step(&format!("{} {} × {threads}", target.label, op.name()));
                    if let Some(locks) = &mut locks {
                        locks.skip();
                    }
                    let sample = target.measure(op, threads, config)?;
                    if let Some(locks) = &mut locks {
                        locks.attribute(&format!("{} {} × {threads}", target.label, op.name()));
                    }
                    collector.add(line(&target.label, op, threads), sample);
                }
            }
        }
    }
    report.measurements.extend(collector.finish());
    report.locks.extend(locks.map(|locks| lockstat::shared_first(locks.finish(NAME))).unwrap_or_default());
    for target in targets {
        observer.note(&format!("closing {}", target.label));
        target.handles.finish()?;
        target.files.finish(&target.label)?;
    }
    Ok(())
}

fn line(label: &Label, op: Op, threads: usize) -> Series {
    Series {
        workload: NAME,
        label: label.clone(),
        op: op.name(),
        threads,
        depth: 1,
        bytes: 0,
        samples: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Silent;
    use std::time::Duration;

    fn config() -> Config {
        Config { threads: vec![1, 3], rounds: 2, min_time: Duration::from_millis(2), ..Config::default() }
    }

    #[test]
    fn every_line_is_measured() {
        let mut report = Report::default();
        run(&config(), &mut Silent, &mut report).expect("no change is lost");
        // Six designs, two of which are about commits alone.
        assert_eq!(report.measurements.len(), 2 * (4 * Op::ALL.len() + 2));
        for line in &report.measurements {
            assert!(line.ops_per_s > 0.0 && line.median_of == 2, "{line:?}");
            assert!(line.p50_us.is_some() && line.p50_us <= line.p999_us, "{line:?}");
        }
    }
}
