//! What a transaction knows of free space: what it freed, what it took, and what is busy.

use super::Trans;
use crate::alloc::{Run, Spent};
use crate::error::Result;
use std::sync::Arc;
use xfs_format::types::AgNumber;

impl Trans<'_> {
    /// Remembers that a run is busy once this commits.
    pub(crate) fn note_busy(&mut self, ag: AgNumber, run: Run) {
        self.freed.push((ag, run));
    }

    /// The busy parts of a run: what others freed, and what this transaction did.
    pub(crate) fn busy_in(&self, ag: AgNumber, run: Run) -> Vec<Run> {
        let mut busy = match self.volume.write_side() {
            Ok(write) => write.busy.within(ag, run),
            Err(_) => Vec::new(),
        };
        let own = self.freed.iter().filter(|(of, _)| *of == ag).filter_map(|(_, own)| own.common(run));
        let before = busy.len();
        busy.extend(own);
        if busy.len() > before {
            Run::normalize(&mut busy);
        }
        busy
    }

    /// Whether this transaction freed a block.
    pub(crate) fn freed_here(&self, ag: AgNumber, block: u32) -> bool {
        self.freed.iter().any(|(of, run)| *of == ag && run.common(Run::new(block, 1)).is_some())
    }

    /// Counts blocks that changed hands.
    pub(crate) fn spend(&mut self, spent: Spent) -> Result<()> {
        match spent {
            Spent::Reserved(blocks) if blocks >= 0 => self.take_blocks(blocks.unsigned_abs())?,
            Spent::Reserved(blocks) => self.give_blocks(blocks.unsigned_abs()),
            Spent::FromPool(blocks) => self.delta.pooled += blocks,
            Spent::SpaceTrees(blocks) => self.delta.space_trees += blocks,
        }
        Ok(())
    }

    /// Waits until what others freed is on disk; `false` if nothing is busy.
    pub(crate) fn settle_busy(&mut self) -> Result<bool> {
        if !self.volume.write_side()?.busy.any() {
            return Ok(false);
        }
        self.journal.force_all()?;
        Ok(true)
    }

    /// Makes busy what this part freed, before anybody else can see that it is free.
    pub(super) fn mark_busy(&mut self) -> Result<()> {
        if self.freed.is_empty() {
            return Ok(());
        }
        let busy = Arc::clone(&self.volume.write_side()?.busy);
        let guard = busy.guard(std::mem::take(&mut self.freed));
        self.on_landing(move |_| drop(guard));
        Ok(())
    }
}
