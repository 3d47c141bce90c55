//! Putting files into a volume, with their metadata. Each kind of source has a file of its own.
//!
//! Invariants: a directory is merged into one of the same name, and no directory is ever replaced; a replacement is
//! made under a temporary name and moved when it is complete; a new file that fails is removed; a directory gets its
//! times when nothing in it changes any more; the result does not depend on the host's directory order or inode
//! numbers. A volume that is full or shut down ends the work; any other failure is one missing file.

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

/// Size of a piece of a copy.
const CHUNK: usize = 1 << 20;
/// The attribute that gives a program some of root's rights.
const CAPABILITY: &[u8] = b"security.capability";
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// The metadata of a file of any type, from any source.
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
    /// Further metadata of an inode of another volume, for an exact copy.
    pub inode: Option<Exact>,
}

impl Attributes {
    /// Memory that extended attributes take.
    fn bytes(&self) -> usize {
        let of_each = 2 * size_of::<Vec<u8>>();
        self.xattrs.iter().map(|(name, value)| name.len() + value.len() + of_each).sum()
    }
}

/// What happens to an existing file with the name of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It is overwritten in place, and keeps owner, permissions, attributes and other names. A link is followed.
    Kept,
    /// It is replaced.
    Replaced,
    /// The same, even if this work made it: an archive's last entry counts.
    LastCounts,
}

/// Whether a copy shares blocks with its source, if both are files of one volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Reflink {
    /// If possible; otherwise bytes are copied.
    #[default]
    Auto,
    /// Otherwise the copy fails.
    Always,
    /// Bytes are copied.
    Never,
}

/// How new files differ from their sources.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// What is kept of the source.
    pub keep: Keep,
    /// Whether hard links among the copied files are kept.
    pub keep_links: bool,
    /// The owner.
    pub owner: Owner,
    /// The time of all changes, which is also the volume's clock: with it, the same files always give the same volume.
    /// Times of content are kept.
    pub time: Option<Timestamp>,
    /// Whether files inherit group, access control list and project from directories of the volume.
    pub inherit: bool,
    /// Bits to clear if permissions are not kept.
    pub umask: u16,
    /// Whether it is an exact copy of another volume's files, for a new volume. Then all times are those of the
    /// source, even if a time is given.
    pub exact: bool,
    /// Whether copies share blocks.
    pub reflink: Reflink,
    /// What happens to existing files.
    pub existing: Existing,
    /// What is accepted from a source, and how much.
    pub trust: Trust,
    /// Whether each name is printed.
    pub verbose: bool,
    /// How many threads make files: one if the order matters.
    pub threads: usize,
}

impl Rules {
    /// The time for changes without a time of their own.
    pub fn now(&self) -> Timestamp {
        self.time.unwrap_or_else(now)
    }
}

/// Why a file is missing or incomplete.
#[derive(Debug)]
pub struct Trouble {
    exit: Exit,
    what: String,
    /// Whether to give up.
    ends: bool,
}

/// The result of a step.
pub type StepResult<T> = std::result::Result<T, Trouble>;

impl Trouble {
    /// A problem that skips one file.
    pub fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self { exit, what: what.into(), ends: false }
    }

    /// A problem that ends the work.
    pub fn end(exit: Exit, what: impl Into<String>) -> Self {
        Self { exit, what: what.into(), ends: true }
    }

    /// Adds that a file was written in part.
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
            ErrorKind::NoSpace
                | ErrorKind::ShutDown
                | ErrorKind::ShutDownByDamage
                | ErrorKind::ReadOnly
                | ErrorKind::ReadOnlyDevice
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
        // The host's error will be the same for the next file.
        let ends = matches!(kind, Host::StorageFull | Host::QuotaExceeded | Host::ReadOnlyFilesystem);
        Self { exit, what, ends }
    }
}

impl From<OverLimit> for Trouble {
    fn from(limit: OverLimit) -> Self {
        Self::end(OverLimit::EXIT, limit.to_string())
    }
}

/// A file without content that is no directory.
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
    /// The approximate size of the next file.
    expected: u64,
    /// The directory that is being filled, as a path of the volume; where each part of it begins.
    place: Vec<u8>,
    parts: Vec<usize>,
    shared: Arc<Shared>,
}

/// State shared by all threads that write into a volume.
struct Shared {
    /// Attributes that the volume cannot hold.
    lost_xattrs: AtomicU64,
    budget: Mutex<Budget>,
    /// Files that were made or written, and directories that were made.
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

    /// A filler for another thread, for the same work.
    pub fn another(&self) -> Self {
        Self::with(self.rules, self.bar, self.shared.clone())
    }

    fn with(rules: Rules, bar: &'a ProgressBar, shared: Arc<Shared>) -> Self {
        let (place, parts) = (Vec::new(), Vec::new());
        Self { rules, bar, buf: AlignedBuf::zeroed(CHUNK), expected: 0, place, parts, shared }
    }

    /// The rules for new files.
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

    /// Shows the current file.
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

    /// Whether this work made a directory, so that it holds nothing else.
    pub fn is_new(&self, dir: &Dir) -> bool {
        self.shared.is_made(dir.node().ino())
    }

