//! Finding a free extent: by size, near a block, or at a block.
//!
//! What is found is a [`Fit`]: a free extent as the trees have it, and the part of it to take. Parts that are busy,
//! misaligned or out of bounds are passed over. Nothing is changed here.
//!
//! Busy parts may be tens of thousands, in one free extent or in as many short ones: a file that was removed leaves
//! them. So they are asked for one by one, and a walk that has met [`PATIENCE`] of them is content with what it has.
//! All are looked at only where otherwise nothing would be found.

use super::seam::{Freed, Order, SpaceStore};
use super::{Purpose, Request, Run};
use crate::error::{Error, Result};
use std::cmp::Ordering;
use xfs_format::error::FormatError;
use xfs_format::types::{AgBlock, AgNumber};

/// Extents that are looked at to each side before nearness is given up for size.
const STEPS_ASIDE: u32 = 24;
/// Extents of a fitting size among which the nearest is chosen.
const STEPS_BY_SIZE: u32 = 16;

/// Busy parts that a walk meets before it takes the best that it has seen.
const PATIENCE: u32 = 64;

/// Where gaps of a free extent are looked for.
#[derive(Clone, Copy)]
struct Bounds {
    low: u64,
    end: u64,
}

/// A free extent, and the part of it to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// As the trees have it.
    pub whole: Run,
    /// What to take.
    pub part: Run,
}

/// What a search gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// An extent of at least the length that must be.
    Fit(Fit),
    /// Nothing.
    Nothing,
    /// Nothing yet: there are extents that are busy.
    Busy,
}

/// One search in one group.
#[derive(Debug)]
pub struct Search<'s, S: ?Sized> {
    store: &'s mut S,
    ag: AgNumber,
    request: Request,
    /// Whose blocks stay out of reach.
    avoid: Freed,
    /// Whether something was passed over for being busy.
    met_busy: bool,
    /// How often the present walk may still meet something busy.
    patience: u32,
}

impl<'s, S: SpaceStore + ?Sized> Search<'s, S> {
    /// A search for what `request` says, among what is not busy.
    pub fn new(store: &'s mut S, ag: AgNumber, request: Request) -> Self {
        Self { store, ag, request, avoid: Freed::ByAnybody, met_busy: false, patience: PATIENCE }
    }

    /// The same, where busy blocks will do: those that this transaction did not free itself.
    pub fn taking_busy(self) -> Self {
        Self { avoid: Freed::Here, ..self }
    }

    /// The extent that fits best by its size: the smallest that is long enough, or else the longest.
    pub fn by_size(&mut self) -> Result<Found> {
        self.by_size_near(None)
    }

    /// As [`by_size`](Self::by_size), but gives up soon where most is busy.
    pub fn by_size_soon(&mut self) -> Result<Found> {
        let fit = self.pass_by_size(None, PATIENCE)?;
        Ok(self.result(fit))
    }

    /// The free blocks at `start`.
    pub fn exact(&mut self, start: AgBlock) -> Result<Found> {
        let Some(whole) = self.at_or_before(Order::Place, (start.0, 0))? else { return Ok(Found::Nothing) };
        let request = self.request;
        if !start.0.is_multiple_of(request.align) || start.0 < request.first || start.0 > request.last {
            return Ok(Found::Nothing);
        }
        let Some(rest) = Run::between(start.0.into(), whole.end()) else { return Ok(Found::Nothing) };
        let busy = self.busy_behind(start.0.into(), rest.end());
        let end = busy.map_or(rest.end(), |busy| busy.start.0.into());
        let fit = Run::between(start.0.into(), end).and_then(|gap| self.cut(whole, gap, start.0));
        Ok(self.result(fit))
    }

