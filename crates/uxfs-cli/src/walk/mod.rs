//! A walk over a tree in an image, one step at a time.
//!
//! Invariants: the path is a list, not recursion, so depth takes little memory and no stack; a directory is entered
//! once in a walk, so cycles in a damaged volume give a failure instead of an endless walk; directories are read in
//! parts, so a large one takes no more memory than a small one; every name is a valid one; if a directory has a name
//! twice, only the first is reported, so that nothing is written through a link with the name of a directory.

pub mod ahead;

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use uxfs::{Dir, DirEntry, Entries, FileType, Metadata, Node, Volume};

/// Levels whose directories keep their entries. Deeper ones drop what was read when the walk goes further
/// down, and read it again later.
const OPEN_LEVELS: usize = 32;
/// A directory with more entries than this is not sorted.
const SORTED_ENTRIES: usize = 1 << 14;

/// The most names that are remembered, by hash, to find duplicates. In larger directories the index is searched
/// instead.
const REMEMBERED_NAMES: usize = 1 << 20;

/// The order of a directory's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryOrder {
    /// In directory order.
    Stored,
    /// By name, in directories of up to 16,384 entries; larger ones in directory order.
    Sorted,
}

/// A step of a walk. Its path is [`Walk::path`].
pub enum Step {
    /// A directory, before its entries.
    Enter(Node),
    /// A directory, after its entries.
    Leave(Node),
    /// Anything else.
    Leaf(Leaf),
    /// Something that could not be read; the walk continues after it.
    Failed(uxfs::Error),
    /// Something that can't be in a sound volume; the walk continues after it.
    Damaged(String),
}

/// Something that is not a directory.
pub struct Leaf {
    /// Its inode number.
    pub ino: u64,
    /// Its type according to its directory.
    pub file_type: FileType,
    node: Option<Node>,
}

impl Leaf {
    /// Its inode.
    pub fn node(&self, volume: &Volume) -> uxfs::Result<Node> {
        match &self.node {
            Some(node) => Ok(node.clone()),
            None => volume.node(self.ino),
        }
    }

    /// Its metadata.
    pub fn metadata(&self, volume: &Volume) -> uxfs::Result<Metadata> {
        match &self.node {
            Some(node) => node.metadata(),
            None => volume.metadata_of(self.ino),
        }
    }
}

/// A walk in progress.
pub struct Walk {
    volume: Volume,
    order: EntryOrder,
    start: Option<Node>,
    /// A directory that was reported and not yet entered.
    pending: Option<Node>,
    frames: Vec<Frame>,
    path: Vec<u8>,
    seen: InodeSet,
    /// Names in all frames.
    names: usize,
    hash: RandomState,
    with_inodes: bool,
}

/// A directory on the way down.
struct Frame {
    node: Node,
    listing: Listing,
    path_len: usize,
    /// The names so far, as far as they are remembered.
    names: HashSet<u64>,
}

impl Walk {
    /// A walk from `start`, which is at `path`.
    pub fn new(volume: &Volume, start: Node, path: &[u8], order: EntryOrder) -> Self {
        Self {
            volume: volume.clone(),
            order,
            start: Some(start),
            pending: None,
            frames: Vec::new(),
            path: path.to_vec(),
            seen: InodeSet::default(),
            names: 0,
            hash: RandomState::new(),
            with_inodes: false,
        }
    }

    /// Reads inodes ahead, for callers that look at the inode of every step.
    pub fn with_inodes(mut self) -> Self {
        self.with_inodes = true;
        self
    }

    /// The path of what was reported last.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// The last part of that path.
    pub fn name(&self) -> &[u8] {
        let parts = self.path.rsplit(|&byte| byte == b'/');
        parts.into_iter().find(|part| !part.is_empty()).unwrap_or(b"/")
    }

    /// How many directories of the walk are above what was reported last.
    pub fn depth(&self) -> usize {
        self.frames.len()
    }

