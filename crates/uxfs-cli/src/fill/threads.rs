//! Threads that make files beside the one that says which.
//!
//! Invariants:
//! - what threads make in one directory is made by one of them, in the order in which it was said: so what is said of the
//!   directory itself comes behind all that is in it;
//! - they make things in directories that this work made, and nowhere else: what was in a directory before may be reached by
//!   several names, and order would matter;
//! - no more waits for a thread than [`BATCHES`] hold;
//! - what was said is made, whatever comes to whoever said it; what fails is told to them. If it ends the work, nothing is
//!   begun behind it;
//! - without threads, whoever says it makes it.

use super::{Filler, Outcome, Trouble};
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

/// Makes one file with the filler of whichever thread does it.
pub type Make<'a> = Box<dyn FnOnce(&mut Filler<'a>) -> Outcome<()> + Send + 'a>;

/// One of the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadIndex(usize);

/// Something that was said, and the thread that makes it.
#[derive(Clone, Copy, Debug)]
struct Given {
    thread: ThreadIndex,
    /// How many that thread had been given with it.
    nth: u64,
}

/// What failed, and the name by which it is told.
pub struct Failed {
    pub place: String,
    pub trouble: Trouble,
}

struct Task<'a> {
    make: Make<'a>,
    place: String,
}

/// The threads, as whoever says what is made has them.
pub struct Threads<'scope, 'a> {
    threads: Vec<Thread<'scope, 'a>>,
    failed: Receiver<Failed>,
    is_over: Arc<AtomicBool>,
}

struct Thread<'scope, 'a> {
    to: SyncSender<Vec<Task<'a>>>,
    /// What is handed over next.
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
            // One that is gone panicked, which is told when it is waited for.
            let _ = self.to.send(std::mem::take(&mut self.batch));
        }
    }

    fn waiting(&self) -> u64 {
        self.given - self.done.load(Ordering::Acquire)
    }
}

impl<'scope, 'a: 'scope> Threads<'scope, 'a> {
    /// So many threads, with a filler each; none if that is one.
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
            // Those that cannot be had are not missed.
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

    /// The thread that has least to do, for a directory that has none yet. There has to be one.
    pub fn least_busy(&self) -> ThreadIndex {
        let threads = self.threads.iter().enumerate();
        let least = threads.min_by_key(|(_, thread)| thread.waiting());
        ThreadIndex(least.expect("there are threads").0)
    }

    /// Has a thread make something, of about so many bytes of content. If it fails, that is told by this name.
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

    /// What failed since this was asked last.
    pub fn failed(&self) -> impl Iterator<Item = Failed> {
        self.failed.try_iter()
    }

    /// Waits until a thread has made all that it was given; fails if the work is over, which [`finish`](Self::finish) explains.
    pub fn wait(&mut self, thread: ThreadIndex) -> Outcome<()> {
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
    pub fn check(&self) -> Outcome<()> {
        match self.is_over.load(Ordering::Acquire) {
            true => Err(Trouble::end(Exit::Io, "another thread has ended the work")),
            false => Ok(()),
        }
    }

    /// Waits until all is made that was given. What ended the work there came before what ended it `here`.
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
    /// Where nobody [`finish`](Self::finish)es, as in a panic, what was given and not begun is not made.
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
    }
}

/// What a thread has.
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
                // Nobody may want to know any more.
                let _ = self.tell.send(Failed { place: task.place, trouble });
            }
            self.done.fetch_add(1, Ordering::Release);
        }
    }
}

/// Names that threads may not have made yet.
pub struct InFlight<K> {
    names: HashMap<K, Given>,
    /// So many are kept before those are taken out that are made.
    most: usize,
}

impl<K: Eq + Hash> Default for InFlight<K> {
    fn default() -> Self {
        Self { names: HashMap::new(), most: 1024 }
    }
}

impl<K: Eq + Hash> InFlight<K> {
    /// A name is about to be given to a thread.
    pub fn insert(&mut self, name: K, threads: &Threads<'_, '_>, thread: ThreadIndex) {
        if self.names.len() >= self.most {
            self.names.retain(|_, given| !threads.is_made(*given));
            self.most = (2 * self.names.len()).max(1024);
        }
        let nth = threads.threads[thread.0].given + 1;
        self.names.insert(name, Given { thread, nth });
    }

    /// Waits for whoever makes a name.
    pub fn wait_for(&mut self, name: &K, threads: &mut Threads<'_, '_>) -> Outcome<()> {
        let Some(given) = self.names.remove(name) else { return Ok(()) };
        if !threads.is_made(given) {
            threads.wait(given.thread)?;
        }
        threads.check()
    }
}

/// Tells what failed: the first that ends the work ends it.
pub fn tell(failed: impl IntoIterator<Item = Failed>, mut say: impl FnMut(&str)) -> Result<()> {
    for Failed { place, trouble } in failed {
        if trouble.ends() {
            return Err(trouble.failure(place));
        }
        say(&format!("{place}: {trouble}"));
    }
    Ok(())
}
