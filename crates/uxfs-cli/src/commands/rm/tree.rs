//! Removes a tree, with several threads if it is large.
//!
//! Invariants:
//! - the way down is a list, not recursion; a directory is read in parts, so a large one takes no more memory than a
//!   small one; a directory that a damaged volume names twice is entered once;
//! - a thread goes down by itself, and leaves a directory to another thread only if that has nothing to do: so memory
//!   is needed only for a list per thread, and the directories above;
//! - a directory is removed by the thread that removed its last entry, so no thread waits for a part of a tree.

use super::say;
use crate::edit;
use crate::exit::{Failure, Result};
use crate::interrupt;
use crate::location::Location;
use crate::problems::Problems;
use crate::walk::InodeSet;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Scope};
use uxfs::{Dir, DirEntry, ErrorKind, Node, Volume};

/// Entries of a directory to read at once.
const BATCH: usize = 1024;

/// A directory with many names of one hash is given up when this many stay: each of the others would be compared with
/// them.
const CROWD_STAYS_MAX: usize = 2048;

/// Entries that are removed before other threads are started.
const ALONE: usize = 256;

/// What is to be removed.
pub(super) struct Root<'a> {
    pub(super) volume: &'a Volume,
    pub(super) location: &'a Location,
    /// The directory that it is in, and its name there.
    pub(super) dir: Dir,
    pub(super) name: &'a [u8],
    pub(super) node: &'a Node,
}

/// Removes a directory recursively, with this many threads.
pub(super) fn remove(root: Root<'_>, problems: &mut Problems, verbose: bool, threads: usize) -> Result<()> {
    let dir = root.node.as_dir().map_err(|error| edit::failure(root.location, &error))?;
    let mut path = root.location.path.clone();
    while path.last() == Some(&b'/') {
        path.pop();
    }
    let mut seen = InodeSet::default();
    seen.insert(root.node.ino());
    let removal = Removal {
        volume: root.volume,
        location: root.location,
        path,
        verbose,
        helpers: AtomicUsize::new(threads - 1),
        removed: AtomicUsize::new(0),
        idle: AtomicUsize::new(0),
        is_over: AtomicBool::new(false),
        problems: Mutex::new(problems),
        seen: Mutex::new(seen),
        left: Mutex::default(),
        changed: Condvar::new(),
    };
    let first = Emptied::new(None, root.dir, root.name.to_vec(), dir);
    thread::scope(|scope| {
        let _ends = Ends(&removal);
        removal.down(scope, Arc::new(first));
        removal.help(scope);
    });
    let failure = removal.left.into_inner().failure;
    failure.map_or(Ok(()), Err)
}

/// The removal of one tree, shared by its threads.
struct Removal<'a> {
    volume: &'a Volume,
    location: &'a Location,
    /// The number of the tree's inode.
    path: Vec<u8>,
    verbose: bool,
    /// Threads that may still be started.
    helpers: AtomicUsize,
    /// Entries that were removed before the threads were started.
    removed: AtomicUsize,
    /// Threads that have nothing to do.
    idle: AtomicUsize,
    /// The tree is gone, or the removal has stopped.
    is_over: AtomicBool,
    problems: Mutex<&'a mut Problems>,
    seen: Mutex<InodeSet>,
    left: Mutex<Left>,
    /// There is work for a waiting thread, or all is done.
    changed: Condvar,
}

/// Work for other threads.
#[derive(Default)]
struct Left {
    dirs: Vec<Arc<Emptied>>,
    /// The failure that ended it.
    failure: Option<Failure>,
}

/// A directory of the tree.
struct Emptied {
    /// Its parent, unless it is the tree itself.
    above: Option<Arc<Self>>,
    parent: Dir,
    name: Vec<u8>,
    dir: Dir,
    inner: Mutex<Inner>,
}

/// The state of a directory's subdirectories.
#[derive(Default)]
struct Inner {
    /// How many are being removed.
    open: usize,
    /// The results of the others since the last question.
    done: Vec<Done>,
    /// The listing, while it waits for open subdirectories.
    parked: Option<Listing>,
}

/// The result for a directory.
enum Done {
    Removed,
    /// It stays, and that was reported.
    Stays(u64),
}

