//! The transaction gate: how many transactions are open, and whether new ones may begin.
//!
//! They are counted where their log space is ([`Handles`]). By default each thread has its own slot, so that the start
//! and end of a transaction write no line that others write. Whoever closes the gate adds up all slots. Invariants: a
//! transaction leaves through the slot by which it entered. Once the gate is closed, a slot that was seen at zero stays
//! at zero, with two exceptions: threads that look in and turn back, each of which wakes the closer; and the closing
//! thread itself, which may enter and leave at will. A gate that is killed while it is closed stays closed.

use super::grant::LogSpace;
use super::handles::{Handles, Started};
use super::sync::{
    AtomicU32, Condvar, Mutex, MutexGuard, Ordering, Padded, ThreadId, lock, lock_by, thread, wait,
};
use lockstat::{Counted, LockClass, Mode, Users};
use std::sync::Arc;

/// Not a lock: an addition in the thread's own slot.
static GATE: LockClass = LockClass::new("transaction gate");
/// Taken on entry and exit while the gate is closed.
static CLOSED: LockClass = LockClass::new("transaction gate, closed");

#[derive(Debug)]
pub(super) struct Gate {
    handles: Arc<Handles>,
    /// Whether somebody holds it closed. Every entry reads it, so it is kept apart from what changes often.
    closed: Padded<AtomicU32>,
    dead: AtomicU32,
    lock: Mutex<Waiting>,
    users: Users,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Who closed the gate.
    holder: Option<ThreadId>,
    /// How many threads wait for it to open.
    outside: u32,
}

impl Gate {
    pub(super) fn new(handles: Arc<Handles>) -> Self {
        Self {
            handles,
            closed: Padded::default(),
            dead: AtomicU32::new(0),
            lock: Mutex::default(),
            users: Users::new(),
            changed: Condvar::new(),
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.0.load(Ordering::SeqCst) != 0
    }

    /// Waits until the gate is open and enters. Returns the slot for [`leave`](Self::leave), and whether the slot had
    /// the claimed log space. `None` if the gate was killed.
    pub(super) fn enter(&self, claim: Option<LogSpace>) -> Option<(usize, bool)> {
        let slot = Handles::slot();
        loop {
            let started = self.handles.start(slot, claim, || !self.is_closed());
            if started != Started::TurnsBack {
                GATE.count(Mode::Shared, None);
                return Some((slot, started == Started::Paid));
            }
            let mut guard = self.locked().into_uncounted();
            if guard.holder == Some(thread::current().id()) {
                return Some((slot, false));
            }
            self.handles.stop(slot);
            self.changed.notify_all();
            while self.is_closed() {
                if self.dead.load(Ordering::SeqCst) != 0 {
                    return None;
                }
                guard.outside += 1;
                guard = wait(&self.changed, guard);
                guard.outside -= 1;
            }
        }
    }

    /// Like [`enter`](Self::enter), but returns `None` if the gate is closed.
    pub(super) fn try_enter(&self) -> Option<usize> {
        let slot = Handles::slot();
        if self.handles.start(slot, None, || !self.is_closed()) != Started::TurnsBack {
            return Some(slot);
        }
        self.leave(slot);
        None
    }

    /// Whether it is closed, and how many threads wait for it to open.
    #[cfg(all(test, not(shuttle)))]
    pub(super) fn look(&self) -> (bool, u32) {
        let outside = lock(&self.lock).outside;
        (self.is_closed(), outside)
    }

    /// Leaves the gate.
    pub(super) fn leave(&self, slot: usize) {
        self.handles.stop(slot);
        if self.is_closed() {
            let _guard = self.locked();
            self.changed.notify_all();
        }
    }

    fn locked(&self) -> Counted<MutexGuard<'_, Waiting>> {
        lock_by(&self.lock, &CLOSED, &self.users)
    }

    /// Closes the gate and waits until nobody is inside. Returns `false` if it was killed meanwhile; then it is closed,
    /// and somebody may be inside. The caller ensures that nobody else holds it closed.
    pub(super) fn close(&self) -> bool {
        let mut guard = lock(&self.lock);
        self.closed.0.store(1, Ordering::SeqCst);
        while self.handles.are_open() {
            if self.dead.load(Ordering::SeqCst) != 0 {
                return false;
            }
            guard = wait(&self.changed, guard);
        }
        guard.holder = Some(thread::current().id());
        true
    }

    /// Opens the gate again, unless it was killed: a thread outside may wake only now, and must turn back.
    pub(super) fn open(&self) {
        let mut guard = lock(&self.lock);
        guard.holder = None;
        if self.dead.load(Ordering::SeqCst) == 0 {
            self.closed.0.store(0, Ordering::SeqCst);
        }
        self.changed.notify_all();
    }

    /// Closes a killed gate for good and waits until nobody is inside. Whoever is inside fails at its next call to the
    /// journal.
    pub(super) fn empty(&self) {
        debug_assert!(self.dead.load(Ordering::SeqCst) != 0, "who goes in may stay for long");
        let mut guard = lock(&self.lock);
        self.closed.0.store(1, Ordering::SeqCst);
        while self.handles.are_open() {
            guard = wait(&self.changed, guard);
        }
    }

    /// Wakes all waiters.
    pub(super) fn kill(&self) {
        self.dead.store(1, Ordering::SeqCst);
        let _guard = lock(&self.lock);
        self.changed.notify_all();
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::super::designs::HandleCounts;
    use super::*;
    use std::sync::atomic::AtomicU64;

    fn gate(design: HandleCounts) -> Gate {
        Gate::new(Arc::new(Handles::new(design)))
    }

    /// A thread in the middle of a transaction may be writing to the device.
    #[test]
    fn a_gate_that_was_killed_is_left_by_all() {
        for design in HandleCounts::ALL {
            let gate = gate(design);
            let (slot, _) = gate.enter(None).unwrap();
            gate.kill();
            let is_empty = AtomicU64::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    gate.empty();
                    is_empty.store(1, Ordering::SeqCst);
                });
                std::thread::sleep(std::time::Duration::from_millis(50));
                assert_eq!(is_empty.load(Ordering::SeqCst), 0, "{design:?}");
                gate.leave(slot);
            });
            assert_eq!(gate.enter(None), None);
        }
    }

    /// A thread waits for a volume that is closed meanwhile, and wakes when that is over.
    #[test]
    fn a_gate_that_is_killed_while_it_is_closed_lets_nobody_in() {
        let gate = gate(HandleCounts::Atomic);
        assert!(gate.close());
        gate.kill();
        gate.open();
        assert_eq!(gate.enter(None), None);
        assert_eq!(gate.try_enter(), None);
    }

    #[test]
    fn nobody_is_inside_a_closed_gate() {
        HandleCounts::ALL.into_iter().for_each(|design| nobody_is_inside(&gate(design)));
    }

    fn nobody_is_inside(gate: &Gate) {
        let inside = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let (slot, _) = gate.enter(None).unwrap();
                        inside.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        gate.leave(slot);
                    }
                });
            }
            scope.spawn(|| {
                for _ in 0..200 {
                    assert!(gate.close());
                    // The thread that closed the gate passes.
                    let (own, _) = gate.enter(None).unwrap();
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
