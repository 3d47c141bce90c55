//! One bucket: the claims held within its segments, and who waits for one of them.
//!
//! ```text
//! byte   0        8                                  120      128
//!        | word   | 7 spans of 16 bytes (start, end) | cold   |
//! word: bit 0 LOCKED · bit 1 COLD · bit 2 LONE · and then
//!       without LONE: bit 3 BIASED · bits 8.. occupied · bits 16.. exclusive · bits 24.. loose (one bit a span)
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
//! - a bucket that is BIASED holds no exclusive claim, and nobody waits in it: readers may hold their claims
//!   among the [visible readers](super::visible_readers) instead. Whoever enters an exclusive claim, or waits to,
//!   takes BIASED away and those claims in first. So everything else said here holds of spans and `cold` alone;
//! - a bucket lies in cache lines of its own (two, as processors fetch them in pairs);
//! - only claims beyond the spans and waiters need memory of their own, which is then kept, so the steady
//!   state allocates nothing;
//! - a claim is entered only if it conflicts with none held and none waiting: first come, first served.

use std::sync::Arc;

use crate::Mode;
use crate::claim::Claim;
use crate::sync::{AtomicU64, CONTENDED_BEFORE_BIAS, Ordering, SPINS, UnsafeCell, fence, yield_now};
use crate::waiter::{WaitQueue, Waiter};

use super::visible_readers::{BucketId, EntryIndex, VisibleReaders};

const SPANS: u32 = 7;
const ALL_SPANS: u64 = (1 << SPANS) - 1;

const LOCKED: u64 = 1;
const COLD: u64 = 2;
const LONE: u64 = 4;
const LONE_EXCLUSIVE: u64 = 8;
/// Without LONE only.
const BIASED: u64 = 8;
const LONE_LEN: u32 = 4;
const LONE_START: u32 = 18;
const OCCUPIED: u32 = 8;
const EXCLUSIVE: u32 = 16;
const LOOSE: u32 = 24;

/// A revocation moves a line for the bucket and one for each entry that it looks at, about what a contending reader
/// pays too. For each, so many readers have to contend for the bucket before it is biased again: revoking stays a
/// small part of all that is done.
const CONTENDED_PER_LINE: u32 = if CONTENDED_BEFORE_BIAS == 0 { 0 } else { 16 };

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

#[derive(Debug)]
struct Cold {
    overflow: Vec<Claim>,
    waiters: WaitQueue,
    /// How many readers have yet to contend for the bucket before it is biased to them.
    until_bias: u32,
    /// Whether it ever was.
    was_biased: bool,
}

impl Default for Cold {
    fn default() -> Self {
        Cold {
            overflow: Vec::new(),
            waiters: WaitQueue::default(),
            until_bias: CONTENDED_BEFORE_BIAS,
            was_biased: false,
        }
    }
}

