//! A part of a device as a device of its own, such as one partition of an image.
//!
//! Invariant: the window lies inside the device below, and starts and ends on its sectors, so that a request
//! that is whole sectors inside the window is one below as well.

use std::sync::Arc;

use crate::blocking::{Verb, check_push};
use crate::check::Geometry;
use crate::{AlignedBuf, BlockDevice, Completion, DeviceError, DevicePlace, Durability, IoQueue, Layer};

/// A range of bytes of another device; byte 0 is the range's first.
#[derive(Debug)]
pub struct Window {
    inner: Arc<dyn BlockDevice>,
    start: u64,
    geometry: Geometry,
}

impl Window {
    /// The `len` bytes from `offset` on (`None`: to the end of the device), with the device's sector size.
    pub fn new(inner: Arc<dyn BlockDevice>, offset: u64, len: Option<u64>) -> Result<Self, DeviceError> {
        let sector = inner.sector_size();
        Self::with_sector_size(inner, offset, len, sector)
    }

    /// As [`new`](Self::new), and presents sectors of `sector` bytes, not smaller than those below.
    pub fn with_sector_size(
        inner: Arc<dyn BlockDevice>,
        offset: u64,
        len: Option<u64>,
        sector: u32,
    ) -> Result<Self, DeviceError> {
        let refuse = |why: String| Err(DeviceError::invalid("opening a part of the device", why));
        let below = inner.sector_size();
        if sector < below {
            return refuse(format!("sectors of {sector} bytes on a device whose sectors have {below}"));
        }
        if !offset.is_multiple_of(u64::from(below)) {
            return refuse(format!("byte {offset} does not start a sector of {below} bytes"));
        }
        let Some(room) = inner.size().checked_sub(offset) else {
            return refuse(format!("byte {offset} is behind the device's {} bytes", inner.size()));
        };
        let len = len.unwrap_or(room);
        if len > room {
            return refuse(format!("{len} bytes at byte {offset} reach behind its {} bytes", inner.size()));
        }
        Ok(Self { geometry: Geometry::new(len, sector)?, inner, start: offset })
    }
}

impl Layer for Window {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.inner
    }

    fn pass_size(&self) -> u64 {
        self.geometry.size()
    }

    fn pass_sector_size(&self) -> u32 {
        self.geometry.sector()
    }

    fn pass_catches_panics(&self) -> bool {
        self.inner.catches_panics()
    }

    fn pass_place(&self) -> DevicePlace {
        self.inner.place().part(self.start, self.geometry.size())
    }

    fn pass_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.geometry.check(offset, buf.len())?;
        self.inner.read(self.start + offset, buf)
    }

    fn pass_write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        self.geometry.check(offset, buf.len())?;
        self.inner.write(self.start + offset, buf, durability)
    }

    fn pass_write_cache(&self) -> bool {
        self.inner.has_write_cache()
    }

    fn pass_prefetches(&self) -> bool {
        self.inner.prefetches()
    }

    fn pass_in_memory(&self) -> bool {
        self.inner.is_in_memory()
    }

    fn pass_prefetch(&self, offset: u64) {
        // Past the window's end it is a hint for the wrong place, which does no harm.
        self.inner.prefetch(self.start.saturating_add(offset));
    }

    fn pass_queue(self: Arc<Self>, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        let inner = Arc::clone(&self.inner).queue(depth)?;
        Ok(Box::new(WindowQueue { inner, window: self }))
    }
}

/// The queue below, with offsets moved.
struct WindowQueue {
    inner: Box<dyn IoQueue>,
    window: Arc<Window>,
}

impl IoQueue for WindowQueue {
    fn depth(&self) -> u32 {
        self.inner.depth()
    }

    fn in_flight(&self) -> u32 {
        self.inner.in_flight()
    }

    fn push_read(&mut self, offset: u64, buf: AlignedBuf, tag: u64) -> Result<(), DeviceError> {
        check_push(&*self.window, Verb::Read, offset, buf.len())?;
        self.inner.push_read(self.window.start + offset, buf, tag)
    }

    fn push_write(
        &mut self,
        offset: u64,
        buf: AlignedBuf,
        durability: Durability,
        tag: u64,
    ) -> Result<(), DeviceError> {
        check_push(&*self.window, Verb::Write(durability), offset, buf.len())?;
        self.inner.push_write(self.window.start + offset, buf, durability, tag)
    }

    fn submit(&mut self) -> Result<(), DeviceError> {
        self.inner.submit()
    }

    fn wait(&mut self, min: u32, done: &mut dyn FnMut(Completion)) -> Result<u32, DeviceError> {
        self.inner.wait(min, done)
    }
}
