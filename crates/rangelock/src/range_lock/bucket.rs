//! One bucket: the narrow claims held within its segments, and who waits for one of them.
//!
//! ```text
//! byte   0        8                                  120      128
//!        | word   | 7 spans of 16 bytes (start, end) | cold   |
//! word: bit 0 LOCKED · bit 1 COLD · bit 2 LONE · and then
//!       without LONE: bit 3 BIASED · bits 8.. occupied · bits 16.. exclusive · bits 24.. loose (one bit a span)
//!       with LONE:    bit 3 exclusive · bits 4.. length less one (14 bits) · bits 18.. start (46 bits)
//!       MOVED, which is LOCKED for good: the table has moved, and everything that was here with it
//! ```
//!
//! Invariants:
//! - claims held here by different requests do not conflict, but for one who sees the gate's flags too late and is
//!   about to leave again;
//! - a claim that is alone in its bucket is kept in the word itself if it fits, so that entering and leaving
//!   are one compare-and-swap each, as with a word-sized lock. Its token names span 0, where whoever next
//!   locks the word puts it: to the token both forms are the same hold;
//! - spans, `cold` and all bits of the word but LOCKED are changed by whoever took the word from unlocked to
//!   LOCKED, with two exceptions on an unlocked word that is not COLD: one compare-and-swap may make an empty
//!   word LONE, and the holder of a span that is not loose may clear its bits (or its LONE word) by another;
//! - COLD is set as long as somebody waits here or more claims are held than there are spans. Without it
//!   nobody has to be woken and `cold` need not be looked at;
//! - a span that is not *loose* belongs to the token that names it. Loose claims (those of requests that
//!   waited, touch two buckets or were moved) are found by their value; equal ones stand for each other;
//! - a bucket that is BIASED holds no exclusive claim, and nobody waits in it: readers may hold their claims
//!   among the [visible readers](super::visible_readers) instead. Whoever enters an exclusive claim, or waits to,
//!   takes BIASED away and those claims in first. So everything else said here holds of spans and `cold` alone;
//! - a bucket lies in cache lines of its own (two, as processors fetch them in pairs);
//! - only claims beyond the spans and waiters need memory of their own, which is then kept, so the steady
//!   state allocates nothing;
//! - a claim is entered only if it conflicts with none held and none waiting: first come, first served.

use crate::Mode;
use crate::claim::Claim;
use crate::sync::{
    AtomicU64, CONTENDED_BEFORE_BIAS, LOOK_AFTER, Ordering, SPINS, UnsafeCell, fence, seq_cst, yield_now,
};

use super::gate::{Flags, Mark};
use super::line::Line;
use super::slots::Slots;
use super::visible_readers::{BucketId, EntryIndex, VisibleReaders};

pub(super) const SPANS: u32 = 7;
pub(super) const ALL_SPANS: u64 = (1 << SPANS) - 1;

pub(super) const LOCKED: u64 = 1;
pub(super) const COLD: u64 = 2;
const LONE: u64 = 4;
const LONE_EXCLUSIVE: u64 = 8;
/// Without LONE only.
pub(super) const BIASED: u64 = 8;
const LONE_LEN: u32 = 4;
const LONE_START: u32 = 18;
pub(super) const OCCUPIED: u32 = 8;
pub(super) const EXCLUSIVE: u32 = 16;
pub(super) const LOOSE: u32 = 24;
/// No other word is LOCKED and has neither LONE nor a bit below this one.
pub(super) const MOVED: u64 = LOCKED | 1 << 63;

/// The span that a claim has in its bucket.
pub(super) type SpanIndex = u32;

#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Bucket {
    pub(super) word: AtomicU64,
    pub(super) body: UnsafeCell<Body>,
}

const _: () = assert!(cfg!(any(loom, shuttle)) || size_of::<Bucket>() == 128);

// SAFETY: `body` is only reached by whoever took `word` from unlocked to LOCKED, until it unlocks.
unsafe impl Sync for Bucket {}

#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Body {
    pub(super) spans: [Span; SPANS as usize],
    pub(super) cold: Option<Box<Cold>>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    pub(super) start: u64,
    pub(super) end: u64,
}

#[derive(Debug)]
pub(super) struct Cold {
    pub(super) overflow: Vec<Claim>,
    pub(super) line: Line,
    /// How many readers have yet to contend for the bucket before it is biased to them.
    pub(super) until_bias: u32,
    /// Whether it ever was.
    was_biased: bool,
    /// How often the bucket has yet to be crowded before somebody looks whether the table is too small.
    until_look: u32,
    /// How often somebody did.
    looks: u32,
}

