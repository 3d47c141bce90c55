//! A heap buffer at a page-aligned address, fit for transfers that bypass the page cache.
//!
//! Invariants: `ptr` is the start of an allocation of `len` initialised bytes at [`AlignedBuf::ALIGN`], owned by
//! this value alone; a buffer of no bytes owns nothing. The address never changes while the buffer moves, so
//! that a queue may hold it while the host writes into it.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;

use rustix::mm::{Advice, madvise};

/// A byte buffer whose address is a multiple of [`AlignedBuf::ALIGN`]. Derefs to `[u8]`.
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    len: usize,
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
            return Self { ptr: NonNull::dangling(), len };
        }
        let layout = Self::layout(len);
        // SAFETY: the layout's size is not 0.
        let ptr = unsafe { alloc_zeroed(layout) };
        match NonNull::new(ptr) {
            Some(ptr) => Self { ptr, len },
            None => handle_alloc_error(layout),
        }
    }

    /// A buffer of `len` zero bytes for random access: in large pages where the host has them, which spares
    /// address translations. All of it is written, hence takes memory, at once.
    pub fn large(len: usize) -> Self {
        if len == 0 {
            return Self::zeroed(0);
        }
        let layout = Self::layout(len);
        // SAFETY: the layout's size is not 0.
        let ptr = unsafe { alloc(layout) };
        let Some(ptr) = NonNull::new(ptr) else { handle_alloc_error(layout) };
        // Advice covers whole pages: what may be left of the last one does not matter.
        let whole = len & !(Self::ALIGN - 1);
        // SAFETY: the range lies in the allocation just made; the advice does not change its contents.
        let _advice_only = unsafe { madvise(ptr.as_ptr().cast(), whole, Advice::LinuxHugepage) };
        // SAFETY: the allocation has `len` bytes.
        unsafe { ptr.write_bytes(0, len) };
        Self { ptr, len }
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
        if self.len != 0 {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_zeroed_and_owned() {
        let makes = [AlignedBuf::zeroed, AlignedBuf::large];
        for (len, make) in
            [0, 1, 511, 512, 4096, 5 << 20].into_iter().flat_map(|len| makes.map(|make| (len, make)))
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
}
