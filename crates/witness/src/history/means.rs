//! What a device says that it can: campaigns go on devices with durable writes, without them, and without a write cache, for
//! each of which the journal goes about its flushes in another way.

use blockdev::{BlockDevice, Layer, Recorder};
use fastrand::Rng;
use std::sync::Arc;

#[derive(Clone, Copy)]
enum Means {
    /// Durable writes, and a cache.
    Fua,
    /// A cache alone.
    Cache,
    /// Durable writes, and nothing that waits for a flush.
    NoCache,
}

fn of(seed: u64) -> Means {
    [Means::Fua, Means::Cache, Means::NoCache][Rng::with_seed(!seed).usize(..3)]
}

/// A recorded device with the means of a seed.
pub(crate) fn recorded(device: Arc<dyn BlockDevice>, seed: u64) -> Recorder {
    let recorder = Recorder::new(device);
    match of(seed) {
        Means::Fua => recorder,
        Means::Cache => recorder.without_fua(),
        Means::NoCache => recorder.without_write_cache(),
    }
}

/// A device with the means of a seed, in front of another.
pub(crate) fn limited(device: Arc<dyn BlockDevice>, seed: u64) -> Arc<dyn BlockDevice> {
    match of(seed) {
        Means::Fua => device,
        Means::Cache => Arc::new(Limited { device, has_fua: false, has_cache: true }),
        Means::NoCache => Arc::new(Limited { device, has_fua: true, has_cache: false }),
    }
}

#[derive(Debug)]
struct Limited {
    device: Arc<dyn BlockDevice>,
    has_fua: bool,
    has_cache: bool,
}

impl Layer for Limited {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    fn pass_fua(&self) -> bool {
        self.has_fua && self.device.has_fua()
    }

    fn pass_write_cache(&self) -> bool {
        self.has_cache
    }
}
