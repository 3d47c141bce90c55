//! Work on the trees under an AGF that is done in transactions of its own: blocks are freed, the reverse map is told of
//! mappings, owners are counted.
//!
//! Who changes a map owes it (`Trans::owe`), and it is carried out behind that, as the headers of groups must not be waited
//! for with others held. The layers above owe further kinds: each carries out its own, and has those that it does not know
//! carried out by the layer below.

mod counts;
mod frees;
mod rmaps;

pub(crate) use counts::{free_staged_later, share_later, stage_later, unshare_later, unstage_later};
pub use frees::free_later;
pub(crate) use frees::give_up_later;
pub use rmaps::Remapped;
pub(crate) use rmaps::rmap_later;

use crate::error::{Error, Result};
use crate::trans::{Trans, Work};

/// Carries out a piece of work of this layer; gives what is left of it.
pub(crate) fn carry_out(trans: &mut Trans<'_>, work: Work) -> Result<Option<Work>> {
    match work {
        Work::Free(work) => frees::free_now(trans, work).map(|()| None),
        Work::Rmap(update) => rmaps::tell(trans, update).map(|()| None),
        Work::Count(update) => counts::count(trans, update).map(|rest| rest.map(Work::Count)),
        Work::Map(_) | Work::Exchange(_) | Work::Attr(_) => {
            debug_assert!(false, "layers above carry this out");
            Err(Error::ShutDown)
        }
    }
}
