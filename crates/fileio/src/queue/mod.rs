//! Direct I/O on one file with many requests in flight, owned by one thread.
//!
//! Invariants:
//! - A request holds its range from before its first lookup until its last transfer has ended, and releases it before
//!   its completion is handed out.
//! - The thread never blocks for a range while it has anything in flight. A request whose range is taken is set aside
//!   and continues when its turn comes; later ones do not wait for it. With a locking design without a queue, it tries
//!   again each time something completes, and blocks only when nothing else is left.
//! - A request of whole sectors in one extent allocates nothing: its buffer goes down to the device and comes back. One
//!   that spans extents is split into pieces with their own buffers. One with partial sectors is done in place, by
//!   blocking calls, and so is an overwrite of shared blocks: it releases its range and queues for the whole blocks.

mod state;
mod wakeup;

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use blockdev::{AlignedBuf, DeviceError, Durability, IoQueue};
use rangelock::Mode;

use crate::direct::{FileResult, Kind, MappedRun};
use crate::lock::{Attempt, Token};
use crate::testing::{CHANGE, point};
use crate::{DirectFile, FileError, FileMapping};

use state::{Deferred, QueuePlace, RequestPart, State};
use wakeup::Wakeup;

/// A completed request.
#[derive(Debug)]
pub struct FileCompletion<E: std::error::Error + 'static> {
    /// The tag that it was pushed with.
    pub tag: u64,
    /// Its buffer. For a read, the bytes that `result` counts are filled.
    pub buf: AlignedBuf,
    /// How many bytes were transferred, as the blocking calls would return.
    pub result: Result<usize, FileError<E>>,
}

/// Many requests in flight on one [`DirectFile`]. They complete in any order. The file's locking keeps overlapping ones
/// apart, without defining an order.
///
/// A request that waits for its range has its place in the queue. The thread that pushes should soon call
/// [`wait`](Self::wait), because a range that was granted meanwhile is held until then. For the same reason the thread
/// must not block for bytes that its queue has in flight, by a blocking call or in another queue: it would wait for
/// itself. Nor may it block for bytes that another thread's queue has in flight if that thread may block for this
/// one's: ranges are released when completions are taken.
pub struct DirectQueue<M: FileMapping> {
    io: Box<dyn IoQueue>,
    state: State<M>,
    /// Requests whose range somebody holds.
    deferred: VecDeque<Deferred>,
    /// Pieces for which the device's queue had no room.
    backlog: VecDeque<RequestPart>,
    wakeup: Arc<Wakeup>,
    waker: Waker,
}

impl<M: FileMapping> DirectQueue<M> {
    /// A queue for up to `depth` requests on `file`.
    pub fn new(file: Arc<DirectFile<M>>, depth: u32) -> FileResult<Self, M> {
        let io = Arc::clone(file.device()).queue(depth)?;
        let wakeup = Arc::new(Wakeup::default());
        let waker = Waker::from(Arc::clone(&wakeup));
        let deferred = VecDeque::with_capacity(depth as usize);
        Ok(Self { io, state: State::new(file, depth), deferred, backlog: VecDeque::new(), wakeup, waker })
    }

    /// Its depth.
    pub fn depth(&self) -> u32 {
        self.state.depth()
    }

    /// How many requests were pushed and not yet returned.
    pub fn in_flight(&self) -> u32 {
        self.state.in_flight()
    }

    /// How many of them wait for a range that somebody holds.
    pub fn waiting_for_range(&self) -> u32 {
        self.deferred.len() as u32
    }

    /// How often a request has had to wait for its range since the queue was made.
    pub fn deferrals(&self) -> u64 {
        self.state.deferrals
    }

    /// Adds a read of `buf.len()` bytes at byte `offset` of the file. It fails only if the queue is full, and then
    /// drops the buffer. Other errors come with the completion.
    pub fn push_read(&mut self, offset: u64, buf: AlignedBuf, tag: u64) -> FileResult<(), M> {
        let index = self.state.take_slot()?;
        let len = buf.len();
        self.state.requests[index as usize].begin(offset, tag, buf, false);
        match self.state.file.read_range(offset, len) {
            Some(range) => self.start(index, range, Mode::Shared),
            None => self.state.finish(index, Ok(0)),
        }
        Ok(())
    }

    /// Adds an overwrite with the whole `buf` at byte `offset` of the file. It fails like
    /// [`push_read`](Self::push_read).
    pub fn push_write(&mut self, offset: u64, buf: AlignedBuf, tag: u64) -> FileResult<(), M> {
        let index = self.state.take_slot()?;
        let len = buf.len();
        self.state.requests[index as usize].begin(offset, tag, buf, true);
        match self.state.file.write_range(offset, len) {
            Ok(Some((range, mode))) => self.start(index, range, mode),
            Ok(None) => self.state.finish(index, Ok(0)),
            Err(e) => self.state.finish(index, Err(e)),
        }
        Ok(())
    }

    /// Submits what was pushed to the device.
    pub fn submit(&mut self) -> FileResult<(), M> {
        self.go_on();
        Ok(self.io.submit()?)
    }

