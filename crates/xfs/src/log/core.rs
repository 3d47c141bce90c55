//! The state that the journal's threads and callers share, and the end of a checkpoint: commit or abort.
//!
//! Invariants: the first shutdown reason stays. A checkpoint's items enter the AIL before they are unpinned, and its
//! space is given back after both. After a shutdown every wait ends.

use super::ail::Ail;
use super::ail_push::AilPush;
use super::cil::{Cil, ClosedCheckpoint};
use super::covering::Cover;
use super::gate::Gate;
use super::grant::{Grant, LogSpace};
use super::handles::Handles;
use super::item::{AfterCommit, CheckpointOutcome};
use super::layout::{LogLayout, Pos};
use super::open::LogStart;
use super::pipe::{Ended, Pipe, SealedCheckpoint};
use super::record::RecordRun;
use super::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, Padded, lock};
use super::worker::LogWorker;
use super::{Designs, Pace, ShutdownReason, Ticket};
use crate::error::{Error, Result};
use blockdev::{BlockDevice, DeviceError, Durability};
use std::sync::Arc;
use xfs_format::log::BLOCK_SIZE;

#[derive(Debug)]
pub(super) struct Core {
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) layout: LogLayout,
    pub(super) pace: Pace,
    pub(super) grant: Grant,
    pub(super) gate: Gate,
    pub(super) cil: Cil,
    pub(super) ail: Ail,
    pub(super) worker: LogWorker,
    pub(super) pipe: Pipe,
    pub(super) ail_push: AilPush,
    /// Where the next record goes.
    pub(super) head: AtomicU64,
    /// Whether recovery after a crash now would replay anything but the superblock of a covered log.
    pub(super) uncovered: AtomicBool,
    pub(super) cover: Cover,
    /// Held while the gate is closed.
    pub(super) freezing: Mutex<()>,
    /// Held while the journal is being settled.
    pub(super) settling: Mutex<()>,
    /// Why it was shut down; 0 if it was not. Every change reads it, so it is kept apart from what changes often.
    down: Padded<AtomicU32>,
    /// The device error that caused the shutdown.
    failed: Mutex<Option<DeviceError>>,
    /// Whether lookups no longer say where to write file content, because the journal was shut down or is about to be
    /// closed. Every request on a file checks it.
    writes_stopped: Padded<AtomicBool>,
}

impl Core {
    pub(super) fn new(
        device: Arc<dyn BlockDevice>,
        layout: LogLayout,
        start: LogStart,
        pace: Pace,
        designs: Designs,
    ) -> Self {
        let LogStart { head, tail, .. } = start;
        let handles = Arc::new(Handles::new(designs.handles));
        let of_handles = Arc::clone(&handles);
        let grant = Grant::new(layout.capacity(), layout.promisable(), of_handles, designs.reservation);
        // In step, the used space is read all the time.
        let grant = if pace == Pace::InStep { grant.keeping(0) } else { grant };
        Self {
            device,
            layout,
            pace,
            grant,
            gate: Gate::new(handles),
            cil: Cil::new(layout, designs),
            ail: Ail::new(layout, head),
            worker: LogWorker::default(),
            pipe: Pipe::new(&layout, head, tail),
            ail_push: AilPush::default(),
            head: AtomicU64::new(head.0),
            uncovered: AtomicBool::new(false),
            cover: Cover::default(),
            freezing: Mutex::new(()),
            settling: Mutex::new(()),
            down: Padded::default(),
            failed: Mutex::new(None),
            writes_stopped: Padded::default(),
        }
    }

    /// Stops everything, and wakes all waiters.
    pub(super) fn shutdown(&self, why: ShutdownReason) {
        self.stop_for(why, None);
    }

    /// Like [`shutdown`](Self::shutdown), after a device failure. Waiters for the log get this error.
    pub(super) fn shutdown_for(&self, why: ShutdownReason, error: &DeviceError) {
        self.stop_for(why, Some(error));
    }

    fn stop_for(&self, why: ShutdownReason, error: Option<&DeviceError>) {
        // The first failure determines the reason and the device's error. Readers of these wait for both.
        let mut failed = lock(&self.failed);
        let first = self.down.0.compare_exchange(0, why.code(), Ordering::SeqCst, Ordering::SeqCst);
        if first.is_err() {
            return;
        }
        *failed = error.map(DeviceError::again);
        drop(failed);
        // Before waiters are woken that would release log space.
        self.stop_writes();
        self.pipe.kill();
        self.worker.kill();
        self.grant.kill();
        self.gate.kill();
        self.ail.kill();
        self.ail_push.kill();
    }

