//! What an operation may need at most: log space and blocks, reserved before anything is locked.
//!
//! A [`Need`] adds up the worst case of the parts of an operation: inodes that are logged, allocations and freeings
//! (each may split or join every level of both trees of free space), changes of a block map, of a directory, of an
//! inode tree. Reserving too little would make a transaction fail half-way; reserving too much costs nothing but
//! waiting when the log is nearly full, hence every bound is rounded up.
//!
//! Invariant: no operation logs more in one step than its reservation says (the journal checks it in debug builds).

use super::deferred::{IntentBytes, count_bytes, exchange_bytes, free_bytes, map_bytes, rmap_bytes};
use crate::alloc::rmap_levels;
use crate::refcount::{blocks_of_changes, changes_of_adjust};
use xfs_format::btree::{Bmbt, Bnobt, Inobt, Refcountbt, Tree};
use xfs_format::geometry::Geometry;
use xfs_format::log::{BUF_CHUNK_SIZE, BufHeader, InodeFormat};

pub use crate::mount::Reservation;

/// Pieces of a run that one transaction counts.
pub(crate) const PIECES: u32 = 4;
/// Mappings that a step of an exchange changes: of each file one goes and one comes.
const REMAPPED: u64 = 4;
/// Mappings that one change of a map makes others, at most: an extent moves, and is one with its neighbour.
const MAPPINGS: u64 = 2;
/// Bytes of an operation header, and of padding behind a region.
const REGION_BYTES: u64 = 12 + 3;

/// The worst case of an operation, part by part.
#[derive(Clone, Copy, Debug)]
pub struct Need<'g> {
    geometry: &'g Geometry,
    bytes: u64,
    blocks: u64,
    count: u32,
    /// Bytes that it takes to log all intents again.
    intents: u64,
}

impl<'g> Need<'g> {
    /// Nothing yet.
    pub fn new(geometry: &'g Geometry) -> Self {
        Self { geometry, bytes: 0, blocks: 0, count: 1, intents: 0 }
    }

    /// Bytes a block.
    pub(super) fn block_bytes(&self) -> u64 {
        self.geometry.block_size.into()
    }

    /// So many inodes are logged, with their forks.
    pub fn inodes(mut self, count: u64) -> Self {
        let each = InodeFormat::BYTES as u64 + u64::from(self.geometry.inode_size) + 5 * REGION_BYTES + 72;
        self.bytes += count * each;
        self
    }

    /// So many buffers of a sector (group headers, the superblock).
    pub fn sectors(mut self, count: u64) -> Self {
        self.bytes += count * buffer_bytes(self.geometry.sector_size.into());
        self
    }

    /// So many buffers of one block.
    pub fn buffers(mut self, count: u64) -> Self {
        self.bytes += count * buffer_bytes(self.geometry.block_size.into());
        self
    }

    /// So many directory blocks.
    pub fn dir_buffers(mut self, count: u64) -> Self {
        self.bytes += count * buffer_bytes(self.geometry.dir_block_size().into());
        self
    }

    /// So many allocations or freeings of one extent: AGF, AGFL, both trees of free space, and the reverse map, which
    /// has blocks of the ring change hands besides.
    pub fn extents(self, count: u64) -> Self {
        let levels = space_levels(self.geometry);
        let map = if self.geometry.rmapbt { u64::from(rmap_levels(self.geometry)) } else { 0 };
        self.sectors(2 * count).buffers(count * 2 * ((2 * levels - 1) + (2 * map).saturating_sub(1)))
    }

    /// So many extents are freed, each in a step of its own behind those that are counted otherwise; or lose an owner,
    /// where blocks can have several.
    pub fn frees(self, count: u64) -> Self {
        if self.geometry.reflink { self.counts(count) } else { self.intents(count, free_bytes()) }
    }

    /// So many runs of blocks get an owner more or less, or are staged for a copy or no more, each in a step of its own.
    /// What such a step frees comes before the next one.
    pub fn counts(self, count: u64) -> Self {
        // The longer of the two: what is about one run may be about its freeing.
        let each = IntentBytes::longer(count_bytes(), free_bytes());
        self.intents(count, each)
    }

