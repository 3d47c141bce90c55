//! How to open a volume.

use crate::metadata::Timestamp;
use fileio::{Flushing, Locking};
use xfs::log::Designs;

/// How to open a volume. The default opens it for reading, all of the file or device.
///
/// ```
/// use uxfs::OpenOptions;
/// // The second partition of a disk image, to overwrite files in it.
/// let options = OpenOptions::new().writable(true).offset(1 << 20).length(Some(64 << 20));
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions {
    pub(crate) writable: bool,
    pub(crate) norecovery: bool,
    pub(crate) offset: u64,
    pub(crate) length: Option<u64>,
    pub(crate) cache_size: u64,
    pub(crate) repeatable: Option<Timestamp>,
    pub(crate) direct: bool,
    pub(crate) durable_at_close: bool,
    pub(crate) gather_writes: bool,
    pub(crate) locking: Locking,
    pub(crate) flushing: Flushing,
    pub(crate) designs: Designs,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            writable: false,
            norecovery: false,
            offset: 0,
            length: None,
            cache_size: Self::DEFAULT_CACHE_SIZE,
            repeatable: None,
            direct: true,
            durable_at_close: false,
            gather_writes: false,
            locking: Locking::default(),
            flushing: Flushing::default(),
            designs: Designs::default(),
        }
    }
}

impl OpenOptions {
    /// Bytes that caches may hold if nothing else is asked for.
    pub const DEFAULT_CACHE_SIZE: u64 = 64 << 20;

    /// For reading, all of the file or device.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether files may be overwritten. The image is then locked against a second opener that would write.
    pub fn writable(mut self, writable: bool) -> Self {
        self.writable = writable;
        self
    }

    /// Whether a volume whose log is dirty is read as it is: what was only in the log is not seen. Otherwise the log is
    /// replayed: in memory for reading, on the device for writing.
    pub fn norecovery(mut self, norecovery: bool) -> Self {
        self.norecovery = norecovery;
        self
    }

    /// Where in the file or device the volume starts, in bytes: a partition inside an image.
    pub fn offset(mut self, offset: u64) -> Self {
        self.offset = offset;
        self
    }

    /// How many bytes from there belong to the volume; `None`: all the rest.
    pub fn length(mut self, length: Option<u64>) -> Self {
        self.length = length;
        self
    }

    /// Bytes that the caches of metadata and of pages may hold together. Each of the two may have what the other one leaves, and
    /// half of it in any case. Changes that wait to be written may take half as much again.
    pub fn cache_size(mut self, bytes: u64) -> Self {
        self.cache_size = bytes;
        self
    }

    /// Has the same changes, made by one thread to the same bytes, give the same bytes: the clock stands still at this
    /// time, and nothing is left to chance or to other threads. Generation numbers, which nobody can guess otherwise,
    /// follow from the time.
    pub fn repeatable(mut self, time: Option<Timestamp>) -> Self {
        self.repeatable = time;
        self
    }

    /// Whether to go round the host's page cache (`O_DIRECT`) where the host can do that.
    pub fn direct(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }

    /// Makes nothing durable before the volume is closed: for one that is being made, which nobody has yet. Calls that
    /// make changes durable come back at once; if the host goes down before the close, there is no volume. Goes best
    /// through the page cache ([`direct`](Self::direct)).
    pub fn durable_at_close(mut self, durable_at_close: bool) -> Self {
        self.durable_at_close = durable_at_close;
        self
    }

    /// Keeps small writes in memory for a while, up to 16 MiB, and gathers those that adjoin into large requests: for bulk
    /// work, such as unpacking many small files. What a sync promises it keeps. That a write fails is told by whatever makes
    /// it durable, and the volume is shut down then.
    pub fn gather_writes(mut self, gather_writes: bool) -> Self {
        self.gather_writes = gather_writes;
        self
    }

    /// What the journal is made of. For measurements; the default is the one to use.
    pub fn designs(mut self, designs: Designs) -> Self {
        self.designs = designs;
        self
    }

    /// How those who wait for the device's flush share it. For measurements; the default is the one to use.
    pub fn flushing(mut self, flushing: Flushing) -> Self {
        self.flushing = flushing;
        self
    }

    /// Which lock keeps requests on one file apart. For measurements; the default is the one to use.
    pub fn locking(mut self, locking: Locking) -> Self {
        self.locking = locking;
        self
    }
}
