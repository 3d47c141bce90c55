//! Copies of what devices hold.

use blockdev::{BlockDevice, Durability, MemoryDevice};
use std::ops::Range;
use std::sync::Arc;
use xfs_format::superblock::Superblock;

/// A device in memory that holds these bytes.
pub fn holding(bytes: &[u8]) -> Arc<dyn BlockDevice> {
    let device = MemoryDevice::anonymous(bytes.len() as u64).expect("memory");
    device.write(0, bytes, Durability::Volatile).expect("written");
    Arc::new(device)
}

/// All that a device holds.
pub fn bytes_of(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.size() as usize];
    device.read(0, &mut bytes).expect("read");
    bytes
}

/// A device in memory that holds what another one does.
pub fn copy(from: &dyn BlockDevice) -> Arc<dyn BlockDevice> {
    holding(&bytes_of(from))
}

/// The superblock of a volume with sectors of 512 bytes.
pub fn superblock_of(device: &dyn BlockDevice) -> Superblock {
    let mut sector = [0; 512];
    device.read(0, &mut sector).expect("read");
    Superblock::parse(&sector).expect("a superblock")
}

/// Where the log lies, as the superblock says it.
pub fn log_of(device: &dyn BlockDevice) -> Range<u64> {
    let superblock = superblock_of(device);
    let start = superblock.log_daddr().0 * 512;
    start..start + superblock.log_bytes()
}
