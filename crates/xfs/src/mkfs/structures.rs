//! The bytes of a new volume: headers and roots of its groups, and the first inodes.
//!
//! All structures are complete here: identity, counts, checksum. LSNs are 0, because nothing was logged.

use super::layout::{Extent, GroupLayout, INODES_USED, TreeRoot, VolumeLayout};
use xfs_format::ag::{Agf, AgflHeader, Agi};
use xfs_format::btree::{Bnobt, Cntbt, Finobt, Inobt, Refcountbt, Rmapbt, Tree};
use xfs_format::checksum;
use xfs_format::identity::stamp;
use xfs_format::inode::{CORE_LEN_V3, MAGIC as INODE_MAGIC};
use xfs_format::inode::{ForkFormat, ForkInfo, InodeCore, InodeFlags, InodeFlags2, InodeType};
use xfs_format::node_mut::{NO_BLOCK, NewBlock, NodeMut};
use xfs_format::records::{AllocRecord, INODES_PER_CHUNK, InobtRecord, RmapRecord};
use xfs_format::superblock::{CRC_OFFSET, RawSuperblock};
use xfs_format::timestamp::Timestamp;
use xfs_format::types::{AgBlock, AgInode, AgNumber, InodeNumber, Lsn};
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{Immutable, IntoBytes};

/// The first used slot of the AGFL. `mkfs.xfs` begins there, too.
const AGFL_FIRST: u32 = 1;
/// An empty directory in the inode: no entries, no long inode numbers, the parent.
const EMPTY_DIR_LEN: usize = 6;

/// A superblock as a whole sector with its checksum.
pub(crate) fn seal(raw: &RawSuperblock) -> Vec<u8> {
    let mut sector = vec![0; usize::from(raw.sectsize.get())];
    put(&mut sector, raw);
    checksum::store(&mut sector, CRC_OFFSET);
    sector
}

fn put(to: &mut [u8], what: &(impl IntoBytes + Immutable)) {
    let bytes = what.as_bytes();
    to[..bytes.len()].copy_from_slice(bytes);
}

/// Writes headers and roots of a group, the blocks at its start, into `to`, which is zeroed and has their length.
pub(super) fn fill_group(layout: &VolumeLayout, group: &GroupLayout, to: &mut [u8]) {
    let geometry = &layout.geometry;
    let sector = geometry.sector_size as usize;
    let mut sectors = to.chunks_exact_mut(sector);
    let mut header = |fill: &dyn Fn(&mut [u8])| {
        let Some(sector) = sectors.next() else { return };
        fill(sector);
        stamp(sector, Lsn(0));
    };
    header(&|to| to.copy_from_slice(&seal(layout.superblock.raw())));
    header(&|to| put(to, &agf(layout, group)));
    header(&|to| put(to, &agi(layout, group)));
    header(&|to| fill_agfl(layout, group, to));
    for root in TreeRoot::of(&layout.features) {
        fill_root(layout, group, root, to);
    }
}

pub(crate) fn agf(layout: &VolumeLayout, group: &GroupLayout) -> Agf {
    let root = |root| layout.root(root).map_or(0, |block| block.0);
    let level = |root| U32::from(u32::from(layout.root(root).is_some()));
    let mut agf = Agf::new(group.ag, group.blocks, layout.geometry.meta_uuid);
    (agf.bno_root, agf.bno_level) = (root(TreeRoot::Bnobt).into(), level(TreeRoot::Bnobt));
    (agf.cnt_root, agf.cnt_level) = (root(TreeRoot::Cntbt).into(), level(TreeRoot::Cntbt));
    (agf.rmap_root, agf.rmap_level) = (root(TreeRoot::Rmapbt).into(), level(TreeRoot::Rmapbt));
    agf.rmap_blocks = agf.rmap_level;
    (agf.refcount_root, agf.refcount_level) =
        (root(TreeRoot::Refcountbt).into(), level(TreeRoot::Refcountbt));
    agf.refcount_blocks = agf.refcount_level;
    agf.flfirst = AGFL_FIRST.into();
    agf.fllast = (AGFL_FIRST + group.agfl.blocks - 1).into();
    agf.flcount = group.agfl.blocks.into();
    agf.freeblks = group.free.iter().map(|extent| extent.blocks).sum::<u32>().into();
    agf.longest = group.free.iter().map(|extent| extent.blocks).max().unwrap_or(0).into();
    agf
}

