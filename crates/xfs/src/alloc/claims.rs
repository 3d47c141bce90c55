//! Claims: room that groups promise to their rmap trees while a change that cannot stop half-way cuts extents into many
//! pieces.
//!
//! Invariants:
//! - a claim is made with the group's AGF locked, and allocations in the group read the claims under that lock. So
//!   claimed room stays until the claim is dropped;
//! - a claim is in addition to the group's reservation for its rmap tree, because others may use that meanwhile. It is
//!   reserved from the volume's free blocks before a group holds it back, so that no group gives less than was promised
//!   of it;
//! - the transaction that holds a claim has the growth of its rmap trees deducted from it: the rest is for growth still
//!   to come;
//! - a change that makes more pieces without a claim leaves the claimed room alone;
//! - what is promised to future copies is a claim on each group whose blocks they copy, and on each where they are
//!   staged. It grows and shrinks with the records that they may add. Whoever commits such copies takes the room from
//!   it.

use crate::counters::Counters;
use crate::error::Result;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use xfs_format::types::AgNumber;

/// The claims on all groups of a volume.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Their number. 0 if nobody copies.
    count: AtomicUsize,
    blocks: Mutex<BTreeMap<AgNumber, u32>>,
    /// What is promised to future copies.
    promised: Mutex<BTreeMap<AgNumber, Promised>>,
}

/// The promise of one group: a number of records, and the blocks that are claimed for them.
#[derive(Clone, Copy, Debug, Default)]
struct Promised {
    records: u64,
    blocks: u32,
}

impl Claims {
    /// Blocks that are claimed in a group. The caller has its AGF locked, or only needs an estimate.
    pub(super) fn of(&self, ag: AgNumber) -> u32 {
        // Ordered by the lock of the AGF under which a claim was made.
        if self.count.load(Ordering::Acquire) == 0 {
            return 0;
        }
        self.blocks.lock().get(&ag).copied().unwrap_or(0)
    }

    /// The same without what is promised to copies. Read under one lock, because promises grow and shrink meanwhile.
    pub(super) fn of_others(&self, ag: AgNumber) -> u32 {
        if self.count.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let promised = self.promised.lock();
        let all = self.blocks.lock().get(&ag).copied().unwrap_or(0);
        let of_copies = promised.get(&ag).map_or(0, |promised| promised.blocks);
        debug_assert!(of_copies <= all, "what is promised is claimed");
        all.saturating_sub(of_copies)
    }

    /// Whether nothing is promised.
    pub(super) fn promise_nothing(&self) -> bool {
        self.promised.lock().is_empty()
    }

    /// Promises room for `records` more records to copies of a group's blocks, if `reserve` succeeds for the blocks
    /// that this takes. `growth` says how many blocks a number of records may take. The caller has the group's AGF
    /// locked.
    pub(super) fn promise(
        &self,
        ag: AgNumber,
        records: u64,
        growth: impl Fn(u64) -> u32,
        reserve: impl FnOnce(u32) -> Result<()>,
    ) -> Result<()> {
        let mut promised = self.promised.lock();
        let now = promised.get(&ag).copied().unwrap_or_default();
        let records = now.records + records;
        let blocks = growth(records).max(now.blocks);
        reserve(blocks - now.blocks)?;
        if now.records == 0 {
            self.count.fetch_add(1, Ordering::Release);
        }
        *self.blocks.lock().entry(ag).or_default() += blocks - now.blocks;
        promised.insert(ag, Promised { records, blocks });
        Ok(())
    }

    /// Ends the promise for this many records: they have come, or never will. Returns how many blocks the caller must
    /// return.
    pub(super) fn end_promise(&self, ag: AgNumber, records: u64) -> u32 {
        let mut promised = self.promised.lock();
        let Some(now) = promised.get_mut(&ag) else { return 0 };
        debug_assert!(records <= now.records, "it was promised");
        now.records = now.records.saturating_sub(records);
        // A tree never grows by more blocks than it gets records and levels. With fewer records left, fewer blocks may
        // be needed.
        let most = u32::try_from(now.records.saturating_mul(2)).unwrap_or(u32::MAX);
        let free = now.blocks.saturating_sub(most);
        now.blocks -= free;
        if now.records == 0 {
            promised.remove(&ag);
            self.count.fetch_sub(1, Ordering::Release);
        }
        let mut all = self.blocks.lock();
        if let Some(claimed) = all.get_mut(&ag) {
            *claimed -= free;
            if *claimed == 0 {
                all.remove(&ag);
            }
        }
        free
    }

