//! Models of the shared flush, run under the schedules of a random scheduler: `RUSTFLAGS="--cfg shuttle" cargo test -p
//! uxfs-fileio --lib models`. Failing schedules are printed and can be replayed (`shuttle::replay`).

use super::SharedFlush;
use blockdev::DeviceError;
use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shuttle::thread;
use std::sync::Arc;

const THREADS: usize = 3;
const ROUNDS: u64 = 3;

/// A device with a number for each thread: what was last written, and what is durable.
#[derive(Default)]
struct Numbers {
    volatile: [AtomicU64; THREADS],
    durable: [AtomicU64; THREADS],
    in_flight: AtomicBool,
    flushes: AtomicU64,
    /// The flush that fails, from 1 on; 0 for none.
    fails: u64,
}

impl Numbers {
    fn flush(&self) -> Result<(), DeviceError> {
        assert!(!self.in_flight.swap(true, Ordering::SeqCst), "two flushes at once");
        let nth = self.flushes.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(self.fails == 0 || nth <= self.fails, "asked again after a failure");
        let written: Vec<u64> = self.volatile.iter().map(|number| number.load(Ordering::SeqCst)).collect();
        thread::yield_now();
        let outcome =
            if nth == self.fails { Err(DeviceError::Failed("as planned".to_owned())) } else { Ok(()) };
        if outcome.is_ok() {
            for (number, written) in self.durable.iter().zip(written) {
                number.store(written, Ordering::SeqCst);
            }
        }
        self.in_flight.store(false, Ordering::SeqCst);
        outcome
    }
}

fn check(iterations: usize, model: impl Fn() + Send + Sync + 'static) {
    let model = Arc::new(model);
    let again = Arc::clone(&model);
    shuttle::check_random(move || model(), iterations);
    shuttle::check_pct(move || again(), iterations, 3);
}

/// Lets threads write and flush over and over. Returns the device, and how often one was told of a failure.
fn written_and_flushed(fails: u64) -> (Arc<Numbers>, u64) {
    let (shared, device) =
        (Arc::new(SharedFlush::default()), Arc::new(Numbers { fails, ..Numbers::default() }));
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (shared, device) = (Arc::clone(&shared), Arc::clone(&device));
            thread::spawn(move || {
                let mut failures = 0;
                for round in 1..=ROUNDS {
                    device.volatile[thread].store(round, Ordering::SeqCst);
                    match shared.flush(|| device.flush()) {
                        Ok(()) => {
                            assert_eq!(failures, 0, "well again after a failure");
                            assert_eq!(
                                device.durable[thread].load(Ordering::SeqCst),
                                round,
                                "told too early"
                            );
                        }
                        Err(_) => failures += 1,
                    }
                }
                failures
            })
        })
        .collect();
    let failures = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    (device, failures)
}

#[test]
fn models_whoever_is_told_so_has_his_write_flushed() {
    check(5000, || {
        let (device, failures) = written_and_flushed(0);
        assert_eq!(failures, 0);
        let flushes = device.flushes.load(Ordering::SeqCst);
        assert!((ROUNDS..=ROUNDS * THREADS as u64).contains(&flushes), "{flushes} flushes");
    });
}

#[test]
fn models_a_failed_flush_is_told_to_all_that_it_served() {
    for fails in 1..=ROUNDS {
        check(2000, move || {
            let (_, failures) = written_and_flushed(fails);
            assert!(failures > 0, "nobody was told");
        });
    }
}
