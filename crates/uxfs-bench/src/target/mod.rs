//! What a workload on a file runs on.
//!
//! A [`Target`] gives each thread a [`Port`] (blocking calls) or a [`QueuePort`] (requests in flight); the loops
//! in [`crate::drive`] are the same for all. [`Measured`] ties a target to the [`Content`] of its storage, which
//! several targets may share: the file through uxfs with each locking, and the same bytes on the raw device.

mod memcpy;
mod raw;
mod sys;
mod uxfs;

pub use memcpy::MemcpyTarget;
pub use raw::RawTarget;
pub use sys::SysTarget;
pub(crate) use sys::mount_of;
pub use uxfs::UxfsTarget;

use crate::content::{Content, PAGE};
use crate::drive;
use crate::error::{Error, Result};
use crate::work::{Op, Work, WorkOutcome};
use blockdev::{AlignedBuf, Completion, DeviceError, IoQueue};
use parking_lot::Mutex;
use std::sync::Arc;

/// Where a request goes.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// How many requests of its share the thread has made before, in this pass.
    pub nth: usize,
    /// Byte in the file.
    pub offset: u64,
}

/// One thread's way to the file, one request at a time.
pub trait Port: Send {
    /// Reads a request's pages.
    fn read(&mut self, at: At, buf: &mut [u8]) -> Result<()>;
    /// Overwrites them.
    fn write(&mut self, at: At, buf: &[u8]) -> Result<()>;
}

/// A finished request of a queue.
pub struct QueueDone {
    /// The tag it was pushed with.
    pub tag: u64,
    /// Its buffer.
    pub buf: AlignedBuf,
    /// How it went.
    pub result: Result<()>,
}

/// One thread's way to the file, with requests in flight.
pub trait QueuePort: Send {
    /// Adds a read of a page.
    fn push_read(&mut self, offset: u64, buf: AlignedBuf, tag: u64) -> Result<()>;
    /// Adds an overwrite of a page.
    fn push_write(&mut self, offset: u64, buf: AlignedBuf, tag: u64) -> Result<()>;
    /// Submits, waits for `min` requests, and hands over those that are done.
    fn wait(&mut self, min: u32, done: &mut dyn FnMut(QueueDone)) -> Result<()>;
}

/// How a target is named in reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// `uxfs`, `raw`, `memcpy`, or the type of the mounted file system.
    pub target: String,
    /// Where the bytes lie.
    pub device: String,
    /// The locking, where it can be chosen.
    pub locking: Option<String>,
}

impl std::fmt::Display for Label {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.target)?;
        if let Some(locking) = &self.locking {
            write!(f, " {locking}")?;
        }
        Ok(())
    }
}

/// What a workload on a file runs on.
pub trait Target: Send {
    /// A thread's way to the file.
    type Port<'a>: Port
    where
        Self: 'a;

    /// Makes the target ready to be used, before the clock runs.
    fn open(&mut self) -> Result<()> {
        Ok(())
    }
    /// Leaves the storage to the other targets on it, in order.
    fn close(&mut self) -> Result<()> {
        Ok(())
    }
    /// A port for each thread of `work`.
    fn ports<'a>(&'a mut self, work: &Work<'_>) -> Result<Vec<Self::Port<'a>>>;
    /// Whether there is a queue; where there is none, a run of any depth is one of blocking calls.
    fn has_queue(&self) -> bool {
        true
    }
    /// A queue for one thread.
    fn queue(&self, depth: u32) -> Result<Box<dyn QueuePort + '_>>;
    /// Reads the first `pages` pages of the file in order, some at a time; `each` gets the index of the first.
    fn scan(&mut self, pages: u64, each: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()>;
}

/// A target with the knowledge of what its storage holds.
pub struct Measured<T> {
    label: Label,
    content: Arc<Mutex<Content>>,
    target: T,
}

/// A [`Measured`] target of any type.
pub trait AnyTarget: Send {
    /// Its name in reports.
    fn label(&self) -> &Label;
    /// Whether it has a queue.
    fn has_queue(&self) -> bool;
    /// Writes every page once, in order, if nobody has yet.
    fn prepare(&mut self) -> Result<()>;
    /// Runs; `work.generation` is set here where the run writes.
    fn measure(&mut self, work: Work<'_>) -> Result<WorkOutcome>;
    /// Reads the whole file and compares it with what was written last.
    fn verify(&mut self) -> Result<()>;
}

impl<T: Target> Measured<T> {
    /// Ties a target to its storage's content.
    pub fn new(label: Label, content: Arc<Mutex<Content>>, target: T) -> Self {
        Self { label, content, target }
    }
}

impl<T: Target> AnyTarget for Measured<T> {
    fn label(&self) -> &Label {
        &self.label
    }

    fn has_queue(&self) -> bool {
        self.target.has_queue()
    }

    fn prepare(&mut self) -> Result<()> {
        let (fresh, pages) = {
            let content = self.content.lock();
            (content.is_fresh(), content.pages())
        };
        if fresh {
            let pages: Vec<u32> = (0..u32::try_from(pages).unwrap_or(u32::MAX)).collect();
            let depth = if self.target.has_queue() { 32 } else { 1 };
            self.measure(Work {
                pages: &pages,
                op: Op::Write,
                generation: 0,
                threads: 1,
                depth,
                passes: 1,
                span: 1,
            })?;
        }
        Ok(())
    }

    fn measure(&mut self, mut work: Work<'_>) -> Result<WorkOutcome> {
        let mut content = self.content.lock();
        if work.op != Op::Read {
            work.generation = content.next_generation();
        }
        if !self.target.has_queue() {
            work.depth = 1;
        }
        self.target.open()?;
        let outcome = drive::run(&mut self.target, &work);
        self.target.close()?;
        let outcome = outcome?;
        content.apply(&work);
        Ok(outcome)
    }

    fn verify(&mut self) -> Result<()> {
        let content = self.content.lock();
        let name = self.label.to_string();
        self.target.open()?;
        let found = self.target.scan(content.pages(), &mut |first, bytes| content.check(&name, first, bytes));
        self.target.close()?;
        found
    }
}

/// Reads `pages` pages through `read`, 256 at a time.
pub(crate) fn scan_with(
    pages: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<()>,
    each: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    const BATCH: u64 = 256;
    let mut buf = AlignedBuf::zeroed(BATCH as usize * PAGE);
    let mut first = 0;
    while first < pages {
        let count = BATCH.min(pages - first) as usize;
        let bytes = &mut buf[..count * PAGE];
        read(first * PAGE as u64, bytes)?;
        each(first, bytes)?;
        first += count as u64;
    }
    Ok(())
}

/// A device's queue as a [`QueuePort`], with the file's first byte at `base`.
pub(crate) struct DeviceQueue {
    pub(crate) queue: Box<dyn IoQueue>,
    pub(crate) base: u64,
}

impl QueuePort for DeviceQueue {
    fn push_read(&mut self, offset: u64, buf: AlignedBuf, tag: u64) -> Result<()> {
        Ok(self.queue.push_read(self.base + offset, buf, tag)?)
    }

    fn push_write(&mut self, offset: u64, buf: AlignedBuf, tag: u64) -> Result<()> {
        Ok(self.queue.push_write(self.base + offset, buf, blockdev::Durability::Volatile, tag)?)
    }

    fn wait(&mut self, min: u32, done: &mut dyn FnMut(QueueDone)) -> Result<()> {
        self.queue.wait(min, &mut |Completion { tag, buf, result }| {
            done(QueueDone { tag, buf, result: result.map_err(|error: DeviceError| Error::Device(error)) });
        })?;
        Ok(())
    }
}
