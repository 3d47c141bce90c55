//! Groups in plain memory, for tests of the allocator.
//!
//! A tree is an ordered set that takes and returns blocks through the AGFL as a tree of its size would, so that growth
//! and shrinking of trees are part of every test.

use super::agfl::{self, AgflUse};
use super::busy::{BusyExtents, BusyMark};
use super::seam::{FreeTree, Freed, SpaceStore, Spent, VolumeStore};
use super::{AgExtent, Limits};
use crate::error::{Error, Result};
use crate::rmap::RmapOwner;
use crate::testing::geometry;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use xfs_format::ag::{AGF_MAGIC, Agf, Agfl};
use xfs_format::geometry::{DataBlocks, Geometry};
use xfs_format::types::{AgBlock, AgNumber};
use zerocopy::FromZeros;

/// Records per leaf and children per inner block of the simulated trees: the minimum of real ones.
const IN_LEAF: usize = 28;
const IN_INNER: usize = 19;

#[derive(Clone)]
struct MemoryGroup {
    agf: Agf,
    agfl: Vec<u32>,
    sets: [BTreeMap<(u32, u32), AgExtent>; 2],
    blocks: [Vec<u32>; 2],
    /// The owner of each block, if there is an rmap tree; and the blocks of that tree.
    owners: BTreeMap<u32, RmapOwner>,
    map_blocks: Vec<u32>,
}

/// What a transaction may change.
#[derive(Clone)]
struct State {
    groups: Vec<MemoryGroup>,
    /// Blocks used according to the counters.
    pub spent: i64,
    pub from_ag_reservation: i64,
    pub space_trees: i64,
}

pub struct MemorySpace {
    geometry: Geometry,
    committed: State,
    now: State,
    locked: BTreeSet<AgNumber>,
    changed: BTreeSet<AgNumber>,
    freed: Vec<(AgNumber, AgExtent)>,
    pub busy: Arc<BusyExtents>,
    pub marks: Vec<BusyMark>,
    /// Groups that somebody else has locked for a moment.
    pub held: BTreeSet<AgNumber>,
    looks: Cell<u64>,
}

const fn at(order: FreeTree) -> usize {
    match order {
        FreeTree::Bnobt => 0,
        FreeTree::Cntbt => 1,
    }
}

impl MemorySpace {
    /// `groups` groups of `blocks` blocks, all free except for headers, roots and the AGFL.
    pub fn new(groups: u32, blocks: u32, reflink: bool) -> Self {
        let mut shape = geometry(true, 9, 0);
        shape.ag_blocks = blocks;
        shape.ag_block_log = blocks.next_power_of_two().trailing_zeros() as u8;
        shape.size = DataBlocks::new(u64::from(groups) * u64::from(blocks));
        shape.reflink = reflink;
        shape.finobt = reflink;
        shape.log = (xfs_format::types::FsBlock(0), 0);
        let slots = Agfl::slots(&shape) as usize;
        let group = |number: u32| {
            let mut agf = Agf::new_zeroed();
            agf.magicnum = AGF_MAGIC.into();
            (agf.seqno, agf.length) = (number.into(), blocks.into());
            (agf.bno_level, agf.cnt_level) = (1.into(), 1.into());
            (agf.flfirst, agf.fllast, agf.flcount) = (0.into(), 3.into(), 4.into());
            let free = AgExtent::new(12, blocks - 12);
            (agf.freeblks, agf.longest) = (free.len.into(), free.len.into());
            let mut agfl = vec![u32::MAX; slots];
            agfl[..4].copy_from_slice(&[6, 7, 8, 9]);
            let sets =
                [FreeTree::Bnobt, FreeTree::Cntbt].map(|order| BTreeMap::from([(order.rank(free), free)]));
            let (owners, map_blocks) = (BTreeMap::new(), Vec::new());
            MemoryGroup { agf, agfl, sets, blocks: [vec![4], vec![5]], owners, map_blocks }
        };
        let state = State {
            groups: (0..groups).map(group).collect(),
            spent: 0,
            from_ag_reservation: 0,
            space_trees: 0,
        };
        Self {
            geometry: shape,
            committed: state.clone(),
            now: state,
            locked: BTreeSet::new(),
            changed: BTreeSet::new(),
            freed: Vec::new(),
            busy: Arc::default(),
            marks: Vec::new(),
            held: BTreeSet::new(),
            looks: Cell::new(0),
        }
    }