    /// The nearest extent that is long enough among those around `target`, or else by size.
    pub fn near(&mut self, target: AgBlock) -> Result<Found> {
        self.patience = PATIENCE;
        let mut left = self.at_or_before(Order::Place, (target.0, 0))?;
        let mut right = match target.0.checked_add(1) {
            Some(next) => self.at_or_after(Order::Place, (next, 0))?,
            None => None,
        };
        let mut best: Option<Fit> = None;
        for _ in 0..STEPS_ASIDE {
            for whole in [left, right].into_iter().flatten() {
                let fit = self.fit_near(whole, Some(target)).filter(|fit| self.is_full(fit));
                best = nearer(best, fit, target);
            }
            if let Some(best) = best {
                return Ok(Found::Fit(best));
            }
            left = match left.and_then(|run| run.start.0.checked_sub(1)) {
                Some(before) => self.at_or_before(Order::Place, (before, 0))?,
                None => None,
            };
            right = match right.and_then(|run| u32::try_from(run.end()).ok()) {
                Some(behind) => self.at_or_after(Order::Place, (behind, 0))?,
                None => None,
            };
            if left.is_none() && right.is_none() {
                break;
            }
        }
        self.by_size_near(Some(target))
    }

    /// By size; among the first extents that are long enough, the nearest to `target` if there is one. Everything is
    /// looked at only if nothing was found soon.
    fn by_size_near(&mut self, target: Option<AgBlock>) -> Result<Found> {
        let mut fit = self.pass_by_size(target, PATIENCE)?;
        if fit.is_none() && self.met_busy {
            fit = self.pass_by_size(target, u32::MAX)?;
        }
        Ok(self.result(fit))
    }

    fn pass_by_size(&mut self, target: Option<AgBlock>, patience: u32) -> Result<Option<Fit>> {
        self.patience = patience;
        let fit = self.shortest(target)?;
        if fit.is_some() {
            return Ok(fit);
        }
        self.patience = patience;
        self.longest(target)
    }

    /// What is long enough, from the shortest extents on.
    fn shortest(&mut self, target: Option<AgBlock>) -> Result<Option<Fit>> {
        let mut best: Option<Fit> = None;
        let mut steps = 0;
        let mut next = self.at_or_after(Order::Size, (self.request.max, 0))?;
        while let Some(whole) = next {
            let fit = self.fit_near(whole, target).filter(|fit| self.is_full(fit));
            if fit.is_some() {
                let Some(target) = target else { return Ok(fit) };
                best = nearer(best, fit, target);
                steps += 1;
            }
            if steps == STEPS_BY_SIZE || self.patience == 0 {
                break;
            }
            let Some(behind) = whole.start.0.checked_add(1) else { break };
            next = self.at_or_after(Order::Size, (whole.len, behind))?;
        }
        Ok(best)
    }

    /// The most that any extent gives, from the longest on. Long ones may give less than shorter ones, for their busy
    /// parts.
    fn longest(&mut self, target: Option<AgBlock>) -> Result<Option<Fit>> {
        let mut best: Option<Fit> = None;
        let mut next = self.at_or_before(Order::Size, (u32::MAX, u32::MAX))?;
        while let Some(whole) = next {
            if whole.len < self.request.min || best.is_some_and(|best| best.part.len >= whole.len) {
                break;
            }
            let fit = self.fit_near(whole, target);
            if let Some(fit) = fit
                && best.is_none_or(|best| best.part.len < fit.part.len)
            {
                best = Some(fit);
            }
            if self.patience == 0 || best.is_some_and(|best| self.is_full(&best)) {
                break;
            }
            let rank = match whole.start.0.checked_sub(1) {
                Some(before) => (whole.len, before),
                None => (whole.len.saturating_sub(1), u32::MAX),
            };
            next = self.at_or_before(Order::Size, rank)?;
        }
        Ok(best)
    }

    fn result(&self, fit: Option<Fit>) -> Found {
        match fit {
            Some(fit) => Found::Fit(fit),
            None if self.met_busy => Found::Busy,
            None => Found::Nothing,
        }
    }

    /// Whether a fit is as long as any could be.
    fn is_full(&self, fit: &Fit) -> bool {
        fit.part.len >= trim(self.request.max, self.request).unwrap_or(self.request.max)
    }

