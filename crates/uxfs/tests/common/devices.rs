//! Copies of what devices hold.

use blockdev::{BlockDevice, Durability, MemoryDevice};
use std::sync::Arc;

/// A device in memory that holds what another one does.
pub fn copy(from: &dyn BlockDevice) -> Arc<dyn BlockDevice> {
    let to = MemoryDevice::anonymous(from.size()).expect("memory");
    let mut bytes = vec![0; from.size() as usize];
    from.read(0, &mut bytes).expect("read");
    to.write(0, &bytes, Durability::Volatile).expect("written");
    Arc::new(to)
}
