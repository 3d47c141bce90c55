//! What is remembered of a group's headers after they were read.
//!
//! A volume may have billions of groups. The table is a tree of three levels of which only the used parts exist. No
//! part is ever removed, so a lookup takes no lock. Nothing is allocated for a group before one of its headers has
//! passed its checks, and then at most a few KiB. So inode numbers in a damaged directory cannot use up memory by
//! naming distant groups.

use crate::buf::BufCache;
use crate::error::{Error, Result};
use fileio::testing::point;
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::sync::OnceLock;
use xfs_format::ag::{AGF, AGI, AgHeader, Agf, Agi};
use xfs_format::geometry::Geometry;
use xfs_format::types::{AgBlock, AgNumber};

/// A header was found that does not match the geometry. It is checked again.
pub(crate) const DISAGREE: &str = "a header and the shape disagree";

/// log2 of the groups in a leaf, and of the children of an inner table.
const LEAF_LOG: u32 = 4;
const INNER_LOG: u32 = 8;

/// A tree's root in its group, and its number of levels.
#[derive(Clone, Copy, Debug)]
pub struct Root {
    /// The root's block.
    pub block: AgBlock,
    /// Levels, including leaves: at least 1.
    pub levels: u32,
}

/// From the AGI.
#[derive(Clone, Copy, Debug)]
pub struct InodeRoots {
    /// The inode tree.
    pub inobt: Root,
    /// The free inode tree, if the volume has it.
    pub finobt: Option<Root>,
    /// Allocated inodes.
    pub count: u32,
    /// Allocated inodes that are free.
    pub free: u32,
}

/// From the AGF.
#[derive(Clone, Copy, Debug)]
pub struct SpaceRoots {
    /// Free space by block.
    pub bnobt: Root,
    /// Free space by size.
    pub cntbt: Root,
    /// The rmap tree, if the volume has it.
    pub rmapbt: Option<Root>,
    /// The refcount tree, if the volume has it.
    pub refcountbt: Option<Root>,
    /// Free blocks in the free space trees.
    pub free_blocks: u32,
    /// Blocks in the AGFL.
    pub agfl_blocks: u32,
    /// Blocks of the free space and rmap trees without their roots.
    pub tree_blocks: u32,
    /// The longest free extent in blocks.
    pub longest: u32,
}

#[derive(Debug, Default)]
struct Group {
    inodes: OnceLock<InodeRoots>,
    space: OnceLock<SpaceRoots>,
}

type Leaf = Box<[Group]>;
type Inner = Box<[OnceLock<Leaf>]>;

/// The groups of a volume.
#[derive(Debug)]
pub struct Groups {
    tables: Box<[OnceLock<Inner>]>,
    changing: bool,
    /// Held while the last group grows: its headers, and its known length, change one after the other.
    growth: Mutex<()>,
    /// Held shared by readers of a refcount tree without its group's lock.
    counts: RwLock<()>,
}

impl Groups {
    /// An empty table for `ag_count` groups. `changing`: whether their headers may change.
    pub fn new(ag_count: u32, changing: bool) -> Self {
        let tables = (u64::from(ag_count) >> (LEAF_LOG + INNER_LOG)) + 1;
        let tables = (0..tables).map(|_| OnceLock::new()).collect();
        Self { tables, changing, growth: Mutex::new(()), counts: RwLock::new(()) }
    }

