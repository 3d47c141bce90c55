//! The worst case of an operation: log space and blocks, reserved before anything is locked.
//!
//! A [`ReservationBuilder`] adds up the worst case of an operation's parts: logged inodes, allocations and frees (each
//! may split or join every level of both free space trees), changes of a block map, of a directory, of an inode tree.
//! With too small a reservation a transaction would fail half-way. Too large a one only costs waiting when the log is
//! nearly full. So every bound is rounded up.
//!
//! The worst case of a frequent operation is ten times what it usually needs. Such an operation begins with the latter, and
//! takes more at its first commit: see `Reservation::beginning_with`.
//!
//! Invariant: no operation logs more in one step than its reservation says, or than it has taken since (the journal checks
//! it in debug builds).

use super::deferred::{IntentBytes, count_bytes, exchange_bytes, free_bytes, map_bytes, rmap_bytes};
use crate::alloc::rmap_levels;
use crate::refcount::{blocks_of_changes, changes_of_adjust};
use xfs_format::btree::{Bmbt, Bnobt, Inobt, Refcountbt, Tree};
use xfs_format::geometry::Geometry;
use xfs_format::log::{BUF_CHUNK_SIZE, BufHeader, InodeFormat};

pub use crate::mount::Reservation;
pub(crate) use crate::mount::{LogNeed, WhenFull};

/// Pieces of a run whose refcounts one transaction changes.
pub(crate) const PIECES: u32 = 4;
/// Mappings that a step of an exchange changes: in each file one leaves and one enters.
const REMAPPED: u64 = 4;
/// Mappings that one map change alters at most: an extent moves and merges with its neighbour.
const MAPPINGS: u64 = 2;
/// Bytes of an operation header and of the padding after a region.
const REGION_BYTES: u64 = 12 + 3;

/// The worst case of an operation, part by part.
#[derive(Clone, Copy, Debug)]
pub struct ReservationBuilder<'g> {
    geometry: &'g Geometry,
    bytes: u64,
    blocks: u64,
    count: u32,
    /// Log bytes to log all intents again.
    intents: u64,
}

impl<'g> ReservationBuilder<'g> {
    /// An empty reservation.
    pub fn new(geometry: &'g Geometry) -> Self {
        Self { geometry, bytes: 0, blocks: 0, count: 1, intents: 0 }
    }

    /// Bytes per block.
    pub(super) fn block_bytes(&self) -> u64 {
        self.geometry.block_size.into()
    }

    /// Adds logged inodes with their forks.
    pub fn inodes(mut self, count: u64) -> Self {
        self.bytes += count * inode_bytes(self.geometry.inode_size);
        self
    }

    /// Adds buffers of one sector (group headers, the superblock).
    pub fn sectors(mut self, count: u64) -> Self {
        self.bytes += count * buffer_bytes(self.geometry.sector_size.into());
        self
    }

    /// Adds buffers of one block.
    pub fn buffers(mut self, count: u64) -> Self {
        self.bytes += count * buffer_bytes(self.geometry.block_size.into());
        self
    }

    /// Adds directory blocks.
    pub fn dir_buffers(mut self, count: u64) -> Self {
        self.bytes += count * buffer_bytes(self.geometry.dir_block_size().into());
        self
    }

    /// Adds allocations or frees of one extent: AGF, AGFL, both free space trees, and the rmap tree, in which blocks of
    /// the AGFL change owners as well.
    pub fn extents(self, count: u64) -> Self {
        let levels = space_levels(self.geometry);
        let map = if self.geometry.rmapbt { u64::from(rmap_levels(self.geometry)) } else { 0 };
        self.sectors(2 * count).buffers(count * 2 * ((2 * levels - 1) + (2 * map).saturating_sub(1)))
    }

    /// Adds extents that are freed, or that lose an owner where blocks can be shared. Each takes a step of its own,
    /// after the steps counted otherwise.
    pub fn frees(self, count: u64) -> Self {
        if self.geometry.reflink { self.counts(count) } else { self.intents(count, free_bytes()) }
    }

    /// Adds runs of blocks that get or lose an owner, or enter or leave CoW staging. Each takes a step of its own. What
    /// a step frees is done before the next.
    pub fn counts(self, count: u64) -> Self {
        // Use the longer intent: an intent for a run may become one that frees it.
        let each = IntentBytes::longer(count_bytes(), free_bytes());
        self.intents(count, each)
    }

    /// Adds runs of blocks whose owners change within the first step. What follows from that is deferred.
    pub fn counts_at_once(self, count: u64) -> Self {
        let mut need = self;
        for _ in 0..count {
            need = need.count_step();
        }
        need.counts(count).intents(count * u64::from(PIECES), free_bytes())
    }

