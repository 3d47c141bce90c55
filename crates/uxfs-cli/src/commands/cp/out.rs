//! Copies files and trees out of an image.
//!
//! Everything is kept that the command line asks for and the host permits: holes, permissions, owners, times, hard
//! links among what is copied, symbolic links, device nodes, attributes. Nothing in an image can lead outside the
//! destination: see [`crate::host`]. A new file gets its name when it is complete.

use super::{Args, Attribute};
use crate::exit::{Exit, Failure, Result, host_name};
use crate::fill::{NO_DEVICE, StepResult, Trouble};
use crate::host::attributes::{self, Keep, Lost, Written};
use crate::host::links::{Link, Links};
use crate::host::stream::{self, Sink};
use crate::host::{self, HostTree, Identity, New, volumes};
use crate::interrupt;
use crate::location::{Images, Location};
use crate::options::Global;
use crate::problems::{Problems, complain, short};
use crate::progress;
use crate::trust::{Budget, Devices, Trust};
use crate::walk::ahead::Ahead;
use crate::walk::{EntryOrder, Step, Walk};
use indicatif::ProgressBar;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{FileType as HostType, Mode};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use uxfs::{AlignedBuf, File, FileType, Node, Volume};

/// How directories are walked.
const ORDER: EntryOrder = EntryOrder::Stored;
/// Size of a piece of a copy.
const CHUNK: usize = 1 << 20;

/// Copies each source.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    let destination = PathBuf::from(&args.destination);
    let sources: Vec<Location> = args.sources.iter().map(|source| Location::parse(source)).collect();
    let mut sink = sink(&destination)?;
    if let Some(Sink::Stdout) = sink {
        for source in &sources {
            stream::refuse_image(std::io::stdout(), "standard output", &source.image)?;
        }
    }
    if sink.is_none() {
        interrupt::watch();
    }
    let into = sink.is_none() && destination.is_dir();
    if !into && sources.len() > 1 {
        let what =
            format!("{}: not a directory; several things are copied into one", host_name(&destination));
        return Err(Failure::new(Exit::Usage, what));
    }
    let is_read = |there| sources.iter().any(|source| Identity::of_path(&source.image) == Some(there));
    if sink.is_none() && !Identity::of_path(&destination).is_some_and(is_read) {
        volumes::refuse(&destination)?;
    }
    let bar = progress::bytes();
    let mut copy = Copy::new(args, destination, &sources, global, &bar);
    let mut images = Images::new(global);
    let mut problems = Problems::beside(&bar);
    for (nth, source) in sources.iter().enumerate() {
        interrupt::check()?;
        let opened = images.volume(source);
        let volume = opened.map_err(|failure| match is_bare_file(args, nth, source, global) {
            true => {
                let hint = "a file in an image is written IMAGE:/PATH";
                Failure::new(failure.exit(), format!("{failure} ({hint})"))
            }
            false => failure,
        });
        let done = volume.and_then(|volume| {
            let of = Of { volume, source, image: images.number(source).unwrap_or(nth) };
            match &mut sink {
                Some(sink) => copy.through(&of, sink),
                None => copy.source(&of, into, &mut problems),
            }
        });
        match done {
            Ok(()) => {}
            Err(failure) if sources.len() == 1 || copy.ended || failure.is_quiet() => return Err(failure),
            Err(failure) => problems.say(&failure.to_string()),
        }
    }
    bar.finish_and_clear();
    copy.say_lost();
    Ok(problems.exit())
}

/// Whether a source is an ordinary file of this machine: perhaps the image was forgotten.
fn is_bare_file(args: &Args, nth: usize, source: &Location, global: &Global) -> bool {
    let is_bare = source.image.as_os_str() == args.sources[nth] && global.offset == 0;
    let is_file = |file: &std::fs::File| file.metadata().is_ok_and(|of| of.is_file());
    let opened = std::fs::File::open(&source.image).ok();
    is_bare && opened.is_some_and(|file| is_file(&file) && !volumes::is_volume(&file))
}

/// The destination, if it is a pipe or character device. A block device is not: it would be overwritten from its
/// start, which is hardly meant.
fn sink(destination: &Path) -> Result<Option<Sink>> {
    if let Ok(found) = destination.metadata()
        && (found.file_type().is_block_device() || found.file_type().is_socket())
    {
        let what = "neither a file nor a directory; `uxfs cat` writes a file's bytes to anything";
        return Err(Failure::new(Exit::Usage, format!("{}: {what}", host_name(destination))));
    }
    Sink::of(destination).map_err(|error| Failure::of_host(destination, error))
}

