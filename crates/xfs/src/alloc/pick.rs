//! Choosing the group.
//!
//! Groups are tried from the wanted one on. First only those whose lock is free, so that threads that meet in one group
//! spread over the others. Then all of them, waiting for the lock. Waiting is only allowed in ascending order, never
//! for a group below one that is locked; this prevents deadlocks between transactions. Groups whose last committed AGF
//! has too little are not locked at all. If a group has nothing, its lock is released, unless the transaction had it
//! locked before: that lock keeps others off the group's trees, including those that are being changed.

use super::claims::{Claims, OwnerClaim};
use super::group::{GroupOutcome, LockedAg};
use super::limits::{Limits, map_growth};
use super::seam::VolumeStore;
use super::{AgExtent, AgTarget, Purpose, Request};
use crate::buf::BufCache;
use crate::counters::Counters;
use crate::error::{Error, Result};
use crate::rmap::RmapOwner;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use xfs_format::ag::{AGF, AGI, AgHeader, Agf, Agi};
use xfs_format::geometry::Geometry;
use xfs_format::types::{AgBlock, AgNumber, FsBlock};

/// Records that any change may add to an rmap tree without asking for room.
pub const FEW: u64 = 6;
/// How often a search starts over after busy extents have settled.
const SETTLE_ROUNDS: u32 = 3;

/// What a change does to the rmap tree of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owners {
    /// Extents are cut into pieces, which adds this many records.
    InPieces(u64),
    /// The same at one place, for which room was promised before.
    Promised,
}

/// Where in the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// As near to this block as possible, in its group if any.
    Near(FsBlock),
    /// Only at this block.
    Exact(FsBlock),
    /// Anywhere, preferably in this group.
    In(AgNumber),
}

/// Blocks that were allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocated {
    /// Their group.
    pub ag: AgNumber,
    /// Where in it.
    pub run: AgExtent,
}

impl Allocated {
    /// The first block as a block number of the volume.
    pub fn start(&self, geometry: &Geometry) -> FsBlock {
        geometry.join_block(self.ag, self.run.start)
    }
}

/// The free space of a volume.
#[derive(Debug)]
pub struct Space {
    at_first: Bounds,
    claims: Claims,
}

/// Values that follow from the volume's size. They are immutable: a user goes on with the old ones while the volume
/// grows.
#[derive(Debug)]
struct Bounds {
    limits: Limits,
    groups: u32,
    grown: OnceLock<Box<Bounds>>,
}

impl Bounds {
    fn new(geometry: &Geometry) -> Self {
        Self { limits: Limits::new(geometry), groups: geometry.ag_count(), grown: OnceLock::new() }
    }
}

impl Space {
    /// The free space of a volume with this geometry.
    pub fn new(geometry: &Geometry) -> Self {
        Self { at_first: Bounds::new(geometry), claims: Claims::default() }
    }

    /// The volume has grown to this geometry. Only one caller at a time.
    pub fn grow(&self, geometry: &Geometry) {
        let _grown = self.bounds().grown.set(Box::new(Bounds::new(geometry)));
    }

    fn bounds(&self) -> &Bounds {
        std::iter::successors(Some(&self.at_first), |bounds| bounds.grown.get().map(|grown| &**grown))
            .last()
            .unwrap_or(&self.at_first)
    }

    /// What is kept back.
    pub fn limits(&self) -> &Limits {
        &self.bounds().limits
    }

    /// Blocks that count as free but that nobody can get, going by the groups as they are now: those of the free space
    /// trees, what these may need, and what groups keep for their other trees.
    pub fn kept_back(&self, bufs: &BufCache, geometry: &Geometry) -> Result<u64> {
        let limits = self.limits();
        let mut kept = limits.set_aside();
        for ag in (0..geometry.ag_count()).map(AgNumber) {
            let (agf, tree) = headers(bufs, geometry, ag)?;
            kept += u64::from(agf.btreeblks.get());
            kept += u64::from(limits.ag_reservation(ag, &agf, tree));
        }
        Ok(kept)
    }

