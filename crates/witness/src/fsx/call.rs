//! A call to a file with all its arguments.
//!
//! Invariant: a call has everything that it depends on, except for the content of the files. So a list of calls can be
//! repeated, completely or in part.

use serde::{Deserialize, Serialize};

/// A call, to one of the two files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Step {
    /// Which of them.
    pub(super) file: usize,
    /// Whether it uses the handle with the page cache; the same for a second file.
    pub(super) buffered: [bool; 2],
    pub(super) call: Call,
}

impl Step {
    /// The other file of a call that has two; the same one, if `same`.
    pub(super) fn second(&self, same: bool) -> usize {
        if same { self.file } else { 1 - self.file }
    }
}

/// What is asked of the file. Numbers are bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Call {
    Read {
        at: u64,
        len: u64,
    },
    Write {
        at: u64,
        len: u64,
    },
    Overwrite {
        at: u64,
        len: u64,
    },
    Append {
        len: u64,
    },
    SetLen {
        size: u64,
    },
    Allocate {
        at: u64,
        len: u64,
        keep: bool,
    },
    Punch {
        at: u64,
        len: u64,
    },
    Zero {
        at: u64,
        len: u64,
        keep: bool,
    },
    Collapse {
        at: u64,
        len: u64,
    },
    Insert {
        at: u64,
        len: u64,
    },
    Clone(Pair),
    /// If `same_content`, the source's content is first written to the other file.
    Dedupe {
        pair: Pair,
        same_content: bool,
    },
    Copy(Pair),
    Exchange {
        at: u64,
        other_at: u64,
        len: Option<u64>,
        same: bool,
    },
    /// Walks data and holes from there.
    Seek {
        at: u64,
    },
    /// All at once, in a queue.
    Queue(Vec<Piece>),
    Sync,
    SyncVolume,
    /// All handles of the file are dropped, and it is opened anew.
    Reopen,
    /// Compares all of the file with the model by each handle, this many bytes at a time.
    Verify {
        chunk: u64,
    },
}

/// From a file to another one, or to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pair {
    pub(super) from: u64,
    pub(super) at: u64,
    pub(super) len: u64,
    /// To itself.
    pub(super) same: bool,
}

/// A request of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Piece {
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) is_write: bool,
}

/// How the volume is left before it is opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum End {
    /// Closed.
    Closed,
    /// Synced and dropped, so that its log is recovered.
    Dropped,
}
