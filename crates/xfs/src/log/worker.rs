//! Requests to the writer, and progress: where forces wait.
//!
//! Invariants: `done` only grows, and is N only when all checkpoints up to N are permanently in the log and their items
//! unpinned. A shutdown wakes everybody who waits here. Otherwise, a thread that waits for a checkpoint is woken only
//! by the end of that checkpoint, and other waiters by every change. They are woken with no lock held that they need.

use super::cil::Cil;
use super::sync::{AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, lock, lock_by, wait};
use lockstat::{LockClass, Users};

static LOG_WORKER: LockClass = LockClass::new("log orders");

/// What the writer does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkerTask {
    /// Close the open checkpoint and write it.
    Push,
    /// Write the mark of a clean unmount.
    Unmount,
    /// Write nothing any more.
    Stop,
}

/// Where threads wait for one checkpoint.
#[derive(Debug, Default)]
struct Waiters {
    waiting: Mutex<()>,
    over: Condvar,
}

impl Waiters {
    /// Wakes the waiters after their condition has changed.
    fn wake(&self) {
        // A thread that checked the condition before is waiting by now.
        drop(lock(&self.waiting));
        self.over.notify_all();
    }
}

/// Mostly more than there are checkpoints that somebody waits for at once.
const WAITER_LISTS: usize = 4;

#[derive(Debug, Default)]
struct Requests {
    /// Checkpoints up to this one are requested.
    push: u64,
    unmount: bool,
    unmounted: bool,
}

impl Requests {
    fn is_push_due(&self, cil: &Cil) -> bool {
        self.push >= cil.seq() && cil.is_open()
    }
}

#[derive(Debug, Default)]
pub(super) struct LogWorker {
    requests: Mutex<Requests>,
    users: Users,
    /// For the writer.
    work_queued: Condvar,
    /// For threads that wait for a checkpoint, by its remainder.
    waiters: [Waiters; WAITER_LISTS],
    /// For all other waiters.
    changed: Condvar,
    /// Nothing is done any more.
    is_dead: AtomicBool,
    /// Same as `push`. It saves the lock if everything was requested already.
    pushed: AtomicU64,
    done: AtomicU64,
}

impl LogWorker {
    /// Requests that checkpoint `seq` and those before it are written. It must have items: if it were requested
    /// earlier, nobody would come back to it.
    pub(super) fn push(&self, seq: u64) {
        if self.pushed.load(Ordering::SeqCst) >= seq {
            return;
        }
        let mut requests = lock_by(&self.requests, &LOG_WORKER, &self.users);
        requests.push = requests.push.max(seq);
        self.pushed.fetch_max(seq, Ordering::SeqCst);
        self.work_queued.notify_one();
    }

    /// Counts checkpoint `seq` as requested, for a thread that is about to close it itself.
    pub(super) fn pushes_here(&self, seq: u64) {
        self.pushed.fetch_max(seq, Ordering::SeqCst);
    }

    /// Requests the unmount record and waits for it. Returns `false` if it will never be written.
    pub(super) fn unmount(&self) -> bool {
        let mut requests = self.lock();
        requests.unmount = true;
        self.work_queued.notify_one();
        while !requests.unmounted {
            if self.is_dead() {
                return false;
            }
            requests = wait(&self.changed, requests);
        }
        true
    }

    /// Waits for the next task.
    pub(super) fn next(&self, cil: &Cil) -> WorkerTask {
        let mut requests = self.lock();
        loop {
            if self.is_dead() {
                return WorkerTask::Stop;
            }
            if requests.is_push_due(cil) {
                return WorkerTask::Push;
            }
            if std::mem::take(&mut requests.unmount) {
                return WorkerTask::Unmount;
            }
            requests = wait(&self.work_queued, requests);
        }
    }

    /// Whether a requested push is still to be done.
    pub(super) fn is_push_due(&self, cil: &Cil) -> bool {
        self.lock().is_push_due(cil)
    }

    /// The unmount record is in the log.
    pub(super) fn unmounted(&self) {
        self.lock().unmounted = true;
        self.changed.notify_all();
    }

    /// The next checkpoint was opened.
    pub(super) fn switched(&self) {
        self.tell_of_change();
    }

    /// Checkpoint `seq` and all before it are over.
    pub(super) fn done(&self, seq: u64) {
        let before = self.done.fetch_max(seq, Ordering::SeqCst);
        let over = (before + 1..=seq).rev().take(WAITER_LISTS);
        over.for_each(|seq| self.waiters_of(seq).wake());
        self.tell_of_change();
    }

    /// Wakes the waiters for an earlier change.
    fn tell_of_change(&self) {
        // A thread that checked the condition before is waiting by now. Notify without the lock, so that nobody wakes
        // only to wait for it.
        drop(self.lock());
        self.changed.notify_all();
    }

    fn waiters_of(&self, seq: u64) -> &Waiters {
        &self.waiters[seq as usize % WAITER_LISTS]
    }

    /// Whether checkpoint `seq` is over.
    pub(super) fn is_done(&self, seq: u64) -> bool {
        self.done.load(Ordering::SeqCst) >= seq
    }

    /// Waits until all requested checkpoints are over. Returns `false` if they never will be.
    pub(super) fn wait_pushed(&self) -> bool {
        self.wait_done(self.pushed.load(Ordering::SeqCst))
    }

    /// Waits until checkpoint `seq` is over. Returns `false` if it never will be.
    pub(super) fn wait_done(&self, seq: u64) -> bool {
        let waiters = self.waiters_of(seq);
        let mut waiting = lock(&waiters.waiting);
        while !self.is_done(seq) {
            if self.is_dead() {
                return false;
            }
            waiting = wait(&waiters.over, waiting);
        }
        true
    }

    /// Waits until `condition` holds. Another thread makes it true before it changes something here. Returns `false` if
    /// it never will be.
    pub(super) fn wait_until(&self, mut condition: impl FnMut() -> bool) -> bool {
        let mut requests = self.lock();
        while !condition() {
            if self.is_dead() {
                return false;
            }
            requests = wait(&self.changed, requests);
        }
        true
    }

    /// Wakes everybody.
    pub(super) fn kill(&self) {
        self.is_dead.store(true, Ordering::SeqCst);
        self.tell_of_change();
        self.work_queued.notify_all();
        self.waiters.iter().for_each(Waiters::wake);
    }

    fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::SeqCst)
    }

    fn lock(&self) -> MutexGuard<'_, Requests> {
        lock(&self.requests)
    }
}
