//! All that arose while recovery kept the promises of the log, and is to be done behind them.
//!
//! Each has its intents, for which the log must have room until then. Where it runs out, they are gathered: those of many
//! become a few that promise several pieces each, which take a third of that.
//!
//! Invariants:
//! - what is gathered is in the log behind all else, and is done behind all else, so that whoever recovers this log next
//!   does it in the same order. It may be: to free blocks, and to change the counts of owners that files have, is all that
//!   is gathered. Nobody waits for a freeing, and counts are of blocks that have another owner until then;
//! - the end of an intent is in the same commit as the promise that says the same.

use super::captured::Captured;
use super::work::Work;
use crate::error::Result;
use crate::mount::Mount;
use std::sync::Arc;
use xfs_format::log::RefcountOp;

/// Pieces that one transaction gathers, at least, if there are as many.
const GATHERED: usize = 48;

/// What recovery owes anew.
#[derive(Debug, Default)]
pub(crate) struct Arisen {
    /// As it arose.
    waiting: Vec<Captured>,
    /// Pieces of that which can be gathered.
    loose: usize,
    /// Behind that.
    gathered: Vec<Captured>,
}

impl Arisen {
    /// Has more to be done, behind what arose before.
    pub(crate) fn add(&mut self, work: Option<Captured>) {
        self.loose += work.as_ref().filter(|work| work.is_of(can_wait)).map_or(0, Captured::pieces);
        self.waiting.extend(work);
    }

    /// Whether gathering it is worth a transaction.
    pub(crate) fn is_much(&self) -> bool {
        self.loose >= GATHERED
    }

    /// Has it take as little of the log as it can. `owed`: bytes that it takes to log intents again which hold nothing.
    pub(crate) fn gather(&mut self, volume: &Arc<Mount>, owed: u64) -> Result<()> {
        let (loose, waiting): (Vec<_>, _) =
            std::mem::take(&mut self.waiting).into_iter().partition(|work| work.is_of(can_wait));
        (self.waiting, self.loose) = (waiting, 0);
        if loose.is_empty() {
            return Ok(());
        }
        let mut part: Vec<Captured> =
            self.gathered.pop_if(|last| last.pieces() < GATHERED).into_iter().collect();
        for work in loose {
            part.push(work);
            if part.iter().map(Captured::pieces).sum::<usize>() >= GATHERED {
                self.gathered.extend(Captured::gather(volume, std::mem::take(&mut part), owed)?);
            }
        }
        if !part.is_empty() {
            self.gathered.extend(Captured::gather(volume, part, owed)?);
        }
        Ok(())
    }

    /// Does all of it.
    pub(crate) fn finish(self, volume: &Arc<Mount>) -> Result<()> {
        for work in self.waiting.into_iter().chain(self.gathered) {
            let mut left = Some(work);
            while let Some(work) = left {
                left = work.step(volume)?;
            }
        }
        Ok(())
    }
}

/// Whether a piece of work may be done behind any other.
fn can_wait(work: &Work) -> bool {
    match work {
        Work::Free(_) => true,
        Work::Count(update) => matches!(update.op, RefcountOp::Increase | RefcountOp::Decrease),
        Work::Rmap(_) | Work::Map(_) | Work::Exchange(_) | Work::Attr(_) => false,
    }
}