    /// Skips the directory that was just reported, and its [`Step::Leave`].
    pub fn skip(&mut self) {
        self.pending = None;
    }

    /// Whether the last step was the last in its directory.
    pub fn is_last(&mut self) -> bool {
        self.frames.last_mut().is_none_or(|frame| frame.listing.peek().is_none())
    }

    /// The next step, or `None` at the end.
    pub fn next(&mut self) -> Option<Step> {
        if let Some(start) = self.start.take() {
            return Some(self.report_start(start));
        }
        if let Some(dir) = self.pending.take()
            && let Err(error) = self.push(dir)
        {
            return Some(Step::Failed(error));
        }
        let frame = self.frames.last_mut()?;
        self.path.truncate(frame.path_len);
        match frame.listing.next() {
            Some(Ok(entry)) => Some(self.report(entry)),
            Some(Err(error)) => Some(Step::Failed(error)),
            None => self.frames.pop().map(|frame| {
                self.names -= frame.names.len();
                Step::Leave(frame.node)
            }),
        }
    }

    fn report_start(&mut self, start: Node) -> Step {
        let (ino, file_type) = (start.ino(), start.file_type());
        if !file_type.is_dir() {
            return Step::Leaf(Leaf { ino, file_type, node: Some(start) });
        }
        self.seen.insert(ino);
        self.pending = Some(start.clone());
        Step::Enter(start)
    }

    fn report(&mut self, entry: DirEntry) -> Step {
        if self.path.last() != Some(&b'/') {
            self.path.push(b'/');
        }
        self.path.extend(&entry.name);
        if entry.name.is_empty() || entry.name.iter().any(|&byte| matches!(byte, 0 | b'/')) {
            return Step::Damaged("damaged: directory: a name that no file can have".to_owned());
        }
        match self.is_second(&entry) {
            Ok(false) => {}
            Ok(true) => return Step::Damaged("damaged: directory: a name that is there twice".to_owned()),
            Err(error) => return Step::Failed(error),
        }
        if !entry.file_type.is_dir() {
            return Step::Leaf(Leaf { ino: entry.ino, file_type: entry.file_type, node: None });
        }
        let node = match self.volume.node(entry.ino) {
            Ok(node) => node,
            Err(error) => return Step::Failed(error),
        };
        if !node.file_type().is_dir() {
            return Step::Damaged(format!(
                "damaged: inode {} is a {}, its directory says directory",
                entry.ino,
                node.file_type()
            ));
        }
        if !self.seen.insert(entry.ino) {
            return Step::Damaged(format!("damaged: directory inode {} is reached a second time", entry.ino));
        }
        self.pending = Some(node.clone());
        Step::Enter(node)
    }

    /// Whether this directory had this name before.
    fn is_second(&mut self, entry: &DirEntry) -> uxfs::Result<bool> {
        let Some(frame) = self.frames.last_mut() else { return Ok(false) };
        let hash = self.hash.hash_one(&entry.name);
        if frame.names.contains(&hash) {
            return Ok(true);
        }
        if self.names < REMEMBERED_NAMES {
            self.names += 1;
            frame.names.insert(hash);
            return Ok(false);
        }
        let found = frame.listing.dir.lookup(&entry.name)?;
        Ok(found.is_none_or(|found| found.ino() != entry.ino))
    }

    fn push(&mut self, node: Node) -> uxfs::Result<()> {
        let dir = node.as_dir()?;
        if self.frames.len() >= OPEN_LEVELS
            && let Some(above) = self.frames.last_mut()
        {
            above.listing.park();
        }
        let listing = Listing::new(dir, self.order, self.with_inodes);
        self.frames.push(Frame { node, listing, path_len: self.path.len(), names: HashSet::new() });
        Ok(())
    }
}

/// The entries of one directory, which can be dropped and read again.
struct Listing {
    dir: Dir,
    order: EntryOrder,
    with_inodes: bool,
    source: Option<Source>,
    peeked: Option<uxfs::Result<DirEntry>>,
    /// The last entry that was given: where to continue.
    last: Option<(Vec<u8>, u64)>,
    ended: bool,
}