    /// Goes into a directory of the one that is being filled. [`leave`](Self::leave) and [`finish`](Self::finish) it when all is
    /// in it.
    pub fn enter(&mut self, parent: &Dir, name: &[u8], of: &Attributes) -> StepResult<Dir> {
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

    /// Finds a directory, or makes it. [`finish`](Self::finish) it when all is in it.
    ///
    /// A new one gets its attributes at once: later its entries may take their room in the inode.
    pub fn directory(&mut self, parent: &Dir, name: &[u8], of: &Attributes) -> StepResult<Dir> {
        go_on()?;
        self.shared.budget.lock().take_file()?;
        match parent.create_dir(name, &self.new_node(of, true)) {
            Ok(made) => {
                self.shared.was_made(made.ino());
                // Its group may be inherited.
                self.owner(&made, of)?;
                self.plain(&made, of)?;
                // They are set again in the end, and lost ones are counted then.
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

    /// Sets the approximate size of the next file.
    pub fn expect(&mut self, bytes: u64) {
        self.expected = bytes;
    }

    /// Makes a regular file, or overwrites an existing one, and sets its metadata.
    pub fn file(
        &mut self,
        parent: &Dir,
        name: &[u8],
        of: &Attributes,
        content: impl FnOnce(&mut Self, &File) -> StepResult<()>,
    ) -> StepResult<Node> {
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
            // Whatever happens, half a file never appears.
            let file = parent.create_unnamed(&new)?;
            let node = file.node().clone();
            self.fill(&node, of, content)?;
            parent.link(name, &node)?;
            return self.made(node, of);
        }
        let (node, name) = self.make(parent, name, |name| parent.create_file(name, &new))?;
        let written = self.fill(&node, of, content).and_then(|()| Ok(name.publish(parent)?));
        if let Err(trouble) = written {
            // Half a file would pass for a whole one. The first failure is reported.
            name.take_back(parent);
            return Err(trouble);
        }
        self.made(node, of)
    }

    /// Finishes something new that has its name.
    fn made(&self, node: Node, of: &Attributes) -> StepResult<Node> {
        self.inode(&node, of)?;
        self.shared.was_made(node.ino());
        Ok(node)
    }

    fn fill(
        &mut self,
        node: &Node,
        of: &Attributes,
        content: impl FnOnce(&mut Self, &File) -> StepResult<()>,
    ) -> StepResult<()> {
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
            // The change of content has removed it.
            node.set_xattr(name, value, SetXattr::Either)?;
        }
        Ok(())
    }

    fn takes_xattr(&self, name: &[u8]) -> bool {
        let keep = self.rules.keep;
        let wanted = if is_acl(name) { keep.mode } else { keep.xattrs };
        wanted && self.rules.trust.takes_xattr(name)
    }

    /// The existing regular file to overwrite, through links. `None`: a new file is made, as the name is free or will
    /// be replaced, as with `cp`.
    fn existing(&self, parent: &Dir, name: &[u8]) -> StepResult<Option<Node>> {
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
        // Otherwise a hard link within the copy could become one to a file outside of it.
        let replaced = self.rules.keep_links && node.metadata()?.nlink > 1;
        Ok((!replaced).then_some(node))
    }

    /// Whether a name is, or links to, the source file itself.
    pub fn leads_to(&self, parent: &Dir, name: &[u8], node: &Node) -> StepResult<bool> {
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
    fn check_made(&self, there: &Node) -> StepResult<()> {
        if self.rules.existing != Existing::LastCounts && self.shared.is_made(there.ino()) {
            return Err(Trouble::new(
                Exit::AlreadyExists,
                "something else was copied to this name just now, and is left as it is",
            ));
        }
        Ok(())
    }

    /// Overwrites an existing file in place. If that fails, a part of it is written.
    fn overwrite(
        &mut self,
        node: Node,
        of: &Attributes,
        content: impl FnOnce(&mut Self, &File) -> StepResult<()>,
    ) -> StepResult<Node> {
        let file = node.open()?;
        file.set_len(0)?;
        content(self, &file).map_err(Trouble::in_part)?;
        drop(file);
        self.owner(&node, of)?;
        self.keep_xattrs(&node, of)?;
        let mut changes = self.changes(&node, of);
        // Filling a file does not change its times.
        changes.mtime = changes.mtime.or_else(|| Some(self.rules.now()));
        node.change(&changes)?;
        self.shared.was_made(node.ino());
        Ok(node)
    }

    /// Makes anything else; `None` if it is skipped.
    pub fn leaf(
        &mut self,
        parent: &Dir,
        name: &[u8],
        of: &Attributes,
        what: &Leaf<'_>,
    ) -> StepResult<Option<Node>> {
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

    /// Gives a new file another name.
    pub fn link(&self, parent: &Dir, name: &[u8], to: &Node) -> StepResult<()> {
        go_on()?;
        if parent.lookup(name)?.is_some_and(|there| there.ino() == to.ino()) {
            return Ok(());
        }
        let ((), name) = self.make(parent, name, |name| parent.link(name, to))?;
        Ok(name.publish(parent).inspect_err(|_| name.take_back(parent))?)
    }

    /// Makes something under its name, or, if that is taken, under a temporary one from which it is moved.
    fn make<'n, T>(
        &self,
        parent: &Dir,
        name: &'n [u8],
        make: impl Fn(&[u8]) -> uxfs::Result<T>,
    ) -> StepResult<(T, NewName<'n>)> {
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

    /// Sets the metadata of a directory that is to be kept.
    pub fn finish(&self, node: &Node, of: &Attributes) -> StepResult<()> {
        if self.rules.keep.ownership {
            // Otherwise an existing one keeps its owner, and a new one has the right one.
            self.owner(node, of)?;
        }
        self.keep_xattrs(node, of)?;
        self.inode(node, of)
    }

    /// Sets the owner, if it is kept or given. That comes first: a change of owner removes capabilities.
    fn owner(&self, node: &Node, of: &Attributes) -> StepResult<()> {
        let (rules, new) = (self.rules, self.new_node(of, node.file_type().is_dir()));
        let changes = Changes {
            uid: (rules.keep.ownership || rules.owner.uid.is_some()).then_some(new.uid),
            gid: (rules.keep.ownership || rules.owner.gid.is_some()).then_some(new.gid),
            ..Changes::default()
        };
        self.change(node, &changes)
    }

    /// Removes inherited access control lists from a new file if its permissions follow the umask alone. A
    /// directory keeps its default list.
    fn plain(&self, node: &Node, of: &Attributes) -> StepResult<()> {
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

    /// Sets permissions and times again, after everything that may have changed them.
    pub fn settle(&self, node: &Node, of: &Attributes) -> StepResult<()> {
        self.inode(node, of)
    }

    /// Whether this many nested directories are allowed.
    pub fn check_depth(&self, depth: usize) -> StepResult<()> {
        Ok(self.shared.budget.lock().check_depth(depth as u64)?)
    }

    /// Sets the rest of a file's metadata. Permissions come after the lists, as they are part of them, and times come
    /// last.
    fn inode(&self, node: &Node, of: &Attributes) -> StepResult<()> {
        self.change(node, &self.changes(node, of))
    }

    /// The part that is kept or was requested.
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

    /// Makes changes, unless nothing would change.
    fn change(&self, node: &Node, changes: &Changes) -> StepResult<()> {
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
    fn keep_xattrs(&self, node: &Node, of: &Attributes) -> StepResult<()> {
        self.lose_xattrs(self.xattrs(node, of)?);
        Ok(())
    }

    /// Sets attributes; access control lists go with permissions. Gives how many the volume cannot hold.
    fn xattrs(&self, node: &Node, of: &Attributes) -> StepResult<u64> {
        let mut lost = 0;
        // If an archive has no lists, an existing directory keeps its own.
        let silent = self.rules.existing == Existing::LastCounts
            && !of.xattrs.iter().any(|(name, _)| is_acl(name))
            && !self.shared.is_made(node.ino())
            && node.file_type().is_dir();
        if self.rules.inherit && self.rules.keep.mode && !silent {
            // The inherited list could give access to users that the source excludes.
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
                // The list itself is copied as `system.posix_acl_…`.
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
            // As with `cp`, even if a default list replaces the umask.
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

    /// Copies the bytes from `start` to `end`. `read` gives them by offset in the source.
    pub fn copy_run(
        &mut self,
        to: &File,
        start: u64,
        end: u64,
        mut read: impl FnMut(&mut [u8], u64) -> StepResult<usize>,
    ) -> StepResult<()> {
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

    /// Counts data that a copy shares with its source.
    pub fn share(&mut self, bytes: u64) -> StepResult<()> {
        self.shared.budget.lock().take_size(bytes)?;
        self.bar.inc(bytes);
        Ok(())
    }

    /// Adds bytes at the end of a file, or past it.
    pub fn append(&mut self, to: &File, at: u64, data: &[u8]) -> StepResult<()> {
        go_on()?;
        self.shared.budget.lock().take_size(data.len() as u64)?;
        to.append_at(data, at)?;
        self.bar.inc(data.len() as u64);
        Ok(())
    }
}

/// The message for a device that is not made.
pub const NO_DEVICE: &str = "a device; devices are copied with -a or --devices";

/// Ends the work after a signal.
fn go_on() -> StepResult<()> {
    if interrupt::asked() { Err(Trouble::end(Exit::Interrupted, interrupt::WHAT)) } else { Ok(()) }
}

/// Sets the end of a file: a hole at the end is not written.
pub fn end_at(file: &File, size: u64) -> StepResult<()> {
    if file.size() != size {
        file.set_len(size)?;
    }
    Ok(())
}

/// Refuses to overwrite a file if there is not enough space: its content would be lost for nothing.
fn check_room(there: &Node, bytes: u64) -> StepResult<()> {
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

/// The metadata of a node, for a copy of it.
pub fn attributes_of(node: &Node) -> StepResult<Attributes> {
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

/// The special file of this metadata; `None` if it is of another type.
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

    /// If the process ends while a file is written, the name has its old file, or none.
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
