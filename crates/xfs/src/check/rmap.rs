//! The rmap tree of a group must say of each block what everything else says of it.
//!
//! The tree is walked twice: first as a tree, whose blocks are claimed; then, when every owner has been seen, for its
//! records. So only one group's records are in memory at a time.

use super::Check;
use super::owners::{OwnedRun, Owner, canonical};
use super::report::FindingPlace;
use super::tree::{walk_group, walk_group_again};
use crate::error::Result;
use std::cmp::Ordering;
use xfs_format::ag::{AgHeader, Agf};
use xfs_format::btree::{Rmapbt, Tree};
use xfs_format::error::FormatError;
use xfs_format::types::{AgBlock, AgNumber, InodeNumber};
use zerocopy::FromBytes;

/// Checks the tree and returns its number of blocks. `None` if there is none, or it could not be read.
pub(super) fn walk(check: &mut Check<'_>, ag: AgNumber, agf: &Agf) -> Result<Option<u32>> {
    if !check.geometry().rmapbt {
        return Ok(None);
    }
    let root = (agf.rmap_root.get(), agf.rmap_level.get());
    let before = check.report.total();
    let walked = walk_group::<Rmapbt>(check, ag, root, Owner::SpaceTree, &mut |_| {})?;
    if !walked.whole || check.report.total() != before {
        check.lose_group_space();
        return Ok(None);
    }
    Ok(Some(walked.blocks))
}

/// Whether the records equal all claims of the group's blocks.
pub(super) fn agrees(check: &mut Check<'_>, ag: AgNumber) -> Result<bool> {
    if !check.geometry().rmapbt {
        return Ok(true);
    }
    Ok(records(check, ag)?.is_some_and(|records| records == check.owners.runs(ag)))
}

/// The records, merged where possible.
fn records(check: &mut Check<'_>, ag: AgNumber) -> Result<Option<Vec<OwnedRun>>> {
    let daddr = AgHeader::Agf.daddr(check.geometry(), ag);
    let bytes = check.reader.raw(daddr, check.geometry().sector_size.into())?;
    let Ok((agf, _)) = Agf::read_from_prefix(&bytes) else { return Ok(None) };
    let mut records: Vec<OwnedRun> = Vec::new();
    let root = (agf.rmap_root.get(), agf.rmap_level.get());
    walk_group_again::<Rmapbt>(check, ag, root, &mut |record| {
        records.push(OwnedRun {
            start: record.startblock.get(),
            owner: record.owner.get(),
            offset: record.offset.get(),
            len: record.blockcount.get(),
        });
    })?;
    Ok(Some(canonical(records)))
}

/// Compares the records with all claims of the group's blocks.
pub(super) fn compare(check: &mut Check<'_>, ag: AgNumber) -> Result<()> {
    if !check.geometry().rmapbt || check.report.stopped() {
        return Ok(());
    }
    let Some(map) = records(check, ag)? else { return Ok(()) };
    let claims = check.owners.take_runs(ag);
    let (mut map, mut claims) = (map.iter().peekable(), claims.iter().peekable());
    while !check.report.stopped() {
        let order = match (map.peek(), claims.peek()) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(a), Some(b)) => a.cmp(b),
        };
        let (run, what) = match order {
            Ordering::Equal => {
                map.next();
                claims.next();
                continue;
            }
            Ordering::Less => (map.next(), "record that no owner has"),
            Ordering::Greater => (claims.next(), "extent that has no record"),
        };
        let Some(run) = run else { break };
        let mut place = FindingPlace::block(ag, AgBlock(run.start));
        if run.owner >> 63 == 0 {
            place = place.of(InodeNumber(run.owner));
        }
        check.report.add(place, FormatError::value(Rmapbt::NAME, what, run.len.into()));
    }
    Ok(())
}
