//! `uxfs ls`: lists directories.
//!
//! Sorted by name, which takes memory for the names of one directory; `-U` takes none.

use crate::exit::{Exit, Result};
use crate::location::{Images, Location, parser};
use crate::options::Global;
use crate::output::{Object, Output, human_size, mode_text, put_metadata, put_name, short_time, type_word};
use crate::problems::{Problems, for_each};
use crate::walk::{EntryOrder, Step, Walk};
use uxfs::{Dir, DirEntry, Entries, FileType, Metadata, Node, Volume};

/// Arguments of `ls`.
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Directories or files to list
    #[arg(value_name = "IMAGE:/PATH", required = true, value_parser = parser())]
    locations: Vec<Location>,
    /// Show type, permissions, links, owner, group, size and time
    #[arg(short)]
    long: bool,
    /// Show names that start with a dot, too
    #[arg(short, long)]
    all: bool,
    /// Show inode numbers
    #[arg(short, long)]
    inode: bool,
    /// Go into directories
    #[arg(short = 'R', long)]
    recursive: bool,
    /// List a directory itself, not its content
    #[arg(short, long)]
    directory: bool,
    /// Human-readable sizes (with -l)
    #[arg(short, long)]
    human_readable: bool,
    /// List in directory order, without sorting
    #[arg(short = 'U', long)]
    unsorted: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// Lists each location.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    let mut images = Images::new(global);
    let mut problems = Problems::default();
    let mut out = Output::new(global);
    let headed = args.recursive || args.locations.len() > 1;
    let exit = for_each(&args.locations, &mut problems, |location, problems| {
        let volume = images.volume(location)?;
        let mut list = List { args, location, volume: &volume, out: &mut out, problems, headed, first: true };
        list.location()
    })?;
    out.finish()?;
    Ok(exit)
}

/// A listing in progress.
struct List<'a> {
    args: &'a Args,
    location: &'a Location,
    volume: &'a Volume,
    out: &'a mut Output,
    problems: &'a mut Problems,
    /// Whether a directory's name is printed before its entries.
    headed: bool,
    first: bool,
}

