//! `uxfs mkfs --from`: an unprivileged user makes volumes of a tree; the kernel must see the tree in each, and a second
//! volume must have the same bytes. Beside it, what `mkfs.xfs`, a mount and `cp -a` take for the same, as root.
//!
//! Invariants:
//! - the tree follows from the seed; nothing that uxfs says of its own work counts;
//! - the two ways of making a volume take turns, and both end with everything on the device.

mod tree;
mod view;
mod volumes;

use crate::command::{finish, output, run as run_program, said};
use crate::compare::compare;
use crate::fill::Sizes;
use crate::kernel;
use crate::record::{Hash, Record};
use crate::sandbox::{Mounted, repair_finds_nothing, scratch};
use anyhow::{Context, Result, bail, ensure};
use clap::Args as ClapArgs;
use oracles::umount;
use std::fs::{File, Permissions};
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use view::{Copy, kept};

/// Has an unprivileged user make volumes of a tree with `uxfs mkfs --from`, twice each, and judges them.
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// Seed of the tree.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Files in the tree, directories not counted.
    #[arg(long, default_value_t = 100_000)]
    files: u64,
    /// Volumes of another shape than the default, as options of mkfs.
    #[arg(long, default_values_t = ["-b size=1024".to_owned(), "-i size=2048".to_owned()])]
    shape: Vec<String>,
    /// How often each way of making a volume is timed, in turns.
    #[arg(long, default_value_t = 0)]
    rounds: usize,
    /// Copy this directory instead of a tree of one's own, and only look whether a second volume has the same bytes.
    #[arg(long)]
    same: Vec<PathBuf>,
    /// Copy volumes of the matrix whose names begin so, filled by a kernel, instead of a tree.
    #[arg(long, value_delimiter = ',')]
    volumes: Vec<String>,
    /// About 20,000 inodes a volume instead of 1,000.
    #[arg(long)]
    large: bool,
    /// The command to judge: by default the `uxfs` beside this program (`cargo build --release -p uxfs-cli`).
    #[arg(long)]
    uxfs: Option<PathBuf>,
    /// The user who makes the volumes, as numbers.
    #[arg(long, default_value_t = 65_534)]
    uid: u32,
}

/// Runs the command. `Ok(true)`: every volume was right.
pub fn run(args: &Args) -> Result<bool> {
    let place = WorkFolder::new(args)?;
    if !args.same.is_empty() {
        for source in &args.same {
            place.twice(source, "", size_for(source)?)?;
        }
        return Ok(true);
    }
    if !args.volumes.is_empty() {
        let sizes = if args.large { Sizes::full(args.seed) } else { Sizes::small(args.seed) };
        return place.copy_volumes(&args.volumes, &sizes);
    }
    let _mounted = place.mount_source()?;
    let start = Instant::now();
    let source = place.source();
    let made = tree::make(&source, args.seed, args.files)?;
    // Beside the content: inodes and blocks that are not full, and what the kernel sets aside for files that grow.
    let size = (2 * made.bytes + 40_000 * (made.files + made.dirs)).next_multiple_of(64 << 20).max(512 << 20);
    println!(
        "from: seed {}: {} files and {} directories with {} MiB, in {:.1} s",
        args.seed,
        made.files,
        made.dirs,
        made.bytes >> 20,
        start.elapsed().as_secs_f64()
    );
    let theirs = kernel::manifest(&source, Hash::Sha256)?;
    let mut right = true;
    for shape in std::iter::once("").chain(args.shape.iter().map(String::as_str)) {
        right &= place.judge(&source, shape, size, &theirs)?;
    }
    right &= place.judge_archive(size, &theirs)?;
    if args.rounds > 0 {
        place.race(&source, size, args.rounds)?;
    }
    Ok(right)
}

/// Room for a copy of a directory of the host.
fn size_for(source: &Path) -> Result<u64> {
    let kib = output(Command::new("du").args(["-sk", "--count-links"]).arg(source))?;
    let kib: u64 = kib.split_whitespace().next().and_then(|kib| kib.parse().ok()).context("du")?;
    Ok((2 * (kib << 10)).next_multiple_of(64 << 20).max(512 << 20))
}

