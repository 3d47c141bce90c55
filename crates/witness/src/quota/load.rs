//! A mixed load of files of several users, groups and projects that ends in a crash.
//!
//! Invariants: what is done follows from the seed (if two threads do it, their order does not). Only quota and a full
//! volume may refuse something.

use super::plan::{GROUPS, PROJECTS, Plan, USERS};
use crate::command;
use anyhow::{Context, Result};
use rustix::fs::{Gid, Uid, chown, copy_file_range, ioctl_ficlone};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const THREADS: u64 = 2;
/// Maximum bytes that are written at once.
const WRITE_MAX: usize = 48 << 10;
/// Maximum size of a file.
const SIZE_MAX: u64 = 1 << 20;
/// Approximate number of files that a thread keeps.
const FILES: usize = 60;
/// Files without a name at the end, per thread.
const HELD: usize = 5;
/// The kernel frees an unlinked file's inode some milliseconds later.
const FREED_AFTER: Duration = Duration::from_millis(400);

/// Applies the load to the volume that is mounted at `dir`, and leaves it as after a crash. Returns what was done.
pub(super) fn load(dir: &Path, plan: &Plan, ops: u64) -> Result<String> {
    limits(dir, plan, 1)?;
    let mut workers = (0..THREADS).map(|nth| Worker::new(dir, plan, nth)).collect::<Result<Vec<_>>>()?;
    all(&mut workers, ops / 2)?;
    workers.iter_mut().for_each(|worker| worker.early = false);
    all(&mut workers, ops / 4)?;
    settle(dir)?;
    limits(dir, plan, 2)?;
    if let Some(off) = plan.off {
        quota(dir, &format!("off -{}", off.letter()))?;
    }
    all(&mut workers, ops / 4)?;
    if plan.held {
        workers.iter_mut().try_for_each(Worker::hold)?;
    } else if plan.flush {
        std::thread::sleep(FREED_AFTER);
    }
    let how = if plan.flush { "shutdown -f" } else { "shutdown" };
    command::run(Command::new("xfs_io").args(["-x", "-c", how]).arg(dir))?;
    let refused: u64 = workers.iter().map(|worker| worker.refused).sum();
    Ok(format!("{ops} operations, {refused} refused"))
}

/// Nothing is unfinished, and the log says so.
fn settle(dir: &Path) -> Result<()> {
    std::thread::sleep(FREED_AFTER);
    Ok(rustix::fs::syncfs(File::open(dir)?)?)
}

fn all(workers: &mut [Worker], ops: u64) -> Result<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .iter_mut()
            .map(|worker| scope.spawn(move || (0..ops / THREADS).try_for_each(|_| worker.step())))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<()>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().try_for_each(join)
    })
}

/// Sets limits for everybody but the id 0. Some are so low that they are reached.
fn limits(dir: &Path, plan: &Plan, round: u64) -> Result<()> {
    let mut rng = fastrand::Rng::with_seed(plan.seed.wrapping_mul(31).wrapping_add(round));
    let mut commands = Vec::new();
    for kept in plan.kept {
        let letter = kept.0.letter();
        commands.push(format!("timer -{letter} -b {}s", rng.u32(1000..100_000)));
        for id in &kept.0.ids()[1..] {
            let (blocks, inodes) = (rng.u32(200..4_000), rng.u32(4..60));
            let hard = (2 * blocks, 2 * inodes);
            commands.push(format!(
                "limit -{letter} bsoft={blocks}k bhard={}k isoft={inodes} ihard={} {id}",
                hard.0, hard.1
            ));
        }
    }
    quota(dir, &commands.join("\0"))
}

/// Makes `xfs_quota` run commands, which are separated by zeroes.
fn quota(dir: &Path, commands: &str) -> Result<()> {
    let each = commands.split('\0').flat_map(|command| ["-c", command]);
    command::run(Command::new("xfs_quota").arg("-x").args(each).arg(dir))
}

/// A thread's part.
struct Worker {
    rng: fastrand::Rng,
    dirs: Vec<PathBuf>,
    files: Vec<PathBuf>,
    held: Vec<File>,
    made: u64,
    refused: u64,
    /// What the log has now need not be there at the end.
    early: bool,
}

impl Worker {
    /// Makes its directories, one a project.
    fn new(dir: &Path, plan: &Plan, nth: u64) -> Result<Self> {
        let mut dirs = Vec::new();
        for project in PROJECTS {
            let path = dir.join(format!("t{nth}-p{project}"));
            fs::create_dir(&path)?;
            let set = ["-c", &format!("chproj {project}"), "-c", "chattr +P"];
            command::run(Command::new("xfs_io").args(set).arg(&path))?;
            dirs.push(path);
        }
        let rng = fastrand::Rng::with_seed(plan.seed.wrapping_mul(8).wrapping_add(nth));
        Ok(Self { rng, dirs, files: Vec::new(), held: Vec::new(), made: 0, refused: 0, early: true })
    }

