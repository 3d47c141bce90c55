//! The ways of a request that is not alone within one segment: into two buckets, to the gate, into line, and out
//! again.
//!
//! Invariants:
//! - who waits is entered everywhere at once, seen by all who come later: in each bucket of its narrow claims, where
//!   these are held or it stands in line, and at the gate. It is granted when it stands in no line any more;
//! - those who line up do so one after the other, under the gate's lock. Whoever waits does so for those who hold all
//!   that they want, or who lined up before it: no cycle, hence no deadlock among requests that block with nothing
//!   held;
//! - who does not wait enters all of its buckets, whose locks it has together, or none.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::Waker;

use crate::Mode;
use crate::claim::Claim;
use crate::sync::seq_cst;
use crate::waiter::{Waiter, Wake, wake_all};

use super::RangeLock;
use super::gate::{Flags, Gate};
use super::growth::Hint;
use super::table::{LockedBuckets, Table};

/// What to do if somebody has to be waited for.
#[derive(Clone, Copy)]
pub(super) enum Wait<'a> {
    No,
    Thread,
    Task(&'a Waker),
}

/// How it went at the gate.
pub(super) enum Outcome {
    Entered,
    Refused,
    Waits(Arc<Waiter>),
}

/// One who lines up. It becomes a waiter if it has to wait.
struct Joining<'a> {
    claims: &'a [Claim],
    arrival: u64,
    /// None once the waiter has it.
    wake: &'a mut Option<Wake>,
    waiter: Option<Arc<Waiter>>,
}

impl Joining<'_> {
    /// The waiter, which stands in one more line from now on.
    fn join(&mut self) -> Arc<Waiter> {
        let waiter = self.waiter.get_or_insert_with(|| {
            let wake = self.wake.take().unwrap_or_else(Wake::this_thread);
            // It stands in one line until it has looked everywhere.
            Waiter::new(self.claims.to_vec(), self.arrival, wake)
        });
        waiter.joined_line();
        waiter.clone()
    }
}

impl RangeLock {
    /// Enters all claims of a call, waiting where need be; returns the start of the hold.
    pub(super) fn enter<const N: usize>(&self, claims: &[Claim; N]) -> u64 {
        let exclusive = claims.iter().any(|claim| claim.mode == Mode::Exclusive);
        let mode = if exclusive { Mode::Exclusive } else { Mode::Shared };
        if self.try_enter_buckets(claims) {
            return self.meter.acquired(mode);
        }
        let began = self.meter.clock();
        match self.enter_at_gate(claims, Wait::Thread) {
            Outcome::Entered | Outcome::Refused => self.meter.acquired(mode),
            Outcome::Waits(waiter) => {
                waiter.wait();
                self.meter.acquired_after_wait(mode, began)
            }
        }
    }

    /// Enters all claims of a call if nobody has to be waited for.
    pub(super) fn try_enter<const N: usize>(&self, claims: &[Claim; N]) -> bool {
        self.try_enter_buckets(claims) || matches!(self.enter_at_gate(claims, Wait::No), Outcome::Entered)
    }

    /// Enters claims that are all narrow, unless somebody is in the way or the flags are up.
    #[inline]
    pub(super) fn try_enter_buckets<const N: usize>(&self, claims: &[Claim; N]) -> bool {
        let crowded = loop {
            let table = self.table();
            let Some(buckets) = table.narrow_all(claims) else { return false };
            let mut locked = LockedBuckets::none();
            if table.lock_all(buckets, &mut locked).is_err() {
                continue;
            }
            seq_cst();
            let mark = self.flags.mark();
            let stopped = claims.iter().any(|claim| !mark.lets_in(claim.mode, table.mark));
            if stopped || !locked.admit(table, claims) {
                return false;
            }
            break locked.insert(table, claims);
        };
        if crowded {
            self.look_at_load();
        }
        true
    }

    /// Enters claims of any width, with all who line up kept off meanwhile.
    #[cold]
    pub(super) fn enter_at_gate(&self, claims: &[Claim], wait: Wait<'_>) -> Outcome {
        // Wakers are cloned and dropped without any lock, as that runs foreign code.
        let mut wake = match wait {
            Wait::Task(waker) => Some(Wake::task(waker)),
            Wait::Thread | Wait::No => None,
        };
        let (outcome, hint) = self.table().gate.with(|gate| {
            // Only who has the gate moves the table.
            let table = self.table();
            let mut hint = gate.evidence.note(table.geometry, claims);
            let outcome = match wait {
                Wait::No => match self.try_enter_with(gate, table, claims) {
                    true => Outcome::Entered,
                    false => Outcome::Refused,
                },
                _ => self.enter_with(gate, table, claims, &mut wake, &mut hint),
            };
            (outcome, hint)
        });
        self.follow(hint);
        outcome
    }

