//! Default and minimum size of a log.
//!
//! A kernel refuses to mount a v5 volume whose log is smaller than three times the largest reservation of an operation,
//! so that one operation fits even while the log's tail does not move. A reservation follows from the volume's
//! geometry: some number of blocks of some number of trees, whose depth is bounded (`levels`).
//!
//! The rule below was found by experiment. For some 700 volumes (all block, inode, sector and directory block sizes,
//! groups from 16 MiB to 1 TiB, all features) the log's size in the superblock was set to 1, and the kernel (6.18) was
//! asked to mount it. It reports the minimum size that it would accept. [`log_blocks_min`] is that number, or (for one
//! of those 700) three blocks more. A test asks the kernel again.
//!
//! That number holds for records of 32 KiB. A kernel with larger ones (`logbsize`) needs some more blocks. Logs of
//! default size have them, as with `mkfs.xfs`.

use super::levels::{DepthInputs, Levels, map_entries};
use crate::error::mkfs::Refusal;

/// Minimum number of blocks of a log.
const BLOCKS_MIN: u64 = 512;
/// Maximum number of blocks of a log.
const BLOCKS_MAX: u64 = 1 << 20;
/// Maximum number of bytes of a log.
const BYTES_MAX: u64 = (2 << 30) - (10 << 20);
/// The minimum default size of a log in `mkfs.xfs`.
const BYTES_USUAL: u64 = 64 << 20;
/// It applies from this size of the volume on.
const VOLUME_USUAL: u64 = 300 << 20;
/// In a large volume, the log has this share.
const SHARE: u64 = 2048;

/// Bytes of a symbolic link's target.
const SYMLINK_TARGET: u64 = 1024;
/// Blocks of a path through an attribute fork.
const ATTR_PATH: u64 = 5;
/// An intent to set or remove one parent pointer: itself, the value, the longest name.
const CHANGE_PARENT: u64 = 40 + 12 + 256;
/// An intent to replace one parent pointer.
const REPLACE_PARENT: u64 = 40 + 2 * (12 + 256);

/// What a log's minimum size depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogShape {
    pub shape: DepthInputs,
    pub sector_size: u32,
    pub dir_block_size: u32,
    pub finobt: bool,
    /// Bytes to which log writes are padded; 1 for no padding.
    pub stripe_unit: u32,
}

/// Default and maximum size of a kernel's log records (`logbsize`) in bytes.
const RECORD_USUAL: u64 = 32 << 10;
const RECORD_MOST: u64 = 256 << 10;

/// Minimum number of blocks of a log for this kernel and later ones.
pub(super) fn least(of: &LogShape) -> u64 {
    kernel_least(of, RECORD_USUAL).max(BLOCKS_MIN)
}

/// Minimum number of blocks of a log for which kernels mount the volume with any record size. `mkfs.xfs` makes none
/// that is smaller.
fn least_unasked(of: &LogShape) -> u64 {
    kernel_least(of, RECORD_MOST).max(least(of))
}

/// Minimum number of blocks of a log for a volume like that of `superblock`. `None` if that volume has none of the
/// geometries that are made here.
pub fn log_blocks_min(superblock: &xfs_format::superblock::Superblock) -> Option<u64> {
    use xfs_format::features::RoCompat;
    let (raw, ro) = (superblock.raw(), superblock.ro_compat());
    superblock.is_v5().then(|| {
        least(&LogShape {
            shape: DepthInputs::of(superblock),
            sector_size: raw.sectsize.get().into(),
            dir_block_size: raw.blocksize.get() << raw.dirblklog,
            finobt: ro.contains(RoCompat::FINOBT),
            stripe_unit: raw.logsunit.get().max(1),
        })
    })
}

/// Blocks that a group has room for.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogRoom {
    /// For a log with a requested size.
    pub(super) most: u64,
    /// For a log of default size.
    pub(super) unasked: u64,
}

