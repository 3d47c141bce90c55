//! Free space in a transaction: implements the allocator's interface on [`Trans`].

use super::trees::{self, AgfTree, GroupTree};
use crate::alloc::{
    AgExtent, Allocated, FreeTree, Freed, OwnerClaim, Purpose, Request, SpaceStore, Spent, Target,
    VolumeStore,
};
use crate::btree::edit::BtreeCursor;
use crate::error::{Error, Result};
use crate::mount::Mount;
use crate::rmap::{self, Mapping, RmapOwner};
use crate::trans::{BufIndex, Trans};
use std::collections::BTreeMap;
use std::mem::size_of;
use xfs_format::ag::{AGF, AGFL, AGI, AgHeader, Agf, Agfl, AgflHeader, Agi};
use xfs_format::btree::{Bnobt, Cntbt, Refcountbt, Rmapbt};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::types::{AgBlock, AgNumber, FsBlock};
use zerocopy::FromBytes;

/// The bytes of the AGF that ever change. They are logged together.
const AGF_BYTES: usize = size_of::<Agf>();

/// A group whose AGF the transaction has locked.
#[derive(Clone, Copy, Debug)]
struct LockedGroup {
    ag: AgNumber,
    agf: BufIndex,
}

/// The free space of a volume in a transaction.
pub(crate) struct LockedSpace<'t, 'v> {
    trans: &'t mut Trans<'v>,
    geometry: &'v Geometry,
    groups: Vec<LockedGroup>,
}

impl<'t, 'v> LockedSpace<'t, 'v> {
    /// Free space as the transaction sees it.
    pub(crate) fn new(trans: &'t mut Trans<'v>) -> Self {
        let geometry = trans.geometry();
        Self { trans, geometry, groups: Vec::new() }
    }

    /// The same for a volume that has another geometry once the transaction is committed.
    pub(crate) fn of_shape(trans: &'t mut Trans<'v>, geometry: &'v Geometry) -> Self {
        Self { trans, geometry, groups: Vec::new() }
    }

    pub(crate) fn trans(&self) -> &Trans<'v> {
        self.trans
    }

    pub(crate) fn trans_mut(&mut self) -> &mut Trans<'v> {
        self.trans
    }

    fn index(&self, ag: AgNumber) -> Result<BufIndex> {
        let group = self.groups.iter().find(|group| group.ag == ag);
        debug_assert!(group.is_some(), "group {ag} is not locked");
        group.map(|group| group.agf).ok_or(Error::Internal("a group that is not locked was changed"))
    }

    fn sector(&self) -> u64 {
        self.geometry.sector_size.into()
    }

    fn header_error(&self, ag: AgNumber, header: AgHeader) -> impl Fn(FormatError) -> Error + use<> {
        let daddr = header.daddr(self.geometry, ag);
        move |problem| Error::corrupt_block(daddr, None, problem)
    }

    fn agfl(&mut self, ag: AgNumber) -> Result<BufIndex> {
        let daddr = AgHeader::Agfl.daddr(self.geometry, ag);
        self.trans.buf_at(daddr, self.sector(), &AGFL)
    }

    /// The rmap record of a run, if the volume has an rmap tree.
    fn mapping(&self, run: AgExtent, owner: RmapOwner) -> Option<Mapping> {
        self.geometry.rmapbt.then_some(Mapping { start: run.start, len: run.len, owner, unwritten: false })
    }

    fn slot_at(slot: u32) -> usize {
        size_of::<AgflHeader>() + slot as usize * 4
    }
}

impl SpaceStore for LockedSpace<'_, '_> {
    fn geometry(&self) -> &Geometry {
        self.geometry
    }

    fn agf(&self, ag: AgNumber) -> Result<&Agf> {
        let wrap = self.header_error(ag, AgHeader::Agf);
        Agf::view(self.trans.bytes(self.index(ag)?)).map_err(wrap)
    }

    fn agf_mut(&mut self, ag: AgNumber) -> Result<&mut Agf> {
        let wrap = self.header_error(ag, AgHeader::Agf);
        let index = self.index(ag)?;
        let bytes = self.trans.bytes_mut(index, 0..AGF_BYTES);
        let len = bytes.len() as u64;
        Agf::mut_from_prefix(bytes)
            .map(|(agf, _)| agf)
            .map_err(|_| wrap(FormatError::value("AGF", "length", len)))
    }

    fn agfl_slot(&mut self, ag: AgNumber, slot: u32) -> Result<u32> {
        let index = self.agfl(ag)?;
        let at = Self::slot_at(slot);
        let bytes = self.trans.bytes(index).get(at..).and_then(|rest| rest.first_chunk::<4>());
        let wrap = self.header_error(ag, AgHeader::Agfl);
        bytes
            .map(|raw| u32::from_be_bytes(*raw))
            .ok_or_else(|| wrap(FormatError::value("AGFL", "slot", slot.into())))
    }