    fn enter_with(
        &self,
        gate: &mut Gate,
        table: &Table,
        claims: &[Claim],
        wake: &mut Option<Wake>,
        hint: &mut Hint,
    ) -> Outcome {
        let mut joining = Joining { claims, arrival: gate.next_arrival(), wake, waiter: None };
        let crowded = line_up(Some(&self.flags), gate, table, (claims, joining.arrival), || joining.join());
        if crowded {
            hint.crowded();
        }
        joining.waiter.iter().for_each(|waiter| gate.belongs_to(waiter));
        match joining.waiter {
            Some(waiter) if !waiter.left_line() => Outcome::Waits(waiter),
            Some(waiter) => {
                // Its turn has come already. Its waker goes when the gate is let go.
                *joining.wake = waiter.take_waker().map(Wake::of);
                Outcome::Entered
            }
            None => Outcome::Entered,
        }
    }

    /// Enters a claim if nobody has to be waited for: neither held, nor entered by somebody who waits.
    fn try_enter_with(&self, gate: &mut Gate, table: &Table, claims: &[Claim]) -> bool {
        if gate.count_blockers(claims) > 0 {
            return false;
        }
        let [claim] = claims else { unreachable!("several ranges are waited for") };
        if let Some(buckets) = table.narrow_all(&[*claim]) {
            let mut locked = LockedBuckets::none();
            table.lock_all(buckets, &mut locked).expect("the table cannot move");
            return locked.admit(table, &[*claim]) && {
                locked.insert(table, &[*claim]);
                true
            };
        }
        let arrival = gate.next_arrival();
        gate.insert(*claim, arrival, None);
        gate.announce(&self.flags);
        let free = (0..).zip(table.buckets()).all(|(at, bucket)| {
            bucket.is_clear_for(claims)
                || bucket.lock().expect("the table cannot move").count_blockers(claims, table.geometry, at)
                    == 0
        });
        if !free {
            gate.remove_of(claim, arrival);
            gate.announce(&self.flags);
        }
        free
    }

    /// Takes out the claims of one call, which have no span of their own.
    pub(super) fn leave<const N: usize>(&self, claims: &[Claim; N]) {
        let mut granted = Vec::new();
        let found = loop {
            let table = self.table();
            let Some(buckets) = table.narrow_all(claims) else {
                break self.leave_at_gate(claims, &mut granted);
            };
            let mut locked = LockedBuckets::none();
            if table.lock_all(buckets, &mut locked).is_ok() {
                break locked.remove(table, claims, &mut granted);
            }
        };
        wake_all(granted);
        assert!(found, "the token is of another lock");
    }

    #[cold]
    fn leave_at_gate(&self, claims: &[Claim], granted: &mut Vec<Arc<Waiter>>) -> bool {
        self.table().gate.with(|gate| {
            let table = self.table();
            let wide = |claim: &&Claim| table.geometry.is_wide(claim);
            let mut found = claims.iter().filter(wide).all(|claim| gate.remove(claim));
            gate.announce(&self.flags);
            claims.iter().filter(wide).for_each(|claim| gate.count_off(claim, 0, granted));
            visit_buckets(table, claims, |at| {
                let mut slots = table.buckets()[at as usize].lock().expect("the table cannot move");
                for claim in claims.iter().filter(|claim| table.geometry.is_kept_at(claim, at)) {
                    found &= slots.remove(claim);
                    slots.count_off(claim, 0, (table.geometry, at), granted);
                }
            });
            found
        })
    }

