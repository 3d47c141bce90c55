//! A table of fixed size whose memory comes with use: pieces are made when something is first put into them.

use std::fmt;
use std::sync::OnceLock;

/// How many places a piece has.
const PIECE: usize = 64;

/// A table of `T`, none of which has to be dropped early: places stay where they are.
pub(crate) struct LazyTable<T> {
    pieces: Box<[OnceLock<Box<[T]>>]>,
}

impl<T: Default> LazyTable<T> {
    /// A table of at most `bytes` bytes, and of one piece at least.
    pub(crate) fn within(bytes: u64) -> Self {
        let pieces = bytes / (PIECE * size_of::<T>()) as u64;
        let pieces = usize::try_from(pieces).unwrap_or(usize::MAX).max(1);
        Self { pieces: (0..pieces).map(|_| OnceLock::new()).collect() }
    }

    /// Bytes that it takes once all of it is in use.
    pub(crate) fn bytes(&self) -> u64 {
        (self.pieces.len() * PIECE * size_of::<T>()) as u64
    }

    /// The place of this hash, if its piece has been made.
    #[inline]
    pub(crate) fn find(&self, hash: u64) -> Option<&T> {
        let (piece, at) = self.place(hash);
        piece.get().map(|piece| &piece[at])
    }

    /// The place of this hash.
    pub(crate) fn make(&self, hash: u64) -> &T {
        let (piece, at) = self.place(hash);
        &piece.get_or_init(|| (0..PIECE).map(|_| T::default()).collect())[at]
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "below the number of pieces, and of places in one")]
    fn place(&self, hash: u64) -> (&OnceLock<Box<[T]>>, usize) {
        // The lowest bits choose the place, the highest the piece.
        let piece = (u128::from(hash) * self.pieces.len() as u128) >> 64;
        (&self.pieces[piece as usize], hash as usize % PIECE)
    }
}

impl<T> fmt::Debug for LazyTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let made = self.pieces.iter().filter(|piece| piece.get().is_some()).count();
        f.debug_struct("LazyTable").field("pieces", &self.pieces.len()).field("made", &made).finish()
    }
}
