//! A volume whose small writes are gathered: its device, and who keeps other writers out meanwhile.
//!
//! Invariant: the device is claimed until nothing is under way to it any more, also when the volume is closed by then, or
//! dropped.

use crate::error::Result;
use blockdev::{BlockDevice, Claim, WriteBehind};
use std::sync::Arc;

/// A device whose small writes are gathered, and the claim to it.
#[derive(Debug)]
pub(crate) struct Gathering {
    device: Arc<WriteBehind>,
    claim: Arc<Claim>,
}

impl Gathering {
    /// Gathers what is written to `device`, and claims it for a writer.
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

    /// Waits until nothing is under way, however it went.
    pub(crate) fn settle(&self) {
        self.device.settle();
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        // Whoever has the device still would have it write behind the end of the claim.
        self.settle();
    }
}