    fn set_agfl_slot(&mut self, ag: AgNumber, slot: u32, block: u32) -> Result<()> {
        debug_assert!(slot < Agfl::slots(self.geometry), "a slot of the ring");
        let index = self.agfl(ag)?;
        let at = Self::slot_at(slot);
        let bytes = self.trans.bytes_mut(index, at..at + 4);
        if let Some(place) = bytes.get_mut(at..at + 4) {
            place.copy_from_slice(&block.to_be_bytes());
        }
        Ok(())
    }

    fn at_or_before(&mut self, ag: AgNumber, order: FreeTree, rank: (u32, u32)) -> Result<Option<AgExtent>> {
        match order {
            FreeTree::Bnobt => trees::at_or_before::<Bnobt>(self, ag, rank),
            FreeTree::Cntbt => trees::at_or_before::<Cntbt>(self, ag, rank),
        }
    }

    fn at_or_after(&mut self, ag: AgNumber, order: FreeTree, rank: (u32, u32)) -> Result<Option<AgExtent>> {
        match order {
            FreeTree::Bnobt => trees::at_or_after::<Bnobt>(self, ag, rank),
            FreeTree::Cntbt => trees::at_or_after::<Cntbt>(self, ag, rank),
        }
    }

    fn insert(&mut self, ag: AgNumber, order: FreeTree, run: AgExtent) -> Result<()> {
        match order {
            FreeTree::Bnobt => trees::insert::<Bnobt>(self, ag, run),
            FreeTree::Cntbt => trees::insert::<Cntbt>(self, ag, run),
        }
    }

    fn remove(&mut self, ag: AgNumber, order: FreeTree, run: AgExtent) -> Result<()> {
        match order {
            FreeTree::Bnobt => trees::remove::<Bnobt>(self, ag, run),
            FreeTree::Cntbt => trees::remove::<Cntbt>(self, ag, run),
        }
    }

    fn replace(&mut self, ag: AgNumber, order: FreeTree, old: AgExtent, new: AgExtent) -> Result<()> {
        match order {
            FreeTree::Bnobt => trees::replace::<Bnobt>(self, ag, old, new),
            FreeTree::Cntbt => trees::replace::<Cntbt>(self, ag, old, new),
        }
    }

    fn record_owner(&mut self, ag: AgNumber, run: AgExtent, owner: RmapOwner) -> Result<()> {
        let Some(mapping) = self.mapping(run, owner) else { return Ok(()) };
        rmap::map(&mut AgfTree::editor(self, ag), &mapping)
    }

    fn forget_owner(&mut self, ag: AgNumber, run: AgExtent, owner: Option<RmapOwner>) -> Result<()> {
        let Some(mapping) = self.mapping(run, owner.unwrap_or(RmapOwner::ANY)) else { return Ok(()) };
        let mut map = AgfTree::editor(self, ag);
        match owner {
            Some(_) => rmap::unmap(&mut map, &mapping),
            // A block that has an owner must not be given to another.
            None => rmap::expect_free(&map, mapping.start, mapping.len),
        }
    }

    fn busy_behind(&self, ag: AgNumber, at: u32, freed: Freed) -> Option<AgExtent> {
        self.trans.busy_behind(ag, at, freed)
    }

    fn busy_before(&self, ag: AgNumber, end: u64, freed: Freed) -> Option<AgExtent> {
        self.trans.busy_before(ag, end, freed)
    }

    fn note_busy(&mut self, ag: AgNumber, run: AgExtent) {
        self.trans.note_busy(ag, run);
    }

    fn spend(&mut self, spent: Spent) -> Result<()> {
        self.trans.spend(spent)
    }
}

impl VolumeStore for LockedSpace<'_, '_> {
    fn agf_snapshot(&mut self, ag: AgNumber) -> Result<Agf> {
        if self.groups.iter().any(|group| group.ag == ag) {
            return self.agf(ag).copied();
        }
        let buf = self.trans.snapshot_at(AgHeader::Agf.daddr(self.geometry, ag), self.sector(), &AGF)?;
        let wrap = self.header_error(ag, AgHeader::Agf);
        let agf = *Agf::view(&buf).map_err(&wrap)?;
        agf.check_group(self.geometry, ag).map_err(wrap)?;
        Ok(agf)
    }

    fn finobt_blocks_snapshot(&mut self, ag: AgNumber) -> Result<Option<u32>> {
        if !self.geometry.finobt || !self.geometry.inobt_counts {
            return Ok(None);
        }
        let buf = self.trans.snapshot_at(AgHeader::Agi.daddr(self.geometry, ag), self.sector(), &AGI)?;
        let agi = Agi::view(&buf).map_err(self.header_error(ag, AgHeader::Agi))?;
        Ok(Some(agi.fblocks.get()))
    }

