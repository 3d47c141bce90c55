//! Requests of every kind beside moves of the table: one by one against a list, and by many threads at once.

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{RawWaker, RawWakerVTable, Waker};
use std::thread;

use proptest::prelude::*;

use super::enter::{Outcome, Wait};
use super::growth::Hint;
use super::stress::{File, Random, by_threads};
use super::visible_readers::VisibleReaders;
use super::{Pending, RangeLock, RangeToken};
use crate::Mode;
use crate::claim::Claim;
use crate::waiter::Waiter;

#[derive(Clone, Debug)]
enum Step {
    Try(Range<u64>, Mode),
    /// Leaves a request in line if need be.
    Ask(Range<u64>, Mode),
    /// The same for two ranges of one call.
    Pair(Range<u64>, Mode, Range<u64>, Mode),
    /// Gives one back, or gives up waiting.
    End(usize),
    Reshape(u32, u32),
    Bias(usize),
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Shared), Just(Mode::Exclusive)]
}

fn range() -> impl Strategy<Value = Range<u64>> {
    let len = prop_oneof![6 => 1u64..20, 2 => 1u64..400, 1 => Just(u64::MAX)];
    (0u64..200, len).prop_map(|(start, len)| start..start.saturating_add(len))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (range(), mode()).prop_map(|(range, mode)| Step::Try(range, mode)),
        6 => (range(), mode()).prop_map(|(range, mode)| Step::Ask(range, mode)),
        2 => (range(), mode(), range(), mode()).prop_map(|(a, b, c, d)| Step::Pair(a, b, c, d)),
        6 => any::<usize>().prop_map(Step::End),
        2 => (0u32..6, 0u32..7).prop_map(|(buckets, segment)| Step::Reshape(buckets, segment)),
        1 => any::<usize>().prop_map(Step::Bias),
    ]
}

enum Hold<'a> {
    Token(RangeToken),
    Pending(Pending<&'a RangeLock>),
    /// Of a call for two; it waits if it has a waiter.
    Pair([Claim; 2], Option<Arc<Waiter>>),
}

/// A request that holds or waits.
struct Present<'a> {
    claims: Vec<Claim>,
    hold: Hold<'a>,
}

/// All of them in the order of arrival.
struct Model<'a> {
    lock: &'a RangeLock,
    present: Vec<Present<'a>>,
}

impl<'a> Model<'a> {
    fn is_free(&self, claims: &[Claim], among: usize) -> bool {
        let conflicts = |other: &Claim| claims.iter().any(|claim| claim.conflicts(other));
        !self.present[..among].iter().any(|present| present.claims.iter().any(conflicts))
    }

    fn push(&mut self, claims: Vec<Claim>, hold: Hold<'a>) {
        self.present.push(Present { claims, hold });
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        let all = self.present.len();
        match step {
            Step::Try(range, mode) => {
                let claims = vec![Claim::new(range.clone(), mode)];
                let token = self.lock.try_acquire(range, mode);
                prop_assert_eq!(token.is_some(), self.is_free(&claims, all), "{:?}", claims);
                token.into_iter().for_each(|token| self.push(claims.clone(), Hold::Token(token)));
            }
            Step::Ask(range, mode) => {
                let claims = vec![Claim::new(range.clone(), mode)];
                let asked = self.lock.acquire_or_notify(range, mode, Waker::noop());
                prop_assert_eq!(asked.is_ok(), self.is_free(&claims, all), "{:?}", claims);
                self.push(claims, asked.map_or_else(Hold::Pending, Hold::Token));
            }
            Step::Pair(first, first_mode, second, second_mode) => {
                let claims = [Claim::new(first, first_mode), Claim::new(second, second_mode)];
                let waiter = match self.lock.enter_at_gate(&claims, Wait::Task(Waker::noop())) {
                    Outcome::Waits(waiter) => Some(waiter),
                    Outcome::Entered | Outcome::Refused => None,
                };
                prop_assert_eq!(waiter.is_none(), self.is_free(&claims, all), "{:?}", claims);
                self.push(claims.to_vec(), Hold::Pair(claims, waiter));
            }
            Step::End(_) if all == 0 => {}
            Step::End(which) => self.end(which % all, (which / all).is_multiple_of(2))?,
            Step::Reshape(buckets, segment) => self.lock.reshape(1 << buckets, 1 << segment),
            Step::Bias(which) => {
                let buckets = self.lock.table().buckets();
                buckets[which % buckets.len()].bias();
            }
        }
        for (at, present) in self.present.iter().enumerate() {
            let granted = match &present.hold {
                Hold::Pending(pending) => pending.is_granted(),
                Hold::Pair(_, Some(waiter)) => waiter.is_granted(),
                Hold::Token(_) | Hold::Pair(_, None) => continue,
            };
            prop_assert_eq!(granted, self.is_free(&present.claims, at), "{:?}", present.claims);
        }
        Ok(())
    }

