//! Files of another volume, or of the same one, read for a volume.
//!
//! Invariants: directories and files with several names are made by the thread that walks the tree, all others by other
//! threads ([`threads`](super::threads)), unless source and destination are the same volume.

use super::exact::{self, Exact, Keeps};
use super::host::Target;
use super::threads::{Make, ThreadIndex, Threads, tell};
use super::{Attributes, Filler, Leaf, Reflink, StepResult, Trouble, attributes_of, end_at, special_of};
use crate::exit::{Exit, Failure, Result, host_name};
use crate::interrupt;
use crate::location::Location;
use crate::problems::{Problems, short};
use crate::walk::{EntryOrder, Step, Walk};
use std::collections::BTreeMap;
use uxfs::{Dir, ErrorKind, File, Metadata, Node, Volume};

/// Copies trees of one volume into another.
pub struct FromImage<'a, 'b> {
    filler: &'a mut Filler<'b>,
    problems: &'a mut Problems,
    origin: Origin,
    source: &'a Location,
    links: &'a mut Links,
}

/// Copies of one volume's files with several names, by the inode number in that volume. They are kept from one source
/// to the next: the other name may be there.
#[derive(Default)]
pub struct Links(BTreeMap<u64, Linked>);

/// A directory that is being filled.
struct Level {
    dir: Dir,
    is_new: bool,
    /// The thread that makes the files in it, once there are some.
    thread: Option<ThreadIndex>,
}

/// Facts about the two volumes that a copy needs.
#[derive(Clone)]
struct Origin {
    volume: Volume,
    /// Whether source and destination are the same volume.
    same: bool,
    /// What the new volume can hold, for an exact copy.
    keeps: Option<Keeps>,
}

/// A copy that gets several names.
struct Linked {
    ino: u64,
    /// The most names that are still to come.
    names: u32,
    /// Metadata to set again when it has all names, as each new name changes it.
    of: Option<Box<Attributes>>,
}

impl<'a, 'b> FromImage<'a, 'b> {
    /// Copies with a filler; failures are reported.
    pub fn new(
        filler: &'a mut Filler<'b>,
        problems: &'a mut Problems,
        links: &'a mut Links,
        volume: &Volume,
        source: &'a Location,
        same: bool,
    ) -> Self {
        let origin = Origin { volume: volume.clone(), same, keeps: None };
        Self { filler, problems, origin, source, links }
    }

    /// Copies a node, a directory with all that is in it.
    pub fn copy(&mut self, node: Node, target: Target) -> Result<()> {
        let to = target.dir.node().volume().clone();
        if self.filler.rules().exact {
            let info = to.info().map_err(|error| Trouble::from(error).failure(self.place(&target.path)))?;
            self.origin.keeps = Some(Keeps::of(&info));
        }
        let threads = if self.origin.same { 1 } else { self.filler.rules().threads };
        std::thread::scope(|scope| {
            let mut threads = Threads::new(scope, self.filler, threads);
            let done = self.tree(node, target, &mut threads);
            threads.finish(done, |line| self.problems.say(line))
        })?;
        self.settle(&to).map_err(|trouble| trouble.failure(host_name(&self.source.image)))
    }

    fn tree(&mut self, node: Node, target: Target, threads: &mut Threads<'_, 'b>) -> Result<()> {
        let is_dir = node.file_type().is_dir();
        let volume = self.origin.volume.clone();
        let mut walk = Walk::new(&volume, node, &self.source.path, EntryOrder::Sorted).with_inodes();
        let Target { dir, path, name } = target;
        self.filler.start(&path);
        let goal = dir.node().ino();
        let mut dirs = vec![Level { dir, is_new: false, thread: None }];
        while let Some(step) = walk.next() {
            interrupt::check()?;
            tell(threads.failed(), |line| self.problems.say(line))?;
            let name = if walk.depth() == 0 { name.as_deref() } else { Some(walk.name()) };
            let Some(to) = dirs.last_mut() else { break };
            let outcome = match step {
                Step::Enter(node) if self.origin.same && node.ino() == goal && is_dir => {
                    walk.skip();
                    Err(Trouble::new(Exit::Usage, "a directory cannot be copied into itself"))
                }
                Step::Enter(node) => match self.enter(&to.dir, name, &node) {
                    Ok(dir) => {
                        dirs.push(Level { is_new: self.filler.is_new(&dir), dir, thread: None });
                        Ok(())
                    }
                    Err(trouble) => {
                        walk.skip();
                        Err(trouble)
                    }
                },
                Step::Leave(node) => {
                    let left = dirs.pop();
                    if dirs.len() > 1 || name.is_some() {
                        self.filler.leave();
                    }
                    left.map_or(Ok(()), |level| self.finish(level, &node, threads, walk.path()))
                }
                Step::Leaf(leaf) => match (leaf.node(&volume), name) {
                    (Ok(node), Some(name)) => {
                        self.filler.at(walk.path());
                        self.leaf(to, name, node, threads, walk.path())
                    }
                    (Ok(_), None) => Err(Trouble::new(Exit::NotFound, "has no name to copy it under")),
                    (Err(error), _) => Err(error.into()),
                },
                Step::Failed(error) => Err(error.into()),
                Step::Damaged(what) => Err(Trouble::new(Exit::Damaged, what)),
            };
            let Err(trouble) = outcome else { continue };
            if trouble.ends() || (walk.depth() == 0 && !is_dir) {
                return Err(self.failure(walk.path(), trouble));
            }
            self.problems.at(&self.source.image, walk.path(), trouble);
        }
        Ok(())
    }