/// Blocks of the log of a volume of `data_blocks` blocks whose groups have this much room.
pub(super) fn choose(
    wanted: Option<u64>,
    of: &LogShape,
    data_blocks: u64,
    room: LogRoom,
    small: bool,
) -> Result<u32, Refusal> {
    let block = u64::from(of.shape.block_size);
    let (least, unasked) = (least(of), least_unasked(of));
    let usual = if small { least } else { least.max(BYTES_USUAL / block) };
    let most = BLOCKS_MAX.min(BYTES_MAX / block);
    let blocks = match wanted {
        Some(bytes) if !bytes.is_multiple_of(block) => {
            return Err(Refusal::LogUnit { size: bytes, block: of.shape.block_size });
        }
        Some(bytes) => bytes / block,
        None if data_blocks * block < VOLUME_USUAL => unasked,
        None => {
            let share = (data_blocks / SHARE).max(BYTES_USUAL / block).min(most).max(unasked);
            // If a group has no room for it, the log is as large as that room.
            if usual > room.unasked {
                // `usual` is a part of the volume's least group.
                return Err(Refusal::LogRoom { blocks: usual as u32, group: of.shape.ag_blocks });
            }
            share.min(room.unasked)
        }
    };
    if blocks < usual || blocks > most {
        return Err(Refusal::LogSize { blocks, least: usual, most, small });
    }
    // `most` is below 2^21.
    let blocks = blocks as u32;
    if u64::from(blocks) > room.most {
        return Err(Refusal::LogRoom { blocks, group: of.shape.ag_blocks });
    }
    Ok(blocks)
}

/// The kernel's minimum at mount in blocks, for records with this many bytes.
fn kernel_least(of: &LogShape, record: u64) -> u64 {
    /// How many of the largest operations must fit at the same time.
    const FACTOR: u64 = 3;
    let (reservation, times) = Costs::new(of).largest();
    let sectors = (with_records(reservation, of.stripe_unit, record) * u64::from(times)).div_ceil(512);
    let sectors = if of.stripe_unit > 1 {
        let unit = u64::from(of.stripe_unit) / 512;
        sectors.next_multiple_of(unit) + 2 * unit
    } else {
        sectors + 2 * 512
    };
    (FACTOR * sectors).div_ceil(u64::from(of.shape.block_size) / 512)
}

/// Log bytes of a transaction of this many bytes: operation headers, record headers, padding.
fn with_records(bytes: u64, stripe_unit: u32, record: u64) -> u64 {
    const OP_HEADER: u64 = 12;
    const TRANS_HEADER: u64 = 16;
    // A header block has the cycle numbers of 32 KiB.
    let header = record / (32 << 10) * 512;
    let data = record - header;
    let bytes = bytes + 2 * OP_HEADER + TRANS_HEADER;
    let mut records = bytes.div_ceil(data);
    // If a transaction continues in another record, that begins with an operation header, which may make one more
    // record necessary.
    let mut bytes = bytes + records * OP_HEADER;
    while bytes.div_ceil(data) > records {
        records += 1;
        bytes += OP_HEADER;
    }
    let padding = if stripe_unit > 1 { 2 * u64::from(stripe_unit) } else { 2 * 512 };
    bytes + (records + 1) * header + padding
}

/// Sizes in bytes from which reservations are computed.
struct Costs<'a> {
    of: &'a LogShape,
    levels: Levels,
}

impl<'a> Costs<'a> {
    fn new(of: &'a LogShape) -> Self {
        Self { of, levels: Levels::of(&of.shape) }
    }

    /// The size of the largest reservation, and how many times it is made.
    ///
    /// Kernels have reduced their reservations over the years, but not the minimum log size, so that older kernels can
    /// mount new volumes. No kernel that knows parent pointers is as old: for volumes with them the current
    /// reservations count.
    fn largest(&self) -> (u64, u32) {
        if self.of.shape.parent_pointers { self.largest_now() } else { self.largest_ever() }
    }