    /// Keeps readers out while a header and the geometry do not match.
    pub(crate) fn growing(&self) -> MutexGuard<'_, ()> {
        self.growth.lock()
    }

    /// Keeps the refcount trees unchanged, so that a reader sees each change completely or not at all.
    pub(crate) fn counts_still(&self) -> RwLockReadGuard<'_, ()> {
        self.counts.read()
    }

    /// Keeps readers of a refcount tree out while a change becomes visible.
    pub(crate) fn counts_changing(&self) -> RwLockWriteGuard<'_, ()> {
        self.counts.write()
    }

    /// The result of `read` on headers that match the geometry. A read may come in the middle of growing.
    fn settled<T>(&self, read: impl Fn() -> Result<T>) -> Result<T> {
        match read() {
            Err(_) if self.changing => {
                point(DISAGREE);
                let _still = self.growth.lock();
                read()
            }
            done => done,
        }
    }

    /// The inode trees of a group.
    pub fn inodes(&self, bufs: &BufCache, geometry: &Geometry, ag: AgNumber) -> Result<InodeRoots> {
        if let Some(roots) = self.known(ag).and_then(|group| group.inodes.get()) {
            return Ok(*roots);
        }
        let roots = self.settled(|| Self::inodes_now(bufs, geometry, ag))?;
        Ok(if self.changing { roots } else { *self.group(ag).inodes.get_or_init(|| roots) })
    }

    fn inodes_now(bufs: &BufCache, geometry: &Geometry, ag: AgNumber) -> Result<InodeRoots> {
        let daddr = AgHeader::Agi.daddr(geometry, ag);
        let buf = bufs.read(daddr, geometry.sector_size.into(), &AGI)?;
        let wrap = |problem| Error::corrupt_block(daddr, None, problem);
        let agi = Agi::view(&buf).map_err(wrap)?;
        agi.check_group(geometry, ag).map_err(wrap)?;
        let root = |block: u32, levels: u32| Root { block: AgBlock(block), levels };
        Ok(InodeRoots {
            inobt: root(agi.root.get(), agi.level.get()),
            finobt: geometry.finobt.then(|| root(agi.free_root.get(), agi.free_level.get())),
            count: agi.count.get(),
            free: agi.freecount.get(),
        })
    }

    /// The trees of free and used space of a group.
    pub fn space(&self, bufs: &BufCache, geometry: &Geometry, ag: AgNumber) -> Result<SpaceRoots> {
        if let Some(roots) = self.known(ag).and_then(|group| group.space.get()) {
            return Ok(*roots);
        }
        let roots = self.settled(|| Self::space_now(bufs, geometry, ag))?;
        Ok(if self.changing { roots } else { *self.group(ag).space.get_or_init(|| roots) })
    }

    fn space_now(bufs: &BufCache, geometry: &Geometry, ag: AgNumber) -> Result<SpaceRoots> {
        let daddr = AgHeader::Agf.daddr(geometry, ag);
        let buf = bufs.read(daddr, geometry.sector_size.into(), &AGF)?;
        let wrap = |problem| Error::corrupt_block(daddr, None, problem);
        let agf = Agf::view(&buf).map_err(wrap)?;
        agf.check_group(geometry, ag).map_err(wrap)?;
        let root = |block: u32, levels: u32| Root { block: AgBlock(block), levels };
        Ok(SpaceRoots {
            bnobt: root(agf.bno_root.get(), agf.bno_level.get()),
            cntbt: root(agf.cnt_root.get(), agf.cnt_level.get()),
            rmapbt: geometry.rmapbt.then(|| root(agf.rmap_root.get(), agf.rmap_level.get())),
            refcountbt: geometry.reflink.then(|| root(agf.refcount_root.get(), agf.refcount_level.get())),
            free_blocks: agf.freeblks.get(),
            agfl_blocks: agf.flcount.get(),
            tree_blocks: agf.btreeblks.get(),
            longest: agf.longest.get(),
        })
    }

    /// The entry of a group, if its part of the table exists.
    fn known(&self, ag: AgNumber) -> Option<&Group> {
        let [table, inner, leaf] = places(ag);
        self.tables.get(table)?.get()?.get(inner)?.get()?.get(leaf)
    }

    /// The entry of a group in the table.
    fn group(&self, ag: AgNumber) -> &Group {
        let [table, inner, leaf] = places(ag);
        let inners = self.tables[table]
            .get_or_init(|| std::iter::repeat_with(OnceLock::new).take(1 << INNER_LOG).collect());
        let leaves = inners[inner]
            .get_or_init(|| std::iter::repeat_with(Group::default).take(1 << LEAF_LOG).collect());
        &leaves[leaf]
    }
}

/// Indexes into the three levels of the table.
fn places(ag: AgNumber) -> [usize; 3] {
    [ag.0 >> (LEAF_LOG + INNER_LOG), ag.0 >> LEAF_LOG & ((1 << INNER_LOG) - 1), ag.0 & ((1 << LEAF_LOG) - 1)]
        .map(|index| index as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: asking for a group took 24 KiB, including its neighbours. A directory that names inodes all over a
    /// large sparse image took gigabytes.
    #[test]
    fn groups_exist_once_something_is_known_of_them() {
        let groups = Groups::new(u32::MAX, false);
        for ag in [0, 15, 16, 1 << 16, u32::MAX - 1].map(AgNumber) {
            assert!(groups.known(ag).is_none());
        }
        let last = AgNumber(u32::MAX - 1);
        let made = std::ptr::from_ref(groups.group(last));
        assert_eq!(groups.known(last).map(std::ptr::from_ref), Some(made));
        assert!(groups.known(AgNumber(0)).is_none(), "another part of the table");
        assert!(size_of::<Group>() << LEAF_LOG <= 2048);
    }
}
