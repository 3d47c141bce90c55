//! The free space, rmap and refcount trees as B+trees whose roots are in the AGF.
//!
//! Blocks of the first three come from the AGFL, because they change while free space changes. Those of the refcount
//! tree are ordinary blocks of the same group, out of its reservation for them.

use super::locked::LockedSpace;
use crate::alloc::agfl::{self, AgflUse};
use crate::alloc::{AgExtent, AgTarget, FreeTree, Purpose, Request, SpaceStore, Spent};
use crate::btree::edit::{Block, BtreeCursor, RootRef, TreeStore};
use crate::error::{Error, Result};
use crate::rmap::RmapOwner;
use std::marker::PhantomData;
use std::ops::Range;
use xfs_format::ag::Agf;
use xfs_format::btree::{Bnobt, Cntbt, Refcountbt, Rmapbt, Tree};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::records::AllocRecord;
use xfs_format::types::{AgBlock, AgNumber, DiskAddr};

/// Where a tree's blocks come from.
#[derive(Clone, Copy, Debug)]
pub enum TreeBlockSource {
    /// The AGFL, where they are counted like this.
    Agfl(AgflUse),
    /// The group's reservation, as blocks of this owner.
    AgReservation(RmapOwner),
}

/// The differences between the trees of a group.
pub trait GroupTree: Tree {
    /// Where its blocks come from.
    const SOURCE: TreeBlockSource;
    /// Root and levels.
    fn root(agf: &Agf) -> (u32, u32);
    /// Sets root and levels.
    fn set_root(agf: &mut Agf, root: u32, levels: u32);
    /// Counts its own blocks, if the AGF has a field for that.
    fn count_blocks(_agf: &mut Agf, _by: i32) {}
}

impl GroupTree for Bnobt {
    const SOURCE: TreeBlockSource = TreeBlockSource::Agfl(AgflUse::Tree);
    fn root(agf: &Agf) -> (u32, u32) {
        (agf.bno_root.get(), agf.bno_level.get())
    }
    fn set_root(agf: &mut Agf, root: u32, levels: u32) {
        (agf.bno_root, agf.bno_level) = (root.into(), levels.into());
    }
}

impl GroupTree for Cntbt {
    const SOURCE: TreeBlockSource = TreeBlockSource::Agfl(AgflUse::Tree);
    fn root(agf: &Agf) -> (u32, u32) {
        (agf.cnt_root.get(), agf.cnt_level.get())
    }
    fn set_root(agf: &mut Agf, root: u32, levels: u32) {
        (agf.cnt_root, agf.cnt_level) = (root.into(), levels.into());
    }
}

impl GroupTree for Rmapbt {
    const SOURCE: TreeBlockSource = TreeBlockSource::Agfl(AgflUse::ReverseMap);
    fn root(agf: &Agf) -> (u32, u32) {
        (agf.rmap_root.get(), agf.rmap_level.get())
    }
    fn set_root(agf: &mut Agf, root: u32, levels: u32) {
        (agf.rmap_root, agf.rmap_level) = (root.into(), levels.into());
    }
    fn count_blocks(agf: &mut Agf, by: i32) {
        agf.rmap_blocks.set(agf.rmap_blocks.get().saturating_add_signed(by));
    }
}

impl GroupTree for Refcountbt {
    const SOURCE: TreeBlockSource = TreeBlockSource::AgReservation(RmapOwner::REFCOUNT_TREE);
    fn root(agf: &Agf) -> (u32, u32) {
        (agf.refcount_root.get(), agf.refcount_level.get())
    }
    fn set_root(agf: &mut Agf, root: u32, levels: u32) {
        (agf.refcount_root, agf.refcount_level) = (root.into(), levels.into());
    }
    fn count_blocks(agf: &mut Agf, by: i32) {
        agf.refcount_blocks.set(agf.refcount_blocks.get().saturating_add_signed(by));
    }
}

/// The differences between the free space trees.
pub trait SpaceTree: GroupTree<Record = AllocRecord> {
    /// Which one it is.
    const ORDER: FreeTree;
    /// A rank in its order.
    fn rank(rank: (u32, u32)) -> Self::Rank;
}

