//! Files that are opened, read, written, changed and linked by some threads while others remove them, and whose inode
//! numbers are given to new ones at once: by nodes that were looked up before, which may be of files that are gone.
//!
//! Invariant: every file has a mark of its own, which fills all its content and is its attribute. Whatever is read by a
//! node has the mark of the file that the node was made for; what a file holds that is still there in the end, too. So a
//! write that lands in another file is seen by that one's readers, and at the end.

use anyhow::{Context, Result, bail, ensure};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use uxfs::{Changes, Dir, ErrorKind, File, NewNode, Node, SetXattr, Volume};

const FOLDER: &[u8] = b"going";
const PAGE: usize = 4096;
/// Pages of a file, with holes between: freeing them takes several transactions.
const PAGES: u64 = 12;
/// Names that all share.
const NAMES: u64 = 6;
/// Nodes that are kept, most of which are of files that are gone.
const KEPT: usize = 24;
const MARK: &[u8] = b"user.mark";
const THREADS: u64 = 4;

/// A file as somebody knows it.
#[derive(Clone)]
struct KnownFile {
    node: Node,
    mark: u64,
}

struct Site {
    dir: Dir,
    known: Mutex<VecDeque<KnownFile>>,
    marks: AtomicU64,
}

/// Has threads do `ops` such things in a folder of their own, which is gone afterwards.
pub fn run(volume: &Volume, seed: u64, ops: u64) -> Result<()> {
    let root = volume.open_dir("/")?;
    let dir = root.create_dir(FOLDER, &NewNode::default())?.as_dir()?;
    let site = Site { dir, known: Mutex::default(), marks: AtomicU64::new(1) };
    std::thread::scope(|scope| {
        let work = |thread| {
            let site = &site;
            scope.spawn(move || site.work(fastrand::Rng::with_seed(seed ^ thread << 32), ops / THREADS))
        };
        let handles: Vec<_> = (0..THREADS).map(work).collect();
        let join = |handle: std::thread::ScopedJoinHandle<'_, Result<()>>| {
            handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        handles.into_iter().map(join).collect::<Vec<_>>().into_iter().collect::<Result<()>>()
    })?;
    site.ends(&root).context("what is left of what was going")
}

impl Site {
    fn work(&self, mut rng: fastrand::Rng, ops: u64) -> Result<()> {
        for _ in 0..ops {
            let name = name(rng.u64(..NAMES));
            match rng.u8(..8) {
                0..=2 => self.replace(&name)?,
                3 => expected(self.dir.remove_file(&name), &[ErrorKind::NotFound])?,
                _ => {
                    let known = self.known.lock().expect("no panic");
                    let Some(one) = known.get(rng.usize(..known.len().max(1))).cloned() else { continue };
                    drop(known);
                    self.visit(&one, &name, &mut rng)
                        .with_context(|| format!("by a node with mark {}", one.mark))?;
                }
            }
        }
        Ok(())
    }

    /// Makes a file in the place of what has the name.
    fn replace(&self, name: &[u8]) -> Result<()> {
        expected(self.dir.remove_file(name), &[ErrorKind::NotFound])?;
        let mark = self.marks.fetch_add(1, Ordering::Relaxed);
        // Filled before anybody else knows of it.
        let file = self.dir.create_unnamed(&NewNode::default())?;
        for page in 0..PAGES {
            file.write_at(&filled(mark), offset(page))?;
        }
        file.node().set_xattr(MARK, &mark.to_le_bytes(), SetXattr::Create)?;
        expected(self.dir.link(name, file.node()), &[ErrorKind::AlreadyExists])?;
        let mut known = self.known.lock().expect("no panic");
        known.push_back(KnownFile { node: file.node().clone(), mark });
        if known.len() > KEPT {
            known.pop_front();
        }
        Ok(())
    }

    /// Does something to a file that may be gone, or going.
    fn visit(&self, one: &KnownFile, name: &[u8], rng: &mut fastrand::Rng) -> Result<()> {
        let KnownFile { node, mark } = one;
        match rng.u8(..6) {
            0 => expected(self.dir.link(name, node), &[ErrorKind::AlreadyExists, ErrorKind::NotFound]),
            1 => expected(node.change(&Changes { permissions: Some(0o600), ..Changes::default() }), &[]),
            2 => expected(node.set_xattr(MARK, &mark.to_le_bytes(), SetXattr::Either), &[]),
            3 => match node.xattr(MARK) {
                Ok(found) => {
                    ensure!(found == Some(mark.to_le_bytes().to_vec()), "the attribute is {found:?}");
                    Ok(())
                }
                other => expected(other.map(drop), &[]),
            },
            _ => match node.open() {
                Ok(file) => {
                    let page = offset(rng.u64(..PAGES));
                    holds(&file, *mark, page)?;
                    file.overwrite_at(&filled(*mark), page)?;
                    ensure!(file.metadata().ino == node.ino(), "another inode is open");
                    holds(&file, *mark, page)
                }
                other => expected(other.map(drop), &[]),
            },
        }
    }

    /// Looks at all that is left, and removes it.
    fn ends(self, root: &Dir) -> Result<()> {
        for entry in self.dir.entries() {
            let name = entry?.name;
            let node = self.dir.lookup(&name)?.context("an entry without a file")?;
            let value = node.xattr(MARK)?.context("a file without a mark")?;
            let mark = u64::from_le_bytes(value.as_slice().try_into()?);
            let file = node.open()?;
            (0..PAGES).try_for_each(|page| holds(&file, mark, offset(page)))?;
            self.dir.remove_file(&name)?;
        }
        for KnownFile { node, mark } in self.known.into_inner()? {
            ensure!(node.metadata().is_err(), "the file with mark {mark} is there, and has no name");
        }
        Ok(root.remove_dir(FOLDER)?)
    }
}

fn name(nth: u64) -> Vec<u8> {
    format!("file-{nth}").into_bytes()
}

fn offset(page: u64) -> u64 {
    page * 2 * PAGE as u64
}

/// A page of a file with this mark.
fn filled(mark: u64) -> Vec<u8> {
    mark.to_le_bytes().repeat(PAGE / 8)
}

fn holds(file: &File, mark: u64, at: u64) -> Result<()> {
    let mut page = vec![0; PAGE];
    ensure!(file.read_at(&mut page, at)? == PAGE, "the file with mark {mark} is too short");
    match page.chunks(8).find(|word| **word != mark.to_le_bytes()) {
        None => Ok(()),
        Some(word) => bail!("the file with mark {mark} holds {word:02x?}"),
    }
}

/// What was done, or could not be done as the file is gone, or for one of `others`.
fn expected(done: uxfs::Result<()>, others: &[ErrorKind]) -> Result<()> {
    match done {
        Err(error) if error.kind() == ErrorKind::Stale || others.contains(&error.kind()) => Ok(()),
        done => Ok(done?),
    }
}