impl Default for Cold {
    fn default() -> Self {
        Cold {
            overflow: Vec::new(),
            line: Line::default(),
            until_bias: CONTENDED_BEFORE_BIAS,
            was_biased: false,
            until_look: LOOK_AFTER,
            looks: 0,
        }
    }
}

impl Cold {
    /// Notes that the bucket is crowded. Says whether it is time to look at the table: each time after twice as many
    /// of them as before.
    pub(super) fn is_crowded(&mut self) -> bool {
        if LOOK_AFTER == 0 {
            return false;
        }
        self.until_look -= 1;
        let look = self.until_look == 0;
        if look {
            self.looks = (self.looks + 1).min(20);
            self.until_look = LOOK_AFTER << self.looks;
        }
        look
    }
}

/// How a claim was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// It has a span of its own.
    Span(SpanIndex),
    /// As above; and others are at the same bucket so often that a larger table may help.
    ContendedSpan(SpanIndex),
    /// It is among the visible readers.
    Visibly(EntryIndex),
    /// It is found by its value.
    Loosely,
    /// As above; and the bucket is so full that a larger table may help.
    CrowdedLoosely,
    /// It has the first span, and has to be taken out again, as the gate's flags went up.
    StoppedSpan,
    /// It was among the visible readers and has to be taken out again, as the gate's flags went up.
    StoppedVisibly(EntryIndex),
    /// Not at all: somebody has to be waited for, or asked at the gate.
    No,
}

