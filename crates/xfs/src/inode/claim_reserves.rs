//! Blocks of the volume that are reserved for the growth of a file's map by claims. A claim is a set of runs that a
//! write is about to fill, or has filled in memory.
//!
//! Invariants:
//! - what is reserved for a claim stays until the map has been told of all its blocks or the claim was given up, in
//!   however many parts;
//! - no block is in two claims. Taking parts of several at once merges them.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use xfs_format::types::FileBlock;

type Blocks = Range<FileBlock>;

/// The reserves of all claims.
#[derive(Debug, Default)]
pub(crate) struct ClaimReserves(Mutex<Claims>);

#[derive(Debug, Default)]
struct Claims {
    /// Runs of blocks that are claimed, by their first block.
    runs: BTreeMap<FileBlock, ClaimRun>,
    /// Each claim that has a run.
    claims: BTreeMap<ClaimId, Claim>,
    last: u64,
}

/// A run of a claim. A claim may have several.
#[derive(Clone, Copy, Debug)]
struct ClaimRun {
    end: FileBlock,
    claim: ClaimId,
}

#[derive(Clone, Debug)]
struct Claim {
    /// Blocks that are reserved for it.
    reserved: u64,
    /// Blocks that were reserved at first. It may need again what the map gives back.
    most: u64,
    runs: u64,
    /// A range that contains all its runs.
    within: Blocks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ClaimId(u64);

/// Blocks taken out of a reserve, until the rest is given back.
#[derive(Debug)]
#[must_use = "what is left goes back"]
pub(crate) struct TakenReserve {
    /// The number of blocks.
    pub(crate) blocks: u64,
    claim: Option<ClaimId>,
}

impl ClaimReserves {
    /// Notes that this many blocks are reserved for `claim`.
    pub(crate) fn keep(&self, claim: &Blocks, blocks: u64) {
        self.0.lock().keep(claim, blocks);
    }

    /// Whether any of `blocks` is claimed.
    pub(crate) fn keeps(&self, blocks: &Blocks) -> bool {
        self.0.lock().first_in(blocks).is_some()
    }

    /// Takes all that is reserved for claims that have any of `blocks`. If several threads take parts of one claim at
    /// the same time, one of them gets it.
    pub(crate) fn take(&self, blocks: &Blocks) -> TakenReserve {
        let mut all = self.0.lock();
        let claim = all.join(blocks);
        TakenReserve { blocks: all.empty(claim), claim }
    }

    /// Gives back what is `left` of a taken reserve, when `done` needs nothing more. The rest of the claim gets it if
    /// any run of it `needs` it, but no more than it had at first. Returns how many blocks the caller must return to
    /// the volume.
    pub(crate) fn give_back(
        &self,
        taken: TakenReserve,
        left: u64,
        done: &Blocks,
        needs: impl Fn(&Blocks) -> bool,
    ) -> u64 {
        let mut all = self.0.lock();
        let mut free = left + all.cut(done);
        let Some(id) = taken.claim else { return free };
        let rest = all.runs_of(id);
        if rest.iter().any(needs) {
            free -= all.refill(id, left);
        } else {
            free += rest.iter().map(|run| all.cut(run)).sum::<u64>();
        }
        free
    }

    /// Ends the claim of `blocks`. Returns how many blocks the caller must return to the volume: what was reserved,
    /// unless another run of the same claim `needs` it.
    pub(crate) fn release(&self, blocks: &Blocks, needs: impl Fn(&Blocks) -> bool) -> u64 {
        let taken = self.take(blocks);
        let left = taken.blocks;
        self.give_back(taken, left, blocks, needs)
    }
}

impl Claims {
    fn keep(&mut self, blocks: &Blocks, mut reserved: u64) {
        debug_assert!(blocks.start < blocks.end, "something is claimed");
        let old = self.join(blocks);
        let most = reserved + old.and_then(|id| self.claims.get(&id)).map_or(0, |claim| claim.most);
        reserved += self.empty(old) + self.cut(blocks);
        let id = old.filter(|id| self.claims.contains_key(id)).unwrap_or_else(|| {
            self.last += 1;
            ClaimId(self.last)
        });
        self.add_run(id, blocks.clone());
        if let Some(claim) = self.claims.get_mut(&id) {
            (claim.reserved, claim.most) = (reserved, most);
        }
    }

    /// The first run that has any of `blocks`.
    fn first_in(&self, blocks: &Blocks) -> Option<(FileBlock, ClaimRun)> {
        if blocks.start >= blocks.end {
            return None;
        }
        let before = self.runs.range(..blocks.start).next_back().filter(|(_, run)| run.end > blocks.start);
        let first = before.or_else(|| self.runs.range(blocks.clone()).next());
        first.map(|(start, run)| (*start, *run))
    }

    /// Merges all claims that have any of `blocks` into one.
    fn join(&mut self, blocks: &Blocks) -> Option<ClaimId> {
        let (mut at, mut joined) = (blocks.start, None);
        while let Some((_, run)) = self.first_in(&(at..blocks.end)) {
            at = run.end;
            match joined {
                None => joined = Some(run.claim),
                Some(into) if into != run.claim => self.merge(run.claim, into),
                Some(_) => {}
            }
        }
        joined
    }

