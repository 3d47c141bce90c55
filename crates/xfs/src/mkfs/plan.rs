//! From options to a layout: all decisions and all refusals, before anything is written.

use super::groups::{Cut, GROUP_BYTES_MIN, cut};
use super::layout::{INODES_USED, TreeRoot, VolumeLayout, chunk_blocks, header_blocks};
use super::levels::{DepthInputs, Levels};
use super::log_size::{self, LogShape};
use super::options::{Features, Options};
use super::structures::seal;
use crate::error::mkfs::Refusal;
use xfs_format::feature_table::{Feature, FeatureMark, TABLE};
use xfs_format::features::{Features2, Incompat, RoCompat, VersionFlags};
use xfs_format::geometry::Geometry;
use xfs_format::kernels::Kernel;
use xfs_format::superblock::{MAGIC, RawSuperblock, Superblock};
use xfs_format::timestamp::Timestamp;
use zerocopy::FromZeros;

/// The minimum size of a volume that `mkfs.xfs` makes by default.
const BYTES_USUAL: u64 = 300 << 20;
/// Bytes of an inode cluster for inodes of 256 bytes. Larger inodes have larger clusters.
const CLUSTER_BYTES: u32 = 8192;
/// Bytes of a realtime extent. No volume has any, but each superblock names the size.
const REALTIME_EXTENT: u32 = 4096;

/// Decides on the layout for a device of `device_bytes` bytes.
pub fn plan(options: &Options, device_bytes: u64) -> Result<VolumeLayout, Refusal> {
    check_sizes(options)?;
    check_rest(options)?;
    let size = options.size.unwrap_or(device_bytes);
    if size > device_bytes {
        return Err(Refusal::Device { wanted: size, device: device_bytes });
    }
    let block_log = options.block_size.trailing_zeros() as u8;
    let too_small = |size| {
        let least = if options.small { GROUP_BYTES_MIN } else { BYTES_USUAL };
        (size < least).then_some(Refusal::TooSmall { size, least, small: options.small })
    };
    if let Some(refusal) = too_small(size) {
        return Err(refusal);
    }
    let cut = cut(options.groups, size >> block_log, block_log, options.small)?;
    if let Some(refusal) = too_small(cut.data_blocks << block_log) {
        return Err(refusal);
    }
    LayoutDraft { options, cut, block_log }.finish()
}

fn check_sizes(options: &Options) -> Result<(), Refusal> {
    let possible =
        |size: u32, least: u32, most: u32| size.is_power_of_two() && (least..=most).contains(&size);
    let block = options.block_size;
    if !possible(block, 1024, 65536) {
        return Err(Refusal::BlockSize(block));
    }
    if !possible(options.sector_size, 512, block.min(32768)) {
        return Err(Refusal::SectorSize { sector: options.sector_size, block });
    }
    if !possible(options.inode_size, 512, (block / 2).min(2048)) {
        return Err(Refusal::InodeSize { inode: options.inode_size, block });
    }
    match options.dir_block_size {
        Some(dir) if !possible(dir, block, 65536) => Err(Refusal::DirBlockSize { dir, block }),
        _ => Ok(()),
    }
}

fn check_rest(options: &Options) -> Result<(), Refusal> {
    let features = &options.features;
    if features.inobt_counts && !features.finobt {
        return Err(Refusal::Feature { feature: "inobtcount", needs: "finobt" });
    }
    if options.label.len() > 12 || options.label.contains(&0) {
        return Err(Refusal::Label);
    }
    if options.uuid.0 == [0; 16] {
        return Err(Refusal::Uuid);
    }
    let on_disk = options.time.to_disk(features.bigtime);
    if Timestamp::from_disk(on_disk, features.bigtime) != Ok(options.time) {
        return Err(Refusal::Time);
    }
    Ok(())
}

/// Where the log lies.
#[derive(Clone, Copy)]
struct LogPlace {
    ag: u32,
    blocks: u32,
}

/// A layout under construction: sizes and groups are known.
struct LayoutDraft<'a> {
    options: &'a Options,
    cut: Cut,
    block_log: u8,
}

