//! Readahead: reads buffers before they are needed, several at once.
//!
//! Invariants:
//! - nothing depends on it. A buffer that cannot be read or fails its verifier is dropped. Whoever needs it reads it
//!   again and gets the error;
//! - a buffer enters the cache under the same conditions as after any other read: its verifier has passed it, and it
//!   was not written back since the read began;
//! - addresses are not trusted: what lies outside of the device is not read, and the bytes in flight are bounded;
//! - a queue that fails or panics is not used again.

use super::{BufCache, BufMap, MAX_BUF_BYTES};
use blockdev::{AlignedBuf, BlockDevice, Completion, IoQueue};
use lockstat::{Counted, LockClass, Mode, Users};
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use xfs_format::verify::Verifier;

/// Number of queues. Threads that read in different places do not wait for each other.
const LANES: usize = 4;
/// log2 of the bytes of a region. All of a region is read by one queue.
const REGION_LOG: u32 = 22;
/// Depth of a queue.
const DEPTH: u32 = 32;
/// The largest request. One request reads buffers that are contiguous.
const REQUEST_BYTES: u64 = 128 << 10;
/// Maximum number of bytes in flight, and the part of the cache that they may take, as a divisor.
const BYTES_MAX: u64 = 4 << 20;
const PART: u64 = 16;

static LANE: LockClass = LockClass::new("read-ahead");

/// A buffer to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) map: BufMap,
    pub(crate) verifier: &'static Verifier,
}

/// The readahead of one cache.
pub(super) struct ReadAhead {
    lanes: [Lane; LANES],
    bytes_max: u64,
    request_bytes: u64,
    bytes: AtomicU64,
}

/// One queue, with cache lines of its own.
#[repr(align(128))]
struct Lane {
    /// Buffers in flight. Readers look at this before they take the lock.
    in_flight: AtomicUsize,
    state: Mutex<State>,
    users: Users,
}

#[derive(Default)]
struct State {
    /// None before the first request, and after a failure.
    queue: Option<Box<dyn IoQueue>>,
    failed: bool,
    /// Requests in flight, by tag.
    requests: HashMap<u64, Request>,
    next_tag: u64,
}

/// Contiguous buffers, in order.
struct Request {
    /// Each with the write count of its region from before the read began.
    wanted: SmallVec<[(Wanted, u64); 8]>,
    bytes: u64,
}

impl State {
    fn is_in_flight(&self, map: &BufMap) -> bool {
        self.requests.values().any(|request| request.holds(map))
    }
}

impl Request {
    fn holds(&self, map: &BufMap) -> bool {
        self.wanted.iter().any(|(wanted, _)| wanted.map == *map)
    }
}

impl Lane {
    fn new() -> Self {
        Self { in_flight: AtomicUsize::new(0), state: Mutex::default(), users: Users::new() }
    }

    /// The lock is held while its holder waits for reads.
    fn lock(&self) -> Counted<MutexGuard<'_, State>> {
        LANE.lock_by(&self.users, Mode::Exclusive, || self.state.try_lock(), || self.state.lock())
    }

    fn try_lock(&self) -> Option<Counted<MutexGuard<'_, State>>> {
        LANE.try_lock_by(&self.users, Mode::Exclusive, || self.state.try_lock())
    }
}

impl ReadAhead {
    /// For a cache of at most `limit` bytes.
    pub(super) fn new(limit: u64) -> Self {
        let bytes_max = (limit / PART).min(BYTES_MAX);
        // Several requests fit even if the cache is small.
        let request_bytes = REQUEST_BYTES.min(bytes_max / 4);
        let lanes = std::array::from_fn(|_| Lane::new());
        Self { lanes, bytes_max, request_bytes, bytes: AtomicU64::new(0) }
    }

    fn lane(&self, map: &BufMap) -> &Lane {
        &self.lanes[(map.daddr.0 >> (REGION_LOG - 9)) as usize % LANES]
    }
}

impl BufMap {
    /// Its first byte on the device and its end. `None` if it lies outside of the device.
    fn on(&self, device: &dyn BlockDevice) -> Option<(u64, u64)> {
        let start = self.daddr.0.checked_mul(512)?;
        let end = start.checked_add(self.len)?;
        (self.len > 0 && self.len <= MAX_BUF_BYTES && end <= device.size()).then_some((start, end))
    }
}

