//! Bounds what a search looks at where a large file was just removed: the number must not depend on the file's size.

use super::memory::MemorySpace;
use super::seam::SpaceStore;
use super::{AgExtent, AgTarget, Purpose, Request, Space};
use xfs_format::types::{AgBlock, AgNumber};

const AG: AgNumber = AgNumber(0);
/// Looks that one allocation may take, twice, because it searches before and after the AGFL is fixed.
const LOOKS_MOST: u64 = 1000;

struct Removed {
    store: MemorySpace,
    space: Space,
    blocks: u32,
}

impl Removed {
    /// A group of `blocks` blocks, all used except for the last eighth.
    fn new(blocks: u32) -> Self {
        let mut store = MemorySpace::new(1, blocks, false);
        let space = Space::new(store.geometry());
        let all = Request::new(1, blocks / 8 * 7, Purpose::Data);
        space.allocate_in(&mut store, AG, AgTarget::Any, all).unwrap().unwrap();
        store.commit();
        store.settle(usize::MAX);
        Self { store, space, blocks }
    }

    /// Frees every second block from `first` on, in many transactions that stay busy. Returns the most looks that one
    /// of them took.
    fn free_each_second(&mut self, first: u32) -> u64 {
        const AT_ONCE: u32 = 50;
        let mut most = 0;
        for (nth, block) in (0..).zip((first..self.blocks / 4 * 3).step_by(2)) {
            let before = self.store.looks();
            self.space.free(&mut self.store, AG, AgExtent::new(block, 1), Purpose::Data, None).unwrap();
            most = most.max(self.store.looks() - before);
            if nth % AT_ONCE == 0 {
                self.store.commit();
            }
        }
        self.store.commit();
        most
    }

    /// The result of an allocation, and how much it looked at.
    fn ask(&mut self, place: AgTarget, request: Request) -> (Option<AgExtent>, u64) {
        let before = self.store.looks();
        let got = self.space.allocate_in(&mut self.store, AG, place, request).unwrap();
        (got, self.store.looks() - before)
    }
}

fn places(blocks: u32) -> [AgTarget; 4] {
    [
        AgTarget::Any,
        AgTarget::Near(AgBlock(20)),
        AgTarget::Near(AgBlock(blocks / 2)),
        AgTarget::Near(AgBlock(blocks - 1)),
    ]
}

#[test]
fn many_short_busy_extents_are_not_all_looked_at() {
    for blocks in [2_000, 16_000] {
        let mut removed = Removed::new(blocks);
        removed.free_each_second(100);
        let marks = removed.store.marks.len();
        for place in places(blocks) {
            for max in [1, 4] {
                let (got, looks) = removed.ask(place, Request::new(1, max, Purpose::Metadata));
                assert!(got.is_some_and(|run| run.len == max), "{place:?}: {got:?}");
                assert!(looks <= LOOKS_MOST, "{place:?} of {blocks}: {looks} looks");
            }
        }
        assert_eq!(removed.store.marks.len(), marks, "the log was forced");
    }
}

#[test]
fn busy_parts_of_one_extent_are_not_all_looked_at() {
    for blocks in [2_000, 16_000] {
        let mut removed = Removed::new(blocks);
        removed.free_each_second(100);
        removed.store.settle(usize::MAX);
        removed.free_each_second(101);
        let marks = removed.store.marks.len();
        let (runs, _) = removed.store.free_runs(AG);
        assert!(runs.iter().any(|run| run.len > blocks / 2), "one extent, half of it busy");
        let within = 100..blocks / 4 * 3;
        for place in places(blocks) {
            let (got, looks) = removed.ask(place, Request::new(1, 1, Purpose::Metadata));
            assert!(looks <= LOOKS_MOST, "{place:?} of {blocks}: {looks} looks");
            let got = got.unwrap();
            if let AgTarget::Near(AgBlock(target)) = place
                && within.contains(&target)
            {
                assert!(got.start.0.abs_diff(target) <= 1, "{got:?} near {target}");
            }
        }
        // Longer than any part and than all free space elsewhere: what is found soon is good enough.
        let wish = Request { last: within.end, ..Request::new(1, blocks / 2, Purpose::Data) };
        let (got, looks) = removed.ask(AgTarget::Near(AgBlock(blocks / 2)), wish);
        assert_eq!(got.map(|run| run.len), Some(1));
        assert!(looks <= LOOKS_MOST, "{looks} looks of {blocks}");
        assert_eq!(removed.store.marks.len(), marks, "the log was forced");
        // Nothing shorter is acceptable: the log is forced.
        removed.store.abort();
        let (got, _) = removed.ask(AgTarget::Any, Request { min: blocks / 2, ..wish });
        assert_eq!(got.map(|run| run.len), Some(blocks / 2));
        assert!(removed.store.marks.is_empty());
    }
}

#[test]
fn freeing_looks_at_little() {
    // The trees grow and shrink meanwhile: the AGFL is filled while everything around is busy.
    for blocks in [2_000, 16_000] {
        let mut removed = Removed::new(blocks);
        for first in [100, 101] {
            let most = removed.free_each_second(first);
            assert!(most <= LOOKS_MOST, "{most} looks of {blocks}");
        }
    }
}

#[test]
fn what_is_not_busy_is_found_behind_any_number_of_busy_parts() {
    let mut removed = Removed::new(8_000);
    removed.space.free(&mut removed.store, AG, AgExtent::new(4_001, 1), Purpose::Data, None).unwrap();
    removed.store.commit();
    removed.store.settle(usize::MAX);
    removed.free_each_second(4_003);
    let marks = removed.store.marks.len();
    let request = Request { last: 6_000, ..Request::block(Purpose::Data) };
    let (got, _) = removed.ask(AgTarget::Near(AgBlock(6_000)), request);
    assert_eq!(got, Some(AgExtent::new(4_001, 1)));
    assert_eq!(removed.store.marks.len(), marks, "the log was forced");
}
