//! A heap buffer at a page-aligned address, fit for transfers that bypass the page cache.
//!
//! Invariants: `ptr` is the start of an allocation, of a mapping or of a large page, of `len` initialised bytes at
//! [`AlignedBuf::ALIGN`], owned by this value alone. An empty buffer owns nothing. Moving the buffer does not change
//! the address, so a queue may hold it while the host writes into it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;

use rustix::mm::munmap;

use crate::large_pages::{self, LARGE_PAGE};

/// A byte buffer whose address is a multiple of [`AlignedBuf::ALIGN`]. Derefs to `[u8]`.
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    len: usize,
    origin: Origin,
}

/// Where the bytes come from, and where they go when the buffer is dropped.
#[derive(Clone, Copy)]
enum Origin {
    Allocator,
    /// A mapping of its own.
    Mapping,
    /// A large page that is kept for the next buffer.
    LargePages,
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
            return Self { ptr: NonNull::dangling(), len, origin: Origin::Allocator };
        }
        let layout = Self::layout(len);
        // SAFETY: the layout's size is not 0.
        let ptr = unsafe { alloc_zeroed(layout) };
        match NonNull::new(ptr) {
            Some(ptr) => Self { ptr, len, origin: Origin::Allocator },
            None => handle_alloc_error(layout),
        }
    }

    /// A buffer of `len` zero bytes for random access: in large pages where the host has them, which saves address
    /// translations. Memory is taken at the first use, a large page at a time. A buffer smaller than a large page is an
    /// ordinary one.
    pub fn large(len: usize) -> Self {
        if len < LARGE_PAGE {
            return Self::zeroed(len);
        }
        match large_pages::map(len) {
            Ok(ptr) => Self { ptr, len, origin: Origin::Mapping },
            // There is a limit to mappings, for example.
            Err(_) => Self::zeroed(len),
        }
    }

    /// As [`large`](Self::large), but not cleared: it may hold what an earlier buffer left. For callers that read only
    /// what they have written.
    pub fn uncleared(len: usize) -> Self {
        let page = if len == LARGE_PAGE { large_pages::take().ok() } else { None };
        let mut buf = match page {
            Some(ptr) => Self { ptr, len, origin: Origin::LargePages },
            None => Self::large(len),
        };
        if cfg!(debug_assertions) {
            buf.fill(0xa5);
        }
        buf
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
        match self.origin {
            Origin::Mapping => {
                // SAFETY: the mapping was made with this address and length, and nothing refers to it any more.
                let unmapped = unsafe { munmap(self.ptr.as_ptr().cast(), self.len) };
                debug_assert!(unmapped.is_ok());
            }
            // SAFETY: nothing refers to the page any more.
            Origin::LargePages => unsafe { large_pages::give_back(self.ptr) },
            Origin::Allocator if self.len != 0 => {
                // SAFETY: `ptr` came from the allocator with this same layout and is freed once, here.
                unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.len)) }
            }
            Origin::Allocator => {}
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

    /// The allocator touched the first bytes before the host was advised, so the memory stayed in small pages.
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

    /// Whether the host was advised to use large pages.
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
