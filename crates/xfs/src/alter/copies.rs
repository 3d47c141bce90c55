//! The copies of the superblock that the groups behind the first one have.
//!
//! Invariant: the second group's is written when all others are on stable storage, so that it tells of all of them.

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

/// The superblock as it was committed last.
pub(super) fn committed(volume: &Mount) -> Result<RawSuperblock> {
    let buf = volume.bufs().read(DiskAddr(0), volume.geometry().sector_size.into(), &SUPERBLOCK)?;
    view(&buf)
}

fn view(bytes: &[u8]) -> Result<RawSuperblock> {
    let len = bytes.len() as u64;
    let problem = || FormatError::value(SUPERBLOCK.name, "length", len);
    let wrap = |_| Error::corrupt_block(DiskAddr(0), None, problem());
    RawSuperblock::read_from_prefix(bytes).map(|(raw, _)| raw).map_err(wrap)
}

/// Has the copies of so many groups follow the superblock. Should that fail, the volume is shut down: its log tells the next
/// to open it to write them.
pub(crate) fn follow(volume: &Mount, groups: u32) -> Result<()> {
    let written =
        committed(volume).and_then(|raw| write(&**volume.device(), volume.geometry(), &raw, groups));
    written.inspect_err(|error| volume.shut_down(error))
}

/// Makes the copies of so many groups say what `raw` says, and that durable.
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

/// Has the copies follow, if they do not, as a crash came between and whoever recovered the log left it at that. One that
/// is damaged tells nothing: it is left for `xfs_repair`. Gives whether they were written.
pub(crate) fn settle(volume: &Mount) -> Result<bool> {
    let geometry = volume.geometry();
    if !geometry.v5 || geometry.ag_count() < 2 {
        return Ok(false);
    }
    // As it is in the log and in its place: nobody has changed it yet.
    let raw = *volume.superblock().raw();
    let mut sector = AlignedBuf::zeroed(geometry.sector_size as usize);
    volume.device().read(geometry.daddr_of(AgNumber(1), AgBlock(0)).0 << 9, &mut sector)?;
    let copy = view(&sector)?;
    let sound = copy.magicnum.get() == MAGIC && checksum::check(SUPERBLOCK.name, &sector, CRC_OFFSET).is_ok();
    let lag = sound && belongs(&copy, &raw) && said(&copy) != said(&raw);
    if lag {
        write(&**volume.device(), geometry, &raw, geometry.ag_count())?;
    }
    Ok(lag)
}

/// Whether it is a copy of this volume's, whose UUID may have been another one.
fn belongs(copy: &RawSuperblock, raw: &RawSuperblock) -> bool {
    let own = [raw.uuid, raw.meta_uuid];
    own.contains(&copy.uuid) || own.contains(&copy.meta_uuid)
}

/// What the copies follow in.
fn said(raw: &RawSuperblock) -> (u64, u32, [u8; 12], [u8; 16], [u32; 3]) {
    let incompat = raw.features_incompat.get() & !Incompat::NEEDSREPAIR.bits();
    let features = [raw.features_compat.get(), raw.features_ro_compat.get(), incompat];
    (raw.dblocks.get(), raw.agcount.get(), raw.fname, raw.uuid, features)
}
