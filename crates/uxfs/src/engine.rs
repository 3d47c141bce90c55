//! Converts the engine's inodes and errors to the types of this crate. Nothing else does.

use crate::error::{Error, ErrorKind, device_kind, engine_kind};
use crate::info::{FeatureSupport, Quota, VolumeInfo};
use crate::metadata;
use crate::metadata::{DeviceNumber, Metadata};
use fileio::{Failure, FileError, Refusal};
use xfs::inode::{ForkKind, InMemory, Inode};
use xfs::volume::Volume;
use xfs_format::feature_table;

/// The metadata of an inode.
pub(crate) fn metadata(volume: &Volume, inode: &Inode) -> Metadata {
    let core = inode.core();
    let block_size = volume.geometry().block_size;
    Metadata {
        ino: inode.ino().0,
        generation: inode.generation(),
        file_type: inode.kind().into(),
        mode: core.mode,
        uid: inode.uid(),
        gid: inode.gid(),
        nlink: inode.nlink(),
        size: inode.size(),
        blocks: inode.blocks().saturating_mul(u64::from(block_size) / 512),
        block_size,
        atime: inode.atime(),
        mtime: inode.mtime(),
        ctime: inode.ctime(),
        btime: inode.crtime(),
        rdev: inode.device().map(|(major, minor)| DeviceNumber { major, minor }),
        project_id: inode.project_id(),
        extent_size: u64::from(core.extsize) * u64::from(block_size),
        cow_extent_size: u64::from(core.cowextsize) * u64::from(block_size),
        xflags: metadata::xflags(core.flags.bits(), core.flags2.bits(), inode.has_attrs()),
        extents: inode.extent_count(ForkKind::Data),
    }
}

/// The same, with what was only `in_memory` before the version was read.
pub(crate) fn metadata_in_memory(volume: &Volume, in_memory: &InMemory, inode: &Inode) -> Metadata {
    let (mtime, ctime) = in_memory.times(inode, volume.still_time());
    let metadata = metadata(volume, inode);
    let unmapped = in_memory.blocks.saturating_mul(u64::from(metadata.block_size) / 512);
    Metadata {
        size: metadata.size.max(in_memory.size),
        blocks: metadata.blocks.saturating_add(unmapped),
        mtime,
        ctime,
        ..metadata
    }
}

/// Shape, features and free space. `root_attributes`: names of the root directory's.
pub(crate) fn info(volume: &Volume, root_attributes: &[Vec<u8>]) -> Result<VolumeInfo, Error> {
    let (info, stat) = (volume.info(), volume.stat()?);
    let trusted = root_attributes.iter().filter_map(|name| name.strip_prefix(b"trusted."));
    let features = info.features.into_iter().chain(feature_table::of_root_attributes(trusted));
    let feature_table: Vec<FeatureSupport> = features.map(FeatureSupport::from).collect();
    Ok(VolumeInfo {
        version: info.version,
        uuid: info.uuid.to_string(),
        label: info.label,
        block_size: info.block_size,
        sector_size: info.sector_size,
        inode_size: info.inode_size,
        dir_block_size: info.dir_block_size,
        blocks: stat.data_blocks,
        available_blocks: stat.blocks,
        free_blocks: stat.free_blocks,
        inodes: stat.inodes,
        free_inodes: stat.free_inodes,
        // The groups of these blocks: a volume may grow meanwhile.
        ag_count: stat.data_blocks.div_ceil(info.ag_blocks.max(1).into()) as u32,
        ag_blocks: info.ag_blocks,
        log_blocks: info.log_blocks,
        log_clean: info.log_clean,
        root_ino: volume.geometry().root.0,
        features: feature_table.iter().map(|feature| feature.name.clone()).collect(),
        feature_table,
        read_only_because: info.unwritable,
        kernels: info.kernels.into(),
        quota: Quota::of(info.quota),
    })
}

impl From<FileError<xfs::Error>> for Error {
    fn from(error: FileError<xfs::Error>) -> Self {
        let text = error.to_string();
        match error {
            FileError::Device(device) => device.into(),
            FileError::Map { source, .. } => source.into(),
            FileError::WriteBack(failure) => failure.into(),
            FileError::TooLarge { .. } => Self::new(ErrorKind::TooLarge, text),
            FileError::BadExtent { .. } => Self::new(ErrorKind::Damaged, format!("damaged: {text}")),
            FileError::NotOverwritable { why: Refusal::PastEnd, .. }
            | FileError::ReachesEnd
            | FileError::BehindEnd => Self::new(ErrorKind::InvalidInput, text),
            FileError::NotOverwritable { why: Refusal::Shared, .. } => Self::new(ErrorKind::Shared, text),
            FileError::NotOverwritable { .. } => Self::new(ErrorKind::NotAllocated, text),
            _ => Self::new(ErrorKind::Io, text),
        }
    }
}

impl From<Failure> for Error {
    /// Of the kind of what failed.
    fn from(failure: Failure) -> Self {
        let kind = match failure.error().downcast_ref::<FileError<xfs::Error>>() {
            Some(FileError::Map { source, .. }) => engine_kind(source),
            Some(FileError::Device(device)) => device_kind(device),
            _ => ErrorKind::Io,
        };
        Self::new(kind, failure.to_string())
    }
}
