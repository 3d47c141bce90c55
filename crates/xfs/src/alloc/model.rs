//! Tests the allocator against a plain set of used blocks.

use super::memory::MemorySpace;
use super::seam::{SpaceStore, VolumeStore};
use super::{AgExtent, AgTarget, LockedAg, Purpose, Request, Space, Target};
use crate::error::Error;
use crate::rmap::RmapOwner;
use std::collections::{BTreeMap, BTreeSet};
use xfs_format::types::{AgBlock, AgNumber, FsBlock};

/// The owner of everything that is allocated.
const OWNER: Option<RmapOwner> = Some(RmapOwner::INODES);

struct Model {
    store: MemorySpace,
    space: Space,
    rng: fastrand::Rng,
    /// What was allocated as of the last commit, and what is now.
    committed: BTreeMap<(AgNumber, u32), u32>,
    now: BTreeMap<(AgNumber, u32), u32>,
    groups: u32,
    blocks: u32,
}

impl Model {
    fn new(seed: u64, store: MemorySpace) -> Self {
        let (groups, blocks) = (store.geometry().ag_count(), store.geometry().ag_blocks);
        let space = Space::new(store.geometry());
        let rng = fastrand::Rng::with_seed(seed);
        Self { store, space, rng, committed: BTreeMap::new(), now: BTreeMap::new(), groups, blocks }
    }

    fn target(&mut self) -> Target {
        let block = FsBlock(self.rng.u64(..u64::from(self.groups) << self.store.geometry().ag_block_log));
        match self.rng.u32(..4) {
            0 => Target::In(AgNumber(self.rng.u32(..self.groups))),
            1 => Target::Exact(block),
            _ => Target::Near(block),
        }
    }

    fn request(&mut self) -> Request {
        let most = if self.rng.u32(..8) == 0 { self.blocks } else { 12 };
        let max = self.rng.u32(1..=most);
        let min = if self.rng.bool() { max } else { self.rng.u32(1..=max) };
        let mut request = Request::new(min, max, Purpose::Data).owned_by(RmapOwner::INODES);
        match self.rng.u32(..8) {
            0 => request.align = 1 << self.rng.u32(..5),
            1 => request.multiple = self.rng.u32(1..5),
            2 => request.min_left = self.rng.u32(..6),
            3 => (request.first, request.last) = (self.blocks / 4, self.blocks / 2),
            4 => request.purpose = Purpose::Metadata,
            _ => {}
        }
        request
    }

    fn allocate(&mut self) {
        let (target, request) = (self.target(), self.request());
        let blocked = self.store.highest_locked();
        let got = self.space.try_allocate(&mut self.store, target, request).unwrap();
        let Some(got) = got else {
            let alone = matches!(target, Target::Exact(_));
            let narrow = request.first > 0 || request.align > 1;
            if !alone && !narrow && blocked.is_none() && self.store.marks.is_empty() {
                self.must_be_full(request);
            }
            return;
        };
        let (ag, run) = (got.ag, got.run);
        assert!(run.len >= request.min && run.len <= request.max, "{run:?} for {request:?}");
        assert!(run.start.0.is_multiple_of(request.align));
        assert!(run.start.0 >= request.first && run.start.0 <= request.last);
        if run.len - run.len % request.multiple >= request.min {
            assert!(run.len.is_multiple_of(request.multiple));
        }
        assert!(!self.store.is_busy(ag, run), "busy blocks are given out");
        if let Target::Exact(block) = target {
            assert_eq!(got.start(self.store.geometry()), block);
        }
        self.now.insert((ag, run.start.0), run.len);
    }

    /// No group may have room for a refused request.
    fn must_be_full(&mut self, request: Request) {
        let limits = self.store.limits();
        for ag in (0..self.groups).map(AgNumber) {
            let agf = self.store.agf_snapshot(ag).unwrap();
            let keep = limits.ag_reservation(ag, &agf, Some(1)) + limits.min_freelist(&agf);
            let (runs, listed) = self.store.free_runs(ag);
            let free: u32 = runs.iter().map(|run| run.len).sum::<u32>() + listed;
            let longest = runs.iter().map(|run| run.len).max().unwrap_or(0);
            // Filling the AGFL may use up the longest extent.
            let room = free.saturating_sub(keep + request.min_left);
            assert!(room < request.min || longest.saturating_sub(keep) < request.min, "{ag}: {request:?}");
        }
    }