pub(crate) fn agi(layout: &VolumeLayout, group: &GroupLayout) -> Agi {
    let mut agi = Agi::new(group.ag, group.blocks, layout.geometry.meta_uuid);
    agi.root = layout.root(TreeRoot::Inobt).map_or(0, |block| block.0).into();
    agi.level = 1.into();
    if let Some(root) = layout.root(TreeRoot::Finobt) {
        (agi.free_root, agi.free_level) = (root.0.into(), 1.into());
    }
    if layout.features.inobt_counts {
        (agi.iblocks, agi.fblocks) = (1.into(), agi.free_level);
    }
    if let Some(inodes) = group.inodes {
        let count = inodes.blocks << layout.geometry.inodes_per_block_log;
        agi.count = count.into();
        agi.freecount = (count - INODES_USED as u32).into();
        agi.newino = first_inode(layout, inodes).0.into();
    }
    agi
}

/// The first inode of a run of blocks.
fn first_inode(layout: &VolumeLayout, extent: Extent) -> AgInode {
    AgInode(extent.start.0 << layout.geometry.inodes_per_block_log)
}

fn fill_agfl(layout: &VolumeLayout, group: &GroupLayout, to: &mut [u8]) {
    put(to, &AgflHeader::new(group.ag, layout.geometry.meta_uuid));
    let slots = to[size_of::<AgflHeader>()..].chunks_exact_mut(4);
    for (index, slot) in (0_u32..).zip(slots) {
        let block = match index.checked_sub(AGFL_FIRST) {
            Some(nth) if nth < group.agfl.blocks => group.agfl.start.0 + nth,
            _ => u32::MAX,
        };
        slot.copy_from_slice(&block.to_be_bytes());
    }
}

fn fill_root(layout: &VolumeLayout, group: &GroupLayout, root: TreeRoot, to: &mut [u8]) {
    let free = || group.free.iter().map(|extent| AllocRecord::new(extent.start, extent.blocks));
    match root {
        TreeRoot::Bnobt => fill_leaf::<Bnobt>(layout, group, root, to, &free().collect::<Vec<_>>()),
        TreeRoot::Cntbt => {
            let mut records: Vec<_> = free().collect();
            records.sort_by_key(Cntbt::record_rank);
            fill_leaf::<Cntbt>(layout, group, root, to, &records);
        }
        TreeRoot::Inobt => fill_leaf::<Inobt>(layout, group, root, to, &chunks(layout, group)),
        TreeRoot::Finobt => fill_leaf::<Finobt>(layout, group, root, to, &chunks(layout, group)),
        TreeRoot::Rmapbt => fill_leaf::<Rmapbt>(layout, group, root, to, &owners(layout, group)),
        TreeRoot::Refcountbt => fill_leaf::<Refcountbt>(layout, group, root, to, &[]),
    }
}

/// Writes a root that is a leaf. There are at most ten records, which fit into the smallest block.
fn fill_leaf<T: Tree>(
    layout: &VolumeLayout,
    group: &GroupLayout,
    root: TreeRoot,
    to: &mut [u8],
    records: &[T::Record],
) {
    let Some(block) = layout.root(root) else { return };
    let geometry = &layout.geometry;
    let daddr = geometry.daddr_of(group.ag, block);
    let size = geometry.block_size as usize;
    let to = &mut to[block.0 as usize * size..][..size];
    let siblings = (NO_BLOCK, NO_BLOCK);
    let birth = NewBlock { level: 0, siblings, daddr, uuid: geometry.meta_uuid, owner: group.ag.0.into() };
    let leaf = NodeMut::<T>::create(to, &birth).map(|mut leaf| leaf.set_records(records));
    debug_assert!(leaf.is_ok(), "a block has room for a header");
    stamp(to, Lsn(0));
}

/// Chunks of a group: those of the first inodes. A block may have two chunks.
fn chunks(layout: &VolumeLayout, group: &GroupLayout) -> Vec<InobtRecord> {
    let Some(inodes) = group.inodes else { return Vec::new() };
    let count = inodes.blocks << layout.geometry.inodes_per_block_log;
    let first = first_inode(layout, inodes).0;
    (0..count / INODES_PER_CHUNK)
        .map(|nth| {
            let used = if nth == 0 { (1 << INODES_USED) - 1 } else { 0 };
            let start = AgInode(first + nth * INODES_PER_CHUNK);
            InobtRecord::whole(start, !used, layout.geometry.sparse_inodes)
        })
        .collect()
}

