//! Memory as a device: of its own, a copy of a file, or a file mapped into the address space (tmpfs, DAX).
//!
//! A request is a bounds check and a copy. Invariants: the mapping begins at a page, and has at least `geometry.size()`
//! bytes; once there is a device, they are touched through [`racing`] alone; they stay until it is dropped, as no one
//! else can take them away, or the caller has promised that no one does.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Result as HostResult;
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags, madvise, mmap, mmap_anonymous, msync, munmap};

use crate::check::{Geometry, SECTOR_BYTES_MIN};
use crate::file::host::{self, Opened};
use crate::flushes::Flushes;
use crate::lock::Lock;
use crate::memory_queue::MemoryQueue;
use crate::prefetch::prefetch_memory;
use crate::{BlockDevice, DeviceError, DevicePlace, Durability, IoQueue, Storage, racing};

/// How much of a request is prefetched before it starts: as much as the processor can fetch at once. It
/// finds the rest by itself once the copy runs.
const PREFETCH_BYTES: usize = 512;

/// The same for a request in a queue, while others are copied: enough for the processor to continue by itself.
const PREFETCH_QUEUED_BYTES: usize = 1024;

/// Requests are whole units of `racing`.
const _: () = assert!(SECTOR_BYTES_MIN as usize == racing::UNIT);

/// How a memory device is made.
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    sector_size: u32,
    huge_pages: bool,
    shmem: bool,
    write: bool,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self { sector_size: 512, huge_pages: false, shmem: false, write: true }
    }
}

impl MemoryOptions {
    /// 512-byte sectors, ordinary pages of this process, writable.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sectors of this many bytes.
    pub fn sector_size(mut self, bytes: u32) -> Self {
        self.sector_size = bytes;
        self
    }

    /// Asks the host for large pages, which saves address translations when requests are small and random.
    /// Advice: a host that has none ignores it.
    pub fn huge_pages(mut self, wanted: bool) -> Self {
        self.huge_pages = wanted;
        self
    }

    /// Whether anonymous memory is shared memory, like the pages of a file on tmpfs. It is a file without a name,
    /// sealed so that no one can truncate it.
    pub fn shmem(mut self, wanted: bool) -> Self {
        self.shmem = wanted;
        self
    }

    /// Whether a mapped file is opened for writing. Anonymous memory is always writable.
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// `size` bytes of zeroes. Memory is taken when it is first written.
    pub fn anonymous(&self, size: u64) -> Result<MemoryDevice, DeviceError> {
        let geometry = Geometry::new(size, self.sector_size)?;
        let mapping = self.own(geometry)?;
        Ok(MemoryDevice::new(mapping, geometry))
    }

    /// Anonymous memory with a copy of a file or a block device. Holes take no memory.
    pub fn copy_of(&self, path: impl AsRef<Path>) -> Result<MemoryDevice, DeviceError> {
        let path = path.as_ref();
        let failed = |e| DeviceError::setup(format!("reading {}", path.display()), e);
        let Opened { file, sector_min, .. } = host::open(path, false, false)?;
        let geometry = Geometry::new(host::size(&file)?, self.sector_size.max(sector_min))?;
        let mut mapping = self.own(geometry)?;
        let mut end = 0;
        while let Some(start) = host::next_data(&file, end).filter(|&start| start < geometry.size()) {
            end = host::next_hole(&file, start).unwrap_or(u64::MAX).min(geometry.size());
            let part = mapping.bytes().get_mut(start as usize..end as usize).filter(|part| !part.is_empty());
            let part = part.ok_or_else(|| failed(std::io::ErrorKind::UnexpectedEof.into()))?;
            file.read_exact_at(part, start).map_err(failed)?;
        }
        Ok(MemoryDevice::new(mapping, geometry))
    }

    /// A file, mapped: one on tmpfs, or on a file system with DAX. The file is opened and locked as by
    /// [`FileOptions::open`](crate::FileOptions::open).
    ///
    /// # Safety
    /// Until the device is dropped
    /// - no one truncates the file, in this process or another, and its file system neither fails to read it nor runs
    ///   out of space for a hole. The kernel sends `SIGBUS` to a process that touches a page it cannot provide, and
    ///   that ends the process. Locks do not prevent this: a program without locks can truncate a locked file;
    /// - no one in this process maps the file in another way or accesses another mapping.
    ///
    /// If you cannot promise that, use a [`FileDevice`](crate::FileDevice) with
    /// [`FileOptions::in_memory`](crate::FileOptions::in_memory), which is almost as fast, a
    /// [copy](Self::copy_of), or [shared memory](Self::shmem) without a name.
    pub unsafe fn map_file(&self, path: impl AsRef<Path>) -> Result<MemoryDevice, DeviceError> {
        let path = path.as_ref();
        let opened = host::open(path, self.write, false)?;
        let lock = self.write.then(|| host::keep_others_out(&opened, path)).transpose()?;
        let geometry = Geometry::new(host::size(&opened.file)?, self.sector_size.max(opened.sector_min))?;
        let what = || format!("mapping {}", path.display());
        let mapping = Mapping::of_file(&opened.file, mappable(geometry, what)?, self.write)
            .map_err(|e| DeviceError::setup(what(), e))?;
        self.advise(&mapping);
        let needs_sync = self.write && !host::is_tmpfs(&opened.file);
        let file = MappedFile { _lock: lock, _file: opened.file, storage: opened.storage, needs_sync };
        Ok(MemoryDevice { read_only: !self.write, file: Some(file), ..MemoryDevice::new(mapping, geometry) })
    }

