//! What the kernel does when the power fails: threads that are nearly always in the middle of a chain of deferred work,
//! and one that splits the log into as many checkpoints as possible, so that some end within a chain.
//!
//! Invariant: the caller acts while all of them work, and nobody has a file of the volume open when [`run`] returns.

use crate::command;
use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use oracles::xfsprogs::Release;
use rustix::fs::{
    FallocateFlags, Mode, OFlags, XattrFlags, copy_file_range, fallocate, fsync, ftruncate, ioctl_ficlone,
    open, openat, setxattr, syncfs,
};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What a thread does over and over.
#[derive(Clone, Copy, Debug)]
enum Role {
    Cut,
    Clone,
    Exchange,
    Punch,
    Overwrite,
    Name,
    Attribute,
    Dedupe,
    Sync,
}

const ROLES: [Role; 11] = [
    Role::Cut,
    Role::Clone,
    Role::Exchange,
    Role::Punch,
    Role::Overwrite,
    Role::Name,
    Role::Name,
    Role::Name,
    Role::Attribute,
    Role::Dedupe,
    Role::Sync,
];

/// Extents of the files that everything begins with.
const EXTENTS: u64 = 300;
/// Blocks of them.
const BLOCKS: u64 = 2 * EXTENTS;
/// Names of a file whose parent pointers do not fit into its inode.
const NAMES: usize = 12;

/// A worker: a directory of its own, and its initial files.
struct Worker {
    role: Role,
    dir: PathBuf,
    block: u64,
    rng: Rng,
}

