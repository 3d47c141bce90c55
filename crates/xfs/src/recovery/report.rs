//! What recovery found and did.

use std::ops::AddAssign;
use xfs_format::types::Lsn;

/// The content of a log, and what was done with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records between tail and head.
    pub records: u64,
    /// Bytes of the log between tail and head.
    pub log_bytes: u64,
    /// Transactions (checkpoints) that were committed.
    pub transactions: u64,
    /// Transactions without a commit. They never happened.
    pub dropped: u64,
    /// Items of the committed transactions.
    pub items: u64,
    /// Intents among them.
    pub intents: u64,
    /// Buffer items that were replayed.
    pub buffers: u64,
    /// Inode items that were replayed.
    pub inodes: u64,
    /// Chunks of inodes that were created anew.
    pub inode_chunks: u64,
    /// Dquot items that were replayed.
    pub dquots: u64,
    /// Items that were not replayed because the disk has something newer.
    pub newer: u64,
    /// Items that were not replayed because their buffer was freed later or their quota was switched off.
    pub cancelled: u64,
    /// Bytes of metadata that were changed or made, in whole 512-byte sectors.
    pub bytes_changed: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        let Self {
            records,
            log_bytes,
            transactions,
            dropped,
            items,
            intents,
            buffers,
            inodes,
            inode_chunks,
            dquots,
            newer,
            cancelled,
            bytes_changed,
        } = other;
        self.records += records;
        self.log_bytes += log_bytes;
        self.transactions += transactions;
        self.dropped += dropped;
        self.items += items;
        self.intents += intents;
        self.buffers += buffers;
        self.inodes += inodes;
        self.inode_chunks += inode_chunks;
        self.dquots += dquots;
        self.newer += newer;
        self.cancelled += cancelled;
        self.bytes_changed += bytes_changed;
    }
}

/// What recovery found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Where the replay began: the log's tail.
    pub tail: Lsn,
    /// The newest complete record.
    pub last: Lsn,
    /// Counts.
    pub counts: Counts,
    /// Unfinished intents, by name.
    pub unfinished: Vec<String>,
    /// Why the volume cannot be recovered for writing, if that is so.
    pub obstacle: Option<String>,
    /// Extents that were freed to finish intents.
    pub extents_freed: u64,
    /// Inodes without a name that were freed.
    pub inodes_freed: u64,
    /// Whether anything was written. Not if the volume is open for reading.
    pub written: bool,
}