/// The table has moved while its caller looked at it.
#[derive(Debug)]
pub(super) struct Moved;

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

    /// Enters one claim, if it conflicts with nobody here and the gate's flags do not stop it.
    #[inline(always)]
    pub(super) fn try_enter(&self, claim: &Claim, flags: &Flags, table: Mark) -> Entered {
        let word = self.word.load(Ordering::Relaxed);
        let mut contended = false;
        if word == 0
            && let Some(lone) = lone_word(claim)
        {
            if self.word.compare_exchange(0, lone, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                seq_cst();
                return if !flags.mark().lets_in(claim.mode, table) {
                    Entered::StoppedSpan
                } else {
                    Entered::Span(0)
                };
            }
            contended = true;
        } else if claim.mode == Mode::Shared && is_biased(word) {
            match self.try_enter_visibly(claim.start, claim.end, flags, table) {
                Entered::No => {}
                entered => return entered,
            }
        }
        self.try_enter_among_others(claim, contended, flags, table)
    }

    /// Enters a shared claim among the visible readers, if the bucket is still biased to them.
    #[inline(never)]
    fn try_enter_visibly(&self, start: u64, end: u64, flags: &Flags, table: Mark) -> Entered {
        let (readers, id) = (VisibleReaders::of_process(), self.id());
        let Some(entry) = readers.publish(id, start, end) else { return Entered::No };
        // Of this fence and that of `revoke_bias` one comes first. If this one, the revoker finds the claim. If
        // that one, this load finds the bias gone, or given anew, and then a later revoker finds the claim.
        // Wide requests are kept apart in the same way: they revoke the bias, or their flags are seen here.
        fence(Ordering::SeqCst);
        // Acquire: comes after the exclusive holders from before the bias.
        let biased = is_biased(self.word.load(Ordering::Acquire));
        let stopped = !flags.mark().lets_in(Mode::Shared, table);
        if biased && !stopped {
            return Entered::Visibly(entry);
        }
        // What cannot be withdrawn was taken over by a revoker before it let anybody in: it is held.
        match (readers.withdraw(entry, id), stopped) {
            (true, _) => Entered::No,
            (false, true) => Entered::StoppedVisibly(entry),
            (false, false) => Entered::Visibly(entry),
        }
    }

    /// Enters one claim into a bucket that may hold others.
    #[inline]
    fn try_enter_among_others(&self, claim: &Claim, contended: bool, flags: &Flags, table: Mark) -> Entered {
        let Ok((mut word, contended_again)) = self.lock_word_and_tell() else { return Entered::No };
        seq_cst();
        if !flags.mark().lets_in(claim.mode, table) {
            self.word.store(word, Ordering::Release);
            return Entered::No;
        }
        let mut look = false;
        if contended || contended_again || (CONTENDED_BEFORE_BIAS == 0 && claim.mode == Mode::Shared) {
            (word, look) = self.note_contention(word, claim.mode);
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
        match (entered, look) {
            (true, false) => Entered::Span(span),
            (true, true) => Entered::ContendedSpan(span),
            (false, _) => Entered::No,
        }
    }

    /// Notes that the caller, who has locked the bucket, found somebody else at it. Biases the bucket to readers if
    /// enough of them did and nobody excludes them. Returns the word that says so, and whether to look at the table.
    #[cold]
    fn note_contention(&self, word: u64, mode: Mode) -> (u64, bool) {
        self.body.with_mut(|body| {
            // SAFETY: the caller holds LOCKED.
            let body = unsafe { &mut *body };
            let may_be_biased = mode == Mode::Shared && word & BIASED == 0 && body.holds_readers_alone(word);
            let cold = body.cold.get_or_insert_default();
            let look = cold.is_crowded();
            if !may_be_biased {
                return (word, look);
            }
            cold.until_bias = cold.until_bias.saturating_sub(1);
            if cold.until_bias != 0 {
                return (word, look);
            }
            cold.was_biased = true;
            (word | BIASED, look)
        })
    }

    /// The parts of the claim come one by one, lest the fast path put them together in memory.
    #[cold]
    fn try_enter_cold(&self, word: u64, start: u64, end: u64, mode: Mode) -> Entered {
        let mut slots = Slots::of_locked(self, word);
        if !slots.try_enter(&Claim { start, end, mode }) {
            return Entered::No;
        }
        if slots.is_crowded() { Entered::CrowdedLoosely } else { Entered::Loosely }
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

    /// Locks the bucket until what is returned is dropped.
    #[inline]
    pub(super) fn lock(&self) -> Result<Slots<'_>, Moved> {
        let (word, _) = self.lock_word_and_tell()?;
        Ok(Slots::of_locked(self, word))
    }

    /// Whether nothing that is here can be in the way of a wide request for these claims, as far as that can be told
    /// without locking the bucket.
    #[inline]
    pub(super) fn is_clear_for(&self, claims: &[Claim]) -> bool {
        let word = self.word.load(Ordering::SeqCst);
        if word == 0 {
            return true;
        }
        if word & LOCKED != 0 {
            return false;
        }
        if word & LONE != 0 {
            let lone = lone_claim(word);
            return !claims.iter().any(|claim| claim.conflicts(&lone));
        }
        let exclusive = (word >> EXCLUSIVE) & ALL_SPANS != 0 || word & COLD != 0;
        !exclusive && claims.iter().all(|claim| claim.mode == Mode::Shared)
    }

    /// Whether somebody may stand in line here.
    pub(super) fn may_have_line(&self) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        word & (LONE | COLD) == COLD || word & LOCKED != 0
    }

    /// How many claims are held here and waited for, nearly: nobody is stopped to count them.
    pub(super) fn load(&self) -> usize {
        let word = self.word.load(Ordering::Relaxed);
        match word & (LONE | LOCKED | COLD) {
            0 => ((word >> OCCUPIED) & ALL_SPANS).count_ones() as usize,
            LONE => 1,
            _ => self.lock().map_or(0, |slots| slots.load()),
        }
    }

    /// Takes the word from unlocked to LOCKED; returns what it was, a lone claim moved to its span, and tells whether
    /// somebody else was at the word.
    #[inline(always)]
    fn lock_word_and_tell(&self) -> Result<(u64, bool), Moved> {
        let word = self.word.load(Ordering::Relaxed);
        let taken = word & LOCKED == 0
            && self.word.compare_exchange(word, word | LOCKED, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        let word = if taken { word } else { self.lock_word_contended()? };
        Ok((if word & LONE == 0 { word } else { self.unpack_lone(word) }, !taken))
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
    fn lock_word_contended(&self) -> Result<u64, Moved> {
        let mut looks = 0;
        loop {
            let word = self.word.load(Ordering::Relaxed);
            if word == MOVED {
                // Comes after whoever moved the table.
                fence(Ordering::Acquire);
                return Err(Moved);
            }
            if word & LOCKED == 0
                && self
                    .word
                    .compare_exchange(word, word | LOCKED, Ordering::SeqCst, Ordering::Relaxed)
                    .is_ok()
            {
                return Ok(word);
            }
            if looks < SPINS {
                looks += 1;
                std::hint::spin_loop();
            } else {
                yield_now();
            }
        }
    }
}

#[inline(always)]
pub(super) fn bits_of(span: u32, mode: Mode) -> u64 {
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
    pub(super) fn spans_admit(&self, word: u64, claim: &Claim) -> bool {
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
                cold.line.is_empty() && cold.overflow.iter().all(|held| held.mode == Mode::Shared)
            })
    }
}

