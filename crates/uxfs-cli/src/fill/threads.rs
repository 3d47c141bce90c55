//! Worker threads that make files for the thread that walks the source.
//!
//! Invariants:
//! - all files of a directory are made by one thread, in order: so the directory's own metadata come after everything
//!   in it;
//! - they work only in directories that this work made: older files may have several names, and the order would matter;
//! - at most [`BATCHES`] batches wait for a thread;
//! - what was handed over is made, whatever happens to the walking thread; failures are returned to it. A failure that
//!   ends the work also ends the workers;
//! - without workers, the walking thread makes everything.

use super::{Filler, StepResult, Trouble};
use crate::exit::{Exit, Result};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{Builder, Scope, ScopedJoinHandle};

/// Files, and bytes of content, that are handed over at once.
const BATCH_FILES: usize = 32;
const BATCH_BYTES: usize = 256 << 10;
/// Batches that wait for a thread, at most.
const BATCHES: usize = 4;

/// Makes one file with the filler of its thread.
pub type Make<'a> = Box<dyn FnOnce(&mut Filler<'a>) -> StepResult<()> + Send + 'a>;

/// One of the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadIndex(usize);

/// A file that was handed over, and its thread.
#[derive(Clone, Copy, Debug)]
struct Given {
    thread: ThreadIndex,
    /// How many the thread had been given, including it.
    nth: u64,
}

/// A failure, and the name for its message.
pub struct Failed {
    pub place: String,
    pub trouble: Trouble,
}

struct Task<'a> {
    make: Make<'a>,
    place: String,
}

/// The workers, as the walking thread sees them.
pub struct Threads<'scope, 'a> {
    threads: Vec<Thread<'scope, 'a>>,
    failed: Receiver<Failed>,
    is_over: Arc<AtomicBool>,
}

struct Thread<'scope, 'a> {
    to: SyncSender<Vec<Task<'a>>>,
    /// The batch that is being filled.
    batch: Vec<Task<'a>>,
    batch_bytes: usize,
    given: u64,
    done: Arc<AtomicU64>,
    handle: ScopedJoinHandle<'scope, ()>,
}

impl Thread<'_, '_> {
    fn hand_over(&mut self) {
        self.batch_bytes = 0;
        if !self.batch.is_empty() {
            // If it is gone, it has panicked, which shows when it is joined.
            let _ = self.to.send(std::mem::take(&mut self.batch));
        }
    }

    fn waiting(&self) -> u64 {
        self.given - self.done.load(Ordering::Acquire)
    }
}

impl<'scope, 'a: 'scope> Threads<'scope, 'a> {
    /// Starts this many workers, with a filler each; none for one thread.
    pub fn new<'env>(scope: &'scope Scope<'scope, 'env>, filler: &Filler<'a>, threads: usize) -> Self {
        let (tell, failed) = channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let start = |nth| {
            let (to, from) = sync_channel(BATCHES);
            let done = Arc::new(AtomicU64::new(0));
            let worker = Worker {
                filler: filler.another(),
                tell: tell.clone(),
                is_over: is_over.clone(),
                done: done.clone(),
            };
            // The work is possible with fewer threads.
            let thread = Builder::new().name(format!("uxfs-make-{nth}"));
            let handle = thread.spawn_scoped(scope, move || worker.run(from)).ok()?;
            Some(Thread { to, batch: Vec::new(), batch_bytes: 0, given: 0, done, handle })
        };
        let threads = if threads > 1 { (0..threads).filter_map(start).collect() } else { Vec::new() };
        Self { threads, failed, is_over }
    }
}

