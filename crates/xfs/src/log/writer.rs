//! The threads that write the log. Each step is done by one thread at a time, so that records, checkpoints and commit
//! records lie in the log in one order. A thread that forces the log may do the first step instead of the writer.
//!
//! [`Writer`] closes checkpoints, cuts them into records and writes all but the last run of each. [`Committer`] writes
//! that run durably behind a flush. [`Lander`] completes the checkpoint. [`pipe`](super::pipe) connects them.

use super::ShutdownReason;
use super::cil::{ClosedCheckpoint, Entry};
use super::core::Core;
use super::layout::Pos;
use super::pipe::{Admission, Ended, SealedCheckpoint};
use super::record::{RecordPlace, RecordRun, RegionRest};
use super::sync::{Mutex, Ordering, lock};
use super::vector::LogVector;
use super::worker::WorkerTask;
use blockdev::{AlignedBuf, DeviceError, Durability};
use std::sync::Arc;
use xfs_format::error::FormatError;
use xfs_format::log::{OpFlags, OpHeader, TransHeader, unmount_op};
use zerocopy::{FromBytes, IntoBytes};

/// `oh_tid` of an unmount record, as kernels write it.
const UNMOUNT_TID: u32 = 0xb0c0_d0d0;

/// Why a record could not be written.
enum Failure {
    /// The device failed to write it.
    Write(DeviceError),
    /// The device could not make durable what comes before the record, or the record itself.
    Flush(DeviceError),
    /// It was not a valid record.
    Record,
    /// The checkpoint is empty: recovery could not make sense of it.
    Empty,
    /// The journal was shut down meanwhile.
    Down,
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        Self::Write(error)
    }
}

impl Failure {
    fn reason(&self) -> Option<ShutdownReason> {
        match self {
            Self::Write(_) | Self::Record => Some(ShutdownReason::LogWrite),
            Self::Flush(_) => Some(ShutdownReason::Flush),
            Self::Empty => Some(ShutdownReason::EmptyCheckpoint),
            Self::Down => None,
        }
    }
}

impl From<FormatError> for Failure {
    fn from(problem: FormatError) -> Self {
        debug_assert!(false, "a record of our own: {problem}");
        Self::Record
    }
}

/// Checkpoints with fewer items are completed where they are closed, because handing them over would take longer.
/// Models have few items and see both cases.
const SMALL: usize = if cfg!(shuttle) { 2 } else { 128 };

/// Memory that is kept for the content of a checkpoint. Most need less.
const VECTOR_KEPT: usize = 1 << 20;

/// Marks the end of the writer, in every case: the committer waits for it.
struct End(Arc<Core>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.pipe.finish();
    }
}

/// Closes checkpoints and writes their records.
#[derive(Debug)]
pub(super) struct Writer {
    core: Arc<Core>,
    head: Pos,
    /// Block of the previous record.
    previous: u32,
    /// Distinguishes transaction numbers from those of an earlier use of the log that recovery may still see.
    salt: u32,
    /// Emptied lists of items.
    spares: Vec<Vec<Entry>>,
    /// The content of the checkpoint that is being written.
    vector: LogVector,
    /// An unused buffer for records.
    buffer: Option<AlignedBuf>,
    /// For checkpoints that are committed here.
    committer: Committer,
}

impl Writer {
    pub(super) fn new(core: Arc<Core>, head: Pos, previous: u32) -> Self {
        let salt = (head.0 as u32).wrapping_mul(0x85eb_ca6b);
        let committer = Committer::new(Arc::clone(&core));
        Self {
            core,
            head,
            previous,
            salt,
            spares: Vec::new(),
            vector: LogVector::default(),
            buffer: None,
            committer,
        }
    }

