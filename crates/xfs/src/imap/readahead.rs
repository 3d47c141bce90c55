//! Readahead of inodes: which clusters to read, and how far ahead.
//!
//! Invariant: only clusters in the inode tree are read ahead.

use super::ImapSource;
use crate::btree::Cursor;
use crate::buf::BufMap;
use crate::error::{Error, Result};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use xfs_format::btree::Inobt;
use xfs_format::geometry::Geometry;
use xfs_format::records::{INODES_PER_CHUNK, InodeChunk};
use xfs_format::types::{AgInode, AgNumber};

/// Groups whose state is remembered.
const STREAMS: usize = 32;
/// How many bytes of chunks are read ahead.
const WINDOW_BYTES: u32 = 512 << 10;

/// How far the chunks of each group were read ahead. A hint, stored without a lock. Only chunks that are read in order
/// cause readahead.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// The group in the upper half; in the lower half, the inode up to which was read ahead.
    until: [AtomicU64; STREAMS],
}

impl Streams {
    /// Notes that a chunk is needed that was not in memory. Returns the inodes to read ahead now, if any.
    pub(crate) fn passed(&self, geometry: &Geometry, ag: AgNumber, chunk: AgInode) -> Option<Range<AgInode>> {
        let window = (WINDOW_BYTES / u32::from(geometry.inode_size)).max(INODES_PER_CHUNK);
        let until = &self.until[ag.0 as usize % STREAMS];
        let known = until.load(Ordering::Relaxed);
        let end = chunk.0.saturating_add(INODES_PER_CHUNK);
        let put = |end: u32| until.store(u64::from(ag.0) << 32 | u64::from(end), Ordering::Relaxed);
        let known_end = known as u32;
        let is_known = (known >> 32) as u32 == ag.0;
        // The chunk lies in what was read ahead, or directly after it.
        let follows = is_known && chunk.0 <= known_end && known_end - chunk.0 <= 2 * window;
        if !follows {
            put(end);
            return None;
        }
        if known_end.saturating_sub(end) > window / 2 {
            return None;
        }
        let from = known_end.max(end);
        let to = from.saturating_add(window);
        put(to);
        Some(AgInode(from)..AgInode(to))
    }
}

impl ImapSource<'_> {
    /// The cluster and offset of those of `inodes` that are in use. `inodes` is in ascending order.
    pub(crate) fn sites(&self, ag: AgNumber, inodes: &[AgInode]) -> Result<Vec<(AgInode, BufMap, usize)>> {
        let mut sites = Vec::with_capacity(inodes.len());
        let mut chunk: Option<InodeChunk> = None;
        for &inode in inodes {
            let is_in = |chunk: InodeChunk| {
                inode.0.checked_sub(chunk.start.0).is_some_and(|nth| nth < INODES_PER_CHUNK)
            };
            if !chunk.is_some_and(is_in) {
                chunk = self.chunk_of(ag, inode)?;
            }
            if let Some(chunk) = chunk.filter(|chunk| chunk.in_use(inode)) {
                let (map, offset) = self.place(ag, chunk.start, inode)?;
                sites.push((inode, map, offset));
            }
        }
        Ok(sites)
    }

    /// The clusters with inodes in use, of chunks that begin in this range.
    pub(crate) fn clusters(&self, ag: AgNumber, inodes: Range<AgInode>) -> Result<Vec<BufMap>> {
        let root = self.groups.inodes(self.bufs, self.geometry, ag)?.inobt;
        let mut cursor = Cursor::<Inobt>::seek(self.bufs, self.geometry, ag, root, Some(inodes.start.0))?;
        let mut clusters: Vec<BufMap> = Vec::new();
        while let Some(record) = cursor.next_record()? {
            let wrap = |problem| Error::Corrupt { daddr: None, inode: None, problem };
            let chunk = record.chunk(self.geometry.sparse_inodes).map_err(wrap)?;
            if chunk.start >= inodes.end {
                break;
            }
            if chunk.start < inodes.start {
                continue;
            }
            for inode in chunk.inodes_in_use() {
                let (map, _) = self.place(ag, chunk.start, inode)?;
                if clusters.last() != Some(&map) {
                    clusters.push(map);
                }
            }
        }
        Ok(clusters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::geometry;

    const AG: AgNumber = AgNumber(3);

    #[test]
    fn only_who_goes_on_has_chunks_read_ahead() {
        let geometry = geometry(true, 12, 0);
        let window = WINDOW_BYTES / u32::from(geometry.inode_size);
        let streams = Streams::default();
        let passed = |chunk: u32| streams.passed(&geometry, AG, AgInode(chunk));
        assert_eq!(passed(6400), None, "the first");
        assert_eq!(passed(64_000), None, "far from it");
        assert_eq!(passed(64_064), Some(AgInode(64_128)..AgInode(64_128 + window)), "the next");
        assert_eq!(passed(64_128), None, "enough is read");
        assert_eq!(passed(64_064), None, "so it is for one before");
        let late = 64_128 + window - 64;
        assert_eq!(
            passed(late),
            Some(AgInode(late + 64)..AgInode(late + 64 + window)),
            "the last that was read"
        );
        assert_eq!(streams.passed(&geometry, AgNumber(4), AgInode(late)), None, "another group");
    }

    #[test]
    fn the_last_inodes_of_a_group_do_not_wrap() {
        let geometry = geometry(true, 12, 0);
        let streams = Streams::default();
        for chunk in [u32::MAX - 127, u32::MAX - 63, u32::MAX] {
            let ahead = streams.passed(&geometry, AG, AgInode(chunk));
            assert!(ahead.is_none_or(|ahead| ahead.start <= ahead.end), "{chunk}");
        }
    }
}
