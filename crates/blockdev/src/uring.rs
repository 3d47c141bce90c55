//! A submission queue on io_uring.
//!
//! Invariants:
//! - A slot that is taken owns its buffer until the kernel has given its completion: the buffer neither moves its
//!   bytes nor is freed before. Dropping the queue waits for that; should waiting fail, the buffers leak.
//! - Every submission entry names a taken slot, and a slot has at most one entry with the kernel.
//! - At most `depth` slots are taken, so neither ring overflows, and nothing is allocated per request.
//! - A transfer that the kernel did only in part is continued where it stopped, at a whole sector; one that it gave up
//!   because the thread that submitted it ended is begun again: a queue may change hands while requests are in flight.
//! - A durable write that the kernel cannot do in one request is a write and, behind it, a sync.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;

use crate::blocking::Verb;
use crate::file::FileDevice;
use crate::file::blocking_io::{Progress, has_no_flush, has_no_fua};
use crate::{AlignedBuf, BlockDevice, Completion, DeviceError, Durability, IoQueue};

/// `RWF_DSYNC`: the write is durable when it completes.
const RWF_DSYNC: i32 = 2;
/// Largest transfer asked of the kernel at once, in bytes; it does no more than 2 GiB less a page anyway.
const TRANSFER_MAX: usize = 1 << 30;
/// Index of the device's file among the ring's registered files.
const THE_FILE: types::Fixed = types::Fixed(0);

/// What a slot asks of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Read,
    Write,
    /// A write that is durable when it completes.
    WriteDurably,
    /// A write that a sync follows, as the kernel has no durable writes.
    WriteThenSync,
    Sync,
}

