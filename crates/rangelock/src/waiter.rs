//! A request that waits, and how it is told that its turn has come.
//!
//! Invariants:
//! - a waiter is granted once, when the last thing that it waits for is counted off, and only after its claims
//!   have been entered for it (a hand-off: nobody can come in between);
//! - wakers are cloned, called and dropped with no lock held, as that runs foreign code. Whoever may be the last to
//!   let a waiter go with a lock held finds no waker in it: the request takes its waker back when it ends;
//! - a grant is seen by whoever looks after it: a task stores its waker *before* it looks, the granter
//!   sets the grant *before* it takes the waker.

use std::sync::Arc;
use std::task::Waker;

use crate::claim::Claim;
use crate::sync::{AtomicU32, Mutex, Ordering, SPINS, Thread, current, park};

#[derive(Debug)]
pub(crate) struct Waiter {
    claims: Vec<Claim>,
    /// Its number in the order of arrival at its lock.
    arrival: u64,
    /// In how many lines it stands; granted when there is none left.
    lines: AtomicU32,
    wake: Wake,
}

/// Whom to wake.
#[derive(Debug)]
pub(crate) enum Wake {
    Thread(Thread),
    Task(Mutex<Option<Waker>>),
}

impl Wake {
    pub(crate) fn this_thread() -> Self {
        Wake::Thread(current())
    }

    pub(crate) fn task(waker: &Waker) -> Self {
        Self::of(waker.clone())
    }

    pub(crate) fn of(waker: Waker) -> Self {
        Wake::Task(Mutex::new(Some(waker)))
    }
}

impl Waiter {
    /// A waiter that stands in one line.
    pub(crate) fn new(claims: Vec<Claim>, arrival: u64, wake: Wake) -> Arc<Self> {
        Arc::new(Waiter { claims, arrival, lines: AtomicU32::new(1), wake })
    }

    pub(crate) fn claims(&self) -> &[Claim] {
        &self.claims
    }

    pub(crate) fn arrival(&self) -> u64 {
        self.arrival
    }

    pub(crate) fn is_granted(&self) -> bool {
        self.lines.load(Ordering::Acquire) == 0
    }

    /// It stands in one more line, whose lock the caller has.
    pub(crate) fn joined_line(&self) {
        // Relaxed: whoever takes it out of that line has to take the line's lock after us.
        self.lines.fetch_add(1, Ordering::Relaxed);
    }

    /// It stands in one line less. If that was the last, it is granted, and [`wake`](Self::wake) has to follow,
    /// without any lock.
    #[must_use]
    pub(crate) fn left_line(&self) -> bool {
        // Acquire and release: the grant comes after all that any of the lines waited for.
        self.lines.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// It stands in so many lines, all of whose locks the caller has.
    pub(crate) fn stands_in(&self, lines: u32) {
        self.lines.store(lines, Ordering::Release);
    }

    pub(crate) fn wake(&self) {
        match &self.wake {
            Wake::Thread(thread) => thread.unpark(),
            Wake::Task(_) => {
                if let Some(waker) = self.take_waker() {
                    waker.wake();
                }
            }
        }
    }

    /// Takes back the waker, if there is one still.
    pub(crate) fn take_waker(&self) -> Option<Waker> {
        match &self.wake {
            Wake::Thread(_) => None,
            Wake::Task(slot) => slot.lock().expect("no panic under this lock").take(),
        }
    }

    /// Leaves a new waker and says whether the grant has come already.
    pub(crate) fn watch(&self, waker: &Waker) -> bool {
        if self.is_granted() {
            return true;
        }
        if let Wake::Task(slot) = &self.wake {
            let fresh = waker.clone();
            let stale = slot.lock().expect("no panic under this lock").replace(fresh);
            drop(stale);
        }
        self.is_granted()
    }

    /// Blocks the calling thread, who made this waiter, until the grant.
    pub(crate) fn wait(&self) {
        for _ in 0..SPINS {
            if self.is_granted() {
                return;
            }
            std::hint::spin_loop();
        }
        while !self.is_granted() {
            park();
        }
    }

    pub(crate) fn conflicts(&self, claim: &Claim) -> bool {
        self.claims.iter().any(|mine| mine.conflicts(claim))
    }
}

/// Wakes those who were granted.
#[inline]
pub(crate) fn wake_all(granted: Vec<Arc<Waiter>>) {
    for waiter in granted {
        waiter.wake();
    }
}