/// Where entries come from.
enum Source {
    Stored(Entries),
    Sorted(std::vec::IntoIter<uxfs::Result<DirEntry>>),
}

impl Listing {
    fn new(dir: Dir, order: EntryOrder, with_inodes: bool) -> Self {
        Self { dir, order, with_inodes, source: None, peeked: None, last: None, ended: false }
    }

    /// Drops what was read and not given yet.
    fn park(&mut self) {
        // An error must not be lost; it comes last.
        if !matches!(self.peeked, Some(Err(_))) {
            self.source = None;
            self.peeked = None;
        }
    }

    fn peek(&mut self) -> Option<&uxfs::Result<DirEntry>> {
        if self.peeked.is_none() {
            self.peeked = self.pull();
        }
        self.peeked.as_ref()
    }

    fn next(&mut self) -> Option<uxfs::Result<DirEntry>> {
        let next = self.peeked.take().or_else(|| self.pull());
        if let Some(Ok(entry)) = &next {
            self.last = Some((entry.name.clone(), entry.next));
        }
        next
    }

    fn pull(&mut self) -> Option<uxfs::Result<DirEntry>> {
        if self.ended {
            return None;
        }
        if self.source.is_none() {
            self.source = Some(self.open());
        }
        let source = self.source.as_mut()?;
        let next = match source {
            Source::Stored(entries) => entries.next(),
            Source::Sorted(entries) => entries.next(),
        };
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }

    /// Opens the directory after the last entry that was given.
    fn open(&self) -> Source {
        let last = self.last.as_ref();
        if self.order == EntryOrder::Sorted
            && let Some(sorted) = sorted(self.entries_from(0), last.map(|(name, _)| &**name))
        {
            return Source::Sorted(sorted.into_iter());
        }
        Source::Stored(self.entries_from(last.map_or(0, |&(_, place)| place)))
    }

    fn entries_from(&self, place: u64) -> Entries {
        let entries = self.dir.entries_from(place);
        if self.with_inodes { entries.with_inodes() } else { entries }
    }
}

/// All entries after the name `last`, by name, with an error at the end if there was one; `None` if the
/// directory is too large.
fn sorted(all: Entries, last: Option<&[u8]>) -> Option<Vec<uxfs::Result<DirEntry>>> {
    let mut entries = Vec::new();
    let mut failed = None;
    for entry in all {
        match entry {
            Ok(_) if entries.len() == SORTED_ENTRIES => return None,
            Ok(entry) => entries.push(entry),
            Err(error) => failed = Some(error),
        }
    }
    entries.retain(|entry| last.is_none_or(|last| *entry.name > *last));
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Some(entries.into_iter().map(Ok).chain(failed.map(Err)).collect())
}

/// A set of inode numbers. Inodes lie in chunks of 64, so it has a word for each chunk.
#[derive(Default)]
pub struct InodeSet {
    chunks: HashMap<u64, u64>,
}

impl InodeSet {
    /// Adds a number; gives whether it is new.
    pub fn insert(&mut self, ino: u64) -> bool {
        let bit = 1 << (ino % 64);
        let chunk = self.chunks.entry(ino / 64).or_default();
        let new = *chunk & bit == 0;
        *chunk |= bit;
        new
    }

    /// Whether it has a number.
    pub fn contains(&self, ino: u64) -> bool {
        self.chunks.get(&(ino / 64)).is_some_and(|chunk| chunk & 1 << (ino % 64) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::InodeSet;

    #[test]
    fn a_number_is_new_once() {
        let mut set = InodeSet::default();
        for ino in [0, 63, 64, 128, u64::MAX] {
            assert!(!set.contains(ino));
            assert!(set.insert(ino));
            assert!(set.contains(ino));
            assert!(!set.insert(ino));
        }
    }
}
