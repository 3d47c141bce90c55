//! Prefetches memory that is about to be used.

/// Bytes of a cache line.
const LINE: usize = 64;

/// Has the processor fetch the memory of `bytes` bytes at `from`, and returns at once. Any address will do, as nothing is read:
/// what is not there is left out.
#[inline]
pub fn prefetch_memory(from: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..bytes).step_by(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint, which neither reads nor faults, whatever the address.
        unsafe { _mm_prefetch(from.wrapping_add(at).cast(), _MM_HINT_T0) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, bytes, LINE);
}
