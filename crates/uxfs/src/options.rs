//! How to open a volume.

use crate::error::{Error, ErrorKind};
use fileio::{Flushing, Locking};
use xfs::log::Designs;
use xfs::volume;
use xfs_format::timestamp::Timestamp;

/// How to open a volume. The default is to open the whole file or device for reading.
///
/// ```
/// use uxfs::OpenOptions;
/// // The second partition of a disk image, to overwrite files in it.
/// let options = OpenOptions::new().writable(true).offset(1 << 20).length(Some(64 << 20));
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions {
    pub(crate) engine: volume::OpenOptions,
    pub(crate) offset: u64,
    pub(crate) length: Option<u64>,
    pub(crate) in_memory: bool,
    pub(crate) direct: bool,
    pub(crate) durable_at_close: bool,
    pub(crate) gather_writes: bool,
    pub(crate) locking: Locking,
    pub(crate) flushing: Flushing,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            engine: volume::OpenOptions::default(),
            offset: 0,
            length: None,
            in_memory: false,
            direct: true,
            durable_at_close: false,
            gather_writes: false,
            locking: Locking::default(),
            flushing: Flushing::default(),
        }
    }
}

impl OpenOptions {
    /// The default cache size in bytes.
    pub const DEFAULT_CACHE_SIZE: u64 = volume::OpenOptions::DEFAULT_CACHE_SIZE;

    /// Read-only, the whole file or device.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether files may be overwritten. The image is then locked against a second opener that would write.
    pub fn writable(mut self, writable: bool) -> Self {
        self.engine.writable = writable;
        self
    }

    /// Whether to ignore a dirty log when reading: changes that are only in the log are not seen. Otherwise the log is
    /// replayed: in memory for reading, on the device for writing.
    pub fn norecovery(mut self, norecovery: bool) -> Self {
        self.engine.norecovery = norecovery;
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

    /// Bytes that the caches of metadata and of pages may hold together. Each may use what the other leaves, and half
    /// of it in any case. Changes that wait to be written may take half as much again.
    pub fn cache_size(mut self, bytes: u64) -> Self {
        self.engine.cache_size = bytes;
        self
    }

    /// Makes changes reproducible: the same changes to the same bytes by one thread give the same bytes. The clock
    /// stands still at this time, and nothing is left to chance or to other threads. Generation numbers, otherwise
    /// unpredictable, follow from the time.
    pub fn repeatable(mut self, time: Option<Timestamp>) -> Self {
        self.engine.repeatable = time;
        self
    }

    /// Whether all changes of a volume that is opened for writing stay in memory, and are gone when it is closed: to try
    /// what opening and changing it would do. The image is opened for reading, and nothing of it changes. What changes an
    /// image by its path ([`grow`](crate::grow), [`set_uuid`](crate::set_uuid), [`upgrade`](crate::upgrade)) refuses this.
    pub fn changes_in_memory(mut self, in_memory: bool) -> Self {
        self.in_memory = in_memory;
        self
    }

    /// Fails if changes are to stay in memory.
    pub(crate) fn check_on_device(&self) -> Result<(), Error> {
        if self.in_memory {
            let what = "this changes the image itself: its changes cannot stay in memory";
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        Ok(())
    }

    /// Whether to bypass the host's page cache (`O_DIRECT`) if the host can do that.
    pub fn direct(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }

    /// Makes nothing durable before the volume is closed: for a new volume that no one uses yet. Calls that make
    /// changes durable return at once. If the host crashes before the close, there is no volume. Works best with the
    /// page cache ([`direct`](Self::direct)).
    pub fn durable_at_close(mut self, durable_at_close: bool) -> Self {
        self.durable_at_close = durable_at_close;
        self
    }

    /// Keeps small writes in memory for a while, up to 16 MiB, and gathers those that adjoin into large requests: for bulk
    /// work, such as unpacking many small files. A sync is as durable as ever. If a gathered write fails, the next sync
    /// reports it, and the volume is shut down.
    pub fn gather_writes(mut self, gather_writes: bool) -> Self {
        self.gather_writes = gather_writes;
        self
    }

    /// The designs of the journal. For measurements; the default is the one to use.
    pub fn designs(mut self, designs: Designs) -> Self {
        self.engine.designs = designs;
        self
    }

    /// How waiters share a flush of the device. For measurements; the default is the one to use.
    pub fn flushing(mut self, flushing: Flushing) -> Self {
        self.flushing = flushing;
        self
    }

    /// The lock for requests on one file. For measurements; the default is the one to use.
    pub fn locking(mut self, locking: Locking) -> Self {
        self.locking = locking;
        self
    }
}
