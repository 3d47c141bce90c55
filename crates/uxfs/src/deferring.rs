//! A volume of which nothing is made durable before it is closed: its device, and who keeps other writers out meanwhile.
//!
//! Invariant: the device is claimed until nothing is under way to it any more, also when the volume is closed by then, or
//! dropped.

use crate::error::{Error, Result};
use blockdev::{BlockDevice, Claim, Deferred};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A device whose writes are deferred, and the claim to it.
#[derive(Debug)]
pub(crate) struct Deferring {
    device: Arc<Deferred>,
    /// `None`: the volume is open for reading, or nothing is deferred any more.
    claim: Mutex<Option<Arc<Claim>>>,
}

impl Deferring {
    /// Defers what `device` is asked for, and claims it for a writer.
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

    /// What failed of the device, if anything did.
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
