//! Allocating and freeing in one group, whose AGF the transaction has locked.

use super::agfl::{self, RingUse};
use super::limits::Limits;
use super::seam::{SpaceStore, Spent};
use super::search::{Found, Search};
use super::{Place, Purpose, Request, Run, space};
use crate::error::{Error, Result};
use crate::rmap::RmapOwner;
use xfs_format::error::FormatError;
use xfs_format::types::{AgBlock, AgNumber};

/// Blocks by which an overfull ring is shortened in one go: it need not be exact, and each costs a change of trees.
const RING_SHRINK_STEPS: u32 = 4;
/// Rounds of filling the ring: filling may raise a tree, which raises the minimum.
const RING_FILL_STEPS: u32 = 64;

/// What came of asking a group for blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// These blocks are the caller's.
    Got(Run),
    /// The group has no room for them.
    Full,
    /// It may have once the busy extents are not busy any more.
    Busy,
}

/// One group, locked.
#[derive(Debug)]
pub struct Group<'s, S: ?Sized> {
    store: &'s mut S,
    limits: &'s Limits,
    ag: AgNumber,
    /// Blocks that are not given out for ordinary purposes ([`Limits::group_reserve`]).
    reserve: u32,
}

impl<'s, S: SpaceStore + ?Sized> Group<'s, S> {
    /// The group `ag`, of which `reserve` blocks are kept back.
    pub fn new(store: &'s mut S, limits: &'s Limits, ag: AgNumber, reserve: u32) -> Self {
        Self { store, limits, ag, reserve }
    }

    /// Allocates what `request` says at `place`.
    pub fn allocate(&mut self, place: Place, request: Request) -> Result<Outcome> {
        debug_assert!(request.min > 0 && request.min <= request.max && request.align > 0);
        let Some(request) = self.within_room(request)? else { return Ok(Outcome::Full) };
        // Before the ring is touched: a group that was not changed can be given back.
        if let other @ (Found::Nothing | Found::Busy) = self.search(place, request)? {
            return Ok(if other == Found::Busy { Outcome::Busy } else { Outcome::Full });
        }
        if !self.settle_ring()? {
            return Ok(Outcome::Full);
        }
        let Some(request) = self.within_room(request)? else { return Ok(Outcome::Full) };
        match self.search(place, request)? {
            Found::Nothing => Ok(Outcome::Full),
            Found::Busy => Ok(Outcome::Busy),
            Found::Fit(fit) => {
                space::take(self.store, self.ag, fit.whole, fit.part)?;
                if let Some(owner) = request.owner {
                    self.store.record_owner(self.ag, fit.part, owner)?;
                }
                self.store.spend(spent(request.purpose, i64::from(fit.part.len)))?;
                Ok(Outcome::Got(fit.part))
            }
        }
    }

    /// Frees blocks of an owner; of none where the reverse map does not have them any more. They stay busy until this is
    /// on disk. Needs no free block.
    pub fn free(&mut self, run: Run, purpose: Purpose, owner: Option<RmapOwner>) -> Result<()> {
        self.check_run(run)?;
        // A ring that cannot be filled is left as it is: what it holds was enough for this when it was filled last.
        self.settle_ring()?;
        self.store.forget_owner(self.ag, run, owner)?;
        space::give(self.store, self.ag, run)?;
        self.store.note_busy(self.ag, run);
        self.store.spend(spent(purpose, -i64::from(run.len)))?;
        Ok(())
    }

    /// Adds blocks that the group got at its end, and that nobody ever had.
    pub fn extend(&mut self, run: Run) -> Result<()> {
        self.check_run(run)?;
        self.settle_ring()?;
        space::give(self.store, self.ag, run)?;
        self.store.spend(spent(Purpose::Data, -i64::from(run.len)))
    }

    /// Has the ring hold what a change of a tree may need, if there are blocks for it: else what it holds was enough when
    /// it was filled last.
    pub fn prepare(&mut self) -> Result<()> {
        self.settle_ring().map(drop)
    }

    /// The request, cut to what the group can give without touching what is owed to others; `None`: too little.
    fn within_room(&self, request: Request) -> Result<Option<Request>> {
        let agf = self.store.agf(self.ag)?;
        let room = self.limits.room(agf, self.reserve, request.purpose);
        let available = room.available.saturating_sub(request.min_left);
        if room.longest < request.min || available < request.min {
            return Ok(None);
        }
        // Cut to what is there in all, not to the longest run: which extent that leaves is the search's choice.
        let max = request.max.min(available);
        Ok(Some(Request { max, ..request }))
    }

    fn search(&mut self, place: Place, request: Request) -> Result<Found> {
        let mut search = Search::new(&mut *self.store, self.ag, request);
        match place {
            Place::Any => search.by_size(),
            Place::Near(target) => search.near(target),
            Place::Exact(start) => search.exact(start),
        }
    }

    /// Brings the ring to the length that a change of the trees may need; `false` if there are not enough blocks.
    fn settle_ring(&mut self) -> Result<bool> {
        for _ in 0..RING_SHRINK_STEPS {
            let agf = self.store.agf(self.ag)?;
            if agf.flcount.get() <= self.limits.ring_minimum(agf) {
                break;
            }
            let Some(block) = agfl::take(self.store, self.ag, RingUse::Space)? else { break };
            let run = Run { start: block, len: 1 };
            self.store.forget_owner(self.ag, run, Some(RmapOwner::SPACE_TREES))?;
            space::give(self.store, self.ag, run)?;
        }
        for _ in 0..RING_FILL_STEPS {
            let agf = self.store.agf(self.ag)?;
            let missing = self.limits.ring_minimum(agf).saturating_sub(agf.flcount.get());
            if missing == 0 {
                return Ok(true);
            }
            match self.find_for_ring(missing)? {
                Found::Fit(fit) => {
                    space::take(self.store, self.ag, fit.whole, fit.part)?;
                    for block in fit.part.start.0..fit.part.start.0.saturating_add(fit.part.len) {
                        agfl::put(self.store, self.ag, AgBlock(block), RingUse::Space)?;
                    }
                    self.store.record_owner(self.ag, fit.part, RmapOwner::SPACE_TREES)?;
                }
                Found::Nothing | Found::Busy => return Ok(false),
            }
        }
        Ok(false)
    }

    /// Blocks for the ring: such as nobody waits for, if they are found soon, or else busy ones.
    fn find_for_ring(&mut self, missing: u32) -> Result<Found> {
        let request = Request::new(1, missing, Purpose::Metadata);
        match Search::new(&mut *self.store, self.ag, request).by_size_soon()? {
            Found::Busy => Search::new(&mut *self.store, self.ag, request).taking_busy().by_size(),
            other => Ok(other),
        }
    }

    /// Blocks to be freed lie in the group, behind its headers.
    fn check_run(&self, run: Run) -> Result<()> {
        let geometry = self.store.geometry();
        let blocks = geometry.ag_blocks_of(self.ag);
        let headers = (4 * geometry.sector_size).div_ceil(geometry.block_size);
        if run.len == 0 || run.start.0 < headers || run.end() > blocks.into() {
            let problem = FormatError::mismatch("freed extent", "blocks", run.start.0.into(), blocks.into());
            return Err(Error::corrupt_block(geometry.daddr_of(self.ag, AgBlock(0)), None, problem));
        }
        Ok(())
    }
}

/// How blocks for a purpose are counted.
fn spent(purpose: Purpose, blocks: i64) -> Spent {
    match purpose {
        Purpose::Data | Purpose::Metadata => Spent::Reserved(blocks),
        Purpose::ReservedTree => Spent::FromPool(blocks),
    }
}
