//! A device that makes nothing durable until the work is finished. Threads of its own write it.
//!
//! For something new that nobody uses yet: if the host crashes, it is made again. Invariants: writes reach the device
//! below in the order in which they came, and a read waits for all before it; only after [`Deferred::finish`] is
//! anything known to be durable, and then everything is; the next request reports a failure, and so do all after it
//! ([`DeviceError::Failed`]); one thread at a time flushes the device below, since it may report a loss only once;
//! after a failure, the device below is left alone.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::caught::caught;
use crate::{AlignedBuf, BlockDevice, DeviceError, Durability, Layer};

/// Bytes that wait to be written before the thread is woken, and before a writer has to wait.
const WAKE_BYTES: usize = 256 << 10;
const WAITING_BYTES_MAX: usize = 8 << 20;

/// A device whose flushes wait for [`finish`](Self::finish). Meant for one that is reached through the page cache.
#[derive(Debug)]
pub struct Deferred {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    inner: Arc<dyn BlockDevice>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<(u64, AlignedBuf)>,
    bytes: usize,
    /// Writes are under way.
    writing: bool,
    /// Somebody waits for all writes.
    hurry: bool,
    /// What was written should start on its way to stable storage.
    flush: bool,
    /// A flush is in progress.
    flushing: bool,
    /// Somebody waits to make the final flush.
    finishing: bool,
    failed: Option<DeviceError>,
    ended: bool,
}

impl Deferred {
    /// Defers the flushes of `inner`.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Self {
        let shared = Arc::new(Shared { inner, state: Mutex::default(), changed: Condvar::new() });
        let (writer, flusher) = (Arc::clone(&shared), Arc::clone(&shared));
        let threads =
            vec![std::thread::spawn(move || writer.write()), std::thread::spawn(move || flusher.flush())];
        Self { shared, threads }
    }

    /// Makes everything durable that was written before.
    pub fn finish(&self) -> Result<(), DeviceError> {
        let mut state = self.shared.drained()?;
        while state.flushing {
            state.finishing = true;
            state = self.shared.wait(state);
        }
        state.finishing = false;
        // An early flush may have been the one that got the error.
        state.check()?;
        self.shared.flush_below(state).check()
    }

    /// The first failure, if there was one.
    pub fn failure(&self) -> Option<DeviceError> {
        self.shared.lock().check().err()
    }

    /// Waits until no request to the device below is in progress, whether it fails or not.
    pub fn settle(&self) {
        let mut state = match self.shared.drained() {
            Ok(state) => state,
            Err(_told_by_whatever_was_asked_for) => self.shared.lock(),
        };
        while state.flushing {
            state = self.shared.wait(state);
        }
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has recorded it.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nothing waits to be written.
    fn drained(&self) -> Result<MutexGuard<'_, State>, DeviceError> {
        let mut state = self.lock();
        while !state.waiting.is_empty() || state.writing {
            state.hurry = true;
            self.changed.notify_all();
            state = self.wait(state);
        }
        state.hurry = false;
        state.check()?;
        Ok(state)
    }

    /// Writes what comes until the end.
    fn write(&self) {
        let mut state = self.lock();
        loop {
            if state.waiting.is_empty() && state.ended {
                return;
            }
            if state.waiting.is_empty() || !(state.hurry || state.ended || state.bytes >= WAKE_BYTES) {
                state = self.wait(state);
                continue;
            }
            let batch = std::mem::take(&mut state.waiting);
            (state.bytes, state.writing) = (0, true);
            drop(state);
            let mut written = Ok(());
            for (offset, buf) in batch {
                written = written.and_then(|()| {
                    let write = || self.inner.write(offset, &buf, Durability::Volatile);
                    caught("write", offset, buf.len(), write)
                });
            }
            state = self.lock();
            state.writing = false;
            state.note(written);
            self.changed.notify_all();
        }
    }

    /// Starts writing back early, so that little is left for the end.
    fn flush(&self) {
        let mut state = self.lock();
        while !state.ended {
            if state.flushing || state.finishing || !std::mem::take(&mut state.flush) {
                state = self.wait(state);
                continue;
            }
            state = self.flush_below(state);
        }
    }

    /// Flushes the device below. Nobody else does so at the same time.
    fn flush_below<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        (state.flushing, state.flush) = (true, false);
        drop(state);
        let flushed = caught("flush", 0, 0, || self.inner.flush());
        state = self.lock();
        state.flushing = false;
        state.note(flushed);
        self.changed.notify_all();
        state
    }
}

