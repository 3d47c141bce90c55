//! Block devices in user space.
//!
//! One trait, [`BlockDevice`], with blocking calls and a submission queue ([`IoQueue`]). Offsets and lengths
//! are bytes and multiples of the device's sector size. This crate knows no file system.
//! A wrapper around another device is a [`Layer`].
//!
//! | device | what it is |
//! |---|---|
//! | [`FileDevice`] | an image file or a block device: O_DIRECT where the host allows it, io_uring queues |
//! | [`MemoryDevice`] | memory of its own, or a mapped file (tmpfs, DAX) |
//! | [`Window`] | a part of another device, such as one partition of an image |
//! | [`Deferred`] | another device, made durable only at the end |
//! | [`WriteBehind`] | another device, whose small writes are gathered into large ones |
//! | [`Withheld`] | another device, whose first sector is written last |
//! | [`Caught`] | another device, whose panics are failures |
//!
//! With the feature `testing` there are wrappers that tests put around any device: `Recorder`, `Rewind`, `FaultDevice`,
//! `DelayDevice`, `HoldDevice`, `SealDevice`, `Counter`, `Means`.
//!
//! ```
//! use blockdev::{BlockDevice, Durability, MemoryDevice};
//! # fn main() -> Result<(), blockdev::DeviceError> {
//! let device = MemoryDevice::anonymous(1 << 20)?;
//! device.write(4096, &[7; 512], Durability::Volatile)?;
//! let mut sector = [0; 512];
//! device.read(4096, &mut sector)?;
//! assert_eq!(sector, [7; 512]);
//! # Ok(())
//! # }
//! ```

mod blocking;
mod buf;
mod caught;
mod check;
mod claim;
mod deferred;
mod device;
mod elsewhere;
mod error;
mod file;
mod flushes;
mod in_use;
mod large_pages;
mod layer;
mod layers;
mod lock;
mod memory;
mod memory_queue;
mod prefetch;
mod racing;
#[cfg(any(test, feature = "testing"))]
mod testing;
mod uring;
mod window;
mod withheld;
mod write_behind;

pub use blocking::BlockingQueue;
pub use buf::AlignedBuf;
pub use caught::Caught;
pub use claim::{Claim, DevicePlace, Storage};
pub use deferred::Deferred;
pub use device::{BlockDevice, Completion, Durability, IoQueue};
pub use elsewhere::{attached_as, is_locked, written_by};
pub use error::DeviceError;
pub use file::{FileDevice, FileOptions, HostIo, QueueKind};
pub use in_use::attached_files;
pub use layer::Layer;
pub use memory::{MemoryDevice, MemoryOptions};
pub use prefetch::prefetch_memory;
#[cfg(any(test, feature = "testing"))]
pub use testing::counter::{Counter, Counts};
#[cfg(any(test, feature = "testing"))]
pub use testing::delay::{Delay, DelayDevice};
#[cfg(any(test, feature = "testing"))]
pub use testing::fault::{Effect, Fault, FaultDevice, Op, Repeat};
#[cfg(any(test, feature = "testing"))]
pub use testing::hold::HoldDevice;
#[cfg(any(test, feature = "testing"))]
pub use testing::means::Means;
#[cfg(any(test, feature = "testing"))]
pub use testing::power_cuts::PowerCuts;
#[cfg(any(test, feature = "testing"))]
pub use testing::recorder::{Fate, FlushRecord, Recorder, Recording, WriteRecord};
#[cfg(any(test, feature = "testing"))]
pub use testing::rewind::Rewind;
#[cfg(any(test, feature = "testing"))]
pub use testing::seal::SealDevice;
pub use window::Window;
pub use withheld::Withheld;
pub use write_behind::WriteBehind;
