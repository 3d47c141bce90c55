//! Measures the recovery of a log full of changes: by the kernel, which is a mount, and by `uxfs recover`, in turns, on
//! one device in memory.
//!
//! Invariants:
//! - the kernel fills the log and crashes; both recover the same bytes;
//! - each must leave a volume in which `xfs_repair -n` finds nothing;
//! - times are not judged, but memory is: `uxfs recover` may take the size of the changes once more, plus a constant.

use crate::command::{resident_peak, run as run_program, said};
use crate::sandbox::{Mounted, copy_sparse, repair_finds_nothing, scratch};
use anyhow::{Context, Result, ensure};
use clap::Args as ClapArgs;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of the volume without its log.
const ROOM: u64 = 6 << 30;
/// Files in a directory.
const FILES: u64 = 5_000;
/// Memory that any recovery may take: a checkpoint, what is cached of the device, the program.
const CONSTANT_MIB: u64 = 256;

/// Compares how long the kernel and uxfs take to recover a log full of changes.
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// Size of the log, in MiB.
    #[arg(long, default_value_t = 512)]
    log: u64,
    /// How full the log is, in percent, when the crash comes. The kernel writes back what is in it from 75 on.
    #[arg(long, default_value_t = 72)]
    full: u64,
    /// How often each of the two recovers it.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The command that recovers: by default the `uxfs` beside this program (`cargo build --release -p uxfs-cli`).
    #[arg(long)]
    uxfs: Option<PathBuf>,
}

