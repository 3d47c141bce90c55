//! Mapped files, for tests alone: what maps them is unsafe.

use std::path::Path;

use blockdev::{DeviceError, MemoryDevice, MemoryOptions};

/// A file, mapped, of a test's own.
pub fn mapped(path: &Path) -> Result<MemoryDevice, DeviceError> {
    // SAFETY: a test's files lie in a folder of its own, and none touches what it has cut off one that it has mapped, but
    // the one that shows what comes of it.
    unsafe { MemoryOptions::new().map_file(path) }
}