/// Makes what the threads work on, with this many threads per role.
pub(super) fn prepare(mnt: &Path, rng: &mut Rng, threads: usize) -> Result<()> {
    for worker in workers(mnt, rng, threads)? {
        std::fs::create_dir(&worker.dir)?;
        worker.base("base")?;
        worker.base("other")?;
        worker.names()?;
        let named = worker.dir.join("attributes");
        File::create(&named)?;
        (0..8).try_for_each(|nth| worker.attribute(&named, nth, 100))?;
    }
    let root: File = open(mnt, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?.into();
    Ok(syncfs(&root)?)
}

/// Lets the threads work for this long, and then until `in_the_midst` has returned.
pub(super) fn run(
    mnt: &Path,
    rng: &mut Rng,
    threads: usize,
    lasts: Duration,
    in_the_midst: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let over = AtomicBool::new(false);
    let workers = workers(mnt, rng, threads)?;
    let exchange = Release::Unstable.path("xfs_io")?;
    std::thread::scope(|scope| {
        for mut worker in workers {
            let (over, exchange) = (&over, &exchange);
            scope.spawn(move || {
                let mut turn = 0;
                // A failure does not matter: other work goes on.
                while !over.load(Ordering::Relaxed) {
                    let _ = worker.turn(turn, exchange);
                    turn += 1;
                }
            });
        }
        std::thread::sleep(lasts);
        let result = in_the_midst();
        over.store(true, Ordering::Relaxed);
        result
    })
}

fn workers(mnt: &Path, rng: &mut Rng, threads: usize) -> Result<Vec<Worker>> {
    let block = rustix::fs::statvfs(mnt)?.f_bsize;
    let all = ROLES.iter().cycle().take(ROLES.len() * threads).enumerate();
    let each = |(nth, &role)| Worker {
        role,
        dir: mnt.join(format!("{role:?}-{nth}")),
        block,
        rng: Rng::with_seed(rng.u64(..)),
    };
    Ok(all.map(each).collect())
}

impl Worker {
    fn file(&self, name: &str) -> Result<File> {
        let dir = open(&self.dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        Ok(openat(&dir, name, flags, Mode::from_raw_mode(0o644))?.into())
    }

    /// A file with a hole behind each block.
    fn base(&self, name: &str) -> Result<()> {
        let file = self.file(name)?;
        let bytes = (0..BLOCKS).flat_map(|block| vec![(block % 251) as u8; self.block as usize]);
        file.write_all_at(&bytes.collect::<Vec<u8>>(), 0)?;
        fsync(&file)?;
        (0..EXTENTS).try_for_each(|nth| self.punch(&file, 2 * nth + 1, 1))
    }

    fn punch(&self, file: &File, block: u64, blocks: u64) -> Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(file, flags, block * self.block, blocks * self.block)?)
    }

    fn names(&self) -> Result<()> {
        let first = self.dir.join("named");
        File::create(&first)?;
        (1..NAMES).try_for_each(|nth| Ok(std::fs::hard_link(&first, self.name(nth))?))
    }

    fn name(&self, nth: usize) -> PathBuf {
        self.dir.join(format!("another-name-that-is-not-short-at-all-{nth:03}"))
    }

    fn attribute(&self, path: &Path, nth: u64, len: usize) -> Result<()> {
        let value = vec![nth as u8; len];
        Ok(setxattr(path, format!("user.{nth}"), &value, XattrFlags::empty())?)
    }

    /// Does something once.
    fn turn(&mut self, turn: u64, exchange: &Path) -> Result<()> {
        match self.role {
            Role::Cut => self.cut(turn),
            Role::Clone => self.clone_ranges(turn),
            Role::Exchange => self.exchange(turn, exchange),
            Role::Punch => self.punch_clone(turn),
            Role::Overwrite => self.overwrite(turn),
            Role::Name => self.rename(turn),
            Role::Attribute => self.attributes(turn),
            Role::Dedupe => self.dedupe(turn),
            Role::Sync => self.sync(),
        }
    }

    /// A clone of the whole base, under one of a few names.
    fn clone_of_base(&self, turn: u64) -> Result<File> {
        let clone = self.file(&format!("clone-{}", turn % 4))?;
        ioctl_ficlone(&clone, &self.file("base")?)?;
        Ok(clone)
    }

    fn cut(&mut self, turn: u64) -> Result<()> {
        let clone = self.clone_of_base(turn)?;
        if turn.is_multiple_of(2) {
            let over = vec![turn as u8; 3 * self.block as usize];
            clone.write_all_at(&over, self.rng.u64(0..BLOCKS) * self.block)?;
        }
        ftruncate(&clone, self.rng.u64(0..BLOCKS / 2) * self.block)?;
        if turn % 3 == 1 {
            std::fs::remove_file(self.dir.join(format!("clone-{}", turn % 4)))?;
        }
        Ok(())
    }

    fn clone_ranges(&mut self, turn: u64) -> Result<()> {
        let to = self.file(if turn.is_multiple_of(5) { "base" } else { "other" })?;
        let from = self.file(if turn.is_multiple_of(5) { "other" } else { "base" })?;
        let (mut at, mut into) = (self.rng.u64(0..50) * self.block, self.rng.u64(0..50) * self.block);
        let len = self.rng.u64(100..BLOCKS - 60) * self.block;
        copy_file_range(&from, Some(&mut at), &to, Some(&mut into), len as usize)?;
        Ok(())
    }

    /// Exchanges ranges, some one after the other. Each is a chain as long as the files have extents. Both files have
    /// the same size: kernels (6.18 among them) that recover the exchange of whole files with different sizes free what
    /// lies past the size that a file had at the crash, and give the other one that size.
    fn exchange(&mut self, turn: u64, xfs_io: &Path) -> Result<()> {
        if turn.is_multiple_of(8) {
            ftruncate(&self.file("other")?, 0)?;
            self.clone_ranges(1)?;
        }
        ["base", "other"].into_iter().try_for_each(|name| {
            ftruncate(self.file(name)?, BLOCKS * self.block).map_err(anyhow::Error::from)
        })?;
        let mut io = Command::new(xfs_io);
        let donor = self.dir.join("other").display().to_string();
        for nth in 0..6 {
            let (from, to) = (self.rng.u64(0..20) * self.block, self.rng.u64(0..20) * self.block);
            let len = self.rng.u64(100..BLOCKS - 40) * self.block;
            let written = if nth % 3 == 2 { "-w" } else { "-f" };
            let range = format!("exchangerange {written} -s {from} -d {to} -l {len} {donor}");
            let whole = format!("exchangerange {donor}");
            io.args(["-c", if nth == 5 { &whole } else { &range }]);
        }
        let output = command::finish(io.arg(self.dir.join("base")))?;
        ensure!(output.status.success(), "{}", command::said(&output));
        Ok(())
    }

    fn punch_clone(&mut self, turn: u64) -> Result<()> {
        let clone = self.clone_of_base(turn)?;
        let (at, len) = (self.rng.u64(0..100), self.rng.u64(50..400));
        self.punch(&clone, at, len)?;
        let flags = if turn.is_multiple_of(2) {
            FallocateFlags::COLLAPSE_RANGE
        } else {
            FallocateFlags::INSERT_RANGE
        };
        let at = self.rng.u64(1..100) * self.block;
        fallocate(&clone, flags, at, self.rng.u64(1..30) * self.block)?;
        self.punch(&clone, 0, BLOCKS)
    }

    fn overwrite(&mut self, turn: u64) -> Result<()> {
        let clone = self.clone_of_base(turn)?;
        let byte = turn as u8;
        for _ in 0..80 {
            let over = vec![byte; self.rng.usize(1..2 * self.block as usize)];
            clone.write_all_at(&over, self.rng.u64(0..BLOCKS * self.block))?;
        }
        if turn.is_multiple_of(2) {
            fsync(&clone)?;
        }
        Ok(())
    }

    fn rename(&mut self, turn: u64) -> Result<()> {
        let nth = 1 + self.rng.usize(0..NAMES - 1);
        let (name, moved) =
            (self.name(nth), self.dir.join(format!("moved-to-a-name-that-is-longer-still-{nth}")));
        std::fs::rename(&name, &moved)?;
        if turn.is_multiple_of(3) {
            std::fs::remove_file(&moved)?;
            std::fs::hard_link(self.dir.join("named"), &name)?;
        } else {
            std::fs::rename(&moved, &name)?;
        }
        Ok(())
    }

    fn attributes(&mut self, turn: u64) -> Result<()> {
        let path = self.dir.join("attributes");
        let (nth, len) = (self.rng.u64(0..30), self.rng.usize(1..900));
        if turn % 3 == 1 {
            rustix::fs::removexattr(&path, format!("user.{nth}"))?;
            return Ok(());
        }
        self.attribute(&path, nth, len)?;
        let linked = self.dir.join(format!("linked-{}", turn % 20));
        if std::fs::remove_file(&linked).is_err() {
            std::fs::hard_link(&path, &linked)?;
        }
        Ok(())
    }

    fn dedupe(&mut self, turn: u64) -> Result<()> {
        let same = self.file(&format!("same-{}", turn % 3))?;
        ftruncate(&same, 0)?;
        let bytes = vec![7; 64 * self.block as usize];
        same.write_all_at(&bytes, 0)?;
        fsync(&same)?;
        let (path, len) = (self.dir.join(format!("same-{}", turn % 3)), 8 * self.block);
        let mut io = Command::new("xfs_io");
        for nth in 1..8 {
            io.args(["-c", &format!("dedupe {} 0 {} {len}", path.display(), nth * len)]);
        }
        command::finish(io.arg(&path)).context("xfs_io").map(drop)
    }

    fn sync(&mut self) -> Result<()> {
        let file = self.file("synced")?;
        file.write_all_at(&[self.rng.u8(..)], 0)?;
        Ok(fsync(&file)?)
    }
}
