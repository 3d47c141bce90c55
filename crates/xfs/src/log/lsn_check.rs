//! Detects a log that is behind the volume: blocks carry LSNs that it has not reached yet. Such a log was zeroed, or
//! made anew without regard to them.
//!
//! Going on with such a log would lose changes in a crash. Recovery compares the LSN of a change with that of the block
//! on disk, and skips the change if the block is newer. The kernel refuses to mount such a volume. Here the headers of
//! all groups are checked before anything is written. The buffer cache and inode reads check the other blocks as they
//! are read ([`Journal::check_lsn`](super::Journal::check_lsn)).

use crate::error::{Error, Result};
use blockdev::{AlignedBuf, BlockDevice};
use xfs_format::ag::{AGF, AGFL, AGI};
use xfs_format::checksum;
use xfs_format::geometry::Geometry;
use xfs_format::identity::{identify, lsn_of, uuid_of};
use xfs_format::log::BufType;
use xfs_format::superblock::SUPERBLOCK;
use xfs_format::types::{AgBlock, AgNumber, Lsn};

/// Superblock, AGF, AGI and AGFL, one sector each.
const HEADERS: usize = 4;

/// [`Error::LogBehind`] if the superblock or a group header is newer than a log that ends at `head`. Damaged ones are
/// skipped: whoever needs them finds the damage.
pub(crate) fn check_headers(device: &dyn BlockDevice, geometry: &Geometry, head: Lsn) -> Result<()> {
    if !geometry.v5 {
        return Ok(());
    }
    let sector = geometry.sector_size as usize;
    let mut bytes = AlignedBuf::zeroed(HEADERS * sector);
    for ag in (0..geometry.ag_count()).map(AgNumber) {
        device.read(geometry.daddr_of(ag, AgBlock(0)).0 * 512, &mut bytes)?;
        // The copies of the superblock are not kept up to date.
        let headers = bytes.chunks_exact(sector).skip(usize::from(ag.0 != 0));
        headers.into_iter().try_for_each(|header| check_header(header, geometry, head))?;
    }
    Ok(())
}

fn check_header(bytes: &[u8], geometry: &Geometry, head: Lsn) -> Result<()> {
    let Some(identity) = identify(bytes) else { return Ok(()) };
    let structure = match identity.kind {
        BufType::Superblock => SUPERBLOCK.name,
        BufType::Agf => AGF.name,
        BufType::Agi => AGI.name,
        BufType::Agfl => AGFL.name,
        _ => return Ok(()),
    };
    let own = identity.kind == BufType::Superblock || uuid_of(bytes) == Some(geometry.meta_uuid);
    if !own || checksum::check(structure, bytes, identity.crc).is_err() {
        return Ok(());
    }
    match lsn_of(bytes) {
        Some(lsn) if lsn >= head => Err(Error::LogBehind { structure, lsn, head }),
        _ => Ok(()),
    }
}
