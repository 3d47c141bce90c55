//! A queue on memory. Its requests are copies, which the caller's thread makes while it waits.
//!
//! A copy of a random page waits for memory most of the time, and the queue knows what comes next: the first lines of
//! the requests to come are asked for while an earlier one is copied. Requests are carried out in small batches, oldest
//! first, so that the bytes of a batch are still near when it is handed out.
//!
//! Invariants: what is in `pushed` has passed its checks; a request is handed out once, after its copy. Nothing is
//! allocated per request.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::blocking::{Verb, check_depth, check_push};
use crate::memory::MemoryDevice;
use crate::{AlignedBuf, Completion, DeviceError, Durability, IoQueue};

/// Requests that are copied before they are handed out: few enough for the nearest cache.
const BATCH: usize = 4;

/// How many requests ahead of the copy memory is prefetched.
const AHEAD: usize = 2;

#[derive(Debug)]
struct Request {
    verb: Verb,
    offset: u64,
    buf: AlignedBuf,
    tag: u64,
    /// The completion of a request that was carried out.
    result: Result<(), DeviceError>,
}

/// An [`IoQueue`] on a [`MemoryDevice`].
#[derive(Debug)]
pub(crate) struct MemoryQueue {
    depth: u32,
    pushed: VecDeque<Request>,
    device: Arc<MemoryDevice>,
}

impl MemoryQueue {
    pub(crate) fn new(device: Arc<MemoryDevice>, depth: u32) -> Result<Self, DeviceError> {
        check_depth(depth)?;
        Ok(Self { depth, pushed: VecDeque::with_capacity(depth as usize), device })
    }

    #[inline]
    fn push(&mut self, verb: Verb, offset: u64, buf: AlignedBuf, tag: u64) -> Result<(), DeviceError> {
        if self.in_flight() >= self.depth {
            return Err(DeviceError::QueueFull);
        }
        check_push(&*self.device, verb, offset, buf.len())?;
        self.pushed.push_back(Request { verb, offset, buf, tag, result: Ok(()) });
        Ok(())
    }

    /// Carries out the `count` oldest requests.
    #[inline]
    fn carry_out(&mut self, count: usize) {
        for at in 0..count {
            if let Some(next) = self.pushed.get(at + AHEAD) {
                self.device.prefetch_request(next.offset, next.buf.len());
            }
            let Some(request) = self.pushed.get_mut(at) else { return };
            request.result = request.verb.carry_out(&*self.device, request.offset, &mut request.buf);
        }
    }
}

impl IoQueue for MemoryQueue {
    fn depth(&self) -> u32 {
        self.depth
    }

    fn in_flight(&self) -> u32 {
        self.pushed.len() as u32
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

    /// There is no one to hand them to.
    fn submit(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn wait(&mut self, min: u32, done: &mut dyn FnMut(Completion)) -> Result<u32, DeviceError> {
        // A call that does not wait makes progress too.
        let want = (min as usize).max(BATCH).min(self.pushed.len());
        let mut left = want;
        while left > 0 {
            let batch = BATCH.min(left);
            self.carry_out(batch);
            for Request { buf, tag, result, .. } in self.pushed.drain(..batch) {
                done(Completion { tag, buf, result });
            }
            left -= batch;
        }
        Ok(want as u32)
    }
}

impl Drop for MemoryQueue {
    /// What was submitted is carried out, as on any other device.
    fn drop(&mut self) {
        self.carry_out(self.pushed.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BlockDevice;

    fn device() -> Arc<MemoryDevice> {
        Arc::new(MemoryDevice::anonymous(1 << 20).expect("memory"))
    }

    #[test]
    fn who_waits_gets_as_many_as_asked_for_oldest_first() {
        let mut queue = device().queue(64).expect("a queue");
        for tag in 0..64 {
            queue.push_read(tag * 512, AlignedBuf::zeroed(512), tag).expect("room");
        }
        let mut tags = Vec::new();
        let mut left = 64;
        for min in [0, 1, 9, 100] {
            let count = queue.wait(min, &mut |done| tags.push(done.tag)).expect("memory");
            assert!(count >= min.clamp(1, left), "{count} of {min}");
            left -= count;
            assert_eq!((tags.len() as u32, queue.in_flight()), (64 - left, left));
        }
        assert_eq!(tags, Vec::from_iter(0..64));
        assert_eq!(queue.wait(1, &mut |_| panic!("there is none")).expect("memory"), 0);
    }

    #[test]
    fn what_was_submitted_is_written_when_the_queue_goes() {
        let device = device();
        let mut queue = Arc::clone(&device).queue(16).expect("a queue");
        for nth in 0..16 {
            let buf = AlignedBuf::copied(&[nth as u8 + 1; 512]);
            queue.push_write(nth * 512, buf, Durability::Volatile, nth).expect("room");
        }
        queue.submit().expect("memory");
        queue.wait(1, &mut |_| ()).expect("memory");
        drop(queue);
        let mut held = [0; 16 * 512];
        device.read(0, &mut held).expect("inside");
        assert!(held.chunks(512).zip(1..).all(|(sector, nth)| sector == [nth; 512]));
    }
}
