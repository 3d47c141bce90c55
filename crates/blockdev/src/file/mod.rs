//! An image file or a block device of the host.
//!
//! Transfers bypass the host's page cache (O_DIRECT) where the host allows it for the sector size in use, and
//! go through it otherwise; [`FileDevice::host_io`] says which. A writable open holds the writer's lock until the
//! device and all its queues are gone.

pub(crate) mod blocking_io;
pub(crate) mod host;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use crate::check::Geometry;
use crate::flushes::Flushes;
use crate::lock::{self, Lock};
use crate::uring::UringQueue;
use crate::{BlockDevice, BlockingQueue, DeviceError, DevicePlace, Durability, IoQueue, Storage};

/// How the host transfers data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostIo {
    /// Straight to the storage (O_DIRECT).
    Direct,
    /// Through the host's page cache.
    Buffered,
}

/// How the queues of a [`FileDevice`] work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueKind {
    /// io_uring where the host has it, else blocking calls.
    #[default]
    Auto,
    /// io_uring, or an error.
    Uring,
    /// Blocking calls at submission.
    Blocking,
}

/// How a file or block device is opened.
#[derive(Clone, Debug)]
pub struct FileOptions {
    write: bool,
    keep_writers_out: bool,
    direct: bool,
    sector_size: Option<u32>,
    queue: QueueKind,
    in_memory: bool,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            write: false,
            keep_writers_out: false,
            direct: true,
            sector_size: None,
            queue: QueueKind::Auto,
            in_memory: false,
        }
    }
}

impl FileOptions {
    /// Reading only; O_DIRECT where possible; the host's sector size; io_uring where possible.
    pub fn new() -> Self {
        Self::default()
    }

    /// For a file in memory (tmpfs): almost a [`MemoryDevice`](crate::MemoryDevice), and safe whatever others do with
    /// the file. Reading only, by blocking calls through the page cache. Durable writes need no flush, unless the file
    /// turns out not to be in memory.
    pub fn in_memory() -> Self {
        Self { direct: false, queue: QueueKind::Blocking, in_memory: true, ..Self::default() }
    }

    /// Whether writes are allowed; a file that someone else has open for writing or locked is refused
    /// with [`DeviceError::Locked`], or with [`DeviceError::Attached`] if the loop device is known.
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// Whether to keep writers out while it is open for reading. Then a file that is being written is refused with
    /// [`DeviceError::BeingWritten`], and writers are refused with [`DeviceError::BeingRead`]. Programs that take no
    /// lock are not kept out.
    pub fn keep_writers_out(mut self, keep_out: bool) -> Self {
        self.keep_writers_out = keep_out;
        self
    }

    /// Whether to try O_DIRECT.
    pub fn direct(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }

    /// Presents sectors of this many bytes. For a file, smaller sectors than the host transfers directly mean
    /// buffered transfers; a block device cannot have smaller ones than its own.
    pub fn sector_size(mut self, bytes: u32) -> Self {
        self.sector_size = Some(bytes);
        self
    }

    /// How queues are made.
    pub fn queue_kind(mut self, kind: QueueKind) -> Self {
        self.queue = kind;
        self
    }

    /// Opens the file or block device at `path`.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<FileDevice, DeviceError> {
        let path = path.as_ref();
        let opened = host::open(path, self.write, self.direct)?;
        let has_fua = self.write && (self.in_memory || host::has_fua(opened.storage));
        let is_in_memory = host::is_tmpfs(&opened.file);
        let has_write_cache = !(self.in_memory && is_in_memory);
        let lock = match (self.write, self.keep_writers_out) {
            (true, _) => Some(host::keep_others_out(&opened, path)?),
            (false, true) => lock::lock_for_reading(&opened.file, opened.storage)?,
            (false, false) => None,
        };
        let sector = self.sector_size.unwrap_or(opened.sector_min.max(opened.direct_unit.unwrap_or(0)));
        if opened.is_block && sector < opened.sector_min {
            let why = format!("sectors of {sector} bytes on a disk whose sectors have {}", opened.sector_min);
            return Err(DeviceError::invalid(format!("opening {}", path.display()), why));
        }
        let geometry = Geometry::new(host::size(&opened.file)?, sector)?;
        let io = match opened.direct_unit {
            Some(unit) if unit <= sector => HostIo::Direct,
            Some(_) => {
                host::clear_direct(&opened.file)
                    .map_err(|e| DeviceError::setup(format!("opening {}", path.display()), e))?;
                HostIo::Buffered
            }
            None => HostIo::Buffered,
        };
        let (storage, read_only) = (opened.storage, !self.write);
        let (file, queue, flushes) = (opened.file, self.queue, Arc::default());
        let lock = lock.map(Arc::new);
        Ok(FileDevice {
            lock,
            file,
            storage,
            geometry,
            io,
            read_only,
            has_fua,
            has_write_cache,
            is_in_memory,
            queue,
            flushes,
        })
    }
}

