//! The kinds of deferred work, and their intents.
//!
//! The layer that defers work knows how to finish it.

use super::attr_work::AttrWork;
use crate::log::{LogVector, VecSize};
use crate::owner::RmapOwner;
use crate::trans::reservation::ReservationBuilder;
use smallvec::{SmallVec, smallvec};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::log::{
    BmapIntent, BmapUpdate, Done, Exchange, ExchangeIntent, Extent, ItemType, RefcountIntent, RefcountUpdate,
    RmapIntent, RmapUpdate, encode_free_intent, free_intent_bytes,
};
use xfs_format::types::{AgNumber, InodeNumber};

/// An item of deferred work.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// A run of blocks within one group becomes free.
    Free(FreeWork),
    /// The reverse map is updated for a mapping.
    Rmap(RmapUpdate),
    /// Blocks get or lose an owner, or enter or leave CoW staging.
    Count(RefcountUpdate),
    /// A mapping enters or leaves a map.
    Map(BmapUpdate),
    /// Mappings of two files are exchanged.
    Exchange(Exchange),
    /// An attribute is changed.
    Attr(Box<AttrWork>),
}

/// Blocks to be freed. They lie within one group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreeWork {
    /// The blocks.
    pub(crate) extent: Extent,
    /// Their owner, or `None` if the rmap tree no longer has them by then.
    pub(crate) owner: Option<RmapOwner>,
}

/// Pieces of work of one kind.
pub(super) type Works = SmallVec<[Work; 1]>;

/// The work of an intent, all of one kind. Our intents have one piece each, except those that recovery gathers. Intents
/// that it finds may have several.
#[derive(Clone, Debug)]
pub(crate) enum IntentWork {
    /// EFI, EFD.
    Free(SmallVec<[Extent; 1]>),
    /// RUI, RUD.
    Rmap(SmallVec<[RmapUpdate; 1]>),
    /// CUI, CUD.
    Count(SmallVec<[RefcountUpdate; 1]>),
    /// BUI, BUD.
    Map(SmallVec<[BmapUpdate; 1]>),
    /// XMI, XMD.
    Exchange(Exchange),
    /// ATTRI, ATTRD.
    Attr(Box<AttrWork>),
}

/// Log bytes of an intent.
#[derive(Clone, Copy, Debug)]
pub(in crate::trans) struct IntentBytes {
    /// To log it.
    pub(in crate::trans) begin: u64,
    /// To end it and log it again in the same commit.
    pub(in crate::trans) relog: u64,
}

impl IntentBytes {
    /// The maximum of two.
    pub(in crate::trans) fn longer(one: Self, other: Self) -> Self {
        Self { begin: one.begin.max(other.begin), relog: one.relog.max(other.relog) }
    }
}

impl Work {
    /// The group that it changes.
    pub(super) fn group(&self, geometry: &Geometry) -> Option<AgNumber> {
        let start = match self {
            Self::Free(work) => work.extent.start,
            Self::Rmap(update) => update.start,
            Self::Count(update) => update.start,
            Self::Map(_) | Self::Exchange(_) => return None,
            Self::Attr(work) => return geometry.split_inode(work.ino()).map(|(ag, _)| ag),
        };
        geometry.split_block(start).map(|(ag, _)| ag)
    }
}

impl From<&Work> for IntentWork {
    fn from(work: &Work) -> Self {
        match work {
            Work::Free(work) => Self::Free(smallvec![work.extent]),
            Work::Rmap(update) => Self::Rmap(smallvec![*update]),
            Work::Count(update) => Self::Count(smallvec![*update]),
            Work::Map(update) => Self::Map(smallvec![*update]),
            Work::Exchange(exchange) => Self::Exchange(*exchange),
            Work::Attr(work) => Self::Attr(work.clone()),
        }
    }
}

