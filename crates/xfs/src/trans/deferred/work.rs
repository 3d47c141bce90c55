//! What can be owed: the kinds of work, what each says in the log, and how it is carried out.

use super::frees;
use crate::error::Result;
use crate::log::{LogVector, VecSize};
use crate::trans::Trans;
use crate::trans::reservation::Need;
use smallvec::{SmallVec, smallvec};
use xfs_format::log::{Extent, encode_free_intent, free_intent_bytes};

/// A piece of work that is owed.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// A run of blocks is put into the trees of free space. It lies within one group.
    Free(Extent),
}

/// What an intent promises: work of one kind. Ours promise one piece each, those that recovery finds several.
#[derive(Clone, Debug)]
pub(crate) enum Promise {
    /// EFI, EFD.
    Free(SmallVec<[Extent; 1]>),
}

impl Work {
    /// Carries it out. What is left of it is for a transaction of its own, and done before anything that was owed already,
    /// but behind what this was the first to owe.
    pub(super) fn carry_out(self, trans: &mut Trans<'_>) -> Result<Option<Self>> {
        match self {
            Self::Free(extent) => frees::free_now(trans, extent).map(|()| None),
        }
    }
}

impl From<&Work> for Promise {
    fn from(work: &Work) -> Self {
        match work {
            Work::Free(extent) => Self::Free(smallvec![*extent]),
        }
    }
}

impl Promise {
    /// Piece by piece.
    pub(super) fn works(&self) -> SmallVec<[Work; 1]> {
        match self {
            Self::Free(extents) => extents.iter().copied().map(Work::Free).collect(),
        }
    }

    /// Regions of the intent, or of its end.
    pub(super) fn log_size(&self, _done: bool) -> VecSize {
        match self {
            Self::Free(extents) => VecSize::default().region(free_intent_bytes(extents.len())),
        }
    }

    /// Adds the regions of the intent, or of its end.
    pub(super) fn encode(&self, done: bool, id: u64, vector: &mut LogVector) {
        match self {
            Self::Free(extents) => {
                let bytes = free_intent_bytes(extents.len());
                vector.region_with(bytes, |to| encode_free_intent(done, id, extents, to));
            }
        }
    }

    /// Bytes of the log that it takes to log the intent again.
    pub(super) fn relog_bytes(&self) -> u64 {
        u64::from(self.log_size(true).log_bytes()) + u64::from(self.log_size(false).log_bytes())
    }

    /// What it takes to take the promise over ([`Trans::take_over`]), and to do what it says.
    pub(crate) fn need<'g>(&self, need: Need<'g>) -> Need<'g> {
        let need = need.bytes(self.log_size(true).log_bytes().into());
        match self {
            Self::Free(extents) => need.frees(extents.len() as u64),
        }
    }
}
