//! After the replay, recovery corrects the superblock's counters, which are not kept up to date while a volume is open.

use super::patch::Patch;
use crate::buf::BufCache;
use crate::error::{Error, Result};
use crate::group::Groups;
use blockdev::BlockDevice;
use std::mem::offset_of;
use std::sync::Arc;
use xfs_format::checksum;
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::superblock::{CRC_OFFSET, RawSuperblock, SUPERBLOCK, Superblock};
use xfs_format::types::{AgNumber, DiskAddr};
use zerocopy::FromBytes;

/// Enough for headers and a path of a tree.
const CACHE_BYTES: u64 = 1 << 20;

/// Reads the superblock again, and writes the sums over all groups into it.
pub(super) fn settle(patch: Patch, before: &Superblock) -> Result<(Arc<Patch>, Superblock)> {
    let wrap = |problem| Error::corrupt_block(DiskAddr(0), None, problem);
    let sector = Geometry::from_superblock(before).sector_size.into();
    let mut change = patch.change(0, sector, SUPERBLOCK.name)?;
    let now = Superblock::parse(change.bytes()).map_err(wrap)?;
    let geometry = Geometry::from_superblock(&now);
    if now.uuid() != before.uuid() || shape(&now) != shape(before) {
        return Err(wrap(FormatError::new(SUPERBLOCK.name, "identity after the replay")));
    }
    if patch.size() < geometry.bytes() {
        return Err(Error::Truncated { expected: geometry.bytes(), actual: patch.size() });
    }
    let patch = Arc::new(patch);
    let (free, inodes, free_inodes) = sums(&patch, &geometry)?;
    let mut patch = Arc::into_inner(patch).ok_or_else(|| wrap(FormatError::new(SUPERBLOCK.name, "owner")))?;
    let bytes = change.bytes();
    let (raw, _) = RawSuperblock::mut_from_prefix(bytes)
        .map_err(|_| wrap(FormatError::value(SUPERBLOCK.name, "length", sector)))?;
    raw.fdblocks = free.into();
    raw.icount = inodes.into();
    raw.ifree = free_inodes.into();
    checksum::store(bytes, CRC_OFFSET);
    let now = Superblock::parse(bytes).map_err(wrap)?;
    patch.put(change);
    Ok((Arc::new(patch), now))
}

/// What no transaction changes: sizes of the volume's units, and the log, which the replay is using.
fn shape(superblock: &Superblock) -> [u64; 9] {
    let raw = superblock.raw();
    [
        raw.blocksize.get().into(),
        raw.agblocks.get().into(),
        raw.sectsize.get().into(),
        raw.inodesize.get().into(),
        raw.dirblklog.into(),
        raw.logstart.get(),
        raw.logblocks.get().into(),
        raw.logsectsize.get().into(),
        raw.logsunit.get().into(),
    ]
}

const _: () = assert!(offset_of!(RawSuperblock, icount) + 24 == offset_of!(RawSuperblock, fdblocks) + 8);

/// Free blocks, allocated inodes, and free inodes of all groups.
fn sums(patch: &Arc<Patch>, geometry: &Geometry) -> Result<(u64, u64, u64)> {
    let (bufs, groups) = look(patch, geometry);
    let (mut free, mut inodes, mut free_inodes) = (0, 0, 0);
    for ag in (0..geometry.ag_count()).map(AgNumber) {
        let (space, chunks) = (groups.space(&bufs, geometry, ag)?, groups.inodes(&bufs, geometry, ag)?);
        // Blocks in the AGFL and in the free space trees count as free, because they can become free.
        free += u64::from(space.free_blocks) + u64::from(space.agfl_blocks) + u64::from(space.tree_blocks);
        inodes += u64::from(chunks.count);
        free_inodes += u64::from(chunks.free);
    }
    Ok((free, inodes, free_inodes))
}

fn look(patch: &Arc<Patch>, geometry: &Geometry) -> (BufCache, Groups) {
    let device: Arc<dyn BlockDevice> = Arc::clone(patch) as Arc<dyn BlockDevice>;
    (BufCache::new(device, geometry, CACHE_BYTES), Groups::new(geometry.ag_count(), true))
}
