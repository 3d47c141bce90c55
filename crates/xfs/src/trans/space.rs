//! What a transaction knows of space: what it freed, what it took, what is busy.

use super::Trans;
use crate::alloc::{AgExtent, BusyExtents, Freed, OwnerClaim, Spent};
use crate::error::Result;
use crate::log::CheckpointOutcome;
use xfs_format::types::AgNumber;

impl<'v> Trans<'v> {
    /// The transaction's rmap trees grow out of this claim. It is kept until the transaction ends.
    pub(crate) fn hold_claim(&mut self, claim: OwnerClaim<'v>) {
        self.claim = Some(Box::new(claim));
    }

    /// The rmap tree of a group grew by this many blocks (negative: shrank).
    pub(crate) fn map_grew(&mut self, ag: AgNumber, by: i32) {
        if let Some(claim) = &mut self.claim {
            claim.grew(ag, by);
        }
    }
}

impl Trans<'_> {
    /// Notes that a run is busy once this commits.
    pub(crate) fn note_busy(&mut self, ag: AgNumber, run: AgExtent) {
        self.freed.push((ag, run));
    }

    /// The first of the busy extents that end after block `at`.
    pub(crate) fn busy_behind(&self, ag: AgNumber, at: u32, freed: Freed) -> Option<AgExtent> {
        let own = self.freed_in(ag).filter(|run| run.end() > at.into());
        let others = self.busy_of_others(freed).and_then(|busy| busy.behind(ag, at));
        own.chain(others).min_by_key(|run| run.start)
    }

    /// The last of the busy extents that begin before block `end`.
    pub(crate) fn busy_before(&self, ag: AgNumber, end: u64, freed: Freed) -> Option<AgExtent> {
        let own = self.freed_in(ag).filter(|run| u64::from(run.start.0) < end);
        let others = self.busy_of_others(freed).and_then(|busy| busy.before(ag, end));
        own.chain(others).max_by_key(|run| run.end())
    }

    /// What this transaction freed in a group. It is little, because each rolled part has its own list.
    fn freed_in(&self, ag: AgNumber) -> impl Iterator<Item = AgExtent> + '_ {
        self.freed.iter().filter(move |(of, _)| *of == ag).map(|(_, run)| *run)
    }

    fn busy_of_others(&self, freed: Freed) -> Option<&BusyExtents> {
        let write = self.mount.write_side().ok()?;
        (freed == Freed::ByAnybody).then_some(&*write.busy)
    }

    /// Accounts for blocks that were allocated or freed.
    pub(crate) fn spend(&mut self, spent: Spent) -> Result<()> {
        match spent {
            Spent::Reserved(blocks) if blocks >= 0 => self.take_blocks(blocks.unsigned_abs())?,
            Spent::Reserved(blocks) => self.give_blocks(blocks.unsigned_abs()),
            Spent::FromAgReservation(blocks) => self.delta.from_ag_reservation += blocks,
            Spent::SpaceTrees(blocks) => self.delta.space_trees += blocks,
        }
        Ok(())
    }

    /// Waits until what others freed is on disk. Returns `false` if nothing is busy.
    pub(crate) fn flush_busy(&mut self) -> Result<bool> {
        if !self.mount.write_side()?.busy.any() {
            return Ok(false);
        }
        self.journal.force_all()?;
        Ok(true)
    }

    /// Notes that a run has a single owner once this commits.
    pub(crate) fn note_unshared(&mut self, ag: AgNumber, run: AgExtent) {
        self.unshared.push((ag, run));
    }

    /// Notes that this part changes refcounts.
    pub(crate) fn counts_change(&mut self) {
        self.changes_counts = true;
    }

    /// Marks what this part freed as busy before anybody else can see that it is free, and likewise what has a single
    /// owner left.
    pub(super) fn mark_busy(&mut self) -> Result<()> {
        let write = self.mount.write_side()?;
        let (freed, unshared) = (std::mem::take(&mut self.freed), std::mem::take(&mut self.unshared));
        for (busy, runs) in [(&write.busy, freed), (&write.unshared, unshared)] {
            if runs.is_empty() {
                continue;
            }
            let guard = busy.guard(runs);
            self.on_commit(move |outcome| match outcome {
                CheckpointOutcome::Committed => drop(guard),
                // The change is in no log. The blocks belong to their old owners, and nobody may write there.
                CheckpointOutcome::Aborted => guard.keep(),
            });
        }
        Ok(())
    }
}
