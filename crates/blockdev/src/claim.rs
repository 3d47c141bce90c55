//! Keeps a second writer out of a device within this process.
//!
//! A lock on the file keeps out other processes and other handles. A handle that is shared must be claimed as well, by
//! whoever caches what is on the device. The claim is on a range of bytes below all wrappers. So two partitions of a
//! disk may have a writer each, and a device behind two wrappers has only one.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{BlockDevice, DeviceError};

/// What keeps a device's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// A file: its device and inode number.
    File(u64, u64),
    /// A disk: its device number.
    Disk(u64),
    /// Something in this process's memory, by its address.
    Memory(usize),
}

/// Where a device's bytes are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePlace {
    /// The kind of storage.
    pub storage: Storage,
    /// First byte.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
}

impl DevicePlace {
    /// The place of a device whose bytes are in memory of its own.
    pub fn of_memory<D: ?Sized>(device: &D, len: u64) -> Self {
        let address = std::ptr::from_ref(device).cast::<()>().addr();
        Self { storage: Storage::Memory(address), start: 0, len }
    }

    /// A part of this place.
    pub(crate) fn part(self, start: u64, len: u64) -> Self {
        Self { start: self.start.saturating_add(start), len, ..self }
    }

    pub(crate) fn meets(&self, other: &Self) -> bool {
        let end = |place: &Self| place.start.saturating_add(place.len);
        self.storage == other.storage && self.start < end(other) && other.start < end(self)
    }
}

static CLAIMED: Mutex<Vec<DevicePlace>> = Mutex::new(Vec::new());

fn claimed() -> MutexGuard<'static, Vec<DevicePlace>> {
    CLAIMED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While it lives, no one else in this process can claim any of these bytes.
#[derive(Debug)]
pub struct Claim {
    place: DevicePlace,
}

impl Claim {
    /// Claims a device; [`DeviceError::Claimed`] if somebody has done so before.
    pub fn new(device: &dyn BlockDevice) -> Result<Self, DeviceError> {
        let place = device.place();
        let mut claimed = claimed();
        if claimed.iter().any(|other| other.meets(&place)) {
            return Err(DeviceError::Claimed);
        }
        claimed.push(place);
        Ok(Self { place })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claimed = claimed();
        if let Some(at) = claimed.iter().position(|place| *place == self.place) {
            claimed.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counter, Deferred, FileOptions, MemoryDevice, Window};
    use std::sync::Arc;

    #[test]
    fn a_device_is_claimed_once_through_whatever_wrappers() {
        let disk: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(1 << 20).unwrap());
        let window = |start, len| Window::new(Arc::clone(&disk), start, Some(len)).unwrap();
        let claim = Claim::new(&window(4096, 8192)).unwrap();
        let wrapped: Arc<dyn BlockDevice> =
            Arc::new(Deferred::new(Arc::new(Counter::new(Arc::clone(&disk)))));
        assert!(matches!(Claim::new(&*wrapped), Err(DeviceError::Claimed)));
        assert!(matches!(Claim::new(&window(0, 4608)), Err(DeviceError::Claimed)));
        assert!(matches!(Claim::new(&window(12288 - 512, 512)), Err(DeviceError::Claimed)));
        let _before = Claim::new(&window(0, 4096)).unwrap();
        let _behind = Claim::new(&window(12288, 4096)).unwrap();
        let _other = Claim::new(&MemoryDevice::anonymous(1 << 20).unwrap()).unwrap();
        drop(claim);
        let _again = Claim::new(&window(4096, 8192)).unwrap();
        assert!(Claim::new(&*wrapped).is_err());
    }

    #[test]
    fn handles_of_one_file_are_one_device() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let open = || FileOptions::new().open(file.path()).unwrap();
        let claim = Claim::new(&open()).unwrap();
        assert!(matches!(Claim::new(&open()), Err(DeviceError::Claimed)));
        drop(claim);
        Claim::new(&open()).unwrap();
    }
}
