//! Changes both free space trees together.

use super::AgExtent;
use super::seam::{FreeTree, SpaceStore, damaged};
use crate::error::{Error, Result};
use xfs_format::ag::AgHeader;
use xfs_format::error::FormatError;
use xfs_format::types::AgNumber;

/// Removes `part` from the free extent `whole`, which contains it.
pub fn take<S: SpaceStore + ?Sized>(
    store: &mut S,
    ag: AgNumber,
    whole: AgExtent,
    part: AgExtent,
) -> Result<()> {
    debug_assert!(part.start >= whole.start && part.end() <= whole.end() && part.len > 0);
    let left = AgExtent::between(whole.start.0.into(), part.start.0.into());
    let right = AgExtent::between(part.end(), whole.end());
    store.remove(ag, FreeTree::Cntbt, whole)?;
    for rest in [left, right].into_iter().flatten() {
        store.insert(ag, FreeTree::Cntbt, rest)?;
    }
    match (left, right) {
        (None, None) => store.remove(ag, FreeTree::Bnobt, whole)?,
        (Some(rest), None) | (None, Some(rest)) => store.replace(ag, FreeTree::Bnobt, whole, rest)?,
        (Some(left), Some(right)) => {
            store.replace(ag, FreeTree::Bnobt, whole, left)?;
            store.insert(ag, FreeTree::Bnobt, right)?;
        }
    }
    let free = u64::from(store.agf(ag)?.freeblks.get());
    let left = free.checked_sub(part.len.into());
    let left = left.ok_or_else(|| damaged(store.geometry(), ag, AgHeader::Agf, "free block count", free))?;
    set_free(store, ag, left)
}

/// Adds `run` to the free extents, merging it with its neighbours.
pub fn give<S: SpaceStore + ?Sized>(store: &mut S, ag: AgNumber, run: AgExtent) -> Result<()> {
    let rank = FreeTree::Bnobt.rank(run);
    let before = store.at_or_before(ag, FreeTree::Bnobt, rank)?;
    let behind = store.at_or_after(ag, FreeTree::Bnobt, rank)?;
    if before.is_some_and(|before| before.end() > run.start.0.into())
        || behind.is_some_and(|behind| run.end() > behind.start.0.into())
    {
        let problem = FormatError::value("bnobt block", "extent that is free already", run.start.0.into());
        return Err(Error::corrupt_block(store.geometry().daddr_of(ag, run.start), None, problem));
    }
    let before = before.filter(|before| before.end() == run.start.0.into());
    let behind = behind.filter(|behind| run.end() == behind.start.0.into());
    let start = before.map_or(run.start.0, |before| before.start.0);
    let end = behind.map_or(run.end(), AgExtent::end);
    let joined = AgExtent::between(start.into(), end).unwrap_or(run);
    for neighbour in [before, behind].into_iter().flatten() {
        store.remove(ag, FreeTree::Cntbt, neighbour)?;
    }
    store.insert(ag, FreeTree::Cntbt, joined)?;
    match (before, behind) {
        (None, None) => store.insert(ag, FreeTree::Bnobt, joined)?,
        (Some(old), None) | (None, Some(old)) => store.replace(ag, FreeTree::Bnobt, old, joined)?,
        (Some(before), Some(behind)) => {
            store.remove(ag, FreeTree::Bnobt, behind)?;
            store.replace(ag, FreeTree::Bnobt, before, joined)?;
        }
    }
    let free = u64::from(store.agf(ag)?.freeblks.get()) + u64::from(run.len);
    set_free(store, ag, free)
}

/// Updates the AGF's sums after a change of the trees.
fn set_free<S: SpaceStore + ?Sized>(store: &mut S, ag: AgNumber, free: u64) -> Result<()> {
    let blocks = store.geometry().ag_blocks_of(ag);
    let fits = u32::try_from(free).ok().filter(|&free| free <= blocks);
    let free = fits.ok_or_else(|| damaged(store.geometry(), ag, AgHeader::Agf, "free block count", free))?;
    let longest = store.at_or_before(ag, FreeTree::Cntbt, (u32::MAX, u32::MAX))?.map_or(0, |run| run.len);
    let agf = store.agf_mut(ag)?;
    agf.freeblks.set(free);
    agf.longest.set(longest);
    Ok(())
}