    /// Submits, waits until at least `min` requests have completed (0: does not wait; never more than are in flight),
    /// and calls `done` with each. Returns how many.
    pub fn wait(&mut self, min: u32, done: &mut dyn FnMut(FileCompletion<M::Error>)) -> FileResult<u32, M> {
        let min = min.min(self.in_flight());
        let mut count = 0;
        loop {
            self.go_on();
            count += self.state.hand_out(done);
            // If requests are set aside, every completion may let one of them continue, so check after each.
            let want = min.saturating_sub(count);
            let want = if self.deferred.is_empty() { want } else { want.min(1) };
            count += self.reap(want, done)?;
            if count >= min {
                // What was set aside and can continue now should not wait for the next call.
                if !self.deferred.is_empty() || !self.backlog.is_empty() {
                    self.go_on();
                    self.io.submit()?;
                }
                return Ok(count);
            }
            if self.io.in_flight() == 0 && self.backlog.is_empty() && self.state.ready.is_empty() {
                self.block_for_range();
            }
        }
    }

    /// Takes what the device has completed, at least `want` requests.
    fn reap(&mut self, want: u32, done: &mut dyn FnMut(FileCompletion<M::Error>)) -> FileResult<u32, M> {
        let (io, state) = (&mut self.io, &mut self.state);
        let mut count = 0;
        io.wait(want, &mut |completion| {
            if let Some(over) = state.complete(completion) {
                count += 1;
                done(over);
            }
        })?;
        Ok(count)
    }

    /// Takes a request's range, or sets the request aside.
    #[inline]
    fn start(&mut self, index: u32, range: std::ops::Range<u64>, mode: Mode) {
        let is_write = self.state.requests[index as usize].is_write;
        let prefetched = self.state.file.prefetch(range.start, is_write);
        if is_write {
            point(CHANGE);
        }
        match self.state.file.lock().try_acquire(range.clone(), mode) {
            Some(token) => self.issue(index, token, prefetched),
            None => self.get_in_line(index, range, mode),
        }
    }

    #[cold]
    fn get_in_line(&mut self, index: u32, range: std::ops::Range<u64>, mode: Mode) {
        match self.state.file.lock().attempt(range.clone(), mode, &self.waker) {
            Attempt::Held(token) => self.issue(index, token, None),
            Attempt::InLine(pending) => self.set_aside(Deferred { index, line: QueuePlace::In(pending) }),
            Attempt::Busy => self.set_aside(Deferred { index, line: QueuePlace::None(range, mode) }),
        }
    }

    fn set_aside(&mut self, deferred: Deferred) {
        self.state.deferrals += 1;
        self.deferred.push_back(deferred);
    }

    /// Issues the requests whose turn has come, and pieces that waited for room.
    #[inline]
    fn go_on(&mut self) {
        if !self.deferred.is_empty() {
            self.retry_deferred();
        }
        while self.io.in_flight() < self.io.depth() {
            let Some(piece) = self.backlog.pop_front() else { break };
            self.push_piece(piece);
        }
    }

    #[cold]
    fn retry_deferred(&mut self) {
        self.wakeup.reset();
        for _ in 0..self.deferred.len() {
            let Some(mut deferred) = self.deferred.pop_front() else { return };
            let token = match &mut deferred.line {
                QueuePlace::In(pending) => pending.try_finish().map(Token::Range),
                QueuePlace::None(range, mode) => self.state.file.lock().try_acquire(range.clone(), *mode),
            };
            match token {
                Some(token) => self.issue(deferred.index, token, None),
                None if self.state.file.lock().is_whole_file() => {
                    // All others wait for the same lock.
                    self.deferred.push_front(deferred);
                    return;
                }
                None => self.deferred.push_back(deferred),
            }
        }
    }

    /// Called with nothing in flight, so that this queue holds no range: waits for a range that somebody else holds.
    #[cold]
    fn block_for_range(&mut self) {
        match self.deferred.front() {
            None => {}
            Some(Deferred { line: QueuePlace::In(_), .. }) => self.wakeup.wait(),
            Some(Deferred { index, line: QueuePlace::None(range, mode) }) => {
                let (index, range, mode) = (*index, range.clone(), *mode);
                let token = self.state.file.lock().acquire(range, mode);
                self.deferred.pop_front();
                self.issue(index, token, None);
            }
        }
    }

    /// A request whose range is held is sent to the device, or done in place. Its first run may have been `prefetched`
    /// before that.
    #[inline]
    fn issue(&mut self, index: u32, token: Token, prefetched: Option<MappedRun>) {
        let Self { state, .. } = self;
        let request = &mut state.requests[index as usize];
        request.token = Some(token);
        let (offset, len) = (request.offset, request.len());
        if (offset | len as u64) & state.file.sector_mask() != 0 || request.copies {
            if let Some(result) = state.do_in_place(index) {
                self.finish_or_copy(index, result);
            }
            return;
        }
        let planned = if request.is_write {
            state.plan_write(index, prefetched)
        } else {
            state.plan_read(index, prefetched)
        };
        match planned {
            Ok(Some(device)) if self.io.in_flight() < self.io.depth() => self.push_whole(index, device),
            // It spans extents, or pieces of others take all the room.
            Ok(_) => {
                if let Err(e) = self.split(index) {
                    match self.state.requests[index as usize].unfinished {
                        0 => self.finish_or_copy(index, Err(e)),
                        _ => self.state.fail_unsent(index, e),
                    }
                }
            }
            Err(Some(e)) => self.finish_or_copy(index, Err(e)),
            Err(None) => {}
        }
    }