    fn largest_ever(&self) -> (u64, u32) {
        // Extent changes continue in further transactions, for all of which space is reserved at once.
        let extents = if self.of.shape.reflink {
            8
        } else if self.of.shape.rmapbt {
            4
        } else {
            2
        };
        let (reservation, times) = [
            (self.write(), extents),
            (self.truncate(), extents),
            (self.rename(), 2),
            (self.free_inode(), 2),
            (self.symlink(), 3),
        ]
        .into_iter()
        .max_by_key(|(bytes, times)| bytes * u64::from(*times))
        .unwrap_or_default();
        let attr = self.set_attr();
        if attr > reservation * u64::from(times) { (attr, 3) } else { (reservation, times) }
    }

    /// Each name that is made or removed adds transactions for its parent pointer.
    fn largest_now(&self) -> (u64, u32) {
        /// Transactions to set or remove an attribute.
        const ATTR: u32 = 3;
        let DepthInputs { reflink, rmapbt, .. } = self.of.shape;
        // For maps, for refcounts, for the rmap tree.
        let intents = u32::from(reflink || rmapbt) + u32::from(reflink) + u32::from(rmapbt);
        let write = self.write_now();
        let dquots = write + Self::buffers(1, self.of.shape.block_size - 1);
        let largest = [
            (write, 2 + intents),
            (dquots, 2 + intents),
            (self.truncate_now(), 2 + intents),
            (self.rename_now(), 2 + ATTR),
            (self.symlink_now(), 3 + ATTR),
            (self.free_inode(), 2),
        ]
        .into_iter()
        .max_by_key(|(bytes, times)| bytes * u64::from(*times))
        .unwrap_or_default();
        let attr = self.set_attr();
        if attr > largest.0 * u64::from(largest.1) { (attr, ATTR) } else { largest }
    }

    /// Metadata buffers of `size` bytes, logged as a whole.
    fn buffers(count: u64, size: u32) -> u64 {
        const OVERHEAD: u64 = 128;
        count * (u64::from(size) + OVERHEAD)
    }

    fn blocks(&self, count: u64) -> u64 {
        Self::buffers(count, self.of.shape.block_size)
    }

    fn sectors(&self, count: u64) -> u64 {
        Self::buffers(count, self.of.sector_size)
    }

    /// Inodes: core, both forks, their headers, and the root of a block map that grows.
    fn inodes(&self, count: u64) -> u64 {
        count * (248 + u64::from(self.of.shape.inode_size))
    }

    /// Dquots of user, group and project, before and after.
    const DQUOTS: u64 = 6 * 128;

    /// Blocks that change when `count` extents are allocated or freed: both free space trees may split on each level,
    /// and the rmap tree with them.
    fn space_blocks(&self, count: u64) -> u64 {
        let split = |levels: u32| 2 * u64::from(levels.max(1)) - 1;
        let rmap = if self.levels.rmap > 0 { split(self.levels.rmap) } else { 0 };
        count * (2 * split(self.levels.alloc) + rmap)
    }

    /// Blocks of the refcount tree that change with `count` extents.
    fn refcount(&self, count: u64) -> u64 {
        if !self.of.shape.reflink {
            return 0;
        }
        self.blocks(count * (2 * u64::from(self.levels.refcount) - 1))
    }

    /// Extents that are added to a file, in one transaction with their refcounts.
    fn write(&self) -> u64 {
        Self::DQUOTS + self.write_alone() + self.refcount(1)
    }

    /// In separate transactions.
    fn write_now(&self) -> u64 {
        Self::DQUOTS + self.write_alone().max(self.refcount_alone(1))
    }

    fn write_alone(&self) -> u64 {
        let map = u64::from(self.levels.data_map);
        let add = self.inodes(1) + self.blocks(map + self.space_blocks(2)) + self.sectors(3);
        let free = self.sectors(5) + self.blocks(self.space_blocks(2));
        add.max(free)
    }