    /// The refcounts of a run's pieces change. Blocks of the refcount tree are allocated and freed.
    fn count_step(self) -> Self {
        if !self.geometry.reflink {
            return self;
        }
        let levels = count_levels(self.geometry);
        let blocks = blocks_of_changes(self.geometry, levels as u32, changes_of_adjust(PIECES));
        self.extents(2).buffers(blocks.into())
    }

    /// Adds mappings that enter or leave maps of files, each of a different file, within the first step.
    pub fn maps_at_once(self, count: u64) -> Self {
        self.inodes(count).map_changes(count).intents(count, map_bytes())
    }

    /// Adds the exchange of a pair of mappings between two files. The map changes and the rest of the exchange are
    /// deferred.
    pub fn exchange_at_once(self) -> Self {
        self.inodes(2).intents(REMAPPED, map_bytes()).intents(1, exchange_bytes())
    }

    /// Adds updates of the rmap tree, if there is one, each in a step of its own.
    pub fn rmaps(self, count: u64) -> Self {
        if self.geometry.rmapbt { self.intents(count, rmap_bytes()) } else { self }
    }

    /// Adds intents. They are logged with the first step, and the log has room to log each again.
    fn intents(mut self, count: u64, each: IntentBytes) -> Self {
        self.intents += count * each.relog;
        self.bytes += count * each.begin;
        self
    }

    /// Adds blocks for content.
    pub fn blocks(mut self, count: u64) -> Self {
        self.blocks += count;
        self
    }

    /// Adds changes of a fork's map, each of which may split the tree at every level.
    pub fn map_changes(self, count: u64) -> Self {
        let levels = map_levels(self.geometry);
        let one = self.buffers(2 * count * levels);
        // Splits take blocks, at best in one allocation for all of them.
        one.blocks(count * levels).extents(count.min(2)).frees(count * levels).rmaps(MAPPINGS * count)
    }

    /// Adds an insertion into or removal from a directory: data block, index path, free index, and the map of all new
    /// blocks.
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

    /// Adds setting or removing an attribute whose remote value has this many blocks. The removed value may have any
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

    /// Adds inodes that get, lose or exchange a parent pointer, if the volume has them. Each takes what an attribute
    /// takes, because the pointers of many names form a tree. An inode without an attribute fork gets one.
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

    /// Adds an attribute fork to an inode. What filled the inode moves into blocks: a directory, a link's target, the
    /// map of a file.
    pub fn attr_fork(self) -> Self {
        const TARGET_BLOCKS: u64 = 2;
        let blocks = u64::from(self.geometry.dir_block_blocks()).max(TARGET_BLOCKS);
        let need = self.dir_buffers(1).buffers(TARGET_BLOCKS).blocks(blocks).map_changes(2);
        need.first_attribute()
    }

    /// Adds the superblock, which records the volume's first attribute.
    pub fn first_attribute(self) -> Self {
        self.sectors(1)
    }

    /// Adds allocating or freeing an inode: AGI, both inode trees, its cluster's unlinked pointers.
    pub fn inode_change(self) -> Self {
        let levels = inode_levels(self.geometry);
        // Each tree may take or give back a block.
        self.sectors(2).buffers(2 * 2 * levels + 1).inodes(1).extents(2)
    }

    /// Adds making or freeing an inode chunk.
    pub fn inode_chunk(self) -> Self {
        let chunk = 64 * u64::from(self.geometry.inode_size);
        let chunk_blocks = chunk.div_ceil(self.geometry.block_size.into()).max(1);
        let levels = inode_levels(self.geometry);
        // A sparse chunk may be freed in pieces.
        const PIECES: u64 = 8;
        let mut need = self.inode_change().extents(2).blocks(chunk_blocks + 2 * levels).frees(PIECES);
        // The inode create item, or, if a chunk is freed, a cancelled buffer for each cluster.
        need.bytes += 28 + 3 * REGION_BYTES + chunk_blocks * (BufHeader::bytes(32) as u64 + REGION_BYTES);
        need
    }

    /// Adds a change of an unlinked list: the AGI and pointers in up to two clusters. All pointers are logged that were
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

