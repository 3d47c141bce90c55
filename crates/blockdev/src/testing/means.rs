//! A device with other capabilities: a caller flushes in another way if there are no durable writes, or no write cache.
//!
//! Only the answers change. Requests and queues are those of the device below, and a power cut may lose as much as
//! before: a caller who is told that nothing waits for a flush need not share one, but still has to ask for it.

use std::sync::Arc;

use crate::{BlockDevice, DeviceError, IoQueue, Layer};

/// The capabilities of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Means {
    /// Durable writes that spare a flush ([`BlockDevice::has_fua`]).
    pub fua: bool,
    /// A cache in which writes may wait for a flush ([`BlockDevice::has_write_cache`]).
    pub write_cache: bool,
}

impl Means {
    /// All that a device can have or lack.
    pub const ALL: [Self; 4] = [
        Self { fua: true, write_cache: true },
        Self { fua: false, write_cache: true },
        Self { fua: true, write_cache: false },
        Self { fua: false, write_cache: false },
    ];

    /// `device` with these capabilities. It cannot gain durable writes that it does not have.
    pub fn of(self, device: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
        Arc::new(Limited { device, means: self })
    }
}

#[derive(Debug)]
struct Limited {
    device: Arc<dyn BlockDevice>,
    means: Means,
}

impl Layer for Limited {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    fn pass_fua(&self) -> bool {
        self.means.fua && self.device.has_fua()
    }

    fn pass_write_cache(&self) -> bool {
        self.means.write_cache
    }

    fn pass_queue(self: Arc<Self>, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        Arc::clone(&self.device).queue(depth)
    }
}
