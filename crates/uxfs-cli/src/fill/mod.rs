//! Putting files into a volume, with all that is said of them; where they come from is told by a file each.
//!
//! Invariants: a directory joins the one that has its name, and no directory is ever replaced; what takes the place of
//! something else is made under a name of its own and moved there when it is whole; a new file that fails is not there;
//! a directory gets its times when nothing in it changes any more; nothing that is written depends on the order in
//! which the host lists its directories or on its inode numbers. A volume that is full or shut down ends the work;
//! anything else that fails is one file that is not there.

pub mod archive;
pub mod exact;
pub mod host;
pub mod image;
pub mod small;
pub mod stream;
pub mod threads;

use self::exact::Exact;
use crate::edit::NewName;
use crate::exit::{Exit, Failure};
use crate::host::attributes::Keep;
use crate::interrupt;
use crate::mode::Owner;
use crate::progress;
use crate::trust::{Budget, Devices, OverLimit, Trust, is_acl};
use crate::walk::InodeSet;
use indicatif::ProgressBar;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use uxfs::{
    AlignedBuf, Changes, Dir, ErrorKind, File, FileType, Metadata, NewNode, Node, SetXattr, Special,
    Timestamp,
};

/// Bytes that are copied at once.
const CHUNK: usize = 1 << 20;
/// What gives whoever runs a program a part of root's rights.
const CAPABILITY: &[u8] = b"security.capability";
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// What is said of a file: of any type, wherever it comes from.
#[derive(Clone, Debug)]
pub struct Attributes {
    /// Permissions, with set-user-id, set-group-id and sticky bit.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// When it was last read, where that is known.
    pub atime: Option<Timestamp>,
    /// When its content last changed.
    pub mtime: Timestamp,
    /// Extended attributes, access control lists in the form of Linux among them.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// What an inode of another volume says besides, where all of it is kept.
    pub inode: Option<Exact>,
}

impl Attributes {
    /// Memory that extended attributes take.
    fn bytes(&self) -> usize {
        let of_each = 2 * size_of::<Vec<u8>>();
        self.xattrs.iter().map(|(name, value)| name.len() + value.len() + of_each).sum()
    }
}

/// What becomes of a file that has the name of what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It is written into, and stays what it is: owner, permissions, attributes, other names. A link is followed.
    Kept,
    /// Another one takes its place.
    Replaced,
    /// The same, also where it was made by the same work: an archive's last entry counts.
    LastCounts,
}

/// Whether a copy shares blocks with what it is copied from, as far as both are files of one volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Reflink {
    /// Where that can be; else bytes are copied.
    #[default]
    Auto,
    /// Or there is no copy.
    Always,
    /// Bytes are copied.
    Never,
}

/// What new files are to be, whatever they were where they come from.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// What is kept of what they were.
    pub keep: Keep,
    /// Whether links among what is copied become links.
    pub keep_links: bool,
    /// Whose they are.
    pub owner: Owner,
    /// When everything happens, as the volume's clock has it, too: with it, the same files always give the same volume.
    /// Times of content are kept.
    pub time: Option<Timestamp>,
    /// Whether directories of the volume hand down group, access control list and project.
    pub inherit: bool,
    /// Bits that are taken off where permissions are not kept.
    pub umask: u16,
    /// Whether all is kept that an inode of another volume says: for a volume that is made. Its times are facts of the
    /// source then, also where a time is given.
    pub exact: bool,
    /// Whether copies share blocks.
    pub reflink: Reflink,
    /// What becomes of a file that is there.
    pub existing: Existing,
    /// What is taken of a source, and how much.
    pub trust: Trust,
    /// Whether each name is said.
    pub verbose: bool,
    /// How many threads make files: one where all is to be in order.
    pub threads: usize,
}

impl Rules {
    /// When what has no time of its own happens.
    pub fn now(&self) -> Timestamp {
        self.time.unwrap_or_else(now)
    }
}