    /// The best part of a free extent: the longest that any gap between its busy parts gives (up to `max`), and the
    /// nearest to `target` of equally long ones. Gaps are looked at from the target outwards, until none can be better
    /// or patience ends.
    fn fit_near(&mut self, whole: Run, target: Option<AgBlock>) -> Option<Fit> {
        if whole.len < self.request.min {
            return None;
        }
        let bounds = Bounds { low: whole.start.0.max(self.request.first).into(), end: whole.end() };
        if bounds.low >= bounds.end {
            return None;
        }
        let from = target.map_or(bounds.low, |target| u64::from(target.0).clamp(bounds.low, bounds.end - 1));
        // The busy part at `from`, or in front of the gap there, parts the two sides.
        let parting = self.busy_before(from + 1, bounds.low);
        let mut right = Some(parting.map_or(bounds.low, Run::end));
        let mut left = parting.map(|parting| u64::from(parting.start.0));
        let mut best: Option<Fit> = None;
        while left.is_some() || right.is_some() {
            right = right.filter(|&at| self.may_be_better(best, at, target));
            if let Some(at) = right {
                let (gap, rest) = self.gap_behind(at, bounds);
                best = self.better(best, gap.and_then(|gap| self.fit_gap(whole, gap, target)), target);
                right = rest;
            }
            left = left.filter(|&end| self.may_be_better(best, end, target));
            if let Some(end) = left {
                let (gap, rest) = self.gap_before(end, bounds);
                best = self.better(best, gap.and_then(|gap| self.fit_gap(whole, gap, target)), target);
                left = rest;
            }
            if self.patience == 0 {
                break;
            }
        }
        best
    }

    /// Whether a gap that begins or ends at `place`, or farther from the target, can be better than what was found.
    fn may_be_better(&self, best: Option<Fit>, place: u64, target: Option<AgBlock>) -> bool {
        let Some(best) = best.filter(|best| self.is_full(best)) else { return true };
        target.is_some_and(|target| {
            place.abs_diff(target.0.into()) < best.part.start.0.abs_diff(target.0).into()
        })
    }

    /// The longer of two, or the nearer to the target of equally long ones.
    fn better(&self, best: Option<Fit>, fit: Option<Fit>, target: Option<AgBlock>) -> Option<Fit> {
        let (Some(old), Some(new)) = (best, fit) else { return best.or(fit) };
        match (new.part.len.cmp(&old.part.len), target) {
            (Ordering::Greater, _) => fit,
            (Ordering::Equal, Some(target)) => nearer(best, fit, target),
            _ => best,
        }
    }

    /// The first gap at or behind `at`, if the busy part that was met leaves one, and where to go on.
    fn gap_behind(&mut self, at: u64, bounds: Bounds) -> (Option<Run>, Option<u64>) {
        if at >= bounds.end || at > self.request.last.into() {
            return (None, None);
        }
        match self.busy_behind(at, bounds.end) {
            Some(busy) => (Run::between(at, busy.start.0.into()), Some(busy.end())),
            None => (Run::between(at, bounds.end), None),
        }
    }

    /// The last gap before `end`, likewise.
    fn gap_before(&mut self, end: u64, bounds: Bounds) -> (Option<Run>, Option<u64>) {
        if end <= bounds.low {
            return (None, None);
        }
        match self.busy_before(end, bounds.low) {
            Some(busy) => (Run::between(busy.end(), end), Some(busy.start.0.into())),
            None => (Run::between(bounds.low, end), None),
        }
    }

    /// The first busy part that ends behind `at` and begins before `end`.
    fn busy_behind(&mut self, at: u64, end: u64) -> Option<Run> {
        let busy = self.store.busy_behind(self.ag, u32::try_from(at).ok()?, self.avoid);
        let busy = busy.filter(|busy| u64::from(busy.start.0) < end);
        self.note(busy)
    }

    /// The last busy part that begins before `end` and ends behind `low`.
    fn busy_before(&mut self, end: u64, low: u64) -> Option<Run> {
        let busy = self.store.busy_before(self.ag, end, self.avoid).filter(|busy| busy.end() > low);
        self.note(busy)
    }

