//! The requests of a queue, and the pieces that some of them were split into.
//!
//! Invariants:
//! - a slot is free, or has a request until its completion is handed out or put into `ready`;
//! - a request with `unfinished` transfers keeps its token; `finish` releases the token;
//! - device tags below `depth` are those of whole requests, those above are pieces.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use blockdev::{AlignedBuf, Completion, DeviceError};
use rangelock::{Mode, Pending, RangeLock};

use crate::direct::{FileResult, Kind, MappedRun};
use crate::lock::Token;
use crate::{DirectFile, FileCompletion, FileError, FileMapping};

/// A request whose range is taken.
pub(super) struct Deferred {
    pub index: u32,
    pub line: QueuePlace,
}

/// How a request waits for its range.
pub(super) enum QueuePlace {
    In(Pending<Arc<RangeLock>>),
    /// Not in the queue: it has to try again.
    None(Range<u64>, Mode),
}

#[derive(Default)]
pub(super) struct Request {
    pub offset: u64,
    pub tag: u64,
    pub is_write: bool,
    /// An overwrite that met shared blocks. It holds whole blocks, and is done in place.
    pub copies: bool,
    /// `None` while the device has it.
    pub buf: Option<AlignedBuf>,
    pub token: Option<Token>,
    /// Bytes that the request will report, once it is planned.
    pub count: Option<usize>,
    /// Transfers that have not ended.
    pub unfinished: u32,
    /// The first of its transfers to fail.
    pub error: Option<DeviceError>,
}

impl Request {
    /// Fills a slot. The last request has left neither token nor error behind.
    #[inline]
    pub(super) fn begin(&mut self, offset: u64, tag: u64, buf: AlignedBuf, is_write: bool) {
        debug_assert!(self.token.is_none() && self.error.is_none() && self.buf.is_none());
        self.offset = offset;
        self.tag = tag;
        self.is_write = is_write;
        self.copies = false;
        self.buf = Some(buf);
        self.count = None;
        self.unfinished = 0;
    }

    pub(super) fn len(&self) -> usize {
        self.buf.as_ref().map_or(0, |buf| buf.len())
    }

    pub(super) fn count_or_len(&self) -> usize {
        self.count.unwrap_or(self.len())
    }
}

/// A part of a request that lies in one extent.
pub(super) struct RequestPart {
    pub index: u32,
    pub device: u64,
    pub is_write: bool,
    /// Its position in the request's buffer. Its own buffer may be longer, for whole sectors.
    range: Range<usize>,
    /// `None` while the device has it.
    pub buf: Option<AlignedBuf>,
}

pub(super) struct State<M: FileMapping> {
    pub file: Arc<DirectFile<M>>,
    pub requests: Box<[Request]>,
    free: Vec<u32>,
    pieces: Vec<Option<RequestPart>>,
    /// Completed requests that were not handed out yet.
    pub ready: VecDeque<FileCompletion<M::Error>>,
    pub deferrals: u64,
}

impl<M: FileMapping> State<M> {
    pub(super) fn new(file: Arc<DirectFile<M>>, depth: u32) -> Self {
        Self {
            file,
            requests: (0..depth).map(|_| Request::default()).collect(),
            free: (0..depth).rev().collect(),
            pieces: Vec::new(),
            ready: VecDeque::with_capacity(depth as usize),
            deferrals: 0,
        }
    }

    pub(super) fn depth(&self) -> u32 {
        self.requests.len() as u32
    }

    pub(super) fn in_flight(&self) -> u32 {
        (self.requests.len() - self.free.len() + self.ready.len()) as u32
    }

    /// A free slot, if the queue is not full.
    pub(super) fn take_slot(&mut self) -> FileResult<u32, M> {
        if self.in_flight() >= self.depth() {
            return Err(DeviceError::QueueFull.into());
        }
        self.free.pop().ok_or_else(|| DeviceError::QueueFull.into())
    }

