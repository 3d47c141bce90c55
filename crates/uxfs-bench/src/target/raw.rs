//! The device itself: the same pages with no file system between.

use super::{At, DeviceQueue, Port, QueuePort, Target, scan_with};
use crate::error::Result;
use crate::work::Work;
use blockdev::{BlockDevice, Durability};
use std::sync::Arc;

/// A run of a device's bytes, used without a file system.
#[derive(Clone, Debug)]
pub struct RawTarget {
    device: Arc<dyn BlockDevice>,
    base: u64,
}

impl RawTarget {
    /// The bytes of `device` from `base` on. The caller answers for what lies there: all of it is overwritten.
    pub fn new(device: Arc<dyn BlockDevice>, base: u64) -> Self {
        Self { device, base }
    }
}

/// A thread's way to the device.
pub struct RawPort<'a> {
    device: &'a dyn BlockDevice,
    base: u64,
}

impl Port for RawPort<'_> {
    fn read(&mut self, at: At, buf: &mut [u8]) -> Result<()> {
        Ok(self.device.read(self.base + at.offset, buf)?)
    }

    fn write(&mut self, at: At, buf: &[u8]) -> Result<()> {
        Ok(self.device.write(self.base + at.offset, buf, Durability::Volatile)?)
    }
}

impl Target for RawTarget {
    type Port<'a> = RawPort<'a>;

    fn ports<'a>(&'a mut self, work: &Work<'_>) -> Result<Vec<RawPort<'a>>> {
        Ok((0..work.threads).map(|_| RawPort { device: &*self.device, base: self.base }).collect())
    }

    fn queue(&self, depth: u32) -> Result<Box<dyn QueuePort + '_>> {
        let queue = Arc::clone(&self.device).queue(depth)?;
        Ok(Box::new(DeviceQueue { queue, base: self.base }))
    }

    fn scan(&mut self, pages: u64, each: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let (device, base) = (&self.device, self.base);
        scan_with(pages, |offset, buf| Ok(device.read(base + offset, buf)?), each)
    }
}
