//! The inode trees as B+trees: their roots are in the AGI, their blocks in the same group.

use super::locked::LockedInodes;
use crate::agf::LockedSpace;
use crate::alloc::{AgExtent, AgTarget, Purpose, Request};
use crate::btree::edit::{Block, BtreeCursor, RootRef, TreeStore};
use crate::error::{Error, Result};
use crate::rmap::RmapOwner;
use std::marker::PhantomData;
use std::ops::Range;
use xfs_format::ag::Agi;
use xfs_format::btree::{Finobt, Inobt, Tree};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::records::{InobtRecord, InodeChunk};
use xfs_format::types::{AgBlock, AgInode, DiskAddr};

/// The differences between the two trees.
pub trait InodeTree: Tree<Record = InobtRecord, Rank = u32> {
    /// What its blocks are for.
    const PURPOSE: Purpose;
    /// Root and levels.
    fn root(agi: &Agi) -> (u32, u32);
    /// Sets root and levels.
    fn set_root(agi: &mut Agi, root: u32, levels: u32);
    /// Counts its blocks in the AGI, if the volume does that.
    fn count_blocks(agi: &mut Agi, by: i32);
}

impl InodeTree for Inobt {
    const PURPOSE: Purpose = Purpose::Metadata;
    fn root(agi: &Agi) -> (u32, u32) {
        (agi.root.get(), agi.level.get())
    }
    fn set_root(agi: &mut Agi, root: u32, levels: u32) {
        (agi.root, agi.level) = (root.into(), levels.into());
    }
    fn count_blocks(agi: &mut Agi, by: i32) {
        agi.iblocks.set(agi.iblocks.get().saturating_add_signed(by));
    }
}

impl InodeTree for Finobt {
    const PURPOSE: Purpose = Purpose::ReservedTree;
    fn root(agi: &Agi) -> (u32, u32) {
        (agi.free_root.get(), agi.free_level.get())
    }
    fn set_root(agi: &mut Agi, root: u32, levels: u32) {
        (agi.free_root, agi.free_level) = (root.into(), levels.into());
    }
    fn count_blocks(agi: &mut Agi, by: i32) {
        agi.fblocks.set(agi.fblocks.get().saturating_add_signed(by));
    }
}

/// One of the trees in a transaction.
pub struct AgiTree<'a, 't, 'v, T> {
    inodes: &'a mut LockedInodes<'t, 'v>,
    tree: PhantomData<T>,
}

impl<'a, 't, 'v, T: InodeTree> AgiTree<'a, 't, 'v, T> {
    fn editor(inodes: &'a mut LockedInodes<'t, 'v>) -> BtreeCursor<Self> {
        BtreeCursor::new(Self { inodes, tree: PhantomData })
    }

    fn to_change(inodes: &'a mut LockedInodes<'t, 'v>) -> BtreeCursor<Self> {
        BtreeCursor::to_change(Self { inodes, tree: PhantomData })
    }

    fn block(&self, pointer: u64) -> Result<AgBlock> {
        let blocks = self.inodes.geometry().ag_blocks_of(self.inodes.ag());
        u32::try_from(pointer).ok().filter(|&block| block != 0 && block < blocks).map(AgBlock).ok_or_else(
            || {
                let problem = FormatError::mismatch(T::NAME, "pointer", pointer, blocks.into());
                Error::Corrupt { daddr: None, inode: None, problem }
            },
        )
    }

    fn place(&self, pointer: u64) -> Result<DiskAddr> {
        Ok(self.inodes.geometry().daddr_of(self.inodes.ag(), self.block(pointer)?))
    }

    fn count(&mut self, by: i32) -> Result<()> {
        if self.inodes.geometry().inobt_counts {
            T::count_blocks(self.inodes.agi_mut()?, by);
        }
        Ok(())
    }
}

