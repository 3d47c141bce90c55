//! A device on which chosen requests fail, are cut short or are torn.
//!
//! Requests of a kind are numbered from 0 in the order in which they reach the device, by calls and by queues
//! alike (a queue does its requests at submission, one after the other, so that the numbers are predictable).

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use crate::{BlockDevice, DeviceError, Durability, Layer};

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush.
    Flush,
}

/// What happens to a chosen request. A flush can only fail.
#[derive(Clone)]
pub enum Effect {
    /// Nothing is transferred; the request fails.
    Fail,
    /// The first sectors, this many, are transferred; then the request fails.
    Short(u64),
    /// A write changes only the sectors for which the function, given the sector's index within the request,
    /// says so, and reports success; a read fails.
    Torn(Arc<dyn Fn(u64) -> bool + Send + Sync>),
}

impl fmt::Debug for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fail => f.write_str("Fail"),
            Self::Short(sectors) => f.debug_tuple("Short").field(sectors).finish(),
            Self::Torn(_) => f.write_str("Torn"),
        }
    }
}

/// What comes after the first chosen request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Later requests succeed.
    Once,
    /// Every later request of the kind meets the same effect.
    Sticky,
    /// Every later write is refused, as on a disk that has gone read-only.
    ReadOnlyAfter,
}

/// One planned fault.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Kind of the request that it strikes.
    pub op: Op,
    /// Number of the request that it strikes, among those of its kind, from 0.
    pub nth: u64,
    /// What happens.
    pub effect: Effect,
    /// What happens after that.
    pub repeat: Repeat,
}

impl Fault {
    /// The `nth` request of kind `op` fails, once.
    pub fn fail(op: Op, nth: u64) -> Self {
        Self { op, nth, effect: Effect::Fail, repeat: Repeat::Once }
    }

    /// The same fault with something else after it.
    pub fn then(mut self, repeat: Repeat) -> Self {
        self.repeat = repeat;
        self
    }
}

/// A device that fails as planned.
#[derive(Debug)]
pub struct FaultDevice {
    inner: Arc<dyn BlockDevice>,
    plan: Mutex<Vec<Fault>>,
    seen: [AtomicU64; 3],
    gone_read_only: AtomicBool,
}

impl FaultDevice {
    /// `inner` with the faults of `plan`; where several strike one request, the first listed does.
    pub fn new(inner: Arc<dyn BlockDevice>, plan: Vec<Fault>) -> Self {
        Self {
            inner,
            plan: Mutex::new(plan),
            seen: Default::default(),
            gone_read_only: AtomicBool::new(false),
        }
    }

    /// How many requests of a kind were made so far, which is the number of the next one.
    pub fn seen(&self, op: Op) -> u64 {
        self.seen[op as usize].load(Relaxed)
    }

    /// Adds a fault to the plan.
    pub fn add(&self, fault: Fault) {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
    }

    /// Forgets the plan, and lets writes through again.
    pub fn heal(&self) {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.gone_read_only.store(false, Relaxed);
    }

    /// Numbers a request, and says what is to happen to it.
    fn strike(&self, op: Op) -> Option<Effect> {
        let number = self.seen[op as usize].fetch_add(1, Relaxed);
        let gone = self.gone_read_only.load(Relaxed);
        if gone && op != Op::Read {
            return Some(Effect::Fail);
        }
        let plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        let fault = plan
            .iter()
            .find(|f| f.op == op && (f.nth == number || (f.repeat == Repeat::Sticky && number > f.nth)))?;
        if fault.repeat == Repeat::ReadOnlyAfter {
            self.gone_read_only.store(true, Relaxed);
        }
        Some(fault.effect.clone())
    }

    /// The part of a request's bytes that its first `sectors` sectors are.
    fn first(&self, sectors: u64, len: usize) -> usize {
        let bytes = sectors.saturating_mul(u64::from(self.sector_size()));
        usize::try_from(bytes).unwrap_or(usize::MAX).min(len)
    }
}

fn planned(op: &'static str, offset: u64, len: usize) -> DeviceError {
    DeviceError::io(op, offset, len, io::Error::other("a planned fault"))
}

impl Layer for FaultDevice {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.inner
    }

    fn pass_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let len = buf.len();
        match self.strike(Op::Read) {
            None => return self.inner.read(offset, buf),
            Some(Effect::Short(sectors)) => {
                let part = self.first(sectors, len);
                self.inner.read(offset, &mut buf[..part])?;
            }
            Some(Effect::Fail | Effect::Torn(_)) => {}
        }
        Err(planned("read", offset, len))
    }

    fn pass_write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        match self.strike(Op::Write) {
            None => return self.inner.write(offset, buf, durability),
            Some(Effect::Fail) => {}
            Some(Effect::Short(sectors)) => {
                self.inner.write(offset, &buf[..self.first(sectors, buf.len())], durability)?;
            }
            Some(Effect::Torn(keeps)) => {
                let sector = self.sector_size() as usize;
                for (index, piece) in buf.chunks(sector).enumerate() {
                    if keeps(index as u64) {
                        self.inner.write(offset + (index * sector) as u64, piece, durability)?;
                    }
                }
                return Ok(());
            }
        }
        Err(planned("write", offset, buf.len()))
    }

    fn pass_flush(&self) -> Result<(), DeviceError> {
        match self.strike(Op::Flush) {
            None => self.inner.flush(),
            Some(_) => Err(planned("flush", 0, 0)),
        }
    }
}