struct Slot {
    /// `Some` while the slot is taken.
    buf: Option<AlignedBuf>,
    step: Step,
    offset: u64,
    progress: Progress,
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
        let slot = || Slot { buf: None, step: Step::Read, offset: 0, progress: Progress::new(0, 1), tag: 0 };
        let slots = (0..depth).map(|_| slot()).collect();
        let free = (0..depth).rev().collect();
        Ok(Self { ring, slots, free, again: Vec::with_capacity(depth as usize), device })
    }

    fn push(&mut self, verb: Verb, offset: u64, buf: AlignedBuf, tag: u64) -> Result<(), DeviceError> {
        self.device.check(offset, buf.len(), verb != Verb::Read)?;
        let index = self.free.pop().ok_or(DeviceError::QueueFull)?;
        let step = match verb {
            Verb::Read => Step::Read,
            Verb::Write(Durability::Volatile) => Step::Write,
            Verb::Write(Durability::Fua) => Step::WriteDurably,
        };
        let progress = Progress::new(buf.len(), self.device.sector_size() as usize);
        self.slots[index as usize] = Slot { buf: Some(buf), step, offset, progress, tag };
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
        let done = slot.progress.done();
        let len = (buf.len() - done).min(TRANSFER_MAX) as u32;
        let at = slot.offset + done as u64;
        // SAFETY: `done` is at most the buffer's length.
        let from = unsafe { buf.as_raw().add(done) };
        let write = |flags| opcode::Write::new(THE_FILE, from, len).offset(at).rw_flags(flags).build();
        let entry = match slot.step {
            Step::Read => opcode::Read::new(THE_FILE, from, len).offset(at).build(),
            Step::Write | Step::WriteThenSync => write(0),
            Step::WriteDurably => write(RWF_DSYNC),
            Step::Sync => opcode::Fsync::new(THE_FILE).flags(types::FsyncFlags::DATASYNC).build(),
        };
        let entry = entry.user_data(u64::from(index));
        // SAFETY: the entry's buffer is owned by the slot, which is not emptied before its completion came; the
        // file is registered with the ring, which lives as long.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            // Cannot happen, as there are as many entries as slots. The request would only be late,
            // not lost.
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
        let slot = self.slots.get_mut(index)?;
        let len = slot.buf.as_ref()?.len();
        let outcome = slot.advance(result).map(|over| {
            let op = if slot.step == Step::Read { "read" } else { "write" };
            let over = over.map_err(|e| DeviceError::io(op, slot.offset, len, e));
            let is_durable = matches!(slot.step, Step::WriteDurably | Step::WriteThenSync | Step::Sync);
            if is_durable { self.device.flushes().of_queue(over) } else { over }
        });
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

impl Slot {
    /// Takes the kernel's result of the slot's entry. Gives the outcome, unless another entry has to be made.
    fn advance(&mut self, result: i32) -> Option<io::Result<()>> {
        match (usize::try_from(result), self.step) {
            (Ok(_), Step::Sync) => Some(Ok(())),
            (Ok(bytes), step) => {
                if !self.progress.advance(bytes) {
                    let kind = match step {
                        Step::Read => io::ErrorKind::UnexpectedEof,
                        _ => io::ErrorKind::WriteZero,
                    };
                    return Some(Err(kind.into()));
                }
                match (self.progress.is_over(), step) {
                    (false, _) => None,
                    (true, Step::WriteThenSync) => {
                        self.step = Step::Sync;
                        None
                    }
                    (true, _) => Some(Ok(())),
                }
            }
            (Err(_), step) => match (Errno::from_raw_os_error(result.wrapping_neg()), step) {
                // Cancelled, as the thread that submitted it ended. The thread that asks now submits
                // it again.
                (Errno::CANCELED | Errno::INTR | Errno::AGAIN, _) => None,
                (e, Step::WriteDurably) if has_no_fua(e) => {
                    self.step = Step::WriteThenSync;
                    None
                }
                (e, Step::Sync) if has_no_flush(e) => Some(Ok(())),
                (e, _) => Some(Err(e.into())),
            },
        }
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
        // What is over already needs no system call.
        let mut count = self.reap(done);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileOptions;

    const SECTOR: usize = 512;

    fn device() -> (tempfile::NamedTempFile, Arc<FileDevice>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let device = FileOptions::new().write(true).sector_size(SECTOR as u32).open(file.path()).unwrap();
        (file, Arc::new(device))
    }

    /// Lets the kernel finish the one request in flight, and has the queue take something else for its result.
    fn pretend(queue: &mut UringQueue, result: i32) -> Option<Completion> {
        queue.enter(1).unwrap();
        let entry = queue.ring.completion().next().expect("it is over");
        queue.advance(entry.user_data() as usize, result)
    }

    fn page(fill: u8) -> AlignedBuf {
        let mut buf = AlignedBuf::zeroed(4096);
        buf.fill(fill);
        buf
    }

    fn finish(queue: &mut UringQueue) -> Completion {
        let mut over = None;
        assert_eq!(queue.wait(1, &mut |completion| over = Some(completion)).unwrap(), 1);
        over.expect("one")
    }

    /// The kernel cancels the requests of a thread that ends, whoever owns the ring by then.
    #[test]
    fn what_was_given_up_is_begun_again() {
        let (_file, device) = device();
        let mut queue = UringQueue::new(Arc::clone(&device), 1).unwrap();
        for errno in [Errno::CANCELED, Errno::INTR, Errno::AGAIN] {
            queue.push_write(4096, page(3), Durability::Fua, 7).unwrap();
            assert!(pretend(&mut queue, -errno.raw_os_error()).is_none());
            device.write(4096, &page(0), Durability::Volatile).unwrap();
            let over = finish(&mut queue);
            assert!(over.result.is_ok() && over.tag == 7);
            let mut found = page(0);
            device.read(4096, &mut found).unwrap();
            assert!(*found == *page(3));
        }
    }

    #[test]
    fn what_was_done_in_part_goes_on_at_a_sector() {
        let (_file, device) = device();
        let mut queue = UringQueue::new(Arc::clone(&device), 1).unwrap();
        for part in [1, 511, 512, 1000, 4095] {
            queue.push_write(0, page(5), Durability::Volatile, 0).unwrap();
            assert!(pretend(&mut queue, part).is_none());
            // The bytes that the kernel did not report as done.
            let said = part as usize / SECTOR * SECTOR;
            let lost = &page(0)[said..];
            device.write(said as u64, lost, Durability::Volatile).unwrap();
            assert!(finish(&mut queue).result.is_ok());
            let mut found = page(0);
            device.read(0, &mut found).unwrap();
            assert!(*found == *page(5), "{part}");
        }
        queue.push_write(0, page(5), Durability::Volatile, 0).unwrap();
        assert!(pretend(&mut queue, 0).expect("over").result.is_err(), "nothing at all");
    }

    #[test]
    fn a_kernel_without_durable_writes_gets_a_write_and_a_sync() {
        let (_file, device) = device();
        let mut queue = UringQueue::new(Arc::clone(&device), 1).unwrap();
        for errno in [Errno::OPNOTSUPP, Errno::INVAL] {
            for flushes in [true, false] {
                queue.push_write(0, page(9), Durability::Fua, 0).unwrap();
                assert!(pretend(&mut queue, -errno.raw_os_error()).is_none());
                assert_eq!(queue.slots[0].step, Step::WriteThenSync);
                assert!(pretend(&mut queue, 4096).is_none());
                assert_eq!(queue.slots[0].step, Step::Sync);
                let over = match flushes {
                    true => finish(&mut queue),
                    false => pretend(&mut queue, -errno.raw_os_error()).expect("over"),
                };
                assert!(over.result.is_ok());
            }
        }
        queue.push_write(0, page(9), Durability::Volatile, 0).unwrap();
        let over = pretend(&mut queue, -Errno::INVAL.raw_os_error()).expect("over");
        assert!(over.result.is_err(), "one that need not be durable");
    }
}