    /// So many runs of blocks get an owner more or less at once. What arises of that is owed.
    pub fn counts_at_once(self, count: u64) -> Self {
        let mut need = self;
        for _ in 0..count {
            need = need.count_step();
        }
        need.counts(count).intents(count * u64::from(PIECES), free_bytes())
    }

    /// The counts of the pieces of a run change. Blocks that their tree takes or gives back are allocated and freed.
    fn count_step(self) -> Self {
        if !self.geometry.reflink {
            return self;
        }
        let levels = count_levels(self.geometry);
        let blocks = blocks_of_changes(self.geometry, levels as u32, changes_of_adjust(PIECES));
        self.extents(2).buffers(blocks.into())
    }

    /// So many mappings come into maps of files or go, each of a file of its own, at once.
    pub fn maps_at_once(self, count: u64) -> Self {
        self.inodes(count).map_changes(count).intents(count, map_bytes())
    }

    /// A pair of mappings of two files is exchanged: the changes of maps are owed, and what is left.
    pub fn exchange_at_once(self) -> Self {
        self.inodes(2).intents(REMAPPED, map_bytes()).intents(1, exchange_bytes())
    }

    /// So many mappings are told to the reverse map, if there is one, each in a step of its own.
    pub fn rmaps(self, count: u64) -> Self {
        if self.geometry.rmapbt { self.intents(count, rmap_bytes()) } else { self }
    }

    /// So many intents: they are logged with the first step, and the log has room to log each again.
    fn intents(mut self, count: u64, each: IntentBytes) -> Self {
        self.intents += count * each.relog;
        self.bytes += count * each.begin;
        self
    }

    /// Blocks for content.
    pub fn blocks(mut self, count: u64) -> Self {
        self.blocks += count;
        self
    }

    /// So many changes of a fork's map, each of which may split the tree at every level.
    pub fn map_changes(self, count: u64) -> Self {
        let levels = map_levels(self.geometry);
        let one = self.buffers(2 * count * levels);
        // Splits take blocks, one allocation for all of them at the least.
        one.blocks(count * levels).extents(count.min(2)).frees(count * levels).rmaps(MAPPINGS * count)
    }

    /// A directory gets or loses an entry: data block, index path, free index, and the map of all that is new.
    pub fn dir_change(self) -> Self {
        const INDEX_LEVELS: u64 = 5;
        let per_block = u64::from(self.geometry.dir_block_blocks());
        let new_blocks = INDEX_LEVELS + 3;
        let blocks = new_blocks * per_block;
        self.dir_buffers(2 * INDEX_LEVELS + 5)
            .blocks(blocks)
            .map_changes(4)
            .extents(2)
            .frees(blocks)
            .rmaps(2 * blocks)
    }

    /// An attribute with a value of so many blocks beside the tree is set or removed. The value that goes may be of any
    /// length, in as many extents as it has blocks.
    pub fn attr_change(self, value_blocks: u64) -> Self {
        const INDEX_LEVELS: u64 = 5;
        const VALUE_MAX: u64 = 64 << 10;
        const HEADER: u64 = 64;
        let new_blocks = INDEX_LEVELS + 4;
        let old_value = VALUE_MAX.div_ceil(u64::from(self.geometry.block_size) - HEADER);
        self.buffers(2 * INDEX_LEVELS + 4)
            .blocks(new_blocks + value_blocks)
            .map_changes(4 + value_blocks / 16)
            .extents(2)
            .frees(INDEX_LEVELS + old_value)
            .rmaps(INDEX_LEVELS + old_value + new_blocks + value_blocks)
    }

