//! A file of an XFS volume, opened by uxfs in this process.

use super::{At, Port, QueueDone, QueuePort, Target, scan_with};
use crate::error::{Error, Result};
use crate::work::Work;
use ::uxfs::{AlignedBuf, Completion, File, Queue};

/// A file, opened in this process.
#[derive(Debug)]
pub struct UxfsTarget {
    file: File,
}

impl UxfsTarget {
    /// A file whose pages are all allocated, written, and its own.
    pub fn new(file: File) -> Self {
        Self { file }
    }
}

/// Whether a read filled its buffer.
#[inline]
fn whole(read: ::uxfs::Result<usize>, len: usize) -> Result<()> {
    match read {
        Ok(count) if count == len => Ok(()),
        Ok(count) => Err(Error::Usage(format!("the file ended {count} bytes into a request of {len}"))),
        Err(error) => Err(Error::volume(error)),
    }
}

/// A thread's way to the file: all threads use one open file.
pub struct UxfsPort<'a>(&'a File);

impl Port for UxfsPort<'_> {
    #[inline]
    fn read(&mut self, at: At, buf: &mut [u8]) -> Result<()> {
        whole(self.0.read_at(buf, at.offset), buf.len())
    }

    #[inline]
    fn write(&mut self, at: At, buf: &[u8]) -> Result<()> {
        self.0.overwrite_at(buf, at.offset).map_err(Error::volume)
    }
}

/// A thread's queue on the file.
struct UxfsQueue(Queue);

impl QueuePort for UxfsQueue {
    fn push_read(&mut self, offset: u64, buf: AlignedBuf, tag: u64) -> Result<()> {
        self.0.push_read(offset, buf, tag).map_err(Error::volume)
    }

    fn push_write(&mut self, offset: u64, buf: AlignedBuf, tag: u64) -> Result<()> {
        self.0.push_overwrite(offset, buf, tag).map_err(Error::volume)
    }

    fn wait(&mut self, min: u32, done: &mut dyn FnMut(QueueDone)) -> Result<()> {
        let waited = self.0.wait(min, |Completion { tag, buf, result }| {
            let result = whole(result, buf.len());
            done(QueueDone { tag, buf, result });
        });
        waited.map(drop).map_err(Error::volume)
    }
}

impl Target for UxfsTarget {
    type Port<'a> = UxfsPort<'a>;

    fn ports<'a>(&'a mut self, work: &Work<'_>) -> Result<Vec<UxfsPort<'a>>> {
        Ok((0..work.threads).map(|_| UxfsPort(&self.file)).collect())
    }

    fn queue(&self, depth: u32) -> Result<Box<dyn QueuePort + '_>> {
        Ok(Box::new(UxfsQueue(self.file.queue(depth).map_err(Error::volume)?)))
    }

    fn scan(&mut self, pages: u64, each: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let file = &self.file;
        scan_with(pages, |offset, buf| whole(file.read_at(buf, offset), buf.len()), each)
    }
}