    /// Whether the rmap tree of a group, if there is one, has room now for what `owners` says.
    pub fn has_room_for_owners(
        &self,
        bufs: &BufCache,
        geometry: &Geometry,
        ag: AgNumber,
        owners: Owners,
    ) -> Result<bool> {
        if !geometry.rmapbt {
            return Ok(true);
        }
        let limits = self.limits();
        let (agf, tree) = headers(bufs, geometry, ag)?;
        let least = match owners {
            Owners::InPieces(records) if records > FEW => {
                limits.least_to_cut(ag) + map_growth(geometry, agf.rmap_blocks.get(), records)
            }
            Owners::InPieces(_) | Owners::Promised => limits.least_to_cut(ag),
        };
        let others = match owners {
            Owners::Promised => self.claims.of_others(ag),
            _ => self.claims.of(ag),
        };
        Ok(limits.room_for_owners(ag, &agf, tree).saturating_sub(others) >= least)
    }

    /// Whether blocks of a group may get one more owner now: whether the rmap and refcount trees have room.
    pub fn has_room_to_share(&self, bufs: &BufCache, geometry: &Geometry, ag: AgNumber) -> Result<bool> {
        let limits = self.limits();
        let (agf, tree) = headers(bufs, geometry, ag)?;
        let room_for_owners = || limits.room_for_owners(ag, &agf, tree).saturating_sub(self.claims.of(ag));
        Ok(limits.has_room_for_counts(ag, &agf)
            && (!geometry.rmapbt || room_for_owners() >= limits.least_to_share(ag)))
    }

    /// Promises room for this many records to future copies of a group's blocks. [`Error::NoSpace`] if it has too
    /// little. Leaves the group unlocked.
    pub fn promise_to_copies<S: VolumeStore + ?Sized>(
        &self,
        store: &mut S,
        counters: &Counters,
        (ag, records): (AgNumber, u64),
    ) -> Result<()> {
        let limits = self.limits();
        debug_assert!(!store.is_locked(ag), "nothing else relies on the lock");
        store.lock_space(ag, true)?;
        let (agf, tree) = (*store.agf(ag)?, store.finobt_blocks_snapshot(ag)?);
        let (room, claimed) = (limits.room_for_owners(ag, &agf, tree), self.claims.of(ag));
        let growth = |records| map_growth(store.geometry(), agf.rmap_blocks.get(), records);
        let promised = self.claims.promise(ag, records, growth, |more| {
            match room >= limits.least_to_cut(ag).saturating_add(claimed).saturating_add(more) {
                true => counters.reserve_blocks(more.into()),
                false => Err(Error::NoSpace),
            }
        });
        store.unlock_clean(ag);
        promised
    }

    /// Whether nothing is promised to copies.
    pub fn promises_nothing(&self) -> bool {
        self.claims.promise_nothing()
    }

    /// Ends such a promise for this many records: they have come, or never will.
    pub fn end_promise_to_copies(&self, counters: &Counters, ag: AgNumber, records: u64) {
        counters.return_blocks(self.claims.end_promise(ag, records).into());
    }

