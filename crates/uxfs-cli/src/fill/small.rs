//! Small files for another thread: metadata and content, all in memory.
//!
//! Invariant: none takes much more memory than [`SMALL`] bytes, whatever an archive contains.

use super::{Attributes, Filler, Leaf, StepResult, end_at};
use uxfs::{Dir, File, Special};

/// The limit for content and attributes together. Larger files are made by the thread that finds
/// them.
pub const SMALL: usize = 128 << 10;
/// The most pieces of content.
const PIECES_MAX: usize = 1024;

/// A file of any type but a directory.
pub struct Small {
    /// Its name.
    pub name: Vec<u8>,
    /// Its metadata.
    pub of: Attributes,
    /// Its content.
    pub content: Content,
}

/// Bytes of a file, and their offset.
pub type Piece = (u64, Vec<u8>);

/// The content of a file.
pub enum Content {
    /// Pieces of a regular file, and its size.
    Data(Vec<Piece>, u64),
    /// The target of a symbolic link.
    Symlink(Vec<u8>),
    /// Nothing: a device, pipe or socket.
    Special(Special),
}

/// Whether a file with this metadata, and this many bytes and pieces of content, is small.
pub fn is_small(of: &Attributes, bytes: u64, pieces: usize) -> bool {
    pieces <= PIECES_MAX && bytes.saturating_add(of.bytes() as u64) <= SMALL as u64
}

impl Small {
    /// Makes the file.
    pub fn make(&self, filler: &mut Filler<'_>, dir: &Dir) -> StepResult<()> {
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

impl Content {
    fn bytes(&self) -> usize {
        match self {
            Self::Data(pieces, _) => pieces.iter().map(|(_, piece)| piece.len()).sum(),
            Self::Symlink(target) => target.len(),
            Self::Special(_) => 0,
        }
    }
}

/// Adds pieces to the end of a file.
pub fn append(filler: &mut Filler<'_>, to: &File, pieces: &[Piece]) -> StepResult<()> {
    pieces.iter().try_for_each(|(at, piece)| filler.append(to, *at, piece))
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
