//! Busy extents: freed, but the freeing is not on disk yet.
//!
//! If a crash undoes the freeing, the old owner has its blocks again. Whatever was written to them in between, not
//! through the journal, would be damage. So blocks stay busy from the commit that freed them until its checkpoint is on
//! disk.
//!
//! Invariants:
//! - the extents of a group do not overlap. A block that is freed again is busy only for the later commit, whose
//!   checkpoint cannot reach the disk before the earlier one's;
//! - busy extents are also kept merged into runs that do not touch: small removed files lie one after the other, and a
//!   search for free blocks skips all of them at once.

use super::AgExtent;
use lockstat::{Counted, LockClass, Mode, Users};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::{BTreeMap, HashMap};
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use xfs_format::types::AgNumber;

/// What one commit made busy.
#[derive(Debug)]
pub struct BusyMark {
    id: u64,
    runs: Vec<(AgNumber, AgExtent)>,
}

impl BusyMark {
    /// Whether the commit freed anything.
    pub fn any(&self) -> bool {
        !self.runs.is_empty()
    }

    /// What it made busy.
    #[cfg(test)]
    pub fn runs(&self) -> &[(AgNumber, AgExtent)] {
        &self.runs
    }
}

/// A mark that ends when the guard is dropped. If it is dropped by a panic, the mark stays, because nobody knows what
/// is in the log.
#[derive(Debug)]
pub struct BusyGuard {
    busy: Arc<BusyExtents>,
    mark: Option<BusyMark>,
}

impl BusyGuard {
    /// Leaves the blocks busy for good: what freed them is in no log and never will be.
    pub fn keep(mut self) {
        self.mark = None;
    }
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        if let Some(mark) = self.mark.take().filter(|_| !std::thread::panicking()) {
            self.busy.release(mark);
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    len: u32,
    id: u64,
}

type Entries = BTreeMap<u32, Entry>;

/// What is busy in a group.
#[derive(Debug, Default)]
struct Busy {
    /// The extents with the commits that freed them.
    entries: Entries,
    /// The merged runs: length by first block. No run touches another.
    runs: BTreeMap<u32, u32>,
}

impl Busy {
    fn mark(&mut self, run: AgExtent, id: u64) {
        cut(&mut self.entries, run, |_| true);
        self.entries.insert(run.start.0, Entry { len: run.len, id });
        self.cover(run);
    }

    fn release(&mut self, run: AgExtent, id: u64) {
        for part in cut(&mut self.entries, run, |of| of == id) {
            self.uncover(part);
        }
        debug_assert_eq!(self.entries.is_empty(), self.runs.is_empty(), "both have what is busy");
    }

    /// The run that has block `at`.
    fn run_at(&self, at: u32) -> Option<AgExtent> {
        self.run_from(..=at).filter(|run| run.end() > at.into())
    }

    fn run_from(&self, starts: impl RangeBounds<u32>) -> Option<AgExtent> {
        self.runs.range(starts).next_back().map(|(&start, &len)| AgExtent::new(start, len))
    }

    /// Adds a run, merging it with those that it overlaps or touches.
    fn cover(&mut self, run: AgExtent) {
        let (mut start, mut end) = (u64::from(run.start.0), run.end());
        let last = u32::try_from(end).unwrap_or(u32::MAX);
        while let Some(near) = self.run_from(..=last).filter(|near| near.end() >= start) {
            self.runs.remove(&near.start.0);
            (start, end) = (start.min(near.start.0.into()), end.max(near.end()));
        }
        if let Some(all) = AgExtent::between(start, end) {
            self.runs.insert(all.start.0, all.len);
        }
    }

    /// Removes a run, all of which is busy.
    fn uncover(&mut self, run: AgExtent) {
        let Some(whole) = self.run_at(run.start.0).filter(|whole| whole.end() >= run.end()) else {
            debug_assert!(false, "what was busy is covered");
            return;
        };
        self.runs.remove(&whole.start.0);
        let before = AgExtent::between(whole.start.0.into(), run.start.0.into());
        for rest in [before, AgExtent::between(run.end(), whole.end())].into_iter().flatten() {
            self.runs.insert(rest.start.0, rest.len);
        }
    }
}

const SHARDS: usize = 16;

static SHARD: LockClass = LockClass::new("busy extents");

#[derive(Debug, Default)]
struct Shard {
    groups: RwLock<HashMap<AgNumber, Busy>>,
    users: Users,
}

impl Shard {
    fn read(&self) -> Counted<RwLockReadGuard<'_, HashMap<AgNumber, Busy>>> {
        let groups = &self.groups;
        SHARD.lock_by(&self.users, Mode::Shared, || groups.try_read(), || groups.read())
    }

