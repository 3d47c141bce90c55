//! The gate that transactions pass: how many are open, and whether new ones may begin.
//!
//! Each thread counts in a slot of its own, so that beginning and ending a transaction write no line that others
//! write. Who closes the gate adds all slots up. Invariants: a transaction leaves through the slot that it came
//! in by; once the gate is closed, a slot that was seen at zero stays there but for those that look in and turn
//! back, and each of these wakes who closed it.

use super::sync::{AtomicU32, Condvar, Mutex, Ordering, Padded, lock, wait};
use super::thread_slot;
use fileio::lockstat::{LockClass, Mode};

/// No lock: an addition in the thread's own slot.
static GATE: LockClass = LockClass::new("transaction gate");

const SLOTS: usize = if cfg!(shuttle) { 2 } else { 64 };

#[derive(Debug)]
pub(super) struct Gate {
    open: Box<[Padded<AtomicU32>]>,
    /// How many hold it closed.
    closed: AtomicU32,
    dead: AtomicU32,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Gate {
    pub(super) fn new() -> Self {
        Self {
            open: std::iter::repeat_with(Padded::default).take(SLOTS).collect(),
            closed: AtomicU32::new(0),
            dead: AtomicU32::new(0),
            lock: Mutex::new(()),
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
            self.leave(slot);
            let mut guard = lock(&self.lock);
            while self.closed.load(Ordering::SeqCst) != 0 {
                if self.dead.load(Ordering::SeqCst) != 0 {
                    return None;
                }
                guard = wait(&self.changed, guard);
            }
        }
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

    /// Closes the gate and waits until nobody is inside. `false`: it was killed meanwhile (it is closed, and
    /// somebody may be inside).
    pub(super) fn close(&self) -> bool {
        let mut guard = lock(&self.lock);
        self.closed.fetch_add(1, Ordering::SeqCst);
        while self.open.iter().any(|open| open.0.load(Ordering::SeqCst) != 0) {
            if self.dead.load(Ordering::SeqCst) != 0 {
                return false;
            }
            guard = wait(&self.changed, guard);
        }
        true
    }

    /// Opens the gate again, unless others hold it closed.
    pub(super) fn open(&self) {
        let _guard = lock(&self.lock);
        self.closed.fetch_sub(1, Ordering::SeqCst);
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
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        assert!(gate.close());
                        for _ in 0..50 {
                            assert_eq!(inside.load(Ordering::SeqCst), 0);
                        }
                        gate.open();
                    }
                });
            }
        });
    }
}
