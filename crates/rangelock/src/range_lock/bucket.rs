//! One bucket: the claims held within its segments, and who waits for one of them.
//!
//! ```text
//! byte   0        8                                  120      128
//!        | word   | 7 spans of 16 bytes (start, end) | cold   |
//! word: bit 0 LOCKED · bit 1 COLD · bit 2 LONE · and then
//!       without LONE: bits 8.. occupied · bits 16.. exclusive · bits 24.. loose (one bit a span)
//!       with LONE:    bit 3 exclusive · bits 4.. length less one (14 bits) · bits 18.. start (46 bits)
//! ```
//!
//! Invariants:
//! - claims held here by different requests do not conflict;
//! - a claim that is alone in its bucket is kept in the word itself if it fits, so that entering and leaving
//!   are one compare-and-swap each, as with a word-sized lock. Its token names span 0, where whoever next
//!   locks the word puts it: to the token both forms are the same hold;
//! - spans, `cold` and all bits of the word but LOCKED are changed by whoever took the word from unlocked to
//!   LOCKED, with two exceptions on an unlocked word that is not COLD: one compare-and-swap may make an empty
//!   word LONE, and the holder of a span that is not loose may clear its bits (or its LONE word) by another;
//! - COLD is set as long as somebody waits here or more claims are held than there are spans. Without it
//!   nobody has to be woken and `cold` need not be looked at;
//! - a span that is not *loose* belongs to the token that names it. Loose claims (those of requests that
//!   waited or touch several buckets) are found by their value; equal ones stand for each other;
//! - a bucket lies in cache lines of its own (two, as processors fetch them in pairs);
//! - only claims beyond the spans and waiters need memory of their own, which is then kept, so the steady
//!   state allocates nothing;
//! - a claim is entered only if it conflicts with none held and none waiting: first come, first served.

use std::sync::Arc;

use crate::Mode;
use crate::claim::Claim;
use crate::sync::{AtomicU64, Ordering, SPINS, UnsafeCell, yield_now};
use crate::waiter::{WaitQueue, Waiter};

const SPANS: u32 = 7;
const ALL_SPANS: u64 = (1 << SPANS) - 1;

const LOCKED: u64 = 1;
const COLD: u64 = 2;
const LONE: u64 = 4;
const LONE_EXCLUSIVE: u64 = 8;
const LONE_LEN: u32 = 4;
const LONE_START: u32 = 18;
const OCCUPIED: u32 = 8;
const EXCLUSIVE: u32 = 16;
const LOOSE: u32 = 24;

/// The span that a claim has in its bucket.
pub(super) type SpanIndex = u32;

#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Bucket {
    word: AtomicU64,
    body: UnsafeCell<Body>,
}

const _: () = assert!(cfg!(any(loom, shuttle)) || size_of::<Bucket>() == 128);

// SAFETY: `body` is only reached by whoever took `word` from unlocked to LOCKED, until it unlocks.
unsafe impl Sync for Bucket {}

#[derive(Debug, Default)]
#[repr(C)]
struct Body {
    spans: [Span; SPANS as usize],
    cold: Option<Box<Cold>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Span {
    start: u64,
    end: u64,
}

#[derive(Debug, Default)]
struct Cold {
    overflow: Vec<Claim>,
    waiters: WaitQueue,
}

/// How a claim was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// It has a span of its own.
    Span(SpanIndex),
    /// It is found by its value.
    Loosely,
    /// Not at all: somebody has to be waited for.
    No,
}

/// What was left behind; the granted have to be woken.
pub(super) struct Left {
    /// Whether what was to be taken out was there.
    pub(super) found: bool,
    /// Those who were granted and have to be woken.
    pub(super) granted: Vec<Arc<Waiter>>,
}

impl Bucket {
    pub(super) fn new() -> Self {
        Bucket { word: AtomicU64::new(0), body: UnsafeCell::new(Body::default()) }
    }

    /// Enters one claim, if it conflicts with nobody.
    #[inline(always)]
    pub(super) fn try_enter(&self, claim: &Claim) -> Entered {
        if let Some(lone) = lone_word(claim)
            && self.word.load(Ordering::Relaxed) == 0
            && self.word.compare_exchange(0, lone, Ordering::Acquire, Ordering::Relaxed).is_ok()
        {
            return Entered::Span(0);
        }
        self.try_enter_among_others(claim)
    }

