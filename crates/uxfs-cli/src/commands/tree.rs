//! `uxfs tree`: draws a directory tree.

use crate::exit::{Exit, Result};
use crate::location::{Images, Location, parser};
use crate::options::Global;
use crate::output::{Object, Output, put_name, type_word};
use crate::problems::{Problems, for_each};
use crate::walk::{EntryOrder, Step, Walk};
use uxfs::{FileType, Volume};

/// Arguments of `tree`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Directories
    #[arg(value_name = "IMAGE:/PATH", required = true, value_parser = parser())]
    locations: Vec<Location>,
    /// Levels to go down
    #[arg(short = 'L', long, value_name = "DEPTH")]
    level: Option<usize>,
    /// Show names that start with a dot, too
    #[arg(short, long)]
    all: bool,
}

impl Args {
    /// The entries of one directory.
    pub fn of(location: Location) -> Self {
        Self { locations: vec![location], level: None, all: true }
    }
}

/// Draws each directory.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    let mut images = Images::new(global);
    let mut out = Output::new(global);
    let exit = for_each(&args.locations, &mut Problems::default(), |location, problems| {
        let volume = images.volume(location)?;
        draw(args, location, &volume, &mut out, problems)
    })?;
    out.finish()?;
    Ok(exit)
}

/// A drawing in progress.
struct Drawing {
    /// For each level, whether its line continues, as more follows.
    open: Vec<bool>,
    directories: u64,
    files: u64,
}

/// Draws one directory.
pub fn draw(
    args: &Args,
    location: &Location,
    volume: &Volume,
    out: &mut Output,
    problems: &mut Problems,
) -> Result<()> {
    let dir = volume.open_dir(&location.path).map_err(|error| location.failure(&error))?;
    let mut walk = Walk::new(volume, dir.node().clone(), &location.path, EntryOrder::Sorted);
    let mut drawing = Drawing { open: Vec::new(), directories: 0, files: 0 };
    while let Some(step) = walk.next() {
        let (file_type, leaf) = match step {
            Step::Enter(_) => (FileType::Directory, None),
            Step::Leaf(leaf) => (leaf.file_type, Some(leaf)),
            Step::Leave(_) => continue,
            Step::Failed(error) => {
                problems.at(&location.image, walk.path(), &error);
                continue;
            }
            Step::Damaged(what) => {
                problems.at(&location.image, walk.path(), what);
                continue;
            }
        };
        let hidden = walk.depth() > 0 && !args.all && walk.name().first() == Some(&b'.');
        if hidden || args.level.is_some_and(|level| walk.depth() >= level) {
            walk.skip();
        }
        if hidden {
            continue;
        }
        let target = leaf.filter(|leaf| leaf.file_type.is_symlink()).and_then(|leaf| {
            let target = leaf.node(volume).and_then(|node| node.read_link());
            target.map_err(|error| problems.at(&location.image, walk.path(), &error)).ok()
        });
        drawing.line(&mut walk, file_type, target.as_deref(), out)?;
    }
    if !out.is_json() {
        let plural = |count| if count == 1 { "" } else { "s" };
        let (directories, files) = (drawing.directories, drawing.files);
        out.text(format_args!(
            "\n{directories} director{}, {files} file{}\n",
            if directories == 1 { "y" } else { "ies" },
            plural(files)
        ))?;
    }
    Ok(())
}

impl Drawing {
    fn line(
        &mut self,
        walk: &mut Walk,
        file_type: FileType,
        target: Option<&[u8]>,
        out: &mut Output,
    ) -> Result<()> {
        let depth = walk.depth();
        match file_type {
            FileType::Directory if depth == 0 => {}
            FileType::Directory => self.directories += 1,
            _ => self.files += 1,
        }
        if out.is_json() {
            return out.object(object(walk, file_type, target));
        }
        if depth > 0 {
            let last = walk.is_last();
            self.open.truncate(depth - 1);
            for &open in &self.open {
                out.text(if open { "│   " } else { "    " })?;
            }
            out.text(if last { "└── " } else { "├── " })?;
            self.open.push(!last);
        }
        out.name(if depth == 0 { walk.path() } else { walk.name() })?;
        if let Some(target) = target {
            out.text(" -> ")?;
            out.name(target)?;
        }
        out.text("\n")
    }
}

fn object(walk: &Walk, file_type: FileType, target: Option<&[u8]>) -> Object {
    let mut object = Object::new();
    put_name(&mut object, "path", walk.path());
    object.insert("depth".to_owned(), walk.depth().into());
    object.insert("type".to_owned(), type_word(file_type).into());
    if let Some(target) = target {
        put_name(&mut object, "target", target);
    }
    object
}
