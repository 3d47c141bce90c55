//! Buffer log items: how a buffer is logged.
//!
//! When the log is replayed, each map of a buffer is an item of its own: a header with a bit for each 128-byte chunk,
//! and a region for each run of dirty chunks. This module knows bytes and dirty chunks. It knows nothing of locks and
//! transactions.

use super::BufMap;
use super::chunks::{ChunkMap, Words, runs};
use crate::log::{LogVector, op_bytes};
use smallvec::smallvec;
use std::ops::Range;
use std::sync::Arc;
use xfs_format::identity;
use xfs_format::log::{BUF_CHUNK_SIZE, BufFlags, BufHeader, BufType};

/// A version of a buffer that is to be logged.
#[derive(Clone, Debug)]
pub(super) struct LoggedVersion {
    pub(super) bytes: Arc<[u8]>,
    /// The dirty chunks: all changes since the buffer was last written.
    pub(super) dirty: ChunkMap,
    /// Its blocks were freed: earlier changes of it must not be replayed.
    pub(super) stale: bool,
    /// It holds inodes. Only their unlinked list pointers are logged with it.
    pub(super) inodes: bool,
}

impl LoggedVersion {
    /// Chunks change, in a buffer whose old content matters or not (`fresh`), or its blocks are freed (`None`).
    pub(super) fn change(&mut self, dirty: Option<&ChunkMap>, fresh: bool) {
        self.stale = dirty.is_none();
        if fresh || self.stale {
            self.dirty.clear();
        }
        if let Some(dirty) = dirty {
            self.dirty.merge(dirty);
        }
    }

    /// Adds its regions to a vector.
    pub(super) fn format(&self, maps: &[BufMap], vector: &mut LogVector) {
        let (flags, buf_type) = self.flags_and_type();
        for (map, bytes, chunks) in self.parts(maps) {
            let header = BufHeader {
                daddr: map.daddr,
                len: (bytes.len() / 512) as u16,
                flags,
                buf_type,
                regions: 1 + runs(&chunks, bytes.len()).count() as u16,
                map: &chunks,
            };
            vector.region_with(BufHeader::bytes(chunks.len()), |to| header.encode(to));
            for run in runs(&chunks, bytes.len()) {
                vector.region(&self.bytes[bytes.start + run.start..bytes.start + run.end]);
            }
        }
    }

    /// Log bytes that it takes, including operation headers.
    pub(super) fn log_bytes(&self, maps: &[BufMap]) -> u32 {
        let header = |words| op_bytes(BufHeader::bytes(words));
        if let (Some(word), [map]) = (self.dirty.as_word(), maps) {
            // Buffers are whole sectors, hence whole chunks.
            let runs = (word & !(word << 1)).count_ones() as usize;
            let chunks = word.count_ones() as usize * BUF_CHUNK_SIZE;
            return (header(BufHeader::map_words(map.len as usize)) + runs * op_bytes(0) + chunks) as u32;
        }
        let part = |(_, bytes, chunks): (BufMap, Range<usize>, Words)| {
            let of_runs: usize = runs(&chunks, bytes.len()).map(|run| op_bytes(run.len())).sum();
            header(chunks.len()) + of_runs
        };
        self.parts(maps).map(part).sum::<usize>() as u32
    }

    /// The maps that are logged, each with its bytes in the buffer and its chunks. A map without changes needs no item,
    /// unless the buffer is cancelled.
    fn parts(&self, maps: &[BufMap]) -> impl Iterator<Item = (BufMap, Range<usize>, Words)> {
        let mut at = 0;
        let part = move |map: &BufMap| {
            let bytes = at..at + map.len as usize;
            at = bytes.end;
            let words = BufHeader::map_words(bytes.len());
            let chunks = if self.stale { smallvec![0; words] } else { self.dirty.part(bytes.clone(), words) };
            (self.stale || chunks.iter().any(|word| *word != 0)).then_some((*map, bytes, chunks))
        };
        maps.iter().filter_map(part)
    }

    fn flags_and_type(&self) -> (BufFlags, BufType) {
        if self.stale {
            return (BufFlags::CANCEL, BufType::Unknown);
        }
        if self.inodes {
            return (BufFlags::INODE_BUF, BufType::Inode);
        }
        let kind = identity::identify(&self.bytes).map_or(BufType::Unknown, |identity| identity.kind);
        (BufFlags::empty(), kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xfs_format::types::DiskAddr;

    /// A commit pays for what its checkpoint takes: all dirty chunks, not only its own.
    #[test]
    fn sizes_are_those_of_vectors() {
        const LENS: [usize; 10] = [512, 1024, 1536, 4096, 4608, 8192, 8704, 16384, 32768, 65536];
        let mut rng = fastrand::Rng::with_seed(7);
        let mut by_word = 0;
        for round in 0..3000 {
            let len = LENS[round % LENS.len()];
            let bytes: Arc<[u8]> = (0..len).map(|at: usize| (at * 7 + at / 128) as u8).collect();
            let cut = if rng.bool() { len } else { rng.usize(1..=len / 512) * 512 };
            let piece = |daddr, len: usize| BufMap { daddr: DiskAddr(daddr), len: len as u64 };
            let pieces = [piece(64, cut), piece(9000, len - cut)];
            let maps = if cut == len { &pieces[..1] } else { &pieces[..] };
            let top = if rng.bool() { len.min(8192) } else { len };
            let mut dirty = ChunkMap::default();
            let mut chunks = vec![false; len / BUF_CHUNK_SIZE];
            let stale = round % 9 == 0;
            for _ in 0..if stale { 0 } else { rng.usize(1..=6) } {
                let from = rng.usize(0..top);
                let end = (from + rng.usize(1..900)).min(top);
                dirty.mark(from..end);
                chunks[from / BUF_CHUNK_SIZE..end.div_ceil(BUF_CHUNK_SIZE)].fill(true);
            }
            by_word += u32::from(dirty.as_word().is_some() && maps.len() == 1);
            let version = LoggedVersion { bytes, dirty, stale, inodes: false };
            let mut vector = LogVector::default();
            version.format(maps, &mut vector);
            assert_eq!(vector.log_bytes(), version.log_bytes(maps), "{len} bytes, round {round}");
            // The runs behind each header. Together they are the dirty chunks.
            let mut said = Vec::new();
            let mut left = 0;
            for region in vector.iter() {
                if left == 0 {
                    left = u16::from_le_bytes([region[2], region[3]]) - 1;
                } else {
                    said.extend_from_slice(region);
                    left -= 1;
                }
            }
            let all = version.bytes.chunks(BUF_CHUNK_SIZE).zip(&chunks).filter(|(_, dirty)| **dirty);
            assert!(all.flat_map(|(chunk, _)| chunk).eq(&said), "{len} bytes, round {round}");
        }
        assert!((700..3000).contains(&by_word), "{by_word} of 3000 by a word");
    }
}
