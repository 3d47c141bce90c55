//! Recovery: a volume whose log holds changes that are not in their places becomes one whose log is clean.
//!
//! ```text
//! ends of the log ──> records ──> transactions ──> survey (what was freed, what was promised)
//!   (clean)           (records)   (transactions)        │
//!                                                 replay, into sectors in memory ──> verify ──> counters
//!                                                       │ (replay, patch)                     (settle)
//!                       open for reading: they stay a layer over the device, if nothing was promised (else: scratch)
//!                       open for writing: written, flushed; then the journal goes on behind the head, and
//!                       what was promised is carried out (finish)
//! ```
//! Invariants:
//! - nothing is written before all of the log was understood, and everything that it changes passed its verifier;
//! - until that is on stable storage the log stays as it was: a crash during recovery is recovered like any other.
//!   A change that is on disk already is recognised by the LSN that its block carries, and a block comes there whole;
//! - intents that are not carried out yet hold the log's tail back, as they did before the crash;
//! - memory goes with what the log holds, however large the volume is.

mod attrs;
#[cfg(all(test, not(shuttle)))]
mod behind_end;
mod chains;
pub mod clean;
mod finish;
#[cfg(all(test, not(shuttle)))]
mod many;
mod patch;
mod reading;
mod records;
mod replay;
mod report;
mod scratch;
mod settle;
mod staged;
mod survey;
mod transactions;
mod unlinked;
#[cfg(all(test, not(shuttle)))]
mod wholes;

pub use chains::{LoggedChain, LoggedIntent, unfinished_chains};
pub use report::{Counts, Report};
pub(crate) use scratch::finish_in_memory;
pub(crate) use staged::free_staged;

use crate::error::{Error, Result};
use crate::log::{check_headers, check_record_size};
use blockdev::BlockDevice;
use patch::Patch;
use records::Records;
use replay::{Ahead, Replay};
use std::collections::BTreeSet;
use std::sync::Arc;
use survey::{Survey, Unfinished, intent_name};
use transactions::{Gather, Transaction};
use xfs_format::feature_table;
use xfs_format::geometry::Geometry;
use xfs_format::log::LogEnds;
use xfs_format::superblock::Superblock;
use xfs_format::types::{DiskAddr, Lsn};

/// A log that was replayed in memory.
#[derive(Debug)]
pub(crate) struct Replayed {
    patch: Arc<Patch>,
    superblock: Superblock,
    report: Report,
    unfinished: Vec<Unfinished>,
    highest_id: u64,
    /// The size of the record that tells of the oldest of the unfinished.
    record_size: Option<u32>,
    /// Where the log ends.
    head: Lsn,
    /// The LSN of something that the log has changes of, and that is newer than all of them can be.
    ahead: Option<Ahead>,
}

/// Replays a dirty log in memory. The device is read and not written.
pub(crate) fn replay(
    device: &Arc<dyn BlockDevice>,
    superblock: &Superblock,
    ends: &LogEnds,
) -> Result<Replayed> {
    if !superblock.is_v5() {
        return Err(Error::CannotRecover("the volume is of version 4".to_owned()));
    }
    let unknown = feature_table::unreplayable(superblock);
    if !unknown.is_empty() {
        return Err(Error::CannotRecover(format!("what it may hold is not known: {}", unknown.join(", "))));
    }
    let records = Records::new(&**device, superblock, ends)?;
    let mut survey = Survey::default();
    let (count, dropped) = for_each_transaction(&records, &mut |transaction| {
        survey.add(transaction).map_err(|problem| records.damaged_at(transaction.lsn, problem))
    })?;
    survey.counts.records = count;
    survey.counts.dropped = dropped;
    survey.counts.log_bytes = records.len() * 512;
    let unfinished: Vec<Unfinished> = survey.unfinished().cloned().collect();
    let highest_id = survey.highest_id;
    let oldest = unfinished.iter().map(|intent| intent.lsn).min();
    let record_size = oldest.map(|lsn| records.size_at(lsn)).transpose()?;

    let log = superblock.log_daddr().0 * 512;
    let log = log..log + superblock.log_bytes();
    let Survey { void, mut counts, size, .. } = survey;
    let geometry = Geometry::from_superblock(&grown(superblock, size)?);
    let mut replay = Replay::new(device, &geometry, &log, void, ends.head_lsn());
    for_each_transaction(&records, &mut |transaction| replay.transaction(transaction))?;
    let (patch, replayed, ahead) = replay.finish()?;
    counts += replayed;
    let (patch, superblock) = settle::settle(patch, superblock)?;
    counts.bytes_changed = patch.bytes_changed();
    let names: BTreeSet<&str> = unfinished.iter().map(|intent| intent_name(intent.kind)).collect();
    let report = Report {
        tail: records.tail(),
        last: ends.lsn,
        counts,
        unfinished: names.into_iter().map(str::to_owned).collect(),
        ..Report::default()
    };
    let mut replayed = Replayed {
        patch,
        superblock,
        report,
        unfinished,
        highest_id,
        record_size,
        head: ends.head_lsn(),
        ahead,
    };
    replayed.report.obstacle = replayed.check_writable().err().map(|error| error.to_string());
    Ok(replayed)
}