    fn note(&mut self, busy: Option<Run>) -> Option<Run> {
        if busy.is_some() {
            self.met_busy = true;
            self.patience = self.patience.saturating_sub(1);
        }
        busy
    }

    /// What a gap gives.
    fn fit_gap(&self, whole: Run, gap: Run, target: Option<AgBlock>) -> Option<Fit> {
        self.cut(whole, gap, self.start_in(gap, target)?)
    }

    /// Where in a gap to begin, before alignment upwards.
    fn start_in(&self, gap: Run, target: Option<AgBlock>) -> Option<u32> {
        let request = self.request;
        let lowest = gap.start.0.max(request.first);
        let Some(target) = target else { return Some(lowest) };
        if target.0 <= lowest {
            return Some(lowest);
        }
        let last = gap.end().saturating_sub(request.max.into());
        let latest = u32::try_from(last).ok()?.min(request.last);
        let latest = latest - latest % request.align;
        if latest < lowest {
            return Some(lowest);
        }
        if target.0 <= latest {
            let aligned = target.0.next_multiple_of(request.align).min(latest);
            return Some(aligned);
        }
        // Behind the gap: file content begins in front, where it can grow; all else lies as near as it can.
        Some(if request.purpose == Purpose::Data && u64::from(target.0) >= gap.end() {
            lowest
        } else {
            latest
        })
    }

    /// What to take of a gap, from `start` on.
    fn cut(&self, whole: Run, gap: Run, start: u32) -> Option<Fit> {
        let request = self.request;
        let start = start.max(request.first).checked_next_multiple_of(request.align)?;
        if start > request.last {
            return None;
        }
        let rest = Run::between(start.into(), gap.end())?;
        let len = trim(rest.len.min(request.max), request)?;
        Some(Fit { whole, part: Run::new(start, len) })
    }

    fn at_or_before(&mut self, order: Order, rank: (u32, u32)) -> Result<Option<Run>> {
        let run = self.store.at_or_before(self.ag, order, rank)?;
        self.check(order, run, |found| found <= rank)
    }

    fn at_or_after(&mut self, order: Order, rank: (u32, u32)) -> Result<Option<Run>> {
        let run = self.store.at_or_after(self.ag, order, rank)?;
        self.check(order, run, |found| found >= rank)
    }

    /// What a tree gives must lie in the group and on the side that was asked for, which also bounds every walk.
    fn check(
        &self,
        order: Order,
        run: Option<Run>,
        side: impl Fn((u32, u32)) -> bool,
    ) -> Result<Option<Run>> {
        let Some(found) = run else { return Ok(None) };
        let blocks = self.store.geometry().ag_blocks_of(self.ag);
        if found.len == 0 || found.start.0 == 0 || found.end() > blocks.into() || !side(order.rank(found)) {
            let name = if order == Order::Place { "bnobt block" } else { "cntbt block" };
            let problem = FormatError::mismatch(name, "free extent", found.start.0.into(), blocks.into());
            let daddr = self.store.geometry().daddr_of(self.ag, AgBlock(0));
            return Err(Error::corrupt_block(daddr, None, problem));
        }
        Ok(run)
    }
}

/// A length as the request wants it, if that leaves enough.
fn trim(len: u32, request: Request) -> Option<u32> {
    let whole = if request.multiple > 1 { len - len % request.multiple } else { len };
    let len = if whole >= request.min { whole } else { len };
    (len >= request.min && len > 0).then_some(len)
}

/// The one of two that lies nearer to `target`.
fn nearer(a: Option<Fit>, b: Option<Fit>, target: AgBlock) -> Option<Fit> {
    match (a, b) {
        (Some(first), Some(second)) => {
            let distance = |fit: Fit| fit.part.start.0.abs_diff(target.0);
            Some(if distance(second) < distance(first) { second } else { first })
        }
        (one, other) => one.or(other),
    }
}
