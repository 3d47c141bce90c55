//! Why a journal was shut down.

use std::fmt;

/// Why the journal was shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownReason {
    /// A write of the log failed.
    LogWrite,
    /// A write of metadata failed.
    MetadataWrite,
    /// The device could not make its writes durable.
    Flush,
    /// A change met damaged metadata half-way.
    Corruption,
    /// The device failed in the middle of a change.
    Device,
    /// A checkpoint was empty, which the format does not allow.
    EmptyCheckpoint,
    /// Somebody asked for it.
    Asked,
    /// It was closed, or dropped without being closed.
    Closed,
    /// It could not be closed.
    NotClosed,
    /// One of its threads panicked. The panic may come from the caller's device.
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

    /// The code that an atomic has for it; 0 means none.
    pub(crate) fn code(self) -> u32 {
        self as u32 + 1
    }

    /// The reason with that code.
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
