//! Files that whoever finds them leaves to another thread: what is said of them and what is in them, all in memory.
//!
//! Invariant: none takes more memory than [`SMALL`] bytes and little besides, whatever an archive says.

use super::{Attributes, Filler, Leaf, Outcome, end_at};
use uxfs::{Dir, Special};

/// Bytes of content and of attributes; who has more is made by whoever finds it.
pub const SMALL: usize = 128 << 10;
/// Pieces that the content is in.
const PIECES_MAX: usize = 1024;

/// A file of any type but a directory.
pub struct Small<P> {
    /// Its name.
    pub name: Vec<u8>,
    /// What is said of it.
    pub of: Attributes,
    /// What is in it.
    pub content: Content<P>,
}

/// What is in a file.
pub enum Content<P> {
    /// Pieces of a regular file, each from a byte on, and its size.
    Data(Vec<(u64, P)>, u64),
    /// The target of a symbolic link.
    Symlink(Vec<u8>),
    /// Nothing: a device, pipe or socket.
    Special(Special),
}

/// Whether a file of which this is said, with so many bytes of content in so many pieces, is small.
pub fn is_small(of: &Attributes, bytes: u64, pieces: usize) -> bool {
    pieces <= PIECES_MAX && bytes.saturating_add(of.bytes() as u64) <= SMALL as u64
}

impl<P: AsRef<[u8]>> Small<P> {
    /// Makes it.
    pub fn make(&self, filler: &mut Filler<'_>, dir: &Dir) -> Outcome<()> {
        let (name, of) = (&self.name, &self.of);
        match &self.content {
            Content::Data(pieces, size) => {
                filler.expect(self.content.bytes() as u64);
                filler.file(dir, name, of, |filler, file| {
                    append(filler, file, pieces)?;
                    end_at(file, *size)
                })?;
            }
            Content::Symlink(target) => {
                filler.leaf(dir, name, of, &Leaf::Symlink(target))?;
            }
            Content::Special(special) => {
                filler.leaf(dir, name, of, &Leaf::Special(*special))?;
            }
        }
        Ok(())
    }

    /// Memory that it takes until it is made.
    pub fn bytes(&self) -> usize {
        self.of.bytes() + self.content.bytes()
    }
}

impl<P: AsRef<[u8]>> Content<P> {
    fn bytes(&self) -> usize {
        match self {
            Self::Data(pieces, _) => pieces.iter().map(|(_, piece)| piece.as_ref().len()).sum(),
            Self::Symlink(target) => target.len(),
            Self::Special(_) => 0,
        }
    }
}

/// Adds pieces to the end of a file.
pub fn append<P: AsRef<[u8]>>(filler: &mut Filler<'_>, to: &uxfs::File, pieces: &[(u64, P)]) -> Outcome<()> {
    pieces.iter().try_for_each(|(at, piece)| filler.append(to, *at, piece.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use uxfs::Timestamp;

    #[test]
    fn what_takes_much_memory_is_not_small() {
        let mut of = Attributes {
            permissions: 0o644,
            uid: 0,
            gid: 0,
            atime: None,
            mtime: Timestamp { seconds: 0, nanoseconds: 0 },
            xattrs: Vec::new(),
            inode: None,
        };
        assert!(is_small(&of, SMALL as u64, PIECES_MAX));
        assert!(!is_small(&of, SMALL as u64 + 1, 1));
        assert!(!is_small(&of, u64::MAX, 1));
        assert!(!is_small(&of, 0, PIECES_MAX + 1));
        of.xattrs = vec![(vec![b'n'; 100], vec![0; 60_000]); 2];
        assert!(is_small(&of, 10_000, 1));
        assert!(!is_small(&of, 20_000, 1));
        // Names without values take memory, too.
        of.xattrs = vec![(Vec::new(), Vec::new()); SMALL / 48 + 1];
        assert!(!is_small(&of, 0, 0));
    }
}