/// An image file or a block device. See [`FileOptions`] for how to open one.
#[derive(Debug)]
pub struct FileDevice {
    /// Held until the last device of this file is gone.
    lock: Option<Arc<Lock>>,
    file: File,
    storage: Storage,
    geometry: Geometry,
    io: HostIo,
    read_only: bool,
    has_fua: bool,
    has_write_cache: bool,
    is_in_memory: bool,
    queue: QueueKind,
    flushes: Arc<Flushes>,
}

impl FileDevice {
    /// Opens for reading only. Another process may have it open for writing.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DeviceError> {
        FileOptions::new().open(path)
    }

    /// Opens for reading and writing, and keeps a second writer out.
    pub fn open_writable(path: impl AsRef<Path>) -> Result<Self, DeviceError> {
        FileOptions::new().write(true).open(path)
    }

    /// Whether transfers bypass the host's page cache.
    pub fn host_io(&self) -> HostIo {
        self.io
    }

    /// How long the file is now, which need not be a whole number of sectors.
    pub fn length(&self) -> Result<u64, DeviceError> {
        host::size(&self.file)
    }

    /// The first byte from `from` on that is not in a hole. `None`: the rest is a hole. If the host does not say, there
    /// are no holes.
    pub fn next_data(&self, from: u64) -> Option<u64> {
        host::next_data(&self.file, from)
    }

    /// Fails with [`DeviceError::Replaced`] if the file no longer has this name, so that writes to it are lost.
    pub fn check_name(&self, path: &Path) -> Result<(), DeviceError> {
        host::is_still_there(path, self.storage)
    }

    /// Sets the file's length, and gives a device of that size: a device keeps the size that it was opened with. Both
    /// hold the lock, so that no one else writes the file in between.
    pub fn with_length(&self, bytes: u64) -> Result<Self, DeviceError> {
        let failed = |e| DeviceError::setup("setting the file's length", e);
        let file = self.file.try_clone().map_err(failed)?;
        file.set_len(bytes).map_err(failed)?;
        let geometry = Geometry::new(bytes, self.sector_size())?;
        let (lock, flushes) = (self.lock.clone(), Arc::clone(&self.flushes));
        let Self { storage, io, read_only, has_fua, has_write_cache, is_in_memory, queue, .. } = *self;
        Ok(Self {
            lock,
            file,
            storage,
            geometry,
            io,
            read_only,
            has_fua,
            has_write_cache,
            is_in_memory,
            queue,
            flushes,
        })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// The file's flushes and durable writes.
    pub(crate) fn flushes(&self) -> &Flushes {
        &self.flushes
    }

    /// Checks a request, `write` or read.
    pub(crate) fn check(&self, offset: u64, len: usize, write: bool) -> Result<(), DeviceError> {
        if write && self.read_only {
            return Err(DeviceError::ReadOnly);
        }
        self.geometry.check(offset, len)
    }
}

impl BlockDevice for FileDevice {
    fn size(&self) -> u64 {
        self.geometry.size()
    }

