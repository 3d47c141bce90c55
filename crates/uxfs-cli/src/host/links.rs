//! Remembers where files with several names were written, so that their other names become links.
//!
//! Invariants: memory is bounded, and needs an entry for each remembered file and for each directory above one, at any
//! depth; a file whose names were all seen is forgotten, unless they may come again.

use super::{HostTree, Identity, beneath};
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use std::collections::HashMap;
use std::io;

/// The limit of memory.
const MAX_BYTES: usize = 64 << 20;
/// Memory of an entry besides its name.
const ENTRY_BYTES: usize = 96;
/// The most directories to walk to find a file again.
const MAX_DEPTH: usize = 256;

/// A file of an image: which image, which inode.
pub type Source = (usize, u64);

/// The directory of a remembered file; `None` is the base.
pub(super) type DirIndex = Option<u32>;

/// Written files, and the directories above them.
#[derive(Default)]
pub struct Links {
    files: HashMap<Source, Linked>,
    dirs: Vec<(DirIndex, Box<[u8]>)>,
    bytes: usize,
    /// Whether a name may come again.
    repeats: bool,
    /// The last directory that was found.
    found: Option<(DirIndex, OwnedFd)>,
}

/// A file that was written.
struct Linked {
    dir: DirIndex,
    name: Box<[u8]>,
    identity: Identity,
    /// Names still to come.
    left: u32,
}

/// The result for one more name.
#[derive(Debug, PartialEq, Eq)]
pub enum Link {
    /// It is a link now.
    Made,
    /// No file for it is known.
    Unknown,
    /// Its file lies too deep to be found again.
    TooDeep,
}

impl Links {
    /// For this many sources. Of several, one may lie in another.
    pub fn of(sources: usize) -> Self {
        Self { repeats: sources > 1, ..Self::default() }
    }

    /// Makes `name` in the current directory a link to the copy of `source`.
    pub fn link(&mut self, host: &mut HostTree, source: Source, name: &[u8]) -> io::Result<Link> {
        let Some(linked) = self.files.get_mut(&source) else { return Ok(Link::Unknown) };
        let here = host.known();
        let dir = match linked.dir {
            dir if here == Some(dir) => None,
            dir if self.found.as_ref().is_some_and(|(found, _)| *found == dir) => Some(dir),
            dir => {
                let mut names: Vec<&[u8]> = Vec::new();
                let mut at = dir;
                while let Some((above, name)) = at.and_then(|at| self.dirs.get(at as usize)) {
                    names.push(name);
                    if names.len() > MAX_DEPTH {
                        return Ok(Link::TooDeep);
                    }
                    at = *above;
                }
                let mut fd = host.base.try_clone()?;
                for name in names.into_iter().rev() {
                    fd = beneath(&fd, name, OFlags::PATH | OFlags::DIRECTORY)?;
                }
                self.found = Some((dir, fd));
                Some(dir)
            }
        };
        let from = dir.and(self.found.as_ref()).map(|(_, fd)| fd);
        if !host.link(from, &linked.name, linked.identity, name)? {
            self.files.remove(&source);
            return Ok(Link::Unknown);
        }
        linked.left = linked.left.saturating_sub(1);
        if linked.left == 0
            && !self.repeats
            && let Some(done) = self.files.remove(&source)
        {
            self.bytes = self.bytes.saturating_sub(done.name.len() + ENTRY_BYTES);
        }
        Ok(Link::Made)
    }

    /// Remembers that `name` in the current directory is the copy of `source`, which has this many names. Gives whether
    /// there was room.
    pub fn remember(
        &mut self,
        host: &mut HostTree,
        source: Source,
        name: &[u8],
        identity: Identity,
        names: u32,
    ) -> bool {
        let mut dir = None;
        for level in &mut host.above {
            let index = match level.index {
                Some(index) => index,
                None => {
                    let Ok(index) = u32::try_from(self.dirs.len()) else { return false };
                    if !self.take(level.name.len()) {
                        return false;
                    }
                    self.dirs.push((dir, level.name.clone().into()));
                    *level.index.insert(index)
                }
            };
            dir = Some(index);
        }
        if !self.take(name.len()) {
            return false;
        }
        self.files.insert(source, Linked { dir, name: name.into(), identity, left: names.saturating_sub(1) });
        true
    }

    /// The memory of an entry, with its name.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn take(&mut self, name: usize) -> bool {
        let bytes = self.bytes + name + ENTRY_BYTES;
        let fits = bytes <= MAX_BYTES;
        if fits {
            self.bytes = bytes;
        }
        fits
    }
}
