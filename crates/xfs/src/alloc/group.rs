//! Allocating and freeing in one group whose AGF the transaction has locked.

use super::agfl::{self, AgflUse};
use super::limits::Limits;
use super::seam::{SpaceStore, Spent};
use super::search::{Search, SearchResult};
use super::{AgExtent, AgTarget, Purpose, Request, space};
use crate::error::{Error, Result};
use crate::rmap::RmapOwner;
use xfs_format::error::FormatError;
use xfs_format::types::{AgBlock, AgNumber};

/// How many blocks an overfull AGFL is shortened by at once. It need not be exact, and each block costs a change of
/// trees.
const AGFL_SHRINK_STEPS: u32 = 4;
/// Maximum rounds of filling the AGFL: filling may raise a tree, which raises the minimum.
const AGFL_FILL_STEPS: u32 = 64;

/// The result of asking a group for blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupOutcome {
    /// These blocks are the caller's.
    Got(AgExtent),
    /// The group has no room.
    Full,
    /// It may have room once busy extents are no longer busy.
    Busy,
}

/// One group, locked.
#[derive(Debug)]
pub struct LockedAg<'s, S: ?Sized> {
    store: &'s mut S,
    limits: &'s Limits,
    ag: AgNumber,
    /// Blocks that are not given out for ordinary purposes ([`Limits::ag_reservation`]).
    reserved: u32,
}

impl<'s, S: SpaceStore + ?Sized> LockedAg<'s, S> {
    /// The group `ag`, of which `reserve` blocks are kept back.
    pub fn new(store: &'s mut S, limits: &'s Limits, ag: AgNumber, reserve: u32) -> Self {
        Self { store, limits, ag, reserved: reserve }
    }

    /// Allocates for `request` at `place`.
    pub fn allocate(&mut self, place: AgTarget, request: Request) -> Result<GroupOutcome> {
        debug_assert!(request.min > 0 && request.min <= request.max && request.align > 0);
        let Some(request) = self.within_room(request)? else { return Ok(GroupOutcome::Full) };
        // Before the AGFL is touched, because the lock of an unchanged group can be released.
        if let other @ (SearchResult::Nothing | SearchResult::Busy) = self.search(place, request)? {
            return Ok(if other == SearchResult::Busy { GroupOutcome::Busy } else { GroupOutcome::Full });
        }
        if !self.fix_freelist()? {
            return Ok(GroupOutcome::Full);
        }
        let Some(request) = self.within_room(request)? else { return Ok(GroupOutcome::Full) };
        match self.search(place, request)? {
            SearchResult::Nothing => Ok(GroupOutcome::Full),
            SearchResult::Busy => Ok(GroupOutcome::Busy),
            SearchResult::Fit(fit) => {
                space::take(self.store, self.ag, fit.whole, fit.part)?;
                if let Some(owner) = request.owner {
                    self.store.record_owner(self.ag, fit.part, owner)?;
                }
                self.store.spend(spent(request.purpose, i64::from(fit.part.len)))?;
                Ok(GroupOutcome::Got(fit.part))
            }
        }
    }

    /// Frees blocks of `owner`, or of no owner if the rmap tree no longer has them. They stay busy until this is on
    /// disk. Needs no free block.
    pub fn free(&mut self, run: AgExtent, purpose: Purpose, owner: Option<RmapOwner>) -> Result<()> {
        self.check_run(run)?;
        // An AGFL that cannot be filled is left as it is: its blocks were enough for this when it was last filled.
        self.fix_freelist()?;
        self.store.forget_owner(self.ag, run, owner)?;
        space::give(self.store, self.ag, run)?;
        self.store.note_busy(self.ag, run);
        self.store.spend(spent(purpose, -i64::from(run.len)))?;
        Ok(())
    }

    /// Adds blocks that the group got at its end and that never belonged to anybody.
    pub fn extend(&mut self, run: AgExtent) -> Result<()> {
        self.check_run(run)?;
        self.fix_freelist()?;
        space::give(self.store, self.ag, run)?;
        self.store.spend(spent(Purpose::Data, -i64::from(run.len)))
    }

    /// Fills the AGFL with what a tree change may need, if there are blocks for it. Otherwise its blocks were enough
    /// when it was last filled.
    pub fn prepare(&mut self) -> Result<()> {
        self.fix_freelist().map(drop)
    }

    /// The request limited to what the group can give without touching what it owes to others. `None` if that is too
    /// little.
    fn within_room(&self, request: Request) -> Result<Option<Request>> {
        let agf = self.store.agf(self.ag)?;
        let room = self.limits.room(agf, self.reserved, request.purpose);
        let available = room.available.saturating_sub(request.min_left);
        if room.longest < request.min || available < request.min {
            return Ok(None);
        }
        // Limit it to all that is available, not to the longest extent: which extent to use is up to the search.
        let max = request.max.min(available);
        Ok(Some(Request { max, ..request }))
    }

    fn search(&mut self, place: AgTarget, request: Request) -> Result<SearchResult> {
        let mut search = Search::new(&mut *self.store, self.ag, request);
        match place {
            AgTarget::Any => search.by_size(),
            AgTarget::Near(target) => search.near(target),
            AgTarget::Exact(start) => search.exact(start),
        }
    }

    /// Brings the AGFL to the length that a change of the trees may need. Returns `false` if there are not enough
    /// blocks.
    fn fix_freelist(&mut self) -> Result<bool> {
        for _ in 0..AGFL_SHRINK_STEPS {
            let agf = self.store.agf(self.ag)?;
            if agf.flcount.get() <= self.limits.min_freelist(agf) {
                break;
            }
            let Some(block) = agfl::take(self.store, self.ag, AgflUse::Space)? else { break };
            let run = AgExtent { start: block, len: 1 };
            self.store.forget_owner(self.ag, run, Some(RmapOwner::SPACE_TREES))?;
            space::give(self.store, self.ag, run)?;
        }
        for _ in 0..AGFL_FILL_STEPS {
            let agf = self.store.agf(self.ag)?;
            let missing = self.limits.min_freelist(agf).saturating_sub(agf.flcount.get());
            if missing == 0 {
                return Ok(true);
            }
            match self.find_for_agfl(missing)? {
                SearchResult::Fit(fit) => {
                    space::take(self.store, self.ag, fit.whole, fit.part)?;
                    for block in fit.part.start.0..fit.part.start.0.saturating_add(fit.part.len) {
                        agfl::put(self.store, self.ag, AgBlock(block), AgflUse::Space)?;
                    }
                    self.store.record_owner(self.ag, fit.part, RmapOwner::SPACE_TREES)?;
                }
                SearchResult::Nothing | SearchResult::Busy => return Ok(false),
            }
        }
        Ok(false)
    }

    /// Blocks for the AGFL: blocks that are not busy, if some are found soon, otherwise busy ones.
    fn find_for_agfl(&mut self, missing: u32) -> Result<SearchResult> {
        let request = Request::new(1, missing, Purpose::Metadata);
        match Search::new(&mut *self.store, self.ag, request).by_size_soon()? {
            SearchResult::Busy => Search::new(&mut *self.store, self.ag, request).taking_busy().by_size(),
            other => Ok(other),
        }
    }

    /// Blocks to be freed must lie in the group, after its headers.
    fn check_run(&self, run: AgExtent) -> Result<()> {
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

/// How blocks for a purpose are accounted for.
fn spent(purpose: Purpose, blocks: i64) -> Spent {
    match purpose {
        Purpose::Data | Purpose::Metadata => Spent::Reserved(blocks),
        Purpose::ReservedTree => Spent::FromAgReservation(blocks),
    }
}
