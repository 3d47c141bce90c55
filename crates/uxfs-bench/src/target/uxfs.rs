//! A file of an XFS volume, opened by uxfs in this process.

use super::{At, Port, QueueDone, QueuePort, Target, scan_with};
use crate::error::{Error, Result};
use crate::work::Work;
use ::uxfs::{AlignedBuf, Completion, File, Queue};

/// A file, opened in this process for each run: other targets use the same volume in between, each with a volume of
/// its own in memory, so one must have closed it before the next opens it.
pub struct UxfsTarget {
    open: Box<dyn Fn() -> Result<File> + Send>,
    file: Option<File>,
}

impl UxfsTarget {
    /// A file whose pages are all allocated, written, and its own; `open` opens its volume and it.
    pub fn new(open: impl Fn() -> Result<File> + Send + 'static) -> Self {
        Self { open: Box::new(open), file: None }
    }

    /// A file that stays open: its volume is closed by whoever opened it.
    pub(crate) fn opened(file: File) -> Self {
        let closed = || Err(Error::Usage("the file was closed".to_owned()));
        Self { open: Box::new(closed), file: Some(file) }
    }

    pub(crate) fn file(&self) -> Result<&File> {
        self.file.as_ref().ok_or_else(|| Error::Usage("the file is not open".to_owned()))
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
        match self.0.is_buffered() {
            true => self.0.write_at(buf, at.offset).map_err(Error::volume),
            false => self.0.overwrite_at(buf, at.offset).map_err(Error::volume),
        }
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

    fn open(&mut self) -> Result<()> {
        self.file = Some((self.open)()?);
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        let Some(file) = self.file.take() else { return Ok(()) };
        let volume = file.node().volume().clone();
        drop(file);
        volume.close().map_err(Error::volume)
    }

    fn ports<'a>(&'a mut self, work: &Work<'_>) -> Result<Vec<UxfsPort<'a>>> {
        let file = self.file()?;
        Ok((0..work.threads).map(|_| UxfsPort(file)).collect())
    }

    fn queue(&self, depth: u32) -> Result<Box<dyn QueuePort + '_>> {
        Ok(Box::new(UxfsQueue(self.file()?.queue(depth).map_err(Error::volume)?)))
    }

    fn scan(&mut self, pages: u64, each: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let file = self.file()?;
        scan_with(pages, |offset, buf| whole(file.read_at(buf, offset), buf.len()), each)
    }
}
