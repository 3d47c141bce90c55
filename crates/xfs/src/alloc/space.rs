//! The two trees of free space, changed in step.

use super::Run;
use super::seam::{Order, SpaceStore, damaged};
use crate::error::{Error, Result};
use xfs_format::ag::AgHeader;
use xfs_format::error::FormatError;
use xfs_format::types::AgNumber;

/// Takes `part` out of the free extent `whole`, which holds it.
pub fn take<S: SpaceStore + ?Sized>(store: &mut S, ag: AgNumber, whole: Run, part: Run) -> Result<()> {
    debug_assert!(part.start >= whole.start && part.end() <= whole.end() && part.len > 0);
    let left = Run::between(whole.start.0.into(), part.start.0.into());
    let right = Run::between(part.end(), whole.end());
    store.remove(ag, Order::Size, whole)?;
    for rest in [left, right].into_iter().flatten() {
        store.insert(ag, Order::Size, rest)?;
    }
    match (left, right) {
        (None, None) => store.remove(ag, Order::Place, whole)?,
        (Some(rest), None) | (None, Some(rest)) => store.replace(ag, Order::Place, whole, rest)?,
        (Some(left), Some(right)) => {
            store.replace(ag, Order::Place, whole, left)?;
            store.insert(ag, Order::Place, right)?;
        }
    }
    let free = u64::from(store.agf(ag)?.freeblks.get());
    let left = free.checked_sub(part.len.into());
    let left = left.ok_or_else(|| damaged(store.geometry(), ag, AgHeader::Agf, "free block count", free))?;
    set_free(store, ag, left)
}

/// Adds `run` to the free extents and joins it with its neighbours.
pub fn give<S: SpaceStore + ?Sized>(store: &mut S, ag: AgNumber, run: Run) -> Result<()> {
    let rank = Order::Place.rank(run);
    let before = store.at_or_before(ag, Order::Place, rank)?;
    let behind = store.at_or_after(ag, Order::Place, rank)?;
    if before.is_some_and(|before| before.end() > run.start.0.into())
        || behind.is_some_and(|behind| run.end() > behind.start.0.into())
    {
        let problem = FormatError::value("bnobt block", "extent that is free already", run.start.0.into());
        return Err(Error::corrupt_block(store.geometry().daddr_of(ag, run.start), None, problem));
    }
    let before = before.filter(|before| before.end() == run.start.0.into());
    let behind = behind.filter(|behind| run.end() == behind.start.0.into());
    let start = before.map_or(run.start.0, |before| before.start.0);
    let end = behind.map_or(run.end(), Run::end);
    let joined = Run::between(start.into(), end).unwrap_or(run);
    for neighbour in [before, behind].into_iter().flatten() {
        store.remove(ag, Order::Size, neighbour)?;
    }
    store.insert(ag, Order::Size, joined)?;
    match (before, behind) {
        (None, None) => store.insert(ag, Order::Place, joined)?,
        (Some(old), None) | (None, Some(old)) => store.replace(ag, Order::Place, old, joined)?,
        (Some(before), Some(behind)) => {
            store.remove(ag, Order::Place, behind)?;
            store.replace(ag, Order::Place, before, joined)?;
        }
    }
    let free = u64::from(store.agf(ag)?.freeblks.get()) + u64::from(run.len);
    set_free(store, ag, free)
}

/// Sets the AGF's sums after a change of the trees.
fn set_free<S: SpaceStore + ?Sized>(store: &mut S, ag: AgNumber, free: u64) -> Result<()> {
    let blocks = store.geometry().ag_blocks_of(ag);
    let fits = u32::try_from(free).ok().filter(|&free| free <= blocks);
    let free = fits.ok_or_else(|| damaged(store.geometry(), ag, AgHeader::Agf, "free block count", free))?;
    let longest = store.at_or_before(ag, Order::Size, (u32::MAX, u32::MAX))?.map_or(0, |run| run.len);
    let agf = store.agf_mut(ag)?;
    agf.freeblks.set(free);
    agf.longest.set(longest);
    Ok(())
}