    /// Writes what is requested until the journal is shut down, then aborts what is left.
    pub(super) fn run(writer: &Mutex<Self>) {
        let core = Arc::clone(&lock(writer).core);
        let _end = End(Arc::clone(&core));
        loop {
            let task = core.worker.next(&core.cil);
            let Ok(mut writer) = writer.lock() else {
                // Another thread panicked and left a half-written checkpoint: write nothing any more.
                core.shutdown(ShutdownReason::Panicked);
                return lock(writer).end();
            };
            match task {
                // A thread that forced the log may have done it meanwhile.
                WorkerTask::Push if !core.worker.is_push_due(&core.cil) => {}
                WorkerTask::Push => writer.push(),
                WorkerTask::Unmount => writer.unmount(),
                // Nobody else ends a checkpoint after this.
                WorkerTask::Stop => return writer.end(),
            }
        }
    }

    /// Aborts what is left.
    fn end(&mut self) {
        if let Some(closed) = self.core.cil.kill() {
            self.abort(closed);
        }
    }

    /// Closes the open checkpoint and writes it.
    pub(super) fn push(&mut self) {
        let core = &*self.core;
        let run_bytes = core.layout.run_bytes() as u64;
        core.pipe.wait_for_turn(|| core.cil.paid() < run_bytes);
        let Some(closed) = self.core.cil.close(&mut self.spares) else { return };
        self.core.worker.switched();
        self.checkpoint(closed);
    }

    fn checkpoint(&mut self, mut closed: ClosedCheckpoint) {
        closed.gather(&mut self.spares, &mut self.vector);
        let vector = std::mem::take(&mut self.vector);
        let written = self.records(closed.seq, &vector);
        self.vector = vector;
        self.vector.clear(VECTOR_KEPT);
        match written {
            Ok((start, run)) => {
                let place = self.place(&run, run.len());
                let sealed = SealedCheckpoint {
                    closed,
                    start: self.core.layout.lsn(start),
                    end: self.head,
                    bytes: self.head.bytes_since(start),
                    run,
                    place,
                    behind: None,
                };
                self.pass_on(sealed);
            }
            Err(failure) => {
                self.failed(failure);
                self.core.abort(closed);
            }
        }
    }

    /// Commits a checkpoint, or hands it over to the committer.
    fn pass_on(&mut self, sealed: SealedCheckpoint) {
        let is_small = sealed.closed.items.len() <= SMALL;
        if is_small && !self.core.device.has_write_cache() && self.core.pipe.begin_here(&sealed) {
            let ended = self.committer.carry_out(sealed);
            self.buffer = self.core.conclude(ended).map(RecordRun::into_buf);
            self.core.pipe.landed_here();
        } else if let Err(sealed) = self.core.pipe.hand_over(sealed) {
            self.core.abort(sealed.closed);
        }
    }

    /// Shuts the journal down after the earlier checkpoints have landed, so that their waiters are told that they are
    /// in the log.
    fn failed(&self, failure: Failure) {
        self.core.pipe.wait_until_idle();
        shut_down(&self.core, &failure);
    }

    /// Aborts a checkpoint of which nothing was written.
    fn abort(&mut self, mut closed: ClosedCheckpoint) {
        closed.gather(&mut self.spares, &mut self.vector);
        self.vector.clear(0);
        self.core.abort(closed);
    }

    /// Writes all records of a checkpoint except for the last run. Returns the position of the first, and that run.
    fn records(&mut self, seq: u64, vector: &LogVector) -> Result<(Pos, RecordRun), Failure> {
        let start = self.head;
        // Any number will do that no other checkpoint in the log has.
        let tid = (seq as u32).wrapping_mul(0x9e37_79b1) ^ self.salt;
        let mut run = self.fresh();
        run.operation(OpHeader::transaction(tid, 0).with_flags(OpFlags::START), &[]);
        if vector.regions() == 0 {
            debug_assert!(false, "a checkpoint without a region: recovery by the kernel fails on it");
            return Err(Failure::Empty);
        }
        let header = TransHeader::checkpoint(tid, vector.regions());
        run.operation(OpHeader::transaction(tid, size_of::<TransHeader>() as u32), header.as_bytes());
        for region in vector.iter() {
            let mut rest = run.region(tid, RegionRest::whole(region));
            while let Some(now) = rest {
                run = self.next_record(run)?;
                rest = run.region(tid, now);
            }
        }
        let commit = OpHeader::transaction(tid, 0).with_flags(OpFlags::COMMIT);
        if !run.operation(commit, &[]) {
            run = self.next_record(run)?;
            run.operation(commit, &[]);
        }
        while run.len() > 1 && !self.has_room(&run) {
            self.write(&mut run, 1)?;
        }
        Ok((start, run))
    }