impl BufCache {
    /// Whether buffers are read ahead. If the device is in memory, there is nothing to wait for.
    pub(crate) fn reads_ahead(&self) -> bool {
        !self.device.is_in_memory()
    }

    /// Starts to read buffers that are not in the cache, without waiting for them. Leaves out those that exceed the
    /// bound.
    pub(crate) fn read_ahead(&self, wanted: &mut Vec<Wanted>) {
        if !self.reads_ahead() {
            return;
        }
        wanted.sort_unstable_by_key(|wanted| (wanted.map.daddr, wanted.map.len));
        wanted.dedup_by_key(|wanted| wanted.map);
        wanted.retain(|wanted| wanted.map.on(&*self.device).is_some() && !self.is_in_memory(&wanted.map));
        if self.ahead.bytes.load(Ordering::Relaxed) > self.ahead.bytes_max / 2 {
            self.reap_all();
        }
        let mut rest = &wanted[..];
        while let Some(first) = rest.first() {
            let lane = self.ahead.lane(&first.map);
            let here = rest.iter().take_while(|wanted| std::ptr::eq(self.ahead.lane(&wanted.map), lane));
            let (now, later) = rest.split_at(here.count());
            self.read_ahead_in(lane, now);
            rest = later;
        }
    }

    /// Whether a buffer is in the cache.
    pub(crate) fn is_in_memory(&self, map: &BufMap) -> bool {
        self.cache.contains(&(map.daddr.0, map.len))
    }

    /// Starts to read buffers of one lane, which are sorted.
    fn read_ahead_in(&self, lane: &Lane, wanted: &[Wanted]) {
        let mut state = lane.lock();
        if state.failed {
            return;
        }
        self.reap(lane, &mut state, 0);
        let is_read = |map: &BufMap| state.is_in_flight(map) || self.is_in_memory(map);
        let wanted: SmallVec<[Wanted; 32]> =
            wanted.iter().filter(|wanted| !is_read(&wanted.map)).copied().collect();
        let mut rest = &wanted[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(side_by_side(rest, self.ahead.request_bytes));
            if !self.push(lane, &mut state, now) {
                break;
            }
            rest = later;
        }
        self.drive(lane, &mut state, |queue| queue.submit().is_ok());
    }

