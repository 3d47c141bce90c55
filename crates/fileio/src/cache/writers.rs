//! Threads that write dirty pages back, so that writers need not.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::pool::PageCache;

/// Threads that write back what is in a cache's queue, as long as this lives. Dropping it
/// [abandons](PageCache::abandon) the rest.
#[derive(Debug)]
pub struct Writers {
    cache: Arc<PageCache>,
    threads: Vec<JoinHandle<()>>,
}

impl Writers {
    /// Starts this many threads.
    ///
    /// # Errors
    /// The host cannot start a thread.
    pub fn start(cache: &Arc<PageCache>, count: usize) -> std::io::Result<Self> {
        let mut writers = Self { cache: Arc::clone(cache), threads: Vec::new() };
        for index in 0..count {
            let cache = Arc::clone(cache);
            let work = move || {
                while cache.wait_for_work() {
                    while cache.write_one_back(false) {}
                    cache.keep_bound();
                }
            };
            let thread = thread::Builder::new().name(format!("uxfs-write-{index}")).spawn(work)?;
            writers.threads.push(thread);
        }
        Ok(writers)
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.cache.abandon();
        for thread in self.threads.drain(..) {
            // One that panicked wrote nothing back: its pages are dirty, and are abandoned with the rest.
            let _ = thread.join();
        }
    }
}
