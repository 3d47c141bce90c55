//! How threads that wait for a device's flush share it. There are several designs, so that they can be compared.

#[cfg(all(test, shuttle))]
mod models;
mod shared;

pub use shared::SharedFlush;

use blockdev::{BlockDevice, DeviceError, Durability, IoQueue, Layer};
use lockstat::{LockClass, Mode};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

/// How often a thread that waits for the last flushes checks whether they have ended.
const LOOK_EVERY: Duration = Duration::from_millis(1);

static FLUSH: LockClass = LockClass::new("flush");

/// How concurrent flushes of one device are carried out. All but [`Shared`](Self::Shared) exist for comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Flushing {
    /// One per caller, one after the other under a lock, as older kernels did.
    Serialized,
    /// One per caller, concurrently: the device gets as many as there are threads.
    Concurrent,
    /// One for all that wait ([`SharedFlush`]); one per caller if flushes cost nothing
    /// ([`has_write_cache`](BlockDevice::has_write_cache)).
    #[default]
    Shared,
}

impl Flushing {
    /// All designs, the oldest first.
    pub const ALL: [Self; 3] = [Self::Serialized, Self::Concurrent, Self::Shared];

    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Serialized => "serialized",
            Self::Concurrent => "concurrent",
            Self::Shared => "shared-flush",
        }
    }
}

impl fmt::Display for Flushing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The name of no design.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no way to flush is called {0:?} (there are serialized, concurrent, shared-flush)")]
pub struct UnknownFlushing(String);

impl FromStr for Flushing {
    type Err = UnknownFlushing;

    fn from_str(name: &str) -> Result<Self, UnknownFlushing> {
        Self::ALL.into_iter().find(|way| way.name() == name).ok_or_else(|| UnknownFlushing(name.to_owned()))
    }
}

/// A device whose flushes are carried out in one of these ways, by whoever asks for them: files, and a journal.
///
/// ```
/// use blockdev::{BlockDevice, MemoryDevice};
/// use fileio::{FlushDevice, Flushing};
/// use std::sync::Arc;
/// # fn main() -> Result<(), blockdev::DeviceError> {
/// let device = FlushDevice::new(Arc::new(MemoryDevice::anonymous(1 << 20)?), Flushing::Shared);
/// device.flush()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct FlushDevice {
    inner: Arc<dyn BlockDevice>,
    flushing: Flushing,
    /// Whether a flush costs nothing, so that sharing one would cost more.
    is_free: bool,
    one_at_a_time: Mutex<()>,
    shared: SharedFlush,
    /// Whether no more flushes begin.
    has_ended: AtomicBool,
    /// Flushes that somebody waits for, if they cost something.
    under_way: AtomicU64,
    /// The error of the first failed flush.
    failed: OnceLock<DeviceError>,
}

impl FlushDevice {
    /// `inner`, whose flushes are carried out in this way.
    pub fn new(inner: Arc<dyn BlockDevice>, flushing: Flushing) -> Self {
        let is_free = !inner.has_write_cache();
        Self {
            inner,
            flushing,
            is_free,
            one_at_a_time: Mutex::default(),
            shared: SharedFlush::default(),
            has_ended: AtomicBool::new(false),
            under_way: AtomicU64::new(0),
            failed: OnceLock::new(),
        }
    }

    /// Waits until all flushes that somebody waits for have ended. Later ones are refused ([`DeviceError::Ended`])
    /// without asking the device.
    ///
    /// # Errors
    /// The error of the first failed flush ever: the system reports it once, and perhaps did so to another caller.
    pub fn end(&self) -> Result<(), DeviceError> {
        self.has_ended.store(true, Ordering::SeqCst);
        while self.under_way.load(Ordering::SeqCst) > 0 {
            std::thread::sleep(LOOK_EVERY);
        }
        self.failed.get().map_or(Ok(()), |error| Err(error.again()))
    }

