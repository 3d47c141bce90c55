//! Devices that tests put before others, and copies of what they hold.

use blockdev::{BlockDevice, Durability, Layer, MemoryDevice};
use std::sync::Arc;

/// A device in memory that holds what another one does.
pub fn copy(from: &dyn BlockDevice) -> Arc<dyn BlockDevice> {
    let to = MemoryDevice::anonymous(from.size()).expect("memory");
    let mut bytes = vec![0; from.size() as usize];
    from.read(0, &mut bytes).expect("read");
    to.write(0, &bytes, Durability::Volatile).expect("written");
    Arc::new(to)
}

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
