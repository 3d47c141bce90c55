//! The copies of the superblock in all groups but the first.
//!
//! Invariant: the second group's copy is written when all others are on stable storage, so if it is current, all are.

use crate::error::{Error, Result};
use crate::mkfs::seal;
use crate::mount::Mount;
use blockdev::{AlignedBuf, BlockDevice, Durability};
use xfs_format::checksum;
use xfs_format::error::FormatError;
use xfs_format::features::Incompat;
use xfs_format::geometry::Geometry;
use xfs_format::superblock::{CRC_OFFSET, MAGIC, RawSuperblock, SUPERBLOCK};
use xfs_format::types::{AgBlock, AgNumber, DiskAddr};
use zerocopy::FromBytes;

/// The superblock as it was last committed.
pub(super) fn committed(mount: &Mount) -> Result<RawSuperblock> {
    let buf = mount.bufs().read(DiskAddr(0), mount.geometry().sector_size.into(), &SUPERBLOCK)?;
    view(&buf)
}

fn view(bytes: &[u8]) -> Result<RawSuperblock> {
    let len = bytes.len() as u64;
    let problem = || FormatError::value(SUPERBLOCK.name, "length", len);
    let wrap = |_| Error::corrupt_block(DiskAddr(0), None, problem());
    RawSuperblock::read_from_prefix(bytes).map(|(raw, _)| raw).map_err(wrap)
}

/// Updates the copies of this many groups. If that fails, the volume is shut down; whoever opens it next finds from its
/// log that the copies must be written.
pub(crate) fn follow(mount: &Mount, groups: u32) -> Result<()> {
    let written = committed(mount).and_then(|raw| write(&**mount.device(), mount.geometry(), &raw, groups));
    written.inspect_err(|error| mount.shut_down(error))
}

/// Writes `raw` to the copies of this many groups, durably.
pub(super) fn write(
    device: &dyn BlockDevice,
    geometry: &Geometry,
    raw: &RawSuperblock,
    groups: u32,
) -> Result<()> {
    let sector = AlignedBuf::copied(&seal(raw));
    let write = |ag| {
        let at = geometry.daddr_of(AgNumber(ag), AgBlock(0)).0 << 9;
        device.write(at, &sector, Durability::Volatile)
    };
    if groups > 2 {
        (2..groups).try_for_each(write)?;
        device.flush()?;
    }
    if groups > 1 {
        write(1)?;
        device.flush()?;
    }
    Ok(())
}

/// Updates the copies if they are stale, because a crash came in between and the recovery left them. A damaged copy
/// says nothing and is left for `xfs_repair`. Returns whether they were written.
pub(crate) fn settle(mount: &Mount) -> Result<bool> {
    let geometry = mount.geometry();
    if !geometry.v5 || geometry.ag_count() < 2 {
        return Ok(false);
    }
    // The same in the log and in place: nobody has changed it yet.
    let raw = *mount.superblock().raw();
    let mut sector = AlignedBuf::zeroed(geometry.sector_size as usize);
    mount.device().read(geometry.daddr_of(AgNumber(1), AgBlock(0)).0 << 9, &mut sector)?;
    let copy = view(&sector)?;
    let sound = copy.magicnum.get() == MAGIC && checksum::check(SUPERBLOCK.name, &sector, CRC_OFFSET).is_ok();
    let lag = sound && belongs(&copy, &raw) && said(&copy) != said(&raw);
    if lag {
        write(&**mount.device(), geometry, &raw, geometry.ag_count())?;
    }
    Ok(lag)
}

/// Whether it is a copy of this volume's superblock. Its UUID may differ.
fn belongs(copy: &RawSuperblock, raw: &RawSuperblock) -> bool {
    let own = [raw.uuid, raw.meta_uuid];
    own.contains(&copy.uuid) || own.contains(&copy.meta_uuid)
}

/// The fields that are copied.
fn said(raw: &RawSuperblock) -> (u64, u32, [u8; 12], [u8; 16], [u32; 3]) {
    let incompat = raw.features_incompat.get() & !Incompat::NEEDSREPAIR.bits();
    let features = [raw.features_compat.get(), raw.features_ro_compat.get(), incompat];
    (raw.dblocks.get(), raw.agcount.get(), raw.fname, raw.uuid, features)
}
