//! Copies of what devices hold.

use blockdev::{BlockDevice, Durability, MemoryDevice};
use std::sync::Arc;

/// A device in memory that holds these bytes.
pub fn holding(bytes: &[u8]) -> Arc<dyn BlockDevice> {
    let device = MemoryDevice::anonymous(bytes.len() as u64).expect("memory");
    device.write(0, bytes, Durability::Volatile).expect("written");
    Arc::new(device)
}

/// A device in memory that holds what another one does.
pub fn copy(from: &dyn BlockDevice) -> Arc<dyn BlockDevice> {
    let mut bytes = vec![0; from.size() as usize];
    from.read(0, &mut bytes).expect("read");
    holding(&bytes)
}