    fn end(&mut self, which: usize, fetch: bool) -> Result<(), TestCaseError> {
        let granted = self.is_free(&self.present[which].claims, which);
        match self.present.remove(which).hold {
            Hold::Token(token) => self.lock.release(token),
            Hold::Pending(mut pending) if fetch => {
                let token = pending.try_finish();
                prop_assert_eq!(token.is_some(), granted);
                token.into_iter().for_each(|token| self.lock.release(token));
            }
            Hold::Pending(_) => {}
            Hold::Pair(claims, waiter) => match waiter {
                Some(waiter) if !granted || !fetch => self.lock.cancel(&waiter),
                _ => self.lock.leave(&claims),
            },
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]
    #[test]
    fn every_request_is_granted_when_nobody_older_is_in_its_way(
        buckets in 0u32..5,
        segment in 0u32..6,
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let lock = RangeLock::with_geometry(1 << buckets, 1 << segment);
        let mut model = Model { lock: &lock, present: Vec::new() };
        for step in steps {
            model.step(step)?;
        }
        while !model.present.is_empty() {
            model.end(0, true)?;
        }
        prop_assert!(lock.try_acquire(0..u64::MAX, Mode::Exclusive).is_some());
    }
}

#[test]
fn a_lock_grows_with_what_is_held() {
    let lock = RangeLock::for_size(0);
    let range = |nth: u64| nth * 4096..(nth + 1) * 4096;
    let tokens: Vec<_> = (0..8192).map(|nth| lock.acquire(range(nth), Mode::Exclusive)).collect();
    let buckets = lock.table().geometry.buckets();
    assert!((2048..=16384).contains(&buckets), "{buckets}");
    assert!((0..8192).all(|nth| lock.try_lock(range(nth), Mode::Shared).is_none()));
    tokens.into_iter().for_each(|token| lock.release(token));
    assert!(lock.try_lock(0..u64::MAX, Mode::Exclusive).is_some());
}

#[test]
fn readers_of_the_same_bytes_do_not_make_it_grow_without_end() {
    let lock = RangeLock::for_size(0);
    let tokens: Vec<_> = (0..2000).map(|_| lock.acquire(0..4096, Mode::Shared)).collect();
    assert!(lock.table().geometry.buckets() <= 4096);
    tokens.into_iter().for_each(|token| lock.release(token));
    assert!(lock.try_lock(0..u64::MAX, Mode::Exclusive).is_some());
}

#[test]
fn segments_grow_with_requests_and_shrink_with_them() {
    const MIB: u64 = 1 << 20;
    let lock = RangeLock::new();
    for nth in 0..16 {
        drop(lock.lock(nth * MIB..(nth + 1) * MIB, Mode::Exclusive));
    }
    assert_eq!(lock.segment_size(), MIB);
    let token = lock.acquire(MIB..2 * MIB, Mode::Exclusive);
    assert!(token.place.own_span(lock.table().generation).is_some(), "it has a span of its own");
    lock.release(token);
    // Whole files and the like say nothing about segments.
    for _ in 0..100 {
        drop(lock.lock(0..u64::MAX, Mode::Exclusive));
    }
    assert_eq!(lock.segment_size(), MIB);
    // Many small ones in few buckets.
    let tokens: Vec<_> =
        (0..256).map(|nth| lock.acquire(nth * 4096..(nth + 1) * 4096, Mode::Exclusive)).collect();
    assert_eq!(lock.segment_size(), RangeLock::DEFAULT_SEGMENT);
    tokens.into_iter().for_each(|token| lock.release(token));
    assert!(lock.try_lock(0..u64::MAX, Mode::Exclusive).is_some());
}

#[test]
fn a_reserved_table_does_not_move_any_more() {
    let lock = RangeLock::for_size(0);
    let early = lock.acquire(0..10, Mode::Exclusive);
    lock.reserve(1 << 12);
    let generation = lock.table().generation;
    assert_eq!(lock.table().geometry.buckets(), 1 << 12);
    lock.reserve(100);
    let tokens: Vec<_> =
        (1..4096).map(|nth| lock.acquire(nth * 4096..(nth + 1) * 4096, Mode::Exclusive)).collect();
    assert_eq!(lock.table().generation, generation);
    tokens.into_iter().chain([early]).for_each(|token| lock.release(token));
    assert!(lock.try_lock(0..u64::MAX, Mode::Exclusive).is_some());
}

/// Who holds by an entry or a span of the old table is found in the new one, in whatever thread that is.
#[test]
fn tokens_of_older_tables_are_given_back() {
    let lock = RangeLock::with_geometry(4, 16);
    lock.table().buckets()[0].bias();
    let visible = lock.acquire(0..10, Mode::Shared);
    let own = lock.acquire(16..20, Mode::Exclusive);
    assert!(visible.place.visible_entry().is_some() && own.place.own_span(0).is_some());
    lock.reshape(8, 64);
    lock.reshape(16, 8);
    assert!(lock.try_lock(5..6, Mode::Exclusive).is_none());
    assert!(lock.try_lock(5..6, Mode::Shared).is_some());
    assert!(lock.try_lock(19..20, Mode::Shared).is_none());
    thread::scope(|scope| {
        scope.spawn(|| lock.release(visible));
        scope.spawn(|| lock.release(own));
    });
    assert!(lock.try_lock(0..u64::MAX, Mode::Exclusive).is_some());
}

/// Threads that take ranges in every way while another moves the table all the time.
#[test]
fn nobody_comes_in_beside_others_while_the_table_moves() {
    for threads in [2, 4, 8] {
        let (lock, file) = (RangeLock::with_geometry(4, 2), File::default());
        let (done, moves) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random(99);
                while !done.load(Ordering::Relaxed) {
                    lock.reshape(1 << random.below(5), 1 << random.below(4));
                    moves.fetch_add(1, Ordering::Relaxed);
                    // Each keeps its table.
                    thread::sleep(std::time::Duration::from_micros(200));
                }
            });
            by_threads(threads, |random| one_request(&lock, &file, random));
            done.store(true, Ordering::Relaxed);
        });
        assert!(moves.into_inner() > 3, "{threads} threads");
        assert!(lock.try_lock(0..u64::MAX, Mode::Exclusive).is_some());
    }
}