    pub(super) fn down(&self) -> Option<ShutdownReason> {
        ShutdownReason::from_code(self.down.0.load(Ordering::SeqCst))
    }

    pub(super) fn stop_writes(&self) {
        self.writes_stopped.0.store(true, Ordering::SeqCst);
    }

    #[inline]
    pub(super) fn has_stopped_writes(&self) -> bool {
        self.writes_stopped.0.load(Ordering::SeqCst)
    }

    pub(super) fn check(&self) -> Result<()> {
        match self.down() {
            None => Ok(()),
            Some(why) => Err(Error::Shutdown(why)),
        }
    }

    /// The error of a call that a shutdown interrupted.
    pub(super) fn stopped(&self) -> Error {
        Error::Shutdown(self.down().unwrap_or(ShutdownReason::Closed))
    }

    /// The same for a call that waited for the log or for write-back: it gets the device's error.
    pub(super) fn not_written(&self) -> Error {
        lock(&self.failed).as_ref().map_or_else(|| self.stopped(), |error| error.again().into())
    }

    /// Gives back a ticket's space or a part of it.
    pub(super) fn give_back(&self, ticket: &Ticket, space: LogSpace) {
        self.grant.give_at(ticket.slot, space, || self.ail_push.push());
    }

    /// Whether somebody waits for space that only the log can free.
    pub(super) fn lacks_space(&self) -> bool {
        let wanted = self.grant.wanted();
        wanted != 0 && self.grant.used() + wanted > self.grant.capacity()
    }

    /// Writes whole records, in two parts if they wrap around the end of the log.
    pub(super) fn write_records(
        &self,
        at: Pos,
        records: &[u8],
        durability: Durability,
    ) -> Result<(), DeviceError> {
        let block = self.layout.block(at) as usize;
        let room = (self.layout.blocks as usize - block) * BLOCK_SIZE;
        let (here, there) = records.split_at(room.min(records.len()));
        let offset = self.layout.start + (block * BLOCK_SIZE) as u64;
        self.device.write(offset, here, durability)?;
        if there.is_empty() { Ok(()) } else { self.device.write(self.layout.start, there, durability) }
    }

    /// Lands or aborts a checkpoint. Returns its last records if they are in the log.
    pub(super) fn conclude(&self, ended: Ended) -> Option<RecordRun> {
        match ended {
            Ended::Committed(sealed, tail) => Some(self.checkpoint_committed(sealed, tail)),
            Ended::Aborted(closed) => {
                self.abort(closed);
                None
            }
        }
    }

    /// A checkpoint is permanently in the log, and its last record names `tail`. Returns its last records.
    fn checkpoint_committed(&self, sealed: SealedCheckpoint, tail: Pos) -> RecordRun {
        let SealedCheckpoint { closed, start, end, bytes, run, .. } = sealed;
        let (mut stay, mut gone) = (Vec::with_capacity(closed.items.len()), Vec::new());
        for entry in &closed.items {
            match entry.item.committed(start) {
                AfterCommit::Ail => stay.push(Arc::clone(&entry.item)),
                AfterCommit::Drop => gone.push(Arc::clone(&entry.item)),
                AfterCommit::Retire(other) => gone.extend([Arc::clone(&entry.item), other]),
            }
        }
        let freed = self.ail.insert_checkpoint(start, end, stay.into_iter(), &gone);
        for entry in &closed.items {
            entry.item.unpin();
        }
        for landed in closed.callbacks {
            landed(CheckpointOutcome::Committed);
        }
        debug_assert!(closed.paid >= bytes, "a checkpoint of {bytes} bytes was paid {}", closed.paid);
        match closed.paid.checked_sub(bytes) {
            Some(surplus) => self.grant.give(LogSpace::used(surplus)),
            None => self.grant.take_regardless(LogSpace::used(bytes - closed.paid)),
        }
        self.grant.give(LogSpace::used(freed));
        // If something was committed after the log was found idle, it lies between the tail and the covering
        // checkpoint.
        let covers = closed.covering && self.layout.lsn(tail) == start;
        self.uncovered.store(!covers, Ordering::SeqCst);
        self.worker.done(closed.seq);
        self.ail_push.push();
        run
    }

    /// A checkpoint will never be in the log. Its items stay pinned and are never written back.
    pub(super) fn abort(&self, closed: ClosedCheckpoint) {
        for landed in closed.callbacks {
            landed(CheckpointOutcome::Aborted);
        }
    }
}
