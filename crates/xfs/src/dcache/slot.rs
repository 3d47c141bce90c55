//! One name in memory: words that are read without a lock and without writing.
//!
//! A sequence number guards the words (a seqlock): it is odd during a write. Words are stored with release and loaded
//! with acquire. So whoever loads a word of a later write then also sees that write's sequence number, or a later one.

use std::sync::atomic::{AtomicU64, Ordering};

/// Words of a slot besides its sequence number: together they fill a cache line.
pub(super) const WORDS: usize = 7;
/// The content of a slot.
pub(super) type Words = [u64; WORDS];

/// The type of a slot's words: `AtomicU64`, or loom's in a model.
pub(super) trait Word {
    fn get(&self) -> u64;
    fn put(&self, word: u64);
    /// Replaces `old` by `new`, if `old` is there.
    fn replace(&self, old: u64, new: u64) -> bool;
}

impl Word for AtomicU64 {
    #[inline]
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

/// A slot for one name.
#[derive(Default)]
#[repr(C, align(64))]
pub(super) struct Slot<W = AtomicU64> {
    seq: W,
    words: [W; WORDS],
}

/// A write to a slot. Its sequence number is odd while this exists.
struct Writing<'a, W: Word> {
    slot: &'a Slot<W>,
    seq: u64,
}

impl<W: Word> Slot<W> {
    /// The words, if `is_wanted` holds for each that it is called with, and their sequence number. `None` while the
    /// slot is being written.
    #[inline]
    pub(super) fn read(&self, is_wanted: impl Fn(usize, u64) -> bool) -> Option<(Words, u64)> {
        let seq = self.seq.get();
        if seq % 2 == 1 {
            return None;
        }
        let mut words = [0; WORDS];
        for (at, (word, from)) in words.iter_mut().zip(&self.words).enumerate() {
            *word = from.get();
            if !is_wanted(at, *word) {
                return None;
            }
        }
        self.is_at(seq).then_some((words, seq))
    }

    /// Whether nobody has written it since it had this sequence number. Whoever has seen something that happened after
    /// a later write sees that write.
    #[inline]
    pub(super) fn is_at(&self, seq: u64) -> bool {
        self.seq.get() == seq
    }

    /// Whether it is empty and not being filled.
    pub(super) fn is_empty(&self) -> bool {
        self.seq.get().is_multiple_of(2) && self.words[0].get() == 0
    }

    /// Fills it, unless somebody else is writing to it.
    pub(super) fn fill(&self, words: &Words) {
        if let Some(writing) = self.try_write() {
            writing.put(words);
        }
    }

    /// Empties it if `is_wanted` holds for all words that it is called with. Waits for a concurrent writer, whatever
    /// that writes.
    pub(super) fn clear(&self, is_wanted: impl Fn(usize, u64) -> bool) {
        let is_there =
            |_: &Writing<'_, W>| self.words.iter().enumerate().all(|(at, word)| is_wanted(at, word.get()));
        loop {
            match self.try_write() {
                Some(writing) if is_there(&writing) => return writing.put(&[0; WORDS]),
                Some(_) => return,
                // A writer is done after a few instructions, if it has a processor.
                None => wait(),
            }
        }
    }

    fn try_write(&self) -> Option<Writing<'_, W>> {
        // If somebody is writing, it gets this number afterwards. The swap reads the latest value.
        let seq = self.seq.get().next_multiple_of(2);
        self.seq.replace(seq, seq + 1).then_some(Writing { slot: self, seq })
    }
}

impl<W: Word> Writing<'_, W> {
    fn put(&self, words: &Words) {
        for (to, &word) in self.slot.words.iter().zip(words) {
            to.put(word);
        }
    }
}

impl<W: Word> Drop for Writing<'_, W> {
    fn drop(&mut self) {
        self.slot.seq.put(self.seq + 2);
    }
}

#[cfg(any(not(test), shuttle))]
fn wait() {
    std::thread::yield_now();
}

/// Also in a model.
#[cfg(all(test, not(shuttle)))]
fn wait() {
    match super::models::is_modelled() {
        true => loom::thread::yield_now(),
        false => std::thread::yield_now(),
    }
}