/// Why one file is not there, or not as it should be.
#[derive(Debug)]
pub struct Trouble {
    exit: Exit,
    what: String,
    /// Whether more of it makes no sense.
    ends: bool,
}

/// What a step gives.
pub type Outcome<T> = std::result::Result<T, Trouble>;

impl Trouble {
    /// One that leaves out one file.
    pub fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self { exit, what: what.into(), ends: false }
    }

    /// One that ends the work.
    pub fn end(exit: Exit, what: impl Into<String>) -> Self {
        Self { exit, what: what.into(), ends: true }
    }

    /// Also says that a file is there in part.
    pub fn in_part(mut self) -> Self {
        self.what.push_str("; of the file that was there, a part is written");
        self
    }

    /// Whether it ends the work.
    pub fn ends(&self) -> bool {
        self.ends
    }

    /// As the failure of a verb, about a path.
    pub fn failure(self, place: impl std::fmt::Display) -> Failure {
        Failure::new(self.exit, format!("{place}: {}", self.what))
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}

impl From<uxfs::Error> for Trouble {
    fn from(error: uxfs::Error) -> Self {
        let ends = matches!(
            error.kind(),
            ErrorKind::NoSpace | ErrorKind::ShutDown | ErrorKind::ShutDownByDamage | ErrorKind::ReadOnly
        );
        Self { exit: error.kind().into(), what: error.to_string(), ends }
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind as Host;
        let kind = error.kind();
        let exit = Exit::of_host(&error);
        let what = format!("cannot be copied: {error}");
        // What the host says of one file it will say of the next.
        let ends = matches!(kind, Host::StorageFull | Host::QuotaExceeded | Host::ReadOnlyFilesystem);
        Self { exit, what, ends }
    }
}

impl From<OverLimit> for Trouble {
    fn from(limit: OverLimit) -> Self {
        Self::end(OverLimit::EXIT, limit.to_string())
    }
}

/// What a file that is no directory and has no content is.
pub enum Leaf<'a> {
    /// A symbolic link to this target.
    Symlink(&'a [u8]),
    /// A device, pipe or socket.
    Special(Special),
}

/// Writes files into a volume, for one thread.
pub struct Filler<'a> {
    rules: Rules,
    bar: &'a ProgressBar,
    buf: AlignedBuf,
    /// Bytes of data that the next file is to have, as far as that is known.
    expected: u64,
    /// The directory that is being filled, as a path of the volume; where each part of it begins.
    place: Vec<u8>,
    parts: Vec<usize>,
    shared: Arc<Shared>,
}

/// What all threads have together that write into a volume.
struct Shared {
    /// Attributes that the volume cannot hold.
    lost_xattrs: AtomicU64,
    budget: Mutex<Budget>,
    /// What was made or written into; directories, if they were made.
    made: Mutex<InodeSet>,
}

impl Shared {
    fn is_made(&self, ino: u64) -> bool {
        self.made.lock().contains(ino)
    }

    fn was_made(&self, ino: u64) {
        self.made.lock().insert(ino);
    }
}

impl<'a> Filler<'a> {
    /// A filler with these rules.
    pub fn new(rules: Rules, bar: &'a ProgressBar) -> Self {
        let shared = Shared {
            lost_xattrs: AtomicU64::new(0),
            budget: Mutex::new(Budget::new(rules.trust.limits)),
            made: Mutex::default(),
        };
        Self::with(rules, bar, Arc::new(shared))
    }

    /// One for another thread, for the same work.
    pub fn another(&self) -> Self {
        Self::with(self.rules, self.bar, self.shared.clone())
    }

    fn with(rules: Rules, bar: &'a ProgressBar, shared: Arc<Shared>) -> Self {
        let (place, parts) = (Vec::new(), Vec::new());
        Self { rules, bar, buf: AlignedBuf::zeroed(CHUNK), expected: 0, place, parts, shared }
    }

