//! A device that keeps small writes for a while and gathers those that adjoin into large requests, as a disk's own cache
//! does. For bulk work: a request costs a system call, and an archive of small files is full of small ones.
//!
//! Invariants:
//! - a read finds what was written last, wherever that is by then;
//! - of two writes to the same bytes the later one stays: bytes that are under way are not written a second time before the
//!   first request is over;
//! - when a flush returns, or a durable write does, what it promises is below, and durable there. What no flush was asked for
//!   may be lost with the process, in any part and order, as from a disk's cache;
//! - if a gathered write fails, the next flush reports it, and all later requests fail ([`DeviceError::Failed`]): it is
//!   unknown what else is lost. A large or durable write that fails is reported to its caller, and what waited there
//!   stays;
//! - what waits has a bound, and so has the memory that it waits in; whoever writes more waits.
//!
//! What is appended to waits in memory that has room for a whole request, which is written from there, and that is used again:
//! copying what is there into larger memory, and having the host clear that, took longer than writing it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::caught::caught;
use crate::{AlignedBuf, BlockDevice, DeviceError, Durability, Layer};

/// The largest request that is made of small ones.
const REQUEST_BYTES: usize = 1 << 20;
/// A write of this many bytes is not kept.
const LARGE_BYTES: usize = 256 << 10;
/// How many bytes wait before any are written unasked, and before a writer has to wait.
const WAKE_BYTES: usize = 4 << 20;
const WAITING_BYTES_MAX: usize = 16 << 20;
/// The most pieces of memory with room for more.
const ROOMY_MAX: usize = 3 * WAITING_BYTES_MAX / 2 / REQUEST_BYTES;
/// Requests in flight at once.
const WRITERS: usize = 2;

/// See above. Dropping it writes what waits, and makes nothing durable.
///
/// ```
/// use blockdev::{BlockDevice, Counter, Durability, MemoryDevice, WriteBehind};
/// use std::sync::Arc;
/// # fn main() -> Result<(), blockdev::DeviceError> {
/// let counter = Arc::new(Counter::new(Arc::new(MemoryDevice::anonymous(1 << 20)?)));
/// let device = WriteBehind::new(counter.clone());
/// for at in (0..65536).step_by(4096) {
///     device.write(at, &[7; 4096], Durability::Volatile)?;
/// }
/// device.flush()?;
/// assert_eq!(counter.counts().writes, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct WriteBehind {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    inner: Arc<dyn BlockDevice>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// What waits, by its first byte on the device. Nothing overlaps.
    waiting: BTreeMap<u64, PendingRun>,
    bytes: usize,
    rooms: Rooms,
    /// Requests in flight, each written by one thread.
    under_way: Vec<UnderWay>,
    /// Ranges of writes that do not wait. They overlap neither each other nor requests in flight.
    at_once: Vec<Range<u64>>,
    /// Where the last request ended: the next begins there, so that nothing waits for ever behind what comes before it.
    cursor: u64,
    /// How many flushes have begun.
    flushes: u64,
    /// How many of them wait for what was written before.
    hurry: usize,
    failed: Option<DeviceError>,
    ended: bool,
}

/// Bytes that wait.
#[derive(Debug)]
struct PendingRun {
    memory: Memory,
    /// How many flushes had begun when the first of these bytes came.
    since: u64,
}

#[derive(Debug)]
enum Memory {
    /// As much as there are bytes.
    Full(Vec<u8>),
    /// With room for more behind so many bytes.
    Roomy(AlignedBuf, usize),
}

/// Memory for runs that have room for more, each of [`REQUEST_BYTES`].
#[derive(Debug, Default)]
struct Rooms {
    spare: Vec<AlignedBuf>,
    /// How many there are, spare or in use.
    made: usize,
}

impl Rooms {
    fn take(&mut self) -> Option<AlignedBuf> {
        let room = self.spare.pop();
        if room.is_none() && self.made < ROOMY_MAX {
            self.made += 1;
            return Some(AlignedBuf::zeroed(REQUEST_BYTES));
        }
        room
    }

