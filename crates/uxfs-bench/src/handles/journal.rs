//! The journal of an empty volume, and handles of it that change nothing.

use super::{Op, PAIRS_A_BARRIER, VOLUME_BYTES};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::fsmark::make_device;
use crate::measure::Sample;
use crate::setup::mkfs_options;
use crate::timer;
use crate::together::{self, Clock, Cycle};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use xfs::log::{Designs, Journal};
use xfs::volume::{OpenOptions, Volume};

/// Bytes of the log that a handle asks for: about what a transaction does that changes one inode.
const UNIT: u32 = 1024;
/// Pairs between two looks at the clock's phase.
const PAIRS: u64 = 100;

/// An empty volume that is open for writing.
pub(crate) struct Handles {
    volume: Arc<Volume>,
    /// Holds the image; none where it is in anonymous memory.
    _dir: Option<TempDir>,
}

impl Handles {
    /// A new volume, and the name of what it lies on.
    pub(crate) fn make(config: &Config, designs: Designs) -> Result<(Self, String)> {
        let (device, name, dir) = make_device(config, VOLUME_BYTES)?;
        ::uxfs::mkfs_device(Arc::clone(&device), &mkfs_options(config, 4)?, true).map_err(Error::volume)?;
        let options = OpenOptions { writable: true, designs, ..OpenOptions::default() };
        let volume = Volume::open(device, &options).map_err(Error::volume)?;
        Ok((Self { volume, _dir: dir }, name))
    }

    /// Pairs a second of this many threads, and what single ones take.
    pub(crate) fn measure(&self, op: Op, threads: usize, time: Duration) -> Result<Sample> {
        let journal = &**self.volume.journal().map_err(Error::volume)?;
        let threads = &mut vec![(); threads][..];
        match op {
            Op::Extend => together::run(threads, time, &Pairs { journal, pair: extend }),
            Op::Roll => together::run(threads, time, &Pairs { journal, pair: roll }),
            Op::Barrier => together::run(threads, time, &PairsAndBarrier(journal)),
            _ => together::run(threads, time, &Pairs { journal, pair: start_stop }),
        }
    }

    /// Closes the volume, of which nothing was changed.
    pub(super) fn finish(self) -> Result<()> {
        self.volume.close().map_err(Error::volume)
    }
}

/// Pairs of one kind.
struct Pairs<'a, F> {
    journal: &'a Journal,
    pair: F,
}

impl<F: Fn(&Journal) -> xfs::Result<()> + Sync> Cycle for Pairs<'_, F> {
    type Part = ();
    const TIMED: u32 = timer::TINY;
    const OPS: u64 = PAIRS;

    fn run(&self, (): &mut (), clock: &mut impl Clock) -> Result<()> {
        let mut pair = |_| clock.of(|| (self.pair)(self.journal));
        (0..PAIRS).try_for_each(&mut pair).map_err(Error::volume)
    }
}

/// Pairs, and then a barrier. Pairs are what is timed: some of them wait for another thread's barrier.
struct PairsAndBarrier<'a>(&'a Journal);

impl Cycle for PairsAndBarrier<'_> {
    type Part = ();
    const TIMED: u32 = timer::TINY;
    const OPS: u64 = PAIRS_A_BARRIER;

    fn run(&self, (): &mut (), clock: &mut impl Clock) -> Result<()> {
        let mut pair = |_| clock.of(|| start_stop(self.0));
        (0..PAIRS_A_BARRIER).try_for_each(&mut pair).map_err(Error::volume)?;
        self.0.freeze().map(drop).map_err(Error::volume)
    }
}

/// One handle of an operation, for the model's recorder.
pub(crate) fn cycle(op: Op) -> fn(&Journal) -> xfs::Result<()> {
    match op {
        Op::Extend => extend,
        Op::Roll => roll,
        _ => start_stop,
    }
}

fn start_stop(journal: &Journal) -> xfs::Result<()> {
    let handle = journal.reserve(UNIT, 1, 0)?;
    journal.release(handle);
    Ok(())
}

fn extend(journal: &Journal) -> xfs::Result<()> {
    let mut handle = journal.reserve(UNIT, 1, 0)?;
    let extended = journal.extend(&mut handle, UNIT);
    journal.release(handle);
    extended.map(drop)
}

fn roll(journal: &Journal) -> xfs::Result<()> {
    let mut handle = journal.reserve(UNIT, 2, 0)?;
    let rolled = journal.roll(&mut handle);
    journal.release(handle);
    rolled
}
