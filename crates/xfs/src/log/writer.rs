//! The two threads that write the log. Each part is done by one thread at a time, so that records, checkpoints and
//! commit records lie in the log in one order. Who forces the log may do the first for the thread that does it.
//!
//! [`Writer`] closes checkpoints, cuts them into records and writes all but the last run of each; [`Committer`] writes
//! that, behind a flush and for good, and lands the checkpoint. See [`pipe`](super::pipe) for what holds
//! between them.

use super::ShutdownReason;
use super::cil::{Closed, Entry};
use super::core::Core;
use super::layout::Pos;
use super::orders::Order;
use super::pipe::{Admission, Sealed};
use super::record::{Place, Rest, Run};
use super::sync::{Mutex, Ordering, lock};
use super::vector::LogVector;
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
    /// The device could not make durable what comes before the record, or the record.
    Flush(DeviceError),
    /// It was no record.
    Record,
    /// The checkpoint has nothing in it: what replays the log could not make sense of it.
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

/// Items of a checkpoint that it takes longer to hand over than to land. Models have few, and see both.
const SMALL: usize = if cfg!(shuttle) { 2 } else { 128 };

/// The end of the writer, however it comes: the committer waits for it.
struct End(Arc<Core>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.pipe.finish();
    }
}

/// What closes checkpoints and writes their records.
#[derive(Debug)]
pub(super) struct Writer {
    core: Arc<Core>,
    head: Pos,
    /// Block of the record before.
    previous: u32,
    /// Keeps the numbers of transactions apart from those of an earlier life of the log that recovery may still see.
    salt: u32,
    /// Emptied lists of items.
    spares: Vec<Vec<Entry>>,
    vectors: Vec<LogVector>,
    /// A buffer for records that is not in use.
    buffer: Option<AlignedBuf>,
    /// For checkpoints that are committed here.
    committer: Committer,
}

impl Writer {
    pub(super) fn new(core: Arc<Core>, head: Pos, previous: u32) -> Self {
        let salt = (head.0 as u32).wrapping_mul(0x85eb_ca6b);
        let committer = Committer::new(Arc::clone(&core));
        Self { core, head, previous, salt, spares: Vec::new(), vectors: Vec::new(), buffer: None, committer }
    }