    /// Takes out one who gave up, whether it waits still or was granted meanwhile.
    pub(super) fn cancel(&self, waiter: &Arc<Waiter>) {
        let mut granted = Vec::new();
        self.table().gate.with(|gate| {
            let table = self.table();
            let (claims, arrival, geometry) = (waiter.claims(), waiter.arrival(), table.geometry);
            gate.line.remove(waiter);
            let is_wide = claims.iter().any(|claim| geometry.is_wide(claim));
            if is_wide {
                let wide = |claim: &&Claim| geometry.is_wide(claim);
                let found = claims.iter().filter(wide).all(|claim| gate.remove_of(claim, arrival));
                debug_assert!(found, "a wide claim is at the gate");
                gate.announce(&self.flags);
                claims.iter().filter(wide).for_each(|claim| gate.count_off(claim, arrival, &mut granted));
            }
            for (at, bucket) in (0..).zip(table.buckets()) {
                let mut kept = claims.iter().filter(|claim| geometry.is_kept_at(claim, at)).peekable();
                // A wide request may stand in line anywhere.
                if kept.peek().is_none() && !(is_wide && bucket.may_have_line()) {
                    continue;
                }
                let mut slots = bucket.lock().expect("the table cannot move");
                let stood_here = slots.leave_line(waiter);
                for claim in kept {
                    let found = stood_here || slots.remove(claim);
                    debug_assert!(found, "what does not stand in line is entered");
                    slots.count_off(claim, arrival, (geometry, at), &mut granted);
                }
            }
        });
        wake_all(granted);
    }
}

/// Visits the buckets of the narrow ones among these claims, ascending, each once.
fn visit_buckets(table: &Table, claims: &[Claim], mut visit: impl FnMut(u32)) {
    let narrow = claims.iter().filter_map(|claim| table.geometry.narrow(claim));
    if claims.len() == 1 {
        for buckets in narrow {
            visit(buckets.low);
            if buckets.high != buckets.low {
                visit(buckets.high);
            }
        }
        return;
    }
    let all: BTreeSet<u32> = narrow.flat_map(|buckets| [buckets.low, buckets.high]).collect();
    all.into_iter().for_each(visit);
}

/// Enters claims wherever nobody is before them, and joins the line wherever somebody is. Says whether one of the lines
/// is so long that a larger table may help. The flags are set if they are given.
pub(super) fn line_up(
    flags: Option<&Flags>,
    gate: &mut Gate,
    table: &Table,
    (claims, arrival): (&[Claim], u64),
    mut join: impl FnMut() -> Arc<Waiter>,
) -> bool {
    let geometry = table.geometry;
    let blockers = gate.count_blockers(claims);
    let wide = claims.iter().filter(|claim| geometry.is_wide(claim));
    let is_wide = wide.map(|claim| gate.insert(*claim, arrival, None)).count() > 0;
    if let (true, Some(flags)) = (is_wide, flags) {
        gate.announce(flags);
    }
    if blockers > 0 {
        gate.line.push(join(), blockers);
    }
    let mut crowded = false;
    let mut visit = |at: u32| {
        let mut slots = table.buckets()[at as usize].lock().expect("the table cannot move");
        let blockers = slots.count_blockers(claims, geometry, at);
        if blockers > 0 {
            slots.line_up(join(), blockers);
        } else {
            claims
                .iter()
                .filter(|claim| geometry.is_kept_at(claim, at))
                .for_each(|claim| slots.insert(claim));
        }
        crowded |= slots.is_crowded();
    };
    if is_wide {
        for (at, bucket) in (0..).zip(table.buckets()) {
            let kept_here = claims.len() > 1 && claims.iter().any(|claim| geometry.is_kept_at(claim, at));
            if kept_here || !bucket.is_clear_for(claims) {
                visit(at);
            }
        }
    } else {
        visit_buckets(table, claims, visit);
    }
    crowded
}

impl<const N: usize> LockedBuckets<'_, N> {
    /// Whether these buckets admit all claims kept in them.
    #[inline]
    fn admit(&mut self, table: &Table, claims: &[Claim; N]) -> bool {
        self.each().all(|(at, slots)| {
            claims
                .iter()
                .filter(|claim| N == 1 || table.geometry.is_kept_at(claim, at))
                .all(|claim| slots.admits(claim))
        })
    }

    /// Enters all claims. Says whether one of the buckets is so full that a larger table may help.
    #[inline]
    fn insert(&mut self, table: &Table, claims: &[Claim; N]) -> bool {
        let mut crowded = false;
        for (at, slots) in self.each() {
            let kept = claims.iter().filter(|claim| N == 1 || table.geometry.is_kept_at(claim, at));
            kept.for_each(|claim| slots.insert(claim));
            crowded |= slots.is_crowded();
        }
        crowded
    }

    /// Takes all claims out; false if one was not there.
    #[inline]
    fn remove(&mut self, table: &Table, claims: &[Claim; N], granted: &mut Vec<Arc<Waiter>>) -> bool {
        let mut found = true;
        for (at, slots) in self.each() {
            for claim in claims.iter().filter(|claim| N == 1 || table.geometry.is_kept_at(claim, at)) {
                found &= slots.remove(claim);
                slots.count_off(claim, 0, (table.geometry, at), granted);
            }
        }
        found
    }
}
