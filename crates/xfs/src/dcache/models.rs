//! Slots under every schedule and memory order that loom knows: each answer was true while it was being asked for.

use super::slot::{Slot, WORDS, Word, Words};
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, RwLock};
use std::cell::Cell;

thread_local! {
    static MODELLED: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs a model, whose threads are one thread to the system.
pub(super) fn is_modelled() -> bool {
    MODELLED.get()
}

impl Word for AtomicU64 {
    fn get(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    fn put(&self, word: u64) {
        self.store(word, Ordering::Release);
    }

    fn replace(&self, old: u64, new: u64) -> bool {
        self.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    MODELLED.set(true);
    builder.check(body);
    MODELLED.set(false);
}

/// A name of the directory `dir` for inode `ino`.
fn words(dir: u64, ino: u64) -> Words {
    let mut words = [ino; WORDS];
    words[0] = dir;
    words
}

fn is_of(dir: u64) -> impl Fn(usize, u64) -> bool {
    move |at, word| at > 0 || word == dir
}

/// Nobody reads parts of two names that compete for a slot.
#[test]
fn a_slot_is_read_whole() {
    model(|| {
        let slot = Arc::new(Slot::<AtomicU64>::default());
        let writers = [1, 2].map(|nth| {
            let slot = Arc::clone(&slot);
            loom::thread::spawn(move || slot.fill(&words(7, nth)))
        });
        if let Some((read, _)) = slot.read(is_of(7)) {
            assert!(read == words(7, 1) || read == words(7, 2), "{read:?}");
        }
        writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
    });
}

/// A directory with one name, which moves from inode 1 to inode 2, and its slot, for which another name competes.
struct Dir {
    /// The inode lock.
    lock: RwLock<()>,
    /// The committed inode.
    current: AtomicU64,
    slot: Slot<AtomicU64>,
}

impl Dir {
    fn new() -> Arc<Self> {
        let slot = Slot::default();
        slot.fill(&words(7, 1));
        Arc::new(Self { lock: RwLock::new(()), current: AtomicU64::new(1), slot })
    }

    /// As `Node::child` does it.
    fn look_up(&self) -> u64 {
        if let Some((words, _)) = self.slot.read(is_of(7)) {
            return words[1];
        }
        let _shared = self.lock.read().expect("a lock");
        let ino = self.current.load(Ordering::Acquire);
        self.slot.fill(&words(7, ino));
        ino
    }

    /// As a transaction does that replaces a name.
    fn replace(&self) {
        let _locked = self.lock.write().expect("a lock");
        self.slot.clear(is_of(7));
        self.current.store(2, Ordering::Release);
    }
}

/// What was seen once stays seen: by another lookup, and by whoever saw the change in another way.
#[test]
fn no_lookup_goes_back_behind_a_change() {
    model(|| {
        let dir = Dir::new();
        let changer = {
            let dir = Arc::clone(&dir);
            loom::thread::spawn(move || dir.replace())
        };
        let known = dir.current.load(Ordering::Acquire);
        let (first, second) = (dir.look_up(), dir.look_up());
        assert!(known <= first && first <= second, "{known}, {first}, {second}");
        changer.join().expect("a changer");
        assert_eq!(dir.look_up(), 2);
    });
}

/// Whoever waits for a slot that another name enters or leaves still removes its own.
#[test]
fn a_name_is_forgotten_beside_others_in_its_slot() {
    model(|| {
        let dir = Dir::new();
        let other = {
            let dir = Arc::clone(&dir);
            // Another thread, which is about to leave the slot as it is.
            loom::thread::spawn(move || dir.slot.clear(is_of(8)))
        };
        dir.replace();
        assert_eq!(dir.slot.read(is_of(7)).map(|(words, _)| words[1]), None);
        other.join().expect("another");
        assert_eq!(dir.look_up(), 2);
    });
}

/// A reused number is not taken for the file that a name was found to have.
#[test]
fn what_is_behind_a_name_is_looked_at_before_the_name_again() {
    model(|| {
        let dir = Dir::new();
        // The file that has the name's inode number.
        let life = Arc::new(AtomicU64::new(1));
        let changer = {
            let (dir, life) = (Arc::clone(&dir), Arc::clone(&life));
            loom::thread::spawn(move || {
                dir.replace();
                life.store(2, Ordering::Release);
            })
        };
        if let Some((_, seq)) = dir.slot.read(is_of(7)) {
            let seen = life.load(Ordering::Acquire);
            assert!(seen == 1 || !dir.slot.is_at(seq), "the second file, by the first one's name");
        }
        changer.join().expect("a changer");
    });
}
