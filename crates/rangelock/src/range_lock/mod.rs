//! The range lock: a table of buckets that hold exact ranges.
//!
//! A range touches the buckets that its segments hash to, and is entered into each. Two ranges that overlap
//! share a segment, hence a bucket, and meet there; ranges that share a bucket only by chance are told apart
//! by their exact bounds and share no more than its word for some nanoseconds.
//!
//! Invariants:
//! - a request enters its buckets in ascending order, all of its claims on a bucket at once, and waits in at
//!   most one bucket at a time, where it holds nothing. Whoever it waits for there either holds all that it
//!   wants, or waits in a higher bucket, or came earlier to the same: no cycle, hence no deadlock among
//!   requests that block with nothing held;
//! - a hold is its claims in the table and nothing else: a token names them. Claims of readers may lie in another
//!   table, of the process, while their bucket is biased to readers (see [`visible_readers`]); whoever enters an
//!   exclusive claim into the bucket enters them too, first.
//!
//! There is no separate gate for whole-file ranges: these enter every bucket (512 pairs of
//! compare-and-swap and store), which makes them some microseconds dear, and everybody else two
//! read-modify-writes a pair cheaper.

mod bucket;
mod geometry;
mod pending;
mod request;
#[cfg(all(test, not(any(loom, shuttle))))]
mod stress;
mod visible_readers;

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::claim::Claim;
use crate::guard::{OwnedRangeGuard, RangeGuard};
use crate::stats::{LockStats, Meter, StatsSnapshot};
use crate::waiter::{Waiter, wake_all};
use crate::{ByteRangeLock, Mode};

use bucket::{Bucket, Entered, Left, SpanIndex};
use geometry::Geometry;
use request::Request;
use visible_readers::{EntryIndex, VisibleReaders};

pub use pending::{LockFuture, Pending};
pub use request::ManyGuard;

/// A byte-range lock of constant cost whose disjoint ranges never wait for each other.
///
/// The table is allocated when the first range is locked: 128 bytes a bucket, 64 KiB by default
/// (512 buckets of 7 spans: 16 threads that keep 128 requests each in flight rarely fill one). [`RangeLock::for_size`]
/// makes a smaller table for a small file. Until
/// then a lock is a few words, as there is one in every open file.
///
/// A range costs as many steps as it touches segments, up to the number of buckets. Segments of
/// [`RangeLock::DEFAULT_SEGMENT`] suit small requests; where requests are large, choose larger ones.
#[derive(Debug)]
pub struct RangeLock {
    table: OnceLock<Box<[Bucket]>>,
    geometry: Geometry,
    meter: Meter,
}

/// A hold of a [`RangeLock`]: plain data, no lifetime, nothing done on drop.
///
/// It has to be given back by [`ByteRangeLock::release`]; one that is lost leaves its range locked.
#[derive(Debug)]
#[must_use = "the range stays held until the token is given back"]
pub struct RangeToken {
    start: u64,
    end: u64,
    place: Place,
    since: u64,
}

/// How a range is held and where: its mode, and the bucket and the span, or the entry among the visible readers,
/// if it has one of its own, so that giving it back computes nothing. All in one full word, as copying bytes together with their padding
/// right after they were written makes a processor wait.
#[derive(Clone, Copy, Debug)]
struct Place(u64);

impl Place {
    const EXCLUSIVE: u64 = 1;
    const OWN_SPAN: u64 = 2;
    const VISIBLE: u64 = 4;
    const SPAN_OR_ENTRY: u32 = 8;
    const BUCKET: u32 = 16;

    #[inline(always)]
    fn loose(mode: Mode) -> Self {
        Place(if mode == Mode::Exclusive { Self::EXCLUSIVE } else { 0 })
    }

    #[inline(always)]
    fn own(bucket: usize, span: SpanIndex, mode: Mode) -> Self {
        Place(Self::loose(mode).0 | Self::OWN_SPAN | Self::at(bucket, span))
    }

    #[inline(always)]
    fn visible(bucket: usize, entry: EntryIndex) -> Self {
        Place(Self::loose(Mode::Shared).0 | Self::VISIBLE | Self::at(bucket, entry))
    }