impl<'a> Threads<'_, 'a> {
    /// Whether there are any.
    pub fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    /// The least busy thread, for a directory without one. There must be workers.
    pub fn least_busy(&self) -> ThreadIndex {
        let threads = self.threads.iter().enumerate();
        let least = threads.min_by_key(|(_, thread)| thread.waiting());
        ThreadIndex(least.expect("there are threads").0)
    }

    /// Hands a file of about this many bytes to a thread. A failure is reported with this name.
    pub fn give(&mut self, thread: ThreadIndex, bytes: usize, place: String, make: Make<'a>) {
        let thread = &mut self.threads[thread.0];
        thread.given += 1;
        thread.batch.push(Task { make, place });
        thread.batch_bytes += bytes;
        if thread.batch.len() >= BATCH_FILES || thread.batch_bytes >= BATCH_BYTES {
            thread.hand_over();
        }
    }

    fn is_made(&self, given: Given) -> bool {
        self.threads[given.thread.0].done.load(Ordering::Acquire) >= given.nth
    }

    /// The failures since the last call.
    pub fn failed(&self) -> impl Iterator<Item = Failed> {
        self.failed.try_iter()
    }

    /// Waits until a thread has made everything it was given; fails if the work has ended, which
    /// [`finish`](Self::finish) explains.
    pub fn wait(&mut self, thread: ThreadIndex) -> StepResult<()> {
        let (done, is_done) = channel::<()>();
        let mark = move |_: &mut Filler<'a>| {
            drop(done);
            Ok(())
        };
        self.give(thread, 0, String::new(), Box::new(mark));
        self.threads[thread.0].hand_over();
        // Nothing is ever sent: this ends when the mark is gone.
        let _ = is_done.recv();
        self.check()
    }

    /// Fails if something that a thread made has ended the work.
    pub fn check(&self) -> StepResult<()> {
        match self.is_over.load(Ordering::Acquire) {
            true => Err(Trouble::end(Exit::Io, "another thread has ended the work")),
            false => Ok(()),
        }
    }

    /// Waits until everything is made. A failure that ended the workers takes precedence over one `here`.
    pub fn finish(self, here: Result<()>, say: impl FnMut(&str)) -> Result<()> {
        tell(self.join(), say).and(here)
    }

    fn join(mut self) -> Vec<Failed> {
        for thread in &mut self.threads {
            thread.hand_over();
        }
        for Thread { to, handle, .. } in self.threads.drain(..) {
            drop(to);
            if let Err(panic) = handle.join() {
                std::panic::resume_unwind(panic);
            }
        }
        self.failed.try_iter().collect()
    }
}

impl Drop for Threads<'_, '_> {
    /// Without [`finish`](Self::finish), as in a panic, files that were not begun are not made.
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
    }
}

/// The state of a worker.
struct Worker<'a> {
    filler: Filler<'a>,
    tell: Sender<Failed>,
    is_over: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
}

impl<'a> Worker<'a> {
    fn run(mut self, from: Receiver<Vec<Task<'a>>>) {
        for task in from.iter().flatten() {
            if !self.is_over.load(Ordering::Acquire)
                && let Err(trouble) = (task.make)(&mut self.filler)
            {
                if trouble.ends() {
                    self.is_over.store(true, Ordering::Release);
                }
                // The walking thread may be gone.
                let _ = self.tell.send(Failed { place: task.place, trouble });
            }
            self.done.fetch_add(1, Ordering::Release);
        }
    }
}

/// Names that threads may not have made yet.
pub struct InFlight<K> {
    names: HashMap<K, Given>,
    /// How many names are kept before finished ones are removed.
    most: usize,
}

impl<K: Eq + Hash> Default for InFlight<K> {
    fn default() -> Self {
        Self { names: HashMap::new(), most: 1024 }
    }
}

impl<K: Eq + Hash> InFlight<K> {
    /// Records a name that is handed to a thread.
    pub fn insert(&mut self, name: K, threads: &Threads<'_, '_>, thread: ThreadIndex) {
        if self.names.len() >= self.most {
            self.names.retain(|_, given| !threads.is_made(*given));
            self.most = (2 * self.names.len()).max(1024);
        }
        let nth = threads.threads[thread.0].given + 1;
        self.names.insert(name, Given { thread, nth });
    }

    /// Waits for the thread that makes a name.
    pub fn wait_for(&mut self, name: &K, threads: &mut Threads<'_, '_>) -> StepResult<()> {
        let Some(given) = self.names.remove(name) else { return Ok(()) };
        if !threads.is_made(given) {
            threads.wait(given.thread)?;
        }
        threads.check()
    }
}

/// Reports failures: the first that ends the work is returned.
pub fn tell(failed: impl IntoIterator<Item = Failed>, mut say: impl FnMut(&str)) -> Result<()> {
    for Failed { place, trouble } in failed {
        if trouble.ends() {
            return Err(trouble.failure(place));
        }
        say(&format!("{place}: {trouble}"));
    }
    Ok(())
}
