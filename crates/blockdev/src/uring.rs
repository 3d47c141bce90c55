//! A submission queue on io_uring.
//!
//! Invariants:
//! - A slot that is taken owns its buffer until the kernel has given its completion: the buffer neither moves its
//!   bytes nor is freed before. Dropping the queue waits for that; should waiting fail, the buffers leak.
//! - Every submission entry names a taken slot, and a slot has at most one entry with the kernel.
//! - At most `depth` slots are taken, so neither ring overflows, and nothing is allocated per request.
//! - A transfer that the kernel did only in part is continued where it stopped.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{IoUring, opcode, types};

use crate::blocking::Verb;
use crate::file::FileDevice;
use crate::{AlignedBuf, BlockDevice, Completion, DeviceError, Durability, IoQueue};

/// `RWF_DSYNC`: the write is durable when it completes.
const RWF_DSYNC: i32 = 2;
/// Largest transfer asked of the kernel at once, in bytes; it does no more than 2 GiB less a page anyway.
const TRANSFER_MAX: usize = 1 << 30;
/// Index of the device's file among the ring's registered files.
const THE_FILE: types::Fixed = types::Fixed(0);

struct Slot {
    /// `Some` while the slot is taken.
    buf: Option<AlignedBuf>,
    verb: Verb,
    offset: u64,
    /// Bytes transferred so far.
    done: usize,
    tag: u64,
}

pub(crate) struct UringQueue {
    ring: IoUring,
    slots: Box<[Slot]>,
    /// Indexes of slots that are not taken.
    free: Vec<u32>,
    /// Taken slots whose entry is to be pushed again (a part remains, or the kernel said "try again").
    again: Vec<u32>,
    device: Arc<FileDevice>,
}

impl UringQueue {
    /// A ring for `depth` requests on the device's file.
    pub(crate) fn new(device: Arc<FileDevice>, depth: u32) -> Result<Self, DeviceError> {
        let fail = |e: io::Error| DeviceError::setup("making an io_uring queue", e);
        let ring = IoUring::builder()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .build(depth)
            .or_else(|_| IoUring::new(depth))
            .map_err(fail)?;
        ring.submitter().register_files(&[device.file().as_raw_fd()]).map_err(fail)?;
        let slots =
            (0..depth).map(|_| Slot { buf: None, verb: Verb::Read, offset: 0, done: 0, tag: 0 }).collect();
        let free = (0..depth).rev().collect();
        Ok(Self { ring, slots, free, again: Vec::with_capacity(depth as usize), device })
    }

    fn push(&mut self, verb: Verb, offset: u64, buf: AlignedBuf, tag: u64) -> Result<(), DeviceError> {
        self.device.check(offset, buf.len(), verb != Verb::Read)?;
        let index = self.free.pop().ok_or(DeviceError::QueueFull)?;
        self.slots[index as usize] = Slot { buf: Some(buf), verb, offset, done: 0, tag };
        self.push_entry(index);
        Ok(())
    }

