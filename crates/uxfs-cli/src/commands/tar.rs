//! `uxfs tar`: a tree of an image as an archive.
//!
//! Names in the archive are relative to the path, as `tar -C PATH -c .` has them, so that it unpacks to the same
//! tree anywhere. An archive file appears under its name when it is complete.

use crate::archive::extra::MAX_NAMES;
use crate::archive::names::FirstNames;
use crate::archive::pax::{self, Records};
use crate::archive::{Archive, Kind, SparseMap};
use crate::exit::{Exit, Failure, Result, host_name};
use crate::host::{Identity, rename, stream, volumes};
use crate::interrupt;
use crate::location::{Images, Location, parser};
use crate::mode::umask;
use crate::options::{Global, ThreadsArg};
use crate::problems::Problems;
use crate::progress;
use crate::trust::{Budget, Devices, OverLimit, Trust, TrustArgs};
use crate::walk::ahead::Ahead;
use crate::walk::{EntryOrder, Step, Walk};
use indicatif::ProgressBar;
use rustix::fs::CWD;
use std::io::{BufWriter, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;
use uxfs::{AlignedBuf, File, FileType, Metadata, Node, Volume};

/// Bytes that are read at once.
const CHUNK: usize = 1 << 20;
/// How directories are walked.
const ORDER: EntryOrder = EntryOrder::Stored;
/// In files with more data runs than this, holes are written as zeroes.
const MAX_RUNS: usize = 1 << 20;

/// Arguments of `tar`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A directory, or a file of any type
    #[arg(value_name = "IMAGE:/PATH", value_parser = parser())]
    location: Location,
    /// Write to this file, not to standard output (`-`)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write holes as zeroes, for programs that don't know of sparse files
    #[arg(long)]
    no_sparse: bool,
    /// Leave out extended attributes and access control lists
    #[arg(long)]
    no_xattrs: bool,
    #[command(flatten)]
    threads: ThreadsArg,
    #[command(flatten)]
    trust: TrustArgs,
}

/// Writes the archive.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    let location = &args.location;
    if args.output.as_ref().is_none_or(|path| path.as_os_str() == "-") {
        stream::refuse_image(std::io::stdout(), "standard output", &location.image)?;
    }
    let volume = Images::new(global).volume(location)?;
    let start = volume.lookup_nofollow(&location.path).map_err(|error| location.failure(&error))?;
    let destination = Destination::open(args)?;
    let exit = write(args, global, &volume, start, destination.file())?;
    destination.publish()?;
    Ok(exit)
}

fn write(args: &Args, global: &Global, volume: &Volume, start: Node, out: &std::fs::File) -> Result<Exit> {
    let ahead = Ahead::of(volume, &start, ORDER, global.cache_size, args.threads.count_ahead());
    let out = BufWriter::with_capacity(CHUNK, out);
    let bar = progress::bytes();
    let mut pack = Pack {
        args,
        volume,
        archive: Archive::new(out),
        problems: Problems::beside(&bar),
        bar: &bar,
        buf: AlignedBuf::zeroed(CHUNK),
        linked: FirstNames::default(),
        trust: args.trust.trust(Devices::Made),
        budget: Budget::new(args.trust.trust(Devices::Made).limits),
    };
    let done = pack.tree(start, ahead);
    let Pack { archive, problems, .. } = pack;
    let done = done.and_then(|()| archive.finish());
    bar.finish_and_clear();
    done?;
    Ok(problems.exit())
}

/// Where the archive goes.
enum Destination {
    /// Standard output, or a given device or pipe.
    Stream(std::fs::File),
    /// A new file, which gets its name when it is complete.
    New(NamedTempFile, PathBuf),
}

impl Destination {
    fn open(args: &Args) -> Result<Self> {
        let Some(path) = args.output.as_ref().filter(|path| path.as_os_str() != "-") else {
            let stdout = std::io::stdout();
            if stdout.is_terminal() {
                let what = "tar: standard output is a terminal; redirect it, or give -o FILE";
                return Err(Failure::new(Exit::Usage, what));
            }
            let stdout = stdout.as_fd().try_clone_to_owned().map_err(Failure::from)?;
            return Ok(Self::Stream(stdout.into()));
        };
        let refuse = |exit, what: &str| Err(Failure::new(exit, format!("{}: {what}", host_name(path))));
        let failure = |error| Failure::of_host(path, error);
        let image = Identity::of_path(&args.location.image);
        if image.is_some() && image == Identity::of_path(path) {
            return refuse(Exit::Usage, "the image that is read; write the archive to another file");
        }
        // A link may have been placed by someone else. A pipe or a character device can take an archive.
        let there = path.metadata().ok();
        if there.as_ref().is_some_and(std::fs::Metadata::is_dir) {
            return refuse(Exit::NotFound, "a directory");
        }
        if there.as_ref().is_some_and(|there| there.file_type().is_block_device()) {
            let what = "a block device, and what is on it would be lost; name a file, or use standard output";
            return refuse(Exit::Usage, what);
        }
        volumes::refuse(path)?;
        if there.as_ref().is_some_and(|there| !there.is_file()) {
            let file = std::fs::File::options().write(true).open(path).map_err(failure)?;
            return Ok(Self::Stream(file));
        }
        if path.symlink_metadata().is_ok_and(|itself| itself.file_type().is_symlink()) {
            return refuse(
                Exit::AlreadyExists,
                "a symbolic link, which is not followed; name the file itself",
            );
        }
        // What would be refused in the end is refused before the work.
        volumes::hold_at(CWD, path, |_| true)
            .map_err(|error| Failure::new(Exit::of_host(&error), format!("{}: {error}", host_name(path))))?;
        let mode = there.map_or(0o666 & !u32::from(umask()), |there| there.permissions().mode() & 0o777);
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        interrupt::watch();
        let new = tempfile::Builder::new().prefix(".uxfs-tar-").tempfile_in(dir).map_err(failure)?;
        new.as_file().set_permissions(std::fs::Permissions::from_mode(mode)).map_err(failure)?;
        Ok(Self::New(new, path.clone()))
    }