    /// Ends a request, unless it was refused because of shared blocks that can be copied: then it starts over.
    fn finish_or_copy(&mut self, index: u32, result: FileResult<usize, M>) {
        let state = &mut self.state;
        let request = &mut state.requests[index as usize];
        match &result {
            Err(error) if !request.copies && state.file.can_copy(error) => {}
            _ => return state.finish(index, result),
        }
        request.copies = true;
        if let Some(token) = request.token.take() {
            state.file.lock().release(token);
        }
        let end = request.offset + request.len() as u64;
        let blocks = state.file.blocks_around(request.offset..end);
        // Others may have the rest of these blocks, even in this queue.
        match state.file.lock().try_acquire(blocks.clone(), Mode::Exclusive) {
            Some(token) => self.issue(index, token, None),
            None => self.get_in_line(index, blocks, Mode::Exclusive),
        }
    }

    /// Sends a request of one extent to the device with its own buffer.
    #[inline]
    fn push_whole(&mut self, index: u32, device: u64) {
        let request = &mut self.state.requests[index as usize];
        let Some(buf) = request.buf.take() else {
            debug_assert!(false, "a request without its buffer");
            return;
        };
        let (len, tag) = (buf.len(), u64::from(index));
        request.unfinished = 1;
        let pushed = if request.is_write {
            self.io.push_write(device, buf, Durability::Volatile, tag)
        } else {
            self.io.push_read(device, buf, tag)
        };
        if let Err(e) = pushed {
            // It was refused as out of the device's range or read-only. The buffer is lost, so the caller gets another.
            let request = &mut self.state.requests[index as usize];
            request.unfinished = 0;
            request.buf = Some(AlignedBuf::zeroed(len));
            self.state.finish(index, Err(e.into()));
        }
    }

    /// Splits a request at its extents. The pieces are sent as there is room.
    #[cold]
    fn split(&mut self, index: u32) -> FileResult<(), M> {
        let request = &self.state.requests[index as usize];
        let (offset, is_write) = (request.offset, request.is_write);
        let file = Arc::clone(&self.state.file);
        let len = request.count_or_len();
        if is_write {
            file.check_runs(offset, len)?;
        }
        let mut at = 0;
        // So that the request does not complete before all of its pieces are made.
        self.state.requests[index as usize].unfinished = 1;
        while at < len {
            let run_at = offset + at as u64;
            let run = if is_write { file.run_at(run_at)? } else { file.run_to_read(run_at)? };
            let taken = run.take(len - at);
            let range = at..at + taken;
            if matches!(run.kind, Kind::Zeroes(_)) {
                self.state.zero(index, range);
            } else {
                if is_write {
                    run.check_overwritable(run_at)?;
                }
                let piece = self.state.make_piece(index, range, run.device);
                self.state.requests[index as usize].unfinished += 1;
                self.push_piece(piece);
            }
            at += taken;
        }
        self.state.one_less(index, Ok(()));
        self.state.finish_if_over(index);
        Ok(())
    }

    fn push_piece(&mut self, mut piece: RequestPart) {
        if self.io.in_flight() >= self.io.depth() {
            self.backlog.push_back(piece);
            return;
        }
        let Some(buf) = piece.buf.take() else {
            debug_assert!(false, "a piece without its buffer");
            return;
        };
        let (device, index, is_write) = (piece.device, piece.index, piece.is_write);
        let tag = self.state.keep_piece(piece);
        let pushed = if is_write {
            self.io.push_write(device, buf, Durability::Volatile, tag)
        } else {
            self.io.push_read(device, buf, tag)
        };
        if let Err(e) = pushed {
            self.state.drop_piece(tag);
            self.state.one_less(index, Err(e));
            self.state.finish_if_over(index);
        }
    }
}

impl<M: FileMapping> Drop for DirectQueue<M> {
    /// Waits for what is in flight. Requests that wait for their range or for room are not done at all.
    fn drop(&mut self) {
        // Cancels their places in the queue, so that nobody waits behind a dropped queue.
        self.deferred.clear();
        let (io, state) = (&mut self.io, &mut self.state);
        while io.in_flight() > 0 {
            let waited: Result<u32, DeviceError> =
                io.wait(1, &mut |completion| drop(state.complete(completion)));
            if waited.is_err() {
                // The device may still be writing, so the ranges stay held, which keeps others off.
                state.note_begun();
                return;
            }
        }
        state.release_all();
    }
}

impl<M: FileMapping> std::fmt::Debug for DirectQueue<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DirectQueue")
            .field("depth", &self.depth())
            .field("in_flight", &self.in_flight())
            .field("waiting_for_range", &self.waiting_for_range())
            .finish_non_exhaustive()
    }
}