    /// Pushes one request. Returns `false` if there is no room.
    fn push(&self, lane: &Lane, state: &mut State, wanted: &[Wanted]) -> bool {
        let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else { return true };
        let (Some((start, _)), Some((_, end))) = (first.map.on(&*self.device), last.map.on(&*self.device))
        else {
            return true;
        };
        let bytes = end - start;
        let Ok(len) = usize::try_from(bytes) else { return true };
        if self.ahead.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > self.ahead.bytes_max {
            self.ahead.bytes.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        // Count before the read begins.
        let wanted = wanted.iter().map(|wanted| (*wanted, self.writes.of(&[wanted.map]))).collect();
        let request = Request { wanted, bytes };
        let tag = state.next_tag;
        let mut pushed = false;
        self.drive(lane, state, |queue| {
            let has_room = queue.in_flight() < queue.depth();
            pushed = has_room && queue.push_read(start, AlignedBuf::zeroed(len), tag).is_ok();
            true
        });
        if !pushed {
            self.ahead.bytes.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        state.next_tag += 1;
        lane.in_flight.fetch_add(request.wanted.len(), Ordering::Release);
        state.requests.insert(tag, request);
        true
    }

    /// Waits for the readahead of the buffer at `map`. Returns `false` if there is none.
    pub(super) fn wait_for_read_ahead(&self, map: &BufMap) -> bool {
        let lane = self.ahead.lane(map);
        if lane.in_flight.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut state = lane.lock();
        let mut waited = false;
        while state.is_in_flight(map) {
            waited = true;
            self.reap(lane, &mut state, 1);
        }
        waited
    }

    /// Reaps the lanes that nobody has locked. Completed reads count as in flight until they are reaped.
    fn reap_all(&self) {
        for lane in &self.ahead.lanes {
            if let Some(mut state) = lane.try_lock() {
                self.reap(lane, &mut state, 0);
            }
        }
    }

    /// Waits for `min` requests, and puts what was read into the cache.
    fn reap(&self, lane: &Lane, state: &mut State, min: u32) {
        let mut over: SmallVec<[Completion; 8]> = SmallVec::new();
        if state.requests.is_empty() {
            return;
        }
        self.drive(lane, state, |queue| {
            let waited = queue.wait(min, &mut |completion| over.push(completion)).is_ok();
            // Do not wait for ever if the queue has lost a request.
            waited && (!over.is_empty() || queue.in_flight() > 0)
        });
        for completion in over {
            let Some(request) = state.requests.remove(&completion.tag) else { continue };
            if completion.result.is_ok() {
                self.enter_read_ahead(&request, &completion.buf);
            }
            self.forget_request(lane, &request);
        }
    }

    /// Puts those buffers into the cache that pass their verifiers and are up to date.
    fn enter_read_ahead(&self, request: &Request, bytes: &[u8]) {
        let mut rest = bytes;
        for (Wanted { map, verifier }, writes) in &request.wanted {
            let is_newest = || self.writes.of(&[*map]) == *writes;
            let Some((now, later)) = rest.split_at_checked(map.len as usize) else { return };
            rest = later;
            if is_newest() && self.verify(now, map.daddr, verifier).is_ok() {
                let key = (map.daddr.0, map.len);
                let _found_by_who_asks = self.enter(key, &[*map], Arc::from(now), verifier, is_newest);
            }
        }
    }

    fn forget_request(&self, lane: &Lane, request: &Request) {
        self.ahead.bytes.fetch_sub(request.bytes, Ordering::Relaxed);
        lane.in_flight.fetch_sub(request.wanted.len(), Ordering::Release);
    }

    /// Calls `work` with a lane's queue. If it returns `false` or panics, the queue is dropped for good, and its
    /// requests count as not read.
    fn drive(&self, lane: &Lane, state: &mut State, work: impl FnOnce(&mut dyn IoQueue) -> bool) {
        if state.failed {
            return;
        }
        let queue = &mut state.queue;
        let went_well = catch_unwind(AssertUnwindSafe(|| {
            if queue.is_none() {
                *queue = Arc::clone(&self.device).queue(DEPTH).ok();
            }
            queue.as_mut().is_some_and(|queue| work(&mut **queue))
        }));
        if went_well.unwrap_or(false) {
            return;
        }
        state.failed = true;
        if let Some(queue) = state.queue.take() {
            // This waits for requests in flight. It may panic as well.
            let _ended = catch_unwind(AssertUnwindSafe(|| drop(queue)));
        }
        for (_, request) in state.requests.drain() {
            self.forget_request(lane, &request);
        }
    }
}

/// How many of the first buffers are contiguous and fit into one request.
fn side_by_side(wanted: &[Wanted], bytes_max: u64) -> usize {
    let mut bytes = wanted.first().map_or(0, |first| first.map.len);
    let behind = wanted.windows(2).take_while(|two| {
        let [one, next] = [two[0].map, two[1].map];
        bytes += next.len;
        one.daddr.0 + one.len / 512 == next.daddr.0 && bytes <= bytes_max
    });
    (1 + behind.count()).min(wanted.len())
}

impl fmt::Debug for ReadAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadAhead").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::geometry;
    use blockdev::{BlockingQueue, Counter, DeviceError, Durability, Layer, MemoryDevice};
    use std::sync::atomic::AtomicBool;
    use xfs_format::attr::RAW;
    use xfs_format::error::FormatError;
    use xfs_format::types::DiskAddr;

    const LEN: u64 = 4096;

    fn memory() -> Arc<MemoryDevice> {
        Arc::new(MemoryDevice::anonymous(64 << 20).expect("a device"))
    }

    fn cache(device: Arc<dyn BlockDevice>, limit: u64) -> BufCache {
        BufCache::new(device, &geometry(true, 12, 0), limit)
    }

    /// A device that reads at submission.
    #[derive(Debug)]
    struct AtOnce(Arc<dyn BlockDevice>);

    impl Layer for AtOnce {
        fn below(&self) -> &Arc<dyn BlockDevice> {
            &self.0
        }
    }

    fn counted(limit: u64) -> (Arc<Counter>, BufCache) {
        let counter = Arc::new(Counter::new(memory()));
        (Arc::clone(&counter), cache(Arc::new(AtOnce(counter)), limit))
    }

    fn wanted(nth: u64) -> Wanted {
        Wanted { map: BufMap { daddr: DiskAddr(nth * LEN / 512), len: LEN }, verifier: &RAW }
    }

    fn fill(device: &dyn BlockDevice, nth: u64, byte: u8) {
        device.write(nth * LEN, &[byte; LEN as usize], Durability::Volatile).expect("written");
    }

    fn first_byte(cache: &BufCache, nth: u64) -> u8 {
        let Wanted { map, verifier } = wanted(nth);
        cache.read(map.daddr, map.len, verifier).expect("read")[0]
    }

    #[test]
    fn neighbours_are_read_by_one_request_and_not_again() {
        let (counter, cache) = counted(64 << 20);
        (1..20).for_each(|nth| fill(&*counter, nth, nth as u8));
        cache.read_ahead(&mut (1..20).rev().filter(|nth| *nth != 10).map(wanted).collect());
        assert_eq!(counter.counts().reads, 2);
        // The second time nothing is left to read.
        cache.read_ahead(&mut (1..10).map(wanted).collect());
        (1..20).for_each(|nth| assert_eq!(first_byte(&cache, nth), nth as u8));
        assert_eq!(counter.counts().reads, 3, "the one that was left out");
        assert_eq!(cache.ahead.bytes.load(Ordering::Relaxed), 0);
    }

    /// As if the buffer had been changed, written back and evicted during the read.
    #[test]
    fn what_was_written_back_since_is_read_again() {
        let (counter, cache) = counted(64 << 20);
        fill(&*counter, 1, 1);
        cache.read_ahead(&mut vec![wanted(1)]);
        assert_eq!(counter.counts().reads, 1);
        fill(&*counter, 1, 2);
        cache.writes.written(&[wanted(1).map]);
        assert_eq!(first_byte(&cache, 1), 2);
    }

    /// A device whose queues call a function when the first request is pushed.
    #[derive(Debug)]
    struct Meanwhile {
        below: Arc<dyn BlockDevice>,
        work: Work,
    }

    type Once = Box<dyn FnOnce() + Send>;

    #[derive(Clone, Default)]
    struct Work(Arc<Mutex<Option<Once>>>);

    impl fmt::Debug for Work {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Work")
        }
    }