    fn write(&self) -> Counted<RwLockWriteGuard<'_, HashMap<AgNumber, Busy>>> {
        let groups = &self.groups;
        SHARD.lock_by(&self.users, Mode::Exclusive, || groups.try_write(), || groups.write())
    }
}

/// The busy extents of a volume.
#[derive(Debug)]
pub struct BusyExtents {
    shards: [Shard; SHARDS],
    next_id: AtomicU64,
    count: AtomicU64,
}

impl Default for BusyExtents {
    fn default() -> Self {
        Self { shards: Default::default(), next_id: AtomicU64::new(1), count: AtomicU64::new(0) }
    }
}

impl BusyExtents {
    /// Makes extents busy. A commit must call this before anything of it can get to disk, and while it has the headers
    /// of their groups locked. The checkpoint keeps the mark and passes it to [`release`](Self::release) once it is on
    /// disk.
    pub fn mark(&self, runs: Vec<(AgNumber, AgExtent)>) -> BusyMark {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        for &(ag, run) in &runs {
            let mut shard = self.shard(ag).write();
            shard.entry(ag).or_default().mark(run, id);
        }
        self.count.fetch_add(runs.len() as u64, Ordering::Relaxed);
        BusyMark { id, runs }
    }

    /// Like [`mark`](Self::mark), until the guard is dropped: with the checkpoint, or with a failed commit.
    pub fn guard(self: &Arc<Self>, runs: Vec<(AgNumber, AgExtent)>) -> BusyGuard {
        BusyGuard { busy: Arc::clone(self), mark: Some(self.mark(runs)) }
    }

    /// Ends what `mark` began.
    pub fn release(&self, mark: BusyMark) {
        for &(ag, run) in &mark.runs {
            let mut shard = self.shard(ag).write();
            if let Some(group) = shard.get_mut(&ag) {
                group.release(run, mark.id);
                if group.runs.is_empty() {
                    shard.remove(&ag);
                }
            }
        }
        self.count.fetch_sub(mark.runs.len() as u64, Ordering::Relaxed);
    }

    /// Whether anything is busy.
    pub fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// The first busy run that ends after block `at`. No other run adjoins it.
    pub fn behind(&self, ag: AgNumber, at: u32) -> Option<AgExtent> {
        self.look(ag, |group| {
            let next = || group.runs.range(at..).next().map(|(&start, &len)| AgExtent::new(start, len));
            group.run_at(at).or_else(next)
        })
    }

    /// The last busy run that begins before block `end`. No other run adjoins it.
    pub fn before(&self, ag: AgNumber, end: u64) -> Option<AgExtent> {
        let end = u32::try_from(end).map_or(Bound::Unbounded, Bound::Excluded);
        self.look(ag, |group| group.run_from((Bound::Unbounded, end)))
    }

    fn look(&self, ag: AgNumber, look: impl FnOnce(&Busy) -> Option<AgExtent>) -> Option<AgExtent> {
        if !self.any() {
            return None;
        }
        self.shard(ag).read().get(&ag).and_then(look)
    }

    fn shard(&self, ag: AgNumber) -> &Shard {
        &self.shards[ag.0 as usize % SHARDS]
    }
}

/// The parts of `run` that entries cover, each with its commit.
fn overlaps(group: &Entries, run: AgExtent) -> impl Iterator<Item = (AgExtent, u64)> + '_ {
    let before = group.range(..run.start.0).next_back();
    let behind = group.range(run.start.0..).take_while(move |(start, _)| u64::from(**start) < run.end());
    before.into_iter().chain(behind).filter_map(move |(&start, entry)| {
        let whole = AgExtent::new(start, entry.len);
        let part = AgExtent::between(start.max(run.start.0).into(), whole.end().min(run.end()))?;
        Some((part, entry.id))
    })
}