    fn fresh(&mut self) -> RecordRun {
        let buffer = self.buffer.take();
        let buffer = buffer.unwrap_or_else(|| AlignedBuf::zeroed(self.core.layout.run_bytes()));
        RecordRun::new(&self.core.layout, buffer)
    }

    /// Begins another record: in the same run, or in the next if that is full.
    fn next_record(&mut self, mut run: RecordRun) -> Result<RecordRun, Failure> {
        if run.begin_record() {
            return Ok(run);
        }
        while run.len() > 0 {
            let count = if self.has_room(&run) { run.len() } else { 1 };
            self.write(&mut run, count)?;
        }
        self.buffer = Some(run.into_buf());
        Ok(self.fresh())
    }

    /// Whether all records of a run may be written together.
    fn has_room(&self, run: &RecordRun) -> bool {
        self.core.pipe.has_room(self.head.after(run.bytes(run.len())))
    }

    /// Assigns a position to the first records of a run.
    fn place(&mut self, run: &RecordRun, count: usize) -> RecordPlace {
        let at = self.head;
        let last = self.core.layout.block(at.after(run.last_of(count)));
        let previous = std::mem::replace(&mut self.previous, last);
        self.head = at.after(run.bytes(count));
        self.core.head.store(self.head.0, Ordering::SeqCst);
        RecordPlace { at, previous }
    }

    /// Writes the first records of a run, not including the last of the checkpoint.
    fn write(&mut self, run: &mut RecordRun, count: usize) -> Result<(), Failure> {
        let end = self.head.after(run.bytes(count));
        let admission = self.core.pipe.admit(end, count).ok_or(Failure::Down)?;
        let place = self.place(run, count);
        match admission {
            Admission::Volatile(tail) => {
                write_records(&self.core, run, count, place, tail, Durability::Volatile)?;
                self.core.pipe.completed(count);
            }
            Admission::Durable => write_durably(&self.core, run, count, place)?,
        }
        run.written(count);
        Ok(())
    }

    /// Writes the unmount record. Everything is written back, and nothing is under way.
    fn unmount(&mut self) {
        let mut run = self.fresh();
        let operation = unmount_op(UNMOUNT_TID);
        if let Ok((header, body)) = OpHeader::ref_from_prefix(&operation) {
            run.operation(*header, body);
        }
        let place = self.place(&run, 1);
        let written = (|| {
            flush_before(&self.core)?;
            // Nothing before this record is needed any more.
            write_records(&self.core, &mut run, 1, place, place.at, Durability::Fua)?;
            flush(&self.core)?;
            Ok(())
        })();
        match written {
            Ok(()) => self.core.worker.unmounted(),
            Err(failure) => self.failed(failure),
        }
    }
}

fn shut_down(core: &Core, failure: &Failure) {
    let Some(reason) = failure.reason() else { return };
    match failure {
        Failure::Write(error) | Failure::Flush(error) => core.shutdown_for(reason, error),
        _ => core.shutdown(reason),
    }
}

fn flush(core: &Core) -> Result<(), Failure> {
    core.device.flush().map_err(Failure::Flush)
}

/// Flushes the device for a record to be written after that. Fails if the journal was shut down meanwhile.
fn flush_before(core: &Core) -> Result<(), Failure> {
    flush(core)?;
    if core.down().is_some() { Err(Failure::Down) } else { Ok(()) }
}

