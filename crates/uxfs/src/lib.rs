//! XFS volumes in user space: no kernel mount, no privileges.
//!
//! A [`Volume`] is opened from an image file or a block device. In it are [`Node`]s, files of any type, found by
//! path or by inode number; a [`Dir`] gives its entries, a [`File`] its bytes. Any number of threads may use all
//! of these at once; requests on one file that don't overlap never wait for each other.
//!
//! ```no_run
//! use uxfs::{OpenOptions, Volume};
//!
//! # fn main() -> Result<(), uxfs::Error> {
//! let volume = Volume::open("disk.img", &OpenOptions::new())?;
//! for entry in volume.open_dir("/etc")?.entries() {
//!     let entry = entry?;
//!     println!("{} {}", entry.file_type.letter(), uxfs::printable(&entry.name));
//! }
//! let passwd = volume.metadata("/etc/passwd")?;
//! println!("{} bytes, changed {} s after 1970 began", passwd.size, passwd.mtime.seconds);
//! # Ok(())
//! # }
//! ```
//!
//! Whatever an image holds, no call panics, hangs, or takes memory without bound: damage is an [`Error`] of kind
//! [`ErrorKind::Damaged`] that names the structure.
#![forbid(unsafe_code)]

mod alter;
mod behind;
mod change;
mod check;
mod deferring;
mod dir;
mod engine;
mod error;
mod exchange;
mod file;
mod gathering;
mod info;
mod metadata;
mod mkfs;
mod names;
mod node;
mod open_files;
mod options;
mod parents;
mod partitions;
mod path;
mod probe;
mod queue;
mod recovery;
mod share;
mod still;
mod syncing;
mod two_files;
mod volume;

pub use alter::{Grown, NewUuid, Upgrade, grow, grow_unless, set_uuid, upgrade};
pub use blockdev::{
    AlignedBuf, BlockDevice, FileDevice, MemoryDevice, attached_as, attached_files, is_locked, written_by,
};
pub use change::{NewNode, Special};
pub use check::{CheckReport, Finding, check, check_device};
pub use dir::{Dir, DirEntry, Entries};
pub use error::{Error, ErrorKind, Result};
pub use exchange::ExchangeOptions;
pub use file::{Extent, Extents, File};
pub use fileio::{Flushing, Locking};
pub use info::{FeatureSupport, Kernels, Quota, VolumeInfo};
pub use metadata::{DeviceNumber, Metadata};
pub use mkfs::{MkfsFeatures, MkfsOptions, mkfs, mkfs_device, mkfs_filled};
pub use names::{MAX_NAME, is_plain, printable};
pub use node::Node;
pub use options::OpenOptions;
pub use parents::ParentPointer;
pub use partitions::{holds_volume, partition};
pub use path::MAX_SYMLINKS;
pub use queue::{Completion, Queue};
pub use recovery::Recovery;
pub use share::Deduped;
pub use syncing::Syncing;
pub use volume::Volume;
#[doc(inline)]
pub use xfs::attr::edit::SetXattr;
#[doc(inline)]
pub use xfs::dir::FileType;
pub use xfs::log::{CilLocks, Designs, HandleCounts, Reservations, Vectors};
#[doc(inline)]
pub use xfs::namespace::Rename;
#[doc(inline)]
pub use xfs::setattr::Changes;
#[doc(inline)]
pub use xfs_format::timestamp::Timestamp;

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