    fn step(&mut self) -> Result<()> {
        let (what, file) = (self.rng.u32(0..200), self.rng.usize(0..self.files.len().max(1)));
        let Some(path) = self.files.get(file).cloned() else { return self.create() };
        let done = match what {
            0..60 if self.files.len() < FILES => return self.create(),
            0..100 => self.write(&path),
            100..106 => self.clone(&path),
            106..120 => {
                let size = self.rng.u64(0..SIZE_MAX);
                OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(size))
            }
            120..150 => self.chown(&path),
            150..190 => {
                self.files.swap_remove(file);
                fs::remove_file(&path)
            }
            190..194 => self.dirs_and_links(),
            194..198 => File::open(&path).and_then(|file| file.sync_all()),
            // Unused inodes and dquots are written back in the middle of their changes in the log.
            198 if self.early => fs::write("/proc/sys/vm/drop_caches", "2"),
            _ => File::open(&path).and_then(|file| Ok(rustix::fs::syncfs(file)?)),
        };
        self.allow(done).with_context(|| format!("operation {what} on {}", path.display()))
    }

    /// Quota may refuse; no other errors are allowed.
    fn allow(&mut self, done: std::io::Result<()>) -> Result<()> {
        let refusals = [Errno::DQUOT, Errno::NOSPC];
        match done {
            Err(error) if refusals.iter().any(|no| error.raw_os_error() == Some(no.raw_os_error())) => {
                self.refused += 1;
                Ok(())
            }
            done => Ok(done?),
        }
    }

    fn create(&mut self) -> Result<()> {
        self.made += 1;
        let dir = self.rng.choice(&self.dirs).context("no directory")?;
        let path = dir.join(format!("f{}", self.made));
        let made = File::create_new(&path).map(drop);
        if made.is_ok() {
            self.files.push(path.clone());
            let owned = self.chown(&path);
            self.allow(owned)?;
            let written = self.write(&path);
            self.allow(written)?;
        }
        self.allow(made).with_context(|| format!("making {}", path.display()))
    }

    fn write(&mut self, path: &Path) -> std::io::Result<()> {
        let bytes = vec![self.rng.u8(..); self.rng.usize(1..WRITE_MAX)];
        let at = self.rng.u64(0..SIZE_MAX - WRITE_MAX as u64);
        OpenOptions::new().write(true).open(path)?.write_all_at(&bytes, at)
    }

    /// Shares all of the file's blocks with another one, or copies a part of it, sharing blocks if possible.
    fn clone(&mut self, path: &Path) -> std::io::Result<()> {
        let other = &self.files[self.rng.usize(0..self.files.len())];
        if other == path {
            return Ok(());
        }
        let (from, to) = (File::open(path)?, OpenOptions::new().write(true).open(other)?);
        if self.rng.bool() {
            // A partial block can be shared only at the end of both files.
            to.set_len(0)?;
            return Ok(ioctl_ficlone(&to, &from)?);
        }
        let mut at = self.rng.u64(0..SIZE_MAX / 2) / 4096 * 4096;
        let mut into = at;
        copy_file_range(&from, Some(&mut at), &to, Some(&mut into), WRITE_MAX)?;
        Ok(())
    }

    fn chown(&mut self, path: &Path) -> std::io::Result<()> {
        let (user, group) = (USERS[self.rng.usize(..USERS.len())], GROUPS[self.rng.usize(..GROUPS.len())]);
        Ok(chown(path, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?)
    }

    /// Makes and removes a directory and a link with a long target. The directory may stay.
    fn dirs_and_links(&mut self) -> std::io::Result<()> {
        self.made += 1;
        let parent = self.dirs[self.rng.usize(..self.dirs.len())].clone();
        let path = parent.join(format!("d{}", self.made));
        fs::create_dir(&path)?;
        self.chown(&path)?;
        std::os::unix::fs::symlink("x".repeat(700), path.join("link"))?;
        if self.rng.bool() {
            fs::remove_dir_all(&path)?;
        }
        Ok(())
    }

    /// Removes the names of some files that stay open.
    fn hold(&mut self) -> Result<()> {
        for path in self.files.drain(..self.files.len().min(HELD)) {
            self.held.push(File::open(&path)?);
            fs::remove_file(&path)?;
        }
        Ok(())
    }
}