    /// So many inodes get, lose or exchange a parent pointer, on a volume that has them: for each what an attribute beside
    /// its name takes, as pointers of many names are a tree. An inode that has got none yet gets its attribute fork.
    pub fn parent_changes(self, count: u64) -> Self {
        const INDEX_LEVELS: u64 = 5;
        const NEW_BLOCKS: u64 = INDEX_LEVELS + 4;
        if !self.geometry.parent_pointers {
            return self;
        }
        self.attr_fork()
            .buffers(count * 2 * (2 * INDEX_LEVELS + 4))
            .blocks(count * NEW_BLOCKS)
            .map_changes(count * 4)
            .extents(2)
            .frees(count * INDEX_LEVELS)
            .rmaps(count * (INDEX_LEVELS + NEW_BLOCKS))
    }

    /// An inode gets an attribute fork, and what filled it goes into blocks: a directory, a link's target, the map of
    /// a file.
    pub fn attr_fork(self) -> Self {
        const TARGET_BLOCKS: u64 = 2;
        let blocks = u64::from(self.geometry.dir_block_blocks()).max(TARGET_BLOCKS);
        let need = self.dir_buffers(1).buffers(TARGET_BLOCKS).blocks(blocks).map_changes(2);
        need.first_attribute()
    }

    /// It may be the volume's first attribute, which the superblock tells.
    pub fn first_attribute(self) -> Self {
        self.sectors(1)
    }

    /// An inode gets or loses its place: AGI, both inode trees, its cluster's list pointers.
    pub fn inode_change(self) -> Self {
        let levels = inode_levels(self.geometry);
        // Each tree may take or give back a block.
        self.sectors(2).buffers(2 * 2 * levels + 1).inodes(1).extents(2)
    }

    /// A chunk of inodes may be made or given back.
    pub fn inode_chunk(self) -> Self {
        let chunk = 64 * u64::from(self.geometry.inode_size);
        let chunk_blocks = chunk.div_ceil(self.geometry.block_size.into()).max(1);
        let levels = inode_levels(self.geometry);
        // What is left of a chunk may lie in pieces.
        const PIECES: u64 = 8;
        let mut need = self.inode_change().extents(2).blocks(chunk_blocks + 2 * levels).frees(PIECES);
        // The creation item; where a chunk is taken back, a cancelled buffer a cluster.
        need.bytes += 28 + 3 * REGION_BYTES + chunk_blocks * (BufHeader::bytes(32) as u64 + REGION_BYTES);
        need
    }

    /// A list of unlinked inodes changes: the AGI, and up to two clusters' pointers. All pointers are logged that were
    /// changed since their cluster was written.
    pub fn unlinked(self) -> Self {
        const INODES: u64 = 64;
        let inodes = INODES.max(1 << self.geometry.inodes_per_block_log);
        let cluster = BufHeader::bytes(BufHeader::map_words(64 << 10)) as u64
            + REGION_BYTES
            + inodes * (BUF_CHUNK_SIZE as u64 + REGION_BYTES);
        let mut need = self.sectors(1);
        need.bytes += 2 * cluster;
        need
    }

    /// Any number of bytes besides.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes += bytes;
        self
    }

    /// The operation goes in so many steps.
    pub fn steps(mut self, count: u32) -> Self {
        self.count = count;
        self
    }

    /// What to reserve.
    pub fn reservation(self) -> Reservation {
        // What was owed goes in steps of its own: each step has room for one, and for what arises of it.
        let mut deferred = Self::new(self.geometry).extents(1).inodes(2).bytes;
        let mut intents = self.intents;
        if self.geometry.reflink && intents > 0 {
            let arisen = Self::new(self.geometry).intents(u64::from(PIECES), free_bytes()).counts(1);
            deferred = deferred.max(Self::new(self.geometry).count_step().inodes(2).bytes + arisen.bytes);
            intents += arisen.intents;
        }
        let bytes = self.bytes.max(deferred) + 256;
        Reservation {
            blocks: self.blocks,
            log_bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            log_count: self.count,
            intent_bytes: u32::try_from(intents).unwrap_or(u32::MAX),
            blocks_optional: false,
        }
    }
}

/// Bytes of the log for a buffer of which everything is dirty, in the worst pattern.
fn buffer_bytes(len: u64) -> u64 {
    let map = BufHeader::bytes(BufHeader::map_words(len as usize)) as u64;
    let chunks = len.div_ceil(BUF_CHUNK_SIZE as u64);
    map + len + (1 + chunks.div_ceil(2)) * REGION_BYTES
}