    /// A run is over, which is given back if it had none of it.
    fn give_back(&mut self, run: PendingRun) -> Option<PendingRun> {
        match run.memory {
            Memory::Full(_) => Some(run),
            Memory::Roomy(room, _) => {
                self.spare.push(room);
                None
            }
        }
    }
}

/// A request that some thread carries out.
#[derive(Clone, Debug)]
struct UnderWay {
    at: u64,
    /// The bytes, one run behind the other.
    runs: Arc<Vec<PendingRun>>,
    len: usize,
    since: u64,
}

impl WriteBehind {
    /// Gathers what is written to `inner`.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Self {
        let shared = Arc::new(Shared { inner, state: Mutex::default(), changed: Condvar::new() });
        let writer = |_| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.write_what_waits())
        };
        let threads = (0..WRITERS).map(writer).collect();
        Self { shared, threads }
    }

    /// Waits until nothing is under way to the device below any more, however it went.
    pub fn settle(&self) {
        // Whoever asks for something else is told what failed.
        let _ = self.shared.drain();
    }
}

impl Drop for WriteBehind {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what comes until the end.
    fn write_what_waits(&self) {
        let mut gathered = AlignedBuf::zeroed(REQUEST_BYTES);
        let mut state = self.lock();
        loop {
            if state.ended && state.waiting.is_empty() {
                return;
            }
            let is_due = state.ended || state.hurry > 0 || state.bytes >= WAKE_BYTES;
            let Some(request) = is_due.then(|| state.begin_request()).flatten() else {
                state = self.wait(state);
                continue;
            };
            drop(state);
            let (at, len) = (request.at, request.len);
            let bytes = request.in_one(&mut gathered);
            let written = caught("write", at, len, || self.inner.write(at, bytes, Durability::Volatile));
            state = self.lock();
            state.under_way.retain(|other| other.at != at);
            let runs = Arc::into_inner(request.runs);
            debug_assert!(runs.is_some(), "nobody else has a request that is over");
            let small: Vec<_> =
                runs.into_iter().flatten().filter_map(|run| state.rooms.give_back(run)).collect();
            state.note(written);
            self.changed.notify_all();
            drop(state);
            // Memory goes back to the host with nothing held.
            drop(small);
            state = self.lock();
        }
    }

    /// Waits until all that was written before is below.
    fn drain(&self) -> Result<(), DeviceError> {
        let mut state = self.lock();
        let now = state.flushes;
        state.flushes += 1;
        state.hurry += 1;
        self.changed.notify_all();
        while state.has_any_since(now) {
            state = self.wait(state);
        }
        state.hurry -= 1;
        state.check()
    }

    /// Writes at once, once nothing is under way there. What waits there stays until this is below: whoever reads or flushes
    /// meanwhile, or when it has failed, finds that.
    fn write_at_once(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        let range = offset..offset + buf.len() as u64;
        let mut state = self.lock();
        while state.is_under_way(&range) {
            state = self.wait(state);
        }
        state.check()?;
        state.at_once.push(range.clone());
        drop(state);
        let at_once = AtOnce { shared: self, range };
        self.inner.write(offset, buf, durability)?;
        self.lock().cut_out(&at_once.range);
        Ok(())
    }
}

/// A write that does not wait, and that others wait for. Dropping it says that it is over.
struct AtOnce<'a> {
    shared: &'a Shared,
    range: Range<u64>,
}

impl Drop for AtOnce<'_> {
    fn drop(&mut self) {
        self.shared.lock().at_once.retain(|other| *other != self.range);
        self.shared.changed.notify_all();
    }
}

impl State {
    fn note(&mut self, outcome: Result<(), DeviceError>) {
        if let Err(error) = outcome {
            self.failed.get_or_insert(error);
            self.waiting.clear();
            self.bytes = 0;
        }
    }

    fn check(&self) -> Result<(), DeviceError> {
        self.failed.as_ref().map_or(Ok(()), |failed| Err(DeviceError::Failed(failed.to_string())))
    }