impl State {
    fn note(&mut self, outcome: Result<(), DeviceError>) {
        if let Err(error) = outcome {
            self.failed.get_or_insert(error);
            self.waiting.clear();
            (self.bytes, self.flush) = (0, false);
        }
    }

    fn check(&self) -> Result<(), DeviceError> {
        self.failed.as_ref().map_or(Ok(()), |failed| Err(DeviceError::Failed(failed.to_string())))
    }
}

impl Layer for Deferred {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.shared.inner
    }

    fn pass_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        drop(self.shared.drained()?);
        self.shared.inner.read(offset, buf)
    }

    fn pass_write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        crate::blocking::check_push(self, crate::blocking::Verb::Write(durability), offset, buf.len())?;
        let copy = AlignedBuf::copied(buf);
        let mut state = self.shared.lock();
        while state.bytes >= WAITING_BYTES_MAX {
            state = self.shared.wait(state);
        }
        state.check()?;
        let before = state.bytes;
        state.bytes += buf.len();
        state.waiting.push((offset, copy));
        if before < WAKE_BYTES && state.bytes >= WAKE_BYTES {
            self.shared.changed.notify_all();
        }
        Ok(())
    }

    fn pass_flush(&self) -> Result<(), DeviceError> {
        let mut state = self.shared.lock();
        state.check()?;
        state.flush = true;
        self.shared.changed.notify_all();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counter, Fault, FaultDevice, HoldDevice, MemoryDevice, Op, Repeat};

    fn memory() -> Arc<dyn BlockDevice> {
        Arc::new(MemoryDevice::anonymous(1 << 20).unwrap())
    }

    #[test]
    fn what_was_written_is_read_and_durable_in_the_end() {
        let counter = Arc::new(Counter::new(memory()));
        let device = Arc::new(Deferred::new(Arc::clone(&counter) as Arc<dyn BlockDevice>));
        for nth in 0..1000_u64 {
            device.write(nth % 7 * 512, &[nth as u8; 512], Durability::Fua).unwrap();
        }
        let mut queue = Arc::clone(&device).queue(4).unwrap();
        queue.push_write(7 * 512, AlignedBuf::zeroed(512), Durability::Fua, 0).unwrap();
        queue.wait(1, &mut |over| over.result.unwrap()).unwrap();
        let mut sector = [0; 512];
        for last in 993..1000_u64 {
            device.read(last % 7 * 512, &mut sector).unwrap();
            assert_eq!(sector, [last as u8; 512]);
        }
        assert_eq!((counter.counts().writes, counter.counts().fua_writes), (1001, 0));
        device.finish().unwrap();
        assert!(counter.counts().flushes > 0);
    }

    #[test]
    fn what_a_hint_was_told_is_told_in_the_end() {
        // The device reports a loss once: to the flush that began first and ends last.
        let faulty = FaultDevice::new(memory(), vec![Fault::fail(Op::Flush, 0)]);
        let below = Arc::new(HoldDevice::new(Arc::new(faulty)));
        below.hold_next(|op, _| op == Op::Flush);
        let device = Deferred::new(Arc::clone(&below) as Arc<dyn BlockDevice>);
        device.write(0, &[1; 512], Durability::Volatile).unwrap();
        device.flush().unwrap();
        below.wait_until_waiting();
        std::thread::scope(|scope| {
            let finish = scope.spawn(|| device.finish());
            // The early flush gets the error only when no one else can.
            while !finish.is_finished() && !device.shared.lock().finishing {
                std::thread::yield_now();
            }
            below.release();
            let error = finish.join().unwrap().expect_err("data were lost");
            assert_eq!(error.to_string(), "flush of 0 bytes at byte 0 failed: a planned fault");
        });
        assert!(device.finish().is_err());
    }

    #[test]
    fn a_failed_write_is_told_by_all_that_follows() {
        let fault = Fault::fail(Op::Write, 2).then(Repeat::Once);
        let device = Deferred::new(Arc::new(FaultDevice::new(memory(), vec![fault])));
        for nth in 0..4_u64 {
            device.write(nth * 512, &[1; 512], Durability::Volatile).unwrap();
        }
        assert!(device.read(0, &mut [0; 512]).is_err());
        assert!(device.write(0, &[1; 512], Durability::Volatile).is_err());
        assert!(device.flush().is_err());
        assert!(device.finish().is_err());
    }

    /// What arrived while a failing batch was being written was written nevertheless.
    #[test]
    fn nothing_goes_to_a_device_that_has_failed() {
        let counter = Arc::new(Counter::new(memory()));
        let fault = Fault::fail(Op::Write, 1).then(Repeat::Once);
        let faulty = Arc::new(FaultDevice::new(counter.clone(), vec![fault]));
        let hold = Arc::new(HoldDevice::new(faulty));
        hold.hold_next(|op, _| op == Op::Write);
        let device = Deferred::new(hold.clone());
        let batch = vec![1; WAKE_BYTES / 2];
        device.write(0, &batch, Durability::Volatile).unwrap();
        device.write(1 << 18, &batch, Durability::Volatile).unwrap();
        hold.wait_until_waiting();
        // The next batch.
        (0..4_u64).for_each(|nth| device.write(nth << 18, &batch, Durability::Volatile).unwrap());
        hold.release();
        let error = device.finish().expect_err("it failed");
        assert!(error.to_string().contains("a planned fault"), "{error}");
        assert!(device.flush().is_err() && device.write(0, &[1; 512], Durability::Volatile).is_err());
        device.settle();
        drop(device);
        let counts = counter.counts();
        assert_eq!((counts.writes, counts.flushes), (1, 0), "what came before the failure, alone");
    }

    #[derive(Debug)]
    struct Panics {
        op: Op,
        inner: Arc<dyn BlockDevice>,
    }

    impl Layer for Panics {
        fn below(&self) -> &Arc<dyn BlockDevice> {
            &self.inner
        }

        fn pass_write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
            assert!(self.op != Op::Write, "a device that panics");
            self.inner.write(offset, buf, durability)
        }

        fn pass_flush(&self) -> Result<(), DeviceError> {
            assert!(self.op != Op::Flush, "a device that panics");
            self.inner.flush()
        }
    }

    /// The thread was gone, and everyone waited for it.
    #[test]
    fn a_panic_of_the_device_below_is_told_by_all_that_follows() {
        for op in [Op::Write, Op::Flush] {
            let (ends, ended) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let device = Deferred::new(Arc::new(Panics { op, inner: memory() }));
                device.write(0, &[1; 512], Durability::Volatile).unwrap();
                device.flush().unwrap();
                let error = device.finish().expect_err("nothing is durable");
                assert!(error.to_string().ends_with("the device panicked"), "{error}");
                assert!(device.read(0, &mut [0; 512]).is_err());
                assert!(device.write(0, &[1; 512], Durability::Volatile).is_err());
                device.settle();
                drop(device);
                ends.send(()).expect("somebody waits");
            });
            ended.recv_timeout(std::time::Duration::from_secs(60)).expect("nobody waits for ever");
        }
    }
}
