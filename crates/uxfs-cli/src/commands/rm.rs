//! `uxfs rm`: removes files and trees.
//!
//! The way down is a list, not recursion; a directory is read in parts, so that a large one costs no more memory
//! than a small one; one that a damaged volume names twice is entered once.

use crate::edit;
use crate::exit::{Exit, Failure, Result};
use crate::interrupt;
use crate::location::{Location, parser};
use crate::options::{Global, TIME_HELP};
use crate::problems::{Problems, complain};
use crate::walk::InodeSet;
use uxfs::{Dir, DirEntry, ErrorKind, Node, Volume};

/// Entries of a directory that are read at once.
const BATCH: usize = 1024;

/// Of a directory with many names of one hash, no more are tried when so many stay: each of the others would be compared
/// with them.
const CROWD_STAYS_MAX: usize = 2048;

/// Arguments of `rm`.
#[derive(clap::Args, Debug)]
#[command(after_help = TIME_HELP)]
pub struct Args {
    /// What to remove; links are removed, not what they lead to
    #[arg(value_name = "IMAGE:/PATH", required = true, value_parser = parser())]
    locations: Vec<Location>,
    /// Remove directories with all that is in them
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// What is not there is no failure
    #[arg(short, long)]
    force: bool,
}

/// Removes each.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    edit::change_each(global, &args.locations, |volume, location, problems| {
        match one(args, volume, location, problems, global.verbose) {
            Err(failure) if args.force && failure.exit() == Exit::NotFound => Ok(()),
            other => other,
        }
    })
}

fn one(
    args: &Args,
    volume: &Volume,
    location: &Location,
    problems: &mut Problems,
    verbose: bool,
) -> Result<()> {
    let (dir, name) = edit::parent(volume, location)?;
    let node = edit::named(&dir, name, location)?;
    let failure = |error: uxfs::Error| edit::failure(location, &error);
    if !node.file_type().is_dir() {
        if edit::ends_in_slash(&location.path) {
            return Err(edit::refused(location, Exit::Usage, "not a directory"));
        }
        say(verbose, &location.path);
        return dir.remove_file(name).map_err(failure);
    }
    if !args.recursive {
        // Not the code of what is not there: `-f` does not mean this.
        let what = "is a directory; give -r to remove it with all that is in it";
        return Err(edit::refused(location, Exit::Usage, what));
    }
    let path = location.path.clone();
    let mut seen = InodeSet::default();
    seen.insert(node.ino());
    Removal { volume, location, problems, verbose, seen, path }.tree(dir, name, &node)
}

fn say(verbose: bool, path: &[u8]) {
    if verbose {
        complain(&format!("removed {}", uxfs::printable(path)));
    }
}

/// A tree that is being removed.
struct Removal<'a> {
    volume: &'a Volume,
    location: &'a Location,
    problems: &'a mut Problems,
    verbose: bool,
    seen: InodeSet,
    path: Vec<u8>,
}

/// A directory on the way down.
struct Frame {
    above: Dir,
    name: Vec<u8>,
    dir: Dir,
    batch: std::vec::IntoIter<DirEntry>,
    /// Where to go on behind the batch.
    place: u64,
    /// Whether something was removed since the directory was last read from its start.
    progress: bool,
    /// Whether something stays in it, which was said.
    stays: bool,
    /// What stays, so that it is said once, however often the directory is read.
    said: InodeSet,
    path_len: usize,
    /// Whether many names have one hash, once that was asked: these are removed in the order of the index.
    crowded: Option<bool>,
    /// Entries that stay.
    staying: usize,
}

impl Frame {
    fn new(above: Dir, name: Vec<u8>, dir: Dir, path_len: usize) -> Self {
        Self {
            above,
            name,
            dir,
            batch: Vec::new().into_iter(),
            place: 0,
            progress: false,
            stays: false,
            said: InodeSet::default(),
            path_len,
            crowded: None,
            staying: 0,
        }
    }

    /// Whether so much stays that each try takes long.
    fn gives_up(&self) -> bool {
        self.crowded == Some(true) && self.staying > CROWD_STAYS_MAX
    }
}

