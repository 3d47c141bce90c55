//! How large a log is, and how large it must be.
//!
//! A kernel refuses to mount a v5 volume whose log is smaller than three times what its largest operation may
//! reserve, so that one operation fits even while the log's tail stands still. What an operation reserves follows
//! from the volume's shape: so many blocks of so many trees, whose depth is bounded (`levels`).
//!
//! The rule below was found by experiment and not taken on trust: for some 700 volumes (all block, inode, sector
//! and directory block sizes, groups from 16 MiB to 1 TiB, all features) the log's size in the superblock was set
//! to 1, and the kernel (6.18) asked to mount; it says the least size that it would take. [`log_blocks_min`] is
//! that number, or (one shape of those 700) three blocks more. A test asks the kernel again.
//!
//! Volumes with parent pointers have another rule, found in the same way with 140 shapes: each change of names goes on
//! with an attribute, and what older kernels reserved too much is left out, as none of them mounts such a volume.

use super::levels::{Levels, Shape, map_entries};
use super::refusal::Refusal;

/// No log has fewer blocks than this.
const BLOCKS_MIN: u64 = 512;
/// No log has more blocks than this,
const BLOCKS_MAX: u64 = 1 << 20;
/// nor more bytes.
const BYTES_MAX: u64 = (2 << 30) - (10 << 20);
/// The least log that `mkfs.xfs` makes unasked.
const BYTES_USUAL: u64 = 64 << 20;
/// From this size of the volume on.
const VOLUME_USUAL: u64 = 300 << 20;
/// A log has this share of a large volume.
const SHARE: u64 = 2048;

/// What a log's least size depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogShape {
    pub shape: Shape,
    pub sector_size: u32,
    pub dir_block_size: u32,
    pub finobt: bool,
    /// Bytes to which log writes are padded; 1: they are not.
    pub stripe_unit: u32,
}

/// The least number of blocks of a log, as this and later kernels take it.
pub(super) fn least(of: &LogShape) -> u64 {
    kernel_least(of).max(BLOCKS_MIN)
}

/// The least log of a volume like that of `superblock`, in blocks; `None` where that volume has none of the shapes
/// that are made here.
pub fn log_blocks_min(superblock: &xfs_format::superblock::Superblock) -> Option<u64> {
    use xfs_format::features::RoCompat;
    let (raw, ro) = (superblock.raw(), superblock.ro_compat());
    superblock.is_v5().then(|| {
        least(&LogShape {
            shape: Shape::of(superblock),
            sector_size: raw.sectsize.get().into(),
            dir_block_size: raw.blocksize.get() << raw.dirblklog,
            finobt: ro.contains(RoCompat::FINOBT),
            stripe_unit: raw.logsunit.get().max(1),
        })
    })
}

/// Blocks of the log of a volume of `data_blocks` blocks, where groups have room for `room`.
pub(super) fn choose(
    wanted: Option<u64>,
    of: &LogShape,
    data_blocks: u64,
    room: u64,
    small: bool,
) -> Result<u32, Refusal> {
    let block = u64::from(of.shape.block_size);
    let least = least(of);
    let usual = if small { least } else { least.max(BYTES_USUAL / block) };
    let most = BLOCKS_MAX.min(BYTES_MAX / block);
    let blocks = match wanted {
        Some(bytes) if !bytes.is_multiple_of(block) => {
            return Err(Refusal::LogUnit { size: bytes, block: of.shape.block_size });
        }
        Some(bytes) => bytes / block,
        None if data_blocks * block < VOLUME_USUAL => least,
        None => (data_blocks / SHARE).max(BYTES_USUAL / block).min(most).max(least),
    };
    if blocks < usual || blocks > most {
        return Err(Refusal::LogSize { blocks, least: usual, most, small });
    }
    // `most` is below 2^21.
    let blocks = blocks as u32;
    if u64::from(blocks) > room {
        return Err(Refusal::LogRoom { blocks, group: of.shape.ag_blocks });
    }
    Ok(blocks)
}

/// What the kernel computes at mount, in blocks.
fn kernel_least(of: &LogShape) -> u64 {
    /// So many of the largest operations must fit at once.
    const FACTOR: u64 = 3;
    let (reservation, times) = Costs::new(of).largest();
    let sectors = (with_records(reservation, of.stripe_unit) * u64::from(times)).div_ceil(512);
    let sectors = if of.stripe_unit > 1 {
        let unit = u64::from(of.stripe_unit) / 512;
        sectors.next_multiple_of(unit) + 2 * unit
    } else {
        sectors + 2 * 512
    };
    (FACTOR * sectors).div_ceil(u64::from(of.shape.block_size) / 512)
}