    #[inline(always)]
    fn at(bucket: usize, span_or_entry: u32) -> u64 {
        (bucket as u64) << Self::BUCKET | u64::from(span_or_entry) << Self::SPAN_OR_ENTRY
    }

    #[inline(always)]
    fn mode(self) -> Mode {
        if self.0 & Self::EXCLUSIVE == 0 { Mode::Shared } else { Mode::Exclusive }
    }

    /// Bucket and span, if it has one of its own.
    #[inline(always)]
    fn own_span(self) -> Option<(usize, SpanIndex)> {
        (self.0 & Self::OWN_SPAN != 0).then_some((self.bucket(), self.span_or_entry()))
    }

    /// Bucket and entry, if it is among the visible readers.
    #[inline(always)]
    fn visible_entry(self) -> Option<(usize, EntryIndex)> {
        (self.0 & Self::VISIBLE != 0).then_some((self.bucket(), self.span_or_entry()))
    }

    #[inline(always)]
    fn bucket(self) -> usize {
        (self.0 >> Self::BUCKET) as usize
    }

    #[inline(always)]
    fn span_or_entry(self) -> u32 {
        (self.0 >> Self::SPAN_OR_ENTRY) as u32 & 0xff
    }
}

impl RangeToken {
    fn loose(claim: Claim, since: u64) -> Self {
        RangeToken { start: claim.start, end: claim.end, place: Place::loose(claim.mode), since }
    }

    /// The bytes that are held.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.start..self.end
    }

    /// How they are held.
    #[must_use]
    #[inline(always)]
    pub fn mode(&self) -> Mode {
        self.place.mode()
    }
}

impl RangeLock {
    /// Buckets of a lock made by [`RangeLock::new`].
    pub const DEFAULT_BUCKETS: usize = 512;
    /// Bytes of a segment of a lock made by [`RangeLock::new`].
    pub const DEFAULT_SEGMENT: u64 = 16 << 10;
    const FEWEST_BUCKETS: u64 = 16;

