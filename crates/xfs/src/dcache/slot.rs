//! One name in memory: words that are read without a lock, and without writing.
//!
//! A sequence number guards the words (a seqlock): it is odd while somebody writes. Words are stored with release and
//! loaded with acquire. So who loads a word of a later write finds that write's number, or a later one, behind it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Words of a slot besides its number: with that, a cache line.
pub(super) const WORDS: usize = 7;
/// What is in a slot.
pub(super) type Words = [u64; WORDS];

/// What a slot is made of: `AtomicU64`, or loom's where a model is.
pub(super) trait Word {
    fn get(&self) -> u64;
    fn put(&self, word: u64);
    /// Puts `new` in the place of `old`, if that is there.
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

/// A place for one name.
#[derive(Default)]
#[repr(C, align(64))]
pub(super) struct Slot<W = AtomicU64> {
    seq: W,
    words: [W; WORDS],
}

/// Writes a slot: its number is odd for as long as this is there.
struct Writing<'a, W: Word> {
    slot: &'a Slot<W>,
    seq: u64,
}

impl<W: Word> Slot<W> {
    /// The words, if `is_wanted` says that each of those it is asked for is right, and the number that says so.
    /// A slot that is being written has nothing.
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

    /// Whether nobody has written it since it had this number. Who has seen something that was done behind a later write sees
    /// that write.
    #[inline]
    pub(super) fn is_at(&self, seq: u64) -> bool {
        self.seq.get() == seq
    }

    /// Whether nothing is in it, or about to be.
    pub(super) fn is_empty(&self) -> bool {
        self.seq.get().is_multiple_of(2) && self.words[0].get() == 0
    }

    /// Puts something in; not if somebody else is at it.
    pub(super) fn fill(&self, words: &Words) {
        if let Some(writing) = self.try_write() {
            writing.put(words);
        }
    }

    /// Empties the slot if all that `is_wanted` is asked for is right. Waits for who is at it, whatever that may be about.
    pub(super) fn clear(&self, is_wanted: impl Fn(usize, u64) -> bool) {
        let is_there =
            |_: &Writing<'_, W>| self.words.iter().enumerate().all(|(at, word)| is_wanted(at, word.get()));
        loop {
            match self.try_write() {
                Some(writing) if is_there(&writing) => return writing.put(&[0; WORDS]),
                Some(_) => return,
                // Whoever writes is done in some instructions, if it has a processor.
                None => wait(),
            }
        }
    }

    fn try_write(&self) -> Option<Writing<'_, W>> {
        // If somebody is at it, it gets this number when that is over. To swap it is to ask for the latest.
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

/// In a model, too.
#[cfg(all(test, not(shuttle)))]
fn wait() {
    match super::models::is_modelled() {
        true => loom::thread::yield_now(),
        false => std::thread::yield_now(),
    }
}