/// The superblock with the size that the volume has somewhere in the log, if it is larger than before: changes of what
/// came in addition are in the log too.
fn grown(superblock: &Superblock, size: Option<(u64, u32)>) -> Result<Superblock> {
    let raw = superblock.raw();
    let now = (raw.dblocks.get(), raw.agcount.get());
    let damaged = |problem| Error::corrupt_block(DiskAddr(0), None, problem);
    superblock.resized(size.map_or(now, |size| size.max(now))).map_err(damaged)
}

/// Calls `each` with every committed transaction, in the order of their commits. Gives the number of records, and how
/// many transactions were never committed.
fn for_each_transaction(
    records: &Records<'_>,
    each: &mut dyn FnMut(&Transaction) -> Result<()>,
) -> Result<(u64, u64)> {
    let mut gather = Gather::default();
    let count = records.for_each_op(&mut |lsn, op| {
        let done = gather.take(lsn, op).map_err(|problem| records.damaged_at(lsn, problem))?;
        done.map_or(Ok(()), |transaction| each(&transaction))
    })?;
    Ok((count, gather.dropped()))
}

impl Replayed {
    /// The superblock after the replay, with counters that are right.
    pub(crate) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Whether work was begun and not finished.
    pub(crate) fn owes(&self) -> bool {
        !self.unfinished.is_empty()
    }

    /// The volume as it is after the replay, for reading, though what was promised cannot be done.
    pub(crate) fn into_device_despite(mut self, error: &Error) -> (Arc<dyn BlockDevice>, Report) {
        self.report.obstacle.get_or_insert_with(|| error.to_string());
        self.into_device()
    }

    /// The volume as it is after the replay, for reading.
    pub(crate) fn into_device(self) -> (Arc<dyn BlockDevice>, Report) {
        (self.patch, self.report)
    }

    /// Whether the volume can go on to be written: [`Error::CannotRecover`] if something in it has to be done first
    /// that this version cannot do.
    pub(crate) fn check_writable(&self) -> Result<()> {
        let unknown: BTreeSet<&str> = self
            .unfinished
            .iter()
            .filter(|intent| intent.promise.is_none())
            .map(|intent| intent_name(intent.kind))
            .collect();
        if !unknown.is_empty() {
            let names: Vec<&str> = unknown.into_iter().collect();
            return Err(Error::CannotRecover(format!(
                "work that was begun is unfinished: {}",
                names.join(", ")
            )));
        }
        let geometry = Geometry::from_superblock(&self.superblock);
        check_headers(&*self.patch, &geometry, self.head)?;
        if let Some(size) = self.record_size {
            check_record_size(&self.superblock, self.patch.sector_size(), size)?;
        }
        if let Some((structure, lsn)) = self.ahead {
            return Err(Error::LogBehind { structure, lsn, head: self.head });
        }
        for intent in &self.unfinished {
            intent.check(&geometry)?;
        }
        unlinked::check_freeable(&self.patch, &geometry, &self.unfinished)
    }

    /// Writes everything that the replay changed, and waits until it is on stable storage.
    pub(crate) fn write(mut self) -> Result<Recovered> {
        self.patch.write_out()?;
        self.report.written = true;
        let Self { report, unfinished, highest_id, record_size, .. } = self;
        Ok(Recovered { report, unfinished, highest_id, record_size })
    }
}

/// A volume on which everything that the log says is in its place, but for the work that it owes.
#[derive(Debug)]
pub(crate) struct Recovered {
    report: Report,
    unfinished: Vec<Unfinished>,
    highest_id: u64,
    record_size: Option<u32>,
}

impl Recovered {
    /// The log's ends for whoever goes on with it: nothing waits to be replayed, but a crash would still have
    /// recovery begin at the old tail. While something is unfinished, that is no later than the oldest of it, and
    /// records have to be of the size that is said there.
    pub(crate) fn ends(&self, found: LogEnds) -> LogEnds {
        let record_size = self.record_size.unwrap_or(found.record_size);
        LogEnds { clean: true, tail: self.report.tail, record_size, ..found }
    }
}
