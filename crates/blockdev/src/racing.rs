//! Copies between a buffer and memory that others may be copying to or from at the same time.
//!
//! A disk may be asked for sectors that it is just writing, and so may a device in memory. It keeps no order. In Rust
//! an ordinary copy that races with another is undefined behaviour on any machine. So the shared side is touched in
//! two ways only, both of which are defined:
//! - on x86-64 by assembly, about which the compiler knows only that it accesses memory. It stands for a relaxed atomic
//!   access to each byte, in any order. The machine's moves of any width are that: no byte is ever torn;
//! - elsewhere, and under Miri, by relaxed atomic accesses of whole words. They are always the same words: offsets and lengths
//!   are whole sectors, so that no access of another size ever overlaps one.
//!
//! Invariant: a program has one of the two for all of its shared memory. The buffer is the caller's alone, and may lie at any
//! address.
//!
//! `cargo run --release --example copies` times them beside an ordinary copy.

/// What a copy's length is a multiple of, in bytes, and what its shared side is aligned to: the smallest sector.
pub(crate) const UNIT: usize = 512;

/// Fills `buf` from shared memory.
///
/// # Safety
/// `from` is a multiple of [`UNIT`] and stands for `buf.len()` readable bytes, which is another one; all who touch these do it
/// through this module, or are no part of this program. None of them lies in `buf`.
#[inline]
pub(crate) unsafe fn read(from: *const u8, buf: &mut [u8]) {
    debug_assert!(from.addr().is_multiple_of(UNIT) && buf.len().is_multiple_of(UNIT));
    // SAFETY: the caller's promise.
    unsafe { way::read(from, buf) }
}

/// Writes `buf` into shared memory.
///
/// # Safety
/// As for [`read`], and the bytes at `to` are writable.
#[inline]
pub(crate) unsafe fn write(buf: &[u8], to: *mut u8) {
    debug_assert!(to.addr().is_multiple_of(UNIT) && buf.len().is_multiple_of(UNIT));
    // SAFETY: the caller's promise.
    unsafe { way::write(buf, to) }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
use assembly as way;
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
use words as way;

/// Loops of vector moves. `rep movsb` takes three times as long for a sector, and many times as long to a buffer that is not
/// aligned as its source is, on some of today's processors.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod assembly {
    use std::arch::asm;

    /// As [`super::read`].
    #[inline]
    pub(super) unsafe fn read(from: *const u8, buf: &mut [u8]) {
        // SAFETY: the caller's promise.
        unsafe { copy(from, buf.as_mut_ptr(), buf.len()) }
    }

    /// As [`super::write`].
    #[inline]
    pub(super) unsafe fn write(buf: &[u8], to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { copy(buf.as_ptr(), to, buf.len()) }
    }

    /// Copies `len` bytes, a multiple of [`super::UNIT`], which lie apart.
    #[inline]
    unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        if len == 0 {
            return;
        }
        if std::arch::is_x86_feature_detected!("avx") {
            // SAFETY: the processor has AVX, `len` is not 0, and the rest is the caller's promise.
            unsafe { by_avx(from, to, len) }
        } else {
            // SAFETY: `len` is not 0, and the rest is the caller's promise.
            unsafe { by_sse(from, to, len) }
        }
    }

    /// As `copy`, where there is AVX, of 128 bytes or a multiple.
    #[inline(never)]
    unsafe fn by_avx(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: each round reads and writes 128 bytes that the caller has promised, until none are left, and uses no stack.
        // The end clears the upper halves of all vector registers, all of which are declared as
        // clobbered.
        unsafe {
            asm!(
                "2:",
                "vmovdqu ymm0, [{from}]",
                "vmovdqu ymm1, [{from} + 32]",
                "vmovdqu ymm2, [{from} + 64]",
                "vmovdqu ymm3, [{from} + 96]",
                "vmovdqu [{to}], ymm0",
                "vmovdqu [{to} + 32], ymm1",
                "vmovdqu [{to} + 64], ymm2",
                "vmovdqu [{to} + 96], ymm3",
                "sub {from}, -128",
                "sub {to}, -128",
                "add {left}, -128",
                "jnz 2b",
                "vzeroupper",
                from = inout(reg) from => _,
                to = inout(reg) to => _,
                left = inout(reg) len => _,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(nostack),
            );
        }
    }

    /// As `copy`, of 64 bytes or a multiple.
    #[inline(never)]
    pub(super) unsafe fn by_sse(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: each round reads and writes 64 bytes that the caller has promised, until none are left, and uses no stack.
        unsafe {
            asm!(
                "2:",
                "movups xmm0, [{from}]",
                "movups xmm1, [{from} + 16]",
                "movups xmm2, [{from} + 32]",
                "movups xmm3, [{from} + 48]",
                "movups [{to}], xmm0",
                "movups [{to} + 16], xmm1",
                "movups [{to} + 32], xmm2",
                "movups [{to} + 48], xmm3",
                "add {from}, 64",
                "add {to}, 64",
                "sub {left}, 64",
                "jnz 2b",
                from = inout(reg) from => _,
                to = inout(reg) to => _,
                left = inout(reg) len => _,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                options(nostack),
            );
        }
    }
}

