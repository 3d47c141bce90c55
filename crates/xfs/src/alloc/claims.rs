//! Room that groups promise to their reverse maps while a change, which cannot end half-way, cuts what owners have there
//! into many pieces.
//!
//! Invariants:
//! - a claim is made with the group's AGF locked, and whoever allocates in the group looks at claims behind that lock: what
//!   was claimed is there until the claim is dropped;
//! - it comes on top of what the group keeps for its reverse map, as others may use that meanwhile; and it is reserved of the
//!   volume's free blocks before a group holds it back, so that no group gives less than was promised of it;
//! - the transaction that holds a claim has what its reverse maps grow by out of it: what is left is what may still come;
//! - who makes more pieces without a claim leaves to claims what they are for.

use crate::error::Result;
use crate::trans::counters::Counters;
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

    /// Nothing yet. What is claimed is reserved of these counters.
    pub(super) fn begin<'a>(&'a self, counters: &'a Counters) -> OwnerClaim<'a> {
        OwnerClaim { claims: self, counters, held: BTreeMap::new() }
    }
}

/// Room that one change has claimed, until this is dropped.
#[derive(Debug)]
#[must_use = "the room is anybody's again when this is dropped"]
pub struct OwnerClaim<'a> {
    claims: &'a Claims,
    counters: &'a Counters,
    held: BTreeMap<AgNumber, Held>,
}

/// Blocks of one group.
#[derive(Debug)]
struct Held {
    claimed: u32,
    /// What it has not used of them.
    left: u32,
}

impl OwnerClaim<'_> {
    /// Claims so many blocks of a group. The caller has its AGF locked. [`NoSpace`](crate::Error::NoSpace) claims nothing.
    pub(super) fn add(&mut self, ag: AgNumber, blocks: u32) -> Result<()> {
        debug_assert!(!self.held.contains_key(&ag), "once a group");
        self.counters.reserve_blocks(blocks.into())?;
        *self.claims.blocks.lock().entry(ag).or_default() += blocks;
        self.held.insert(ag, Held { claimed: blocks, left: blocks });
        self.claims.count.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// The reverse map of a group grew by so many blocks for the change that has the claim, or shrank.
    pub(super) fn grew(&mut self, ag: AgNumber, by: i32) {
        let Some(held) = self.held.get_mut(&ag) else { return };
        let mut all = self.claims.blocks.lock();
        let others = all.get(&ag).map_or(0, |claimed| claimed - held.left);
        held.left = held.left.saturating_add_signed(by.saturating_neg()).min(held.claimed);
        all.insert(ag, others + held.left);
    }
}

impl Drop for OwnerClaim<'_> {
    fn drop(&mut self) {
        let mut all = self.claims.blocks.lock();
        for (ag, held) in std::mem::take(&mut self.held) {
            if let Some(claimed) = all.get_mut(&ag) {
                *claimed -= held.left;
                if *claimed == 0 {
                    all.remove(&ag);
                }
            }
            self.claims.count.fetch_sub(1, Ordering::Release);
            // The group gives it again: now it may be promised.
            self.counters.return_blocks(held.claimed.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn a_claim_holds_what_it_has_not_used_until_it_is_dropped() {
        let (claims, ag) = (Claims::default(), AgNumber(3));
        let counters = Counters::new(100, 0, 0, 20);
        let mut one = claims.begin(&counters);
        one.add(ag, 50).expect("space");
        assert_eq!((claims.of(ag), counters.available_blocks()), (50, 30));
        let mut two = claims.begin(&counters);
        two.add(ag, 10).expect("space");
        two.add(AgNumber(4), 10).expect("space");
        assert!(matches!(two.add(AgNumber(5), 11), Err(Error::NoSpace)));
        let of_all = [3, 4, 5].map(|ag| claims.of(AgNumber(ag)));
        assert_eq!((of_all, counters.available_blocks()), ([60, 10, 0], 10));
        one.grew(ag, 15);
        one.grew(AgNumber(4), 15);
        two.grew(ag, 4);
        two.grew(ag, -1);
        assert_eq!((claims.of(ag), claims.of(AgNumber(4))), (42, 10));
        two.grew(AgNumber(4), -5);
        assert_eq!(claims.of(AgNumber(4)), 10, "no more than it claimed");
        two.grew(ag, 20);
        assert_eq!(claims.of(ag), 35, "no more than it had");
        drop(one);
        assert_eq!((claims.of(ag), counters.available_blocks()), (0, 60));
        drop(two);
        assert_eq!((claims.of(AgNumber(4)), claims.blocks.lock().len()), (0, 0));
        assert_eq!(counters.available_blocks(), 80);
    }
}
