//! Files of the host, read for a volume.
//!
//! Invariants: names are sorted by their bytes; symbolic links are copied, never followed, except for a source itself;
//! reading does not change access times if the host permits that, and is ahead of writing. Directories, large files and
//! files with several names are made by the thread that walks the tree, small files by others
//! ([`threads`](super::threads)).

mod read;

use self::read::{Copied, Key, Reader, Step, Steps};
use super::small::{self, Content, Small, is_small};
use super::threads::{Make, ThreadIndex, Threads, tell};
use super::{Attributes, Filler, Leaf, StepResult, Trouble, end_at};
use crate::exit::{Exit, Failure, Result, host_name};
use crate::host::Identity;
use crate::interrupt;
use crate::problems::Problems;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use uxfs::{Dir, File, Node};

/// Copies trees of the host into a volume.
pub struct FromHost<'a, 'b> {
    filler: &'a mut Filler<'b>,
    problems: &'a mut Problems,
    links: &'a mut Links,
    /// The image that is written, which is not copied into itself.
    image: Option<Identity>,
}

/// Copies of files with several names, kept from one source to the next: the other name may be there.
#[derive(Default)]
pub struct Links {
    /// Inode numbers of the copies, by device and inode number.
    copies: HashMap<Key, u64>,
    /// The same, for the reader.
    copied: Copied,
}

/// The place of a copy.
pub struct Target {
    /// A directory of the volume.
    pub dir: Dir,
    /// Its path.
    pub path: Vec<u8>,
    /// The name of the copy in it; `None`: the content of the source goes into the directory.
    pub name: Option<Vec<u8>>,
}

/// The present position in a tree.
struct CopyPosition<'t, 'scope, 'b> {
    target: &'t Target,
    /// The directories on the way down.
    dirs: Vec<Level>,
    /// In the source.
    path: PathBuf,
    /// Directories on the way down, inside one that could not be made.
    lost: u64,
    threads: Threads<'scope, 'b>,
}

/// A directory on the way down.
struct Level {
    dir: Dir,
    of: Attributes,
    is_new: bool,
    /// The thread that makes small files in it, once there are some.
    thread: Option<ThreadIndex>,
}

impl<'a, 'b> FromHost<'a, 'b> {
    /// Copies with a filler; failures are reported.
    pub fn new(
        filler: &'a mut Filler<'b>,
        problems: &'a mut Problems,
        links: &'a mut Links,
        image: &Path,
    ) -> Self {
        Self { filler, problems, links, image: Identity::of_path(image) }
    }

    /// Copies `path`, a directory recursively. A link there is followed if `follow`.
    pub fn copy(&mut self, path: &Path, target: Target, follow: bool) -> Result<()> {
        let at = if follow { path.canonicalize() } else { Ok(path.to_owned()) };
        let found = at.and_then(|at| at.symlink_metadata().map(|found| (at, found)));
        let (at, found) = found.map_err(|error| missing(path, &error))?;
        if !found.is_dir() && target.name.is_none() {
            return Err(Failure::new(Exit::NotFound, format!("{}: not a directory", host_name(&at))));
        }
        let rules = *self.filler.rules();
        self.filler.start(&target.path);
        let copied = Copied::clone(&self.links.copied);
        let keep_xattrs = rules.keep.xattrs || rules.keep.mode;
        let (reader, steps) = Reader::new(rules.keep_links, keep_xattrs, self.image, copied);
        std::thread::scope(|scope| {
            scope.spawn(|| reader.run(&at));
            let threads = Threads::new(scope, self.filler, rules.threads);
            let mut place =
                CopyPosition { target: &target, dirs: Vec::new(), path: at.clone(), lost: 0, threads };
            let done = self.tree(&mut place, steps);
            place.threads.finish(done, |line| self.problems.say(line))
        })
    }

    fn tree(&mut self, place: &mut CopyPosition<'_, '_, 'b>, mut steps: Steps) -> Result<()> {
        while let Some(step) = steps.next() {
            interrupt::check()?;
            tell(place.threads.failed(), |line| self.problems.say(line))?;
            if let Step::Leave = step {
                let done = place.leave(self.filler);
                self.check(&place.path, done)?;
                place.path.pop();
            } else {
                self.found(place, step, &mut steps)?;
            }
        }
        Ok(())
    }

