//! The range lock: a table of buckets that hold exact ranges.
//!
//! A *narrow* range, one of two segments at most, is kept in the buckets that its segments hash to. Two narrow ranges
//! that overlap share a segment, hence a bucket, and meet there. Ranges that share a bucket only by chance are told
//! apart by their exact bounds, and share no more than its word for some nanoseconds. *Wide* ranges are held at the
//! [`gate`], which narrow ones only look at.
//!
//! The table moves to a larger one while it is in use, or to one of larger segments: see [`growth`].
//!
//! Invariants:
//! - a hold is its claims, in buckets or at the gate, and nothing else: a token names them. Claims of readers may lie in
//!   another table, of the process, while their bucket is biased to readers (see [`visible_readers`]). Whoever enters
//!   an exclusive claim into the bucket enters them too, first;
//! - the gate's lock is taken before those of buckets, and those in ascending order. Under them nobody waits;
//! - the only line that all threads touch is that of the table's address and of the flags, and only wide requests and
//!   moves write it.

mod bucket;
mod enter;
mod gate;
mod geometry;
mod growth;
mod line;
mod many;
#[cfg(all(test, not(any(loom, shuttle))))]
mod moves;
mod pending;
mod slots;
#[cfg(all(test, not(any(loom, shuttle))))]
mod stress;
mod table;
mod visible_readers;

use std::ops::Range;
use std::sync::Arc;

use crate::claim::Claim;
use crate::guard::{OwnedRangeGuard, RangeGuard};
use crate::stats::{LockStats, Meter, StatsSnapshot};
use crate::sync::{AtomicPtr, Ordering};
use crate::waiter::wake_all;
use crate::{ByteRangeLock, Mode};

use bucket::{Entered, SpanIndex};
use gate::{Flags, Mark};
use geometry::Geometry;
use table::{Generation, Head, Table};
use visible_readers::{EntryIndex, VisibleReaders};

pub use many::ManyGuard;
pub use pending::{LockFuture, Pending};

/// A byte-range lock of constant cost whose disjoint ranges never wait for each other.
///
/// The table is allocated when the first range is locked: 128 bytes a bucket, 64 KiB by default (512 buckets of 7
/// spans). [`RangeLock::for_size`] makes a smaller table for a small file. Until then a lock is 128 bytes, as there is
/// one in every open file.
///
/// The table grows while it is in use, with the ranges that are held at once and with the threads that meet in it. Its
/// segments grow with the requests, so that a range lies in one segment or two. It never shrinks: older tables are
/// kept until the lock is dropped, and take together about as much as the last.
#[derive(Debug)]
#[repr(align(128))]
pub struct RangeLock {
    /// The table in use; null until the first range is locked.
    table: AtomicPtr<Head>,
    flags: Flags,
    /// What the first table is made of.
    first: Geometry,
    meter: Meter,
}

// SAFETY: tables are shareable and sendable, and freed by whoever drops the lock, who is alone then.
unsafe impl Send for RangeLock {}
// SAFETY: as above.
unsafe impl Sync for RangeLock {}

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

/// How a range is held and where: its mode, and if it has a span or an entry among the visible readers of its own,
/// which one, in which bucket, of which generation of the table, so that giving it back computes nothing. All in one
/// full word, as copying bytes together with their padding right after they were written makes a processor wait.
#[derive(Clone, Copy, Debug)]
struct Place(u64);

impl Place {
    const EXCLUSIVE: u64 = 1;
    const SPAN_OR_ENTRY: u32 = 8;
    const BUCKET: u32 = 16;
    /// The upper half says which of the three kinds it is: the generation for a span, one more for an entry, and what is
    /// the generation of no table for neither.
    const KIND: u32 = 32;
    const VISIBLE: u64 = 1;
    const LOOSE: u64 = 3;

    #[inline(always)]
    fn of_mode(mode: Mode) -> u64 {
        if mode == Mode::Exclusive { Self::EXCLUSIVE } else { 0 }
    }

    #[inline(always)]
    fn loose(mode: Mode) -> Self {
        Place(Self::of_mode(mode) | Self::LOOSE << Self::KIND)
    }

    #[inline(always)]
    fn own(generation: Generation, bucket: usize, span: SpanIndex, mode: Mode) -> Self {
        Place(Self::of_mode(mode) | u64::from(generation) << Self::KIND | Self::at(bucket, span))
    }

