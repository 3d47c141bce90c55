//! The AGFL: single blocks that a group keeps for its free space trees.
//!
//! Blocks are taken from the front and added at the end, so that a block that was just given back rests as long as
//! possible. A block that comes back is busy, because its old content may still be the one on disk.

use super::AgExtent;
use super::seam::{SpaceStore, Spent, damaged};
use crate::error::Result;
use xfs_format::ag::{AgHeader, Agfl};
use xfs_format::types::{AgBlock, AgNumber};

/// Who a block of the AGFL is for, or comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgflUse {
    /// A free space tree, which counts its blocks.
    Tree,
    /// The rmap tree, which counts its blocks as well. They come out of the group's reservation for it, so that the
    /// volume's free blocks stay the same.
    ReverseMap,
    /// Free space itself: the AGFL is filled or emptied.
    Space,
}

/// Takes the first block. `None` if the AGFL is empty.
pub fn take<S: SpaceStore + ?Sized>(store: &mut S, ag: AgNumber, to: AgflUse) -> Result<Option<AgBlock>> {
    let slots = Agfl::slots(store.geometry());
    let agf = store.agf(ag)?;
    let (first, count) = (agf.flfirst.get(), agf.flcount.get());
    if count == 0 {
        return Ok(None);
    }
    let block = store.agfl_slot(ag, first)?;
    if block == 0 || block >= store.geometry().ag_blocks_of(ag) {
        return Err(damaged(store.geometry(), ag, AgHeader::Agfl, "block", block.into()));
    }
    let agf = store.agf_mut(ag)?;
    agf.flfirst.set(if first + 1 < slots { first + 1 } else { 0 });
    agf.flcount.set(count - 1);
    if to != AgflUse::Space {
        agf.btreeblks.set(agf.btreeblks.get().saturating_add(1));
    }
    if to == AgflUse::Tree {
        store.spend(Spent::SpaceTrees(1))?;
    }
    Ok(Some(AgBlock(block)))
}

/// Adds a block at the end.
pub fn put<S: SpaceStore + ?Sized>(store: &mut S, ag: AgNumber, block: AgBlock, from: AgflUse) -> Result<()> {
    let slots = Agfl::slots(store.geometry());
    let agf = store.agf(ag)?;
    let (last, count) = (agf.fllast.get(), agf.flcount.get());
    if count >= slots {
        return Err(damaged(store.geometry(), ag, AgHeader::Agfl, "room in the ring", count.into()));
    }
    let slot = if last + 1 < slots { last + 1 } else { 0 };
    store.set_agfl_slot(ag, slot, block.0)?;
    let agf = store.agf_mut(ag)?;
    agf.fllast.set(slot);
    agf.flcount.set(count + 1);
    if from == AgflUse::Space {
        return Ok(());
    }
    agf.btreeblks.set(agf.btreeblks.get().saturating_sub(1));
    if from == AgflUse::Tree {
        store.spend(Spent::SpaceTrees(-1))?;
    }
    store.note_busy(ag, AgExtent { start: block, len: 1 });
    Ok(())
}
