//! When the table moves to a larger one, or to one of larger segments; and how.
//!
//! Whoever finds a bucket crowded, or a range wide that could be narrow, looks whether another table would be better,
//! and moves to it. A move waits for no holder: it locks all buckets for some microseconds and carries over by value
//! what is held and who waits.
//!
//! Invariants:
//! - a move has the gate's lock and those of all buckets. So it sees no request half entered and none half gone;
//! - holds stay what they are. Tokens that name a bucket of an older table are found by their value;
//! - those who wait line up again in the order in which they came;
//! - the new table and the flags of its generation are there before the old buckets say that they have moved. Who
//!   entered an old bucket and has not looked at the flags yet finds a flag of another generation, leaves again and
//!   asks at the gate;
//! - tables before the last take together no more memory than a few of its size: each has at least twice the buckets
//!   of the one before it, but for a limited number of moves to other segments.

use std::sync::Arc;

use crate::claim::Claim;
use crate::sync::Ordering;
use crate::waiter::{Waiter, wake_all};

use super::RangeLock;
use super::enter::line_up;
use super::gate::Gate;
use super::geometry::Geometry;
use super::slots::Slots;
use super::table::{LockedBuckets, Table};

/// The largest segment that requests bring about.
const LARGEST_SEGMENT: u64 = 16 << 20;
/// So many wide requests make the segments grow; next time twice as many.
const WIDE_BEFORE_GROWTH: u32 = 16;
/// So many moves may leave the number of buckets as it is.
const MOST_MOVES_IN_PLACE: u32 = 8;

/// What speaks for another table, gathered under the gate's lock.
#[derive(Debug)]
pub(super) struct Evidence {
    until_larger_segments: u32,
    wide_needed: u32,
    moves_in_place: u32,
    moving: bool,
}

impl Default for Evidence {
    fn default() -> Self {
        Evidence {
            until_larger_segments: WIDE_BEFORE_GROWTH,
            wide_needed: WIDE_BEFORE_GROWTH,
            moves_in_place: 0,
            moving: false,
        }
    }
}

/// What to do once the gate's lock is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hint {
    Nothing,
    /// Somebody found a long line.
    Crowded,
    /// Requests are so long.
    Long(u64),
}

impl Hint {
    pub(super) fn crowded(&mut self) {
        if *self == Hint::Nothing {
            *self = Hint::Crowded;
        }
    }
}

impl Evidence {
    /// Notes a request that came to the gate.
    pub(super) fn note(&mut self, geometry: Geometry, claims: &[Claim]) -> Hint {
        let longest =
            claims.iter().filter(|claim| geometry.is_wide(claim)).map(|claim| claim.end - claim.start).max();
        // As far as requests can be narrow. And if there are models of it, they say when tables move.
        let Some(longest) = longest.filter(|longest| *longest <= LARGEST_SEGMENT && !cfg!(loom)) else {
            return Hint::Nothing;
        };
        self.until_larger_segments -= 1;
        if self.until_larger_segments > 0 {
            return Hint::Nothing;
        }
        self.wide_needed = self.wide_needed.saturating_mul(2);
        self.until_larger_segments = self.wide_needed;
        Hint::Long(longest)
    }

    /// Whether the table may move, which costs its memory.
    fn allow(&mut self, table: &Table, next: &Table) -> bool {
        if next.geometry.buckets() > table.geometry.buckets() {
            return true;
        }
        self.moves_in_place += 1;
        self.moves_in_place <= MOST_MOVES_IN_PLACE
    }
}

impl RangeLock {
    #[inline]
    pub(super) fn follow(&self, hint: Hint) {
        match hint {
            Hint::Nothing => {}
            Hint::Crowded => self.look_at_load(),
            Hint::Long(longest) => self.move_on(|table| {
                // Such a range then covers two segments at most.
                let segment = longest.next_power_of_two();
                let larger = segment > table.geometry.segment_size();
                larger.then(|| Geometry::new(table.geometry.buckets(), segment))
            }),
        }
    }

    /// Makes the table so large that it suits so many ranges held at once. It grows by itself too; this spares it the
    /// steps in between.
    pub fn reserve(&self, ranges: usize) {
        let buckets = ranges.min(Geometry::MOST_BUCKETS).next_power_of_two();
        self.move_on(|table| {
            let segment = table.geometry.segment_size();
            (buckets > table.geometry.buckets()).then(|| Geometry::new(buckets, segment))
        });
    }

    /// Threads meet at one bucket so often that more buckets may keep them apart.
    #[cold]
    pub(super) fn look_at_contention(&self) {
        self.move_on(|table| {
            let (buckets, segment) = (table.geometry.buckets(), table.geometry.segment_size());
            let more = (4 * buckets).min(Self::DEFAULT_BUCKETS);
            (more > buckets).then(|| Geometry::new(more, segment))
        });
    }

    /// A bucket is so full that more of them, or smaller segments, may help.
    #[cold]
    pub(super) fn look_at_load(&self) {
        let small = self.first.segment_size();
        self.move_on(|table| {
            let (buckets, segment) = (table.geometry.buckets(), table.geometry.segment_size());
            let load: usize = table.buckets().iter().map(|bucket| bucket.load()).sum();
            let more = load.next_power_of_two().max(4 * buckets).min(Geometry::MOST_BUCKETS);
            if load > 2 * buckets && more > buckets {
                return Some(Geometry::new(more, segment));
            }
            // Few buckets have all: the segments have grown, and what is held now is small.
            (segment > small && holds_small_ranges(table, small)).then(|| Geometry::new(buckets, small))
        });
    }

