//! Chooses random calls, near the places where code branches.
//!
//! Invariant: what is chosen follows from the generator, and from the sizes of the files.

use super::call::{Call, Pair, Piece, Step};
use crate::handles::Io;
use fastrand::Rng;

/// What files of a volume can do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) io: Io,
    pub(super) block: u64,
    /// Bytes that a file has at most.
    pub(super) most: u64,
    pub(super) shares: bool,
    pub(super) exchanges: bool,
}

/// A kind of call, and how often it comes.
type Weighed = (Kind, u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Overwrite,
    Append,
    SetLen,
    Allocate,
    Punch,
    Zero,
    Collapse,
    Insert,
    Clone,
    Dedupe,
    Copy,
    Exchange,
    Seek,
    Queue,
    Sync,
    SyncVolume,
    Reopen,
    Verify,
}

const WEIGHTS: [Weighed; 20] = [
    (Kind::Read, 250),
    (Kind::Write, 300),
    (Kind::Overwrite, 40),
    (Kind::Append, 60),
    (Kind::SetLen, 60),
    (Kind::Allocate, 40),
    (Kind::Punch, 50),
    (Kind::Zero, 40),
    (Kind::Collapse, 8),
    (Kind::Insert, 8),
    (Kind::Clone, 20),
    (Kind::Dedupe, 8),
    (Kind::Copy, 15),
    (Kind::Exchange, 6),
    (Kind::Seek, 20),
    (Kind::Queue, 8),
    (Kind::Sync, 4),
    (Kind::SyncVolume, 1),
    (Kind::Reopen, 2),
    (Kind::Verify, 1),
];

/// Chooses calls.
#[derive(Clone, Debug)]
pub(super) struct Chooser {
    rng: Rng,
    rules: Rules,
    weights: Vec<Weighed>,
    sum: u32,
}

impl Chooser {
    pub(super) fn new(seed: u64, rules: Rules) -> Self {
        let mut chooser = Self { rng: Rng::with_seed(seed), rules, weights: WEIGHTS.to_vec(), sum: 0 };
        chooser.change_mood();
        chooser
    }

    /// For how many calls the volume stays open.
    pub(super) fn leg(&mut self) -> u64 {
        self.rng.u64(200..6000)
    }

    /// Makes some kinds more frequent from now on, or excludes them.
    pub(super) fn change_mood(&mut self) {
        let Rules { shares, exchanges, .. } = self.rules;
        let can_be = |kind: Kind| match kind {
            Kind::Clone | Kind::Dedupe => shares,
            Kind::Exchange => exchanges,
            _ => true,
        };
        let (rng, weights) = (&mut self.rng, &mut self.weights);
        for ((kind, weight), (_, usual)) in weights.iter_mut().zip(WEIGHTS) {
            let times = [0, 1, 1, 1, 2, 4][rng.usize(..6)];
            *weight = match *kind {
                kind if !can_be(kind) => 0,
                Kind::Read | Kind::Write | Kind::Verify => usual,
                // They wait for the journal.
                Kind::Collapse | Kind::Insert | Kind::Exchange | Kind::SyncVolume => usual * times.min(2),
                _ => usual * times,
            };
        }
        self.sum = weights.iter().map(|(_, weight)| weight).sum();
    }

    /// The next call.
    pub(super) fn next(&mut self, sizes: [u64; 2]) -> Step {
        let file = usize::from(self.rng.u32(..4) == 0);
        let buffered = [(); 2].map(|()| match self.rules.io {
            Io::Buffered => true,
            Io::Direct => false,
            Io::Mixed | Io::Syncing => self.rng.bool(),
        });
        let call = self.call(sizes[file], sizes[1 - file]);
        Step { file, buffered, call }
    }

    fn kind(&mut self) -> Kind {
        let mut left = self.rng.u32(..self.sum);
        for (kind, weight) in &self.weights {
            match left.checked_sub(*weight) {
                None => return *kind,
                Some(less) => left = less,
            }
        }
        Kind::Read
    }

    fn call(&mut self, size: u64, other: u64) -> Call {
        let kind = self.kind();
        match kind {
            Kind::Read => {
                let (at, len) = self.range(size);
                Call::Read { at, len }
            }
            Kind::Write => {
                let (at, len) = self.range(size);
                Call::Write { at, len }
            }
            Kind::Overwrite => {
                let (at, len) = self.range(size);
                // Mostly within the file.
                let len = if at < size && self.rng.u32(..8) > 0 { len.min(size - at) } else { len };
                Call::Overwrite { at, len }
            }
            Kind::Append if size >= self.rules.most => Call::SetLen { size: self.place(size) },
            Kind::Append => Call::Append { len: self.len().min(self.rules.most - size).max(1) },
            Kind::SetLen => Call::SetLen { size: self.place(size) },
            Kind::Allocate => {
                let (at, len) = self.range(size);
                Call::Allocate { at, len, keep: self.rng.bool() }
            }
            Kind::Punch => {
                let (at, len) = self.range(size);
                Call::Punch { at, len }
            }
            Kind::Zero => {
                let (at, len) = self.range(size);
                Call::Zero { at, len, keep: self.rng.bool() }
            }
            Kind::Collapse | Kind::Insert => self.shift(kind, size),
            Kind::Clone | Kind::Dedupe | Kind::Copy => self.two_files(kind, size, other),
            Kind::Exchange => self.exchange(size, other),
            Kind::Seek => Call::Seek { at: self.place(size) },
            Kind::Queue => Call::Queue(self.queue(size)),
            Kind::Sync => Call::Sync,
            Kind::SyncVolume => Call::SyncVolume,
            Kind::Reopen => Call::Reopen,
            Kind::Verify => Call::Verify { chunk: [4 << 20, 1 << 20, 70_000, 20_480][self.rng.usize(..4)] },
        }
    }