#[cfg(all(test, not(loom)))]
impl Bucket {
    /// As if a reader found somebody else at the word so many times.
    pub(super) fn contend(&self, times: u32) {
        for _ in 0..times {
            let Ok((word, _)) = self.lock_word_and_tell() else { return };
            let (word, _) = self.note_contention(word, Mode::Shared);
            self.word.store(word, Ordering::Release);
        }
    }

    /// As if readers contended until the bucket is biased to them, unless something forbids it, or the table has moved.
    pub(super) fn bias(&self) {
        let Ok(mut slots) = self.lock() else { return };
        slots.cold_mut().until_bias = 1;
        drop(slots);
        self.contend(1);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::geometry::Geometry;
    use super::super::slots::CONTENDED_PER_LINE;
    use super::*;
    use crate::waiter::{Waiter, Wake};
    use std::task::Waker;

    fn claim(start: u64, mode: Mode) -> Claim {
        Claim::new(start..start + 1, mode)
    }

    fn mark() -> Mark {
        Mark::new(Geometry::new(1, 1 << 14), 0)
    }

    fn enter(bucket: &Bucket, claim: &Claim) -> Entered {
        bucket.try_enter(claim, &Flags::new(mark()), mark())
    }

    fn slots(bucket: &Bucket) -> Slots<'_> {
        bucket.lock().expect("in use")
    }

    /// Takes out a claim that may have been taken over from the visible readers.
    fn leave_visibly(bucket: &Bucket, entry: EntryIndex, claim: &Claim) -> bool {
        let readers = VisibleReaders::of_process();
        let taken = readers.is_taken(entry, bucket.id()) && slots(bucket).remove(claim);
        if taken {
            readers.free_taken(entry);
        }
        taken
    }

    fn leave(bucket: &Bucket, claim: &Claim, entered: Entered) -> bool {
        match entered {
            Entered::Span(span) | Entered::ContendedSpan(span) => {
                bucket.leave_span_fast(span, claim.mode) || slots(bucket).remove_span(span, claim.mode)
            }
            Entered::Visibly(entry) => {
                bucket.leave_visibly_fast(entry) || leave_visibly(bucket, entry, claim)
            }
            Entered::Loosely | Entered::CrowdedLoosely => slots(bucket).remove(claim),
            Entered::No | Entered::StoppedSpan | Entered::StoppedVisibly(_) => false,
        }
    }

    #[test]
    fn more_claims_than_spans_overflow_and_come_back() {
        let bucket = Bucket::new();
        let claims: Vec<_> = (0..20).map(|start| claim(start, Mode::Exclusive)).collect();
        let entered: Vec<_> = claims.iter().map(|claim| enter(&bucket, claim)).collect();
        assert_eq!(
            entered
                .iter()
                .filter(|entered| matches!(entered, Entered::Loosely | Entered::CrowdedLoosely))
                .count(),
            20 - SPANS as usize
        );
        assert!((0..20).all(|start| enter(&bucket, &claim(start, Mode::Shared)) == Entered::No));
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
                assert_eq!(enter(&bucket, &claim), Entered::Span(0));
                assert_eq!(bucket.word.load(Ordering::Relaxed), word);
                let overlapping = Claim { start: end - 1, end: end + 1, mode: Mode::Exclusive };
                assert_eq!(enter(&bucket, &overlapping), Entered::No);
                let other = Claim { start: end, end: end + 1, mode: Mode::Exclusive };
                let entered = enter(&bucket, &other);
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
        let own = enter(&bucket, &shared);
        assert!(matches!(own, Entered::Span(_)));
        assert!(slots(&bucket).try_enter(&shared));
        assert!(leave(&bucket, &shared, Entered::Loosely));
        assert!(!leave(&bucket, &shared, Entered::Loosely));
        assert_eq!(enter(&bucket, &claim(3, Mode::Exclusive)), Entered::No);
        assert!(leave(&bucket, &shared, own));
        assert!(!leave(&bucket, &shared, own));
        assert!(enter(&bucket, &claim(3, Mode::Exclusive)) != Entered::No);
    }

