//! The handles of both files, and the calls that they do.
//!
//! Invariant: a call is done by the handles that it names.

use super::call::{Call, Pair, Step};
use anyhow::{Context, Result};
use uxfs::{Deduped, ExchangeOptions, File, Volume};

/// The handles of a file.
#[derive(Debug)]
pub(super) struct Handles {
    pub(super) direct: File,
    pub(super) buffered: Option<File>,
}

impl Handles {
    pub(super) fn open(volume: &Volume, name: &str, buffers: bool) -> Result<Self> {
        let direct = volume.open_file(name)?;
        let buffered = buffers.then(|| direct.buffered());
        Ok(Self { direct, buffered })
    }

    fn pick(&self, buffered: bool) -> &File {
        self.buffered.as_ref().filter(|_| buffered).unwrap_or(&self.direct)
    }
}

/// Both files. There is always one, but while it is opened anew.
#[derive(Debug)]
pub(super) struct Files(pub(super) [Option<Handles>; 2]);

impl Files {
    pub(super) fn file(&self, nth: usize, buffered: bool) -> Result<File> {
        let handles = self.0[nth].as_ref().context("a file that is not open")?;
        Ok(handles.pick(buffered).clone())
    }

    pub(super) fn shape(&self, step: &Step) -> uxfs::Result<()> {
        let Some(handles) = &self.0[step.file] else { return Ok(()) };
        let file = handles.pick(step.buffered[0]);
        match step.call {
            Call::SetLen { size } => file.set_len(size),
            Call::Allocate { at, len, keep } => file.allocate(at..at + len, keep),
            Call::Punch { at, len } => file.punch_hole(at..at + len),
            Call::Zero { at, len, keep } => file.zero_range(at..at + len, keep),
            Call::Collapse { at, len } => file.collapse_range(at..at + len),
            Call::Insert { at, len } => file.insert_range(at..at + len),
            _ => Ok(()),
        }
    }

    /// Both files of a call, by the handles that it is done by.
    fn both(&self, step: &Step, same: bool) -> Option<(&File, &File)> {
        let one = self.0[step.file].as_ref()?.pick(step.buffered[0]);
        let other = self.0[step.second(same)].as_ref()?.pick(step.buffered[1]);
        Some((one, other))
    }

    pub(super) fn clone_range(&self, step: &Step, pair: &Pair) -> uxfs::Result<()> {
        let Some((from, to)) = self.both(step, pair.same) else { return Ok(()) };
        from.clone_range(pair.from, to, pair.at, pair.len)
    }

    pub(super) fn copy(&self, step: &Step, pair: &Pair) -> uxfs::Result<u64> {
        let Some((from, to)) = self.both(step, pair.same) else { return Ok(0) };
        from.copy_range(pair.from, to, pair.at, pair.len)
    }

    pub(super) fn dedupe(&self, step: &Step, pair: &Pair) -> uxfs::Result<Deduped> {
        let Some((from, to)) = self.both(step, pair.same) else { return Ok(Deduped::Differs) };
        from.dedupe_range(pair.from, to, pair.at, pair.len)
    }

    pub(super) fn exchange(&self, step: &Step) -> uxfs::Result<()> {
        let Call::Exchange { at, other_at, len, same } = step.call else { return Ok(()) };
        let Some((one, other)) = self.both(step, same) else { return Ok(()) };
        one.exchange_range(at, other, other_at, len, ExchangeOptions::new())
    }
}
