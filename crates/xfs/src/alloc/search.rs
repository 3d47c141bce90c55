//! Finding a free extent: by size, near a block, or at a block.
//!
//! What is found is a [`Fit`]: a free extent as the trees have it, and the part of it to take. Parts that are busy,
//! misaligned or out of bounds are passed over. Nothing is changed here.

use super::busy::gaps;
use super::seam::{Order, SpaceStore};
use super::{Purpose, Request, Run};
use crate::error::{Error, Result};
use xfs_format::error::FormatError;
use xfs_format::types::{AgBlock, AgNumber};

/// Extents that are looked at to each side before nearness is given up for size.
const STEPS_ASIDE: u32 = 24;
/// Extents of a fitting size among which the nearest is chosen.
const STEPS_BY_SIZE: u32 = 16;

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
pub struct Search<'s, S: ?Sized> {
    pub store: &'s mut S,
    pub ag: AgNumber,
    pub request: Request,
    /// Whether busy blocks will do: those that this transaction did not free itself.
    pub take_busy: bool,
    /// Whether something was passed over for being busy.
    pub met_busy: bool,
}

impl<'s, S: SpaceStore + ?Sized> Search<'s, S> {
    /// A search for what `request` says.
    pub fn new(store: &'s mut S, ag: AgNumber, request: Request) -> Self {
        Self { store, ag, request, take_busy: false, met_busy: false }
    }

    /// The extent that fits best by its size: the smallest that is long enough, or else the longest.
    pub fn by_size(&mut self) -> Result<Found> {
        self.by_size_near(None)
    }

    /// The free blocks at `start`.
    pub fn exact(&mut self, start: AgBlock) -> Result<Found> {
        let Some(whole) = self.at_or_before(Order::Place, (start.0, 0))? else { return Ok(Found::Nothing) };
        let request = self.request;
        if !start.0.is_multiple_of(request.align) || start.0 < request.first || start.0 > request.last {
            return Ok(Found::Nothing);
        }
        let Some(rest) = Run::between(start.0.into(), whole.end()) else { return Ok(Found::Nothing) };
        let usable = self.usable(rest).into_iter().next().filter(|gap| gap.start == start);
        let fit = usable.and_then(|gap| self.cut(whole, gap, start.0));
        Ok(self.result(fit))
    }

    /// The nearest extent that is long enough among those around `target`, or else by size.
    pub fn near(&mut self, target: AgBlock) -> Result<Found> {
        let mut left = self.at_or_before(Order::Place, (target.0, 0))?;
        let mut right = match target.0.checked_add(1) {
            Some(next) => self.at_or_after(Order::Place, (next, 0))?,
            None => None,
        };
        let mut best: Option<Fit> = None;
        for _ in 0..STEPS_ASIDE {
            for whole in [left, right].into_iter().flatten() {
                let fit = self.fit_near(whole, Some(target));
                let fit = fit.filter(|fit| fit.part.len >= self.request.max);
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

    /// By size; among the first extents that are long enough, the nearest to `target` if there is one.
    fn by_size_near(&mut self, target: Option<AgBlock>) -> Result<Found> {
        let request = self.request;
        let mut best: Option<Fit> = None;
        let mut steps = 0;
        let mut next = self.at_or_after(Order::Size, (request.max, 0))?;
        while let Some(whole) = next {
            let fit = self.fit_near(whole, target);
            if fit.is_some_and(|fit| fit.part.len >= request.max) {
                let Some(target) = target else { return Ok(self.result(fit)) };
                best = nearer(best, fit, target);
                steps += 1;
                if steps == STEPS_BY_SIZE {
                    break;
                }
            }
            let Some(behind) = whole.start.0.checked_add(1) else { break };
            next = self.at_or_after(Order::Size, (whole.len, behind))?;
        }
        if best.is_some() {
            return Ok(self.result(best));
        }
        // None is long enough: the most that any gives. Longer ones than `max` may give less, for their busy parts.
        let mut next = self.at_or_before(Order::Size, (u32::MAX, u32::MAX))?;
        while let Some(whole) = next {
            if whole.len < request.min || best.is_some_and(|best| best.part.len >= whole.len) {
                break;
            }
            let fit = self.fit_near(whole, target);
            if let Some(fit) = fit
                && best.is_none_or(|best| best.part.len < fit.part.len)
            {
                best = Some(fit);
            }
            let rank = match whole.start.0.checked_sub(1) {
                Some(before) => (whole.len, before),
                None => (whole.len.saturating_sub(1), u32::MAX),
            };
            next = self.at_or_before(Order::Size, rank)?;
        }
        Ok(self.result(best))
    }

    fn result(&self, fit: Option<Fit>) -> Found {
        match fit {
            Some(fit) => Found::Fit(fit),
            None if self.met_busy => Found::Busy,
            None => Found::Nothing,
        }
    }

    /// The best part of a free extent: the longest that any gap between its busy parts gives (up to `max`), and the
    /// nearest to `target` of equally long ones.
    fn fit_near(&mut self, whole: Run, target: Option<AgBlock>) -> Option<Fit> {
        if whole.len < self.request.min {
            return None;
        }
        let mut best: Option<Fit> = None;
        for gap in self.usable(whole) {
            let start = self.start_in(gap, target)?;
            let Some(fit) = self.cut(whole, gap, start) else { continue };
            let longer = best.is_none_or(|best| best.part.len < fit.part.len);
            if longer {
                best = Some(fit);
            } else if let Some(target) = target
                && best.is_some_and(|best| best.part.len == fit.part.len)
            {
                best = nearer(best, Some(fit), target);
            }
        }
        best
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

    /// The parts of a free extent that may be had now.
    fn usable(&mut self, run: Run) -> Vec<Run> {
        let mut busy = self.store.busy_in(self.ag, run);
        if self.take_busy && !busy.is_empty() {
            // Only what this transaction freed itself stays out of reach. Singly: what fills the ring is short.
            let (store, ag) = (&*self.store, self.ag);
            let own = |part: &Run| {
                (u64::from(part.start.0)..part.end())
                    .filter_map(|block| u32::try_from(block).ok())
                    .filter(|&block| store.freed_here(ag, block))
                    .map(|block| Run::new(block, 1))
                    .collect::<Vec<_>>()
            };
            busy = busy.iter().flat_map(own).collect();
        }
        if busy.is_empty() {
            return vec![run];
        }
        self.met_busy = true;
        gaps(run, &busy)
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
