//! What a transaction reserves, and cached reservations of the most frequent operations.

use std::sync::OnceLock;
use xfs_format::geometry::Geometry;

/// What a transaction reserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Blocks of the volume.
    pub blocks: u64,
    /// Log bytes for each step.
    pub log_bytes: u32,
    /// Log bytes for one step that changes what the operation usually changes, if it may begin with these: see
    /// `beginning_with`.
    pub usual_log_bytes: Option<u32>,
    /// The least log bytes of a step that carries out deferred work.
    pub deferred_log_bytes: u32,
    /// Steps for which log space is reserved at once. More steps are possible but may have to wait.
    pub log_count: u32,
    /// Log bytes to log all outstanding intents once more.
    pub intent_bytes: u32,
    /// What to do if the volume has too few blocks.
    pub when_full: WhenFull,
}

/// What a transaction does if the volume has fewer blocks than it reserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// It fails.
    Refuse,
    /// It goes on with none.
    GoOn,
    /// It takes a few from the reserve pool, as far as there are some.
    ReservePool,
    /// The same, as long as more than half of the pool is left.
    HalfOfReservePool,
}

impl Reservation {
    /// The same reservation, but it goes on with no blocks if the volume is full. If the transaction needs one after
    /// all, it fails with [`Error::NoSpace`](crate::Error::NoSpace) at that point and has changed nothing.
    pub fn or_no_blocks(self) -> Self {
        Self { when_full: WhenFull::GoOn, ..self }
    }

    /// The same reservation, but it takes a few blocks from the reserve pool if the volume is full: for what frees
    /// space, and may need a block for a map that gets an extent more.
    pub fn or_reserve_pool(self) -> Self {
        Self { when_full: WhenFull::ReservePool, ..self }
    }

    /// The same for what frees nothing, but was promised that it needs no space: it leaves half of the pool to others.
    pub fn or_half_of_reserve_pool(self) -> Self {
        Self { when_full: WhenFull::HalfOfReservePool, ..self }
    }

    /// The same reservation for an operation that usually changes no more than `usual` has log space for. It begins with
    /// that, and takes more at its commit if it needs more. If the log has no more then, the commit fails with
    /// [`Error::ReservationShort`](crate::Error::ReservationShort), has changed nothing, and the operation begins again
    /// with all. So the worst case, which is ten times as large or more, keeps nobody out.
    pub(crate) fn beginning_with(self, usual: Self) -> Self {
        Self { usual_log_bytes: Some(usual.log_bytes).filter(|bytes| *bytes < self.log_bytes), ..self }
    }

    /// The same reservation to begin with this log space.
    pub(crate) fn with_log_space(self, need: LogNeed) -> Self {
        match need {
            LogNeed::Usual => self,
            LogNeed::Most => Self { usual_log_bytes: None, ..self },
        }
    }

    /// Log bytes of a step, and how many steps, to begin with.
    pub(crate) fn first_log_space(&self) -> (u32, u32) {
        self.usual_log_bytes.map_or((self.log_bytes, self.log_count), |bytes| (bytes, 1))
    }
}

/// How much log space an operation begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogNeed {
    /// What it usually needs.
    Usual,
    /// What it needs at worst.
    Most,
}

/// Reservations of the most frequent operations.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    /// Making a file that inherits no attributes.
    pub(crate) create: CachedReservation,
    /// Removing a name.
    pub(crate) remove: CachedReservation,
}

/// A reservation computed once, for the volume's size at that time. It depends on nothing else that changes.
#[derive(Debug, Default)]
pub(crate) struct CachedReservation(OnceLock<(u64, Reservation)>);

impl CachedReservation {
    /// The cached reservation, or the result of `work_out`.
    pub(crate) fn get(&self, geometry: &Geometry, work_out: impl Fn() -> Reservation) -> Reservation {
        let size = geometry.data_blocks();
        match self.0.get_or_init(|| (size, work_out())) {
            (of, known) if *of == size => *known,
            // The volume has grown since.
            _ => work_out(),
        }
    }
}
