//! Extents that were freed, and whose freeing is not on disk yet.
//!
//! If a crash takes the freeing back, the old owner has its blocks again: whatever was written into them in between
//! past the journal would be damage. So blocks stay busy from the commit that freed them until the checkpoint that
//! holds it is on disk.
//!
//! Invariants:
//! - the extents of a group do not overlap; a block that is freed again is busy for the later commit alone (its checkpoint
//!   cannot reach the disk before the earlier one's);
//! - what is busy is also kept as runs that do not touch: small files that were removed lie one behind the other, and who
//!   looks for free blocks passes over all of them at once.

use super::Run;
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
    runs: Vec<(AgNumber, Run)>,
}

impl BusyMark {
    /// Whether the commit freed anything.
    pub fn any(&self) -> bool {
        !self.runs.is_empty()
    }

    /// What it made busy.
    #[cfg(test)]
    pub fn runs(&self) -> &[(AgNumber, Run)] {
        &self.runs
    }
}

/// A mark that ends when it is dropped; not where that is by a panic, as nobody knows then what is in the log.
#[derive(Debug)]
pub struct BusyGuard {
    busy: Arc<BusyExtents>,
    mark: Option<BusyMark>,
}

impl BusyGuard {
    /// Lets the blocks be busy for good, as what freed them is in no log and never will be.
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
    /// By the commits that freed it.
    entries: Entries,
    /// All of it: the length of each run, by where it begins. None touches another.
    runs: BTreeMap<u32, u32>,
}

impl Busy {
    fn mark(&mut self, run: Run, id: u64) {
        cut(&mut self.entries, run, |_| true);
        self.entries.insert(run.start.0, Entry { len: run.len, id });
        self.cover(run);
    }

    fn release(&mut self, run: Run, id: u64) {
        for part in cut(&mut self.entries, run, |of| of == id) {
            self.uncover(part);
        }
        debug_assert_eq!(self.entries.is_empty(), self.runs.is_empty(), "both have what is busy");
    }

    /// The run that has block `at`.
    fn run_at(&self, at: u32) -> Option<Run> {
        self.run_from(..=at).filter(|run| run.end() > at.into())
    }

    fn run_from(&self, starts: impl RangeBounds<u32>) -> Option<Run> {
        self.runs.range(starts).next_back().map(|(&start, &len)| Run::new(start, len))
    }

    /// Adds a run, and joins it with those that it overlaps or touches.
    fn cover(&mut self, run: Run) {
        let (mut start, mut end) = (u64::from(run.start.0), run.end());
        let last = u32::try_from(end).unwrap_or(u32::MAX);
        while let Some(near) = self.run_from(..=last).filter(|near| near.end() >= start) {
            self.runs.remove(&near.start.0);
            (start, end) = (start.min(near.start.0.into()), end.max(near.end()));
        }
        if let Some(all) = Run::between(start, end) {
            self.runs.insert(all.start.0, all.len);
        }
    }

