//! `uxfs demo`: makes a volume, shows what is in it, measures overwrites of one file by many threads, and checks
//! what was written. Needs no root, takes under a minute, and leaves nothing behind.

use super::info::Shown;
use super::{bench, tree};
use crate::exit::{Exit, Failure, Result};
use crate::location::{Images, Location};
use crate::options::Global;
use crate::output::Output;
use crate::problems::Problems;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use uxfs::{AlignedBuf, MkfsOptions, NewNode, OpenOptions, Special, Volume};
use uxfs_bench::{Config, FILE_NAME, Locking, Measurement, PAGE, VolumePlace, Workload};

/// Bytes of the file that is overwritten.
const FILE_BYTES: u64 = 256 << 20;
/// Space for the volumes.
const ROOM_BYTES: u64 = 1 << 30;
const THREADS: &[usize] = &[1, 2, 4, 8, 16];

/// Arguments of `demo`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the demonstration.
pub fn run(_args: &Args, global: &Global) -> Result<Exit> {
    let dir = scratch()?;
    let image = dir.path().join("demo.img");
    say("A volume, made and filled in a file")?;
    make_volume(&image)?;
    show(&image, global)?;

    say("One file, many threads: overwrites with one lock for the whole file, and with the range lock")?;
    let after = dir.path().join("after.img");
    let measured = measure(&after)?;

    say("What is in the file now")?;
    let pages = check_content(&after)?;
    line(&format!("{pages} pages read back: each holds what its last writer wrote, whole"))?;
    let repaired = repair(&after)?;
    line(match repaired {
        Some(Judge::Content) => "xfs_repair -n: clean",
        Some(Judge::TooOld) => "xfs_repair is too old for a volume of today: it cannot say",
        None => "xfs_repair is not installed: not asked",
    })?;
    let repaired = repaired == Some(Judge::Content);
    say("In short")?;
    line(&summary(&measured, pages, repaired))?;
    Ok(Exit::Ok)
}

fn say(title: &str) -> Result<()> {
    line(&format!("\n== {title} ==\n"))
}

