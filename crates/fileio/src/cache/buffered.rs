//! One file that is read and written through its pages.
//!
//! Invariants:
//! - a request holds its bytes from before its first look at a page until after its last. If it finds under its hold
//!   that the file is cached, it uses the pages; this changes only while all of the file is held exclusively;
//! - all of a read comes from one hold, and so does all of a write;
//! - a block becomes dirty only when everything is there that its write-back needs: reserved space, unwritten space, or
//!   staged space for a copy. So the writer is told of a lack of space.

use std::ops::Range;
use std::sync::{Arc, Weak};

use rangelock::{Mode, RangeLock};

use super::counted::{self, Mutex};
use super::failures::{Failures, SyncCursor};
use super::pages::Pages;
use super::pool::{CachedFile, NO_TICKET, PageCache};
use super::streams::Streams;
use crate::direct::{Begins, FileResult, Kind};
use crate::lock::Held;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::testing::{CHANGE, point};
use crate::{DelayedAllocation, DirectFile, FILE_END_MAX, FileError};

/// See above. Any number of threads may use it at once.
#[derive(Debug)]
// Every request reads this, so it has cache lines apart from its reference count.
#[repr(align(128))]
pub struct BufferedFile<M: DelayedAllocation + 'static> {
    pub(super) file: Arc<DirectFile<M>>,
    pub(super) pages: Pages,
    /// Whether requests use the pages.
    pub(super) is_cached: AtomicBool,
    /// How many have asked for the file not to be cached.
    pub(super) passers: Mutex<usize>,
    /// Held while the file is being extended, so that extending threads wait for each other and for nobody else.
    pub(super) ends: Mutex<()>,
    /// Pages that are being written back. Taken after the range.
    pub(super) flushing: RangeLock,
    /// Held while the map is told what was written back, so that the end moves only over bytes that all were written.
    pub(super) telling: Mutex<()>,
    pub(super) failures: Failures,
    /// Reads that found nothing in memory, and what was read for them.
    pub(super) streams: Streams,
    /// Whether the map was told another size than that on the device.
    pub(super) is_ahead: AtomicBool,
    /// Whether somebody holds the end of the file in order to change it. Changed with `telling` held.
    pub(super) is_end_held: AtomicBool,
    /// Its ticket in the queue of files that wait for write-back.
    ticket: AtomicU64,
    pub(super) this: Weak<Self>,
}

