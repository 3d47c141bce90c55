//! The device of a volume that becomes durable only when it is closed, and the claim that keeps other writers out.
//!
//! Invariant: the device is claimed until no request to it is in progress, even if the volume was closed or dropped
//! before.

use crate::error::{Error, Result};
use blockdev::{BlockDevice, Claim, Deferred};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A device whose writes are deferred, and the claim to it.
#[derive(Debug)]
pub(crate) struct Deferring {
    /// `None`: the volume is open for reading, or nothing is deferred any more.
    claim: Mutex<Option<Arc<Claim>>>,
    /// Dropped after the claim.
    device: Arc<Deferred>,
}

impl Deferring {
    /// Defers the writes to `device`, and claims it for a writer.
    pub(crate) fn new(device: Arc<dyn BlockDevice>, writable: bool) -> Result<Self> {
        let claim = writable.then(|| Claim::new(&*device).map(Arc::new)).transpose()?;
        Ok(Self { device: Arc::new(Deferred::new(device)), claim: Mutex::new(claim) })
    }

    pub(crate) fn device(&self) -> Arc<dyn BlockDevice> {
        Arc::clone(&self.device) as Arc<dyn BlockDevice>
    }

    pub(crate) fn claim(&self) -> Option<Arc<Claim>> {
        self.lock().clone()
    }

    /// The device's first failure, if there was one.
    pub(crate) fn failure(&self) -> Option<Error> {
        Some(xfs::Error::from(self.device.failure()?).into())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Claim>>> {
        self.claim.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes everything durable, and lets the next writer in.
    pub(crate) fn finish(&self) -> Result<()> {
        self.device.finish()?;
        drop(self.lock().take());
        Ok(())
    }
}

impl Drop for Deferring {
    fn drop(&mut self) {
        self.device.settle();
    }
}
