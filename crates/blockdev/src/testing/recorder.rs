//! Records every write and flush, and makes from that the images that a power cut could have left behind.
//!
//! Time is a counter that moves with each start and each completion of a request. A cut at time `t` leaves:
//! - durable: writes that completed before a flush started which itself completed before `t`, and forced (FUA)
//!   writes that completed before `t`;
//! - in doubt: other writes that started before `t`, each applied, lost, or torn by sector, as the caller chooses;
//! - nothing of writes that started later.
//!
//! Writes are applied in the order of their starts, which is the only order that the device was asked for.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use crate::{AlignedBuf, BlockDevice, Completion, DeviceError, Durability, IoQueue, Layer};

/// A write that was recorded.
#[derive(Clone, Debug)]
pub struct WriteRecord {
    /// Time of its start.
    pub started: u64,
    /// Time of its successful completion, if it had one.
    pub completed: Option<u64>,
    /// The thread that asked for it.
    pub thread: ThreadId,
    /// First byte on the device.
    pub offset: u64,
    /// What was written.
    pub data: Arc<[u8]>,
    /// Whether completion meant durable.
    pub durability: Durability,
}

/// A flush that was recorded.
#[derive(Clone, Copy, Debug)]
pub struct FlushRecord {
    /// Time of its start.
    pub started: u64,
    /// Time of its successful completion, if it had one.
    pub completed: Option<u64>,
    /// The thread that asked for it.
    pub thread: ThreadId,
}

/// What becomes of a write in doubt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It reached the device.
    Applied,
    /// It did not.
    Dropped,
    /// Only its sectors at the positions that are `true` did; what the list does not reach, did not.
    Torn(Vec<bool>),
}

#[derive(Debug, Default)]
struct Log {
    clock: u64,
    writes: Vec<WriteRecord>,
    flushes: Vec<FlushRecord>,
}

impl Log {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

/// A device that records what is written to the one below.
#[derive(Debug)]
pub struct Recorder {
    inner: Arc<dyn BlockDevice>,
    log: Mutex<Log>,
}

impl Recorder {
    /// Records what goes to `inner`.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Self {
        Self { inner, log: Mutex::default() }
    }

    /// What was recorded so far.
    pub fn recording(&self) -> Recording {
        let log = self.log();
        Recording {
            end: log.clock + 1,
            sector: self.inner.sector_size(),
            writes: log.writes.clone(),
            flushes: log.flushes.clone(),
        }
    }

    /// A new point in time, after all that happened before and before all that happens later.
    pub fn moment(&self) -> u64 {
        self.log().tick()
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the start of a write; gives its index.
    fn write_starts(&self, offset: u64, data: &[u8], durability: Durability) -> usize {
        let mut log = self.log();
        let started = log.tick();
        let thread = std::thread::current().id();
        log.writes.push(WriteRecord {
            started,
            completed: None,
            thread,
            offset,
            data: data.into(),
            durability,
        });
        log.writes.len() - 1
    }

    fn write_ends(&self, index: usize, ok: bool) {
        let mut log = self.log();
        let now = log.tick();
        if let Some(write) = log.writes.get_mut(index).filter(|_| ok) {
            write.completed = Some(now);
        }
    }
}

/// What a [`Recorder`] has seen.
#[derive(Clone, Debug)]
pub struct Recording {
    end: u64,
    sector: u32,
    writes: Vec<WriteRecord>,
    flushes: Vec<FlushRecord>,
}

impl Recording {
    /// All writes, in the order of their starts.
    pub fn writes(&self) -> &[WriteRecord] {
        &self.writes
    }

    /// All flushes, in the order of their starts.
    pub fn flushes(&self) -> &[FlushRecord] {
        &self.flushes
    }

    /// Bytes of a sector of the device: what a torn write is torn into.
    pub fn sector_size(&self) -> u32 {
        self.sector
    }

    /// The time after everything that was recorded.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The times to cut at in order to see every set of writes in doubt at its largest: just before each flush
    /// completes, and at the end.
    pub fn cuts(&self) -> Vec<u64> {
        let mut cuts: Vec<u64> = self.flushes.iter().filter_map(|f| f.completed).collect();
        cuts.push(self.end);
        cuts.sort_unstable();
        cuts
    }

    /// Whether a power cut at time `cut` cannot undo `write`.
    pub fn is_durable(&self, write: &WriteRecord, cut: u64) -> bool {
        let Some(completed) = write.completed.filter(|&t| t < cut) else { return false };
        write.durability == Durability::Fua
            || self.flushes.iter().any(|f| f.started > completed && f.completed.is_some_and(|t| t < cut))
    }

    /// The writes in doubt at time `cut`, in the order of their starts.
    pub fn in_doubt(&self, cut: u64) -> impl Iterator<Item = &WriteRecord> {
        self.writes.iter().filter(move |w| w.started < cut && !self.is_durable(w, cut))
    }

