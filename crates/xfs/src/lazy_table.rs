//! A table of fixed size that is allocated on use: a piece is made when something is first stored in it.

use std::fmt;
use std::sync::OnceLock;

/// Entries per piece.
const PIECE: usize = 64;

/// A table of `T`. Entries stay where they are, and none has to be dropped early.
pub(crate) struct LazyTable<T> {
    pieces: Box<[OnceLock<Box<[T]>>]>,
}

impl<T: Default> LazyTable<T> {
    /// A table of at most `bytes` bytes, and at least one piece.
    pub(crate) fn within(bytes: u64) -> Self {
        let pieces = bytes / (PIECE * size_of::<T>()) as u64;
        let pieces = usize::try_from(pieces).unwrap_or(usize::MAX).max(1);
        Self { pieces: (0..pieces).map(|_| OnceLock::new()).collect() }
    }

    /// Bytes that it takes once it is fully used.
    pub(crate) fn bytes(&self) -> u64 {
        (self.pieces.len() * PIECE * size_of::<T>()) as u64
    }

    /// The entry for this hash, if its piece exists.
    #[inline]
    pub(crate) fn find(&self, hash: u64) -> Option<&T> {
        let (piece, at) = self.place(hash);
        piece.get().map(|piece| &piece[at])
    }

    /// The entry for this hash.
    pub(crate) fn make(&self, hash: u64) -> &T {
        let (piece, at) = self.place(hash);
        &piece.get_or_init(|| (0..PIECE).map(|_| T::default()).collect())[at]
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "below the number of pieces, and of places in one")]
    fn place(&self, hash: u64) -> (&OnceLock<Box<[T]>>, usize) {
        // The lowest bits select the entry, the highest the piece.
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