    fn file(&self) -> &std::fs::File {
        match self {
            Self::Stream(file) => file,
            Self::New(file, _) => file.as_file(),
        }
    }

    /// Gives the archive its name.
    fn publish(self) -> Result<()> {
        let Self::New(file, path) = self else { return Ok(()) };
        let failure = |error: std::io::Error| {
            Failure::new(Exit::of_host(&error), format!("{}: {error}", host_name(&path)))
        };
        // A file that took the name meanwhile is not lost.
        let (private, name) = (file.path().as_os_str().as_bytes(), path.as_os_str().as_bytes());
        volumes::take_place(CWD, &path, |_| true, |replace| rename(CWD, private, name, replace))
            .map_err(failure)?;
        file.keep().map(drop).map_err(|error| failure(error.error))
    }
}

/// An archive in progress.
struct Pack<'a, W: Write> {
    args: &'a Args,
    volume: &'a Volume,
    archive: Archive<W>,
    problems: Problems,
    bar: &'a ProgressBar,
    buf: AlignedBuf,
    /// The first name in the archive of each file that has several.
    linked: FirstNames,
    trust: Trust,
    budget: Budget,
}

impl<W: Write> Pack<'_, W> {
    fn tree(&mut self, start: Node, mut ahead: Ahead) -> Result<()> {
        let is_dir = start.file_type().is_dir();
        let file_name = self.args.location.file_name().unwrap_or(b"file").to_vec();
        let mut walk = Walk::new(self.volume, start, b".", ORDER).with_inodes();
        while let Some(step) = walk.next() {
            interrupt::check()?;
            progress::name(self.bar, walk.path());
            let depth = walk.depth() as u64;
            let name = if is_dir { walk.path() } else { &file_name };
            match step {
                Step::Enter(node) => match node.metadata() {
                    Ok(of) => {
                        self.budget.check_depth(depth).map_err(|limit| self.over(&limit))?;
                        self.directory(&[name, b"/"].concat(), &node, &self.trusted(of))?;
                    }
                    Err(error) => self.problem(name, &error),
                },
                Step::Leave(_) => {}
                Step::Leaf(leaf) => {
                    let mut size = 0;
                    match leaf.node(self.volume).and_then(|node| Ok((node.metadata()?, node))) {
                        Ok((of, node)) => {
                            size = of.size;
                            self.leaf(name, &node, &self.trusted(of))?;
                        }
                        Err(error) => self.problem(name, &error),
                    }
                    ahead.passed(size);
                }
                Step::Failed(error) => self.problem(name, &error),
                Step::Damaged(what) => self.problem(name, &what),
            }
        }
        Ok(())
    }

    fn directory(&mut self, name: &[u8], node: &Node, of: &Metadata) -> Result<()> {
        self.budget.take_file().map_err(|limit| self.over(&limit))?;
        let records = self.xattrs(name, node);
        self.archive.entry(name, of, &Kind::Directory, records)
    }

    /// The archive's metadata of a file.
    fn trusted(&self, mut of: Metadata) -> Metadata {
        of.mode = of.mode & 0o170_000 | self.trust.permissions(of.permissions());
        of
    }

    fn over(&self, limit: &OverLimit) -> Failure {
        Failure::new(OverLimit::EXIT, format!("{}: {limit}", host_name(&self.args.location.image)))
    }

    fn leaf(&mut self, name: &[u8], node: &Node, of: &Metadata) -> Result<()> {
        self.budget.take_file().map_err(|limit| self.over(&limit))?;
        if self.trust.devices == Devices::LeftOut
            && matches!(of.file_type, FileType::CharDevice | FileType::BlockDevice)
        {
            return Ok(());
        }
        if of.nlink > 1
            && let Some(first) = self.linked.get(of.ino)
        {
            return self.archive.entry(name, of, &Kind::HardLink(&first), Records::default());
        }
        let records = self.xattrs(name, node);
        let target;
        let kind = match of.file_type {
            FileType::Regular => return self.file(name, node, of, records),
            FileType::Symlink => match node.read_link() {
                Ok(link) => {
                    target = link;
                    Kind::Symlink(&target)
                }
                Err(error) => {
                    self.problem(name, &error);
                    return Ok(());
                }
            },
            FileType::CharDevice => Kind::CharDevice,
            FileType::BlockDevice => Kind::BlockDevice,
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => {
                self.problem(name, &"an archive cannot hold a socket; it is left out");
                return Ok(());
            }
            FileType::Directory | FileType::Unknown => {
                self.problem(name, &format_args!("damaged: a {} where none can be", of.file_type));
                return Ok(());
            }
        };
        self.archive.entry(name, of, &kind, records)?;
        self.remember(name, of);
        Ok(())
    }

    /// Then the file's other names become links to this one.
    fn remember(&mut self, name: &[u8], of: &Metadata) {
        if of.nlink > 1 {
            self.linked.remember(of.ino, name);
        }
    }

    fn file(&mut self, name: &[u8], node: &Node, of: &Metadata, records: Records) -> Result<()> {
        let opened = node.open().and_then(|file| {
            let map = if self.args.no_sparse { None } else { sparse_map(&file)? };
            Ok((file, map))
        });
        let (file, map) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.problem(name, &error);
                return Ok(());
            }
        };
        self.remember(name, of);
        let content = map.as_ref().map_or_else(|| file.size(), SparseMap::data_len);
        self.budget.take_size(content).map_err(|limit| self.over(&limit))?;
        match map {
            Some(map) => {
                self.archive.entry(name, of, &Kind::Sparse(&map), records)?;
                for &(offset, len) in &map.runs {
                    self.content(name, &file, offset, len)?;
                }
            }
            None => {
                let size = file.size();
                self.archive.entry(name, of, &Kind::File(size), records)?;
                self.content(name, &file, 0, size)?;
            }
        }
        self.archive.pad()
    }

    /// Writes `len` bytes of a file. Unreadable data is written as zeroes, since the header has announced
    /// it.
    fn content(&mut self, name: &[u8], file: &File, offset: u64, len: u64) -> Result<()> {
        let mut done = 0;
        let mut failed = false;
        while done < len {
            interrupt::check()?;
            let want = usize::try_from(len - done).unwrap_or(CHUNK).min(CHUNK);
            let buf = &mut self.buf[..want];
            match file.read_at(buf, offset + done) {
                Ok(read) => buf[read..].fill(0),
                Err(error) => {
                    buf.fill(0);
                    if !std::mem::replace(&mut failed, true) {
                        let image = &self.args.location.image;
                        self.problems.at(image, name, format_args!("{error}; written as zeroes"));
                    }
                }
            }
            self.archive.content(&self.buf[..want])?;
            self.bar.inc(want as u64);
            done += want as u64;
        }
        Ok(())
    }

    /// Records of a file's attributes. A list is written as an attribute and as text: programs look for
    /// either.
    fn xattrs(&mut self, name: &[u8], node: &Node) -> Records {
        let mut records = Records::default();
        if self.args.no_xattrs {
            return records;
        }
        if let Err(error) = self.add_xattrs(name, node, &mut records) {
            self.problem(name, &error);
        }
        records
    }

    fn add_xattrs(&mut self, name: &[u8], node: &Node, records: &mut Records) -> uxfs::Result<()> {
        let mut names_len = 0;
        for xattr in node.xattr_names()? {
            // The list itself is present as `system.posix_acl_…`; this is XFS's form of it.
            if xattr.starts_with(b"trusted.SGI_ACL_") || xattr.contains(&0) || !self.trust.takes_xattr(&xattr)
            {
                continue;
            }
            let Some(value) = node.xattr(&xattr)? else { continue };
            let text_key: Option<&[u8]> = match &*xattr {
                b"system.posix_acl_access" => Some(b"SCHILY.acl.access"),
                b"system.posix_acl_default" => Some(b"SCHILY.acl.default"),
                _ => None,
            };
            if let Some((key, text)) = text_key.zip(pax::acl_text(&value)) {
                records.add(key, text.as_bytes());
            }
            names_len += xattr.len() + 1;
            if names_len > MAX_NAMES {
                let what = format!("attributes with names of more than {MAX_NAMES} bytes; some are left out");
                self.problem(name, &what);
                break;
            }
            if !records.add_xattr(&xattr, &value) {
                let what = format!("more than {} bytes of attributes; some are left out", pax::MAX_BYTES);
                self.problem(name, &what);
                break;
            }
        }
        Ok(())
    }

    fn problem(&mut self, name: &[u8], what: &dyn std::fmt::Display) {
        self.problems.at(&self.args.location.image, name, what);
    }
}

/// The runs of data of a file with holes; `None` if it has no holes, or too many.
fn sparse_map(file: &File) -> uxfs::Result<Option<SparseMap>> {
    let size = file.size();
    let mut runs = Vec::new();
    let mut at = 0;
    while let Some(start) = file.seek_data(at)? {
        let end = file.seek_hole(start)?.unwrap_or(size);
        if (start == 0 && end >= size) || end <= start || runs.len() == MAX_RUNS {
            return Ok(None);
        }
        runs.push((start, end - start));
        at = end;
    }
    Ok((size > 0).then_some(SparseMap { runs, size }))
}
