//! Memory in the host's large pages, kept for reuse.
//!
//! It comes in long mappings that stay: to map, advise and unmap each page would stop all threads that touch new
//! memory. A few pages keep their memory, since the host must clear each large page that it gives.
//!
//! Invariant: a page is either in use or in exactly one of the lists.

use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Result as HostResult;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes of the host's large pages.
pub(crate) const LARGE_PAGE: usize = 2 << 20;
/// Pages that are mapped at a time. Those that nobody has used take no memory.
const MAPPED: usize = 128;
/// Unused pages that keep their memory.
const WARM_MAX: usize = 8;

/// The unused pages.
struct Spare {
    /// Still holding old data.
    warm: Vec<Page>,
    /// Without memory.
    cold: Vec<Page>,
}

/// One page: its first byte.
struct Page(NonNull<u8>);

// SAFETY: it stands for memory of the process that nobody else refers to.
unsafe impl Send for Page {}

static SPARE: Mutex<Spare> = Mutex::new(Spare { warm: Vec::new(), cold: Vec::new() });

fn spare() -> MutexGuard<'static, Spare> {
    // A panic cannot leave the lists half changed.
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A page for the caller, until it is given back. It holds zeroes or old data.
pub(crate) fn take() -> HostResult<NonNull<u8>> {
    let mut spare = spare();
    if let Some(page) = spare.warm.pop().or_else(|| spare.cold.pop()) {
        return Ok(page.0);
    }
    let first = map(MAPPED * LARGE_PAGE)?;
    for index in (1..MAPPED).rev() {
        // SAFETY: that page is part of the mapping.
        spare.cold.push(Page(unsafe { first.add(index * LARGE_PAGE) }));
    }
    Ok(first)
}

/// Gives back what [`take`] gave.
///
/// # Safety
/// Nothing refers to the page any more, and it is given back once.
pub(crate) unsafe fn give_back(page: NonNull<u8>) {
    let mut spare_now = spare();
    if spare_now.warm.len() < WARM_MAX {
        return spare_now.warm.push(Page(page));
    }
    drop(spare_now);
    // SAFETY: the page is part of a mapping, and its content nobody's. Where it cannot be let go it stays as it is.
    let _stays_or_goes = unsafe { madvise(page.as_ptr().cast(), LARGE_PAGE, Advice::LinuxDontNeed) };
    spare().cold.push(Page(page));
}

/// A mapping of `len` zero bytes, from the beginning of a large page on. Memory from an allocator may have been
/// touched: then it stays in small pages.
pub(crate) fn map(len: usize) -> HostResult<NonNull<u8>> {
    let flags = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // Current hosts choose such an address by themselves. In a longer mapping, some part begins at
    // one.
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
        // The rest was never touched, and takes no memory.
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
    use std::collections::BTreeSet;

    /// A page has one user at a time, and comes back after it was given back.
    #[test]
    fn a_page_is_one_owners() {
        let threads: Vec<_> = (0..4u8)
            .map(|mine| {
                std::thread::spawn(move || {
                    for _ in 0..20 {
                        let pages: Vec<_> = (0..12).map(|_| take().unwrap()).collect();
                        let different: BTreeSet<_> = pages.iter().collect();
                        assert_eq!(different.len(), pages.len());
                        for page in &pages {
                            assert_eq!(page.addr().get() % LARGE_PAGE, 0);
                            // SAFETY: the page is this thread's.
                            unsafe { page.write_bytes(mine, 8192) };
                        }
                        for page in pages {
                            // SAFETY: as above, and it is not used behind this.
                            unsafe {
                                assert!(
                                    std::slice::from_raw_parts(page.as_ptr(), 8192)
                                        .iter()
                                        .all(|&b| b == mine)
                                );
                                give_back(page);
                            }
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(spare().warm.len() <= WARM_MAX);
    }
}