    #[test]
    fn readers_who_contend_enough_leave_the_bucket_as_it_is() {
        let (bucket, shared) = (Bucket::new(), claim(3, Mode::Shared));
        bucket.contend(CONTENDED_BEFORE_BIAS - 1);
        let entered = enter(&bucket, &shared);
        assert_eq!(entered, Entered::Span(0));
        assert!(leave(&bucket, &shared, entered));
        bucket.contend(1);
        let entered = [(); 20].map(|()| enter(&bucket, &shared));
        let visibly = |entered: &&Entered| matches!(entered, Entered::Visibly(_));
        assert!(entered.iter().filter(visibly).count() > 10, "{entered:?}");
        assert!(entered.iter().all(|entered| leave(&bucket, &shared, *entered)));
        assert_eq!(bucket.word.load(Ordering::Relaxed), BIASED);
    }

    #[test]
    fn who_excludes_finds_the_visible_readers_in_the_bucket() {
        let (bucket, shared) = (Bucket::new(), claim(3, Mode::Shared));
        bucket.bias();
        let (first, second) = (enter(&bucket, &shared), enter(&bucket, &claim(5, Mode::Shared)));
        let (Entered::Visibly(entry), Entered::Visibly(other)) = (first, second) else {
            panic!("{first:?} {second:?}")
        };
        assert!(!leave(&bucket, &claim(3, Mode::Exclusive), Entered::Loosely));
        assert_eq!(enter(&bucket, &claim(3, Mode::Exclusive)), Entered::No);
        assert!(!bucket.leave_visibly_fast(entry) && !bucket.leave_visibly_fast(other));
        // What lies beside them is free, and readers come the ordinary way.
        assert!(matches!(enter(&bucket, &claim(4, Mode::Exclusive)), Entered::Span(_) | Entered::Loosely));
        let late = enter(&bucket, &shared);
        assert!(matches!(late, Entered::Span(_)), "{late:?}");
        assert!(leave(&bucket, &shared, late));
        assert_eq!(enter(&bucket, &claim(3, Mode::Exclusive)), Entered::No);
        assert!(leave_visibly(&bucket, entry, &shared));
        assert!(!leave_visibly(&bucket, entry, &shared), "it is gone");
        assert!(enter(&bucket, &claim(3, Mode::Exclusive)) != Entered::No);
        assert!(leave_visibly(&bucket, other, &claim(5, Mode::Shared)));
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
        let entered = enter(&bucket, &elsewhere);
        stays_as_it_is(&bucket);
        assert!(leave(&bucket, &elsewhere, entered));
        // Beyond the spans.
        let readers: Vec<_> = (0..SPANS).map(|_| enter(&bucket, &claim(3, Mode::Shared))).collect();
        let entered = enter(&bucket, &elsewhere);
        assert_eq!(entered, Entered::Loosely);
        stays_as_it_is(&bucket);
        assert!(leave(&bucket, &elsewhere, entered));
        // In line.
        let waiter = Waiter::new(vec![claim(3, Mode::Exclusive)], 1, Wake::task(Waker::noop()));
        slots(&bucket).line_up(waiter.clone(), SPANS);
        stays_as_it_is(&bucket);
        assert!(slots(&bucket).leave_line(&waiter));
        bucket.bias();
        assert!(is_biased(bucket.word.load(Ordering::Relaxed)));
        assert!(readers.into_iter().all(|entered| leave(&bucket, &claim(3, Mode::Shared), entered)));
    }

    #[test]
    fn a_revocation_holds_the_next_bias_off() {
        let bucket = Bucket::new();
        bucket.bias();
        let entered = enter(&bucket, &claim(3, Mode::Shared));
        assert!(leave(&bucket, &claim(3, Mode::Shared), entered));
        let writer = claim(3, Mode::Exclusive);
        let entered = enter(&bucket, &writer);
        assert!(leave(&bucket, &writer, entered));
        // At least this thread has an entry.
        bucket.contend(2 * CONTENDED_PER_LINE - 1);
        assert!(!is_biased(bucket.word.load(Ordering::Relaxed)));
        bucket.contend(CONTENDED_PER_LINE * 200);
        assert!(is_biased(bucket.word.load(Ordering::Relaxed)));
    }
}
