//! Panics of a device that somebody else wrote, as failures of its requests.
//!
//! Callers in the middle of a change know what to do about an error, and other threads wait for those that write the
//! log. So a device that may panic is wrapped in [`Caught`], and its users see errors alone.
//!
//! Invariant: no panic of a read, a write or a flush below gets past it. A panic of a queue reaches the thread
//! that owns it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::{BlockDevice, DeviceError, Durability, IoQueue, Layer};

/// The answer of the device below. A panic becomes a failure: others wait for the thread that asks.
pub(crate) fn caught(
    op: &'static str,
    offset: u64,
    len: usize,
    request: impl FnOnce() -> Result<(), DeviceError>,
) -> Result<(), DeviceError> {
    catch_unwind(AssertUnwindSafe(request)).unwrap_or_else(|_| {
        Err(DeviceError::io(op, offset, len, std::io::Error::other("the device panicked")))
    })
}

/// A device whose requests fail where those of the device below panic.
#[derive(Debug)]
pub struct Caught(Arc<dyn BlockDevice>);

impl Caught {
    /// The device itself if it catches its panics already, else a wrapper around it.
    pub fn before(device: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
        if device.catches_panics() { device } else { Arc::new(Self(device)) }
    }
}

impl Layer for Caught {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.0
    }

    fn pass_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        caught("read", offset, buf.len(), || self.0.read(offset, buf))
    }

    fn pass_write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        caught("write", offset, buf.len(), || self.0.write(offset, buf, durability))
    }

    fn pass_flush(&self) -> Result<(), DeviceError> {
        caught("flush", 0, 0, || self.0.flush())
    }

    fn pass_write_cache(&self) -> bool {
        self.0.has_write_cache()
    }

    fn pass_catches_panics(&self) -> bool {
        true
    }

    fn pass_prefetches(&self) -> bool {
        self.0.prefetches()
    }

    fn pass_in_memory(&self) -> bool {
        self.0.is_in_memory()
    }

    fn pass_queue(self: Arc<Self>, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        Arc::clone(&self.0).queue(depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDevice, Window};

    #[derive(Debug)]
    struct Panics(Arc<dyn BlockDevice>);

    impl Layer for Panics {
        fn below(&self) -> &Arc<dyn BlockDevice> {
            &self.0
        }

        fn pass_read(&self, _offset: u64, _buf: &mut [u8]) -> Result<(), DeviceError> {
            panic!("at a read")
        }

        fn pass_write(&self, _offset: u64, _buf: &[u8], _of: Durability) -> Result<(), DeviceError> {
            panic!("at a write")
        }

        fn pass_flush(&self) -> Result<(), DeviceError> {
            panic!("at a flush")
        }
    }

    #[test]
    fn panics_are_failures() {
        let memory: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(1 << 20).expect("memory"));
        let device = Caught::before(Arc::new(Panics(Arc::clone(&memory))));
        let failures = [
            device.read(512, &mut [0; 512]),
            device.write(512, &[0; 512], Durability::Volatile),
            device.flush(),
        ];
        for failure in failures {
            assert!(failure.expect_err("it panics").to_string().contains("the device panicked"));
        }
        assert_eq!(device.place(), memory.place());
    }

    #[test]
    fn what_never_panics_has_nothing_before_it() {
        let memory: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(1 << 20).expect("memory"));
        let part: Arc<dyn BlockDevice> = Arc::new(Window::new(Arc::clone(&memory), 0, None).expect("a part"));
        let panics: Arc<dyn BlockDevice> = Arc::new(Panics(Arc::clone(&memory)));
        let part_of_it: Arc<dyn BlockDevice> =
            Arc::new(Window::new(Caught::before(panics), 0, None).expect("a part"));
        for device in [memory, part, part_of_it] {
            assert!(Arc::ptr_eq(&Caught::before(Arc::clone(&device)), &device), "{device:?}");
        }
    }
}
