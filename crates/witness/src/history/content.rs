//! Bytes that are described, not kept: patterns that follow from a seed, and files as runs of them.
//!
//! Invariants:
//! - runs do not overlap, and none reaches behind the file's size;
//! - a byte outside every run is zero, and one inside was written;
//! - what is reserved lies within the size: bytes whose blocks must be allocated though nobody wrote them.

use super::HASH;
use crate::record::{self, ContentHasher, FULL_HASH_MAX};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// Fills `out` with the bytes of pattern `seed` from byte `from` on.
pub fn fill(seed: u64, from: u64, out: &mut [u8]) {
    let mut at = from;
    let mut out = out;
    while !out.is_empty() {
        let word = word(seed, at / 8).to_le_bytes();
        let skip = (at % 8) as usize;
        let len = (8 - skip).min(out.len());
        let (head, tail) = out.split_at_mut(len);
        head.copy_from_slice(&word[skip..skip + len]);
        out = tail;
        at += len as u64;
    }
}

fn word(seed: u64, index: u64) -> u64 {
    let mut x = seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Bytes that follow from a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blob {
    /// Which pattern.
    pub seed: u64,
    /// How many bytes of it.
    pub len: u32,
}

impl Blob {
    /// The bytes.
    pub fn bytes(self) -> Vec<u8> {
        let mut bytes = vec![0; self.len as usize];
        fill(self.seed, 0, &mut bytes);
        bytes
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ContentRun {
    end: u64,
    seed: u64,
    /// Byte of the pattern that the run begins with.
    from: u64,
}

/// A range of a file's content.
#[derive(Clone, Debug)]
pub struct Piece(Vec<(u64, ContentRun)>);

/// Content of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    size: u64,
    runs: BTreeMap<u64, ContentRun>,
    /// First byte to the byte after the last.
    reserved: BTreeMap<u64, u64>,
}

impl Content {
    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes that were written.
    pub fn written(&self) -> u64 {
        self.runs.iter().map(|(start, run)| run.end - start).sum()
    }

    /// About how many bytes it takes on a volume.
    pub fn footprint(&self) -> u64 {
        self.written() + self.reserved.iter().map(|(start, end)| end - start).sum::<u64>()
    }

    /// Writes `len` bytes of a pattern.
    pub fn write(&mut self, offset: u64, len: u64, seed: u64) {
        if len == 0 {
            return;
        }
        let end = offset + len;
        self.cut_runs(offset, end);
        self.runs.insert(offset, ContentRun { end, seed, from: 0 });
        self.size = self.size.max(end);
    }

    /// Makes a range read as zeroes and gives its blocks, as far as they lie inside, back.
    pub fn punch(&mut self, offset: u64, end: u64, block: u64) {
        self.cut_runs(offset, end);
        self.unreserve(offset / block * block, end.div_ceil(block).saturating_mul(block));
    }

    /// Makes a range read as zeroes; its blocks stay.
    pub fn zero(&mut self, offset: u64, end: u64) {
        self.cut_runs(offset, end);
        self.reserve(offset, end);
    }

    /// Notes that the blocks of a range are allocated.
    pub fn reserve(&mut self, offset: u64, end: u64) {
        let (mut start, mut end) = (offset, end.min(self.size));
        if start >= end {
            return;
        }
        let touching: Vec<u64> =
            self.reserved.range(..=end).filter(|&(_, &to)| to >= start).map(|(&from, _)| from).collect();
        for from in touching {
            if let Some(to) = self.reserved.remove(&from) {
                start = start.min(from);
                end = end.max(to);
            }
        }
        self.reserved.insert(start, end);
    }

    fn unreserve(&mut self, start: u64, end: u64) {
        let touched: Vec<(u64, u64)> = self
            .reserved
            .range(..end)
            .rev()
            .take_while(|&(_, &to)| to > start)
            .map(|(&from, &to)| (from, to))
            .collect();
        for (from, to) in touched {
            self.reserved.remove(&from);
            if from < start {
                self.reserved.insert(from, start);
            }
            if to > end {
                self.reserved.insert(end, to);
            }
        }
    }

    /// Changes the size.
    pub fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.cut_runs(size, u64::MAX);
            self.unreserve(size, u64::MAX);
        }
        self.size = size;
    }

    /// Takes a range out, so that what is behind it moves down.
    pub fn collapse(&mut self, offset: u64, len: u64) {
        let end = offset + len;
        self.cut_runs(offset, end);
        self.unreserve(offset, end);
        let moved = self.runs.split_off(&end);
        self.runs
            .extend(moved.into_iter().map(|(at, run)| (at - len, ContentRun { end: run.end - len, ..run })));
        let moved = self.reserved.split_off(&end);
        for (from, to) in moved {
            self.reserved.insert(from - len, to - len);
        }
        self.size -= len;
    }

    /// Puts a hole in, so that what is behind `offset` moves up.
    pub fn insert(&mut self, offset: u64, len: u64) {
        // Nothing is cut, but runs that hold `offset` are split there.
        self.split_run(offset);
        let moved = self.runs.split_off(&offset);
        self.runs
            .extend(moved.into_iter().map(|(at, run)| (at + len, ContentRun { end: run.end + len, ..run })));
        if let Some((&from, &to)) = self.reserved.range(..offset).next_back().filter(|&(_, &to)| to > offset)
        {
            self.reserved.insert(from, offset);
            self.reserved.insert(offset, to);
        }
        let moved = self.reserved.split_off(&offset);
        for (from, to) in moved {
            self.reserved.insert(from + len, to + len);
        }
        self.size += len;
    }

    /// What `share` puts into another file, or elsewhere in the same: the runs of a range.
    pub fn piece(&self, start: u64, end: u64) -> Piece {
        let cut = |(&at, run): (&u64, &ContentRun)| {
            let (from, to) = (at.max(start), run.end.min(end));
            (from - start, ContentRun { end: to - start, seed: run.seed, from: run.from + (from - at) })
        };
        Piece(self.runs_in(start, end).map(cut).collect())
    }

    /// Puts a piece of `len` bytes in the place of what was there: what it does not hold is zeroes, and its blocks may be
    /// gone.
    pub fn put(&mut self, at: u64, len: u64, piece: Piece, block: u64) {
        if len == 0 {
            return;
        }
        self.punch(at, at + len, block);
        self.runs.extend(
            piece.0.into_iter().map(|(from, run)| (at + from, ContentRun { end: at + run.end, ..run })),
        );
        self.size = self.size.max(at + len);
    }

    /// Has two files, or two ranges of one, exchange `len` bytes.
    pub fn exchange(&mut self, at: u64, other: &mut Self, other_at: u64, len: u64) {
        let (mine, others) = (self.take(at, at + len), other.take(other_at, other_at + len));
        self.give(at, others);
        other.give(other_at, mine);
    }

    /// The same within one file.
    pub fn exchange_within(&mut self, at: u64, other_at: u64, len: u64) {
        let (one, other) = (self.take(at, at + len), self.take(other_at, other_at + len));
        self.give(at, other);
        self.give(other_at, one);
    }

    /// Has two files exchange their sizes. What lies behind them is exchanged before.
    pub fn exchange_sizes(&mut self, other: &mut Self) {
        std::mem::swap(&mut self.size, &mut other.size);
    }

    /// Takes out what a range holds, and what is reserved of it.
    fn take(&mut self, start: u64, end: u64) -> (Piece, Vec<(u64, u64)>) {
        let piece = self.piece(start, end);
        let touched = self.reserved.range(..end).filter(|&(_, &to)| to > start);
        let reserved = touched.map(|(&from, &to)| (from.max(start) - start, to.min(end) - start)).collect();
        self.cut_runs(start, end);
        self.unreserve(start, end);
        (piece, reserved)
    }

    /// Puts that somewhere else, where nothing is.
    fn give(&mut self, at: u64, (piece, reserved): (Piece, Vec<(u64, u64)>)) {
        self.runs.extend(
            piece.0.into_iter().map(|(from, run)| (at + from, ContentRun { end: at + run.end, ..run })),
        );
        self.reserved.extend(reserved.into_iter().map(|(from, to)| (at + from, at + to)));
    }

    /// Forgets what is reserved of a range.
    pub fn forget_reserved(&mut self, start: u64, end: u64) {
        self.unreserve(start, end);
    }

    /// The blocks of a range, counted from its start, in which something was written.
    pub fn written_blocks(&self, start: u64, end: u64, block: u64) -> Vec<Range<u64>> {
        let mut blocks: Vec<Range<u64>> = Vec::new();
        for (&at, run) in self.runs_in(start, end) {
            let first = at.max(start) / block * block - start;
            let last = (run.end.div_ceil(block) * block).min(end) - start;
            match blocks.last_mut().filter(|before| first <= before.end) {
                Some(before) => before.end = last,
                None => blocks.push(first..last),
            }
        }
        blocks
    }

    /// A run that begins with its pattern and with a block, and has at least one block: where, how long, which pattern.
    pub fn whole_run(&self, block: u64, choice: usize) -> Option<(u64, u64, u64)> {
        let fits =
            |&(&at, run): &(&u64, &ContentRun)| at % block == 0 && run.from == 0 && run.end - at >= block;
        let fitting: Vec<(&u64, &ContentRun)> = self.runs.iter().filter(fits).take(16).collect();
        let &(&at, run) = fitting.get(choice % fitting.len().max(1))?;
        Some((at, run.end - at, run.seed))
    }

    fn split_run(&mut self, at: u64) {
        let Some((&start, run)) = self.runs.range_mut(..at).next_back() else { return };
        if run.end <= at {
            return;
        }
        let right = ContentRun { from: run.from + (at - start), ..*run };
        run.end = at;
        self.runs.insert(at, right);
    }

    fn cut_runs(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        self.split_run(start);
        self.split_run(end);
        let gone: Vec<u64> = self.runs.range(start..end).map(|(&at, _)| at).collect();
        for at in gone {
            self.runs.remove(&at);
        }
    }

    /// The bytes from `offset` on, `len` at most, up to the end of the file.
    pub fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        let end = offset.saturating_add(len).min(self.size);
        let mut bytes = vec![0; end.saturating_sub(offset) as usize];
        self.read_into(offset, &mut bytes);
        bytes
    }

    /// Fills `out`, which is zeroed, as if the file had no end.
    fn read_into(&self, offset: u64, out: &mut [u8]) {
        let end = offset + out.len() as u64;
        for (&start, run) in self.runs_in(offset, end) {
            let (from, to) = (start.max(offset), run.end.min(end));
            fill(
                run.seed,
                run.from + (from - start),
                &mut out[(from - offset) as usize..(to - offset) as usize],
            );
        }
    }

    fn runs_in(&self, start: u64, end: u64) -> impl Iterator<Item = (&u64, &ContentRun)> {
        let first = self.runs.range(..start).next_back().filter(|(_, run)| run.end > start);
        first.into_iter().chain(self.runs.range(start..end.max(start)))
    }

    /// Whether a byte of the range was written.
    pub fn any_written(&self, start: u64, end: u64) -> bool {
        start < end && self.runs_in(start, end).next().is_some()
    }

    /// Whether these bytes are there, if zeroes come past the end.
    pub fn has(&self, offset: u64, bytes: &[u8]) -> bool {
        let mut own = vec![0; bytes.len()];
        self.read_into(offset, &mut own);
        own == bytes
    }

    /// The parts of a range that were written.
    pub fn written_within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        self.runs_in(start, end).map(move |(&at, run)| (at.max(start), run.end.min(end)))
    }

    /// The patterns that are there: by which seed, and up to which byte of them.
    pub fn patterns(&self) -> impl Iterator<Item = (u64, u64)> {
        self.runs.iter().map(|(&at, run)| (run.seed, run.from + (run.end - at)))
    }

    /// Adds what another thread wrote to the same file, at other places.
    pub fn merge(&mut self, other: &Self) {
        self.size = self.size.max(other.size);
        self.runs.extend(other.runs.iter().map(|(&at, &run)| (at, run)));
        for (&from, &to) in &other.reserved {
            self.reserve(from, to);
        }
    }

    /// What differs between this content and what a manifest says of the file. `None`: nothing.
    pub fn difference(&self, found: &record::Content) -> Option<String> {
        let covered = |list: &[(u64, u64)], start: u64, end: u64| {
            let index = list.partition_point(|&(_, to)| to <= start);
            list.get(index).is_some_and(|&(from, to)| from <= start && end <= to)
        };
        for (&start, run) in &self.runs {
            if !covered(&found.data, start, run.end) {
                return Some(format!(
                    "bytes {start} to {} were written and are not all among the data",
                    run.end
                ));
            }
        }
        if let Some(extents) = &found.extents {
            let mut allocated = Vec::new();
            for extent in extents {
                record::push_data(&mut allocated, extent.0, extent.0 + extent.2);
            }
            for (&start, &end) in &self.reserved {
                if !covered(&allocated, start, end) {
                    return Some(format!("bytes {start} to {end} were preallocated and have holes"));
                }
            }
        }
        let hash = self.hash(&found.data);
        (hash != found.hash).then(|| format!("content {} instead of {hash}", found.hash))
    }

    /// The hash that a manifest has of this content, given its runs of data.
    fn hash(&self, data: &[(u64, u64)]) -> String {
        let mut hasher = ContentHasher::new(HASH);
        if self.size <= FULL_HASH_MAX {
            for &(start, end) in data {
                hasher.zeroes_to(start);
                self.hash_range(&mut hasher, start, end.min(self.size));
            }
            hasher.zeroes_to(self.size);
        } else {
            for &(start, end) in data {
                hasher.run(start, end);
                self.hash_range(&mut hasher, start, end);
            }
        }
        hasher.finish()
    }

    fn hash_range(&self, hasher: &mut ContentHasher, start: u64, end: u64) {
        let mut at = start;
        let mut buffer = vec![0; 1 << 16];
        while at < end {
            let len = (end - at).min(buffer.len() as u64) as usize;
            buffer[..len].fill(0);
            self.read_into(at, &mut buffer[..len]);
            hasher.data(&buffer[..len]);
            at += len as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same file as plain bytes.
    struct Plain(Vec<u8>);

    impl Plain {
        fn grow(&mut self, size: usize) {
            if size > self.0.len() {
                self.0.resize(size, 0);
            }
        }

        fn write(&mut self, offset: usize, len: usize, seed: u64) {
            self.grow(offset + len);
            fill(seed, 0, &mut self.0[offset..offset + len]);
        }

        fn zero(&mut self, offset: usize, end: usize) {
            let end = end.min(self.0.len());
            if offset < end {
                self.0[offset..end].fill(0);
            }
        }
    }

    #[test]
    fn runs_say_what_plain_bytes_say() {
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (mut content, mut plain) = (Content::default(), Plain(Vec::new()));
            for step in 0..60 {
                let offset = rng.usize(..3000);
                let len = rng.usize(1..1000);
                match rng.u32(..7) {
                    0 | 1 => {
                        content.write(offset as u64, len as u64, step);
                        plain.write(offset, len, step);
                    }
                    2 => {
                        content.punch(offset as u64, (offset + len) as u64, 8);
                        plain.zero(offset, offset + len);
                    }
                    3 => {
                        content.truncate(offset as u64);
                        plain.0.resize(offset, 0);
                    }
                    4 if offset + len < plain.0.len() => {
                        content.collapse(offset as u64, len as u64);
                        plain.0.drain(offset..offset + len);
                    }
                    6 if offset + len < plain.0.len() => {
                        let at = rng.usize(..3000);
                        let piece = content.piece(offset as u64, (offset + len) as u64);
                        content.put(at as u64, len as u64, piece, 8);
                        let bytes = plain.0[offset..offset + len].to_vec();
                        plain.grow(at + len);
                        plain.0[at..at + len].copy_from_slice(&bytes);
                    }
                    5 if offset < plain.0.len() => {
                        content.insert(offset as u64, len as u64);
                        plain.0.splice(offset..offset, vec![0; len]);
                    }
                    _ => {}
                }
                assert_eq!(content.size() as usize, plain.0.len(), "seed {seed} step {step}");
                assert_eq!(content.read(0, u64::MAX), plain.0, "seed {seed} step {step}");
                let start = rng.u64(..3000);
                let end = start + rng.u64(..500);
                let bytes = &plain.0[plain.0.len().min(start as usize)..plain.0.len().min(end as usize)];
                assert!(content.any_written(start, end) || bytes.iter().all(|&byte| byte == 0));
            }
        }
    }

    #[test]
    fn what_is_exchanged_is_as_with_plain_bytes() {
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut files = [0, 1].map(|_| (Content::default(), Plain(Vec::new())));
            for step in 0..60 {
                let [(one, plain), (other, other_plain)] = &mut files;
                for (content, plain) in [(&mut *one, &mut *plain), (&mut *other, &mut *other_plain)] {
                    let (offset, len) = (rng.usize(..3000), rng.usize(1..1000));
                    content.write(offset as u64, len as u64, step);
                    plain.write(offset, len, step);
                    content.reserve(rng.u64(..3000), rng.u64(..3000));
                }
                let reserved = |content: &Content| content.reserved.iter().map(|(a, b)| b - a).sum::<u64>();
                let before = reserved(one) + reserved(other);
                let within = rng.usize(1..=plain.0.len().min(other_plain.0.len()));
                let (at, to) =
                    (rng.usize(..=plain.0.len() - within), rng.usize(..=other_plain.0.len() - within));
                one.exchange(at as u64, other, to as u64, within as u64);
                let mine = plain.0[at..at + within].to_vec();
                plain.0[at..at + within].copy_from_slice(&other_plain.0[to..to + within]);
                other_plain.0[to..to + within].copy_from_slice(&mine);
                let half = plain.0.len() / 2;
                one.exchange_within(0, half as u64, half as u64);
                plain.0[..2 * half].rotate_left(half);
                for (content, plain) in &files {
                    assert_eq!(content.read(0, u64::MAX), plain.0, "seed {seed} step {step}");
                }
                assert_eq!(reserved(&files[0].0) + reserved(&files[1].0), before);
            }
        }
    }

    #[test]
    fn blocks_in_which_something_was_written() {
        let mut content = Content::default();
        content.write(5, 1, 1);
        content.write(17, 8, 2);
        content.write(63, 100, 3);
        assert_eq!(content.written_blocks(0, 80, 8), [0..8, 16..32, 56..80]);
        assert_eq!(content.written_blocks(24, 64, 8), [0..8, 32..40]);
        assert_eq!(content.written_blocks(32, 48, 8), []);
    }

    #[test]
    fn patterns_may_be_cut_anywhere() {
        let whole = Blob { seed: 5, len: 100 }.bytes();
        for from in 0..40 {
            let mut piece = vec![0; 30];
            fill(5, from as u64, &mut piece);
            assert_eq!(piece, whole[from..from + 30]);
        }
    }

    #[test]
    fn a_manifest_that_says_something_else_differs() {
        let mut content = Content::default();
        content.write(4096, 100, 1);
        content.truncate(10_000);
        content.reserve(8192, 9000);
        let found = |content: &Content| {
            let data = vec![(4096, 8192)];
            let hash = content.hash(&data);
            let extents = vec![record::MapRun(4096, 40960, 8192, record::RunState::Written)];
            record::Content { hash, data, extents: Some(extents) }
        };
        assert_eq!(content.difference(&found(&content)), None);
        let mut other = found(&content);
        other.extents.as_mut().unwrap()[0].2 = 4096;
        assert!(content.difference(&other).unwrap().contains("preallocated"));
        let mut other = found(&content);
        other.data.clear();
        assert!(content.difference(&other).unwrap().contains("written"));
        let mut longer = content.clone();
        longer.truncate(10_001);
        assert!(longer.difference(&found(&content)).unwrap().contains("content"));
        let mut changed = content.clone();
        changed.write(4100, 1, 2);
        assert!(changed.difference(&found(&content)).is_some());
    }
}