    /// The same with an rmap tree in each group.
    pub fn with_reverse_map(mut self) -> Self {
        self.geometry.rmapbt = true;
        for group in &mut self.now.groups {
            group.agf.rmap_level.set(1);
            group.agf.rmap_blocks.set(1);
            group.map_blocks.push(10);
            group.owners = (4..=10).map(|block| (block, RmapOwner::SPACE_TREES)).collect();
        }
        self.committed = self.now.clone();
        self
    }

    /// Changes the owner of blocks, and gives the simulated tree the blocks that its records need.
    fn change_owner(
        &mut self,
        ag: AgNumber,
        run: AgExtent,
        was: Option<RmapOwner>,
        is: Option<RmapOwner>,
    ) -> Result<()> {
        if !self.geometry.rmapbt {
            return Ok(());
        }
        for block in run.start.0..run.start.0 + run.len {
            let owners = &mut self.group_mut(ag).owners;
            assert_eq!(owners.remove(&block), was, "block {block} of group {ag}");
            is.into_iter().for_each(|owner| assert_eq!(owners.insert(block, owner), None));
        }
        self.grow_map(ag)
    }

    fn grow_map(&mut self, ag: AgNumber) -> Result<()> {
        loop {
            let group = self.group(ag);
            let owners: Vec<_> = group.owners.iter().collect();
            let goes_on =
                |pair: &&[(&u32, &RmapOwner)]| *pair[0].0 + 1 == *pair[1].0 && pair[0].1 == pair[1].1;
            let joined = owners.windows(2).filter(goes_on).count();
            let (blocks, levels) = shape(owners.len() - joined);
            let have = group.map_blocks.len();
            self.group_mut(ag).agf.rmap_level.set(levels);
            if have < blocks {
                let block = agfl::take(self, ag, AgflUse::ReverseMap)?.ok_or(Error::NoSpace)?;
                self.group_mut(ag).map_blocks.push(block.0);
            } else if have > blocks {
                let block = self.group_mut(ag).map_blocks.pop().unwrap();
                agfl::put(self, ag, AgBlock(block), AgflUse::ReverseMap)?;
            } else {
                self.group_mut(ag).agf.rmap_blocks.set(blocks as u32);
                return Ok(());
            }
        }
    }

    pub fn limits(&self) -> Limits {
        Limits::new(&self.geometry)
    }

    pub fn commit(&mut self) {
        self.marks.push(self.busy.mark(std::mem::take(&mut self.freed)));
        self.committed = self.now.clone();
        self.end();
    }

    pub fn abort(&mut self) {
        self.now = self.committed.clone();
        self.freed.clear();
        self.end();
    }

    fn end(&mut self) {
        self.locked.clear();
        self.changed.clear();
    }

    pub fn settle(&mut self, marks: usize) {
        for mark in self.marks.drain(..marks.min(self.marks.len())) {
            self.busy.release(mark);
        }
    }

    /// Blocks that are used according to the counters.
    pub fn used(&self) -> i64 {
        self.now.spent + self.now.from_ag_reservation
    }

    fn group(&self, ag: AgNumber) -> &MemoryGroup {
        assert!(self.locked.contains(&ag), "group {ag} is not locked");
        &self.now.groups[ag.0 as usize]
    }

    fn group_mut(&mut self, ag: AgNumber) -> &mut MemoryGroup {
        assert!(self.locked.contains(&ag), "group {ag} is not locked");
        self.changed.insert(ag);
        &mut self.now.groups[ag.0 as usize]
    }

    /// Gives the simulated tree the blocks that its records need.
    fn grow(&mut self, ag: AgNumber, order: FreeTree) -> Result<()> {
        loop {
            let group = self.group(ag);
            let (blocks, levels) = shape(group.sets[at(order)].len());
            let have = group.blocks[at(order)].len();
            let agf = &mut self.group_mut(ag).agf;
            match order {
                FreeTree::Bnobt => agf.bno_level.set(levels),
                FreeTree::Cntbt => agf.cnt_level.set(levels),
            }
            if have < blocks {
                let block = agfl::take(self, ag, AgflUse::Tree)?.ok_or(Error::NoSpace)?;
                self.group_mut(ag).blocks[at(order)].push(block.0);
            } else if have > blocks {
                let block = self.group_mut(ag).blocks[at(order)].pop().unwrap();
                agfl::put(self, ag, AgBlock(block), AgflUse::Tree)?;
            } else {
                return Ok(());
            }
        }
    }