    /// Whether something of `range` is on its way below.
    fn is_under_way(&self, range: &Range<u64>) -> bool {
        let overlaps = |other: Range<u64>| other.start < range.end && range.start < other.end;
        self.under_way.iter().any(|other| overlaps(other.at..other.end()))
            || self.at_once.iter().any(|other| overlaps(other.clone()))
    }

    /// Whether something waits or is under way that came when no more than `flushes` had begun.
    fn has_any_since(&self, flushes: u64) -> bool {
        self.waiting.values().any(|run| run.since <= flushes)
            || self.under_way.iter().any(|other| other.since <= flushes)
    }

    /// The next bytes that wait and may be written, with what adjoins them, are under way: one request.
    fn begin_request(&mut self) -> Option<UnderWay> {
        let is_free = |(at, run): &(&u64, &PendingRun)| !self.is_under_way(&run.range(**at));
        let behind = self.waiting.range(self.cursor..).find(is_free);
        let start = *behind.or_else(|| self.waiting.range(..self.cursor).find(is_free))?.0;
        let mut end = start;
        let mut runs: Vec<PendingRun> = Vec::new();
        while let Some(run) = self.waiting.get(&end) {
            let range = run.range(end);
            let fits = range.end - start <= REQUEST_BYTES as u64;
            if !(runs.is_empty() || fits && !self.is_under_way(&range)) {
                break;
            }
            runs.extend(self.waiting.remove(&end));
            end = range.end;
        }
        let since = runs.iter().map(|run| run.since).min()?;
        let len = (end - start) as usize;
        self.bytes -= len;
        self.cursor = end;
        let request = UnderWay { at: start, runs: Arc::new(runs), len, since };
        self.under_way.push(request.clone());
        Some(request)
    }

    /// Takes `range` out of what waits; gives how many flushes had begun when the oldest of that came.
    fn cut_out(&mut self, range: &Range<u64>) -> Option<u64> {
        let mut since = None;
        let before = self.waiting.range(..range.start).next_back().map(|(at, _)| *at);
        let inside = self.waiting.range(range.clone()).map(|(at, _)| *at);
        for at in before.into_iter().chain(inside).collect::<Vec<_>>() {
            let Some(mut run) = self.waiting.remove(&at) else { continue };
            let all = run.range(at);
            if all.end > range.start {
                since = since.into_iter().chain([run.since]).min();
            }
            self.bytes -= run.len();
            if all.end > range.end {
                let from = (range.end.max(at) - at) as usize;
                self.add(at + from as u64, PendingRun::copied(&run.bytes()[from..], run.since));
            }
            if at < range.start {
                run.truncate((range.start - at) as usize);
                self.add(at, run);
            } else {
                let _small = self.rooms.give_back(run);
            }
        }
        since
    }

    fn add(&mut self, at: u64, run: PendingRun) {
        self.bytes += run.len();
        self.waiting.insert(at, run);
    }

    /// Keeps a write, in one run with what waits before it, if that is not too long. A flush that waits for what it takes the
    /// place of waits for it.
    fn keep(&mut self, offset: u64, buf: &[u8]) {
        let cut = self.cut_out(&(offset..offset + buf.len() as u64));
        let since = cut.unwrap_or(self.flushes);
        if let Some((at, run)) = self.waiting.range_mut(..offset).next_back()
            && at + run.len() as u64 == offset
            && run.append(buf, &mut self.rooms)
        {
            run.since = run.since.min(since);
            self.bytes += buf.len();
            return;
        }
        self.add(offset, PendingRun::copied(buf, since));
    }

    /// What of `range` waits or is under way, by its first byte, the newer behind the older.
    fn newer_than_below(&self, range: &Range<u64>) -> Vec<(u64, Vec<u8>)> {
        let mut found = Vec::new();
        let mut part = |at: u64, bytes: &[u8]| {
            let (from, to) = (range.start.max(at), range.end.min(at + bytes.len() as u64));
            if from < to {
                found.push((from, bytes[(from - at) as usize..(to - at) as usize].to_vec()));
            }
        };
        for other in &self.under_way {
            let mut at = other.at;
            for run in &*other.runs {
                part(at, run.bytes());
                at = run.range(at).end;
            }
        }
        let before = self.waiting.range(..range.start).next_back();
        let inside = self.waiting.range(range.clone());
        before.into_iter().chain(inside).for_each(|(at, run)| part(*at, run.bytes()));
        found
    }
}

