//! Putting files into a volume, with all that is said of them; where they come from is told by a file each.
//!
//! Invariants: what the volume has under a name is replaced by a file and joined by a directory, never the other way
//! round; a directory gets its times when nothing in it changes any more; nothing that is written depends on the
//! order in which the host lists its directories or on its inode numbers. A volume that is full or shut down ends
//! the work; anything else that fails is one file that is not there.

pub mod archive;
pub mod host;
pub mod image;

use crate::exit::{Exit, Failure};
use crate::host::attributes::Keep;
use crate::interrupt;
use crate::mode::Owner;
use crate::progress;
use indicatif::ProgressBar;
use uxfs::{
    AlignedBuf, Changes, Dir, ErrorKind, File, FileType, Metadata, NewNode, Node, SetXattr, Special,
    Timestamp,
};

/// Bytes that are copied at once.
const CHUNK: usize = 1 << 20;
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
    /// When everything happens: with it, the same files always give the same volume. Times of content are kept.
    pub time: Option<Timestamp>,
    /// Whether directories of the volume hand down group, access control list and project.
    pub inherit: bool,
    /// Bits that are taken off where permissions are not kept.
    pub umask: u16,
    /// Whether each name is said.
    pub verbose: bool,
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
        let ends = matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::ShutDown | ErrorKind::ReadOnly);
        Self { exit: error.kind().into(), what: error.to_string(), ends }
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        Self::new(Exit::Io, format!("cannot be copied: {error}"))
    }
}

/// What a file that is no directory and has no content is.
pub enum Leaf<'a> {
    /// A symbolic link to this target.
    Symlink(&'a [u8]),
    /// A device, pipe or socket.
    Special(Special),
}

/// Writes files into a volume.
pub struct Filler<'a> {
    rules: Rules,
    bar: &'a ProgressBar,
    buf: AlignedBuf,
    /// Attributes that the volume cannot hold.
    lost_xattrs: u64,
}

impl<'a> Filler<'a> {
    /// A filler with these rules.
    pub fn new(rules: Rules, bar: &'a ProgressBar) -> Self {
        Self { rules, bar, buf: AlignedBuf::zeroed(CHUNK), lost_xattrs: 0 }
    }

    /// What new files are to be.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Attributes that were left out because no volume can hold them.
    pub fn lost_xattrs(&self) -> u64 {
        self.lost_xattrs
    }

    /// Counts an attribute that is left out.
    pub fn lose_xattr(&mut self) {
        self.lost_xattrs += 1;
    }

    /// Says what is being worked on.
    pub fn at(&self, path: &[u8]) {
        progress::name(self.bar, path);
        if self.rules.verbose {
            self.bar.suspend(|| crate::problems::complain(&uxfs::printable(path)));
        }
    }