/// How a claim was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// It has a span of its own.
    Span(SpanIndex),
    /// It is among the visible readers.
    Visibly(EntryIndex),
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

    /// The bucket's name among the visible readers.
    pub(super) fn id(&self) -> BucketId {
        BucketId::of(&self.word)
    }

    /// Whether it ever was biased to readers, so that they may have left something behind.
    pub(super) fn was_biased(&mut self) -> bool {
        self.body.with_mut(|body| {
            // SAFETY: nobody else has a reference to the bucket.
            let body = unsafe { &*body };
            body.cold.as_ref().is_some_and(|cold| cold.was_biased)
        })
    }

    /// Enters one claim, if it conflicts with nobody.
    #[inline(always)]
    pub(super) fn try_enter(&self, claim: &Claim) -> Entered {
        let word = self.word.load(Ordering::Relaxed);
        let mut contended = false;
        if word == 0
            && let Some(lone) = lone_word(claim)
        {
            if self.word.compare_exchange(0, lone, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Entered::Span(0);
            }
            contended = true;
        } else if claim.mode == Mode::Shared
            && is_biased(word)
            && let Some(entry) = self.try_enter_visibly(claim.start, claim.end)
        {
            return Entered::Visibly(entry);
        }
        self.try_enter_among_others(claim, contended)
    }

    /// Enters a shared claim among the visible readers, if the bucket is still biased to them.
    #[inline(never)]
    fn try_enter_visibly(&self, start: u64, end: u64) -> Option<EntryIndex> {
        let (readers, id) = (VisibleReaders::of_process(), self.id());
        let entry = readers.publish(id, start, end)?;
        // Of this fence and that of `revoke_bias` one comes first. If this one, the revoker finds the claim. If
        // that one, this load finds the bias gone, or given anew, and then a later revoker finds the claim.
        fence(Ordering::SeqCst);
        // Acquire: comes after the exclusive holders from before the bias.
        let held = is_biased(self.word.load(Ordering::Acquire)) || !readers.withdraw(entry, id);
        // What cannot be withdrawn was taken over by a revoker before it let anybody in: it is held.
        held.then_some(entry)
    }

    /// Enters one claim into a bucket that may hold others.
    #[inline]
    fn try_enter_among_others(&self, claim: &Claim, contended: bool) -> Entered {
        let (mut word, contended_again) = self.lock_word_and_tell();
        if claim.mode == Mode::Shared && (contended || contended_again || CONTENDED_BEFORE_BIAS == 0) {
            word = self.note_contending_reader(word);
        }
        let occupied = (word >> OCCUPIED) & ALL_SPANS;
        let revokes = claim.mode == Mode::Exclusive && word & BIASED != 0;
        if word & COLD != 0 || occupied == ALL_SPANS || revokes {
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

    /// Biases the bucket, which the caller has locked, to readers if enough of them contended for it and nobody
    /// excludes them; returns the word that says so.
    #[cold]
    fn note_contending_reader(&self, word: u64) -> u64 {
        self.body.with_mut(|body| {
            // SAFETY: the caller holds LOCKED.
            let body = unsafe { &mut *body };
            if word & BIASED != 0 || !body.holds_readers_alone(word) {
                return word;
            }
            let cold = body.cold.get_or_insert_default();
            cold.until_bias = cold.until_bias.saturating_sub(1);
            if cold.until_bias != 0 {
                return word;
            }
            cold.was_biased = true;
            word | BIASED
        })
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

    /// Takes a claim out from among the visible readers, unless it was taken over into the bucket.
    #[inline(always)]
    pub(super) fn leave_visibly_fast(&self, entry: EntryIndex) -> bool {
        VisibleReaders::of_process().withdraw(entry, self.id())
    }

    /// Takes a claim out that was entered among the visible readers and then taken over into the bucket.
    pub(super) fn leave_visibly(&self, entry: EntryIndex, claim: &Claim) -> Left {
        let readers = VisibleReaders::of_process();
        if !readers.is_taken(entry, self.id()) {
            return Left { found: false, granted: Vec::new() };
        }
        // The revoker had the bucket locked until it was done with the entry.
        let left = self.leave_loose(claim);
        readers.free_taken(entry);
        left
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
        self.lock_word_and_tell().0
    }

    /// As [`lock_word`](Self::lock_word), and tells whether somebody else was at the word.
    #[inline(always)]
    fn lock_word_and_tell(&self) -> (u64, bool) {
        let word = self.word.load(Ordering::Relaxed);
        let taken = word & LOCKED == 0
            && self.word.compare_exchange(word, word | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok();
        let word = if taken { word } else { self.lock_word_contended() };
        (if word & LONE == 0 { word } else { self.unpack_lone(word) }, !taken)
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

/// Whether readers may enter without changing the word.
#[inline(always)]
fn is_biased(word: u64) -> bool {
    word & (LONE | BIASED) == BIASED
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

    /// Whether nobody holds or wants anything exclusively.
    fn holds_readers_alone(&self, word: u64) -> bool {
        let in_spans = (word >> EXCLUSIVE) & ALL_SPANS == 0;
        in_spans
            && self.cold.as_ref().is_none_or(|cold| {
                cold.waiters.is_empty() && cold.overflow.iter().all(|held| held.mode == Mode::Shared)
            })
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

    /// Whether the bucket's claims, those of the visible readers taken over if need be, admit all of these; then
    /// they are entered.
    fn try_enter_all<'c>(&mut self, claims: impl Iterator<Item = &'c Claim> + Clone) -> bool {
        if self.word & BIASED != 0 && claims.clone().any(|claim| claim.mode == Mode::Exclusive) {
            self.revoke_bias();
        }
        let free = claims.clone().all(|claim| self.admits(claim));
        if free {
            claims.for_each(|claim| self.insert_loose(claim));
        }
        free
    }

    /// Sends readers the ordinary way, and enters those loosely who came the other.
    fn revoke_bias(&mut self) {
        self.word &= !BIASED;
        // A store will do, as nobody changes a word that is LOCKED by somebody else. Relaxed: who sees this enters
        // the bucket, and for that has to wait for the store that unlocks it.
        self.owner.store(self.word | LOCKED, Ordering::Relaxed);
        // With that of `try_enter_visibly`: readers see the store above, or `take_over` sees their claims.
        fence(Ordering::SeqCst);
        let looked_at = VisibleReaders::of_process().take_over(BucketId::of(self.owner), |start, end| {
            self.insert_loose(&Claim { start, end, mode: Mode::Shared });
        });
        // As many as there are entries: the cast cannot cut.
        self.cold_mut().until_bias = CONTENDED_PER_LINE * (1 + looked_at as u32);
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
impl Bucket {
    /// As if a reader found somebody else at the word so many times.
    pub(super) fn contend(&self, times: u32) {
        for _ in 0..times {
            let word = self.note_contending_reader(self.lock_word());
            self.word.store(word, Ordering::Release);
        }
    }

    /// As if readers contended until the bucket is biased to them, unless something forbids it.
    pub(super) fn bias(&self) {
        self.locked(self.lock_word(), |slots| slots.cold_mut().until_bias = 1);
        self.contend(1);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::task::Waker;

    fn claim(start: u64, mode: Mode) -> Claim {
        Claim::new(start..start + 1, mode)
    }

    fn leave(bucket: &Bucket, claim: &Claim, entered: Entered) -> bool {
        match entered {
            Entered::Span(span) => {
                bucket.leave_span_fast(span, claim.mode) || bucket.leave_span(span, claim.mode).found
            }
            Entered::Visibly(entry) => {
                bucket.leave_visibly_fast(entry) || bucket.leave_visibly(entry, claim).found
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

    #[test]
    fn readers_who_contend_enough_leave_the_bucket_as_it_is() {
        let (bucket, shared) = (Bucket::new(), claim(3, Mode::Shared));
        bucket.contend(CONTENDED_BEFORE_BIAS - 1);
        let entered = bucket.try_enter(&shared);
        assert_eq!(entered, Entered::Span(0));
        assert!(leave(&bucket, &shared, entered));
        bucket.contend(1);
        let entered = [(); 20].map(|()| bucket.try_enter(&shared));
        let visibly = |entered: &&Entered| matches!(entered, Entered::Visibly(_));
        assert!(entered.iter().filter(visibly).count() > 10, "{entered:?}");
        assert!(entered.iter().all(|entered| leave(&bucket, &shared, *entered)));
        assert_eq!(bucket.word.load(Ordering::Relaxed), BIASED);
    }

    #[test]
    fn who_excludes_finds_the_visible_readers_in_the_bucket() {
        let (bucket, shared) = (Bucket::new(), claim(3, Mode::Shared));
        bucket.bias();
        let (first, second) = (bucket.try_enter(&shared), bucket.try_enter(&claim(5, Mode::Shared)));
        let (Entered::Visibly(entry), Entered::Visibly(other)) = (first, second) else {
            panic!("{first:?} {second:?}")
        };
        assert!(!leave(&bucket, &claim(3, Mode::Exclusive), Entered::Loosely));
        assert_eq!(bucket.try_enter(&claim(3, Mode::Exclusive)), Entered::No);
        assert!(!bucket.leave_visibly_fast(entry) && !bucket.leave_visibly_fast(other));
        // What lies beside them is free, and readers come the ordinary way.
        assert!(matches!(bucket.try_enter(&claim(4, Mode::Exclusive)), Entered::Span(_) | Entered::Loosely));
        let late = bucket.try_enter(&shared);
        assert!(matches!(late, Entered::Span(_)), "{late:?}");
        assert!(leave(&bucket, &shared, late));
        assert_eq!(bucket.try_enter(&claim(3, Mode::Exclusive)), Entered::No);
        assert!(bucket.leave_visibly(entry, &shared).found);
        assert!(!bucket.leave_visibly(entry, &shared).found, "it is gone");
        assert!(bucket.try_enter(&claim(3, Mode::Exclusive)) != Entered::No);
        assert!(bucket.leave_visibly(other, &claim(5, Mode::Shared)).found);
    }

    #[test]
    fn a_bucket_is_not_biased_while_somebody_excludes_readers() {
        let elsewhere = claim(9, Mode::Exclusive);
        let stays_as_it_is = |bucket: &Bucket| {
            bucket.bias();
            assert!(!is_biased(bucket.word.load(Ordering::Relaxed)));
        };
        // In a span.
        let bucket = Bucket::new();
        let entered = bucket.try_enter(&elsewhere);
        stays_as_it_is(&bucket);
        assert!(leave(&bucket, &elsewhere, entered));
        // Beyond the spans.
        let readers: Vec<_> = (0..SPANS).map(|_| bucket.try_enter(&claim(3, Mode::Shared))).collect();
        let entered = bucket.try_enter(&elsewhere);
        assert_eq!(entered, Entered::Loosely);
        stays_as_it_is(&bucket);
        assert!(leave(&bucket, &elsewhere, entered));
        // In line.
        let waiter = Waiter::task(vec![claim(3, Mode::Exclusive)], Waker::noop().clone());
        assert!(!bucket.enter_or_queue(&waiter));
        stays_as_it_is(&bucket);
        assert!(bucket.cancel(&waiter).found);
        bucket.bias();
        assert!(is_biased(bucket.word.load(Ordering::Relaxed)));
        assert!(readers.into_iter().all(|entered| leave(&bucket, &claim(3, Mode::Shared), entered)));
    }

    #[test]
    fn a_revocation_holds_the_next_bias_off() {
        let bucket = Bucket::new();
        bucket.bias();
        let entered = bucket.try_enter(&claim(3, Mode::Shared));
        assert!(leave(&bucket, &claim(3, Mode::Shared), entered));
        let writer = claim(3, Mode::Exclusive);
        let entered = bucket.try_enter(&writer);
        assert!(leave(&bucket, &writer, entered));
        // At least this thread has an entry.
        bucket.contend(2 * CONTENDED_PER_LINE - 1);
        assert!(!is_biased(bucket.word.load(Ordering::Relaxed)));
        bucket.contend(CONTENDED_PER_LINE * 200);
        assert!(is_biased(bucket.word.load(Ordering::Relaxed)));
    }
}
