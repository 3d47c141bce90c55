//! A device that holds chosen requests back until a test releases them, so that the test decides what happens in
//! between.
//!
//! Invariants: a write is held before the device below has it, a read with its bytes and a flush with its answer, so that
//! what comes meanwhile comes after them; a request that was held stays so until [`HoldDevice::release`], whatever is
//! chosen next. It waits in the thread that asked, those of queues too: where requests have to stay in flight, or whole
//! kinds of them to take their time, there is [`DelayDevice`](crate::DelayDevice).

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::{BlockDevice, DeviceError, Durability, Layer, Op};

/// Whether a request is held back: its kind, and its first byte (0 for a flush).
type Chosen = Box<dyn FnMut(Op, u64) -> bool + Send>;

/// A device that holds requests back.
pub struct HoldDevice {
    inner: Arc<dyn BlockDevice>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    chosen: Option<Chosen>,
    waiting: usize,
    /// How often all were released.
    releases: u64,
}

impl HoldDevice {
    /// `inner`, of which nothing is held back at first.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Self {
        Self { inner, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Holds back, from now on, all that is chosen.
    pub fn hold(&self, chosen: impl FnMut(Op, u64) -> bool + Send + 'static) {
        self.state().chosen = Some(Box::new(chosen));
    }

    /// Holds back the next request that is chosen, and no other.
    pub fn hold_next(&self, mut chosen: impl FnMut(Op, u64) -> bool + Send + 'static) {
        let mut is_held = false;
        self.hold(move |op, offset| {
            let is_next = !is_held && chosen(op, offset);
            is_held |= is_next;
            is_next
        });
    }

    /// Releases all requests, and holds none back any more.
    pub fn release(&self) {
        let mut state = self.state();
        (state.chosen, state.waiting) = (None, 0);
        state.releases += 1;
        self.changed.notify_all();
    }

    /// How many requests are held now.
    pub fn waiting(&self) -> usize {
        self.state().waiting
    }

    /// Blocks until a request is held.
    pub fn wait_until_waiting(&self) {
        let state = self.state();
        drop(self.wait_while(state, |state| state.waiting == 0));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while<'a>(
        &self,
        state: MutexGuard<'a, State>,
        condition: impl FnMut(&mut State) -> bool,
    ) -> MutexGuard<'a, State> {
        self.changed.wait_while(state, condition).unwrap_or_else(PoisonError::into_inner)
    }

    /// A request arrives.
    fn comes(&self, op: Op, offset: u64) {
        let mut state = self.state();
        if !state.chosen.as_mut().is_some_and(|chosen| chosen(op, offset)) {
            return;
        }
        state.waiting += 1;
        self.changed.notify_all();
        let releases = state.releases;
        drop(self.wait_while(state, |state| state.releases == releases));
    }
}

impl fmt::Debug for HoldDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldDevice").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Layer for HoldDevice {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.inner
    }

    fn pass_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let read = self.inner.read(offset, buf);
        self.comes(Op::Read, offset);
        read
    }

    fn pass_write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        self.comes(Op::Write, offset);
        self.inner.write(offset, buf, durability)
    }

    fn pass_flush(&self) -> Result<(), DeviceError> {
        let flushed = self.inner.flush();
        self.comes(Op::Flush, 0);
        flushed
    }
}
