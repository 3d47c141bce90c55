//! A locked bucket: what is done with its claims while nobody else can.
//!
//! Invariants:
//! - whoever has it holds the bucket's LOCKED; it is given back on drop, a panic's included;
//! - an entry of the line counts, as its blockers here, the narrow claims that conflict with it and are held here,
//!   or are kept here by an entry before it;
//! - a waiter that is not stopped here, or no longer, has its claims entered loosely, so that they keep others off
//!   while it waits elsewhere.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use crate::Mode;
use crate::claim::Claim;
use crate::sync::{CONTENDED_BEFORE_BIAS, MutPtr, Ordering, fence, look};
use crate::waiter::Waiter;

use super::bucket::{
    ALL_SPANS, BIASED, Body, Bucket, COLD, Cold, EXCLUSIVE, LOCKED, LOOSE, MOVED, OCCUPIED, SPANS, Span,
    SpanIndex, bits_of,
};
use super::geometry::Geometry;
use super::visible_readers::VisibleReaders;

/// A revocation moves a line for the bucket and one for each entry that it looks at, about what a contending reader
/// pays too. For each, so many readers have to contend for the bucket before it is biased again: revoking stays a
/// small part of all that is done.
pub(super) const CONTENDED_PER_LINE: u32 = if CONTENDED_BEFORE_BIAS == 0 { 0 } else { 16 };

pub(super) struct Slots<'a> {
    bucket: &'a Bucket,
    /// What the word will be once it is unlocked, COLD aside.
    word: u64,
    body: ManuallyDrop<MutPtr<Body>>,
    crowded: bool,
}

impl Drop for Slots<'_> {
    #[inline]
    fn drop(&mut self) {
        let word = self.word;
        let word = if word == MOVED || !self.is_cold() { word } else { word | COLD };
        // SAFETY: this is the last use of the pointer, and it ends before others may have the content.
        unsafe { ManuallyDrop::drop(&mut self.body) };
        self.bucket.word.store(word, Ordering::Release);
    }
}

impl<'a> Slots<'a> {
    /// The content of a bucket whose word was `word` when the caller locked it; its LOCKED is now that of what is
    /// returned.
    #[inline(always)]
    pub(super) fn of_locked(bucket: &'a Bucket, word: u64) -> Self {
        let body = ManuallyDrop::new(bucket.body.get_mut());
        Slots { bucket, word: word & !COLD, body, crowded: false }
    }

    #[inline(always)]
    fn body(&self) -> &Body {
        // SAFETY: we hold LOCKED, and nobody changes the content while the reference to `self` lives.
        unsafe { look(&self.body) }
    }

    #[inline(always)]
    fn body_mut(&mut self) -> &mut Body {
        // SAFETY: we hold LOCKED, and this is the only reference, as it is made of the only one to `self`.
        unsafe { self.body.deref() }
    }

    fn is_cold(&self) -> bool {
        let cold = self.body().cold.as_ref();
        cold.is_some_and(|cold| !cold.overflow.is_empty() || !cold.line.is_empty())
    }

    pub(super) fn cold_mut(&mut self) -> &mut Cold {
        self.body_mut().cold.get_or_insert_default()
    }

    /// Whether the bucket was found so full that a larger table may help.
    pub(super) fn is_crowded(&self) -> bool {
        self.crowded
    }

    /// How many claims are held here and waited for.
    pub(super) fn load(&self) -> usize {
        let cold = self.body().cold.as_ref();
        let spans = ((self.word >> OCCUPIED) & ALL_SPANS).count_ones() as usize;
        spans + cold.map_or(0, |cold| cold.overflow.len() + cold.line.len())
    }

