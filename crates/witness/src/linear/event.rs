//! What threads did to the file in a round: calls, when each began and ended, and their results.
//!
//! Invariant: a file consists of words of eight bytes, and a word is zero or the number of the one call that wrote it.

use std::fmt;

/// Bytes of a word.
pub(super) const WORD: u64 = 8;

/// The content of a file, word by word.
pub(super) type Words = Vec<u64>;

/// A call. Offsets and lengths are words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Read {
        at: u64,
        len: u64,
    },
    Write {
        at: u64,
        len: u64,
        stamp: u64,
    },
    Overwrite {
        at: u64,
        len: u64,
        stamp: u64,
    },
    Append {
        len: u64,
        stamp: u64,
    },
    SetLen {
        size: u64,
    },
    Punch {
        at: u64,
        len: u64,
    },
    /// Zeroes that extend the file.
    Zero {
        at: u64,
        len: u64,
    },
    /// The size according to a handle.
    Size,
    /// What `stat` says.
    Stat,
    /// Dirty bytes are written back, and the file stays the same.
    Sync,
    /// The same, by looking for holes.
    Seek,
    /// Another file is read, whose pages evict those of this one.
    Evict,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EventOutcome {
    Done,
    Read(Words),
    /// Where it was put, or how long the file is, in bytes.
    Bytes(u64),
    /// Not all of the bytes lie in the file; nothing was written.
    PastEnd,
    /// Not all of the bytes had been written before; nothing was written.
    NotAllocated,
}

/// The kind of handle, or other means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Buffered,
    Direct,
    Queue,
}

/// A call that has ended. All times are different.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) thread: usize,
    pub(super) by: By,
    pub(super) begun: u64,
    pub(super) ended: u64,
    pub(super) op: Op,
    pub(super) outcome: EventOutcome,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Buffered => "buffered",
            Self::Direct => "direct",
            Self::Queue => "queue",
        })
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = |at: u64, len: u64| format!("{}..{}", at * WORD, (at + len) * WORD);
        match *self {
            Self::Read { at, len } => write!(f, "read {}", span(at, len)),
            Self::Write { at, len, stamp } => write!(f, "write #{stamp} {}", span(at, len)),
            Self::Overwrite { at, len, stamp } => write!(f, "overwrite #{stamp} {}", span(at, len)),
            Self::Append { len, stamp } => write!(f, "append #{stamp} {} bytes", len * WORD),
            Self::SetLen { size } => write!(f, "set_len {}", size * WORD),
            Self::Punch { at, len } => write!(f, "punch {}", span(at, len)),
            Self::Zero { at, len } => write!(f, "zero {}", span(at, len)),
            Self::Size => f.write_str("size"),
            Self::Stat => f.write_str("stat"),
            Self::Sync => f.write_str("sync"),
            Self::Seek => f.write_str("seek"),
            Self::Evict => f.write_str("read another file"),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { thread, by, begun, ended, op, outcome } = self;
        write!(f, "{begun} to {ended}: thread {thread}, {by}: {op}: ")?;
        match (outcome, op) {
            (EventOutcome::Done, _) => f.write_str("done"),
            (EventOutcome::PastEnd, _) => f.write_str("refused, behind the end"),
            (EventOutcome::NotAllocated, _) => f.write_str("refused, not allocated"),
            (EventOutcome::Bytes(bytes), _) => write!(f, "{bytes}"),
            (EventOutcome::Read(words), Op::Read { at, .. }) => f.write_str(&told(words, *at)),
            (EventOutcome::Read(words), _) => f.write_str(&told(words, 0)),
        }
    }
}

/// Words for people to read: runs of the same word, and where each begins.
pub(super) fn told(words: &[u64], at: u64) -> String {
    let mut said = format!("{} bytes", words.len() as u64 * WORD);
    let mut before = None;
    for (nth, word) in words.iter().enumerate() {
        if before != Some(word) {
            said += &format!(", from {} #{word}", (at + nth as u64) * WORD);
        }
        before = Some(word);
    }
    said
}
