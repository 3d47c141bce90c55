//! Finding a free extent: by size, near a block, or at a block.
//!
//! The result is a [`Fit`]: a free extent as the trees have it, and the part of it to take. Parts that are busy,
//! misaligned or out of bounds are skipped. Nothing is changed here.
//!
//! There may be tens of thousands of busy parts, in one free extent or in as many short ones: a removed file leaves
//! them. So they are looked up one by one, and a walk that has met [`PATIENCE`] of them takes the best that it has
//! found. All of them are looked at only if nothing would be found otherwise.

use super::seam::{FreeTree, Freed, SpaceStore};
use super::{AgExtent, Purpose, Request};
use crate::error::{Error, Result};
use std::cmp::Ordering;
use xfs_format::error::FormatError;
use xfs_format::types::{AgBlock, AgNumber};

/// Extents that are checked on each side before size takes precedence over nearness.
const STEPS_ASIDE: u32 = 24;
/// Extents of a fitting size among which the nearest is chosen.
const STEPS_BY_SIZE: u32 = 16;

/// Busy parts that a walk meets before it takes the best that it has found.
const PATIENCE: u32 = 64;

/// Where to look for gaps in a free extent.
#[derive(Clone, Copy)]
struct Bounds {
    low: u64,
    end: u64,
}

/// A free extent, and the part of it to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// As the trees have it.
    pub whole: AgExtent,
    /// What to take.
    pub part: AgExtent,
}

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchResult {
    /// An extent with at least the required length.
    Fit(Fit),
    /// Nothing.
    Nothing,
    /// Nothing now, but busy extents were passed over.
    Busy,
}

/// One search in one group.
#[derive(Debug)]
pub struct Search<'s, S: ?Sized> {
    store: &'s mut S,
    ag: AgNumber,
    request: Request,
    /// Which busy blocks to avoid.
    avoid: Freed,
    /// Whether something was skipped because it is busy.
    met_busy: bool,
    /// How many busy parts the present walk may still meet.
    patience: u32,
}

impl<'s, S: SpaceStore + ?Sized> Search<'s, S> {
    /// A search for `request` among what is not busy.
    pub fn new(store: &'s mut S, ag: AgNumber, request: Request) -> Self {
        Self { store, ag, request, avoid: Freed::ByAnybody, met_busy: false, patience: PATIENCE }
    }

    /// The same, but it accepts busy blocks that this transaction did not free itself.
    pub fn taking_busy(self) -> Self {
        Self { avoid: Freed::Here, ..self }
    }

    /// The extent with the best size: the smallest that is long enough, otherwise the longest.
    pub fn by_size(&mut self) -> Result<SearchResult> {
        self.by_size_near(None)
    }

    /// Like [`by_size`](Self::by_size), but gives up soon if most extents are busy.
    pub fn by_size_soon(&mut self) -> Result<SearchResult> {
        let fit = self.pass_by_size(None, PATIENCE)?;
        Ok(self.result(fit))
    }

    /// The free blocks at `start`.
    pub fn exact(&mut self, start: AgBlock) -> Result<SearchResult> {
        let Some(whole) = self.at_or_before(FreeTree::Bnobt, (start.0, 0))? else {
            return Ok(SearchResult::Nothing);
        };
        let request = self.request;
        if !start.0.is_multiple_of(request.align) || start.0 < request.first || start.0 > request.last {
            return Ok(SearchResult::Nothing);
        }
        let Some(rest) = AgExtent::between(start.0.into(), whole.end()) else {
            return Ok(SearchResult::Nothing);
        };
        let busy = self.busy_behind(start.0.into(), rest.end());
        let end = busy.map_or(rest.end(), |busy| busy.start.0.into());
        let fit = AgExtent::between(start.0.into(), end).and_then(|gap| self.cut(whole, gap, start.0));
        Ok(self.result(fit))
    }