    /// A byte of the file, or behind it: often where something begins or ends.
    fn place(&mut self, size: u64) -> u64 {
        let most = self.rules.most;
        let multiple = |rng: &mut Rng, unit: u64| rng.u64(..=most / unit) * unit;
        let at = match self.rng.u32(..16) {
            0..=4 => size,
            5 => 0,
            6 => multiple(&mut self.rng, 1 << 18),
            7..=9 => multiple(&mut self.rng, self.rules.block),
            10 | 11 => multiple(&mut self.rng, 4096),
            12 => multiple(&mut self.rng, 512),
            // Around one place, so that much happens to the same bytes.
            13 | 14 => most / 4 + self.rng.u64(..65536),
            _ => self.rng.u64(..=most),
        };
        let by = match self.rng.u32(..8) {
            0..=4 => 0,
            5 => 1,
            6 => 512,
            _ => self.rng.u64(..2 * self.rules.block),
        };
        if self.rng.bool() { (at + by).min(most) } else { at.saturating_sub(by).min(most) }
    }

    fn len(&mut self) -> u64 {
        let most = match self.rng.u32(..100) {
            0 => 1 << 20,
            1..=3 => 256 << 10,
            4..=12 => 64 << 10,
            13..=44 => 8192,
            _ => 512,
        };
        let len = self.rng.u64(1..=most.min(self.rules.most));
        match self.rng.u32(..8) {
            0 | 1 => len.next_multiple_of(self.rules.block),
            2 => len.next_multiple_of(4096),
            3 => len.next_multiple_of(512),
            _ => len,
        }
    }

    /// Some bytes: where they begin, and how many.
    fn range(&mut self, size: u64) -> (u64, u64) {
        let most = self.rules.most;
        let mut at = self.place(size).min(most - 1);
        let mut len = self.len();
        match self.rng.u32(..8) {
            // Up to somewhere.
            0 => {
                let end = self.place(size);
                if at < end && end - at < 1 << 18 {
                    len = end - at;
                } else {
                    at = end.saturating_sub(len);
                }
            }
            1 => at = size.min(most).saturating_sub(len),
            _ => {}
        }
        (at, len.min(most - at).max(1))
    }

    /// Whole blocks: where they begin, and how many bytes.
    fn blocks(&mut self, size: u64) -> (u64, u64) {
        let block = self.rules.block;
        let at = self.rng.u64(..size / block + 1) * block;
        let most = if self.rng.u32(..8) == 0 { 64 } else { 6 };
        (at, self.rng.u64(1..=most) * block)
    }

    /// Blocks taken out of the file, or put into it.
    fn shift(&mut self, kind: Kind, size: u64) -> Call {
        let (at, len) = self.blocks(size);
        match kind {
            Kind::Collapse => Call::Collapse { at, len },
            _ if size + len > self.rules.most => Call::Collapse { at, len },
            _ => Call::Insert { at, len },
        }
    }

    fn two_files(&mut self, kind: Kind, size: u64, other: u64) -> Call {
        let (from, len) = self.blocks(size);
        let same = self.rng.u32(..4) == 0;
        let to_size = if same { size } else { other };
        let at = self.blocks(to_size).0;
        // Up to the end, which may lie within a block.
        let len = if self.rng.u32(..4) == 0 { size.saturating_sub(from) } else { len };
        let len = len.min(self.rules.most.saturating_sub(at)).max(1);
        let pair = Pair { from, at, len, same };
        match kind {
            Kind::Clone if self.rng.u32(..16) == 0 => {
                Call::Clone(Pair { from: 0, at: 0, len: 0, same: false })
            }
            Kind::Clone => Call::Clone(pair),
            Kind::Dedupe => {
                let ends = size.saturating_sub(from).min(to_size.saturating_sub(at));
                let len = if self.rng.u32(..8) > 0 { pair.len.min(ends) } else { pair.len };
                Call::Dedupe { pair: Pair { len, ..pair }, same_content: self.rng.bool() }
            }
            _ if self.rng.bool() => Call::Copy(pair),
            _ => {
                let (from, len) = self.range(size);
                let at = self.place(to_size).min(self.rules.most - len);
                Call::Copy(Pair { from, at, len, same })
            }
        }
    }

    fn exchange(&mut self, size: u64, other: u64) -> Call {
        let same = self.rng.u32(..4) == 0;
        let ((at, len), to_size) = (self.blocks(size), if same { size } else { other });
        let other_at = self.blocks(to_size).0;
        let most = self.rules.most;
        match self.rng.u32(..4) {
            0 if !same => Call::Exchange { at: 0, other_at: 0, len: None, same },
            // Neither file gets longer than it may be.
            1 if !same && at.max(other_at) + size.max(other) <= most => {
                Call::Exchange { at, other_at, len: None, same }
            }
            _ => Call::Exchange { at, other_at, len: Some(len), same },
        }
    }

    /// Requests at once, of which none has bytes of one that writes.
    fn queue(&mut self, size: u64) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        for _ in 0..self.rng.u32(1..=4) {
            let (at, len) = self.range(size);
            let piece = Piece { at, len: len.min(128 << 10), is_write: self.rng.bool() };
            let meets = |other: &Piece| {
                (piece.is_write || other.is_write)
                    && piece.at < other.at + other.len
                    && other.at < piece.at + piece.len
            };
            if !pieces.iter().any(meets) {
                pieces.push(piece);
            }
        }
        pieces
    }
}