    /// A lock of the default geometry that counts nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::with_geometry(Self::DEFAULT_BUCKETS, Self::DEFAULT_SEGMENT)
    }

    /// A lock of so many buckets.
    ///
    /// # Panics
    /// If `buckets` is not a power of two up to 65536.
    #[must_use]
    pub fn with_buckets(buckets: usize) -> Self {
        Self::with_geometry(buckets, Self::DEFAULT_SEGMENT)
    }

    /// A lock of so many buckets, and segments of so many bytes.
    ///
    /// # Panics
    /// If one of them is not a power of two, or `buckets` is above 65536.
    #[must_use]
    pub fn with_geometry(buckets: usize, segment_size: u64) -> Self {
        RangeLock {
            table: OnceLock::new(),
            geometry: Geometry::new(buckets, segment_size),
            meter: Meter::default(),
        }
    }

    /// A lock with as many buckets as a file of `bytes` bytes has segments, within reason; the file may grow.
    #[must_use]
    pub fn for_size(bytes: u64) -> Self {
        let segments =
            (bytes / Self::DEFAULT_SEGMENT).clamp(Self::FEWEST_BUCKETS, Self::DEFAULT_BUCKETS as u64);
        // Clamped to what fits an usize.
        Self::with_buckets(segments.next_power_of_two() as usize)
    }

    /// Counts into `stats` from now on.
    #[must_use]
    pub fn with_stats(mut self, stats: Arc<LockStats>) -> Self {
        self.meter = Meter::new(stats);
        self
    }

    /// Bytes of a segment: a range within one costs least.
    #[must_use]
    pub fn segment_size(&self) -> u64 {
        self.geometry.segment_size()
    }

    /// Allocates the table now instead of on first use.
    pub fn prepare(&self) {
        self.table();
    }

    #[inline(always)]
    fn table(&self) -> &[Bucket] {
        match self.table.get() {
            Some(table) => table,
            None => self.make_table(),
        }
    }

    #[cold]
    fn make_table(&self) -> &[Bucket] {
        self.table.get_or_init(|| (0..self.geometry.buckets()).map(|_| Bucket::new()).collect())
    }

    /// Waits until both ranges can be held; safe against others who take the same two.
    pub fn lock_pair(&self, first: (Range<u64>, Mode), second: (Range<u64>, Mode)) -> ManyGuard<'_, 2> {
        self.lock_many([first, second])
    }

    /// Waits until all ranges can be held; safe against others who take the same ones in any order.
    ///
    /// Ranges of one call may overlap each other, whatever their modes.
    pub fn lock_many<const N: usize>(&self, ranges: [(Range<u64>, Mode); N]) -> ManyGuard<'_, N> {
        let request = Request::new(self.geometry, ranges.map(|(range, mode)| Claim::new(range, mode)));
        let since = self.enter_blocking(&request);
        ManyGuard::new(self, request, since)
    }

    /// As [`ByteRangeLock::lock`], with a guard that keeps the lock alive and has no lifetime.
    pub fn lock_owned(self: &Arc<Self>, range: Range<u64>, mode: Mode) -> OwnedRangeGuard {
        OwnedRangeGuard::new(self.clone(), self.acquire(range, mode))
    }

    /// As [`ByteRangeLock::try_lock`], with a guard that keeps the lock alive and has no lifetime.
    pub fn try_lock_owned(self: &Arc<Self>, range: Range<u64>, mode: Mode) -> Option<OwnedRangeGuard> {
        self.try_acquire(range, mode).map(|token| OwnedRangeGuard::new(self.clone(), token))
    }

    #[cold]
    fn acquire_slow(&self, start: u64, end: u64, mode: Mode) -> RangeToken {
        let claim = Claim { start, end, mode };
        let since = self.enter_blocking(&Request::new(self.geometry, [claim]));
        RangeToken::loose(claim, since)
    }

    /// Enters all buckets of a request, waiting where need be; returns the start of the hold.
    fn enter_blocking<const N: usize>(&self, request: &Request<N>) -> u64 {
        let mut began = None;
        for at in request.buckets() {
            let bucket = &self.table()[at];
            if bucket.try_enter_all(request.claims_at(at)) {
                continue;
            }
            began.get_or_insert_with(|| self.meter.clock());
            let waiter = Waiter::thread(request.claims_at(at).copied().collect());
            if !bucket.enter_or_queue(&waiter) {
                waiter.wait();
            }
        }
        match began {
            None => self.meter.acquired(request.mode()),
            Some(began) => self.meter.acquired_after_wait(request.mode(), began),
        }
    }

    #[cold]
    fn try_acquire_slow(&self, start: u64, end: u64, mode: Mode) -> Option<RangeToken> {
        let claim = Claim { start, end, mode };
        let request = Request::new(self.geometry, [claim]);
        for at in request.buckets() {
            if !self.table()[at].try_enter_all(request.claims_at(at)) {
                self.leave_below(&request, at);
                return None;
            }
        }
        Some(RangeToken::loose(claim, self.meter.acquired(mode)))
    }

    /// Leaves the buckets below `end`.
    fn leave_below<const N: usize>(&self, request: &Request<N>, end: usize) {
        for at in request.buckets().take_while(|at| *at < end) {
            for claim in request.claims_at(at) {
                self.settle(self.table()[at].leave_loose(claim));
            }
        }
    }

    #[cold]
    fn release_slow(&self, start: u64, end: u64, place: Place) {
        match place.own_span() {
            Some((at, span)) => {
                let bucket = self.table().get(at).expect("the token is of another lock");
                self.settle(bucket.leave_span(span, place.mode()));
            }
            None => {
                let claim = Claim { start, end, mode: place.mode() };
                if let Some((at, entry)) = place.visible_entry() {
                    let bucket = self.table().get(at).expect("the token is of another lock");
                    return self.settle(bucket.leave_visibly(entry, &claim));
                }
                self.leave_below(&Request::new(self.geometry, [claim]), usize::MAX);
            }
        }
    }

    /// A range within one segment, if nobody has to be waited for; none for any other range.
    #[inline(always)]
    fn try_single(&self, claim: &Claim) -> Option<RangeToken> {
        let at = self.geometry.only_bucket(claim)?;
        let place = match self.table()[at].try_enter(claim) {
            Entered::Span(span) => Place::own(at, span, claim.mode),
            Entered::Visibly(entry) => Place::visible(at, entry),
            Entered::Loosely => Place::loose(claim.mode),
            Entered::No => return None,
        };
        Some(RangeToken { start: claim.start, end: claim.end, place, since: self.meter.acquired(claim.mode) })
    }

    /// Wakes whom a departure let in.
    fn settle(&self, left: Left) {
        wake_all(left.granted);
        assert!(left.found, "the token is of another lock");
    }
}