impl List<'_> {
    fn location(&mut self) -> Result<()> {
        let path = &self.location.path;
        let node = self.node_at_path().map_err(|error| self.location.failure(&error))?;
        if !node.file_type().is_dir() || self.args.directory {
            return self.line(path, path, node.ino(), node.file_type(), Some(&node));
        }
        if !self.args.recursive {
            let dir = node.as_dir().map_err(|error| self.location.failure(&error))?;
            return self.directory(path, &dir);
        }
        let order = if self.args.unsorted { EntryOrder::Stored } else { EntryOrder::Sorted };
        let mut walk = Walk::new(self.volume, node, path, order);
        while let Some(step) = walk.next() {
            match step {
                Step::Enter(_) if walk.depth() > 0 && self.is_hidden(walk.name()) => walk.skip(),
                Step::Enter(node) => match node.as_dir() {
                    Ok(dir) => self.directory(walk.path(), &dir)?,
                    Err(error) => self.problem(walk.path(), &error),
                },
                Step::Failed(error) => self.problem(walk.path(), &error),
                Step::Damaged(what) => self.problem(walk.path(), &what),
                Step::Leaf(_) | Step::Leave(_) => {}
            }
        }
        Ok(())
    }

    /// With `-l` or `-d` a link itself is shown, as by `ls`.
    fn node_at_path(&self) -> uxfs::Result<Node> {
        if self.args.long || self.args.directory {
            self.volume.lookup_nofollow(&self.location.path)
        } else {
            self.volume.lookup(&self.location.path)
        }
    }

    fn directory(&mut self, path: &[u8], dir: &Dir) -> Result<()> {
        if self.headed && !self.out.is_json() {
            if !std::mem::take(&mut self.first) {
                self.out.text("\n")?;
            }
            self.out.name(path)?;
            self.out.text(":\n")?;
        }
        if self.args.unsorted {
            return self.stream(path, dir);
        }
        let mut entries: Vec<DirEntry> = Vec::new();
        for entry in self.entries(dir) {
            match entry {
                Ok(entry) if self.is_hidden(&entry.name) => {}
                Ok(entry) => entries.push(entry),
                Err(error) => self.problem(path, &error),
            }
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        entries.iter().try_for_each(|entry| self.entry(path, entry))
    }

    fn entries(&self, dir: &Dir) -> Entries {
        let wants_inodes = self.args.long || self.out.is_json();
        if wants_inodes { dir.entries().with_inodes() } else { dir.entries() }
    }

    fn stream(&mut self, path: &[u8], dir: &Dir) -> Result<()> {
        for entry in self.entries(dir) {
            match entry {
                Ok(entry) if self.is_hidden(&entry.name) => {}
                Ok(entry) => self.entry(path, &entry)?,
                Err(error) => self.problem(path, &error),
            }
        }
        Ok(())
    }

    fn entry(&mut self, dir: &[u8], entry: &DirEntry) -> Result<()> {
        let slash: &[u8] = if dir.last() == Some(&b'/') { b"" } else { b"/" };
        let path = [dir, slash, &entry.name].concat();
        if !self.args.long && !self.out.is_json() {
            return self.line(&entry.name, &path, entry.ino, entry.file_type, None);
        }
        match self.volume.node(entry.ino) {
            Ok(node) => self.line(&entry.name, &path, entry.ino, entry.file_type, Some(&node)),
            Err(error) => {
                self.problem(&path, &error);
                self.line(&entry.name, &path, entry.ino, entry.file_type, None)
            }
        }
    }

    /// Lists one file: as `name`, with metadata of `node` if requested.
    fn line(
        &mut self,
        name: &[u8],
        path: &[u8],
        ino: u64,
        file_type: FileType,
        node: Option<&Node>,
    ) -> Result<()> {
        let target = node.filter(|node| node.file_type().is_symlink()).and_then(|node| {
            node.read_link().map_err(|error| self.problems.at(&self.location.image, path, &error)).ok()
        });
        let metadata = node.and_then(|node| {
            node.metadata().map_err(|error| self.problems.at(&self.location.image, path, &error)).ok()
        });
        if self.out.is_json() {
            return self.out.object(object(name, path, ino, file_type, metadata.as_ref(), target.as_deref()));
        }
        if self.args.inode {
            self.out.text(format_args!("{ino} "))?;
        }
        if self.args.long {
            self.long(file_type, metadata.as_ref())?;
        }
        self.out.name(name)?;
        if let (true, Some(target)) = (self.args.long, target) {
            self.out.text(" -> ")?;
            self.out.name(&target)?;
        }
        self.out.text("\n")
    }

    fn long(&mut self, file_type: FileType, metadata: Option<&Metadata>) -> Result<()> {
        let Some(of) = metadata else {
            return self
                .out
                .text(format_args!("{}?????????   ?     ?     ?            ? ", file_type.letter()));
        };
        let size = match of.rdev {
            Some(rdev) => format!("{}, {}", rdev.major, rdev.minor),
            None if self.args.human_readable => human_size(of.size),
            None => of.size.to_string(),
        };
        self.out.text(format_args!(
            "{} {:>3} {:>5} {:>5} {size:>12} {} ",
            mode_text(of),
            of.nlink,
            of.uid,
            of.gid,
            short_time(of.mtime)
        ))
    }

    fn is_hidden(&self, name: &[u8]) -> bool {
        !self.args.all && name.first() == Some(&b'.')
    }

    fn problem(&mut self, path: &[u8], what: &dyn std::fmt::Display) {
        self.problems.at(&self.location.image, path, what);
    }
}

fn object(
    name: &[u8],
    path: &[u8],
    ino: u64,
    file_type: FileType,
    metadata: Option<&Metadata>,
    target: Option<&[u8]>,
) -> Object {
    let mut object = Object::new();
    put_name(&mut object, "name", name);
    put_name(&mut object, "path", path);
    object.insert("ino".to_owned(), ino.into());
    object.insert("type".to_owned(), type_word(file_type).into());
    if let Some(metadata) = metadata {
        put_metadata(&mut object, metadata);
    }
    if let Some(target) = target {
        put_name(&mut object, "target", target);
    }
    object
}
