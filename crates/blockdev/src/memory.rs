//! Memory as a device: anonymous, or a file mapped into the address space (tmpfs, DAX).
//!
//! A request is a bounds check and a copy. Invariants: `base` is the start of a page, and stands for at least
//! `geometry.size()` mapped bytes until the device is dropped; once there is a device, they are touched through
//! [`racing`] alone.

use std::fs::File;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags, madvise, mmap, mmap_anonymous, msync, munmap};

use crate::check::{Geometry, SECTOR_BYTES_MIN};
use crate::file::host;
use crate::flushes::Flushes;
use crate::lock::Lock;
use crate::memory_queue::MemoryQueue;
use crate::prefetch::prefetch_memory;
use crate::{BlockDevice, DeviceError, Durability, IoQueue, Place, Storage, racing};

/// How much of a request is brought near before it starts: what the processor can wait for at once; it finds
/// the rest by itself once the copy runs.
const PREFETCH_BYTES: usize = 512;

/// How much of a request in a queue, while others are copied: enough for the processor to go on with the rest.
const PREFETCH_QUEUED_BYTES: usize = 1024;

/// Requests are whole units.
const _: () = assert!(SECTOR_BYTES_MIN as usize == racing::UNIT);

/// How a memory device is made.
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    sector_size: u32,
    huge_pages: bool,
    write: bool,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self { sector_size: 512, huge_pages: false, write: true }
    }
}

impl MemoryOptions {
    /// 512-byte sectors, ordinary pages, writable.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sectors of this many bytes.
    pub fn sector_size(mut self, bytes: u32) -> Self {
        self.sector_size = bytes;
        self
    }

    /// Asks the host for large pages, which spares address translations when requests are small and random.
    /// Advice: a host that has none ignores it.
    pub fn huge_pages(mut self, wanted: bool) -> Self {
        self.huge_pages = wanted;
        self
    }

    /// Whether a mapped file is opened for writing; anonymous memory always is.
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// `size` bytes of zeroes. Memory is taken when it is first written.
    pub fn anonymous(&self, size: u64) -> Result<MemoryDevice, DeviceError> {
        let geometry = Geometry::new(size, self.sector_size)?;
        let what = || format!("mapping {size} bytes of memory");
        let len = mappable(geometry, what)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing that is in use.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }
                .map_err(|e| DeviceError::setup(what(), e))?;
        Ok(self.finish(base, len, geometry, None))
    }

    /// A file, mapped: one on tmpfs, or on a file system with DAX. While the device lives, nobody may cut the
    /// file short: touching a page that is gone kills the process.
    pub fn map_file(&self, path: &Path) -> Result<MemoryDevice, DeviceError> {
        let what = || format!("mapping {}", path.display());
        let opened = host::open(path, self.write, false)?;
        let lock = self.write.then(|| host::keep_others_out(&opened, path)).transpose()?;
        let geometry = Geometry::new(host::size(&opened.file)?, self.sector_size.max(opened.sector_min))?;
        let len = mappable(geometry, what)?;
        let prot = if self.write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing that is in use.
        let base = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, &opened.file, 0) }
            .map_err(|e| DeviceError::setup(what(), e))?;
        let needs_sync = self.write && !host::is_tmpfs(&opened.file);
        Ok(self.finish(
            base,
            len,
            geometry,
            Some(MappedFile { _lock: lock, _file: opened.file, storage: opened.storage, needs_sync }),
        ))
    }

    fn finish(
        &self,
        base: *mut std::ffi::c_void,
        len: usize,
        geometry: Geometry,
        file: Option<MappedFile>,
    ) -> MemoryDevice {
        if self.huge_pages {
            // SAFETY: the range is the mapping just made; the advice does not change its contents.
            let _advice_only = unsafe { madvise(base, len, Advice::LinuxHugepage) };
        }
        let base = NonNull::new(base.cast()).expect("the kernel maps nothing at address 0");
        let read_only = file.is_some() && !self.write;
        MemoryDevice { base, len, geometry, read_only, file, flushes: Flushes::default() }
    }
}

fn mappable(geometry: Geometry, what: impl Fn() -> String) -> Result<usize, DeviceError> {
    match usize::try_from(geometry.size()) {
        Ok(0) => Err(DeviceError::invalid(what(), "it has not one whole sector")),
        Ok(len) if len <= isize::MAX as usize => Ok(len),
        _ => Err(DeviceError::invalid(what(), "it does not fit into the address space")),
    }
}