/// Buckets made later at the same addresses do not inherit what tokens that were lost still held.
impl Drop for RangeLock {
    fn drop(&mut self) {
        if let Some(table) = self.table.get_mut()
            && table.iter_mut().any(Bucket::was_biased)
            && let (Some(first), Some(last)) = (table.first(), table.last())
        {
            VisibleReaders::of_process().forget(first.id()..=last.id());
        }
    }
}

impl Default for RangeLock {
    fn default() -> Self {
        Self::new()
    }
}

impl ByteRangeLock for RangeLock {
    type Guard<'a> = RangeGuard<'a, Self>;
    type Token = RangeToken;

    #[inline(always)]
    fn lock(&self, range: Range<u64>, mode: Mode) -> Self::Guard<'_> {
        RangeGuard::new(self, self.acquire(range, mode))
    }

    #[inline(always)]
    fn try_lock(&self, range: Range<u64>, mode: Mode) -> Option<Self::Guard<'_>> {
        self.try_acquire(range, mode).map(|token| RangeGuard::new(self, token))
    }

    #[inline(always)]
    fn acquire(&self, range: Range<u64>, mode: Mode) -> Self::Token {
        let claim = Claim::new(range, mode);
        match self.try_single(&claim) {
            Some(token) => token,
            None => self.acquire_slow(claim.start, claim.end, mode),
        }
    }

    /// A range of several segments is entered step by step, so that two who try at the same moment may
    /// both be refused.
    #[inline(always)]
    fn try_acquire(&self, range: Range<u64>, mode: Mode) -> Option<Self::Token> {
        let claim = Claim::new(range, mode);
        match self.geometry.only_bucket(&claim) {
            Some(_) => self.try_single(&claim),
            None => self.try_acquire_slow(claim.start, claim.end, mode),
        }
    }

    #[inline(always)]
    fn release(&self, token: Self::Token) {
        self.meter.released(token.since);
        // A token of another lock may name a bucket that this one lacks.
        let left = if let Some((at, span)) = token.place.own_span() {
            self.table().get(at).is_some_and(|bucket| bucket.leave_span_fast(span, token.place.mode()))
        } else if let Some((at, entry)) = token.place.visible_entry() {
            self.table().get(at).is_some_and(|bucket| bucket.leave_visibly_fast(entry))
        } else {
            false
        };
        if !left {
            self.release_slow(token.start, token.end, token.place);
        }
    }

    fn stats(&self) -> Option<StatsSnapshot> {
        self.meter.snapshot()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_as_large_as_the_file_needs_and_made_on_first_use() {
        for (bytes, buckets) in
            [(0, 16), (20 * RangeLock::DEFAULT_SEGMENT, 32), (u64::MAX, RangeLock::DEFAULT_BUCKETS)]
        {
            let lock = RangeLock::for_size(bytes);
            assert!(lock.table.get().is_none());
            drop(lock.lock(0..u64::MAX, Mode::Exclusive));
            assert_eq!(lock.table.get().map(|table| table.len()), Some(buckets));
        }
    }

    #[test]
    #[should_panic(expected = "another lock")]
    fn a_foreign_token_is_refused() {
        let token = RangeLock::new().acquire(0..10, Mode::Exclusive);
        RangeLock::new().release(token);
    }

    /// A lock whose first bucket is biased to readers.
    fn biased(buckets: usize) -> RangeLock {
        let lock = RangeLock::with_buckets(buckets);
        lock.table()[0].bias();
        lock
    }

    #[test]
    #[should_panic(expected = "another lock")]
    fn a_foreign_token_of_a_visible_reader_is_refused() {
        let lock = biased(16);
        let token = lock.acquire(0..10, Mode::Shared);
        assert!(token.place.visible_entry().is_some());
        biased(16).release(token);
    }

    /// A bucket that is made later where this one was must not find them.
    #[test]
    fn tokens_that_were_lost_go_with_the_lock() {
        // So large that the table has pages of its own.
        let lock = biased(1 << 14);
        let taken_over = lock.acquire(0..10, Mode::Shared);
        assert!(lock.try_lock(0..10, Mode::Exclusive).is_none());
        lock.table()[0].bias();
        let visible = lock.acquire(0..10, Mode::Shared);
        assert!(taken_over.place.visible_entry().is_some() && visible.place.visible_entry().is_some());
        let table = lock.table();
        let buckets = table[0].id()..=table[table.len() - 1].id();
        assert!(VisibleReaders::of_process().names_any(&buckets));
        drop(lock);
        assert!(!VisibleReaders::of_process().names_any(&buckets));
    }

    #[test]
    fn visible_readers_are_counted_and_tokens_say_what_they_hold() {
        let lock = biased(16).with_stats(LockStats::new());
        let token = lock.acquire(0..10, Mode::Shared);
        assert_eq!((token.range(), token.mode()), (0..10, Mode::Shared));
        assert!(token.place.visible_entry().is_some());
        std::thread::sleep(std::time::Duration::from_millis(2));
        std::thread::scope(|scope| scope.spawn(|| lock.release(token)).join()).unwrap();
        let counted = lock.stats().expect("it counts");
        assert_eq!((counted.shared, counted.exclusive, counted.contended), (1, 0, 0));
        assert!(counted.hold_ns >= 2_000_000, "{counted:?}");
    }

    #[test]
    fn a_writer_in_line_is_not_overtaken_by_visible_readers() {
        let lock = biased(16);
        let noop = std::task::Waker::noop();
        let reader = lock.acquire(0..10, Mode::Shared);
        assert!(reader.place.visible_entry().is_some());
        let Err(mut writer) = lock.acquire_or_notify(0..10, Mode::Exclusive, noop) else {
            panic!("passed a reader")
        };
        lock.table()[0].bias();
        assert!(lock.try_lock(0..10, Mode::Shared).is_none(), "a reader overtook the writer who waits");
        assert!(writer.try_finish().is_none());
        lock.release(reader);
        lock.release(writer.try_finish().expect("the writer's turn"));
    }

    #[test]
    fn whole_files_and_many_ranges_find_visible_readers() {
        let lock = biased(16);
        let reader = lock.acquire(0..10, Mode::Shared);
        assert!(reader.place.visible_entry().is_some());
        // They do not exclude each other.
        drop(lock.try_lock(0..u64::MAX, Mode::Shared).expect("shared"));
        drop(lock.lock_pair((0..20, Mode::Shared), (0..1 << 20, Mode::Shared)));
        assert!(lock.try_lock(0..10, Mode::Shared).is_some_and(|guard| {
            let token = guard.into_token();
            let visible = token.place.visible_entry().is_some();
            lock.release(token);
            visible
        }));
        assert!(lock.try_lock(0..u64::MAX, Mode::Exclusive).is_none());
        lock.release(reader);
        assert!(lock.try_lock(0..u64::MAX, Mode::Exclusive).is_some());
    }

    #[test]
    fn ranges_of_one_call_may_overlap_each_other() {
        let lock = RangeLock::with_geometry(4, 8);
        let many =
            lock.lock_many([(0..20, Mode::Exclusive), (10..40, Mode::Shared), (0..20, Mode::Exclusive)]);
        assert!(lock.try_lock(39..50, Mode::Exclusive).is_none());
        assert!(lock.try_lock(30..50, Mode::Shared).is_some());
        drop(many);
        assert!(lock.try_lock(0..u64::MAX, Mode::Exclusive).is_some());
    }

    #[test]
    fn guards_may_become_tokens_and_outlive_the_handle() {
        let lock = Arc::new(RangeLock::new());
        let token = lock.lock(0..4096, Mode::Exclusive).into_token();
        assert_eq!((token.range(), token.mode()), (0..4096, Mode::Exclusive));
        assert!(lock.try_lock_owned(0..1, Mode::Shared).is_none());
        lock.release(token);
        let owned = lock.lock_owned(0..1, Mode::Shared);
        let other = lock.clone();
        drop(lock);
        assert!(other.try_lock(0..1, Mode::Exclusive).is_none());
        drop(owned);
        assert!(other.try_lock(0..1, Mode::Exclusive).is_some());
    }
}