/// What a transaction of so many bytes takes in the log: operation headers, record headers, padding.
fn with_records(bytes: u64, stripe_unit: u32) -> u64 {
    const OP_HEADER: u64 = 12;
    const TRANS_HEADER: u64 = 16;
    const RECORD_HEADER: u64 = 512;
    /// Data of a record of the usual size of 32 KiB.
    const RECORD_DATA: u64 = (32 << 10) - RECORD_HEADER;
    let bytes = bytes + 2 * OP_HEADER + TRANS_HEADER;
    let mut records = bytes.div_ceil(RECORD_DATA);
    // Each record that a transaction goes on in begins with an operation header, which may make it one more.
    let mut bytes = bytes + records * OP_HEADER;
    while bytes.div_ceil(RECORD_DATA) > records {
        records += 1;
        bytes += OP_HEADER;
    }
    let padding = if stripe_unit > 1 { 2 * u64::from(stripe_unit) } else { 2 * 512 };
    bytes + (records + 1) * RECORD_HEADER + padding
}

/// Sizes that reservations are made of, in bytes.
struct Costs<'a> {
    of: &'a LogShape,
    levels: Levels,
}

impl<'a> Costs<'a> {
    fn new(of: &'a LogShape) -> Self {
        Self { of, levels: Levels::of(&of.shape) }
    }

    /// What the largest operation reserves at a time, and how many times over.
    fn largest(&self) -> (u64, u32) {
        // Changes of extents go on in further transactions, for all of which space is reserved at once.
        let Shape { reflink, rmapbt, parent_pointers, .. } = self.of.shape;
        let (write, truncate) = match (reflink, rmapbt) {
            (true, true) if parent_pointers => (2, 5),
            _ if parent_pointers => (2, 2),
            (true, _) => (8, 8),
            (false, true) => (4, 4),
            (false, false) => (2, 2),
        };
        // A parent pointer is changed in steps of its own.
        let pointer = if parent_pointers { 3 } else { 0 };
        let (reservation, times) = [
            (self.write(), write),
            (self.truncate(), truncate),
            (self.rename(), 2 + pointer),
            (self.free_inode(), 2),
            (self.symlink(), 3 + pointer),
        ]
        .into_iter()
        .max_by_key(|(bytes, times)| bytes * u64::from(*times))
        .unwrap_or_default();
        let attr = self.set_attr();
        if attr > reservation * u64::from(times) { (attr, 3) } else { (reservation, times) }
    }

    /// Metadata buffers of `size` bytes, logged whole.
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

    /// Blocks that change when `count` extents are allocated or freed: both space trees may split at each level,
    /// and the reverse map with them.
    fn space_blocks(&self, count: u64) -> u64 {
        let split = |levels: u32| 2 * u64::from(levels.max(1)) - 1;
        let rmap = if self.levels.rmap > 0 { split(self.levels.rmap) } else { 0 };
        count * (2 * split(self.levels.alloc) + rmap)
    }

    /// Blocks of the tree of reference counts that change with `count` extents.
    fn refcount(&self, count: u64) -> u64 {
        if !self.of.shape.reflink {
            return 0;
        }
        self.blocks(count * (2 * u64::from(self.levels.refcount) - 1))
    }

    /// Extents that are added to a file.
    fn write(&self) -> u64 {
        let map = u64::from(self.levels.data_map);
        let add = self.inodes(1) + self.blocks(map + self.space_blocks(2)) + self.sectors(3);
        let free = self.sectors(5) + self.blocks(self.space_blocks(2));
        self.with_refcount(add.max(free), 1)
    }

    /// Extents that are taken from a file.
    fn truncate(&self) -> u64 {
        let map = self.inodes(1) + self.blocks(u64::from(self.levels.data_map) + 1);
        let free = self.sectors(9) + self.blocks(self.space_blocks(4));
        self.with_refcount(map.max(free), 4)
    }