    /// Puts what remains of a slot's transfer into the submission ring.
    fn push_entry(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        let Some(buf) = slot.buf.as_mut() else {
            debug_assert!(false, "an entry for a slot that is not taken");
            return;
        };
        let len = (buf.len() - slot.done).min(TRANSFER_MAX) as u32;
        let at = slot.offset + slot.done as u64;
        // SAFETY: `done` is at most the buffer's length.
        let from = unsafe { buf.as_raw().add(slot.done) };
        let entry = match slot.verb {
            Verb::Read => opcode::Read::new(THE_FILE, from, len).offset(at).build(),
            Verb::Write(durability) => {
                let flags = if durability == Durability::Fua { RWF_DSYNC } else { 0 };
                opcode::Write::new(THE_FILE, from, len).offset(at).rw_flags(flags).build()
            }
        };
        let entry = entry.user_data(u64::from(index));
        // SAFETY: the entry's buffer is owned by the slot, which is not emptied before its completion came; the
        // file is registered with the ring, which lives as long.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            // Cannot be, as there are as many entries as slots; it would only be late, not lost.
            self.again.push(index);
        }
    }

    /// Enters the kernel: hands over what was pushed, and waits for `want` completions.
    fn enter(&mut self, want: usize) -> io::Result<()> {
        while let Some(index) = self.again.pop() {
            if self.ring.submission().is_full() {
                self.again.push(index);
                break;
            }
            self.push_entry(index);
        }
        let mut submission = self.ring.submission();
        submission.sync();
        let (pending, has_task_work) = (submission.len(), submission.taskrun());
        drop(submission);
        if want == 0 && pending == 0 {
            if !has_task_work {
                return Ok(());
            }
            // Completions of ours wait for us to enter the kernel.
            // SAFETY: asks for events without an argument, which needs no memory of ours.
            let entered = unsafe { self.ring.submitter().enter::<()>(0, 0, ENTER_GETEVENTS, None) };
            return entered.map(drop).or_else(passing);
        }
        self.ring.submit_and_wait(want).map(drop).or_else(passing)
    }

    /// Takes the completions that are there, and hands on those whose transfer is over.
    fn reap(&mut self, done: &mut dyn FnMut(Completion)) -> u32 {
        let mut count = 0;
        loop {
            let next = self.ring.completion().next();
            let Some(entry) = next else { return count };
            let Ok(index) = usize::try_from(entry.user_data()) else { continue };
            if let Some(completion) = self.advance(index, entry.result()) {
                count += 1;
                done(completion);
            }
        }
    }

    /// Notes what the kernel did for a slot; gives the completion if that was the last of it.
    fn advance(&mut self, index: usize, result: i32) -> Option<Completion> {
        let sector = self.device.sector_size() as usize;
        let slot = self.slots.get_mut(index)?;
        let len = slot.buf.as_ref()?.len();
        let (op, zero) = match slot.verb {
            Verb::Read => ("read", io::ErrorKind::UnexpectedEof),
            Verb::Write(_) => ("write", io::ErrorKind::WriteZero),
        };
        let outcome = match usize::try_from(result) {
            Err(_) => match io::Error::from_raw_os_error(result.wrapping_neg()) {
                e if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => None,
                e => Some(Err(DeviceError::io(op, slot.offset, len, e))),
            },
            Ok(bytes) => {
                let total = (slot.done + bytes).min(len);
                // Direct transfers go on at whole sectors only.
                let whole = if total == len { total } else { total & !(sector - 1) };
                if whole == len {
                    Some(Ok(()))
                } else if whole == slot.done {
                    Some(Err(DeviceError::io(op, slot.offset, len, zero)))
                } else {
                    slot.done = whole;
                    None
                }
            }
        };
        let Some(result) = outcome else {
            self.again.push(index as u32);
            return None;
        };
        let buf = slot.buf.take()?;
        let tag = slot.tag;
        self.free.push(index as u32);
        Some(Completion { tag, buf, result })
    }

    fn fail(e: io::Error) -> DeviceError {
        DeviceError::io("submit", 0, 0, e)
    }
}

/// `IORING_ENTER_GETEVENTS`.
const ENTER_GETEVENTS: u32 = 1;

/// Lets errors of `io_uring_enter` pass after which it is simply called again.
fn passing(e: io::Error) -> io::Result<()> {
    const EBUSY: i32 = 16;
    match e.kind() {
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => Ok(()),
        _ if e.raw_os_error() == Some(EBUSY) => Ok(()),
        _ => Err(e),
    }
}

impl IoQueue for UringQueue {
    fn depth(&self) -> u32 {
        self.slots.len() as u32
    }

    fn in_flight(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
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
        self.enter(0).map_err(Self::fail)
    }

    fn wait(&mut self, min: u32, done: &mut dyn FnMut(Completion)) -> Result<u32, DeviceError> {
        let min = min.min(self.in_flight());
        let mut count = 0;
        loop {
            self.enter(min.saturating_sub(count) as usize).map_err(Self::fail)?;
            count += self.reap(done);
            if count >= min {
                break;
            }
        }
        if !self.again.is_empty() {
            self.enter(0).map_err(Self::fail)?;
        }
        Ok(count)
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        while self.in_flight() > 0 {
            if self.enter(1).is_err() {
                // The kernel may still write into the buffers: they must not be freed.
                for slot in &mut self.slots {
                    std::mem::forget(slot.buf.take());
                }
                return;
            }
            self.reap(&mut drop);
        }
        // The kernel takes a ring down some time after it was closed, and would hold the file, and with it the
        // writer's lock, until then. A failure here means just that.
        let _late_at_worst = self.ring.submitter().unregister_files();
    }
}