    #[inline(always)]
    fn visible(generation: Generation, bucket: usize, entry: EntryIndex) -> Self {
        let kind = u64::from(generation) | Self::VISIBLE;
        Place(Self::of_mode(Mode::Shared) | kind << Self::KIND | Self::at(bucket, entry))
    }

    #[inline(always)]
    fn at(bucket: usize, span_or_entry: u32) -> u64 {
        (bucket as u64) << Self::BUCKET | u64::from(span_or_entry) << Self::SPAN_OR_ENTRY
    }

    #[inline(always)]
    fn mode(self) -> Mode {
        if self.0 & Self::EXCLUSIVE == 0 { Mode::Shared } else { Mode::Exclusive }
    }

    /// Bucket and span, if it has one of its own in the table of this generation.
    #[inline(always)]
    fn own_span(self, generation: Generation) -> Option<(usize, SpanIndex)> {
        (self.kind() == generation).then_some((self.bucket(), self.span_or_entry()))
    }

    /// Generation, bucket and entry, if it is among the visible readers.
    #[inline(always)]
    fn visible_entry(self) -> Option<(Generation, usize, EntryIndex)> {
        let is_visible = u64::from(self.kind()) & Self::LOOSE == Self::VISIBLE;
        is_visible.then_some((self.kind() & !1, self.bucket(), self.span_or_entry()))
    }

    #[inline(always)]
    fn kind(self) -> u32 {
        (self.0 >> Self::KIND) as u32
    }

    #[inline(always)]
    fn bucket(self) -> usize {
        (self.0 >> Self::BUCKET) as usize & 0xffff
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

    /// A lock of this many buckets at first.
    ///
    /// # Panics
    /// If `buckets` is not a power of two up to 65536.
    #[must_use]
    pub fn with_buckets(buckets: usize) -> Self {
        Self::with_geometry(buckets, Self::DEFAULT_SEGMENT)
    }

    /// A lock of this many buckets, and segments of this many bytes, at first.
    ///
    /// # Panics
    /// If one of them is not a power of two, or `buckets` is above 65536.
    #[must_use]
    pub fn with_geometry(buckets: usize, segment_size: u64) -> Self {
        let first = Geometry::new(buckets, segment_size);
        RangeLock {
            table: AtomicPtr::new(std::ptr::null_mut()),
            flags: Flags::new(Mark::new(first, 0)),
            first,
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

    /// Bytes of a segment now: a range within one costs least.
    #[must_use]
    pub fn segment_size(&self) -> u64 {
        self.table().geometry.segment_size()
    }

    /// Allocates the table now instead of on first use.
    pub fn prepare(&self) {
        self.table();
    }

    /// The table in use.
    #[inline(always)]
    fn table(&self) -> &Table {
        // SAFETY: null or a leaked box, which is freed when the lock is dropped.
        match unsafe { Table::at(self.table.load(Ordering::Acquire)) } {
            Some(table) => table,
            None => self.make_table(),
        }
    }

    #[cold]
    fn make_table(&self) -> &Table {
        let made = Table::into_head(Table::first(self.first));
        let null = std::ptr::null_mut();
        let before = self.table.compare_exchange(null, made, Ordering::AcqRel, Ordering::Acquire);
        if before.is_err() {
            // SAFETY: just leaked, and nobody has seen it.
            unsafe { Table::free_all(made) };
        }
        // SAFETY: as in `table`; somebody has made it.
        unsafe { Table::at(before.map_or_else(|table| table, |_| made)) }.expect("made")
    }

    /// Waits until `range` can be held in `mode`, and holds it until the guard is dropped.
    ///
    /// # Panics
    /// If the range is empty. So do all methods that take one.
    #[inline(always)]
    pub fn lock(&self, range: Range<u64>, mode: Mode) -> RangeGuard<'_, Self> {
        RangeGuard::new(self, self.acquire(range, mode))
    }

    /// Takes `range` in `mode` if nobody has to be waited for.
    #[inline(always)]
    pub fn try_lock(&self, range: Range<u64>, mode: Mode) -> Option<RangeGuard<'_, Self>> {
        self.try_acquire(range, mode).map(|token| RangeGuard::new(self, token))
    }

    /// As [`lock`](Self::lock), but the hold lasts until [`release`](Self::release) gets the token.
    #[inline(always)]
    pub fn acquire(&self, range: Range<u64>, mode: Mode) -> RangeToken {
        let claim = Claim::new(range, mode);
        match self.try_single(&claim) {
            Some(token) => token,
            None => self.acquire_slow(claim.start, claim.end, mode),
        }
    }

    /// As [`try_lock`](Self::try_lock), but the hold lasts until [`release`](Self::release) gets the token.
    ///
    /// A queue that holds ranges of its own calls this, not [`acquire`](Self::acquire): when it says no,
    /// the queue completes what it has in flight, and only with nothing in flight may it block.
    #[inline(always)]
    pub fn try_acquire(&self, range: Range<u64>, mode: Mode) -> Option<RangeToken> {
        let claim = Claim::new(range, mode);
        match self.try_single(&claim) {
            Some(token) => Some(token),
            None => self.try_acquire_slow(claim.start, claim.end, mode),
        }
    }

    /// Ends the hold that `token` stands for.
    ///
    /// # Panics
    /// If the token is of another lock (as far as that can be told).
    #[inline(always)]
    pub fn release(&self, token: RangeToken) {
        self.meter.released(token.since);
        self.let_go(token.start, token.end, token.place);
    }

    /// What was counted so far, if the lock was made to count.
    #[must_use]
    pub fn stats(&self) -> Option<StatsSnapshot> {
        self.meter.snapshot()
    }

    /// Waits until both ranges can be held; safe against others who take the same two.
    pub fn lock_pair(&self, first: (Range<u64>, Mode), second: (Range<u64>, Mode)) -> ManyGuard<'_, 2> {
        self.lock_many([first, second])
    }

