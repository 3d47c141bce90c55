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
}

/// A mark that ends when it is dropped.
#[derive(Debug)]
pub struct BusyGuard {
    busy: Arc<BusyExtents>,
    mark: Option<BusyMark>,
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        if let Some(mark) = self.mark.take() {
            self.busy.release(mark);
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    len: u32,
    id: u64,
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

    /// The busy parts of `run`, ascending.
    pub fn within(&self, ag: AgNumber, run: Run) -> Vec<Run> {
        if !self.any() {
            return Vec::new();
        }
        let shard = self.shard(ag).read();
        shard.get(&ag).map(|group| overlaps(group, run).map(|(part, _)| part).collect()).unwrap_or_default()
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

/// The parts of `run` that none of `busy` (ascending, within `run`) covers.
pub(super) fn gaps(run: Run, busy: &[Run]) -> Vec<Run> {
    let mut gaps = Vec::with_capacity(busy.len() + 1);
    let mut at = u64::from(run.start.0);
    for part in busy {
        gaps.extend(Run::between(at, part.start.0.into()));
        at = at.max(part.end());
    }
    gaps.extend(Run::between(at, run.end()));
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    const AG: AgNumber = AgNumber(3);

    fn within(busy: &BusyExtents) -> Vec<(u32, u32)> {
        busy.within(AG, Run::new(0, u32::MAX)).iter().map(|run| (run.start.0, run.len)).collect()
    }

    #[test]
    fn a_later_freeing_outlives_an_earlier_one() {
        let busy = BusyExtents::default();
        let first = busy.mark(vec![(AG, Run::new(10, 10)), (AgNumber(4), Run::new(1, 1))]);
        let second = busy.mark(vec![(AG, Run::new(14, 2))]);
        assert_eq!(within(&busy), [(10, 4), (14, 2), (16, 4)]);
        busy.release(first);
        assert_eq!(within(&busy), [(14, 2)]);
        assert!(busy.within(AgNumber(4), Run::new(0, 9)).is_empty());
        busy.release(second);
        assert!(!busy.any() && within(&busy).is_empty());
    }

    #[test]
    fn only_what_overlaps_is_told() {
        let busy = BusyExtents::default();
        let _mark = busy.mark(vec![(AG, Run::new(10, 10)), (AG, Run::new(30, 5))]);
        let parts = busy.within(AG, Run::new(15, 17));
        assert_eq!(parts, [Run::new(15, 5), Run::new(30, 2)]);
        assert_eq!(gaps(Run::new(15, 17), &parts), [Run::new(20, 10)]);
        assert_eq!(gaps(Run::new(5, 3), &busy.within(AG, Run::new(5, 3))), [Run::new(5, 3)]);
    }
}
