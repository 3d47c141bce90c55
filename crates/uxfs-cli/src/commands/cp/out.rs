//! Copies files and trees out of an image.
//!
//! What the host permits is kept: holes, permissions, owners, times, hard links among what is copied, symbolic
//! links, device nodes, attributes. What an image says never leads outside the destination: see [`crate::host`].

use super::{Args, Attribute};
use crate::exit::{Exit, Failure, Result, host_name};
use crate::host::attributes::{self, Keep, Lost, Written};
use crate::host::{HostTree, Identity};
use crate::location::{Images, Location};
use crate::options::Global;
use crate::problems::{Problems, complain, for_each};
use crate::progress;
use crate::walk::{Order, Step, Walk};
use indicatif::ProgressBar;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType as HostType, Mode};
use std::collections::HashMap;
use std::fs::File as HostFile;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use uxfs::{AlignedBuf, File, FileType, Node, Volume};

/// Bytes that are copied at once.
const CHUNK: usize = 1 << 20;

/// Copies each source.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    let destination = PathBuf::from(&args.destination);
    refuse_special_destination(&destination)?;
    let sources: Vec<Location> = args.sources.iter().map(|source| Location::parse(source)).collect();
    let into = destination.is_dir();
    if !into && sources.len() > 1 {
        let what =
            format!("{}: not a directory; several things are copied into one", host_name(&destination));
        return Err(Failure::new(Exit::Usage, what));
    }
    let bar = progress::bytes();
    let mut copy = Copy::new(args, destination, &sources, global, &bar);
    let mut images = Images::new(global);
    let mut problems = Problems::beside(&bar);
    let exit = for_each(&sources, &mut problems, |source, problems| {
        let volume = images.volume(source)?;
        copy.source(&volume, source, into, problems)
    })?;
    bar.finish_and_clear();
    copy.say_lost();
    Ok(exit)
}

/// A device or a pipe would be replaced by a file, which is hardly meant.
fn refuse_special_destination(destination: &Path) -> Result<()> {
    match destination.metadata() {
        Ok(metadata) if !metadata.is_dir() && !metadata.is_file() => {
            let what = "neither a file nor a directory; `uxfs cat` writes a file's bytes to anything";
            Err(Failure::new(Exit::Usage, format!("{}: {what}", host_name(destination))))
        }
        _ => Ok(()),
    }
}

/// A file with several names that was copied: where, relative to the destination.
struct Linked {
    path: Vec<u8>,
    identity: Identity,
}

/// Copying under way.
struct Copy<'a> {
    args: &'a Args,
    destination: PathBuf,
    verbose: bool,
    keep: Keep,
    keep_links: bool,
    umask: Mode,
    bar: &'a ProgressBar,
    buf: AlignedBuf,
    lost: Lost,
    /// Files with several names, by image and inode number.
    linked: HashMap<(PathBuf, u64), Linked>,
    /// The images that are read: a copy must not take the place of one.
    images: Vec<Identity>,
}

impl<'a> Copy<'a> {
    fn new(
        args: &'a Args,
        destination: PathBuf,
        sources: &[Location],
        global: &Global,
        bar: &'a ProgressBar,
    ) -> Self {
        let umask = rustix::process::umask(Mode::empty());
        rustix::process::umask(umask);
        Self {
            args,
            destination,
            verbose: global.verbose,
            keep: args.keep(),
            keep_links: args.keeps(Attribute::Links),
            umask,
            bar,
            buf: AlignedBuf::zeroed(CHUNK),
            lost: Lost::default(),
            linked: HashMap::new(),
            images: sources.iter().filter_map(|source| Identity::of_path(&source.image)).collect(),
        }
    }