/// The owners of a group's blocks. Neighbouring blocks of one owner are one record.
fn owners(layout: &VolumeLayout, group: &GroupLayout) -> Vec<RmapRecord> {
    let headers = Extent { start: AgBlock(0), blocks: layout.header_blocks() };
    let roots = TreeRoot::of(&layout.features).filter_map(|root| {
        let owner = match root {
            TreeRoot::Bnobt | TreeRoot::Cntbt | TreeRoot::Rmapbt => RmapRecord::OWNER_SPACE_TREES,
            TreeRoot::Inobt | TreeRoot::Finobt => RmapRecord::OWNER_INODE_TREES,
            TreeRoot::Refcountbt => RmapRecord::OWNER_REFCOUNT_TREE,
        };
        Some((Extent { start: layout.root(root)?, blocks: 1 }, owner))
    });
    let mut runs: Vec<(Extent, u64)> = vec![(headers, RmapRecord::OWNER_HEADERS)];
    runs.extend(roots);
    runs.extend(group.log.map(|log| (log, RmapRecord::OWNER_LOG)));
    runs.push((group.agfl, RmapRecord::OWNER_SPACE_TREES));
    runs.extend(group.inodes.map(|inodes| (inodes, RmapRecord::OWNER_INODES)));
    runs.dedup_by(|next, last| {
        let joins = next.1 == last.1 && next.0.start.0 == last.0.end();
        if joins {
            last.0.blocks += next.0.blocks;
        }
        joins
    });
    let record = |(extent, owner): (Extent, u64)| RmapRecord {
        startblock: extent.start.0.into(),
        blockcount: extent.blocks.into(),
        owner: owner.into(),
        offset: 0.into(),
    };
    runs.into_iter().map(record).collect()
}

/// The blocks of the first inodes.
pub(super) fn inode_blocks(layout: &VolumeLayout, inodes: Extent) -> Vec<u8> {
    let geometry = &layout.geometry;
    let mut bytes = vec![0; (inodes.blocks as usize) << geometry.block_log];
    let first = geometry.join_inode(AgNumber(0), first_inode(layout, inodes));
    for (nth, to) in (0..).zip(bytes.chunks_exact_mut(geometry.inode_size.into())) {
        let ino = InodeNumber(first.0 + nth);
        let (core, used) = inode(layout, nth);
        let root = empty_dir(first);
        let content: &[u8] = if nth == 0 { &root } else { &[] };
        core.encode(ino, geometry, !used, (content, &[]), Lsn(0), to);
        debug_assert!(to.starts_with(&INODE_MAGIC.to_be_bytes()));
    }
    bytes
}

/// An empty directory that is its own parent. The numbers of the first inodes are short.
fn empty_dir(parent: InodeNumber) -> [u8; EMPTY_DIR_LEN] {
    let mut dir = [0; EMPTY_DIR_LEN];
    dir[2..].copy_from_slice(&(parent.0 as u32).to_be_bytes());
    dir
}

/// The inode at this index of the first chunk, and whether it is in use.
fn inode(layout: &VolumeLayout, nth: u64) -> (InodeCore, bool) {
    let features = &layout.features;
    let mut flags2 = InodeFlags2::empty();
    flags2.set(InodeFlags2::BIGTIME, features.bigtime);
    flags2.set(InodeFlags2::NREXT64, features.nrext64);
    let time = layout.time;
    let file = |format| InodeCore {
        version: 3,
        mode: 0o100_000,
        kind: InodeType::Regular,
        uid: 0,
        gid: 0,
        nlink: 1,
        projid: 0,
        // For the realtime bitmap this is a sequence number, which begins with 0.
        atime: Timestamp::default(),
        mtime: time,
        ctime: time,
        crtime: Some(time),
        size: 0,
        nblocks: 0,
        extsize: 0,
        cowextsize: 0,
        flags: InodeFlags::empty(),
        flags2,
        generation: 0,
        changecount: 1,
        data: ForkInfo { format, nextents: 0, range: CORE_LEN_V3..layout.geometry.inode_size.into() },
        attr: None,
    };
    let core = match nth {
        0 => InodeCore {
            mode: 0o040_755,
            kind: InodeType::Directory,
            nlink: 2,
            atime: time,
            size: EMPTY_DIR_LEN as u64,
            ..file(ForkFormat::Local)
        },
        1 => InodeCore { flags: InodeFlags::NEWRTBM, ..file(ForkFormat::Extents) },
        2 => file(ForkFormat::Extents),
        _ => {
            let never = Timestamp::default();
            let (mtime, ctime, crtime) = (never, never, Some(never));
            let flags2 = InodeFlags2::empty();
            InodeCore { nlink: 0, mtime, ctime, crtime, flags2, changecount: 0, ..file(ForkFormat::Extents) }
        }
    };
    (core, nth < INODES_USED)
}