    /// Waits until all ranges can be held; safe against others who take the same ones in any order.
    ///
    /// Ranges of one call may overlap each other, whatever their modes.
    pub fn lock_many<const N: usize>(&self, ranges: [(Range<u64>, Mode); N]) -> ManyGuard<'_, N> {
        let claims = ranges.map(|(range, mode)| Claim::new(range, mode));
        let since = self.enter(&claims);
        ManyGuard::new(self, claims, since)
    }

    /// As [`lock`](Self::lock), with a guard that keeps the lock alive and has no lifetime.
    pub fn lock_owned(self: &Arc<Self>, range: Range<u64>, mode: Mode) -> OwnedRangeGuard {
        OwnedRangeGuard::new(self.clone(), self.acquire(range, mode))
    }

    /// As [`try_lock`](Self::try_lock), with a guard that keeps the lock alive and has no lifetime.
    pub fn try_lock_owned(self: &Arc<Self>, range: Range<u64>, mode: Mode) -> Option<OwnedRangeGuard> {
        self.try_acquire(range, mode).map(|token| OwnedRangeGuard::new(self.clone(), token))
    }

    /// The parts of the claim come one by one, lest the fast path put them together in memory.
    #[cold]
    fn acquire_slow(&self, start: u64, end: u64, mode: Mode) -> RangeToken {
        let claim = Claim { start, end, mode };
        let since = self.enter(&[claim]);
        RangeToken::loose(claim, since)
    }

    #[cold]
    fn try_acquire_slow(&self, start: u64, end: u64, mode: Mode) -> Option<RangeToken> {
        let claim = Claim { start, end, mode };
        self.try_enter(&[claim]).then(|| RangeToken::loose(claim, self.meter.acquired(mode)))
    }

    /// A range within one segment, if nobody has to be waited for or asked; none for any other range.
    #[inline(always)]
    fn try_single(&self, claim: &Claim) -> Option<RangeToken> {
        // Of the flags, which are there as soon as the table's address is: the table itself takes longer.
        let mark = self.flags.mark();
        let table = self.table();
        if !mark.lets_in(claim.mode, table.mark) {
            return None;
        }
        let at = mark.geometry().only_bucket(claim)?;
        // SAFETY: `lets_in` says that the mark, and so the geometry, is that of the table.
        let bucket = unsafe { table.bucket_of_geometry(at) };
        let entered = bucket.try_enter(claim, &self.flags, table.mark);
        let place = match entered {
            Entered::Span(span) => Place::own(table.generation, at, span, claim.mode),
            Entered::Visibly(entry) => Place::visible(table.generation, at, entry),
            Entered::No => return None,
            entered => {
                self.after_entry((table.generation, at), (claim.start, claim.end, claim.mode), entered)?
            }
        };
        Some(RangeToken { start: claim.start, end: claim.end, place, since: self.meter.acquired(claim.mode) })
    }

    /// What is left to do when a claim was entered with a remark.
    #[cold]
    fn after_entry(
        &self,
        (generation, at): (Generation, usize),
        (start, end, mode): (u64, u64, Mode),
        entered: Entered,
    ) -> Option<Place> {
        let place = match entered {
            Entered::Span(span) | Entered::ContendedSpan(span) => Place::own(generation, at, span, mode),
            Entered::Visibly(entry) | Entered::StoppedVisibly(entry) => Place::visible(generation, at, entry),
            Entered::StoppedSpan => Place::own(generation, at, 0, mode),
            Entered::Loosely | Entered::CrowdedLoosely => Place::loose(mode),
            Entered::No => return None,
        };
        match entered {
            Entered::StoppedSpan | Entered::StoppedVisibly(_) => {
                self.let_go(start, end, place);
                return None;
            }
            Entered::ContendedSpan(_) => self.look_at_contention(),
            Entered::CrowdedLoosely => self.look_at_load(),
            _ => {}
        }
        Some(place)
    }

    /// Takes a claim out.
    #[inline(always)]
    fn let_go(&self, start: u64, end: u64, place: Place) {
        let table = self.table();
        // A token of another lock may name a bucket that this one lacks.
        let left = if let Some((at, span)) = place.own_span(table.generation) {
            table.buckets().get(at).is_some_and(|bucket| bucket.leave_span_fast(span, place.mode()))
        } else if let Some((generation, at, entry)) = place.visible_entry() {
            generation == table.generation
                && table.buckets().get(at).is_some_and(|bucket| bucket.leave_visibly_fast(entry))
        } else {
            false
        };
        if !left {
            self.let_go_slow(start, end, place);
        }
    }

    #[cold]
    fn let_go_slow(&self, start: u64, end: u64, place: Place) {
        let claim = Claim { start, end, mode: place.mode() };
        if let Some((generation, at, entry)) = place.visible_entry() {
            return self.let_go_visible(&claim, generation, at, entry);
        }
        let table = self.table();
        let Some((at, span)) = place.own_span(table.generation) else { return self.leave(&[claim]) };
        let bucket = table.buckets().get(at).expect("the token is of another lock");
        let Ok(mut slots) = bucket.lock() else {
            // It is found by its value where it was moved to.
            return self.leave(&[claim]);
        };
        let mut granted = Vec::new();
        let found = slots.remove_span(span, place.mode());
        // The cast cannot cut: a place has 16 bits for it.
        slots.count_off(&claim, 0, (table.geometry, at as u32), &mut granted);
        drop(slots);
        wake_all(granted);
        assert!(found, "the token is of another lock");
    }

    fn let_go_visible(&self, claim: &Claim, generation: Generation, at: usize, entry: EntryIndex) {
        let readers = VisibleReaders::of_process();
        let table = self.table().of_generation(generation);
        let bucket = table.and_then(|table| table.buckets().get(at)).expect("the token is of another lock");
        if bucket.leave_visibly_fast(entry) {
            return;
        }
        assert!(readers.is_taken(entry, bucket.id()), "the token is of another lock");
        // Where it was taken over to. The revoker had the bucket locked until it was done with the entry.
        self.leave(&[*claim]);
        readers.free_taken(entry);
    }
}

