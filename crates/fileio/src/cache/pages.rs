//! The pages of one file in memory, and the file's end as seen through them.
//!
//! Invariants:
//! - bytes of a present block past the end of the file are zeroes;
//! - a page is marked in the index, and counted in the file's and the pool's dirty bytes, if and only if it has a dirty
//!   block. Whoever makes it dirty or clean updates these one after the other, while holding those blocks exclusively,
//!   or all of the page against writers and other write-back. So they agree for whoever holds all of a page in one of
//!   these ways;
//! - the file's end in memory is the same as on the device or behind it. In the latter case some page past the end on
//!   the device is dirty, or its write-back is about to tell the map.
//!
//! Offsets and lengths are bytes of the file.

use std::ops::Range;
use std::sync::{Arc, Weak};

use blockdev::prefetch_memory;

use super::counted::{self, Mutex};
use super::folio::{self, Folio, Mark};
use super::index::{Changing, Index, LARGE_PAGES};
use super::pool::{CachedFile, PageCache};
use crate::sync::atomic::{AtomicU64, Ordering};

/// Log2 of the page size, unless blocks are larger.
const PAGE_LOG_MIN: u32 = 12;
/// Maximum folio size in bytes: the size of the host's large pages.
const FOLIO_BYTES_MAX: u64 = LARGE_PAGES << PAGE_LOG_MIN;
const _: () = assert!(cfg!(shuttle) || FOLIO_BYTES_MAX == 2 << 20);
/// How much of a request is prefetched: only its beginning. More would delay the memory of the lock itself.
const PREFETCH_BYTES_MAX: usize = 256;

/// See above.
#[derive(Debug)]
pub(super) struct Pages {
    pool: Arc<PageCache>,
    index: Index,
    change: Mutex<()>,
    page_log: u32,
    block_log: u32,
    size: AtomicU64,
    dirty: AtomicU64,
}

impl Pages {
    pub(super) fn new(pool: Arc<PageCache>, block_size: u32) -> Self {
        let block_log = block_size.trailing_zeros();
        let page_log = block_log.max(PAGE_LOG_MIN);
        let (size, dirty) = (AtomicU64::new(0), AtomicU64::new(0));
        Self {
            pool,
            index: Index::new(),
            change: Mutex::new(&counted::FOLIOS, ()),
            page_log,
            block_log,
            size,
            dirty,
        }
    }

    pub(super) fn pool(&self) -> &Arc<PageCache> {
        &self.pool
    }

    /// The file's size for readers of the pages.
    #[inline]
    pub(super) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// The caller exclusively holds the block with the end, and that with the new end.
    pub(super) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    pub(super) fn page_size(&self) -> u64 {
        1 << self.page_log
    }

    fn page_of(&self, offset: u64) -> u64 {
        offset >> self.page_log
    }

    /// The whole pages that contain a range.
    pub(super) fn pages_around(&self, range: &Range<u64>) -> Range<u64> {
        let mask = self.page_size() - 1;
        range.start & !mask..range.end.saturating_add(mask) & !mask
    }

    /// The whole blocks that contain a range.
    pub(super) fn blocks_around(&self, range: &Range<u64>) -> Range<u64> {
        let mask = (1u64 << self.block_log) - 1;
        range.start & !mask..range.end.saturating_add(mask) & !mask
    }