impl SpaceTree for Bnobt {
    const ORDER: FreeTree = FreeTree::Bnobt;
    fn rank(rank: (u32, u32)) -> u32 {
        rank.0
    }
}

impl SpaceTree for Cntbt {
    const ORDER: FreeTree = FreeTree::Cntbt;
    fn rank(rank: (u32, u32)) -> (u32, u32) {
        rank
    }
}

/// One of the trees in a transaction.
pub struct AgfTree<'a, 't, 'v, T> {
    space: &'a mut LockedSpace<'t, 'v>,
    ag: AgNumber,
    tree: PhantomData<T>,
}

impl<'a, 't, 'v, T: GroupTree> AgfTree<'a, 't, 'v, T> {
    pub(super) fn editor(space: &'a mut LockedSpace<'t, 'v>, ag: AgNumber) -> BtreeCursor<Self> {
        BtreeCursor::new(Self { space, ag, tree: PhantomData })
    }

    fn block(&self, pointer: u64) -> Result<AgBlock> {
        let blocks = self.space.geometry().ag_blocks_of(self.ag);
        u32::try_from(pointer).ok().filter(|&block| block != 0 && block < blocks).map(AgBlock).ok_or_else(
            || {
                let problem = FormatError::mismatch(T::NAME, "pointer", pointer, blocks.into());
                Error::Corrupt { daddr: None, inode: None, problem }
            },
        )
    }
}

impl<T: GroupTree> AgfTree<'_, '_, '_, T> {
    /// An rmap tree that has used up its reservation grows at the expense of the volume's available blocks, and gives
    /// them back when it shrinks.
    fn keep_for_map(&mut self, of: AgflUse, by: i32) -> Result<()> {
        if of != AgflUse::ReverseMap {
            return Ok(());
        }
        let blocks = self.space.agf(self.ag)?.rmap_blocks.get();
        let limits = self.space.trans().mount().write_side()?.space.limits();
        let taken = |blocks: u32| i64::from(blocks) + i64::from(limits.kept_for_owners(self.ag, blocks));
        let more = taken(blocks.saturating_add_signed(by)) - taken(blocks);
        self.space.trans_mut().map_grew(self.ag, by);
        if more == 0 { Ok(()) } else { self.space.spend(Spent::SpaceTrees(more)) }
    }
}

impl<T: GroupTree> TreeStore for AgfTree<'_, '_, '_, T> {
    type Tree = T;

    fn geometry(&self) -> &Geometry {
        self.space.geometry()
    }

    fn owner(&self) -> u64 {
        self.ag.0.into()
    }

    fn daddr(&self, pointer: u64) -> Option<DiskAddr> {
        self.block(pointer).ok().map(|block| self.space.geometry().daddr_of(self.ag, block))
    }

    fn read(&self, pointer: u64) -> Result<Block<'_>> {
        let daddr = self.space.geometry().daddr_of(self.ag, self.block(pointer)?);
        self.space.trans().read_block(daddr, T::verifier())
    }

    fn modify(&mut self, pointer: u64, ranges: &[Range<usize>]) -> Result<&mut [u8]> {
        let daddr = self.space.geometry().daddr_of(self.ag, self.block(pointer)?);
        self.space.trans_mut().modify_block(daddr, T::verifier(), ranges)
    }

    fn create(&mut self, pointer: u64) -> Result<&mut [u8]> {
        let daddr = self.space.geometry().daddr_of(self.ag, self.block(pointer)?);
        self.space.trans_mut().create_block(daddr, T::verifier())
    }

    fn allocate(&mut self, near: u64) -> Result<u64> {
        let block = match T::SOURCE {
            TreeBlockSource::Agfl(to) => {
                self.keep_for_map(to, 1)?;
                agfl::take(self.space, self.ag, to)?
            }
            TreeBlockSource::AgReservation(owner) => {
                let place = AgTarget::Near(self.block(near)?);
                let request = Request::block(Purpose::ReservedTree).owned_by(owner);
                let space = &self.space.trans().mount().write_side()?.space;
                space.allocate_in(self.space, self.ag, place, request)?.map(|run| run.start)
            }
        };
        let block = block.ok_or(Error::NoSpace)?;
        T::count_blocks(self.space.agf_mut(self.ag)?, 1);
        Ok(block.0.into())
    }

    fn free(&mut self, pointer: u64) -> Result<()> {
        let block = self.block(pointer)?;
        let daddr = self.space.geometry().daddr_of(self.ag, block);
        self.space.trans_mut().forget_block(daddr, T::verifier())?;
        match T::SOURCE {
            TreeBlockSource::Agfl(from) => {
                self.keep_for_map(from, -1)?;
                agfl::put(self.space, self.ag, block, from)?;
            }
            TreeBlockSource::AgReservation(owner) => {
                let space = &self.space.trans().mount().write_side()?.space;
                let run = AgExtent { start: block, len: 1 };
                space.free(self.space, self.ag, run, Purpose::ReservedTree, Some(owner))?;
            }
        }
        T::count_blocks(self.space.agf_mut(self.ag)?, -1);
        Ok(())
    }

    fn root(&self) -> RootRef<'_> {
        // A group is locked only with an AGF that passed its checks.
        let Ok(agf) = self.space.agf(self.ag) else { return RootRef::Block { pointer: 0, levels: 1 } };
        let (root, levels) = T::root(agf);
        RootRef::Block { pointer: root.into(), levels }
    }

    fn set_root(&mut self, root: RootRef<'_>) -> Result<()> {
        let RootRef::Block { pointer, levels } = root else { return Ok(()) };
        let block = self.block(pointer)?;
        T::set_root(self.space.agf_mut(self.ag)?, block.0, levels);
        Ok(())
    }
}