    /// Reference counts change in the same step, as older kernels had it, or in steps of their own that are half as many.
    fn with_refcount(&self, extents: u64, count: u64) -> u64 {
        let Shape { reflink, parent_pointers, .. } = self.of.shape;
        Self::DQUOTS
            + match (reflink, parent_pointers) {
                (true, true) => {
                    let steps = count.div_ceil(2);
                    extents.max(self.sectors(steps) + self.refcount(steps))
                }
                _ => extents + self.refcount(count),
            }
    }

    /// Blocks that one change of a directory may touch.
    fn dir_blocks(&self) -> u64 {
        /// A path through a directory's index, a data block and a free-space block.
        const PATH: u64 = 7;
        let block = self.of.shape.block_size;
        let per_block = u64::from(self.of.dir_block_size / block);
        let maps = per_block.div_ceil(map_entries(block).into()) * u64::from(self.levels.data_map - 1);
        PATH * (per_block + maps) + 1
    }

    fn rename(&self) -> u64 {
        let names = self.inodes(5) + self.blocks(2 * self.dir_blocks());
        let free = self.sectors(7) + self.blocks(self.space_blocks(3));
        // Of what moves, what is replaced, and what is left in its place.
        let pointers = (Self::POINTER_MOVED + 2 * Self::POINTER).max(2 * Self::POINTER_MOVED);
        Self::DQUOTS + self.with_pointer(names.max(free), pointers)
    }

    /// Bytes of an intent to set or remove a parent pointer: itself, the directory, the longest name;
    const POINTER: u64 = 40 + 12 + 256;
    /// and to replace one by another.
    const POINTER_MOVED: u64 = 40 + 2 * (12 + 256);

    /// A change of names, or of the attribute that follows it, and so many bytes of intents that wait.
    fn with_pointer(&self, names: u64, intents: u64) -> u64 {
        if !self.of.shape.parent_pointers {
            return names;
        }
        let map = u64::from(self.of.shape.block_size) * u64::from(self.levels.attr_map)
            + Self::buffers(self.levels.data_map.into(), 0);
        let remove = self.inodes(1) + self.blocks(Self::ATTR_PATH) + map;
        let free = self.sectors(5) + self.blocks(self.space_blocks(2));
        let attr = Self::DQUOTS + (self.set_leaf() - Self::DQUOTS).max(remove).max(free);
        names.max(attr) + intents
    }

    /// A path through a tree of inode chunks, and the space that it may need or give back.
    fn inode_tree(&self) -> u64 {
        self.blocks(u64::from(self.levels.inode) + self.space_blocks(1))
    }

    fn inode_trees(&self) -> u64 {
        self.inode_tree() * if self.of.finobt { 2 } else { 1 }
    }

    fn symlink(&self) -> u64 {
        /// Bytes of a target, in a buffer.
        const TARGET: u64 = 1024 + 128;
        /// What the experiment shows above the sum of known parts.
        const REST: u64 = 8;
        let free_tree = if self.of.finobt { self.inode_tree() } else { 0 };
        let entry = self.inodes(2)
            + self.sectors(1)
            + u64::from(self.of.shape.block_size)
            + self.blocks(self.dir_blocks())
            + free_tree
            + REST;
        let chunk = self.sectors(2)
            + u64::from(self.of.sector_size)
            + self.inode_trees()
            + self.blocks(self.space_blocks(1));
        Self::DQUOTS + self.with_pointer(entry.max(chunk), Self::POINTER) + TARGET
    }

    fn free_inode(&self) -> u64 {
        Self::DQUOTS
            + self.inodes(1)
            + self.sectors(3)
            + u64::from(self.of.shape.block_size)
            + self.inode_trees()
            + self.blocks(self.space_blocks(1))
    }

    /// A path through an attribute fork.
    const ATTR_PATH: u64 = 5;

    /// An attribute is set whose value lies in the leaf.
    fn set_leaf(&self) -> u64 {
        Self::DQUOTS + self.inodes(1) + self.sectors(1) + self.blocks(Self::ATTR_PATH)
    }

