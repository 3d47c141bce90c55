//! Those who wait, in the order in which they came.
//!
//! Invariants:
//! - a waiter is granted once, by whoever holds the lock of the queue that it stands in, and only after
//!   its claims have been entered for it (a hand-off: nobody can come in between);
//! - waking happens after that lock is free, as it runs foreign code;
//! - a grant is seen by whoever looks after it: a task stores its waker *before* it looks, the granter
//!   sets the grant *before* it takes the waker.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use crate::claim::Claim;
use crate::sync::{AtomicBool, Mutex, Ordering, SPINS, Thread, current, park};

#[derive(Debug)]
pub(crate) struct Waiter {
    claims: Vec<Claim>,
    granted: AtomicBool,
    wake: Wake,
}

#[derive(Debug)]
enum Wake {
    Thread(Thread),
    Task(Mutex<Option<Waker>>),
}

impl Waiter {
    /// A waiter that is the calling thread.
    pub(crate) fn thread(claims: Vec<Claim>) -> Arc<Self> {
        Self::new(claims, Wake::Thread(current()))
    }

    /// A waiter that is told by a waker.
    pub(crate) fn task(claims: Vec<Claim>, waker: Waker) -> Arc<Self> {
        Self::new(claims, Wake::Task(Mutex::new(Some(waker))))
    }

    fn new(claims: Vec<Claim>, wake: Wake) -> Arc<Self> {
        Arc::new(Waiter { claims, granted: AtomicBool::new(false), wake })
    }

    pub(crate) fn claims(&self) -> &[Claim] {
        &self.claims
    }

    pub(crate) fn is_granted(&self) -> bool {
        self.granted.load(Ordering::Acquire)
    }

    /// Marks the waiter as granted; [`wake`](Self::wake) has to follow, without the queue's lock.
    pub(crate) fn grant(&self) {
        self.granted.store(true, Ordering::Release);
    }

    pub(crate) fn wake(&self) {
        match &self.wake {
            Wake::Thread(thread) => thread.unpark(),
            Wake::Task(slot) => {
                let waker = slot.lock().expect("no panic under this lock").take();
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
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

    fn conflicts(&self, claim: &Claim) -> bool {
        self.claims.iter().any(|mine| mine.conflicts(claim))
    }
}

/// Waiters in the order of their arrival.
#[derive(Debug, Default)]
pub(crate) struct WaitQueue(VecDeque<Arc<Waiter>>);

impl WaitQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn conflicts(&self, claim: &Claim) -> bool {
        self.0.iter().any(|waiter| waiter.conflicts(claim))
    }

    pub(crate) fn push(&mut self, waiter: Arc<Waiter>) {
        self.0.push_back(waiter);
    }

    /// Takes out a waiter that gave up; false if it had been granted before.
    pub(crate) fn remove(&mut self, waiter: &Arc<Waiter>) -> bool {
        let place = self.0.iter().position(|queued| Arc::ptr_eq(queued, waiter));
        place.and_then(|place| self.0.remove(place)).is_some()
    }

    /// Takes out the first waiter at or after `from` that `fits` and conflicts with none before it.
    pub(crate) fn next_grantable(
        &mut self,
        from: &mut usize,
        mut fits: impl FnMut(&[Claim]) -> bool,
    ) -> Option<Arc<Waiter>> {
        while let Some(waiter) = self.0.get(*from) {
            let blocked = !fits(&waiter.claims)
                || self
                    .0
                    .iter()
                    .take(*from)
                    .any(|earlier| waiter.claims.iter().any(|claim| earlier.conflicts(claim)));
            if !blocked {
                return self.0.remove(*from);
            }
            *from += 1;
        }
        None
    }
}

/// Wakes those who were granted.
pub(crate) fn wake_all(granted: Vec<Arc<Waiter>>) {
    for waiter in granted {
        waiter.wake();
    }
}
