//! Removes everything, with as many threads as made it. None of that may run out of space, except a truncation within a
//! shared block.

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use uxfs::{Dir, ErrorKind, Extent, File, Volume};

/// The directory where all threads have names.
pub const SHARED: &[u8] = b"shared";

/// The folder of a thread.
pub fn folder(thread: usize) -> Vec<u8> {
    format!("t{thread}").into_bytes()
}

/// The prefix of a thread's names in the shared directory.
pub fn prefix(thread: usize) -> Vec<u8> {
    format!("t{thread}-").into_bytes()
}

/// Removes what [`super::fill`] made.
pub fn all(volume: &Volume, threads: usize, seed: u64) -> Result<()> {
    let root = volume.root()?.as_dir()?;
    std::thread::scope(|scope| {
        let clear = |thread| scope.spawn(move || one(volume, thread, seed));
        let handles: Vec<_> = (0..threads).map(clear).collect();
        let join = |handle: std::thread::ScopedJoinHandle<'_, Result<()>>| {
            handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        handles.into_iter().map(join).collect::<Vec<_>>().into_iter().collect::<Result<()>>()
    })?;
    root.remove_dir(SHARED)?;
    let left = names(&root)?.len();
    ensure!(left == 0, "{left} entries are left in the root directory");
    Ok(())
}

fn one(volume: &Volume, thread: usize, seed: u64) -> Result<()> {
    let mut rng = Rng::with_seed(seed ^ (thread as u64) << 32);
    let root = volume.root()?.as_dir()?;
    let own = volume.open_dir(folder(thread))?;
    tree(&own, &mut rng)?;
    root.remove_dir(&folder(thread))?;
    let shared = volume.open_dir(SHARED)?;
    let mine = names(&shared)?.into_iter().filter(|name| name.starts_with(&prefix(thread)));
    for name in mine {
        shared.remove_file(&name).context("a name in the shared directory")?;
    }
    Ok(())
}

/// Removes what is in a directory, in random order.
fn tree(dir: &Dir, rng: &mut Rng) -> Result<()> {
    let mut names = names(dir)?;
    rng.shuffle(&mut names);
    for name in names {
        let node = dir.lookup(&name)?.context("a name that was listed")?;
        if node.file_type().is_dir() {
            tree(&node.as_dir()?, rng)?;
            dir.remove_dir(&name).context("removing a directory")?;
            continue;
        }
        // Some go piece by piece.
        if rng.u32(..8) == 0 {
            for attribute in node.xattr_names()? {
                node.remove_xattr(&attribute).context("removing an attribute")?;
            }
        }
        if node.file_type().is_file() && rng.u32(..8) == 0 {
            cut(&node.open()?, node.metadata()?.block_size.into()).context("cutting a file")?;
        }
        dir.remove_file(&name).context("removing a file")?;
    }
    Ok(())
}

/// Cuts a file to a third. If that is within a shared block, the rest of the block is zeroed in a copy. There may be no
/// space for it, as with a kernel: then the file is unchanged.
fn cut(file: &File, block: u64) -> Result<()> {
    let (before, size) = (file.size(), file.size() / 3);
    let has_end = |extent: &Extent| (extent.logical..extent.logical + extent.length).contains(&size);
    let extents = file.extents().collect::<uxfs::Result<Vec<_>>>()?;
    let is_shared = extents.iter().any(|extent| extent.shared && !extent.unwritten && has_end(extent));
    let may_be_refused = is_shared && !size.is_multiple_of(block);
    match file.set_len(size) {
        Err(error) if may_be_refused && error.kind() == ErrorKind::NoSpace => {
            ensure!(file.size() == before, "refused, and {} bytes of {before} are left", file.size());
            Ok(())
        }
        cut => Ok(cut?),
    }
}

fn names(dir: &Dir) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in dir.entries() {
        let entry = entry?;
        if !entry.is_dot() {
            names.push(entry.name);
        }
    }
    Ok(names)
}