    fn lock_space(&mut self, ag: AgNumber, wait: bool) -> Result<bool> {
        if self.groups.iter().any(|group| group.ag == ag) {
            return Ok(true);
        }
        let daddr = AgHeader::Agf.daddr(self.geometry, ag);
        let index = if wait {
            Some(self.trans.buf_at(daddr, self.sector(), &AGF)?)
        } else {
            self.trans.try_buf_at(daddr, self.sector(), &AGF)?
        };
        let Some(agf) = index else { return Ok(false) };
        let wrap = self.header_error(ag, AgHeader::Agf);
        let view = Agf::view(self.trans.bytes(agf)).map_err(&wrap)?;
        view.check_group(self.geometry, ag).map_err(wrap)?;
        self.groups.push(LockedGroup { ag, agf });
        Ok(true)
    }

    fn is_locked(&self, ag: AgNumber) -> bool {
        self.trans.has_locked(AgHeader::Agf.daddr(self.geometry, ag), self.sector())
    }

    fn unlock_clean(&mut self, ag: AgNumber) {
        let Some(at) = self.groups.iter().position(|group| group.ag == ag) else { return };
        if self.trans.release_buf(self.groups[at].agf) {
            self.groups.swap_remove(at);
        }
    }

    fn highest_locked(&self) -> Option<AgNumber> {
        self.trans.highest_group()
    }

    fn flush_busy(&mut self) -> Result<bool> {
        self.trans.flush_busy()
    }
}

/// See [`Space::promise_to_copies`](crate::alloc::Space::promise_to_copies).
pub(crate) fn promise_to_copies(trans: &mut Trans<'_>, ag: AgNumber, records: u64) -> Result<()> {
    let write = trans.mount().write_side()?;
    write.space.promise_to_copies(&mut LockedSpace::new(trans), &write.counters, (ag, records))
}

/// See [`Space::claim_for_owners`](crate::alloc::Space::claim_for_owners).
pub(crate) fn claim_for_owners<'v>(
    trans: &mut Trans<'v>,
    wanted: &BTreeMap<AgNumber, u64>,
) -> Result<OwnerClaim<'v>> {
    let mount: &'v Mount = trans.mount();
    let write = mount.write_side()?;
    write.space.claim_for_owners(&mut LockedSpace::new(trans), &write.counters, wanted)
}

/// Allocates blocks from the transaction's reservation. [`Error::NoSpace`] if free space is too fragmented, or less is
/// reserved than `request.min`.
pub fn allocate(trans: &mut Trans<'_>, target: Target, request: Request) -> Result<Allocated> {
    let left = u32::try_from(trans.blocks_left()).unwrap_or(u32::MAX);
    if request.min > left && request.purpose != Purpose::ReservedTree {
        return Err(Error::NoSpace);
    }
    let request = Request { max: request.max.min(left.max(request.min)), ..request };
    let space = &trans.mount().write_side()?.space;
    space.allocate(&mut LockedSpace::new(trans), target, request)
}

/// Changes the rmap tree of a group. The volume must have one.
pub(crate) fn change_rmap(
    trans: &mut Trans<'_>,
    ag: AgNumber,
    change: impl FnOnce(&mut BtreeCursor<AgfTree<'_, '_, '_, Rmapbt>>) -> Result<()>,
) -> Result<()> {
    change_tree(trans, ag, change)
}

/// Changes the refcount tree of a group, if the volume has one.
pub(crate) fn change_refcounts<R>(
    trans: &mut Trans<'_>,
    ag: AgNumber,
    change: impl FnOnce(&mut BtreeCursor<AgfTree<'_, '_, '_, Refcountbt>>) -> Result<R>,
) -> Result<R> {
    if !trans.geometry().reflink {
        let problem = FormatError::new("CUI", "volume without reference counts");
        return Err(Error::Corrupt { daddr: None, inode: None, problem });
    }
    trans.counts_change();
    change_tree(trans, ag, change)
}

/// Changes a tree of a group whose AGFL has what that may need.
fn change_tree<T: GroupTree, R>(
    trans: &mut Trans<'_>,
    ag: AgNumber,
    change: impl FnOnce(&mut BtreeCursor<AgfTree<'_, '_, '_, T>>) -> Result<R>,
) -> Result<R> {
    let space = &trans.mount().write_side()?.space;
    let mut locked = LockedSpace::new(trans);
    space.prepare(&mut locked, ag)?;
    change(&mut AgfTree::editor(&mut locked, ag))
}

/// Frees a run of blocks within this transaction. It lies within one group. `owner` is its owner, unless the rmap tree
/// no longer has it.
pub fn free_blocks(
    trans: &mut Trans<'_>,
    start: FsBlock,
    len: u32,
    purpose: Purpose,
    owner: Option<RmapOwner>,
) -> Result<()> {
    let (ag, block) = trans.geometry().split_block(start).ok_or_else(|| {
        let problem = FormatError::value("freed extent", "first block", start.0);
        Error::Corrupt { daddr: None, inode: None, problem }
    })?;
    let space = &trans.mount().write_side()?.space;
    let run = AgExtent { start: AgBlock(block.0), len };
    space.free(&mut LockedSpace::new(trans), ag, run, purpose, owner)
}