    /// Claims room for this many rmap records in each of these groups, for a change that cannot stop half-way, and
    /// reserves it from the volume's free blocks. [`Error::NoSpace`] if a group has too little. Leaves no group locked.
    pub fn claim_for_owners<'a, S: VolumeStore + ?Sized>(
        &'a self,
        store: &mut S,
        counters: &'a Counters,
        wanted: &BTreeMap<AgNumber, u64>,
    ) -> Result<OwnerClaim<'a>> {
        let limits = self.limits();
        let mut claim = self.claims.begin(counters);
        for (&ag, &records) in wanted {
            debug_assert!(!store.is_locked(ag), "nothing else relies on the lock");
            store.lock_space(ag, true)?;
            let (agf, tree) = (*store.agf(ag)?, store.finobt_blocks_snapshot(ag)?);
            let growth = map_growth(store.geometry(), agf.rmap_blocks.get(), records);
            let wanted = limits.least_to_cut(ag).saturating_add(growth).saturating_add(self.claims.of(ag));
            let has_room = limits.room_for_owners(ag, &agf, tree) >= wanted;
            let claimed = if has_room { claim.add(ag, growth) } else { Err(Error::NoSpace) };
            store.unlock_clean(ag);
            claimed?;
        }
        Ok(claim)
    }

    /// Allocates blocks. [`Error::NoSpace`] if no group that may be waited for has them.
    ///
    /// The transaction has reserved as many blocks as it asks for, so this fails only if free space is too fragmented.
    pub fn allocate<S: VolumeStore + ?Sized>(
        &self,
        store: &mut S,
        target: Target,
        request: Request,
    ) -> Result<Allocated> {
        self.try_allocate(store, target, request)?.ok_or(Error::NoSpace)
    }

    /// Like [`allocate`](Self::allocate), but `None` if there is no space.
    pub fn try_allocate<S: VolumeStore + ?Sized>(
        &self,
        store: &mut S,
        target: Target,
        request: Request,
    ) -> Result<Option<Allocated>> {
        let (first, place) = self.split(store.geometry(), target)?;
        for _ in 0..SETTLE_ROUNDS {
            let mut busy = false;
            for wait in [false, true] {
                let order = self.order(first, matches!(target, Target::Exact(_)));
                for ag in order {
                    if wait && store.highest_locked().is_some_and(|highest| ag < highest) {
                        continue;
                    }
                    let place = if ag == first { place } else { AgTarget::Any };
                    match self.in_group(store, ag, place, request, wait)? {
                        GroupOutcome::Got(run) => return Ok(Some(Allocated { ag, run })),
                        GroupOutcome::Full => {}
                        GroupOutcome::Busy => busy = true,
                    }
                }
            }
            if !busy || !store.flush_busy()? {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Allocates only in one group, waiting for its lock.
    pub fn allocate_in<S: VolumeStore + ?Sized>(
        &self,
        store: &mut S,
        ag: AgNumber,
        place: AgTarget,
        request: Request,
    ) -> Result<Option<AgExtent>> {
        for _ in 0..SETTLE_ROUNDS {
            match self.in_group(store, ag, place, request, true)? {
                GroupOutcome::Got(run) => return Ok(Some(run)),
                GroupOutcome::Full => return Ok(None),
                GroupOutcome::Busy if store.flush_busy()? => {}
                GroupOutcome::Busy => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Frees blocks of one group, waiting for its lock.
    pub fn free<S: VolumeStore + ?Sized>(
        &self,
        store: &mut S,
        ag: AgNumber,
        run: AgExtent,
        purpose: Purpose,
        owner: Option<RmapOwner>,
    ) -> Result<()> {
        store.lock_space(ag, true)?;
        LockedAg::new(store, self.limits(), ag, 0).free(run, purpose, owner)
    }

    /// Adds blocks that a group, which is locked already, got at its end. `store` and `limits` are those of its new
    /// length.
    pub fn extend<S: VolumeStore + ?Sized>(
        store: &mut S,
        limits: &Limits,
        ag: AgNumber,
        run: AgExtent,
    ) -> Result<()> {
        store.lock_space(ag, true)?;
        LockedAg::new(store, limits, ag, 0).extend(run)
    }

    /// Locks a group and fills its AGFL with what a change of only the rmap tree may need.
    pub fn prepare<S: VolumeStore + ?Sized>(&self, store: &mut S, ag: AgNumber) -> Result<()> {
        store.lock_space(ag, true)?;
        LockedAg::new(store, self.limits(), ag, 0).prepare()
    }

    /// Whether a group could give `blocks` in one run and `more` besides, going by its last committed AGF.
    pub fn has_room<S: VolumeStore + ?Sized>(
        &self,
        store: &mut S,
        ag: AgNumber,
        blocks: u32,
        more: u32,
    ) -> Result<bool> {
        let (limits, agf) = (self.limits(), store.agf_snapshot(ag)?);
        let reserve = limits.ag_reservation(ag, &agf, store.finobt_blocks_snapshot(ag)?);
        let room = limits.room(&agf, reserve, Purpose::Metadata);
        Ok(room.longest >= blocks && room.available >= blocks.saturating_add(more))
    }

    fn in_group<S: VolumeStore + ?Sized>(
        &self,
        store: &mut S,
        ag: AgNumber,
        place: AgTarget,
        request: Request,
        wait: bool,
    ) -> Result<GroupOutcome> {
        let (limits, agf) = (self.limits(), store.agf_snapshot(ag)?);
        let reserve = limits.ag_reservation(ag, &agf, store.finobt_blocks_snapshot(ag)?);
        let room = limits.room(&agf, reserve, request.purpose);
        let available = room.available.saturating_sub(request.min_left);
        let was_locked = store.is_locked(ag);
        if room.longest < request.min || available < request.min || !store.lock_space(ag, wait)? {
            return Ok(GroupOutcome::Full);
        }
        // Under the AGF's lock: see `claims`.
        let reserve = reserve.saturating_add(self.claims.of(ag));
        let outcome = LockedAg::new(store, limits, ag, reserve).allocate(place, request)?;
        // If it was locked before, the transaction is in the middle of something there: a tree may be half changed.
        if !was_locked && !matches!(outcome, GroupOutcome::Got(_)) {
            store.unlock_clean(ag);
        }
        Ok(outcome)
    }

    /// The groups from `first` on, or only `first` if no other will do.
    fn order(&self, first: AgNumber, alone: bool) -> impl Iterator<Item = AgNumber> + use<> {
        let end = if alone { first.0.saturating_add(1) } else { self.bounds().groups };
        let begin = if alone { first.0 } else { 0 };
        (first.0..end).chain(begin..first.0).map(AgNumber)
    }

    fn split(&self, geometry: &Geometry, target: Target) -> Result<(AgNumber, AgTarget)> {
        let block =
            |block: FsBlock| geometry.split_block(block).map_or((AgNumber(0), AgBlock(0)), |found| found);
        Ok(match target {
            Target::Near(near) => {
                let (ag, block) = block(near);
                (ag, AgTarget::Near(block))
            }
            Target::Exact(exact) => {
                let (ag, block) = block(exact);
                (ag, AgTarget::Exact(block))
            }
            Target::In(ag) => (AgNumber(ag.0.min(self.bounds().groups.saturating_sub(1))), AgTarget::Any),
        })
    }
}

/// A group's AGF, and the number of blocks of its free inode tree if the AGI has that.
fn headers(bufs: &BufCache, geometry: &Geometry, ag: AgNumber) -> Result<(Agf, Option<u32>)> {
    let sector = geometry.sector_size.into();
    let (agf_at, agi_at) = (AgHeader::Agf.daddr(geometry, ag), AgHeader::Agi.daddr(geometry, ag));
    let agf_buf = bufs.read(agf_at, sector, &AGF)?;
    let agf = *Agf::view(&agf_buf).map_err(|problem| Error::corrupt_block(agf_at, None, problem))?;
    if !geometry.finobt || !geometry.inobt_counts {
        return Ok((agf, None));
    }
    let agi_buf = bufs.read(agi_at, sector, &AGI)?;
    let agi = Agi::view(&agi_buf).map_err(|problem| Error::corrupt_block(agi_at, None, problem))?;
    Ok((agf, Some(agi.fblocks.get())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::memory::MemorySpace;
    use crate::alloc::seam::SpaceStore;

    const AG: AgNumber = AgNumber(0);

    /// Regression: when all free space was busy, a tree cursor that had not changed the AGF yet lost its lock, and
    /// waited for it with tree blocks locked. If the new holder wanted one of these, that was a deadlock; otherwise
    /// what the cursor knew of the tree was outdated.
    #[test]
    fn a_group_that_was_locked_before_stays_so() {
        let mut store = MemorySpace::new(1, 2_000, true);
        let space = Space::new(store.geometry());
        let all = Request::new(1, 1_990, Purpose::Data);
        let run = space.allocate_in(&mut store, AG, AgTarget::Any, all).unwrap().unwrap();
        store.commit();
        store.settle(usize::MAX);
        space.free(&mut store, AG, run, Purpose::Data, None).unwrap();
        store.commit();
        for is_locked in [false, true] {
            if is_locked {
                store.lock_space(AG, true).unwrap();
            }
            let least = Request::new(run.len, run.len, Purpose::Data);
            let found = space.in_group(&mut store, AG, AgTarget::Any, least, true).unwrap();
            assert!(matches!(found, GroupOutcome::Busy), "{found:?}");
            assert_eq!(store.is_locked(AG), is_locked);
        }
    }
}
