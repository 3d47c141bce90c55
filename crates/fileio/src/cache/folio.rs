//! A run of pages of one file in memory, and the state of each of its blocks.
//!
//! Invariants:
//! - the bytes of a block are read only while they are held in the file's range lock, shared or not, and changed only
//!   while they are held exclusively. The folio itself does not check that: hence `unsafe`. So copies of the same bytes
//!   never race, as those on a device in memory may, and ordinary copies are fine. This holds for every
//!   [`Locking`](crate::Locking): where writers share the lock of a whole file, only those that bypass the pages do;
//! - the content of a block that is not present must not be seen;
//! - a dirty block is present, and what its write-back needs is provided;
//! - marks of blocks that different threads hold share a word, so they are changed by atomic instructions.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use super::index::LARGE_PAGES;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use blockdev::AlignedBuf;

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Its bytes are those of the file.
    Present,
    /// They are newer than those on the device.
    Dirty,
    /// It has no space on the device yet, only a reservation.
    Delayed,
}

const MARKS: usize = 3;

/// Tells whether a folio still exists.
#[derive(Debug)]
pub(super) struct Trace(Weak<[AtomicU64]>);

impl Trace {
    /// Whether the folio is gone. An existing one may be about to go.
    pub(super) fn is_cold(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// See above.
#[derive(Debug)]
pub(super) struct Folio {
    first: u64,
    pages: u64,
    block_log: u32,
    blocks: usize,
    /// One bitmap per mark.
    marks: Arc<[AtomicU64]>,
    was_used: AtomicBool,
    start: NonNull<u8>,
    memory: AlignedBuf,
}

// SAFETY: the bytes behind `start` belong to `memory`, which the folio owns; who touches them says that they hold them.
unsafe impl Send for Folio {}
// SAFETY: as above; all else that a shared reference changes is atomic.
unsafe impl Sync for Folio {}

impl Folio {
    /// A folio of this many pages from page `first` on, with no block present.
    pub(super) fn new(first: u64, pages: u64, page_log: u32, block_log: u32) -> Self {
        let len = (pages << page_log) as usize;
        let blocks = len >> block_log;
        let mut memory = AlignedBuf::uncleared(len);
        let start = NonNull::from(&mut *memory).cast();
        let words = blocks.div_ceil(64) * MARKS;
        let marks = (0..words).map(|_| AtomicU64::new(0)).collect();
        Self { first, pages, block_log, blocks, marks, was_used: AtomicBool::new(false), start, memory }
    }

    /// Its trace, which tells others whether it still exists.
    pub(super) fn trace(&self) -> Trace {
        Trace(Arc::downgrade(&self.marks))
    }

    /// Its pages.
    pub(super) fn pages(&self) -> Range<u64> {
        self.first..self.first + self.pages
    }

    /// The address of a page's bytes.
    pub(super) fn bytes_of_page(&self, page: u64) -> *mut u8 {
        debug_assert!(self.pages().contains(&page), "one of its pages");
        let page_len = self.len() / self.pages as usize;
        self.start.as_ptr().wrapping_add((page - self.first) as usize * page_len)
    }

    /// Whether all of a page of it is present, and at `bytes`.
    pub(super) fn is_whole(&self, page: u64, bytes: NonNull<u8>) -> bool {
        self.bytes_of_page(page) == bytes.as_ptr() && self.all(Mark::Present, self.blocks_of_page(page))
    }

    /// Whether any block of a page of it has the mark.
    pub(super) fn any_of_page(&self, mark: Mark, page: u64) -> bool {
        self.any(mark, self.blocks_of_page(page))
    }

    fn blocks_of_page(&self, page: u64) -> Range<usize> {
        let blocks = self.blocks / self.pages as usize;
        let first = (page - self.first) as usize * blocks;
        first..first + blocks
    }

    /// Whether it has the maximum number of pages and is aligned to that.
    pub(super) fn is_large(&self) -> bool {
        self.pages == LARGE_PAGES && self.first.is_multiple_of(LARGE_PAGES)
    }

    /// Whether all of its blocks are present.
    pub(super) fn is_all_present(&self) -> bool {
        self.all(Mark::Present, 0..self.blocks)
    }

    /// Its length in bytes.
    pub(super) fn len(&self) -> usize {
        self.memory.len()
    }

    /// Notes that it was used, for eviction.
    #[inline]
    pub(super) fn note_use(&self) {
        if !self.was_used.load(Ordering::Relaxed) {
            self.was_used.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it was used since this was last called.
    pub(super) fn take_use(&self) -> bool {
        self.was_used.swap(false, Ordering::Relaxed)
    }

    /// The blocks that contain these bytes of the folio.
    #[inline]
    pub(super) fn blocks_of(&self, bytes: &Range<usize>) -> Range<usize> {
        bytes.start >> self.block_log..((bytes.end - 1) >> self.block_log) + 1
    }

    fn words(&self) -> usize {
        self.blocks.div_ceil(64)
    }

    #[inline]
    fn word(&self, mark: Mark, index: usize) -> &AtomicU64 {
        &self.marks[index * MARKS + mark as usize]
    }

    /// Whether all of `blocks` have the mark.
    #[inline]
    pub(super) fn all(&self, mark: Mark, blocks: Range<usize>) -> bool {
        words_of(blocks).all(|(index, bits)| self.word(mark, index).load(Ordering::Acquire) & bits == bits)
    }

    /// Whether any of `blocks` has the mark.
    pub(super) fn any(&self, mark: Mark, blocks: Range<usize>) -> bool {
        words_of(blocks).any(|(index, bits)| self.word(mark, index).load(Ordering::Acquire) & bits != 0)
    }

    /// Whether any block has the mark.
    pub(super) fn any_at_all(&self, mark: Mark) -> bool {
        self.any(mark, 0..self.blocks)
    }

    /// How many blocks from the first of `blocks` on are like that one.
    pub(super) fn run(&self, mark: Mark, blocks: Range<usize>) -> (bool, usize) {
        let is = self.all(mark, blocks.start..blocks.start + 1);
        let same = |at: &usize| self.all(mark, *at..*at + 1) == is;
        (is, blocks.clone().take_while(same).count())
    }

    /// From the first to the last of `blocks` that has the mark. Empty if none has.
    pub(super) fn span(&self, mark: Mark, blocks: Range<usize>) -> Range<usize> {
        let mut span = 0..0;
        for (index, bits) in words_of(blocks) {
            let marked = self.word(mark, index).load(Ordering::Acquire) & bits;
            if marked != 0 {
                let first = index * 64 + marked.trailing_zeros() as usize;
                span.start = if span.is_empty() { first } else { span.start };
                span.end = (index + 1) * 64 - marked.leading_zeros() as usize;
            }
        }
        span
    }

    /// The bytes of these blocks.
    pub(super) fn bytes_of_blocks(&self, blocks: &Range<usize>) -> Range<usize> {
        blocks.start << self.block_log..blocks.end << self.block_log
    }

    /// Sets a mark on blocks.
    pub(super) fn set(&self, mark: Mark, blocks: Range<usize>) {
        for (index, bits) in words_of(blocks) {
            self.word(mark, index).fetch_or(bits, Ordering::AcqRel);
        }
    }

    /// Clears a mark from blocks.
    pub(super) fn clear(&self, mark: Mark, blocks: Range<usize>) {
        for (index, bits) in words_of(blocks) {
            self.word(mark, index).fetch_and(!bits, Ordering::AcqRel);
        }
    }

    /// How many blocks have the mark.
    pub(super) fn count(&self, mark: Mark) -> u64 {
        let words = (0..self.words()).map(|index| self.word(mark, index).load(Ordering::Acquire));
        words.map(|word| u64::from(word.count_ones())).sum()
    }

    /// Fills `buf` from byte `at` on.
    ///
    /// # Safety
    /// The caller holds these bytes of the file.
    #[inline]
    pub(super) unsafe fn copy_out(&self, at: usize, buf: &mut [u8]) {
        // SAFETY: `bytes` checks the bounds, nobody changes bytes that are held, so that nothing races, and `buf` is the
        // caller's own.
        unsafe { std::ptr::copy_nonoverlapping(self.bytes(at, buf.len()), buf.as_mut_ptr(), buf.len()) }
    }

    /// Writes `buf` at byte `at`.
    ///
    /// # Safety
    /// The caller holds these bytes of the file exclusively.
    #[inline]
    pub(super) unsafe fn copy_in(&self, at: usize, buf: &[u8]) {
        // SAFETY: `bytes` checks the bounds, and nobody else looks at bytes that are held exclusively, so that nothing races.
        unsafe { std::ptr::copy_nonoverlapping(buf.as_ptr(), self.bytes(at, buf.len()), buf.len()) }
    }

    /// Zeroes `len` bytes from byte `at` on.
    ///
    /// # Safety
    /// The caller holds these bytes of the file exclusively.
    pub(super) unsafe fn zero(&self, at: usize, len: usize) {
        // SAFETY: `bytes` checks the bounds, and nobody else looks at bytes that are held exclusively.
        unsafe { std::ptr::write_bytes(self.bytes(at, len), 0, len) }
    }

    /// `len` bytes from byte `at` on, to be written to the device.
    ///
    /// # Safety
    /// The caller holds these bytes of the file as long as the slice lives.
    pub(super) unsafe fn slice(&self, at: usize, len: usize) -> &[u8] {
        // SAFETY: `bytes` checks the bounds, and nobody changes bytes that are held.
        unsafe { std::slice::from_raw_parts(self.bytes(at, len), len) }
    }

    /// `len` bytes from byte `at` on, to be read from the device.
    ///
    /// # Safety
    /// The caller holds these bytes of the file exclusively as long as the slice lives, and asks for them once.
    #[expect(clippy::mut_from_ref, reason = "the range lock says whose they are")]
    pub(super) unsafe fn slice_mut(&self, at: usize, len: usize) -> &mut [u8] {
        // SAFETY: `bytes` checks the bounds, and nobody else looks at bytes that are held exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.bytes(at, len), len) }
    }

    #[inline]
    fn bytes(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= self.memory.len() && len <= self.memory.len() - at, "outside of the folio");
        self.start.as_ptr().wrapping_add(at)
    }
}

/// Fills `buf` from byte `at` of a page on, whose bytes are at `page`.
///
/// # Safety
/// The page is one of a folio, the caller holds these bytes of the file, and they lie in the page.
#[inline]
pub(super) unsafe fn copy_out_of_page(page: NonNull<u8>, at: usize, buf: &mut [u8]) {
    // SAFETY: nobody changes bytes that are held, so that nothing races, and `buf` is the caller's own.
    unsafe { std::ptr::copy_nonoverlapping(page.as_ptr().add(at), buf.as_mut_ptr(), buf.len()) }
}

/// Writes `buf` at byte `at` of a page, whose bytes are at `page`.
///
/// # Safety
/// As for [`copy_out_of_page`], and the caller holds them exclusively.
#[inline]
pub(super) unsafe fn copy_into_page(page: NonNull<u8>, at: usize, buf: &[u8]) {
    // SAFETY: nobody else looks at bytes that are held exclusively, so that nothing races.
    unsafe { std::ptr::copy_nonoverlapping(buf.as_ptr(), page.as_ptr().add(at), buf.len()) }
}

/// The words of a bitmap with the bits `range`, and the bits of each.
#[inline]
fn words_of(range: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let words = range.start / 64..range.end.div_ceil(64);
    words.map(move |index| {
        let first = range.start.saturating_sub(index * 64);
        let end = (range.end - index * 64).min(64);
        (index, (u64::MAX >> (64 - (end - first))) << first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_begins_and_ends_with_what_has_the_mark() {
        let folio = Folio::new(0, 256, 12, 12);
        assert!(folio.span(Mark::Present, 0..256).is_empty());
        [3, 64, 70, 191, 200].iter().for_each(|&at| folio.set(Mark::Present, at..at + 1));
        let spans =
            [(0..256, 3..201), (4..200, 64..192), (64..65, 64..65), (71..191, 0..0), (192..256, 200..201)];
        for (of, expected) in spans {
            assert_eq!(folio.span(Mark::Present, of.clone()), expected, "of {of:?}");
        }
        assert_eq!(folio.bytes_of_blocks(&(3..5)), 3 << 12..5 << 12);
    }

    #[test]
    fn marks_are_those_of_the_blocks_that_got_them() {
        let folio = Folio::new(0, 64, 12, 10);
        folio.set(Mark::Present, 3..130);
        folio.set(Mark::Dirty, 64..65);
        assert!(folio.all(Mark::Present, 3..130) && !folio.all(Mark::Present, 2..4));
        assert!(!folio.any(Mark::Present, 130..256) && !folio.any(Mark::Present, 0..3));
        assert_eq!(folio.run(Mark::Present, 3..256), (true, 127));
        assert_eq!(folio.run(Mark::Present, 130..256), (false, 126));
        assert_eq!((folio.count(Mark::Present), folio.count(Mark::Dirty)), (127, 1));
        folio.clear(Mark::Present, 4..256);
        assert_eq!(folio.count(Mark::Present), 1);
        assert_eq!(folio.blocks_of(&(1023..1025)), 0..2);
    }

    #[test]
    fn bytes_go_in_and_come_out() {
        let folio = Folio::new(4, 1, 12, 12);
        let mut out = [0; 4];
        // SAFETY: nobody else has the folio.
        unsafe {
            folio.copy_in(4092, b"abcd");
            folio.zero(4093, 1);
            folio.copy_out(4092, &mut out);
        }
        assert_eq!(&out, b"a\0cd");
        assert_eq!(folio.pages(), 4..5);
    }

    #[test]
    #[should_panic(expected = "outside of the folio")]
    fn no_byte_outside_is_touched() {
        let folio = Folio::new(0, 1, 12, 12);
        // SAFETY: nobody else has the folio.
        unsafe { folio.zero(4095, 2) }
    }
}
