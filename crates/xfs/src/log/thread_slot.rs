//! A small number for each thread, so that threads spread over shards and stay in theirs.
//!
//! Invariant: no two living threads have the same number. A thread that ends gives its number back, and the next thread
//! gets the lowest free one. So numbers stay below the maximum of threads that have lived at the same time.

#[cfg(not(shuttle))]
mod numbers {
    use std::collections::BTreeSet;
    use std::sync::{Mutex, PoisonError};

    static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers { free: BTreeSet::new(), next: 0 });

    struct Numbers {
        free: BTreeSet<usize>,
        next: usize,
    }

    struct Slot(usize);

    impl Slot {
        fn take() -> Self {
            let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
            Self(numbers.free.pop_first().unwrap_or_else(|| {
                numbers.next += 1;
                numbers.next - 1
            }))
        }
    }

    impl Drop for Slot {
        fn drop(&mut self) {
            NUMBERS.lock().unwrap_or_else(PoisonError::into_inner).free.insert(self.0);
        }
    }

    thread_local! {
        static SLOT: Slot = Slot::take();
    }

    /// This thread's number.
    pub(crate) fn current() -> usize {
        // During thread teardown any shard will do.
        SLOT.try_with(|slot| slot.0).unwrap_or(0)
    }
}

#[cfg(shuttle)]
mod numbers {
    /// This thread's number.
    pub(crate) fn current() -> usize {
        shuttle::thread::current().id().into()
    }
}

pub(crate) use numbers::current;

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::current;
    use std::collections::HashSet;
    use std::sync::Barrier;

    #[test]
    fn living_threads_differ_and_ended_ones_give_back() {
        let barrier = Barrier::new(8);
        let round = || -> HashSet<usize> {
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..8)
                    .map(|_| {
                        scope.spawn(|| {
                            let slot = current();
                            barrier.wait();
                            slot
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            })
        };
        for _ in 0..50 {
            let slots = round();
            assert_eq!(slots.len(), 8);
            // Other tests run at the same time and have threads too.
            assert!(slots.iter().all(|&slot| slot < 200), "{slots:?}");
        }
    }
}