    /// The nearest of the extents around `target` that are long enough, otherwise one by size.
    pub fn near(&mut self, target: AgBlock) -> Result<SearchResult> {
        self.patience = PATIENCE;
        let mut left = self.at_or_before(FreeTree::Bnobt, (target.0, 0))?;
        let mut right = match target.0.checked_add(1) {
            Some(next) => self.at_or_after(FreeTree::Bnobt, (next, 0))?,
            None => None,
        };
        let mut best: Option<Fit> = None;
        for _ in 0..STEPS_ASIDE {
            for whole in [left, right].into_iter().flatten() {
                let fit = self.fit_near(whole, Some(target)).filter(|fit| self.is_full(fit));
                best = nearer(best, fit, target);
            }
            if let Some(best) = best {
                return Ok(SearchResult::Fit(best));
            }
            left = match left.and_then(|run| run.start.0.checked_sub(1)) {
                Some(before) => self.at_or_before(FreeTree::Bnobt, (before, 0))?,
                None => None,
            };
            right = match right.and_then(|run| u32::try_from(run.end()).ok()) {
                Some(behind) => self.at_or_after(FreeTree::Bnobt, (behind, 0))?,
                None => None,
            };
            if left.is_none() && right.is_none() {
                break;
            }
        }
        self.by_size_near(Some(target))
    }

    /// By size. Among the first extents that are long enough, the nearest to `target`, if there is one. Looks at
    /// everything only if nothing was found soon.
    fn by_size_near(&mut self, target: Option<AgBlock>) -> Result<SearchResult> {
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

    /// The first extent that is long enough, beginning with the shortest.
    fn shortest(&mut self, target: Option<AgBlock>) -> Result<Option<Fit>> {
        let mut best: Option<Fit> = None;
        let mut steps = 0;
        let mut next = self.at_or_after(FreeTree::Cntbt, (self.request.max, 0))?;
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
            next = self.at_or_after(FreeTree::Cntbt, (whole.len, behind))?;
        }
        Ok(best)
    }