    /// What new files are to be.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Attributes that were left out because no volume can hold them.
    pub fn lost_xattrs(&self) -> u64 {
        self.shared.lost_xattrs.load(Ordering::Relaxed)
    }

    /// Counts attributes that are left out.
    pub fn lose_xattrs(&self, count: u64) {
        self.shared.lost_xattrs.fetch_add(count, Ordering::Relaxed);
    }

    /// Says what is being worked on.
    pub fn at(&self, path: &[u8]) {
        progress::name(self.bar, path);
        if self.rules.verbose {
            self.bar.suspend(|| crate::problems::complain(&uxfs::printable(path)));
        }
    }

    /// Begins to fill the directory at a path of the volume.
    pub fn start(&mut self, path: &[u8]) {
        self.place.clear();
        self.place.extend(path);
        self.parts.clear();
    }

    /// Whether this work made a directory, so that nothing is in it that it did not put there.
    pub fn is_new(&self, dir: &Dir) -> bool {
        self.shared.is_made(dir.node().ino())
    }

    /// Goes into a directory of the one that is being filled. [`leave`](Self::leave) and [`finish`](Self::finish) it when all is
    /// in it.
    pub fn enter(&mut self, parent: &Dir, name: &[u8], of: &Attributes) -> Outcome<Dir> {
        self.shared.budget.lock().check_depth(self.parts.len() as u64 + 1)?;
        let dir = self.directory(parent, name, of)?;
        self.parts.push(self.place.len());
        self.place.push(b'/');
        self.place.extend(name);
        Ok(dir)
    }

    /// Goes back up from a directory that was gone into, which is to be [`finish`](Self::finish)ed.
    pub fn leave(&mut self) {
        if let Some(end) = self.parts.pop() {
            self.place.truncate(end);
        }
    }

