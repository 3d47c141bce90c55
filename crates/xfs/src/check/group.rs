//! The headers of a group: AGF, AGI and AGFL, compared with their trees and with the AGFL's content.
//!
//! A header that fails its own checks is a finding. Then its trees are not checked, because their roots cannot be
//! trusted.

use super::owners::Owner;
use super::report::FindingPlace;
use super::{Check, free_space, inode_trees, refcount, rmap, superblock};
use crate::error::Result;
use xfs_format::ag::{AGF, AGFL, AGI, AgHeader, Agf, Agfl, Agi, NULL_AG_BLOCK};
use xfs_format::error::FormatError;
use xfs_format::features::RoCompat;
use xfs_format::types::{AgBlock, AgNumber, FsBlock};
use zerocopy::FromBytes;

/// Checks a group.
pub(super) fn check(check: &mut Check<'_>, ag: AgNumber) -> Result<()> {
    check.report.counts.groups += 1;
    if ag.0 > 0 {
        superblock::check_copy(check, ag)?;
    }
    claim_fixed(check, ag);
    check_space(check, ag)?;
    check_inodes(check, ag)
}

/// Claims the blocks whose owner follows from the volume's geometry.
fn claim_fixed(check: &mut Check<'_>, ag: AgNumber) {
    let geometry = check.geometry();
    // Superblock, AGF, AGI and AGFL have a sector each.
    let headers = (4 * geometry.sector_size).div_ceil(geometry.block_size);
    let raw = check.superblock.raw();
    let (log, blocks) = (geometry.split_block(FsBlock(raw.logstart.get())), raw.logblocks.get());
    check.owners.claim(ag, (0, headers), Owner::Headers, &mut check.report);
    if let Some((_, start)) = log.filter(|(log_ag, _)| *log_ag == ag) {
        check.owners.claim(ag, (start.0, blocks), Owner::Log, &mut check.report);
    }
}

/// The AGF, the AGFL, and the trees with roots in the AGF.
fn check_space(check: &mut Check<'_>, ag: AgNumber) -> Result<()> {
    let place = FindingPlace::group(ag);
    let daddr = AgHeader::Agf.daddr(check.geometry(), ag);
    let bytes = check.reader.header(ag, daddr, &AGF, &mut check.report)?;
    let agf = bytes.as_deref().and_then(|bytes| Agf::read_from_prefix(bytes).ok()).map(|(agf, _)| agf);
    let sound = agf.filter(|agf| match agf.check_group(check.geometry(), ag) {
        Ok(()) => true,
        Err(problem) => {
            check.report.add(place, problem);
            false
        }
    });
    let Some(agf) = sound else {
        check.lose_group_space();
        return Ok(());
    };
    check_list(check, ag, &agf)?;
    let free = free_space::check(check, ag, &agf)?;
    let rmap_blocks = rmap::walk(check, ag, &agf)?;
    let refcount_blocks = refcount::check(check, ag, &agf)?;
    let report = &mut check.report;
    let Some(free) = free else { return Ok(()) };
    report.same(place, "AGF", "free block count", agf.freeblks.get(), free.blocks);
    report.same(place, "AGF", "longest free extent", agf.longest.get(), free.longest);
    let mut tree_blocks = free.tree_blocks;
    if let Some(blocks) = rmap_blocks {
        tree_blocks += u64::from(blocks).saturating_sub(1);
        report.same(place, "AGF", "rmapbt block count", agf.rmap_blocks.get(), blocks);
    }
    if check.superblock.has_lazy_counters() {
        report.same(place, "AGF", "tree block count", agf.btreeblks.get(), tree_blocks);
        check.totals.free_blocks += tree_blocks;
    }
    if let Some(blocks) = refcount_blocks {
        report.same(place, "AGF", "refcountbt block count", agf.refcount_blocks.get(), blocks);
    }
    check.totals.free_blocks += free.blocks + u64::from(agf.flcount.get());
    Ok(())
}

