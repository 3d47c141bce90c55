//! Where a new block of an index goes.

use crate::da::DaIndex;
use crate::error::{Error, Result};
use crate::fork::Fork;
use xfs_format::types::FileBlock;

/// A free place for a new block of the index. The cost does not depend on the size of the index: it tries places near
/// the start, then a few picked by `seed`, then the first place after all blocks. So holes are reused in proportion to
/// their number.
pub(crate) fn free_place(fork: &dyn Fork, index: &DaIndex, seed: u32) -> Result<FileBlock> {
    const NEAR: u64 = 16;
    const PROBES: u64 = 12;
    let step = u64::from(index.blocks);
    let at = |slot: u64| FileBlock(index.root.saturating_add(slot.saturating_mul(step)));
    let mapped_from = |slot: u64| -> Result<Option<u64>> {
        let mapped = if at(slot).0 < index.end { fork.next_mapped(at(slot))? } else { None };
        Ok(mapped.map(|mapped| mapped.0).filter(|&mapped| mapped < index.end))
    };
    let is_free =
        |slot: u64| Ok::<_, Error>(mapped_from(slot)?.is_none_or(|mapped| mapped >= at(slot + 1).0));
    for slot in 0..NEAR {
        if is_free(slot)? {
            return Ok(at(slot));
        }
    }
    let (mut taken, mut free) = (NEAR - 1, NEAR);
    while mapped_from(free)?.is_some() {
        taken = free;
        free = free.saturating_mul(2);
    }
    while taken + 1 < free {
        let middle = taken + (free - taken) / 2;
        if mapped_from(middle)?.is_some() { taken = middle } else { free = middle }
    }
    for probe in 0..PROBES {
        let slot = scatter(u64::from(seed) << 8 | probe) % free;
        if is_free(slot)? {
            return Ok(at(slot));
        }
    }
    let end = at(free);
    if end.0.saturating_add(step) > index.end { Err(Error::NoSpace) } else { Ok(end) }
}

/// Spreads numbers evenly.
pub(crate) const fn scatter(number: u64) -> u64 {
    let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16
}