/// A folder with the program, the tree, and room for volumes.
struct WorkFolder {
    folder: tempfile::TempDir,
    uid: u32,
    /// What makes a volume the same every time. The kernel mounts no two of one UUID, so that each run has its own.
    fixed: [String; 4],
}

impl WorkFolder {
    fn new(args: &Args) -> Result<Self> {
        let program = match &args.uxfs {
            Some(program) => program.clone(),
            None => std::env::current_exe()?.with_file_name("uxfs"),
        };
        let uuid = format!("3e3a4f8c-7a52-4a5e-9f0e-{:012x}", std::process::id());
        let fixed = ["-m", &format!("uuid={uuid}"), "--time", "2026-01-31T12:00:00Z"].map(str::to_owned);
        let place = Self { folder: scratch()?, uid: args.uid, fixed };
        // Others may not have access to the program's folder.
        std::fs::copy(&program, place.path("uxfs"))
            .with_context(|| format!("{} (cargo build --release -p uxfs-cli makes it)", program.display()))?;
        std::fs::create_dir(place.path("out"))?;
        chown(place.path("out"), Some(args.uid), Some(args.uid))?;
        for path in [place.path("uxfs"), place.folder.path().to_owned()] {
            std::fs::set_permissions(path, Permissions::from_mode(0o755))?;
        }
        Ok(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn source(&self) -> PathBuf {
        self.path("source/tree")
    }

    /// A file system of its own for the tree, where reading leaves no trace in times of access.
    fn mount_source(&self) -> Result<Unmount> {
        let dir = self.path("source");
        std::fs::create_dir(&dir)?;
        let options = "noatime,mode=755,nr_inodes=0,size=90%";
        run_program(Command::new("mount").args(["-t", "tmpfs", "-o", options, "uxfs-from"]).arg(&dir))?;
        std::fs::create_dir(dir.join("tree"))?;
        Ok(Unmount(dir))
    }

    /// The program, as the unprivileged user.
    fn uxfs(&self) -> Command {
        let mut command = Command::new(self.path("uxfs"));
        command.uid(self.uid).gid(self.uid).current_dir("/").env_remove("SOURCE_DATE_EPOCH");
        command
    }

    /// Makes a volume of `source`; what could not be copied is an error.
    fn make(
        &self,
        name: &str,
        source: &Path,
        shape: &str,
        size: u64,
        more: &[String],
    ) -> Result<(PathBuf, Duration)> {
        let image = self.path("out").join(name);
        if image.exists() {
            std::fs::remove_file(&image)?;
        }
        let start = Instant::now();
        let mut command = self.uxfs();
        command.args(["mkfs", "-q", "--from"]).arg(source).arg(&image).arg(size.to_string());
        run_program(command.args(shape.split_whitespace()).args(more))?;
        Ok((image, start.elapsed()))
    }

    /// Makes two volumes that must have the same bytes.
    fn twice(&self, source: &Path, shape: &str, size: u64) -> Result<PathBuf> {
        let (one, first) = self.make("one", source, shape, size, &self.fixed)?;
        let (two, second) = self.make("two", source, shape, size, &self.fixed)?;
        let differs = first_difference(&one, &two)?;
        std::fs::remove_file(&two)?;
        let what = format!("{}{}{shape}", source.display(), if shape.is_empty() { "" } else { " " });
        if let Some(at) = differs {
            bail!("{what}: two volumes differ from byte {at} on");
        }
        println!(
            "from: {what}: two volumes with the same bytes, in {:.1} and {:.1} s",
            first.as_secs_f64(),
            second.as_secs_f64()
        );
        Ok(one)
    }

    fn judge(&self, source: &Path, shape: &str, size: u64, theirs: &[Record]) -> Result<bool> {
        let fixed = self.twice(source, shape, size)?;
        let right = self.seen(&fixed, theirs, Copy::AtTime)?;
        // Where no time is given, times of access are kept, too.
        let (image, _) = self.make("one", source, shape, size, &[])?;
        Ok(self.seen(&image, theirs, Copy::Whole)? && right)
    }

    /// The same by way of an archive.
    fn judge_archive(&self, size: u64, theirs: &[Record]) -> Result<bool> {
        let (image, _) = self.make("one", &self.source(), "", size, &[])?;
        let archive = self.path("out").join("tar");
        let mut whole = image.into_os_string();
        whole.push(":/");
        let to = File::create(&archive)?;
        // It complains of sockets, which no archive holds; what else it left out will be missed.
        let archived = self.uxfs().arg("tar").arg(&whole).stdout(to).stderr(Stdio::null()).status()?;
        ensure!(matches!(archived.code(), Some(0 | 1)), "uxfs tar: {archived}");
        let fixed = self.twice(&archive, "", size)?;
        std::fs::remove_file(&archive)?;
        self.seen(&fixed, theirs, Copy::Archived)
    }

    /// Has a volume looked at by all witnesses.
    fn seen(&self, image: &Path, theirs: &[Record], copy: Copy) -> Result<bool> {
        repair_finds_nothing(image)?;
        let checked = finish(self.uxfs().arg("check").arg(image))?;
        ensure!(checked.status.success(), "uxfs check: {}", said(&checked));
        let mounted = Mounted::new(image, &self.path("mnt"), true)?;
        let ours = kernel::manifest(mounted.dir(), Hash::Sha256)?;
        mounted.unmount()?;
        let outcome = compare(&kept(theirs.to_vec(), copy), &kept(ours, copy))?;
        outcome.print(20);
        Ok(outcome.differences.is_empty() && outcome.one_sided.is_empty())
    }

    /// Times both ways of making a volume.
    fn race(&self, source: &Path, size: u64, rounds: usize) -> Result<()> {
        let (mut ours, mut repeatable, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            for (times, more) in [(&mut ours, &[][..]), (&mut repeatable, &self.fixed[..])] {
                let start = Instant::now();
                let (image, _) = self.make("one", source, "", size, more)?;
                run_program(Command::new("sync").arg(&image))?;
                times.push(start.elapsed());
                std::fs::remove_file(image)?;
            }
            theirs.push(self.by_kernel(source, size)?);
        }
        let [ours, repeatable, theirs] = [ours, repeatable, theirs].map(median);
        for (way, time) in [("uxfs mkfs --from", ours), ("uxfs mkfs --from --time", repeatable)] {
            println!(
                "from: {way}: {time:.2} s; mkfs.xfs, mount, cp -a and umount as root: {theirs:.2} s; {:.2} times as fast \
                 (medians of {rounds} rounds)",
                theirs / time
            );
        }
        Ok(())
    }

    fn by_kernel(&self, source: &Path, size: u64) -> Result<Duration> {
        let (image, dir) = (self.path("kernel"), self.path("mnt"));
        std::fs::create_dir_all(&dir)?;
        let start = Instant::now();
        File::create(&image)?.set_len(size)?;
        run_program(Command::new("mkfs.xfs").arg("-q").arg(&image))?;
        run_program(Command::new("mount").args(["-o", "loop"]).args([&image, &dir]))?;
        let mounted = Unmount(dir.clone());
        run_program(Command::new("cp").arg("-a").arg(source.join(".")).arg(&dir))?;
        mounted.now()?;
        run_program(Command::new("sync").arg(&image))?;
        let took = start.elapsed();
        std::fs::remove_file(image)?;
        Ok(took)
    }
}

/// Unmounts when it goes.
struct Unmount(PathBuf);

impl Unmount {
    fn now(self) -> Result<()> {
        let dir = self.0.clone();
        std::mem::forget(self);
        umount(&dir)
    }
}

impl Drop for Unmount {
    fn drop(&mut self) {
        // Only what led here matters.
        let _ = umount(&self.0);
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, Duration::as_secs_f64)
}

/// The first byte that two files do not share.
fn first_difference(one: &Path, two: &Path) -> Result<Option<u64>> {
    let (mut one, mut two) = (File::open(one)?, File::open(two)?);
    ensure!(one.metadata()?.len() == two.metadata()?.len(), "two images of different size");
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut at = 0;
    loop {
        let len = one.read(&mut left)?;
        if len == 0 {
            return Ok(None);
        }
        two.read_exact(&mut right[..len])?;
        if left[..len] != right[..len]
            && let Some(byte) = left[..len].iter().zip(&right[..len]).position(|(a, b)| a != b)
        {
            return Ok(Some(at + byte as u64));
        }
        at += len as u64;
    }
}
