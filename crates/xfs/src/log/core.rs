//! What the journal's threads and its callers share, and the end of a checkpoint: landing or abort.
//!
//! Invariants: the first reason to shut down stays; a checkpoint's items go into the AIL before they are unpinned,
//! and its space is given back after both; after a shutdown every wait ends.

use super::ail::Ail;
use super::cil::{Cil, Closed};
use super::covering::Cover;
use super::gate::Gate;
use super::grant::{Grant, Space};
use super::handles::Handles;
use super::item::{Landing, Outcome};
use super::layout::{Layout, Pos};
use super::open::Start;
use super::orders::Orders;
use super::pipe::{Pipe, Sealed};
use super::pusher::Pushing;
use super::record::Run;
use super::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, Padded, lock};
use super::{Designs, Pace, ShutdownReason, Ticket};
use crate::error::{Error, Result};
use blockdev::{BlockDevice, DeviceError, Durability};
use std::sync::Arc;
use xfs_format::log::BLOCK_SIZE;

#[derive(Debug)]
pub(super) struct Core {
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) layout: Layout,
    pub(super) pace: Pace,
    pub(super) grant: Grant,
    pub(super) gate: Gate,
    pub(super) cil: Cil,
    pub(super) ail: Ail,
    pub(super) orders: Orders,
    pub(super) pipe: Pipe,
    pub(super) pushing: Pushing,
    /// Where the next record goes.
    pub(super) head: AtomicU64,
    /// Whether a crash now would have something replayed that was landed, the superblock of a covered log aside.
    pub(super) uncovered: AtomicBool,
    pub(super) cover: Cover,
    /// Held by whoever holds the gate closed.
    pub(super) freezing: Mutex<()>,
    /// Held by whoever settles the journal.
    pub(super) settling: Mutex<()>,
    /// Why it was shut down; 0: it was not. Every change looks at it, so it is far from what changes.
    down: Padded<AtomicU32>,
    /// The error of the device for which it was shut down.
    failed: Mutex<Option<DeviceError>>,
    /// Whether nobody may find any more where a file's bytes are to be written: it was shut down, or is about to be closed.
    /// Every request on a file looks at it.
    writes_stopped: Padded<AtomicBool>,
}

impl Core {
    pub(super) fn new(
        device: Arc<dyn BlockDevice>,
        layout: Layout,
        start: Start,
        pace: Pace,
        designs: Designs,
    ) -> Self {
        let Start { head, tail, .. } = start;
        let handles = Arc::new(Handles::new(designs.handles));
        let of_handles = Arc::clone(&handles);
        let grant = Grant::new(layout.capacity(), layout.promisable(), of_handles, designs.reservation);
        // In step, what is used is asked all the time.
        let grant = if pace == Pace::InStep { grant.keeping(0) } else { grant };
        Self {
            device,
            layout,
            pace,
            grant,
            gate: Gate::new(handles),
            cil: Cil::new(layout, designs),
            ail: Ail::new(layout, head),
            orders: Orders::default(),
            pipe: Pipe::new(&layout, head, tail),
            pushing: Pushing::default(),
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

    /// Stops everything, and wakes everybody who waits.
    pub(super) fn shutdown(&self, why: ShutdownReason) {
        self.stop_for(why, None);
    }

    /// As [`shutdown`](Self::shutdown), as the device failed: with this error for who waits for the log.
    pub(super) fn shutdown_for(&self, why: ShutdownReason, error: &DeviceError) {
        self.stop_for(why, Some(error));
    }

    fn stop_for(&self, why: ShutdownReason, error: Option<&DeviceError>) {
        // The first says why, and what the device said; who looks for that waits for both.
        let mut failed = lock(&self.failed);
        let first = self.down.0.compare_exchange(0, why.code(), Ordering::SeqCst, Ordering::SeqCst);
        if first.is_err() {
            return;
        }
        *failed = error.map(DeviceError::again);
        drop(failed);
        // Before anybody is woken who would let go of bytes.
        self.stop_writes();
        self.pipe.kill();
        self.orders.kill();
        self.grant.kill();
        self.gate.kill();
        self.ail.kill();
        self.pushing.kill();
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

    /// The error of a call that was interrupted by a shutdown.
    pub(super) fn stopped(&self) -> Error {
        Error::Shutdown(self.down().unwrap_or(ShutdownReason::Closed))
    }

    /// The same of one that waited for the log, or for what is written back: it is told what the device said.
    pub(super) fn not_written(&self) -> Error {
        lock(&self.failed).as_ref().map_or_else(|| self.stopped(), |error| error.again().into())
    }

    /// Gives a part of a ticket's space back, or all of it.
    pub(super) fn give_back(&self, ticket: &Ticket, space: Space) {
        self.grant.give_at(ticket.slot, space, || self.pushing.kick());
    }

    /// Whether somebody waits for space that only the log can give.
    pub(super) fn lacks_space(&self) -> bool {
        let wanted = self.grant.wanted();
        wanted != 0 && self.grant.used() + wanted > self.grant.capacity()
    }

    /// Writes whole records, in two parts if they go on at the start of the log.
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

    /// A checkpoint is in the log for good; its last record names `tail`. Gives its last records.
    pub(super) fn land(&self, sealed: Sealed, tail: Pos) -> Run {
        let Sealed { closed, start, end, bytes, run, .. } = sealed;
        let (mut stay, mut gone) = (Vec::with_capacity(closed.items.len()), Vec::new());
        for entry in &closed.items {
            match entry.item.landed(start) {
                Landing::Ail => stay.push(Arc::clone(&entry.item)),
                Landing::Drop => gone.push(Arc::clone(&entry.item)),
                Landing::Retire(other) => gone.extend([Arc::clone(&entry.item), other]),
            }
        }
        let freed = self.ail.land(start, end, stay.into_iter(), &gone);
        for entry in &closed.items {
            entry.item.unpin();
        }
        for landed in closed.landed {
            landed(Outcome::Committed);
        }
        debug_assert!(closed.paid >= bytes, "a checkpoint of {bytes} bytes was paid {}", closed.paid);
        match closed.paid.checked_sub(bytes) {
            Some(surplus) => self.grant.give(Space::used(surplus)),
            None => self.grant.take_regardless(Space::used(bytes - closed.paid)),
        }
        self.grant.give(Space::used(freed));
        // What landed after the log was found idle lies between the tail and a checkpoint that was to cover it.
        let covers = closed.covering && self.layout.lsn(tail) == start;
        self.uncovered.store(!covers, Ordering::SeqCst);
        self.orders.done(closed.seq);
        self.pushing.kick();
        run
    }

    /// A checkpoint will never be in the log: what is in it stays pinned, and is never written back.
    pub(super) fn abort(&self, closed: Closed) {
        for landed in closed.landed {
            landed(Outcome::Aborted);
        }
    }
}
