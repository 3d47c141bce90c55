//! Open handles: how many there are, and what log space is kept ready for the next ones.
//!
//! Each thread counts in its own slot, a cache line that others seldom write. A slot also keeps log space that its
//! handles gave back, up to a bound. The next handle takes it from there, so that starting and stopping a handle writes
//! only that line. For [`Grant`](super::grant::Grant) the kept space is still taken, but it belongs to nobody: whoever
//! finds no other space collects all of it ([`Handles::collect`]).
//!
//! The older design has one count of handles and one credit, under one lock: [`HandleCounts::Locked`].

use super::designs::HandleCounts;
use super::grant::LogSpace;
use super::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, Padded, lock_by};
use super::thread_slot;
use lockstat::{Counted, LockClass, Users};

static LOCKED: LockClass = LockClass::new("handles");

const SLOTS: usize = if cfg!(shuttle) { 2 } else { 64 };

/// The result of starting a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Started {
    /// It is counted but may not stay.
    TurnsBack,
    /// It still has to take its log space.
    Bare,
    /// It has what it claimed.
    Paid,
}

/// Handles and credit, in either design.
#[derive(Debug)]
pub(super) enum Handles {
    Striped(Box<[Padded<Slot>; SLOTS]>),
    Locked(Box<Padded<Locked>>),
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    open: AtomicU32,
    /// A [`LogSpace`].
    credit: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct Locked {
    counts: Mutex<Counts>,
    users: Users,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    open: u32,
    credit: LogSpace,
}

impl Handles {
    pub(super) fn new(design: HandleCounts) -> Self {
        match design {
            HandleCounts::Atomic => Self::Striped(Box::new(std::array::from_fn(|_| Padded::default()))),
            HandleCounts::Locked => Self::Locked(Box::default()),
        }
    }

    /// The slot of this thread.
    pub(super) fn slot() -> usize {
        thread_slot::current() % SLOTS
    }

    /// Counts one more handle. If then `may_stay` holds, it takes its claim from the slot, if that keeps enough.
    pub(super) fn start(
        &self,
        slot: usize,
        claim: Option<LogSpace>,
        may_stay: impl FnOnce() -> bool,
    ) -> Started {
        match self {
            Self::Striped(slots) => {
                let Padded(slot) = &slots[slot % SLOTS];
                slot.open.fetch_add(1, Ordering::SeqCst);
                match claim {
                    _ if !may_stay() => Started::TurnsBack,
                    Some(claim) if slot.take(claim) => Started::Paid,
                    _ => Started::Bare,
                }
            }
            Self::Locked(locked) => {
                let mut counts = locked.0.counts();
                counts.open += 1;
                match claim {
                    _ if !may_stay() => Started::TurnsBack,
                    Some(claim) if counts.take(claim) => Started::Paid,
                    _ => Started::Bare,
                }
            }
        }
    }

    /// Counts one handle less.
    pub(super) fn stop(&self, slot: usize) {
        match self {
            Self::Striped(slots) => {
                slots[slot % SLOTS].0.open.fetch_sub(1, Ordering::SeqCst);
            }
            Self::Locked(locked) => locked.0.counts().open -= 1,
        }
    }

    /// Whether any handle is open. Reliable only if the caller ensures that no handle that stays is started meanwhile.
    pub(super) fn are_open(&self) -> bool {
        match self {
            Self::Striped(slots) => slots.iter().any(|slot| slot.0.open.load(Ordering::SeqCst) != 0),
            Self::Locked(locked) => locked.0.counts().open != 0,
        }
    }

    /// Takes the claim from a slot, if it keeps enough.
    pub(super) fn take(&self, slot: usize, claim: LogSpace) -> bool {
        match self {
            Self::Striped(slots) => slots[slot % SLOTS].0.take(claim),
            Self::Locked(locked) => locked.0.counts().take(claim),
        }
    }

    /// Keeps what is given back, up to a total of `most` in each count. Returns the surplus.
    pub(super) fn keep(&self, slot: usize, space: LogSpace, most: u64) -> LogSpace {
        match self {
            Self::Striped(slots) => slots[slot % SLOTS].0.keep(space, most),
            Self::Locked(locked) => locked.0.counts().keep(space, most),
        }
    }