#[derive(Debug)]
struct MappedFile {
    /// The writer's, for as long as the device lives.
    _lock: Option<Lock>,
    _file: File,
    storage: Storage,
    /// Whether there is storage behind the pages (a tmpfs file has none).
    needs_sync: bool,
}

/// Memory that behaves as a device.
#[derive(Debug)]
pub struct MemoryDevice {
    base: NonNull<u8>,
    len: usize,
    geometry: Geometry,
    read_only: bool,
    file: Option<MappedFile>,
    flushes: Flushes,
}

// SAFETY: the mapping is owned by this value and is not bound to a thread.
unsafe impl Send for MemoryDevice {}
// SAFETY: the bytes are touched through `racing` alone, which any number of threads may do at once.
unsafe impl Sync for MemoryDevice {}

impl MemoryDevice {
    /// `size` bytes of zeroes with 512-byte sectors; memory is taken when it is first written.
    pub fn anonymous(size: u64) -> Result<Self, DeviceError> {
        MemoryOptions::new().anonymous(size)
    }

    /// A file, mapped for reading and writing; see [`MemoryOptions::map_file`].
    pub fn map_file(path: impl AsRef<Path>) -> Result<Self, DeviceError> {
        MemoryOptions::new().map_file(path.as_ref())
    }

    /// Asks for the first lines of a request that comes soon; of none that is not inside.
    #[inline]
    pub(crate) fn prefetch_request(&self, offset: u64, len: usize) {
        let len = len.min(PREFETCH_QUEUED_BYTES);
        if self.geometry.check(offset, len).is_ok() {
            prefetch_memory(self.base.as_ptr().wrapping_add(offset as usize), len);
        }
    }

    fn sync(&self, op: &'static str, offset: u64, len: usize) -> Result<(), DeviceError> {
        if !self.has_write_cache() || len == 0 {
            return Ok(());
        }
        // Ranges to sync start on a page, and hosts differ in how large these are.
        let from = offset as usize & !(rustix::param::page_size() - 1);
        let len_paged = offset as usize + len - from;
        self.flushes.carry_out(|| {
            // SAFETY: the range was checked to lie in the mapping, which lives as long as `self`.
            let result = unsafe { msync(self.base.as_ptr().add(from).cast(), len_paged, MsyncFlags::SYNC) };
            result.map_err(|e| DeviceError::io(op, offset, len, e))
        })
    }
}

impl Drop for MemoryDevice {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this address and length, and nothing refers to it any more.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

impl BlockDevice for MemoryDevice {
    fn size(&self) -> u64 {
        self.geometry.size()
    }

    fn sector_size(&self) -> u32 {
        self.geometry.sector()
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn catches_panics(&self) -> bool {
        true
    }

    fn place(&self) -> Place {
        let own = Storage::Memory(self.base.addr().get());
        let storage = self.file.as_ref().map_or(own, |file| file.storage);
        Place { storage, start: 0, len: self.size() }
    }

    #[inline]
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.geometry.check(offset, buf.len())?;
        // SAFETY: `check` put whole sectors inside the mapping, which begins at a page. Nobody in this program touches it but
        // through `racing`, where another thread may be writing the same bytes: then they are a mixture, as the trait says. No
        // Rust reference points into the mapping, so `buf` lies elsewhere.
        unsafe { racing::read(self.base.as_ptr().add(offset as usize), buf) };
        Ok(())
    }

    #[inline]
    fn write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        if self.read_only {
            return Err(DeviceError::ReadOnly);
        }
        self.geometry.check(offset, buf.len())?;
        // SAFETY: as for `read`; the mapping is writable, as it is not `read_only`.
        unsafe { racing::write(buf, self.base.as_ptr().add(offset as usize)) };
        if durability == Durability::Fua {
            self.sync("write", offset, buf.len())?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.sync("flush", 0, self.len)
    }

    fn has_fua(&self) -> bool {
        true
    }

    fn has_write_cache(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.needs_sync)
    }

    fn prefetches(&self) -> bool {
        true
    }

    #[inline]
    fn prefetch(&self, offset: u64) {
        let end = offset.checked_add(PREFETCH_BYTES as u64);
        if end.is_some_and(|end| end <= self.geometry.size()) {
            prefetch_memory(self.base.as_ptr().wrapping_add(offset as usize), PREFETCH_BYTES);
        }
    }

    fn queue(self: Arc<Self>, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        Ok(Box::new(MemoryQueue::new(self, depth)?))
    }
}