impl UnderWay {
    fn end(&self) -> u64 {
        self.at + self.len as u64
    }

    /// Its bytes, which are copied together into `buf` if they lie in several pieces.
    fn in_one<'b>(&'b self, buf: &'b mut [u8]) -> &'b [u8] {
        if let [run] = &**self.runs {
            return run.bytes();
        }
        let all = &mut buf[..self.len];
        let mut rest = &mut *all;
        for run in &*self.runs {
            let (part, behind) = rest.split_at_mut(run.len());
            part.copy_from_slice(run.bytes());
            rest = behind;
        }
        debug_assert!(rest.is_empty(), "a request is as long as its runs");
        all
    }
}

impl PendingRun {
    fn copied(bytes: &[u8], since: u64) -> Self {
        Self { memory: Memory::Full(bytes.to_vec()), since }
    }

    fn copied_to(mut room: AlignedBuf, bytes: &[u8], since: u64) -> Self {
        room[..bytes.len()].copy_from_slice(bytes);
        Self { memory: Memory::Roomy(room, bytes.len()), since }
    }

    fn bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::Full(bytes) => bytes,
            Memory::Roomy(room, len) => &room[..*len],
        }
    }

    fn len(&self) -> usize {
        self.bytes().len()
    }

    fn range(&self, at: u64) -> Range<u64> {
        at..at + self.len() as u64
    }

    fn truncate(&mut self, bytes: usize) {
        match &mut self.memory {
            Memory::Full(all) => {
                all.truncate(bytes);
                all.shrink_to_fit();
            }
            Memory::Roomy(_, len) => *len = bytes.min(*len),
        }
    }

    /// Adds bytes, if there is room. More is likely to follow: so it moves to where there is.
    fn append(&mut self, bytes: &[u8], rooms: &mut Rooms) -> bool {
        if self.len() + bytes.len() > REQUEST_BYTES {
            return false;
        }
        if let Memory::Full(all) = &self.memory {
            let Some(room) = rooms.take() else { return false };
            *self = Self::copied_to(room, all, self.since);
        }
        if let Memory::Roomy(room, len) = &mut self.memory {
            room[*len..*len + bytes.len()].copy_from_slice(bytes);
            *len += bytes.len();
        }
        true
    }
}