    fn merge(&mut self, from: ClaimId, into: ClaimId) {
        let Some(claim) = self.claims.remove(&from) else { return };
        for run in
            self.runs.range_mut(claim.within.clone()).map(|(_, run)| run).filter(|run| run.claim == from)
        {
            run.claim = into;
        }
        if let Some(all) = self.claims.get_mut(&into) {
            all.reserved += claim.reserved;
            all.most += claim.most;
            all.runs += claim.runs;
            all.within = all.within.start.min(claim.within.start)..all.within.end.max(claim.within.end);
        }
    }

    fn runs_of(&self, id: ClaimId) -> Vec<Blocks> {
        let Some(claim) = self.claims.get(&id) else { return Vec::new() };
        let within = self.runs.range(claim.within.clone());
        within.filter(|(_, run)| run.claim == id).map(|(start, run)| *start..run.end).collect()
    }

    fn add_run(&mut self, id: ClaimId, blocks: Blocks) {
        self.runs.insert(blocks.start, ClaimRun { end: blocks.end, claim: id });
        let claim =
            self.claims.entry(id).or_insert(Claim { reserved: 0, most: 0, runs: 0, within: blocks.clone() });
        claim.runs += 1;
        claim.within = claim.within.start.min(blocks.start)..claim.within.end.max(blocks.end);
    }

    /// Puts blocks back into the reserve of a claim, up to what it had at first. Returns how many.
    fn refill(&mut self, id: ClaimId, blocks: u64) -> u64 {
        let Some(claim) = self.claims.get_mut(&id) else { return 0 };
        let back = blocks.min(claim.most.saturating_sub(claim.reserved));
        claim.reserved += back;
        back
    }

    fn empty(&mut self, id: Option<ClaimId>) -> u64 {
        id.and_then(|id| self.claims.get_mut(&id)).map_or(0, |claim| std::mem::take(&mut claim.reserved))
    }

    /// Removes `blocks` from all claims. Returns what was reserved for claims that have nothing left.
    fn cut(&mut self, blocks: &Blocks) -> u64 {
        let mut free = 0;
        while let Some((start, run)) = self.first_in(blocks) {
            self.runs.remove(&start);
            for rest in [start..run.end.min(blocks.start), start.max(blocks.end)..run.end] {
                if rest.start < rest.end {
                    self.add_run(run.claim, rest);
                }
            }
            if let Some(claim) = self.claims.get_mut(&run.claim) {
                claim.runs -= 1;
                if claim.runs == 0 {
                    free += claim.reserved;
                    self.claims.remove(&run.claim);
                }
            }
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn blocks(range: Range<u64>) -> Blocks {
        FileBlock(range.start)..FileBlock(range.end)
    }

    #[test]
    fn a_part_out_of_the_middle_leaves_the_rest_what_is_left() {
        let kept = ClaimReserves::default();
        kept.keep(&blocks(10..22), 20);
        let middle = blocks(14..15);
        let taken = kept.take(&middle);
        assert_eq!(taken.blocks, 20);
        assert_eq!(kept.give_back(taken, 18, &middle, |_| true), 0);
        assert!(!kept.keeps(&middle) && kept.keeps(&blocks(13..14)) && kept.keeps(&blocks(0..11)));
        let end = blocks(20..30);
        let taken = kept.take(&end);
        assert_eq!(taken.blocks, 18);
        // The map gave something back. What exceeds the original reserve is the caller's.
        assert_eq!(kept.give_back(taken, 23, &end, |_| true), 3);
        assert_eq!(kept.release(&blocks(0..100), |_| true), 20);
        assert!(!kept.keeps(&blocks(0..100)));
    }

    #[test]
    fn a_rest_that_needs_nothing_is_claimed_no_more() {
        let kept = ClaimReserves::default();
        kept.keep(&blocks(0..8), 20);
        let taken = kept.take(&blocks(2..4));
        assert_eq!(kept.give_back(taken, 5, &blocks(2..4), |_| false), 5);
        assert!(!kept.keeps(&blocks(0..8)));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever is claimed, taken in parts and given up, nothing is lost or counted twice, and every claim has its
        /// reserve.
        #[test]
        fn what_is_reserved_is_there_until_all_was_told(
            steps in prop::collection::vec((0..3_u8, 0..60_u64, 1..20_u64, 1..9_u64), 1..60),
        ) {
            let (kept, mut claimed, mut reserved) = (ClaimReserves::default(), [false; 80], 0);
            for (step, start, len, count) in steps {
                let range = blocks(start..start + len);
                let is_kept = claimed[start as usize..(start + len) as usize].iter().any(|&is| is);
                prop_assert_eq!(kept.keeps(&range), is_kept);
                let used = match step {
                    0 => {
                        kept.keep(&range, count);
                        reserved += count;
                        0
                    }
                    1 => kept.release(&range, |_| true),
                    _ => {
                        let taken = kept.take(&range);
                        prop_assert_eq!(taken.blocks > 0 || reserved == 0, is_kept || reserved == 0);
                        // Use one, if there are two.
                        let used = u64::from(taken.blocks > 1);
                        let left = taken.blocks - used;
                        used + kept.give_back(taken, left, &range, |_| true)
                    }
                };
                reserved -= used;
                claimed[start as usize..(start + len) as usize].fill(step == 0);
            }
            prop_assert_eq!(kept.release(&blocks(0..u64::MAX), |_| true), reserved);
            prop_assert!(kept.0.lock().runs.is_empty() && kept.0.lock().claims.is_empty());
        }
    }
}