impl Drop for RangeLock {
    fn drop(&mut self) {
        // SAFETY: nobody else has the lock.
        unsafe { Table::free_all(self.table.load(Ordering::Acquire)) };
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
        RangeLock::lock(self, range, mode)
    }

    #[inline(always)]
    fn try_lock(&self, range: Range<u64>, mode: Mode) -> Option<Self::Guard<'_>> {
        RangeLock::try_lock(self, range, mode)
    }

    #[inline(always)]
    fn acquire(&self, range: Range<u64>, mode: Mode) -> Self::Token {
        RangeLock::acquire(self, range, mode)
    }

    #[inline(always)]
    fn try_acquire(&self, range: Range<u64>, mode: Mode) -> Option<Self::Token> {
        RangeLock::try_acquire(self, range, mode)
    }

    #[inline(always)]
    fn release(&self, token: Self::Token) {
        RangeLock::release(self, token);
    }

    fn stats(&self) -> Option<StatsSnapshot> {
        RangeLock::stats(self)
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
            assert!(lock.table.load(Ordering::Relaxed).is_null());
            drop(lock.lock(0..u64::MAX, Mode::Exclusive));
            assert_eq!(lock.table().buckets().len(), buckets);
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
        lock.table().buckets()[0].bias();
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
        lock.table().buckets()[0].bias();
        let visible = lock.acquire(0..10, Mode::Shared);
        assert!(taken_over.place.visible_entry().is_some() && visible.place.visible_entry().is_some());
        let table = lock.table().buckets();
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
        lock.table().buckets()[0].bias();
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
