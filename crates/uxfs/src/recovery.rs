//! What the recovery of a volume's log found and did, in this crate's own terms.

use std::fmt;

/// The recovery of a log that was dirty when the volume was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// Where the replay began: cycle and block of the log.
    pub tail: (u32, u32),
    /// Cycle and block of the newest whole record.
    pub last: (u32, u32),
    /// Bytes of the log that were replayed.
    pub log_bytes: u64,
    /// Records in them.
    pub records: u64,
    /// Transactions that were committed.
    pub transactions: u64,
    /// Transactions that were not: they never happened.
    pub dropped: u64,
    /// Items of the committed ones.
    pub items: u64,
    /// Buffers, inodes, chunks of inodes and dquots that were put in their places.
    pub replayed: u64,
    /// Items that were skipped, because the disk has something newer.
    pub newer: u64,
    /// Items that were skipped, because their blocks were freed later.
    pub cancelled: u64,
    /// Bytes of metadata that changed.
    pub bytes_changed: u64,
    /// Kinds of intents that were unfinished at the crash.
    pub unfinished: Vec<String>,
    /// Why the volume cannot be recovered for writing, if so.
    pub obstacle: Option<String>,
    /// Extents that were freed to finish what was begun.
    pub extents_freed: u64,
    /// Inodes without a name that were freed.
    pub inodes_freed: u64,
    /// Whether the device was written. If not, the recovery was in memory only.
    pub written: bool,
}

impl From<&xfs::recovery::Report> for Recovery {
    fn from(report: &xfs::recovery::Report) -> Self {
        let counts = &report.counts;
        let place = |lsn: u64| ((lsn >> 32) as u32, lsn as u32);
        Self {
            tail: place(report.tail.0),
            last: place(report.last.0),
            log_bytes: counts.log_bytes,
            records: counts.records,
            transactions: counts.transactions,
            dropped: counts.dropped,
            items: counts.items,
            replayed: counts.buffers + counts.inodes + counts.inode_chunks + counts.dquots,
            newer: counts.newer,
            cancelled: counts.cancelled,
            bytes_changed: counts.bytes_changed,
            unfinished: report.unfinished.clone(),
            obstacle: report.obstacle.clone(),
            extents_freed: report.extents_freed,
            inodes_freed: report.inodes_freed,
            written: report.written,
        }
    }
}

/// One line.
impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { transactions, replayed, log_bytes, .. } = self;
        write!(
            f,
            "{transactions} transactions in {} KiB of log: {replayed} items replayed",
            log_bytes / 1024
        )?;
        if self.extents_freed > 0 {
            write!(f, ", {} extents freed", self.extents_freed)?;
        }
        if self.inodes_freed > 0 {
            write!(f, ", {} inodes without a name freed", self.inodes_freed)?;
        }
        Ok(())
    }
}