/// What is copied.
struct Of<'a> {
    volume: Volume,
    source: &'a Location,
    /// The index of its image.
    image: usize,
}

/// A copy in progress.
struct Copy<'a> {
    args: &'a Args,
    destination: PathBuf,
    verbose: bool,
    /// Size of the volume's caches.
    cache_size: u64,
    /// Threads that read ahead.
    readers: usize,
    keep: Keep,
    keep_links: bool,
    trust: Trust,
    budget: Budget,
    umask: Mode,
    bar: &'a ProgressBar,
    buf: AlignedBuf,
    /// Size of the file that is being copied.
    size: u64,
    lost: Lost,
    host: Option<HostTree>,
    links: Links,
    /// The images that are read: a copy must not take the place of one.
    images: Vec<Identity>,
    /// No more is copied.
    ended: bool,
}

impl<'a> Copy<'a> {
    fn new(
        args: &'a Args,
        destination: PathBuf,
        sources: &[Location],
        global: &Global,
        bar: &'a ProgressBar,
    ) -> Self {
        let trust = args.trust();
        let umask = rustix::process::umask(Mode::empty());
        rustix::process::umask(umask);
        Self {
            args,
            destination,
            verbose: global.verbose,
            cache_size: global.cache_size,
            readers: args.threads.count_ahead(),
            keep: args.keep(),
            keep_links: args.keeps(Attribute::Links),
            trust,
            budget: Budget::new(trust.limits),
            umask,
            bar,
            buf: AlignedBuf::zeroed(CHUNK),
            size: 0,
            lost: Lost::default(),
            host: None,
            links: Links::of(sources.len()),
            images: sources.iter().filter_map(|source| Identity::of_path(&source.image)).collect(),
            ended: false,
        }
    }

    /// The node of a source.
    fn node(&self, of: &Of<'_>) -> Result<Node> {
        let path = &of.source.path;
        let recursive = self.args.recursive();
        let node = if recursive { of.volume.lookup_nofollow(path) } else { of.volume.lookup(path) };
        let node = node.map_err(|error| of.source.failure(&error))?;
        let kind = node.file_type();
        if !recursive && !kind.is_file() {
            let place = format!("{}: {}", host_name(&of.source.image), uxfs::printable(path));
            return Err(Failure::new(Exit::NotFound, format!("{place}: is a {kind}; give -r to copy it")));
        }
        Ok(node)
    }

    /// Copies one source through a pipe, a device, or standard output.
    fn through(&mut self, of: &Of<'_>, sink: &mut Sink) -> Result<()> {
        let node = self.node(of)?;
        let path = &of.source.path;
        let place = format!("{}: {}", host_name(&of.source.image), uxfs::printable(path));
        if !node.file_type().is_file() {
            let what =
                format!("{place}: is a {}; only a file's bytes can be written there", node.file_type());
            return Err(Failure::new(Exit::NotFound, what));
        }
        let file = node.open().map_err(|error| of.source.failure(&error))?;
        let failed = |error: std::io::Error| match error.kind() {
            ErrorKind::BrokenPipe => Failure::from(error),
            _ => Failure::of_host(&self.destination, error),
        };
        let mut at = 0;
        loop {
            let read = file.read_at(&mut self.buf, at).map_err(|error| of.source.failure(&error))?;
            if read == 0 {
                return sink.finish().map_err(failed);
            }
            self.budget.take_size(read as u64).map_err(|limit| Trouble::from(limit).failure(&place))?;
            sink.write(&self.buf[..read]).map_err(failed)?;
            self.bar.inc(read as u64);
            at += read as u64;
        }
    }

    /// Copies one source. `into`: the destination is a directory to copy into.
    fn source(&mut self, of: &Of<'_>, into: bool, problems: &mut Problems) -> Result<()> {
        let node = self.node(of)?;
        let is_dir = node.file_type().is_dir();
        let (dir, name) = self.place(of.source, is_dir, into)?;
        let mut host = match self.host.take() {
            Some(host) => host,
            None => {
                HostTree::open(&dir, self.host_rules(into)).map_err(|error| Failure::of_host(&dir, error))?
            }
        };
        host.restart().map_err(|error| Failure::of_host(&dir, error))?;
        let done = self.tree(of, node, &mut host, name.as_deref(), problems);
        self.host = Some(host);
        done
    }

    fn host_rules(&self, into: bool) -> host::Rules {
        host::Rules {
            named: !into,
            replace: self.args.replace,
            keep_links: self.keep_links,
            owned: self.keep.ownership,
            umask: self.umask,
            kept: self.images.clone(),
        }
    }

