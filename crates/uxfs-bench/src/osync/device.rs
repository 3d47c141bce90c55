//! A bare device: writes, and flushes that threads share in a way that can be chosen.

use super::drive::{Plain, Port, Target};
use super::held::Held;
use crate::error::{Error, Result};
use crate::target::Label;
use blockdev::{BlockDevice, DeviceError, Durability, Layer};
use fileio::{FlushDevice, Flushing};
use parking_lot::Mutex;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// In reports, what is written to a device without a file system.
pub(super) const OP: &str = "device write";

/// A device whose flushes take their time, one after the other, as those of disks do.
#[derive(Debug)]
pub(super) struct SlowFlush {
    below: Arc<dyn BlockDevice>,
    latency: Duration,
    one_at_a_time: Mutex<()>,
}

impl SlowFlush {
    pub(super) fn new(below: Arc<dyn BlockDevice>, latency: Duration) -> Self {
        Self { below, latency, one_at_a_time: Mutex::new(()) }
    }
}

impl Layer for SlowFlush {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.below
    }

    fn pass_flush(&self) -> Result<(), DeviceError> {
        let _turn = self.one_at_a_time.lock();
        // A thread may be woken up to this much later than it asked for: by default half of the shortest flush.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        std::thread::sleep(self.latency);
        self.below.flush()
    }

    fn pass_fua(&self) -> bool {
        // What a durable write takes is not modelled.
        false
    }
}

/// Each thread writes and asks for a flush.
pub(super) struct BareDevice {
    device: Arc<dyn BlockDevice>,
    label: Label,
    held: Arc<Mutex<Held>>,
}

impl BareDevice {
    pub(super) fn new(
        device: &Arc<dyn BlockDevice>,
        name: &str,
        flushing: Flushing,
        held: &Arc<Mutex<Held>>,
    ) -> Self {
        Self {
            device: Arc::new(FlushDevice::new(Arc::clone(device), flushing)),
            label: label(name, flushing.name()),
            held: Arc::clone(held),
        }
    }
}

fn label(name: &str, way: &str) -> Label {
    Label { target: "device".to_owned(), device: name.to_owned(), locking: Some(way.to_owned()) }
}

impl Target for BareDevice {
    fn label(&self) -> &Label {
        &self.label
    }

    fn op(&self) -> &'static str {
        OP
    }

    fn held(&self) -> Arc<Mutex<Held>> {
        Arc::clone(&self.held)
    }

    fn ports<'a>(&'a self, threads: usize) -> Result<Vec<Box<dyn Port + 'a>>> {
        let port = |_| {
            Box::new(Plain(|offset, buf: &[u8]| {
                self.device.write(offset, buf, Durability::Volatile)?;
                Ok(self.device.flush()?)
            })) as Box<dyn Port + 'a>
        };
        Ok((0..threads).map(port).collect())
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        Ok(self.device.read(offset, buf)?)
    }
}

/// The best possible with one flush a round: all threads write, one of them flushes for all, and all continue.
pub(super) struct Rounds {
    device: Arc<dyn BlockDevice>,
    label: Label,
    held: Arc<Mutex<Held>>,
}

impl Rounds {
    /// The name of this way in reports.
    pub(super) const NAME: &str = "one-flush-a-round";

    pub(super) fn new(device: &Arc<dyn BlockDevice>, name: &str, held: &Arc<Mutex<Held>>) -> Self {
        Self { device: Arc::clone(device), label: label(name, Self::NAME), held: Arc::clone(held) }
    }
}

/// What the threads of a round agree on.
struct Round<'a> {
    device: &'a dyn BlockDevice,
    barrier: Barrier,
    /// A write has failed.
    has_failed: AtomicBool,
    /// One has failed, or the time is over: changed between the barriers alone, and looked at behind both.
    is_last: AtomicBool,
}

struct RoundPort<'a>(Arc<Round<'a>>);