impl LayoutDraft<'_> {
    fn finish(&self) -> Result<VolumeLayout, Refusal> {
        let log = self.place_log()?;
        let raw = self.superblock(log);
        let superblock = Superblock::parse(&seal(&raw)).expect("what is planned is sound");
        let layout = VolumeLayout {
            geometry: Geometry::from_superblock(&superblock),
            superblock,
            features: self.options.features,
            time: self.options.time,
            agfl_blocks: self.agfl_blocks(),
        };
        debug_assert_eq!(layout.geometry.root.0, raw.rootino.get());
        Ok(layout)
    }

    fn shape(&self) -> DepthInputs {
        let Features { reflink, rmapbt, nrext64, parent_pointers, .. } = self.options.features;
        let Options { block_size, inode_size, .. } = *self.options;
        let ag_blocks = self.cut.ag_blocks;
        DepthInputs { block_size, inode_size, ag_blocks, reflink, rmapbt, nrext64, parent_pointers }
    }

    /// Bytes to which log writes are padded: blocks, if sectors are larger than the log's unit.
    fn stripe_unit(&self) -> u32 {
        if self.options.sector_size > 512 { self.options.block_size } else { 1 }
    }

    fn dir_block_size(&self) -> u32 {
        self.options.dir_block_size.unwrap_or(self.options.block_size.max(4096))
    }

    fn agfl_blocks(&self) -> u32 {
        agfl_blocks(&self.shape())
    }

    /// Blocks of headers and roots.
    fn fixed_blocks(&self) -> u32 {
        header_blocks(self.options.sector_size, self.block_log)
            + TreeRoot::of(&self.options.features).count() as u32
    }

    fn inodes_per_block(&self) -> u32 {
        self.options.block_size / self.options.inode_size
    }

    fn chunk_blocks(&self) -> u32 {
        chunk_blocks(self.inodes_per_block().trailing_zeros() as u8)
    }

    /// Blocks of an inode cluster, to which parts of sparse chunks are aligned.
    fn cluster_blocks(&self) -> u32 {
        (CLUSTER_BYTES * (self.options.inode_size / 256)) >> self.block_log
    }

    /// Alignment of chunks in blocks. 0: they are smaller than a block.
    fn inode_align(&self) -> u32 {
        if self.options.features.sparse_inodes {
            (64 * self.options.inode_size) >> self.block_log
        } else {
            self.cluster_blocks()
        }
    }

    fn group_blocks(&self, ag: u32) -> u32 {
        let (before, all) = (u64::from(ag) * u64::from(self.cut.ag_blocks), u64::from(self.cut.ag_blocks));
        // At most `ag_blocks`.
        (self.cut.data_blocks - before).min(all) as u32
    }

    /// Blocks that a log in a group may have. One block of the group stays free.
    fn log_room(&self, ag: u32) -> u32 {
        let first = if ag == 0 { self.chunk_blocks() + self.inode_align().max(1) - 1 } else { 0 };
        self.group_blocks(ag).saturating_sub(self.fixed_blocks() + self.agfl_blocks() + first + 1)
    }

    /// The log goes into the group in the middle. If that is the last one and too small, into the first.
    fn place_log(&self) -> Result<LogPlace, Refusal> {
        let middle = self.cut.ag_count / 2;
        let room = self.log_room(middle).max(self.log_room(0));
        let shape = LogShape {
            shape: self.shape(),
            sector_size: self.options.sector_size,
            dir_block_size: self.dir_block_size(),
            finobt: self.options.features.finobt,
            stripe_unit: self.stripe_unit(),
        };
        let Options { log_size, small, .. } = *self.options;
        // What mkfs.xfs counts as usable: it assumes an AGFL for no more than two small trees.
        let usable = self.cut.ag_blocks.saturating_sub(self.fixed_blocks() + AGFL_USUAL + 1);
        let room = log_size::LogRoom { most: room.into(), unasked: room.min(usable).into() };
        let blocks = log_size::choose(log_size, &shape, self.cut.data_blocks, room, small)?;
        let ag = if blocks <= self.log_room(middle) { middle } else { 0 };
        Ok(LogPlace { ag, blocks })
    }

    /// The root directory's number: the first inode of the first chunk.
    fn root_inode(&self, log: LogPlace) -> u64 {
        let log_blocks = if log.ag == 0 { log.blocks } else { 0 };
        let first = self.fixed_blocks() + log_blocks + self.agfl_blocks();
        let block = first.next_multiple_of(self.inode_align().max(1));
        u64::from(block) * u64::from(self.inodes_per_block())
    }

    /// The part of the volume that inodes may take, in percent.
    fn max_inode_percent(&self) -> u8 {
        match self.cut.data_blocks << self.block_log {
            0..0x100_0000_0000 => 25,
            0x100_0000_0000..0x3200_0000_0000 => 5,
            _ => 1,
        }
    }

    fn superblock(&self, log: LogPlace) -> RawSuperblock {
        let options = self.options;
        let ag_block_log = (self.cut.ag_blocks - 1).checked_ilog2().map_or(0, |log| log + 1);
        let root = self.root_inode(log);
        let inodes = u64::from(self.chunk_blocks() * self.inodes_per_block());
        let fixed = u64::from(self.cut.ag_count) * u64::from(self.fixed_blocks());
        let used = fixed + u64::from(log.blocks) + u64::from(self.chunk_blocks());
        let large_sectors = options.sector_size > 512;
        let mut raw = RawSuperblock::new_zeroed();
        raw.magicnum = MAGIC.into();
        raw.blocksize = options.block_size.into();
        raw.dblocks = self.cut.data_blocks.into();
        raw.uuid = options.uuid.0;
        raw.logstart = (u64::from(log.ag) << ag_block_log | u64::from(self.fixed_blocks())).into();
        raw.rootino = root.into();
        raw.rbmino = (root + 1).into();
        raw.rsumino = (root + 2).into();
        raw.rextsize = (REALTIME_EXTENT >> self.block_log).max(1).into();
        raw.agblocks = self.cut.ag_blocks.into();
        raw.agcount = self.cut.ag_count.into();
        raw.logblocks = log.blocks.into();
        raw.versionnum = (5 | version_flags(large_sectors, options.features.parent_pointers).bits()).into();
        // Sector size, inode size and inodes per block are at most 32768.
        raw.sectsize = (options.sector_size as u16).into();
        raw.inodesize = (options.inode_size as u16).into();
        raw.inopblock = (self.inodes_per_block() as u16).into();
        raw.fname[..options.label.len()].copy_from_slice(&options.label);
        raw.blocklog = self.block_log;
        raw.sectlog = options.sector_size.trailing_zeros() as u8;
        raw.inodelog = options.inode_size.trailing_zeros() as u8;
        raw.inopblog = self.inodes_per_block().trailing_zeros() as u8;
        raw.agblklog = ag_block_log as u8;
        raw.imax_pct = self.max_inode_percent();
        raw.icount = inodes.into();
        raw.ifree = (inodes - INODES_USED).into();
        raw.fdblocks = (self.cut.data_blocks - used).into();
        raw.inoalignmt = self.inode_align().into();
        raw.dirblklog = (self.dir_block_size() >> self.block_log).trailing_zeros() as u8;
        if large_sectors {
            raw.logsectlog = raw.sectlog;
            raw.logsectsize = raw.sectsize;
        }
        raw.logsunit = self.stripe_unit().into();
        let features2 = Features2::LAZYSBCOUNT | Features2::ATTR2 | Features2::PROJID32 | Features2::CRC;
        raw.features2 = features2.bits().into();
        raw.bad_features2 = raw.features2;
        raw.features_ro_compat = ro_compat(&options.features).bits().into();
        raw.features_incompat = incompat(&options.features).bits().into();
        if options.features.sparse_inodes {
            raw.spino_align = self.cluster_blocks().into();
        }
        raw
    }
}