    /// Where a write of whole sectors goes, if it lies in one extent.
    #[inline]
    pub(super) fn plan_write(&mut self, index: u32, prefetched: Option<MappedRun>) -> Planned<M> {
        let request = &mut self.requests[index as usize];
        let (offset, len) = (request.offset, request.len());
        let run = self.file.first_run(offset, len, prefetched).map_err(Some)?;
        request.count = Some(len);
        Ok((run.take(len) == len).then_some(run.device))
    }

    /// Where a read of whole sectors comes from, if it lies in one extent. Does it, if that needs no device.
    #[inline]
    pub(super) fn plan_read(&mut self, index: u32, prefetched: Option<MappedRun>) -> Planned<M> {
        let request = &mut self.requests[index as usize];
        let (offset, len) = (request.offset, request.len());
        let run = self.file.known(offset, false, prefetched).map_err(Some)?;
        if offset >= run.size {
            self.finish(index, Ok(0));
            return Err(None);
        }
        let count = (run.size - offset).min(len as u64) as usize;
        request.count = Some(count);
        if matches!(run.kind, Kind::Zeroes(_)) && run.take(count) == count {
            self.zero(index, 0..count);
            self.finish(index, Ok(count));
            return Err(None);
        }
        // The last sector of the file is read as a whole, because the extent has all of it.
        let is_one = !matches!(run.kind, Kind::Zeroes(_)) && run.take(len) == len;
        Ok(is_one.then_some(run.device))
    }

    /// Does a request with partial sectors, or one that copies, by the blocking path. Its range is held.
    #[cold]
    pub(super) fn do_in_place(&mut self, index: u32) -> Option<FileResult<usize, M>> {
        let request = &mut self.requests[index as usize];
        let Some(mut buf) = request.buf.take() else {
            debug_assert!(false, "a request without its buffer");
            return None;
        };
        let result = match (request.is_write, request.copies) {
            (true, true) => self.file.copy_held(request.offset, &buf).map(|()| buf.len()),
            (true, false) => self.file.overwrite_held(request.offset, &buf, None),
            (false, _) => self.file.read_held(request.offset, &mut buf, None),
        };
        self.requests[index as usize].buf = Some(buf);
        Some(result)
    }

    pub(super) fn zero(&mut self, index: u32, range: Range<usize>) {
        if let Some(buf) = &mut self.requests[index as usize].buf {
            buf[range].fill(0);
        }
    }

    pub(super) fn make_piece(&self, index: u32, range: Range<usize>, device: u64) -> RequestPart {
        let request = &self.requests[index as usize];
        let mask = self.file.sector_mask() as usize;
        let mut buf = AlignedBuf::zeroed((range.len() + mask) & !mask);
        if let (true, Some(whole)) = (request.is_write, &request.buf) {
            buf[..range.len()].copy_from_slice(&whole[range.clone()]);
        }
        RequestPart { index, device, is_write: request.is_write, range, buf: Some(buf) }
    }

    /// Stores a piece while the device has its buffer. Returns the tag for the device.
    pub(super) fn keep_piece(&mut self, piece: RequestPart) -> u64 {
        let place = self.pieces.iter().position(Option::is_none).unwrap_or_else(|| {
            self.pieces.push(None);
            self.pieces.len() - 1
        });
        self.pieces[place] = Some(piece);
        (self.requests.len() + place) as u64
    }

    pub(super) fn drop_piece(&mut self, tag: u64) -> Option<RequestPart> {
        let place = (tag as usize).checked_sub(self.requests.len())?;
        self.pieces.get_mut(place)?.take()
    }

    /// Takes back what the device returns. Returns the request's completion if that was the last of it.
    #[inline]
    pub(super) fn complete(&mut self, completion: Completion) -> Option<FileCompletion<M::Error>> {
        let Completion { tag, buf, result } = completion;
        let index = if (tag as usize) < self.requests.len() {
            let request = &mut self.requests[tag as usize];
            request.buf = Some(buf);
            tag as u32
        } else {
            let piece = self.drop_piece(tag)?;
            let request = &mut self.requests[piece.index as usize];
            if let (false, true, Some(whole)) = (piece.is_write, result.is_ok(), &mut request.buf) {
                let len = piece.range.len();
                whole[piece.range].copy_from_slice(&buf[..len]);
            }
            piece.index
        };
        self.one_less(index, result);
        self.take_over(index)
    }

