//! The gate that transactions pass: how many are open, and whether new ones may begin.
//!
//! Each thread counts in a slot of its own, so that beginning and ending a transaction write no line that others
//! write. Who closes the gate adds all slots up. Invariants: a transaction leaves through the slot that it came
//! in by; once the gate is closed, a slot that was seen at zero stays there but for those that look in and turn
//! back, each of which wakes who closed it, and for who closed it: that thread alone goes in and out as it likes. A gate that was
//! killed while it was closed stays closed.

use super::sync::{AtomicU32, Condvar, Mutex, Ordering, Padded, ThreadId, lock, thread, wait};
use super::thread_slot;
use fileio::lockstat::{LockClass, Mode};

/// No lock: an addition in the thread's own slot.
static GATE: LockClass = LockClass::new("transaction gate");

const SLOTS: usize = if cfg!(shuttle) { 2 } else { 64 };

#[derive(Debug)]
pub(super) struct Gate {
    open: Box<[Padded<AtomicU32>]>,
    /// Whether somebody holds it closed.
    closed: AtomicU32,
    dead: AtomicU32,
    lock: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Who closed the gate.
    holder: Option<ThreadId>,
    /// How many wait for it to be opened.
    outside: u32,
}

impl Gate {
    pub(super) fn new() -> Self {
        Self {
            open: std::iter::repeat_with(Padded::default).take(SLOTS).collect(),
            closed: AtomicU32::new(0),
            dead: AtomicU32::new(0),
            lock: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Waits until the gate is open and goes in; gives the slot to [`leave`](Self::leave) by. `None`: the gate
    /// was killed.
    pub(super) fn enter(&self) -> Option<usize> {
        let slot = thread_slot::current() % SLOTS;
        loop {
            if let Some(open) = self.open.get(slot) {
                open.0.fetch_add(1, Ordering::SeqCst);
            }
            if self.closed.load(Ordering::SeqCst) == 0 {
                GATE.count(Mode::Shared, None);
                return Some(slot);
            }
            let mut guard = lock(&self.lock);
            if guard.holder == Some(thread::current().id()) {
                return Some(slot);
            }
            self.leave_locked(slot);
            while self.closed.load(Ordering::SeqCst) != 0 {
                if self.dead.load(Ordering::SeqCst) != 0 {
                    return None;
                }
                guard.outside += 1;
                guard = wait(&self.changed, guard);
                guard.outside -= 1;
            }
        }
    }

    /// As [`enter`](Self::enter), but turns back where the gate is closed.
    pub(super) fn try_enter(&self) -> Option<usize> {
        let slot = thread_slot::current() % SLOTS;
        if let Some(open) = self.open.get(slot) {
            open.0.fetch_add(1, Ordering::SeqCst);
        }
        if self.closed.load(Ordering::SeqCst) == 0 {
            return Some(slot);
        }
        self.leave(slot);
        None
    }

    /// Whether it is closed, or somebody waits for it to be; how many wait for it to be opened.
    #[cfg(all(test, not(shuttle)))]
    pub(super) fn look(&self) -> (bool, u32) {
        let outside = lock(&self.lock).outside;
        (self.closed.load(Ordering::SeqCst) != 0, outside)
    }

    /// Goes out.
    pub(super) fn leave(&self, slot: usize) {
        if let Some(open) = self.open.get(slot) {
            open.0.fetch_sub(1, Ordering::SeqCst);
        }
        if self.closed.load(Ordering::SeqCst) != 0 {
            let _guard = lock(&self.lock);
            self.changed.notify_all();
        }
    }

    /// As [`leave`](Self::leave), with the lock held.
    fn leave_locked(&self, slot: usize) {
        if let Some(open) = self.open.get(slot) {
            open.0.fetch_sub(1, Ordering::SeqCst);
        }
        self.changed.notify_all();
    }

    /// Closes the gate and waits until nobody is inside. `false`: it was killed meanwhile (it is closed, and
    /// somebody may be inside). The caller has seen to it that nobody else holds it closed.
    pub(super) fn close(&self) -> bool {
        let mut guard = lock(&self.lock);
        self.closed.store(1, Ordering::SeqCst);
        while self.open.iter().any(|open| open.0.load(Ordering::SeqCst) != 0) {
            if self.dead.load(Ordering::SeqCst) != 0 {
                return false;
            }
            guard = wait(&self.changed, guard);
        }
        guard.holder = Some(thread::current().id());
        true
    }

    /// Opens the gate again, unless it was killed: who waits outside may wake only now, and is to turn back.
    pub(super) fn open(&self) {
        let mut guard = lock(&self.lock);
        guard.holder = None;
        if self.dead.load(Ordering::SeqCst) == 0 {
            self.closed.store(0, Ordering::SeqCst);
        }
        self.changed.notify_all();
    }

    /// Wakes all who wait.
    pub(super) fn kill(&self) {
        self.dead.store(1, Ordering::SeqCst);
        let _guard = lock(&self.lock);
        self.changed.notify_all();
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    /// As it is for who waits for a volume that is closed meanwhile, and wakes when that is over.
    #[test]
    fn a_gate_that_is_killed_while_it_is_closed_lets_nobody_in() {
        let gate = Gate::new();
        assert!(gate.close());
        gate.kill();
        gate.open();
        assert_eq!(gate.enter(), None);
        assert_eq!(gate.try_enter(), None);
    }

    #[test]
    fn nobody_is_inside_a_closed_gate() {
        let gate = Gate::new();
        let inside = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let slot = gate.enter().unwrap();
                        inside.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        gate.leave(slot);
                    }
                });
            }
            scope.spawn(|| {
                for _ in 0..200 {
                    assert!(gate.close());
                    // Who closed it passes.
                    let own = gate.enter().unwrap();
                    for _ in 0..50 {
                        assert_eq!(inside.load(Ordering::SeqCst), 0);
                    }
                    gate.leave(own);
                    gate.open();
                }
            });
        });
    }
}
