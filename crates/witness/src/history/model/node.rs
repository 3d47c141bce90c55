//! One object of the model, and sets of them to choose from.

use crate::history::acl::Acl;
use crate::history::content::{Blob, Content};
use crate::history::op::{Moment, Name, NodeKind, Stat};
use crate::record::{Hints, Project};
use std::collections::{BTreeMap, HashMap};

/// Which object: a number that no other object of the same model ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u32);

/// What an object is, and what is in it.
#[derive(Clone, Debug)]
pub enum Kind {
    File(Content),
    Dir(BTreeMap<Name, Id>),
    Symlink(Name),
    Special(NodeKind),
}

/// What is known of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// It was set, and nothing changed it since.
    Set(Moment),
    /// The moment of some operation of the history.
    Running,
    /// Either.
    Unknown,
}

/// An object.
#[derive(Clone, Debug)]
pub struct Node {
    pub kind: Kind,
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub project: Project,
    pub hints: Hints,
    pub nlink: u32,
    pub xattrs: BTreeMap<Name, Blob>,
    pub acl: Option<Acl>,
    pub default_acl: Option<Acl>,
    pub atime: Time,
    pub mtime: Time,
    /// Directories that it has names in, and the names.
    pub names: Vec<(Id, Name)>,
    /// How many slots hold it open.
    pub opens: u32,
    /// Made without a name, and never had one.
    pub linkable: bool,
    /// Shared with other threads.
    pub foreign: bool,
    /// Clock at its last change that a journal knows of.
    pub changed: u64,
}

impl Node {
    /// An object without a name.
    pub fn new(kind: Kind, mode: u16, gid: u32) -> Self {
        let nlink = if matches!(kind, Kind::Dir(_)) { 2 } else { 0 };
        Self {
            kind,
            mode,
            uid: 0,
            gid,
            project: Project::default(),
            hints: Hints::default(),
            nlink,
            xattrs: BTreeMap::new(),
            acl: None,
            default_acl: None,
            atime: Time::Running,
            mtime: Time::Running,
            names: Vec::new(),
            opens: 0,
            linkable: false,
            foreign: false,
            changed: 0,
        }
    }

    /// The letter that `ls -l` has for it.
    pub fn letter(&self) -> char {
        match &self.kind {
            Kind::File(_) => '-',
            Kind::Dir(_) => 'd',
            Kind::Symlink(_) => 'l',
            Kind::Special(NodeKind::Regular) => '-',
            Kind::Special(NodeKind::Fifo) => 'p',
            Kind::Special(NodeKind::Socket) => 's',
            Kind::Special(NodeKind::CharDevice(..)) => 'c',
            Kind::Special(NodeKind::BlockDevice(..)) => 'b',
        }
    }

    /// Its metadata by `stat`.
    pub fn stat(&self) -> Stat {
        let size = match &self.kind {
            Kind::File(content) => content.size(),
            Kind::Symlink(target) => target.0.len() as u64,
            Kind::Dir(_) | Kind::Special(_) => 0,
        };
        Stat {
            letter: self.letter(),
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            nlink: self.nlink,
            size,
            ino: Default::default(),
        }
    }
}

/// A set to choose from at random, in an order that follows from the history alone.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    ids: Vec<Id>,
    places: HashMap<Id, usize>,
}

impl Pool {
    /// Adds an id.
    pub fn insert(&mut self, id: Id) {
        if self.places.insert(id, self.ids.len()).is_none() {
            self.ids.push(id);
        }
    }

    /// Takes an id out, if it is in.
    pub fn remove(&mut self, id: Id) {
        if let Some(place) = self.places.remove(&id) {
            self.ids.swap_remove(place);
            if let Some(&moved) = self.ids.get(place) {
                self.places.insert(moved, place);
            }
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// One of them.
    pub fn choose(&self, rng: &mut fastrand::Rng) -> Option<Id> {
        (!self.ids.is_empty()).then(|| self.ids[rng.usize(..self.ids.len())])
    }
}