    /// Sets the metadata of a directory, after everything in it was made.
    fn finish(
        &self,
        level: Level,
        node: &Node,
        threads: &mut Threads<'_, 'b>,
        path: &[u8],
    ) -> StepResult<()> {
        let of = self.attributes(node)?;
        let Some(thread) = level.thread else { return self.filler.finish(level.dir.node(), &of) };
        let finish: Make<'b> = Box::new(move |filler| filler.finish(level.dir.node(), &of));
        threads.give(thread, 0, self.shown(path), finish);
        Ok(())
    }

    /// The message form of a path of the source.
    fn shown(&self, path: &[u8]) -> String {
        format!("{}: {}", host_name(&self.source.image), short(path))
    }

    fn failure(&self, path: &[u8], trouble: Trouble) -> Failure {
        trouble.failure(self.place(path))
    }

    fn place(&self, path: &[u8]) -> String {
        format!("{}: {}", host_name(&self.source.image), uxfs::printable(path))
    }

    /// Sets again the metadata of copies that have names outside the copied tree.
    fn settle(&mut self, to: &Volume) -> StepResult<()> {
        for linked in self.links.0.values_mut() {
            if let Some(of) = linked.of.take() {
                self.filler.settle(&to.node(linked.ino)?, &of)?;
            }
        }
        Ok(())
    }

    /// The metadata for the copy of a node.
    fn attributes(&self, node: &Node) -> StepResult<Attributes> {
        attributes(node, self.origin.keeps)
    }

    fn enter(&mut self, to: &Dir, name: Option<&[u8]>, node: &Node) -> StepResult<Dir> {
        match name {
            Some(name) => self.filler.enter(to, name, &self.attributes(node)?),
            None => Ok(to.clone()),
        }
    }

    /// Copies anything but a directory: by another thread, if there are `threads`.
    fn leaf(
        &mut self,
        to: &mut Level,
        name: &[u8],
        node: Node,
        threads: &mut Threads<'_, 'b>,
        path: &[u8],
    ) -> StepResult<()> {
        if !to.is_new {
            self.origin.check_link(&to.dir, name, &node, path)?;
        }
        let metadata = node.metadata()?;
        let several = self.filler.rules().keep_links && metadata.nlink > 1;
        if several {
            return self.one_of_several(&to.dir, name, &node, &metadata);
        }
        if threads.is_empty() || !to.is_new {
            let of = self.attributes(&node)?;
            self.origin.leaf(self.filler, &to.dir, name, &node, &metadata, of)?;
            return Ok(());
        }
        let thread = *to.thread.get_or_insert_with(|| threads.least_busy());
        let origin = self.origin.clone();
        let (dir, name, bytes) = (to.dir.clone(), name.to_vec(), metadata.size.min(1 << 20) as usize);
        let make: Make<'b> = Box::new(move |filler| {
            let of = attributes(&node, origin.keeps)?;
            origin.leaf(filler, &dir, &name, &node, &metadata, of).map(drop)
        });
        threads.give(thread, bytes, self.shown(path), make);
        Ok(())
    }

    /// Copies a file with several names, or gives its copy another one.
    fn one_of_several(&mut self, to: &Dir, name: &[u8], node: &Node, metadata: &Metadata) -> StepResult<()> {
        if let Some(copy) = self.links.0.get_mut(&node.ino()) {
            self.origin.check_same(self.filler, to, name, node)?;
            let made = to.node().volume().node(copy.ino)?;
            self.filler.link(to, name, &made)?;
            copy.names = copy.names.saturating_sub(1);
            return match copy.of.take_if(|_| copy.names == 0) {
                Some(of) => self.filler.settle(&made, &of),
                None => Ok(()),
            };
        }
        let mut of = self.attributes(node)?;
        // A protected file gets no other names.
        let whole = of.inode.is_some().then(|| Box::new(of.clone()));
        of.inode = of.inode.map(Exact::unprotected);
        let made = self.origin.leaf(self.filler, to, name, node, metadata, of)?;
        if let Some(made) = made {
            let names = metadata.nlink - 1;
            self.links.0.insert(node.ino(), Linked { ino: made.ino(), names, of: whole });
        }
        Ok(())
    }
}

