//! Deferred work on the trees under an AGF, in transactions of its own: frees, rmap updates, and refcount updates.
//!
//! A map change defers it (`Trans::defer`), because group headers must not be waited for while others are held. The
//! layers above defer other kinds: each finishes its own kinds and passes others to the layer below.

mod counts;
mod frees;
mod rmaps;

pub(crate) use counts::{defer_free_staged, defer_share, defer_stage, defer_unshare, defer_unstage};
pub use frees::defer_free;
pub(crate) use frees::defer_give_up;
pub use rmaps::RmapUpdateKind;
pub(crate) use rmaps::defer_rmap;

use crate::error::{Error, Result};
use crate::trans::{Trans, Work};

/// Finishes an item of this layer. Returns the remaining work.
pub(crate) fn finish_item(trans: &mut Trans<'_>, work: Work) -> Result<Option<Work>> {
    match work {
        Work::Free(work) => frees::finish_free(trans, work).map(|()| None),
        Work::Rmap(update) => rmaps::finish_rmap(trans, update).map(|()| None),
        Work::Count(update) => counts::finish_refcount(trans, update).map(|rest| rest.map(Work::Count)),
        Work::Map(_) | Work::Exchange(_) | Work::Attr(_) => {
            debug_assert!(false, "layers above carry this out");
            Err(Error::Internal("a layer was given work of another"))
        }
    }
}