impl Port for RoundPort<'_> {
    fn write(&mut self, offset: u64, buf: &[u8], is_over: &dyn Fn() -> bool) -> Result<bool> {
        let round = &*self.0;
        let mut outcome = round.device.write(offset, buf, Durability::Volatile).map_err(Error::from);
        // A thread that fails still reaches both barriers, or the others would wait for ever.
        if outcome.is_err() {
            round.has_failed.store(true, Ordering::SeqCst);
        }
        if round.barrier.wait().is_leader() {
            outcome = outcome.and(round.device.flush().map_err(Error::from));
            if outcome.is_err() || round.has_failed.load(Ordering::SeqCst) || is_over() {
                round.is_last.store(true, Ordering::SeqCst);
            }
        }
        round.barrier.wait();
        outcome.map(|()| !round.is_last.load(Ordering::SeqCst))
    }
}

impl Target for Rounds {
    fn label(&self) -> &Label {
        &self.label
    }

    fn op(&self) -> &'static str {
        OP
    }

    fn held(&self) -> Arc<Mutex<Held>> {
        Arc::clone(&self.held)
    }

    fn ports<'a>(&'a self, threads: usize) -> Result<Vec<Box<dyn Port + 'a>>> {
        let round = Arc::new(Round {
            device: &*self.device,
            barrier: Barrier::new(threads),
            has_failed: AtomicBool::new(false),
            is_last: AtomicBool::new(false),
        });
        Ok((0..threads).map(|_| Box::new(RoundPort(Arc::clone(&round))) as Box<dyn Port + 'a>).collect())
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        Ok(self.device.read(offset, buf)?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::WRITE_BYTES;
    use super::super::drive::{bytes, measure};
    use super::*;
    use blockdev::{Counter, Fault, FaultDevice, MemoryDevice, Op};

    const THREADS: usize = 5;

    fn memory() -> Arc<dyn BlockDevice> {
        Arc::new(MemoryDevice::anonymous(bytes(THREADS)).expect("memory"))
    }

    #[test]
    fn one_flush_a_round_is_just_that() {
        let counter = Arc::new(Counter::new(memory()));
        let device: Arc<dyn BlockDevice> = counter.clone();
        let rounds = Rounds::new(&device, "memory", &Arc::default());
        measure(&rounds, THREADS, Duration::from_millis(2)).expect("it runs");
        let counts = counter.counts();
        assert!(counts.flushes > 0 && counts.writes == THREADS as u64 * counts.flushes, "{counts:?}");
        assert_eq!(counts.written_bytes, counts.writes * WRITE_BYTES as u64);
    }

    #[test]
    fn each_write_is_flushed() {
        let counter = Arc::new(Counter::new(memory()));
        let device: Arc<dyn BlockDevice> = counter.clone();
        for flushing in [Flushing::Serialized, Flushing::Concurrent] {
            let before = counter.counts();
            let target = BareDevice::new(&device, "memory", flushing, &Arc::default());
            measure(&target, THREADS, Duration::from_millis(2)).expect("it runs");
            let counts = counter.counts();
            assert_eq!(counts.flushes - before.flushes, counts.writes - before.writes, "{flushing}");
        }
        let before = counter.counts();
        let target = BareDevice::new(&device, "memory", Flushing::Shared, &Arc::default());
        measure(&target, 1, Duration::from_millis(2)).expect("it runs");
        let counts = counter.counts();
        assert_eq!(counts.flushes - before.flushes, counts.writes - before.writes, "a thread alone");
    }

    /// The others would wait for ever if a failing thread left.
    #[test]
    fn a_write_or_a_flush_that_fails_ends_the_run() {
        for fault in [Fault::fail(Op::Write, 7), Fault::fail(Op::Flush, 2)] {
            let device: Arc<dyn BlockDevice> = Arc::new(FaultDevice::new(memory(), vec![fault]));
            let rounds = Rounds::new(&device, "memory", &Arc::default());
            let outcome = measure(&rounds, THREADS, Duration::from_secs(60));
            assert!(matches!(outcome, Err(Error::Device(_))));
        }
    }

    /// A flush takes the requested time, and flushes do not overlap.
    #[test]
    fn modelled_flushes_take_turns() {
        let latency = Duration::from_millis(5);
        let device = SlowFlush::new(memory(), latency);
        let start = std::time::Instant::now();
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(|| device.flush().expect("memory"))));
        });
        assert!(start.elapsed() >= 4 * latency);
    }
}