/// The progress in a directory.
#[derive(Default)]
struct Listing {
    batch: std::vec::IntoIter<DirEntry>,
    /// Where to continue after the batch.
    place: u64,
    /// Whether something was removed since the directory was last read from its start.
    progress: bool,
    /// Whether something stays in it, and that was reported.
    stays: bool,
    /// What stays, so that it is reported once even if the directory is read again.
    said: InodeSet,
    /// Whether many names have one hash, if known: then removal follows the order of the index.
    crowded: Option<bool>,
    /// Entries that stay.
    staying: usize,
    /// No more of it is read.
    is_read: bool,
}

impl Listing {
    /// Whether so many entries stay that each attempt takes long.
    fn gives_up(&self) -> bool {
        self.crowded == Some(true) && self.staying > CROWD_STAYS_MAX
    }

    /// Whether names of one hash make their order matter.
    fn is_crowded(&mut self, dir: &Dir) -> uxfs::Result<bool> {
        match self.crowded {
            Some(crowded) => Ok(crowded),
            None => {
                // If it failed once, it would fail again.
                self.crowded = Some(false);
                let crowded = dir.has_collisions()?;
                self.crowded = Some(crowded);
                Ok(crowded)
            }
        }
    }

    /// Reads the next batch; gives whether there is one. Nothing is read again while other threads are in
    /// subdirectories (`is_shared`).
    fn refill(&mut self, dir: &Dir, is_shared: bool) -> uxfs::Result<bool> {
        if self.is_crowded(dir)? {
            if self.gives_up() || is_shared {
                return Ok(false);
            }
            let batch = dir.first_of_index(self.staying, BATCH)?;
            if !batch.is_empty() {
                self.batch = batch.into_iter();
                return Ok(true);
            }
            // A directory without an index is small.
            self.crowded = Some(false);
        }
        loop {
            let entries = dir.entries_from(self.place).take(BATCH);
            let batch = entries.collect::<uxfs::Result<Vec<DirEntry>>>()?;
            if let Some(last) = batch.last() {
                self.place = last.next;
                self.batch = batch.into_iter();
                return Ok(true);
            }
            // A directory that became small may have moved its remaining entries to the front.
            if self.place == 0 || !self.progress || is_shared {
                return Ok(false);
            }
            self.place = 0;
            self.progress = false;
        }
    }

    /// Records that something stays; gives whether that is new.
    fn stays(&mut self, ino: Option<u64>) -> bool {
        self.stays = true;
        self.staying += 1;
        ino.is_none_or(|ino| self.said.insert(ino))
    }

    fn hear(&mut self, done: Done) {
        match done {
            Done::Removed => self.progress = true,
            Done::Stays(ino) => {
                self.stays(Some(ino));
            }
        }
    }
}

/// The next step in a directory.
enum Step {
    On,
    /// A directory in it.
    Down(Arc<Emptied>),
    /// No entry is left.
    Up,
}

/// Whether the end of a directory's listing is its end.
enum Parked {
    /// Subdirectories are being removed; the last of them takes the listing.
    Yes,
    /// None is, but there are new results.
    Heard(Listing),
    No(Listing),
}

impl Emptied {
    fn new(above: Option<Arc<Self>>, parent: Dir, name: Vec<u8>, dir: Dir) -> Self {
        Self { above, parent, name, dir, inner: Mutex::default() }
    }

    /// Takes the results of subdirectories; gives whether others are being removed.
    fn hear(&self, listing: &mut Listing) -> bool {
        let mut inner = self.inner.lock();
        inner.done.drain(..).for_each(|done| listing.hear(done));
        inner.open > 0
    }

    /// Leaves the listing to the thread that removes the last subdirectory, if there are any.
    fn park(&self, mut listing: Listing) -> Parked {
        let mut inner = self.inner.lock();
        if inner.open > 0 {
            inner.parked = Some(listing);
            return Parked::Yes;
        }
        if inner.done.is_empty() {
            return Parked::No(listing);
        }
        inner.done.drain(..).for_each(|done| listing.hear(done));
        Parked::Heard(listing)
    }