    /// Extents that are removed from a file, in one transaction with their refcounts.
    fn truncate(&self) -> u64 {
        let (map, free) = self.truncate_alone();
        Self::DQUOTS + map.max(free) + self.refcount(4)
    }

    /// In separate transactions.
    fn truncate_now(&self) -> u64 {
        let (map, free) = self.truncate_alone();
        Self::DQUOTS + map.max(free).max(self.refcount_alone(2))
    }

    fn truncate_alone(&self) -> (u64, u64) {
        let map = self.inodes(1) + self.blocks(u64::from(self.levels.data_map) + 1);
        (map, self.sectors(9) + self.blocks(self.space_blocks(4)))
    }

    /// Refcounts of `count` extents, in a transaction of their own.
    fn refcount_alone(&self, count: u64) -> u64 {
        if self.of.shape.reflink { self.sectors(count) + self.refcount(count) } else { 0 }
    }

    /// Blocks that one directory change may touch.
    fn dir_blocks(&self) -> u64 {
        /// A path through a directory's index, a data block and a free-space block.
        const PATH: u64 = 7;
        let block = self.of.shape.block_size;
        let per_block = u64::from(self.of.dir_block_size / block);
        let maps = per_block.div_ceil(map_entries(block).into()) * u64::from(self.levels.data_map - 1);
        PATH * (per_block + maps) + 1
    }

    fn rename(&self) -> u64 {
        Self::DQUOTS + self.rename_alone()
    }

    fn rename_alone(&self) -> u64 {
        let names = self.inodes(5) + self.blocks(2 * self.dir_blocks());
        let free = self.sectors(7) + self.blocks(self.space_blocks(3));
        names.max(free)
    }

    /// With the intents for parent pointers: of an exchange, or of a rename for what it replaces and what it moves.
    fn rename_now(&self) -> u64 {
        let intents = (2 * REPLACE_PARENT).max(REPLACE_PARENT + 2 * CHANGE_PARENT);
        let attr = self.attr_change().max(self.attr_removal());
        Self::DQUOTS + intents + self.rename_alone().max(attr)
    }

    /// A path through an inode tree, and the space that it may need or give back.
    fn inode_tree(&self) -> u64 {
        self.blocks(u64::from(self.levels.inode) + self.space_blocks(1))
    }

    fn inode_trees(&self) -> u64 {
        self.inode_tree() * if self.of.finobt { 2 } else { 1 }
    }

    fn symlink(&self) -> u64 {
        /// What the experiment shows beyond the sum of known parts.
        const REST: u64 = 136;
        let (entry, chunk) = self.create();
        Self::DQUOTS + (entry + REST).max(chunk) + SYMLINK_TARGET
    }

    /// With the intent for the parent pointer.
    fn symlink_now(&self) -> u64 {
        let (entry, chunk) = self.create();
        let target = Self::buffers(1, SYMLINK_TARGET as u32);
        Self::DQUOTS + CHANGE_PARENT + entry.max(chunk).max(self.attr_change()) + target
    }

    /// A new inode and its name: an existing free inode, or one in a new chunk.
    fn create(&self) -> (u64, u64) {
        let free_tree = if self.of.finobt { self.inode_tree() } else { 0 };
        let entry = self.inodes(2)
            + self.sectors(1)
            + u64::from(self.of.shape.block_size)
            + self.blocks(self.dir_blocks())
            + free_tree;
        let chunk = self.sectors(2)
            + u64::from(self.of.sector_size)
            + self.inode_trees()
            + self.blocks(self.space_blocks(1));
        (entry, chunk)
    }

    fn free_inode(&self) -> u64 {
        Self::DQUOTS
            + self.inodes(1)
            + self.sectors(3)
            + u64::from(self.of.shape.block_size)
            + self.inode_trees()
            + self.blocks(self.space_blocks(1))
    }

    /// A leaf attribute, on a path through the fork.
    fn attr_change(&self) -> u64 {
        Self::DQUOTS + self.inodes(1) + self.sectors(1) + self.blocks(ATTR_PATH)
    }

