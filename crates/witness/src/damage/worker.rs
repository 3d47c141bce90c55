//! The child process that does images, one at a time, and the parent's end of it.
//!
//! Child to parent, once: `ready`. Parent to child: a line `SEED IMAGE`; child to parent: the image's outcome
//! as a line of JSON. A child that says nothing in time is killed, one that ends is replaced.

use super::layout::targets;
use super::mutate::{Menu, damage};
use super::overlay::Overlay;
use super::report::{DamageOutcome, End};
use super::walk::{Limits, Seen, walk};
use super::{memory_peak, reset_memory_peak};
use anyhow::{Context, Result};
use blockdev::{BlockDevice, MemoryOptions};
use clap::Args as ClapArgs;
use fastrand::Rng;
use rustix::fs::{SeekFrom, seek};
use std::cell::RefCell;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use xfs::check::{CheckOptions, check};

/// What a child says when it has looked through its volumes.
const READY: &str = "ready";
/// How long that may take.
const START_LIMIT: Duration = Duration::from_secs(600);
/// A child that has not run for its limit is given up after this many times the limit.
const SLEEP_FACTOR: u32 = 30;

/// Does images that standard input names.
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// Have the checker look at each image, too.
    #[arg(long)]
    check: bool,
    /// The volumes that are damaged.
    volumes: Vec<PathBuf>,
}

thread_local! {
    /// Where the last panic was.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs the child.
pub fn run(args: &Args) -> Result<bool> {
    std::panic::set_hook(Box::new(|info| PANIC.with_borrow_mut(|text| *text = info.to_string())));
    let volumes: Vec<Base> = args.volumes.iter().map(|path| Base::load(path)).collect::<Result<_>>()?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{READY}")?;
    out.flush()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (seed, image) = line.split_once(' ').context("a line of two numbers")?;
        let outcome = image_of(&volumes, args.check, seed.parse()?, image.parse()?);
        writeln!(out, "{}", serde_json::to_string(&outcome)?)?;
        out.flush()?;
    }
    Ok(true)
}

/// A sound volume.
struct Base {
    name: String,
    device: Arc<dyn BlockDevice>,
    menu: Menu,
}

impl Base {
    fn load(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("{}", path.display()))?;
        let device = Arc::new(MemoryOptions::new().copy_of(path)?);
        let menu = Menu::new(&targets(&*device, &data_ranges(&file)?)?);
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, device, menu })
    }
}

/// The parts of a file that are not holes.
fn data_ranges(file: &File) -> Result<Vec<Range<usize>>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while let Ok(start) = seek(file, SeekFrom::Data(at)) {
        let end = seek(file, SeekFrom::Hole(start))?;
        ranges.push(usize::try_from(start)?..usize::try_from(end)?);
        at = end;
    }
    Ok(ranges)
}

/// Makes image `image` of `seed` and walks it.
fn image_of(volumes: &[Base], with_check: bool, seed: u64, image: u64) -> DamageOutcome {
    let mut rng =
        Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ image.wrapping_mul(0xd1b5_4a32_d192_ed03));
    let start = Instant::now();
    let mut outcome = DamageOutcome { image, ..DamageOutcome::default() };
    let Some(base) = rng.choice(volumes) else { return outcome };
    let mut device = Overlay::new(Arc::clone(&base.device));
    outcome.volume.clone_from(&base.name);
    outcome.story = damage(&base.menu, &mut rng, &mut device);
    let device = Arc::new(device);
    let before = reset_memory_peak();
    let walked = catch_unwind(AssertUnwindSafe(|| {
        let mut seen = walk(Arc::clone(&device) as Arc<dyn BlockDevice>, &Limits::FULL);
        if with_check {
            check_too(device, &mut seen);
        }
        seen
    }));
    outcome.peak_bytes = memory_peak().saturating_sub(before) as u64;
    outcome.millis = start.elapsed().as_millis() as u64;
    match walked {
        Ok(seen) => {
            outcome.end = if seen.opened { End::Walked } else { End::Refused };
            outcome.inodes = seen.inodes;
            outcome.names = seen.names;
            outcome.errors = seen.errors;
        }
        Err(_) => outcome.end = End::Panicked(PANIC.take()),
    }
    outcome
}

/// Has the checker look at an image. What a walk stumbles over is damage, so that the checker must find some.
fn check_too(device: Arc<dyn BlockDevice>, seen: &mut Seen) {
    let options = CheckOptions { norecovery: true, ..CheckOptions::default() };
    let clean = check(device, &options).is_ok_and(|report| report.is_clean());
    let stumbled = seen.errors.keys().any(|error| error != "DirtyLog");
    if clean && stumbled {
        let what = seen.errors.keys().cloned().collect::<Vec<_>>().join("; ");
        seen.errors.insert(format!("CLEAN for the checker, and yet: {what}"), 1);
    } else if !clean && !stumbled {
        seen.errors.insert("nothing but findings of the checker".to_owned(), 1);
    }
}

/// The parent's end.
pub struct Child {
    process: std::process::Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Child {
    /// Starts a child for these volumes.
    pub fn start(volumes: &[PathBuf], check: bool) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg("damage-worker")
            .args(check.then_some("--check"))
            .args(volumes)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a worker")?;
        let input = process.stdin.take().context("a pipe to the worker")?;
        let output = process.stdout.take().context("a pipe from the worker")?;
        let (send, lines) = channel();
        std::thread::spawn(move || {
            let mut lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.all(|line| send.send(line).is_ok());
        });
        let child = Self { process, input, lines };
        let said = child.lines.recv_timeout(START_LIMIT).context("the worker does not start")?;
        anyhow::ensure!(said == READY, "the worker says {said:?}");
        Ok(child)
    }

    /// Has one image done. The child comes back if it can do more.
    pub fn image(mut self, seed: u64, image: u64, limit: Duration) -> (DamageOutcome, Option<Self>) {
        let failed = |end| DamageOutcome { image, end, ..DamageOutcome::default() };
        if let Err(error) = writeln!(self.input, "{seed} {image}") {
            return (failed(End::Died(error.to_string())), None);
        }
        match self.answer(limit) {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(outcome) => (outcome, Some(self)),
                Err(error) => (failed(End::Died(format!("{error}: {line}"))), None),
            },
            Err(RecvTimeoutError::Timeout) => (failed(End::Hung), None),
            Err(_) => {
                let status = self.process.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
                (failed(End::Died(status)), None)
            }
        }
    }

    /// Waits for the child's line. Time counts that the child ran, so that a busy machine hangs nobody; but one that
    /// sleeps for many times the limit will not wake either.
    fn answer(&self, limit: Duration) -> Result<String, RecvTimeoutError> {
        let (began, ran_before) = (Instant::now(), self.ran());
        loop {
            match self.lines.recv_timeout(limit) {
                Err(RecvTimeoutError::Timeout)
                    if self.ran().saturating_sub(ran_before) < limit
                        && began.elapsed() < limit * SLEEP_FACTOR => {}
                result => return result,
            }
        }
    }

    /// How long the child has run on a processor.
    fn ran(&self) -> Duration {
        let path = format!("/proc/{}/schedstat", self.process.id());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let nanoseconds = text.split(' ').next().and_then(|first| first.parse().ok());
        Duration::from_nanos(nanoseconds.unwrap_or_default())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