    /// Copies one source. `into`: the destination is a directory that it is copied into.
    fn source(
        &mut self,
        volume: &Volume,
        source: &Location,
        into: bool,
        problems: &mut Problems,
    ) -> Result<()> {
        let node = if self.args.recursive {
            volume.lookup_nofollow(&source.path)
        } else {
            volume.lookup(&source.path)
        };
        let node = node.map_err(|error| source.failure(&error))?;
        if node.file_type().is_dir() && !self.args.recursive {
            let path = uxfs::printable(&source.path);
            let what = format!("{}: {path}: is a directory; give -r to copy it", host_name(&source.image));
            return Err(Failure::new(Exit::NotFound, what));
        }
        let is_dir = node.file_type().is_dir();
        let (dir, name) = self.place(source, is_dir, into)?;
        let mut host = HostTree::open(&dir, &self.images).map_err(|error| Failure::of_host(&dir, error))?;
        let mut walk = Walk::new(volume, node, &source.path, Order::Stored);
        while let Some(step) = walk.next() {
            progress::name(self.bar, walk.path());
            let name = if walk.depth() == 0 { name.as_deref() } else { Some(walk.name()) };
            let outcome = match step {
                Step::Enter(_) => match name {
                    Some(name) => host.enter(name).map_err(Trouble::from),
                    None => Ok(()),
                }
                .inspect_err(|_| walk.skip()),
                Step::Leave(node) => {
                    // Where the way back is lost, nothing more can be written.
                    let left = name.is_some().then(|| host.leave()).transpose();
                    let left = left.map_err(|error| Failure::of_host(&dir, error))?;
                    self.leave(left.as_ref().map_or(host.current(), AsFd::as_fd), &node)
                }
                Step::Leaf(leaf) => match (leaf.node(volume), name) {
                    (Ok(node), Some(name)) if node.file_type() == leaf.file_type => {
                        self.leaf(&source.image, &host, name, &node)
                    }
                    (Ok(node), Some(_)) => Err(Trouble::damaged(format!(
                        "inode {} is a {}, its directory says {}",
                        leaf.ino,
                        node.file_type(),
                        leaf.file_type
                    ))),
                    (Ok(_), None) => Err(Trouble(Exit::NotFound, "has no name to copy it under".to_owned())),
                    (Err(error), _) => Err(error.into()),
                },
                Step::Failed(error) => Err(error.into()),
                Step::Damaged(what) => Err(Trouble(Exit::Damaged, what)),
            };
            match outcome {
                Ok(()) => {}
                Err(Trouble(exit, what)) if walk.depth() == 0 && !is_dir => {
                    let place = format!("{}: {}", host_name(&source.image), uxfs::printable(walk.path()));
                    return Err(Failure::new(exit, format!("{place}: {what}")));
                }
                Err(Trouble(_, what)) => problems.at(&source.image, walk.path(), what),
            }
        }
        Ok(())
    }

    /// The directory that the copy is made in, and its name there; no name: the directory itself becomes it.
    fn place(&self, source: &Location, is_dir: bool, into: bool) -> Result<(PathBuf, Option<Vec<u8>>)> {
        let destination = &self.destination;
        if into {
            return Ok((destination.clone(), source.file_name().map(<[u8]>::to_vec)));
        }
        let refuse = |what| Err(Failure::new(Exit::Usage, format!("{}: {what}", host_name(destination))));
        if is_dir && destination.symlink_metadata().is_ok() {
            return refuse("not a directory; a directory cannot be copied over it");
        }
        if !is_dir && destination.as_os_str().as_bytes().ends_with(b"/") {
            return refuse("not a directory");
        }
        let Some(name) = destination.file_name() else {
            return refuse("not a name for a copy");
        };
        let parent = destination.parent().filter(|parent| !parent.as_os_str().is_empty());
        Ok((parent.unwrap_or(Path::new(".")).to_owned(), Some(name.as_bytes().to_vec())))
    }

    /// Ends a directory: it gets its attributes when nothing in it changes any more.
    fn leave(&mut self, dir: BorrowedFd<'_>, node: &Node) -> Outcome {
        self.attributes(node, &Written::Open(dir))
    }

