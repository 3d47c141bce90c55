//! A heap buffer at a page-aligned address, fit for transfers that bypass the page cache.
//!
//! Invariants: `ptr` is the start of an allocation, or of a mapping, of `len` initialised bytes at [`AlignedBuf::ALIGN`], owned
//! by this value alone; a buffer of no bytes owns nothing. The address never changes while the buffer moves, so
//! that a queue may hold it while the host writes into it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;

use rustix::io::Result as HostResult;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes of the host's large pages.
const LARGE_PAGE: usize = 2 << 20;

/// A byte buffer whose address is a multiple of [`AlignedBuf::ALIGN`]. Derefs to `[u8]`.
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    len: usize,
    /// Whether it is a mapping of its own.
    is_mapped: bool,
}

// SAFETY: the buffer owns its bytes alone, as a Box<[u8]> does, and u8 is Send.
unsafe impl Send for AlignedBuf {}
// SAFETY: a shared reference gives only shared access to the bytes, as a Box<[u8]> does.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// Alignment of every buffer, in bytes.
    pub const ALIGN: usize = 4096;

    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        if len == 0 {
            return Self { ptr: NonNull::dangling(), len, is_mapped: false };
        }
        let layout = Self::layout(len);
        // SAFETY: the layout's size is not 0.
        let ptr = unsafe { alloc_zeroed(layout) };
        match NonNull::new(ptr) {
            Some(ptr) => Self { ptr, len, is_mapped: false },
            None => handle_alloc_error(layout),
        }
    }

    /// A buffer of `len` zero bytes for random access: in large pages where the host has them, which spares
    /// address translations. It takes memory where it is used for the first time, a large page at once; one that is smaller
    /// than that is as any other.
    pub fn large(len: usize) -> Self {
        if len < LARGE_PAGE {
            return Self::zeroed(len);
        }
        match map_large(len) {
            Ok(ptr) => Self { ptr, len, is_mapped: true },
            // As many mappings as there may be, say.
            Err(_) => Self::zeroed(len),
        }
    }

    /// A buffer that holds a copy of `bytes`.
    pub fn copied(bytes: &[u8]) -> Self {
        let mut buf = Self::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// The address, for a host that fills or reads the buffer while its owner holds it.
    pub(crate) fn as_raw(&mut self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, Self::ALIGN).expect("a buffer is smaller than the address space")
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.is_mapped {
            // SAFETY: the mapping was made with this address and length, and nothing refers to it any more.
            let unmapped = unsafe { munmap(self.ptr.as_ptr().cast(), self.len) };
            debug_assert!(unmapped.is_ok());
        } else if self.len != 0 {
            // SAFETY: `ptr` came from the allocator with this same layout and is freed once, here.
            unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.len)) }
        }
    }
}

impl std::ops::Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr` stands for `len` initialised bytes (none: dangling is allowed), borrowed with `self`.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl std::ops::DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Clone for AlignedBuf {
    fn clone(&self) -> Self {
        Self::copied(self)
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf").field("len", &self.len).finish_non_exhaustive()
    }
}

/// A mapping of `len` zero bytes, from the beginning of a large page on. An allocator may have touched what it gives: then it
/// is in small pages for good.
fn map_large(len: usize) -> HostResult<NonNull<u8>> {
    let flags = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // Hosts of today choose such an address unasked; of a longer mapping some part begins at one.
    let mut extra = 0;
    let (base, start) = loop {
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing that is in use.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len + extra, flags.0, flags.1) }?;
        let start = base.addr().next_multiple_of(LARGE_PAGE) - base.addr();
        if start <= extra {
            break (base.cast::<u8>(), start);
        }
        // SAFETY: nobody has seen the mapping just made.
        unsafe { munmap(base, len + extra) }?;
        extra = LARGE_PAGE;
    };
    let pages = len.next_multiple_of(rustix::param::page_size());
    // SAFETY: these parts of the mapping just made lie before and behind what is given; the advice does not change its contents.
    unsafe {
        // What stays there was never touched, and takes no memory.
        if start > 0 {
            let _stays_or_goes = munmap(base.cast(), start);
        }
        if extra > start {
            let _stays_or_goes = munmap(base.wrapping_add(start + pages).cast(), extra - start);
        }
        let _advice_only = madvise(base.wrapping_add(start).cast(), pages, Advice::LinuxHugepage);
    }
    Ok(NonNull::new(base.wrapping_add(start)).expect("the kernel maps nothing at address 0"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    #[test]
    fn aligned_zeroed_and_owned() {
        let makes = [AlignedBuf::zeroed, AlignedBuf::large];
        for (len, make) in [0, 1, 511, 512, 4096, 2 << 20, (5 << 20) + 9]
            .into_iter()
            .flat_map(|len| makes.map(|make| (len, make)))
        {
            let mut buf = make(len);
            assert_eq!(buf.len(), len);
            assert!(buf.iter().all(|&b| b == 0));
            if len > 0 {
                assert_eq!(buf.as_ptr() as usize % AlignedBuf::ALIGN, 0);
                buf[len - 1] = 9;
            }
            let moved = std::thread::spawn(move || buf).join().unwrap();
            assert_eq!(moved.last().copied().unwrap_or(9), 9);
            assert_eq!(&moved.clone()[..], &moved[..]);
        }
    }

    /// An allocator's memory was touched in its first bytes before the host was told, and stayed in small pages.
    #[test]
    fn large_buffers_are_whole_large_pages_that_nobody_has_touched() {
        for len in [LARGE_PAGE, LARGE_PAGE * 2 + 9, LARGE_PAGE * 3] {
            let buf = AlignedBuf::large(len);
            assert_eq!(buf.as_ptr() as usize % LARGE_PAGE, 0);
            assert!(!is_touched(&buf), "it takes memory when it is used");
            assert!(is_advised(&buf) || !Path::new("/sys/kernel/mm/transparent_hugepage").exists());
        }
    }

    /// Whether any page of a buffer is in memory.
    fn is_touched(buf: &AlignedBuf) -> bool {
        let pages = File::open("/proc/self/pagemap").unwrap();
        let size = rustix::param::page_size();
        let mut entries = vec![0; buf.len().div_ceil(size) * 8];
        pages.read_exact_at(&mut entries, (buf.ptr.addr().get() / size * 8) as u64).unwrap();
        entries.chunks_exact(8).any(|entry| entry[7] & 0x80 != 0)
    }

    /// Whether the host was told that large pages are wanted.
    fn is_advised(buf: &AlignedBuf) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_it = false;
        for line in maps.lines() {
            let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
            if let Some((start, end)) = first.split_once('-') {
                let at = |text| usize::from_str_radix(text, 16).unwrap();
                is_it = (at(start)..at(end)).contains(&buf.ptr.addr().get());
            }
            if is_it && first == "VmFlags:" {
                return rest.split(' ').any(|flag| flag == "hg");
            }
        }
        panic!("no mapping has it");
    }
}
