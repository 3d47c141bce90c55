//! A device that delays its requests: for a while, or until they are released.
//!
//! A blocking call waits in its thread. A queue's requests wait without one: they stay in flight until their time
//! has come, so that tests can look at what else goes on meanwhile.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::blocking::{Verb, check_depth, check_push};
use crate::{AlignedBuf, BlockDevice, Completion, DeviceError, Durability, IoQueue, Layer, Op};

/// How long requests wait before they reach the device below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// Not at all.
    None,
    /// This long.
    For(Duration),
    /// Until [`DelayDevice::set`] says something else.
    Held,
}

#[derive(Debug)]
struct State {
    /// By [`Op`].
    delay: [Delay; 3],
    /// Requests that are waiting now, by [`Op`].
    waiting: [usize; 3],
}

/// A device that delays requests.
#[derive(Debug)]
pub struct DelayDevice {
    inner: Arc<dyn BlockDevice>,
    state: Mutex<State>,
    changed: Condvar,
}

impl DelayDevice {
    /// `inner`, at first without any delay.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Self {
        let state = State { delay: [Delay::None; 3], waiting: [0; 3] };
        Self { inner, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Delays requests of a kind from now on, those too that are already waiting.
    pub fn set(&self, op: Op, delay: Delay) {
        self.state().delay[op as usize] = delay;
        self.changed.notify_all();
    }

    /// How many requests of a kind are waiting.
    pub fn waiting(&self, op: Op) -> usize {
        self.state().waiting[op as usize]
    }

    /// Blocks until at least `count` requests of a kind are waiting.
    pub fn wait_until_waiting(&self, op: Op, count: usize) {
        let mut state = self.state();
        while state.waiting[op as usize] < count {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enters(&self, op: Op) {
        self.state().waiting[op as usize] += 1;
        self.changed.notify_all();
    }

    fn leaves(&self, op: Op) {
        self.state().waiting[op as usize] -= 1;
        self.changed.notify_all();
    }

    /// How long a request that came at `since` has still to wait; `None`: until released.
    fn remaining(delay: Delay, since: Instant) -> Option<Duration> {
        match delay {
            Delay::None => Some(Duration::ZERO),
            Delay::For(time) => Some(time.saturating_sub(since.elapsed())),
            Delay::Held => None,
        }
    }

    /// Blocks until a request of kind `op` that came at `since` may go on.
    fn wait_turn(&self, op: Op, since: Instant) {
        let mut state = self.state();
        loop {
            state = match Self::remaining(state.delay[op as usize], since) {
                Some(Duration::ZERO) => return,
                Some(time) => {
                    self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn pause(&self, op: Op) {
        self.enters(op);
        self.wait_turn(op, Instant::now());
        self.leaves(op);
    }
}

impl Layer for DelayDevice {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.inner
    }

    fn pass_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.pause(Op::Read);
        self.inner.read(offset, buf)
    }

    fn pass_write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        self.pause(Op::Write);
        self.inner.write(offset, buf, durability)
    }

    fn pass_flush(&self) -> Result<(), DeviceError> {
        self.pause(Op::Flush);
        self.inner.flush()
    }

    fn pass_queue(self: Arc<Self>, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        check_depth(depth)?;
        let room = depth as usize;
        Ok(Box::new(DelayQueue { device: self, depth, held: VecDeque::with_capacity(room), pushed: 0 }))
    }
}

struct Held {
    verb: Verb,
    offset: u64,
    buf: AlignedBuf,
    tag: u64,
    since: Instant,
}

impl Held {
    fn op(&self) -> Op {
        if self.verb == Verb::Read { Op::Read } else { Op::Write }
    }
}

/// Submitted requests first, then (the last `pushed`) those not submitted yet.
struct DelayQueue {
    device: Arc<DelayDevice>,
    depth: u32,
    held: VecDeque<Held>,
    pushed: usize,
}

impl DelayQueue {
    fn push(&mut self, verb: Verb, offset: u64, buf: AlignedBuf, tag: u64) -> Result<(), DeviceError> {
        if self.held.len() >= self.depth as usize {
            return Err(DeviceError::QueueFull);
        }
        check_push(&*self.device.inner, verb, offset, buf.len())?;
        self.held.push_back(Held { verb, offset, buf, tag, since: Instant::now() });
        self.pushed += 1;
        Ok(())
    }

    /// Index of the first submitted request whose time has come.
    fn due(&self) -> Option<usize> {
        let state = self.device.state();
        let submitted = self.held.len() - self.pushed;
        self.held.iter().take(submitted).position(|held| {
            DelayDevice::remaining(state.delay[held.op() as usize], held.since) == Some(Duration::ZERO)
        })
    }

    fn carry_out(&mut self, index: usize) -> Option<Completion> {
        let mut held = self.held.remove(index)?;
        self.device.leaves(held.op());
        let result = match held.verb {
            Verb::Read => self.device.inner.read(held.offset, &mut held.buf),
            Verb::Write(durability) => self.device.inner.write(held.offset, &held.buf, durability),
        };
        Some(Completion { tag: held.tag, buf: held.buf, result })
    }
}

impl IoQueue for DelayQueue {
    fn depth(&self) -> u32 {
        self.depth
    }

    fn in_flight(&self) -> u32 {
        self.held.len() as u32
    }

    fn push_read(&mut self, offset: u64, buf: AlignedBuf, tag: u64) -> Result<(), DeviceError> {
        self.push(Verb::Read, offset, buf, tag)
    }

    fn push_write(
        &mut self,
        offset: u64,
        buf: AlignedBuf,
        durability: Durability,
        tag: u64,
    ) -> Result<(), DeviceError> {
        self.push(Verb::Write(durability), offset, buf, tag)
    }

    fn submit(&mut self) -> Result<(), DeviceError> {
        let submitted = self.held.len() - self.pushed;
        for held in self.held.iter_mut().skip(submitted) {
            held.since = Instant::now();
            self.device.enters(held.op());
        }
        self.pushed = 0;
        Ok(())
    }

    fn wait(&mut self, min: u32, done: &mut dyn FnMut(Completion)) -> Result<u32, DeviceError> {
        self.submit()?;
        let min = min.min(self.in_flight());
        let mut count = 0;
        loop {
            while let Some(completion) = self.due().and_then(|index| self.carry_out(index)) {
                count += 1;
                done(completion);
            }
            let Some(first) = self.held.front().filter(|_| count < min) else { return Ok(count) };
            // A request of another kind may be due earlier: look at all of them again after a while.
            let state = self.device.state();
            let pause = Duration::from_millis(1);
            let time = DelayDevice::remaining(state.delay[first.op() as usize], first.since);
            let time = time.unwrap_or(pause).min(pause);
            drop(self.device.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Drop for DelayQueue {
    fn drop(&mut self) {
        let submitted = self.held.len() - self.pushed;
        for held in self.held.iter().take(submitted) {
            self.device.leaves(held.op());
        }
    }
}