    fn attributes(&mut self, node: &Node, written: &Written<'_>) -> Outcome {
        attributes::apply(self.keep, self.umask, node, written, &mut self.lost).map_err(|error| {
            Trouble(Exit::Io, format!("is copied, but its attributes cannot be set: {error}"))
        })
    }

    fn leaf(&mut self, image: &Path, host: &HostTree, name: &[u8], node: &Node) -> Outcome {
        let several = self.keep_links && node.metadata().nlink > 1;
        let key = several.then(|| (image.to_owned(), node.ino()));
        if let Some(linked) = key.as_ref().and_then(|key| self.linked.get(key))
            && host.link(&linked.path, linked.identity, name)?
        {
            return Ok(());
        }
        if self.verbose {
            let path = host.path_of(name);
            self.bar.suspend(|| complain(&uxfs::printable(&path)));
        }
        let made = self.make(host, name, node);
        if let Some(key) = key
            && let Ok(stat) = host.stat(name)
        {
            self.linked.insert(key, Linked { path: host.path_of(name), identity: Identity::of(&stat) });
        }
        made
    }

    fn make(&mut self, host: &HostTree, name: &[u8], node: &Node) -> Outcome {
        let metadata = node.metadata();
        let device = metadata.rdev.map_or((0, 0), |rdev| (rdev.major, rdev.minor));
        match metadata.file_type {
            FileType::Regular => {
                let fd = host.create_file(name)?;
                let fd = self.content(&node.open()?, fd)?;
                return self.attributes(node, &Written::Open(fd.as_fd()));
            }
            FileType::Symlink => host.create_symlink(name, &node.read_link()?)?,
            FileType::CharDevice => host.create_node(name, HostType::CharacterDevice, device)?,
            FileType::BlockDevice => host.create_node(name, HostType::BlockDevice, device)?,
            FileType::Fifo => host.create_node(name, HostType::Fifo, (0, 0))?,
            FileType::Socket => host.create_node(name, HostType::Socket, (0, 0))?,
            FileType::Directory | FileType::Unknown => {
                return Err(Trouble::damaged(format!("a {} where none can be", metadata.file_type)));
            }
        }
        self.attributes(node, &Written::Named(host.current(), name))
    }

    /// Copies data; holes stay holes.
    fn content(&mut self, from: &File, to: OwnedFd) -> std::result::Result<OwnedFd, Trouble> {
        let to = HostFile::from(to);
        let mut at = 0;
        while let Some(start) = from.seek_data(at)? {
            let end = from.seek_hole(start)?.unwrap_or(start);
            if end <= start {
                break;
            }
            self.run(from, &to, start, end)?;
            at = end;
        }
        to.set_len(from.size())?;
        Ok(to.into())
    }

    /// Copies the bytes from `start` to `end`.
    fn run(&mut self, from: &File, to: &HostFile, start: u64, end: u64) -> Outcome {
        let mut at = start;
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
            let read = from.read_at(&mut self.buf[..want], at)?;
            if read == 0 {
                break;
            }
            to.write_all_at(&self.buf[..read], at)?;
            at += read as u64;
            self.bar.inc(read as u64);
        }
        Ok(())
    }

    fn say_lost(&self) {
        let Lost { xattrs, owners } = self.lost;
        if xattrs > 0 {
            complain(&format!("note: {xattrs} extended attributes were not kept: the host refused them"));
        }
        if owners > 0 && self.verbose {
            complain(&format!("note: {owners} owners were not kept: that takes root"));
        }
    }
}

/// Why one file was not copied.
struct Trouble(Exit, String);

type Outcome = std::result::Result<(), Trouble>;

impl Trouble {
    fn damaged(what: String) -> Self {
        Self(Exit::Damaged, format!("damaged: {what}"))
    }
}

impl From<uxfs::Error> for Trouble {
    fn from(error: uxfs::Error) -> Self {
        Self(error.kind().into(), error.to_string())
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        Self(Exit::Io, format!("cannot be copied: {error}"))
    }
}
