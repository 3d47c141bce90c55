//! Room that groups promise to their reverse maps while a change, which cannot end half-way, cuts what owners have there
//! into many pieces.
//!
//! Invariants:
//! - a claim is made with the group's AGF locked, and whoever allocates in the group looks at claims behind that lock: what
//!   was claimed is there until the claim is dropped;
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
        OwnerClaim { claims: self, groups: Vec::new(), beyond: 0 }
    }
}

/// Room that one change has claimed, until this is dropped.
#[derive(Debug)]
#[must_use = "the room is anybody's again when this is dropped"]
pub struct OwnerClaim<'a> {
    claims: &'a Claims,
    groups: Vec<(AgNumber, u32)>,
    beyond: u64,
}

impl OwnerClaim<'_> {
    /// Claims so many blocks of a group, of which so many are kept for nothing else. The caller has its AGF locked.
    pub(super) fn add(&mut self, ag: AgNumber, blocks: u32, kept: u32) {
        let mut all = self.claims.blocks.lock();
        let claimed = all.entry(ag).or_default();
        let over = |claimed: u32| u64::from(claimed.saturating_sub(kept));
        self.beyond += over(*claimed + blocks) - over(*claimed);
        *claimed += blocks;
        self.groups.push((ag, blocks));
        self.claims.count.fetch_add(1, Ordering::Release);
    }

    /// Blocks of it that groups do not keep for their reverse maps: they are to be reserved besides.
    pub fn beyond(&self) -> u64 {
        self.beyond
    }
}

impl Drop for OwnerClaim<'_> {
    fn drop(&mut self) {
        let mut all = self.claims.blocks.lock();
        for (ag, blocks) in self.groups.drain(..) {
            if let Some(claimed) = all.get_mut(&ag) {
                *claimed -= blocks;
                if *claimed == 0 {
                    all.remove(&ag);
                }
            }
            self.claims.count.fetch_sub(1, Ordering::Release);
        }
    }
}
