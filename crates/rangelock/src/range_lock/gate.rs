//! Where wide requests are held: those of too many segments to enter each bucket.
//!
//! A wide request is written down here, announces itself in the lock's [`Flags`], and then looks at every bucket
//! for those who were there before it. Narrow requests enter their buckets first and look at the flags then. Of
//! the two looks at least one finds the other, as all four accesses are in one order (`SeqCst`).
//!
//! Invariants:
//! - `wide` holds all wide claims, held and waited for, in the order of arrival; the flags say of what modes;
//! - the gate's lock is taken before those of buckets. Whoever waits, gives up waiting, holds a wide claim or
//!   moves the table does so under it. So the order of arrival is one for all of a lock;
//! - whoever conflicts with a wide claim that is older stands in the gate's line. So a bucket's line counts narrow
//!   claims alone, and the gate's wide ones alone.

use std::sync::Arc;

use crate::Mode;
use crate::claim::Claim;
use crate::sync::{AtomicU64, Ordering, seq_cst};
use crate::waiter::Waiter;

use super::geometry::Geometry;
use super::growth::Evidence;
use super::line::Line;
use super::table::Generation;

/// Of what modes there are wide claims, and which table is in use: all that most requests need to know.
#[derive(Debug)]
pub(super) struct Flags(AtomicU64);

/// What the flags say.
///
/// ```text
/// bits 0.. segment bits (6) · 8.. bucket bits (5) · 16 any wide claim · 17 an exclusive one · 32.. generation
/// ```
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark(u64);

impl Mark {
    // The lowest, so that a shift needs nothing before it.
    const SEGMENT: u32 = 0;
    const BUCKETS: u32 = 8;
    const ANY: u64 = 1 << 16;
    const EXCLUSIVE: u64 = 1 << 17;
    const GENERATION: u32 = 32;

    /// That of a table, and no wide claims.
    pub(super) fn new(geometry: Geometry, generation: Generation) -> Self {
        let (segment_bits, bucket_bits) = geometry.bits();
        Mark(
            u64::from(segment_bits) << Self::SEGMENT
                | u64::from(bucket_bits) << Self::BUCKETS
                | u64::from(generation) << Self::GENERATION,
        )
    }

    #[inline(always)]
    pub(super) fn geometry(self) -> Geometry {
        Geometry::of_bits((self.0 >> Self::SEGMENT) as u32 & 63, (self.0 >> Self::BUCKETS) as u32 & 31)
    }

    /// Whether a narrow request may enter the table of this mark without asking at the gate. Otherwise somebody may be
    /// in its way there, or the table has moved.
    #[inline(always)]
    pub(super) fn lets_in(self, mode: Mode, table: Mark) -> bool {
        let of_no_matter = match mode {
            Mode::Shared => Self::ANY,
            Mode::Exclusive => 0,
        };
        self.0 & !of_no_matter == table.0
    }
}

impl Flags {
    /// For a lock whose first table is of this mark.
    pub(super) fn new(first: Mark) -> Self {
        Flags(AtomicU64::new(first.0))
    }

    /// What they say now. Also acquires: flags that are down again come after the wide holds that they stood for.
    #[inline(always)]
    pub(super) fn mark(&self) -> Mark {
        Mark(self.0.load(Ordering::SeqCst))
    }
}

#[derive(Debug)]
struct Wide {
    claim: Claim,
    arrival: u64,
    /// Who waits for it, or has waited; none if it was held at once.
    waiter: Option<Arc<Waiter>>,
}

impl Wide {
    fn is_held(&self) -> bool {
        self.waiter.as_ref().is_none_or(|waiter| waiter.is_granted())
    }
}

#[derive(Debug)]
pub(super) struct Gate {
    wide: Vec<Wide>,
    pub(super) line: Line,
    arrivals: u64,
    /// The table in use.
    table: Mark,
    pub(super) evidence: Evidence,
}

impl Gate {
    pub(super) fn new(table: Mark) -> Self {
        Gate { wide: Vec::new(), line: Line::default(), arrivals: 0, table, evidence: Evidence::default() }
    }

    pub(super) fn next_arrival(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    /// How many of the wide claims conflict with one of these.
    pub(super) fn count_blockers(&self, claims: &[Claim]) -> u32 {
        let blocks = |wide: &&Wide| claims.iter().any(|claim| claim.conflicts(&wide.claim));
        // The cast cannot cut: more than 2^32 claims fit into no memory.
        self.wide.iter().filter(blocks).count() as u32
    }

    /// Writes a claim down; it has to be announced.
    pub(super) fn insert(&mut self, claim: Claim, arrival: u64, waiter: Option<Arc<Waiter>>) {
        let place = self.wide.partition_point(|wide| wide.arrival <= arrival);
        self.wide.insert(place, Wide { claim, arrival, waiter });
    }

    /// Notes whose claims of the waiter's arrival are.
    pub(super) fn belongs_to(&mut self, waiter: &Arc<Waiter>) {
        for wide in self.wide.iter_mut().filter(|wide| wide.arrival == waiter.arrival()) {
            wide.waiter = Some(waiter.clone());
        }
    }

    /// Takes out a held claim equal to this. One that is waited for may be equal too, where its waiter waits for another
    /// range of the same call.
    pub(super) fn remove(&mut self, claim: &Claim) -> bool {
        self.remove_where(|wide| wide.claim == *claim && wide.is_held())
    }

    /// Takes out a claim of one who gave up. If that one was granted, an equal one that is held stands for it.
    pub(super) fn remove_of(&mut self, claim: &Claim, arrival: u64) -> bool {
        self.remove_where(|wide| wide.claim == *claim && wide.arrival == arrival) || self.remove(claim)
    }

    fn remove_where(&mut self, is_it: impl FnMut(&Wide) -> bool) -> bool {
        let place = self.wide.iter().position(is_it);
        place.map(|place| self.wide.remove(place)).is_some()
    }

    /// Takes out all claims as the table moves to another one, and returns those that are held.
    pub(super) fn take_held(&mut self, table: Mark) -> Vec<(Claim, u64, Option<Arc<Waiter>>)> {
        self.table = table;
        let held = self.wide.drain(..).filter(Wide::is_held);
        held.map(|wide| (wide.claim, wide.arrival, wide.waiter)).collect()
    }

    /// Sets the flags to what is written down.
    pub(super) fn announce(&self, flags: &Flags) {
        let exclusive = self.wide.iter().any(|wide| wide.claim.mode == Mode::Exclusive);
        let any = if self.wide.is_empty() { 0 } else { Mark::ANY };
        let modes = any | if exclusive { Mark::EXCLUSIVE } else { 0 };
        flags.0.store(modes | self.table.0, Ordering::SeqCst);
        seq_cst();
    }

    /// Counts off a wide claim that is gone. Adds those who are granted by that.
    pub(super) fn count_off(&mut self, claim: &Claim, arrival: u64, granted: &mut Vec<Arc<Waiter>>) {
        granted.extend(self.line.count_off(claim, arrival).into_iter().filter(|waiter| waiter.left_line()));
    }
}