/// The metadata for the copy of a node, as far as the new volume can hold it.
fn attributes(node: &Node, keeps: Option<Keeps>) -> StepResult<Attributes> {
    let of = attributes_of(node)?;
    let Some(keeps) = keeps else { return Ok(of) };
    Ok(Attributes { inode: Some(Exact::of(&node.metadata()?, keeps)?), ..of })
}

impl Origin {
    /// Refuses to put a file in its own place.
    fn check_same(&self, filler: &Filler<'_>, to: &Dir, name: &[u8], node: &Node) -> StepResult<()> {
        if self.same && filler.leads_to(to, name, node)? {
            return Err(Trouble::new(Exit::Usage, "this is the same file"));
        }
        Ok(())
    }

    /// Refuses to put a link, which is at `path`, in the place of the file that it leads to.
    fn check_link(&self, to: &Dir, name: &[u8], link: &Node, path: &[u8]) -> StepResult<()> {
        if !self.same || !link.file_type().is_symlink() {
            return Ok(());
        }
        let Some(there) = to.lookup(name)? else { return Ok(()) };
        let leads_there = || self.volume.lookup(path).is_ok_and(|file| file.ino() == there.ino());
        if !there.file_type().is_symlink() && leads_there() {
            return Err(Trouble::new(Exit::Usage, "this link leads to the file that it would replace"));
        }
        Ok(())
    }

    /// Copies anything but a directory; `None` if it is skipped.
    fn leaf(
        &self,
        filler: &mut Filler<'_>,
        to: &Dir,
        name: &[u8],
        node: &Node,
        metadata: &Metadata,
        of: Attributes,
    ) -> StepResult<Option<Node>> {
        self.check_same(filler, to, name, node)?;
        if metadata.is_file() {
            return self.file(filler, to, name, node, metadata, &of).map(Some);
        }
        if metadata.is_symlink() {
            return filler.leaf(to, name, &of, &Leaf::Symlink(&node.read_link()?));
        }
        match special_of(metadata) {
            Some(special) => filler.leaf(to, name, &of, &Leaf::Special(special)),
            None => Err(Trouble::new(
                Exit::Damaged,
                format!("damaged: a {} where none can be", metadata.file_type),
            )),
        }
    }

    fn file(
        &self,
        filler: &mut Filler<'_>,
        to: &Dir,
        name: &[u8],
        node: &Node,
        metadata: &Metadata,
        of: &Attributes,
    ) -> StepResult<Node> {
        let from = node.open()?;
        let sets_aside = of.inode.is_some();
        let data = metadata.size.min(metadata.blocks.saturating_mul(512));
        let reflink = if self.same { filler.rules().reflink } else { Reflink::Never };
        if reflink == Reflink::Never {
            filler.expect(data);
        } else if reflink == Reflink::Always {
            check_shares(&self.volume)?;
        }
        filler.file(to, name, of, |filler, file| {
            if reflink == Reflink::Never || !share(filler, &from, file, data, reflink)? {
                content(filler, &from, file)?;
            }
            if sets_aside { exact::allocate(&from, file) } else { Ok(()) }
        })
    }
}

/// Refuses to share blocks if that is impossible, before anything has changed.
fn check_shares(volume: &Volume) -> StepResult<()> {
    if volume.info()?.features.iter().any(|name| name == "reflink") {
        return Ok(());
    }
    Err(Trouble::new(
        Exit::Unsupported,
        "--reflink=always: files of a volume without reflink cannot share blocks",
    ))
}

/// Clones a file into an empty one. `false`: not possible, and nothing has changed.
fn share(filler: &mut Filler<'_>, from: &File, to: &File, data: u64, how: Reflink) -> StepResult<bool> {
    let done = if from.size() == 0 { Ok(()) } else { from.clone_range(0, to, 0, 0) };
    match done {
        // The last of it may be a hole.
        Ok(()) => {
            end_at(to, from.size())?;
            filler.share(data).map(|()| true)
        }
        Err(error) if how == Reflink::Auto && may_be_copied(error.kind()) => {
            to.set_len(0)?;
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether a file that cannot be shared for this reason may be copied instead.
fn may_be_copied(why: ErrorKind) -> bool {
    matches!(why, ErrorKind::Unsupported | ErrorKind::InvalidInput | ErrorKind::NoSpace | ErrorKind::TooLarge)
}

/// Copies data; holes stay holes.
fn content(filler: &mut Filler<'_>, from: &File, to: &File) -> StepResult<()> {
    let mut at = 0;
    while let Some(start) = from.seek_data(at)? {
        let end = from.seek_hole(start)?.unwrap_or(start);
        if end <= start {
            break;
        }
        filler.copy_run(to, start, end, |buf, at| Ok(from.read_at(buf, at)?))?;
        at = end;
    }
    end_at(to, from.size())
}