    struct MeanwhileQueue(Box<dyn IoQueue>, Work);

    impl IoQueue for MeanwhileQueue {
        fn depth(&self) -> u32 {
            self.0.depth()
        }
        fn in_flight(&self) -> u32 {
            self.0.in_flight()
        }
        fn push_read(&mut self, offset: u64, buf: AlignedBuf, tag: u64) -> Result<(), DeviceError> {
            let work = self.1.0.lock().take();
            work.into_iter().for_each(|work| work());
            self.0.push_read(offset, buf, tag)
        }
        fn push_write(
            &mut self,
            at: u64,
            buf: AlignedBuf,
            how: Durability,
            tag: u64,
        ) -> Result<(), DeviceError> {
            self.0.push_write(at, buf, how, tag)
        }
        fn submit(&mut self) -> Result<(), DeviceError> {
            self.0.submit()
        }
        fn wait(&mut self, min: u32, each: &mut dyn FnMut(Completion)) -> Result<u32, DeviceError> {
            self.0.wait(min, each)
        }
    }

    impl Layer for Meanwhile {
        fn below(&self) -> &Arc<dyn BlockDevice> {
            &self.below
        }
        fn pass_queue(self: Arc<Self>, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
            let below = Box::new(BlockingQueue::new(Arc::clone(&self), depth)?);
            Ok(Box::new(MeanwhileQueue(below, self.work.clone())))
        }
    }

    /// Regression: a buffer was freed between the check whether it is in memory and the push of its read. When another
    /// buffer was written back after that, the freed one was marked as displaced but stayed in the cache.
    #[cfg(not(shuttle))]
    #[test]
    fn what_was_freed_before_it_was_read_ahead_can_be_made_anew() {
        use super::super::BufChange;
        let work = Work::default();
        let device = Arc::new(Meanwhile { below: memory(), work: work.clone() });
        let cache = Arc::new(cache(device, 64 << 20));
        let frees = Arc::clone(&cache);
        *work.0.lock() = Some(Box::new(move || {
            let freed = frees.get_handle(&[wanted(3).map], &RAW).expect("made");
            freed.publish(BufChange::Invalidate, &mut freed.lock());
        }));
        cache.read_ahead(&mut vec![wanted(1), wanted(3)]);
        let writes = Arc::clone(&cache.writes);
        fileio::testing::at("an old buffer is found", move || {
            writes.written(&[wanted(3).map]);
        });
        cache.wait_for_read_ahead(&wanted(1).map);
        cache.wait_for_read_ahead(&wanted(3).map);
        let made = cache.get_handle(&[wanted(3).map], &RAW).expect("made");
        assert!(made.is_cached(), "whoever makes something of the blocks asks again, for ever");
    }