    fn free(&mut self) {
        let Some(nth) = self.now.len().checked_sub(1).map(|most| self.rng.usize(..=most)) else { return };
        let (&(ag, start), &len) = self.now.iter().nth(nth).unwrap();
        if self.store.highest_locked().is_some_and(|highest| ag < highest)
            && !self.store.locked().contains(&ag)
        {
            return;
        }
        // All of it, or a part.
        let from = if self.rng.bool() { 0 } else { self.rng.u32(..len) };
        let count = if self.rng.bool() { len - from } else { self.rng.u32(1..=len - from) };
        self.space
            .free(&mut self.store, ag, AgExtent::new(start + from, count), Purpose::Data, OWNER)
            .unwrap();
        self.now.remove(&(ag, start));
        if from > 0 {
            self.now.insert((ag, start), from);
        }
        if from + count < len {
            self.now.insert((ag, start + from + count), len - from - count);
        }
    }

    fn end(&mut self) {
        if self.rng.u32(..4) == 0 {
            self.store.abort();
            self.now = self.committed.clone();
        } else {
            self.store.commit();
            self.committed = self.now.clone();
        }
        let settled = self.rng.usize(..=self.store.marks.len());
        self.store.settle(settled);
        self.store.held = (0..self.groups).map(AgNumber).filter(|_| self.rng.u32(..3) == 0).collect();
        if self.rng.u32(..6) == 0 {
            self.check();
        }
    }

    /// Every block belongs to the model, is free, or belongs to the free space trees.
    fn check(&self) {
        let mut used = 0;
        for ag in (0..self.groups).map(AgNumber) {
            // The root of the rmap tree is among the blocks of the free space trees.
            let others = if self.store.geometry().rmapbt { 11..12 } else { 10..12 };
            let mut seen: BTreeSet<u32> = (0..4).chain(others).collect();
            let mut claim = |block| assert!(seen.insert(block), "block {block} of group {ag} twice");
            self.store.check(ag, &mut claim);
            for (&(_, start), &len) in self.now.range((ag, 0)..=(ag, u32::MAX)) {
                (start..start + len).for_each(&mut claim);
                used += i64::from(len);
            }
            assert_eq!(seen.len() as u32, self.blocks, "blocks of group {ag} are lost");
        }
        assert_eq!(self.store.used(), used, "counters");
    }

    fn run(&mut self, steps: u32) {
        for step in 0..steps {
            // Alternately fill up and drain.
            let fill = step / 400 % 2 == 0;
            for _ in 0..self.rng.u32(1..5) {
                if self.rng.u32(..10) < if fill { 7 } else { 2 } { self.allocate() } else { self.free() }
            }
            self.end();
        }
        self.store.settle(usize::MAX);
        while let Some((&(ag, start), &len)) = self.now.first_key_value() {
            self.space.free(&mut self.store, ag, AgExtent::new(start, len), Purpose::Data, OWNER).unwrap();
            self.now.clear();
            self.now.extend(self.committed.iter().filter(|(at, _)| **at != (ag, start)));
            self.store.commit();
            self.committed = self.now.clone();
        }
        self.check();
        assert_eq!(self.store.used(), 0);
    }
}