    /// Enters one claim into a bucket that may hold others.
    #[inline]
    fn try_enter_among_others(&self, claim: &Claim) -> Entered {
        let word = self.lock_word();
        let occupied = (word >> OCCUPIED) & ALL_SPANS;
        if word & COLD != 0 || occupied == ALL_SPANS {
            return self.try_enter_cold(word, claim.start, claim.end, claim.mode);
        }
        let span = occupied.trailing_ones();
        let entered = self.body.with_mut(|body| {
            // SAFETY: we hold LOCKED until the store below.
            let body = unsafe { &mut *body };
            let free = body.spans_admit(word, claim);
            if free {
                body.spans[span as usize] = Span { start: claim.start, end: claim.end };
            }
            free
        });
        let bits = if entered { bits_of(span, claim.mode) } else { 0 };
        self.word.store(word | bits, Ordering::Release);
        if entered { Entered::Span(span) } else { Entered::No }
    }

    /// The parts of the claim come one by one, lest the fast path put them together in memory.
    #[cold]
    fn try_enter_cold(&self, word: u64, start: u64, end: u64, mode: Mode) -> Entered {
        let claim = Claim { start, end, mode };
        let entered = self.locked(word, |slots| slots.try_enter_all([claim].iter()));
        if entered { Entered::Loosely } else { Entered::No }
    }

    /// Enters all of a request's claims that touch this bucket, loosely, or none.
    pub(super) fn try_enter_all<'c>(&self, claims: impl Iterator<Item = &'c Claim> + Clone) -> bool {
        self.locked(self.lock_word(), |slots| slots.try_enter_all(claims))
    }

    /// As [`try_enter_all`](Self::try_enter_all), but leaves the waiter in the queue if it has to wait.
    pub(super) fn enter_or_queue(&self, waiter: &Arc<Waiter>) -> bool {
        self.locked(self.lock_word(), |slots| {
            let entered = slots.try_enter_all(waiter.claims().iter());
            if !entered {
                slots.cold_mut().waiters.push(waiter.clone());
            }
            entered
        })
    }

    /// Takes a claim out that has a span of its own, if that needs no more than a compare-and-swap.
    #[inline(always)]
    pub(super) fn leave_span_fast(&self, span: SpanIndex, mode: Mode) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        if word & (LONE | LOCKED) == LONE {
            debug_assert!(lone_claim(word).mode == mode, "the token is of another lock");
            return span == 0
                && self.word.compare_exchange(word, 0, Ordering::Release, Ordering::Relaxed).is_ok();
        }
        let bits = bits_of(span, mode);
        word & (LONE | LOCKED | COLD | bits) == bits
            && self.word.compare_exchange(word, word & !bits, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Takes a claim out that has a span of its own.
    pub(super) fn leave_span(&self, span: SpanIndex, mode: Mode) -> Left {
        self.locked(self.lock_word(), |slots| {
            let found = slots.clear(bits_of(span, mode));
            Left { found, granted: slots.grant() }
        })
    }

    /// Takes a loose claim out.
    pub(super) fn leave_loose(&self, claim: &Claim) -> Left {
        self.locked(self.lock_word(), |slots| {
            let found = slots.remove_loose(claim);
            Left { found, granted: slots.grant() }
        })
    }

    /// Takes out a waiter that gave up, or its claims if it was granted meanwhile.
    pub(super) fn cancel(&self, waiter: &Arc<Waiter>) -> Left {
        self.locked(self.lock_word(), |slots| {
            let queued = slots.body.cold.as_mut().is_some_and(|cold| cold.waiters.remove(waiter));
            let found = queued || waiter.claims().iter().all(|claim| slots.remove_loose(claim));
            Left { found, granted: slots.grant() }
        })
    }

    /// Takes the word from unlocked to LOCKED; returns what it was, a lone claim moved to its span.
    #[inline(always)]
    fn lock_word(&self) -> u64 {
        let word = self.word.load(Ordering::Relaxed);
        let taken = word & LOCKED == 0
            && self.word.compare_exchange(word, word | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok();
        let word = if taken { word } else { self.lock_word_contended() };
        if word & LONE == 0 { word } else { self.unpack_lone(word) }
    }

    /// Gives the claim in a LONE word, which the caller has locked, the first span; returns the word that says so.
    #[inline(always)]
    fn unpack_lone(&self, word: u64) -> u64 {
        let claim = lone_claim(word);
        self.body.with_mut(|body| {
            // SAFETY: the caller holds LOCKED.
            let body = unsafe { &mut *body };
            body.spans[0] = Span { start: claim.start, end: claim.end };
        });
        bits_of(0, claim.mode)
    }

    /// Spins a little, then yields: a holder who was preempted gets its CPU back that way.
    #[cold]
    fn lock_word_contended(&self) -> u64 {
        let mut looks = 0;
        loop {
            let word = self.word.load(Ordering::Relaxed);
            if word & LOCKED == 0
                && self
                    .word
                    .compare_exchange(word, word | LOCKED, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return word;
            }
            if looks < SPINS {
                looks += 1;
                std::hint::spin_loop();
            } else {
                yield_now();
            }
        }
    }

    /// Runs `f` on the bucket, whose word was `word` when the caller locked it, and unlocks it.
    fn locked<R>(&self, word: u64, f: impl FnOnce(&mut Slots<'_>) -> R) -> R {
        self.body.with_mut(|body| {
            // SAFETY: the caller took LOCKED, which `Slots` gives back when it is dropped, after `f`; the
            // reference leaves neither.
            let body = unsafe { &mut *body };
            f(&mut Slots { owner: &self.word, word, body })
        })
    }
}

#[inline(always)]
fn bits_of(span: u32, mode: Mode) -> u64 {
    match mode {
        Mode::Shared => 1 << (OCCUPIED + span),
        Mode::Exclusive => 1 << (OCCUPIED + span) | 1 << (EXCLUSIVE + span),
    }
}

/// The word of a bucket that holds just this claim, if the claim fits into it.
#[inline(always)]
fn lone_word(claim: &Claim) -> Option<u64> {
    let last = claim.end - 1 - claim.start;
    let fits = claim.start >> (u64::BITS - LONE_START) == 0 && last >> (LONE_START - LONE_LEN) == 0;
    let exclusive = if claim.mode == Mode::Exclusive { LONE_EXCLUSIVE } else { 0 };
    fits.then_some(claim.start << LONE_START | last << LONE_LEN | exclusive | LONE)
}

/// The claim in a LONE word.
#[inline(always)]
fn lone_claim(word: u64) -> Claim {
    let start = word >> LONE_START;
    let last = (word >> LONE_LEN) & ((1 << (LONE_START - LONE_LEN)) - 1);
    let mode = if word & LONE_EXCLUSIVE == 0 { Mode::Shared } else { Mode::Exclusive };
    Claim { start, end: start + last + 1, mode }
}

impl Body {
    /// Whether the claim conflicts with none that has a span.
    #[inline(always)]
    fn spans_admit(&self, word: u64, claim: &Claim) -> bool {
        let against = match claim.mode {
            Mode::Shared => EXCLUSIVE,
            Mode::Exclusive => OCCUPIED,
        };
        let mut rest = (word >> against) & ALL_SPANS;
        while rest != 0 {
            let span = &self.spans[rest.trailing_zeros() as usize];
            if span.start < claim.end && claim.start < span.end {
                return false;
            }
            rest &= rest - 1;
        }
        true
    }
}

/// A locked bucket; unlocks it on drop, a panic's included.
struct Slots<'a> {
    owner: &'a AtomicU64,
    /// What the word will be once it is unlocked, COLD aside.
    word: u64,
    body: &'a mut Body,
}

impl Drop for Slots<'_> {
    fn drop(&mut self) {
        let cold = self.body.cold.as_ref();
        let cold = cold.is_some_and(|cold| !cold.overflow.is_empty() || !cold.waiters.is_empty());
        let word = if cold { self.word | COLD } else { self.word & !COLD };
        self.owner.store(word, Ordering::Release);
    }
}