    /// Goes into a directory, which is made unless it is there. [`finish`](Self::finish) it when all is in it.
    ///
    /// A new one gets its attributes at once: later there may be no room for them beside its entries.
    pub fn directory(&mut self, parent: &Dir, name: &[u8], of: &Attributes) -> Outcome<Dir> {
        go_on()?;
        match parent.create_dir(name, &self.new_node(of, true)) {
            Ok(made) => {
                let lost = self.lost_xattrs;
                self.xattrs(&made, of)?;
                // They are set, and counted, once more in the end.
                self.lost_xattrs = lost;
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

    /// Makes a regular file and writes its content; gives it with all that is said of it.
    pub fn file(
        &mut self,
        parent: &Dir,
        name: &[u8],
        of: &Attributes,
        content: impl FnOnce(&mut Self, &File) -> Outcome<()>,
    ) -> Outcome<Node> {
        go_on()?;
        let new = self.new_node(of, false);
        let node = replace(parent, name, || parent.create_file(name, &new))?;
        // Later there may be no room for them beside the map.
        self.xattrs(&node, of)?;
        let file = node.open()?;
        let written = content(self, &file);
        if written.is_err() {
            // Half a file passes for a whole one. What went wrong first is what is said.
            let _ = parent.remove_file(name);
        }
        drop(file);
        written?;
        self.inode(&node, of)?;
        Ok(node)
    }

    /// Makes anything else.
    pub fn leaf(&mut self, parent: &Dir, name: &[u8], of: &Attributes, what: &Leaf<'_>) -> Outcome<Node> {
        go_on()?;
        let new = self.new_node(of, false);
        let node = replace(parent, name, || match what {
            Leaf::Symlink(target) => parent.create_symlink(name, target, &new),
            Leaf::Special(special) => parent.create_special(name, *special, &new),
        })?;
        self.finish(&node, of)?;
        Ok(node)
    }

    /// Gives a file that was made another name.
    pub fn link(&self, parent: &Dir, name: &[u8], to: &Node) -> Outcome<()> {
        if parent.lookup(name)?.is_some_and(|there| there.ino() == to.ino()) {
            return Ok(());
        }
        replace(parent, name, || parent.link(name, to))
    }

    /// Sets all that is said of a file.
    pub fn finish(&mut self, node: &Node, of: &Attributes) -> Outcome<()> {
        self.owner(node, of)?;
        self.xattrs(node, of)?;
        self.inode(node, of)
    }

    /// Gives a file its owner. That comes first: a file that changes hands loses its capabilities.
    fn owner(&self, node: &Node, of: &Attributes) -> Outcome<()> {
        let (new, found) = (self.new_node(of, node.file_type().is_dir()), node.metadata());
        if (new.uid, new.gid) != (found.uid, found.gid) {
            node.change(&Changes { uid: Some(new.uid), gid: Some(new.gid), ..Changes::default() })?;
        }
        Ok(())
    }

    /// Sets what else is said of a file in its inode. Permissions come behind the lists, which they are a part of, and times
    /// behind all.
    fn inode(&self, node: &Node, of: &Attributes) -> Outcome<()> {
        let (rules, is_dir) = (self.rules, node.file_type().is_dir());
        let new = self.new_node(of, is_dir);
        let permissions = (!node.file_type().is_symlink()).then_some(new.permissions);
        let found = node.metadata();
        let as_is = permissions.is_none_or(|wanted| wanted == found.permissions())
            && new.atime.is_none_or(|wanted| wanted == found.atime)
            && new.mtime.is_none_or(|wanted| wanted == found.mtime)
            && rules.time.is_none_or(|wanted| found.ctime == wanted && found.btime == Some(wanted));
        if as_is {
            // As it was made.
            return Ok(());
        }
        node.change(&Changes {
            permissions,
            atime: new.atime,
            mtime: new.mtime,
            crtime: rules.time,
            ctime: rules.time,
            ..Changes::default()
        })?;
        Ok(())
    }

    fn xattrs(&mut self, node: &Node, of: &Attributes) -> Outcome<()> {
        let wanted: &[_] = if self.rules.keep.xattrs { &of.xattrs } else { &[] };
        if self.rules.inherit && (self.rules.keep.mode || self.rules.keep.xattrs) {
            // What the directory gives to new files would let in people whom the source doesn't.
            for name in node.xattr_names()? {
                let is_list = [ACCESS_ACL, DEFAULT_ACL].contains(&&*name);
                if is_list && !wanted.iter().any(|(wanted, _)| *wanted == name) {
                    node.remove_xattr(&name)?;
                }
            }
        }
        let is_dir = node.file_type().is_dir();
        for (name, value) in wanted {
            if name.starts_with(b"trusted.SGI_ACL_") || (name == DEFAULT_ACL && !is_dir) {
                // The list itself goes over as `system.posix_acl_…`.
                continue;
            }
            match node.set_xattr(name, value, SetXattr::Either) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::InvalidInput => self.lost_xattrs += 1,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn new_node(&self, of: &Attributes, is_dir: bool) -> NewNode {
        let rules = &self.rules;
        let plain = (if is_dir { 0o777 } else { 0o666 }) & !rules.umask;
        let (uid, gid) = if rules.keep.ownership { (of.uid, of.gid) } else { (0, 0) };
        let owned = rules.keep.ownership || rules.owner != Owner::default();
        // A file that runs as its owner must not come to run as another one unasked.
        let ids = if owned { 0 } else { 0o6000 };
        let (atime, mtime) = match rules.keep.timestamps {
            true => (of.atime.filter(|_| rules.time.is_none()).or(rules.time), Some(of.mtime)),
            false => (None, rules.time),
        };
        NewNode {
            permissions: if rules.keep.mode { of.permissions & !ids } else { plain },
            umask: 0,
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
            self.append(to, at, &self.buf[..len])?;
            at += len as u64;
        }
        Ok(())
    }

    /// Adds bytes to the end of a file, or behind it.
    pub fn append(&self, to: &File, at: u64, data: &[u8]) -> Outcome<()> {
        go_on()?;
        to.append_at(data, at)?;
        self.bar.inc(data.len() as u64);
        Ok(())
    }
}

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

/// Makes something; what has its name, unless it is a directory, makes room.
fn replace<T>(parent: &Dir, name: &[u8], make: impl Fn() -> uxfs::Result<T>) -> Outcome<T> {
    match make() {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            if parent.lookup(name)?.is_some_and(|node| node.file_type().is_dir()) {
                let what = "a directory has the name of the copy, and is left as it is";
                return Err(Trouble::new(Exit::AlreadyExists, what));
            }
            parent.remove_file(name)?;
            Ok(make()?)
        }
        other => Ok(other?),
    }
}

/// What a volume says of a node of its own, for a copy of it.
pub fn attributes_of(node: &Node) -> Outcome<Attributes> {
    let of = node.metadata();
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
