//! Devices that tests put before others.

use blockdev::{BlockDevice, Layer};
use std::sync::Arc;

/// A device that knows no durable writes, as an image file.
#[derive(Debug)]
pub struct NoFua(pub Arc<dyn BlockDevice>);

impl Layer for NoFua {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.0
    }

    fn pass_fua(&self) -> bool {
        false
    }
}
