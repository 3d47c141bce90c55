//! Many requests in flight on one file, from one thread.

use crate::error::Result;
use crate::file::File;
use blockdev::AlignedBuf;
use fileio::{DirectQueue, Unbuffered};
use xfs::iomap::FileMap;

/// Requests in flight on one [`File`], owned by one thread; see [`File::queue`]. They end in any order; those that
/// overlap are kept apart.
///
/// A request holds its range until its completion is taken, so the thread should [`wait`](Self::wait) soon.
/// Meanwhile it must not block on the bytes that are in flight here, through any handle or queue of the file: it
/// would wait for itself. Nor may it close the volume or give the file capabilities, since both wait for overwrites.
pub struct Queue {
    pub(crate) queue: DirectQueue<FileMap>,
    /// Dropped after the requests.
    pub(crate) _unbuffered: Unbuffered<FileMap>,
    pub(crate) file: File,
}

/// A finished request.
#[derive(Debug)]
pub struct Completion {
    /// The tag it was pushed with.
    pub tag: u64,
    /// Its buffer.
    pub buf: AlignedBuf,
    /// How many bytes were transferred.
    pub result: Result<usize>,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Queue {
    /// How many requests fit.
    pub fn depth(&self) -> u32 {
        self.queue.depth()
    }

    /// How many requests were pushed and not yet handed back.
    pub fn in_flight(&self) -> u32 {
        self.queue.in_flight()
    }

    /// Adds a read of `buf.len()` bytes at byte `offset` of the file. Fails only if the queue is full.
    pub fn push_read(&mut self, offset: u64, buf: AlignedBuf, tag: u64) -> Result<()> {
        Ok(self.queue.push_read(offset, buf, tag)?)
    }

    /// Adds an overwrite of the whole `buf` at byte `offset` of the file; what it needs is what
    /// [`File::overwrite_at`] needs.
    pub fn push_overwrite(&mut self, offset: u64, buf: AlignedBuf, tag: u64) -> Result<()> {
        self.file.check_writable()?;
        self.file.check_unprotected()?;
        Ok(self.queue.push_write(offset, buf, tag)?)
    }

    /// Hands what was pushed to the device.
    pub fn submit(&mut self) -> Result<()> {
        Ok(self.queue.submit()?)
    }

    /// Submits, waits until at least `min` requests are done (0: does not wait), and hands each one that is to
    /// `done`. Returns how many.
    pub fn wait(&mut self, min: u32, mut done: impl FnMut(Completion)) -> Result<u32> {
        Ok(self.queue.wait(min, &mut |over| {
            done(Completion { tag: over.tag, buf: over.buf, result: over.result.map_err(Into::into) });
        })?)
    }
}