fn one_request(lock: &RangeLock, file: &File, random: &mut Random) {
    let start = random.below(File::BYTES);
    let end = start + 1 + random.below(File::BYTES - start);
    let range = if random.below(20) == 0 { start..u64::MAX } else { start..end };
    let mode = if random.below(3) == 0 { Mode::Exclusive } else { Mode::Shared };
    if random.below(30) == 0 {
        lock.table().buckets()[0].bias();
    }
    let token = match random.below(4) {
        0 => lock.try_acquire(range, mode),
        1 => match lock.acquire_or_notify(range, mode, Waker::noop()) {
            Ok(token) => Some(token),
            Err(mut pending) => pending.try_finish(),
        },
        2 if end - start > 1 => {
            let middle = start + 1 + random.below(end - start - 1);
            let guard = lock.lock_pair((middle..end, Mode::Shared), (start..middle, mode));
            file.enter(&(start..middle), mode);
            file.enter(&(middle..end), Mode::Shared);
            file.leave(&(start..middle), mode);
            file.leave(&(middle..end), Mode::Shared);
            drop(guard);
            None
        }
        _ => Some(lock.acquire(range, mode)),
    };
    let Some(token) = token else { return };
    let bytes = start..token.range().end.min(File::BYTES);
    file.enter(&bytes, mode);
    if random.below(8) == 0 {
        thread::yield_now();
    }
    file.leave(&bytes, mode);
    lock.release(token);
}