impl Layer for WriteBehind {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.shared.inner
    }

    fn pass_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let state = self.shared.lock();
        state.check()?;
        // Before the look below: what is written meanwhile is not missed, and what is read twice is the same.
        let newer = state.newer_than_below(&(offset..offset.saturating_add(buf.len() as u64)));
        drop(state);
        self.shared.inner.read(offset, buf)?;
        for (at, bytes) in newer {
            buf[(at - offset) as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn pass_write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        crate::blocking::check_push(self, crate::blocking::Verb::Write(durability), offset, buf.len())?;
        if buf.is_empty() {
            // Kept, it would take the place of what begins there.
            return self.shared.lock().check();
        }
        if durability == Durability::Fua || buf.len() >= LARGE_BYTES {
            return self.shared.write_at_once(offset, buf, durability);
        }
        let mut state = self.shared.lock();
        while state.bytes >= WAITING_BYTES_MAX {
            state = self.shared.wait(state);
        }
        state.check()?;
        let before = state.bytes;
        state.keep(offset, buf);
        if before < WAKE_BYTES && state.bytes >= WAKE_BYTES {
            self.shared.changed.notify_all();
        }
        Ok(())
    }

    fn pass_flush(&self) -> Result<(), DeviceError> {
        self.shared.drain()?;
        let flushed = self.shared.inner.flush();
        self.shared.lock().note(flushed.as_ref().copied().map_err(DeviceError::again));
        flushed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counter, Fault, FaultDevice, HoldDevice, MemoryDevice, Op, Recorder, Repeat};

    const BYTES: u64 = 4 << 20;
    const SECTOR: u64 = 512;

    fn memory() -> Arc<dyn BlockDevice> {
        Arc::new(MemoryDevice::anonymous(BYTES).unwrap())
    }

    /// A write of random length at a random place, of which some are large, and some durable.
    fn random_write(rng: &mut fastrand::Rng, places: Range<u64>) -> (u64, Vec<u8>, Durability) {
        let most = if rng.u32(..20) == 0 { 1000 } else { 20 };
        let sectors = 1 + rng.u64(..most);
        let at = rng.u64(places.start / SECTOR..places.end / SECTOR) * SECTOR;
        let len = (sectors * SECTOR).min(places.end - at);
        let durability = if rng.u32(..30) == 0 { Durability::Fua } else { Durability::Volatile };
        (at, vec![rng.u8(..); len as usize], durability)
    }

    /// Several threads, each in its part, with flushes between.
    #[test]
    fn whoever_reads_finds_what_was_written_last() {
        let device = WriteBehind::new(memory());
        std::thread::scope(|scope| {
            for part in 0..4 {
                let device = &device;
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(part);
                    let places = part * (BYTES / 4)..(part + 1) * (BYTES / 4);
                    let mut model = vec![0; (BYTES / 4) as usize];
                    for nth in 0..3000 {
                        let (at, bytes, durability) = random_write(&mut rng, places.clone());
                        device.write(at, &bytes, durability).unwrap();
                        model[(at - places.start) as usize..][..bytes.len()].copy_from_slice(&bytes);
                        let (at, mut bytes, _) = random_write(&mut rng, places.clone());
                        device.read(at, &mut bytes).unwrap();
                        assert!(bytes == model[(at - places.start) as usize..][..bytes.len()], "write {nth}");
                        if rng.u32(..200) == 0 {
                            device.flush().unwrap();
                        }
                    }
                });
            }
        });
    }

    /// What is below after a flush is all that was written, and durable; so is what a durable write wrote.
    #[test]
    fn a_flush_and_a_durable_write_keep_what_they_promise() {
        let recorder = Arc::new(Recorder::new(memory()));
        let device = WriteBehind::new(recorder.clone());
        let mut rng = fastrand::Rng::with_seed(7);
        let mut model = vec![0; BYTES as usize];
        for _ in 0..60 {
            for _ in 0..rng.u32(1..60) {
                let (at, bytes, durability) = random_write(&mut rng, 0..BYTES);
                device.write(at, &bytes, durability).unwrap();
                model[at as usize..][..bytes.len()].copy_from_slice(&bytes);
                if durability == Durability::Fua {
                    let recording = recorder.recording();
                    let last = recording.writes().iter().rfind(|write| write.offset == at).unwrap();
                    assert_eq!(*last.data, *bytes);
                    assert!(recording.is_durable(last, recording.end()));
                }
            }
            device.flush().unwrap();
            let recording = recorder.recording();
            assert_eq!(recording.in_doubt(recording.end()).count(), 0);
            let mut found = vec![0; BYTES as usize];
            recorder.read(0, &mut found).unwrap();
            assert!(found == model);
        }
    }

    #[test]
    fn small_writes_become_large_ones_in_whatever_order_they_come() {
        let counter = Arc::new(Counter::new(memory()));
        let device = WriteBehind::new(counter.clone());
        let mut places: Vec<u64> = (0..256).map(|nth| nth * 8192).collect();
        fastrand::Rng::with_seed(1).shuffle(&mut places);
        for at in places {
            device.write(at, &[1; 8192], Durability::Volatile).unwrap();
        }
        device.flush().unwrap();
        assert_eq!((counter.counts().writes, counter.counts().written_bytes), (2, 2 << 20));
    }

    /// What is written in a row goes below in whole requests, however much it is.
    #[test]
    fn a_long_row_of_small_writes_becomes_few_requests() {
        const MIB: u64 = 1 << 20;
        for bytes in [4096, 24 << 10, 200 << 10] {
            let counter = Arc::new(Counter::new(Arc::new(MemoryDevice::anonymous(64 << 20).unwrap())));
            let device = WriteBehind::new(counter.clone());
            let all = 60 * MIB / bytes * bytes;
            for at in (0..all).step_by(bytes as usize) {
                device.write(at, &vec![1; bytes as usize], Durability::Volatile).unwrap();
            }
            device.flush().unwrap();
            assert_eq!(counter.counts().written_bytes, all);
            // What is being added to may be written as it is.
            let most = 3 * (all / (MIB / bytes * bytes)) / 2;
            assert!(
                counter.counts().writes <= most,
                "{} requests for writes of {bytes}",
                counter.counts().writes
            );
        }
    }

    /// The older of two writes to one place was still under way when the newer one was sent, and came last.
    #[test]
    fn nothing_overtakes_what_is_under_way() {
        let hold = Arc::new(HoldDevice::new(memory()));
        let device = WriteBehind::new(hold.clone());
        std::thread::scope(|scope| {
            device.write(0, &[1; 4096], Durability::Volatile).unwrap();
            hold.hold(|op, _| op == Op::Write);
            let first = scope.spawn(|| device.flush());
            hold.wait_until_waiting();
            device.write(512, &[2; 512], Durability::Volatile).unwrap();
            let mut found = [0; 1024];
            device.read(0, &mut found).unwrap();
            assert_eq!((found[0], found[512]), (1, 2), "the newer one is read");
            let durable = scope.spawn(|| device.write(1024, &[3; 512], Durability::Fua));
            let second = scope.spawn(|| device.flush());
            std::thread::yield_now();
            assert_eq!(hold.waiting(), 1, "one waits for the other");
            hold.release();
            first.join().unwrap().unwrap();
            second.join().unwrap().unwrap();
            durable.join().unwrap().unwrap();
        });
        let mut found = [0; 4096];
        hold.read(0, &mut found).unwrap();
        assert_eq!((found[0], found[512], found[1024], found[1536]), (1, 2, 3, 1));
    }

    /// The flush took what had taken the place of bytes that it waited for to be none of its business, and returned with neither
    /// below.
    #[test]
    fn a_flush_waits_for_what_takes_the_place_of_what_it_waits_for() {
        const LAST: u64 = 1 << 20;
        let last = Arc::new(HoldDevice::new(memory()));
        let others = Arc::new(HoldDevice::new(last.clone()));
        let device = WriteBehind::new(others.clone());
        last.hold(|op, at| op == Op::Write && at == LAST);
        others.hold(|op, at| op == Op::Write && at < LAST);
        for at in [0, 8192, LAST] {
            device.write(at, &[1; 512], Durability::Volatile).unwrap();
        }
        std::thread::scope(|scope| {
            let flush = scope.spawn(|| device.flush());
            while others.waiting() < WRITERS {
                std::thread::yield_now();
            }
            device.write(LAST, &[2; 512], Durability::Volatile).unwrap();
            others.release();
            last.wait_until_waiting();
            std::thread::sleep(std::time::Duration::from_millis(20));
            let is_early = flush.is_finished();
            last.release();
            flush.join().unwrap().unwrap();
            assert!(!is_early, "neither what was written first nor what was written last is below");
        });
    }

    /// What waited was taken out before the write that took its place was below: meanwhile, and for good if that failed, there
    /// was what had been there before both.
    #[test]
    fn what_waits_stays_until_what_takes_its_place_is_below() {
        for durability in [Durability::Volatile, Durability::Fua] {
            let fault = Arc::new(FaultDevice::new(memory(), vec![Fault::fail(Op::Write, 0)]));
            let hold = Arc::new(HoldDevice::new(fault));
            let device = WriteBehind::new(hold.clone());
            device.write(512, &[1; 512], Durability::Volatile).unwrap();
            let read = || {
                let mut found = [0; 512];
                device.read(512, &mut found).unwrap();
                found[0]
            };
            hold.hold_next(|op, _| op == Op::Write);
            std::thread::scope(|scope| {
                let large = scope.spawn(|| device.write(0, &vec![2; LARGE_BYTES], durability));
                hold.wait_until_waiting();
                let flush = scope.spawn(|| device.flush());
                let (meanwhile, is_early) = (read(), flush.is_finished());
                hold.release();
                large.join().unwrap().unwrap_err();
                flush.join().unwrap().unwrap();
                assert!(!is_early && meanwhile == 1, "{meanwhile} is there meanwhile");
            });
            assert_eq!(read(), 1, "the other one failed");
            device.write(0, &vec![3; LARGE_BYTES], durability).unwrap();
            assert_eq!(read(), 3);
        }
    }

    /// It took the place of all that waited from there on, and that was never written.
    #[test]
    fn a_write_of_nothing_changes_nothing() {
        let below = memory();
        let device = WriteBehind::new(Arc::clone(&below));
        device.write(4096, &[1; 4096], Durability::Volatile).unwrap();
        device.write(4096, &[], Durability::Volatile).unwrap();
        device.flush().unwrap();
        let mut found = [0; 4096];
        below.read(4096, &mut found).unwrap();
        assert_eq!(found, [1; 4096]);
    }

    #[test]
    fn what_failed_is_told_and_nothing_goes_on() {
        let fault = Fault::fail(Op::Write, 1);
        let device = WriteBehind::new(Arc::new(FaultDevice::new(memory(), vec![fault])));
        device.write(0, &[1; 512], Durability::Volatile).unwrap();
        device.flush().unwrap();
        device.write(0, &[2; 512], Durability::Volatile).unwrap();
        assert!(matches!(device.flush(), Err(DeviceError::Failed(_))));
        assert!(device.write(0, &[3; 512], Durability::Volatile).is_err());
        assert!(device.write(0, &[3; 512], Durability::Fua).is_err());
        assert!(device.read(0, &mut [0; 512]).is_err());
        assert!(device.flush().is_err());

        let fault = Fault::fail(Op::Flush, 0).then(Repeat::Sticky);
        let device = WriteBehind::new(Arc::new(FaultDevice::new(memory(), vec![fault])));
        assert!(device.flush().is_err());
        assert!(device.write(0, &[3; 512], Durability::Volatile).is_err());
    }

    /// Whoever writes faster than the device waits, and goes on.
    #[test]
    fn what_waits_has_a_bound() {
        let device = WriteBehind::new(Arc::new(MemoryDevice::anonymous(64 << 20).unwrap()));
        for at in (0..64 << 20).step_by(64 << 10) {
            device.write(at, &[1; 64 << 10], Durability::Volatile).unwrap();
            assert!(device.shared.lock().bytes <= WAITING_BYTES_MAX + (64 << 10));
        }
        device.flush().unwrap();
        assert_eq!(device.shared.lock().bytes, 0);
        // Many pieces that something was added to, and from which something is taken: the memory has a bound, and none is lost.
        for at in (0..64 << 20).step_by(64 << 10) {
            (0..3).for_each(|nth| device.write(at + nth * 512, &[2; 512], Durability::Volatile).unwrap());
            device.write(at + at / 128 % 1536, &[3; 512], Durability::Volatile).unwrap();
        }
        assert!((1..=ROOMY_MAX).contains(&device.shared.lock().rooms.made));
        device.flush().unwrap();
        let state = device.shared.lock();
        assert_eq!((state.bytes, state.rooms.spare.len()), (0, state.rooms.made));
    }

    #[test]
    fn what_waits_when_it_is_dropped_is_written() {
        let below = memory();
        WriteBehind::new(Arc::clone(&below)).write(4096, &[9; 512], Durability::Volatile).unwrap();
        let mut found = [0; 512];
        below.read(4096, &mut found).unwrap();
        assert_eq!(found, [9; 512]);
    }
}
