//! The ring of single blocks that a group keeps for its trees of free space.
//!
//! Blocks are taken from the front and put behind the end, so that a block that was just given back rests as long as
//! it can. A block that comes back is busy: its old content may still be what the disk knows.

use super::Run;
use super::seam::{SpaceStore, Spent, damaged};
use crate::error::Result;
use xfs_format::ag::{AgHeader, Agfl};
use xfs_format::types::{AgBlock, AgNumber};

/// Who a block of the ring is for, or comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingUse {
    /// A tree of free space, which counts its blocks.
    Tree,
    /// The reverse map, which counts its blocks as well. They come out of what the group keeps for it, so that what the
    /// volume has left for everybody stays as it was.
    ReverseMap,
    /// The free space itself: the ring is filled or emptied.
    Space,
}

/// Takes the block at the front. `None`: the ring is empty.
pub fn take<S: SpaceStore + ?Sized>(store: &mut S, ag: AgNumber, to: RingUse) -> Result<Option<AgBlock>> {
    let slots = Agfl::slots(store.geometry());
    let agf = store.agf(ag)?;
    let (first, count) = (agf.flfirst.get(), agf.flcount.get());
    if count == 0 {
        return Ok(None);
    }
    let block = store.ring_slot(ag, first)?;
    if block == 0 || block >= store.geometry().ag_blocks_of(ag) {
        return Err(damaged(store.geometry(), ag, AgHeader::Agfl, "block", block.into()));
    }
    let agf = store.agf_mut(ag)?;
    agf.flfirst.set(if first + 1 < slots { first + 1 } else { 0 });
    agf.flcount.set(count - 1);
    if to != RingUse::Space {
        agf.btreeblks.set(agf.btreeblks.get().saturating_add(1));
    }
    if to == RingUse::Tree {
        store.spend(Spent::SpaceTrees(1))?;
    }
    Ok(Some(AgBlock(block)))
}

/// Puts a block behind the end.
pub fn put<S: SpaceStore + ?Sized>(store: &mut S, ag: AgNumber, block: AgBlock, from: RingUse) -> Result<()> {
    let slots = Agfl::slots(store.geometry());
    let agf = store.agf(ag)?;
    let (last, count) = (agf.fllast.get(), agf.flcount.get());
    if count >= slots {
        return Err(damaged(store.geometry(), ag, AgHeader::Agfl, "room in the ring", count.into()));
    }
    let slot = if last + 1 < slots { last + 1 } else { 0 };
    store.set_ring_slot(ag, slot, block.0)?;
    let agf = store.agf_mut(ag)?;
    agf.fllast.set(slot);
    agf.flcount.set(count + 1);
    if from == RingUse::Space {
        return Ok(());
    }
    agf.btreeblks.set(agf.btreeblks.get().saturating_sub(1));
    if from == RingUse::Tree {
        store.spend(Spent::SpaceTrees(-1))?;
    }
    store.note_busy(ag, Run { start: block, len: 1 });
    Ok(())
}
