//! What a transaction knows of free space: what it freed, what it took, and what is busy.

use super::Trans;
use crate::alloc::{BusyExtents, Freed, OwnerClaim, Run, Spent};
use crate::error::Result;
use crate::log::Outcome;
use xfs_format::types::AgNumber;

impl<'v> Trans<'v> {
    /// The transaction has what its reverse maps grow by out of this claim, which it keeps until it ends.
    pub(crate) fn hold_claim(&mut self, claim: OwnerClaim<'v>) {
        self.claim = Some(Box::new(claim));
    }

    /// The reverse map of a group grew by so many blocks, or shrank.
    pub(crate) fn map_grew(&mut self, ag: AgNumber, by: i32) {
        if let Some(claim) = &mut self.claim {
            claim.grew(ag, by);
        }
    }
}

impl Trans<'_> {
    /// Remembers that a run is busy once this commits.
    pub(crate) fn note_busy(&mut self, ag: AgNumber, run: Run) {
        self.freed.push((ag, run));
    }

    /// Of the busy runs that end behind block `at`, the one that begins first.
    pub(crate) fn busy_behind(&self, ag: AgNumber, at: u32, freed: Freed) -> Option<Run> {
        let own = self.freed_in(ag).filter(|run| run.end() > at.into());
        let others = self.busy_of_others(freed).and_then(|busy| busy.behind(ag, at));
        own.chain(others).min_by_key(|run| run.start)
    }

    /// Of the busy runs that begin before block `end`, the one that ends last.
    pub(crate) fn busy_before(&self, ag: AgNumber, end: u64, freed: Freed) -> Option<Run> {
        let own = self.freed_in(ag).filter(|run| u64::from(run.start.0) < end);
        let others = self.busy_of_others(freed).and_then(|busy| busy.before(ag, end));
        own.chain(others).max_by_key(|run| run.end())
    }

    /// What this transaction freed in a group: little, as each rolled part has its own.
    fn freed_in(&self, ag: AgNumber) -> impl Iterator<Item = Run> + '_ {
        self.freed.iter().filter(move |(of, _)| *of == ag).map(|(_, run)| *run)
    }

    fn busy_of_others(&self, freed: Freed) -> Option<&BusyExtents> {
        let write = self.volume.write_side().ok()?;
        (freed == Freed::ByAnybody).then_some(&*write.busy)
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

    /// Remembers that a run has one owner left once this commits.
    pub(crate) fn note_unshared(&mut self, ag: AgNumber, run: Run) {
        self.unshared.push((ag, run));
    }

    /// This part changes reference counts.
    pub(crate) fn counts_change(&mut self) {
        self.changes_counts = true;
    }

    /// Makes busy what this part freed, before anybody else can see that it is free; and so what has one owner left.
    pub(super) fn mark_busy(&mut self) -> Result<()> {
        let write = self.volume.write_side()?;
        let (freed, unshared) = (std::mem::take(&mut self.freed), std::mem::take(&mut self.unshared));
        for (busy, runs) in [(&write.busy, freed), (&write.unshared, unshared)] {
            if runs.is_empty() {
                continue;
            }
            let guard = busy.guard(runs);
            self.on_landing(move |outcome| match outcome {
                Outcome::Committed => drop(guard),
                // The change is in no log: the blocks belong to whom they belonged to, and nobody may write there.
                Outcome::Aborted => guard.keep(),
            });
        }
        Ok(())
    }
}