impl Slots<'_> {
    /// Whether the claim conflicts with none held.
    fn fits(&self, claim: &Claim) -> bool {
        let cold = self.body.cold.as_ref();
        self.body.spans_admit(self.word, claim)
            && cold.is_none_or(|cold| !cold.overflow.iter().any(|held| held.conflicts(claim)))
    }

    /// Whether the claim conflicts with none held and none waiting.
    fn admits(&self, claim: &Claim) -> bool {
        self.fits(claim) && self.body.cold.as_ref().is_none_or(|cold| !cold.waiters.conflicts(claim))
    }

    fn try_enter_all<'c>(&mut self, claims: impl Iterator<Item = &'c Claim> + Clone) -> bool {
        let free = claims.clone().all(|claim| self.admits(claim));
        if free {
            claims.for_each(|claim| self.insert_loose(claim));
        }
        free
    }

    fn insert_loose(&mut self, claim: &Claim) {
        let occupied = (self.word >> OCCUPIED) & ALL_SPANS;
        if occupied == ALL_SPANS {
            self.cold_mut().overflow.push(*claim);
            return;
        }
        let span = occupied.trailing_ones();
        self.body.spans[span as usize] = Span { start: claim.start, end: claim.end };
        self.word |= bits_of(span, claim.mode) | 1 << (LOOSE + span);
    }

    /// Takes out one loose claim equal to this.
    fn remove_loose(&mut self, claim: &Claim) -> bool {
        let mut rest = (self.word >> LOOSE) & ALL_SPANS;
        while rest != 0 {
            let at = rest.trailing_zeros();
            let span = self.body.spans[at as usize];
            let exclusive = (self.word >> (EXCLUSIVE + at)) & 1 == 1;
            if span.start == claim.start
                && span.end == claim.end
                && exclusive == (claim.mode == Mode::Exclusive)
            {
                return self.clear(bits_of(at, claim.mode) | 1 << (LOOSE + at));
            }
            rest &= rest - 1;
        }
        let Some(cold) = &mut self.body.cold else { return false };
        let place = cold.overflow.iter().position(|held| held == claim);
        place.map(|place| cold.overflow.swap_remove(place)).is_some()
    }

    /// Clears bits that have to be set.
    fn clear(&mut self, bits: u64) -> bool {
        let found = self.word & bits == bits;
        if found {
            self.word &= !bits;
        }
        found
    }

    /// Lets those in who conflict neither with a holder nor with an earlier waiter.
    fn grant(&mut self) -> Vec<Arc<Waiter>> {
        let mut granted = Vec::new();
        let Some(cold) = self.body.cold.as_mut().filter(|cold| !cold.waiters.is_empty()) else {
            return granted;
        };
        let mut queue = std::mem::take(&mut cold.waiters);
        let mut from = 0;
        while let Some(waiter) =
            queue.next_grantable(&mut from, |claims| claims.iter().all(|claim| self.fits(claim)))
        {
            for claim in waiter.claims() {
                self.insert_loose(claim);
            }
            waiter.grant();
            granted.push(waiter);
        }
        self.cold_mut().waiters = queue;
        granted
    }

    fn cold_mut(&mut self) -> &mut Cold {
        self.body.cold.get_or_insert_default()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn claim(start: u64, mode: Mode) -> Claim {
        Claim::new(start..start + 1, mode)
    }

    fn leave(bucket: &Bucket, claim: &Claim, entered: Entered) -> bool {
        match entered {
            Entered::Span(span) => {
                bucket.leave_span_fast(span, claim.mode) || bucket.leave_span(span, claim.mode).found
            }
            Entered::Loosely => bucket.leave_loose(claim).found,
            Entered::No => false,
        }
    }

    #[test]
    fn more_claims_than_spans_overflow_and_come_back() {
        let bucket = Bucket::new();
        let claims: Vec<_> = (0..20).map(|start| claim(start, Mode::Exclusive)).collect();
        let entered: Vec<_> = claims.iter().map(|claim| bucket.try_enter(claim)).collect();
        assert_eq!(
            entered.iter().filter(|entered| **entered == Entered::Loosely).count(),
            20 - SPANS as usize
        );
        assert!((0..20).all(|start| bucket.try_enter(&claim(start, Mode::Shared)) == Entered::No));
        assert!(claims.iter().zip(entered).rev().all(|(claim, entered)| leave(&bucket, claim, entered)));
        assert_eq!(bucket.word.load(Ordering::Relaxed), 0, "neither held nor cold");
    }

    #[test]
    fn a_lone_claim_is_the_word_until_others_come() {
        for mode in [Mode::Shared, Mode::Exclusive] {
            for (start, end) in [(0, 1), (4096, 8192), (16384, 32768), ((1 << 46) - 16384, 1 << 46)] {
                let claim = Claim { start, end, mode };
                let word = lone_word(&claim).expect("fits");
                assert_eq!((word & (LOCKED | COLD | LONE), lone_claim(word)), (LONE, claim));

                let bucket = Bucket::new();
                assert_eq!(bucket.try_enter(&claim), Entered::Span(0));
                assert_eq!(bucket.word.load(Ordering::Relaxed), word);
                let overlapping = Claim { start: end - 1, end: end + 1, mode: Mode::Exclusive };
                assert_eq!(bucket.try_enter(&overlapping), Entered::No);
                let other = Claim { start: end, end: end + 1, mode: Mode::Exclusive };
                let entered = bucket.try_enter(&other);
                assert_eq!(entered, Entered::Span(1));
                assert!(leave(&bucket, &claim, Entered::Span(0)) && leave(&bucket, &other, entered));
                assert_eq!(bucket.word.load(Ordering::Relaxed), 0);
            }
        }
        for (start, end) in [(0, 16385), (1 << 46, (1 << 46) + 1), (0, u64::MAX), (u64::MAX - 1, u64::MAX)] {
            assert_eq!(lone_word(&Claim { start, end, mode: Mode::Shared }), None);
        }
    }

    #[test]
    fn a_loose_claim_does_not_give_up_the_span_of_an_equal_one() {
        let bucket = Bucket::new();
        let shared = claim(3, Mode::Shared);
        let own = bucket.try_enter(&shared);
        assert!(matches!(own, Entered::Span(_)));
        assert!(bucket.try_enter_all([shared].iter()));
        assert!(leave(&bucket, &shared, Entered::Loosely));
        assert!(!leave(&bucket, &shared, Entered::Loosely));
        assert_eq!(bucket.try_enter(&claim(3, Mode::Exclusive)), Entered::No);
        assert!(leave(&bucket, &shared, own));
        assert!(!leave(&bucket, &shared, own));
        assert!(bucket.try_enter(&claim(3, Mode::Exclusive)) != Entered::No);
    }
}