impl<T: InodeTree> TreeStore for AgiTree<'_, '_, '_, T> {
    type Tree = T;

    fn geometry(&self) -> &Geometry {
        self.inodes.geometry()
    }

    fn owner(&self) -> u64 {
        self.inodes.ag().0.into()
    }

    fn daddr(&self, pointer: u64) -> Option<DiskAddr> {
        self.place(pointer).ok()
    }

    fn read(&self, pointer: u64) -> Result<Block<'_>> {
        let daddr = self.place(pointer)?;
        self.inodes.trans().read_block(daddr, T::verifier())
    }

    fn hold(&mut self, pointer: u64) -> Result<()> {
        let daddr = self.place(pointer)?;
        self.inodes.hold_block(daddr, T::verifier())
    }

    fn modify(&mut self, pointer: u64, ranges: &[Range<usize>]) -> Result<&mut [u8]> {
        let daddr = self.place(pointer)?;
        self.inodes.trans_mut().modify_block(daddr, T::verifier(), ranges)
    }

    fn create(&mut self, pointer: u64) -> Result<&mut [u8]> {
        let daddr = self.place(pointer)?;
        self.inodes.trans_mut().create_block(daddr, T::verifier())
    }

    fn allocate(&mut self, near: u64) -> Result<u64> {
        let (ag, near) = (self.inodes.ag(), self.block(near)?);
        let trans = self.inodes.trans_mut();
        let space = &trans.mount().write_side()?.space;
        let request = Request::block(T::PURPOSE).owned_by(RmapOwner::INODE_TREES);
        let got = space.allocate_in(&mut LockedSpace::new(trans), ag, AgTarget::Near(near), request)?;
        let block = got.ok_or(Error::NoSpace)?.start;
        self.count(1)?;
        Ok(block.0.into())
    }

    fn free(&mut self, pointer: u64) -> Result<()> {
        let (ag, block, daddr) = (self.inodes.ag(), self.block(pointer)?, self.place(pointer)?);
        let trans = self.inodes.trans_mut();
        trans.forget_block(daddr, T::verifier())?;
        let space = &trans.mount().write_side()?.space;
        let (run, owner) = (AgExtent { start: block, len: 1 }, Some(RmapOwner::INODE_TREES));
        space.free(&mut LockedSpace::new(trans), ag, run, T::PURPOSE, owner)?;
        self.count(-1)
    }

    fn root(&self) -> RootRef<'_> {
        // The AGI passed its checks when it was locked.
        let (root, levels) = self.inodes.agi().map_or((0, 1), T::root);
        RootRef::Block { pointer: root.into(), levels }
    }

    fn set_root(&mut self, root: RootRef<'_>) -> Result<()> {
        let RootRef::Block { pointer, levels } = root else { return Ok(()) };
        let block = self.block(pointer)?;
        T::set_root(self.inodes.agi_mut()?, block.0, levels);
        Ok(())
    }
}

/// The checked content of a record.
fn chunk(geometry: &Geometry, record: Option<InobtRecord>) -> Result<Option<InodeChunk>> {
    let wrap = |problem| Error::Corrupt { daddr: None, inode: None, problem };
    record.map(|record| record.chunk(geometry.sparse_inodes).map_err(wrap)).transpose()
}

/// The last chunk that begins at or before `inode`.
pub fn at_or_before<T: InodeTree>(
    inodes: &mut LockedInodes<'_, '_>,
    inode: AgInode,
) -> Result<Option<InodeChunk>> {
    let record = AgiTree::<T>::editor(inodes).seek_le(inode.0)?;
    chunk(inodes.geometry(), record)
}

/// The last chunk that begins at or before `inode`, and the next one, in order to change them.
pub fn around<T: InodeTree>(
    inodes: &mut LockedInodes<'_, '_>,
    inode: AgInode,
) -> Result<[Option<InodeChunk>; 2]> {
    let [before, behind] = AgiTree::<T>::to_change(inodes).around(inode.0)?;
    Ok([chunk(inodes.geometry(), before)?, chunk(inodes.geometry(), behind)?])
}

/// The first chunk that begins at or behind `inode`.
pub fn at_or_after<T: InodeTree>(
    inodes: &mut LockedInodes<'_, '_>,
    inode: AgInode,
) -> Result<Option<InodeChunk>> {
    let record = AgiTree::<T>::editor(inodes).seek_ge(inode.0)?;
    chunk(inodes.geometry(), record)
}

/// Adds a chunk.
pub fn insert<T: InodeTree>(inodes: &mut LockedInodes<'_, '_>, new: &InodeChunk) -> Result<()> {
    let record = InobtRecord::of(new, inodes.geometry().sparse_inodes);
    let mut editor = AgiTree::<T>::to_change(inodes);
    editor.seek_le(new.start.0)?;
    editor.insert(record)
}

/// Changes a chunk that must be there as `old` says.
pub fn replace<T: InodeTree>(
    inodes: &mut LockedInodes<'_, '_>,
    old: &InodeChunk,
    new: &InodeChunk,
) -> Result<()> {
    let sparse = inodes.geometry().sparse_inodes;
    let mut editor = AgiTree::<T>::to_change(inodes);
    let found = editor.seek_eq(old.start.0)?;
    expect::<T>(found, old, sparse)?;
    editor.update(InobtRecord::of(new, sparse))
}

/// Removes a chunk that must be there as `old` says.
pub fn remove<T: InodeTree>(inodes: &mut LockedInodes<'_, '_>, old: &InodeChunk) -> Result<()> {
    let sparse = inodes.geometry().sparse_inodes;
    let mut editor = AgiTree::<T>::to_change(inodes);
    let found = editor.seek_eq(old.start.0)?;
    expect::<T>(found, old, sparse)?;
    editor.delete().map(drop)
}

/// Both trees must have the same record of a chunk.
fn expect<T: InodeTree>(found: Option<InobtRecord>, wanted: &InodeChunk, sparse: bool) -> Result<()> {
    let found = found.map(|record| record.chunk(sparse));
    if let Some(Ok(found)) = found
        && found == *wanted
    {
        return Ok(());
    }
    let problem = FormatError::value(T::NAME, "chunk of the other tree", wanted.start.0.into());
    Err(Error::Corrupt { daddr: None, inode: None, problem })
}
