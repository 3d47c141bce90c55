//! The dirty 128-byte chunks of a buffer, which a buffer log item carries.

use smallvec::SmallVec;
use std::ops::Range;
use xfs_format::log::BUF_CHUNK_SIZE;

/// Words of a buffer log item's bitmap. Those of most buffers need no heap memory.
pub(crate) type Words = SmallVec<[u32; 4]>;

/// Bits per word of the log's bitmap and of a [`ChunkMap`].
const BITS: usize = u32::BITS as usize;
const WIDE: usize = u64::BITS as usize;

/// One bit per chunk. Most buffers have no more than 64 chunks, and need no heap memory for them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChunkMap {
    first: u64,
    /// The chunks after the first 64. Few buffers have so many.
    #[expect(clippy::box_collection, reason = "a vector takes three words where there is none")]
    rest: Option<Box<Vec<u64>>>,
}

impl ChunkMap {
    /// Marks the chunks that hold `bytes`.
    pub(crate) fn mark(&mut self, bytes: Range<usize>) {
        if bytes.is_empty() {
            return;
        }
        let (first, last) = (bytes.start / BUF_CHUNK_SIZE, (bytes.end - 1) / BUF_CHUNK_SIZE);
        for word in first / WIDE..=last / WIDE {
            let low = if word == first / WIDE { first % WIDE } else { 0 };
            let high = if word == last / WIDE { last % WIDE } else { WIDE - 1 };
            *self.word_mut(word) |= u64::MAX << low & u64::MAX >> (WIDE - 1 - high);
        }
    }

    /// Adds the chunks of `other`.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.first |= other.first;
        if let Some(other) = &other.rest {
            let rest = self.rest.get_or_insert_default();
            if rest.len() < other.len() {
                rest.resize(other.len(), 0);
            }
            rest.iter_mut().zip(other.iter()).for_each(|(to, from)| *to |= from);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first == 0 && self.rest.as_ref().is_none_or(|rest| rest.iter().all(|word| *word == 0))
    }

    /// Calls `each` with the runs of marked chunks, as ranges of bytes of at most `len`.
    pub(crate) fn for_each_run(&self, len: usize, mut each: impl FnMut(Range<usize>)) {
        for word in 0..=self.rest.as_ref().map_or(0, |rest| rest.len()) {
            let mut left = self.word(word);
            while left != 0 {
                let first = left.trailing_zeros();
                let count = (left >> first).trailing_ones();
                left &= u64::MAX.checked_shl(first + count).unwrap_or(0);
                let at = |chunk: u32| ((word * WIDE + chunk as usize) * BUF_CHUNK_SIZE).min(len);
                each(at(first)..at(first + count));
            }
        }
    }

    /// Whether the `nth` chunk is marked.
    pub(crate) fn has(&self, nth: usize) -> bool {
        self.word(nth / WIDE) >> (nth % WIDE) & 1 == 1
    }

    pub(crate) fn clear(&mut self) {
        self.first = 0;
        self.rest = None;
    }

    /// The bitmap of the chunks within `bytes`, which begins at a chunk boundary, as `words` words.
    pub(crate) fn part(&self, bytes: Range<usize>, words: usize) -> Words {
        let (first, end) = (bytes.start / BUF_CHUNK_SIZE, bytes.end.div_ceil(BUF_CHUNK_SIZE));
        let word_from = |chunk: usize| {
            let (word, shift) = (chunk / WIDE, chunk % WIDE);
            let low = self.word(word) >> shift;
            let high = if shift > WIDE - BITS { self.word(word + 1) << (WIDE - shift) } else { 0 };
            let within = end.saturating_sub(chunk).min(BITS);
            (low | high) as u32 & u32::MAX.checked_shr((BITS - within) as u32).unwrap_or(0)
        };
        let mut part = Words::new();
        for nth in 0..words {
            part.push(word_from(first + nth * BITS));
        }
        part
    }