/// Writes the first records of a run, which name `tail`.
fn write_records(
    core: &Core,
    run: &mut RecordRun,
    count: usize,
    place: RecordPlace,
    tail: Pos,
    durability: Durability,
) -> Result<(), Failure> {
    let bytes = run.seal(count, place, tail)?;
    core.write_records(place.at, bytes, durability)?;
    Ok(())
}

/// Writes records durably behind a flush, with the current tail.
fn write_durably(core: &Core, run: &mut RecordRun, count: usize, place: RecordPlace) -> Result<(), Failure> {
    let flushed = core.pipe.completed_so_far();
    // The flush makes what was written back so far stable, so the records may name the tail that this allows.
    let tail = core.ail.tail();
    flush_before(core)?;
    write_records(core, run, count, place, tail, Durability::Fua)?;
    core.pipe.durable(place.at.after(run.bytes(count)), tail, flushed);
    Ok(())
}

/// The thread that commits checkpoints.
#[derive(Debug)]
pub(super) struct Committer {
    core: Arc<Core>,
}

impl Committer {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// Writes the last records of a checkpoint durably behind a flush. Returns the tail that they name.
    ///
    /// A device without [durable writes](blockdev::BlockDevice::has_fua) is flushed after them. That flush also serves
    /// as the one before the last records of every checkpoint that has been handed over by then.
    fn commit(&self, sealed: &mut SealedCheckpoint) -> Result<Pos, Failure> {
        let core = &*self.core;
        let has_fua = core.device.has_fua();
        if has_fua {
            core.pipe.flushes_for(sealed.closed.seq);
        }
        let behind = match sealed.behind {
            Some(behind) => behind,
            None => {
                let behind = core.pipe.flush_begins(has_fua, || core.ail.tail());
                flush_before(core)?;
                behind
            }
        };
        core.pipe.records_begin();
        let durability = if has_fua { Durability::Fua } else { Durability::Volatile };
        let count = sealed.run.len();
        write_records(core, &mut sealed.run, count, sealed.place, behind.tail, durability)?;
        if !has_fua {
            core.pipe.flushes_for(sealed.closed.seq);
            core.pipe.flush_begins(false, || core.ail.tail());
            flush(core)?;
        }
        core.pipe.committed(sealed.end, behind.tail, behind.flushed);
        Ok(behind.tail)
    }

    /// Commits what is handed over until nothing more comes.
    pub(super) fn run(self) {
        let _end = CommitsEnd(Arc::clone(&self.core));
        while let Some(sealed) = self.core.pipe.next() {
            self.core.pipe.have_landed(self.carry_out(sealed));
        }
    }

    /// Commits a checkpoint. If that fails, the journal is shut down after the earlier checkpoints have landed.
    fn carry_out(&self, mut sealed: SealedCheckpoint) -> Ended {
        let written = if self.core.down().is_some() { Err(Failure::Down) } else { self.commit(&mut sealed) };
        match written {
            Ok(tail) => Ended::Committed(sealed, tail),
            Err(failure) => {
                // Waiters for earlier checkpoints are told that these are in the log.
                self.core.pipe.wait_until_landed();
                shut_down(&self.core, &failure);
                Ended::Aborted(sealed.closed)
            }
        }
    }
}

/// Marks the end of the committer, in every case: the lander waits for it.
struct CommitsEnd(Arc<Core>);

impl Drop for CommitsEnd {
    fn drop(&mut self) {
        self.0.pipe.end();
    }
}

/// The thread that lands checkpoints in order while the next one is committed.
#[derive(Debug)]
pub(super) struct Lander {
    core: Arc<Core>,
}

impl Lander {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// Lands what has ended until nothing more comes.
    pub(super) fn run(self) {
        while let Some(ended) = self.core.pipe.next_to_land() {
            self.core.conclude(ended);
            self.core.pipe.callbacks_done();
        }
        // If a callback drops the last handle of the journal, the journal ends before later checkpoints have landed.
        self.core.ail.clear();
    }
}