    /// Notes the end of one of a request's transfers.
    #[inline]
    pub(super) fn one_less(&mut self, index: u32, result: Result<(), DeviceError>) {
        let request = &mut self.requests[index as usize];
        request.unfinished -= 1;
        if let Err(e) = result {
            request.error.get_or_insert(e);
        }
    }

    /// A request failed before all of its pieces were made. Those that were made must still come back.
    pub(super) fn fail_unsent(&mut self, index: u32, error: FileError<M::Error>) {
        let request = &mut self.requests[index as usize];
        if request.unfinished <= 1 {
            request.unfinished = 0;
            return self.finish(index, Err(error));
        }
        let source = std::io::Error::other(error.to_string());
        let op = if request.is_write { "write" } else { "read" };
        let error = DeviceError::Io { op, offset: request.offset, len: request.len() as u64, source };
        self.one_less(index, Err(error));
    }

    /// Puts a request into `ready` if it has no transfer left.
    pub(super) fn finish_if_over(&mut self, index: u32) {
        if let Some(over) = self.take_over(index) {
            self.ready.push_back(over);
        }
    }

    /// Ends a request that needs nothing more from the device.
    pub(super) fn finish(&mut self, index: u32, result: FileResult<usize, M>) {
        let over = self.end(index, result);
        self.ready.push_back(over);
    }

    #[inline]
    fn take_over(&mut self, index: u32) -> Option<FileCompletion<M::Error>> {
        let request = &mut self.requests[index as usize];
        if request.unfinished > 0 {
            return None;
        }
        let result = match request.error.take() {
            Some(e) => {
                if request.is_write {
                    self.file.failed_midway();
                }
                Err(e.into())
            }
            None => Ok(request.count_or_len()),
        };
        Some(self.end(index, result))
    }

    /// Releases a request's range and its slot.
    #[inline]
    fn end(&mut self, index: u32, mut result: FileResult<usize, M>) -> FileCompletion<M::Error> {
        let request = &mut self.requests[index as usize];
        if !request.is_write {
            result = result.and_then(|count| self.file.check_read(request.offset).map(|()| count));
        }
        let mut buf = request.buf.take().unwrap_or_else(|| AlignedBuf::zeroed(0));
        match (request.is_write, &result) {
            (true, Ok(_)) => self.file.map().overwritten(),
            // What lies past the end of the file must not be seen.
            (false, Ok(count)) => buf[*count..].fill(0),
            (_, Err(_)) => {}
        }
        if let Some(token) = request.token.take() {
            self.file.lock().release(token);
        }
        request.error = None;
        let tag = request.tag;
        self.free.push(index);
        FileCompletion { tag, buf, result }
    }

    /// Hands out completed requests.
    pub(super) fn hand_out(&mut self, done: &mut dyn FnMut(FileCompletion<M::Error>)) -> u32 {
        let mut count = 0;
        while let Some(over) = self.ready.pop_front() {
            count += 1;
            done(over);
        }
        count
    }

    /// Notes the times of writes that have begun and will not be seen to end.
    pub(super) fn note_begun(&mut self) {
        if self.requests.iter().any(|request| request.is_write && request.token.is_some()) {
            self.file.failed_midway();
        }
    }

    /// Releases the ranges of requests that will not be done, or not to their end.
    pub(super) fn release_all(&mut self) {
        for request in &mut self.requests {
            if let Some(token) = request.token.take() {
                if request.is_write {
                    self.file.failed_midway();
                }
                self.file.lock().release(token);
            }
        }
    }
}

/// The device byte of a request that lies in one extent, `None` if it spans several. The error case: an error, or
/// `None` if there is nothing more to do.
pub(super) type Planned<M> = Result<Option<u64>, Option<FileError<<M as FileMapping>::Error>>>;