    /// Copies what was found, unless its directory could not be made; reports failures.
    fn found(&mut self, place: &mut CopyPosition<'_, '_, 'b>, step: Step, steps: &mut Steps) -> Result<()> {
        let is_root = place.dirs.is_empty() && place.lost == 0;
        let enters = matches!(step, Step::Enter(..));
        if !is_root {
            place.path.push(OsStr::from_bytes(step.name()));
        }
        let outcome = if place.lost == 0 { self.step(place, step, steps) } else { Ok(()) };
        steps.skip_file();
        if enters && (outcome.is_err() || place.lost > 0) {
            place.lost += 1;
        }
        match outcome {
            Err(trouble) if is_root => return Err(trouble.failure(host_name(&place.path))),
            outcome => self.check(&place.path, outcome)?,
        }
        if !is_root && !enters {
            place.path.pop();
        }
        Ok(())
    }

    /// Copies what was found, or goes into it.
    fn step(
        &mut self,
        place: &mut CopyPosition<'_, '_, 'b>,
        step: Step,
        steps: &mut Steps,
    ) -> StepResult<()> {
        if !matches!(step, Step::Enter(..) | Step::Trouble(..)) {
            self.filler.at(place.path.as_os_str().as_bytes());
        }
        match step {
            Step::Enter(name, of) => {
                let dir = match place.end(&name) {
                    Some((dir, name)) => self.filler.enter(dir, name, &of)?,
                    None => place.target.dir.clone(),
                };
                let is_new = self.filler.is_new(&dir);
                place.dirs.push(Level { dir, of, is_new, thread: None });
                Ok(())
            }
            Step::File(name, of, None, data) if place.has_makers() && is_small(&of, data, 1) => {
                self.small_file(place, name, of, data, steps)
            }
            Step::Symlink(name, of, None, target) if place.has_makers() && is_small(&of, 0, 0) => {
                place.give(Small { name, of, content: Content::Symlink(target) });
                Ok(())
            }
            Step::Special(name, of, None, special) if place.has_makers() && is_small(&of, 0, 0) => {
                place.give(Small { name, of, content: Content::Special(special) });
                Ok(())
            }
            Step::File(name, of, key, data) => self.once(place, &name, key, |filler, dir, name| {
                filler.expect(data);
                filler.file(dir, name, &of, |filler, file| content(filler, steps, file)).map(Some)
            }),
            Step::Symlink(name, of, key, target) => self.once(place, &name, key, |filler, dir, name| {
                filler.leaf(dir, name, &of, &Leaf::Symlink(&target))
            }),
            Step::Special(name, of, key, special) => self.once(place, &name, key, |filler, dir, name| {
                filler.leaf(dir, name, &of, &Leaf::Special(special))
            }),
            Step::Again(name, key) => self.once(place, &name, Some(key), |_, _, _| Err(ended_early())),
            Step::Trouble(_, trouble) => Err(trouble),
            Step::Leave | Step::Data(..) | Step::End(_) => Ok(()),
        }
    }

    /// Gives a file to another thread, if it turns out to be small.
    fn small_file(
        &mut self,
        place: &mut CopyPosition<'_, '_, 'b>,
        name: Vec<u8>,
        of: Attributes,
        data: u64,
        steps: &mut Steps,
    ) -> StepResult<()> {
        let (mut pieces, mut bytes) = (Vec::new(), 0);
        while is_small(&of, bytes, pieces.len()) {
            match steps.next_in_file() {
                Some(Step::Data(at, part)) => {
                    bytes += part.len() as u64;
                    // Data read ahead shares memory, and a small file would keep all of it.
                    pieces.push((at, steps.bytes(part).to_vec()));
                }
                Some(Step::End(size)) => {
                    place.give(Small { name, of, content: Content::Data(pieces, size?) });
                    return Ok(());
                }
                _ => return Err(ended_early()),
            }
        }
        let Some((dir, name)) = place.end(&name) else { return Err(ended_early()) };
        self.filler.expect(data);
        self.filler.file(dir, name, &of, |filler, file| {
            small::append(filler, file, &pieces)?;
            content(filler, steps, file)
        })?;
        Ok(())
    }

