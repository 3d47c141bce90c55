//! Blocking direct I/O on one file.
//!
//! Invariants:
//! - A request holds its bytes, rounded out to sectors if it is a write, from before the first lookup until after
//!   the last transfer. Whoever changes where bytes lie holds them exclusively, so that what a lookup said stays
//!   true until the request is over.
//! - An overwrite is checked in whole before its first byte is written. Should the map have another version when
//!   the writing gets to a further extent, that extent is checked again.
//! - Whatever has begun to write notes the time, whether it ends well or fails midway.
//! - No request allocates memory, except once per thread and device that lies upon another.

mod copy;
mod device;
mod extend;
mod run;

use std::ops::Range;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use blockdev::{BlockDevice, Durability};
use rangelock::{LockStats, Mode, StatsSnapshot};

use crate::lock::{Attempt, FileLock, Held, Token};
use crate::testing::{CHANGE, HOLD, OVERWRITTEN, point};
use crate::{FileError, FileMapping, Locking, MapSeq, Refusal};

pub(crate) use copy::HeldCopies;
pub(crate) use extend::Begins;
pub(crate) use run::{Kind, MappedRun};

/// No file reaches further than this byte: offsets are signed for everybody else.
pub const FILE_END_MAX: u64 = i64::MAX as u64;

/// Reads and overwrites of one open file, past every cache. Any number of threads may use it at once; requests
/// that do not overlap do not wait for each other (with the default [`Locking`]).
///
/// ```
/// # use blockdev::{BlockDevice, MemoryDevice};
/// # use fileio::{DirectFile, Extent, ExtentState, FileMapping, Locking, MapLookup, MapSeq};
/// # use std::sync::Arc;
/// /// A file of one extent.
/// struct Plain;
/// impl FileMapping for Plain {
///     type Error = std::convert::Infallible;
///     fn size(&self) -> u64 { 100_000 }
///     fn block_size(&self) -> u32 { 4096 }
///     fn lookup(&self, _: u64) -> Result<MapLookup, Self::Error> {
///         let extent = Extent { offset: 0, len: 1 << 20, state: ExtentState::Written(8192) };
///         Ok(MapLookup { extent, size: self.size(), seq: self.seq() })
///     }
///     fn seq(&self) -> MapSeq { MapSeq(0) }
/// }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(2 << 20)?);
/// let file = DirectFile::new(device, Plain, Locking::Range);
/// file.overwrite_at(99_990, b"ten bytes.")?;
/// let mut end = [0; 100];
/// assert_eq!(file.read_at(99_990, &mut end)?, 10);
/// assert!(file.overwrite_at(99_991, b"ten bytes.").is_err(), "the file ends before");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
// Every request reads it: apart from the count of those who have it.
#[repr(align(128))]
pub struct DirectFile<M> {
    device: Arc<dyn BlockDevice>,
    map: M,
    lock: FileLock,
    locking: Locking,
    /// The device's sector size less 1.
    sector_mask: u64,
    /// Whether the device can prefetch.
    prefetches: bool,
}

/// What the data path returns.
pub(crate) type FileResult<T, M> = Result<T, FileError<<M as FileMapping>::Error>>;

/// Wakes a thread that waits for its turn.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Whether an overwrite was refused as something of its range was never written.
pub(crate) fn is_unwritten<E: std::error::Error>(error: &FileError<E>) -> bool {
    matches!(error, FileError::NotOverwritable { why: Refusal::Hole | Refusal::Unwritten, .. })
}

impl<M: FileMapping> DirectFile<M> {
    /// The file whose bytes lie on `device` where `map` says.
    pub fn new(device: Arc<dyn BlockDevice>, map: M, locking: Locking) -> Self {
        Self::build(device, map, locking, lockstat::range_stats())
    }

    /// As [`new`](Self::new), and its range lock counts into `stats`.
    pub fn with_stats(device: Arc<dyn BlockDevice>, map: M, locking: Locking, stats: Arc<LockStats>) -> Self {
        Self::build(device, map, locking, Some(stats))
    }

    fn build(device: Arc<dyn BlockDevice>, map: M, locking: Locking, stats: Option<Arc<LockStats>>) -> Self {
        let sector_mask = u64::from(device.sector_size()) - 1;
        let prefetches = device.prefetches();
        Self {
            lock: FileLock::new(locking, map.size(), stats),
            device,
            map,
            locking,
            sector_mask,
            prefetches,
        }
    }

