//! What the devices of a run have: campaigns go on such with and without durable writes, and with and without a write cache,
//! for each of which the journal goes about its flushes in another way.

use blockdev::Means;
use fastrand::Rng;

/// The means of a seed.
pub(crate) fn of(seed: u64) -> Means {
    Means::ALL[Rng::with_seed(!seed).usize(..Means::ALL.len())]
}