impl IntentWork {
    /// The intent for several pieces of work, all of the kind of the first. There is never more than one exchange or
    /// attribute change.
    pub(super) fn of(works: &[Work]) -> Self {
        let mut promise = works.first().map_or_else(|| Self::Free(SmallVec::new()), Self::from);
        for work in works.iter().skip(1) {
            match (&mut promise, work) {
                (Self::Free(extents), Work::Free(work)) => extents.push(work.extent),
                (Self::Count(updates), Work::Count(update)) => updates.push(*update),
                (promise, work) => unreachable!("{work:?} with {promise:?}"),
            }
        }
        promise
    }

    /// The single pieces. The intent does not say whose the freed blocks were, and the rmap tree may have been updated
    /// already.
    pub(super) fn works(&self) -> Works {
        match self {
            Self::Free(extents) => {
                let owner = Some(RmapOwner::ANY);
                extents.iter().map(|&extent| Work::Free(FreeWork { extent, owner })).collect()
            }
            Self::Rmap(updates) => updates.iter().copied().map(Work::Rmap).collect(),
            Self::Count(updates) => updates.iter().copied().map(Work::Count).collect(),
            Self::Map(updates) => updates.iter().copied().map(Work::Map).collect(),
            Self::Exchange(exchange) => smallvec![Work::Exchange(*exchange)],
            Self::Attr(work) => smallvec![Work::Attr(work.clone())],
        }
    }

    /// The extents that it frees.
    pub(crate) fn frees(&self) -> &[Extent] {
        if let Self::Free(extents) = self { extents } else { &[] }
    }

    /// Checks that what it names lies in the volume, each extent in one group.
    pub(crate) fn check(&self, geometry: &Geometry) -> Result<(), FormatError> {
        match self {
            Self::Free(extents) => extents.iter().try_for_each(|extent| extent.check(geometry)),
            Self::Rmap(updates) => updates.iter().try_for_each(|update| update.check(geometry)),
            Self::Count(updates) => updates.iter().try_for_each(|update| update.check(geometry)),
            Self::Map(updates) => updates.iter().try_for_each(|update| update.check(geometry)),
            Self::Exchange(exchange) => exchange.check(geometry),
            Self::Attr(work) => work.check(geometry),
        }
    }

    /// Regions of the intent or of its done item.
    pub(super) fn log_size(&self, done: bool) -> VecSize {
        match self {
            Self::Free(extents) => VecSize::default().region(free_intent_bytes(extents.len())),
            Self::Rmap(_) | Self::Count(_) | Self::Map(_) | Self::Exchange(_) | Self::Attr(_) if done => {
                VecSize::default().region(Done::BYTES)
            }
            Self::Rmap(updates) => VecSize::default().region(RmapIntent::bytes(updates.len())),
            Self::Count(updates) => VecSize::default().region(RefcountIntent::bytes(updates.len())),
            Self::Map(updates) => VecSize::default().region(BmapIntent::bytes(updates.len())),
            Self::Exchange(_) => VecSize::default().region(ExchangeIntent::BYTES),
            Self::Attr(work) => work.log_size(),
        }
    }

    /// Encodes the regions of the intent or of its done item.
    pub(super) fn encode(&self, done: bool, id: u64, vector: &mut LogVector) {
        match self {
            Self::Free(extents) => {
                let bytes = free_intent_bytes(extents.len());
                vector.region_with(bytes, |to| encode_free_intent(done, id, extents, to));
            }
            Self::Rmap(_) if done => {
                vector.region_with(Done::BYTES, |to| Done::new(ItemType::Rud, id).encode(to));
            }
            Self::Rmap(updates) => {
                let bytes = RmapIntent::bytes(updates.len());
                vector.region_with(bytes, |to| RmapIntent::encode(id, updates, to));
            }
            Self::Count(_) if done => {
                vector.region_with(Done::BYTES, |to| Done::new(ItemType::Cud, id).encode(to));
            }
            Self::Count(updates) => {
                let bytes = RefcountIntent::bytes(updates.len());
                vector.region_with(bytes, |to| RefcountIntent::encode(id, updates, to));
            }
            Self::Map(_) if done => {
                vector.region_with(Done::BYTES, |to| Done::new(ItemType::Bud, id).encode(to));
            }
            Self::Map(updates) => {
                let bytes = BmapIntent::bytes(updates.len());
                vector.region_with(bytes, |to| BmapIntent::encode(id, updates, to));
            }
            Self::Exchange(_) if done => {
                vector.region_with(Done::BYTES, |to| Done::new(ItemType::Xmd, id).encode(to));
            }
            Self::Exchange(exchange) => {
                let intent = ExchangeIntent { id, exchange: *exchange };
                vector.region_with(ExchangeIntent::BYTES, |to| intent.encode(to));
            }
            Self::Attr(_) if done => {
                vector.region_with(Done::BYTES, |to| Done::new(ItemType::Attrd, id).encode(to));
            }
            Self::Attr(work) => work.encode(id, vector),
        }
    }

