//! One bucket: the claims held within its segments, and who waits for one of them.
//!
//! Invariants:
//! - claims held here by different requests do not conflict;
//! - a bucket lies in cache lines of its own (two, as processors fetch them in pairs), and the first claim
//!   and the lock word share the first one;
//! - only claims beyond [`INLINE`] and waiters need memory of their own, which is then kept, so the steady
//!   state allocates nothing;
//! - a claim is entered only if it conflicts with none held and none waiting: first come, first served.

use std::sync::Arc;

use crate::Mode;
use crate::claim::Claim;
use crate::spin::Spin;
use crate::waiter::{WaitQueue, Waiter};

/// Claims that fit into the bucket's own lines.
const INLINE: usize = 4;

#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Bucket(Spin<Slots>);

const _: () = assert!(cfg!(loom) || size_of::<Bucket>() == 128);

#[derive(Debug)]
#[repr(C)]
struct Slots {
    len: usize,
    cold: Option<Box<Cold>>,
    inline: [Claim; INLINE],
}

#[derive(Debug, Default)]
struct Cold {
    overflow: Vec<Claim>,
    waiters: WaitQueue,
}

impl Bucket {
    pub(super) fn new() -> Self {
        let unused = Claim { start: 0, end: 0, mode: Mode::Shared };
        Bucket(Spin::new(Slots { len: 0, cold: None, inline: [unused; INLINE] }))
    }

    /// Enters one claim, if it conflicts with nobody.
    #[inline(always)]
    pub(super) fn try_enter(&self, claim: &Claim) -> bool {
        self.0.with(|slots| {
            let free = slots.admits(claim);
            if free {
                slots.insert(claim);
            }
            free
        })
    }

    /// Enters all of a request's claims that touch this bucket, or none.
    pub(super) fn try_enter_all<'c>(&self, claims: impl Iterator<Item = &'c Claim> + Clone) -> bool {
        self.0.with(|slots| slots.try_enter_all(claims))
    }

    /// As [`try_enter_all`](Self::try_enter_all), but leaves the waiter in the queue if it has to wait.
    pub(super) fn enter_or_queue(&self, waiter: &Arc<Waiter>) -> bool {
        self.0.with(|slots| {
            let entered = slots.try_enter_all(waiter.claims().iter());
            if !entered {
                slots.cold_mut().waiters.push(waiter.clone());
            }
            entered
        })
    }

    /// Takes a claim out; hands over those who may go now, granted but not woken.
    #[inline(always)]
    pub(super) fn leave(&self, claim: &Claim) -> Left {
        self.0.with(|slots| {
            let found = slots.remove(claim);
            Left { found, granted: slots.grant() }
        })
    }

    /// Takes out a waiter that gave up, or its claims if it was granted meanwhile.
    pub(super) fn cancel(&self, waiter: &Arc<Waiter>) -> Left {
        self.0.with(|slots| {
            let queued = slots.cold.as_mut().is_some_and(|cold| cold.waiters.remove(waiter));
            let found = queued || waiter.claims().iter().all(|claim| slots.remove(claim));
            Left { found, granted: slots.grant() }
        })
    }
}

/// What was left behind.
pub(super) struct Left {
    /// Whether what was to be taken out was there.
    pub(super) found: bool,
    /// Those who were granted and have to be woken.
    pub(super) granted: Vec<Arc<Waiter>>,
}

impl Slots {
    /// Whether the claim conflicts with none held.
    #[inline(always)]
    fn fits(&self, claim: &Claim) -> bool {
        let inline = &self.inline[..self.len.min(INLINE)];
        !inline.iter().any(|held| held.conflicts(claim))
            && self.cold.as_ref().is_none_or(|cold| !cold.overflow.iter().any(|held| held.conflicts(claim)))
    }

    /// Whether the claim conflicts with none held and none waiting.
    #[inline(always)]
    fn admits(&self, claim: &Claim) -> bool {
        self.fits(claim) && self.cold.as_ref().is_none_or(|cold| !cold.waiters.conflicts(claim))
    }

    fn try_enter_all<'c>(&mut self, claims: impl Iterator<Item = &'c Claim> + Clone) -> bool {
        let free = claims.clone().all(|claim| self.admits(claim));
        if free {
            claims.for_each(|claim| self.insert(claim));
        }
        free
    }

    #[inline(always)]
    fn insert(&mut self, claim: &Claim) {
        if let Some(slot) = self.inline.get_mut(self.len) {
            *slot = *claim;
            self.len += 1;
        } else {
            self.cold_mut().overflow.push(*claim);
        }
    }

    /// Takes out one claim equal to this; equal claims are shared and stand for each other.
    #[inline(always)]
    fn remove(&mut self, claim: &Claim) -> bool {
        let len = self.len.min(INLINE);
        match self.inline[..len].iter().position(|held| held == claim) {
            Some(place) => {
                self.inline[place] = self.inline[len - 1];
                self.len = len - 1;
                if let Some(cold) = &mut self.cold
                    && let Some(last) = cold.overflow.pop()
                {
                    self.insert(&last);
                }
                true
            }
            None => self.remove_overflow(claim),
        }
    }

    fn remove_overflow(&mut self, claim: &Claim) -> bool {
        let Some(cold) = &mut self.cold else { return false };
        let place = cold.overflow.iter().position(|held| held == claim);
        place.map(|place| cold.overflow.swap_remove(place)).is_some()
    }

    #[inline(always)]
    fn grant(&mut self) -> Vec<Arc<Waiter>> {
        match &self.cold {
            Some(cold) if !cold.waiters.is_empty() => self.grant_waiters(),
            _ => Vec::new(),
        }
    }

    #[cold]
    fn grant_waiters(&mut self) -> Vec<Arc<Waiter>> {
        let mut granted = Vec::new();
        let mut queue = std::mem::take(&mut self.cold_mut().waiters);
        let mut from = 0;
        while let Some(waiter) =
            queue.next_grantable(&mut from, |claims| claims.iter().all(|claim| self.fits(claim)))
        {
            for claim in waiter.claims() {
                self.insert(claim);
            }
            waiter.grant();
            granted.push(waiter);
        }
        self.cold_mut().waiters = queue;
        granted
    }

    #[cold]
    fn cold_mut(&mut self) -> &mut Cold {
        self.cold.get_or_insert_default()
    }
}