    /// What all slots keep.
    pub(super) fn kept(&self) -> LogSpace {
        match self {
            Self::Striped(slots) => {
                let credits =
                    slots.iter().map(|slot| LogSpace::of_word(slot.0.credit.load(Ordering::SeqCst)));
                credits.fold(LogSpace::default(), LogSpace::plus)
            }
            Self::Locked(locked) => locked.0.counts().credit,
        }
    }

    /// Takes what all slots keep.
    pub(super) fn collect(&self) -> LogSpace {
        match self {
            Self::Striped(slots) => {
                let credits = slots.iter().map(|slot| &slot.0.credit);
                let of = |credit: &AtomicU64| match credit.load(Ordering::SeqCst) {
                    // Do not write: its owner keeps the cache line.
                    0 => LogSpace::default(),
                    _ => LogSpace::of_word(credit.swap(0, Ordering::SeqCst)),
                };
                credits.map(of).fold(LogSpace::default(), LogSpace::plus)
            }
            Self::Locked(locked) => std::mem::take(&mut locked.0.counts().credit),
        }
    }
}

impl Slot {
    fn take(&self, claim: LogSpace) -> bool {
        let rest = |word| Some(LogSpace::of_word(word).less(claim)?.word());
        self.credit.fetch_update(Ordering::SeqCst, Ordering::SeqCst, rest).is_ok()
    }

    fn keep(&self, space: LogSpace, most: u64) -> LogSpace {
        let before = self.credit.fetch_add(space.word(), Ordering::SeqCst);
        let now = LogSpace::of_word(before).plus(space);
        if now.used <= most && now.promised <= most {
            return LogSpace::default();
        }
        // If others took some meanwhile, there is no surplus.
        let bounded = |word| Some(LogSpace::of_word(word).at_most(most).word());
        let full = self.credit.fetch_update(Ordering::SeqCst, Ordering::SeqCst, bounded);
        let full = LogSpace::of_word(full.unwrap_or_default());
        full.less(full.at_most(most)).unwrap_or_default()
    }
}

impl Locked {
    fn counts(&self) -> Counted<MutexGuard<'_, Counts>> {
        lock_by(&self.counts, &LOCKED, &self.users)
    }
}

impl Counts {
    fn take(&mut self, claim: LogSpace) -> bool {
        let rest = self.credit.less(claim);
        self.credit = rest.unwrap_or(self.credit);
        rest.is_some()
    }

    fn keep(&mut self, space: LogSpace, most: u64) -> LogSpace {
        let full = self.credit.plus(space);
        self.credit = full.at_most(most);
        full.less(self.credit).unwrap_or_default()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const fn space(used: u64, promised: u64) -> LogSpace {
        LogSpace { used, promised }
    }

    #[test]
    fn what_is_kept_serves_the_next_one_and_never_more_than_there_is() {
        for design in HandleCounts::ALL {
            let handles = Handles::new(design);
            assert_eq!(handles.start(3, Some(space(5, 5)), || true), Started::Bare);
            assert_eq!(handles.keep(3, space(9, 12), 10), space(0, 2));
            assert_eq!(handles.start(3, Some(space(5, 11)), || true), Started::Bare);
            assert_eq!(handles.start(3, Some(space(5, 5)), || true), Started::Paid);
            assert_eq!(handles.start(3, Some(space(5, 5)), || true), Started::Bare);
            assert_eq!(handles.start(3, Some(space(1, 1)), || false), Started::TurnsBack);
            assert_eq!(handles.kept(), space(4, 5));
            assert!(handles.take(3, space(4, 0)) && !handles.take(3, space(1, 0)));
            assert_eq!((handles.collect(), handles.collect()), (space(0, 5), space(0, 0)));
            (0..5).for_each(|_| {
                assert!(handles.are_open());
                handles.stop(3);
            });
            assert!(!handles.are_open());
        }
    }
}