/// Blocks of an AGFL for two small trees.
const AGFL_USUAL: u32 = 4;

/// Blocks that a group keeps for splits of its trees. Trees have one level now. Each split up to a new root takes two
/// blocks; a tree that can never have more than one level takes none. `xfs_repair` from 6.11 on computes the root
/// directory's place from this. Older ones assumed two blocks for trees that cannot grow.
fn agfl_blocks(shape: &DepthInputs) -> u32 {
    let levels = Levels::of(shape);
    let splits = |levels: u32| 2 * levels.clamp(1, 2) - 2;
    2 * splits(levels.alloc) + splits(levels.rmap)
}

impl VolumeLayout {
    /// The layout of new groups in an existing volume that grows.
    pub(crate) fn of_volume(superblock: &Superblock) -> Self {
        let (ro, incompat) = (superblock.ro_compat(), superblock.incompat());
        Self {
            geometry: Geometry::from_superblock(superblock),
            superblock: *superblock,
            features: Features {
                finobt: ro.contains(RoCompat::FINOBT),
                inobt_counts: ro.contains(RoCompat::INOBTCNT),
                sparse_inodes: incompat.contains(Incompat::SPINODES),
                reflink: ro.contains(RoCompat::REFLINK),
                bigtime: incompat.contains(Incompat::BIGTIME),
                nrext64: incompat.contains(Incompat::NREXT64),
                rmapbt: ro.contains(RoCompat::RMAPBT),
                exchange: incompat.contains(Incompat::EXCHRANGE),
                parent_pointers: incompat.contains(Incompat::PARENT),
            },
            time: Timestamp::default(),
            agfl_blocks: agfl_blocks(&DepthInputs::of(superblock)),
        }
    }
}

