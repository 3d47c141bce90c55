//! A queue that does its requests one after the other with the device's blocking calls.
//!
//! Used where the host offers no io_uring, and for wrappers. Memory is taken when the queue is made. No request
//! allocates.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::{AlignedBuf, BlockDevice, Completion, DeviceError, Durability, IoQueue};

/// The largest depth of a queue.
pub(crate) const DEPTH_MAX: u32 = 16_384;

/// Whether `depth` requests can be queued.
pub(crate) fn check_depth(depth: u32) -> Result<(), DeviceError> {
    if depth == 0 || depth > DEPTH_MAX {
        let why = format!("a queue of {depth} requests (1 to {DEPTH_MAX} are possible)");
        return Err(DeviceError::invalid("making a queue", why));
    }
    Ok(())
}

/// What a request does with its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Read,
    Write(Durability),
}

impl Verb {
    /// Carries it out with the device's blocking calls.
    #[inline]
    pub(crate) fn carry_out<D: BlockDevice + ?Sized>(
        self,
        device: &D,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<(), DeviceError> {
        match self {
            Self::Read => device.read(offset, buf),
            Self::Write(durability) => device.write(offset, buf, durability),
        }
    }
}

#[derive(Debug)]
struct Request {
    verb: Verb,
    offset: u64,
    buf: AlignedBuf,
    tag: u64,
}

/// An [`IoQueue`] over any device's blocking calls.
#[derive(Debug)]
pub struct BlockingQueue<D: BlockDevice + ?Sized> {
    depth: u32,
    pushed: VecDeque<Request>,
    done: VecDeque<Completion>,
    device: Arc<D>,
}

impl<D: BlockDevice + ?Sized> BlockingQueue<D> {
    /// A queue whose requests are done by [`submit`](IoQueue::submit).
    pub fn new(device: Arc<D>, depth: u32) -> Result<Self, DeviceError> {
        check_depth(depth)?;
        let room = depth as usize;
        let (pushed, done) = (VecDeque::with_capacity(room), VecDeque::with_capacity(room));
        Ok(Self { depth, pushed, done, device })
    }

    fn push(&mut self, request: Request) -> Result<(), DeviceError> {
        if self.in_flight() >= self.depth {
            return Err(DeviceError::QueueFull);
        }
        check_push(&*self.device, request.verb, request.offset, request.buf.len())?;
        self.pushed.push_back(request);
        Ok(())
    }
}

/// Checks for mistakes of the caller before a request enters a queue.
pub(crate) fn check_push<D: BlockDevice + ?Sized>(
    device: &D,
    verb: Verb,
    offset: u64,
    len: usize,
) -> Result<(), DeviceError> {
    if verb != Verb::Read && device.is_read_only() {
        return Err(DeviceError::ReadOnly);
    }
    crate::check::Geometry::new(device.size(), device.sector_size())?.check(offset, len)
}

impl<D: BlockDevice + ?Sized> IoQueue for BlockingQueue<D> {
    fn depth(&self) -> u32 {
        self.depth
    }

    fn in_flight(&self) -> u32 {
        (self.pushed.len() + self.done.len()) as u32
    }

    fn push_read(&mut self, offset: u64, buf: AlignedBuf, tag: u64) -> Result<(), DeviceError> {
        self.push(Request { verb: Verb::Read, offset, buf, tag })
    }

    fn push_write(
        &mut self,
        offset: u64,
        buf: AlignedBuf,
        durability: Durability,
        tag: u64,
    ) -> Result<(), DeviceError> {
        self.push(Request { verb: Verb::Write(durability), offset, buf, tag })
    }

    fn submit(&mut self) -> Result<(), DeviceError> {
        while let Some(Request { verb, offset, mut buf, tag }) = self.pushed.pop_front() {
            let result = verb.carry_out(&*self.device, offset, &mut buf);
            self.done.push_back(Completion { tag, buf, result });
        }
        Ok(())
    }

    fn wait(&mut self, _min: u32, done: &mut dyn FnMut(Completion)) -> Result<u32, DeviceError> {
        self.submit()?;
        let mut count = 0;
        while let Some(completion) = self.done.pop_front() {
            done(completion);
            count += 1;
        }
        Ok(count)
    }
}