/// The AGFL: a ring of blocks of the group without repetition.
fn check_list(check: &mut Check<'_>, ag: AgNumber, agf: &Agf) -> Result<()> {
    let geometry = check.geometry().clone();
    let place = FindingPlace::group(ag);
    let (first, last, count) = (agf.flfirst.get(), agf.fllast.get(), agf.flcount.get());
    let slots = Agfl::slots(&geometry);
    // Both are slots of the AGFL. If the list is empty, its end is right before its start.
    let ring = (last + slots - first) % slots + 1;
    if count != ring && !(count == 0 && ring == slots) {
        check.report.add(place, FormatError::mismatch("AGF", "AGFL count", count.into(), ring.into()));
    }
    let daddr = AgHeader::Agfl.daddr(&geometry, ag);
    let Some(bytes) = check.reader.header(ag, daddr, &AGFL, &mut check.report)? else {
        check.report.owners_known = false;
        return Ok(());
    };
    if geometry.v5
        && let Some((_, rest)) = bytes.split_first_chunk::<4>()
        && let Some(seqno) = rest.first_chunk::<4>()
    {
        check.report.same(place, "AGFL", "group number", u32::from_be_bytes(*seqno), ag.0);
    }
    let list: Vec<AgBlock> = match Agfl::view(&bytes, &geometry) {
        Ok(list) => {
            // v4 does not say what unused slots contain.
            if let Some(stray) = list.stray(&geometry).filter(|_| geometry.v5) {
                let problem =
                    FormatError::value("AGFL", "slot with a block behind the group's end", stray.into());
                check.report.add(place, problem);
            }
            list.blocks(agf).collect()
        }
        Err(problem) => {
            check.report.add(place, problem);
            Vec::new()
        }
    };
    for block in list {
        check.owners.claim(ag, (block.0, 1), Owner::Agfl, &mut check.report);
    }
    Ok(())
}

/// The AGI, and the trees with roots in it.
fn check_inodes(check: &mut Check<'_>, ag: AgNumber) -> Result<()> {
    let place = FindingPlace::group(ag);
    let daddr = AgHeader::Agi.daddr(check.geometry(), ag);
    let bytes = check.reader.header(ag, daddr, &AGI, &mut check.report)?;
    let agi = bytes.as_deref().and_then(|bytes| Agi::read_from_prefix(bytes).ok()).map(|(agi, _)| agi);
    let sound = agi.filter(|agi| match agi.check_group(check.geometry(), ag) {
        Ok(()) => true,
        Err(problem) => {
            check.report.add(place, problem);
            false
        }
    });
    let Some(agi) = sound else {
        check.lose_group_inodes(ag);
        return Ok(());
    };
    for (bucket, head) in agi.unlinked.iter().enumerate() {
        if head.get() != NULL_AG_BLOCK {
            check.inodes.unlinked.push((ag, bucket as u32, head.get()));
        }
    }
    let Some(inodes) = inode_trees::check(check, ag, &agi)? else {
        return Ok(());
    };
    let report = &mut check.report;
    report.same(place, "AGI", "inode count", agi.count.get(), inodes.count);
    report.same(place, "AGI", "free inode count", agi.freecount.get(), inodes.free);
    if check.superblock.ro_compat().contains(RoCompat::INOBTCNT) {
        report.same(place, "AGI", "inobt block count", agi.iblocks.get(), inodes.inobt_blocks);
        if let Some(blocks) = inodes.finobt_blocks {
            report.same(place, "AGI", "finobt block count", agi.fblocks.get(), blocks);
        }
    }
    check.totals.inodes += inodes.count;
    check.totals.free_inodes += inodes.free;
    Ok(())
}

impl Check<'_> {
    /// The free space of a group cannot be determined.
    pub(super) fn lose_group_space(&mut self) {
        self.report.owners_known = false;
        self.totals.space_known = false;
    }

    /// The inodes of a group cannot be determined.
    pub(super) fn lose_group_inodes(&mut self, ag: AgNumber) {
        self.inodes.lose_group(ag);
        self.report.owners_known = false;
        self.report.names_known = false;
        self.totals.inodes_known = false;
    }
}