    /// Whether any page is dirty.
    #[inline]
    pub(super) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::SeqCst) > 0
    }

    /// The first byte of the first dirty page from that of `offset` on. Needs no hold; the answer may be outdated.
    pub(super) fn next_dirty(&self, offset: u64) -> Option<u64> {
        if !self.is_dirty() {
            return None;
        }
        self.index.next_dirty(self.page_of(offset)).map(|page| page << self.page_log)
    }

    /// Whether any page in `range` is dirty. Needs no hold.
    pub(super) fn is_dirty_in(&self, range: &Range<u64>) -> bool {
        self.next_dirty(range.start).is_some_and(|at| at < range.end)
    }

    /// The folio with byte `offset`, the byte's position in it, and how many of `len` bytes from there it has.
    ///
    /// # Safety
    /// As for [`Index::folio`].
    #[inline]
    unsafe fn find(&self, offset: u64, len: usize) -> Option<(&Folio, usize, usize)> {
        // SAFETY: the caller's promise.
        let folio = unsafe { self.index.folio(self.page_of(offset)) }?;
        let at = (offset - (folio.pages().start << self.page_log)) as usize;
        Some((folio, at, len.min(folio.len() - at)))
    }

    /// Makes the processor prefetch bytes in memory, from at most one page, while their range is being locked: both
    /// take long if another processor used them last. Needs no hold.
    #[inline]
    pub(super) fn prefetch(&self, offset: u64, len: usize) {
        if let Some(page) = self.index.address_of_whole(self.page_of(offset), self.page_log) {
            prefetch_memory(page.wrapping_add(self.in_page(offset)), len.min(PREFETCH_BYTES_MAX));
        }
    }

    /// Copies what is present from byte `offset` on, up to the first block that is not. Returns the number of bytes.
    ///
    /// # Safety
    /// The caller holds these bytes.
    #[inline]
    pub(super) unsafe fn copy_out(&self, offset: u64, buf: &mut [u8]) -> usize {
        if self.is_in_one_page(offset, buf.len())
            // SAFETY: the caller's promise.
            && let Some(page) = unsafe { self.index.whole(self.page_of(offset), self.page_log) }
        {
            // SAFETY: the caller's promise, and the bytes lie within the page.
            unsafe { folio::copy_out_of_page(page, self.in_page(offset), buf) };
            return buf.len();
        }
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            // SAFETY: the caller's promise.
            let Some((folio, start, len)) = (unsafe { self.find(at, buf.len() - done) }) else { break };
            let blocks = folio.blocks_of(&(start..start + len));
            let len = if folio.all(Mark::Present, blocks.clone()) {
                len
            } else {
                let (is_present, count) = folio.run(Mark::Present, blocks.clone());
                let end = (blocks.start + count) << self.block_log;
                if is_present { len.min(end - start) } else { 0 }
            };
            if len == 0 {
                break;
            }
            folio.note_use();
            // SAFETY: the caller's promise.
            unsafe { folio.copy_out(start, &mut buf[done..done + len]) };
            done += len;
        }
        done
    }

    /// The offset of byte `offset` in its page.
    #[inline]
    fn in_page(&self, offset: u64) -> usize {
        (offset & (self.page_size() - 1)) as usize
    }

    #[inline]
    fn is_in_one_page(&self, offset: u64, len: usize) -> bool {
        len <= self.page_size() as usize - self.in_page(offset)
    }

    /// Whether the block of byte `offset` is present, and how many bytes from there up to `end` have the same state.
    ///
    /// # Safety
    /// The caller holds these bytes.
    pub(super) unsafe fn presence(&self, offset: u64, end: u64) -> (bool, u64) {
        self.run_of(Mark::Present, offset, end)
    }

    /// Whether the block of byte `offset` has a mark, and how many bytes from there up to `end` have the same state.
    /// The caller holds these bytes.
    fn run_of(&self, mark: Mark, offset: u64, end: u64) -> (bool, u64) {
        let mut at = offset;
        let mut first = None;
        while at < end {
            let most = usize::try_from(end - at).unwrap_or(usize::MAX);
            // SAFETY: both callers have it promised.
            let (is, len) = match unsafe { self.find(at, most) } {
                None => (false, (self.page_size() - (at & (self.page_size() - 1))).min(end - at)),
                Some((folio, start, len)) => {
                    let blocks = folio.blocks_of(&(start..start + len));
                    let (is, count) = folio.run(mark, blocks.clone());
                    let until = ((blocks.start + count) << self.block_log).min(start + len);
                    (is, (until - start) as u64)
                }
            };
            if *first.get_or_insert(is) != is {
                break;
            }
            at += len;
        }
        (first.unwrap_or(false), at - offset)
    }

    /// Like [`presence`](Self::presence), for dirty blocks.
    ///
    /// # Safety
    /// The caller holds these bytes.
    pub(super) unsafe fn dirt(&self, offset: u64, end: u64) -> (bool, u64) {
        self.run_of(Mark::Dirty, offset, end)
    }

    /// Whether all of `len` bytes from `offset` on are in dirty blocks.
    ///
    /// # Safety
    /// The caller holds these bytes exclusively.
    #[inline]
    pub(super) unsafe fn is_dirty_all_over(&self, offset: u64, len: usize) -> bool {
        if self.has_one_block_a_page() && self.is_in_one_page(offset, len) {
            // Some of the block is held, and making it dirty or clean needs all of it held.
            debug_assert!(self.agree_on_dirt(offset..offset + len as u64));
            return self.index.is_dirty(self.page_of(offset));
        }
        // SAFETY: the caller's promise.
        unsafe { self.dirt(offset, offset + len as u64) == (true, len as u64) }
    }

    /// Whether a page is one block, so that the state of a page is that of a block. Otherwise others may hold other
    /// blocks of a page.
    #[inline]
    fn has_one_block_a_page(&self) -> bool {
        self.page_log == self.block_log
    }

    /// Whether the index has marked those pages of `bytes` that have a dirty block, and no others. The caller holds the
    /// pages so that nobody makes any of their blocks dirty or clean: see above.
    fn agree_on_dirt(&self, bytes: Range<u64>) -> bool {
        let mut pages = self.page_of(bytes.start)..self.page_of(bytes.end - 1) + 1;
        pages.all(|page| {
            // SAFETY: the caller holds some of the page.
            let folio = unsafe { self.index.folio(page) };
            folio.is_some_and(|folio| folio.any_of_page(Mark::Dirty, page)) == self.index.is_dirty(page)
        })
    }

    /// Like [`presence`](Self::presence), for blocks with reserved space.
    ///
    /// # Safety
    /// The caller holds these bytes.
    pub(super) unsafe fn delay(&self, offset: u64, end: u64) -> (bool, u64) {
        self.run_of(Mark::Delayed, offset, end)
    }

    /// Calls `work` for each folio that has some of `range`, with its bytes. If `all`, folios must cover the whole
    /// range.
    fn each(&self, range: Range<u64>, mut work: impl FnMut(&Folio, Range<usize>, u64)) {
        let mut at = range.start;
        while at < range.end {
            let most = usize::try_from(range.end - at).unwrap_or(usize::MAX);
            // SAFETY: whoever calls has it promised.
            match unsafe { self.find(at, most) } {
                Some((folio, start, len)) => {
                    work(folio, start..start + len, at);
                    at += len as u64;
                }
                None => at = (at & !(self.page_size() - 1)) + self.page_size(),
            }
        }
    }

    /// Writes `buf` into pages that have folios.
    ///
    /// # Safety
    /// The caller holds these bytes exclusively.
    #[inline]
    pub(super) unsafe fn copy_in(&self, offset: u64, buf: &[u8]) {
        if self.is_in_one_page(offset, buf.len())
            // SAFETY: the caller's promise.
            && let Some(page) = unsafe { self.index.whole(self.page_of(offset), self.page_log) }
        {
            // SAFETY: the caller's promise, and the bytes lie within the page.
            return unsafe { folio::copy_into_page(page, self.in_page(offset), buf) };
        }
        self.each(offset..offset + buf.len() as u64, |folio, bytes, at| {
            let from = (at - offset) as usize;
            folio.note_use();
            // SAFETY: the caller's promise.
            unsafe { folio.copy_in(bytes.start, &buf[from..from + bytes.len()]) };
        });
    }

    /// Zeroes bytes of pages that have folios.
    ///
    /// # Safety
    /// The caller holds these bytes exclusively.
    pub(super) unsafe fn zero(&self, range: Range<u64>) {
        // SAFETY: the caller's promise.
        self.each(range, |folio, bytes, _| unsafe { folio.zero(bytes.start, bytes.len()) });
    }

    /// Has `read` fill bytes of pages that have folios, folio by folio.
    ///
    /// # Safety
    /// The caller holds these bytes exclusively.
    pub(super) unsafe fn fill<E>(
        &self,
        range: Range<u64>,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut done = Ok(());
        self.each(range, |folio, bytes, at| {
            if done.is_ok() {
                // SAFETY: the caller's promise.
                done = read(at, unsafe { folio.slice_mut(bytes.start, bytes.len()) });
            }
        });
        done
    }

    /// Gives `write` bytes of pages that have folios, folio by folio.
    ///
    /// # Safety
    /// The caller holds these bytes, and all of them are present.
    pub(super) unsafe fn drain<E>(
        &self,
        range: Range<u64>,
        mut write: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut done = Ok(());
        self.each(range, |folio, bytes, at| {
            if done.is_ok() {
                // SAFETY: the caller's promise.
                done = write(at, unsafe { folio.slice(bytes.start, bytes.len()) });
            }
        });
        done
    }

    /// Marks whole blocks of pages that have folios as present: they have the file's content.
    ///
    /// # Safety
    /// The caller holds these blocks exclusively.
    pub(super) unsafe fn set_present(&self, blocks: Range<u64>) {
        self.each(blocks, |folio, bytes, at| {
            folio.set(Mark::Present, folio.blocks_of(&bytes));
            self.set_whole(at, bytes.len(), Some(folio));
            self.note_large_whole(folio);
        });
    }

    /// Records that all of a large folio is present, once it is.
    fn note_large_whole(&self, folio: &Folio) {
        let may_be = folio.is_large() && self.has_one_block_a_page() && folio.is_all_present();
        if may_be && !self.index.is_large_whole(folio) {
            let change = self.change.lock();
            self.index.set_large_whole(folio, &Changing::with(&change));
        }
    }

    /// Records in the index that whole blocks of `folio` are completely present, or, if `None`, that they no longer
    /// are. So a reader of a page finds it in the index.
    fn set_whole(&self, at: u64, len: usize, folio: Option<&Folio>) {
        if self.has_one_block_a_page() {
            let pages = self.page_of(at)..self.page_of(at + len as u64 - 1) + 1;
            pages.for_each(|page| self.index.set_whole(page, folio));
        }
    }

    /// Drops what is present of whole blocks, none of which is dirty. Folios without other blocks are removed.
    ///
    /// # Safety
    /// The caller holds these blocks exclusively.
    pub(super) unsafe fn forget(&self, blocks: Range<u64>) {
        let mut at = blocks.start;
        while let Some(page) = self.index.next_folio(self.page_of(at)).filter(|_| at < blocks.end) {
            at = at.max(page << self.page_log);
            if at >= blocks.end {
                break;
            }
            let most = usize::try_from(blocks.end - at).unwrap_or(usize::MAX);
            // SAFETY: the caller's promise.
            let Some((folio, start, len)) = (unsafe { self.find(at, most) }) else { break };
            debug_assert!(self.agree_on_dirt(at..at + len as u64), "whole pages are held exclusively");
            let gone = folio.blocks_of(&(start..start + len));
            debug_assert!(!folio.any(Mark::Dirty, gone.clone()), "what is dirty is written back before");
            if len == folio.len() {
                // SAFETY: the caller holds all of it exclusively.
                unsafe { self.remove(folio) };
            } else {
                self.forget_some(folio, gone);
            }
            at += len as u64;
        }
    }

    /// The same for blocks of one folio. What was dropped before is not visited again, as each cut would do when a file
    /// is cut off piece by piece.
    fn forget_some(&self, folio: &Folio, blocks: Range<usize>) {
        let present = folio.span(Mark::Present, blocks);
        if present.is_empty() {
            return;
        }
        let bytes = folio.bytes_of_blocks(&present);
        let at = self.bytes_of(&folio.pages()).start + bytes.start as u64;
        self.set_whole(at, bytes.len(), None);
        folio.clear(Mark::Present, present);
        if folio.is_large() {
            // After the marks: they are checked under the lock before a folio is recorded as completely present.
            let change = self.change.lock();
            self.index.clear_large_whole(folio.pages().start, &Changing::with(&change));
        }
    }

    /// Removes a folio from memory.
    ///
    /// # Safety
    /// The caller holds all of its bytes exclusively, and has looked it up since.
    unsafe fn remove(&self, folio: *const Folio) {
        let change = self.change.lock();
        // SAFETY: the caller's promise.
        let folio = unsafe { self.index.remove(folio, &Changing::with(&change)) };
        drop(change);
        self.pool.went(folio.len() as u64);
    }

    /// Makes present blocks dirty.
    ///
    /// # Safety
    /// The caller holds these blocks exclusively.
    pub(super) unsafe fn set_dirty(&self, blocks: Range<u64>) {
        self.each(blocks.clone(), |folio, bytes, _| folio.set(Mark::Dirty, folio.blocks_of(&bytes)));
        let pages = self.page_of(blocks.start)..self.page_of(blocks.end - 1) + 1;
        // Count before marking: whoever finds a mark set may read the count.
        let most = pages.end - pages.start;
        self.dirty.fetch_add(most, Ordering::SeqCst);
        let new = self.index.mark_dirty(pages);
        crate::testing::point("pages are marked and not counted");
        if new < most {
            self.dirty.fetch_sub(most - new, Ordering::SeqCst);
        }
        if new > 0 {
            self.pool.dirty_changed((new << self.page_log).cast_signed());
        }
    }

    /// Marks whole pages as clean: they are as on the device.
    ///
    /// # Safety
    /// The caller holds them so that nobody writes to them, and nobody else writes them back.
    pub(super) unsafe fn set_clean(&self, pages: Range<u64>) {
        debug_assert!(self.agree_on_dirt(pages.clone()), "nobody else makes them dirty or clean");
        self.each(pages.clone(), |folio, bytes, _| folio.clear(Mark::Dirty, folio.blocks_of(&bytes)));
        let gone = self.index.clear_dirty(self.page_of(pages.start)..self.page_of(pages.end - 1) + 1);
        debug_assert!(self.agree_on_dirt(pages), "they are clean");
        self.dirty.fetch_sub(gone, Ordering::SeqCst);
        self.pool.dirty_changed(-(gone << self.page_log).cast_signed());
    }

    /// Records whether blocks have reserved space.
    ///
    /// # Safety
    /// The caller holds them exclusively, or is the only one that writes them back, and keeps writers out.
    pub(super) unsafe fn set_delayed(&self, blocks: Range<u64>, is_delayed: bool) {
        self.each(blocks, |folio, bytes, _| {
            let blocks = folio.blocks_of(&bytes);
            if is_delayed { folio.set(Mark::Delayed, blocks) } else { folio.clear(Mark::Delayed, blocks) }
        });
    }

    /// Ensures that all pages of `range` have folios, large ones if nothing is in the way.
    ///
    /// # Safety
    /// The caller holds these bytes.
    pub(super) unsafe fn make(&self, range: &Range<u64>, file: &Weak<impl CachedFile + 'static>) {
        let (mut page, end) = (self.page_of(range.start), self.page_of(range.end - 1) + 1);
        while page < end {
            // SAFETY: the caller's promise.
            if let Some(folio) = unsafe { self.index.folio(page) } {
                page = folio.pages().end;
                continue;
            }
            let change = self.change.lock();
            let pages = self.free_pages(page, end);
            if pages.is_empty() {
                // Another thread, which holds other bytes of it, was faster.
                continue;
            }
            let len = pages.end - pages.start;
            let folio = Box::new(Folio::new(pages.start, len, self.page_log, self.block_log));
            let trace = folio.trace();
            self.index.insert(folio, &Changing::with(&change));
            drop(change);
            page = pages.end;
            self.pool.came(Weak::clone(file) as Weak<dyn CachedFile>, trace, pages, len << self.page_log);
        }
    }

    /// The pages of a new folio that has `page`: as many as are wanted up to `end`, or twice as many as the previous
    /// folio has, if they are free and aligned to their number.
    fn free_pages(&self, page: u64, end: u64) -> Range<u64> {
        if !self.index.is_free(page) {
            return page..page;
        }
        let most = FOLIO_BYTES_MAX >> self.page_log;
        let before = page.checked_sub(1).map_or(0, |before| self.index.folio_len(before));
        let wanted = (end - page).max(before * 2).clamp(1, most.max(1));
        let mut len = 1;
        let fits = |len: u64| {
            let first = page & !(len - 1);
            first == page && (first..first + len).all(|page| self.index.is_free(page))
        };
        while len * 2 <= wanted && fits(len * 2) {
            len *= 2;
        }
        page..page + len
    }

    /// Evicts a folio if it is clean and was not used recently.
    ///
    /// # Safety
    /// The caller holds all bytes of these pages exclusively.
    pub(super) unsafe fn evict(&self, pages: &Range<u64>) -> bool {
        // SAFETY: the caller's promise.
        let Some(folio) = (unsafe { self.index.folio(pages.start) }) else { return true };
        if folio.pages() != *pages {
            // It is another folio by now, which the pool knows.
            return true;
        }
        debug_assert!(self.agree_on_dirt(self.bytes_of(pages)), "whole pages are held exclusively");
        let was_found = folio.is_large() && self.index.take_use(pages.start);
        if folio.take_use() || was_found || folio.any_at_all(Mark::Dirty) {
            return false;
        }
        // SAFETY: the caller's promise.
        unsafe { self.remove(folio) };
        true
    }

    /// The bytes of a range of pages.
    pub(super) fn bytes_of(&self, pages: &Range<u64>) -> Range<u64> {
        pages.start << self.page_log..pages.end << self.page_log
    }

    /// Whether the number of dirty pages is what was counted, and the index and the folio of each agree. The caller has
    /// the file alone.
    fn counts_agree(&self) -> bool {
        let mut folios =
            std::iter::successors(self.index.next_folio(0), |page| self.index.next_folio(page + 1));
        let agree = folios.all(|page| self.agree_on_dirt(self.bytes_of(&(page..page + 1))));
        let dirty = std::iter::successors(self.index.next_dirty(0), |page| self.index.next_dirty(page + 1));
        agree && dirty.count() as u64 == self.dirty.load(Ordering::SeqCst)
    }

    /// Drops everything. The caller has the file alone. Returns for how many bytes space was reserved.
    pub(super) fn abandon(&mut self) -> u64 {
        let (mut bytes, mut delayed) = (0, 0);
        // Nobody is using it, except for a thread that panicked.
        debug_assert!(std::thread::panicking() || self.counts_agree());
        self.index.drain(|folio| {
            bytes += folio.len() as u64;
            delayed += folio.count(Mark::Delayed);
        });
        self.pool.went(bytes);
        let dirty = std::mem::take(self.dirty.get_mut());
        self.pool.dirty_changed(-(dirty << self.page_log).cast_signed());
        delayed << self.block_log
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.abandon();
    }
}
