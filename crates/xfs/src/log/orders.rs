//! What the writer is asked to do, and what has been done: where forces wait.
//!
//! Invariants: `done` only grows, and says N only when all checkpoints up to N are in the log for good and their
//! items unpinned; whoever waits here is woken by a shutdown and by every change, but who waits for a checkpoint by that one's
//! end alone, and with no lock held that they need.

use super::cil::Cil;
use super::sync::{AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, lock, lock_by, wait};
use lockstat::{LockClass, Users};

static ORDERS: LockClass = LockClass::new("log orders");

/// What the writer does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Close the open checkpoint and write it.
    Push,
    /// Write the mark of a clean unmount.
    Unmount,
    /// Write nothing any more.
    Stop,
}

/// Where those wait who wait for one checkpoint.
#[derive(Debug, Default)]
struct Lane {
    waiting: Mutex<()>,
    over: Condvar,
}

impl Lane {
    /// Wakes those who wait, behind what they wait for.
    fn wake(&self) {
        // Who has looked before waits by now.
        drop(lock(&self.waiting));
        self.over.notify_all();
    }
}

/// More than there are checkpoints that somebody waits for at once, mostly.
const LANES: usize = 4;

#[derive(Debug, Default)]
struct Asked {
    /// Checkpoints up to this one are to be written.
    push: u64,
    unmount: bool,
    unmounted: bool,
}

impl Asked {
    fn is_push_due(&self, cil: &Cil) -> bool {
        self.push >= cil.seq() && cil.is_open()
    }
}

#[derive(Debug, Default)]
pub(super) struct Orders {
    asked: Mutex<Asked>,
    users: Users,
    /// For the writer.
    given: Condvar,
    /// For who waits for a checkpoint: for those with the same remainder.
    lanes: [Lane; LANES],
    /// For everybody else.
    changed: Condvar,
    /// Nothing is done any more.
    is_dead: AtomicBool,
    /// As `push`: spares the lock where everything was asked for already.
    pushed: AtomicU64,
    done: AtomicU64,
}

impl Orders {
    /// Asks for checkpoint `seq` and those before it to be written. There is something in it: asked before there
    /// was, nobody would come back to it.
    pub(super) fn push(&self, seq: u64) {
        if self.pushed.load(Ordering::SeqCst) >= seq {
            return;
        }
        let mut asked = lock_by(&self.asked, &ORDERS, &self.users);
        asked.push = asked.push.max(seq);
        self.pushed.fetch_max(seq, Ordering::SeqCst);
        self.given.notify_one();
    }

    /// As if checkpoint `seq` had been asked for, by who is about to close it.
    pub(super) fn pushes_here(&self, seq: u64) {
        self.pushed.fetch_max(seq, Ordering::SeqCst);
    }

    /// Asks for the mark of an unmount, and waits for it. `false`: it never will be.
    pub(super) fn unmount(&self) -> bool {
        let mut asked = self.lock();
        asked.unmount = true;
        self.given.notify_one();
        while !asked.unmounted {
            if self.is_dead() {
                return false;
            }
            asked = wait(&self.changed, asked);
        }
        true
    }

    /// Waits for the next order.
    pub(super) fn next(&self, cil: &Cil) -> Order {
        let mut asked = self.lock();
        loop {
            if self.is_dead() {
                return Order::Stop;
            }
            if asked.is_push_due(cil) {
                return Order::Push;
            }
            if std::mem::take(&mut asked.unmount) {
                return Order::Unmount;
            }
            asked = wait(&self.given, asked);
        }
    }

    /// Whether a push that was asked for is still to be done.
    pub(super) fn is_push_due(&self, cil: &Cil) -> bool {
        self.lock().is_push_due(cil)
    }

    /// The mark of an unmount is in the log.
    pub(super) fn unmounted(&self) {
        self.lock().unmounted = true;
        self.changed.notify_all();
    }

    /// The next checkpoint was opened.
    pub(super) fn switched(&self) {
        self.tell_of_change();
    }

    /// Checkpoint `seq` is over, and all before it are.
    pub(super) fn done(&self, seq: u64) {
        let before = self.done.fetch_max(seq, Ordering::SeqCst);
        let over = (before + 1..=seq).rev().take(LANES);
        over.for_each(|seq| self.lane(seq).wake());
        self.tell_of_change();
    }

    /// Wakes those who wait for what was changed before.
    fn tell_of_change(&self) {
        // Who has looked before waits by now; and nobody is woken to wait for this lock.
        drop(self.lock());
        self.changed.notify_all();
    }

    fn lane(&self, seq: u64) -> &Lane {
        &self.lanes[seq as usize % LANES]
    }

    /// Whether checkpoint `seq` is over.
    pub(super) fn is_done(&self, seq: u64) -> bool {
        self.done.load(Ordering::SeqCst) >= seq
    }

    /// Waits until all checkpoints are over that were asked for. `false`: they never will be.
    pub(super) fn wait_pushed(&self) -> bool {
        self.wait_done(self.pushed.load(Ordering::SeqCst))
    }

    /// Waits until checkpoint `seq` is over. `false`: it never will be.
    pub(super) fn wait_done(&self, seq: u64) -> bool {
        let lane = self.lane(seq);
        let mut waiting = lock(&lane.waiting);
        while !self.is_done(seq) {
            if self.is_dead() {
                return false;
            }
            waiting = wait(&lane.over, waiting);
        }
        true
    }

    /// Waits until `true`, which another thread makes so before it changes something here. `false`: it never will
    /// be.
    pub(super) fn wait_until(&self, mut condition: impl FnMut() -> bool) -> bool {
        let mut asked = self.lock();
        while !condition() {
            if self.is_dead() {
                return false;
            }
            asked = wait(&self.changed, asked);
        }
        true
    }

    /// Wakes everybody.
    pub(super) fn kill(&self) {
        self.is_dead.store(true, Ordering::SeqCst);
        self.tell_of_change();
        self.given.notify_all();
        self.lanes.iter().for_each(Lane::wake);
    }

    fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::SeqCst)
    }

    fn lock(&self) -> MutexGuard<'_, Asked> {
        lock(&self.asked)
    }
}
