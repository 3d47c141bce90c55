//! What the regions hold: each write is filled with one word, which follows from the measurement, the thread and the write, so
//! that a write that was lost, torn or went elsewhere shows.

use super::{REGION_BYTES, WRITE_BYTES, WRITES};
use crate::content::{CLASSES, PAGE, fill, word};
use crate::error::{Error, Result};
use blockdev::AlignedBuf;

/// What one storage holds, as far as it was written.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// The last generation that was given to a thread.
    newest: u32,
    /// Of each write's place, the generation and the word.
    words: Vec<Option<(u32, u64)>>,
}

/// Which of its buffers a thread's `nth` write takes.
fn class(nth: u64) -> usize {
    // Another one each time that it comes to the same place.
    ((nth % WRITES + nth / WRITES) % CLASSES as u64) as usize
}

/// Where in its region a thread's `nth` write goes.
pub(super) fn offset(thread: usize, nth: u64) -> u64 {
    thread as u64 * REGION_BYTES + nth % WRITES * WRITE_BYTES as u64
}

/// What a thread writes from.
pub(super) struct Sources([AlignedBuf; CLASSES]);

impl Sources {
    pub(super) fn new(generation: u32) -> Self {
        Self(std::array::from_fn(|class| {
            let mut buf = AlignedBuf::zeroed(WRITE_BYTES);
            fill(&mut buf, word(class, generation));
            buf
        }))
    }

    pub(super) fn nth(&self, nth: u64) -> &[u8] {
        &self.0[class(nth)]
    }
}

impl Held {
    /// The generation of the first of some threads that are about to write; the others' follow.
    pub(super) fn next_generations(&mut self, threads: usize) -> u32 {
        let first = self.newest + 1;
        self.newest += u32::try_from(threads).unwrap_or(u32::MAX);
        first
    }

    /// A thread has written so often.
    pub(super) fn note(&mut self, thread: usize, generation: u32, writes: u64) {
        let base = thread * WRITES as usize;
        if self.words.len() < base + WRITES as usize {
            self.words.resize(base + WRITES as usize, None);
        }
        for nth in writes.saturating_sub(WRITES)..writes {
            self.words[base + (nth % WRITES) as usize] = Some((generation, word(class(nth), generation)));
        }
    }

    /// Reads all that was written, through `read`, and compares.
    pub(super) fn check(
        &self,
        target: &str,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let mut buf = AlignedBuf::zeroed(WRITE_BYTES);
        for (place, &held) in (0..).zip(&self.words) {
            let Some((generation, expected)) = held else { continue };
            let offset = place * WRITE_BYTES as u64;
            read(offset, &mut buf)?;
            let pattern = expected.to_le_bytes();
            let Some(nth) = buf.chunks_exact(8).position(|chunk| chunk != pattern) else { continue };
            let mut found = [0; 8];
            found.copy_from_slice(&buf[nth * 8..nth * 8 + 8]);
            return Err(Error::Content {
                target: target.to_owned(),
                page: (offset + nth as u64 * 8) / PAGE as u64,
                byte: nth * 8 % PAGE,
                generation,
                expected,
                found: u64::from_le_bytes(found),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes as two threads do, into memory.
    fn written(writes: [u64; 2]) -> (Held, Vec<u8>) {
        let (mut held, mut bytes) = (Held::default(), vec![0; 2 * REGION_BYTES as usize]);
        let first = held.next_generations(2);
        for (thread, writes) in writes.into_iter().enumerate() {
            let generation = first + thread as u32;
            let sources = Sources::new(generation);
            for nth in 0..writes {
                let at = offset(thread, nth) as usize;
                bytes[at..at + WRITE_BYTES].copy_from_slice(sources.nth(nth));
            }
            held.note(thread, generation, writes);
        }
        (held, bytes)
    }

    fn check(held: &Held, bytes: &[u8]) -> Result<()> {
        held.check("t", |offset, buf| {
            buf.copy_from_slice(&bytes[offset as usize..][..WRITE_BYTES]);
            Ok(())
        })
    }

    #[test]
    fn a_lost_a_torn_and_a_misplaced_write_show() {
        for writes in [[1, 3], [WRITES, WRITES + 1], [5 * WRITES + 2, 7]] {
            let (held, bytes) = written(writes);
            check(&held, &bytes).expect("as written");
        }
        let (held, good) = written([WRITES + 2, WRITES]);
        let (_, before) = written([WRITES, WRITES]);
        let mut lost = good.clone();
        lost[..WRITE_BYTES].copy_from_slice(&before[..WRITE_BYTES]);
        assert!(matches!(check(&held, &lost), Err(Error::Content { page: 0, byte: 0, .. })));
        let mut torn = good.clone();
        torn[WRITE_BYTES + PAGE + 512] ^= 1;
        assert!(matches!(check(&held, &torn), Err(Error::Content { page: 17, byte: 512, .. })));
        let mut misplaced = good.clone();
        misplaced.copy_within(REGION_BYTES as usize..REGION_BYTES as usize + WRITE_BYTES, 3 * WRITE_BYTES);
        assert!(check(&held, &misplaced).is_err());
    }
}