/// Removes `run` from the entries whose commit number passes `which`. Returns what was removed.
fn cut(group: &mut Entries, run: AgExtent, which: impl Fn(u64) -> bool) -> Vec<AgExtent> {
    let hit: Vec<_> = overlaps(group, run).filter(|&(_, id)| which(id)).collect();
    for &(part, id) in &hit {
        // An entry begins at or before its part.
        let Some((&start, &entry)) = group.range(..=part.start.0).next_back() else { continue };
        let whole = AgExtent::new(start, entry.len);
        group.remove(&start);
        for rest in
            [AgExtent::between(start.into(), part.start.0.into()), AgExtent::between(part.end(), whole.end())]
                .into_iter()
                .flatten()
        {
            group.insert(rest.start.0, Entry { len: rest.len, id });
        }
    }
    hit.into_iter().map(|(part, _)| part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const AG: AgNumber = AgNumber(3);

    /// All busy extents of a group, in order.
    fn all(busy: &BusyExtents, ag: AgNumber) -> Vec<(u32, u32)> {
        let next = |run: &AgExtent| busy.behind(ag, u32::try_from(run.end()).unwrap());
        std::iter::successors(busy.behind(ag, 0), next).map(|run| (run.start.0, run.len)).collect()
    }

    #[test]
    fn a_later_freeing_outlives_an_earlier_one() {
        let busy = BusyExtents::default();
        let first = busy.mark(vec![(AG, AgExtent::new(10, 10)), (AgNumber(4), AgExtent::new(1, 1))]);
        let second = busy.mark(vec![(AG, AgExtent::new(14, 2))]);
        assert_eq!(all(&busy, AG), [(10, 10)]);
        busy.release(first);
        assert_eq!(all(&busy, AG), [(14, 2)]);
        assert!(all(&busy, AgNumber(4)).is_empty());
        busy.release(second);
        assert!(!busy.any() && all(&busy, AG).is_empty());
    }

    /// Regression: a search among the blocks of small removed files met each of them, and gave up before it came to the
    /// end.
    #[test]
    fn what_adjoins_is_passed_over_at_once() {
        let busy = BusyExtents::default();
        let marks: Vec<_> = (0..100).map(|nth| busy.mark(vec![(AG, AgExtent::new(nth * 4, 4))])).collect();
        assert_eq!(all(&busy, AG), [(0, 400)]);
        assert_eq!(busy.before(AG, 300), Some(AgExtent::new(0, 400)));
        let mut left = Vec::new();
        for (nth, mark) in marks.into_iter().enumerate() {
            if nth % 10 == 0 { left.push(mark) } else { busy.release(mark) }
        }
        assert_eq!(all(&busy, AG), (0..10).map(|nth| (nth * 40, 4)).collect::<Vec<_>>());
        left.into_iter().for_each(|mark| busy.release(mark));
        assert!(!busy.any() && all(&busy, AG).is_empty());
    }

    /// Compares with a model that knows for each block which commit freed it last.
    #[test]
    fn runs_are_those_of_all_blocks_that_are_busy() {
        const BLOCKS: u32 = 64;
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (busy, mut blocks, mut marks) = (BusyExtents::default(), [0; BLOCKS as usize], Vec::new());
            for step in 0..60 {
                if marks.is_empty() || rng.bool() {
                    let start = rng.u32(..BLOCKS);
                    let run = AgExtent::new(start, rng.u32(1..=(BLOCKS - start).min(12)));
                    let mark = busy.mark(vec![(AG, run)]);
                    blocks[start as usize..run.end() as usize].fill(mark.id);
                    marks.push(mark);
                } else {
                    let mark = marks.swap_remove(rng.usize(..marks.len()));
                    blocks.iter_mut().filter(|of| **of == mark.id).for_each(|of| *of = 0);
                    busy.release(mark);
                }
                let is_busy = |at: &u32| blocks[*at as usize] > 0;
                let covered = |run: &(u32, u32)| run.0..run.0 + run.1;
                let found: Vec<u32> = all(&busy, AG).iter().flat_map(covered).collect();
                assert_eq!(
                    found,
                    (0..BLOCKS).filter(is_busy).collect::<Vec<_>>(),
                    "seed {seed}, step {step}"
                );
            }
        }
    }

    #[test]
    fn neighbours_are_found_from_both_sides() {
        let busy = BusyExtents::default();
        let _mark = busy.mark(vec![(AG, AgExtent::new(10, 10)), (AG, AgExtent::new(30, 5))]);
        let (first, second) = (Some(AgExtent::new(10, 10)), Some(AgExtent::new(30, 5)));
        let behind = |at| busy.behind(AG, at);
        assert_eq!([behind(0), behind(10), behind(19)], [first; 3]);
        assert_eq!([behind(20), behind(34), behind(35)], [second, second, None]);
        let before = |end| busy.before(AG, end);
        assert_eq!([before(10), before(11), before(30)], [None, first, first]);
        assert_eq!([before(31), before(u64::MAX)], [second; 2]);
    }
}
