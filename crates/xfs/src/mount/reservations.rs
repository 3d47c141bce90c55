//! What transactions reserve, and what the most frequent of them reserve on this volume.

use std::sync::OnceLock;
use xfs_format::geometry::Geometry;

/// What a transaction reserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Blocks of the volume.
    pub blocks: u64,
    /// Bytes of the log for each step.
    pub log_bytes: u32,
    /// Steps that are reserved at once; more are possible, but may have to wait.
    pub log_count: u32,
    /// Bytes of the log that it takes to log again all intents that are owed at a time.
    pub intent_bytes: u32,
    /// Whether to go on without blocks where there are none: for what frees space, and seldom needs any for it.
    pub blocks_optional: bool,
}

impl Reservation {
    /// The same, going on without blocks where there are none. Should some be needed after all, the transaction fails
    /// with [`Error::NoSpace`](crate::Error::NoSpace) when it wants them, and has changed nothing.
    pub fn or_no_blocks(self) -> Self {
        Self { blocks_optional: true, ..self }
    }
}

/// What the operations reserve that are asked for most.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    /// A file that inherits no attributes is made.
    pub(crate) create: Known,
    /// A name is removed.
    pub(crate) remove: Known,
}

/// A reservation, worked out once for the size that the volume has then: it depends on nothing else that changes.
#[derive(Debug, Default)]
pub(crate) struct Known(OnceLock<(u64, Reservation)>);

impl Known {
    /// What is known, or what `work_out` gives.
    pub(crate) fn get(&self, geometry: &Geometry, work_out: impl Fn() -> Reservation) -> Reservation {
        let size = geometry.data_blocks();
        match self.0.get_or_init(|| (size, work_out())) {
            (of, known) if *of == size => *known,
            // It has grown since.
            _ => work_out(),
        }
    }
}