    /// Checks a group's consistency. Calls `each` with every block that is free or belongs to the free space trees.
    pub fn check(&self, ag: AgNumber, each: &mut dyn FnMut(u32)) {
        let group = &self.now.groups[ag.0 as usize];
        let [by_place, by_size] = &group.sets;
        let runs: Vec<AgExtent> = by_place.values().copied().collect();
        let mut sorted: Vec<AgExtent> = by_size.values().copied().collect();
        sorted.sort();
        assert_eq!(runs, sorted, "both trees hold the same");
        assert!(runs.windows(2).all(|pair| pair[0].end() < pair[1].start.0.into()), "joined");
        let agf = &group.agf;
        assert_eq!(agf.freeblks.get(), runs.iter().map(|run| run.len).sum::<u32>());
        assert_eq!(agf.longest.get(), runs.iter().map(|run| run.len).max().unwrap_or(0));
        let tree_blocks: usize = group.blocks.iter().map(Vec::len).sum();
        assert_eq!(agf.btreeblks.get() as usize, tree_blocks - 2 + group.map_blocks.len().saturating_sub(1));
        let slots = group.agfl.len();
        let (first, count) = (agf.flfirst.get() as usize, agf.flcount.get() as usize);
        assert_eq!((first + count + slots - 1) % slots, agf.fllast.get() as usize);
        let agfl: Vec<_> = (0..count).map(|nth| group.agfl[(first + nth) % slots]).collect();
        let own = || agfl.iter().chain(group.blocks.iter().flatten()).chain(&group.map_blocks).copied();
        if self.geometry.rmapbt {
            assert_eq!(agf.rmap_blocks.get() as usize, group.map_blocks.len());
            let told = group.owners.iter().filter(|(_, owner)| **owner == RmapOwner::SPACE_TREES);
            let told: BTreeSet<u32> = told.map(|(block, _)| *block).collect();
            assert_eq!(told, own().collect(), "blocks of free space in the reverse map");
        }
        runs.iter().flat_map(|run| run.start.0..run.start.0 + run.len).for_each(&mut *each);
        own().for_each(each);
    }

    /// The free extents of a group, and the blocks in its AGFL.
    pub fn free_runs(&self, ag: AgNumber) -> (Vec<AgExtent>, u32) {
        let group = &self.now.groups[ag.0 as usize];
        (group.sets[0].values().copied().collect(), group.agf.flcount.get())
    }

    pub fn locked(&self) -> &BTreeSet<AgNumber> {
        &self.locked
    }

    /// Whether any block of a run is busy.
    pub fn is_busy(&self, ag: AgNumber, run: AgExtent) -> bool {
        let marked =
            self.marks.iter().flat_map(BusyMark::runs).filter(|(of, _)| *of == ag).map(|(_, run)| *run);
        self.freed_in(ag).chain(marked).any(|busy| busy.common(run).is_some())
    }

    /// How often free and busy extents have been looked up.
    pub fn looks(&self) -> u64 {
        self.looks.get()
    }

    fn count_look(&self) {
        self.looks.set(self.looks.get() + 1);
    }

    fn freed_in(&self, ag: AgNumber) -> impl Iterator<Item = AgExtent> + '_ {
        self.freed.iter().filter(move |(of, _)| *of == ag).map(|(_, run)| *run)
    }

    fn others(&self, freed: Freed) -> Option<&BusyExtents> {
        (freed == Freed::ByAnybody).then_some(&*self.busy)
    }
}

/// Blocks and levels of a tree of this many records.
fn shape(records: usize) -> (usize, u32) {
    let mut level = records.div_ceil(IN_LEAF).max(1);
    let (mut blocks, mut levels) = (level, 1);
    while level > 1 {
        level = level.div_ceil(IN_INNER);
        blocks += level;
        levels += 1;
    }
    (blocks, levels)
}

impl SpaceStore for MemorySpace {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn agf(&self, ag: AgNumber) -> Result<&Agf> {
        Ok(&self.group(ag).agf)
    }

    fn agf_mut(&mut self, ag: AgNumber) -> Result<&mut Agf> {
        Ok(&mut self.group_mut(ag).agf)
    }

    fn agfl_slot(&mut self, ag: AgNumber, slot: u32) -> Result<u32> {
        Ok(self.group(ag).agfl[slot as usize])
    }

    fn set_agfl_slot(&mut self, ag: AgNumber, slot: u32, block: u32) -> Result<()> {
        self.group_mut(ag).agfl[slot as usize] = block;
        Ok(())
    }

