//! Those who wait at one place, in the order in which they came.
//!
//! Invariants:
//! - entries are in the order of arrival;
//! - each counts its *blockers*: the conflicting claims that were kept at this place, held or waited for, when it
//!   came. A claim that goes is counted off by all who counted it. So a claim that goes looks at each entry once;
//! - an entry without blockers is no longer in the line.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::Mode;
use crate::claim::Claim;
use crate::waiter::Waiter;

use super::geometry::Geometry;

#[derive(Debug, Default)]
pub(super) struct Line(VecDeque<Entry>);

/// A long line is looked through without a look at its waiters, unless they want several ranges.
#[derive(Debug)]
struct Entry {
    /// The waiter's only claim, or a range around all of them in the mode of any that is exclusive.
    around: Claim,
    arrival: u64,
    waiter: Arc<Waiter>,
    blockers: u32,
    has_several: bool,
}

impl Entry {
    fn new(waiter: Arc<Waiter>, blockers: u32) -> Self {
        let claims = waiter.claims();
        let around = claims.iter().copied().reduce(|one, other| Claim {
            start: one.start.min(other.start),
            end: one.end.max(other.end),
            mode: if one.mode == Mode::Exclusive { one.mode } else { other.mode },
        });
        let around = around.expect("a request wants something");
        Entry { around, arrival: waiter.arrival(), blockers, has_several: claims.len() > 1, waiter }
    }

    #[inline]
    fn conflicts(&self, claim: &Claim) -> bool {
        self.around.conflicts(claim) && (!self.has_several || self.waiter.conflicts(claim))
    }

    /// How many of its claims are kept in a bucket, in whose line it stands, and conflict with one of these.
    #[cold]
    fn count_kept_of_several(&self, claims: &[Claim], geometry: Geometry, at: u32) -> usize {
        let blocks = |mine: &&Claim| claims.iter().any(|claim| claim.conflicts(mine));
        self.waiter.claims().iter().filter(|mine| geometry.is_kept_at(mine, at)).filter(blocks).count()
    }
}

impl Line {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push(&mut self, waiter: Arc<Waiter>, blockers: u32) {
        debug_assert!(blockers > 0);
        debug_assert!(self.0.back().is_none_or(|last| last.arrival < waiter.arrival()));
        self.0.push_back(Entry::new(waiter, blockers));
    }

    pub(super) fn conflicts(&self, claim: &Claim) -> bool {
        self.0.iter().any(|entry| entry.conflicts(claim))
    }

    /// How many claims that conflict with one of these are kept in a bucket, whose line this is, by those who stand
    /// in it.
    pub(super) fn count_kept(&self, claims: &[Claim], geometry: Geometry, at: u32) -> usize {
        self.0
            .iter()
            .filter(|entry| claims.iter().any(|claim| claim.conflicts(&entry.around)))
            .map(|entry| match entry.has_several {
                true => entry.count_kept_of_several(claims, geometry, at),
                // If it is narrow, it stands in no other lines than those of its buckets.
                false => usize::from(!geometry.is_wide(&entry.around)),
            })
            .sum()
    }

    /// Takes out one who gave up; false if it is not in this line.
    pub(super) fn remove(&mut self, waiter: &Arc<Waiter>) -> bool {
        let place = self.0.iter().position(|entry| Arc::ptr_eq(&entry.waiter, waiter));
        place.and_then(|place| self.0.remove(place)).is_some()
    }

    /// Counts off a claim that is gone, for those who arrived later than `arrival`. Returns those who have no blocker
    /// left, out of the line.
    pub(super) fn count_off(&mut self, claim: &Claim, arrival: u64) -> Vec<Arc<Waiter>> {
        let mut cleared = Vec::new();
        for entry in &mut self.0 {
            if entry.arrival > arrival && entry.conflicts(claim) {
                entry.blockers -= 1;
                if entry.blockers == 0 {
                    cleared.push(entry.waiter.clone());
                }
            }
        }
        match cleared.as_slice() {
            [] => {}
            // The usual one: nobody moves up but those before it.
            [only] => {
                self.remove(only);
            }
            _ => self.0.retain(|entry| entry.blockers > 0),
        }
        cleared
    }

    /// Takes out all.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Arc<Waiter>> + use<> {
        std::mem::take(&mut self.0).into_iter().map(|entry| entry.waiter)
    }
}