    fn sector_size(&self) -> u32 {
        self.geometry.sector()
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn has_fua(&self) -> bool {
        self.has_fua
    }

    fn has_write_cache(&self) -> bool {
        self.has_write_cache
    }

    fn catches_panics(&self) -> bool {
        true
    }

    fn is_in_memory(&self) -> bool {
        self.is_in_memory
    }

    fn place(&self) -> DevicePlace {
        DevicePlace { storage: self.storage, start: 0, len: self.size() }
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.check(offset, buf.len(), false)?;
        blocking_io::read(&self.file, self.io, self.sector_size(), offset, buf)
    }

    fn write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        self.check(offset, buf.len(), true)?;
        let write = || blocking_io::write(&self.file, self.io, self.sector_size(), offset, buf, durability);
        match durability {
            Durability::Volatile => write(),
            Durability::Fua => self.flushes.carry_out(write),
        }
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if self.read_only {
            return Ok(());
        }
        self.flushes.carry_out(|| blocking_io::flush(&self.file))
    }

    fn queue(self: Arc<Self>, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        crate::blocking::check_depth(depth)?;
        if self.queue != QueueKind::Blocking {
            match UringQueue::new(Arc::clone(&self), depth) {
                Ok(queue) => return Ok(Box::new(queue)),
                Err(e) if self.queue == QueueKind::Uring => return Err(e),
                Err(_) => {}
            }
        }
        Ok(Box::new(BlockingQueue::new(self, depth)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AlignedBuf;
    use std::io;

    /// A queue of io_uring hands reads of such a file to threads of its own, which takes longer than the copy.
    #[test]
    fn a_file_on_tmpfs_is_in_memory() {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let device = FileOptions::new().open(file.path()).unwrap();
        assert_eq!(device.is_in_memory(), host::is_tmpfs(file.as_file()));
        let is_in_memory = device.is_in_memory();
        let device: Arc<dyn BlockDevice> = Arc::new(device);
        let part = crate::Window::new(crate::Caught::before(Arc::clone(&device)), 4096, None).unwrap();
        assert_eq!(part.is_in_memory(), is_in_memory);
        assert!(!crate::Counter::new(device).is_in_memory(), "whatever a wrapper does takes its time");
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let device = FileOptions::new().open(file.path()).unwrap();
        assert_eq!(device.is_in_memory(), host::is_tmpfs(file.as_file()));
    }

    #[test]
    fn holes_are_passed_over() {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        file.as_file().set_len(1 << 40).unwrap();
        let device = FileOptions::new().write(true).direct(false).open(file.path()).unwrap();
        assert_eq!(device.next_data(0), None);
        device.write(1 << 30, &[1; 512], Durability::Volatile).unwrap();
        assert_eq!(device.next_data(0), Some(1 << 30));
        assert_eq!(device.next_data((1 << 30) + 512), Some((1 << 30) + 512));
        assert_eq!(device.next_data(1 << 31), None);
        assert_eq!(device.next_data(1 << 41), None);
    }

    /// Even if the system, which reports an error once, now says that all is well.
    #[test]
    fn after_a_failed_flush_nothing_is_durable_any_more() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let device = Arc::new(FileOptions::new().write(true).open(file.path()).unwrap());
        device.flush().unwrap();
        let lost = || DeviceError::io("flush", 0, 0, io::Error::from(io::ErrorKind::StorageFull));
        let failed = device.flushes.carry_out(|| Err(lost())).unwrap_err();
        let same = |outcome: Result<(), DeviceError>| {
            assert_eq!(outcome.unwrap_err().to_string(), failed.to_string());
        };
        same(device.flush());
        same(device.write(0, &[1; 4096], Durability::Fua));
        device.write(0, &[1; 4096], Durability::Volatile).unwrap();
        device.read(0, &mut [0; 4096]).unwrap();
        let mut queue = Arc::clone(&device).queue(2).unwrap();
        for (durability, tag) in [(Durability::Volatile, 0), (Durability::Fua, 1)] {
            queue.push_write(0, AlignedBuf::zeroed(4096), durability, tag).unwrap();
        }
        let mut count = 0;
        let mut over = |completion: crate::Completion| {
            count += 1;
            if completion.tag == 0 { completion.result.unwrap() } else { same(completion.result) }
        };
        while queue.in_flight() > 0 {
            queue.wait(1, &mut over).unwrap();
        }
        assert_eq!(count, 2);
    }
}