fn version_flags(large_sectors: bool, attributes: bool) -> VersionFlags {
    let mut flags = VersionFlags::NLINK
        | VersionFlags::ALIGN
        | VersionFlags::LOGV2
        | VersionFlags::EXTFLG
        | VersionFlags::DIRV2
        | VersionFlags::MOREBITS;
    flags.set(VersionFlags::SECTOR, large_sectors);
    // Parent pointers are attributes, so there will be some.
    flags.set(VersionFlags::ATTR, attributes);
    flags
}

fn ro_compat(features: &Features) -> RoCompat {
    let mut bits = RoCompat::empty();
    bits.set(RoCompat::FINOBT, features.finobt);
    bits.set(RoCompat::RMAPBT, features.rmapbt);
    bits.set(RoCompat::REFLINK, features.reflink);
    bits.set(RoCompat::INOBTCNT, features.inobt_counts);
    bits
}

fn incompat(features: &Features) -> Incompat {
    let mut bits = Incompat::FTYPE;
    bits.set(Incompat::SPINODES, features.sparse_inodes);
    bits.set(Incompat::BIGTIME, features.bigtime);
    bits.set(Incompat::NREXT64, features.nrext64);
    bits.set(Incompat::EXCHRANGE, features.exchange);
    bits.set(Incompat::PARENT, features.parent_pointers);
    bits
}

/// Rows of the feature table for the features of a new volume.
fn rows(features: &Features) -> impl Iterator<Item = &'static Feature> + use<> {
    let (ro_compat, incompat) = (ro_compat(features), incompat(features));
    TABLE.iter().filter(move |row| match row.mark {
        FeatureMark::RoCompat(bit) => ro_compat.contains(bit),
        FeatureMark::Incompat(bit) => incompat.contains(bit),
        _ => false,
    })
}

/// The names of the features because of which the new volume could not be written.
pub fn unwritable(features: &Features) -> Vec<String> {
    rows(features).filter(|row| !row.support.written).map(|row| row.name.to_owned()).collect()
}

