//! Counts the requests to a device, of calls and of queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{AlignedBuf, BlockDevice, Completion, DeviceError, Durability, IoQueue, Layer};

/// What a [`Counter`] has seen. Requests are counted when they are made, refused ones too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Read requests.
    pub reads: u64,
    /// Write requests.
    pub writes: u64,
    /// Writes among them that asked to be durable on completion.
    pub fua_writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Bytes of all reads.
    pub read_bytes: u64,
    /// Bytes of all writes.
    pub written_bytes: u64,
}

#[derive(Debug, Default)]
struct Tally {
    reads: AtomicU64,
    writes: AtomicU64,
    fua_writes: AtomicU64,
    flushes: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Tally {
    fn read(&self, len: usize) {
        self.reads.fetch_add(1, Relaxed);
        self.read_bytes.fetch_add(len as u64, Relaxed);
    }

    fn write(&self, len: usize, durability: Durability) {
        self.writes.fetch_add(1, Relaxed);
        self.written_bytes.fetch_add(len as u64, Relaxed);
        if durability == Durability::Fua {
            self.fua_writes.fetch_add(1, Relaxed);
        }
    }
}

/// A device that counts the requests to the one below.
#[derive(Debug)]
pub struct Counter {
    inner: Arc<dyn BlockDevice>,
    tally: Tally,
}

impl Counter {
    /// Counts what goes to `inner`.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Self {
        Self { inner, tally: Tally::default() }
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        let t = &self.tally;
        Counts {
            reads: t.reads.load(Relaxed),
            writes: t.writes.load(Relaxed),
            fua_writes: t.fua_writes.load(Relaxed),
            flushes: t.flushes.load(Relaxed),
            read_bytes: t.read_bytes.load(Relaxed),
            written_bytes: t.written_bytes.load(Relaxed),
        }
    }
}

impl Layer for Counter {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.inner
    }

    fn pass_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.tally.read(buf.len());
        self.inner.read(offset, buf)
    }

    fn pass_write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        self.tally.write(buf.len(), durability);
        self.inner.write(offset, buf, durability)
    }

    fn pass_flush(&self) -> Result<(), DeviceError> {
        self.tally.flushes.fetch_add(1, Relaxed);
        self.inner.flush()
    }

    fn pass_queue(self: Arc<Self>, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        let inner = Arc::clone(&self.inner).queue(depth)?;
        Ok(Box::new(CountingQueue { inner, counter: self }))
    }
}

struct CountingQueue {
    inner: Box<dyn IoQueue>,
    counter: Arc<Counter>,
}

impl IoQueue for CountingQueue {
    fn depth(&self) -> u32 {
        self.inner.depth()
    }

    fn in_flight(&self) -> u32 {
        self.inner.in_flight()
    }

    fn push_read(&mut self, offset: u64, buf: AlignedBuf, tag: u64) -> Result<(), DeviceError> {
        self.counter.tally.read(buf.len());
        self.inner.push_read(offset, buf, tag)
    }

    fn push_write(
        &mut self,
        offset: u64,
        buf: AlignedBuf,
        durability: Durability,
        tag: u64,
    ) -> Result<(), DeviceError> {
        self.counter.tally.write(buf.len(), durability);
        self.inner.push_write(offset, buf, durability, tag)
    }

    fn submit(&mut self) -> Result<(), DeviceError> {
        self.inner.submit()
    }

    fn wait(&mut self, min: u32, done: &mut dyn FnMut(Completion)) -> Result<u32, DeviceError> {
        self.inner.wait(min, done)
    }
}