/// Prints a line.
fn line(text: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

/// A temporary directory: in memory if there is room.
fn scratch() -> Result<TempDir> {
    let shm = Path::new("/dev/shm");
    let room = rustix::fs::statvfs(shm).map_or(0, |of| of.f_bavail.saturating_mul(of.f_frsize));
    let place = if room >= ROOM_BYTES { shm.to_owned() } else { std::env::temp_dir() };
    let made = tempfile::Builder::new().prefix("uxfs-demo-").tempdir_in(&place);
    made.map_err(|error| Failure::of_host(&place, error))
}

/// Makes a small volume with a few files in it.
fn make_volume(image: &Path) -> Result<()> {
    let failure = |error: uxfs::Error| Failure::of_image(image, &error);
    uxfs::mkfs(image, &MkfsOptions::new().size(512 << 20).label("demo")).map_err(failure)?;
    let volume = Volume::open(image, &OpenOptions::new().writable(true)).map_err(failure)?;
    let filled = fill(&volume);
    let closed = volume.close();
    filled.and(closed).map_err(failure)?;
    line(&format!("uxfs mkfs -L demo {} 512M, and a few files", image.display()))
}

fn fill(volume: &Volume) -> uxfs::Result<()> {
    let node = |permissions, uid| NewNode { permissions, uid, gid: uid, ..NewNode::default() };
    let root = volume.root()?.as_dir()?;
    let dir = |name: &str| root.create_dir(name.as_bytes(), &node(0o755, 0))?.as_dir();
    let ada = dir("home")?.create_dir(b"ada", &node(0o750, 1000))?.as_dir()?;
    let letter = ada.create_file(b"letter.txt", &node(0o640, 1000))?;
    letter.open()?.write_at(LETTER.as_bytes(), 0)?;
    ada.create_symlink(b"latest", b"letter.txt", &node(0o777, 1000))?;
    dir("dev")?.create_special(b"null", Special::CharDevice(1, 3), &node(0o666, 0))?;
    let var = dir("var")?;
    var.create_file(b"data.bin", &node(0o644, 0))?.open()?.write_at(&[0; 65536], 0)?;
    var.create_special(b"queue", Special::Fifo, &node(0o600, 0))?;
    Ok(())
}

/// The text of the letter in the volume.
const LETTER: &str = "\
Dear reader,

these lines are in a real XFS volume. uxfs made it, wrote them and reads them
with no mount and no privileges: it is a program like any other.
";

/// Shows the volume as `info`, `tree` and `cat` do.
fn show(image: &Path, global: &Global) -> Result<()> {
    let root = Location { image: image.to_owned(), partition: None, path: b"/".to_vec() };
    let plain = Global { json: false, ..global.clone() };
    let volume = Images::new(&plain).volume(&root)?;
    let mut out = Output::new(&plain);
    out.text("\n$ uxfs info demo.img\n")?;
    Shown::of(&volume).map_err(|error| root.failure(&error))?.print(&mut out)?;
    out.text("\n$ uxfs tree demo.img\n")?;
    tree::draw(&tree::Args::of(root.clone()), &root, &volume, &mut out, &mut Problems::default())?;
    out.text("\n$ uxfs cat demo.img:/home/ada/latest\n")?;
    let letter = Location { path: b"/home/ada/latest".to_vec(), ..root };
    let file = volume.open_file(&letter.path).map_err(|error| letter.failure(&error))?;
    let mut text = vec![0; LETTER.len() + 1];
    let read = file.read_at(&mut text, 0).map_err(|error| letter.failure(&error))?;
    text.truncate(read);
    out.bytes(&text)?;
    out.finish()?;
    if text == LETTER.as_bytes() {
        return Ok(());
    }
    Err(Failure::new(Exit::Damaged, "demo: the letter is not what was put into the volume"))
}

/// Runs the overwrite table on a volume in memory, and saves it in the file `after`.
fn measure(after: &Path) -> Result<Vec<Measurement>> {
    let config = Config {
        threads: THREADS.to_vec(),
        locking: vec![Locking::Exclusive, Locking::Range],
        place: VolumePlace::Memory,
        size: FILE_BYTES,
        pages: FILE_BYTES / PAGE as u64,
        rounds: 3,
        min_time: Duration::from_millis(100),
        keep: Some(PathBuf::from(after)),
        ..Config::default()
    };
    let mut progress = bench::Progress::new();
    let report = uxfs_bench::run(&config, &[Workload::Overwrite], &mut progress).map_err(bench::failure);
    progress.clear();
    let measured = report?.measurements;
    let mut out = std::io::stdout().lock();
    bench::print_measurements(&mut out, &measured, false)?;
    Ok(measured)
}

/// Reads the file from the saved volume. The run has checked which words it holds. Here each page must consist
/// of one word, so that no write was torn, and no page may have its first content. Gives the number of pages.
fn check_content(image: &Path) -> Result<u64> {
    let failure = |error| Failure::of_image(image, &error);
    let volume = Volume::open(image, &OpenOptions::new()).map_err(failure)?;
    let file = volume.open_file(FILE_NAME).map_err(failure)?;
    let mut buf = AlignedBuf::zeroed(1 << 20);
    let mut offset = 0;
    while offset < file.size() {
        let read = file.read_at(&mut buf, offset).map_err(failure)?;
        for page in buf[..read].chunks(PAGE) {
            let (first, rest) = page.split_at(page.len().min(8));
            if first == [0; 8] || rest.chunks(8).any(|word| word != first) {
                let what = format!("demo: the page at byte {offset} or behind is not as it was written");
                return Err(Failure::new(Exit::Damaged, what));
            }
        }
        if read == 0 {
            break;
        }
        offset += read as u64;
    }
    Ok(offset / PAGE as u64)
}

/// The output of xfs_repair without damage.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Judge {
    Content,
    /// Releases before 6.10 do not know parent pointers.
    TooOld,
}

/// Runs xfs_repair, if it is installed. Damage is a failure.
fn repair(image: &Path) -> Result<Option<Judge>> {
    let output = Command::new("xfs_repair").arg("-n").arg(image).stdin(Stdio::null()).output();
    match output {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::new(Exit::Io, format!("demo: xfs_repair: {error}"))),
        Ok(output) if output.status.success() => Ok(Some(Judge::Content)),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            if said.contains("unsupported filesystem features") {
                return Ok(Some(Judge::TooOld));
            }
            let said = said.trim().replace('\n', "; ");
            Err(Failure::new(Exit::Damaged, format!("demo: xfs_repair -n found damage: {said}")))
        }
    }
}

/// A summary in one paragraph.
fn summary(measured: &[Measurement], pages: u64, repaired: bool) -> String {
    let ops = |op: &str, locking: Locking, threads: usize| {
        let name = locking.to_string();
        let line = measured.iter().find(|line| {
            line.target == "uxfs"
                && line.op == op
                && line.threads == threads
                && line.locking.as_deref() == Some(&*name)
        });
        line.map_or(f64::NAN, |line| line.ops_per_s)
    };
    let last = THREADS.last().copied().unwrap_or(1);
    let (old, new) = (ops("write", Locking::Exclusive, last), ops("write", Locking::Range, last));
    let one = ops("write", Locking::Range, 1);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "uxfs made a volume in this process, with no mount and no privileges, filled it, and showed what is in \
         it. On this machine ({cores} cores), {last} threads overwrote random 4 KiB pages of one file {:.0} thousand \
         times a second with one lock for the whole file, and {:.0} thousand times with the range lock ({:.1} times \
         as often; one thread alone: {:.0} thousand). All {pages} pages of the file were then read back and hold \
         what was written last{}.",
        old / 1e3,
        new / 1e3,
        new / old,
        one / 1e3,
        if repaired { ", and xfs_repair finds nothing wrong with the volume" } else { "" }
    )
}