    fn tree(
        &mut self,
        of: &Of<'_>,
        node: Node,
        host: &mut HostTree,
        top: Option<&[u8]>,
        problems: &mut Problems,
    ) -> Result<()> {
        let is_dir = node.file_type().is_dir();
        let mut ahead = Ahead::of(&of.volume, &node, ORDER, self.cache_size, self.readers);
        let mut walk = Walk::new(&of.volume, node, &of.source.path, ORDER).with_inodes();
        while let Some(step) = walk.next() {
            let (is_leaf, is_dir_entered) = (matches!(step, Step::Leaf(_)), matches!(step, Step::Enter(_)));
            let outcome = match interrupt::check() {
                Ok(()) => {
                    progress::name(self.bar, walk.path());
                    self.step(of, &mut walk, step, host, top)
                }
                Err(_) => Err(Trouble::end(Exit::Interrupted, interrupt::WHAT)),
            };
            if is_dir_entered && outcome.is_err() {
                ahead.end();
            }
            if is_leaf {
                ahead.passed(std::mem::take(&mut self.size));
            }
            match outcome {
                Ok(()) => {}
                Err(trouble) if trouble.ends() || (walk.depth() == 0 && !is_dir) => {
                    self.ended = trouble.ends();
                    let place = format!("{}: {}", host_name(&of.source.image), short(walk.path()));
                    return Err(trouble.failure(place));
                }
                Err(trouble) => problems.at(&of.source.image, walk.path(), trouble),
            }
        }
        Ok(())
    }

    fn step(
        &mut self,
        of: &Of<'_>,
        walk: &mut Walk,
        step: Step,
        host: &mut HostTree,
        top: Option<&[u8]>,
    ) -> StepResult<()> {
        let name = if walk.depth() == 0 { top } else { Some(walk.name()) };
        match step {
            Step::Enter(node) => match name {
                Some(name) => self.enter(host, name, &node, walk.depth()),
                None => Ok(()),
            }
            .inspect_err(|_| walk.skip()),
            Step::Leave(node) => match name {
                Some(_) => {
                    // If the way back is lost, nothing more can be written.
                    let left = host.leave().map_err(|error| Trouble::end(Exit::Io, error.to_string()))?;
                    let plain =
                        (left.made && !self.keep.similar_mode).then_some(self.plain(&node)? - self.umask);
                    self.attributes(&node, Written::Open(left.fd.as_fd()), plain.or(left.finish))
                }
                None => self.attributes(&node, Written::Open(host.current()), None),
            },
            Step::Leaf(leaf) => {
                let node = leaf.node(&of.volume)?;
                let name =
                    name.ok_or_else(|| Trouble::new(Exit::NotFound, "has no name to copy it under"))?;
                if node.file_type() != leaf.file_type {
                    return Err(damaged(format_args!(
                        "inode {} is a {}, its directory says {}",
                        leaf.ino,
                        node.file_type(),
                        leaf.file_type
                    )));
                }
                self.leaf(of.image, host, name, &node)
            }
            Step::Failed(error) => Err(error.into()),
            Step::Damaged(what) => Err(Trouble::new(Exit::Damaged, what)),
        }
    }

    fn enter(&mut self, host: &mut HostTree, name: &[u8], node: &Node, depth: usize) -> StepResult<()> {
        self.budget.check_depth(depth as u64 + 1)?;
        self.budget.take_file()?;
        Ok(host.enter(name, self.plain(node)?)?)
    }

    /// The directory of the copy, and its name there. No name: the directory itself is the copy.
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

    fn attributes(&mut self, node: &Node, written: Written<'_>, finish: Option<Mode>) -> StepResult<()> {
        attributes::apply(self.keep, &self.trust, node, written, finish, &mut self.lost).map_err(not_set)
    }

    fn leaf(&mut self, image: usize, host: &mut HostTree, name: &[u8], node: &Node) -> StepResult<()> {
        let metadata = node.metadata()?;
        self.size = metadata.size;
        let nlink = metadata.nlink;
        let source = (self.keep_links && nlink > 1).then_some((image, node.ino()));
        let mut too_deep = false;
        if let Some(source) = source {
            match self.links.link(host, source, name)? {
                Link::Made => return Ok(()),
                Link::Unknown => {}
                Link::TooDeep => too_deep = true,
            }
        }
        if self.verbose {
            let path = host.path_of(name);
            self.bar.suspend(|| complain(&short(&path)));
        }
        let Some(identity) = self.make(host, name, node)? else { return Ok(()) };
        match source {
            Some(source) if !self.links.remember(host, source, name, identity, nlink) => Err(Trouble::new(
                Exit::Partial,
                "too many files with several names; others of its names become files of their own",
            )),
            Some(_) if too_deep => Err(Trouble::new(
                Exit::Partial,
                "its other names lie too deep to link to; this one became a file of its own",
            )),
            _ => Ok(()),
        }
    }