    /// A subdirectory is done. Gives the listing, if that was the last one and a thread has left
    /// it.
    fn is_done(&self, done: Done) -> Option<Listing> {
        let mut inner = self.inner.lock();
        inner.open -= 1;
        inner.done.push(done);
        if inner.open == 0 { inner.parked.take() } else { None }
    }
}

/// The chain of parents may be long: drop it without recursion.
impl Drop for Emptied {
    fn drop(&mut self) {
        let mut above = self.above.take();
        while let Some(mut last) = above.and_then(Arc::into_inner) {
            above = last.above.take();
        }
    }
}

/// Ends all threads when the first one ends, even by a panic.
struct Ends<'r, 'a>(&'r Removal<'a>);

impl Drop for Ends<'_, '_> {
    fn drop(&mut self) {
        self.0.end(None);
    }
}

impl Removal<'_> {
    /// No more is removed.
    fn end(&self, failure: Option<Failure>) {
        let mut left = self.left.lock();
        self.is_over.store(true, Ordering::Relaxed);
        let dirs = std::mem::take(&mut left.dirs);
        left.failure = left.failure.take().or(failure);
        drop(left);
        self.changed.notify_all();
        drop(dirs);
    }

    /// Removes what others leave, until all is done.
    fn help<'s>(&'s self, scope: &'s Scope<'s, '_>) {
        let _ends = Ends(self);
        while let Some(dir) = self.take() {
            self.down(scope, dir);
        }
    }

    /// Waits for work; `None` if all is done.
    fn take(&self) -> Option<Arc<Emptied>> {
        let mut left = self.left.lock();
        self.idle.fetch_add(1, Ordering::Relaxed);
        while left.dirs.is_empty() && !self.is_over.load(Ordering::Relaxed) {
            self.changed.wait(&mut left);
        }
        self.idle.fetch_sub(1, Ordering::Relaxed);
        left.dirs.pop()
    }

    /// Leaves a directory to an idle thread; gives it back if there is none.
    fn offer(&self, dir: Arc<Emptied>) -> Option<Arc<Emptied>> {
        if self.idle.load(Ordering::Relaxed) == 0 {
            return Some(dir);
        }
        let mut left = self.left.lock();
        if self.idle.load(Ordering::Relaxed) <= left.dirs.len() {
            return Some(dir);
        }
        left.dirs.push(dir);
        drop(left);
        self.changed.notify_one();
        None
    }

    /// Removes a directory, and those above it that no other thread is in.
    fn down<'s>(&'s self, scope: &'s Scope<'s, '_>, dir: Arc<Emptied>) {
        let mut way = vec![(dir, Listing::default())];
        while let Some((dir, listing)) = way.last_mut()
            && !self.is_over.load(Ordering::Relaxed)
        {
            let step = interrupt::check().and_then(|()| self.step(scope, dir, listing));
            let done = step.and_then(|step| {
                match step {
                    Step::On => {}
                    Step::Down(inner) => way.push((inner, Listing::default())),
                    Step::Up => {
                        let left = way.pop().map(|(dir, listing)| self.up(dir, listing));
                        way.extend(left.transpose()?.flatten());
                    }
                }
                Ok(())
            });
            if let Err(failure) = done {
                self.end(Some(failure));
            }
        }
        // The innermost first: otherwise the last owner of the chain would drop it recursively.
        while way.pop().is_some() {}
    }

    /// Continues after the end of a directory's listing: with the results of subdirectories, or with the parent if that
    /// is left to this thread.
    fn up(&self, dir: Arc<Emptied>, listing: Listing) -> Result<Option<(Arc<Emptied>, Listing)>> {
        let listing = match dir.park(listing) {
            Parked::Yes => return Ok(None),
            Parked::Heard(listing) => return Ok(Some((dir, listing))),
            Parked::No(listing) => listing,
        };
        let done = self.leave(&dir, &listing)?;
        let Some(above) = &dir.above else {
            self.end(None);
            return Ok(None);
        };
        Ok(above.is_done(done).map(|listing| (Arc::clone(above), listing)))
    }

    /// Takes the next step in a directory.
    fn step<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        dir: &Arc<Emptied>,
        listing: &mut Listing,
    ) -> Result<Step> {
        let Some(entry) = listing.batch.next() else { return self.read_on(dir, listing) };
        match self.entry(dir, listing, &entry) {
            Ok(None) => self.has_removed(scope),
            Ok(Some(inner)) => {
                dir.inner.lock().open += 1;
                return Ok(self.offer(inner).map_or(Step::On, Step::Down));
            }
            Err(error) if listing.stays(Some(entry.ino)) => self.said(dir, Some(&entry.name), &error)?,
            Err(_) => {}
        }
        Ok(Step::On)
    }

    /// Reads more of a directory, if there is more.
    fn read_on(&self, dir: &Emptied, listing: &mut Listing) -> Result<Step> {
        let is_shared = dir.hear(listing);
        if listing.is_read {
            return Ok(Step::Up);
        }
        match listing.refill(&dir.dir, is_shared) {
            Ok(true) => return Ok(Step::On),
            Ok(false) if listing.gives_up() => {
                let what = "too many of its names that have one hash stay: the others were not tried";
                self.problem(dir, None, what);
                listing.is_read = true;
            }
            Ok(false) => {}
            Err(error) => {
                listing.stays(None);
                listing.is_read = true;
                self.said(dir, None, &error)?;
            }
        }
        Ok(Step::Up)
    }

    /// Starts other threads when there is enough work.
    fn has_removed<'s>(&'s self, scope: &'s Scope<'s, '_>) {
        if self.helpers.load(Ordering::Relaxed) == 0
            || self.removed.fetch_add(1, Ordering::Relaxed) + 1 < ALONE
        {
            return;
        }
        for _ in 0..self.helpers.swap(0, Ordering::Relaxed) {
            // Without it, this thread does all the work.
            let _ = thread::Builder::new().spawn_scoped(scope, || self.help(scope));
        }
    }

    /// Removes an entry; a directory is returned instead.
    fn entry(
        &self,
        dir: &Arc<Emptied>,
        listing: &mut Listing,
        entry: &DirEntry,
    ) -> uxfs::Result<Option<Arc<Emptied>>> {
        if !entry.file_type.is_dir() {
            dir.dir.remove_file(&entry.name)?;
            listing.progress = true;
            self.say(dir, Some(&entry.name));
            return Ok(None);
        }
        let node = self.volume.node(entry.ino)?;
        if !self.seen.lock().insert(entry.ino) {
            // Unless it could not be emptied at an earlier reading of the directory, which was
            // reported.
            if listing.stays(Some(entry.ino)) {
                let what = format!("damaged: directory inode {} is reached a second time", entry.ino);
                self.problem(dir, Some(&entry.name), what);
            }
            return Ok(None);
        }
        let inner = node.as_dir()?;
        let above = Some(Arc::clone(dir));
        Ok(Some(Arc::new(Emptied::new(above, dir.dir.clone(), entry.name.clone(), inner))))
    }

    /// Removes a directory, which is empty now.
    fn leave(&self, dir: &Emptied, listing: &Listing) -> Result<Done> {
        if !listing.stays {
            match dir.parent.remove_dir(&dir.name) {
                Ok(()) => {
                    self.say(dir, None);
                    return Ok(Done::Removed);
                }
                Err(error) => self.said(dir, None, &error)?,
            }
        }
        Ok(Done::Stays(dir.dir.node().ino()))
    }

    /// The path of a directory, or of an entry in it.
    fn path(&self, dir: &Emptied, entry: Option<&[u8]>) -> Vec<u8> {
        let mut names: Vec<&[u8]> = entry.into_iter().collect();
        let mut at = dir;
        while let Some(above) = &at.above {
            names.push(&at.name);
            at = above;
        }
        let mut path = self.path.clone();
        for name in names.into_iter().rev() {
            path.push(b'/');
            path.extend(name);
        }
        path
    }

    fn say(&self, dir: &Emptied, entry: Option<&[u8]>) {
        if self.verbose {
            say(true, &self.path(dir, entry));
        }
    }

    fn problem(&self, dir: &Emptied, entry: Option<&[u8]>, what: impl std::fmt::Display) {
        let path = self.path(dir, entry);
        self.problems.lock().at(&self.location.image, &path, what);
    }

    /// Reports what could not be removed. If the volume takes no more changes, that ends the
    /// removal.
    fn said(&self, dir: &Emptied, entry: Option<&[u8]>, error: &uxfs::Error) -> Result<()> {
        if matches!(
            error.kind(),
            ErrorKind::ShutDown
                | ErrorKind::ShutDownByDamage
                | ErrorKind::ReadOnly
                | ErrorKind::ReadOnlyDevice
        ) {
            return Err(Failure::of_image(&self.location.image, error));
        }
        self.problem(dir, entry, error);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use uxfs::{Changes, MkfsOptions, NewNode, OpenOptions};

    /// Makes a tree of some hundred directories, one of them a thousand levels deep. Some have a file that stays.
    /// Gives the paths of everything that stays.
    fn make(volume: &Volume, seed: u64) -> BTreeSet<String> {
        let new = NewNode::default();
        let mut stays = BTreeSet::new();
        let keep = |dir: &Dir, name: &str| {
            let node = dir.create_file(name.as_bytes(), &new).unwrap();
            node.change(&Changes { immutable: Some(true), ..Changes::default() }).unwrap();
        };
        let top = volume.open_dir("/").unwrap().create_dir(b"tree", &new).unwrap().as_dir().unwrap();
        let mut state = seed;
        let mut dirs = vec![(top.clone(), "/tree".to_owned())];
        for nth in 0..400_u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (above, path) = dirs[(state >> 33) as usize % dirs.len()].clone();
            let name = format!("d{nth}");
            let dir = above.create_dir(name.as_bytes(), &new).unwrap().as_dir().unwrap();
            let path = format!("{path}/{name}");
            for file in 0..state >> 60 {
                dir.create_file(format!("f{file}").as_bytes(), &new).unwrap();
            }
            if state >> 40 & 31 == 0 {
                keep(&dir, "fixed");
                stays.insert(format!("{path}/fixed"));
            }
            dirs.push((dir, path));
        }
        let mut dir = top;
        for _ in 0..1000 {
            dir = dir.create_dir(b"down", &new).unwrap().as_dir().unwrap();
        }
        // The directories above them stay, too.
        for file in stays.clone() {
            let above = file.match_indices('/').skip(1).map(|(end, _)| file[..end].to_owned());
            stays.extend(above);
        }
        stays
    }

    fn all(dir: &Dir, path: &str, found: &mut BTreeSet<String>) {
        for entry in dir.entries() {
            let entry = entry.unwrap();
            let path = format!("{path}/{}", String::from_utf8(entry.name).unwrap());
            if entry.file_type.is_dir() {
                all(&dir.node().volume().node(entry.ino).unwrap().as_dir().unwrap(), &path, found);
            }
            found.insert(path);
        }
    }

    /// With any number of threads, everything that can be removed is gone, and everything that
    /// stays is reported once.
    #[test]
    fn a_tree_goes_but_for_what_stays() {
        for threads in [1, 2, 5] {
            for seed in 0..3 {
                let scratch = tempfile::tempdir().unwrap();
                let image = scratch.path().join("image");
                uxfs::mkfs(&image, &MkfsOptions::new().size(64 << 20).small(true)).unwrap();
                let volume = Volume::open(&image, &OpenOptions::new().writable(true)).unwrap();
                let stays = make(&volume, seed);
                let location = Location::parse(format!("{}:/tree", image.display()).as_ref());
                let dir = volume.open_dir("/").unwrap();
                let node = dir.lookup(b"tree").unwrap().unwrap();
                let root = Root { volume: &volume, location: &location, dir, name: b"tree", node: &node };
                let bar = indicatif::ProgressBar::hidden();
                let mut problems = Problems::beside(&bar);
                remove(root, &mut problems, false, threads).unwrap();
                let mut found = BTreeSet::new();
                all(&volume.open_dir("/").unwrap(), "", &mut found);
                assert_eq!(found, stays, "{threads} threads, seed {seed}");
                let fixed = stays.iter().filter(|path| path.ends_with("fixed")).count() as u64;
                assert_eq!(problems.count(), fixed, "{threads} threads, seed {seed}");
                volume.close().unwrap();
            }
        }
    }
}
