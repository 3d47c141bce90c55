//! A device that must not change from some moment on, as a volume on it was closed.
//!
//! Invariant: a write or a flush that comes after [`SealDevice::seal`] fails, and is told by
//! [`SealDevice::assert_kept`], whatever became of the error.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{BlockDevice, DeviceError, Durability, Layer};

/// A device that can be sealed.
#[derive(Debug)]
pub struct SealDevice {
    inner: Arc<dyn BlockDevice>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    sealed: bool,
    /// Writes and flushes that came nevertheless.
    broken: Vec<String>,
}

impl SealDevice {
    /// `inner`, which may be written until it is sealed.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Self {
        Self { inner, state: Mutex::default() }
    }

    /// From here on writes and flushes are refused.
    pub fn seal(&self) {
        self.state().sealed = true;
    }

    /// What came to the device since it was sealed.
    pub fn broken(&self) -> Vec<String> {
        self.state().broken.clone()
    }

    /// Panics if there was a write or flush since it was sealed, or if it was not sealed.
    pub fn assert_kept(&self) {
        let state = self.state();
        assert!(state.sealed, "the device was never sealed");
        assert!(state.broken.is_empty(), "behind a close came {:?}", state.broken);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn come(&self, verb: &'static str, offset: u64, len: usize) -> Result<(), DeviceError> {
        let mut state = self.state();
        if !state.sealed {
            return Ok(());
        }
        state.broken.push(format!("a {verb} of {len} bytes at byte {offset}"));
        Err(DeviceError::io(verb, offset, len, std::io::Error::other("the device is sealed")))
    }
}

impl Layer for SealDevice {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.inner
    }

    fn pass_write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        self.come("write", offset, buf.len())?;
        self.inner.write(offset, buf, durability)
    }

    fn pass_flush(&self) -> Result<(), DeviceError> {
        self.come("flush", 0, 0)?;
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlignedBuf, MemoryDevice};

    #[test]
    fn what_comes_behind_the_seal_is_told() {
        let memory: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(1 << 20).unwrap());
        let device = Arc::new(SealDevice::new(memory));
        device.write(0, &[1; 512], Durability::Volatile).unwrap();
        device.flush().unwrap();
        device.seal();
        device.read(0, &mut [0; 512]).unwrap();
        device.assert_kept();
        assert!(device.flush().is_err());
        assert!(device.write(512, &[2; 512], Durability::Volatile).is_err());
        let mut queue = Arc::clone(&device).queue(1).unwrap();
        queue.push_write(1024, AlignedBuf::zeroed(512), Durability::Fua, 0).unwrap();
        queue.wait(1, &mut |over| assert!(over.result.is_err())).unwrap();
        assert_eq!(device.broken().len(), 3, "{:?}", device.broken());
        let mut sector = [9; 512];
        device.read(512, &mut sector).unwrap();
        assert_eq!(sector, [0; 512]);
    }
}
