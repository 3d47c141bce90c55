//! The device of a volume whose small writes are gathered, and the claim that keeps other writers
//! out.
//!
//! Invariant: the device is claimed until no request to it is in progress, even if the volume was closed or dropped
//! before.

use crate::error::Result;
use blockdev::{BlockDevice, Claim, WriteBehind};
use std::sync::Arc;

/// A device whose small writes are gathered, and the claim to it.
#[derive(Debug)]
pub(crate) struct Gathering {
    claim: Arc<Claim>,
    /// Dropped after the claim.
    device: Arc<WriteBehind>,
}

impl Gathering {
    /// Gathers the writes to `device`, and claims it for a writer.
    pub(crate) fn new(device: Arc<dyn BlockDevice>) -> Result<Self> {
        let claim = Arc::new(Claim::new(&*device)?);
        Ok(Self { device: Arc::new(WriteBehind::new(device)), claim })
    }

    pub(crate) fn device(&self) -> Arc<dyn BlockDevice> {
        Arc::clone(&self.device) as Arc<dyn BlockDevice>
    }

    pub(crate) fn claim(&self) -> Arc<Claim> {
        Arc::clone(&self.claim)
    }

    /// Waits until no request is in progress, whether it fails or not.
    pub(crate) fn settle(&self) {
        self.device.settle();
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        // Anyone who still has the device could make it write after the claim has ended.
        self.settle();
    }
}