    /// A mapping that is this process's own.
    fn own(&self, geometry: Geometry) -> Result<Mapping, DeviceError> {
        let what = || format!("mapping {} bytes of memory", geometry.size());
        let len = mappable(geometry, what)?;
        let mapping = if self.shmem { Mapping::shmem(len) } else { Mapping::anonymous(len) };
        let mapping = mapping.map_err(|e| DeviceError::setup(what(), e))?;
        self.advise(&mapping);
        Ok(mapping)
    }

    fn advise(&self, mapping: &Mapping) {
        if self.huge_pages {
            // SAFETY: the range is the mapping; the advice does not change its contents.
            let _advice_only =
                unsafe { madvise(mapping.base.as_ptr().cast(), mapping.len, Advice::LinuxHugepage) };
        }
    }
}

fn mappable(geometry: Geometry, what: impl Fn() -> String) -> Result<usize, DeviceError> {
    match usize::try_from(geometry.size()) {
        Ok(0) => Err(DeviceError::invalid(what(), "it has not one whole sector")),
        Ok(len) if len <= isize::MAX as usize => Ok(len),
        _ => Err(DeviceError::invalid(what(), "it does not fit into the address space")),
    }
}

/// A file without a name that no one can shrink.
fn sealed_file(len: usize) -> HostResult<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("uxfs-memory-device", flags)?);
    ftruncate(&file, len as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK)?;
    Ok(file)
}

/// Pages of memory, until it is dropped.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

impl Mapping {
    fn anonymous(len: usize) -> HostResult<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing that is in use.
        Ok(Self::at(unsafe { mmap_anonymous(std::ptr::null_mut(), len, prot, flags) }?, len))
    }

    fn shmem(len: usize) -> HostResult<Self> {
        Self::of_file(&sealed_file(len)?, len, true)
    }

    fn of_file(file: &File, len: usize, write: bool) -> HostResult<Self> {
        let prot = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing that is in use.
        Ok(Self::at(unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file, 0) }?, len))
    }

    fn at(base: *mut std::ffi::c_void, len: usize) -> Self {
        Self { base: NonNull::new(base.cast()).expect("the kernel maps nothing at address 0"), len }
    }

    /// The bytes of one that is writable and nobody else's yet.
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: they are there, zeroes or what was written since, and borrowed with `self`.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this address and length, and nothing refers to it any more.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

// SAFETY: the mapping is owned by this value and is not bound to a thread.
unsafe impl Send for Mapping {}
// SAFETY: of a shared one the bytes are touched through `racing` alone, which any number of threads may do at once.
unsafe impl Sync for Mapping {}

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
    mapping: Mapping,
    geometry: Geometry,
    read_only: bool,
    file: Option<MappedFile>,
    flushes: Flushes,
}

impl MemoryDevice {
    /// `size` bytes of zeroes with 512-byte sectors; memory is taken when it is first written.
    pub fn anonymous(size: u64) -> Result<Self, DeviceError> {
        MemoryOptions::new().anonymous(size)
    }

    fn new(mapping: Mapping, geometry: Geometry) -> Self {
        Self { mapping, geometry, read_only: false, file: None, flushes: Flushes::default() }
    }

    /// Where a byte is. It need not be inside.
    #[inline]
    fn at(&self, offset: u64) -> *mut u8 {
        self.mapping.base.as_ptr().wrapping_add(offset as usize)
    }

    /// Prefetches the first lines of a request that comes soon, if it lies inside.
    #[inline]
    pub(crate) fn prefetch_request(&self, offset: u64, len: usize) {
        let len = len.min(PREFETCH_QUEUED_BYTES);
        if self.geometry.check(offset, len).is_ok() {
            prefetch_memory(self.at(offset), len);
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
            let result = unsafe { msync(self.at(from as u64).cast(), len_paged, MsyncFlags::SYNC) };
            result.map_err(|e| DeviceError::io(op, offset, len, e))
        })
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

    fn place(&self) -> DevicePlace {
        let own = Storage::Memory(self.mapping.base.addr().get());
        let storage = self.file.as_ref().map_or(own, |file| file.storage);
        DevicePlace { storage, start: 0, len: self.size() }
    }

    #[inline]
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.geometry.check(offset, buf.len())?;
        // SAFETY: `check` put whole sectors inside the mapping, which begins at a page. Nobody in this program touches it but
        // through `racing`, where another thread may be writing the same bytes: then they are a mixture, as the trait says. No
        // Rust reference points into the mapping, so `buf` lies elsewhere.
        unsafe { racing::read(self.at(offset), buf) };
        Ok(())
    }

    #[inline]
    fn write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        if self.read_only {
            return Err(DeviceError::ReadOnly);
        }
        self.geometry.check(offset, buf.len())?;
        // SAFETY: as for `read`; the mapping is writable, as it is not `read_only`.
        unsafe { racing::write(buf, self.at(offset)) };
        if durability == Durability::Fua {
            self.sync("write", offset, buf.len())?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.sync("flush", 0, self.mapping.len)
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
            prefetch_memory(self.at(offset), PREFETCH_BYTES);
        }
    }

    fn queue(self: Arc<Self>, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        Ok(Box::new(MemoryQueue::new(self, depth)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn nobody_cuts_shared_memory_short() {
        let file = sealed_file(1 << 20).expect("memory");
        let refused = file.set_len((1 << 20) - 1).expect_err("it is sealed");
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
        let by_name = File::options().write(true).open(format!("/proc/self/fd/{}", file.as_raw_fd()));
        by_name.and_then(|other| other.set_len(0)).expect_err("it is sealed whoever has it open");
        assert_eq!(file.metadata().expect("it is there").len(), 1 << 20);
    }
}