    /// Passes nothing.
    static NONE: Verifier = Verifier { name: "test", check: |_, _| Err(FormatError::new("test", "bad")) };

    #[test]
    fn what_fails_its_verifier_does_not_come_into_memory() {
        let (_, cache) = counted(64 << 20);
        let bad = Wanted { verifier: &NONE, ..wanted(1) };
        cache.read_ahead(&mut vec![bad]);
        assert!(cache.wait_for_read_ahead(&bad.map) && !cache.is_in_memory(&bad.map));
        cache.read(bad.map.daddr, LEN, &NONE).map(drop).expect_err("bad");
    }

    #[test]
    fn what_lies_nowhere_is_left_out_and_no_more_is_read_than_may_be() {
        let (counter, cache) = counted(16 << 20);
        let places = [u64::MAX, u64::MAX / 512, (64 << 20) / 512, (64 << 20) / 512 - 1];
        let lens = [0, 1, LEN, MAX_BUF_BYTES, MAX_BUF_BYTES + 1, u64::MAX];
        let nowhere = places.iter().flat_map(|&at| {
            lens.map(|len| Wanted { map: BufMap { daddr: DiskAddr(at), len }, verifier: &RAW })
        });
        cache.read_ahead(&mut nowhere.collect());
        assert_eq!(counter.counts().reads, 0);
        cache.read_ahead(&mut (0..4096).map(wanted).collect());
        assert_eq!(counter.counts().read_bytes, (16 << 20) / PART);
        assert_eq!(cache.ahead.bytes.load(Ordering::Relaxed), (16 << 20) / PART);
        let (counter, cache) = (cache.device.clone(), cache);
        fill(&*counter, 4000, 7);
        assert_eq!(first_byte(&cache, 4000), 7, "who asks reads it");
    }

    /// A device whose queues fail or panic.
    #[derive(Debug)]
    struct Broken {
        below: Arc<dyn BlockDevice>,
        panics: bool,
        asked: AtomicBool,
    }

    struct BrokenQueue(Box<dyn IoQueue>, bool);

    impl BrokenQueue {
        fn fail(&self) -> DeviceError {
            assert!(!self.1, "the queue panics");
            DeviceError::QueueFull
        }
    }

    impl IoQueue for BrokenQueue {
        fn depth(&self) -> u32 {
            self.0.depth()
        }
        fn in_flight(&self) -> u32 {
            self.0.in_flight()
        }
        fn push_read(&mut self, offset: u64, buf: AlignedBuf, tag: u64) -> Result<(), DeviceError> {
            self.0.push_read(offset, buf, tag)
        }
        fn push_write(&mut self, _: u64, _: AlignedBuf, _: Durability, _: u64) -> Result<(), DeviceError> {
            Err(self.fail())
        }
        fn submit(&mut self) -> Result<(), DeviceError> {
            self.0.submit()
        }
        fn wait(&mut self, _: u32, _: &mut dyn FnMut(Completion)) -> Result<u32, DeviceError> {
            Err(self.fail())
        }
    }

    impl Layer for Broken {
        fn below(&self) -> &Arc<dyn BlockDevice> {
            &self.below
        }
        fn pass_queue(self: Arc<Self>, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
            self.asked.store(true, Ordering::Relaxed);
            let below = Box::new(BlockingQueue::new(Arc::clone(&self), depth)?);
            Ok(Box::new(BrokenQueue(below, self.panics)))
        }
    }

    #[test]
    fn who_asks_is_told_nothing_of_a_queue_that_is_broken() {
        for panics in [false, true] {
            let device = Arc::new(Broken { below: memory(), panics, asked: AtomicBool::new(false) });
            fill(&*device, 1, 1);
            let cache = cache(Arc::clone(&device) as _, 64 << 20);
            cache.read_ahead(&mut vec![wanted(1), wanted(2)]);
            assert!(device.asked.swap(false, Ordering::Relaxed));
            assert_eq!(first_byte(&cache, 1), 1);
            assert_eq!(cache.ahead.bytes.load(Ordering::Relaxed), 0);
            cache.read_ahead(&mut vec![wanted(2)]);
            assert!(!device.asked.load(Ordering::Relaxed), "it is not tried again");
        }
    }
}