    fn attr_removal(&self) -> u64 {
        let (attr, data) = (u64::from(self.levels.attr_map), u64::from(self.levels.data_map));
        let maps = attr * u64::from(self.of.shape.block_size) + Self::buffers(data, 0);
        let leaf = self.inodes(1) + self.blocks(ATTR_PATH) + maps;
        let free = self.sectors(5) + self.blocks(self.space_blocks(2));
        Self::DQUOTS + leaf.max(free)
    }

    /// An attribute of the largest size that stays in a leaf.
    fn set_attr(&self) -> u64 {
        let block = self.of.shape.block_size;
        let size = u64::from(block / 2 + block / 4) - 256;
        let map = u64::from(self.levels.attr_map);
        let maps = |entries: u64| entries.div_ceil(map_entries(block).into()) * (map - 1);
        let value = size.div_ceil(block.into());
        // For volumes without parent pointers, kernels reserve map blocks by the value's length in bytes.
        let mapped = if self.of.shape.parent_pointers { value } else { size };
        let steps = ATTR_PATH + ATTR_PATH * maps(1) + value + maps(mapped);
        self.attr_change() + steps * (self.sectors(1) + self.blocks(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Block, inode, sector and directory block size; blocks per group; reflink, rmapbt, nrext64, parent; stripe unit.
    type Case = ([u32; 4], u32, [bool; 4], u32);

    fn shape(([block, inode, sector, dir], ag_blocks, on, unit): Case) -> LogShape {
        let [reflink, rmapbt, nrext64, parent_pointers] = on;
        LogShape {
            shape: DepthInputs {
                block_size: block,
                inode_size: inode,
                ag_blocks,
                reflink,
                rmapbt,
                nrext64,
                parent_pointers,
            },
            sector_size: sector,
            dir_block_size: dir,
            finobt: true,
            stripe_unit: unit,
        }
    }

    #[test]
    fn the_least_log_is_the_kernels() {
        const REFLINK: [bool; 4] = [true, false, false, false];
        const PLAIN: [bool; 4] = [false; 4];
        const TODAY: [bool; 4] = [true; 4];
        let small = [4096, 512, 512, 4096];
        let kilo = [1024, 512, 512, 4096];
        // What Linux 6.18 says when it refuses a log of one block.
        for (case, kernel) in [
            ((small, 19200, REFLINK, 1), 1338),
            ((small, 65536, REFLINK, 1), 1539),
            ((small, 4_194_304, REFLINK, 1), 1945),
            ((small, 268_435_455, REFLINK, 1), 2548),
            ((small, 19200, PLAIN, 1), 847),
            ((small, 131_072, PLAIN, 1), 860),
            ((small, 268_435_455, PLAIN, 1), 917),
            ((small, 19200, [true, true, false, false], 1), 3049),
            ((small, 19200, [true, false, true, false], 1), 4036),
            (([4096, 2048, 512, 4096], 19200, REFLINK, 1), 1338),
            (([4096, 512, 4096, 4096], 19200, REFLINK, 4096), 1194),
            (([4096, 512, 512, 65536], 19200, REFLINK, 1), 2168),
            ((kilo, 76800, REFLINK, 1), 3384),
            ((kilo, 1_073_741_823, REFLINK, 1), 5352),
            ((kilo, 76800, [false, false, true, false], 1), 8621),
            ((kilo, 524_288, [true, false, true, false], 1), 4044),
            (([1024, 512, 512, 65536], 76800, REFLINK, 1), 8888),
            (([65536, 512, 512, 65536], 1200, REFLINK, 1), 321),
            ((small, 20480, TODAY, 1), 1985),
            ((small, 268_435_455, TODAY, 1), 1988),
            ((small, 20480, [false, false, true, true], 1), 1985),
            ((small, 20480, [true, true, false, true], 1), 1544),
            ((small, 196_608, [true, true, false, true], 1), 1611),
            (([4096, 2048, 4096, 4096], 20480, TODAY, 4096), 1662),
            (([4096, 2048, 4096, 4096], 268_435_455, TODAY, 4096), 1758),
            (([4096, 512, 512, 65536], 20480, TODAY, 1), 5285),
            ((kilo, 81920, TODAY, 1), 4803),
            ((kilo, 81920, [false, false, false, true], 1), 4086),
            (([2048, 512, 512, 4096], 40960, TODAY, 1), 3124),
            (([16384, 2048, 512, 16384], 5120, TODAY, 1), 1432),
            (([65536, 512, 512, 65536], 1280, TODAY, 1), 1126),
        ] {
            assert_eq!(kernel_least(&shape(case), RECORD_USUAL), kernel, "{case:?}");
        }
    }

    #[test]
    fn the_least_log_with_parent_pointers_is_the_kernels() {
        const ALL: [bool; 4] = [true; 4];
        const RMAP: [bool; 4] = [true, true, false, true];
        const PLAIN: [bool; 4] = [false, false, false, true];
        for (case, finobt, kernel) in [
            (([4096, 2048, 512, 4096], 24_225_275, ALL, 1), true, 2013),
            (([16384, 1024, 4096, 16384], 3_137_337, RMAP, 16384), false, 1119),
            (([1024, 512, 512, 4096], 141_654_041, [true, false, true, true], 1), false, 4803),
            (([1024, 512, 512, 65536], 300_702, [false, false, true, true], 1), false, 21374),
            (([1024, 512, 512, 4096], 1_096_022, RMAP, 1), false, 4086),
            (([16384, 2048, 512, 16384], 1_790_578, PLAIN, 1), false, 1002),
            (([65536, 512, 512, 65536], 16_777_215, RMAP, 1), true, 851),
            (([4096, 2048, 4096, 4096], 191_848_716, RMAP, 4096), true, 1758),
            (([4096, 2048, 4096, 65536], 1_482_807, [false, true, false, true], 4096), true, 4524),
            (([4096, 2048, 512, 16384], 9_011_039, [true, false, false, true], 1), false, 2234),
            (([8192, 2048, 4096, 8192], 130_003_658, [true, false, false, true], 8192), true, 969),
            (([4096, 512, 512, 4096], 268_435_455, ALL, 1), false, 1988),
        ] {
            let mut of = shape(case);
            of.finobt = finobt;
            assert_eq!(kernel_least(&of, RECORD_USUAL), kernel, "{case:?}");
        }
    }

    #[test]
    fn sizes_are_those_of_mkfs() {
        let of = shape(([4096, 512, 512, 4096], 19200, [true, false, false, false], 1));
        let room = |most| LogRoom { most, unasked: most };
        let of_volume = |blocks| choose(None, &of, blocks, room(u64::MAX), true);
        // As xfsprogs makes it with `--unsupported`.
        assert_eq!(of_volume(4096), Ok(1368));
        assert_eq!(of_volume(76800), Ok(16384));
        assert_eq!(of_volume(33_816_576), Ok(16512));
        assert_eq!(of_volume(1_073_741_820), Ok(521_728));
        let wanted = |bytes, small| choose(Some(bytes), &of, 76800, room(19000), small);
        assert_eq!(wanted(64 << 20, false), Ok(16384));
        assert_eq!(
            wanted(63 << 20, false),
            Err(Refusal::LogSize { blocks: 16128, least: 16384, most: 521_728, small: false })
        );
        assert_eq!(wanted(1338 * 4096, true), Ok(1338));
        assert!(wanted(1337 * 4096, true).is_err());
        assert_eq!(
            wanted((64 << 20) + 512, false),
            Err(Refusal::LogUnit { size: (64 << 20) + 512, block: 4096 })
        );
        assert_eq!(wanted(76 << 20, false), Err(Refusal::LogRoom { blocks: 19456, group: 19200 }));
    }
}