    /// The longest part that any extent gives, beginning with the longest extents. Busy parts may make long extents
    /// give less than shorter ones.
    fn longest(&mut self, target: Option<AgBlock>) -> Result<Option<Fit>> {
        let mut best: Option<Fit> = None;
        let mut next = self.at_or_before(FreeTree::Cntbt, (u32::MAX, u32::MAX))?;
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
            next = self.at_or_before(FreeTree::Cntbt, rank)?;
        }
        Ok(best)
    }

    fn result(&self, fit: Option<Fit>) -> SearchResult {
        match fit {
            Some(fit) => SearchResult::Fit(fit),
            None if self.met_busy => SearchResult::Busy,
            None => SearchResult::Nothing,
        }
    }

    /// Whether a fit is as long as any could be.
    fn is_full(&self, fit: &Fit) -> bool {
        fit.part.len >= trim(self.request.max, self.request).unwrap_or(self.request.max)
    }

    /// The best part of a free extent: the longest gap between its busy parts (up to `max`), and the nearest to
    /// `target` among equally long ones. Looks at gaps from the target outwards, until none can be better or patience
    /// ends.
    fn fit_near(&mut self, whole: AgExtent, target: Option<AgBlock>) -> Option<Fit> {
        if whole.len < self.request.min {
            return None;
        }
        let bounds = Bounds { low: whole.start.0.max(self.request.first).into(), end: whole.end() };
        if bounds.low >= bounds.end {
            return None;
        }
        let from = target.map_or(bounds.low, |target| u64::from(target.0).clamp(bounds.low, bounds.end - 1));
        // The busy part at `from`, or the one in front of the gap there, separates the two sides.
        let parting = self.busy_before(from + 1, bounds.low);
        let mut right = Some(parting.map_or(bounds.low, AgExtent::end));
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

    /// Whether a gap that begins or ends at `place`, or farther from the target, can be better than the best so far.
    fn may_be_better(&self, best: Option<Fit>, place: u64, target: Option<AgBlock>) -> bool {
        let Some(best) = best.filter(|best| self.is_full(best)) else { return true };
        target.is_some_and(|target| {
            place.abs_diff(target.0.into()) < best.part.start.0.abs_diff(target.0).into()
        })
    }

    /// The longer of two, or the nearer to the target if they are equally long.
    fn better(&self, best: Option<Fit>, fit: Option<Fit>, target: Option<AgBlock>) -> Option<Fit> {
        let (Some(old), Some(new)) = (best, fit) else { return best.or(fit) };
        match (new.part.len.cmp(&old.part.len), target) {
            (Ordering::Greater, _) => fit,
            (Ordering::Equal, Some(target)) => nearer(best, fit, target),
            _ => best,
        }
    }

    /// The first gap at or after `at`, if the busy part that was met leaves one, and where to continue.
    fn gap_behind(&mut self, at: u64, bounds: Bounds) -> (Option<AgExtent>, Option<u64>) {
        if at >= bounds.end || at > self.request.last.into() {
            return (None, None);
        }
        match self.busy_behind(at, bounds.end) {
            Some(busy) => (AgExtent::between(at, busy.start.0.into()), Some(busy.end())),
            None => (AgExtent::between(at, bounds.end), None),
        }
    }

    /// The last gap before `end`, in the same way.
    fn gap_before(&mut self, end: u64, bounds: Bounds) -> (Option<AgExtent>, Option<u64>) {
        if end <= bounds.low {
            return (None, None);
        }
        match self.busy_before(end, bounds.low) {
            Some(busy) => (AgExtent::between(busy.end(), end), Some(busy.start.0.into())),
            None => (AgExtent::between(bounds.low, end), None),
        }
    }

    /// The first busy part that ends after `at` and begins before `end`.
    fn busy_behind(&mut self, at: u64, end: u64) -> Option<AgExtent> {
        let busy = self.store.busy_behind(self.ag, u32::try_from(at).ok()?, self.avoid);
        let busy = busy.filter(|busy| u64::from(busy.start.0) < end);
        self.note(busy)
    }

    /// The last busy part that begins before `end` and ends after `low`.
    fn busy_before(&mut self, end: u64, low: u64) -> Option<AgExtent> {
        let busy = self.store.busy_before(self.ag, end, self.avoid).filter(|busy| busy.end() > low);
        self.note(busy)
    }

    fn note(&mut self, busy: Option<AgExtent>) -> Option<AgExtent> {
        if busy.is_some() {
            self.met_busy = true;
            self.patience = self.patience.saturating_sub(1);
        }
        busy
    }

    /// The part of a gap to take.
    fn fit_gap(&self, whole: AgExtent, gap: AgExtent, target: Option<AgBlock>) -> Option<Fit> {
        self.cut(whole, gap, self.start_in(gap, target)?)
    }

    /// Where in a gap to begin, before the start is rounded up to the alignment.
    fn start_in(&self, gap: AgExtent, target: Option<AgBlock>) -> Option<u32> {
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
        // The target is beyond the gap. File content begins in front, where it can grow; all else lies as near as
        // possible.
        Some(if request.purpose == Purpose::Data && u64::from(target.0) >= gap.end() {
            lowest
        } else {
            latest
        })
    }

    /// What to take of a gap from `start` on.
    fn cut(&self, whole: AgExtent, gap: AgExtent, start: u32) -> Option<Fit> {
        let request = self.request;
        let start = start.max(request.first).checked_next_multiple_of(request.align)?;
        if start > request.last {
            return None;
        }
        let rest = AgExtent::between(start.into(), gap.end())?;
        let len = trim(rest.len.min(request.max), request)?;
        Some(Fit { whole, part: AgExtent::new(start, len) })
    }

    fn at_or_before(&mut self, order: FreeTree, rank: (u32, u32)) -> Result<Option<AgExtent>> {
        let run = self.store.at_or_before(self.ag, order, rank)?;
        self.check(order, run, |found| found <= rank)
    }

    fn at_or_after(&mut self, order: FreeTree, rank: (u32, u32)) -> Result<Option<AgExtent>> {
        let run = self.store.at_or_after(self.ag, order, rank)?;
        self.check(order, run, |found| found >= rank)
    }

    /// An extent from a tree must lie in the group and on the requested side. This also bounds every walk.
    fn check(
        &self,
        order: FreeTree,
        run: Option<AgExtent>,
        side: impl Fn((u32, u32)) -> bool,
    ) -> Result<Option<AgExtent>> {
        let Some(found) = run else { return Ok(None) };
        let blocks = self.store.geometry().ag_blocks_of(self.ag);
        if found.len == 0 || found.start.0 == 0 || found.end() > blocks.into() || !side(order.rank(found)) {
            let name = if order == FreeTree::Bnobt { "bnobt block" } else { "cntbt block" };
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

/// The nearer of two to `target`.
fn nearer(a: Option<Fit>, b: Option<Fit>, target: AgBlock) -> Option<Fit> {
    match (a, b) {
        (Some(first), Some(second)) => {
            let distance = |fit: Fit| fit.part.start.0.abs_diff(target.0);
            Some(if distance(second) < distance(first) { second } else { first })
        }
        (one, other) => one.or(other),
    }
}