    /// Turns `target`, which holds the image as it was before the recording, into one that a power cut at time
    /// `cut` could leave; `choose` says what becomes of each write in doubt.
    pub fn rebuild(
        &self,
        cut: u64,
        target: &dyn BlockDevice,
        mut choose: impl FnMut(&WriteRecord) -> Fate,
    ) -> Result<(), DeviceError> {
        for write in self.writes.iter().filter(|w| w.started < cut) {
            let fate = if self.is_durable(write, cut) { Fate::Applied } else { choose(write) };
            self.apply(write, &fate, target)?;
        }
        Ok(())
    }

    /// Does to `target` what became of a write.
    pub(crate) fn apply(
        &self,
        write: &WriteRecord,
        fate: &Fate,
        target: &dyn BlockDevice,
    ) -> Result<(), DeviceError> {
        match fate {
            Fate::Dropped => {}
            Fate::Applied => target.write(write.offset, &write.data, Durability::Volatile)?,
            Fate::Torn(kept) => {
                let sectors = write.data.chunks(self.sector as usize).zip(kept).enumerate();
                for (index, (piece, _)) in sectors.filter(|(_, (_, kept))| **kept) {
                    let at = write.offset + index as u64 * u64::from(self.sector);
                    target.write(at, piece, Durability::Volatile)?;
                }
            }
        }
        Ok(())
    }
}

impl Layer for Recorder {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.inner
    }

    fn pass_write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        crate::blocking::check_push(
            &*self.inner,
            crate::blocking::Verb::Write(durability),
            offset,
            buf.len(),
        )?;
        let index = self.write_starts(offset, buf, durability);
        let result = self.inner.write(offset, buf, durability);
        self.write_ends(index, result.is_ok());
        result
    }

    fn pass_flush(&self) -> Result<(), DeviceError> {
        let index = {
            let mut log = self.log();
            let started = log.tick();
            log.flushes.push(FlushRecord { started, completed: None, thread: std::thread::current().id() });
            log.flushes.len() - 1
        };
        let result = self.inner.flush();
        let mut log = self.log();
        let now = log.tick();
        if let Some(flush) = log.flushes.get_mut(index).filter(|_| result.is_ok()) {
            flush.completed = Some(now);
        }
        drop(log);
        result
    }

    fn pass_queue(self: Arc<Self>, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        let inner = Arc::clone(&self.inner).queue(depth)?;
        Ok(Box::new(RecordingQueue { inner, recorder: self, pending: Vec::new() }))
    }
}

/// The tag of a request below is the index of its entry in `pending`.
struct RecordingQueue {
    inner: Box<dyn IoQueue>,
    recorder: Arc<Recorder>,
    pending: Vec<Option<Pending>>,
}

#[derive(Clone, Copy)]
struct Pending {
    tag: u64,
    /// Index of the record, if it is a write.
    write: Option<usize>,
}

impl RecordingQueue {
    fn enter(&mut self, pending: Pending) -> u64 {
        let index = self.pending.iter().position(Option::is_none).unwrap_or_else(|| {
            self.pending.push(None);
            self.pending.len() - 1
        });
        self.pending[index] = Some(pending);
        index as u64
    }
}

impl IoQueue for RecordingQueue {
    fn depth(&self) -> u32 {
        self.inner.depth()
    }

    fn in_flight(&self) -> u32 {
        self.inner.in_flight()
    }

    fn push_read(&mut self, offset: u64, buf: AlignedBuf, tag: u64) -> Result<(), DeviceError> {
        let index = self.enter(Pending { tag, write: None });
        let pushed = self.inner.push_read(offset, buf, index);
        if pushed.is_err() {
            self.pending[index as usize] = None;
        }
        pushed
    }

    fn push_write(
        &mut self,
        offset: u64,
        buf: AlignedBuf,
        durability: Durability,
        tag: u64,
    ) -> Result<(), DeviceError> {
        if self.in_flight() >= self.depth() {
            return Err(DeviceError::QueueFull);
        }
        let verb = crate::blocking::Verb::Write(durability);
        crate::blocking::check_push(&*self.recorder.inner, verb, offset, buf.len())?;
        let write = self.recorder.write_starts(offset, &buf, durability);
        let index = self.enter(Pending { tag, write: Some(write) });
        let pushed = self.inner.push_write(offset, buf, durability, index);
        if pushed.is_err() {
            self.pending[index as usize] = None;
            self.recorder.write_ends(write, false);
        }
        pushed
    }

    fn submit(&mut self) -> Result<(), DeviceError> {
        self.inner.submit()
    }

    fn wait(&mut self, min: u32, done: &mut dyn FnMut(Completion)) -> Result<u32, DeviceError> {
        let (pending, recorder) = (&mut self.pending, &self.recorder);
        self.inner.wait(min, &mut |mut completion| {
            let entry = pending.get_mut(completion.tag as usize).and_then(Option::take);
            let Some(entry) = entry else {
                debug_assert!(false, "a completion of nothing");
                return;
            };
            if let Some(write) = entry.write {
                recorder.write_ends(write, completion.result.is_ok());
            }
            completion.tag = entry.tag;
            done(completion);
        })
    }
}