    /// All claims that are held here.
    pub(super) fn held(&self) -> impl Iterator<Item = Claim> + '_ {
        let (word, body) = (self.word, self.body());
        let spans = (0..SPANS).filter(move |span| word >> (OCCUPIED + span) & 1 == 1).map(move |span| {
            let exclusive = word >> (EXCLUSIVE + span) & 1 == 1;
            let mode = if exclusive { Mode::Exclusive } else { Mode::Shared };
            let Span { start, end } = body.spans[span as usize];
            Claim { start, end, mode }
        });
        spans.chain(body.cold.iter().flat_map(|cold| cold.overflow.iter().copied()))
    }

    /// Whether the claim conflicts with none held and none waiting.
    #[inline]
    pub(super) fn admits(&mut self, claim: &Claim) -> bool {
        if claim.mode == Mode::Exclusive {
            self.revoke_bias();
        }
        let cold = self.body().cold.as_ref();
        self.body().spans_admit(self.word, claim)
            && cold.is_none_or(|cold| {
                !cold.overflow.iter().any(|held| held.conflicts(claim)) && !cold.line.conflicts(claim)
            })
    }

    /// Enters a claim loosely if the bucket admits it.
    pub(super) fn try_enter(&mut self, claim: &Claim) -> bool {
        let free = self.admits(claim);
        if free {
            self.insert(claim);
        }
        free
    }

    /// How many claims are before these: held, or kept here by those in line.
    pub(super) fn count_blockers(&mut self, claims: &[Claim], geometry: Geometry, at: u32) -> u32 {
        if claims.iter().any(|claim| claim.mode == Mode::Exclusive) {
            self.revoke_bias();
        }
        let blocks = |other: &Claim| claims.iter().any(|claim| claim.conflicts(other));
        let held = self.held().filter(blocks).count();
        let cold = self.body().cold.as_ref();
        let waiting = cold.map_or(0, |cold| cold.line.count_kept(claims, geometry, at));
        // The cast cannot cut: more than 2^32 claims fit into no memory.
        (held + waiting) as u32
    }

    /// Puts a waiter in line, behind so many.
    pub(super) fn line_up(&mut self, waiter: Arc<Waiter>, blockers: u32) {
        let cold = self.cold_mut();
        cold.line.push(waiter, blockers);
        let crowded = cold.line.len() > SPANS as usize && cold.is_crowded();
        self.crowded |= crowded;
    }

    /// Takes a waiter out of the line that gave up; false if it does not stand here.
    pub(super) fn leave_line(&mut self, waiter: &Arc<Waiter>) -> bool {
        self.body_mut().cold.as_mut().is_some_and(|cold| cold.line.remove(waiter))
    }

    /// Takes all out who are in line.
    pub(super) fn take_line(&mut self) -> impl Iterator<Item = Arc<Waiter>> + use<> {
        let line = self.body_mut().cold.as_mut().map(|cold| std::mem::take(&mut cold.line));
        line.into_iter().flat_map(|mut line| line.take())
    }

    /// Counts off a claim that was taken out, for those who arrived later than `arrival`. Who has no blocker left has
    /// its claims entered; those who are granted by that are added.
    #[inline]
    pub(super) fn count_off(
        &mut self,
        claim: &Claim,
        arrival: u64,
        (geometry, at): (Geometry, u32),
        granted: &mut Vec<Arc<Waiter>>,
    ) {
        let line = self.body_mut().cold.as_mut().map(|cold| &mut cold.line);
        let Some(line) = line.filter(|line| !line.is_empty()) else { return };
        for waiter in line.count_off(claim, arrival) {
            for claim in waiter.claims().iter().filter(|claim| geometry.is_kept_at(claim, at)) {
                self.insert(claim);
            }
            if waiter.left_line() {
                granted.push(waiter);
            }
        }
    }

    /// Sends readers the ordinary way, and enters those loosely who came the other.
    #[inline]
    pub(super) fn revoke_bias(&mut self) {
        if self.word & BIASED != 0 {
            self.revoke_bias_now();
        }
    }

    #[cold]
    fn revoke_bias_now(&mut self) {
        self.word &= !BIASED;
        // A store will do, as nobody changes a word that is LOCKED by somebody else. Relaxed: who sees this enters
        // the bucket, and for that has to wait for the store that unlocks it.
        self.bucket.word.store(self.word | LOCKED, Ordering::Relaxed);
        // With that of `try_enter_visibly`: readers see the store above, or `take_over` sees their claims.
        fence(Ordering::SeqCst);
        let looked_at = VisibleReaders::of_process().take_over(self.bucket.id(), |start, end| {
            self.insert(&Claim { start, end, mode: Mode::Shared });
        });
        // As many as there are entries: the cast cannot cut.
        self.cold_mut().until_bias = CONTENDED_PER_LINE * (1 + looked_at as u32);
    }

    /// Enters a claim loosely, whatever is there.
    pub(super) fn insert(&mut self, claim: &Claim) {
        let occupied = (self.word >> OCCUPIED) & ALL_SPANS;
        if occupied == ALL_SPANS {
            let cold = self.cold_mut();
            cold.overflow.push(*claim);
            let crowded = cold.is_crowded();
            self.crowded |= crowded;
            return;
        }
        let span = occupied.trailing_ones();
        self.body_mut().spans[span as usize] = Span { start: claim.start, end: claim.end };
        self.word |= bits_of(span, claim.mode) | 1 << (LOOSE + span);
    }

    /// Takes out one loose claim equal to this.
    pub(super) fn remove(&mut self, claim: &Claim) -> bool {
        let mut rest = (self.word >> LOOSE) & ALL_SPANS;
        while rest != 0 {
            let at = rest.trailing_zeros();
            let span = self.body().spans[at as usize];
            let exclusive = (self.word >> (EXCLUSIVE + at)) & 1 == 1;
            if span.start == claim.start
                && span.end == claim.end
                && exclusive == (claim.mode == Mode::Exclusive)
            {
                self.word &= !(bits_of(at, claim.mode) | 1 << (LOOSE + at));
                return true;
            }
            rest &= rest - 1;
        }
        let Some(cold) = &mut self.body_mut().cold else { return false };
        let place = cold.overflow.iter().position(|held| held == claim);
        place.map(|place| cold.overflow.swap_remove(place)).is_some()
    }

    /// Takes out the claim of a span that is not loose.
    pub(super) fn remove_span(&mut self, span: SpanIndex, mode: Mode) -> bool {
        let bits = bits_of(span, mode);
        let found = self.word & bits == bits && self.word >> (LOOSE + span) & 1 == 0;
        if found {
            self.word &= !bits;
        }
        found
    }

    /// Unlocks the bucket as one that is no longer in use, as everything in it has moved.
    pub(super) fn retire(mut self) {
        self.word = MOVED;
    }
}