    /// The whole map as one word, if it marks only some of the first 64 chunks.
    pub(crate) fn as_word(&self) -> Option<u64> {
        self.rest.is_none().then_some(self.first)
    }

    fn word(&self, nth: usize) -> u64 {
        match nth.checked_sub(1) {
            None => self.first,
            Some(nth) => self.rest.as_ref().and_then(|rest| rest.get(nth)).copied().unwrap_or(0),
        }
    }

    fn word_mut(&mut self, nth: usize) -> &mut u64 {
        let Some(nth) = nth.checked_sub(1) else { return &mut self.first };
        let rest = self.rest.get_or_insert_default();
        if rest.len() <= nth {
            rest.resize(nth + 1, 0);
        }
        &mut rest[nth]
    }
}

/// The runs of chunks that a bitmap marks, as byte ranges of at most `len`.
pub(crate) fn runs(map: &[u32], len: usize) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let first = next(map, at, 0)?;
        let end = next(map, first, u32::MAX).unwrap_or(map.len() * BITS);
        at = end;
        Some(first * BUF_CHUNK_SIZE..(end * BUF_CHUNK_SIZE).min(len))
    })
}

/// The first chunk from `at` on whose bit is set. If `flip` has all bits set: the first whose bit is clear.
fn next(map: &[u32], at: usize, flip: u32) -> Option<usize> {
    let mut word = at / BITS;
    let mut bits = (map.get(word)? ^ flip) & u32::MAX << (at % BITS);
    while bits == 0 {
        word += 1;
        bits = map.get(word)? ^ flip;
    }
    Some(word * BITS + bits.trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_become_runs() {
        let mut map = ChunkMap::default();
        assert!(map.is_empty());
        map.mark(0..1);
        map.mark(127..129);
        map.mark(8000..8192);
        map.mark(5..5);
        assert_eq!(runs(&map.part(0..8192, 2), 8192).collect::<Vec<_>>(), [0..256, 7936..8192]);
        assert!(runs(&map.part(4096..8192, 1), 4096).eq(std::iter::once(3840..4096)));
        let mut other = ChunkMap::default();
        other.mark(512..513);
        other.merge(&map);
        assert_eq!(runs(&other.part(0..8192, 2), 8192).count(), 3);
        other.clear();
        assert!(other.is_empty());
    }

    #[test]
    fn words_say_what_bits_would() {
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..500 {
            let chunks = rng.usize(1..200);
            let mut bits = vec![false; chunks];
            let mut map = ChunkMap::default();
            for _ in 0..rng.usize(0..6) {
                let first = rng.usize(..chunks);
                let end = rng.usize(first..chunks) + 1;
                bits[first..end].fill(true);
                map.mark(first * BUF_CHUNK_SIZE + rng.usize(..128)..end * BUF_CHUNK_SIZE);
            }
            let from = rng.usize(..chunks);
            let to = rng.usize(from..chunks) + 1;
            let len = (to - from) * BUF_CHUNK_SIZE;
            let part = map.part(from * BUF_CHUNK_SIZE..to * BUF_CHUNK_SIZE, (to - from).div_ceil(BITS));
            let mut named = vec![false; to - from];
            for run in runs(&part, len) {
                named[run.start / BUF_CHUNK_SIZE..run.end / BUF_CHUNK_SIZE].fill(true);
            }
            assert_eq!(named, bits[from..to], "chunks {from}..{to}");
            let mut named = vec![false; chunks];
            map.for_each_run(chunks * BUF_CHUNK_SIZE, |run| {
                named[run.start / BUF_CHUNK_SIZE..run.end / BUF_CHUNK_SIZE].fill(true);
            });
            assert_eq!(named, bits, "runs");
            if let Some(word) = map.as_word() {
                assert!(
                    (0..chunks).all(|nth| bits[nth] == (nth < WIDE && word >> nth & 1 == 1)),
                    "{word:#x}"
                );
            }
        }
    }
}
