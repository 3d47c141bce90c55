//! A device that lets others run during a request now and then, so that calls overlap even on machines with few
//! processors.

use blockdev::{BlockDevice, DeviceError, Durability, Layer};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Of this many requests, one sleeps and one yields.
const ONE_OF: u64 = 8;
/// Minimum duration of a sleep.
const NAP: Duration = Duration::from_micros(10);

/// Such a device.
#[derive(Debug)]
pub(super) struct Lingering {
    below: Arc<dyn BlockDevice>,
    chance: AtomicU64,
}

impl Lingering {
    pub(super) fn new(below: Arc<dyn BlockDevice>, seed: u64) -> Self {
        Self { below, chance: AtomicU64::new(seed) }
    }

    fn linger(&self) {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut number = self.chance.fetch_add(STEP, Ordering::Relaxed);
        number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        match (number ^ number >> 27) % ONE_OF {
            0 => std::thread::sleep(NAP),
            1 => std::thread::yield_now(),
            _ => {}
        }
    }
}

impl Layer for Lingering {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.below
    }

    fn pass_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let done = self.below.read(offset, buf);
        self.linger();
        done
    }

    fn pass_write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        self.linger();
        let done = self.below.write(offset, buf, durability);
        self.linger();
        done
    }
}
