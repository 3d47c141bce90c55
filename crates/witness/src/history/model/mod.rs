//! What a tree must be after a history: a file system in memory, without blocks.
//!
//! Invariants:
//! - a node is there as long as it has a name or is open; a directory has one name;
//! - every error is the one that Linux gives for the same call by root, on XFS;
//! - an operation that fails changes nothing.
//!
//! Several threads have a model each: their own folder, and what is theirs in a shared one. Nodes that they share are
//! *foreign*: no operation changes them but through names and bytes that are the thread's own.

mod attrs;
mod files;
mod names;
mod node;
mod verdict;

pub use node::{Id, Kind, Node, Pool, Time};
pub use verdict::{Checked, Rules};

use super::content::Content;
use super::op::{Name, Op, OpOutcome, Ref};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};

/// Longest name in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Something that an operation changed, as far as the journal knows of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// Which object a name in a directory stands for.
    Entry(Id, Name),
    /// Mode, owner, links, attributes of an object.
    Inode(Id),
}

/// The file system in memory.
#[derive(Clone, Debug)]
pub struct Model {
    nodes: HashMap<Id, Node>,
    next: u32,
    block: u64,
    slots: Vec<Option<Id>>,
    files: Pool,
    dirs: Pool,
    others: Pool,
    bytes: u64,
    /// Operations that were applied.
    pub clock: u64,
    /// What the last operation changed.
    pub touched: Vec<Key>,
}

impl Model {
    /// The number of the root.
    pub const ROOT: Id = Id(0);

    /// An empty root, for a volume with blocks of this size.
    pub fn new(block: u64, slots: usize) -> Self {
        let mut model = Self {
            nodes: HashMap::new(),
            next: 0,
            block,
            slots: vec![None; slots],
            files: Pool::default(),
            dirs: Pool::default(),
            others: Pool::default(),
            bytes: 0,
            clock: 0,
            touched: Vec::new(),
        };
        let root = Node { foreign: true, ..Node::new(Kind::Dir(BTreeMap::new()), 0o755, 0) };
        model.add(root);
        model
    }

    /// Adds a node that no name leads to yet.
    fn add(&mut self, node: Node) -> Id {
        let id = Id(self.next);
        self.next += 1;
        if !node.foreign {
            self.pool(&node.kind).insert(id);
        }
        self.nodes.insert(id, node);
        self.touch(Key::Inode(id));
        id
    }

    fn pool(&mut self, kind: &Kind) -> &mut Pool {
        match kind {
            Kind::File(_) => &mut self.files,
            Kind::Dir(_) => &mut self.dirs,
            Kind::Symlink(_) | Kind::Special(_) => &mut self.others,
        }
    }

    /// Marks the directory or file `path` as shared with other threads.
    pub fn share(&mut self, path: &Name) {
        if let Ok(id) = self.lookup(path) {
            self.files.remove(id);
            self.dirs.remove(id);
            self.node_mut(id).foreign = true;
        }
    }