    fn at_or_before(&mut self, ag: AgNumber, order: FreeTree, rank: (u32, u32)) -> Result<Option<AgExtent>> {
        self.count_look();
        Ok(self.group(ag).sets[at(order)].range(..=rank).next_back().map(|(_, &run)| run))
    }

    fn at_or_after(&mut self, ag: AgNumber, order: FreeTree, rank: (u32, u32)) -> Result<Option<AgExtent>> {
        self.count_look();
        Ok(self.group(ag).sets[at(order)].range(rank..).next().map(|(_, &run)| run))
    }

    fn insert(&mut self, ag: AgNumber, order: FreeTree, run: AgExtent) -> Result<()> {
        assert!(self.group_mut(ag).sets[at(order)].insert(order.rank(run), run).is_none());
        self.grow(ag, order)
    }

    fn remove(&mut self, ag: AgNumber, order: FreeTree, run: AgExtent) -> Result<()> {
        assert_eq!(self.group_mut(ag).sets[at(order)].remove(&order.rank(run)), Some(run));
        self.grow(ag, order)
    }

    fn replace(&mut self, ag: AgNumber, order: FreeTree, old: AgExtent, new: AgExtent) -> Result<()> {
        let set = &mut self.group_mut(ag).sets[at(order)];
        assert_eq!(set.remove(&order.rank(old)), Some(old));
        let (low, high) = (order.rank(old).min(order.rank(new)), order.rank(old).max(order.rank(new)));
        assert!(set.range(low..=high).next().is_none(), "the order changes");
        set.insert(order.rank(new), new);
        Ok(())
    }

    fn record_owner(&mut self, ag: AgNumber, run: AgExtent, owner: RmapOwner) -> Result<()> {
        self.change_owner(ag, run, None, Some(owner))
    }

    fn forget_owner(&mut self, ag: AgNumber, run: AgExtent, owner: Option<RmapOwner>) -> Result<()> {
        self.change_owner(ag, run, owner, None)
    }

    fn busy_behind(&self, ag: AgNumber, at: u32, freed: Freed) -> Option<AgExtent> {
        self.count_look();
        let own = self.freed_in(ag).filter(|run| run.end() > at.into());
        own.chain(self.others(freed).and_then(|busy| busy.behind(ag, at))).min_by_key(|run| run.start)
    }

    fn busy_before(&self, ag: AgNumber, end: u64, freed: Freed) -> Option<AgExtent> {
        self.count_look();
        let own = self.freed_in(ag).filter(|run| u64::from(run.start.0) < end);
        own.chain(self.others(freed).and_then(|busy| busy.before(ag, end))).max_by_key(|run| run.end())
    }

    fn note_busy(&mut self, ag: AgNumber, run: AgExtent) {
        self.freed.push((ag, run));
    }

    fn spend(&mut self, spent: Spent) -> Result<()> {
        match spent {
            Spent::Reserved(blocks) => self.now.spent += blocks,
            Spent::FromAgReservation(blocks) => self.now.from_ag_reservation += blocks,
            Spent::SpaceTrees(blocks) => self.now.space_trees += blocks,
        }
        Ok(())
    }
}

impl VolumeStore for MemorySpace {
    fn agf_snapshot(&mut self, ag: AgNumber) -> Result<Agf> {
        let state = if self.locked.contains(&ag) { &self.now } else { &self.committed };
        Ok(state.groups[ag.0 as usize].agf)
    }

    fn finobt_blocks_snapshot(&mut self, _: AgNumber) -> Result<Option<u32>> {
        Ok(Some(1))
    }

    fn lock_space(&mut self, ag: AgNumber, wait: bool) -> Result<bool> {
        if self.locked.contains(&ag) {
            return Ok(true);
        }
        if !wait && self.held.contains(&ag) {
            return Ok(false);
        }
        assert!(!wait || self.highest_locked().is_none_or(|highest| ag > highest), "order of locks");
        self.locked.insert(ag);
        Ok(true)
    }

    fn is_locked(&self, ag: AgNumber) -> bool {
        self.locked.contains(&ag)
    }

    fn unlock_clean(&mut self, ag: AgNumber) {
        if !self.changed.contains(&ag) {
            self.locked.remove(&ag);
        }
    }

    fn highest_locked(&self) -> Option<AgNumber> {
        self.locked.last().copied()
    }

    fn flush_busy(&mut self) -> Result<bool> {
        let any = self.marks.iter().any(BusyMark::any);
        self.settle(usize::MAX);
        Ok(any)
    }
}