impl Features {
    /// The names of features that are on and that a kernel does not write.
    pub fn unknown_to(&self, kernel: Kernel) -> Vec<&'static str> {
        let unknown = |row: &&Feature| row.mark.since().written.is_none_or(|since| since > kernel);
        rows(self).filter(unknown).map(|row| row.name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::groups::Groups;
    use super::*;
    use xfs_format::kernels::Kernels;
    use xfs_format::types::{AgNumber, Uuid};

    fn options() -> Options {
        let time = Timestamp { seconds: 1_700_000_000, nanoseconds: 5 };
        Options { small: true, ..Options::new(Uuid([7; 16]), time) }
    }

    fn refused(change: impl FnOnce(&mut Options), device: u64) -> Refusal {
        let mut options = options();
        change(&mut options);
        plan(&options, device).unwrap_err()
    }

    /// Every block of every group belongs to exactly one part, and the counts agree.
    fn check(layout: &VolumeLayout) {
        let geometry = layout.geometry();
        let (mut free, mut listed) = (0, 0);
        for ag in (0..geometry.ag_count()).map(AgNumber) {
            let group = layout.group(ag);
            let mut parts = vec![(0, layout.fixed_blocks())];
            let extents = group.log.iter().chain([&group.agfl]).chain(&group.inodes).chain(&group.free);
            parts.extend(extents.map(|extent| (extent.start.0, extent.end())));
            parts.sort_unstable();
            assert!(parts.windows(2).all(|pair| pair[0].1 == pair[1].0), "{group:?}");
            assert_eq!(parts.last().unwrap().1, group.blocks);
            free += group.free.iter().map(|extent| u64::from(extent.blocks)).sum::<u64>();
            listed += u64::from(group.agfl.blocks);
            assert_eq!(group.inodes.is_some(), ag.0 == 0);
        }
        assert_eq!(layout.superblock().raw().fdblocks.get(), free + listed);
        let inodes = layout.group(AgNumber(0)).inodes.unwrap();
        assert_eq!(geometry.root.0, u64::from(inodes.start.0) << geometry.inodes_per_block_log);
    }

    #[test]
    fn all_parts_fit_whatever_the_shape() {
        let mut planned = 0;
        for (block_log, inode_log, sector_log) in
            (10..=16).flat_map(|b| (9..=11).flat_map(move |i| (9..=12).map(move |s| (b, i, s))))
        {
            for size in [16 << 20, 17 << 20, 40 << 20, 300 << 20, 1 << 40, 100 << 40] {
                for bits in 0..16 {
                    let on = |bit: u32| bits >> bit & 1 == 1;
                    let mut options = options();
                    (options.block_size, options.inode_size) = (1 << block_log, 1 << inode_log);
                    options.sector_size = 1 << sector_log;
                    options.features.reflink = on(0);
                    options.features.sparse_inodes = on(1);
                    options.features.rmapbt = on(2);
                    (options.features.finobt, options.features.inobt_counts) = (on(3), on(3));
                    match plan(&options, size) {
                        Ok(layout) => check(&layout),
                        Err(Refusal::SectorSize { .. } | Refusal::InodeSize { .. }) => continue,
                        // Small volumes may be too small for their log, but no others.
                        Err(Refusal::LogRoom { .. }) if size <= 300 << 20 => continue,
                        Err(other) => panic!("{options:?} on {size}: {other}"),
                    }
                    planned += 1;
                }
            }
        }
        assert!(planned > 3000, "{planned}");
    }

    /// What the feature table calls "made" can be made, and what it calls "written" can be filled.
    #[test]
    fn the_table_of_features_knows_what_is_made() {
        for bits in 0..256 {
            let on = |bit: u32| bits >> bit & 1 == 1;
            let mut options = options();
            let features = &mut options.features;
            (features.reflink, features.rmapbt, features.finobt) = (on(0), on(1), on(2));
            (features.sparse_inodes, features.bigtime, features.nrext64) = (on(3), on(4), on(5));
            (features.exchange, features.parent_pointers) = (on(6), on(7));
            features.inobt_counts = features.finobt;
            let unwritable = unwritable(features);
            let superblock = *plan(&options, 1 << 30).unwrap().superblock();
            assert!(superblock.features().iter().all(|feature| feature.support.made), "{options:?}");
            assert_eq!(superblock.unwritable(), unwritable);
            assert!(unwritable.is_empty(), "{unwritable:?}");
        }
    }

    #[test]
    fn the_set_of_a_kernel_is_one_that_it_writes() {
        for name in Features::KERNELS {
            let kernel = Kernel::parse(name).unwrap();
            let features = Features::of_kernel(name).unwrap();
            assert!(features.unknown_to(kernel).is_empty(), "{name}");
            let superblock = *plan(&Options { features, ..options() }, 1 << 30).unwrap().superblock();
            assert!(Kernels::of(&superblock).since.written.unwrap() <= kernel, "{name}");
        }
        assert_eq!(Features::of_kernel("6.2"), None);
        let today = Features::of_kernel("6.18").unwrap();
        let old = Kernel { major: 5, minor: 4 };
        let names = ["inobtcount", "bigtime", "nrext64", "exchange", "parent"];
        assert_eq!(today.unknown_to(old), names);
    }

    #[test]
    fn the_superblock_is_that_of_mkfs() {
        let features = Features::of_kernel("6.18").unwrap();
        let layout = plan(&Options { small: false, features, ..options() }, 300 << 20).unwrap();
        let raw = layout.superblock().raw();
        // As xfs_db shows them for a volume from xfsprogs 7.2.
        assert_eq!((raw.logstart.get(), raw.logblocks.get()), (65543, 16384));
        assert_eq!((raw.rootino.get(), raw.icount.get(), raw.ifree.get()), (128, 64, 61));
        assert_eq!((raw.fdblocks.get(), raw.versionnum.get()), (60380, 0xb4b5));
        assert_eq!((raw.inoalignmt.get(), raw.spino_align.get()), (8, 4));
        assert_eq!((raw.features_ro_compat.get(), raw.features_incompat.get()), (0xf, 0xeb));
    }

    #[test]
    fn a_log_that_does_not_fit_the_middle_goes_to_the_first_group() {
        let groups = Groups::Bytes(284 << 20);
        let layout = plan(&Options { groups, ..options() }, 300 << 20).unwrap();
        assert_eq!(layout.geometry().ag_count(), 2);
        assert!(layout.group(AgNumber(0)).log.is_some() && layout.group(AgNumber(1)).log.is_none());
        check(&layout);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let large = 1 << 30;
        assert_eq!(refused(|o| o.block_size = 512, large), Refusal::BlockSize(512));
        assert_eq!(refused(|o| o.block_size = 5000, large), Refusal::BlockSize(5000));
        let sector = |sector| Refusal::SectorSize { sector, block: 4096 };
        assert_eq!(refused(|o| o.sector_size = 8192, large), sector(8192));
        assert_eq!(refused(|o| o.sector_size = 256, large), sector(256));
        let inode = |inode| Refusal::InodeSize { inode, block: 4096 };
        assert_eq!(refused(|o| o.inode_size = 256, large), inode(256));
        assert_eq!(refused(|o| o.inode_size = 4096, large), inode(4096));
        let dir = |dir| Refusal::DirBlockSize { dir, block: 4096 };
        assert_eq!(refused(|o| o.dir_block_size = Some(2048), large), dir(2048));
        assert_eq!(refused(|o| o.dir_block_size = Some(1 << 17), large), dir(1 << 17));
        assert_eq!(refused(|o| o.label = vec![b'x'; 13], large), Refusal::Label);
        assert_eq!(refused(|o| o.uuid = Uuid([0; 16]), large), Refusal::Uuid);
        assert_eq!(refused(|o| o.time.seconds = i64::MAX, large), Refusal::Time);
        assert_eq!(refused(|o| o.time.nanoseconds = 1_000_000_000, large), Refusal::Time);
        let legacy = |o: &mut Options| (o.features.bigtime, o.time.seconds) = (false, 1 << 31);
        assert_eq!(refused(legacy, large), Refusal::Time);
        assert!(matches!(refused(|o| o.features.finobt = false, large), Refusal::Feature { .. }));
        let size = |o: &mut Options| o.size = Some(large + 1);
        assert_eq!(refused(size, large), Refusal::Device { wanted: large + 1, device: large });
        let least = 16 << 20;
        assert_eq!(refused(|_| (), least - 1), Refusal::TooSmall { size: least - 1, least, small: true });
        let usual = refused(|o| o.small = false, (300 << 20) - 1);
        assert!(matches!(usual, Refusal::TooSmall { small: false, .. }), "{usual}");
        // A group that is left out may leave too little.
        let groups = |o: &mut Options| (o.small, o.groups) = (false, Groups::Bytes(290 << 20));
        assert!(matches!(refused(groups, 300 << 20), Refusal::GroupCount { .. } | Refusal::TooSmall { .. }));
        assert!(matches!(refused(|o| o.groups = Groups::Count(5), u64::MAX), Refusal::GroupSize { .. }));
        assert!(matches!(refused(|_| (), u64::MAX), Refusal::GroupCount { .. }));
        let log = |o: &mut Options| o.log_size = Some(1 << 20);
        assert!(matches!(refused(log, large), Refusal::LogSize { .. }));
        let room = |o: &mut Options| (o.log_size, o.groups) = (Some(64 << 20), Groups::Count(16));
        assert!(matches!(refused(room, 300 << 20), Refusal::LogRoom { .. }));
    }
}