    /// A node that is known to be there.
    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[&id]
    }

    /// A node, if it is there.
    pub fn get(&self, id: Id) -> Option<&Node> {
        self.nodes.get(&id)
    }

    fn node_mut(&mut self, id: Id) -> &mut Node {
        self.nodes.get_mut(&id).expect("an id that the model gave is of a node that is there")
    }

    fn touch(&mut self, key: Key) {
        if let Key::Inode(id) = &key {
            let clock = self.clock;
            if let Some(node) = self.nodes.get_mut(id) {
                node.changed = clock;
            }
        }
        self.touched.push(key);
    }

    /// Regular files that are a thread's own.
    pub fn files(&self) -> &Pool {
        &self.files
    }

    /// Directories that are a thread's own.
    pub fn dirs(&self) -> &Pool {
        &self.dirs
    }

    /// Objects of other types.
    pub fn others(&self) -> &Pool {
        &self.others
    }

    /// Bytes that were written or reserved and are still there.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes a block.
    pub fn block(&self) -> u64 {
        self.block
    }

    /// What is open, by slot.
    pub fn slots(&self) -> &[Option<Id>] {
        &self.slots
    }

    /// A path of a node, by one of its names; `None` if it has none.
    pub fn path(&self, id: Id, choice: usize) -> Option<Name> {
        let mut parts: Vec<&[u8]> = Vec::new();
        let mut at = id;
        while at != Self::ROOT {
            let names = &self.nodes.get(&at)?.names;
            if names.is_empty() {
                return None;
            }
            let (dir, name) = &names[choice % names.len()];
            parts.push(&name.0);
            at = *dir;
        }
        parts.reverse();
        Some(Name(parts.join(&b'/')))
    }

    /// The entries of a directory; none if it is something else.
    pub fn entries(&self, id: Id) -> Option<&BTreeMap<Name, Id>> {
        match &self.nodes.get(&id)?.kind {
            Kind::Dir(entries) => Some(entries),
            _ => None,
        }
    }

    /// The content of a file.
    pub fn content(&self, id: Id) -> Option<&Content> {
        match &self.nodes.get(&id)?.kind {
            Kind::File(content) => Some(content),
            _ => None,
        }
    }

    /// What a path names.
    pub fn lookup(&self, path: &Name) -> Result<Id, Errno> {
        let mut at = Self::ROOT;
        for name in path.components() {
            at = self.step(at, name)?;
        }
        Ok(at)
    }

    fn step(&self, dir: Id, name: &[u8]) -> Result<Id, Errno> {
        let Kind::Dir(entries) = &self.node(dir).kind else { return Err(Errno::NOTDIR) };
        if name.len() > NAME_BYTES_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        entries.get(&Name::from(name)).copied().ok_or(Errno::NOENT)
    }

    /// The directory that a path leads to, and the name in it.
    fn parent(&self, path: &Name) -> Result<(Id, Name), Errno> {
        let mut parts: Vec<&[u8]> = path.components().collect();
        let name = parts.pop().unwrap_or_default();
        let mut at = Self::ROOT;
        for part in parts {
            at = self.step(at, part)?;
        }
        match self.node(at).kind {
            Kind::Dir(_) => Ok((at, Name::from(name))),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// The regular file that is meant; errors are those of `open`.
    fn file(&self, file: &Ref) -> Result<Id, Errno> {
        let id = match file {
            Ref::Slot(slot) => self.slots[*slot].ok_or(Errno::BADF)?,
            Ref::Path(path) => self.lookup(path)?,
        };
        match self.node(id).kind {
            Kind::File(_) => Ok(id),
            Kind::Dir(_) => Err(Errno::ISDIR),
            _ => Err(Errno::LOOP),
        }
    }

    /// Applies an operation: what it must give. An operation must be [predictable](Self::predictable).
    pub fn apply(&mut self, op: &Op) -> Result<OpOutcome, Errno> {
        self.clock += 1;
        self.touched.clear();
        match op {
            Op::Create { path, mode, slot } => self.create(path, *mode, *slot),
            Op::Open { path, slot } => self.open(path, *slot),
            Op::Close { slot } => {
                self.close(*slot);
                Ok(OpOutcome::Done)
            }
            Op::Tmpfile { dir, mode, slot } => self.tmpfile(dir, *mode, *slot),
            Op::LinkSlot { slot, path } => self.link_slot(*slot, path),
            Op::Mkdir { path, mode } => self.mkdir(path, *mode),
            Op::Mknod { path, kind, mode } => self.mknod(path, *kind, *mode),
            Op::Symlink { path, target } => self.symlink(path, target),
            Op::Link { from, to } => self.link(from, to),
            Op::Unlink { path } => self.unlink(path),
            Op::Rmdir { path } => self.rmdir(path),
            Op::Rename { from, to, how } => self.rename(from, to, *how),
            Op::Write { file, offset, len, seed } => self.write(file, *offset, *len, *seed),
            Op::Read { file, offset, len } => self.read(file, *offset, *len),
            Op::Allocate { file, how, offset, len } => self.allocate(file, *how, *offset, *len),
            Op::Truncate { file, size } => self.truncate(file, *size),
            Op::Clone { from, offset, to, at, len } => self.clone_range(from, *offset, to, *at, *len),
            Op::Dedupe { from, offset, to, at, len } => self.dedupe(from, *offset, to, *at, *len),
            Op::CopyRange { from, offset, to, at, len } => self.copy_range(from, *offset, to, *at, *len),
            Op::Exchange { file, at, other, other_at, len, only_written } => {
                self.exchange_content(file, *at, other, *other_at, *len, *only_written)
            }
            Op::SeekData { file, .. } | Op::SeekHole { file, .. } => {
                self.file(file)?;
                Ok(OpOutcome::Place(None))
            }
            Op::SetXattr { path, name, value, how } => self.set_xattr(path, name, *value, *how),
            Op::RemoveXattr { path, name } => self.remove_xattr(path, name),
            Op::GetXattr { path, name } => self.get_xattr(path, name),
            Op::ListXattr { path } => self.list_xattrs(path),
            Op::SetAcl { path, kind, acl } => self.set_acl(path, *kind, acl.as_ref()),
            Op::Chmod { path, mode } => self.chmod(path, *mode),
            Op::Chown { path, uid, gid } => self.chown(path, *uid, *gid),
            Op::SetProject { path, id, inherit } => self.set_project(path, *id, *inherit),
            Op::SetHints { path, hints } => self.set_hints(path, *hints),
            Op::Utimens { path, atime, mtime } => self.set_times(path, *atime, *mtime),
            Op::ReadDir { path } => self.read_dir(path),
            Op::ReadLink { path } => self.read_link(path),
            Op::Stat { path } => self.stat(path),
            Op::Fsync { file } => {
                self.file(file)?;
                Ok(OpOutcome::Done)
            }
            Op::FsyncDir { path } => {
                self.lookup(path)?;
                Ok(OpOutcome::Done)
            }
            Op::Sync | Op::Idle { .. } => Ok(OpOutcome::Done),
        }
    }

    /// Whether the model can tell what an operation does. It cannot where a path leads through a symbolic link, where
    /// something is opened that is no file, where kernels differ, or where other threads have a say.
    pub fn predictable(&self, op: &Op) -> bool {
        let free = |slot: usize| self.slots.get(slot) == Some(&None);
        match op {
            Op::Create { path, slot, .. } => self.plain(path) && slot.is_none_or(free),
            Op::Open { path, slot } => self.plain(path) && self.opens_safely(path) && free(*slot),
            Op::Close { .. } | Op::Sync | Op::Idle { .. } => true,
            Op::Tmpfile { dir, slot, .. } => {
                let end = self.lookup(dir).map(|id| &self.node(id).kind);
                let symlink = matches!(end, Ok(Kind::Symlink(_)));
                self.plain(dir) && free(*slot) && !symlink
            }
            Op::LinkSlot { slot, path } => {
                self.plain(path) && self.slots.get(*slot).copied().flatten().is_some()
            }
            Op::Mkdir { path, .. } | Op::Mknod { path, .. } | Op::Symlink { path, .. } => self.plain(path),
            Op::Link { from, to } => {
                self.plain(from) && self.plain(to) && self.own(from) && !self.may_be_let_in(from, to)
            }
            Op::Unlink { path } | Op::Rmdir { path } => self.plain(path) && self.movable(path),
            Op::Rename { from, to, .. } => {
                let plain = self.plain(from) && self.plain(to);
                plain && self.movable(from) && self.movable(to) && !self.may_be_let_in(from, to)
            }
            Op::Write { file, .. } | Op::Read { file, .. } | Op::Fsync { file } => self.reachable(file),
            Op::Allocate { file, how, .. } => {
                self.reachable(file) && (self.is_own(file) || how.stays_inside())
            }
            Op::Clone { from, to, .. } | Op::Dedupe { from, to, .. } | Op::CopyRange { from, to, .. } => {
                [from, to].iter().all(|file| self.reachable(file) && self.is_own(file))
            }
            Op::Exchange { file, at, other, other_at, len, only_written } => {
                [file, other].iter().all(|file| self.reachable(file) && self.is_own(file))
                    && self.exchange_is_predictable(file, *at, other, *other_at, *len, *only_written)
            }
            Op::Truncate { file, .. } | Op::SeekData { file, .. } | Op::SeekHole { file, .. } => {
                self.reachable(file) && self.is_own(file)
            }
            Op::Chmod { path, .. } | Op::SetAcl { path, .. } => {
                let end = self.lookup(path).map(|id| &self.node(id).kind);
                self.plain(path) && self.own(path) && !matches!(end, Ok(Kind::Symlink(_)))
            }
            Op::SetXattr { path, .. }
            | Op::RemoveXattr { path, .. }
            | Op::GetXattr { path, .. }
            | Op::ListXattr { path }
            | Op::Chown { path, .. }
            | Op::Utimens { path, .. }
            | Op::ReadLink { path }
            | Op::Stat { path } => self.plain(path) && self.own(path),
            Op::SetProject { path, .. } | Op::SetHints { path, .. } => {
                // Through the mount, it takes an open file.
                let end = self.lookup(path).map(|id| &self.node(id).kind);
                let opens = matches!(end, Ok(Kind::File(_) | Kind::Dir(_)) | Err(Errno::NOENT));
                self.plain(path) && self.own(path) && opens
            }
            Op::ReadDir { path } => {
                let end = self.lookup(path).map(|id| &self.node(id).kind);
                self.plain(path) && self.own(path) && matches!(end, Ok(Kind::Dir(_)) | Err(Errno::NOENT))
            }
            Op::FsyncDir { path } => {
                let end = self.lookup(path).map(|id| &self.node(id).kind);
                self.plain(path) && matches!(end, Ok(Kind::Dir(_)) | Err(Errno::NOENT))
            }
        }
    }

    /// Whether a path leads through no symbolic link.
    fn plain(&self, path: &Name) -> bool {
        let mut parts: Vec<&[u8]> = path.components().collect();
        if parts.pop().is_none() {
            return false;
        }
        let mut at = Self::ROOT;
        for part in parts {
            match self.step(at, part) {
                Ok(next) if matches!(self.node(next).kind, Kind::Symlink(_)) => return false,
                Ok(next) => at = next,
                Err(_) => return true,
            }
        }
        true
    }

    /// Whether nothing of other threads has this path.
    fn own(&self, path: &Name) -> bool {
        self.lookup(path).map_or(true, |id| !self.node(id).foreign)
    }

    /// Whether the names of a thread's own objects are meant; its folder stays where it is.
    fn movable(&self, path: &Name) -> bool {
        self.own(path) && path.components().nth(1).is_some()
    }

    /// Whether a special file of no project goes to a directory that hands one down, which newer kernels alone allow.
    fn may_be_let_in(&self, from: &Name, to: &Name) -> bool {
        let (Ok(id), Ok((dir, _))) = (self.lookup(from), self.parent(to)) else { return false };
        let special = matches!(self.node(id).kind, Kind::Special(_));
        special && self.node(id).project.id == 0 && self.keeps_out(dir, id)
    }

    fn opens_safely(&self, path: &Name) -> bool {
        let end = self.lookup(path).map(|id| &self.node(id).kind);
        !matches!(end, Ok(Kind::Special(_)))
    }

    fn reachable(&self, file: &Ref) -> bool {
        match file {
            Ref::Slot(slot) => self.slots.get(*slot).copied().flatten().is_some(),
            Ref::Path(path) => self.plain(path) && self.opens_safely(path),
        }
    }

    fn is_own(&self, file: &Ref) -> bool {
        match file {
            Ref::Slot(slot) => {
                self.slots.get(*slot).copied().flatten().is_none_or(|id| !self.node(id).foreign)
            }
            Ref::Path(path) => self.own(path),
        }
    }
}
