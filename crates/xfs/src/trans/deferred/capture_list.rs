//! The work that recovery captured while it finished the intents of the log, and that is done after them.
//!
//! Each piece has its intents, and the log must have room for those until then. If the room runs out, they are
//! gathered: the intents of many pieces become a few with several extents each, which take a third of the space.
//!
//! Invariants:
//! - gathered work is logged last and done last, so that an interrupted recovery is repeated in the same order. This is
//!   safe because only frees and refcount changes of file blocks are gathered: nobody waits for a free, and blocks
//!   whose refcount changes have another owner until then;
//! - the done item of an old intent is in the same commit as the intent that replaces it.

use super::capture::DeferCapture;
use super::work::Work;
use crate::error::Result;
use crate::mount::Mount;
use std::sync::Arc;
use xfs_format::log::RefcountOp;

/// Minimum number of pieces that one transaction gathers, if there are as many.
const GATHERED: usize = 48;

/// The captured work of recovery.
#[derive(Debug, Default)]
pub(crate) struct CaptureList {
    /// In the order of capture.
    waiting: Vec<DeferCapture>,
    /// Pieces in `waiting` that can be gathered.
    loose: usize,
    /// Gathered work: it comes after `waiting`.
    gathered: Vec<DeferCapture>,
}

impl CaptureList {
    /// Adds captured work after earlier work.
    pub(crate) fn add(&mut self, work: Option<DeferCapture>) {
        self.loose += work.as_ref().filter(|work| work.is_of(can_wait)).map_or(0, DeferCapture::pieces);
        self.waiting.extend(work);
    }

    /// Whether gathering is worth a transaction.
    pub(crate) fn is_much(&self) -> bool {
        self.loose >= GATHERED
    }

    /// Shrinks its intents to as little of the log as possible. `owed`: log bytes to log again the intents that hold no
    /// reservation.
    pub(crate) fn gather(&mut self, mount: &Arc<Mount>, owed: u64) -> Result<()> {
        let (loose, waiting): (Vec<_>, _) =
            std::mem::take(&mut self.waiting).into_iter().partition(|work| work.is_of(can_wait));
        (self.waiting, self.loose) = (waiting, 0);
        if loose.is_empty() {
            return Ok(());
        }
        let mut part: Vec<DeferCapture> =
            self.gathered.pop_if(|last| last.pieces() < GATHERED).into_iter().collect();
        for work in loose {
            part.push(work);
            if part.iter().map(DeferCapture::pieces).sum::<usize>() >= GATHERED {
                self.gathered.extend(DeferCapture::gather(mount, std::mem::take(&mut part), owed)?);
            }
        }
        if !part.is_empty() {
            self.gathered.extend(DeferCapture::gather(mount, part, owed)?);
        }
        Ok(())
    }

    /// Does all of it.
    pub(crate) fn finish(self, mount: &Arc<Mount>) -> Result<()> {
        for work in self.waiting.into_iter().chain(self.gathered) {
            let mut left = Some(work);
            while let Some(work) = left {
                left = work.step(mount)?;
            }
        }
        Ok(())
    }
}

/// Whether a piece of work may be done after any other.
fn can_wait(work: &Work) -> bool {
    match work {
        Work::Free(_) => true,
        Work::Count(update) => matches!(update.op, RefcountOp::Increase | RefcountOp::Decrease),
        Work::Rmap(_) | Work::Map(_) | Work::Exchange(_) | Work::Attr(_) => false,
    }
}