impl Removal<'_> {
    fn tree(mut self, above: Dir, name: &[u8], node: &Node) -> Result<()> {
        while self.path.last() == Some(&b'/') {
            self.path.pop();
        }
        let mut frames = vec![self.frame(above, name.to_vec(), node)?];
        while let Some(frame) = frames.last_mut() {
            interrupt::check()?;
            self.path.truncate(frame.path_len);
            let Some(entry) = frame.batch.next() else {
                match Self::refill(frame) {
                    Ok(true) => continue,
                    Ok(false) => {
                        if frame.gives_up() {
                            let what =
                                "too many of its names that have one hash stay: the others were not tried";
                            self.problems.at(&self.location.image, &self.path, what);
                        }
                    }
                    Err(error) => self.problem(frame, None, &error)?,
                }
                let Some(done) = frames.pop() else { break };
                self.leave(done, frames.last_mut())?;
                continue;
            };
            self.path.push(b'/');
            self.path.extend(&entry.name);
            match self.entry(frame, &entry) {
                Ok(Some(inner)) => frames.push(inner),
                Ok(None) => {}
                Err(error) => self.problem(frame, Some(entry.ino), &error)?,
            }
        }
        Ok(())
    }

    fn frame(&self, above: Dir, name: Vec<u8>, node: &Node) -> Result<Frame> {
        let dir = node.as_dir().map_err(|error| edit::failure(self.location, &error))?;
        Ok(Frame::new(above, name, dir, self.path.len()))
    }

    /// Removes an entry, or goes into it.
    fn entry(&mut self, frame: &mut Frame, entry: &DirEntry) -> uxfs::Result<Option<Frame>> {
        if !entry.file_type.is_dir() {
            frame.dir.remove_file(&entry.name)?;
            frame.progress = true;
            say(self.verbose, &self.path);
            return Ok(None);
        }
        let node = self.volume.node(entry.ino)?;
        if !self.seen.insert(entry.ino) {
            frame.stays = true;
            frame.staying += 1;
            // Unless it could not be emptied when the directory was read before, which was said.
            if frame.said.insert(entry.ino) {
                let what = format!("damaged: directory inode {} is reached a second time", entry.ino);
                self.problems.at(&self.location.image, &self.path, what);
            }
            return Ok(None);
        }
        let dir = node.as_dir()?;
        Ok(Some(Frame::new(frame.dir.clone(), entry.name.clone(), dir, self.path.len())))
    }

    /// Whether names of one hash make their order matter.
    fn is_crowded(frame: &mut Frame) -> uxfs::Result<bool> {
        match frame.crowded {
            Some(crowded) => Ok(crowded),
            None => {
                // Should it fail once, it would again.
                frame.crowded = Some(false);
                let crowded = frame.dir.is_crowded()?;
                frame.crowded = Some(crowded);
                Ok(crowded)
            }
        }
    }

    /// Reads on; whether there is more.
    fn refill(frame: &mut Frame) -> uxfs::Result<bool> {
        if Self::is_crowded(frame)? {
            if frame.gives_up() {
                return Ok(false);
            }
            let batch = frame.dir.first_of_index(frame.staying, BATCH)?;
            if !batch.is_empty() {
                frame.batch = batch.into_iter();
                return Ok(true);
            }
            // What has no index any more is small.
            frame.crowded = Some(false);
        }
        loop {
            let entries = frame.dir.entries_from(frame.place).take(BATCH);
            let batch = entries.collect::<uxfs::Result<Vec<DirEntry>>>()?;
            if let Some(last) = batch.last() {
                frame.place = last.next;
                frame.batch = batch.into_iter();
                return Ok(true);
            }
            // A directory that has become small may have moved what is left to the front.
            if frame.place == 0 || !frame.progress {
                return Ok(false);
            }
            frame.place = 0;
            frame.progress = false;
        }
    }

    /// Removes a directory that is empty now.
    fn leave(&mut self, frame: Frame, above: Option<&mut Frame>) -> Result<()> {
        self.path.truncate(frame.path_len);
        if !frame.stays {
            match frame.above.remove_dir(&frame.name) {
                Ok(()) => {
                    say(self.verbose, &self.path);
                    if let Some(above) = above {
                        above.progress = true;
                    }
                    return Ok(());
                }
                Err(error) => self.said(&error)?,
            }
        }
        if let Some(above) = above {
            above.stays = true;
            above.staying += 1;
            above.said.insert(frame.dir.node().ino());
        }
        Ok(())
    }

    /// Something stays in a directory: the entry with this inode, or what could not be read.
    fn problem(&mut self, frame: &mut Frame, ino: Option<u64>, error: &uxfs::Error) -> Result<()> {
        frame.stays = true;
        frame.staying += 1;
        if ino.is_none_or(|ino| frame.said.insert(ino)) { self.said(error) } else { Ok(()) }
    }

    /// Says what could not be removed; a volume that takes no more changes ends it.
    fn said(&mut self, error: &uxfs::Error) -> Result<()> {
        if matches!(error.kind(), ErrorKind::ShutDown | ErrorKind::ShutDownByDamage | ErrorKind::ReadOnly) {
            return Err(Failure::of_image(&self.location.image, error));
        }
        self.problems.at(&self.location.image, &self.path, error);
        Ok(())
    }
}