    fn flush_counted(&self) -> Result<(), DeviceError> {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let _one_less = OneLess(&self.under_way);
        if self.has_ended.load(Ordering::SeqCst) {
            return Err(DeviceError::Ended);
        }
        let flushed = match self.flushing {
            Flushing::Serialized => self.flush_alone(),
            Flushing::Concurrent => self.inner.flush(),
            Flushing::Shared => self.shared.flush(|| self.inner.flush()),
        };
        flushed.inspect_err(|error| {
            let _first = self.failed.set(error.again());
        })
    }

    fn flush_alone(&self) -> Result<(), DeviceError> {
        let lock = &self.one_at_a_time;
        let attempt = || match lock.try_lock() {
            Ok(held) => Some(held),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let _held =
            FLUSH.lock(Mode::Exclusive, attempt, || lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.inner.flush()
    }
}

/// Decrements when dropped, also by a panic.
struct OneLess<'a>(&'a AtomicU64);

impl Drop for OneLess<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Layer for FlushDevice {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.inner
    }

    fn pass_flush(&self) -> Result<(), DeviceError> {
        match self.flushing == Flushing::Shared && self.is_free {
            // A flush that does nothing need not be waited for.
            true => self.inner.flush(),
            false => self.flush_counted(),
        }
    }

    fn pass_write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        self.inner.write(offset, buf, durability)
    }

    fn pass_queue(self: Arc<Self>, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        Arc::clone(&self.inner).queue(depth)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use blockdev::{Counter, Delay, DelayDevice, Fault, FaultDevice, MemoryDevice, Op, Repeat};
    use std::thread;

    const THREADS: usize = 8;

    #[test]
    fn names_lead_back() {
        for way in Flushing::ALL {
            assert_eq!(way.to_string().parse(), Ok(way));
        }
        assert!("jbd".parse::<Flushing>().unwrap_err().to_string().contains("shared-flush"));
        assert_eq!(Flushing::default(), Flushing::Shared);
    }

    fn memory() -> Arc<dyn BlockDevice> {
        Arc::new(MemoryDevice::anonymous(1 << 20).unwrap())
    }

    /// How many flushes a device carries out concurrently, and in total, for threads that each ask for one while it is
    /// held.
    fn counted(flushing: Flushing) -> (usize, u64) {
        let counter = Arc::new(Counter::new(memory()));
        let delay = Arc::new(DelayDevice::new(counter.clone()));
        let device = FlushDevice::new(delay.clone(), flushing);
        delay.set(Op::Flush, Delay::Held);
        let at_once = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| device.flush().unwrap())).collect();
            let expected = if flushing == Flushing::Concurrent { THREADS } else { 1 };
            delay.wait_until_waiting(Op::Flush, expected);
            while flushing == Flushing::Shared && device.shared.gathered() as usize != THREADS - 1 {
                thread::yield_now();
            }
            let at_once = delay.waiting(Op::Flush);
            delay.set(Op::Flush, Delay::None);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            at_once
        });
        (at_once, counter.counts().flushes)
    }

    #[test]
    fn each_way_asks_the_device_as_it_says() {
        assert_eq!(counted(Flushing::Serialized), (1, THREADS as u64));
        assert_eq!(counted(Flushing::Concurrent), (THREADS, THREADS as u64));
        assert_eq!(counted(Flushing::Shared), (1, 2));
    }

    #[test]
    fn a_failure_comes_through_and_a_device_without_a_flush_is_none() {
        for way in Flushing::ALL {
            // Anonymous memory has nothing to flush.
            FlushDevice::new(memory(), way).flush().unwrap();
            let fault = Fault::fail(Op::Flush, 1).then(Repeat::Sticky);
            let device = FlushDevice::new(Arc::new(FaultDevice::new(memory(), vec![fault])), way);
            device.flush().unwrap();
            assert!(device.flush().is_err() && device.flush().is_err(), "{way}");
        }
    }
}