impl<M: DelayedAllocation + 'static> BufferedFile<M> {
    /// A file, and what keeps its pages.
    pub fn new(file: DirectFile<M>, pool: &Arc<PageCache>) -> Arc<Self> {
        let pages = Pages::new(Arc::clone(pool), file.map().block_size());
        Arc::new_cyclic(|this| Self {
            file: Arc::new(file),
            pages,
            is_cached: AtomicBool::new(false),
            passers: Mutex::new(&counted::PASSERS, 0),
            ends: Mutex::new(&counted::ENDS, ()),
            flushing: RangeLock::new(),
            telling: Mutex::new(&counted::TELLING, ()),
            failures: Failures::default(),
            streams: Streams::default(),
            is_ahead: AtomicBool::new(false),
            is_end_held: AtomicBool::new(false),
            ticket: AtomicU64::new(NO_TICKET),
            this: this.clone(),
        })
    }

    /// The file without its pages. Users hold what they are about to change ([`hold_to_change`](Self::hold_to_change))
    /// or read ([`hold_within`](Self::hold_within)).
    pub fn file(&self) -> &Arc<DirectFile<M>> {
        &self.file
    }

    /// Where the file's bytes lie on the device.
    pub fn map(&self) -> &M {
        self.file.map()
    }

    /// Size of the file in bytes. It may be ahead of the size on the device.
    pub fn size(&self) -> u64 {
        if self.is_cached() {
            // A file that is no longer cached has the size on the device.
            let size = self.pages.size();
            if self.is_cached() {
                return size;
            }
        }
        self.map().size()
    }

    /// A cursor for write-back failures from now on.
    pub fn sync_cursor(&self) -> SyncCursor {
        self.failures.cursor()
    }

    #[inline]
    pub(super) fn is_cached(&self) -> bool {
        self.is_cached.load(Ordering::Acquire)
    }

    /// Makes requests use the pages from now on, unless somebody has asked for the opposite.
    #[cold]
    pub(super) fn begin_caching(&self) -> bool {
        point(CHANGE);
        let _held = self.file.lock().hold(0..u64::MAX, Mode::Exclusive);
        self.cache_held()
    }

    /// The same for a reader, who does not wait, and gives up if somebody is in the way.
    #[cold]
    fn begin_caching_to_read(&self) -> bool {
        let lock = self.file.lock();
        let token = lock.try_acquire(0..u64::MAX, Mode::Exclusive);
        token.map(|token| Held::new(lock, token)).is_some_and(|_held| self.cache_held())
    }

    /// Whether reads bring pages into memory, perhaps only from now on.
    pub(super) fn caches_to_read(&self) -> bool {
        self.is_cached() || (*self.passers.lock() == 0 && self.begin_caching_to_read())
    }

    /// The caller holds all of the file.
    fn cache_held(&self) -> bool {
        let passers = self.passers.lock();
        if *passers > 0 {
            return false;
        }
        if !self.is_cached() {
            self.pages.set_size(self.map().size());
            self.is_cached.store(true, Ordering::Release);
        }
        true
    }

    /// Reads from byte `offset` on until `buf` is full or the file ends. Returns the number of bytes. What is not in
    /// memory is brought there, with readahead.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> FileResult<usize, M> {
        let Some(range) = self.file.read_range(offset, buf.len()) else { return Ok(0) };
        self.pages.prefetch(offset, buf.len());
        for _ in 0..3 {
            let held = self.file.lock().hold(range.clone(), Mode::Shared);
            if !self.is_cached() {
                drop(held);
                if !self.caches_to_read() {
                    return self.read_past(offset, buf);
                }
                continue;
            }
            let Some(len) = self.read_len(offset, buf.len()) else { return self.read_nothing(offset) };
            // SAFETY: the range is held.
            let done = unsafe { self.pages.copy_out(offset, &mut buf[..len]) };
            if done == len {
                return Ok(len);
            }
            if self.is_hole(offset + done as u64..offset + len as u64)? {
                // There is nothing to bring into memory.
                return self.read_held(offset, &mut buf[..len]);
            }
            drop(held);
            if !self.bring(offset + done as u64, (len - done) as u64)? {
                break;
            }
        }
        self.read_past(offset, buf)
    }

    /// Reads what is in memory from there, and the rest from the device without caching it.
    pub fn read_past(&self, offset: u64, buf: &mut [u8]) -> FileResult<usize, M> {
        let Some(range) = self.file.read_range(offset, buf.len()) else { return Ok(0) };
        let prefetched = self.file.prefetch(offset, false);
        let _held = self.file.lock().hold(range, Mode::Shared);
        if !self.is_cached() {
            return self.file.read_held(offset, buf, prefetched);
        }
        match self.read_len(offset, buf.len()) {
            Some(len) => self.read_held(offset, &mut buf[..len]),
            None => self.read_nothing(offset),
        }
    }

    /// A read past the end of the file: returns 0, unless the file itself has ended.
    #[cold]
    fn read_nothing(&self, offset: u64) -> FileResult<usize, M> {
        self.file.check_read(offset).map(|()| 0)
    }

    /// Like [`read_past`](Self::read_past), for bytes that the caller holds.
    pub fn read_while_held(&self, offset: u64, buf: &mut [u8]) -> FileResult<usize, M> {
        if !self.is_cached() {
            return self.file.read_while_held(offset, buf);
        }
        match self.read_len(offset, buf.len()) {
            Some(len) if len > 0 => self.read_held(offset, &mut buf[..len]),
            _ => self.read_nothing(offset),
        }
    }

    /// How much of a read lies before the end of the file, some of which is held.
    fn read_len(&self, offset: u64, len: usize) -> Option<usize> {
        let left = self.pages.size().checked_sub(offset).filter(|left| *left > 0)?;
        Some(left.min(len as u64) as usize)
    }

    /// A read before the end of the file, of bytes that are held.
    fn read_held(&self, offset: u64, buf: &mut [u8]) -> FileResult<usize, M> {
        let end = offset + buf.len() as u64;
        let mut at = offset;
        while at < end {
            let rest = &mut buf[(at - offset) as usize..];
            // SAFETY: the caller holds the bytes.
            at += unsafe { self.pages.copy_out(at, rest) } as u64;
            if at == end {
                break;
            }
            // SAFETY: the caller holds the bytes.
            let (_, len) = unsafe { self.pages.presence(at, end) };
            let rest = &mut buf[(at - offset) as usize..][..len as usize];
            self.read_absent(at, rest)?;
            at += len;
        }
        Ok(buf.len())
    }

    /// Reads bytes that are held and in no page, before the end of the file.
    fn read_absent(&self, offset: u64, buf: &mut [u8]) -> FileResult<(), M> {
        let mut done = 0;
        while done < buf.len() {
            let run = self.file.run_to_read(offset + done as u64)?;
            let len = run.take(buf.len() - done);
            let piece = &mut buf[done..done + len];
            match run.kind {
                Kind::Zeroes(_) => piece.fill(0),
                Kind::Data | Kind::SharedData => self.file.read_device(run.device, piece)?,
            }
            done += len;
        }
        self.file.check_read(offset)
    }

    /// Writes `buf` at any byte `offset`, into pages. Returns the number of bytes, which is all of them. They are
    /// written to the device later. Lack of space is reported here.
    pub fn write_at(&self, offset: u64, buf: &[u8]) -> FileResult<usize, M> {
        let Some(end) = self.checked_end(offset, buf.len())? else { return Ok(0) };
        self.pages.prefetch(offset, buf.len());
        let has_room = self.make_room_for(&(offset..end));
        match self.with_room(|| self.try_write(offset, buf, end, has_room)) {
            // Bypassing the pages takes less space, because the map is told everything at once.
            Err(FileError::Map { source, .. }) if M::lacks_space(&source) => self.try_write_past(offset, buf),
            written => written,
        }
    }

    /// Waits until a write to `range` may make pages dirty, unless it makes none. Returns `false` if that was in vain.
    #[inline]
    fn make_room_for(&self, range: &Range<u64>) -> bool {
        self.pages.pool().make_room(|| !(self.goes_past() || self.is_dirty_now(range.clone())))
    }

    /// Whether writes bypass the pages now, as they do while there is a queue for the file.
    #[cold]
    fn goes_past(&self) -> bool {
        !self.is_cached() && *self.passers.lock() > 0
    }

    /// Whether all of `range` is dirty and nobody is using it.
    #[cold]
    fn is_dirty_now(&self, range: Range<u64>) -> bool {
        let lock = self.file.lock();
        let Some(token) = lock.try_acquire(range.clone(), Mode::Exclusive) else { return false };
        let _held = Held::new(lock, token);
        // SAFETY: the range is held exclusively.
        self.is_cached()
            && unsafe { self.pages.is_dirty_all_over(range.start, (range.end - range.start) as usize) }
    }

    /// See [`PageCache::with_room`].
    pub(super) fn with_room<T>(&self, attempt: impl Fn() -> FileResult<T, M>) -> FileResult<T, M> {
        self.pages.pool().with_room(
            attempt,
            |error| matches!(error, FileError::Map { source, .. } if M::lacks_space(source)),
        )
    }

    /// Writes `buf` at the end of the file. Returns the byte where it begins. Concurrent calls all get places of their
    /// own.
    pub fn append(&self, buf: &[u8]) -> FileResult<u64, M> {
        self.extend(Begins::AtEnd, 0, buf).map(Option::unwrap_or_default)
    }

    /// Writes `buf` at byte `offset` if the file ends there or before. Returns `false`, with nothing written, if it
    /// ends behind. What others append meanwhile stays.
    pub fn write_behind_end(&self, offset: u64, buf: &[u8]) -> FileResult<bool, M> {
        self.extend(Begins::AtEndOrBehind, offset, buf).map(|at| at.is_some())
    }

    fn extend(&self, begins: Begins, offset: u64, buf: &[u8]) -> FileResult<Option<u64>, M> {
        match self.extend_in_memory(begins, offset, buf) {
            Err(FileError::Map { source, .. }) if M::lacks_space(&source) => {
                self.extend_past(begins, offset, buf)
            }
            written => written,
        }
    }

    /// Returns the byte where it begins; `None` if it may not.
    fn extend_in_memory(&self, begins: Begins, offset: u64, buf: &[u8]) -> FileResult<Option<u64>, M> {
        let pool = self.pages.pool();
        loop {
            let Some(at) = begins.place(offset, self.size()) else { return Ok(None) };
            if self.checked_end(at, buf.len())?.is_none() {
                return Ok(Some(at));
            }
            // A write that bypasses the pages need not wait.
            let has_room = pool.make_room(|| !self.goes_past());
            let _alone = self.ends.lock();
            if has_room && pool.is_over_dirty_limit() && !self.goes_past() {
                // Others were faster and used the same room.
                continue;
            }
            let Some(at) = begins.place(offset, self.size()) else { return Ok(None) };
            let Some(end) = self.checked_end(at, buf.len())? else { return Ok(Some(at)) };
            match self.try_extend(at, buf, end, begins) {
                Ok(Some(_)) => return Ok(Some(at)),
                Ok(None) => {}
                Err(FileError::Map { source, offset }) if M::lacks_space(&source) => {
                    if !self.pages.is_dirty() && self.pages.pool().dirty() == 0 {
                        return Err(FileError::Map { offset, source });
                    }
                    let _told_when_synced = self.pages.pool().write_every_file_back();
                    // If the file no longer ends there, start over.
                    match self.try_extend(at, buf, end, begins) {
                        Ok(Some(_)) => return Ok(Some(at)),
                        Ok(None) => {}
                        Err(error) => return Err(error),
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn checked_end(&self, offset: u64, len: usize) -> FileResult<Option<u64>, M> {
        match offset.checked_add(len as u64) {
            _ if len == 0 => Ok(None),
            Some(end) if end <= FILE_END_MAX => Ok(Some(end)),
            _ => Err(FileError::TooLarge { offset, len: len as u64 }),
        }
    }

    /// `has_room`: the caller had room, but others may have taken it. Then this waits again before it extends the file.
    fn try_write(&self, offset: u64, buf: &[u8], end: u64, has_room: bool) -> FileResult<usize, M> {
        let pool = self.pages.pool();
        let mut has_room = has_room;
        loop {
            if !self.is_cached() && (*self.passers.lock() > 0 || !self.begin_caching()) {
                return self.try_write_past(offset, buf);
            }
            if end > self.pages.size() {
                let alone = self.ends.lock();
                if has_room && pool.is_over_dirty_limit() {
                    drop(alone);
                    has_room = pool.make_room(|| !self.goes_past());
                    continue;
                }
                match self.try_extend(offset, buf, end, Begins::Anywhere)? {
                    Some(len) => return Ok(len),
                    None => continue,
                }
            }
            let blocks = self.pages.blocks_around(&(offset..end));
            point(CHANGE);
            let held = self.file.lock().hold(offset..end, Mode::Exclusive);
            if !self.is_cached() || end > self.pages.size() {
                continue;
            }
            // SAFETY: the range is held.
            let is_ready = unsafe { self.pages.is_dirty_all_over(offset, buf.len()) };
            let held = if is_ready || blocks == (offset..end) {
                held
            } else {
                drop(held);
                let held = self.file.lock().hold(blocks.clone(), Mode::Exclusive);
                if !self.is_cached() || end > self.pages.size() {
                    continue;
                }
                held
            };
            self.content_changes(offset)?;
            if !is_ready {
                self.prepare(offset..end)?;
            }
            self.put(held, offset, buf);
            return Ok(buf.len());
        }
    }

    /// Copies bytes into prepared blocks.
    pub(super) fn put(&self, held: Held<'_>, offset: u64, buf: &[u8]) {
        // SAFETY: the range is held exclusively.
        unsafe { self.pages.copy_in(offset, buf) };
        self.map().overwritten();
        drop(held);
    }

    pub(super) fn content_changes(&self, offset: u64) -> FileResult<(), M> {
        self.map().content_changes().map_err(|source| FileError::Map { offset, source })
    }

    /// Makes those blocks around `range` dirty that are not, all or none. The caller holds them exclusively. Parts of
    /// them outside of the range get the file's content. Those inside are for the caller to fill immediately.
    pub(super) fn prepare(&self, range: Range<u64>) -> FileResult<(), M> {
        let blocks = self.pages.blocks_around(&range);
        if self.is_plain(&blocks)? {
            // SAFETY: the blocks are held exclusively.
            unsafe { self.pages.set_dirty(blocks) };
            self.wait_to_be_written();
            return Ok(());
        }
        let fresh = self.clean_runs(blocks.clone());
        let holes = self.provide(&fresh)?;
        // SAFETY: the blocks are held.
        unsafe { self.pages.make(&blocks, &self.this) };
        if let Err(error) = self.complete(&range, &blocks) {
            self.take_back(&fresh, &holes);
            return Err(error);
        }
        // SAFETY: the blocks are held exclusively.
        unsafe {
            holes.iter().for_each(|hole| self.pages.set_delayed(hole.clone(), true));
            self.pages.set_present(blocks.clone());
            self.pages.set_dirty(blocks);
        }
        self.wait_to_be_written();
        Ok(())
    }

    /// Whether all of `blocks` are present and can be overwritten in place, so that nothing has to be provided for
    /// their write-back. The caller holds them.
    fn is_plain(&self, blocks: &Range<u64>) -> FileResult<bool, M> {
        let len = blocks.end - blocks.start;
        // SAFETY: the caller holds the blocks.
        if unsafe { self.pages.presence(blocks.start, blocks.end) } != (true, len) {
            return Ok(false);
        }
        let run = self.file.run_at(blocks.start)?;
        Ok(run.kind == Kind::Data && run.len >= len)
    }

    /// Runs of whole blocks that are not dirty. The caller holds them.
    fn clean_runs(&self, blocks: Range<u64>) -> Vec<Range<u64>> {
        let (mut runs, mut at) = (Vec::new(), blocks.start);
        while at < blocks.end {
            // SAFETY: the caller holds the blocks.
            let (is_dirty, len) = unsafe { self.pages.dirt(at, blocks.end) };
            if !is_dirty {
                runs.push(at..at + len);
            }
            at += len;
        }
        runs
    }

    /// Fills the parts of blocks that are not present and that the write will not fill.
    fn complete(&self, range: &Range<u64>, blocks: &Range<u64>) -> FileResult<(), M> {
        let block = u64::from(self.map().block_size());
        let first = blocks.start..blocks.start + block;
        let last = blocks.end - block..blocks.end;
        if range.start > first.start || range.end < first.end {
            self.fill_absent(first.clone())?;
        }
        if last != first && range.end < last.end {
            self.fill_absent(last)?;
        }
        Ok(())
    }

    /// Provides what write-back needs for runs of clean whole blocks. Returns those for which space was reserved.
    fn provide(&self, runs: &[Range<u64>]) -> FileResult<Vec<Range<u64>>, M> {
        let mut holes = Vec::new();
        let mut done = Vec::new();
        for run in runs {
            let mut at = run.start;
            while at < run.end {
                match self.provide_at(at, run.end) {
                    Ok((end, is_hole)) => {
                        if is_hole {
                            holes.push(at..end);
                        } else {
                            done.push(at..end);
                        }
                        at = end;
                    }
                    Err(error) => {
                        self.take_back(&done, &holes);
                        return Err(error);
                    }
                }
            }
        }
        Ok(holes)
    }

    /// The same for the first similar blocks from `at` on. Returns where they end, and whether they are a hole.
    fn provide_at(&self, at: u64, end: u64) -> FileResult<(u64, bool), M> {
        let run = self.file.run_at(at)?;
        let mut to = at + run.len.min(end - at);
        let map = |source| FileError::Map { offset: at, source };
        match run.kind {
            Kind::Data => {}
            Kind::Zeroes(crate::Refusal::Hole) => {
                self.map().reserve(at..to).map_err(map)?;
                return Ok((to, true));
            }
            Kind::Zeroes(_) | Kind::SharedData => {
                to = self.end_of_prepared(at, end)?;
                self.map().allocate_to_write_back(at..to).map_err(map)?;
            }
        }
        Ok((to, false))
    }

    /// The end of the blocks from `at` on that are all preallocated or shared.
    fn end_of_prepared(&self, at: u64, end: u64) -> FileResult<u64, M> {
        let mut to = at;
        while to < end {
            let run = self.file.run_at(to)?;
            if matches!(run.kind, Kind::Data | Kind::Zeroes(crate::Refusal::Hole)) {
                break;
            }
            to += run.len.min(end - to);
        }
        Ok(to)
    }

    /// Undoes what was provided.
    fn take_back(&self, claims: &[Range<u64>], holes: &[Range<u64>]) {
        claims.iter().for_each(|claim| self.map().give_up(claim.clone()));
        holes.iter().for_each(|hole| self.map().unreserve(hole.end - hole.start));
    }

    /// Whether the dirty bytes of the file will never be written back: nobody else has a reference to it, and `ends`
    /// says that nobody will open it again. The caller ensures that nobody gets a reference meanwhile, and then drops
    /// the last one.
    pub fn is_unwanted(self: &Arc<Self>, ends: impl FnOnce(&M) -> bool) -> bool {
        let file: Arc<dyn CachedFile> = Arc::clone(self) as _;
        // The references of the caller, of this function, and of the queue.
        let is_alone = || Arc::strong_count(self) == 3;
        self.pages.pool().take_out_if(&file, || is_alone() && ends(self.map()))
    }

    fn wait_to_be_written(&self) {
        if self.ticket.load(Ordering::SeqCst) != NO_TICKET {
            return;
        }
        point("a file is about to wait to be written back");
        if let Some(this) = self.this.upgrade() {
            self.pages.pool().enqueue(this);
        }
    }
}

impl<M: DelayedAllocation + 'static> CachedFile for BufferedFile<M> {
    fn evict(&self, pages: Range<u64>) -> super::pool::Evicted {
        use super::pool::Evicted;
        let bytes = self.pages.bytes_of(&pages);
        let Some(token) = self.file.lock().try_acquire(bytes, Mode::Exclusive) else { return Evicted::Stays };
        let _held = Held::new(self.file.lock(), token);
        // SAFETY: the bytes are held exclusively.
        if unsafe { self.pages.evict(&pages) } { Evicted::Gone } else { Evicted::Stays }
    }

    fn write_some_back(&self) -> bool {
        self.write_back_some()
    }

    fn write_all_back(&self) -> Result<(), super::Failure> {
        self.write_back(0..u64::MAX)
    }

    fn is_dirty(&self) -> bool {
        self.pages.is_dirty()
    }

    fn ticket(&self) -> &AtomicU64 {
        &self.ticket
    }
}

impl<M: DelayedAllocation + 'static> Drop for BufferedFile<M> {
    /// What is still dirty is lost, as in a crash. The space that was reserved for it is free again.
    fn drop(&mut self) {
        point("a file is given up");
        let was_dirty = self.pages.is_dirty();
        if was_dirty {
            self.map().give_up(0..crate::mapping::whole_blocks_max(self.map().block_size()));
        }
        let delayed = self.pages.abandon();
        if delayed > 0 {
            self.map().unreserve(delayed);
        }
        self.map().ends_in_memory_at(None);
    }
}
