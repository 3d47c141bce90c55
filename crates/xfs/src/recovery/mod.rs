//! Recovery: replays a log with changes that are not in place yet, so that the log can be clean.
//!
//! ```text
//! ends of the log ──> records ──> transactions ──> pass 1 (what was freed, which intents are unfinished)
//!   (log_ends)        (records)   (transactions)      │  (pass1)
//!                                                     │
//!                                   replay, into sectors in memory ──> verify ──> counters
//!                                             (replay, patch)                  (sum_counters)
//!
//! open for reading: the sectors stay in memory, over the device; if intents are unfinished, see scratch
//! open for writing: written and flushed; then the journal goes on behind the head, and intents are finished (finish)
//! ```
//!
//! Invariants:
//! - nothing is written before the whole log was understood and everything that it changes has passed its verifier;
//! - the log stays as it was until that is on stable storage. So a crash during recovery is recovered like any other. A
//!   change that is already on disk is recognized by its block's LSN, and a block is written as a whole;
//! - unfinished intents hold the log's tail, as they did before the crash;
//! - memory grows with the content of the log, not with the size of the volume.

mod attrs;
mod chains;
mod cow_leftovers;
mod finish;
pub mod log_ends;
#[cfg(all(test, not(shuttle)))]
mod many_intents;
mod pass1;
#[cfg(all(test, not(shuttle)))]
mod past_eof;
mod patch;
mod read_cache;
mod records;
mod replay;
mod report;
mod scratch;
mod sum_counters;
mod transactions;
mod unlinked;
#[cfg(all(test, not(shuttle)))]
mod whole_buffers;

pub use chains::{LoggedChain, LoggedIntent, unfinished_chains};
pub(crate) use cow_leftovers::free_staged;
pub use report::{Counts, Report};
pub(crate) use scratch::finish_in_memory;
pub use scratch::in_memory;

use crate::error::{Error, Result};
use crate::log::{check_headers, check_record_size};
use blockdev::BlockDevice;
use pass1::{Pass1, Unfinished, intent_name};
use patch::Patch;
use records::Records;
use replay::{Ahead, Replay};
use std::collections::BTreeSet;
use std::sync::Arc;
use transactions::{Transaction, TransactionBuilder};
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
    /// The size of the record with the oldest unfinished intent.
    record_size: Option<u32>,
    /// The end of the log.
    head: Lsn,
    /// The LSN of something that the log changes and that is newer than all of these changes can be.
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
    let mut pass1 = Pass1::default();
    let (count, dropped) = for_each_transaction(&records, &mut |transaction| {
        pass1.add(transaction).map_err(|problem| records.damaged_at(transaction.lsn, problem))
    })?;
    pass1.counts.records = count;
    pass1.counts.dropped = dropped;
    pass1.counts.log_bytes = records.len() * 512;
    let unfinished: Vec<Unfinished> = pass1.unfinished().cloned().collect();
    let highest_id = pass1.highest_id;
    let oldest = unfinished.iter().map(|intent| intent.lsn).min();
    let record_size = oldest.map(|lsn| records.size_at(lsn)).transpose()?;

    let log = superblock.log_daddr().0 * 512;
    let log = log..log + superblock.log_bytes();
    let Pass1 { cancels, mut counts, size, .. } = pass1;
    let geometry = Geometry::from_superblock(&grown(superblock, size)?);
    let mut replay = Replay::new(device, &geometry, &log, cancels, ends.head_lsn());
    for_each_transaction(&records, &mut |transaction| replay.transaction(transaction))?;
    let (patch, replayed, ahead) = replay.finish()?;
    counts += replayed;
    let (patch, superblock) = sum_counters::settle(patch, superblock)?;
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

/// The superblock with the largest size that the volume has in the log, if it grew: the log also changes the added
/// groups.
fn grown(superblock: &Superblock, size: Option<(u64, u32)>) -> Result<Superblock> {
    let raw = superblock.raw();
    let now = (raw.dblocks.get(), raw.agcount.get());
    let damaged = |problem| Error::corrupt_block(DiskAddr(0), None, problem);
    superblock.resized(size.map_or(now, |size| size.max(now))).map_err(damaged)
}

/// Calls `each` with every committed transaction in commit order. Returns the number of records, and how many
/// transactions were never committed.
fn for_each_transaction(
    records: &Records<'_>,
    each: &mut dyn FnMut(&Transaction) -> Result<()>,
) -> Result<(u64, u64)> {
    let mut gather = TransactionBuilder::default();
    let count = records.for_each_op(&mut |lsn, op| {
        let done = gather.take(lsn, op).map_err(|problem| records.damaged_at(lsn, problem))?;
        done.map_or(Ok(()), |transaction| each(&transaction))
    })?;
    Ok((count, gather.dropped()))
}

impl Replayed {
    /// The superblock after the replay, with correct counters.
    pub(crate) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Whether there is unfinished work.
    pub(crate) fn owes(&self) -> bool {
        !self.unfinished.is_empty()
    }

    /// The volume as it is after the replay, for reading, although its intents cannot be finished.
    pub(crate) fn into_device_despite(mut self, error: &Error) -> (Arc<dyn BlockDevice>, Report) {
        self.report.obstacle.get_or_insert_with(|| error.to_string());
        self.into_device()
    }

    /// The volume as it is after the replay, for reading.
    pub(crate) fn into_device(self) -> (Arc<dyn BlockDevice>, Report) {
        (self.patch, self.report)
    }

    /// Checks that the volume can be written: [`Error::CannotRecover`] if it has unfinished work that this version
    /// cannot do.
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

/// A volume on which all changes of the log are in place, except for unfinished work.
#[derive(Debug)]
pub(crate) struct Recovered {
    report: Report,
    unfinished: Vec<Unfinished>,
    highest_id: u64,
    record_size: Option<u32>,
}

impl Recovered {
    /// The log's ends for going on with it: nothing has to be replayed, but recovery after a crash would still begin at
    /// the old tail. While something is unfinished, the tail is not beyond the oldest of it, and records must have the
    /// size given there.
    pub(crate) fn ends(&self, found: LogEnds) -> LogEnds {
        let record_size = self.record_size.unwrap_or(found.record_size);
        LogEnds { clean: true, tail: self.report.tail, record_size, ..found }
    }
}