/// Relaxed atomic words.
#[cfg(any(test, not(all(target_arch = "x86_64", not(miri)))))]
mod words {
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Bytes of a word.
    const WORD: usize = size_of::<AtomicUsize>();

    /// As [`super::read`].
    #[inline]
    pub(super) unsafe fn read(from: *const u8, buf: &mut [u8]) {
        // SAFETY: the caller's promise.
        let words = unsafe { words(from, buf.len()) };
        for (word, bytes) in words.iter().zip(buf.chunks_exact_mut(WORD)) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
    }

    /// As [`super::write`].
    #[inline]
    pub(super) unsafe fn write(buf: &[u8], to: *mut u8) {
        // SAFETY: the caller's promise.
        let words = unsafe { words(to, buf.len()) };
        for (word, bytes) in words.iter().zip(buf.chunks_exact(WORD)) {
            word.store(usize::from_ne_bytes(bytes.try_into().expect("a word")), Ordering::Relaxed);
        }
    }

    /// Shared memory as words. They are stored to only if the memory is writable.
    #[inline]
    unsafe fn words<'a>(at: *const u8, len: usize) -> &'a [AtomicUsize] {
        // SAFETY: the bytes are there and aligned for longer than the copy takes, and touched as atomic words alone: the
        // caller's promise. A reference to atomics allows others to change them.
        unsafe { std::slice::from_raw_parts(at.cast(), len / WORD) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    /// Memory that threads share.
    struct Shared(NonNull<u8>, usize);

    // SAFETY: it is touched through this module alone.
    unsafe impl Sync for Shared {}

    impl Shared {
        fn new(len: usize) -> Self {
            // SAFETY: `len` is not 0 in any test.
            Self(NonNull::new(unsafe { alloc_zeroed(Self::layout(len)) }).expect("memory"), len)
        }

        fn layout(len: usize) -> Layout {
            Layout::from_size_align(len, UNIT).expect("little")
        }

        fn at(&self, at: usize, len: usize) -> *mut u8 {
            assert!(at + len <= self.1);
            // SAFETY: it lies inside.
            unsafe { self.0.as_ptr().add(at) }
        }

        fn read(&self, at: usize, buf: &mut [u8]) {
            // SAFETY: `at` checks the bounds, and no buffer lies in it.
            unsafe { read(self.at(at, buf.len()), buf) }
        }

        fn write(&self, at: usize, buf: &[u8]) {
            // SAFETY: as above.
            unsafe { write(buf, self.at(at, buf.len())) }
        }
    }

    impl Drop for Shared {
        fn drop(&mut self) {
            // SAFETY: it was made so, and nobody has it any more.
            unsafe { dealloc(self.0.as_ptr(), Self::layout(self.1)) }
        }
    }

    /// A name, and the functions that copy out and in.
    type Way = (&'static str, unsafe fn(*const u8, &mut [u8]), unsafe fn(&[u8], *mut u8));

    /// The ways that this machine has.
    fn ways() -> Vec<Way> {
        let mut ways = assemblies();
        ways.push(("words", words::read, words::write));
        ways
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn assemblies() -> Vec<Way> {
        unsafe fn read(from: *const u8, buf: &mut [u8]) {
            // SAFETY: the caller's promise, and no test has an empty buffer.
            unsafe { assembly::by_sse(from, buf.as_mut_ptr(), buf.len()) }
        }
        unsafe fn write(buf: &[u8], to: *mut u8) {
            // SAFETY: as above.
            unsafe { assembly::by_sse(buf.as_ptr(), to, buf.len()) }
        }
        vec![("sse", read, write), ("as found", assembly::read, assembly::write)]
    }

    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    fn assemblies() -> Vec<Way> {
        Vec::new()
    }

    /// Buffers at every place in a line, and nothing is touched around them, nor around the shared bytes.
    #[test]
    fn bytes_are_copied_and_none_beside_them_whatever_the_buffers_address() {
        const UNITS: usize = if cfg!(miri) { 2 } else { 5 };
        const FRAME: usize = 64;
        let places = if cfg!(miri) { vec![0, 1, 7, 8] } else { Vec::from_iter(0..FRAME) };
        for (name, read, write) in ways() {
            for (place, units) in
                places.iter().flat_map(|&place| (1..=UNITS).map(move |units| (place, units)))
            {
                let len = units * UNIT;
                let shared = Shared::new((UNITS + 2) * UNIT);
                let model: Vec<u8> = (0..len).map(|at| (at * 7 + at / 256 + place) as u8 | 1).collect();
                let mut room = vec![0; len + 2 * FRAME];
                room[place..place + len].copy_from_slice(&model);
                // SAFETY: a unit lies before and behind.
                unsafe { write(&room[place..place + len], shared.at(UNIT, len)) };
                let mut whole = vec![9; shared.1];
                shared.read(0, &mut whole);
                assert!(whole[UNIT..][..len] == model, "{name}, {len} bytes, {place}");
                assert!(whole[..UNIT].iter().chain(&whole[UNIT + len..]).all(|&byte| byte == 0), "{name}");
                room.fill(0);
                // SAFETY: as above.
                unsafe { read(shared.at(UNIT, len), &mut room[place..place + len]) };
                assert!(room[place..place + len] == model, "{name}, {len} bytes, {place}");
                assert!(room[..place].iter().chain(&room[place + len..]).all(|&byte| byte == 0), "{name}");
            }
        }
        let shared = Shared::new(UNIT);
        shared.read(0, &mut []);
        shared.write(0, &[]);
    }

    /// Threads that keep no order: each byte is from one of the writes. Under Miri and ThreadSanitizer, no race is found.
    #[test]
    fn racing_copies_give_a_mixture() {
        const LEN: usize = 4 * UNIT;
        let rounds = if cfg!(miri) { 20 } else { 2000 };
        for (name, read, write) in ways() {
            let shared = &Shared::new(LEN);
            std::thread::scope(|scope| {
                for value in [0x11, 0x77] {
                    scope.spawn(move || {
                        for round in 0..rounds {
                            // Parts and the whole, which overlap.
                            let at = round % 4 * UNIT;
                            let bytes = vec![value; LEN - at];
                            // SAFETY: `at` checks the bounds.
                            unsafe { write(&bytes, shared.at(at, bytes.len())) };
                        }
                    });
                    scope.spawn(move || {
                        let mut buf = vec![0; LEN + 3];
                        for _ in 0..rounds {
                            // SAFETY: as above.
                            unsafe { read(shared.at(0, LEN), &mut buf[3..]) };
                            let known = |byte: &u8| [0, 0x11, 0x77].contains(byte);
                            assert!(buf[3..].iter().all(known), "{name}");
                        }
                    });
                }
            });
        }
    }
}