/// A hold and a waiter's claim are equal, and the hold goes: what is left is the waiter's.
#[test]
fn of_equal_wide_claims_a_held_one_goes() {
    let lock = RangeLock::with_geometry(4, 1);
    let in_the_way = lock.acquire(10..11, Mode::Shared);
    let claims = [Claim::new(0..4, Mode::Shared), Claim::new(10..11, Mode::Exclusive)];
    let Outcome::Waits(waiter) = lock.enter_at_gate(&claims, Wait::Task(Waker::noop())) else {
        panic!("passed a reader")
    };
    let equal = lock.try_acquire(0..4, Mode::Shared).expect("readers");
    lock.release(equal);
    // Takes what waits and what is held apart.
    lock.reshape(4, 2);
    lock.release(in_the_way);
    assert!(waiter.is_granted());
    lock.leave(&claims);
    assert!(lock.try_lock(0..u64::MAX, Mode::Exclusive).is_some());
}

/// Tables that move by themselves, as threads hold more and more, contend, and ask for more than a few segments.
#[test]
fn nobody_comes_in_beside_others_while_the_lock_grows_by_itself() {
    const KIB: u64 = 1 << 10;
    for threads in [2, 8] {
        let (lock, file) = (RangeLock::for_size(0), File::default());
        by_threads(threads, |random| {
            // Far away, each to itself: what makes buckets full.
            let ballast = (1 << 40) + random.below(1 << 30) * 4 * KIB;
            let count = if random.below(50) == 0 { 300 } else { 0 };
            let ballast: Vec<_> = (0..count)
                .filter_map(|nth| {
                    lock.try_acquire(ballast + nth * 4 * KIB..ballast + (nth + 1) * 4 * KIB, Mode::Exclusive)
                })
                .collect();
            let start = random.below(File::BYTES);
            let bytes = start..start + 1 + random.below(File::BYTES - start);
            let mode = if random.below(3) == 0 { Mode::Exclusive } else { Mode::Shared };
            let wanted = 64 * KIB * bytes.start..64 * KIB * bytes.end;
            // Who holds does not wait.
            let token = match ballast.is_empty() {
                true => Some(lock.acquire(wanted, mode)),
                false => lock.try_acquire(wanted, mode),
            };
            if let Some(token) = token {
                file.enter(&bytes, mode);
                file.leave(&bytes, mode);
                lock.release(token);
            }
            ballast.into_iter().for_each(|token| lock.release(token));
        });
        assert!(lock.table().generation > 0, "it never moved");
        assert!(lock.segment_size() > RangeLock::DEFAULT_SEGMENT || lock.table().geometry.buckets() > 16);
        assert!(lock.try_lock(0..u64::MAX, Mode::Exclusive).is_some());
    }
}

