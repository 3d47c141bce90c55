//! A tree like that of a kernel's sources: many small files, few large ones, in directories of all depths.

use std::collections::HashSet;
use std::fs::{File, create_dir, read_dir};
use std::io::{Result, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What a tree has.
pub(super) struct Shape {
    pub(super) files: usize,
    pub(super) dirs: usize,
    pub(super) symlinks: usize,
}

/// As many as Linux 6.1 has, or a few more.
pub(super) const LINUX: Shape = Shape { files: 83_000, dirs: 5_600, symlinks: 60 };

/// Half of the files have less.
const MEDIAN_BYTES: f64 = 4096.0;
/// All together have so many for each.
const MEAN_BYTES: f64 = 14.0 * 1024.0;
/// No file has more.
const MOST_BYTES: f64 = 16e6;
/// Directories above a file, at most.
const MOST_DEPTH: usize = 9;

/// Makes the tree `at`, which is not there yet.
pub(super) fn grow(at: &Path, shape: &Shape, seed: u64) -> Result<()> {
    let mut rng = fastrand::Rng::with_seed(seed);
    create_dir(at)?;
    let mut dirs: Vec<(PathBuf, usize)> = vec![(at.to_owned(), 0)];
    for nth in 1..=shape.dirs {
        let (parent, depth) = &dirs[rng.usize(..dirs.len())];
        let (dir, depth) = (parent.join(format!("dir{nth}")), depth + 1);
        create_dir(&dir)?;
        // Deeper ones stay without directories of their own.
        if depth < MOST_DEPTH {
            dirs.push((dir, depth));
        }
    }
    // Words that do not repeat, from anywhere of which a file takes its content.
    let words: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(MOST_BYTES as usize + 4096).collect();
    for nth in 0..shape.files {
        let (dir, _) = &dirs[rng.usize(..dirs.len())];
        let (from, bytes) = (rng.usize(..4096), size(&mut rng));
        File::create(dir.join(format!("file{nth}.c")))?.write_all(&words[from..from + bytes])?;
    }
    for nth in 0..shape.symlinks {
        let (dir, _) = &dirs[rng.usize(..dirs.len())];
        std::os::unix::fs::symlink(format!("file{nth}.c"), dir.join(format!("link{nth}")))?;
    }
    Ok(())
}

/// The size of a file: its logarithm is normally distributed, which two moments define.
fn size(rng: &mut fastrand::Rng) -> usize {
    let sigma = (2.0 * (MEAN_BYTES / MEDIAN_BYTES).ln()).sqrt();
    let normal = (-2.0 * (1.0 - rng.f64()).ln()).sqrt() * (std::f64::consts::TAU * rng.f64()).cos();
    (MEDIAN_BYTES * (sigma * normal).exp()).min(MOST_BYTES) as usize
}

/// What a tree takes, itself included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) inodes: u64,
    /// Names: as many inodes does a copy have that does not know of files with several.
    pub(super) names: u64,
}

pub(super) fn count(tree: &Path) -> Result<Count> {
    let (mut count, mut linked) = (Count { inodes: 1, names: 1 }, HashSet::new());
    let mut dirs = vec![tree.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in read_dir(dir)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            let is_new = metadata.is_dir() || metadata.nlink() == 1 || linked.insert(metadata.ino());
            count.names += 1;
            count.inodes += u64::from(is_new);
            if metadata.is_dir() {
                dirs.push(entry.path());
            }
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_has_what_was_asked_for_and_is_the_same_with_the_same_seed() {
        let dir = tempfile::tempdir().expect("a directory");
        let shape = Shape { files: 300, dirs: 40, symlinks: 3 };
        let listed = |name: &str, seed| {
            let tree = dir.path().join(name);
            grow(&tree, &shape, seed).expect("room");
            let names = 1 + 300 + 40 + 3;
            assert_eq!(count(&tree).expect("there"), Count { inodes: names, names });
            let mut all: Vec<(PathBuf, Vec<u8>)> = Vec::new();
            let mut dirs = vec![tree.clone()];
            while let Some(dir) = dirs.pop() {
                for entry in read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry")) {
                    match entry.file_type().expect("a type") {
                        of if of.is_dir() => dirs.push(entry.path()),
                        of if of.is_file() => {
                            let path = entry.path().strip_prefix(&tree).expect("below").to_owned();
                            all.push((path, std::fs::read(entry.path()).expect("a file")));
                        }
                        _ => {}
                    }
                }
            }
            all.sort();
            all
        };
        let [one, same, other] = [listed("one", 1), listed("same", 1), listed("other", 2)];
        assert!(one == same && one != other);
    }

    #[test]
    fn sizes_have_the_median_and_the_mean_of_a_kernels_sources() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut sizes: Vec<usize> = (0..83_000).map(|_| size(&mut rng)).collect();
        sizes.sort_unstable();
        assert!((3900..4300).contains(&sizes[sizes.len() / 2]), "{}", sizes[sizes.len() / 2]);
        let mean = sizes.iter().sum::<usize>() / sizes.len();
        assert!((13_000..16_000).contains(&mean), "{mean}");
    }

    #[test]
    fn a_file_with_two_names_is_one_inode() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("one"), "x").expect("room");
        std::fs::hard_link(dir.path().join("one"), dir.path().join("two")).expect("room");
        assert_eq!(count(dir.path()).expect("there"), Count { inodes: 2, names: 3 });
    }
}