    /// Makes a copy; `None` if it is skipped.
    fn make(&mut self, host: &mut HostTree, name: &[u8], node: &Node) -> StepResult<Option<Identity>> {
        let metadata = node.metadata()?;
        let device = metadata.rdev.map_or((0, 0), |rdev| (rdev.major, rdev.minor));
        let target;
        let leaf = match metadata.file_type {
            FileType::Regular => return self.file(host, name, node).map(Some),
            FileType::Symlink => {
                target = node.read_link()?;
                host::Leaf::Symlink(&target)
            }
            FileType::CharDevice | FileType::BlockDevice => match self.trust.devices {
                Devices::Made if metadata.file_type == FileType::CharDevice => {
                    host::Leaf::Node(HostType::CharacterDevice, device)
                }
                Devices::Made => host::Leaf::Node(HostType::BlockDevice, device),
                Devices::LeftOut => return Ok(None),
                Devices::Refused => return Err(Trouble::new(Exit::Unsupported, NO_DEVICE)),
            },
            FileType::Fifo => host::Leaf::Node(HostType::Fifo, (0, 0)),
            FileType::Socket => host::Leaf::Node(HostType::Socket, (0, 0)),
            FileType::Directory | FileType::Unknown => {
                return Err(damaged(format_args!("a {} where none can be", metadata.file_type)));
            }
        };
        self.budget.take_file()?;
        let (keep, trust) = (self.keep, self.trust);
        let plain = self.plain(node)?;
        let finish = (keep.finishes() && !metadata.is_symlink()).then_some(plain - self.umask);
        let mode = if keep.ownership { Mode::RUSR | Mode::WUSR } else { plain };
        let lost = &mut self.lost;
        let set = |handle: BorrowedFd<'_>| match keep.nothing() {
            true => Ok(()),
            false => attributes::apply(keep, &trust, node, Written::Handle(handle), finish, lost),
        };
        Ok(Some(host.create(name, leaf, mode, set)?))
    }

    /// The first permissions of a copy, before the umask.
    fn plain(&self, node: &Node) -> StepResult<Mode> {
        let of = node.metadata()?;
        Ok(Mode::from_raw_mode(self.keep.plain(of.permissions(), of.is_dir()).into()))
    }

    fn file(&mut self, host: &mut HostTree, name: &[u8], node: &Node) -> StepResult<Identity> {
        self.budget.take_file()?;
        let from = node.open()?;
        let new = New {
            mode: self.plain(node)?,
            privileged: attributes::are_privileged(self.keep, &self.trust, node)?,
        };
        let target = host.open_file(name, new)?;
        let written = self.content(&from, &std::fs::File::from(target.fd().try_clone_to_owned()?));
        let there = matches!(target, host::Target::Kept(_));
        written.map_err(|trouble| if there { trouble.in_part() } else { trouble })?;
        let finish = (self.keep.finishes() && !there).then_some(new.mode - self.umask);
        self.attributes(node, Written::Open(target.fd()), finish)?;
        Ok(host.publish(name, target)?)
    }

    /// Copies data; holes stay holes.
    fn content(&mut self, from: &File, to: &std::fs::File) -> StepResult<()> {
        let mut at = 0;
        while let Some(start) = from.seek_data(at)? {
            let end = from.seek_hole(start)?.unwrap_or(start);
            if end <= start {
                break;
            }
            self.run(from, to, start, end)?;
            at = end;
        }
        Ok(to.set_len(from.size())?)
    }

    /// Copies the bytes from `start` to `end`.
    fn run(&mut self, from: &File, to: &std::fs::File, start: u64, end: u64) -> StepResult<()> {
        let mut at = start;
        while at < end {
            if interrupt::asked() {
                return Err(Trouble::end(Exit::Interrupted, interrupt::WHAT));
            }
            let want = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
            let read = from.read_at(&mut self.buf[..want], at)?;
            if read == 0 {
                break;
            }
            self.budget.take_size(read as u64)?;
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

fn damaged(what: std::fmt::Arguments<'_>) -> Trouble {
    Trouble::new(Exit::Damaged, format!("damaged: {what}"))
}

fn not_set(error: std::io::Error) -> Trouble {
    Trouble::new(Exit::Io, format!("its attributes cannot be set: {error}"))
}
