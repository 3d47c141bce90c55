//! Why a journal was shut down.

use std::fmt;

/// Why the journal was shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownReason {
    /// A write of the log failed.
    LogWrite,
    /// A write of metadata failed.
    MetadataWrite,
    /// The device could not make durable what it had been given.
    Flush,
    /// Damaged metadata was met in the middle of a change.
    Corruption,
    /// The device failed in the middle of a change.
    Device,
    /// A checkpoint had nothing in it, which the format cannot say.
    EmptyCheckpoint,
    /// Somebody asked for it.
    Asked,
    /// It was closed, or dropped without being closed.
    Closed,
    /// It could not be closed.
    NotClosed,
    /// One of its threads panicked, as a device may that somebody else made.
    Panicked,
}

impl ShutdownReason {
    const ALL: [Self; 10] = [
        Self::LogWrite,
        Self::MetadataWrite,
        Self::Flush,
        Self::Corruption,
        Self::Device,
        Self::EmptyCheckpoint,
        Self::Asked,
        Self::Closed,
        Self::NotClosed,
        Self::Panicked,
    ];

    /// As an atomic has it; 0 is none.
    pub(crate) fn code(self) -> u32 {
        self as u32 + 1
    }

    /// The reason of that code.
    pub(crate) fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.code() == code)
    }
}

impl fmt::Display for ShutdownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LogWrite => "a write of the log failed",
            Self::MetadataWrite => "a write of metadata failed",
            Self::Flush => "the device could not make durable what was written",
            Self::Corruption => "damaged metadata was met in the middle of a change",
            Self::Device => "the device failed in the middle of a change",
            Self::EmptyCheckpoint => "a checkpoint had nothing in it",
            Self::Asked => "it was asked for",
            Self::Closed => "it was closed",
            Self::NotClosed => "closing it failed, and what is in its log is to be recovered",
            Self::Panicked => "a thread of the journal panicked",
        })
    }
}
