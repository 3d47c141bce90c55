//! Threads that read nearly always, of a bucket that is biased to readers again and again, and give their holds back
//! in whatever thread; an atomic a byte says who is there.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::task::Waker;
use std::thread;

use super::{RangeLock, RangeToken};
use crate::Mode;

const BYTES: u64 = File::BYTES;
const STEPS: u64 = 20_000;

/// A small generator; each thread's seed is its number.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Above 0: so many readers; -1: a writer.
#[derive(Default)]
pub(super) struct File([AtomicI32; Self::BYTES as usize]);

impl File {
    pub(super) const BYTES: u64 = 8;

    fn bytes(&self, range: &Range<u64>) -> &[AtomicI32] {
        &self.0[range.start as usize..range.end as usize]
    }

    // Relaxed: the lock under test has to provide the order.
    pub(super) fn enter(&self, range: &Range<u64>, mode: Mode) {
        for byte in self.bytes(range) {
            match mode {
                Mode::Exclusive => assert_eq!(byte.swap(-1, Ordering::Relaxed), 0, "a writer is not alone"),
                Mode::Shared => {
                    assert!(byte.fetch_add(1, Ordering::Relaxed) >= 0, "a reader beside a writer")
                }
            }
        }
    }

    pub(super) fn leave(&self, range: &Range<u64>, mode: Mode) {
        for byte in self.bytes(range) {
            match mode {
                Mode::Exclusive => assert_eq!(byte.swap(0, Ordering::Relaxed), -1),
                Mode::Shared => assert!(byte.fetch_sub(1, Ordering::Relaxed) > 0),
            }
        }
    }
}

#[derive(Default)]
struct Scene {
    lock: RangeLock,
    file: File,
    /// Shared holds that nobody in particular gives back.
    left: Mutex<Vec<RangeToken>>,
    visible: AtomicU64,
}

impl Scene {
    fn take(&self, random: &mut Random) -> Option<RangeToken> {
        let start = random.below(BYTES);
        let end = start + 1 + random.below(BYTES - start);
        let mode = if random.below(40) == 0 { Mode::Exclusive } else { Mode::Shared };
        // Who waits holds nothing, as those in line may wait for what was left.
        match random.below(3) {
            0 => match self.lock.acquire_or_notify(start..end, mode, Waker::noop()) {
                Ok(token) => Some(token),
                Err(mut pending) => {
                    self.give_back_one();
                    pending.try_finish()
                }
            },
            _ => self.lock.try_acquire(start..end, mode),
        }
    }

    fn give_back(&self, token: RangeToken) {
        self.file.leave(&token.range(), token.mode());
        self.lock.release(token);
    }

    fn give_back_one(&self) {
        let token = self.left.lock().unwrap().pop();
        token.into_iter().for_each(|token| self.give_back(token));
    }

    fn step(&self, random: &mut Random) {
        if random.below(20) == 0 {
            self.lock.table().buckets()[0].bias();
        }
        let Some(token) = self.take(random) else { return self.give_back_one() };
        self.file.enter(&token.range(), token.mode());
        if token.place.visible_entry().is_some() {
            self.visible.fetch_add(1, Ordering::Relaxed);
        }
        if token.mode() == Mode::Shared && random.below(4) == 0 {
            self.left.lock().unwrap().push(token);
            self.give_back_one();
        } else {
            self.give_back(token);
        }
    }
}

/// Has so many threads make all steps together, each with its own numbers.
pub(super) fn by_threads(threads: u64, step: impl Fn(&mut Random) + Sync) {
    thread::scope(|scope| {
        for thread in 0..threads {
            let step = &step;
            scope.spawn(move || {
                let mut random = Random(thread);
                (0..STEPS / threads).for_each(|_| step(&mut random));
            });
        }
    });
}

#[test]
fn visible_readers_and_writers_exclude_each_other() {
    for threads in [2, 4, 16] {
        let scene = Scene::default();
        by_threads(threads, |random| scene.step(random));
        assert!(scene.visible.load(Ordering::Relaxed) > STEPS / 10, "{threads} threads");
        while !scene.left.lock().unwrap().is_empty() {
            scene.give_back_one();
        }
        assert!(scene.lock.try_lock(0..u64::MAX, Mode::Exclusive).is_some());
    }
}

/// As above, but whoever cannot have a range waits for it.
#[test]
fn visible_readers_and_writers_who_wait() {
    for threads in [2, 4, 16] {
        let scene = Scene::default();
        by_threads(threads, |random| {
            if random.below(20) == 0 {
                scene.lock.table().buckets()[0].bias();
            }
            let mode = if random.below(20) == 0 { Mode::Exclusive } else { Mode::Shared };
            let token = scene.lock.acquire(0..1 + random.below(BYTES), mode);
            scene.file.enter(&token.range(), token.mode());
            if random.below(8) == 0 {
                thread::yield_now();
            }
            scene.give_back(token);
        });
        assert!(scene.lock.try_lock(0..u64::MAX, Mode::Exclusive).is_some());
    }
}
