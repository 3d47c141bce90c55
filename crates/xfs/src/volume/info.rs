//! What a volume reports of itself: shape, features, free space.

use super::Volume;
use crate::alloc::{Space, reserve_pool};
use crate::alter;
use crate::error::Result;
use std::sync::atomic::Ordering;
use xfs_format::feature_table::Present;
use xfs_format::features::{QuotaFlags, VersionFlags};
use xfs_format::kernels::Kernels;
use xfs_format::superblock::Superblock;
use xfs_format::types::{AgNumber, Uuid};

/// What `xfs_info` shows.
#[derive(Clone, Debug)]
pub struct VolumeInfo {
    /// 4 or 5.
    pub version: u16,
    /// The volume's UUID.
    pub uuid: Uuid,
    /// The label, up to 12 bytes.
    pub label: Vec<u8>,
    /// Bytes per block.
    pub block_size: u32,
    /// Bytes per sector.
    pub sector_size: u32,
    /// Bytes per inode.
    pub inode_size: u16,
    /// Bytes per directory block.
    pub dir_block_size: u32,
    /// Blocks per group.
    pub ag_blocks: u32,
    /// The part of the volume that inodes may take, in percent (0: no limit).
    pub max_inode_percent: u8,
    /// Stripe unit and width in blocks (0: none).
    pub stripe: (u32, u32),
    /// Blocks of the log.
    pub log_blocks: u32,
    /// Version of the log's records: 1 or 2.
    pub log_version: u8,
    /// Bytes per sector of the log.
    pub log_sector_size: u32,
    /// Bytes to which log writes are padded.
    pub log_stripe_unit: u32,
    /// The features that are on, and how each is handled.
    pub features: Vec<Present>,
    /// The features because of which the volume cannot be written.
    pub unwritable: Vec<String>,
    /// Which kernels mount it.
    pub kernels: Kernels,
    /// Which kinds of quota are counted, and whether the counts are right. Empty: no quota.
    pub quota: QuotaFlags,
    /// Whether the log is clean.
    pub log_clean: bool,
}

/// Size, and used and free space, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeStat {
    /// Blocks of the volume.
    pub data_blocks: u64,
    /// Blocks for files and metadata: all but those of the log.
    pub blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
    /// Inodes allocated on disk.
    pub inodes: u64,
    /// Allocated inodes that are free.
    pub free_inodes: u64,
}

impl Volume {
    /// What the volume says of itself.
    pub fn info(&self) -> VolumeInfo {
        let (sb, geometry) = (self.superblock(), self.geometry());
        let raw = sb.raw();
        VolumeInfo {
            version: sb.version(),
            uuid: geometry.uuid,
            // What was read once stays in memory or can be read again. If reading fails, show the label from the time
            // of opening.
            label: alter::label(self).unwrap_or_else(|_| sb.label().to_vec()),
            block_size: geometry.block_size,
            sector_size: geometry.sector_size,
            inode_size: geometry.inode_size,
            dir_block_size: geometry.dir_block_size(),
            ag_blocks: geometry.ag_blocks,
            max_inode_percent: raw.imax_pct,
            stripe: (raw.unit.get(), raw.width.get()),
            log_blocks: raw.logblocks.get(),
            log_version: if sb.has_log_v2() { 2 } else { 1 },
            log_sector_size: match raw.logsectsize.get() {
                0 => 512,
                size => size.into(),
            },
            log_stripe_unit: raw.logsunit.get(),
            features: sb.features(),
            unwritable: sb.unwritable(),
            kernels: Kernels::of(sb),
            quota: self.quota(),
            log_clean: self.log_is_clean(),
        }
    }

    /// The quota flags of the superblock. Once the volume has been changed, no counts are right.
    fn quota(&self) -> QuotaFlags {
        let (sb, flags) =
            (self.superblock(), QuotaFlags::from_bits_retain(self.superblock().raw().qflags.get()));
        if !sb.version_flags().contains(VersionFlags::QUOTA) {
            return QuotaFlags::empty();
        }
        let counted = self.write_side().map_or(true, |write| write.quota_counted.load(Ordering::Relaxed));
        if counted { flags } else { flags.difference(QuotaFlags::COUNTED) }
    }

    /// What is used and what is free now. For a volume that is open for reading: from the superblock if the log is
    /// clean, otherwise summed over all groups.
    pub fn stat(&self) -> Result<VolumeStat> {
        let raw = self.superblock().raw();
        let of_log = u64::from(raw.logblocks.get());
        if let Ok(write) = self.write_side() {
            let (counts, data_blocks) = write.counters.look(|| self.geometry().data_blocks());
            return Ok(VolumeStat {
                data_blocks,
                blocks: data_blocks.saturating_sub(of_log),
                free_blocks: counts.free_blocks,
                inodes: counts.inodes,
                free_inodes: counts.free_inodes,
            });
        }
        let data_blocks = self.geometry().data_blocks();
        let blocks = data_blocks.saturating_sub(of_log);
        if self.log_is_clean() {
            return Ok(VolumeStat {
                data_blocks,
                blocks,
                free_blocks: raw.fdblocks.get(),
                inodes: raw.icount.get(),
                free_inodes: raw.ifree.get(),
            });
        }
        self.sum_groups(data_blocks, blocks)
    }

    /// Free blocks that no file gets: those that hold the free space trees, those that each group keeps so that its
    /// trees can grow, and the reserve pool. Reads the headers of all groups.
    pub fn kept_back(&self) -> Result<u64> {
        let (bufs, geometry) = (self.bufs(), self.geometry());
        let (kept, pool) = match self.write_side() {
            Ok(write) => (write.space.kept_back(bufs, geometry), write.counters.reserve_pool()),
            Err(_) => (Space::new(geometry).kept_back(bufs, geometry), reserve_pool(geometry.data_blocks())),
        };
        Ok(kept? + u64::from(pool))
    }

    /// Sums the counters of the groups' headers.
    fn sum_groups(&self, data_blocks: u64, blocks: u64) -> Result<VolumeStat> {
        let mut stat = VolumeStat { data_blocks, blocks, free_blocks: 0, inodes: 0, free_inodes: 0 };
        for ag in (0..self.geometry().ag_count()).map(AgNumber) {
            let (space, inodes) = (self.group_space(ag)?, self.group_inodes(ag)?);
            // Blocks in the AGFL and in the free space trees count as free, because they can become free.
            stat.free_blocks += u64::from(space.free_blocks) + u64::from(space.agfl_blocks);
            if Superblock::has_lazy_counters(self.superblock()) {
                stat.free_blocks += u64::from(space.tree_blocks);
            }
            stat.inodes += u64::from(inodes.count);
            stat.free_inodes += u64::from(inodes.free);
        }
        Ok(stat)
    }
}