    /// An attribute of the largest size that stays in a leaf.
    fn set_attr(&self) -> u64 {
        const PATH: u64 = Costs::ATTR_PATH;
        let block = self.of.shape.block_size;
        let size = u64::from(block / 2 + block / 4) - 256;
        let map = u64::from(self.levels.attr_map);
        let maps = |entries: u64| entries.div_ceil(map_entries(block).into()) * (map - 1);
        let blocks = size.div_ceil(block.into());
        // Older kernels took bytes for blocks.
        let mapped = if self.of.shape.parent_pointers { blocks } else { size };
        let steps = PATH + PATH * maps(1) + blocks + maps(mapped);
        self.set_leaf() + steps * (self.sectors(1) + self.blocks(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Block, inode, sector and directory block size; blocks a group; reflink, rmapbt, nrext64; stripe unit.
    type Case = ([u32; 4], u32, [bool; 3], u32);

    fn shape(([block, inode, sector, dir], ag_blocks, [reflink, rmapbt, nrext64], unit): Case) -> LogShape {
        LogShape {
            shape: Shape {
                block_size: block,
                inode_size: inode,
                ag_blocks,
                reflink,
                rmapbt,
                nrext64,
                parent_pointers: false,
            },
            sector_size: sector,
            dir_block_size: dir,
            finobt: true,
            stripe_unit: unit,
        }
    }

    #[test]
    fn the_least_log_is_the_kernels() {
        const REFLINK: [bool; 3] = [true, false, false];
        const PLAIN: [bool; 3] = [false; 3];
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
            ((small, 19200, [true, true, false], 1), 3049),
            ((small, 19200, [true, false, true], 1), 4036),
            (([4096, 2048, 512, 4096], 19200, REFLINK, 1), 1338),
            (([4096, 512, 4096, 4096], 19200, REFLINK, 4096), 1194),
            (([4096, 512, 512, 65536], 19200, REFLINK, 1), 2168),
            ((kilo, 76800, REFLINK, 1), 3384),
            ((kilo, 1_073_741_823, REFLINK, 1), 5352),
            ((kilo, 76800, [false, false, true], 1), 8621),
            ((kilo, 524_288, [true, false, true], 1), 4044),
            (([1024, 512, 512, 65536], 76800, REFLINK, 1), 8888),
            (([65536, 512, 512, 65536], 1200, REFLINK, 1), 321),
        ] {
            assert_eq!(kernel_least(&shape(case)), kernel, "{case:?}");
        }
    }

    #[test]
    fn the_least_log_with_parent_pointers_is_the_kernels() {
        const ALL: [bool; 3] = [true; 3];
        const RMAP: [bool; 3] = [true, true, false];
        const PLAIN: [bool; 3] = [false; 3];
        for (case, finobt, kernel) in [
            (([4096, 2048, 512, 4096], 24_225_275, ALL, 1), true, 2013),
            (([16384, 1024, 4096, 16384], 3_137_337, RMAP, 16384), false, 1119),
            (([1024, 512, 512, 4096], 141_654_041, [true, false, true], 1), false, 4803),
            (([1024, 512, 512, 65536], 300_702, [false, false, true], 1), false, 21374),
            (([1024, 512, 512, 4096], 1_096_022, RMAP, 1), false, 4086),
            (([16384, 2048, 512, 16384], 1_790_578, PLAIN, 1), false, 1002),
            (([65536, 512, 512, 65536], 16_777_215, RMAP, 1), true, 851),
            (([4096, 2048, 4096, 4096], 191_848_716, RMAP, 4096), true, 1758),
            (([4096, 2048, 4096, 65536], 1_482_807, [false, true, false], 4096), true, 4524),
            (([4096, 2048, 512, 16384], 9_011_039, [true, false, false], 1), false, 2234),
            (([8192, 2048, 4096, 8192], 130_003_658, [true, false, false], 8192), true, 969),
            (([4096, 512, 512, 4096], 268_435_455, ALL, 1), false, 1988),
        ] {
            let mut of = shape(case);
            (of.shape.parent_pointers, of.finobt) = (true, finobt);
            assert_eq!(kernel_least(&of), kernel, "{case:?}");
        }
    }

    #[test]
    fn sizes_are_those_of_mkfs() {
        let of = shape(([4096, 512, 512, 4096], 19200, [true, false, false], 1));
        let of_volume = |blocks| choose(None, &of, blocks, u64::MAX, true);
        assert_eq!(of_volume(4096), Ok(1338));
        assert_eq!(of_volume(76800), Ok(16384));
        assert_eq!(of_volume(33_816_576), Ok(16512));
        assert_eq!(of_volume(1_073_741_820), Ok(521_728));
        let wanted = |bytes, small| choose(Some(bytes), &of, 76800, 19000, small);
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
