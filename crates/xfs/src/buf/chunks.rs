//! Which 128-byte chunks of a buffer are dirty: what a buffer log item carries.

use std::ops::Range;
use xfs_format::log::BUF_CHUNK_SIZE;

/// A bit a chunk, in the words of the log's map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChunkMap {
    words: Vec<u32>,
}

impl ChunkMap {
    /// Marks the chunks that hold `bytes`.
    pub(crate) fn mark(&mut self, bytes: Range<usize>) {
        if bytes.is_empty() {
            return;
        }
        let (first, last) = (bytes.start / BUF_CHUNK_SIZE, (bytes.end - 1) / BUF_CHUNK_SIZE);
        if self.words.len() <= last / 32 {
            self.words.resize(last / 32 + 1, 0);
        }
        for chunk in first..=last {
            self.words[chunk / 32] |= 1 << (chunk % 32);
        }
    }

    /// Adds the chunks of `other`.
    pub(crate) fn merge(&mut self, other: &Self) {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        self.words.iter_mut().zip(&other.words).for_each(|(to, from)| *to |= from);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    pub(crate) fn clear(&mut self) {
        self.words.fill(0);
    }

    /// The map of the chunks within `bytes`, which begins at a chunk, counted from there: `words` words.
    pub(crate) fn part(&self, bytes: Range<usize>, words: usize) -> Vec<u32> {
        let (first, end) = (bytes.start / BUF_CHUNK_SIZE, bytes.end.div_ceil(BUF_CHUNK_SIZE));
        let mut part = vec![0; words];
        for chunk in (first..end).filter(|chunk| self.has(*chunk)) {
            part[(chunk - first) / 32] |= 1 << ((chunk - first) % 32);
        }
        part
    }

    fn has(&self, chunk: usize) -> bool {
        self.words.get(chunk / 32).is_some_and(|word| word >> (chunk % 32) & 1 == 1)
    }
}

/// The runs of chunks that a map names, as ranges of bytes of at most `len`.
pub(crate) fn runs(map: &[u32], len: usize) -> impl Iterator<Item = Range<usize>> + '_ {
    let has = |chunk: usize| map.get(chunk / 32).is_some_and(|word| word >> (chunk % 32) & 1 == 1);
    let chunks = map.len() * 32;
    let mut at = 0;
    std::iter::from_fn(move || {
        let first = (at..chunks).find(|chunk| has(*chunk))?;
        let end = (first..chunks).find(|chunk| !has(*chunk)).unwrap_or(chunks);
        at = end;
        Some(first * BUF_CHUNK_SIZE..(end * BUF_CHUNK_SIZE).min(len))
    })
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
}