/// Levels of a tree of so many records whose blocks are half full.
fn levels<T: Tree>(geometry: &Geometry, records: u64) -> u64 {
    let body = geometry.block_size as usize - T::header_len(true);
    let (leaf, inner) = ((T::max_records(body) / 2).max(1) as u64, (T::max_children(body) / 2).max(2) as u64);
    let mut blocks = records.div_ceil(leaf).max(1);
    let mut levels = 1;
    while blocks > 1 {
        blocks = blocks.div_ceil(inner);
        levels += 1;
    }
    levels
}

/// Most levels of a tree of free space: every other block of the group free.
pub(crate) fn space_levels(geometry: &Geometry) -> u64 {
    levels::<Bnobt>(geometry, (u64::from(geometry.ag_blocks) / 2).max(1))
}

/// Most levels of a tree of reference counts: every block of the group differs from its neighbour.
pub(crate) fn count_levels(geometry: &Geometry) -> u64 {
    levels::<Refcountbt>(geometry, geometry.ag_blocks.into())
}

/// Most levels of an inode tree.
pub(crate) fn inode_levels(geometry: &Geometry) -> u64 {
    let inodes = u64::from(geometry.ag_blocks) << geometry.inodes_per_block_log;
    levels::<Inobt>(geometry, (inodes / 64).max(1))
}

/// Most levels of a block map: as many extents as the volume has blocks, within what an inode may count.
pub(crate) fn map_levels(geometry: &Geometry) -> u64 {
    levels::<Bmbt>(geometry, geometry.data_blocks().min(1 << 31))
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::ialloc;
    use crate::mkfs::{Before, Options, format, plan};
    use crate::namespace::{self, NewInode};
    use crate::trans::Trans;
    use crate::trans::buffers::Joined;
    use crate::volume::{OpenOptions, Volume};
    use blockdev::{BlockDevice, MemoryDevice};
    use std::sync::Arc;
    use xfs_format::timestamp::Timestamp;
    use xfs_format::types::Uuid;

    /// Every change of a list logs all pointers of the cluster that were changed since it was written, and reserved for
    /// four.
    #[test]
    fn a_list_of_unlinked_inodes_reserves_for_whole_clusters() {
        const BYTES: u64 = 48 << 20;
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).unwrap());
        let new = Options::new(Uuid([7; 16]), Timestamp { secs: 1, nanos: 0 });
        let new = Options { small: true, ..new };
        format(&*device, &plan(&new, BYTES).unwrap(), Before::Zeroes).unwrap();
        let volume = Volume::open(device, &OpenOptions { writable: true, ..OpenOptions::default() }).unwrap();
        let time = Timestamp { secs: 1, nanos: 0 };
        let root = volume.handle(volume.geometry().root).unwrap();
        let new = NewInode::for_tests(0o100_644, time);
        // Four to a list, so that there are pointers.
        let inodes: Vec<_> =
            (0..256).map(|_| namespace::create_unnamed(&volume, &root, &new).unwrap()).collect();
        for (file, _open) in &inodes {
            let entry = file.entry();
            let need = Need::new(volume.geometry()).inodes(1).unlinked();
            let mut trans = Trans::start(&volume, need.reservation()).unwrap();
            trans.join_inode(Arc::clone(entry), entry.lock()).unwrap();
            ialloc::remove_unlinked(&mut trans, entry.ino()).unwrap();
            ialloc::add_unlinked(&mut trans, entry.ino()).unwrap();
            let logged: u64 = trans
                .bufs
                .iter()
                .filter_map(Joined::format)
                .map(|(_, vector)| u64::from(vector.log_bytes()))
                .sum();
            let reserved = Need::new(volume.geometry()).unlinked().bytes;
            assert!(logged <= reserved, "{logged} bytes are logged, {reserved} were reserved");
            trans.commit().unwrap();
        }
    }
}