    /// An empty claim. Its blocks will be reserved from `counters`.
    pub(super) fn begin<'a>(&'a self, counters: &'a Counters) -> OwnerClaim<'a> {
        OwnerClaim { claims: self, counters, held: BTreeMap::new() }
    }
}

/// Room that one change has claimed. Dropping it ends the claim.
#[derive(Debug)]
#[must_use = "the room is anybody's again when this is dropped"]
pub struct OwnerClaim<'a> {
    claims: &'a Claims,
    counters: &'a Counters,
    held: BTreeMap<AgNumber, Held>,
}

/// The claim on one group.
#[derive(Debug)]
struct Held {
    claimed: u32,
    /// Blocks of it that are not used yet.
    left: u32,
}

impl OwnerClaim<'_> {
    /// Claims this many blocks of a group. The caller has its AGF locked. After [`NoSpace`](crate::Error::NoSpace)
    /// nothing is claimed.
    pub(super) fn add(&mut self, ag: AgNumber, blocks: u32) -> Result<()> {
        debug_assert!(!self.held.contains_key(&ag), "once a group");
        self.counters.reserve_blocks(blocks.into())?;
        *self.claims.blocks.lock().entry(ag).or_default() += blocks;
        self.held.insert(ag, Held { claimed: blocks, left: blocks });
        self.claims.count.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// The rmap tree of a group grew by this many blocks (or shrank) for the change that has the claim.
    pub(crate) fn grew(&mut self, ag: AgNumber, by: i32) {
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
            // The group no longer holds it back, so it may be promised again.
            self.counters.return_blocks(held.claimed.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn what_is_promised_to_copies_is_claimed_until_it_has_come() {
        let (claims, ag) = (Claims::default(), AgNumber(3));
        let growth = |records: u64| 5 + records as u32 / 10;
        let just = |blocks| move |more| if more == blocks { Ok(()) } else { Err(Error::NoSpace) };
        claims.promise(ag, 20, growth, just(7)).expect("so many more");
        claims.promise(ag, 30, growth, just(3)).expect("so many more");
        assert_eq!((claims.of(ag), claims.of_others(ag)), (10, 0));
        let counters = Counters::new(100, 0, 0, 20);
        let mut other = claims.begin(&counters);
        other.add(ag, 4).expect("space");
        assert_eq!((claims.of(ag), claims.of_others(ag)), (14, 4));
        drop(other);
        let refused = claims.promise(ag, 1000, growth, |_| Err(Error::NoSpace));
        assert!(matches!(refused, Err(Error::NoSpace)));
        assert_eq!(
            (claims.of(ag), claims.end_promise(ag, 47)),
            (10, 4),
            "three records take six blocks at most"
        );
        assert_eq!((claims.of(ag), claims.end_promise(ag, 3), claims.of(ag)), (6, 6, 0));
        assert!(claims.promise_nothing() && claims.end_promise(ag, 0) == 0);
    }

    #[test]
    fn what_others_claimed_is_the_same_while_promises_come_and_go() {
        let (claims, ag) = (Claims::default(), AgNumber(3));
        let counters = Counters::new(100, 0, 0, 20);
        let mut other = claims.begin(&counters);
        other.add(ag, 4).expect("space");
        std::thread::scope(|scope| {
            let promising = scope.spawn(|| {
                for _ in 0..20_000 {
                    claims.promise(ag, 8, |records| records as u32, |_| Ok(())).expect("promised");
                    claims.end_promise(ag, 8);
                }
            });
            while !promising.is_finished() {
                assert_eq!(claims.of_others(ag), 4);
            }
        });
        drop(other);
        assert!(claims.promise_nothing() && claims.of(ag) == 0);
    }

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