fn run(record: AllocRecord) -> AgExtent {
    AgExtent::new(record.startblock.get(), record.blockcount.get())
}

fn record(run: AgExtent) -> AllocRecord {
    AllocRecord::new(run.start, run.len)
}

/// The last extent whose rank is at most `rank`.
pub fn at_or_before<T: SpaceTree>(
    space: &mut LockedSpace<'_, '_>,
    ag: AgNumber,
    rank: (u32, u32),
) -> Result<Option<AgExtent>> {
    Ok(AgfTree::<T>::editor(space, ag).seek_le(T::rank(rank))?.map(run))
}

/// The first extent whose rank is at least `rank`.
pub fn at_or_after<T: SpaceTree>(
    space: &mut LockedSpace<'_, '_>,
    ag: AgNumber,
    rank: (u32, u32),
) -> Result<Option<AgExtent>> {
    Ok(AgfTree::<T>::editor(space, ag).seek_ge(T::rank(rank))?.map(run))
}

/// Adds an extent.
pub fn insert<T: SpaceTree>(space: &mut LockedSpace<'_, '_>, ag: AgNumber, new: AgExtent) -> Result<()> {
    let mut editor = AgfTree::<T>::editor(space, ag);
    // This stops where the record belongs, or at one of the same rank, which the insertion refuses.
    editor.seek_le(T::rank(T::ORDER.rank(new)))?;
    editor.insert(record(new))
}

/// Removes an extent, which must be there.
pub fn remove<T: SpaceTree>(space: &mut LockedSpace<'_, '_>, ag: AgNumber, old: AgExtent) -> Result<()> {
    let mut editor = AgfTree::<T>::editor(space, ag);
    expect::<T>(editor.seek_eq(T::rank(T::ORDER.rank(old)))?, old)?;
    editor.delete().map(drop)
}

/// Changes an extent, which must be there and keeps its place in the order.
pub fn replace<T: SpaceTree>(
    space: &mut LockedSpace<'_, '_>,
    ag: AgNumber,
    old: AgExtent,
    new: AgExtent,
) -> Result<()> {
    let mut editor = AgfTree::<T>::editor(space, ag);
    expect::<T>(editor.seek_eq(T::rank(T::ORDER.rank(old)))?, old)?;
    editor.update(record(new))
}

/// Both trees must have the same extents.
fn expect<T: SpaceTree>(found: Option<AllocRecord>, wanted: AgExtent) -> Result<()> {
    if found.map(run) == Some(wanted) {
        return Ok(());
    }
    let found = found.map_or(0, |record| record.startblock.get());
    let problem =
        FormatError::mismatch(T::NAME, "extent of the other tree", found.into(), wanted.start.0.into());
    Err(Error::Corrupt { daddr: None, inode: None, problem })
}
