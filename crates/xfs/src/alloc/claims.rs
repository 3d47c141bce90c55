//! Room that groups promise to their reverse maps while a change, which cannot end half-way, cuts what owners have there
//! into many pieces.
//!
//! Invariants:
//! - a claim is made with the group's AGF locked, and whoever allocates in the group looks at claims behind that lock: what
//!   was claimed is there until the claim is dropped;
//! - the transaction that holds a claim has what its reverse maps grow by out of it: what is left is what may still come;
//! - who makes more pieces without a claim leaves to claims what they are for.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use xfs_format::types::AgNumber;

/// The claims on all groups of a volume.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// How many there are: none, nearly always.
    count: AtomicUsize,
    blocks: Mutex<BTreeMap<AgNumber, u32>>,
}

impl Claims {
    /// Blocks that are claimed of a group, whose AGF the caller has locked, or who only wants to know roughly.
    pub(super) fn of(&self, ag: AgNumber) -> u32 {
        // Behind the lock of an AGF that a claim was made under.
        if self.count.load(Ordering::Acquire) == 0 {
            return 0;
        }
        self.blocks.lock().get(&ag).copied().unwrap_or(0)
    }

    /// Nothing yet.
    pub(super) fn begin(&self) -> OwnerClaim<'_> {
        OwnerClaim { claims: self, left: BTreeMap::new(), beyond: 0 }
    }
}

/// Room that one change has claimed, until this is dropped.
#[derive(Debug)]
#[must_use = "the room is anybody's again when this is dropped"]
pub struct OwnerClaim<'a> {
    claims: &'a Claims,
    /// What it has not used of each group.
    left: BTreeMap<AgNumber, u32>,
    beyond: u64,
}

impl OwnerClaim<'_> {
    /// Claims so many blocks of a group, of which so many are kept for nothing else. The caller has its AGF locked.
    pub(super) fn add(&mut self, ag: AgNumber, blocks: u32, kept: u32) {
        debug_assert!(!self.left.contains_key(&ag), "once a group");
        let mut all = self.claims.blocks.lock();
        let claimed = all.entry(ag).or_default();
        let over = |claimed: u32| u64::from(claimed.saturating_sub(kept));
        self.beyond += over(*claimed + blocks) - over(*claimed);
        *claimed += blocks;
        self.left.insert(ag, blocks);
        self.claims.count.fetch_add(1, Ordering::Release);
    }

    /// The reverse map of a group grew by so many blocks for the change that has the claim, or shrank.
    pub(super) fn grew(&mut self, ag: AgNumber, by: i32) {
        let Some(left) = self.left.get_mut(&ag) else { return };
        let mut all = self.claims.blocks.lock();
        let others = all.get(&ag).map_or(0, |claimed| claimed - *left);
        *left = left.saturating_add_signed(by.saturating_neg());
        all.insert(ag, others + *left);
    }

    /// Blocks of it that groups do not keep for their reverse maps: they are to be reserved besides.
    pub fn beyond(&self) -> u64 {
        self.beyond
    }
}

impl Drop for OwnerClaim<'_> {
    fn drop(&mut self) {
        let mut all = self.claims.blocks.lock();
        for (ag, left) in std::mem::take(&mut self.left) {
            if let Some(claimed) = all.get_mut(&ag) {
                *claimed -= left;
                if *claimed == 0 {
                    all.remove(&ag);
                }
            }
            self.claims.count.fetch_sub(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_holds_what_it_has_not_used_until_it_is_dropped() {
        let (claims, ag) = (Claims::default(), AgNumber(3));
        let mut one = claims.begin();
        one.add(ag, 50, 20);
        assert_eq!((claims.of(ag), one.beyond()), (50, 30));
        let mut two = claims.begin();
        two.add(ag, 10, 20);
        two.add(AgNumber(4), 10, 20);
        assert_eq!((claims.of(ag), claims.of(AgNumber(4)), two.beyond()), (60, 10, 10));
        one.grew(ag, 15);
        one.grew(AgNumber(4), 15);
        two.grew(ag, 4);
        two.grew(ag, -1);
        assert_eq!((claims.of(ag), claims.of(AgNumber(4))), (42, 10));
        two.grew(ag, 20);
        assert_eq!(claims.of(ag), 35, "no more than it had");
        drop(one);
        assert_eq!(claims.of(ag), 0);
        drop(two);
        assert_eq!((claims.of(AgNumber(4)), claims.blocks.lock().len()), (0, 0));
    }
}