/// What tokens that were lost hold in older tables goes with the lock, too.
#[test]
fn tokens_of_older_tables_that_were_lost_go_with_the_lock() {
    let lock = RangeLock::with_buckets(16);
    lock.table().buckets()[0].bias();
    let lost = lock.acquire(0..10, Mode::Shared);
    let old = lock.table().buckets();
    let names = old[0].id()..=old[15].id();
    lock.reshape(32, 1 << 14);
    lock.reshape(64, 1 << 14);
    assert!(lost.place.visible_entry().is_some() && VisibleReaders::of_process().names_any(&names));
    drop(lock);
    assert!(!VisibleReaders::of_process().names_any(&names));
}

/// A hint that comes late, of a table that has moved meanwhile, does not bring fewer buckets back.
#[test]
fn larger_segments_leave_the_buckets_as_many_as_they_are() {
    let lock = RangeLock::with_buckets(16);
    lock.reserve(1 << 10);
    lock.follow(Hint::Long(1 << 20));
    assert_eq!((lock.table().geometry.buckets(), lock.segment_size()), (1 << 10, 1 << 20));
    lock.follow(Hint::Long(1 << 16));
    assert_eq!((lock.table().geometry.buckets(), lock.segment_size()), (1 << 10, 1 << 20));
}

/// A waker that asks the lock when it is cloned and when it is dropped, as one does that has the last reference to a
/// task with guards in it.
struct Asks {
    lock: Arc<RangeLock>,
    /// What it gives back then.
    held: Mutex<Option<RangeToken>>,
}

impl Asks {
    fn waker(self: &Arc<Self>) -> Waker {
        // SAFETY: `VTABLE` takes such pointers, each of which owns one reference.
        unsafe { Waker::from_raw(Self::raw(self.clone())) }
    }

    fn raw(this: Arc<Self>) -> RawWaker {
        RawWaker::new(Arc::into_raw(this).cast(), &Self::VTABLE)
    }

    const VTABLE: RawWakerVTable = RawWakerVTable::new(
        |this| {
            // SAFETY: as `waker` says.
            let this = ManuallyDrop::new(unsafe { Arc::from_raw(this.cast::<Self>()) });
            this.ask();
            Self::raw(Arc::clone(&this))
        },
        // SAFETY: as `waker` says.
        |this| unsafe { Arc::from_raw(this.cast::<Self>()) }.ask(),
        |_| {},
        // SAFETY: as `waker` says.
        |this| unsafe { Arc::from_raw(this.cast::<Self>()) }.ask(),
    );

    /// At the gate, and in the only bucket.
    fn ask(&self) {
        let held = self.held.lock().unwrap().take();
        held.into_iter().for_each(|token| self.lock.release(token));
        drop(self.lock.try_lock(50..u64::MAX, Mode::Exclusive));
        drop(self.lock.try_lock(50..51, Mode::Exclusive));
    }
}

/// Such a waker would hang where a lock of ours is held.
#[test]
fn wakers_are_cloned_and_dropped_without_locks() {
    for range in [0..2, 0..9] {
        let lock = Arc::new(RangeLock::with_geometry(1, 1));
        let asks = Arc::new(Asks { lock: lock.clone(), held: Mutex::default() });
        let waker = asks.waker();
        let ask = || lock.acquire_or_notify(range.clone(), Mode::Exclusive, &waker);
        // Nobody has to be waited for, but the gate has to be asked.
        let whole = lock.try_acquire(100..u64::MAX, Mode::Shared).expect("free");
        lock.release(ask().expect("free"));
        lock.release(whole);

        let held = lock.try_acquire(0..1, Mode::Exclusive).expect("free");
        let mut first = ask().expect_err("passed a writer");
        let second = ask().expect_err("passed a writer");
        lock.reshape(1, 2);
        // It is granted while it leaves another waker, so that this one stays.
        *asks.held.lock().unwrap() = Some(held);
        let token = first.poll_finish(&waker).expect("its turn");
        drop((first, second));
        lock.release(token);
        assert!(lock.try_lock(0..u64::MAX, Mode::Exclusive).is_some());
    }
}