    /// Finds a directory, which is made unless it is there. [`finish`](Self::finish) it when all is in it.
    ///
    /// A new one gets its attributes at once: later there may be no room for them beside its entries.
    pub fn directory(&mut self, parent: &Dir, name: &[u8], of: &Attributes) -> Outcome<Dir> {
        go_on()?;
        self.shared.budget.lock().take_file()?;
        match parent.create_dir(name, &self.new_node(of, true)) {
            Ok(made) => {
                self.shared.was_made(made.ino());
                // Of a directory that hands down its group it has that.
                self.owner(&made, of)?;
                self.plain(&made, of)?;
                // They are set once more in the end, and those counted that are lost.
                let _lost = self.xattrs(&made, of)?;
                Ok(made.as_dir()?)
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => match parent.lookup(name)? {
                Some(node) if node.file_type().is_dir() => Ok(node.as_dir()?),
                Some(node) => Err(Trouble::new(
                    Exit::AlreadyExists,
                    format!("a {} has the name of the directory, and is left as it is", node.file_type()),
                )),
                None => Err(error.into()),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Tells how much data the next file is going to have, about.
    pub fn expect(&mut self, bytes: u64) {
        self.expected = bytes;
    }

    /// Makes a regular file, or writes into the one that is there, and gives it with all that is said of it.
    pub fn file(
        &mut self,
        parent: &Dir,
        name: &[u8],
        of: &Attributes,
        content: impl FnOnce(&mut Self, &File) -> Outcome<()>,
    ) -> Outcome<Node> {
        let expected = std::mem::take(&mut self.expected);
        go_on()?;
        self.shared.budget.lock().take_file()?;
        if self.rules.existing == Existing::Kept
            && let Some(node) = self.existing(parent, name)?
        {
            check_room(&node, expected)?;
            return self.overwrite(node, of, content);
        }
        let new = self.new_node(of, false);
        if self.rules.existing != Existing::LastCounts && parent.lookup(name)?.is_none() {
            // Whatever happens meanwhile, half of it is never there.
            let file = parent.create_unnamed(&new)?;
            let node = file.node().clone();
            self.fill(&node, of, content)?;
            parent.link(name, &node)?;
            return self.made(node, of);
        }
        let (node, name) = self.make(parent, name, |name| parent.create_file(name, &new))?;
        let written = self.fill(&node, of, content).and_then(|()| Ok(name.publish(parent)?));
        if let Err(trouble) = written {
            // Half a file passes for a whole one. What went wrong first is what is said.
            name.take_back(parent);
            return Err(trouble);
        }
        self.made(node, of)
    }

    /// Ends something new that has its name.
    fn made(&self, node: Node, of: &Attributes) -> Outcome<Node> {
        self.inode(&node, of)?;
        self.shared.was_made(node.ino());
        Ok(node)
    }

    fn fill(
        &mut self,
        node: &Node,
        of: &Attributes,
        content: impl FnOnce(&mut Self, &File) -> Outcome<()>,
    ) -> Outcome<()> {
        self.owner(node, of)?;
        self.plain(node, of)?;
        // Later there may be no room for them beside the map.
        self.keep_xattrs(node, of)?;
        if let Some(exact) = &of.inode {
            exact.before_content(node)?;
        }
        content(self, &node.open()?)?;
        let capability = of.xattrs.iter().find(|(name, _)| name == CAPABILITY && self.takes_xattr(name));
        if let Some((name, value)) = capability {
            // A change of content has taken it off.
            node.set_xattr(name, value, SetXattr::Either)?;
        }
        Ok(())
    }

    fn takes_xattr(&self, name: &[u8]) -> bool {
        let keep = self.rules.keep;
        let wanted = if is_acl(name) { keep.mode } else { keep.xattrs };
        wanted && self.rules.trust.takes_xattr(name)
    }

    /// The regular file to write into, where links lead to one; `None` if something new is to be made: nothing has the
    /// name, or what has it makes room, as `cp` has it.
    fn existing(&self, parent: &Dir, name: &[u8]) -> Outcome<Option<Node>> {
        let refuse = |what: String| Err(Trouble::new(Exit::AlreadyExists, what));
        let Some(mut node) = parent.lookup(name)? else { return Ok(None) };
        if node.file_type().is_symlink() {
            let path = [&self.place, &b"/"[..], name].concat();
            node = match node.volume().lookup(&path) {
                Ok(node) => node,
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    return refuse("a symbolic link that leads nowhere has the name of the copy".to_owned());
                }
                Err(error) => return Err(error.into()),
            };
        }
        let kind = node.file_type();
        if !kind.is_file() {
            return refuse(format!("a {kind} has the name of the copy, and is left as it is"));
        }
        self.check_made(&node)?;
        // A link among what is copied would otherwise become one to files that are not.
        let replaced = self.rules.keep_links && node.metadata()?.nlink > 1;
        Ok((!replaced).then_some(node))
    }

    /// Whether a name is, or leads to, a file that is to be copied there.
    pub fn leads_to(&self, parent: &Dir, name: &[u8], node: &Node) -> Outcome<bool> {
        let Some(there) = parent.lookup(name)? else { return Ok(false) };
        if there.ino() == node.ino() {
            return Ok(true);
        }
        if !there.file_type().is_symlink() || !node.file_type().is_file() {
            return Ok(false);
        }
        let path = [&self.place, &b"/"[..], name].concat();
        Ok(node.volume().lookup(&path).is_ok_and(|there| there.ino() == node.ino()))
    }

    /// Refuses to lose what this work has made.
    fn check_made(&self, there: &Node) -> Outcome<()> {
        if self.rules.existing != Existing::LastCounts && self.shared.is_made(there.ino()) {
            return Err(Trouble::new(
                Exit::AlreadyExists,
                "something else was copied to this name just now, and is left as it is",
            ));
        }
        Ok(())
    }

    /// Writes into a file that is there, which stays the same one. If that fails, a part of it is written.
    fn overwrite(
        &mut self,
        node: Node,
        of: &Attributes,
        content: impl FnOnce(&mut Self, &File) -> Outcome<()>,
    ) -> Outcome<Node> {
        let file = node.open()?;
        file.set_len(0)?;
        content(self, &file).map_err(Trouble::in_part)?;
        drop(file);
        self.owner(&node, of)?;
        self.keep_xattrs(&node, of)?;
        let mut changes = self.changes(&node, of);
        // Filling a file leaves its times alone.
        changes.mtime = changes.mtime.or_else(|| Some(self.rules.now()));
        node.change(&changes)?;
        self.shared.was_made(node.ino());
        Ok(node)
    }

    /// Makes anything else; `None` if it is left out.
    pub fn leaf(
        &mut self,
        parent: &Dir,
        name: &[u8],
        of: &Attributes,
        what: &Leaf<'_>,
    ) -> Outcome<Option<Node>> {
        go_on()?;
        if let Leaf::Special(Special::CharDevice(..) | Special::BlockDevice(..)) = what {
            match self.rules.trust.devices {
                Devices::Made => {}
                Devices::LeftOut => return Ok(None),
                Devices::Refused => return Err(Trouble::new(Exit::Unsupported, NO_DEVICE)),
            }
        }
        self.shared.budget.lock().take_file()?;
        let new = self.new_node(of, false);
        let (node, name) = self.make(parent, name, |name| match what {
            Leaf::Symlink(target) => parent.create_symlink(name, target, &new),
            Leaf::Special(special) => parent.create_special(name, *special, &new),
        })?;
        let done = self.owner(&node, of).and_then(|()| self.plain(&node, of));
        let done = done.and_then(|()| self.keep_xattrs(&node, of));
        let done = done.and_then(|()| Ok(name.publish(parent)?));
        if let Err(trouble) = done {
            name.take_back(parent);
            return Err(trouble);
        }
        self.made(node, of).map(Some)
    }

    /// Gives a file that was made another name.
    pub fn link(&self, parent: &Dir, name: &[u8], to: &Node) -> Outcome<()> {
        go_on()?;
        if parent.lookup(name)?.is_some_and(|there| there.ino() == to.ino()) {
            return Ok(());
        }
        let ((), name) = self.make(parent, name, |name| parent.link(name, to))?;
        Ok(name.publish(parent).inspect_err(|_| name.take_back(parent))?)
    }

    /// Makes something: under its name, or, where that is taken, under another one of which it is to be moved.
    fn make<'n, T>(
        &self,
        parent: &Dir,
        name: &'n [u8],
        make: impl Fn(&[u8]) -> uxfs::Result<T>,
    ) -> Outcome<(T, NewName<'n>)> {
        if let Some(made) = NewName::make(name, &make)? {
            return Ok(made);
        }
        if let Some(there) = parent.lookup(name)? {
            if there.file_type().is_dir() {
                let what = "a directory has the name of the copy, and is left as it is";
                return Err(Trouble::new(Exit::AlreadyExists, what));
            }
            self.check_made(&there)?;
        }
        Ok(NewName::make_beside(name, make)?)
    }

    /// Sets all that is said of a directory and is to be kept.
    pub fn finish(&self, node: &Node, of: &Attributes) -> Outcome<()> {
        if self.rules.keep.ownership {
            // Else one that was there keeps its owner, and a new one has the right one.
            self.owner(node, of)?;
        }
        self.keep_xattrs(node, of)?;
        self.inode(node, of)
    }

    /// Gives a file its owner, if that is kept or was asked for. That comes first: a file that changes hands loses its
    /// capabilities.
    fn owner(&self, node: &Node, of: &Attributes) -> Outcome<()> {
        let (rules, new) = (self.rules, self.new_node(of, node.file_type().is_dir()));
        let changes = Changes {
            uid: (rules.keep.ownership || rules.owner.uid.is_some()).then_some(new.uid),
            gid: (rules.keep.ownership || rules.owner.gid.is_some()).then_some(new.gid),
            ..Changes::default()
        };
        self.change(node, &changes)
    }

    /// Takes off something new what its directory gave to it, where its permissions are the umask's matter alone. A
    /// directory hands on what it was handed down.
    fn plain(&self, node: &Node, of: &Attributes) -> Outcome<()> {
        let (keep, kind) = (self.rules.keep, node.file_type());
        if keep.mode || keep.similar_mode || kind.is_symlink() {
            return Ok(());
        }
        if node.xattr_names()?.iter().any(|name| name == ACCESS_ACL) {
            node.remove_xattr(ACCESS_ACL)?;
        }
        let handed_down = node.metadata()?.permissions() & 0o2000;
        let permissions = keep.plain(of.permissions, kind.is_dir()) & !self.rules.umask | handed_down;
        self.change(node, &Changes { permissions: Some(permissions), ..Changes::default() })
    }

    /// Once more, behind all that may have changed it since: its permissions and times.
    pub fn settle(&self, node: &Node, of: &Attributes) -> Outcome<()> {
        self.inode(node, of)
    }

    /// Whether so many directories may lie below each other.
    pub fn check_depth(&self, depth: usize) -> Outcome<()> {
        Ok(self.shared.budget.lock().check_depth(depth as u64)?)
    }

    /// Sets what else is said of a file in its inode. Permissions come behind the lists, which they are a part of, and
    /// times behind all.
    fn inode(&self, node: &Node, of: &Attributes) -> Outcome<()> {
        self.change(node, &self.changes(node, of))
    }

    /// What of it is kept, or was asked for.
    fn changes(&self, node: &Node, of: &Attributes) -> Changes {
        let (rules, kind) = (self.rules, node.file_type());
        let new = self.new_node(of, kind.is_dir());
        let changes = Changes {
            permissions: (rules.keep.mode && !kind.is_symlink()).then_some(new.permissions),
            atime: new.atime,
            mtime: new.mtime,
            ctime: rules.time,
            ..Changes::default()
        };
        of.inode.as_ref().map_or(changes, |exact| exact.behind_all(changes))
    }

    /// Makes changes, unless all is so already.
    fn change(&self, node: &Node, changes: &Changes) -> Outcome<()> {
        let found = node.metadata()?;
        if exact::says_more(changes) {
            return exact::set(node, changes);
        }
        let as_is = changes.permissions.is_none_or(|wanted| wanted == found.permissions())
            && changes.uid.is_none_or(|wanted| wanted == found.uid)
            && changes.gid.is_none_or(|wanted| wanted == found.gid)
            && changes.atime.is_none_or(|wanted| wanted == found.atime)
            && changes.mtime.is_none_or(|wanted| wanted == found.mtime)
            && changes.ctime.is_none_or(|wanted| wanted == found.ctime)
            && changes.crtime.is_none_or(|wanted| found.btime == Some(wanted));
        if !as_is {
            node.change(changes)?;
        }
        Ok(())
    }

    /// Sets attributes, and counts those that are lost.
    fn keep_xattrs(&self, node: &Node, of: &Attributes) -> Outcome<()> {
        self.lose_xattrs(self.xattrs(node, of)?);
        Ok(())
    }

    /// Sets attributes; access control lists go with permissions. Gives how many the volume cannot hold.
    fn xattrs(&self, node: &Node, of: &Attributes) -> Outcome<u64> {
        let mut lost = 0;
        // An archive that says nothing of lists leaves a directory that was there those that it has.
        let silent = self.rules.existing == Existing::LastCounts
            && !of.xattrs.iter().any(|(name, _)| is_acl(name))
            && !self.shared.is_made(node.ino())
            && node.file_type().is_dir();
        if self.rules.inherit && self.rules.keep.mode && !silent {
            // What the directory gives to new files would let in people whom the source doesn't.
            for name in node.xattr_names()? {
                if is_acl(&name) && !of.xattrs.iter().any(|(wanted, _)| *wanted == name) {
                    node.remove_xattr(&name)?;
                }
            }
        }
        let is_dir = node.file_type().is_dir();
        for (name, value) in &of.xattrs {
            if !self.takes_xattr(name) {
                continue;
            }
            if name.starts_with(b"trusted.SGI_ACL_") || (name == DEFAULT_ACL && !is_dir) {
                // The list itself goes over as `system.posix_acl_…`.
                continue;
            }
            match node.set_xattr(name, value, SetXattr::Either) {
                Ok(()) => {}
                Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::WrongType) => {
                    lost += 1;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(lost)
    }

    fn new_node(&self, of: &Attributes, is_dir: bool) -> NewNode {
        let rules = &self.rules;
        let (uid, gid) = if rules.keep.ownership { (of.uid, of.gid) } else { (0, 0) };
        let mut plain = rules.keep.plain(of.permissions, is_dir);
        if is_dir {
            // As `cp` has it, also where a list takes the umask's place.
            plain &= !(0o022 & rules.umask);
        }
        let (atime, mtime) = match rules.keep.timestamps {
            true if of.inode.is_some() => (of.atime, Some(of.mtime)),
            true => (of.atime.filter(|_| rules.time.is_none()).or(rules.time), Some(of.mtime)),
            false => (None, rules.time),
        };
        NewNode {
            permissions: match rules.keep.mode {
                true => rules.trust.permissions(of.permissions),
                false => plain,
            },
            umask: if rules.keep.mode { 0 } else { rules.umask },
            uid: rules.owner.uid.unwrap_or(uid),
            gid: rules.owner.gid.unwrap_or(gid),
            time: rules.time,
            atime,
            mtime,
            inherit: rules.inherit,
        }
    }

    /// Copies the bytes from `start` to `end`, as `read` gives them for a place in the source.
    pub fn copy_run(
        &mut self,
        to: &File,
        start: u64,
        end: u64,
        mut read: impl FnMut(&mut [u8], u64) -> Outcome<usize>,
    ) -> Outcome<()> {
        let mut at = start;
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
            let len = read(&mut self.buf[..want], at)?;
            if len == 0 {
                break;
            }
            go_on()?;
            self.shared.budget.lock().take_size(len as u64)?;
            to.append_at(&self.buf[..len], at)?;
            self.bar.inc(len as u64);
            at += len as u64;
        }
        Ok(())
    }

    /// Counts data that a copy has without a byte of it copied.
    pub fn share(&mut self, bytes: u64) -> Outcome<()> {
        self.shared.budget.lock().take_size(bytes)?;
        self.bar.inc(bytes);
        Ok(())
    }

    /// Adds bytes to the end of a file, or behind it.
    pub fn append(&mut self, to: &File, at: u64, data: &[u8]) -> Outcome<()> {
        go_on()?;
        self.shared.budget.lock().take_size(data.len() as u64)?;
        to.append_at(data, at)?;
        self.bar.inc(data.len() as u64);
        Ok(())
    }
}

/// What is said of a device that is not made.
pub const NO_DEVICE: &str = "a device; devices are copied with -a or --devices";

/// Ends the work if a signal asked for that.
fn go_on() -> Outcome<()> {
    if interrupt::asked() { Err(Trouble::end(Exit::Interrupted, interrupt::WHAT)) } else { Ok(()) }
}

/// Lets a file end where it should: the last hole is not written.
pub fn end_at(file: &File, size: u64) -> Outcome<()> {
    if file.size() != size {
        file.set_len(size)?;
    }
    Ok(())
}

/// Refuses to begin to write into a file if there cannot be room for so much: what is in it would be lost for nothing.
fn check_room(there: &Node, bytes: u64) -> Outcome<()> {
    let info = there.volume().info()?;
    let free = info.free_blocks.saturating_mul(info.block_size.into());
    let own = there.metadata()?.blocks.saturating_mul(512);
    if bytes > free.saturating_add(own) {
        return Err(Trouble::end(Exit::NoSpace, "no space left for it; the file that is there is as it was"));
    }
    Ok(())
}

/// The time now.
fn now() -> Timestamp {
    let since =
        std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp { seconds: since.as_secs().cast_signed(), nanoseconds: since.subsec_nanos() }
}

/// What a volume says of a node of its own, for a copy of it.
pub fn attributes_of(node: &Node) -> Outcome<Attributes> {
    let of = node.metadata()?;
    let mut xattrs = Vec::new();
    for name in node.xattr_names()? {
        if let Some(value) = node.xattr(&name)? {
            xattrs.push((name, value));
        }
    }
    Ok(Attributes {
        permissions: of.permissions(),
        uid: of.uid,
        gid: of.gid,
        atime: Some(of.atime),
        mtime: of.mtime,
        xattrs,
        inode: None,
    })
}

/// The special file that metadata describe; `None` if it is of another type.
pub fn special_of(of: &Metadata) -> Option<Special> {
    let (major, minor) = of.rdev.map_or((0, 0), |rdev| (rdev.major, rdev.minor));
    Some(match of.file_type {
        FileType::CharDevice => Special::CharDevice(major, minor),
        FileType::BlockDevice => Special::BlockDevice(major, minor),
        FileType::Fifo => Special::Fifo,
        FileType::Socket => Special::Socket,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use uxfs::{MkfsOptions, OpenOptions, Volume};

    fn rules(existing: Existing) -> Rules {
        Rules {
            keep: Keep::ALL,
            keep_links: true,
            owner: Owner::default(),
            time: None,
            inherit: true,
            umask: 0,
            exact: false,
            reflink: Reflink::Never,
            existing,
            trust: Trust::FULL,
            verbose: false,
            threads: 1,
        }
    }

    fn of() -> Attributes {
        Attributes {
            permissions: 0o644,
            uid: 1,
            gid: 2,
            atime: None,
            mtime: now(),
            xattrs: Vec::new(),
            inode: None,
        }
    }

    /// Whatever ends the process while a file is written: the name has what it had, or nothing.
    #[test]
    fn a_file_has_its_name_when_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        uxfs::mkfs(&image, &MkfsOptions::new().size(64 << 20).small(true)).unwrap();
        let volume = Volume::open(&image, &OpenOptions::new().writable(true)).unwrap();
        let root = volume.open_dir("/").unwrap();
        let read = |path: &str| {
            let mut bytes = [0; 9];
            let len = volume.open_file(path).and_then(|file| file.read_at(&mut bytes, 0)).ok()?;
            Some(bytes[..len].to_vec())
        };
        let bar = ProgressBar::hidden();
        for before in [None, Some(b"old".to_vec())] {
            let existing = if before.is_none() { Existing::Kept } else { Existing::Replaced };
            for fails in [true, false] {
                let made = Filler::new(rules(existing), &bar).file(&root, b"file", &of(), |filler, file| {
                    filler.append(file, 0, b"new")?;
                    assert_eq!(read("/file"), before);
                    if fails { Err(Trouble::new(Exit::Io, "fails")) } else { Ok(()) }
                });
                assert_eq!(made.is_err(), fails);
                let there = if fails { before.clone() } else { Some(b"new".to_vec()) };
                assert_eq!(read("/file"), there);
                assert_eq!(root.entries().count(), usize::from(there.is_some()));
            }
            root.lookup(b"file").unwrap().unwrap().open().unwrap().write_at(b"old", 0).unwrap();
        }
        volume.close().unwrap();
    }
}
