//! Extents that were freed, and whose freeing is not on disk yet.
//!
//! If a crash takes the freeing back, the old owner has its blocks again: whatever was written into them in between
//! past the journal would be damage. So blocks stay busy from the commit that freed them until the checkpoint that
//! holds it is on disk.
//!
//! Invariants: the extents of a group do not overlap; a block that is freed again is busy for the later commit alone
//! (its checkpoint cannot reach the disk before the earlier one's).

use super::Run;
use fileio::lockstat::{Counted, LockClass, Mode, Users};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
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

impl Entry {
    fn run(&self, start: u32) -> Run {
        Run::new(start, self.len)
    }
}

type Runs = BTreeMap<u32, Entry>;

const SHARDS: usize = 16;

static SHARD: LockClass = LockClass::new("busy extents");

#[derive(Debug, Default)]
struct Shard {
    groups: RwLock<HashMap<AgNumber, Runs>>,
    users: Users,
}

impl Shard {
    fn read(&self) -> Counted<RwLockReadGuard<'_, HashMap<AgNumber, Runs>>> {
        let groups = &self.groups;
        SHARD.lock_by(&self.users, Mode::Shared, || groups.try_read(), || groups.read())
    }

    fn write(&self) -> Counted<RwLockWriteGuard<'_, HashMap<AgNumber, Runs>>> {
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
            let group = shard.entry(ag).or_default();
            cut(group, run, |_| true);
            group.insert(run.start.0, Entry { len: run.len, id });
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
                cut(group, run, |id| id == mark.id);
                if group.is_empty() {
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

    /// The first busy run that ends behind block `at`.
    pub fn behind(&self, ag: AgNumber, at: u32) -> Option<Run> {
        self.look(ag, |group| {
            let over =
                group.range(..=at).next_back().filter(|(start, entry)| entry.run(**start).end() > at.into());
            over.or_else(|| group.range(at..).next()).map(|(&start, entry)| entry.run(start))
        })
    }

    /// The last busy run that begins before block `end`.
    pub fn before(&self, ag: AgNumber, end: u64) -> Option<Run> {
        let end = u32::try_from(end).map_or(Bound::Unbounded, Bound::Excluded);
        self.look(ag, |group| {
            group.range((Bound::Unbounded, end)).next_back().map(|(&start, entry)| entry.run(start))
        })
    }

    fn look(&self, ag: AgNumber, look: impl FnOnce(&Runs) -> Option<Run>) -> Option<Run> {
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
fn overlaps(group: &Runs, run: Run) -> impl Iterator<Item = (Run, u64)> + '_ {
    let before = group.range(..run.start.0).next_back();
    let behind = group.range(run.start.0..).take_while(move |(start, _)| u64::from(**start) < run.end());
    before.into_iter().chain(behind).filter_map(move |(&start, entry)| {
        let whole = Run::new(start, entry.len);
        let part = Run::between(start.max(run.start.0).into(), whole.end().min(run.end()))?;
        Some((part, entry.id))
    })
}

/// Takes `run` out of the entries whose number passes `which`.
fn cut(group: &mut Runs, run: Run, which: impl Fn(u64) -> bool) {
    let hit: Vec<_> = overlaps(group, run).filter(|&(_, id)| which(id)).collect();
    for (part, id) in hit {
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
        assert_eq!(all(&busy, AG), [(10, 4), (14, 2), (16, 4)]);
        busy.release(first);
        assert_eq!(all(&busy, AG), [(14, 2)]);
        assert!(all(&busy, AgNumber(4)).is_empty());
        busy.release(second);
        assert!(!busy.any() && all(&busy, AG).is_empty());
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