    /// The inodes whose maps it changes.
    pub(crate) fn remapped(&self) -> SmallVec<[InodeNumber; 2]> {
        match self {
            Self::Map(updates) => updates.iter().map(|update| update.ino).collect(),
            Self::Exchange(exchange) => exchange.inodes.into(),
            Self::Free(_) | Self::Rmap(_) | Self::Count(_) | Self::Attr(_) => SmallVec::new(),
        }
    }

    /// Whether it changes refcounts.
    pub(crate) fn is_count(&self) -> bool {
        matches!(self, Self::Count(_))
    }

    /// Log bytes to log the intent again.
    pub(crate) fn relog_bytes(&self) -> u64 {
        u64::from(self.log_size(true).log_bytes()) + u64::from(self.log_size(false).log_bytes())
    }

    /// Log bytes that it takes.
    pub(super) fn bytes(&self) -> IntentBytes {
        IntentBytes { begin: self.log_size(false).log_bytes().into(), relog: self.relog_bytes() }
    }

    /// The number of pieces.
    pub(crate) fn pieces(&self) -> usize {
        match self {
            Self::Free(extents) => extents.len(),
            Self::Rmap(updates) => updates.len(),
            Self::Count(updates) => updates.len(),
            Self::Map(updates) => updates.len(),
            Self::Exchange(_) | Self::Attr(_) => 1,
        }
    }

    /// Reserves for doing it at once; of refcount updates, this many pieces
    /// ([`Trans::finish_intent`](crate::trans::Trans::finish_intent)).
    pub(crate) fn reservation_at_once<'g>(
        &self,
        need: ReservationBuilder<'g>,
        pieces: usize,
    ) -> ReservationBuilder<'g> {
        let need = need.bytes(self.log_size(true).log_bytes().into());
        match self {
            Self::Free(extents) => need.extents(extents.len() as u64),
            Self::Rmap(updates) => need.extents(updates.len() as u64),
            Self::Count(updates) => {
                let behind = updates.len().saturating_sub(pieces);
                need.counts_at_once(pieces as u64).counts(behind as u64)
            }
            Self::Map(updates) => need.maps_at_once(updates.len() as u64),
            Self::Exchange(_) => need.exchange_at_once(),
            Self::Attr(work) => work.reservation(need),
        }
    }

    /// Reserves for adopting the intent ([`Trans::adopt_intent`](crate::trans::Trans::adopt_intent)) and doing its
    /// work.
    pub(crate) fn reservation<'g>(&self, need: ReservationBuilder<'g>) -> ReservationBuilder<'g> {
        let need = need.bytes(self.log_size(true).log_bytes().into());
        match self {
            Self::Free(extents) => need.frees(extents.len() as u64),
            Self::Rmap(updates) => need.rmaps(updates.len() as u64),
            Self::Count(updates) => need.counts(updates.len() as u64),
            Self::Map(_) | Self::Exchange(_) => self.reservation_at_once(need, self.pieces()),
            Self::Attr(work) => work.reservation(need),
        }
    }
}