    /// Adds any number of bytes.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes += bytes;
        self
    }

    /// Sets the number of steps.
    pub fn log_count(mut self, count: u32) -> Self {
        self.count = count;
        self
    }

    /// The reservation of an operation that begins with what it usually needs: see [`usual`](Self::usual).
    pub(crate) fn build_to_begin_small(self) -> Reservation {
        self.build().beginning_with(Self::usual(self.geometry).build())
    }

    /// What a name that is made, moved or removed usually changes, or a few extents that a file gets or loses: inodes, a block
    /// of each tree of the directory, headers of a group, and a leaf or two of each of its trees.
    pub(crate) fn usual(geometry: &'g Geometry) -> Self {
        Self::new(geometry).inodes(4).sectors(4).buffers(8).dir_buffers(4)
    }

    /// The reservation.
    pub fn build(self) -> Reservation {
        // Deferred work runs in steps of its own. Each step has room for one item and for what arises from it.
        let mut deferred = Self::new(self.geometry).extents(1).inodes(2).bytes;
        let mut intents = self.intents;
        if self.geometry.reflink && intents > 0 {
            let arisen = Self::new(self.geometry).intents(u64::from(PIECES), free_bytes()).counts(1);
            deferred = deferred.max(Self::new(self.geometry).count_step().inodes(2).bytes + arisen.bytes);
            intents += arisen.intents;
        }
        let log_bytes = |bytes: u64| u32::try_from(bytes + 256).unwrap_or(u32::MAX);
        Reservation {
            blocks: self.blocks,
            log_bytes: log_bytes(self.bytes.max(deferred)),
            usual_log_bytes: None,
            deferred_log_bytes: log_bytes(deferred),
            log_count: self.count,
            intent_bytes: u32::try_from(intents).unwrap_or(u32::MAX),
            when_full: WhenFull::Refuse,
        }
    }
}

/// Log bytes for an inode of this size with both forks.
pub(super) fn inode_bytes(size: u16) -> u64 {
    InodeFormat::BYTES as u64 + u64::from(size) + 5 * REGION_BYTES + 72
}

/// Log bytes for a buffer that is dirty in the worst pattern.
pub(super) fn buffer_bytes(len: u64) -> u64 {
    let map = BufHeader::bytes(BufHeader::map_words(len as usize)) as u64;
    let chunks = len.div_ceil(BUF_CHUNK_SIZE as u64);
    map + len + (1 + chunks.div_ceil(2)) * REGION_BYTES
}

/// Levels of a tree with this many records whose blocks are half full.
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

/// Maximum levels of a free space tree: every other block of the group is free.
pub(crate) fn space_levels(geometry: &Geometry) -> u64 {
    levels::<Bnobt>(geometry, (u64::from(geometry.ag_blocks) / 2).max(1))
}

/// Maximum levels of a refcount tree: every block of the group differs from its neighbour.
pub(crate) fn count_levels(geometry: &Geometry) -> u64 {
    levels::<Refcountbt>(geometry, geometry.ag_blocks.into())
}

/// Maximum levels of an inode tree.
pub(crate) fn inode_levels(geometry: &Geometry) -> u64 {
    let inodes = u64::from(geometry.ag_blocks) << geometry.inodes_per_block_log;
    levels::<Inobt>(geometry, (inodes / 64).max(1))
}

/// Maximum levels of a block map: as many extents as the volume has blocks, up to what an inode can count.
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
    use crate::volume::{OpenOptions, Volume};
    use blockdev::{BlockDevice, MemoryDevice};
    use std::sync::Arc;
    use xfs_format::timestamp::Timestamp;
    use xfs_format::types::Uuid;

    /// Regression: every change of an unlinked list logs all pointers of the cluster that were changed since it was
    /// written, but only four were reserved.
    #[test]
    fn a_list_of_unlinked_inodes_reserves_for_whole_clusters() {
        const BYTES: u64 = 48 << 20;
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).unwrap());
        let new = Options::new(Uuid([7; 16]), Timestamp { seconds: 1, nanoseconds: 0 });
        let new = Options { small: true, ..new };
        format(&*device, &plan(&new, BYTES).unwrap(), Before::Zeroes).unwrap();
        let volume = Volume::open(device, &OpenOptions { writable: true, ..OpenOptions::default() }).unwrap();
        let time = Timestamp { seconds: 1, nanoseconds: 0 };
        let root = volume.handle(volume.geometry().root).unwrap();
        let new = NewInode::for_tests(0o100_644, time);
        // Four inodes on each list, so that there are pointers.
        let inodes: Vec<_> =
            (0..256).map(|_| namespace::create_unnamed(&volume, &root, &new).unwrap()).collect();
        for (file, _open) in &inodes {
            let entry = file.entry();
            let need = ReservationBuilder::new(volume.geometry()).inodes(1).unlinked();
            let mut trans = Trans::start(&volume, need.build()).unwrap();
            trans.join_inode(Arc::clone(entry), entry.ilock()).unwrap();
            ialloc::remove_unlinked(&mut trans, entry.ino()).unwrap();
            ialloc::add_unlinked(&mut trans, entry.ino()).unwrap();
            let logged: u64 =
                trans.bufs.iter().filter(|buf| buf.is_logged()).map(|buf| buf.log_bytes()).sum();
            let reserved = ReservationBuilder::new(volume.geometry()).unlinked().bytes;
            assert!(logged <= reserved, "{logged} bytes are logged, {reserved} were reserved");
            trans.commit().unwrap();
        }
    }
}
