//! Who is open: how many handles there are, and what log space lies ready for the next ones.
//!
//! Each thread counts in a slot of its own, a cache line that others seldom write. A slot also keeps log space that its
//! handles gave back, up to a bound: the next one takes it from there, so that to start and to stop a handle writes that
//! line and no other. What is kept is taken as far as [`Grant`](super::grant::Grant) knows, and belongs to nobody:
//! whoever finds no space elsewhere collects all of it ([`Handles::collect`]).
//!
//! The older design has one count of handles and one credit, under one lock: [`HandleCounts::Locked`].

use super::designs::HandleCounts;
use super::grant::Space;
use super::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, Padded, lock_by};
use super::thread_slot;
use lockstat::{Counted, LockClass, Users};

static LOCKED: LockClass = LockClass::new("handles");

const SLOTS: usize = if cfg!(shuttle) { 2 } else { 64 };

/// How a handle was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Started {
    /// It is counted, and may not stay.
    TurnsBack,
    /// It has its log space still to take.
    Bare,
    /// It has what it claimed.
    Paid,
}

/// Handles and credit, however they are counted.
#[derive(Debug)]
pub(super) enum Handles {
    Striped(Box<[Padded<Slot>; SLOTS]>),
    Locked(Box<Padded<Locked>>),
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    open: AtomicU32,
    /// A [`Space`].
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
    credit: Space,
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

    /// Counts a handle more. If it then `may_stay`, it gets what it claims of what was kept, if there is as much.
    pub(super) fn start(
        &self,
        slot: usize,
        claim: Option<Space>,
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

    /// Counts a handle less.
    pub(super) fn stop(&self, slot: usize) {
        match self {
            Self::Striped(slots) => {
                slots[slot % SLOTS].0.open.fetch_sub(1, Ordering::SeqCst);
            }
            Self::Locked(locked) => locked.0.counts().open -= 1,
        }
    }

    /// Whether any handle is open. Good for whoever has seen to it that none is started meanwhile that stays.
    pub(super) fn are_open(&self) -> bool {
        match self {
            Self::Striped(slots) => slots.iter().any(|slot| slot.0.open.load(Ordering::SeqCst) != 0),
            Self::Locked(locked) => locked.0.counts().open != 0,
        }
    }

    /// Takes what is claimed of what was kept, if there is as much.
    pub(super) fn take(&self, slot: usize, claim: Space) -> bool {
        match self {
            Self::Striped(slots) => slots[slot % SLOTS].0.take(claim),
            Self::Locked(locked) => locked.0.counts().take(claim),
        }
    }

    /// Keeps what is given back, but no more of either count than `most` altogether; gives what is beyond that.
    pub(super) fn keep(&self, slot: usize, space: Space, most: u64) -> Space {
        match self {
            Self::Striped(slots) => slots[slot % SLOTS].0.keep(space, most),
            Self::Locked(locked) => locked.0.counts().keep(space, most),
        }
    }

    /// What all slots keep.
    pub(super) fn kept(&self) -> Space {
        match self {
            Self::Striped(slots) => {
                let credits = slots.iter().map(|slot| Space::of_word(slot.0.credit.load(Ordering::SeqCst)));
                credits.fold(Space::default(), Space::plus)
            }
            Self::Locked(locked) => locked.0.counts().credit,
        }
    }

    /// Takes what all slots keep.
    pub(super) fn collect(&self) -> Space {
        match self {
            Self::Striped(slots) => {
                let credits = slots.iter().map(|slot| &slot.0.credit);
                let of = |credit: &AtomicU64| match credit.load(Ordering::SeqCst) {
                    // A line that nobody has to give up.
                    0 => Space::default(),
                    _ => Space::of_word(credit.swap(0, Ordering::SeqCst)),
                };
                credits.map(of).fold(Space::default(), Space::plus)
            }
            Self::Locked(locked) => std::mem::take(&mut locked.0.counts().credit),
        }
    }
}

impl Slot {
    fn take(&self, claim: Space) -> bool {
        let rest = |word| Some(Space::of_word(word).less(claim)?.word());
        self.credit.fetch_update(Ordering::SeqCst, Ordering::SeqCst, rest).is_ok()
    }

    fn keep(&self, space: Space, most: u64) -> Space {
        let before = self.credit.fetch_add(space.word(), Ordering::SeqCst);
        let now = Space::of_word(before).plus(space);
        if now.used <= most && now.promised <= most {
            return Space::default();
        }
        // What others took meanwhile is not beyond anything.
        let bounded = |word| Some(Space::of_word(word).at_most(most).word());
        let full = self.credit.fetch_update(Ordering::SeqCst, Ordering::SeqCst, bounded);
        let full = Space::of_word(full.unwrap_or_default());
        full.less(full.at_most(most)).unwrap_or_default()
    }
}

impl Locked {
    fn counts(&self) -> Counted<MutexGuard<'_, Counts>> {
        lock_by(&self.counts, &LOCKED, &self.users)
    }
}

impl Counts {
    fn take(&mut self, claim: Space) -> bool {
        let rest = self.credit.less(claim);
        self.credit = rest.unwrap_or(self.credit);
        rest.is_some()
    }

    fn keep(&mut self, space: Space, most: u64) -> Space {
        let full = self.credit.plus(space);
        self.credit = full.at_most(most);
        full.less(self.credit).unwrap_or_default()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const fn space(used: u64, promised: u64) -> Space {
        Space { used, promised }
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