/// Runs the command. `Ok(true)`: every recovery was right, and took no more memory than it may.
pub fn run(args: &Args) -> Result<bool> {
    let uxfs = match &args.uxfs {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("uxfs"),
    };
    let folder = scratch()?;
    let (mnt, image) = (folder.path().join("mnt"), folder.path().join("image"));
    let device = Zram::new(ROOM + (args.log << 20))?;
    let files = fill(&device, &mnt, args)?;
    copy_sparse(&device.path, &image)?;
    println!("recover-time: a log of {} MiB, {} % full: {files} files made", args.log, args.full);
    let (mut theirs, mut ours, mut right) = (Vec::new(), Vec::new(), true);
    for round in 0..args.rounds {
        device.restore(&image)?;
        let start = Instant::now();
        let mounted = Mounted::device(&device.path, &mnt)?;
        theirs.push(start.elapsed());
        mounted.unmount()?;
        if round == 0 {
            repair_finds_nothing(&device.path).context("after the kernel's recovery")?;
        }
        device.restore(&image)?;
        let Recovered { time, changed, memory, said } = recover(&uxfs, &device.path)?;
        ours.push(time);
        let bound = (changed >> 20) + (changed >> 22) + CONSTANT_MIB;
        right &= memory >> 20 <= bound;
        if round == 0 {
            println!("{said}");
            repair_finds_nothing(&device.path).context("after the recovery by uxfs")?;
            let judged = if memory >> 20 <= bound { "within" } else { "FAILED: more than" };
            println!(
                "memory: {} MiB at most, {judged} {bound} MiB ({} MiB changed)",
                memory >> 20,
                changed >> 20
            );
        }
        println!("round {round}: kernel {:.2?}, uxfs {:.2?}", theirs[round], ours[round]);
    }
    let (theirs, ours) = (median(theirs), median(ours));
    println!(
        "recover-time: medians of {}: kernel {theirs:.2?}, uxfs {ours:.2?}: {:.2} times the kernel's time",
        args.rounds,
        ours.as_secs_f64() / theirs.as_secs_f64()
    );
    Ok(right)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Makes the kernel fill the log of a new volume and crash. Returns the number of files that were made.
fn fill(device: &Zram, mnt: &Path, args: &Args) -> Result<u64> {
    let log = format!("size={}m", args.log);
    run_program(
        Command::new("mkfs.xfs").args(["-q", "-f", "-l", &log, "-d", "agcount=4"]).arg(&device.path),
    )?;
    let _quiet = Quiet::new()?;
    let mounted = Mounted::device(&device.path, mnt)?;
    let (stop, files) = (AtomicBool::new(false), AtomicU64::new(0));
    let blocks = args.log << 11;
    std::thread::scope(|scope| -> Result<()> {
        let workers: Vec<_> = (0..2)
            .map(|thread| {
                let (stop, files, dir) = (&stop, &files, mounted.dir());
                scope.spawn(move || make_files(dir, thread, stop, files))
            })
            .collect();
        let full = loop {
            std::thread::sleep(Duration::from_millis(20));
            match device.log_used(blocks) {
                Ok(used) if used * 100 < blocks * args.full && workers.iter().all(|w| !w.is_finished()) => {}
                other => break other.map(drop),
            }
        };
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        full
    })?;
    run_program(Command::new("xfs_io").args(["-x", "-c", "shutdown -f"]).arg(mounted.dir()))?;
    mounted.unmount()?;
    Ok(files.into_inner())
}

/// Makes files, some with an attribute, and removes some again, until it is enough.
fn make_files(dir: &Path, thread: u32, stop: &AtomicBool, files: &AtomicU64) -> Result<()> {
    for folder in 0_u64.. {
        let folder = dir.join(format!("t{thread}-{folder}"));
        std::fs::create_dir(&folder)?;
        for number in 0..FILES {
            let path = folder.join(format!("file-{number}"));
            let file = File::create(&path)?;
            if number % 4 == 0 {
                let value = vec![b'v'; (number % 200) as usize];
                rustix::fs::fsetxattr(&file, "user.a", &value, rustix::fs::XattrFlags::empty())?;
            }
            if number % 10 == 9 {
                std::fs::remove_file(folder.join(format!("file-{}", number - 5)))?;
            }
            files.fetch_add(1, Ordering::Relaxed);
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// One recovery by uxfs.
struct Recovered {
    time: Duration,
    /// Bytes of metadata.
    changed: u64,
    /// Peak memory of the process in bytes.
    memory: u64,
    said: String,
}

fn recover(uxfs: &Path, device: &Path) -> Result<Recovered> {
    let start = Instant::now();
    let mut child = Command::new(uxfs)
        .arg("recover")
        .arg(device)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{} (cargo build --release -p uxfs-cli makes it)", uxfs.display()))?;
    let process = child.id().to_string();
    let mut memory = 0;
    let mut time = start.elapsed();
    while child.try_wait()?.is_none() {
        memory = resident_peak(&process).unwrap_or_default().max(memory);
        std::thread::sleep(Duration::from_millis(5));
        time = start.elapsed();
    }
    let output = child.wait_with_output()?;
    let said = said(&output);
    ensure!(output.status.success(), "uxfs recover: {said}");
    let changed = said.split(", ").flat_map(str::lines).find_map(|words| {
        let (number, _) = words.rsplit_once("; ")?.1.split_once(" bytes of metadata changed")?;
        number.parse().ok()
    });
    Ok(Recovered { time, changed: changed.context("uxfs recover does not say what changed")?, memory, said })
}

/// While this lives, the kernel writes nothing back on its own.
struct Quiet {
    before: String,
}

const PACE: &str = "/proc/sys/fs/xfs/xfssyncd_centisecs";

impl Quiet {
    fn new() -> Result<Self> {
        let before = std::fs::read_to_string(PACE)?;
        std::fs::write(PACE, "720000")?;
        Ok(Self { before })
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let _ = std::fs::write(PACE, &self.before);
    }
}

/// A block device in memory. Dropping it removes it.
struct Zram {
    path: PathBuf,
    name: String,
    number: String,
    bytes: u64,
}

impl Zram {
    fn new(bytes: u64) -> Result<Self> {
        let number = std::fs::read_to_string("/sys/class/zram-control/hot_add").context("a zram device")?;
        let number = number.trim().to_owned();
        let name = format!("zram{number}");
        let zram = Self { path: Path::new("/dev").join(&name), name, number, bytes };
        zram.empty()?;
        Ok(zram)
    }

    /// Gives it its size, with no content.
    fn empty(&self) -> Result<()> {
        let sys = Path::new("/sys/block").join(&self.name);
        std::fs::write(sys.join("reset"), "1")?;
        std::fs::write(sys.join("disksize"), self.bytes.to_string())?;
        Ok(())
    }

    /// Gives it the content of an image.
    fn restore(&self, image: &Path) -> Result<()> {
        self.empty()?;
        let (from, to) = (File::open(image)?, File::options().write(true).open(&self.path)?);
        let mut piece = vec![0; 4 << 20];
        let mut at = 0;
        while let Some(start) = next(&from, SeekFrom::Data(at))? {
            let end = next(&from, SeekFrom::Hole(start))?.context("an end of the data")?;
            at = start;
            while at < end {
                let piece = &mut piece[..usize::try_from(end - at)?.min(4 << 20)];
                from.read_exact_at(piece, at)?;
                to.write_all_at(piece, at)?;
                at += piece.len() as u64;
            }
        }
        to.sync_all()?;
        rustix::fs::fadvise(&to, 0, None, rustix::fs::Advice::DontNeed)?;
        Ok(())
    }

    /// Of `blocks` log blocks, those between its tail and its head.
    fn log_used(&self, blocks: u64) -> Result<u64> {
        let end = |name: &str| -> Result<u64> {
            let text = std::fs::read_to_string(format!("/sys/fs/xfs/{}/log/{name}", self.name))?;
            let (cycle, block) = text.trim().split_once(':').context("cycle:block")?;
            Ok(cycle.parse::<u64>()? * blocks + block.parse::<u64>()?)
        };
        // The tail first: it never passes the head.
        let tail = end("log_tail_lsn")?;
        Ok(end("log_head_lsn")?.saturating_sub(tail))
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let _ = std::fs::write(format!("/sys/block/{}/reset", self.name), "1");
        let _ = std::fs::write("/sys/class/zram-control/hot_remove", &self.number);
    }
}

fn next(file: &File, place: SeekFrom) -> Result<Option<u64>> {
    match seek(file, place) {
        Ok(at) => Ok(Some(at)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
