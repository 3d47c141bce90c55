//! Plain memory copies: what the machine gives with no device, no file and no lock.
//!
//! The area is as large as the file; the threads copy the same pages in the same order as on every other target.
//! Since no two threads share a page, each gets exclusive references to its own before the clock starts: the
//! loop is a slice copy and nothing else. The area is in large pages, as the memory device is.

use super::{At, Port, QueuePort, Target};
use crate::content::PAGE;
use crate::error::{Error, Result};
use crate::work::Work;
use blockdev::AlignedBuf;

/// An area of memory.
pub struct MemcpyTarget {
    area: AlignedBuf,
}

impl MemcpyTarget {
    /// An area of this many pages.
    pub fn new(pages: u64) -> Result<Self> {
        let bytes = usize::try_from(pages).ok().and_then(|pages| pages.checked_mul(PAGE));
        let bytes =
            bytes.ok_or_else(|| Error::Usage("the size is larger than the address space".to_owned()))?;
        let mut area = AlignedBuf::large(bytes);
        // It takes memory now, and not while the clock runs.
        area.fill(0);
        Ok(Self { area })
    }
}

/// What each of a thread's requests copies, in their order.
pub struct MemcpyPort<'a> {
    requests: Vec<&'a mut [u8]>,
}

impl Port for MemcpyPort<'_> {
    fn read(&mut self, at: At, buf: &mut [u8]) -> Result<()> {
        buf.copy_from_slice(self.requests[at.nth]);
        // No one uses the bytes; without this the copy could be optimised away.
        std::hint::black_box(buf);
        Ok(())
    }

    fn write(&mut self, at: At, buf: &[u8]) -> Result<()> {
        self.requests[at.nth].copy_from_slice(buf);
        Ok(())
    }
}

impl Target for MemcpyTarget {
    type Port<'a> = MemcpyPort<'a>;

    fn ports<'a>(&'a mut self, work: &Work<'_>) -> Result<Vec<MemcpyPort<'a>>> {
        let requests = self.area.chunks_exact_mut(work.request_bytes());
        let mut requests: Vec<Option<&'a mut [u8]>> = requests.map(Some).collect();
        (0..work.threads)
            .map(|thread| {
                let mut own = Vec::with_capacity(work.share(thread).len());
                for &page in work.share(thread) {
                    let nth = (page / work.span) as usize;
                    let request = requests.get_mut(nth).and_then(Option::take).ok_or_else(|| {
                        Error::Usage(format!("page {page} is outside the area, or used twice"))
                    })?;
                    own.push(request);
                }
                Ok(MemcpyPort { requests: own })
            })
            .collect()
    }

    fn has_queue(&self) -> bool {
        false
    }

    fn queue(&self, _depth: u32) -> Result<Box<dyn QueuePort + '_>> {
        Err(Error::Usage("memcpy has no queue".to_owned()))
    }

    fn scan(&mut self, pages: u64, each: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        (0..pages).zip(self.area.chunks_exact(PAGE)).try_for_each(|(page, bytes)| each(page, bytes))
    }
}