    /// Takes a run out, all of which is busy.
    fn uncover(&mut self, run: Run) {
        let Some(whole) = self.run_at(run.start.0).filter(|whole| whole.end() >= run.end()) else {
            debug_assert!(false, "what was busy is covered");
            return;
        };
        self.runs.remove(&whole.start.0);
        let before = Run::between(whole.start.0.into(), run.start.0.into());
        for rest in [before, Run::between(run.end(), whole.end())].into_iter().flatten() {
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
    /// Makes extents busy. To be called by a commit before anything of it can get onto the disk, and while it holds
    /// the headers of their groups locked; the mark goes with the checkpoint, which gives it to
    /// [`release`](Self::release) when it is on disk.
    pub fn mark(&self, runs: Vec<(AgNumber, Run)>) -> BusyMark {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        for &(ag, run) in &runs {
            let mut shard = self.shard(ag).write();
            shard.entry(ag).or_default().mark(run, id);
        }
        self.count.fetch_add(runs.len() as u64, Ordering::Relaxed);
        BusyMark { id, runs }
    }

    /// As [`mark`](Self::mark), until the guard is dropped: with the checkpoint, or with a commit that failed.
    pub fn guard(self: &Arc<Self>, runs: Vec<(AgNumber, Run)>) -> BusyGuard {
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

    /// The first busy run that ends behind block `at`. No other adjoins it.
    pub fn behind(&self, ag: AgNumber, at: u32) -> Option<Run> {
        self.look(ag, |group| {
            let next = || group.runs.range(at..).next().map(|(&start, &len)| Run::new(start, len));
            group.run_at(at).or_else(next)
        })
    }

    /// The last busy run that begins before block `end`. No other adjoins it.
    pub fn before(&self, ag: AgNumber, end: u64) -> Option<Run> {
        let end = u32::try_from(end).map_or(Bound::Unbounded, Bound::Excluded);
        self.look(ag, |group| group.run_from((Bound::Unbounded, end)))
    }

    fn look(&self, ag: AgNumber, look: impl FnOnce(&Busy) -> Option<Run>) -> Option<Run> {
        if !self.any() {
            return None;
        }
        self.shard(ag).read().get(&ag).and_then(look)
    }

    fn shard(&self, ag: AgNumber) -> &Shard {
        &self.shards[ag.0 as usize % SHARDS]
    }
}

/// The parts of `run` that entries cover, and whose they are.
fn overlaps(group: &Entries, run: Run) -> impl Iterator<Item = (Run, u64)> + '_ {
    let before = group.range(..run.start.0).next_back();
    let behind = group.range(run.start.0..).take_while(move |(start, _)| u64::from(**start) < run.end());
    before.into_iter().chain(behind).filter_map(move |(&start, entry)| {
        let whole = Run::new(start, entry.len);
        let part = Run::between(start.max(run.start.0).into(), whole.end().min(run.end()))?;
        Some((part, entry.id))
    })
}

/// Takes `run` out of the entries whose number passes `which`; gives what was taken.
fn cut(group: &mut Entries, run: Run, which: impl Fn(u64) -> bool) -> Vec<Run> {
    let hit: Vec<_> = overlaps(group, run).filter(|&(_, id)| which(id)).collect();
    for &(part, id) in &hit {
        // An entry begins at or before its part.
        let Some((&start, &entry)) = group.range(..=part.start.0).next_back() else { continue };
        let whole = Run::new(start, entry.len);
        group.remove(&start);
        for rest in [Run::between(start.into(), part.start.0.into()), Run::between(part.end(), whole.end())]
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

    /// All that is busy in a group, from its front on.
    fn all(busy: &BusyExtents, ag: AgNumber) -> Vec<(u32, u32)> {
        let next = |run: &Run| busy.behind(ag, u32::try_from(run.end()).unwrap());
        std::iter::successors(busy.behind(ag, 0), next).map(|run| (run.start.0, run.len)).collect()
    }

    #[test]
    fn a_later_freeing_outlives_an_earlier_one() {
        let busy = BusyExtents::default();
        let first = busy.mark(vec![(AG, Run::new(10, 10)), (AgNumber(4), Run::new(1, 1))]);
        let second = busy.mark(vec![(AG, Run::new(14, 2))]);
        assert_eq!(all(&busy, AG), [(10, 10)]);
        busy.release(first);
        assert_eq!(all(&busy, AG), [(14, 2)]);
        assert!(all(&busy, AgNumber(4)).is_empty());
        busy.release(second);
        assert!(!busy.any() && all(&busy, AG).is_empty());
    }

    /// A walk among the blocks of small files that were removed met each of them, and gave up before it came to the end.
    #[test]
    fn what_adjoins_is_passed_over_at_once() {
        let busy = BusyExtents::default();
        let marks: Vec<_> = (0..100).map(|nth| busy.mark(vec![(AG, Run::new(nth * 4, 4))])).collect();
        assert_eq!(all(&busy, AG), [(0, 400)]);
        assert_eq!(busy.before(AG, 300), Some(Run::new(0, 400)));
        let mut left = Vec::new();
        for (nth, mark) in marks.into_iter().enumerate() {
            if nth % 10 == 0 { left.push(mark) } else { busy.release(mark) }
        }
        assert_eq!(all(&busy, AG), (0..10).map(|nth| (nth * 40, 4)).collect::<Vec<_>>());
        left.into_iter().for_each(|mark| busy.release(mark));
        assert!(!busy.any() && all(&busy, AG).is_empty());
    }

    /// Against a model that knows of each block which commit freed it last.
    #[test]
    fn runs_are_those_of_all_blocks_that_are_busy() {
        const BLOCKS: u32 = 64;
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (busy, mut blocks, mut marks) = (BusyExtents::default(), [0; BLOCKS as usize], Vec::new());
            for step in 0..60 {
                if marks.is_empty() || rng.bool() {
                    let start = rng.u32(..BLOCKS);
                    let run = Run::new(start, rng.u32(1..=(BLOCKS - start).min(12)));
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
        let _mark = busy.mark(vec![(AG, Run::new(10, 10)), (AG, Run::new(30, 5))]);
        let (first, second) = (Some(Run::new(10, 10)), Some(Run::new(30, 5)));
        let behind = |at| busy.behind(AG, at);
        assert_eq!([behind(0), behind(10), behind(19)], [first; 3]);
        assert_eq!([behind(20), behind(34), behind(35)], [second, second, None]);
        let before = |end| busy.before(AG, end);
        assert_eq!([before(10), before(11), before(30)], [None, first, first]);
        assert_eq!([before(31), before(u64::MAX)], [second; 2]);
    }
}