    /// Moves to the table that `choose` wants, unless somebody else is about to move it.
    fn move_on(&self, choose: impl FnOnce(&Table) -> Option<Geometry>) {
        let gate = &self.table().gate;
        if gate.with(|gate| std::mem::replace(&mut gate.evidence.moving, true)) {
            return;
        }
        let table = self.table();
        // Made before all others are stopped.
        let next = choose(table).map(|next| table.next(next));
        let granted = gate.with(|gate| {
            gate.evidence.moving = false;
            match next {
                Some(next) if std::ptr::eq(table, self.table()) && gate.evidence.allow(table, &next) => {
                    self.move_to(gate, table, next)
                }
                _ => Vec::new(),
            }
        });
        wake_all(granted);
    }

    /// Carries everything over to another table, which is in use from then on. Returns those who were granted.
    fn move_to(&self, gate: &mut Gate, table: &Table, mut next: Box<Table>) -> Vec<Arc<Waiter>> {
        let lock =
            |bucket| -> Slots<'_> { super::bucket::Bucket::lock(bucket).expect("one moves at a time") };
        let mut old: Vec<Slots<'_>> = table.buckets().iter().map(lock).collect();
        old.iter_mut().for_each(Slots::revoke_bias);
        let waiters = take_waiters(gate, table, &mut old);

        for (claim, arrival, waiter) in gate.take_held(next.mark) {
            match next.geometry.is_wide(&claim) {
                true => gate.insert(claim, arrival, waiter),
                false => carry(gate, &next, &claim),
            }
        }
        for (at, slots) in (0..).zip(&old) {
            // Each once: a claim that is kept in two buckets, by the lower one.
            let here = |claim: &Claim| table.geometry.narrow(claim).is_some_and(|buckets| buckets.low == at);
            slots.held().filter(here).for_each(|claim| carry(gate, &next, &claim));
        }
        let mut granted = Vec::new();
        for waiter in waiters {
            waiter.stands_in(1);
            let join = || {
                waiter.joined_line();
                waiter.clone()
            };
            line_up(None, gate, &next, (waiter.claims(), waiter.arrival()), join);
            gate.belongs_to(&waiter);
            if waiter.left_line() {
                granted.push(waiter);
            }
        }
        // Relaxed: the gate's lock orders moves.
        next.follow(self.table.load(Ordering::Relaxed));
        self.table.store(Table::into_head(next), Ordering::Release);
        gate.announce(&self.flags);
        old.into_iter().for_each(Slots::retire);
        granted
    }
}

/// Takes all out of their lines, and what they have been entered for out of the buckets; in the order of arrival.
fn take_waiters(gate: &mut Gate, table: &Table, old: &mut [Slots<'_>]) -> Vec<Arc<Waiter>> {
    let mut waiters: Vec<_> = gate.line.take().collect();
    // Where they stand, by arrival.
    let mut stands = Vec::new();
    for (at, slots) in (0..).zip(old.iter_mut()) {
        for waiter in slots.take_line() {
            stands.push((waiter.arrival(), at));
            waiters.push(waiter);
        }
    }
    stands.sort_unstable();
    waiters.sort_unstable_by_key(|waiter| waiter.arrival());
    waiters.dedup_by_key(|waiter| waiter.arrival());
    for waiter in &waiters {
        for claim in waiter.claims() {
            let Some(buckets) = table.geometry.narrow(claim) else { continue };
            let both = [Some(buckets.low), (buckets.high != buckets.low).then_some(buckets.high)];
            for at in both.into_iter().flatten() {
                if stands.binary_search(&(waiter.arrival(), at)).is_err() {
                    let found = old[at as usize].remove(claim);
                    debug_assert!(found, "what does not stand in line is entered");
                }
            }
        }
    }
    waiters
}

/// Enters a held claim into a table that is not in use yet.
fn carry(gate: &mut Gate, next: &Table, claim: &Claim) {
    // Held, and so before all who wait.
    let Some(buckets) = next.geometry.narrow(claim) else { return gate.insert(*claim, 0, None) };
    let mut locked = LockedBuckets::none();
    next.lock_all([buckets], &mut locked).expect("it has just been made");
    locked.each().for_each(|(_, slots)| slots.insert(claim));
}

/// Whether most of what is held would fit into a small segment, or nearly.
fn holds_small_ranges(table: &Table, segment: u64) -> bool {
    let (mut small, mut all) = (0, 0);
    for bucket in table.buckets() {
        // Somebody else may have moved it by now.
        let Ok(slots) = bucket.lock() else { return false };
        for claim in slots.held() {
            all += 1;
            small += usize::from(claim.end - claim.start <= segment);
        }
    }
    small > all / 4 * 3
}

#[cfg(any(test, loom))]
impl RangeLock {
    /// Moves to a table of this geometry.
    #[doc(hidden)]
    pub fn reshape(&self, buckets: usize, segment_size: u64) {
        let table = self.table();
        let granted = table.gate.with(|gate| {
            let table = self.table();
            self.move_to(gate, table, table.next(Geometry::new(buckets, segment_size)))
        });
        wake_all(granted);
    }
}
