//! Reads for the checker: directly from the device, without the volume's caches, with a verifier for every block.
//!
//! Invariant: whatever an address on disk says, nothing outside of the volume is read, and nothing longer than
//! [`MAX_READ`]. A block that fails its verifier is a finding; a device that fails ends the check.

use super::report::{FindingPlace, Report};
use crate::buf::AHEAD;
use crate::error::Result;
use blockdev::{AlignedBuf, BlockDevice};
use std::sync::Arc;
use xfs_format::bmbt::Extent;
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::identity::{identify, lsn_of};
use xfs_format::log::BufType;
use xfs_format::types::{AgBlock, AgNumber, DiskAddr, FileBlock, FsBlock, Lsn};
use xfs_format::verify::{Verifier, VerifyContext};

/// No structure is longer.
const MAX_READ: u64 = 1 << 20;

/// The device, with the volume's geometry.
pub(super) struct Reader {
    device: Arc<dyn BlockDevice>,
    geometry: Geometry,
    /// The end of the log. `None` if unknown.
    log_head: Option<Lsn>,
}

impl Reader {
    pub(super) fn new(device: Arc<dyn BlockDevice>, geometry: Geometry, log_head: Option<Lsn>) -> Self {
        Self { device, geometry, log_head }
    }

    pub(super) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Unchecked bytes.
    pub(super) fn raw(&self, daddr: DiskAddr, len: u64) -> Result<AlignedBuf> {
        let mut bytes = AlignedBuf::zeroed(usize::try_from(len.min(MAX_READ)).unwrap_or(0));
        self.device.read(daddr.0.saturating_mul(512), &mut bytes)?;
        Ok(bytes)
    }

    /// No block can be newer than the log: recovery would take the next changes for older than the block.
    pub(super) fn check_lsn(
        &self,
        bytes: &[u8],
        structure: &'static str,
        place: FindingPlace,
        report: &mut Report,
    ) {
        // Remote values are never logged.
        let logged = identify(bytes).is_some_and(|identity| identity.kind != BufType::AttrRemote);
        if let (true, true, Some(head), Some(lsn)) = (self.geometry.v5, logged, self.log_head, lsn_of(bytes))
            && lsn >= head
        {
            report.add(place, FormatError::mismatch(structure, AHEAD, lsn.0, head.0));
        }
    }

    /// One sector of a group's headers. `None` if it failed its verifier, which is a finding.
    pub(super) fn header(
        &self,
        ag: AgNumber,
        daddr: DiskAddr,
        verifier: &'static Verifier,
        report: &mut Report,
    ) -> Result<Option<AlignedBuf>> {
        let bytes = self.raw(daddr, self.geometry.sector_size.into())?;
        Ok(self.verify(bytes, daddr, verifier, FindingPlace::group(ag), report))
    }

    /// One block of the volume.
    pub(super) fn block(
        &self,
        (ag, block): (AgNumber, AgBlock),
        verifier: &'static Verifier,
        place: FindingPlace,
        report: &mut Report,
    ) -> Result<Option<AlignedBuf>> {
        let daddr = self.geometry.daddr_of(ag, block);
        let bytes = self.raw(daddr, self.geometry.block_size.into())?;
        Ok(self.verify(bytes, daddr, verifier, place, report))
    }

    /// One buffer of a fork, of one or several blocks, which need not be contiguous.
    pub(super) fn fork(
        &self,
        extents: &[Extent],
        (at, blocks): (FileBlock, u32),
        verifier: &'static Verifier,
        place: FindingPlace,
        report: &mut Report,
    ) -> Result<Option<AlignedBuf>> {
        let Some((place, daddr, bytes)) = self.fork_bytes(extents, (at, blocks), verifier, place, report)?
        else {
            return Ok(None);
        };
        Ok(self.verify(bytes, daddr, verifier, place, report))
    }

    /// The bytes of a fork's blocks, and the place of the first of them. A hole is a finding.
    fn fork_bytes(
        &self,
        extents: &[Extent],
        (at, blocks): (FileBlock, u32),
        verifier: &'static Verifier,
        place: FindingPlace,
        report: &mut Report,
    ) -> Result<Option<(FindingPlace, DiskAddr, AlignedBuf)>> {
        let geometry = &self.geometry;
        let len = u64::from(blocks) << geometry.block_log;
        let mut bytes = AlignedBuf::zeroed(usize::try_from(len.min(MAX_READ)).unwrap_or(0));
        let mut into = &mut bytes[..];
        let mut first = None;
        let (mut at, mut left) = (at.0, u64::from(blocks));
        while left > 0 && !into.is_empty() {
            let Some((start, run)) = mapped(extents, at) else {
                report.add(place, FormatError::value(verifier.name, "unmapped block", at));
                return Ok(None);
            };
            let count = run.min(left);
            let Some(daddr) = geometry.extent_daddr(start, count) else {
                report.add(place, FormatError::value(verifier.name, "volume block", start.0));
                return Ok(None);
            };
            let bytes_now =
                usize::try_from(count << geometry.block_log).unwrap_or(usize::MAX).min(into.len());
            let (now, later) = into.split_at_mut(bytes_now);
            self.device.read(daddr.0.saturating_mul(512), now)?;
            into = later;
            let here = geometry.split_block(start).map_or(place, |(ag, block)| FindingPlace {
                ag: Some(ag),
                block: Some(block),
                ..place
            });
            first.get_or_insert((here, daddr));
            at += count;
            left -= count;
        }
        Ok(first.map(|(place, daddr)| (place, daddr, bytes)))
    }

    fn verify(
        &self,
        bytes: AlignedBuf,
        daddr: DiskAddr,
        verifier: &'static Verifier,
        place: FindingPlace,
        report: &mut Report,
    ) -> Option<AlignedBuf> {
        let context = VerifyContext { v5: self.geometry.v5, meta_uuid: self.geometry.meta_uuid, daddr };
        report.counts.blocks += 1;
        match (verifier.check)(&bytes, &context) {
            Ok(()) => {
                self.check_lsn(&bytes, verifier.name, place, report);
                Some(bytes)
            }
            Err(problem) => {
                report.add(place, problem);
                None
            }
        }
    }
}

/// Where a block of a fork lies, and the number of contiguous blocks from there. `None` if it is in a hole.
pub(super) fn mapped(extents: &[Extent], at: u64) -> Option<(FsBlock, u64)> {
    let behind = extents.partition_point(|extent| extent.startoff.0 <= at);
    let extent = extents.get(behind.checked_sub(1)?)?;
    let skip = at - extent.startoff.0;
    let left = u64::from(extent.blockcount).checked_sub(skip).filter(|&left| left > 0)?;
    Some((FsBlock(extent.startblock.0 + skip), left))
}