    /// Writes what is asked for until the journal is shut down, and aborts what is left.
    pub(super) fn run(writer: &Mutex<Self>) {
        let core = Arc::clone(&lock(writer).core);
        let _end = End(Arc::clone(&core));
        loop {
            let order = core.orders.next(&core.cil);
            let Ok(mut writer) = writer.lock() else {
                // What another thread left in a panic writes nothing any more.
                core.shutdown(ShutdownReason::Panicked);
                return lock(writer).end();
            };
            match order {
                // Who forced the log may have done it meanwhile.
                Order::Push if !core.orders.is_push_due(&core.cil) => {}
                Order::Push => writer.push(),
                Order::Unmount => writer.unmount(),
                // Nobody else ends a checkpoint behind the end of this.
                Order::Stop => return writer.end(),
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
        self.core.orders.switched();
        self.checkpoint(closed);
    }

    fn checkpoint(&mut self, mut closed: Closed) {
        closed.gather(&mut self.spares, &mut self.vectors);
        match self.records(&closed) {
            Ok((start, run)) => {
                let place = self.place(&run, run.len());
                let sealed = Sealed {
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

    /// Commits a checkpoint, or hands it over to the thread that does.
    fn pass_on(&mut self, sealed: Sealed) {
        let is_small = sealed.closed.items.len() <= SMALL;
        if is_small && !self.core.device.has_write_cache() && self.core.pipe.begin_here(&sealed) {
            self.buffer = self.committer.carry_out(sealed);
        } else if let Err(sealed) = self.core.pipe.hand_over(sealed) {
            self.core.abort(sealed.closed);
        }
    }

    fn failed(&self, failure: Failure) {
        shut_down(&self.core, &failure);
    }

    /// Aborts a checkpoint of which nothing was written.
    fn abort(&mut self, mut closed: Closed) {
        closed.gather(&mut self.spares, &mut self.vectors);
        self.vectors.clear();
        self.core.abort(closed);
    }

    /// Writes all records of a checkpoint but the last run. Gives where the first lies, and that run.
    fn records(&mut self, closed: &Closed) -> Result<(Pos, Run), Failure> {
        let start = self.head;
        // Any number will do that no other checkpoint has that may be in the log.
        let tid = (closed.seq as u32).wrapping_mul(0x9e37_79b1) ^ self.salt;
        let mut run = self.fresh();
        run.operation(OpHeader::transaction(tid, 0).with_flags(OpFlags::START), &[]);
        let regions = self.vectors.iter().map(LogVector::regions).sum();
        if regions == 0 {
            debug_assert!(false, "a checkpoint without a region: recovery by the kernel fails on it");
            return Err(Failure::Empty);
        }
        let header = TransHeader::checkpoint(tid, regions);
        run.operation(OpHeader::transaction(tid, size_of::<TransHeader>() as u32), header.as_bytes());
        let mut vectors = std::mem::take(&mut self.vectors);
        let keep = self.core.cil.keeps_vectors();
        for (vector, entry) in vectors.drain(..).zip(&closed.items) {
            for region in vector.iter() {
                let mut rest = run.region(tid, Rest::whole(region));
                while let Some(now) = rest {
                    run = self.next_record(run)?;
                    rest = run.region(tid, now);
                }
            }
            if keep {
                entry.item.state().keep_shadow(vector);
            }
        }
        self.vectors = vectors;
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

    fn fresh(&mut self) -> Run {
        let buffer = self.buffer.take();
        let buffer = buffer.unwrap_or_else(|| AlignedBuf::zeroed(self.core.layout.run_bytes()));
        Run::new(&self.core.layout, buffer)
    }

    /// Begins another record: of the same run, or, where that is full, of the next.
    fn next_record(&mut self, mut run: Run) -> Result<Run, Failure> {
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
    fn has_room(&self, run: &Run) -> bool {
        self.core.pipe.has_room(self.head.after(run.bytes(run.len())))
    }

    /// Gives the first records of a run their place.
    fn place(&mut self, run: &Run, count: usize) -> Place {
        let at = self.head;
        let last = self.core.layout.block(at.after(run.last_of(count)));
        let previous = std::mem::replace(&mut self.previous, last);
        self.head = at.after(run.bytes(count));
        self.core.head.store(self.head.0, Ordering::SeqCst);
        Place { at, previous }
    }

    /// Writes the first records of a run, none of which is the last of its checkpoint.
    fn write(&mut self, run: &mut Run, count: usize) -> Result<(), Failure> {
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

    /// Writes the mark of a clean unmount. Everything is written back, and nothing is under way.
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
            Ok(()) => self.core.orders.unmounted(),
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

/// Flushes the device for a record that is to be written behind that. None is, if the journal was shut down meanwhile.
fn flush_before(core: &Core) -> Result<(), Failure> {
    flush(core)?;
    if core.down().is_some() { Err(Failure::Down) } else { Ok(()) }
}

/// Writes the first records of a run, which name `tail`.
fn write_records(
    core: &Core,
    run: &mut Run,
    count: usize,
    place: Place,
    tail: Pos,
    durability: Durability,
) -> Result<(), Failure> {
    let bytes = run.seal(count, place, tail)?;
    core.write_records(place.at, bytes, durability)?;
    Ok(())
}

/// Writes records behind a flush and for good, with the tail of now.
fn write_durably(core: &Core, run: &mut Run, count: usize, place: Place) -> Result<(), Failure> {
    let flushed = core.pipe.completed_so_far();
    // What was written back so far is stable once the flush is over, so the tail may be named that this allows.
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

    /// Writes the last records of a checkpoint behind a flush and for good; gives the tail that they name.
    ///
    /// A device without [durable writes](blockdev::BlockDevice::has_fua) is flushed behind them. That flush is the one
    /// before the last records of each checkpoint that has been handed over by then.
    fn commit(&self, sealed: &mut Sealed) -> Result<Pos, Failure> {
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

    /// Commits what is handed over until nothing comes any more.
    pub(super) fn run(self) {
        while let Some(sealed) = self.core.pipe.next() {
            self.carry_out(sealed);
        }
    }

    /// Commits a checkpoint, which lands or is aborted; gives the memory of its records.
    fn carry_out(&self, mut sealed: Sealed) -> Option<AlignedBuf> {
        let written = if self.core.down().is_some() { Err(Failure::Down) } else { self.commit(&mut sealed) };
        let buffer = match written {
            Ok(tail) => Some(self.core.land(sealed, tail).into_buf()),
            Err(failure) => {
                shut_down(&self.core, &failure);
                self.core.abort(sealed.closed);
                None
            }
        };
        self.core.pipe.landed();
        buffer
    }
}