#[test]
fn random_histories_agree_with_a_set_of_blocks() {
    let seed = std::env::var("UXFS_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("seed: UXFS_SEED={seed}");
    let stores = [
        MemorySpace::new(1, 64, false),
        MemorySpace::new(3, 300, false),
        MemorySpace::new(4, 2000, true),
        MemorySpace::new(2, 4000, false),
        MemorySpace::new(3, 600, false).with_reverse_map(),
        MemorySpace::new(2, 4000, true).with_reverse_map(),
    ];
    for (nth, store) in (0..).zip(stores) {
        Model::new(seed.wrapping_add(nth), store).run(1200);
    }
}

fn one_group(blocks: u32) -> (MemorySpace, Space) {
    let store = MemorySpace::new(1, blocks, false);
    let space = Space::new(store.geometry());
    (store, space)
}

const AG: AgNumber = AgNumber(0);

fn at(store: &mut MemorySpace, space: &Space, place: AgTarget, request: Request) -> Option<AgExtent> {
    space.allocate_in(store, AG, place, request).unwrap()
}

#[test]
fn near_takes_the_side_that_is_nearer() {
    let (mut store, space) = one_group(1000);
    let two = Request::new(2, 2, Purpose::Metadata);
    for start in (100..200).step_by(10) {
        // Used: 100..900 except for holes of 4 at 104, 114, …
        assert!(
            at(&mut store, &space, AgTarget::Exact(AgBlock(start)), Request::new(4, 4, Purpose::Data))
                .is_some()
        );
    }
    let near =
        |store: &mut MemorySpace, block| at(store, &space, AgTarget::Near(AgBlock(block)), two).unwrap();
    assert_eq!(near(&mut store, 150), AgExtent::new(148, 2), "behind a free extent: its end");
    assert_eq!(near(&mut store, 151), AgExtent::new(154, 2), "in front of one: its start");
    assert_eq!(near(&mut store, 166), AgExtent::new(166, 2), "within one: there");
}

#[test]
fn the_best_fit_is_the_smallest_that_is_long_enough() {
    let (mut store, space) = one_group(1000);
    let all = at(&mut store, &space, AgTarget::Any, Request::new(980, 984, Purpose::Data)).unwrap();
    for (start, len) in [(100, 8), (200, 5), (300, 30)] {
        space.free(&mut store, AG, AgExtent::new(start, len), Purpose::Data, None).unwrap();
    }
    store.commit();
    store.settle(1);
    assert_eq!(all, AgExtent::new(12, 984));
    let get = |store: &mut MemorySpace, min, max| {
        at(store, &space, AgTarget::Any, Request::new(min, max, Purpose::Data))
    };
    assert_eq!(get(&mut store, 6, 6), Some(AgExtent::new(100, 6)));
    assert_eq!(get(&mut store, 5, 5), Some(AgExtent::new(200, 5)));
    assert_eq!(get(&mut store, 20, 50), Some(AgExtent::new(300, 30)), "the most there is");
    assert_eq!(get(&mut store, 5, 9), None, "what is left has three and four blocks");
}

#[test]
fn what_was_freed_waits_for_its_commit() {
    let (mut store, space) = one_group(500);
    let run = at(&mut store, &space, AgTarget::Any, Request::new(480, 480, Purpose::Data)).unwrap();
    store.commit();
    store.settle(1);
    let want = Request::new(100, 100, Purpose::Data);
    space.free(&mut store, AG, run, Purpose::Data, None).unwrap();
    assert_eq!(at(&mut store, &space, AgTarget::Any, want), None, "freed by this very transaction");
    store.abort();
    space.free(&mut store, AG, run, Purpose::Data, None).unwrap();
    store.commit();
    assert_eq!(store.marks.len(), 1);
    assert!(at(&mut store, &space, AgTarget::Any, want).is_some(), "the log was forced");
    assert!(store.marks.is_empty());
}

#[test]
fn a_double_free_is_damage() {
    let (mut store, space) = one_group(500);
    let run = at(&mut store, &space, AgTarget::Any, Request::new(10, 10, Purpose::Data)).unwrap();
    space.free(&mut store, AG, run, Purpose::Data, None).unwrap();
    for again in [
        run,
        AgExtent::new(run.start.0 + 3, 1),
        AgExtent::new(450, 10),
        AgExtent::new(2, 1),
        AgExtent::new(499, 2),
    ] {
        let error = space.free(&mut store, AG, again, Purpose::Data, None).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{again:?}: {error}");
    }
}

#[test]
fn the_reserve_is_for_the_tree_of_free_inodes_alone() {
    let mut store = MemorySpace::new(1, 2000, true);
    let space = Space::new(store.geometry());
    let agf = store.agf_snapshot(AG).unwrap();
    let reserve = space.limits().ag_reservation(AG, &agf, Some(1));
    assert!(reserve > 50);
    let mut count = 0;
    while at(&mut store, &space, AgTarget::Any, Request::new(1, 7, Purpose::Metadata)).is_some() {
        count += 1;
    }
    assert!(count > 100);
    let agf = store.agf_snapshot(AG).unwrap();
    assert_eq!(agf.freeblks.get() + agf.flcount.get(), reserve + space.limits().min_freelist(&agf));
    for _ in 0..reserve {
        let request = Request::block(Purpose::ReservedTree);
        let outcome = LockedAg::new(&mut store, space.limits(), AG, reserve).allocate(AgTarget::Any, request);
        assert!(matches!(outcome, Ok(super::group::GroupOutcome::Got(_))));
    }
}