    /// Where the file's bytes lie.
    pub fn map(&self) -> &M {
        &self.map
    }

    /// The device that holds them.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// How requests are kept apart.
    pub fn locking(&self) -> Locking {
        self.locking
    }

    /// What the range lock has counted, if it counts.
    pub fn lock_stats(&self) -> Option<StatsSnapshot> {
        self.lock.stats()
    }

    /// Reads from byte `offset` on until `buf` is full or the file ends; gives the number of bytes. Holes and
    /// space that was never written read as zeroes. Any offset, length and address will do; whole sectors into an
    /// [`AlignedBuf`](blockdev::AlignedBuf) spare a copy.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> FileResult<usize, M> {
        let Some(range) = self.read_range(offset, buf.len()) else { return Ok(0) };
        let prefetched = self.prefetch(offset, false);
        let _held = self.lock.hold(range, Mode::Shared);
        self.read_held(offset, buf, prefetched)
    }

    /// Writes `buf` over what is at byte `offset`; gives the number of bytes, which is all of them. The range must
    /// lie inside the file, on blocks that were written before; otherwise nothing is written. What other files share is
    /// written elsewhere, if the format can do that.
    pub fn overwrite_at(&self, offset: u64, buf: &[u8]) -> FileResult<usize, M> {
        self.overwrite_or(offset, buf, |_| Ok(None))
    }

    /// The same; but where something of the range was never written, `write` is asked to do it with what is held, in this mode,
    /// and says whether it has.
    #[inline]
    fn overwrite_or(
        &self,
        offset: u64,
        buf: &[u8],
        write: impl FnOnce(Mode) -> FileResult<Option<usize>, M>,
    ) -> FileResult<usize, M> {
        let Some((range, mode)) = self.write_range(offset, buf.len())? else { return Ok(0) };
        let prefetched = self.prefetch(offset, true);
        point(CHANGE);
        let held = self.lock.hold(range, mode);
        match self.overwrite_held(offset, buf, prefetched) {
            Ok(_) => {
                // While the bytes are held: a close waits for these, and logs what is noted.
                self.map.overwritten();
                drop(held);
                point(OVERWRITTEN);
            }
            Err(error) => {
                if is_unwritten(&error)
                    && let Some(written) = write(mode)?
                {
                    return Ok(written);
                }
                self.overwrite_elsewhere(held, error, offset, buf)?;
            }
        }
        Ok(buf.len())
    }

    /// An overwrite that failed in place: written elsewhere, if that is all that keeps it.
    #[cold]
    fn overwrite_elsewhere(
        &self,
        held: Held<'_>,
        error: FileError<M::Error>,
        offset: u64,
        buf: &[u8],
    ) -> FileResult<(), M> {
        if !self.can_copy(&error) {
            return Err(error);
        }
        drop(held);
        self.overwrite_shared(offset, buf)
    }

    /// Makes everything that was written before durable.
    pub fn sync(&self) -> FileResult<(), M> {
        Ok(self.device.flush()?)
    }

    /// Keeps requests on `range` out, for whoever changes where the range's bytes lie.
    #[must_use = "the range is released at once if the guard is not kept"]
    pub fn hold(&self, range: Range<u64>, mode: Mode) -> impl Drop + use<'_, M> {
        point(CHANGE);
        let held: Held<'_> = self.lock.hold(range, mode);
        held
    }

    /// Takes all of the file from everybody who writes to it, once every write is over that is under way; `None` if that
    /// takes longer than `patience`.
    pub(crate) fn acquire_from_writers(&self, patience: Duration) -> Option<Token> {
        point(HOLD);
        self.acquire_within(0..u64::MAX, self.against_writers(), patience)
    }

    /// Keeps requests on `range` out, as [`hold`](Self::hold) does, or writes to it alone, if `writers`; `None` if it takes
    /// longer than `patience` until those are over that are under way.
    pub fn hold_within(&self, range: Range<u64>, writers: bool, patience: Duration) -> Option<Held<'_>> {
        point(CHANGE);
        let mode = if writers { self.against_writers() } else { Mode::Exclusive };
        let token = self.acquire_within(range, mode, patience)?;
        Some(Held::new(&self.lock, token))
    }

    /// How to hold bytes that are not to be written.
    pub(crate) fn against_writers(&self) -> Mode {
        match self.locking {
            // Writers share the lock.
            #[cfg(feature = "designs")]
            Locking::Shared => Mode::Exclusive,
            _ => Mode::Shared,
        }
    }

    fn acquire_within(&self, range: Range<u64>, mode: Mode, patience: Duration) -> Option<Token> {
        let until = Instant::now() + patience;
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut attempt = self.lock.attempt(range.clone(), mode, &waker);
        loop {
            let token = match &mut attempt {
                Attempt::Held(_) => None,
                Attempt::InLine(line) => line.poll_finish(&waker).map(Token::Range),
                Attempt::Busy => self.lock.try_acquire(range.clone(), mode),
            };
            if let Some(token) = token {
                attempt = Attempt::Held(token);
            }
            if let Attempt::Held(token) = attempt {
                return Some(token);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            // Where there is no line to stand in, nobody wakes who waits.
            let is_in_line = matches!(attempt, Attempt::InLine(_));
            thread::park_timeout(if is_in_line { left } else { left.min(Duration::from_millis(1)) });
        }
    }

    /// As [`read_at`](Self::read_at), of bytes that the caller holds.
    pub fn read_while_held(&self, offset: u64, buf: &mut [u8]) -> FileResult<usize, M> {
        if self.read_range(offset, buf.len()).is_none() {
            return Ok(0);
        }
        self.read_held(offset, buf, None)
    }

    /// Looks up the run at `offset` and prefetches what lies there, if that is worth it, while the lock is being
    /// taken: both wait for memory that other threads used last. Before the lock is held the map may change. Then
    /// the prefetch was for the wrong place, and the run is no longer [`known`](Self::known).
    #[inline]
    pub(crate) fn prefetch(&self, offset: u64, is_write: bool) -> Option<MappedRun> {
        if !self.prefetches {
            return None;
        }
        let run = self.find_run(offset, is_write).ok()?;
        if run.kind == Kind::Data {
            self.device.prefetch(run.device);
        }
        Some(run)
    }

    /// The run at `offset`, whose range is held: as it was prefetched, if the map is the same.
    #[inline]
    pub(crate) fn known(
        &self,
        offset: u64,
        is_write: bool,
        prefetched: Option<MappedRun>,
    ) -> FileResult<MappedRun, M> {
        match prefetched {
            Some(run) if run.seq == self.map.seq() => Ok(run),
            _ => self.find_run(offset, is_write),
        }
    }

    #[inline]
    fn find_run(&self, offset: u64, is_write: bool) -> FileResult<MappedRun, M> {
        if is_write { self.run_at(offset) } else { self.run_to_read(offset) }
    }

    /// The device's sector size less 1.
    #[inline]
    pub(crate) fn sector_mask(&self) -> u64 {
        self.sector_mask
    }

    #[inline]
    pub(crate) fn lock(&self) -> &FileLock {
        &self.lock
    }

    /// What a read of `len` bytes locks; nothing if it can give nothing.
    #[inline]
    pub(crate) fn read_range(&self, offset: u64, len: usize) -> Option<Range<u64>> {
        let end = offset.saturating_add(len as u64).min(FILE_END_MAX);
        (offset < end).then_some(offset..end)
    }

    /// What an overwrite of `len` bytes locks, and how; nothing if there is nothing to write.
    #[inline]
    pub(crate) fn write_range(&self, offset: u64, len: usize) -> FileResult<Option<(Range<u64>, Mode)>, M> {
        if len == 0 {
            return Ok(None);
        }
        let end = match offset.checked_add(len as u64) {
            Some(end) if end <= FILE_END_MAX => end,
            _ => return Err(FileError::NotOverwritable { offset, why: Refusal::PastEnd }),
        };
        let mask = self.sector_mask;
        let is_whole = (offset | end) & mask == 0;
        // A writer of half a sector rewrites the other half: it must hold that too.
        let range = if is_whole { offset..end } else { offset & !mask..(end + mask) & !mask };
        let mode = match self.locking {
            #[cfg(feature = "designs")]
            Locking::Shared if is_whole => Mode::Shared,
            _ => Mode::Exclusive,
        };
        Ok(Some((range, mode)))
    }

    /// A read whose range is held, and whose first run may have been `prefetched` before.
    #[inline]
    pub(crate) fn read_held(
        &self,
        offset: u64,
        buf: &mut [u8],
        prefetched: Option<MappedRun>,
    ) -> FileResult<usize, M> {
        let mut run = self.known(offset, false, prefetched)?;
        if offset >= run.size {
            return Ok(0);
        }
        let len = (run.size - offset).min(buf.len() as u64) as usize;
        let mut buf = &mut buf[..len];
        let mut at = offset;
        loop {
            let (piece, rest) = buf.split_at_mut(run.take(buf.len()));
            match run.kind {
                Kind::Zeroes(_) => piece.fill(0),
                Kind::Data | Kind::SharedData => self.read_device(run.device, piece)?,
            }
            at += piece.len() as u64;
            buf = rest;
            if buf.is_empty() {
                return self.check_read(offset).map(|()| len);
            }
            run = self.run_to_read(at)?;
        }
    }

    /// See [`FileMapping::check_read`].
    #[inline]
    pub(crate) fn check_read(&self, offset: u64) -> FileResult<(), M> {
        self.map.check_read().map_err(|source| FileError::Map { offset, source })
    }

    /// An overwrite whose range is held, exclusively if it is not whole sectors; its first run may have been
    /// `prefetched` before.
    #[inline]
    pub(crate) fn overwrite_held(
        &self,
        offset: u64,
        buf: &[u8],
        prefetched: Option<MappedRun>,
    ) -> FileResult<usize, M> {
        let run = self.first_run(offset, buf.len(), prefetched)?;
        if run.take(buf.len()) == buf.len() {
            self.write_device(run.device, buf).inspect_err(|_| self.failed_midway())?;
        } else {
            self.overwrite_runs(offset, buf)?;
        }
        Ok(buf.len())
    }

    /// A write has failed after it began, and may have changed some of the content: the file has a new time all the same.
    #[cold]
    pub(crate) fn failed_midway(&self) {
        self.map.overwritten();
    }

    /// As [`overwrite_held`](Self::overwrite_held), durable when it returns, of whole sectors in one piece on a device that has
    /// [durable writes](BlockDevice::has_fua). `false` where it is none of that, and nothing was written.
    pub(crate) fn overwrite_held_durably(&self, offset: u64, buf: &[u8]) -> FileResult<bool, M> {
        let run = match self.first_run(offset, buf.len(), None) {
            Err(FileError::NotOverwritable { .. }) => return Ok(false),
            run => run?,
        };
        if run.take(buf.len()) != buf.len() {
            return Ok(false);
        }
        self.device.write(run.device, buf, Durability::Fua).inspect_err(|_| self.failed_midway())?;
        Ok(true)
    }

    /// The run at the first byte of an overwrite whose range is held, if that can be overwritten and the file does not
    /// end too early.
    #[inline(always)]
    pub(crate) fn first_run(
        &self,
        offset: u64,
        len: usize,
        prefetched: Option<MappedRun>,
    ) -> FileResult<MappedRun, M> {
        let run = self.known(offset, true, prefetched)?;
        // `write_range` has checked that the sum is a file offset.
        if offset + len as u64 > run.size {
            return Err(FileError::NotOverwritable { offset: run.size.max(offset), why: Refusal::PastEnd });
        }
        run.check_overwritable(offset)?;
        self.map.content_changes().map_err(|source| FileError::Map { offset, source })?;
        Ok(run)
    }

    /// An overwrite of several extents: all are looked at before the first is written.
    #[cold]
    fn overwrite_runs(&self, offset: u64, buf: &[u8]) -> FileResult<(), M> {
        let checked = self.check_runs(offset, buf.len())?;
        self.overwrite_checked(offset, buf, checked).inspect_err(|_| self.failed_midway())
    }

    fn overwrite_checked(&self, offset: u64, buf: &[u8], checked: MapSeq) -> FileResult<(), M> {
        let (mut at, mut buf, mut checked) = (offset, buf, checked);
        while !buf.is_empty() {
            let run = self.run_at(at)?;
            if run.seq != checked {
                checked = self.check_runs(at, buf.len())?;
                continue;
            }
            let (piece, rest) = buf.split_at(run.take(buf.len()));
            self.write_device(run.device, piece)?;
            at += piece.len() as u64;
            buf = rest;
        }
        Ok(())
    }

    /// Checks that all of a range can be overwritten; gives the version of the map that says so.
    pub(crate) fn check_runs(&self, offset: u64, len: usize) -> FileResult<MapSeq, M> {
        'again: loop {
            let first = self.run_at(offset)?;
            let (mut at, mut left, mut run) = (offset, len, first);
            loop {
                run.check_overwritable(at)?;
                let taken = run.take(left);
                at += taken as u64;
                left -= taken;
                if left == 0 {
                    return Ok(first.seq);
                }
                run = self.run_at(at)?;
                if run.seq != first.seq {
                    continue 'again;
                }
            }
        }
    }
}