    /// Makes a file other than a directory, or a link if it was made before.
    fn once(
        &mut self,
        place: &CopyPosition<'_, '_, 'b>,
        name: &[u8],
        key: Option<Key>,
        make: impl FnOnce(&mut Filler<'b>, &Dir, &[u8]) -> StepResult<Option<Node>>,
    ) -> StepResult<()> {
        let Some((dir, name)) = place.end(name) else { return Err(ended_early()) };
        if let Some(&ino) = key.and_then(|key| self.links.copies.get(&key)) {
            return self.filler.link(dir, name, &dir.node().volume().node(ino)?);
        }
        let Some(node) = make(self.filler, dir, name)? else { return Ok(()) };
        if let Some(key) = key {
            self.links.copies.insert(key, node.ino());
            self.links.copied.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
        }
        Ok(())
    }

    /// Reports the failure of one file; a failure that ends the work becomes the verb's.
    fn check(&mut self, path: &Path, outcome: StepResult<()>) -> Result<()> {
        match outcome {
            Ok(()) => {}
            Err(trouble) if trouble.ends() => return Err(trouble.failure(host_name(path))),
            Err(trouble) => self.problems.say(&format!("{}: {trouble}", host_name(path))),
        }
        Ok(())
    }
}

impl<'b> CopyPosition<'_, '_, 'b> {
    /// The path of this name; `None`: the directory itself.
    fn end<'p>(&'p self, name: &'p [u8]) -> Option<(&'p Dir, &'p [u8])> {
        match self.dirs.last() {
            Some(level) => Some((&level.dir, name)),
            None => Some((&self.target.dir, self.target.name.as_deref()?)),
        }
    }

    /// Whether other threads make small files here.
    fn has_makers(&self) -> bool {
        !self.threads.is_empty() && self.dirs.last().is_some_and(|level| level.is_new)
    }

    /// Gives a file in the innermost directory to another thread.
    fn give(&mut self, small: Small) {
        let Some(level) = self.dirs.last_mut() else { return };
        let thread = *level.thread.get_or_insert_with(|| self.threads.least_busy());
        let (bytes, dir) = (small.bytes(), level.dir.clone());
        let make: Make<'b> = Box::new(move |filler| small.make(filler, &dir));
        self.threads.give(thread, bytes, host_name(&self.path), make);
    }

    /// Goes back up one level.
    fn leave(&mut self, filler: &mut Filler<'_>) -> StepResult<()> {
        if self.lost > 0 {
            self.lost -= 1;
            return Ok(());
        }
        let Some(Level { dir, of, thread, .. }) = self.dirs.pop() else { return Ok(()) };
        if !self.dirs.is_empty() || self.target.name.is_some() {
            filler.leave();
        }
        let Some(thread) = thread else { return filler.finish(dir.node(), &of) };
        let finish: Make<'b> = Box::new(move |filler| filler.finish(dir.node(), &of));
        self.threads.give(thread, 0, host_name(&self.path), finish);
        Ok(())
    }
}

/// Copies the data of a file as they arrive.
fn content(filler: &mut Filler<'_>, steps: &mut Steps, to: &File) -> StepResult<()> {
    while let Some(step) = steps.next_in_file() {
        match step {
            Step::Data(at, part) => filler.append(to, at, steps.bytes(part))?,
            Step::End(size) => return end_at(to, size?),
            _ => break,
        }
    }
    Err(ended_early())
}

fn ended_early() -> Trouble {
    Trouble::end(Exit::Io, "reading the source ended early")
}

/// The error of the host for a missing path.
fn missing(path: &Path, error: &std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
            Failure::new(Exit::NotFound, format!("{}: no such file or directory", host_name(path)))
        }
        _ => Failure::of_host(path, error),
    }
}

/// The last part of a path of the host, if it is a name.
pub fn file_name(path: &Path) -> Option<Vec<u8>> {
    let bytes = path.as_os_str().as_bytes();
    // `dir/.` means the content of the directory.
    if bytes.ends_with(b"/.") || bytes == b"." {
        return None;
    }
    PathBuf::from(path).file_name().map(|name| name.as_bytes().to_vec())
}
